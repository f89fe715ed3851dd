"""What a ranker has to beat: the majority class, and a classifier that sees only the surface of a dialogue.

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
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError, need_modules
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.statistics.accuracy import majority
from data_prep.scores.rank_sft import RankExample

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

Key = tuple[Language, str]  # language, dimension


class Item(NamedTuple):
    """One rating of a dialogue: `target` is the annotators' mean, `label` that rounded, `group` what a split keeps together."""

    dialogue_id: str
    group: str
    label: int
    target: float


def items(examples: Iterable[RankExample]) -> dict[Key, list[Item]]:
    """The ratings by language and dimension, whether asked one by one or jointly; `UserError` for one given twice."""
    found: dict[Key, dict[str, Item]] = defaultdict(dict)
    for e in examples:
        for dimension, label in e.labels.items():
            if e.dialogue_id in found[e.language, dimension]:
                raise UserError(f"example {e.id}: dialogue {e.dialogue_id} has {dimension} twice")
            found[e.language, dimension][e.dialogue_id] = Item(e.dialogue_id, e.group, label, e.target[dimension])
    return {key: list(of.values()) for key, of in found.items()}


def features(dialogue: Dialogue) -> list[float]:
    """The numbers that `FEATURES` names."""
    unit = _WORD if dialogue.language == "en" else _SIGN
    said = {role: [unit.findall(t.text.lower()) for t in dialogue.turns if t.role == role] for role in ("supporter", "seeker")}
    replies = [" ".join(turn.text.lower().split()) for turn in dialogue.turns if turn.role == "supporter"]
    ones = [word for words in said["supporter"] for word in words]
    twos = [pair for words in said["supporter"] for pair in pairwise(words)]
    row = [float(len(dialogue.turns))]
    for turns in said.values():
        lengths = [len(words) for words in turns] or [0]
        row += [float(np.mean(lengths)), float(min(lengths)), float(max(lengths)), float(np.std(lengths))]
    questions = sum(len(_QUESTION.findall(reply)) for reply in replies)
    row += [_different(ones), _different(twos), float(len(replies) - len(set(replies))), questions / max(1, len(replies))]
    return row


def _different(things: Sequence[object]) -> float:
    return len(set(things)) / len(things) if things else 0.0


def majority_judgements(
    known: Mapping[Key, Sequence[Item]], test: Mapping[Key, Sequence[Item]], name: str, rubric: Rubric
) -> list[Judgement]:
    """Every test item gets the most frequent label that its language and dimension have among the `known` ones."""
    found = []
    for key, asked in test.items():
        label = majority([item.target for item in _own(known, key, "train.jsonl")])["majority"]
        found += [_judgement(item, key, name, rubric, float(label)) for item in asked]
    return found


def surface_judgements(
    train: Mapping[Key, Sequence[Item]],
    valid: Mapping[Key, Sequence[Item]],
    test: Mapping[Key, Sequence[Item]],
    dialogues: Mapping[str, Dialogue],
    rubric: Rubric,
    seed: int = 0,
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    """The surface classifier's judgements of the test items, and which classifier was chosen where, with what both reached.

    Raises `UserError` for a dialogue that is not among `dialogues` and for labels that the training or validation split lacks.
    """
    need_modules("sklearn", purpose="the classifier on surface features")
    rows = {id: features(dialogue) for id, dialogue in dialogues.items()}

    def matrix(asked: Sequence[Item]) -> NDArray[np.float64]:
        if missing := sorted({item.dialogue_id for item in asked} - set(rows)):
            raise UserError(f"--dialogues: {len(missing)} dialogues are not in it, for example {missing[0]}")
        return np.array([rows[item.dialogue_id] for item in asked])

    found: list[Judgement] = []
    chosen: list[dict[str, Any]] = []
    for key, asked in test.items():
        known, held = _own(train, key, "train.jsonl"), _own(valid, key, "valid.jsonl")
        labels = np.array([item.label for item in known])
        fitted = {name: model.fit(matrix(known), labels) for name, model in _classifiers(len(set(labels)), seed).items()}
        reached = {name: _right(model, matrix(held), held) for name, model in fitted.items()}
        best = max(reached, key=lambda name: reached[name])  # of equals, the first
        chosen.append({"language": key[0], "dimension": key[1], "chosen": best, "valid_acc": reached, "valid_n": len(held)})
        classes = [int(label) for label in fitted[best].classes_]
        for item, shares in zip(asked, fitted[best].predict_proba(matrix(asked)), strict=True):
            found.append(_judgement(item, key, SURFACE, rubric, None, dict(zip(classes, shares.tolist(), strict=True))))
    return found, chosen


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


def _right(model: Any, rows: NDArray[np.float64], held: Sequence[Item]) -> float:
    return float(np.mean(model.predict(rows) == np.array([item.label for item in held])))


def _own(given: Mapping[Key, Sequence[Item]], key: Key, file: str) -> Sequence[Item]:
    if not given.get(key):
        raise UserError(f"{file}: no label for {key[1]} ({key[0]}), which the test split has")
    return given[key]


def _judgement(
    item: Item, key: Key, name: str, rubric: Rubric, value: float | None, shares: Mapping[int, float] | None = None
) -> Judgement:
    distribution = None
    if shares is not None:
        distribution = {str(score): shares.get(score, 0.0) for score in rubric.scores}
        value = float(max(rubric.scores, key=lambda score: shares.get(score, 0.0)))  # of equals, the lowest
    return Judgement(
        dialogue_id=item.dialogue_id,
        language=key[0],
        judge=name,
        rubric=rubric.name,
        dimension=key[1],
        value=value,
        distribution=distribution,
    )
