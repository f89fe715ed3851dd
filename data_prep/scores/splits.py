"""Train, valid and test: the paper's random rows, and splits that keep what belongs together on one side."""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from core.errors import UserError, need_modules
from core.files import digest
from core.records import Dialogue

Split = Literal["train", "valid", "test"]
SplitMethod = Literal["grouped", "random"]
SHARES: dict[Split, float] = {"train": 0.7, "valid": 0.1, "test": 0.2}
_FOLDS: tuple[Split, ...] = ("train",) * 7 + ("valid",) + ("test",) * 2
_SIGNS = re.compile(r"\W+")
_FAMILIES = frozenset({"synthetic", "epitome"})  # sources whose source_id is BASE/VARIANT: variants of one seeker's text


def group_of(dialogue: Dialogue) -> str:
    """What must not be on two sides: the role card (or profile) that was played, else the text that it is a variant of, else
    the dialogue's own letters (some corpora hold one dialogue under two ids)."""
    if dialogue.card_id is not None:
        return f"card {dialogue.card_id}"
    if dialogue.profile_id is not None:
        return f"profile {dialogue.profile_id}"
    if dialogue.source in _FAMILIES and dialogue.source_id is not None:
        return f"{dialogue.source} {dialogue.source_id.rpartition('/')[0] or dialogue.source_id}"
    return "dialogue " + digest(_SIGNS.sub("", "".join(turn.text for turn in dialogue.turns).lower()), 16)


def random_split(count: int, seed: int) -> list[Split]:
    """One split a row, 7:1:2 by rows up to rounding (ESC-Eval section 3.4).

    Rows are drawn without regard to what they are about: one dialogue, and one role card, can be in train and in test, so
    figures on such a test split flatter the ranker. That is the paper's procedure; `grouped_split` is the native one.
    """
    order = list(range(count))
    random.Random(f"{seed}/random split").shuffle(order)
    train, valid = round(0.7 * count), round(0.8 * count)
    split: list[Split] = ["test"] * count
    for place, row in enumerate(order):
        if place < valid:
            split[row] = "train" if place < train else "valid"
    return split


def grouped_split(groups: Sequence[str], labels: Sequence[str], seed: int) -> dict[str, Split]:
    """{group: split} near 7:1:2 by rows, each label's share near the same in all splits.

    `groups` and `labels` have one entry a row; a group with rows of many labels (one a dimension) is weighed by all of them.
    Ten folds of scikit-learn's StratifiedGroupKFold: seven train, one validates, two test. Raises `UserError` for fewer
    than ten groups.
    """
    need_modules("sklearn", purpose="a grouped split")
    from sklearn.model_selection import StratifiedGroupKFold

    names = list(dict.fromkeys(groups))
    if len(names) < len(_FOLDS):
        raise UserError(
            f"a grouped 7:1:2 split needs at least {len(_FOLDS)} groups (role cards, or dialogues without one), here are "
            f"{len(names)}; use --split random, or more dialogues"
        )
    codes = {label: code for code, label in enumerate(sorted(set(labels)))}
    classes = [codes[label] for label in labels]
    if max(Counter(classes).values()) < len(_FOLDS):
        classes = [0] * len(classes)  # too few rows of every label to stratify by
    rng = random.Random(f"{seed}/grouped split")
    folds = StratifiedGroupKFold(n_splits=len(_FOLDS), shuffle=True, random_state=rng.randrange(2**32))
    parts = rng.sample(_FOLDS, len(_FOLDS))  # its shuffle only orders equal groups: which fold tests is drawn here
    result: dict[str, Split] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rare label has fewer rows than there are folds
        for split, (_, rows) in zip(parts, folds.split(classes, classes, list(groups)), strict=True):
            result |= {groups[row]: split for row in rows}
    return {name: result[name] for name in names}


def shares(splits: Sequence[Split]) -> dict[str, float]:
    """Share (0–1) of each split among the entries."""
    counts = Counter(splits)
    return {split: counts[split] / max(1, len(splits)) for split in SHARES}
