"""Floors: supporters that need no model, beside the models of a run."""

import json
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from core.files import read_jsonl
from core.records import Dialogue
from core.specs import ModelSpec, load_spec
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Endpoint


def _spoken(dialogue: Dialogue) -> list[str]:
    """The supporter's turns after the greeting."""
    return [turn.text for turn in dialogue.turns if turn.role == "supporter"][1:]


def test_floors_hold_dialogues_of_their_own_and_no_model_is_asked_for_them(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("embedded",)) as endpoint:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(limit=1, gold=None, languages=["en", "zh"], floors=True)))
        assert esc_eval("run", "--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}", "--out", "run") == (0, "")
    dialogues = read_jsonl(tmp_path / "run" / "dialogues.jsonl", Dialogue, "dialogues")
    assert [(d.supporter, d.language) for d in dialogues] == [
        (supporter, language) for supporter in ("embedded", "silent", "parrot", "lecture") for language in ("en", "zh")
    ]
    for dialogue in dialogues[2:]:
        floor = load_spec(dialogue.supporter or "").floor
        heard = [turn.text for turn in dialogue.turns if turn.role == "seeker"]
        assert floor and len(heard) == 5 and dialogue.termination == "max_turns"
        assert _spoken(dialogue) == (heard if floor.kind == "parrot" else [floor.text[dialogue.language]] * 5)
        assert dialogue.usage and dialogue.usage.calls == 5, "only the seeker was asked"
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    board = next(table for table in report["tables"] if table["key"].startswith("leaderboard"))
    assert {"silent", "parrot", "lecture"} <= {row[board["columns"].index("supporter")] for row in board["rows"]}


def test_the_reference_says_what_the_source_dialogues_supporter_said(esc_eval: EscEval, tmp_path: Path) -> None:
    card = {"language": "en", "age": "30", "gender": "female", "occupation": "cook", "problem": "Lost her job."}
    cards = [card | {"id": f"c{n}", "source": "mine", "source_id": f"s{n}", "card_method": "written"} for n in range(2)]
    turns = [("supporter", "Hi."), ("seeker", "a"), ("supporter", "First."), ("seeker", "b"), ("supporter", "Second.")]
    spoken = [{"role": role, "text": text} for role, text in turns]
    source = {"id": "d", "language": "en", "source": "mine", "source_id": "s1", "turns": spoken}
    (tmp_path / "cards.jsonl").write_text("".join(json.dumps(one) + "\n" for one in cards))
    (tmp_path / "source.jsonl").write_text(json.dumps(source) + "\n")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(gold=None, languages=["en"], supporters=["reference"])))
    with Endpoint(models=("embedded",)) as endpoint:
        given: tuple[str, ...] = ("run", "--only", "simulate", "--config", "c.yaml", "--cards", "cards.jsonl")
        given += ("--set", f"endpoints.embedded={endpoint.url}")
        code, err = esc_eval(*given, "--out", "without")
        told = "supporter reference: give the dialogues that the cards were made from: --set references=FILE"
        assert code == 2 and told in err
        assert not (tmp_path / "without" / "config.json").exists()
        assert esc_eval(*given, "--set", "references=source.jsonl", "--out", "run") == (0, "")
    (dialogue,) = read_jsonl(tmp_path / "run" / "dialogues.jsonl", Dialogue, "dialogues")
    assert dialogue.card_id == "c1" and _spoken(dialogue) == ["First.", "Second."]


def test_a_floor_in_a_language_without_text_is_refused() -> None:
    floor = {"name": "mute", "about": "x", "roles": ["supporter"], "languages": ["en", "zh"]}
    with pytest.raises(ValidationError, match=r"floor\.text: none in zh; add it, or shorten languages"):
        ModelSpec.model_validate(floor | {"floor": {"kind": "fixed", "text": {"en": "Hm."}}})
    with pytest.raises(ValidationError, match="a floor can only be a supporter, without checkpoint and endpoint"):
        ModelSpec.model_validate(floor | {"roles": ["judge"], "floor": {"kind": "reference"}})
