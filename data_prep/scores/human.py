"""People's scores as `HumanScore` records: files in our own form, and the common parts of all imports.

Our own form (`read_scores`) is JSON lines, or CSV with a header, one score per row; `turn` may be left out or empty:

    dialogue_id,language,annotator,rubric,dimension,value,turn
    d1,en,anna,esc_eval_human,empathy,3,

The corpora that come with scores are in `data_prep.scores.corpora`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from core.errors import UserError, at, near
from core.files import CONFIGS, check_unique, read_placed
from core.ledger import Build, BuildStep
from core.names import composed, one_spelling
from core.records import Comparison, Dialogue, HumanScore, Judgement, Preference
from core.rows import read_table
from core.rubrics import Rubric, load_rubric
from data_prep.dialogue_files import read_given

COLUMNS = ("dialogue_id", "language", "annotator", "rubric", "dimension", "value", "turn")


@dataclass
class Imported:
    """Dialogues with scores and judgements of them. `turn_scores` are on single turns, `scores` on whole dialogues."""

    dialogues: list[Dialogue] = field(default_factory=list)
    scores: list[HumanScore] = field(default_factory=list)
    turn_scores: list[HumanScore] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)

    def add(self, other: Self) -> None:
        for name, records in vars(self).items():
            records += getattr(other, name)

    def write(self, build: Build) -> None:
        """Write dialogues.jsonl and scores.jsonl, and turn_scores.jsonl and judgements.jsonl if there are any. Records in two
        corpora are written once; dialogues without any score are left out."""
        rated = {score.dialogue_id for score in (*self.scores, *self.turn_scores)}
        rated |= {judgement.dialogue_id for judgement in self.judgements}
        first: dict[str, Dialogue] = {}

        def unused(dialogue: Dialogue) -> str | None:
            if dialogue.id not in rated:
                return "no score"
            return None if first.setdefault(dialogue.id, dialogue) is dialogue else "in two corpora, the first stands"

        dialogues = build.step("dialogues").sieve(self.dialogues, unused)
        if self.dialogues:
            build.write("dialogues.jsonl", dialogues)
        build.write("scores.jsonl", _once(self.scores, build.step("scores")))
        if self.turn_scores:
            build.write("turn_scores.jsonl", _once(self.turn_scores, build.step("scores of turns")))
        if self.judgements:
            build.write("judgements.jsonl", self.judgements)


def human_score(
    dialogue: Dialogue, annotator: str, rubric: str, dimension: str, value: float, turn: int | None = None
) -> HumanScore:
    """A score of a dialogue, or of one of its turns."""
    item = {"dialogue_id": dialogue.id, "language": dialogue.language, "turn": turn}
    return HumanScore(**item, annotator=annotator, rubric=rubric, dimension=dimension, value=value)


def _key(score: HumanScore) -> tuple[object, ...]:
    return score.dialogue_id, score.rubric, score.dimension, score.annotator, score.turn


def _once(scores: Iterable[HumanScore], step: BuildStep) -> list[HumanScore]:
    values: dict[tuple[object, ...], float] = {}

    def again(score: HumanScore) -> str | None:
        if (key := _key(score)) not in values:
            values[key] = score.value
            return None
        return f"given twice: {'same value' if values[key] == score.value else 'another value, the first stands'}"

    return step.sieve(scores, again, lambda score: f"{score.dialogue_id}/{score.dimension}")


def read_dialogues(paths: Sequence[Path]) -> list[Dialogue]:
    """Dialogues from files of any form (`data_prep.dialogue_files`), in order; `UserError` for a doubled id."""
    dialogues = [dialogue for path in paths for dialogue in read_given(path).dialogues]
    files = ", ".join(map(str, paths))
    check_unique(files, (dialogue.id for dialogue in dialogues), "dialogue ids")
    one_spelling(dialogues, files)
    return dialogues


def read_scores(path: Path, check: Callable[[HumanScore], None] | None = None) -> list[HumanScore]:
    """Scores from a `.jsonl` or `.csv` file in the form above, in file order, each passed to `check`. Raises `UserError` with
    file, line and column for a score that is malformed, refused by `check` (a `UserError`), or given twice by one annotator."""
    scores: dict[tuple[object, ...], HumanScore] = {}

    def each(where: str, score: HumanScore) -> None:
        if check is not None:
            with at(where):
                check(score)
        if _key(score) in scores:
            raise UserError(f"{where}: {score.annotator} gave {score.dialogue_id} / {score.dimension} twice")
        scores[_key(score)] = score

    read_table(path, HumanScore, "scores", each)
    return list(scores.values())


def gold_scores_of(paths: Iterable[Path], check: Callable[[HumanScore], None] | None = None) -> list[HumanScore]:
    """`read_scores` of several files, sorted by `item_order` and annotator, so that no figure depends on the order of rows. A
    score that an annotator gave twice, be it in two files, is an error."""
    scores: list[HumanScore] = []
    first: dict[tuple[object, ...], Path] = {}
    for path in paths:
        for score in sorted(read_scores(path, check), key=lambda score: (*item_order(score), score.annotator)):
            refuse_twice(first, path, score.annotator, score, _key(score))
            scores.append(score)
    one_spelling(scores, "gold scores")
    return scores


def refuse_twice(
    first: dict[tuple[object, ...], Path], path: Path, scorer: str, record: Judgement | HumanScore, key: tuple[object, ...]
) -> None:
    """Raise `UserError` for a record whose key is among the `first` ones, and otherwise add it there with its file."""
    if key in first:
        where = f"dialogue {record.dialogue_id}, dimension {record.dimension}"
        raise UserError(f"{path}: {scorer} scored {where} twice (first in {first[key]})")
    first[key] = path


def of_annotators(scores: Sequence[HumanScore], annotators: Sequence[str]) -> list[HumanScore]:
    """The scores by these annotators (all scores if none is named); `UserError` for one who gave none."""
    scorers = {score.annotator for score in scores}
    annotators = [composed(name) for name in annotators]
    for name in annotators:
        if name not in scorers:
            raise UserError(f"--annotator {name}: gave none of the scores: {near(name, scorers)}")
    return [score for score in scores if not annotators or score.annotator in annotators]


def item_order(record: Judgement | HumanScore, rubric: Rubric | None = None) -> tuple[object, ...]:
    """The sort key of records: rubric, language, dimension, dialogue and turn. Dimensions are in the order of `rubric` or of
    the bundled rubric that the record names; others are sorted by name."""
    order = _bundled(record.rubric) if rubric is None else tuple(rubric.dimensions)
    place = order.index(record.dimension) if record.dimension in order else len(order)
    turn = -1 if record.turn is None else record.turn
    return record.rubric, record.language, place, record.dimension, record.dialogue_id, turn


@cache
def _bundled(name: str) -> tuple[str, ...]:
    """The dimensions of the bundled rubric of that name; empty without one."""
    bundled = {path.stem for path in (CONFIGS / "rubrics").glob("*.yaml")}
    return tuple(load_rubric(name).dimensions) if name in bundled else ()


def read_preferences(paths: Sequence[Path]) -> list[Preference]:
    """Choices between two dialogues from JSONL files, in order. Raises `UserError` with file and line for a malformed line, and
    for a second answer, be it in another file, by one annotator to one question on one pair in one order."""
    preferences: list[Preference] = []
    places: dict[tuple[str, ...], str] = {}
    for where, choice in (placed for path in paths for placed in read_placed(path, Preference, "preferences file")):
        first, second = sorted((choice.dialogue_a, choice.dialogue_b))
        shown = choice.dialogue_a if choice.order == "ab" else choice.dialogue_b
        key = (choice.annotator, choice.question, first, second, shown)
        if places.setdefault(key, where) != where:
            answer = f"{choice.annotator} answered on {first} and {second} twice in the same order"
            raise UserError(f"{where}: {answer}; the first is {places[key]}")
        preferences.append(choice)
    one_spelling(preferences, "preferences")
    return preferences


def read_comparisons(paths: Sequence[Path]) -> list[Comparison]:
    """Choices between two systems from tables with the fields of `Comparison`, in order. Raises `UserError` with its place for
    a row that is malformed, a second answer to the same, and a question with a degree in some rows only."""
    choices: list[Comparison] = []
    places: dict[tuple[str | None, ...], str] = {}
    graded: dict[str, bool] = {}
    kind = "choices between two systems"

    def each(where: str, choice: Comparison) -> None:
        first = None if choice.order is None else choice.a if choice.order == "ab" else choice.b
        key = (choice.annotator, choice.question, choice.item, *sorted((choice.a, choice.b)), first)
        if places.setdefault(key, where) != where:
            answer = f"{choice.annotator} chose between {choice.a} and {choice.b} on item {choice.item} twice"
            remedy = "" if first else "; if both orders were shown, say which is which in column order"
            raise UserError(f"{where}: {answer} (first at {places[key]}){remedy}")
        if graded.setdefault(choice.question, choice.degree is not None) != (choice.degree is not None):
            raise UserError(f"{where}: degree: on question {choice.question!r} all rows have one or none has")

    for path in paths:
        choices += read_table(path, Comparison, kind, each)
    one_spelling(choices, kind)
    return choices


class RubricCheck:
    """Checks that a score fits its rubric (the user's files first, then the bundled ones) and, if given, its dialogue."""

    def __init__(self, rubrics: Sequence[Path | Rubric] = (), dialogues: Iterable[Dialogue] | None = None) -> None:
        own = (load_rubric(str(rubric)) if isinstance(rubric, Path) else rubric for rubric in reversed(rubrics))
        self.rubrics = {rubric.name: rubric for rubric in own}
        self._dialogues = None if dialogues is None else {dialogue.id: dialogue for dialogue in dialogues}

    def __call__(self, score: HumanScore) -> None:
        """Raise `UserError` that begins with the wrong column."""
        rubric = self._rubric(score.rubric)
        if score.dimension not in rubric.dimensions:
            names = near(score.dimension, rubric.dimensions)
            raise UserError(f"dimension: {score.dimension!r} is not in rubric {rubric.name}: {names}")
        check_scale(score, rubric)
        if self._dialogues is None:
            return
        if (dialogue := self._dialogues.get(score.dialogue_id)) is None:
            raise UserError(f"dialogue_id: no dialogue {score.dialogue_id!r} among those given")
        if dialogue.language != score.language:
            raise UserError(f"language: {score.language}, but dialogue {dialogue.id!r} is in {dialogue.language}")
        if score.turn is not None and score.turn >= len(dialogue.turns):
            raise UserError(f"turn: {score.turn}, but dialogue {dialogue.id!r} has turns 0 to {len(dialogue.turns) - 1}")

    def _rubric(self, name: str) -> Rubric:
        if name not in self.rubrics:
            if name.endswith((".yaml", ".yml")) or "/" in name:
                raise UserError(f"rubric: {name!r} is a path; write the rubric's name and give its file with --rubric")
            try:
                self.rubrics[name] = load_rubric(name)
            except UserError as error:
                raise UserError(f"rubric: {error} (for one of your own: --rubric FILE)") from None
        return self.rubrics[name]


def check_scale(score: HumanScore, rubric: Rubric) -> None:
    """Raise `UserError` for a value off its dimension's scale; values between two scores (halves, means) are allowed."""
    scale = rubric.scale_of(score.dimension)
    if not scale.min <= score.value <= scale.max:
        what = f"rubric {rubric.name}" if rubric.shared_scale else f"{score.dimension} in rubric {rubric.name}"
        raise UserError(f"value: {score.value:g} is off the scale of {what}, {scale.min} to {scale.max}")
