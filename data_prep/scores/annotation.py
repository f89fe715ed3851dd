"""People score dialogues: blind sheets, what came back, the second review, and the accepted scores (ESC-Eval, table 16).

Appendix C.2: every entry is scored in a first round (ten people) and accepted after a second review (five others). It does not
say what the reviewer sees or when one overrules. Our reading, by mode:

- `paper`: a reviewer goes over every dialogue, sees what was given, and what the reviewer writes is accepted.
- `native`: several people score each dialogue without seeing each other. Where they lie more than one point apart, a reviewer
  who sees their scores decides; elsewhere their mean is accepted.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.errors import UserError
from core.files import digest, write_text
from core.judge_prompts import transcript
from core.ledger import Step
from core.records import Dialogue, HumanScore, Language
from core.rubrics import Rubric, Scale
from core.statistics.means import exact_mean
from data_prep.cards.sheets import Choice, Layout, SheetRow, read_filled, write_both
from data_prep.scores.human import human_score

Mode = Literal["native", "paper"]
Asked = dict[str, tuple[str, ...]]  # dialogue id → dimensions that wait for a reviewer, in the rubric's order
ACCEPTED = "accepted"  # the annotator's name in accepted scores
REVIEW = "review"
TOLERATED = 1  # points that two annotators may lie apart
SHEET = "dialogues"
_SHOWN = ("item", "language", "dialogue")
_NAME = re.compile(r"\w[\w.-]{0,60}")
_WHOLE = ("Give every dialogue a whole number in each column of a dimension.", "每段对话在每个维度一栏填一个整数。")
_HALVES = ("What lies between two levels gets the half between them, as 1.5.", "介于两级之间的填中间的半分，例如 1.5。")
_HOW = (
    ("Judge the supporter, not the seeker, and only what is written.", "只评支持者，不评求助者；只看写出来的内容。"),
    ("Do not talk about the scores with other annotators before all sheets are in.", "交表之前不要和其他标注者讨论分数。"),
    (
        "Some dialogues speak of self-harm, abuse or despair. Pause when you need to, and tell whoever gave you this sheet.",
        "有些对话会提到自伤、虐待或绝望。需要时请随时停下，并告诉发表格给你的人。",
    ),
    ("Where there is a column decide, it names the dimensions that are asked for.", "如有 decide 一栏，它列出需要打分的维度。"),
)


def item_of(dialogue: Dialogue) -> str:
    """The blind name of a dialogue: ids of imported dialogues may tell the supporter's name."""
    return digest(["annotate", dialogue.id], 12)


def layout(rubric: Rubric) -> Layout:
    """An annotator's sheet: one row a dialogue, one column a dimension."""
    answers = (*rubric.dimensions, "note")
    return Layout(SHEET, (*_SHOWN, *answers), answers, "item", "dialogue")


def review_layout(rubric: Rubric) -> Layout:
    """The reviewer's sheet: what is asked for, what was given, and a column a dimension for the answer."""
    answers = (*rubric.dimensions, "note")
    shown_columns = (f"{key}_given" for key in rubric.dimensions)
    return Layout(SHEET, (*_SHOWN, "decide", *shown_columns, *answers), answers, "item", "dialogue")


def assign(dialogues: Sequence[Dialogue], annotators: Sequence[str], copies: int, seed: int) -> dict[str, list[Dialogue]]:
    """Annotator → dialogues in an order of that annotator's, one language after the other; each goes to `copies` people.

    Loads in a language differ by at most `copies`; who shares dialogues with whom is drawn anew for every round of dialogues.
    Raises `UserError` for names that cannot name a file, and for fewer people than `copies`.
    """
    check_names(annotators, "--annotator")
    if not 1 <= copies <= len(annotators):
        raise UserError(f"--each {copies}: there are {len(annotators)} annotators")
    sheets: dict[str, list[Dialogue]] = {name: [] for name in annotators}
    for language in sorted({dialogue.language for dialogue in dialogues}):
        rng = random.Random(f"{seed}/annotate-dialogues/{language}")
        block = [dialogue for dialogue in dialogues if dialogue.language == language]
        rng.shuffle(block)
        assigned: dict[str, list[Dialogue]] = {name: [] for name in annotators}
        circle: list[str] = []
        for number, dialogue in enumerate(block):
            place = number % len(annotators)
            if place == 0:
                circle = rng.sample(list(annotators), len(annotators))
            for step in range(copies):
                assigned[circle[(place + step) % len(circle)]].append(dialogue)
        for name, mine in assigned.items():
            random.Random(f"{seed}/annotate-dialogues/{language}/{name}").shuffle(mine)
            sheets[name] += mine
    return sheets


def check_names(annotators: Sequence[str], what: str) -> None:
    """Raise `UserError`, which starts with `what`, for annotators whose names cannot name a sheet's file, or are the same."""
    for name in annotators:
        if not _NAME.fullmatch(name) or name.lower() in (REVIEW, "guide", ACCEPTED):
            raise UserError(f"{what} {name!r}: not usable as a file name here; letters, digits, - and _ are")
    if len({name.lower() for name in annotators}) < len(annotators):
        raise UserError(f"{what}: the same name twice")


def write_sheet(folder: Path, name: str, dialogues: Sequence[Dialogue], rubric: Rubric) -> list[str]:
    """NAME.csv and NAME.xlsx with empty answers; returns the two names."""
    return _write(folder, name, layout(rubric), [_shown(dialogue) for dialogue in dialogues], rubric)


def write_review(
    folder: Path,
    dialogues: Sequence[Dialogue],
    asked: Asked,
    scores: Sequence[HumanScore],
    rubric: Rubric,
    name: str = REVIEW,
    halves: bool = False,
) -> list[str]:
    """NAME.csv and NAME.xlsx: what waits, with the scores given (sorted, without names); returns the two names. With `halves`
    scores between two levels may be given.

    Rows stand language by language in the order of a hash: the order of the records would tell the supporters apart.
    """
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for score in scores:
        values[score.dialogue_id, score.dimension].append(score.value)
    rows = []
    for dialogue in sorted(dialogues, key=lambda dialogue: (dialogue.language, digest(["review", dialogue.id]))):
        if wanted := [key for key in rubric.dimensions if key in asked.get(dialogue.id, ())]:
            said = {f"{key}_given": " / ".join(f"{v:g}" for v in sorted(values[dialogue.id, key])) for key in wanted}
            rows.append(_shown(dialogue) | said | {"decide": ", ".join(wanted)})
    return _write(folder, name, review_layout(rubric), rows, rubric, halves)


def _shown(dialogue: Dialogue) -> dict[str, str]:
    return {"item": item_of(dialogue), "language": dialogue.language, "dialogue": transcript(dialogue)}


def _write(
    folder: Path, name: str, form: Layout, rows: Sequence[Mapping[str, str]], rubric: Rubric, halves: bool = False
) -> list[str]:
    places = _places(rubric, halves)
    choices = [Choice(key, 0, len(rows) - 1, places[scale]) for key, scale in rubric.scales.items() if rows]
    languages = [language for language in rubric.languages if any(row["language"] == language for row in rows)]
    return write_both(folder, name, form, rows, choices, {"rules": _rules(rubric, languages, halves)})


def _allowed(scale: Scale, halves: bool) -> list[str]:
    """What may stand in the cell of a score."""
    return [f"{scale.min + step / 2:g}" for step in range(2 * scale.span + 1)] if halves else list(map(str, scale.scores))


def _places(rubric: Rubric, halves: bool) -> dict[Scale, str]:
    """Where in sheet `rules` the scores of each scale stand, one scale below the other from row 2."""
    places, row = {}, 2
    for scale in dict.fromkeys(rubric.scales.values()):
        last = row + len(_allowed(scale, halves)) - 1
        places[scale], row = f"rules!$A${row}:$A${last}", last + 1
    return places


def _rules(rubric: Rubric, languages: Sequence[Language], halves: bool = False) -> list[list[str]]:
    """The scores in column A from row 2; then every dimension with its levels, and how to fill in the sheet."""
    rows = [
        ["score", "", ""],
        *([score] for scale in dict.fromkeys(rubric.scales.values()) for score in _allowed(scale, halves)),
    ]
    for key, dimension in rubric.dimensions.items():
        for language in languages:
            rows += [[], [key, dimension.label[language], " ".join(dimension.about[language].split())]]
            rows += [["", str(score), text] for score, text in rubric.texts(key, language).items()]
    rows.append([])
    for language in languages:
        rows += [["", "", line[0 if language == "en" else 1]] for line in (_HALVES if halves else _WHOLE, *_HOW)]
    return rows


def write_guide(path: Path, rubric: Rubric, languages: Sequence[Language]) -> None:
    """The rubric's rules as text, for those who work on the CSV."""
    write_text(path, "\n".join("\t".join(row).rstrip() for row in _rules(rubric, languages)) + "\n")


# --- what came back ---------------------------------------------------------------------------------------------------------


def read_scores(path: Path, dialogues: Sequence[Dialogue], rubric: Rubric, step: Step) -> list[HumanScore]:
    """An annotator's sheet as scores; the annotator's name is the file's, without its suffix.

    A row without any answer counts as dropped in `step`. Raises `UserError` with file, row and column for whatever cannot be
    read, and for a row that is filled in only in part.
    """
    known = {item_of(dialogue): dialogue for dialogue in dialogues}
    scores = []
    for item, row in read_filled(path, layout(rubric), _texts(known), "dialogue").items():
        step.taken += 1
        values = {key: _score(row, key, rubric) for key in rubric.dimensions}
        if all(value is None for value in values.values()):
            step.drop("no score given yet", row.where)
            continue
        step.kept += 1
        for key, value in values.items():
            if value is None:
                raise row.fault(key, "empty, while other dimensions have a score; a row is filled in whole or not at all")
            scores.append(human_score(known[item], path.stem, rubric.name, key, value))
    return scores


def read_review(
    path: Path, dialogues: Sequence[Dialogue], asked: Asked, rubric: Rubric, step: Step, halves: bool = False
) -> list[HumanScore]:
    """The reviewer's sheet as scores, only of what was asked for; delete the rows of what is not decided yet.

    An answer that nobody asked for counts as dropped in `step`. Raises `UserError` as `read_scores` does, and for an empty
    cell that was asked for.
    """
    known = {item_of(dialogue): dialogue for dialogue in dialogues}
    scores = []
    for item, row in read_filled(path, review_layout(rubric), _texts(known), "dialogue").items():
        dialogue = known[item]
        wanted = asked.get(dialogue.id, ())
        for key in rubric.dimensions:
            value = _score(row, key, rubric, halves)
            if value is None and key in wanted:
                raise row.fault(key, "empty, but asked for; delete the row if it is not decided yet")
            if value is None:
                continue
            step.taken += 1
            if key in wanted:
                step.kept += 1
                scores.append(human_score(dialogue, path.stem, rubric.name, key, value))
            else:
                step.drop("not asked for, not used", f"{row.where}, column {key}")
    return scores


def _texts(known: Mapping[str, Dialogue]) -> dict[str, str]:
    return {item: transcript(dialogue) for item, dialogue in known.items()}


def _score(row: SheetRow, column: str, rubric: Rubric, halves: bool = False) -> float | None:
    """A cell's score, None for an empty cell."""
    text = row.cells[column].strip()
    if not text:
        return None
    scale = rubric.scale_of(column)
    if text not in _allowed(scale, halves):
        kind = "a whole or half number" if halves else "a whole number"
        raise row.fault(column, f"{text[:40]!r} is not {kind} from {scale.min} to {scale.max}")
    return float(text)


# --- the second review ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settled:
    """The accepted scores (annotator `ACCEPTED`), and what waits for a reviewer."""

    accepted: list[HumanScore]
    waiting: Asked


def to_review(scores: Sequence[HumanScore], rubric: Rubric, mode: Mode) -> Asked:
    """What a reviewer must decide: in paper mode everything that has a score, in native mode where scores lie more than
    `TOLERATED` apart."""
    values_of: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        values_of[score.dialogue_id][score.dimension].append(score.value)
    asked = {}
    for dialogue, by_dimension in values_of.items():
        wanted = tuple(
            key
            for key in rubric.dimensions
            if (values := by_dimension[key]) and (mode == "paper" or max(values) - min(values) > TOLERATED)
        )
        if wanted:
            asked[dialogue] = wanted
    return asked


def settle(scores: Sequence[HumanScore], reviewed: Sequence[HumanScore], asked: Asked) -> Settled:
    """The reviewer's score where one was asked for, else the mean of the annotators; dialogues in the order of `scores`."""
    decided = {(score.dialogue_id, score.dimension): score.value for score in reviewed}
    groups: dict[tuple[str, str], list[HumanScore]] = defaultdict(list)
    for score in scores:
        groups[score.dialogue_id, score.dimension].append(score)
    accepted, waiting = [], defaultdict(list)
    for (dialogue, dimension), group in groups.items():
        if dimension not in asked.get(dialogue, ()):
            value = exact_mean(score.value for score in group)
        elif (dialogue, dimension) in decided:
            value = decided[dialogue, dimension]
        else:
            waiting[dialogue].append(dimension)
            continue
        accepted.append(group[0].model_copy(update={"annotator": ACCEPTED, "value": value}))
    return Settled(accepted, {dialogue: tuple(dimensions) for dialogue, dimensions in waiting.items()})
