"""People, models and things go by one name each, whatever a keyboard or a spreadsheet made of it: in every reader."""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from core.errors import UserError
from core.names import Spelt, composed
from core.records import Comparison, Dialogue, HumanScore, Judgement, Preference
from data_prep.responses import Response, read_responses
from data_prep.scores.held import read_held
from data_prep.scores.human import gold_scores_of, of_annotators, read_comparisons, read_dialogues, read_preferences
from evalsuite.commands.agree import judgements_of
from evalsuite.people.commands.people_create import raters_of
from evalsuite.statistics.discrimination import read_ratings
from tests.test_house import FILES

READERS = {"read_table", "read_jsonl", "read_placed", "each_placed"}
WHO = {"annotator", "judge", "user", "supporter", "simulator", "model", "a", "b"}  # fields that name people and models
WHAT = {"id", "rubric", "dimension", "item", "source", "source_id", "question", "card", "profile", "character"}
TYPED, NAME = "\ufeff  Rene\u0301e\u200b\u3000", "Renée"


def _read_models() -> list[type[BaseModel]]:
    """Every model that a reader of people's and the programs' own tables is given anywhere in the code."""
    models: set[type[BaseModel]] = set()
    for name, file in FILES.items():
        text = file.read_text()
        nodes = ast.walk(ast.parse(text)) if any(reader in text for reader in READERS) and name[:5] != "serve" else ()
        calls = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1]
        if calls := [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in READERS]:
            module = importlib.import_module(name)
            given = {getattr(module, call.args[1].id, None) for call in calls if isinstance(call.args[1], ast.Name)}
            models |= {model for model in given if isinstance(model, type) and issubclass(model, BaseModel)}
    return sorted(models, key=lambda model: model.__name__)


def _names(model: type[BaseModel]) -> list[str]:
    every = {name for name, field in model.model_fields.items() if "str" in str(field.annotation)}
    return sorted(name for name in every if name in WHO | WHAT or name.endswith("_id"))


MODELS = _read_models()


def test_there_are_readers_to_look_at() -> None:
    assert {HumanScore, Judgement, Dialogue, Comparison, Preference, Response} <= set(MODELS) and len(MODELS) > 15


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_name_that_is_read_is_trimmed_and_composed(model: type[BaseModel]) -> None:
    for name in _names(model):
        field = model.model_fields[name]
        adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
        try:
            assert adapter.validate_python(TYPED) == NAME, f"{model.__name__}.{name}"
        except ValidationError as refused:  # a pattern of plain letters: no second spelling gets in
            assert refused.errors()[0]["type"] == "string_pattern_mismatch", f"{model.__name__}.{name}"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_that_names_people_or_models_has_one_spelling(model: type[BaseModel]) -> None:
    for name in WHO & set(_names(model)):
        assert any(isinstance(mark, Spelt) for mark in model.model_fields[name].metadata), f"{model.__name__}.{name}"


GOLD = {"dialogue_id": "d1", "language": "en", "annotator": "anna", "rubric": "esc_eval", "dimension": "fluency", "value": 3}
VERDICT = {"dialogue_id": "d1", "language": "en", "judge": "anna", "rubric": "esc_eval", "dimension": "fluency", "value": 3}
CHOICE = {"item": "i", "a": "anna", "b": "ben", "annotator": "x", "verdict": "a"}
TALK = {"id": "d1", "language": "en", "source": "s", "supporter": "anna", "turns": [{"role": "seeker", "text": "hi"}]}
PREFERRED = {"dialogue_a": "d1", "dialogue_b": "d2", "annotator": "anna", "question": "q", "verdict": "a", "order": "ab"}
REPLY = {"dialogue_id": "d1", "language": "en", "turn": 1, "supporter": "anna", "text": "hello"}
SAID = [{"role": "seeker", "text": "hi"}, {"role": "supporter", "text": "hello"}]
HELD = {"situation": "s1", "supporter": "anna", "language": "en", "turns": SAID}
POOLED: dict[str, tuple[Callable[[list[Path]], Any], dict[str, Any], dict[str, Any]]] = {
    "gold": (gold_scores_of, GOLD, {"annotator": "Anna", "dialogue_id": "d2"}),
    "judgements": (judgements_of, VERDICT, {"judge": "Anna", "dialogue_id": "d2"}),
    "choices": (read_comparisons, CHOICE, {"a": "Anna", "item": "j"}),
    "dialogues": (read_dialogues, TALK, {"supporter": "Anna", "id": "d2"}),
    "preferences": (read_preferences, PREFERRED, {"annotator": "Anna", "dialogue_b": "d3"}),
    "replies": (read_responses, REPLY, {"supporter": "Anna", "dialogue_id": "d2"}),
    "held": (read_held, HELD, {"supporter": "Anna", "situation": "s2"}),
    "ratings": (lambda paths: read_ratings(paths[0]), {"user": "u", "model": "anna", "score": 1}, {"model": "Anna"}),
}


@pytest.mark.parametrize(("kind", "files"), [(k, n) for k in POOLED for n in (1, 2) if (k, n) != ("ratings", 2)])
def test_a_difference_in_case_alone_is_an_error_that_has_both(kind: str, files: int, tmp_path: Path) -> None:
    read, row, change = POOLED[kind]
    paths = [tmp_path / f"{number}.jsonl" for number in range(files)]
    paths[0].write_bytes(orjson.dumps(row) + b"\n")
    with paths[-1].open("ab") as handle:
        handle.write(orjson.dumps(row | change) + b"\n")
    with pytest.raises(UserError, match="'Anna' is 'anna' .* in another case|'anna' is 'Anna' .* in another case"):
        read(paths)


def test_one_person_typed_in_three_ways_is_one(tmp_path: Path) -> None:
    path = tmp_path / "gold.csv"
    rows = [f"d{number},en,{name},esc_eval,fluency,3" for number, name in enumerate(("Renée", "Rene\u0301e", " Renée\u200e "))]
    path.write_text("\n".join(["dialogue_id,language,annotator,rubric,dimension,value", *rows]))
    scores = gold_scores_of([path])
    assert {score.annotator for score in scores} == {NAME}
    assert of_annotators(scores, [TYPED]) == scores
    assert [person.code for person in raters_of([f"{TYPED}=en"], ["en"])] == [NAME]
    assert composed("Anna\u00a0B") == composed("Anna\u3000B") == "Anna B"
