"""Label Studio's files for scoring dialogues: its tasks and labelling configuration, and the results that it exports.

There is one configuration per language, which contains the rules: each dimension is a list of choices whose alias is the score.
Tasks are blind, like annotators' sheets; results are matched by `item`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree as xml

from pydantic import AliasChoices, BeforeValidator, Field

from core.errors import UserError, at, near
from core.files import read_json, validated
from core.languages import words
from core.ledger import BuildStep
from core.people_tables import Faults
from core.records import Dialogue, HumanScore, Identifier, Language, Name, Whole
from core.rows import RowModel, dict_rows
from core.rubrics import Rubric
from data_prep.scores.annotation import Texts, item_of, score_in, scores_of

DIALOGUE = "dialogue"  # the name of the scored object in a configuration
COMMENT = "comment"


def tasks(dialogues: Sequence[Dialogue], played: Texts) -> list[dict[str, Any]]:
    """A task per dialogue, ordered by a hash: the order of the records would reveal the supporters."""
    return [
        {
            "data": {
                "item": item_of(dialogue),
                "turns": [{"author": words(dialogue.language)[turn.role], "text": turn.text} for turn in dialogue.turns],
                "played": played.get(dialogue.id, ""),
            }
        }
        for dialogue in sorted(dialogues, key=item_of)
    ]


def configuration(rubric: Rubric, language: Language, played: bool) -> str:
    """The labelling configuration (XML): the dialogue, and every dimension with its levels. Raises `UserError` for a dimension
    with the name of another field."""
    view = xml.Element("View")
    if played:
        xml.SubElement(view, "Text", name="who", value="$played")
    xml.SubElement(view, "Paragraphs", name=DIALOGUE, value="$turns", layout="dialogue", nameKey="author", textKey="text")
    for key in rubric.dimensions:
        if key in (DIALOGUE, COMMENT, "who"):
            raise UserError(f"rubric {rubric.name}: dimension {key!r}: Label Studio's configuration has a field of this name")
        about = " ".join(rubric.about(key, language).split())
        xml.SubElement(view, "Header", value=f"{rubric.label(key, language)}: {about}")
        choices = xml.SubElement(view, "Choices", name=key, toName=DIALOGUE, choice="single-radio", required="true")
        texts = rubric.named_texts(key, language)
        for step in rubric.steps(key):
            text = texts.get(step, "")
            xml.SubElement(choices, "Choice", alias=f"{step:g}", value=f"{step:g}: {text}" if text else f"{step:g}")
    xml.SubElement(view, "TextArea", name=COMMENT, toName=DIALOGUE, required="false")
    xml.indent(view)
    return xml.tostring(view, encoding="unicode") + "\n"


class _Chosen(RowModel):
    choices: Annotated[tuple[str, ...], Field(min_length=1, max_length=1)]


class _LabelResult(RowModel):
    """The entry in one field; its value is read if the field is a dimension of the rubric."""

    from_name: Name | None = None  # a relation has none
    value: Any = None


def _named(by: Any) -> Any:
    """The annotator: a number or a name, as it stands or in the user's fields."""
    by = next((by[name] for name in ("id", "email", "username") if by.get(name)), None) if isinstance(by, dict) else by
    if by in (None, ""):
        raise ValueError("nobody is named: whose scores are these?")
    return by


class _Annotation(RowModel):
    id: Whole
    completed_by: Annotated[Whole | Identifier, BeforeValidator(_named)]
    was_cancelled: bool = False
    result: tuple[_LabelResult, ...]

    def scores(self, dialogue: Dialogue, rubric: Rubric, where: str, faults: Faults) -> list[HumanScore]:
        """A score per dimension; a missing, second or invalid score is noted in `faults`."""
        values: dict[str, float] = {}
        for result in self.result:
            if (name := result.from_name) is None or name not in rubric.dimensions:
                continue
            with faults.noting(), at(f"{where}: {name}"):
                if name in values:
                    raise UserError("it has two scores in one annotation: keep one")
                values[name] = -1  # so that an invalid score is not reported as missing, too
                (chosen,) = validated(_Chosen, result.value, "value").choices
                values[name] = score_in(chosen.partition(":")[0], name, rubric)
        return scores_of(dialogue, f"annotator-{self.completed_by}", rubric, values, where)


class _Data(RowModel):
    item: Identifier


class _Task(RowModel):
    """A task of `sheet export --form label-studio`, in Label Studio's export."""

    data: _Data
    annotations: Annotated[tuple[_Annotation, ...], Field(validation_alias=AliasChoices("annotations", "completions"))]


def _task(row: Any, rubric: Rubric) -> Any:
    """A task as in the JSON export, from a row of the smaller exports (CSV, TSV, JSON_MIN), which is one annotation."""
    if not isinstance(row, dict) or "annotation_id" not in row:
        return row
    chosen = {name: row[name] for name in rubric.dimensions if row.get(name) not in (None, "")}
    values = {name: value if isinstance(value, dict) else {"choices": [str(value)]} for name, value in chosen.items()}
    result = [{"from_name": name, "value": value} for name, value in values.items()]
    annotation = {"id": row["annotation_id"], "completed_by": row.get("annotator"), "result": result}
    return {"data": row, "annotations": [annotation]}


def read_results(path: Path, dialogues: Sequence[Dialogue], rubric: Rubric, step: BuildStep) -> list[HumanScore]:
    """The scores in Label Studio's export. Annotators keep their names there, mostly numbers. Cancelled and repeated
    annotations count as dropped in `step`. Raises `UserError` with task and field for unreadable ones."""
    with Faults() as faults:
        rows = [] if path.suffix.lower() == ".json" else [(row.where, row.value) for row in dict_rows(path, faults)]
    exported = rows or read_json(path, "Label Studio's export")
    if not isinstance(exported, list):
        raise UserError(f"{path}: expected a list of tasks, found {type(exported).__name__}")
    placed = rows or [(f"{path}: task {place}", value) for place, value in enumerate(exported)]
    by_item = {item_of(dialogue): dialogue for dialogue in dialogues}
    scores: list[HumanScore] = []
    counted: list[tuple[str, _Annotation]] = []
    with Faults() as faults:
        for where, value in placed:
            with faults.noting():
                with at(f"{where} (is it of `sheet export --form label-studio`?)"):
                    task = validated(_Task, _task(value, rubric), "what Label Studio says")
                item = task.data.item
                if item not in by_item:
                    raise UserError(f"{where}: data.item: unknown dialogue {item!r}: {near(item, by_item)}")
                for annotation in task.annotations:
                    step.taken += 1
                    named = f"{where}, annotation {annotation.id}"
                    if annotation.was_cancelled or (item, annotation) in counted:
                        step.drop("cancelled" if annotation.was_cancelled else "exported twice, equal", named)
                        continue
                    step.kept += 1
                    counted.append((item, annotation))
                    with faults.noting():
                        scores += annotation.scores(by_item[item], rubric, named, faults)
    return scores
