"""Faults that stay with a call, and faults that end a run: what a run makes of them, what the records and the report say, and
that a healthy endpoint afterwards gives what an undisturbed run gives."""

import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from core.records import LOST
from serve.client import ChatClient
from serve.dialect import PROBE
from tests.conftest import EscEval
from tests.endpoint import FAULTS, LASTING, Answer, Endpoint, Faulty, bomb, echo, error
from tests.evalsuite.test_faults import MODELS, config, one_line, outputs, run_at
from tests.processes import started

pytestmark = pytest.mark.slow


def small(endpoint: Endpoint) -> list[dict[str, Any]]:
    """The questions that a run asks of itself, to learn what a server refuses."""
    return [body for body in endpoint.requests if body["messages"][-1]["content"].endswith(PROBE)]


def lasting(faults: Sequence[Answer]) -> Callable[[dict[str, Any], int], Answer]:
    """The n-th seeker (by the number in its card) meets the n-th fault at every call; everybody else is answered."""

    def behave(body: dict[str, Any], count: int) -> Answer:
        number = None if "structured_outputs" in body else re.search(r"\((\d+)\)", body["messages"][0]["content"])
        return faults[int(number[1])] if number and int(number[1]) < len(faults) else echo(body, count)

    return behave


def read(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize("outcome", LASTING)
def test_what_a_fault_that_stays_makes_of_a_dialogue_and_what_a_healthy_endpoint_makes_of_that(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """Every fault that the endpoint knows, each at one dialogue; two more dialogues are held."""
    faults = LASTING[outcome]
    again = outcome in LOST
    if outcome != "rejected":  # once is enough for what the report says
        monkeypatch.setattr("evalsuite.report.content.report_run", lambda *given: None)
    monkeypatch.setattr(
        "evalsuite.runner.engine.ChatClient", partial(ChatClient, attempts=3, backoff_s=0.001, lost_in_a_row=99)
    )
    config(tmp_path, len(faults) + 2, exchanges=1)
    with Endpoint(models=MODELS) as sound:
        assert esc_eval(*run_at(sound.url, "undisturbed"))[0] == 0
    with Endpoint(lasting(list(faults.values())), models=MODELS) as endpoint:
        code, err = esc_eval(*run_at(endpoint.url))
        assert code == (1 if again else 0)
        assert not again or (err.count("\n") == 1 and f"error: {len(faults)} dialogues and the judgements of 0 more" in err)
        kept = sum(endpoint.answered.values()) - len(small(endpoint))
    ends = [dialogue["termination"] for dialogue in read("run/dialogues.jsonl")]
    assert ends == [outcome] * len(faults) + ["max_turns"] * 2
    assert [d["turns"][1:] for d in read("run/dialogues.jsonl")][: len(faults)] == [[]] * len(faults), (
        "no partial text is a turn"
    )
    unjudged = [verdict for verdict in read("run/judgements.jsonl") if verdict["value"] is None]
    assert len(unjudged) == 7 * len(faults)
    assert {verdict["condition"]["failure"] for verdict in unjudged} == {outcome if again else "no_supporter_turn"}
    if again:
        calls = json.loads(Path("run/failures.json").read_text())["simulate"]
        assert {call["outcome"] for call in calls} == {outcome} and len({call["dialogue"] for call in calls}) == len(faults)
        assert all("hunter2" not in call["reason"] and call["reason"].startswith("model embedded at") for call in calls)
    else:
        assert not Path("run/failures.json").exists()
    if outcome == "rejected":
        report = Path("run/report.md").read_text()
        assert "Calls that were not answered" in report and "the messages are not valid" in report
        assert f"{len(faults)} ended because a server rejected a call" in report and Path("run/tables/failures.csv").exists()
    with Endpoint(models=MODELS) as back:
        assert esc_eval(*run_at(back.url)) == (0, "")
        assert len(back.requests) == (3 * (len(faults) + 2) - kept if again else 0)
    if again:
        assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")
    else:
        assert [dialogue["termination"] for dialogue in read("run/dialogues.jsonl")] == ends


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    "fault", [error(400, "no"), Answer("4444444", finish_reason="abort"), bomb(9)], ids=["400", "broken off", "too large"]
)
def test_a_judges_call_that_is_rejected_is_a_lost_verdict_and_never_a_score(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Answer
) -> None:
    monkeypatch.setattr("evalsuite.runner.engine.ChatClient", partial(ChatClient, attempts=2, backoff_s=0.001))
    config(tmp_path, 2, exchanges=1)

    def behave(body: dict[str, Any], count: int) -> Answer:
        return fault if "Fluency" in body["messages"][0]["content"] else echo(body, count)

    with Endpoint(models=MODELS) as sound:
        assert esc_eval(*run_at(sound.url, "undisturbed"))[0] == 0
    with Endpoint(behave, models=MODELS) as endpoint:
        one_line(esc_eval(*run_at(endpoint.url)), 1, "0 dialogues and the judgements of 2 more", "2 calls rejected, 0 lost")
    verdicts = [(j["value"], j["expected"], j["raw"], j["condition"]["failure"]) for j in read("run/judgements.jsonl")]
    assert verdicts == [(None, None, "", "rejected")] * 14
    failures = json.loads(Path("run/failures.json").read_text())
    assert list(failures) == ["score"] and {call["role"] for call in failures["score"]} == {"judge"}
    with Endpoint(models=MODELS) as back:
        assert esc_eval(*run_at(back.url)) == (0, "") and len(back.requests) == 2
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("fault", "option", "cause"),
    [
        (error(401, "the key was revoked"), (), "HTTP 401: the key was revoked (set fail_on_error N to continue"),
        (error(404, "no such model"), (), "HTTP 404: no such model"),
        (error(400, "broken"), ("--set", "fail_on_error=3"), "3 of 12 dialogues failed (fail_on_error 3)"),
        (error(400, "broken"), ("--set", "fail_on_error=0.3"), "4 of 12 dialogues failed (fail_on_error 0.3)"),
        (error(403, "broken"), ("--set", "fail_on_error=1000"), None),
    ],
    ids=["401", "404", "a number", "a share", "goes on in spite of 403"],
)
def test_a_run_ends_early_by_its_threshold_and_writes_everything(
    esc_eval: EscEval,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Answer,
    option: tuple[str, ...],
    cause: str | None,
) -> None:
    """From the ninth request on every call fails, two at a time; one exchange, so three calls per dialogue, 36 in all."""
    with_report = fault.status == 401  # once is enough, for the gold set too
    if not with_report:
        monkeypatch.setattr("evalsuite.report.content.report_run", lambda *given: None)
    gold = {"dialogues": "synthetic_test", "limit": 1} if with_report else None
    config(tmp_path, 12, exchanges=1, concurrency=2, gold=gold)
    with Endpoint(lambda body, count: echo(body, count) if count <= 8 else fault, models=MODELS) as endpoint:
        code, err = esc_eval(*run_at(endpoint.url), *option)
        assert code == 1 and err.count("\n") == 1 and "same command again" in err
        assert ("the run ended early: " in err) == (cause is not None) and (cause or "HTTP 403: broken") in err
        # At most as many as may fail, each with a call more, and one that was under way.
        assert len(endpoint.requests) <= 8 + (30 if cause is None else 10)
        kept = sum(endpoint.answered.values()) - len(small(endpoint))
    assert len(read("run/dialogues.jsonl")) == 12 and len(read("run/judgements.jsonl")) == 84
    assert not Path("run/gold_judgements.jsonl").exists(), "a run that ended early leaves the gold set for later"
    assert Path("run/report.html").exists() == with_report
    with Endpoint(models=MODELS) as back:
        assert esc_eval(*run_at(back.url)) == (0, "")
        assert len(back.requests) == 36 + (gold is not None) - kept
    assert not Path("run/failures.json").exists() and Path("run/gold_judgements.jsonl").exists() == with_report


@pytest.mark.usefixtures("no_report")
def test_a_model_that_rejects_the_first_twenty_calls_ends_the_run(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 40, exchanges=1, concurrency=4)
    with Endpoint(lambda body, count: error(400, "unknown field: seed"), models=MODELS) as endpoint:
        told = "nothing was answered, run is as it was: the first 20 calls were all rejected: model embedded at"
        one_line(esc_eval(*run_at(endpoint.url)), 2, told, "unknown field: seed")
        assert 20 <= len(endpoint.requests) - len(small(endpoint)) <= 23
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("soft", "hard"), [(60, 60), (40, 300)], ids=["a low limit", "a low limit that may be raised"])
def test_no_more_connections_than_files_may_be_open(tmp_path: Path, soft: int, hard: int) -> None:
    """60 dialogues, 100 calls at once; the limit is a real one, of a process of its own."""
    config(tmp_path, 60, exchanges=1, concurrency=100)
    log = tmp_path / "log"
    with Endpoint(lambda body, count: Answer(echo(body, count).text, delay=1.0), models=MODELS) as endpoint:
        process = started("run", "--only", "simulate", *run_at(endpoint.url)[1:], folder=tmp_path, log=log, files=(soft, hard))
        process.join(240)
        assert (process.exitcode, log.with_suffix(".err").read_text()) == (0, "")
        assert 16 < endpoint.most < soft or hard > soft
        assert len(endpoint.requests) == 120, "what was answered is not asked again"
    ends = [json.loads(line)["termination"] for line in (tmp_path / "run" / "dialogues.jsonl").read_text().splitlines()]
    assert ends == ["max_turns"] * 60


def test_shards_merged_list_the_failed_calls_of_all_and_add_up_what_was_cut_off(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 4, exchanges=1)
    reject, cut = error(400, "broken"), Answer("I hear you", finish_reason="length")
    with Endpoint(lasting([reject, cut, cut, reject]), models=MODELS) as endpoint:
        for index in (1, 2):
            code, err = esc_eval("run", "--only", "simulate", *run_at(endpoint.url, f"s{index}")[1:], "--shard", f"{index}/2")
            assert code == 1 and "1 dialogues" in err
        one_line(esc_eval("merge", "s1", "s2", "--out", "merged"), 1, "2 dialogues are missing because a server failed")
    failures = json.loads(Path("merged/failures.json").read_text())["simulate"]
    assert {call["dialogue"] for call in failures} == {d["id"] for d in read("merged/dialogues.jsonl") if not d["turns"][1:]}
    assert json.loads(Path("merged/usage.json").read_text())["simulate"]["seeker"]["embedded"]["cut_off"] == {"seeker": 2}


# A week of paid calls in a few minutes: many dialogues, a third of all calls failing, few open files, and signals.
EXCHANGES = 2
CALLS = 2 * EXCHANGES + 1  # of a dialogue: both sides, and the judge
FILES = 256  # as many may be open
SIGNALS = ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143), (signal.SIGINT, 130))  # in turn, with their exit codes


def stored(folder: Path) -> set[tuple[str, str]]:
    """Each call that the store has, and what was answered."""
    with closing(sqlite3.connect(folder / "calls.sqlite")) as db:
        return set(db.execute("SELECT key, json_extract(CAST(reply AS TEXT), '$.text') FROM calls"))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("dialogues", "every"), [(100, 3.0), (10_000, 20.0)], ids=["100 dialogues", "10,000 dialogues"])
def test_faults_few_files_and_a_signal_every_so_often_lose_nothing_and_ask_nothing_twice(
    tmp_path: Path, dialogues: int, every: float
) -> None:
    """`every`: seconds from a start to its signal. What was answered, but not stored yet when it came, is asked again."""
    config(tmp_path, dialogues, exchanges=EXCHANGES)
    log = tmp_path / "log"
    limits = ("--set", "call_timeout=5s", "--set", "patience=10m")

    def start(url: str, out: str) -> ForkServerProcess:
        log.with_suffix(".err").unlink(missing_ok=True)
        return started(*run_at(url, out), *limits, folder=tmp_path, log=log, files=(FILES, FILES))

    with Endpoint(models=MODELS) as sound:
        process = start(sound.url, "undisturbed")
        process.join()
        assert process.exitcode == 0, log.with_suffix(".err").read_text()
    # A call has eight tries: of 50,000, about three meet a fault in each, and are asked when the command is typed again.
    faults, kills, again, began = Faulty(0.3), 0, 0, time.monotonic()
    with Endpoint(faults, models=MODELS) as endpoint:
        while True:
            process = start(endpoint.url, "run")
            process.join(every if kills < 15 else None)
            if process.exitcode == 1 and "are missing" in log.with_suffix(".err").read_text() and again < 5:
                again += 1
                continue
            if process.exitcode is not None:
                break
            number, code = SIGNALS[kills % len(SIGNALS)]
            assert process.pid
            os.kill(process.pid, number)
            process.join()
            assert process.exitcode == code, log.with_suffix(".err").read_text()
            kills += 1
        assert (process.exitcode, log.with_suffix(".err").read_text()) == (0, "")
        twice = sum(endpoint.answered.values()) - len(endpoint.answered)
        # Shown with `pytest -s`: figures for the record.
        print(
            f"{dialogues} dialogues, {len(endpoint.answered)} calls answered, {len(endpoint.requests)} requests, "
            f"{faults.given.total()} faults, {kills} signals, {again} times typed again, {twice} answers lost in them, "
            f"at most {endpoint.most} at once, {time.monotonic() - began:.0f} s"
        )
        assert set(faults.given) == set(FAULTS) or dialogues < 1000
        assert len(endpoint.answered) == CALLS * dialogues
        assert twice <= kills * endpoint.most and endpoint.most < FILES
    assert kills or dialogues < 1000
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")
    assert stored(tmp_path / "run") == stored(tmp_path / "undisturbed")
