"""Scoring of dialogues by people: blind sheets, returned sheets, the second review, and accepted scores (ESC-Eval, table 16).

Appendix C.2: every entry is scored in a first round (ten people) and accepted after a second review (five others). It does not
say what the reviewer sees or when a reviewer overrules. Our reading, by mode:

- `paper`: a reviewer sees the given scores of every dialogue, and the reviewer's own scores are accepted.
- `native`: several people score each dialogue independently. Where their scores are more than one point apart, a reviewer who
  sees them decides; otherwise their mean is accepted.
"""

import math
import random
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Literal

from pydantic import Field

from core.errors import UserError, at
from core.files import CONFIGS, digest, write_text
from core.grouping import exact_mean, group_by
from core.languages import in_order, of, words
from core.ledger import BuildStep
from core.names import number as number_in
from core.people_tables import Faults, changed_cell
from core.records import Dialogue, HumanScore, Identifier, Language, Number
from core.rows import RowModel, read_table
from core.rubrics import Rubric, Scale
from core.settings import load_yaml
from data_prep.cards.sheets import SheetChoice, SheetLayout, SheetRow, read_filled, write_both, write_csv
from data_prep.scores.human import human_score

Mode = Literal["native", "paper"]
OpenItems = dict[str, tuple[str, ...]]  # dialogue id → dimensions that wait for a reviewer, in the rubric's order
ACCEPTED = "accepted"  # the annotator's name in accepted scores
REVIEW = "review"
TOLERATED = 1  # points by which two annotators may differ
SHEET = "dialogues"
_SCORE = " score "  # between dialogue and dimension in the name of a row that asks for a score
_NAME = re.compile(r"\w[\w.-]{0,60}")
_COLUMNS = ("row", "item", "language", "who", "text", "rules")
_ANSWERS = ("score", "note")
Texts = Mapping[str, str]  # dialogue id → who its seeker is meant to be


@cache
def _wording() -> dict[str, dict[Language, str]]:
    return load_yaml(CONFIGS / "score_sheets.yaml", "wording of score sheets")  # type: ignore[no-any-return]


def item_of(dialogue: Dialogue) -> str:
    """The blind name of a dialogue: ids of imported dialogues may contain the supporter's name."""
    return digest(["annotate", dialogue.id], 12)


LAYOUT = SheetLayout(SHEET, (*_COLUMNS, *_ANSWERS), _ANSWERS, "row", "text")
"""An annotator's sheet: a row per turn, then a row per dimension with its rules and its score."""
REVIEW_LAYOUT = SheetLayout(SHEET, (*_COLUMNS, "given", *_ANSWERS), _ANSWERS, "row", "text")
"""The reviewer's sheet: the same with the given scores, and rows only of the dimensions to decide."""


def assign(dialogues: Sequence[Dialogue], annotators: Sequence[str], copies: int, seed: int) -> dict[str, list[Dialogue]]:
    """Annotator → dialogues in the annotator's own order, language by language; each dialogue goes to `copies` people. Loads in
    a language differ by at most `copies`; the pairing of people is drawn again for every round of dialogues."""
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
        for name, share in assigned.items():
            random.Random(f"{seed}/annotate-dialogues/{language}/{name}").shuffle(share)
            sheets[name] += share
    return sheets


def check_names(annotators: Sequence[str], what: str) -> None:
    """Raise `UserError`, which starts with `what`, for equal names, and for names that cannot be the file names of sheets."""
    for name in annotators:
        if not _NAME.fullmatch(name) or name.lower() in (REVIEW, "guide", ACCEPTED):
            raise UserError(f"{what} {name!r}: not usable as a file name here: take letters, digits, - and _")
    if len({name.lower() for name in annotators}) < len(annotators):
        raise UserError(f"{what}: the same name twice")


@dataclass(frozen=True)
class ScoreSheets:
    """The sheets on which people score dialogues on a rubric. `played` says who the seekers are meant to be, if the rubric
    rates them; `halves` whether scores between two levels are allowed (default: as the rubric says)."""

    dialogues: Sequence[Dialogue]
    rubric: Rubric
    played: Texts = field(default_factory=dict)
    halves: bool | None = None

    def write(self, folder: Path, name: str, dialogues: Sequence[Dialogue]) -> list[str]:
        """Write NAME.csv and NAME.xlsx about these dialogues, with empty answers; returns the two names."""
        rows = [row for dialogue in dialogues for row in self._rows(dialogue, list(self.rubric.dimensions))]
        return self._write(folder, name, LAYOUT, rows)

    def write_review(self, folder: Path, open_items: OpenItems, scores: Sequence[HumanScore], name: str = REVIEW) -> list[str]:
        """Write the open items, with the given scores (sorted, without names), to NAME.csv and NAME.xlsx; returns the two
        names. Rows are ordered by language and a hash: the order of the records would reveal the supporters."""
        groups = group_by(scores, lambda score: (score.dialogue_id, score.dimension))
        given = {key: " / ".join(f"{value:g}" for value in sorted(s.value for s in group)) for key, group in groups.items()}
        rows: list[dict[str, str]] = []
        for dialogue in sorted(self.dialogues, key=lambda dialogue: (dialogue.language, digest(["review", dialogue.id]))):
            if wanted := [key for key in self.rubric.dimensions if key in open_items.get(dialogue.id, ())]:
                rows += self._rows(dialogue, wanted, {key: given.get((dialogue.id, key), "") for key in wanted})
        return self._write(folder, name, REVIEW_LAYOUT, rows)

    def _rows(self, dialogue: Dialogue, dimensions: Sequence[str], given: Mapping[str, str] = {}) -> list[dict[str, str]]:
        """A dialogue's rows: the seeker's part, every turn, every dimension with its rules. They are read back by name."""
        language, item = dialogue.language, item_of(dialogue)
        rows = []
        if text := self.played.get(dialogue.id):
            rows.append({"row": f"{item} seeker", "who": _words("played", language), "text": text})
        for number, turn in enumerate(dialogue.turns, start=1):
            rows.append({"row": f"{item} turn {number}", "who": f"{number} {words(language)[turn.role]}", "text": turn.text})
        for key in dimensions:
            about, texts = _about(self.rubric, key, language), self.rubric.named_texts(key, language)
            row = {"row": _score_row(dialogue, key), "who": self.rubric.label(key, language), "text": about}
            rules = "\n".join(f"{score}: {text}" for score, text in texts.items())
            rows.append(row | {"rules": rules, "given": given.get(key, "")})
        return [row | {"item": item, "language": language} for row in rows]

    def _write(self, folder: Path, name: str, form: SheetLayout, rows: Sequence[Mapping[str, str]]) -> list[str]:
        places: dict[Scale, str] = {}  # the cells with the scores of each scale in sheet `rules`, one scale below the other
        first = 2
        for key, scale in self.rubric.scales.items():
            if scale not in places:
                last = first + len(self.rubric.steps(key, self.halves)) - 1
                places[scale], first = f"rules!$A${first}:$A${last}", last + 1
        choices = []
        scales = (self.rubric.scales[row["row"].partition(_SCORE)[2]] if row.get("rules") else None for row in rows)
        for scale, run in groupby(enumerate(scales), key=itemgetter(1)):  # a drop-down list per run of rows on one scale
            if scale:
                numbers = [number for number, _ in run]
                choices.append(SheetChoice("score", numbers[0], numbers[-1], places[scale]))
        languages = in_order(row["language"] for row in rows)
        return write_both(folder, name, form, rows, choices, {"rules": self._rules(languages)})

    def _rules(self, languages: Sequence[Language]) -> list[list[str]]:
        """The scores in column A from row 2; then the dimensions with their levels, and how to fill in the sheet."""
        rubric = self.rubric
        of_scale = {scale: rubric.steps(key, self.halves) for key, scale in rubric.scales.items()}
        rows = [["score", "", ""], *([f"{score:g}", "", ""] for scores in of_scale.values() for score in scores)]
        for key in rubric.dimensions:
            for language in languages:
                rows += [[], [key, rubric.label(key, language), _about(rubric, key, language)]]
                rows += [["", str(score), text] for score, text in rubric.named_texts(key, language).items()]
        rows.append([])
        between = any(score % 1 for scores in of_scale.values() for score in scores)
        for language in languages:
            rows += [["", "", _words(w, language)] for w in ("halves" if between else "whole", rubric.rates, "alone", "care")]
            rows += [[], *(["", "", line] for line in rubric.example.get(language, "").splitlines())]
        return rows

    def write_guide(self, path: Path, languages: Sequence[Language]) -> None:
        """Write the rubric's rules as text, for people who fill in the CSV."""
        write_text(path, "\n".join("\t".join(row).rstrip() for row in self._rules(languages)) + "\n")

    # --- what came back -----------------------------------------------------------------------------------------------------

    def read_scores(self, path: Path, step: BuildStep) -> list[HumanScore]:
        """The scores on the sheet of the annotator after whom the file is named. A dialogue without any is counted as dropped.
        Raises `UserError` with file, row and column for unreadable cells and for a partly scored dialogue."""
        filled = self._filled(path, LAYOUT)
        scores = []
        with Faults() as faults:
            for dialogue in self.dialogues:
                rows = {key: filled[name] for key in self.rubric.dimensions if (name := _score_row(dialogue, key)) in filled}
                values = {key: value for key, (_, value) in rows.items() if value is not None}
                step.taken += bool(rows)
                step.kept += bool(values)
                if values:
                    with faults.noting():
                        scores += scores_of(dialogue, path.stem, self.rubric, values, next(iter(rows.values()))[0].where)
                elif rows:
                    step.drop("no score given yet", next(iter(rows.values()))[0].where)
        return scores

    def read_review(self, path: Path, open_items: OpenItems, step: BuildStep) -> list[HumanScore]:
        """The reviewer's sheet as scores of the open items; a reviewer deletes rows that are not decided yet. Other answers
        count as dropped in `step`. Raises `UserError` as `read_scores` does, and for an empty cell of an open item."""
        names = {_score_row(dialogue, key): (dialogue, key) for dialogue in self.dialogues for key in self.rubric.dimensions}
        wanted = {name for name, (dialogue, key) in names.items() if key in open_items.get(dialogue.id, ())}
        filled = self._filled(path, REVIEW_LAYOUT, wanted)
        answers = step.sieve(
            [name for name in names if name in filled and filled[name][1] is not None],
            lambda name: None if name in wanted else "not asked for, not used",
            lambda name: filled[name][0].where,
        )
        given = ((*names[name], filled[name][1]) for name in answers)
        return [human_score(talk, path.stem, self.rubric.name, key, value) for talk, key, value in given if value is not None]

    def _filled(self, path: Path, form: SheetLayout, wanted: Container[str] = ()) -> dict[str, tuple[SheetRow, float | None]]:
        """{name of a row: the row and its score} of a sheet; `wanted` scores must not be missing."""
        rows = (row for dialogue in self.dialogues for row in self._rows(dialogue, list(self.rubric.dimensions)))

        def answer(name: str, row: SheetRow) -> tuple[SheetRow, float | None]:
            text, dimension = row.cells["score"].strip(), name.partition(_SCORE)[2]
            if dimension and text:
                with at(f"{row.where}, column score"):
                    return row, score_in(text, dimension, self.rubric, self.halves)
            if name in wanted:
                raise row.fault("score", "empty, but asked for; delete the row if it is not decided yet")
            return row, None

        return read_filled(path, form, {row["row"]: row["text"] for row in rows}, "row", answer)


def _score_row(dialogue: Dialogue, dimension: str) -> str:
    return f"{item_of(dialogue)}{_SCORE}{dimension}"


def _about(rubric: Rubric, key: str, language: Language) -> str:
    return " ".join(rubric.about(key, language).split())


def _words(name: str, language: Language) -> str:
    return of(_wording()[name], language, "words of score sheets")


def scores_of(dialogue: Dialogue, annotator: str, rubric: Rubric, values: Mapping[str, float], where: str) -> list[HumanScore]:
    """A person's scores of a dialogue, in the rubric's order. Raises `UserError` for a partly scored dialogue."""
    if missing := [key for key in rubric.dimensions if key not in values]:
        raise UserError(f"{where}: no score on {', '.join(missing)}, while others of dialogue {item_of(dialogue)} are scored")
    return [human_score(dialogue, annotator, rubric.name, key, values[key]) for key in rubric.dimensions]


def score_in(text: str, dimension: str, rubric: Rubric, halves: bool | None = None) -> float:
    """The score in a cell or choice. Raises `UserError` for a text that is no score of the dimension."""
    allowed, scale = rubric.steps(dimension, halves), rubric.scale_of(dimension)
    try:
        value = named if scale.levels and (named := scale.read(text)) is not None else number_in(text)
    except ValueError:
        value = math.nan
    if value not in allowed:
        kind = "a whole number" if all(step % 1 == 0 for step in allowed) else "a whole or half number"
        what = f"{kind} from {allowed[0]:g} to {allowed[-1]:g}" if scale.whole or scale.step == 0.5 else f"a score of {scale}"
        raise UserError(f"{text[:40]!r} is not {what} ({dimension}){changed_cell(text)}")
    return value


# --- the second review ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settled:
    """The accepted scores (annotator `ACCEPTED`), and what waits for a reviewer."""

    accepted: list[HumanScore]
    waiting: OpenItems


def to_review(scores: Sequence[HumanScore], rubric: Rubric, mode: Mode) -> OpenItems:
    """The items for a reviewer: in paper mode all scored ones, in native mode those with scores more than `TOLERATED` apart."""
    open_items: dict[str, set[str]] = defaultdict(set)
    for (dialogue, dimension), group in group_by(scores, lambda score: (score.dialogue_id, score.dimension)).items():
        values = [score.value for score in group]
        if mode == "paper" or max(values) - min(values) > TOLERATED:
            open_items[dialogue].add(dimension)
    return {dialogue: tuple(key for key in rubric.dimensions if key in keys) for dialogue, keys in open_items.items()}


def settle(scores: Sequence[HumanScore], reviewed: Sequence[HumanScore], open_items: OpenItems) -> Settled:
    """The reviewer's score of open items, else the mean of the annotators; dialogues in the order of `scores`."""
    decided = {(score.dialogue_id, score.dimension): score.value for score in reviewed}
    groups = group_by(scores, lambda score: (score.dialogue_id, score.dimension))
    accepted, waiting = [], defaultdict(list)
    for (dialogue, dimension), group in groups.items():
        if dimension not in open_items.get(dialogue, ()):
            value = exact_mean(score.value for score in group)
        elif (dialogue, dimension) in decided:
            value = decided[dialogue, dimension]
        else:
            waiting[dialogue].append(dimension)
            continue
        accepted.append(group[0].model_copy(update={"annotator": ACCEPTED, "value": value}))
    return Settled(accepted, {dialogue: tuple(dimensions) for dialogue, dimensions in waiting.items()})


# --- weights of the dialogues drawn -----------------------------------------------------------------------------------------

WEIGHTS = "weights.csv"  # beside the dialogues that were drawn, and beside their scores by people
BEFORE = "weights_before.csv"  # beside the dialogues of a further round: weights of those scored before


class SampleWeight(RowModel):
    """A row of weights.csv."""

    dialogue_id: Identifier
    chance: Number = Field(gt=0)
    weight: Number = Field(gt=0)


def write_weights(path: Path, weights: Mapping[str, float]) -> int:
    """Write weights.csv (dialogue, chance, weight) from dialogue → 1 / chance. Returns the number of rows."""
    rows = [{"dialogue_id": id, "chance": repr(1 / weight), "weight": repr(weight)} for id, weight in weights.items()]
    write_csv(path, ("dialogue_id", "chance", "weight"), rows)
    return len(rows)


def read_weights(paths: Iterable[Path]) -> dict[str, float]:
    """Dialogue → weight. Raises `UserError` with file and line for malformed rows and repeated dialogues."""
    weights: dict[str, float] = {}

    def each(where: str, row: SampleWeight) -> None:
        if row.dialogue_id in weights:
            raise UserError(f"{where}: dialogue_id: {row.dialogue_id} is there twice")
        weights[row.dialogue_id] = row.weight

    for path in paths:
        read_table(path, SampleWeight, "weights", each)
    return weights


def weights_beside(files: Iterable[Path]) -> list[Path]:
    """The weights.csv files in the folders of these files."""
    folders = dict.fromkeys(path.parent for path in files)
    return [folder / WEIGHTS for folder in folders if (folder / WEIGHTS).exists()]
