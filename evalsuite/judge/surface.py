"""The baselines that a ranker has to beat on a test split: the majority class, and a classifier that sees only surface features
of a dialogue.

Surface features, with lengths in words (English) or characters (Chinese):

- `turns`: the number of turns;
- `supporter_…`, `seeker_…` with `mean`, `min`, `max`, `sd`: lengths of that side's turns (0 if it has none);
- `distinct_1`, `distinct_2`: the share of different words (characters), and of different pairs of neighbours, in the
  supporter's turns;
- `repeats`: replies that equal an earlier reply of the dialogue, apart from case and white space;
- `questions`: question marks per reply.

The candidates are scikit-learn's logistic regression on standardised features and a random forest of 300 trees. For each
language and dimension, the one with the higher accuracy on the validation split is used; the test split has no influence.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError, need_modules
from core.files import read_jsonl
from core.languages import PAPER_LANGUAGES, cut
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric, load_rubric
from core.statistics.accuracy import majority
from data_prep.line_checks import distinct
from data_prep.scores.rank_sft import RankExample

MAJORITY = "majority (train)"
SURFACE = "surface"
FEATURES = (
    "turns",
    *(f"{role}_{figure}" for role in ("supporter", "seeker") for figure in ("mean", "min", "max", "sd")),
    "distinct_1",
    "distinct_2",
    "repeats",
    "questions",
)

LanguageDimension = tuple[Language, str]


class Rating(NamedTuple):
    """One rating of a dialogue: `target` is the annotators' mean, `label` the rounded mean."""

    dialogue_id: str
    label: int
    target: float


Ratings = dict[LanguageDimension, list[Rating]]


class Split(NamedTuple):
    """The output of `python -m data_prep rank-sft`: the ratings of its training and validation splits, and the group of every
    dialogue in its test split. Dialogues of a group, such as variants of one dialogue, are always in the same split."""

    rubric: Rubric
    train: Ratings
    valid: Ratings
    groups: dict[str, str]


def read_split(folder: Path) -> Split:
    """The split in a folder. Raises `UserError` for a missing or malformed file."""
    train, valid, test = (
        read_jsonl(folder / f"{name}.jsonl", RankExample, "ranker examples") for name in ("train", "valid", "test")
    )
    rubric = load_rubric(str(folder / "rubric.yaml"))
    return Split(rubric, ratings(train), ratings(valid), {example.dialogue_id: example.group for example in test})


def ratings(examples: Iterable[RankExample]) -> Ratings:
    """Ratings by language and dimension, from examples of one or of several dimensions."""
    by_pair: Ratings = defaultdict(list)
    for e in examples:
        for dimension, label in e.labels.items():
            by_pair[e.language, dimension].append(Rating(e.dialogue_id, label, e.target[dimension]))
    return by_pair


def judged_items(verdicts: Iterable[Judgement], split: Split) -> dict[LanguageDimension, list[str]]:
    """The judged dialogues of the test split, sorted, by language and dimension. Raises `UserError` for verdicts on others."""
    items: dict[LanguageDimension, set[str]] = defaultdict(set)
    for j in verdicts:
        where = f"{j.judge}, dialogue {j.dialogue_id}, {j.dimension}"
        if j.rubric != split.rubric.name:
            raise UserError(f"{where}: rubric: {j.rubric}, but the split was made with {split.rubric.name}")
        if j.dialogue_id not in split.groups:
            raise UserError(f"{where}: not in the test split: give judgements of its dialogues")
        items[j.language, j.dimension].add(j.dialogue_id)
    return {pair: sorted(dialogues) for pair, dialogues in sorted(items.items())}


def features(dialogue: Dialogue) -> list[float]:
    """The features of a dialogue, in the order of `FEATURES`."""

    def words(text: str) -> list[str]:
        if dialogue.language not in PAPER_LANGUAGES:
            return cut(text, dialogue.language)
        return re.findall(r"\w+(?:['’]\w+)*" if dialogue.language == "en" else r"\S", text.lower())

    turns = {role: [words(t.text) for t in dialogue.turns if t.role == role] for role in ("supporter", "seeker")}
    replies = [" ".join(turn.text.lower().split()) for turn in dialogue.turns if turn.role == "supporter"]
    row = [float(len(dialogue.turns))]
    for side in turns.values():
        lengths = [*map(len, side)] or [0]
        row += [float(np.mean(lengths)), float(min(lengths)), float(max(lengths)), float(np.std(lengths))]
    questions = sum(reply.count("?") + reply.count("？") for reply in replies)
    row += [distinct(turns["supporter"], n) or 0.0 for n in (1, 2)]
    row += [float(len(replies) - len(set(replies))), questions / max(1, len(replies))]
    return row


def baseline_judgements(
    verdicts: Iterable[Judgement], split: Split, dialogues: Iterable[Dialogue] | None
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    """The judgements of the majority class and, given the split's `dialogues`, of the surface classifier on every judged item,
    and the classifiers chosen. Raises as `judged_items` and `surface_judgements` do."""
    items = judged_items(verdicts, split)
    judgements: list[Judgement] = []
    for pair, ids in items.items():
        # Every item gets the most frequent label of its language and dimension in the training split.
        label = majority([rating.target for rating in _ratings_of(split.train, pair, "train.jsonl")])["majority"]
        judgements += [_judgement(id, pair, MAJORITY, split.rubric, float(label)) for id in ids]
    if dialogues is None:
        return judgements, []
    surface, chosen = surface_judgements(items, split, {dialogue.id: dialogue for dialogue in dialogues})
    return judgements + surface, chosen


def surface_judgements(
    items: Mapping[LanguageDimension, Sequence[str]], split: Split, dialogues: Mapping[str, Dialogue], seed: int = 0
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    """The surface classifier's judgements of the items, and the classifier chosen per language and dimension, with the
    validation accuracy (0–1) of both. Raises `UserError` for an item without a dialogue, and for labels that a split lacks."""
    need_modules("sklearn", purpose="the classifier on surface features")
    rows = {id: features(dialogue) for id, dialogue in dialogues.items()}

    def matrix(ids: Sequence[str]) -> NDArray[np.float64]:
        if missing := sorted(set(ids) - set(rows)):
            raise UserError(f"--dialogues: lacks {len(missing)} dialogues of the split, for example {missing[0]}")
        return np.array([rows[id] for id in ids])

    judgements: list[Judgement] = []
    chosen: list[dict[str, Any]] = []
    for pair, ids in items.items():
        train, valid = _ratings_of(split.train, pair, "train.jsonl"), _ratings_of(split.valid, pair, "valid.jsonl")
        train_labels, valid_labels = (np.array([rating.label for rating in part]) for part in (train, valid))
        train_rows, valid_rows = (matrix([rating.dialogue_id for rating in part]) for part in (train, valid))
        classifiers = _classifiers(len(set(train_labels)), seed)
        fitted = {name: model.fit(train_rows, train_labels) for name, model in classifiers.items()}
        accuracy = {name: float(np.mean(model.predict(valid_rows) == valid_labels)) for name, model in fitted.items()}
        best = max(accuracy, key=lambda name: accuracy[name])  # the first, if they are equal
        chosen.append({"language": pair[0], "dimension": pair[1], "chosen": best, "valid_acc": accuracy, "valid_n": len(valid)})
        classes = [int(label) for label in fitted[best].classes_]
        for id, shares in zip(ids, fitted[best].predict_proba(matrix(ids)), strict=True):
            probabilities: dict[float, float] = dict(zip(classes, shares.tolist(), strict=True))
            distribution = {str(score): probabilities.get(score, 0.0) for score in split.rubric.scores}
            value = float(max(split.rubric.scores, key=lambda score: distribution[str(score)]))  # the lowest, if equal
            judgements.append(_judgement(id, pair, SURFACE, split.rubric, value, distribution))
    return judgements, chosen


def _classifiers(classes: int, seed: int) -> dict[str, Any]:
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if classes == 1:
        return {"the only label": DummyClassifier()}
    return {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
        "random forest": RandomForestClassifier(n_estimators=300, random_state=seed),
    }


def _ratings_of(ratings: Ratings, pair: LanguageDimension, file: str) -> list[Rating]:
    if not ratings.get(pair):
        raise UserError(f"{file}: no label for {pair[1]} ({pair[0]}), which was judged in the test split")
    return ratings[pair]


def _judgement(
    id: str, pair: LanguageDimension, judge: str, rubric: Rubric, value: float, distribution: dict[str, float] | None = None
) -> Judgement:
    item = {"dialogue_id": id, "language": pair[0], "judge": judge, "rubric": rubric.name, "dimension": pair[1]}
    return Judgement(**item, value=value, distribution=distribution)
