"""A run that came to its end is not made again: what it left is compared by hashes, and made again where anything differs."""

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import core.files
from core.prompts import PromptPack
from data_prep.cards import bundled_cards, load_cards
from evalsuite import Results, UserError, simulate
from evalsuite.runner import pipeline
from serve.store import CallStore
from tests.evalsuite.test_api import Judge, Supporter, seeker

CARDS = load_cards(bundled_cards("en"))
LASTING = ("timing.json", "calls.sqlite", "calls.sqlite-wal", "calls.sqlite-shm", ".lock")  # clock times, answers


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the stage did since it was cleared: records parsed by model, stored answers looked up, prompts rendered."""
    every, in_stage = Counter[str](), Counter[str]()

    def count(owner: Any, name: str, what: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            every[what(*arguments)] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    count(core.files, "validated", lambda model, *_: str(model.__name__))
    count(CallStore, "get", lambda *_: "answers")
    count(PromptPack, "render", lambda *_: "prompts")
    stage = pipeline.simulate

    def watched(*arguments: Any, **named: Any) -> Any:
        before = every.copy()
        outcome = stage(*arguments, **named)
        in_stage.update(every - before)
        return outcome

    monkeypatch.setattr(pipeline, "simulate", watched)
    return in_stage


@pytest.fixture
def supporter() -> Supporter:
    return Supporter()


@pytest.fixture
def again(tmp_path: Path, supporter: Supporter, work: Counter[str]) -> Callable[..., Results]:
    """Gives the same command in the same folder, or another one with other settings."""

    def command(cards: int = 3, **settings: Any) -> Results:
        work.clear()
        models: dict[str, Any] = {"supporter": {"own": supporter}, "seeker": seeker, "judge": {"judge": Judge()}}
        return simulate(CARDS[:cards], **models, out=tmp_path / "run", exchanges=2, quiet=True, **settings)

    command()
    return command


def left(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name not in LASTING}


@pytest.mark.slow
def test_a_finished_run_parses_no_record_and_makes_no_prompt(
    tmp_path: Path, again: Callable[..., Results], supporter: Supporter, work: Counter[str]
) -> None:
    assert work["answers"] > 3 * 5 and work["prompts"], "what is asked anew is looked up before and while it is asked"
    before, asked = left(tmp_path / "run"), supporter.asked
    results = again()
    assert not work and left(tmp_path / "run") == before and supporter.asked == asked
    assert len(results.dialogues) == 3 and len(results.judgements) == 21
    again(cards=5)
    assert work["answers"] >= 5 * 5 and work["RoleCard"] == 3, (
        "the new cards were read before; the folder's are not those asked"
    )
    again(cards=5)
    assert not work
    again(cards=3)
    assert work["answers"] == 5 * 5, "what is asked is not all: this command has another outcome"


@pytest.mark.slow
def test_whatever_a_run_left_is_made_again_where_it_is_gone(
    tmp_path: Path, again: Callable[..., Results], work: Counter[str]
) -> None:
    before = left(tmp_path / "run")
    assert {"cards.jsonl", "dialogues.jsonl", "judgements.jsonl", "usage.json", "versions.json"} < before.keys()
    for name in before:
        (tmp_path / "run" / name).unlink()
        again()
        assert left(tmp_path / "run") == before and (work["answers"] == 3 * 5 or name == "config.json"), name
        again()
        assert not work, name


@pytest.mark.slow
def test_records_that_were_edited_are_made_again(tmp_path: Path, again: Callable[..., Results], work: Counter[str]) -> None:
    before = left(tmp_path / "run")
    edits = {
        "dialogues.jsonl": (b"awake", b"at night"),
        "judgements.jsonl": (b'"value":3', b'"value":2'),
        "usage.json": (b"6", b"7"),
    }
    for name, (ours, theirs) in edits.items():
        assert ours in before[name]
        (tmp_path / "run" / name).write_bytes(before[name].replace(ours, theirs, 1))
        again()
        assert left(tmp_path / "run") == before and work["answers"] == 3 * 5, name


def test_answers_that_are_gone_are_asked_again_and_changed_ones_refused(
    tmp_path: Path, again: Callable[..., Results], supporter: Supporter
) -> None:
    before = left(tmp_path / "run")
    for statement in ("DELETE FROM calls WHERE role = 'supporter'", "UPDATE calls SET reply = replace(reply, 'awake', 'here')"):
        asked = supporter.asked
        with sqlite3.connect(tmp_path / "run" / "calls.sqlite") as store:
            store.execute(statement)
        if statement.startswith("UPDATE"):
            with pytest.raises(UserError, match="changed later"):
                again()
        else:
            again()
            assert left(tmp_path / "run") == before and supporter.asked == asked + 6


def test_other_code_makes_the_records_again(
    again: Callable[..., Results], work: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "code", lambda framework: ["of another version"])
    again()
    assert work["answers"] == 3 * 5
    again()
    assert not work
