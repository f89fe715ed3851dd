"""The judges that a ranker has to beat on a test split: the majority class, and a classifier that sees only the surface of a
dialogue.

Surface features of a dialogue, lengths in words (English) or characters (Chinese):

- `turns`: how many there are;
- `supporter_…`, `seeker_…` with `mean`, `min`, `max`, `sd`: lengths of that side's turns (0 where it has none);
- `distinct_1`, `distinct_2`: share of different words (characters) and pairs of neighbours among all of the supporter's;
- `repeats`: replies that are, but for case and space, an earlier reply of the dialogue;
- `questions`: question marks a reply.

Both classifiers are scikit-learn's: standardised features into a logistic regression, and a random forest of 300 trees. For
each language and dimension the one that is right more often on the validation split is taken; the test split chooses nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_SIGN = re.compile(r"\S")
_QUESTION = re.compile(r"[?？]")

LanguageDimension = tuple[Language, str]  # language, dimension


class Rating(NamedTuple):
    """One rating of a dialogue: `target` is the annotators' mean, `label` that rounded."""

    dialogue_id: str
    label: int
    target: float


Ratings = dict[LanguageDimension, list[Rating]]


class Split(NamedTuple):
    """What `python -m data_prep rank-sft` made: the ratings of its training and validation split, and the group of every
    dialogue of its test split. A group is what stays together in one split, as the variants of one dialogue do."""

    rubric: Rubric
    train: Ratings
    valid: Ratings
    groups: dict[str, str]


def read_split(folder: Path) -> Split:
    """Raises `UserError` for a file that is missing or malformed, and for a rating that is there twice."""
    train, valid, test = (
        read_jsonl(folder / f"{name}.jsonl", RankExample, "ranker examples") for name in ("train", "valid", "test")
    )
    rubric = load_rubric(str(folder / "rubric.yaml"))
    return Split(rubric, ratings(train), ratings(valid), {example.dialogue_id: example.group for example in test})


def ratings(examples: Iterable[RankExample]) -> Ratings:
    """By language and dimension, whether asked one by one or jointly; `UserError` for one given twice."""
    by_pair: dict[LanguageDimension, dict[str, Rating]] = defaultdict(dict)
    for e in examples:
        for dimension, label in e.labels.items():
            if e.dialogue_id in by_pair[e.language, dimension]:
                raise UserError(f"example {e.id}: dialogue {e.dialogue_id} has {dimension} twice")
            by_pair[e.language, dimension][e.dialogue_id] = Rating(e.dialogue_id, label, e.target[dimension])
    return {pair: list(of.values()) for pair, of in by_pair.items()}


def judged_items(verdicts: Iterable[Judgement], split: Split) -> dict[LanguageDimension, list[str]]:
    """The dialogues of the test split that were judged, sorted, by language and dimension.

    Raises `UserError` for a verdict on another rubric or dialogue, and for a judge with the name of a baseline.
    """
    items: dict[LanguageDimension, set[str]] = defaultdict(set)
    for j in verdicts:
        where = f"{j.judge}, dialogue {j.dialogue_id}, {j.dimension}"
        if j.rubric != split.rubric.name:
            raise UserError(f"{where}: rubric: {j.rubric}, but the split was made with {split.rubric.name}")
        if j.dialogue_id not in split.groups:
            raise UserError(f"{where}: not in the test split: these are judgements of other data")
        if j.judge in (MAJORITY, SURFACE):
            raise UserError(f"{where}: judge: the name {j.judge} is that of a baseline: give it another")
        items[j.language, j.dimension].add(j.dialogue_id)
    return {pair: sorted(dialogues) for pair, dialogues in sorted(items.items())}


def features(dialogue: Dialogue) -> list[float]:
    """The numbers that `FEATURES` names."""

    def parts(text: str) -> list[str]:
        if dialogue.language not in PAPER_LANGUAGES:
            return cut(text, dialogue.language)
        return (_WORD if dialogue.language == "en" else _SIGN).findall(text.lower())

    said = {role: [parts(t.text) for t in dialogue.turns if t.role == role] for role in ("supporter", "seeker")}
    replies = [" ".join(turn.text.lower().split()) for turn in dialogue.turns if turn.role == "supporter"]
    row = [float(len(dialogue.turns))]
    for turns in said.values():
        lengths = [len(words) for words in turns] or [0]
        row += [float(np.mean(lengths)), float(min(lengths)), float(max(lengths)), float(np.std(lengths))]
    questions = sum(len(_QUESTION.findall(reply)) for reply in replies)
    row += [distinct(said["supporter"], n) or 0.0 for n in (1, 2)]
    row += [float(len(replies) - len(set(replies))), questions / max(1, len(replies))]
    return row


def baseline_judgements(
    verdicts: Iterable[Judgement], split: Split, dialogues: Iterable[Dialogue] | None
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    """What the majority class and, with the split's `dialogues`, the surface classifier say of every item that was judged, and
    which classifier was chosen where. Errors are those of `judged_items` and `surface_judgements`."""
    items = judged_items(verdicts, split)
    judgements = [*majority_judgements(items, split)]
    if dialogues is None:
        return judgements, []
    surface, chosen = surface_judgements(items, split, {dialogue.id: dialogue for dialogue in dialogues})
    return judgements + surface, chosen


def majority_judgements(items: Mapping[LanguageDimension, Sequence[str]], split: Split) -> Iterator[Judgement]:
    """Every item gets the most frequent label that its language and dimension have in the training split."""
    for pair, dialogues in items.items():
        label = majority([rating.target for rating in _known(split.train, pair, "train.jsonl")])["majority"]
        yield from (_judgement(id, pair, MAJORITY, split.rubric, float(label)) for id in dialogues)


def surface_judgements(
    items: Mapping[LanguageDimension, Sequence[str]], split: Split, dialogues: Mapping[str, Dialogue], seed: int = 0
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    """The surface classifier's judgements of the items, and which classifier was chosen where, with what both reached.

    Raises `UserError` for a dialogue that is not among `dialogues` and for labels that the training or validation split lacks.
    """
    need_modules("sklearn", purpose="the classifier on surface features")
    rows = {id: features(dialogue) for id, dialogue in dialogues.items()}

    def matrix(ids: Sequence[str]) -> NDArray[np.float64]:
        if missing := sorted(set(ids) - set(rows)):
            raise UserError(f"--dialogues: {len(missing)} dialogues are not in it, for example {missing[0]}")
        return np.array([rows[id] for id in ids])

    judgements: list[Judgement] = []
    chosen: list[dict[str, Any]] = []
    for pair, asked in items.items():
        train, valid = _known(split.train, pair, "train.jsonl"), _known(split.valid, pair, "valid.jsonl")
        labels, right = np.array([rating.label for rating in train]), np.array([rating.label for rating in valid])
        known, held = (matrix([rating.dialogue_id for rating in part]) for part in (train, valid))
        fitted = {name: model.fit(known, labels) for name, model in _classifiers(len(set(labels)), seed).items()}
        reached = {name: float(np.mean(model.predict(held) == right)) for name, model in fitted.items()}
        best = max(reached, key=lambda name: reached[name])  # of equals, the first
        chosen.append({"language": pair[0], "dimension": pair[1], "chosen": best, "valid_acc": reached, "valid_n": len(valid)})
        classes = [int(label) for label in fitted[best].classes_]
        for id, shares in zip(asked, fitted[best].predict_proba(matrix(asked)), strict=True):
            probabilities: dict[float, float] = dict(zip(classes, shares.tolist(), strict=True))
            distribution = {str(score): probabilities.get(score, 0.0) for score in split.rubric.scores}
            value = float(max(split.rubric.scores, key=lambda score: distribution[str(score)]))  # of equals, the lowest
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


def _known(ratings: Ratings, pair: LanguageDimension, file: str) -> list[Rating]:
    if not ratings.get(pair):
        raise UserError(f"{file}: no label for {pair[1]} ({pair[0]}), which was judged in the test split")
    return ratings[pair]


def _judgement(
    id: str, pair: LanguageDimension, judge: str, rubric: Rubric, value: float, distribution: dict[str, float] | None = None
) -> Judgement:
    return Judgement(
        dialogue_id=id,
        language=pair[0],
        judge=judge,
        rubric=rubric.name,
        dimension=pair[1],
        value=value,
        distribution=distribution,
    )
