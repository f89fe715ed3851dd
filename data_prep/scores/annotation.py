"""People score dialogues: blind sheets, what came back, the second review, and the accepted scores (ESC-Eval, table 16).

Appendix C.2: every entry is scored in a first round (ten people) and accepted after a second review (five others). It does not
say what the reviewer sees or when one overrules. Our reading, by mode:

- `paper`: a reviewer goes over every dialogue, sees what was given, and what the reviewer writes is accepted.
- `native`: several people score each dialogue without seeing each other. Where they lie more than one point apart, a reviewer
  who sees their scores decides; elsewhere their mean is accepted.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from core.errors import UserError
from core.files import digest, write_text
from core.grouping import group_by
from core.judge_prompts import SPEAKERS
from core.ledger import BuildStep
from core.numbers import number as number_in
from core.people_tables import Faults
from core.records import Dialogue, HumanScore, Language
from core.rubrics import Rubric, Scale
from core.statistics.means import exact_mean
from data_prep.cards.sheets import SheetChoice, SheetLayout, SheetRow, read_filled, write_both
from data_prep.scores.human import human_score

Mode = Literal["native", "paper"]
Asked = dict[str, tuple[str, ...]]  # dialogue id → dimensions that wait for a reviewer, in the rubric's order
ACCEPTED = "accepted"  # the annotator's name in accepted scores
REVIEW = "review"
TOLERATED = 1  # points that two annotators may lie apart
SHEET = "dialogues"
_NAME = re.compile(r"\w[\w.-]{0,60}")
_COLUMNS = ("row", "item", "language", "who", "text", "rules")
_ANSWERS = ("score", "note")
_PLAYED = {"en": "Who the seeker is meant to be", "zh": "求助者应当是怎样的人"}
_WHOLE = (
    "Fill in column score with a whole number in every row that has rules.",
    "凡有评分规则的行，在 score 一栏填一个整数。",
)
_HALVES = (
    "Fill in column score in every row that has rules. What lies between two levels gets the half between them, as 1.5.",
    "凡有评分规则的行都要在 score 一栏打分。介于两级之间的填中间的半分，例如 1.5。",
)
_RATED = {
    "supporter": (
        "Judge the supporter, not the seeker, and only what is written.",
        "只评支持者，不评求助者；只看写出来的内容。",
    ),
    "seeker": (
        "Judge how the seeker is played, against the text about who the seeker is meant to be; not the supporter.",
        "只评求助者演得如何，以“求助者应当是怎样的人”为准；不评支持者。",
    ),
}
_HOW = (
    ("Do not talk about the scores with other annotators before all sheets are in.", "交表之前不要和其他标注者讨论分数。"),
    (
        "Some dialogues speak of self-harm, abuse or despair. Pause when you need to, and tell whoever gave you this sheet.",
        "有些对话会提到自伤、虐待或绝望。需要时请随时停下，并告诉发表格给你的人。",
    ),
)
Texts = Mapping[str, str]  # dialogue id → who its seeker is meant to be


def item_of(dialogue: Dialogue) -> str:
    """The blind name of a dialogue: ids of imported dialogues may tell the supporter's name."""
    return digest(["annotate", dialogue.id], 12)


LAYOUT = SheetLayout(SHEET, (*_COLUMNS, *_ANSWERS), _ANSWERS, "row", "text")
"""An annotator's sheet: a row for every turn, then a row for every dimension with its rules and its score."""
REVIEW_LAYOUT = SheetLayout(SHEET, (*_COLUMNS, "given", *_ANSWERS), _ANSWERS, "row", "text")
"""The reviewer's sheet: the same with the scores given, and rows only of the dimensions that are asked for."""


def assign(dialogues: Sequence[Dialogue], annotators: Sequence[str], copies: int, seed: int) -> dict[str, list[Dialogue]]:
    """Annotator → dialogues in an order of that annotator's, one language after the other; each goes to `copies` people.

    Loads in a language differ by at most `copies`; who shares dialogues with whom is drawn anew for every round of dialogues.
    Raises `UserError` for names that cannot name a file, and for fewer people than `copies`.
    """
    check_names(annotators, "--annotator")
    if not 1 <= copies <= len(annotators):
        raise UserError(f"--each {copies}: there are {len(annotators)} annotators")
    sheets: dict[str, list[Dialogue]] = {name: [] for name in annotators}
    for language, block in sorted(group_by(dialogues, lambda dialogue: dialogue.language).items()):
        rng = random.Random(f"{seed}/annotate-dialogues/{language}")
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


def write_sheet(
    folder: Path, name: str, dialogues: Sequence[Dialogue], rubric: Rubric, played: Texts | None = None
) -> list[str]:
    """NAME.csv and NAME.xlsx with empty answers; returns the two names. `played` holds who the seekers are meant to be, where
    the rubric rates them."""
    rows = [row for dialogue in dialogues for row in _rows(dialogue, rubric, list(rubric.dimensions), played or {})]
    return _write(folder, name, LAYOUT, rows, rubric, rubric.halves)


def write_review(
    folder: Path,
    dialogues: Sequence[Dialogue],
    asked: Asked,
    scores: Sequence[HumanScore],
    rubric: Rubric,
    name: str = REVIEW,
    halves: bool | None = None,
    played: Texts | None = None,
) -> list[str]:
    """NAME.csv and NAME.xlsx: what waits, with the scores given (sorted, without names); returns the two names. `halves` says
    whether scores between two levels may be given; without it, the rubric does.

    Rows stand language by language in the order of a hash: the order of the records would tell the supporters apart.
    """
    groups = group_by(scores, lambda score: (score.dialogue_id, score.dimension))
    values = {key: [score.value for score in group] for key, group in groups.items()}
    halves = rubric.halves if halves is None else halves
    rows: list[dict[str, str]] = []
    for dialogue in sorted(dialogues, key=lambda dialogue: (dialogue.language, digest(["review", dialogue.id]))):
        if wanted := [key for key in rubric.dimensions if key in asked.get(dialogue.id, ())]:
            given = {key: " / ".join(f"{value:g}" for value in sorted(values.get((dialogue.id, key), []))) for key in wanted}
            rows += _rows(dialogue, rubric, wanted, played or {}, given)
    return _write(folder, name, REVIEW_LAYOUT, rows, rubric, halves)


def _rows(
    dialogue: Dialogue, rubric: Rubric, dimensions: Sequence[str], played: Texts, given: Mapping[str, str] = {}
) -> list[dict[str, str]]:
    """A dialogue's rows: who is played, every turn, every dimension with its rules."""
    language = dialogue.language
    item = {"item": item_of(dialogue), "language": language}
    known = _texts_of(dialogue, rubric)
    speakers = SPEAKERS[language]
    rows = []
    if text := played.get(dialogue.id):
        rows.append(item | {"row": _played_row(dialogue), "who": _PLAYED[language], "text": text})
    for number, turn in enumerate(dialogue.turns, start=1):
        row = _turn_row(dialogue, number)
        rows.append(item | {"row": row, "who": f"{number} {speakers[turn.role]}", "text": known[row]})
    for key in dimensions:
        row, levels = _score_row(dialogue, key), rubric.texts(key, language)
        rules = "\n".join(f"{score}: {text}" for score, text in levels.items())
        label = rubric.dimensions[key].label[language]
        rows.append(item | {"row": row, "who": label, "text": known[row], "rules": rules, "given": given.get(key, "")})
    return rows


def _played_row(dialogue: Dialogue) -> str:
    return f"{item_of(dialogue)} seeker"


def _turn_row(dialogue: Dialogue, number: int) -> str:
    return f"{item_of(dialogue)} turn {number}"


def _score_row(dialogue: Dialogue, dimension: str) -> str:
    return f"{item_of(dialogue)} score {dimension}"


def _texts_of(dialogue: Dialogue, rubric: Rubric) -> dict[str, str]:
    """Row → text of what is asked about a dialogue: its turns, and what each dimension is about."""
    turns = {_turn_row(dialogue, number): turn.text for number, turn in enumerate(dialogue.turns, start=1)}
    about = {key: " ".join(one.about[dialogue.language].split()) for key, one in rubric.dimensions.items()}
    return turns | {_score_row(dialogue, key): text for key, text in about.items()}


def _write(
    folder: Path, name: str, form: SheetLayout, rows: Sequence[Mapping[str, str]], rubric: Rubric, halves: bool
) -> list[str]:
    places, scales = _places(rubric, halves), rubric.scales
    asked = [(number, scales[row["row"].partition(" score ")[2]]) for number, row in enumerate(rows) if row.get("rules")]
    choices: list[SheetChoice] = []
    for number, scale in asked:  # one list of choices for every run of rows on one scale
        last = choices[-1] if choices else None
        if last and last.last == number - 1 and last.cells == places[scale]:
            choices[-1] = replace(last, last=number)
        else:
            choices.append(SheetChoice("score", number, number, places[scale]))
    languages = [language for language in rubric.languages if any(row["language"] == language for row in rows)]
    return write_both(folder, name, form, rows, choices, {"rules": _rules(rubric, languages, halves)})


def _places(rubric: Rubric, halves: bool) -> dict[Scale, str]:
    """Where in sheet `rules` the scores of each scale stand, one scale below the other from row 2."""
    places, row = {}, 2
    for key, scale in rubric.scales.items():
        if scale not in places:
            last = row + len(rubric.steps(key, halves)) - 1
            places[scale], row = f"rules!$A${row}:$A${last}", last + 1
    return places


def _rules(rubric: Rubric, languages: Sequence[Language], halves: bool) -> list[list[str]]:
    """The scores in column A from row 2; then every dimension with its levels, and how to fill in the sheet."""
    of_scale = {scale: rubric.steps(key, halves) for key, scale in rubric.scales.items()}
    rows = [["score", "", ""], *([f"{score:g}", "", ""] for scores in of_scale.values() for score in scores)]
    for key, dimension in rubric.dimensions.items():
        for language in languages:
            rows += [[], [key, dimension.label[language], " ".join(dimension.about[language].split())]]
            rows += [["", str(score), text] for score, text in rubric.texts(key, language).items()]
    rows.append([])
    for language in languages:
        how = (_HALVES if halves else _WHOLE, _RATED[rubric.rates], *_HOW)
        rows += [["", "", line[0 if language == "en" else 1]] for line in how]
        rows += [[], *(["", "", line] for line in rubric.example.get(language, "").splitlines())]
    return rows


def write_guide(path: Path, rubric: Rubric, languages: Sequence[Language]) -> None:
    """The rubric's rules as text, for those who work on the CSV."""
    write_text(path, "\n".join("\t".join(row).rstrip() for row in _rules(rubric, languages, rubric.halves)) + "\n")


# --- what came back ---------------------------------------------------------------------------------------------------------


def read_scores(
    path: Path, dialogues: Sequence[Dialogue], rubric: Rubric, step: BuildStep, played: Texts | None = None
) -> list[HumanScore]:
    """An annotator's sheet as scores; the annotator's name is the file's, without its suffix. `played` is what the sheet was
    written with.

    A dialogue without any score counts as dropped in `step`. Raises `UserError` with file, row and column for whatever cannot
    be read, and for a dialogue that is scored only in part.
    """
    filled = _given(path, LAYOUT, dialogues, rubric, played)
    scores = []
    with Faults() as faults:
        for dialogue in dialogues:
            rows = {key: filled[name] for key in rubric.dimensions if (name := _score_row(dialogue, key)) in filled}
            if not rows:
                continue
            step.taken += 1
            if all(value is None for _, value in rows.values()):
                step.drop("no score given yet", next(iter(rows.values()))[0].where)
                continue
            step.kept += 1
            for key in rubric.dimensions:
                with faults.noting():
                    if key not in rows:
                        raise UserError(
                            f"{path}: the row of {key} of dialogue {item_of(dialogue)} is missing, others of it have a score"
                        )
                    row, value = rows[key]
                    if value is None:
                        raise row.fault("score", "empty, while other dimensions of this dialogue have a score")
                    scores.append(human_score(dialogue, path.stem, rubric.name, key, value))
    return scores


def read_review(
    path: Path,
    dialogues: Sequence[Dialogue],
    asked: Asked,
    rubric: Rubric,
    step: BuildStep,
    halves: bool | None = None,
    played: Texts | None = None,
) -> list[HumanScore]:
    """The reviewer's sheet as scores, only of what was asked for; delete the rows of what is not decided yet.

    An answer that nobody asked for counts as dropped in `step`. Raises `UserError` as `read_scores` does, and for an empty
    cell that was asked for.
    """
    wanted = {_score_row(dialogue, key) for dialogue in dialogues for key in asked.get(dialogue.id, ())}
    filled = _given(path, REVIEW_LAYOUT, dialogues, rubric, played, halves, wanted)
    scores = []
    for dialogue in dialogues:
        for key in rubric.dimensions:
            name = _score_row(dialogue, key)
            row, value = filled.get(name, (None, None))
            if row is None or value is None:
                continue
            step.taken += 1
            if name in wanted:
                step.kept += 1
                scores.append(human_score(dialogue, path.stem, rubric.name, key, value))
            else:
                step.drop("not asked for, not used", row.where)
    return scores


def _given(
    path: Path,
    form: SheetLayout,
    dialogues: Sequence[Dialogue],
    rubric: Rubric,
    played: Texts | None,
    halves: bool | None = None,
    wanted: Container[str] = (),
) -> dict[str, tuple[SheetRow, float | None]]:
    """{name of a row: the row and its score} of a sheet of these dialogues; no score may be missing that is `wanted`."""
    texts: dict[str, str] = {}
    dimensions: dict[str, str] = {}
    for dialogue in dialogues:
        texts |= _texts_of(dialogue, rubric)
        dimensions |= {_score_row(dialogue, key): key for key in rubric.dimensions}
        if dialogue.id in (played or {}):
            texts[_played_row(dialogue)] = (played or {})[dialogue.id]

    def answer(name: str, row: SheetRow) -> tuple[SheetRow, float | None]:
        value = _score(row, dimensions[name], rubric, halves) if name in dimensions else None
        if value is None and name in wanted:
            raise row.fault("score", "empty, but asked for; delete the row if it is not decided yet")
        return row, value

    return read_filled(path, form, texts, "row", answer)


def _score(row: SheetRow, dimension: str, rubric: Rubric, halves: bool | None = None) -> float | None:
    """A row's score, None for an empty cell."""
    text = row.cells["score"].strip()
    if not text:
        return None
    allowed = rubric.steps(dimension, halves)
    try:
        value = number_in(text)
    except ValueError:
        value = math.nan
    if value not in allowed:
        kind = "a whole number" if all(step % 1 == 0 for step in allowed) else "a whole or half number"
        raise row.fault("score", f"{text[:40]!r} is not {kind} from {allowed[0]:g} to {allowed[-1]:g} ({dimension})")
    return value


# --- the second review ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settled:
    """The accepted scores (annotator `ACCEPTED`), and what waits for a reviewer."""

    accepted: list[HumanScore]
    waiting: Asked


def to_review(scores: Sequence[HumanScore], rubric: Rubric, mode: Mode) -> Asked:
    """What a reviewer must decide: in paper mode everything that has a score, in native mode where scores lie more than
    `TOLERATED` apart."""
    asked: dict[str, set[str]] = defaultdict(set)
    for (dialogue, dimension), group in group_by(scores, lambda score: (score.dialogue_id, score.dimension)).items():
        values = [score.value for score in group]
        if mode == "paper" or max(values) - min(values) > TOLERATED:
            asked[dialogue].add(dimension)
    return {dialogue: tuple(key for key in rubric.dimensions if key in keys) for dialogue, keys in asked.items()}


def settle(scores: Sequence[HumanScore], reviewed: Sequence[HumanScore], asked: Asked) -> Settled:
    """The reviewer's score where one was asked for, else the mean of the annotators; dialogues in the order of `scores`."""
    decided = {(score.dialogue_id, score.dimension): score.value for score in reviewed}
    groups = group_by(scores, lambda score: (score.dialogue_id, score.dimension))
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
