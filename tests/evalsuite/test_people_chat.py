"""People talk to supporters: what is said is kept, failures end nothing, ratings in mid-talk and at the end, records of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore
from core.rubrics import load_rubric
from evalsuite.people.assignment import Item, Person, assign_talks
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.browsing import no_errors, text_of, until
from tests.evalsuite.test_people_browser import click, enter, press, saved, submit
from tests.people_study import SCRIPT, Client, cards, links, served

KEYS = list(load_rubric("emoharbor").dimensions)
FAILING: list[bool] = []  # not empty: supporters answer with an error


@pytest.fixture
def supporter() -> Iterator[Endpoint]:
    """Two models that say how many messages they were sent, and fail where they are told to."""

    FAILING.clear()

    def behave(body: dict[str, Any], count: int) -> Answer:
        if FAILING:
            return Answer(status=400)
        return Answer(f"I heard {len(body['messages'])}. {SCRIPT}")

    with Endpoint(behave, models=("alpha", "beta")) as endpoint:
        yield endpoint


def create(esc_eval: EscEval, endpoint: Endpoint, *more: object) -> None:
    Path("consent.txt").write_text("We keep what you write.")
    models = ("--supporter", f"alpha@{endpoint.url}", "--supporter", f"beta@{endpoint.url}")
    given = ("--rubric", "emoharbor", "--consent", "consent.txt", "--least", 1, "--exchanges", 2, "--rater", "ann=en", *more)
    assert esc_eval("people", "create", "s", *models, *given) == (0, "")


def test_supporters_are_balanced_over_people_and_cards_go_round() -> None:
    people = [Person(f"p{n}", ("en",)) for n in range(6)]
    tasks = assign_talks(people, ["a", "b", "c"], [Item("c0", "en"), Item("c1", "en")], seed=3)
    places = Counter((task.details["supporter"], task.place) for task in tasks)
    assert len(places) == 9 and set(places.values()) == {2}
    assert Counter(task.item for task in tasks) == {"c0": 9, "c1": 9}


def test_a_talk_over_http_is_kept_line_by_line_and_becomes_records(
    supporter: Endpoint, esc_eval: EscEval, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "c.jsonl", cards(1))
    create(esc_eval, supporter, "--cards", "c.jsonl", "--rate-after", 1)
    with served(tmp_path / "s") as (address, store):
        ann = Client(address).enter(links(tmp_path / "s")["ann"])
        assert "We keep what you write." in ann.request("GET", "/")[1]
        assert ann.request("POST", "/api/me", {"consented": True})[0] == 200
        first, second = ann.tasks()
        page = ann.request("GET", f"/task/{first}")[1]
        assert "The cat is gone (0)." in page and "alpha" not in page and "beta" not in page
        danger = {"text": "I want to kill myself.", "turn": 0}
        assert ann.talk(first, "say", danger) == (200, {"help": True}), "the page shows whom to call before any model answers"
        assert ann.talk(first, "say", danger) == (200, {"help": True}) and not supporter.requests
        assert len(store.task(first, "ann").details["turns"]) == 1, "the same line again is said once"
        status, said = ann.talk(first, "reply", {})
        assert status == 200 and said["reload"], "a rating is due after one exchange"
        assert ann.talk(first, "reply", {}) == (200, {"reload": True}) and len(supporter.requests) == 1
        assert ann.talk(first, "say", {"text": "Go on.", "turn": 2})[0] == 409, "not before it is rated"
        assert ann.put(first, KEYS[0], value=3)[0] == 422, "the whole talk is rated at its end"
        for key in KEYS:
            assert ann.put(first, key, 1, value=3)[0] == 200
        assert ann.submit(first)[1]["word"] == "talk_open"
        assert ann.talk(first, "say", {"text": "Go on.", "turn": 2})[0] == 200
        status, said = ann.talk(first, "reply", {})
        assert status == 200 and said["reload"] and "heard 3." in said["reply"], "two exchanges: the talk ends"
        assert ann.talk(first, "say", {"text": "More.", "turn": 4})[0] == 409
        for key in KEYS:
            assert ann.put(first, key, value=4)[0] == 200
        assert ann.submit(first)[0] == 200
        FAILING.append(True)
        assert ann.talk(second, "say", {"text": "FAIL", "turn": 0}) == (200, {"help": False})
        status, said = ann.talk(second, "reply", {})
        assert status == 200 and said["word"] == "rejected" and "does not answer (its server refuses)" in said["message"]
        assert "alpha" not in said["message"] and "127.0.0.1" not in said["message"]
        assert store.task(second, "ann").details["turns"] == [["seeker", "FAIL"]], "what was said is kept"
        FAILING.clear()
        assert ann.talk(second, "reply", {})[0] == 200
        assert len(store.task(second, "ann").details["turns"]) == 2
        assert ann.talk(second, "leave", {})[0] == 200
        other = Client(address).enter(links(tmp_path / "s")["organiser"])
        assert other.talk(second, "say", {"text": "x", "turn": 2})[0] == 403
    assert esc_eval("people", "export", "s", "--out", "out") == (0, "")
    held = {d.supporter: d for d in read_jsonl(Path("out/dialogues.jsonl"), Dialogue, "dialogues")}
    assert set(held) == {"alpha", "beta"}
    assert {(d.termination, len(d.turns), d.card_id, d.source_id) for d in held.values()} == {
        ("max_turns", 4, "c0", "ann"),
        ("seeker_ended", 2, "c0", "ann"),
    }
    scores = read_jsonl(Path("out/scores.jsonl"), HumanScore, "scores")
    assert Counter((s.turn, s.value) for s in scores) == {(1, 3): len(KEYS), (None, 4): len(KEYS)}
    assert b"kill myself" not in (tmp_path / "s" / "calls.sqlite").read_bytes(), "the store of calls keeps no messages"
    assert esc_eval("people", "delete", "s", "--yes") == (0, "") and not (tmp_path / "s").exists()


def test_a_talk_needs_consent_and_something_to_rate_it_on(esc_eval: EscEval, tmp_path: Path) -> None:
    (tmp_path / "consent.txt").write_text("Yes.")
    model = ("--supporter", "alpha@http://127.0.0.1:9/v1", "--raters", 2)
    for given, message in [
        (model, "what is the talk rated on"),
        ((*model, "--rubric", "emoharbor"), "say what they agree to"),
        ((*model, "--rubric", "role_play", "--consent", "consent.txt"), "rates the seeker, who is the person that talks"),
    ]:
        code, error = esc_eval("people", "create", "s", *given)
        assert code == 2 and message in error and not (tmp_path / "s").exists()


@pytest.mark.browser
def test_a_talk_in_the_browser(supporter: Endpoint, browser: webdriver.Chrome, esc_eval: EscEval, tmp_path: Path) -> None:
    create(esc_eval, supporter, "--rate-after", 1)
    with served(tmp_path / "s") as (address, _):
        enter(browser, address, links(tmp_path / "s")["ann"])
        click(browser, "#agree")
        until(browser, "return document.getElementById('go') !== null")
        click(browser, "#go")
        until(browser, "return document.getElementById('line') !== null")
        assert "You are talking to a computer program" in browser.page_source

        def say(text: str) -> None:
            until(browser, "return document.getElementById('line') && !document.getElementById('line').disabled")
            browser.execute_script("document.getElementById('line').focus()")
            press(browser, text, "\ue007")

        say("My cat ran away.")
        until(browser, "return document.querySelectorAll('fieldset.question').length === 10")
        assert SCRIPT in text_of(browser, ".turn.supporter")[0] and browser.title == "Study", "a script in a reply is text"
        assert "Please rate the talk so far" in browser.page_source and not browser.execute_script(
            "return document.getElementById('help').offsetHeight"
        )
        for _ in KEYS:
            press(browser, "4", "\ue015")
        saved(browser)
        click(browser, "#on")
        say("I want to kill myself.")
        until(browser, "return document.getElementById('submit') !== null")
        assert browser.execute_script("return document.getElementById('help').offsetHeight") > 0, "help lines are shown"
        for key in KEYS:
            click(browser, f"fieldset[data-question={key}][data-turn=''] input[value='2']")
        saved(browser)
        submit(browser)
        no_errors(browser)
        FAILING.append(True)
        say("FAIL")
        until(browser, "return !document.getElementById('banner').hidden")
        assert "does not answer" in text_of(browser, "#banner")[0]
        assert "FAIL" in text_of(browser, ".turn.seeker")[0]
        browser.refresh()
        assert "FAIL" in text_of(browser, ".turn.seeker")[0], "kept"
        FAILING.clear()
        click(browser, "#again")
        until(browser, "return document.querySelectorAll('fieldset.question').length === 10")
        click(browser, "#on")
        until(browser, "return document.getElementById('banner') !== null")
    assert esc_eval("people", "export", "s", "--out", "out", "--unfinished") == (0, "")
    assert len(read_jsonl(Path("out/dialogues.jsonl"), Dialogue, "dialogues")) == 2
