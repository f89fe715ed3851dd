"""Scores against the length of replies: does a judge reward those who say more?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from core.grouping import group_by
from core.records import Dialogue, Language
from core.rubrics import Rubric
from core.statistics.accuracy import rank_correlation
from core.statistics.bootstrap import PERCENTILE, RESAMPLES, SEED, Floats, estimate
from core.statistics.inference import beside_interval, cluster_error, student_p
from core.statistics.reliability import ratio
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.clusters import clusters_of
from evalsuite.statistics.contestants import Contestant
from evalsuite.statistics.paired import with_average
from evalsuite.statistics.summary import AVERAGE, BREAKDOWNS, Scorer

ALL = "all, within supporters"
NOTES = (
    f"Length: mean characters a reply. n = dialogues; [{PERCENTILE} over cards]. The last row of a judge is the mean over "
    "supporters, each as often as it has dialogues: whether long-winded supporters score higher than terse ones plays no part.",
    "A correlation is no proof of bias: longer replies may be better. A dash: undefined (nothing varies, or n < 2).",
)


@dataclass(frozen=True)
class Replies:
    """The dialogues of one supporter in one language as one scorer sees them.

    `dialogues` [n] come by id, `cards` [n] the cluster of each, `lengths` [n] the mean characters of its replies,
    `scores` [n, dimensions + 1] what it got on 0–100, the average last; NaN where nothing was read.
    """

    language: Language
    scorer: Scorer
    supporter: str
    dialogues: list[str]
    cards: list[str]
    lengths: Floats
    scores: Floats


@dataclass(frozen=True)
class LengthEffect:
    """Spearman's correlation (−1 to 1) of scores with mean reply length, of one scorer and language.

    `supporter` is None for the mean over supporters, each as often as it has dialogues: what goes with length among replies of
    one and the same supporter. `cells` maps dimension (and `average`) → estimate; n is dialogues with a readable verdict.
    Undefined (fewer than two dialogues, or equal lengths or scores throughout) is None.
    """

    language: Language
    scorer: Scorer
    supporter: str | None
    cells: dict[str, Estimate]


def mean_reply_length(dialogue: Dialogue) -> float | None:
    """Mean characters of the supporter's replies; None where it answers nothing. An opening greeting is no reply."""
    first = next((place for place, turn in enumerate(dialogue.turns) if turn.role == "seeker"), len(dialogue.turns))
    lengths = [len(turn.text.strip()) for turn in dialogue.turns[first:] if turn.role == "supporter"]
    return sum(lengths) / len(lengths) if lengths else None


def replies_of(dialogues: Sequence[Dialogue], contestants: Iterable[Contestant]) -> list[Replies]:
    """Every language, scorer and supporter. Dialogues without a reply are left out; an average is over all dimensions."""
    lengths = {dialogue.id: mean_reply_length(dialogue) for dialogue in dialogues}
    cards = clusters_of(dialogues)
    found = []
    for one in contestants:
        own = np.array([lengths[id] for id in one.dialogues], dtype=float)
        answered = ~np.isnan(own)
        sums, counts = np.array([*one.dialogues.values()])[answered].swapaxes(0, 1)
        scores = with_average(np.where(counts > 0, sums, np.nan), one.weights)
        ids = [*compress(one.dialogues, answered)]
        found.append(Replies(one.language, one.scorer, one.supporter, ids, [cards[id] for id in ids], own[answered], scores))
    return found


def length_effects(replies: Sequence[Replies], rubric: Rubric, names: Sequence[str] = ()) -> list[LengthEffect]:
    """A row per language, scorer and supporter, and one for all supporters of a scorer after them, on the dimensions of `names`
    (all and the average by default). Intervals: 95 % percentile bootstrap over cards, drawn whole for all supporters."""
    every = [*rubric.dimensions, AVERAGE]
    effects = []
    for (language, scorer), group in group_by(replies, lambda one: (one.language, one.scorer)).items():
        cells: dict[str, list[Estimate]] = defaultdict(list)
        for name in names or every:
            sides = [(one.lengths, one.scores[:, every.index(name)], one.cards) for one in group]
            rhos, sizes, drawn = _spearmans(sides)
            cells[name] += [estimate(own[0], own[1:], n, cards) for own, n, cards in zip(rhos, sizes, drawn, strict=True)]
            both, known = _pooled(rhos, sizes), np.flatnonzero(~np.isnan(rhos[:, 0]))
            n, cards = sum(sizes[place] for place in known), max((drawn[place] for place in known), default=0)
            cells[name].append(estimate(both[0], both[1:], n, cards))
        supporters = [*(one.supporter for one in group), None]
        effects += [
            LengthEffect(language, scorer, supporter, {name: row[place] for name, row in cells.items()})
            for place, supporter in enumerate(supporters)
        ]
    return effects


def _spearmans(
    sides: Sequence[tuple[Floats, Floats, Sequence[str]]], left_out: bool = False
) -> tuple[Floats, list[int], list[int]]:
    """Spearman's correlation of each supporter's lengths and scores (NaN: none), given with the cards that they are on:
    [supporters, selections] of all cards, with `left_out` then without each card in turn, and last `RESAMPLES` resamples of the
    cards, the same for all supporters; and each supporter's dialogues and cards with a score."""
    read = [~np.isnan(scores) for _, scores, _ in sides]
    cards = [np.array(names)[known] for (*_, names), known in zip(sides, read, strict=True)]
    names = sorted({str(name) for of_one in cards for name in of_one})
    row = {name: place for place, name in enumerate(names)}
    size = len(names)
    drawn = (
        np.random.default_rng(SEED).multinomial(size, np.full(size, 1 / size), RESAMPLES) if size else np.ones((RESAMPLES, 0))
    )
    weights = np.concatenate([np.ones((1, size)), *[1 - np.eye(size)] * left_out, drawn])
    rhos = []
    for (lengths, scores, _), known, own in zip(sides, read, cards, strict=True):
        place = np.array([row[str(name)] for name in own], dtype=np.intp)
        rhos.append(rank_correlation(lengths[known], scores[known], weights[:, place]))
        rhos[-1][1:] = np.where(np.isnan(rhos[-1][0]), np.nan, rhos[-1][1:])
    return np.array(rhos), [len(own) for own in cards], [len(set(own)) for own in cards]


def _pooled(rhos: Floats, sizes: Sequence[int]) -> Floats:
    """The mean over supporters, weighted by their dialogues; supporters without a defined correlation are left out."""
    weights = np.where(np.isnan(rhos), 0.0, np.array(sizes)[:, None])
    return ratio((np.nan_to_num(rhos) * weights).sum(axis=0), weights.sum(axis=0))


@dataclass(frozen=True)
class LengthBias:
    """Spearman's correlation with reply length, within supporters, of a judge's averages and of gold's on the same dialogues,
    their difference, and its two-sided p (`student_p`, the error by a jackknife over cards). None where one of them is
    undefined: scores that never vary go with nothing."""

    language: Language
    judge: Estimate
    gold: Estimate
    difference: Estimate
    p: float | None
    cards: int


def length_biases(judged: Sequence[Replies], golden: Sequence[Replies]) -> list[LengthBias]:
    """By language, whether a judge's scores go with length more than gold's do.

    Longer replies may be better, and gold then says so too. A judge's error makes its correlation with length smaller, as
    it does any other, so that a fair judge that is no more reliable than gold does not pass gold's. Where longer replies are
    worse, error brings it up to 0: so its own has to lie above 0 too, and p is the larger of both. A partial correlation
    given gold does not tell: gold has errors of its own, and what it misses of the quality stays in the judge's scores (a fair
    judge was found at fault in 16 to 35 of 100 simulated studies).
    """
    found = []
    whole = {(one.language, one.supporter): one for one in golden}
    for language, group in group_by(judged, lambda one: one.language).items():
        pairs = [(one, gold) for one in group if (gold := whole.get((language, one.supporter)))]
        pairs = [(one, gold) for one, gold in pairs if one.dialogues == gold.dialogues]
        both = [~np.isnan(one.scores[:, -1] + gold.scores[:, -1]) for one, gold in pairs]
        if not any(known.any() for known in both):
            continue
        rhos, n = [], sum(int(known.sum()) for known in both)
        for side in range(2):
            sides = [
                (pair[side].lengths, np.where(known, pair[side].scores[:, -1], np.nan), pair[side].cards)
                for pair, known in zip(pairs, both, strict=True)
            ]
            each, sizes, _ = _spearmans(sides, left_out=True)
            rhos.append(_pooled(each, sizes))
        cards = rhos[0].size - 1 - RESAMPLES
        gap = rhos[0] - rhos[1]
        both_positive = []
        for values in (gap, rhos[0]):
            without, drawn = values[1 : 1 + cards], values[1 + cards :]
            error = cluster_error((without - without.mean()) * (1 - 1 / cards), cards)
            both_positive.append(beside_interval(student_p(values[:1], [error], [cards], 2.0), drawn[:, None])[0])
        p = max(both_positive) if rhos[0][0] > 0 else 1.0 if gap[0] > 0 else both_positive[0]
        own, golds, more = (estimate(one[0], one[1 + cards :], n, cards) for one in (*rhos, gap))
        found.append(LengthBias(language, own, golds, more, None if np.isnan(p) else float(p), cards))
    return found


def average_table(replies: Sequence[Replies], effects: Sequence[LengthEffect]) -> Table:
    """For the report: how long a supporter's replies are, and the correlation of its average with their length."""
    several = len({one.scorer for one in replies}) > 1
    known = {(one.language, one.scorer, one.supporter): one for one in replies}
    rows: list[dict[str, Cell]] = []
    for effect in effects:
        own = known.get((effect.language, effect.scorer, effect.supporter or ""))
        rows.append({"supporter": effect.supporter or ALL, "language": effect.language, **effect.scorer.column(several)})
        rows[-1]["characters a reply"] = float(own.lengths.mean()) if own and len(own.lengths) else None
        rows[-1]["Spearman's correlation"] = effect.cells[AVERAGE]
    return Table.of("reply-length", "Average against reply length", rows, NOTES, BREAKDOWNS)
