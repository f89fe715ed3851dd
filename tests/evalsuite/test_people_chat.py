"""People talk to supporters: what is said is kept, failures end nothing, ratings in mid-talk and at the end, records of it."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore
from core.rubrics import load_rubric
from evalsuite.people.study import Item, Person, assign_talks
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.browsing import no_errors, text_of, until
from tests.evalsuite.test_people_browser import accessible, click, enter, press, saved, submit
from tests.people_study import SCRIPT, Client, cards, exported, links, served

KEYS = list(load_rubric("emoharbor").dimensions)
FAILING: list[bool] = []  # not empty: supporters answer with an error
BREAKING: list[bool] = []  # not empty: they break off in the middle
SLOWLY: list[float] = []  # not empty: they take so many seconds to write


@pytest.fixture
def supporter() -> Iterator[Endpoint]:
    """Two models that say how many messages they were sent, and fail where they are told to."""

    for told in (FAILING, BREAKING, SLOWLY):
        told.clear()

    def behave(body: dict[str, Any], count: int) -> Answer:
        if FAILING:
            return Answer(status=400)
        said = f"I heard {len(body['messages'])}. {SCRIPT}"
        return Answer(said, cut=bool(BREAKING), drip=SLOWLY[0] if SLOWLY else 0)

    with Endpoint(behave, models=("alpha", "beta")) as endpoint:
        yield endpoint


def create(esc_eval: EscEval, endpoint: Endpoint, *more: object, rated: Sequence[int] = ()) -> None:
    Path("consent.txt").write_text("We keep what you write.")
    Path("recipe.yaml").write_text(json.dumps({"rubric": "emoharbor", "least": 1, "most": 2, "rate_after": rated}))
    models = ("--supporter", f"alpha@{endpoint.url}", "--supporter", f"beta@{endpoint.url}")
    given = ("--config", "recipe.yaml", "--consent", "consent.txt", "--raters", "ann=en", *more)
    assert esc_eval("people", "create", "s", *models, *given) == (0, "")


def test_supporters_are_balanced_over_people_and_cards_go_round() -> None:
    people = [Person(f"p{n}", ("en",)) for n in range(6)]
    tasks = assign_talks(people, ["a", "b", "c"], [Item("c0", "en"), Item("c1", "en")], seed=3)
    places = Counter((task.details["supporter"], task.place) for task in tasks)
    assert len(places) == 9 and set(places.values()) == {2}
    assert Counter(task.item for task in tasks) == {"c0": 9, "c1": 9}


def test_a_talk_over_http_is_kept_line_by_line_and_becomes_records(
    supporter: Endpoint, esc_eval: EscEval, tmp_path: Path, database: str | None
) -> None:
    write_jsonl(tmp_path / "c.jsonl", cards(1))
    create(esc_eval, supporter, "--cards", "c.jsonl", rated=[1])
    with served(tmp_path / "s", database) as (address, store):
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
        ann.rate(first, KEYS, 4)
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
    assert esc_eval("people", "results", "s", "--out", "out") == (0, "")
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


def test_a_reply_is_heard_while_it_is_written_in_every_tab_and_can_be_left(
    supporter: Endpoint, esc_eval: EscEval, tmp_path: Path
) -> None:
    create(esc_eval, supporter, "--raters", "bo=en")
    with served(tmp_path / "s") as (address, store):
        ann = Client(address).enter(links(tmp_path / "s")["ann"])
        assert ann.request("POST", "/api/me", {"consented": True})[0] == 200
        first, second = ann.tasks()
        bo = Client(address).enter(links(tmp_path / "s")["bo"])
        assert bo.talk(bo_first := store.tasks("bo")[0].id, "say", {"text": "Hi.", "turn": 0})[1]["word"] == "no_consent"
        assert bo.request("POST", "/api/me", {"consented": True})[0] == 200
        for path, body in (("say", {"text": "Hi.", "turn": 0}), ("reply", {}), ("leave", {})):
            assert bo.talk(first, path, body)[0] == 404, "another's talk"
        assert bo.talk(bo_first, "say", {"text": "x" * 4001, "turn": 0})[0] == 422
        assert not store.task(first, "ann").details["turns"] and not supporter.requests
        SLOWLY.append(1.5)
        assert ann.talk(first, "say", {"text": "Hello.", "turn": 0})[0] == 200
        with ThreadPoolExecutor() as tabs:
            heard = list(tabs.map(lambda _: ann.request("POST", f"/api/talk/{first}/reply", {})[1], range(2)))
        lines = [[json.loads(line) for line in one.splitlines()] for one in heard]
        assert len(supporter.requests) == 1, "two tabs hear one reply"
        for one in lines:
            *begun, last = one
            assert last == {"reply": f"I heard 1. {SCRIPT}", "reload": False}
            assert begun and all(last["reply"].startswith(part["text"]) for part in begun)
            assert begun[0]["text"] != last["reply"], "not all at once"
        BREAKING.append(True)
        assert ann.talk(first, "say", {"text": "More.", "turn": 2})[0] == 200
        _, last = ann.talk(first, "reply", {})
        assert (
            last["word"] == "infrastructure"
            and last["broken"].startswith("I heard 3.")
            and "What was said is kept" in last["message"]
        )
        page = ann.request("GET", f"/task/{first}")[1]
        assert 'class="turn supporter broken"' in page and "I heard 3." in page, "what was heard of it stays on the page"
        assert [text for _, text in store.task(first, "ann").details["turns"]][-1] == "More.", "and is no turn"
        BREAKING.clear()
        assert ann.talk(first, "reply", {})[1]["reply"].startswith("I heard 3.")
        assert 'class="turn supporter broken"' not in ann.request("GET", f"/task/{first}")[1]
        SLOWLY[0] = 120
        assert ann.talk(second, "say", {"text": "Hello.", "turn": 0})[0] == 200
        with ThreadPoolExecutor() as tabs:
            waiting = tabs.submit(ann.talk, second, "reply", {})
            while len(supporter.requests) < 6:
                time.sleep(0.05)
            assert ann.talk(second, "leave", {})[1] == {"reload": True}
            assert waiting.result(60)[1] == {"reload": True}, "who leaves does not wait for the supporter"
        assert store.task(second, "ann").details["ended"] == "seeker_ended"


@pytest.mark.browser
def test_a_talk_in_the_browser(
    supporter: Endpoint, browser: webdriver.Chrome, esc_eval: EscEval, tmp_path: Path, browsed_database: str | None
) -> None:
    create(esc_eval, supporter, rated=[1])
    with served(tmp_path / "s", browsed_database) as (address, _):

        def say(text: str) -> None:
            until(browser, "return document.getElementById('line') && !document.getElementById('line').disabled")
            browser.execute_script("document.getElementById('line').focus()")
            press(browser, text, "\ue007")

        enter(browser, address, links(tmp_path / "s")["ann"])
        click(browser, "#agree")
        until(browser, "return document.getElementById('go') !== null")
        click(browser, "#go")
        until(browser, "return document.getElementById('line') !== null")
        assert "You are talking to a computer program" in browser.page_source
        accessible(browser)
        say("My cat ran away.")
        until(browser, "return document.querySelectorAll('fieldset.question').length === 10")
        assert SCRIPT in text_of(browser, ".turn.supporter")[0] and browser.title == "Study", "a script in a reply is text"
        assert "Please rate the talk so far" in browser.page_source and not browser.execute_script(
            "return document.getElementById('help').offsetHeight"
        )
        accessible(browser)
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
        # A reply grows under the eyes of whoever waits for it.
        SLOWLY.append(1.5)
        browser.execute_script(
            "window.seen = [];"
            "const last = () => [...document.querySelectorAll('.turn.supporter')].at(-1).lastChild.textContent;"
            "const watched = {subtree: true, childList: true, characterData: true};"
            "new MutationObserver(() => seen.push(last())).observe(document.getElementById('turns'), watched)"
        )
        BREAKING.append(True)
        say("Are you there?")
        until(browser, "return !document.getElementById('banner').hidden")
        seen = browser.execute_script("return [...new Set(window.seen)]")
        assert len([text for text in seen if text and f"I heard 1. {SCRIPT}".startswith(text)]) >= 2, seen
        assert "broken off" in text_of(browser, ".turn.broken")[0] and "What was said is kept" in text_of(browser, "#banner")[0]
        browser.refresh()
        assert "Are you there?" in text_of(browser, ".turn.seeker")[0], "kept"
        BREAKING.clear()
        SLOWLY.clear()
        click(browser, "#again")
        until(browser, "return document.querySelectorAll('fieldset.question').length === 10")
    talks = exported(esc_eval, "dialogues.jsonl")
    assert [talk.turns[0].text for talk in talks] == ["My cat ran away.", "Are you there?"]
    assert len({talk.supporter for talk in talks}) == 2
