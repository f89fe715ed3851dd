"""Label Studio's files for scoring dialogues: its tasks and labelling configuration, and the results that it exports.

One configuration a language, since the rules stand in it: each dimension is a list of choices whose alias is the score. Tasks
are blind, as annotators' sheets are; what comes back is found by its `item`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

from core.errors import UserError, near
from core.files import check_unique, read_json
from core.judge_prompts import SPEAKERS
from core.ledger import Step
from core.records import Dialogue, HumanScore, Language
from core.rubrics import Rubric
from data_prep.scores.annotation import Texts, item_of
from data_prep.scores.human import human_score

DIALOGUE = "dialogue"  # the name of the object that is scored, in a configuration
COMMENT = "comment"


def tasks(dialogues: Sequence[Dialogue], played: Texts) -> list[dict[str, Any]]:
    """A task a dialogue, in the order of a hash: the order of the records would tell the supporters apart."""
    return [
        {
            "data": {
                "item": item_of(dialogue),
                "turns": [{"author": SPEAKERS[dialogue.language][turn.role], "text": turn.text} for turn in dialogue.turns],
                "played": played.get(dialogue.id, ""),
            }
        }
        for dialogue in sorted(dialogues, key=item_of)
    ]


def configuration(rubric: Rubric, language: Language, played: bool) -> str:
    """The labelling configuration (XML): the dialogue, and every dimension with its levels. Raises `UserError` for a dimension
    that has the comment's or the dialogue's name."""
    view = xml.Element("View")
    if played:
        xml.SubElement(view, "Text", name="who", value="$played")
    xml.SubElement(view, "Paragraphs", name=DIALOGUE, value="$turns", layout="dialogue", nameKey="author", textKey="text")
    for key, dimension in rubric.dimensions.items():
        if key in (DIALOGUE, COMMENT, "who"):
            raise UserError(
                f"rubric {rubric.name}: dimension {key!r}: the name is another field's in Label Studio's configuration"
            )
        about = " ".join(dimension.about[language].split())
        xml.SubElement(view, "Header", value=f"{dimension.label[language]}: {about}")
        choices = xml.SubElement(view, "Choices", name=key, toName=DIALOGUE, choice="single-radio", required="true")
        texts = rubric.texts(key, language)
        for step in rubric.steps(key):
            text = texts.get(int(step), "") if step % 1 == 0 else ""
            xml.SubElement(choices, "Choice", alias=f"{step:g}", value=f"{step:g}: {text}" if text else f"{step:g}")
    xml.SubElement(view, "TextArea", name=COMMENT, toName=DIALOGUE, required="false")
    xml.indent(view)
    return xml.tostring(view, encoding="unicode") + "\n"


def read_results(path: Path, dialogues: Sequence[Dialogue], rubric: Rubric, step: Step) -> list[HumanScore]:
    """The scores of Label Studio's export (JSON, not JSON_MIN). Annotators are called by their number there.

    Cancelled annotations count as dropped in `step`. Raises `UserError` with task and field for what cannot be read.
    """
    known = {item_of(dialogue): dialogue for dialogue in dialogues}
    exported = read_json(path, "Label Studio's export")
    if not isinstance(exported, list):
        raise UserError(
            f"{path}: expected a list of tasks, found {type(exported).__name__}: export as JSON, not JSON_MIN or CSV"
        )
    scores: list[HumanScore] = []
    for place, task in enumerate(exported):
        where = f"{path}: task {place}"
        try:
            item, annotations = task["data"]["item"], task["annotations"]
        except (KeyError, TypeError):
            raise UserError(
                f"{where}: no data.item or no annotations: not a task of `annotate-dialogues label-studio`"
            ) from None
        if item not in known:
            raise UserError(f"{where}: data.item: unknown dialogue {item!r}: {near(str(item), known)}")
        for annotation in annotations:
            step.taken += 1
            if annotation.get("was_cancelled"):
                step.drop("cancelled", f"{where}, annotation {annotation.get('id')}")
                continue
            step.kept += 1
            scores += _of_annotation(annotation, known[item], rubric, where)
    check_unique(path, (f"{s.annotator}/{s.dialogue_id}/{s.dimension}" for s in scores), "scores of one annotator")
    return scores


def _of_annotation(annotation: dict[str, Any], dialogue: Dialogue, rubric: Rubric, where: str) -> list[HumanScore]:
    by = annotation.get("completed_by")
    number = by.get("id") if isinstance(by, dict) else by
    values: dict[str, float] = {}
    for result in annotation.get("result", []):
        name, chosen = result.get("from_name"), result.get("value", {}).get("choices")
        if name not in rubric.dimensions or chosen is None:
            continue  # the comment
        text = str(chosen[0]).partition(":")[0].strip()
        if len(chosen) != 1 or text not in {f"{step:g}" for step in rubric.steps(name)}:
            raise UserError(f"{where}: {name}: {chosen!r} is no score of rubric {rubric.name}")
        values[name] = float(text)
    if missing := [name for name in rubric.dimensions if name not in values]:
        raise UserError(f"{where}: annotation {annotation.get('id')}: no score on {', '.join(missing)}")
    return [human_score(dialogue, f"annotator-{number}", rubric.name, name, values[name]) for name in rubric.dimensions]
