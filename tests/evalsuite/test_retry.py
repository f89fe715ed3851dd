"""Stored bad answers: asked again only by name, the old ones kept; what failed does not stand in the way of what would be
answered; and what `esc-eval status` says of a run."""

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.files import read_jsonl
from core.records import Dialogue
from core.specs import Sampling
from serve.answers import Retry
from serve.client import ChatClient
from serve.failures import NotAsked, ServerLost
from serve.store import CallStore
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.test_faults import MODELS, config, one_line, outputs, run_at
from tests.serve.test_client import ask, question, spec

BAD = {0: Answer(""), 1: Answer("no", finish_reason="content_filter"), 2: Answer("and then I", finish_reason="length")}


def bad(body: dict[str, Any], count: int) -> Answer:
    """The seeker on each of the first cards says something bad, and the judge of the fourth has no verdict."""
    told = " ".join(message["content"] for message in body["messages"])
    if "structured_outputs" in body:
        return Answer("what a sad line") if "the sad line" in told else echo(body, count)
    if "(3)" in told:
        return Answer("the sad line")
    return next((answer for card, answer in BAD.items() if f"({card})" in told), echo(body, count))


def reasons(store: Path) -> dict[str, int]:
    with sqlite3.connect(store) as db:
        return dict(db.execute("SELECT reason, count(*) FROM replaced GROUP BY reason"))


@pytest.mark.usefixtures("no_report")
def test_bad_answers_are_asked_again_by_name_and_what_follows_them_anew(
    esc_eval: EscEval, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config(tmp_path, 5)

    def behave(body: dict[str, Any], count: int) -> Answer:
        return bad(body, count) if ill else sound(body, count)

    def sound(body: dict[str, Any], count: int) -> Answer:
        told = " ".join(message["content"] for message in body["messages"])
        return Answer("the sad line") if "(3)" in told and "structured_outputs" not in body else echo(body, count)

    ill = False
    store = tmp_path / "run" / "calls.sqlite"
    with Endpoint(behave, models=MODELS) as endpoint:
        assert esc_eval(*run_at(endpoint.url, "undisturbed")) == (0, "")
        ill = True
        assert esc_eval(*run_at(endpoint.url)) == (0, "")
        spoilt, asked = outputs(tmp_path / "run"), len(endpoint.requests)
        ill = False
        assert esc_eval(*run_at(endpoint.url)) == (0, "")
        assert outputs(tmp_path / "run") == spoilt and len(endpoint.requests) == asked, "nothing is drawn again in silence"
        one_line(esc_eval(*run_at(endpoint.url), "--retry", "emtpy"), 2, "--retry emtpy", "empty")

        assert esc_eval(*run_at(endpoint.url), "--retry", "empty") == (0, "")
        assert len(endpoint.requests) == asked + 11 and reasons(store) == {"empty": 1}, "one whole dialogue and its judgement"
        assert esc_eval(*run_at(endpoint.url), "--retry", "refusal, length,unreadable") == (0, "")
        assert reasons(store) == {"empty": 1, "refusal": 1, "length": 1, "unreadable": 1}
        assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")
        asked = len(endpoint.requests)
        assert esc_eval(*run_at(endpoint.url), "--retry", "empty,refusal,length,unreadable") == (0, "")
        assert len(endpoint.requests) == asked, "nothing bad is left"


async def test_an_answer_that_stays_bad_is_asked_once_a_command_and_every_old_one_is_kept(tmp_path: Path) -> None:
    with Endpoint(lambda body, count: Answer(f"and {count}", finish_reason="length")) as endpoint:
        seeded = question(sampling=Sampling(seed=3, temperature=1.0))
        await ask(tmp_path, endpoint, seeded)
        for _ in range(2):
            again = await ask(tmp_path, endpoint, seeded, seeded, retry=Retry.parse("length"))
            assert again[0] == again[1]
        assert len({request["seed"] for request in endpoint.requests}) == 3, "the same seed would draw the same answer"
    with sqlite3.connect(tmp_path / "calls.sqlite") as db:
        old = db.execute("SELECT json_extract(CAST(reply AS TEXT), '$.text') FROM replaced ORDER BY number").fetchall()
    assert old == [("and 1",), ("and 2",)] and again[0].text == "and 3"


async def test_an_old_answer_stays_where_asking_again_fails(tmp_path: Path) -> None:
    answers = [Answer(""), Answer(""), Answer(""), Answer(status=500)]
    with Endpoint(lambda body, count: answers[min(count, 4) - 1]) as endpoint:
        await ask(tmp_path, endpoint, question())
        store = CallStore(tmp_path / "calls.sqlite")
        async with ChatClient(store, attempts=1, retry=Retry.parse("empty")) as client:
            with pytest.raises(Exception, match="500"):
                await client.ask(spec(endpoint.url), question())
        assert len(store) == 1 and store.asked_again() == []
        store.close()


@pytest.mark.parametrize("method", ["joint", "per_dimension", "paper", "bands", "json"])
def test_every_method_asks_an_unreadable_verdict_again(esc_eval: EscEval, tmp_path: Path, no_report: None, method: str) -> None:
    """From dialogues that are there: two, whose judge says nothing that can be read at first."""
    packs = {"bands": "feel", "json": "emoharbor"}
    settings = {"mode": "paper"} if method == "paper" else {"method": method, "judge_prompts": packs.get(method)}
    config(tmp_path, 2, **settings)
    with Endpoint(models=MODELS) as endpoint:
        assert esc_eval("run", "--only", "simulate", *run_at(endpoint.url)[1:]) == (0, "")
    with Endpoint(lambda body, count: Answer("I cannot say"), models=MODELS) as silent:
        code, err = esc_eval("run", "--only", "score", *run_at(silent.url)[1:])
        assert code == 1 and "can be read; it said, for example: I cannot say" in err
        first = len(silent.requests)
        assert esc_eval("run", "--only", "score", *run_at(silent.url)[1:]) == (1, err) and len(silent.requests) == first
        assert esc_eval("run", "--only", "score", *run_at(silent.url)[1:], "--retry", "unreadable") == (1, err)
        assert len(silent.requests) == (first * 1.5 if method == "json" else first * 2), "of json, only the second chance"


def test_the_status_of_a_run_counts_calls_and_records(
    esc_eval: EscEval, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    one_line(esc_eval("status", "run"), 2, "no such folder")
    config(tmp_path, 4)
    with Endpoint(bad, models=MODELS) as endpoint:
        assert esc_eval(*run_at(endpoint.url))[0] == 0
        assert esc_eval(*run_at(endpoint.url), "--retry", "refusal")[0] == 0
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["esc-eval", "status", "run"])
        from evalsuite import cli

        cli.app(standalone_mode=False)
    lines = [[cell.strip() for cell in line.split("│")] for line in capsys.readouterr().out.splitlines()]
    told = [" ".join(cells).split() for cells in lines]
    # Answered, empty, refusal, length, context_overflow, failed, asked again: five exchanges on two cards, two dialogues that
    # ended at once.
    assert ["seeker", "embedded", "12", "1", "1", "5", "0", "0", "1"] in told
    assert ["dialogues", "max_turns", "2"] in told and ["dialogues", "refusal", "1"] in told
    assert ["verdicts", "unreadable", "7"] in told
    report = (tmp_path / "run" / "report.md").read_text()
    assert "Asked again: 1 answers by name" in report and "1 refusal of the seeker embedded" in report


@pytest.mark.usefixtures("no_report")
def test_what_failed_before_is_asked_last(esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first five cards are poison: the model is given up, and the next try begins with those that were not asked."""
    monkeypatch.setattr("evalsuite.runner.engine.ChatClient", partial(ChatClient, attempts=1, backoff_s=0.001))
    config(tmp_path, 8, concurrency=1)

    def behave(body: dict[str, Any], count: int) -> Answer:
        told = " ".join(message["content"] for message in body["messages"])
        return Answer(status=500) if any(f"({card})" in told for card in range(5)) else echo(body, count)

    with Endpoint(behave, models=MODELS) as endpoint:
        code, err = esc_eval(*run_at(endpoint.url))
        assert code == 2 and "nothing was answered" in err and not (tmp_path / "run" / "config.json").exists()
        assert esc_eval(*run_at(endpoint.url))[0] == 1
        dialogues = read_jsonl(tmp_path / "run" / "dialogues.jsonl", Dialogue, "dialogues")
        assert sum(dialogue.lost for dialogue in dialogues) == 5


async def test_a_model_is_given_up_after_losses_in_three_dialogues_and_what_is_not_asked_is_no_failure(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint(lambda body, count: Answer(status=500)) as endpoint:
        async with ChatClient(store, attempts=1, lost_in_a_row=5) as client:
            for number in range(12):
                with pytest.raises(ServerLost) as caught:
                    about = question(str(number), session=f"d{number // 4}", sample={"dialogue": f"d{number // 4}"})
                    await client.ask(spec(endpoint.url), about)
                assert isinstance(caught.value, NotAsked) == (number >= 9), number  # the ninth is the third dialogue's first
        assert len(endpoint.requests) == 9
    assert store.failed_items() == {"d0": 4, "d1": 4, "d2": 1}
    store.close()
