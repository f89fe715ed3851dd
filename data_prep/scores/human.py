"""Scores that people gave, as `HumanScore` records: files in our own form, and what every import has in common.

Our own form (`read_scores`) is JSON lines, or CSV with a header, one score a row; `turn` may be left out or empty:

    dialogue_id,language,annotator,rubric,dimension,value,turn
    d1,en,anna,esc_eval_human,empathy,3,

The corpora that come with scores are in `data_prep.scores.corpora`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from core.errors import UserError, at, near
from core.files import CONFIGS, check_unique, read_bytes, read_placed
from core.ledger import Build, BuildStep
from core.names import composed, one_spelling
from core.records import Comparison, Dialogue, HumanScore, Judgement, Preference
from core.rows import read_table
from core.rubrics import Rubric, load_rubric
from data_prep.dialogue_files import read_given

COLUMNS = ("dialogue_id", "language", "annotator", "rubric", "dimension", "value", "turn")


@dataclass
class Imported:
    """Dialogues with what was said about them. `turn_scores` are on single turns, `scores` on whole dialogues."""

    dialogues: list[Dialogue] = field(default_factory=list)
    scores: list[HumanScore] = field(default_factory=list)
    turn_scores: list[HumanScore] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)

    def add(self, other: Imported) -> None:
        self.dialogues += other.dialogues
        self.scores += other.scores
        self.turn_scores += other.turn_scores
        self.judgements += other.judgements

    def write(self, build: Build) -> None:
        """Write dialogues.jsonl and scores.jsonl, and turn_scores.jsonl and judgements.jsonl where there are any.

        What two corpora share is written once (step `dialogues`, step `scores`); a dialogue without any score is left out.
        """
        rated = {score.dialogue_id for score in (*self.scores, *self.turn_scores)}
        rated |= {judgement.dialogue_id for judgement in self.judgements}
        seen: set[str] = set()

        def unused(dialogue: Dialogue) -> str | None:
            if dialogue.id not in rated:
                return "no score"
            again = dialogue.id in seen
            seen.add(dialogue.id)
            return "in two corpora, the first stands" if again else None

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
    return HumanScore(
        dialogue_id=dialogue.id,
        language=dialogue.language,
        annotator=annotator,
        rubric=rubric,
        dimension=dimension,
        value=value,
        turn=turn,
    )


def _key(score: HumanScore) -> tuple[object, ...]:
    return score.dialogue_id, score.rubric, score.dimension, score.annotator, score.turn


def _once(scores: Iterable[HumanScore], step: BuildStep) -> list[HumanScore]:
    values: dict[tuple[object, ...], float] = {}

    def again(score: HumanScore) -> str | None:
        if _key(score) not in values:
            values[_key(score)] = score.value
            return None
        same = values[_key(score)] == score.value
        return f"given twice: {'same value' if same else 'another value, the first stands'}"

    return step.sieve(scores, again, lambda score: f"{score.dialogue_id}/{score.dimension}")


def read_dialogues(paths: Sequence[Path]) -> list[Dialogue]:
    """Dialogues from files of any form (`data_prep.dialogue_files`), in order; `UserError` for a doubled id."""
    dialogues = [dialogue for path in paths for dialogue in read_given(path).dialogues]
    files = ", ".join(map(str, paths))
    check_unique(files, (dialogue.id for dialogue in dialogues), "dialogue ids")
    one_spelling(dialogues, files)
    return dialogues


def read_scores(path: Path, check: Callable[[HumanScore], None] | None = None) -> list[HumanScore]:
    """Scores from a `.jsonl` or `.csv` file in the form above, in file order; each is given to `check`.

    Raises `UserError` with file, line and column for whatever is malformed, refused by `check` (a `UserError`), or given twice
    by one annotator.
    """
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


def read_gold(path: Path, check: Callable[[HumanScore], None] | None = None) -> list[HumanScore]:
    """`read_scores` of a file that may be missing, which is said."""
    read_bytes(path, "gold scores")
    return read_scores(path, check)


def gold_scores_of(paths: Iterable[Path], check: Callable[[HumanScore], None] | None = None) -> list[HumanScore]:
    """`read_gold` of several files, one after the other, each in `item_order` and by annotator: no figure may depend on how the
    rows of a file are ordered. A score that an annotator gave twice, in two files too, is an error."""
    scores: list[HumanScore] = []
    seen: dict[tuple[object, ...], Path] = {}
    for path in paths:
        for score in sorted(read_gold(path, check), key=lambda score: (*item_order(score), score.annotator)):
            refuse_twice(seen, path, score.annotator, score, _key(score))
            scores.append(score)
    one_spelling(scores, "gold scores")
    return scores


def refuse_twice(
    seen: dict[tuple[object, ...], Path], path: Path, who: str, record: Judgement | HumanScore, key: tuple[object, ...]
) -> None:
    """Raise `UserError` for the key of a record that was `seen`, and note it there with its file."""
    if key in seen:
        where = f"dialogue {record.dialogue_id}, dimension {record.dimension}"
        raise UserError(f"{path}: {who} scored {where} twice (first in {seen[key]})")
    seen[key] = path


def of_annotators(scores: Sequence[HumanScore], annotators: Sequence[str]) -> list[HumanScore]:
    """The scores that these annotators gave (all scores when none is named); `UserError` for one who gave none."""
    scorers = {score.annotator for score in scores}
    annotators = [composed(name) for name in annotators]
    for name in annotators:
        if name not in scorers:
            raise UserError(f"--annotator {name}: gave none of the scores: {near(name, scorers)}")
    return [score for score in scores if not annotators or score.annotator in annotators]


def item_order(record: Judgement | HumanScore, rubric: Rubric | None = None) -> tuple[object, ...]:
    """What records of any kind are sorted by: rubric, language, dimension, dialogue and turn.

    Dimensions come as `rubric`, where it is given, or the bundled rubric of the record's name has them, others by name.
    """
    order = _bundled(record.rubric) if rubric is None else tuple(rubric.dimensions)
    place = order.index(record.dimension) if record.dimension in order else len(order)
    turn = -1 if record.turn is None else record.turn
    return record.rubric, record.language, place, record.dimension, record.dialogue_id, turn


@cache
def _bundled(name: str) -> tuple[str, ...]:
    """The dimensions of the bundled rubric of that name, none where there is no such rubric."""
    bundled = {path.stem for path in (CONFIGS / "rubrics").glob("*.yaml")}
    return tuple(load_rubric(name).dimensions) if name in bundled else ()


def read_preferences(paths: Sequence[Path]) -> list[Preference]:
    """Choices between two dialogues from JSONL files, in order.

    Raises `UserError` with file and line for what is malformed, and for an answer that is given twice, be it in two files: of
    one annotator on one question, on one pair in one order.
    """
    preferences: list[Preference] = []
    seen: dict[tuple[str, ...], str] = {}
    for where, choice in (placed for path in paths for placed in read_placed(path, Preference, "preferences file")):
        first, second = sorted((choice.dialogue_a, choice.dialogue_b))
        shown = choice.dialogue_a if choice.order == "ab" else choice.dialogue_b
        key = (choice.annotator, choice.question, first, second, shown)
        if key in seen:
            answer = f"{choice.annotator} answered on {first} and {second} twice in the same order"
            raise UserError(f"{where}: {answer}; the first is {seen[key]}")
        seen[key] = where
        preferences.append(choice)
    one_spelling(preferences, "preferences")
    return preferences


def read_comparisons(paths: Sequence[Path]) -> list[Comparison]:
    """Choices between two systems from `.jsonl` or `.csv` tables with the fields of `Comparison`, in order; cells may be empty.

    Raises `UserError` with file, line and field for what is malformed or answered twice (by one annotator on one question, item
    and pair in one order), and for a question of which some rows have a degree and others none.
    """
    choices: list[Comparison] = []
    seen: dict[tuple[str | None, ...], str] = {}
    graded: dict[str, bool] = {}
    kind = "choices between two systems"

    def each(where: str, choice: Comparison) -> None:
        first = None if choice.order is None else choice.a if choice.order == "ab" else choice.b
        key = (choice.annotator, choice.question, choice.item, *sorted((choice.a, choice.b)), first)
        if key in seen:
            answer = f"{choice.annotator} chose between {choice.a} and {choice.b} on item {choice.item} twice"
            remedy = "" if first else "; if both orders were shown, say which is which in column order"
            raise UserError(f"{where}: {answer} (first at {seen[key]}){remedy}")
        seen[key] = where
        if graded.setdefault(choice.question, choice.degree is not None) != (choice.degree is not None):
            what = "missing" if choice.degree is None else "given, but missing before"
            raise UserError(f"{where}: degree: {what}: on question {choice.question!r} all rows have one or none has")

    for path in paths:
        choices += read_table(path, Comparison, kind, each)
    one_spelling(choices, kind)
    return choices


class RubricCheck:
    """Whether a score fits its rubric (own rubric files first, then the bundled ones) and, where given, its dialogue."""

    def __init__(self, rubrics: Sequence[Path] = (), dialogues: Iterable[Dialogue] | None = None) -> None:
        self._rubrics = {rubric.name: rubric for rubric in (load_rubric(str(path)) for path in rubrics)}
        self._dialogues = None if dialogues is None else {dialogue.id: dialogue for dialogue in dialogues}

    def __call__(self, score: HumanScore) -> None:
        """Raise `UserError` that begins with the column that is wrong."""
        rubric = self._rubric(score.rubric)
        if score.dimension not in rubric.dimensions:
            raise UserError(
                f"dimension: {score.dimension!r} is not in rubric {rubric.name}: {near(score.dimension, rubric.dimensions)}"
            )
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
        if name not in self._rubrics:
            if name.endswith((".yaml", ".yml")) or "/" in name:
                raise UserError(f"rubric: {name!r} is a path; write the rubric's name and give its file with --rubric")
            with at("rubric"):
                self._rubrics[name] = load_rubric(name)
        return self._rubrics[name]


def check_scale(score: HumanScore, rubric: Rubric) -> None:
    """Raise `UserError` for a value that is not between its dimension's lowest and highest score; halves and means may be."""
    scale = rubric.scale_of(score.dimension)
    if not scale.min <= score.value <= scale.max:
        what = f"rubric {rubric.name}" if rubric.shared_scale else f"{score.dimension} in rubric {rubric.name}"
        raise UserError(f"value: {score.value:g} is off the scale of {what}, {scale.min} to {scale.max}")
