"""Corpora as the web has them: what nobody sees is no turn, what a page left in a text is put right, and both are counted."""

import codecs
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from core.files import load_json
from core.ledger import Build, BuildStep
from core.records import Post, RolePlay, SupportDialogue
from core.rows import CorpusReader, RowModel
from data_prep.__main__ import app
from data_prep.commands.role_sft import _cardless
from data_prep.role_play.mix import RoleSet
from data_prep.sources import SOURCES, corpus_files, read_source
from tests.data_prep.sources import fixtures as F

SAID = [("usr", "I&amp;my boss<br>argue&nbsp;lots\r\nnow"), ("sys", "\u200b\ufeff"), ("sys", "Tell me."), ("usr", "\x00\u202e")]


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
    assert step.changed == {"invisible texts dropped": 2, "texts cleaned (entities, tags, line ends, hidden signs)": 1}


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


def untidy(files: dict[str, Any], text: str, mess: str) -> dict[str, Any]:
    """The files of a corpus with `mess` in place of a text, however they write it."""
    return {
        name: content.replace(text, mess)
        if isinstance(content, str)
        else json.loads(json.dumps(content, ensure_ascii=False).replace(text, mess))
        for name, content in files.items()
    }


def first_text(item: Any) -> str:
    texts = [item.text] if isinstance(item, Post) else [turn.text for turn in item.dialogue.turns]
    return next(text.split("\n")[0] for text in texts if len(text.split("\n")[0]) > 3)


@pytest.mark.parametrize("name", sorted(F.CORPORA.keys() - {"esconv_failed"}))  # whose example has no reply
def test_every_corpus_is_cleaned_and_counted(name: str, tmp_path: Path) -> None:
    def read(folder: str, files: dict[str, Any]) -> tuple[list[Any], dict[str, int]]:
        reader = CorpusReader(BuildStep(name))
        place = F.write(tmp_path / folder, files)
        return list(SOURCES[name].read(corpus_files(SOURCES[name], str(place)), reader)), dict(reader.step.changed)

    items, changed = read("tidy", F.CORPORA[name])
    text = first_text(items[0])
    again, counted = read("untidy", untidy(F.CORPORA[name], text, f"{text[:2]}&amp;\u2060{text[2:]}"))
    assert first_text(again[0]) == f"{text[:2]}&{text[2:]}"
    assert sum(counted.values()) >= max(1, sum(changed.values()))
    rest, counted = read("unseen", untidy(F.CORPORA[name], text, "\u200b\u202e"))
    assert sum(counted.values()) >= max(1, sum(changed.values()))
    assert not any(sign in str(item) for item in (*again, *rest) for sign in ("\u200b", "\u202e", "\u2060"))


def test_an_unseen_line_of_a_play_is_none(tmp_path: Path) -> None:
    row = {"id": 1, "role": "安", "context": "安：你好\n本：\u2060\n本：再见 &lt;3"}
    (tmp_path / "test_data.jsonl").write_text(json.dumps([row]))
    reader = CorpusReader(BuildStep("charactereval"))
    (item,) = SOURCES["charactereval"].read([tmp_path / "test_data.jsonl"], reader)
    assert isinstance(item, RolePlay) and [line.text for line in item.lines] == ["你好", "再见 <3"]
    assert sum(reader.step.changed.values()) == 1


def test_cards_without_a_model_say_how_a_model_makes_them(tmp_path: Path) -> None:
    place = F.write(tmp_path / "corpus", F.CORPORA["smile"])
    arguments = ["cards", "extract", "--source", f"smile={place}", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert "smile: no dialogue has a card" in result.output
    assert f"cards extract --source smile={place} --model MODEL" in result.output.replace("\n", "")
