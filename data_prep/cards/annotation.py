"""Two people annotate every role card: the rules of ESC-Eval's appendix A.2 that settle their answers, and their agreement.

The rules, for one card:
- one of the two says invalid → the card is dropped;
- one says high, the other middle → a third person decides, high or middle;
- otherwise: both say middle → middle. Both say high → see `Mode`;
- the same category → accepted; different ones → the third person decides, and may take any of the 35.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from core.statistics.accuracy import ALPHA_FROM, cohen_kappa, jackknife, krippendorff_alpha, left_out
from core.statistics.bootstrap import SHARES, estimate, smoothed_means
from core.tables import Estimate
from data_prep.cards.taxonomy import Path3

Quality = Literal["high", "middle", "invalid"]
# Appendix A.2 covers invalid cards and high against middle, and makes all remaining cards middle. Read literally (`paper`), a
# card that both call high is among the remaining, so only a third person can make a card high. `native` keeps it high, which
# must be what the authors meant. Commands print on how many cards the two readings differ.
Mode = Literal["native", "paper"]
QUALITIES: tuple[Quality, ...] = ("high", "middle", "invalid")  # in order: agreement on quality is ordinal


@dataclass(frozen=True)
class Mark:
    """One person's answers on one card. `category` is a path of three English names, or None for an invalid card. Fields that
    the third person was not asked about are None."""

    quality: Quality | None = None
    category: Path3 | None = None


@dataclass(frozen=True)
class AnnotationOutcome:
    """The result of the rules for one card. `open` names what waits for a third person: quality, category, or both. `unused`
    is whether the third person answered what the rules did not ask for, which is ignored."""

    state: Literal["kept", "dropped", "open"]
    quality: Quality | None = None
    category: Path3 | None = None
    open: tuple[str, ...] = ()
    unused: bool = False


def settle(first: Mark, second: Mark, third: Mark = Mark(), mode: Mode = "native") -> AnnotationOutcome:
    """The rules above for one card. Raises `ValueError` if the third person, who chooses high or middle, says invalid."""
    answered = {name for name in ("quality", "category") if getattr(third, name) is not None}
    if "invalid" in (first.quality, second.quality):
        return AnnotationOutcome("dropped", "invalid", unused=bool(answered))
    disputed = questions(first, second)
    if "quality" in disputed and third.quality == "invalid":
        raise ValueError("the third person decides between high and middle; only the two workers can call a card invalid")
    agreed = "middle" if mode == "paper" else first.quality
    quality = third.quality if "quality" in disputed else agreed
    category = third.category if "category" in disputed else first.category
    waiting = tuple(name for name in disputed if name not in answered)
    return AnnotationOutcome("open" if waiting else "kept", quality, category, waiting, bool(answered - set(disputed)))


def questions(first: Mark, second: Mark) -> tuple[str, ...]:
    """What a third person must decide for a card: nothing, quality, category or both (in that order)."""
    if "invalid" in (first.quality, second.quality):
        return ()
    return tuple(name for name in ("quality", "category") if getattr(first, name) != getattr(second, name))


@dataclass(frozen=True)
class Agreement:
    """Agreement of two people on one question about `n` cards, with 95 % intervals over cards; None where nothing varies.

    `raw` is the share of equal answers (0–1), `kappa` Cohen's (-1–1, nominal), `kappa_linear` Cohen's with linear weights
    (ordinal questions only), `alpha` Krippendorff's (ordinal for ordinal questions, else nominal).
    """

    question: str
    n: int
    raw: Estimate
    kappa: Estimate
    alpha: Estimate
    kappa_linear: Estimate | None = None


def agreement(pairs: list[tuple[Mark, Mark]], seed: int) -> list[Agreement]:
    """Agreement on quality (all cards), and on category levels 1 and 3 (cards that both gave a category)."""
    result = [_question("quality", [(a.quality, b.quality) for a, b in pairs], QUALITIES, True, seed)]
    both = [(a.category, b.category) for a, b in pairs if a.category and b.category]
    for level in (1, 3):
        answers = [(a[:level], b[:level]) for a, b in both]
        names = sorted({name for pair in answers for name in pair})
        result.append(_question(f"category, level {level}", answers, names, False, seed))
    return result


def _question(name: str, answers: Sequence[tuple[Any, Any]], values: Sequence[Any], ordinal: bool, seed: int) -> Agreement:
    answers = sorted(answers, key=str)  # no figure depends on the order of rows
    n = len(answers)
    cards = np.zeros((n, len(values), len(values)))  # each card's pair of answers
    for card, (first, second) in enumerate(answers):
        cards[card, values.index(first), values.index(second)] = 1
    equal = np.trace(cards, axis1=1, axis2=2)[:, None]
    without = (left_out(n, seed) @ cards.reshape(n, -1)).reshape(-1, *cards.shape[1:]) if n else cards.sum(0, keepdims=True)
    distance = np.abs(np.subtract.outer(np.arange(len(values)), np.arange(len(values)))).astype(float)
    nominal = (distance > 0).astype(float)
    raw = Estimate(None, None, None, 0)
    if n:
        raw = estimate(round(float(equal.mean()), 6), smoothed_means(equal, np.ones((n, 1)), SHARES, seed)[:, 0], n, n)
    return Agreement(
        name,
        n,
        raw=raw,
        kappa=jackknife(cohen_kappa(without, nominal), n),
        alpha=jackknife(krippendorff_alpha(without + without.transpose(0, 2, 1), ordinal), n, ALPHA_FROM),
        kappa_linear=jackknife(cohen_kappa(without, distance), n) if ordinal else None,
    )
