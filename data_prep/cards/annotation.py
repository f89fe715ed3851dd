"""Two people annotate every role card: the correction rules of ESC-Eval's appendix A.2, and how well the two agree.

The rules, for one card:
- one of the two says invalid → the card is dropped;
- one says high, the other middle → a third person decides, high or middle;
- otherwise: both say middle → middle. Both say high → see `Mode`;
- the same category → accepted; different ones → the third person decides, and may take any of the 35.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from core.files import CONFIGS, load_yaml
from core.records import Language
from core.statistics.reliability import Counts, cohen_kappa, estimate, krippendorff_alpha, ratio
from core.tables import Estimate
from data_prep.cards.taxonomy import Path3

Quality = Literal["high", "middle", "invalid"]
# Appendix A.2 names invalid, and high against middle, and makes all remaining cards middle. Read word by word (`paper`), a card
# that both call high is among the remaining, and only a third person can make a card high. `native` keeps what both say, which
# must be what is meant. Commands print how many cards the two readings part.
Mode = Literal["native", "paper"]
QUALITIES: tuple[Quality, ...] = ("high", "middle", "invalid")  # in order: agreement on quality is ordinal
RESAMPLES = 1000
RULES: dict[Quality, dict[Language, list[str]]] = load_yaml(CONFIGS / "card_quality.yaml", "rules of card quality")


@dataclass(frozen=True)
class Mark:
    """What one person said about one card. `category` is a path of three English names; None is allowed for invalid cards."""

    quality: Quality
    category: Path3 | None = None


@dataclass(frozen=True)
class Decision:
    """What the third person said about one card; None for what was not asked."""

    quality: Quality | None = None
    category: Path3 | None = None


@dataclass(frozen=True)
class Outcome:
    """What the rules make of one card. `open` names what waits for a third person: quality, category, or both.

    `unused` names answers of the third person that the rules did not ask for: they change nothing.
    """

    state: Literal["kept", "dropped", "open"]
    quality: Quality | None = None
    category: Path3 | None = None
    open: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def settle(first: Mark, second: Mark, third: Decision | None = None, mode: Mode = "native") -> Outcome:
    """The rules above for one card. Raises `ValueError` when the third person, asked for high or middle, says invalid."""
    third = third or Decision()
    answered = {name for name in ("quality", "category") if getattr(third, name) is not None}
    if "invalid" in (first.quality, second.quality):
        return Outcome("dropped", "invalid", unused=tuple(sorted(answered)))
    asked = questions(first, second)
    if "quality" in asked and third.quality == "invalid":
        raise ValueError("the third person decides between high and middle; an invalid card is what one of the two says")
    agreed: Quality = "middle" if mode == "paper" else first.quality
    quality = third.quality if "quality" in asked else agreed
    category = third.category if "category" in asked else first.category
    waiting = tuple(name for name in asked if name not in answered)
    unused = tuple(sorted(answered - set(asked)))
    if waiting:
        return Outcome("open", quality, category, waiting, unused)
    return Outcome("kept", quality, category, (), unused)


def questions(first: Mark, second: Mark) -> tuple[str, ...]:
    """What a third person must decide for a card: nothing, quality, category or both (in that order)."""
    if "invalid" in (first.quality, second.quality):
        return ()
    asked = ("quality",) if first.quality != second.quality else ()
    return asked + (("category",) if first.category != second.category else ())


def readings_differ(first: Mark, second: Mark) -> bool:
    """Whether the two modes give this card another quality: both people say high."""
    return first.quality == second.quality == "high"


# --- agreement --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """Agreement of two people on one question about `n` cards, with 95 % percentile intervals of a bootstrap over cards.

    A figure that is not defined, because nothing varies, is None.

    `raw` is the share of equal answers (0–1), `kappa` Cohen's (-1–1, nominal), `kappa_linear` Cohen's with linear weights
    (ordinal questions only), `alpha` Krippendorff's (ordinal for ordinal questions, else nominal).
    """

    question: str
    n: int
    raw: Estimate
    kappa: Estimate
    alpha: Estimate
    kappa_linear: Estimate | None = None


def agreement(pairs: list[tuple[Mark, Mark]], seed: int, resamples: int = RESAMPLES) -> list[Agreement]:
    """Agreement on quality (all cards), and on category levels 1 and 3 (cards that both gave a category)."""
    result = [_question("quality", [(a.quality, b.quality) for a, b in pairs], QUALITIES, True, seed, resamples)]
    both = [(a.category, b.category) for a, b in pairs if a.category and b.category]
    for level in (1, 3):
        answers = [(a[:level], b[:level]) for a, b in both]
        names = sorted({name for pair in answers for name in pair})
        result.append(_question(f"category, level {level}", answers, names, False, seed, resamples))
    return result


def _question(
    name: str, answers: Sequence[tuple[Any, Any]], values: Sequence[Any], ordinal: bool, seed: int, resamples: int
) -> Agreement:
    n = len(answers)
    place = {value: position for position, value in enumerate(values)}
    counts = np.zeros((1, len(values), len(values)))
    for a, b in answers:
        counts[0, place[a], place[b]] += 1
    drawn = counts
    if n:  # drawing cards with replacement is drawing their pairs of answers from a multinomial
        draws = np.random.default_rng(seed).multinomial(n, counts.ravel() / n, size=resamples)
        drawn = draws.reshape(-1, *counts.shape[1:]).astype(float)
    distance = np.abs(np.subtract.outer(np.arange(len(values)), np.arange(len(values)))).astype(float)
    nominal = (distance > 0).astype(float)

    def both(figure: Callable[[Counts], Counts]) -> Estimate:
        return estimate(figure(counts), figure(drawn), n)

    return Agreement(
        name,
        n,
        raw=both(lambda c: ratio(np.trace(c, axis1=1, axis2=2), c.sum((1, 2)))),
        kappa=both(lambda c: cohen_kappa(c, nominal)),
        alpha=both(lambda c: krippendorff_alpha(c + c.transpose(0, 2, 1), ordinal)),
        kappa_linear=both(lambda c: cohen_kappa(c, distance)) if ordinal else None,
    )
