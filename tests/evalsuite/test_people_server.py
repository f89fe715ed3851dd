"""A study's server over HTTP: what is saved, what is refused, what a killed server keeps. The browser has tests of its own."""

import http.client
import json
import random
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from core.files import write_jsonl
from core.records import HumanScore
from core.rubrics import load_rubric
from evalsuite.people.chat import trouble
from evalsuite.people.results import progress
from evalsuite.people.store import RaterAnswer, RefusedAnswer, StudyStore, TaskRow
from tests.conftest import EscEval
from tests.people_study import (
    Client,
    exported,
    free_port,
    links,
    make_study,
    process,
    rating,
    served,
    url_of,
    write_dialogues,
)

pytestmark = pytest.mark.slow

RUBRIC = load_rubric("esc_eval_human")
KEYS = list(RUBRIC.dimensions)


@pytest.fixture
def store(database: str | None, esc_eval: EscEval, tmp_path: Path) -> Iterator[StudyStore]:
    """A study on either database."""
    folder = make_study(esc_eval, raters=3)
    assert esc_eval("people", "results", "s")[0] == 0
    made = StudyStore(database or url_of(folder), "s")
    yield made
    made.close()
    assert esc_eval("people", "delete", "s", "--yes") == (0, "")
    if database:
        (tmp_path / "s").mkdir()
        code, error = esc_eval("people", "results", "s")
        assert code == 2 and "no study s" in error


# --- saving -----------------------------------------------------------------------------------------------------------------


def test_a_study_from_links_to_records_that_agree_reads(study: Path, esc_eval: EscEval) -> None:
    with served(study) as (address, _):
        given: dict[tuple[str, str], float] = {}
        for code in ("r01", "r02", "r03"):
            rater = Client(address).enter(links(study)[code])
            tasks = rater.tasks()
            assert len(tasks) == 4
            for task in tasks:
                for place, key in enumerate(KEYS):
                    value = (task + place) % 5
                    assert rater.put(task, key, value=value) == (200, {"version": 1})
                    given[code, key] = given.get((code, key), 0) + value
                assert rater.put(task, "comment", text="=1+1")[0] == 200
                assert rater.submit(task)[0] == 200
            assert "All done" in rater.request("GET", "/")[1]
    scores = exported(esc_eval)
    assert len(scores) == 12 * len(KEYS) and {score.rubric for score in scores} == {RUBRIC.name}
    sums: dict[tuple[str, str], float] = {}
    for score in scores:
        sums[score.annotator, score.dimension] = sums.get((score.annotator, score.dimension), 0) + score.value
    assert sums == given, "what was clicked is what is exported"
    assert esc_eval("agree", "--gold", "out/scores.csv", "--out", "agreed")[0] == 0
    (row, *_) = json.loads(Path("agreed/annotators.json").read_text())["annotators"]
    assert (row["people"], row["n"]) == (3, 6)
    assert esc_eval("leaderboard", "--dialogues", "out/dialogues.jsonl", "--gold", "out/scores.csv", "--out", "b") == (0, "")
    assert "'=1+1" in Path("out/comments.csv").read_text(), "a spreadsheet runs nothing in a comment"
    assert esc_eval("people", "results", "s", "--out", "bare", "--without-comments") == (0, "")
    assert not Path("bare/comments.csv").exists()


def test_pairs_of_supporters_become_preferences(esc_eval: EscEval, tmp_path: Path) -> None:
    write_dialogues(tmp_path / "d.jsonl", count=2)
    given = ("--dialogues", "d.jsonl", "--raters", 2, "--set", "questions.warm=Who is warmer?")
    assert esc_eval("people", "create", "s", *given) == (0, "")
    with served(tmp_path / "s") as (address, store):
        for code, wanted in (("r01", "a"), ("r02", "tie")):
            rater = Client(address).enter(links(tmp_path / "s")[code])
            for task in rater.tasks():
                assert rater.put(task, "warm", choice=wanted)[0] == 200
                assert rater.put(task, "warm", value=1)[0] == 422 and rater.submit(task)[0] == 200
        shown = {(task.item, task.rater): task.order for task in store.tasks()}
    chosen = exported(esc_eval, "preferences.jsonl")
    assert sorted((p.annotator, p.dialogue_a, p.verdict, p.question) for p in chosen) == [
        (code, f"alpha-en-{card}", verdict, "warm") for code, verdict in (("r01", "a"), ("r02", "tie")) for card in (0, 1)
    ]
    assert sorted(p.order for p in chosen) == sorted(shown.values()) == ["ab", "ab", "ba", "ba"]
    assert esc_eval("paper", "role-play", "out/choices.csv", "--out", "pairs")[0] == 0


def test_the_same_answer_twice_counts_once_and_another_tab_is_not_overwritten_unseen(store: StudyStore) -> None:
    task = next(one for one in store.tasks() if one.purpose == "item")
    save = ("empathy", None)
    saved = RaterAnswer(3), 1
    assert store.save(task.id, task.rater, *save, RaterAnswer(3), 0) == saved
    assert store.save(task.id, task.rater, *save, RaterAnswer(3), 0) == saved, "sent again, because the first reply got lost"
    assert store.save(task.id, task.rater, *save, RaterAnswer(2), 1) == (RaterAnswer(2), 2)
    assert store.save(task.id, task.rater, *save, RaterAnswer(4), 1) == (RaterAnswer(2), 2)
    with pytest.raises(RefusedAnswer, match="no_task"):
        store.save(task.id, "somebody", *save, RaterAnswer(4), 2)
    ((answer, version),) = store.answers([task.id])[task.id].values()
    assert (answer, version) == (RaterAnswer(2), 2)
    assert store.submit(task.id, task.rater, [("empathy", None), ("skill", None)]) == [("skill", None)]
    store.save(task.id, task.rater, "skill", None, RaterAnswer(cannot=True), 0)
    assert store.submit(task.id, task.rater, [("empathy", None), ("skill", None)]) == []
    with pytest.raises(RefusedAnswer, match="submitted"):
        store.save(task.id, task.rater, *save, RaterAnswer(4), 2)


def test_two_tabs_that_give_the_first_answer_at_once(store: StudyStore) -> None:
    """Of forty that save at the same moment, one is first; everybody else is told, and nothing else is written."""
    task = next(one for one in store.tasks() if one.purpose == "item")
    with ThreadPoolExecutor(40) as tabs:
        given = [RaterAnswer(value % 5) for value in range(40)]
        outcomes = [*tabs.map(lambda answer: store.save(task.id, task.rater, "empathy", None, answer, 0), given)]
    ((answer, version),) = store.answers([task.id])[task.id].values()
    assert version == 1 and outcomes == [(answer, 1)] * 40
    assert sum(one != answer for one in given) == 32, "eight asked for the value that stands"


def test_attention_checks_and_repeats_are_reported_and_in_no_score(esc_eval: EscEval, tmp_path: Path) -> None:
    held = write_dialogues(tmp_path / "d.jsonl")
    fields = {"language": "en", "annotator": "expected", "rubric": RUBRIC.name, "dimension": "empathy"}
    write_jsonl(tmp_path / "checks.jsonl", [HumanScore(dialogue_id=held[0].id, value=4, **fields)])
    folder = make_study(esc_eval, "--set", "repeats=1", "--set", "checks=checks.jsonl")
    with served(folder) as (address, store):
        purposes = {task.id: task.purpose for task in store.tasks()}
        for code, value in (("r01", 4), ("r02", 1)):
            rater = Client(address).enter(links(folder)[code])
            for task in rater.tasks():
                rater.rate(task, KEYS, value, skill=abs(value - 3) if purposes[task] == "repeat" else value)
        (first, second), _ = progress(store)
    assert (first.checks, second.checks) == ([True], [False])
    assert sum(first.repeats) == len(KEYS) - 1 == len(first.repeats) - 1, "4 and then 1 is not the same"
    assert sum(second.repeats) == len(KEYS), "1 and then 2 is within a point"
    scored = {score.dialogue_id for score in exported(esc_eval)}
    assert scored == {one.id for one in held[1:]}
    assert Path("out/control.csv").read_text().count("check") == 2 * len(KEYS)


def test_what_raters_differ_on_waits_for_a_reviewer_and_is_then_accepted(esc_eval: EscEval, tmp_path: Path) -> None:
    folder = make_study(esc_eval, "--set", "reviewers=1", count=1)
    with served(folder) as (address, store):
        dialogue_of = {item: content.dialogue.id for item, content in store.contents().items()}
        reviewer = Client(address).enter(links(folder)["reviewer01"])
        for code, skill in (("r01", 1), ("r02", 3)):
            rater = Client(address).enter(links(folder)[code])
            for task in store.tasks(code):
                assert code == "r02" or not reviewer.tasks(), "the other rater is not through yet"
                rater.rate(task.id, KEYS, 2, skill=skill if dialogue_of[task.item].startswith("alpha") else 2)
        (review,) = reviewer.tasks()
        assert reviewer.tasks() == [review], "it is queued once"
        page = reviewer.request("GET", f"/task/{review}")[1]
        assert "Scores given: 1 / 3" in page and page.count("<fieldset") == 1 and "r01" not in page
        before = exported(esc_eval, "accepted.jsonl", "before")
        assert reviewer.put(review, "empathy", value=2)[0] == 422, "only what is contested is asked"
        assert reviewer.put(review, "skill", value=3)[0] == 200 and reviewer.submit(review)[0] == 200
    after = exported(esc_eval, "accepted.jsonl", "after")
    assert len(before) == 2 * len(KEYS) - 1 and len(after) == 2 * len(KEYS)
    assert {s.value for s in after if s.dimension == "skill"} == {3, 2} and {s.annotator for s in after} == {"accepted"}
    assert {s.annotator for s in exported(esc_eval)} == {"r01", "r02"}, "a reviewer is no rater"


def test_feels_second_round_by_the_same_raters(esc_eval: EscEval, tmp_path: Path, database: str | None) -> None:
    """Who stands out scores again, alone; what nobody agrees on is one task for all; both only once everybody has submitted."""
    more = ("--set", "overlap=3", "--set", "second_round=true")
    make_study(esc_eval, *more, rubric="feel", raters=3, count=1)
    keys = list(load_rubric("feel").dimensions)
    contested = {("alpha-en-0", keys[0]): (1, 1, 3), ("beta-en-0", keys[1]): (0, 1.5, 3)}
    with served(tmp_path / "s", database) as (address, store):
        contents, raters = store.contents(), {}
        for number, code in enumerate(("r01", "r02", "r03")):
            raters[code] = rater = Client(address).enter(links(tmp_path / "s")[code])
            for task in store.tasks(code):
                assert len(raters["r01"].tasks()) == 2, "not before everybody has submitted"
                shown = contents[task.item].dialogue.id
                rater.rate(task.id, keys, 2, **{key: values[number] for (id, key), values in contested.items() if id == shown})
        assert "There may be a second round" in raters["r01"].request("GET", "/")[1]
        later: dict[str, tuple[str, TaskRow]] = {}
        for code, rater in raters.items():
            rater.request("GET", "/")
            later |= {task.purpose: (code, task) for task in store.tasks(code) if task.purpose in ("again", "joint")}
        assert len(store.tasks()) == 8 and later["again"][0] == "r03"
        page = raters["r03"].request("GET", f"/task/{later['again'][1].id}")[1]
        assert "1 / 1 / 3" in page and "Yours: 3." in page and page.count("<fieldset") == 1
        assert "r01" not in page, "the others are not named"
        code, joint = later["joint"]
        assert "All of them review it together" in raters[code].request("GET", f"/task/{joint.id}")[1]
        assert raters["r03"].put(later["again"][1].id, keys[1], value=1)[0] == 422, "only what is contested"
        assert raters["r03"].put(later["again"][1].id, keys[0], value=1.5)[0] == 200
        assert raters["r03"].submit(later["again"][1].id)[0] == 200
        between = {(x.dialogue_id, x.dimension) for x in exported(esc_eval, "accepted.jsonl", "between")}
        assert raters[code].put(joint.id, keys[1], value=2.5)[0] == 200 and raters[code].submit(joint.id)[0] == 200
    assert ("alpha-en-0", keys[0]) in between and ("beta-en-0", keys[1]) not in between
    means = {(x.dialogue_id, x.dimension): x.value for x in exported(esc_eval, "accepted.jsonl")}
    assert means.pop(("alpha-en-0", keys[0])) == pytest.approx((1 + 1 + 1.5) / 3)
    assert means.pop(("beta-en-0", keys[1])) == 2.5 and set(means.values()) == {2} and len(means) == 10
    final = exported(esc_eval, "final.jsonl")
    assert len(final) == 36 and {x.value for x in final if (x.dialogue_id, x.dimension) == ("beta-en-0", keys[1])} == {2.5}
    assert [x.value for x in exported(esc_eval) if (x.dialogue_id, x.dimension) == ("beta-en-0", keys[1])] == [0, 1.5, 3]
    given = ("--dialogues", "d.jsonl", "--rubric", "feel", "--raters", 3, *more, "--set", "reviewers=1")
    refused, error = esc_eval("people", "create", "t", *given)
    assert refused == 2 and "either the raters score again, or reviewers decide" in error


# --- what goes wrong --------------------------------------------------------------------------------------------------------


def test_a_killed_server_keeps_every_acknowledged_answer(
    esc_eval: EscEval, tmp_path: Path, browsed_database: str | None
) -> None:
    """Thirty raters click at once; the server is killed in the middle (SIGKILL) and started again. Counted on both sides."""
    make_study(esc_eval, raters=30, count=15)
    port, stop = free_port(), threading.Event()
    acknowledged: dict[tuple[int, str], int] = {}
    unsure: dict[tuple[int, str], set[int]] = defaultdict(set)  # sent, and the reply got lost: saved or not
    surprises: list[object] = []
    clicks, lost = 0, 0

    def until(count: int) -> None:
        deadline = time.monotonic() + 60
        while clicks < count and time.monotonic() < deadline:
            time.sleep(0.02)

    def click(code: str, client: Client, tasks: list[int]) -> None:
        nonlocal clicks, lost
        rng = random.Random(code)
        while not stop.is_set():
            task, key, value = rng.choice(tasks), rng.choice(KEYS), rng.randrange(5)
            try:
                status, said = client.put(task, key, value=value)
            except (OSError, ValueError, http.client.HTTPException):
                unsure[task, key].add(value)
                lost += 1
                time.sleep(0.05)
                continue
            if status == 409 and said["value"] in unsure[task, key]:  # nobody else answers this rater's tasks
                status, value = 200, said["value"]
            if status == 200:
                clicks += 1
                acknowledged[task, key] = value
                unsure.pop((task, key), None)
            elif status != 429:
                surprises.append(said)
            time.sleep(0.01)

    threads: list[threading.Thread] = []
    with process(tmp_path / "s", port) as server:
        for code, link in links(tmp_path / "s").items():
            if code != "organiser":
                client = Client(f"127.0.0.1:{port}").enter(link)
                threads.append(threading.Thread(target=click, args=(code, client, client.tasks())))
        for thread in threads:
            thread.start()
        until(200)
        server.kill()
        server.join()
        before = clicks
    with process(tmp_path / "s", port):
        until(before + 100)
        stop.set()
        for thread in threads:
            thread.join()
    store = StudyStore(browsed_database or url_of(tmp_path / "s"), "s")
    saved = {(task, name): answer.value for task, found in store.answers().items() for (name, _), (answer, _) in found.items()}
    store.close()
    assert len(threads) == 30 and not surprises, surprises[:3]
    assert before >= 200 and clicks >= before + 100 and lost >= 10, "it was killed in the middle, and went on"
    for key, value in acknowledged.items():
        assert saved[key] == value or saved[key] in unsure[key], (key, value, saved[key], unsure[key])
    assert saved.keys() - acknowledged.keys() <= unsure.keys(), "nothing is there that nobody sent"


def test_a_locked_database_is_said_and_nothing_is_half_written(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.people.store.BUSY_S", 0.2)
    with rating(study) as (rater, task, store):
        holder = sqlite3.connect(study / "study.sqlite", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        status, said = rater.put(task, "empathy", value=3)
        assert status == 503 and said["message"] == "the database is busy. Nothing was changed; try again."
        assert rater.request("GET", f"/task/{task}")[0] == 200, "reading goes on"
        holder.execute("COMMIT")
        holder.close()
        assert not store.answers() and rater.put(task, "empathy", value=3)[0] == 200


def test_a_full_disk_is_said_and_nothing_is_half_written(study: Path) -> None:
    """SQLite's own limit of pages stands for the disk: it fails with the same error."""
    with rating(study) as (rater, task, store):
        assert rater.put(task, "empathy", value=3)[0] == 200

        @event.listens_for(store.engine, "begin")
        def _full(connection: object) -> None:
            connection.exec_driver_sql("PRAGMA max_page_count=1")  # type: ignore[attr-defined]

        status, said = rater.put(task, "comment", text="字" * 4000)
        assert status == 507 and "disk is full" in said["message"]
        event.remove(store.engine, "begin", _full)
        assert set(store.answers()[task]) == {("empathy", None)}


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("database is locked", "database_busy"),
        ("database or disk is full", "disk_full"),
        ("attempt to write a readonly database", "disk_full"),
        ("could not connect", "database_down"),
    ],
)
def test_what_the_database_says_becomes_words(said: str, word: str) -> None:
    assert trouble(OperationalError("", {}, Exception(said))).word == word
