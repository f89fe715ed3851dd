"""Corpora as the web has them: what nobody sees is no turn, what a page left in a text is put right, and both are counted."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from core.files import load_json
from core.ledger import Build
from core.records import SupportDialogue
from core.rows import RowModel
from data_prep.commands.role_sft import _cardless
from data_prep.role_play.mix import RoleSet
from data_prep.sources import read_source

SAID = [
    ("usr", "I&amp;my boss<br>argue&nbsp;lots\r\nnow"),
    ("sys", "\u200b\ufeff"),
    ("sys", "Tell me."),
    ("usr", "\x00\u202e"),
]


def row(**more: Any) -> dict[str, Any]:
    turns = [{"speaker": who, "text": text} for who, text in SAID]
    return {"emotion_type": "anger", "problem_type": "job", "situation": "My boss.", "dialog": turns} | more


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_corpus_with_a_mark_and_with_what_the_web_left(suffix: str, tmp_path: Path) -> None:
    text = json.dumps([row()] if suffix == ".json" else row())
    (tmp_path / f"corpus{suffix}").write_bytes(codecs.BOM_UTF8 + text.encode())
    build = Build(tmp_path / "out", "test")
    (item,) = read_source("esconv", str(tmp_path / f"corpus{suffix}"), build, Console(quiet=True), strict=True)
    assert isinstance(item, SupportDialogue)
    assert [turn.text for turn in item.dialogue.turns] == ["I&my boss\nargue lots\nnow", "Tell me."]
    step = next(step for step in build.steps if step.name == "read esconv")
    assert step.changed == {"invisible texts dropped": 2, "texts cleaned (entities, tags, line ends)": 1}


def test_a_mark_hides_no_fault() -> None:
    with pytest.raises(orjson.JSONDecodeError):
        load_json(codecs.BOM_UTF8 + b"{]")


def test_null_in_a_field_that_may_be_missing_is_absence() -> None:
    class Row(RowModel):
        text: str
        note: str = "none"

    assert Row.model_validate({"text": "x", "note": None}).note == "none"
    with pytest.raises(ValueError, match="text"):
        Row.model_validate({"text": None})


def test_a_corpus_without_any_card_is_told_how_a_model_makes_them() -> None:
    rows = [
        {"source": name, "language": "zh", "given": given, "dialogues": count}
        for name, given, count in (("smile", True, 0), ("extes", False, 0), ("esconv", True, 3), ("charactereval", True, 0))
    ]
    (line,) = _cardless(RoleSet(shortfall=rows))
    assert "python -m data_prep cards extract --source smile=PLACE --model MODEL --out cards/smile" in line
