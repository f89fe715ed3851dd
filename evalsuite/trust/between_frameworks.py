"""Do frameworks rank supporters alike, which dimensions correlate, and which framework distinguishes with the fewest calls?"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np

from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.statistics.accuracy import CORRELATION_FROM, JACKKNIFE, jackknife, left_out, ratio
from core.statistics.bootstrap import POINTS, RESAMPLES, SMOOTHED, Floats, estimate, smoothed_means
from core.statistics.inference import ALPHA, TEST, beside_interval, holds, holm_of, student_p
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.components import cards_needed
from evalsuite.statistics.contestants import Contestant, card_of, contestants_of, stack
from evalsuite.statistics.leaderboard import family
from evalsuite.statistics.summary import dimension_label

STUDY = "Do the frameworks agree?"  # heading of the page
POWER = 0.8
EXAMINED = "ECDBench: the total over its items, in all languages, [95 % bootstrap over items], n = items; without floors."


@dataclass(frozen=True)
class Averages:
    """One framework's averages of supporters: `seen` [supporters] on 0–100, and bootstrap draws [RESAMPLES, supporters] over
    `n` cards, profiles or items, NaN where a metric is undefined. `people` says who is played. `differences` are between every
    two supporters (places in `names`), and `spreads` the variance of each difference for one card or item; 0 if unknown."""

    title: str
    people: str
    names: Sequence[str]
    seen: Floats
    draws: Floats
    n: int
    differences: Sequence[paired.Difference]
    spreads: Sequence[float]

    def estimates(self) -> dict[str, Estimate]:
        """Every supporter's average with its interval."""
        columns = zip(self.names, self.seen, self.draws.T, strict=True)
        return {name: estimate(float(seen), draws, self.n, self.n) for name, seen, draws in columns}


def averages_of(
    title: str,
    people: str,
    names: Sequence[str],
    sums: Floats,
    counts: Floats,
    families: Sequence[str | None] | None = None,
    weights: Floats | None = None,
) -> Averages:
    """Averages from sums and counts of scores [cards, supporters, dimensions], drawing cards whole. Every supporter has its own
    score on the unseen half card, which would otherwise cancel in differences. `families` are those of `paired.differences`."""
    seen = paired.average_of(ratio(sums.sum(axis=0), counts.sum(axis=0)), weights)
    flat = sums.reshape(len(sums), -1), counts.reshape(len(sums), -1)
    draws = paired.average_of(smoothed_means(*flat, POINTS, blocks=len(names)).reshape(RESAMPLES, *sums.shape[1:]), weights)
    pairs = list(combinations(range(len(names)), 2))
    design = paired.Design(weights=weights)
    differences = paired.differences(sums, counts, pairs, average_only=True, families=families, design=design)
    means = paired.average_of(ratio(sums, counts), weights)
    gaps = [means[:, a] - means[:, b] for a, b in pairs]
    spreads = [float(scored.var(ddof=1)) if len(scored := gap[~np.isnan(gap)]) > 1 else 0.0 for gap in gaps]
    return Averages(title, people, names, seen, draws, len(sums), differences, spreads)


@dataclass(frozen=True)
class FrameworkScores:
    """One framework's dialogues with the supporters, and the verdicts of its judge (or of a panel as one judge). `people` says
    who is played, `calls` is the number of calls in all, and `floors` name supporters that need no model."""

    title: str
    people: str
    dialogues: Sequence[Dialogue]
    judgements: Sequence[Judgement]
    rubric: Rubric
    calls: int
    floors: Collection[str] = ()
    judge: str = ""
    gold: str = ""
    """The gold set on which the judge was measured; "" for none."""
    agreement: Mapping[str, Any] = field(default_factory=dict)
    """The judge's agreement with it: language → dimension or `average` → figures."""
    warnings: Sequence[str] = ()
    """The benchmark's own cautions about its figures, and dialogues that no average may hide."""

    def contestants(self, language: Language) -> dict[str, Contestant]:
        """The supporters in a language, by name."""
        contestants = contestants_of(self.dialogues, self.judgements, self.rubric)
        return {c.supporter: c for c in sorted(contestants, key=lambda c: c.supporter) if c.language == language}

    def averages(self, language: Language) -> Averages | None:
        """Averages over the framework's own dimensions, of supporters with readable verdicts on all; None without any."""
        rivals = [c for c in self.contestants(language).values() if c.complete(stack([c])[1].sum(axis=(0, 1)))]
        if not rivals:
            return None
        families = [family(*pair, self.floors) for pair in combinations(rivals, 2)]
        names = [rival.supporter for rival in rivals]
        return averages_of(self.title, self.people, names, *stack(rivals), families, rivals[0].design.weights)

    def unread(self, language: Language) -> str | None:
        """Why the framework ranks nobody although its judge was asked; None if it does, or if the judge was not asked."""
        verdicts = [j for j in self.judgements if j.language == language and not (j.lost or j.unasked)]
        if not verdicts or self.averages(language) is not None:
            return None
        read = sum(judgement.value is not None for judgement in verdicts)
        share = f"{read:,} of" if read else "none of"
        why = ", and no supporter has one on every dimension" if read else ""
        return f"{share} {len(verdicts):,} verdicts could be read{why}: it ranks nobody and is left out"


@dataclass(frozen=True)
class Examined:
    """The results of a benchmark of questions (ECDBench), over all languages: `totals` maps supporter → [1 + RESAMPLES] on
    0–100, the total and then its bootstrap draws, over the same items for every model. `items` were asked of each model, and
    `questions` of all together."""

    title: str
    totals: Mapping[str, Floats]
    items: int
    questions: int

    def averages(self, language: Language) -> Averages | None:
        """The totals, the same for every language; None if there are none."""
        names = [name for name in sorted(self.totals) if not np.isnan(self.totals[name][0])]
        if not names:
            return None
        every = np.stack([self.totals[name] for name in names], axis=1)
        pairs = list(combinations(range(len(names)), 2))
        gaps = np.stack([every[:, a] - every[:, b] for a, b in pairs], axis=1) if pairs else every[:, :0]
        errors = np.nanstd(gaps[1:], axis=0)
        p = beside_interval(student_p(gaps[0], errors, np.full(len(pairs), self.items), 100), gaps[1:])
        tested = [None if np.isnan(value) else float(value) for value in p]
        cells = [estimate(float(gap[0]), gap[1:], self.items, self.items) for gap in gaps.T]
        differences = [
            paired.Difference(a, b, None, float(every[0, a]), float(every[0, b]), cell, value, corrected, holds(corrected))
            for (a, b), cell, value, corrected in zip(pairs, cells, tested, holm_of(tested), strict=True)
        ]
        return Averages(self.title, "items", names, every[0], every[1:], self.items, differences, list(self.items * errors**2))


def as_one_judge(judgements: Sequence[Judgement]) -> Iterator[Judgement]:
    """A panel's verdicts as repeats of one judge, which are averaged."""
    repeats = Counter[tuple[str, str]]()
    for judgement in judgements:
        key = judgement.dialogue_id, judgement.dimension
        yield judgement.model_copy(update={"judge": "panel", "condition": {}, "repeat": repeats[key]})
        repeats[key] += 1


# --- are supporters ranked alike ----------------------------------------------------------------------------------------------


def tau(first: Averages, second: Averages) -> Estimate:
    """Kendall's tau-b over the supporters that both have (n of them), with bounds.

    A pair's order is fixed if its difference is significant in both, after Holm's correction over the pairs of both; any other
    pair may be ordered either way, as may two floors, which are not tested. So the truth lies between the bounds in at least
    95 % of studies, whatever the two frameworks have in common. (Percentiles of tau's bootstrap draws seldom cover it if
    differences are small: noise destroys order, and each draw adds more.)
    """
    from scipy.stats import kendalltau

    names = [name for name in first.names if name in second.names]
    if len(names) < 2:
        return Estimate(None, None, None, len(names))
    seen = float(kendalltau(*([side.seen[side.names.index(name)] for name in names] for side in (first, second))).statistic)
    if np.isnan(seen):
        return Estimate(None, None, None, len(names))
    sides = [{(side.names[gap.first], side.names[gap.second]): gap for gap in side.differences} for side in (first, second)]
    couples = [[side[pair] for side in sides] for pair in combinations(names, 2)]
    corrected = holm_of([gap.p for couple in couples for gap in couple])
    fixed = [all(map(holds, both)) for both in zip(corrected[::2], corrected[1::2], strict=True)]
    signs = [np.sign(float(x.estimate.mean or 0) * float(y.estimate.mean or 0)) for x, y in couples]
    agreed, open_pairs = float(np.array(signs)[fixed].sum()), fixed.count(False)
    low, high = ((agreed + sign * open_pairs) / len(couples) for sign in (-1, 1))
    return Estimate(seen, min(low, seen), max(high, seen), len(names))


def rank_tables(frameworks: Sequence[FrameworkScores | Examined], language: Language) -> list[Table]:
    """The supporters' averages by framework, and Kendall's tau of every two frameworks; empty for fewer than two supporters."""
    every = [*filter(None, (framework.averages(language) for framework in frameworks))]
    names = sorted({name for averages in every for name in averages.names})
    if len(names) < 2:
        return []
    estimates = [averages.estimates() for averages in every]
    columns = ("supporter", *(averages.title for averages in every))
    rows = tuple((name, *(cells.get(name) for cells in estimates)) for name in names)
    note = f"Averages of 0–100 over a framework's own dimensions, [{SMOOTHED} over cards or profiles], n = cards or profiles."
    note += f" {EXAMINED}" * any(isinstance(framework, Examined) for framework in frameworks)
    rank_columns = ("framework", "and", "Kendall's tau-b", "people played")
    pairs = ((a, b, "the same" if a.people == b.people else "others") for a, b in combinations(every, 2))
    ranks = tuple((a.title, b.title, tau(a, b), people) for a, b, people in pairs)
    rank_note = (
        "−1 to 1, n = supporters that both have. [At least 95 %: a pair's order is fixed where its difference is significant "
        f"in both frameworks ({TEST}, Holm's correction over both); any other pair may be ordered either way, as may two "
        "floors]. From below 0 to 1: this study cannot tell."
    )
    title = f"The same supporters by every framework, {language}"
    return [
        Table(f"study-averages-{language}", title, columns, rows, (note,), STUDY),
        Table(f"study-ranks-{language}", f"Are they ranked alike? {language}", rank_columns, ranks, (rank_note,), STUDY),
    ]


# --- which dimensions correlate ---------------------------------------------------------------------------------------------


Trials = Sequence[Floats]  # the scores [dimensions] of each trial
Cells = Mapping[tuple[str, str], Trials]  # by card and supporter


def _cells(framework: FrameworkScores, language: Language) -> tuple[Cells, Sequence[str]]:
    """(card, supporter) → the scores [dimensions] of each trial with all dimensions; and the dimensions' labels."""
    by_id = {dialogue.id: dialogue for dialogue in framework.dialogues}
    cells: dict[tuple[str, str], list[Floats]] = {}
    for contestant in contestants_of(framework.dialogues, framework.judgements, framework.rubric):
        for id, (sums, counts) in contestant.dialogues.items():
            if contestant.language == language and counts.all():
                cells.setdefault((card_of(by_id[id]), contestant.supporter), []).append(sums / counts)
    return cells, [dimension_label(framework.rubric, name) for name in framework.rubric.dimensions]


def reliabilities(cells: Sequence[Trials], weights: Floats) -> Floats:
    """The share of the variance of cells' means that lies between cells, (MSB − MSW) / MSB of a one-way analysis of variance,
    under weights 0 or 1 [draws, cells]: [draws, dimensions]; NaN if no cell has two trials, or cells do not differ."""
    sizes = np.array([float(len(trials)) for trials in cells])
    means = np.stack([np.mean(list(trials), axis=0) for trials in cells])
    inside = np.stack([((np.stack(list(trials)) - mean) ** 2).sum(axis=0) for trials, mean in zip(cells, means, strict=True)])
    number, scores = weights.sum(axis=1, keepdims=True), (weights @ sizes)[:, None]
    grand = weights @ (sizes[:, None] * means) / scores
    between = (weights @ (sizes[:, None] * means**2) - scores * grand**2) / np.maximum(number - 1, 1)
    spare = scores - number
    within = np.divide(weights @ inside, spare, out=np.full(between.shape, np.nan), where=spare > 0)
    result: Floats = np.divide(between - within, between, out=np.full(between.shape, np.nan), where=between > 1e-9)
    return result


def _correlations(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's correlation of every column of x with every column of y under weights [draws, rows]: [draws, columns of x,
    columns of y]; NaN if one does not vary."""
    total = weights.sum(axis=1, keepdims=True)
    mean_x, mean_y = weights @ x / total, weights @ y / total
    both = np.einsum("dr,ri,rj->dij", weights, x, y) / total[..., None] - mean_x[:, :, None] * mean_y[:, None, :]
    spread_x, spread_y = weights @ x**2 / total - mean_x**2, weights @ y**2 / total - mean_y**2
    size = np.sqrt(np.maximum(spread_x, 0)[:, :, None] * np.maximum(spread_y, 0)[:, None, :])
    result: Floats = np.divide(both, size, out=np.full(both.shape, np.nan), where=size > 1e-9)
    return result


Association = tuple[Estimate, Estimate, float | None, float | None]


def associations(first: Cells, second: Cells) -> list[Association]:
    """How every dimension of one side goes with every one of the other, over the (card, supporter) cells that both have: the
    correlation as seen and disattenuated (at most 1), and the reliability of both sides; empty for fewer than three cells.
    Intervals leave out cards in turn."""
    both = sorted(first.keys() & second.keys())
    if len(both) < 3:
        return []
    x, y = (np.stack([np.mean(list(cells[key]), axis=0) for key in both]) for cells in (first, second))
    cards = {name: place for place, name in enumerate(sorted({card for card, _ in both}))}
    weights = left_out(len(cards))[:, [cards[card] for card, _ in both]]
    seen = _correlations(x, y, weights)
    trust = [reliabilities([cells[key] for key in both], weights) for cells in (first, second)]
    positive = [np.sqrt(np.where(side > 0, side, np.nan)) for side in trust]
    cleared = seen / (positive[0][:, :, None] * positive[1][:, None, :])
    own = [[None if np.isnan(part) else float(part) for part in side[0]] for side in trust]
    return [
        (
            jackknife(seen[:, i, j], len(both), CORRELATION_FROM),
            jackknife(cleared[:, i, j], len(both), CORRELATION_FROM, fisher=False),
            own[0][i],
            own[1][j],
        )
        for i, j in np.ndindex(seen.shape[1:])
    ]


def dimension_table(first: FrameworkScores, second: FrameworkScores, language: Language) -> Table | None:
    """Correlations between the dimensions of two frameworks that judged the same dialogues, as seen and disattenuated; None if
    they share fewer than three cells. Pairs with a constant dimension are counted in a note."""
    (cells, names), (other_cells, other_names) = _cells(first, language), _cells(second, language)
    pairs = [
        (*names, *pair) for names, pair in zip(product(names, other_names), associations(cells, other_cells), strict=False)
    ]
    if not pairs:
        return None
    rows = sorted((row for row in pairs if row[2].mean is not None), key=lambda row: -(row[2].mean or 0))
    constant = f" Left out, because a dimension does not vary: {len(pairs) - len(rows)} of {len(pairs)} pairs."
    notes = (
        "Pearson's correlation over the same dialogues (means over trials of a supporter and card; n = these), "
        f"[95 % interval: {JACKKNIFE}; cards are left out]. Disattenuated: divided by the root of both reliabilities, at most "
        "1, [jackknife]; reliability: the share of the variance of such a mean that is not due to chance in the trials. A "
        f"dash: a single trial, or nothing but chance.{constant * (len(rows) < len(pairs))}",
        "Supporters that differ in everything make all dimensions correlate: look at who was compared.",
    )
    heads = (first.title, second.title, "correlation", "disattenuated", *(f"reliability, {x.title}" for x in (first, second)))
    title = f"Which dimensions correlate, {first.title} and {second.title}, {language}"
    return Table(f"study-dimensions-{language}", title, heads, tuple(rows), notes, STUDY)


# --- which framework distinguishes supporters with the fewest calls ---------------------------------------------------------


def call_table(frameworks: Sequence[FrameworkScores | Examined], language: Language) -> Table | None:
    """How many pairs each framework distinguishes, and how many calls that takes; None if none has two supporters."""
    rows = tuple(filter(None, (_call_row(framework, language) for framework in frameworks)))
    if not rows:
        return None
    note = (
        f"Significant: by {TEST} (ECDBench: items, by its bootstrap standard error), Holm's correction; two floors, or the "
        f"same dialogues, are no pair. Calls a pair needs: for the median pair to be significant in {100 * POWER:.0f} of 100 "
        "studies, if the difference is as large as seen here: a guess. A dash: half of the pairs hardly differ."
    )
    note += " FEEL's calls are the panel's, on ESC-Eval's dialogues." * any(row[0] == "FEEL" for row in rows)
    note += " ECDBench's calls are its questions." * any(isinstance(framework, Examined) for framework in frameworks)
    columns = ("framework", "cards, profiles or items", "calls", "calls per card and supporter", "significant pairs", "pairs")
    title = f"Which framework distinguishes supporters with the fewest calls? {language}"
    return Table(f"study-calls-{language}", title, (*columns, "calls a pair needs"), rows, (note,), STUDY)


def _call_row(framework: FrameworkScores | Examined, language: Language) -> tuple[Cell, ...] | None:
    averages = framework.averages(language)
    if averages is None or len(averages.names) < 2:
        return None
    if isinstance(framework, Examined):
        calls: float = framework.questions
        each = calls / len(averages.names) / framework.items
    else:
        of_language = sum(dialogue.language == language for dialogue in framework.dialogues)
        calls = framework.calls * of_language / max(len(framework.dialogues), 1)
        contestants = framework.contestants(language).values()
        each = calls / max(sum(c.complete(counts) for c in contestants for _, counts in c.cards.values()), 1)
    spreads = zip(averages.differences, averages.spreads, strict=True)
    tested = [(gap, spread) for gap, spread in spreads if gap.holds is not None]
    significant = sum(bool(gap.holds) for gap, _ in tested)
    cards = [cards_needed(gap.estimate.mean or 0, spread, ALPHA / len(tested), POWER) for gap, spread in tested]
    needed = [2 * each * number for number in cards if number is not None]
    median = float(np.median(needed)) if 2 * len(needed) > len(cards) else None  # undefined for half of the pairs
    return (framework.title, averages.n, round(calls), each, significant, len(tested), median)
