"""Scores against the length of replies: does a judge reward supporters that say more?"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from core.grouping import group_by
from core.records import Dialogue, Language
from core.statistics.accuracy import rank_correlation, ratio
from core.statistics.bootstrap import PERCENTILE, RESAMPLES, SEED, Floats, estimate
from core.statistics.inference import beside_interval, cluster_error, student_p
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.contestants import Contestant, clusters_of
from evalsuite.statistics.paired import average_of
from evalsuite.statistics.summary import BREAKDOWNS, Scorer

ALL = "all, within supporters"
NOTES = (
    f"Length: mean characters per reply. n = dialogues; [{PERCENTILE} over cards]. A judge's last row is the mean over "
    "supporters, weighted by dialogues: whether long-winded supporters score higher than terse ones plays no part in it.",
    "A correlation is no proof of bias: longer replies may be better. A dash: undefined (nothing varies, or n < 2).",
)


@dataclass(frozen=True)
class Replies:
    """The dialogues of one supporter in one language, by one scorer: their ids and `cards` (clusters) [n], the mean characters
    of their replies [n], and their averages over all dimensions [n] on 0–100, NaN without a readable verdict on each."""

    language: Language
    scorer: Scorer
    supporter: str
    dialogues: list[str]
    cards: list[str]
    lengths: Floats
    averages: Floats


def mean_reply_length(dialogue: Dialogue) -> float | None:
    """Mean characters of the supporter's replies; None without any. An opening greeting is no reply."""
    first = next((place for place, turn in enumerate(dialogue.turns) if turn.role == "seeker"), len(dialogue.turns))
    lengths = [len(turn.text.strip()) for turn in dialogue.turns[first:] if turn.role == "supporter"]
    return sum(lengths) / len(lengths) if lengths else None


def replies_of(dialogues: Sequence[Dialogue], contestants: Iterable[Contestant]) -> list[Replies]:
    """Every language, scorer and supporter. Dialogues without a reply are left out."""
    lengths = {dialogue.id: mean_reply_length(dialogue) for dialogue in dialogues}
    cards = clusters_of(dialogues)
    parts = []
    for contestant in contestants:
        own = np.array([lengths[id] for id in contestant.dialogues], dtype=float)
        answered = ~np.isnan(own)
        sums, counts = np.array([*contestant.dialogues.values()])[answered].swapaxes(0, 1)
        averages = average_of(np.where(counts > 0, sums, np.nan), contestant.design.weights)
        ids = [*compress(contestant.dialogues, answered)]
        source = contestant.language, contestant.scorer, contestant.supporter
        parts.append(Replies(*source, ids, [cards[id] for id in ids], own[answered], averages))
    return parts


def _spearmans(
    sides: Sequence[tuple[Floats, Floats, Sequence[str]]], left_out: bool = False
) -> tuple[Floats, list[int], list[int]]:
    """Spearman's correlation of each supporter's lengths and scores on these cards, [supporters, selections]: over all cards,
    with `left_out` without each card in turn, and over `RESAMPLES` resamples of the cards. Also the number of each supporter's
    dialogues, and of its cards, with a score."""
    read = [~np.isnan(scores) for _, scores, _ in sides]
    cards = [np.array(names)[present] for (*_, names), present in zip(sides, read, strict=True)]
    names = sorted({str(name) for cards_of in cards for name in cards_of})
    row = {name: place for place, name in enumerate(names)}
    size = len(names)
    rng = np.random.default_rng(SEED)
    drawn = rng.multinomial(size, np.full(size, 1 / size), RESAMPLES) if size else np.ones((RESAMPLES, 0))
    weights = np.concatenate([np.ones((1, size)), *[1 - np.eye(size)] * left_out, drawn])
    rhos = []
    for (lengths, scores, _), present, own in zip(sides, read, cards, strict=True):
        place = np.array([row[str(name)] for name in own], dtype=np.intp)
        rhos.append(rank_correlation(lengths[present], scores[present], weights.take(place, axis=1)))
        rhos[-1][1:] = np.where(np.isnan(rhos[-1][0]), np.nan, rhos[-1][1:])
    return np.array(rhos), [len(own) for own in cards], [len(set(own)) for own in cards]


def _pooled(rhos: Floats, sizes: Sequence[int]) -> Floats:
    """The mean over supporters, weighted by their dialogues; supporters without a defined correlation are left out."""
    weights = np.where(np.isnan(rhos), 0.0, np.array(sizes)[:, None])
    return ratio((np.nan_to_num(rhos) * weights).sum(axis=0), weights.sum(axis=0))


@dataclass(frozen=True)
class LengthBias:
    """Spearman's correlation with reply length, within supporters, of a judge's averages and of gold's on the same dialogues;
    their difference, and its two-sided p (`student_p`, the error by a jackknife over cards); None if undefined."""

    language: Language
    judge: Estimate
    gold: Estimate
    difference: Estimate
    p: float | None
    cards: int


def length_biases(judged: Sequence[Replies], golden: Sequence[Replies]) -> list[LengthBias]:
    """By language, whether a judge's scores correlate with length more than gold's do.

    Longer replies may be better, and gold then says so too. A judge's errors shrink its correlation, so a fair judge that is no
    more reliable than gold does not exceed gold's. If longer replies are worse, errors raise it towards 0: so the judge's own
    must lie above 0 as well, and p is the larger of both. A partial correlation given gold does not help, since gold has errors
    of its own (a fair judge was found at fault in 16 to 35 of 100 simulated studies)."""
    biases = []
    golden_parts = {(own.language, own.supporter): own for own in golden}
    for language, group in group_by(judged, lambda own: own.language).items():
        pairs = [(own, people) for own in group if (people := golden_parts.get((language, own.supporter)))]
        pairs = [(own, people) for own, people in pairs if own.dialogues == people.dialogues]
        both = [~np.isnan(own.averages + people.averages) for own, people in pairs]
        if not any(present.any() for present in both):
            continue
        rhos, n = [], sum(int(present.sum()) for present in both)
        for parts in zip(*pairs, strict=True):
            defined = (np.where(present, part.averages, np.nan) for part, present in zip(parts, both, strict=True))
            sides = [(part.lengths, scores, part.cards) for part, scores in zip(parts, defined, strict=True)]
            each, sizes, _ = _spearmans(sides, left_out=True)
            rhos.append(_pooled(each, sizes))
        cards = rhos[0].size - 1 - RESAMPLES
        gap = rhos[0] - rhos[1]
        p_values = []
        for values in (gap, rhos[0]):
            without, drawn = values[1 : 1 + cards], values[1 + cards :]
            error = cluster_error((without - without.mean()) * (1 - 1 / cards), cards)
            p_values.append(beside_interval(student_p(values[:1], [error], [cards], 2.0), drawn[:, None])[0])
        p = max(p_values) if rhos[0][0] > 0 else 1.0 if gap[0] > 0 else p_values[0]
        judge, golds, difference = (estimate(values[0], values[1 + cards :], n, cards) for values in (*rhos, gap))
        biases.append(LengthBias(language, judge, golds, difference, None if np.isnan(p) else float(p), cards))
    return biases


def length_table(replies: Sequence[Replies]) -> Table:
    """The length of every supporter's replies, and Spearman's correlation (−1 to 1) of its averages with length."""
    several = len({part.scorer for part in replies}) > 1
    rows: list[dict[str, Cell]] = []
    for (language, scorer), group in group_by(replies, lambda part: (part.language, part.scorer)).items():
        rhos, sizes, drawn = _spearmans([(part.lengths, part.averages, part.cards) for part in group])
        effects = [estimate(own[0], own[1:], n, cards) for own, n, cards in zip(rhos, sizes, drawn, strict=True)]
        pooled, defined = _pooled(rhos, sizes), np.flatnonzero(~np.isnan(rhos[:, 0]))
        n, cards = sum(sizes[place] for place in defined), max((drawn[place] for place in defined), default=0)
        effects.append(estimate(pooled[0], pooled[1:], n, cards))
        names = [(part.supporter, part.lengths) for part in group] + [(ALL, np.array([]))]
        for (supporter, lengths), effect in zip(names, effects, strict=True):
            rows.append({"supporter": supporter, "language": language, **scorer.column(several)})
            rows[-1]["characters a reply"] = float(lengths.mean()) if len(lengths) else None
            rows[-1]["Spearman's correlation"] = effect
    return Table.of("reply-length", "Average against reply length", rows, NOTES, BREAKDOWNS)
