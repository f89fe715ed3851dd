"""Label Studio's files: blind tasks, a configuration with the rules, and its results as scores."""

import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import HumanScore
from core.rubrics import load_rubric
from data_prep.__main__ import app
from data_prep.scores.annotation import item_of
from data_prep.scores.label_studio import configuration
from tests.data_prep.test_dialogue_annotation import dialogue
from tests.evalsuite.records import make_rubric
from tests.files_of_rows import read_sheet, write_sheet
from tests.verbs import printed

FEEL = load_rubric("feel")
KEYS = list(FEEL.dimensions)
NO_CHOICE: list[Any] = [None, [], {}, {"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": ["1", "2"]}]


def command(*arguments: object) -> str:
    return printed(app, "sheet", *arguments, "--rubric", "feel")


def annotation(by: object, value: str, **more: Any) -> dict[str, Any]:
    """As Label Studio exports it: choices by alias or by text, beside them a comment."""
    results = [{"from_name": key, "to_name": "dialogue", "type": "choices", "value": {"choices": [value]}} for key in KEYS]
    comment = {"from_name": "comment", "to_name": "dialogue", "type": "textarea", "value": {"text": ["hm"]}}
    return {"id": 7, "completed_by": by, "was_cancelled": False, "result": [*results, comment]} | more


def exported(n: int, *annotations: dict[str, Any]) -> dict[str, Any]:
    return {"id": n, "data": {"item": item_of(dialogue(n))}, "annotations": list(annotations)}


@pytest.fixture
def given(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "d.jsonl", [dialogue(n, language) for language in ("zh", "en") for n in range(2)])
    return tmp_path


def test_tasks_are_blind_and_the_configuration_holds_the_rules_with_halves(given: Path) -> None:
    command("export", "--form", "label-studio", "--dialogues", given / "d.jsonl", "--out", given / "ls")
    tasks = json.loads((given / "ls" / "tasks_en.json").read_text())
    assert {task["data"]["item"] for task in tasks} == {item_of(dialogue(n)) for n in range(2)}
    assert tasks[0]["data"]["turns"][1]["author"] == "Supporter" and "secret" not in json.dumps(tasks)
    view = ElementTree.fromstring((given / "ls" / "labels_zh.xml").read_text())
    choices = {one.get("name"): [choice.get("alias") for choice in one] for one in view.iter("Choices")}
    assert list(choices) == KEYS and choices["safety"] == ["0", "0.5", "1", "1.5", "2", "2.5", "3"]
    assert FEEL.texts("safety", "zh")[3] in view.find("Choices[@name='safety']/Choice[@alias='3']").get("value")  # type: ignore


def test_results_become_scores(given: Path) -> None:
    text = f"3: {FEEL.texts('safety', 'en')[3]}"
    tasks = [
        exported(0, annotation(1, "1.5"), annotation({"id": 2, "email": "ann@example.org"}, text)),
        exported(1, annotation(1, "0", was_cancelled=True)),
    ]
    results = given / "accepted.json"  # no annotator's name: an export has the work of several
    results.write_text(json.dumps(tasks))
    shown = command("import", "--dialogues", given / "d.jsonl", results, "--out", given / "s")
    scores = read_jsonl(given / "s" / "scores.jsonl", HumanScore, "scores")
    assert {(s.annotator, s.value, s.dialogue_id) for s in scores} == {
        ("annotator-1", 1.5, dialogue(0).id),
        ("annotator-2", 3, dialogue(0).id),
    }
    assert len(scores) == 2 * len(KEYS) and "cancelled 1" in shown and "ann@example.org" not in shown


def smaller(name: str, task: dict[str, Any]) -> str:
    """A task as in another export of Label Studio's: older, or with a row per annotation."""
    if name == "old.json":
        return json.dumps([{"data": task["data"], "completions": task["annotations"]}])
    rows = [
        {"annotation_id": one["id"], "annotator": one["completed_by"], "id": task["id"], "item": task["data"]["item"]}
        | {result["from_name"]: result["value"]["choices"][0] for result in one["result"] if result["from_name"] in KEYS}
        for one in task["annotations"]
    ]
    if name.endswith(".json"):
        return json.dumps(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*rows[0]], delimiter="\t" if name.endswith(".tsv") else ",")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize("name", ["old.json", "min.json", "project-1.csv", "project-1.tsv"])
def test_other_exports_say_the_same(given: Path, name: str) -> None:
    relation = {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"}
    first = annotation(1, "1.5")
    task = exported(0, first | {"result": [*first["result"], relation] if name == "old.json" else first["result"]})
    task["annotations"].append(annotation("ann@example.org", f"3: {FEEL.texts('safety', 'en')[3]}", id=8))
    (given / name).write_text(smaller(name, task))
    command("import", "--dialogues", given / "d.jsonl", given / name, "--out", given / "s")
    scores = read_jsonl(given / "s" / "scores.jsonl", HumanScore, "scores")
    assert {(s.annotator, s.value) for s in scores} == {("annotator-1", 1.5), ("annotator-ann@example.org", 3)}
    assert len(scores) == 2 * len(KEYS)


FIRST = "annotations.0"
RESULT = f"{FIRST}.result.0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("data.item", "x", r"task 0: data.item: unknown dialogue 'x'"),
        ("data.item", [], "task 0 .*: data.item: "),
        *((field, None, f"task 0 .*: {field}: ") for field in ("data", "annotations")),
        (f"{FIRST}.result", None, f"{FIRST}.result"),
        (f"{FIRST}.result", [None], f"{FIRST}.result"),
        *((f"{FIRST}.completed_by", by, f"{FIRST}.completed_by: (nobody|is empty)") for by in (None, {"id": None}, "")),
        (f"{FIRST}.id", None, f"{FIRST}.id"),
        *((f"{RESULT}.value", value, f"annotation 7: {KEYS[0]}: ") for value in NO_CHOICE),
        (f"{RESULT}.value", {"choices": ["9"]}, "'9' is not a whole or half number from 0 to 3"),
        (RESULT, annotation(1, "2")["result"][1], "two scores in one annotation"),
        (RESULT, annotation(1, "2")["result"][-1], f"no score on {KEYS[0]}"),
        ("annotations.1", annotation(1, "1", id=8), "duplicate scores of one annotator: annotator-1/"),
    ],
)
def test_what_cannot_be_read_is_told(given: Path, place: str, value: Any, message: str) -> None:
    task: Any = exported(0, annotation(1, "1"))
    *path, last = (int(name) if name.isdigit() else name for name in place.split("."))
    holder = task
    for name in path:
        holder = holder[name]
    if isinstance(holder, list) and last == len(holder):
        holder.append(value)
    else:
        holder[last] = value
    (given / "r.json").write_text(json.dumps([task]))
    with pytest.raises(UserError, match=message):
        command("import", "--dialogues", given / "d.jsonl", given / "r.json", "--out", given / "s")


def test_a_task_that_the_export_repeats_counts_once(given: Path) -> None:
    (given / "r.json").write_text(json.dumps([exported(0, annotation(1, "1")), exported(0, annotation(1, "1"))]))
    shown = command("import", "--dialogues", given / "d.jsonl", given / "r.json", "--out", given / "s")
    assert (
        len(read_jsonl(given / "s" / "scores.jsonl", HumanScore, "scores")) == len(KEYS) and "exported twice, equal 1" in shown
    )


@pytest.mark.slow
def test_its_scores_are_settled_and_reviewed_as_those_of_sheets(given: Path) -> None:
    (given / "r.json").write_text(json.dumps([exported(0, annotation(3, "1"), annotation(4, "3", id=8)), exported(1)]))
    call = ("--dialogues", given / "d.jsonl", "--out", given / "s")
    assert "1 dialogues wait for a reviewer" in command("import", given / "r.json", *call)
    assert not read_jsonl(given / "s" / "accepted.jsonl", HumanScore, "scores", allow_empty=True)
    columns, rows = read_sheet(given / "s" / "review.csv")
    write_sheet(given / "review.csv", columns, [row | ({"score": "2.5"} if row["rules"] else {}) for row in rows])
    command("import", given / "review.csv", given / "r.json", *call)
    accepted = read_jsonl(given / "s" / "accepted.jsonl", HumanScore, "scores")
    assert {(score.dialogue_id, score.value) for score in accepted} == {(dialogue(0).id, 2.5)}


@pytest.mark.parametrize("name", ["dialogue", "comment", "who"])
def test_a_dimension_may_not_have_the_name_of_another_field(name: str) -> None:
    with pytest.raises(UserError, match=f"rubric test: dimension '{name}': Label Studio's configuration has a field"):
        configuration(make_rubric(name), "en", played=False)
