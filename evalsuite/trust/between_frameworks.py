"""Do frameworks agree? Whether they rank supporters alike, which dimensions go together, and which framework parts supporters
with the fewest calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import POINTS, RESAMPLES, SMOOTHED, Floats, estimate, smoothed_means
from core.statistics.inference import ALPHA, TEST, beside_interval, holds, holm_of, student_p
from core.statistics.reliability import CORRELATION_FROM, JACKKNIFE, jackknife, left_out
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.components import cards_needed
from evalsuite.statistics.contestants import Contestant, contestants_of, stack
from evalsuite.statistics.leaderboard import family
from evalsuite.statistics.summary import dimension_label

STUDY = "Do the frameworks agree?"  # heading of the page
POWER = 0.8
EXAMINED = (
    "ECDBench: the total over what was asked, in all languages, [95 % bootstrap over items], n = items; floors answer no "
    "questions."
)


@dataclass(frozen=True)
class Averages:
    """What one framework says of supporters: `seen` [supporters] on 0–100 and draws of it [RESAMPLES, supporters], over `n`
    cards, profiles or items; a draw in which a metric is not defined is NaN. `people` is who is played. `differences` are those
    of every two (places in `names`), and `spreads` the variance of each for one card or item; 0 where it is not known."""

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
        return {
            name: estimate(float(self.seen[place]), self.draws[:, place], self.n, self.n)
            for place, name in enumerate(self.names)
        }


def averages_of(
    title: str,
    people: str,
    names: Sequence[str],
    sums: Floats,
    counts: Floats,
    families: Sequence[str | None] | None = None,
    weights: Floats | None = None,
) -> Averages:
    """From sums and counts of scores, [cards, supporters, dimensions]: cards are drawn whole. Each supporter has a score of its
    own on the half card that nobody has seen: else it would cancel in differences. `families` of pairs as `paired.differences`
    has them."""
    totals = counts.sum(axis=0)
    seen = paired.average_of(np.divide(sums.sum(axis=0), totals, out=np.full(totals.shape, np.nan), where=totals > 0), weights)
    flat = sums.reshape(len(sums), -1), counts.reshape(len(sums), -1)
    draws = paired.average_of(smoothed_means(*flat, POINTS, blocks=len(names)).reshape(RESAMPLES, *totals.shape), weights)
    pairs = list(combinations(range(len(names)), 2))
    design = paired.Design(weights=weights)
    differences = paired.differences(sums, counts, pairs, average_only=True, families=families, design=design)
    means = paired.average_of(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0), weights)
    gaps = [means[:, a] - means[:, b] for a, b in pairs]
    spreads = [float(known.var(ddof=1)) if len(known := gap[~np.isnan(gap)]) > 1 else 0.0 for gap in gaps]
    return Averages(title, people, names, seen, draws, len(sums), differences, spreads)


@dataclass(frozen=True)
class FrameworkScores:
    """What one framework made of the supporters: dialogues, and verdicts of one judge (or of a panel as one). `people` is who
    is played. `calls` were made for the whole. `floors` name supporters that need no model."""

    title: str
    people: str
    dialogues: Sequence[Dialogue]
    judgements: Sequence[Judgement]
    rubric: Rubric
    calls: int
    floors: Collection[str] = ()
    judge: str = ""
    gold: str = ""
    """On what the judge was measured; "" for nothing."""
    agreement: Mapping[str, Any] = field(default_factory=dict)
    """How it agrees with that: language → dimension or `average` → figures."""
    warnings: Sequence[str] = ()
    """What the benchmark itself says that its figures are not, and what none of them may hide."""

    def contestants(self, language: Language) -> dict[str, Contestant]:
        """The supporters in a language, by name."""
        found = contestants_of(self.dialogues, self.judgements, self.rubric)
        return {one.supporter: one for one in sorted(found, key=lambda one: one.supporter) if one.language == language}

    def averages(self, language: Language) -> Averages | None:
        """Over the framework's own dimensions, of supporters with readable verdicts on all of them; None where none has."""
        read = {name: one for name, one in self.contestants(language).items() if one.complete(stack([one])[1].sum(axis=(0, 1)))}
        if not read:
            return None
        families = [family(*pair, self.floors) for pair in combinations(read.values(), 2)]
        rivals = list(read.values())
        return averages_of(self.title, self.people, list(read), *stack(rivals), families, rivals[0].weights)

    def unread(self, language: Language) -> str | None:
        """Why it ranks nobody, where its judge was asked and no supporter has readable verdicts."""
        asked = [one for one in self.judgements if one.language == language and not (one.lost or one.unasked)]
        if not asked or self.averages(language) is not None:
            return None
        read = sum(one.value is not None for one in asked)
        said = f"{read:,} of" if read else "none of"
        why = ", and no supporter has one on every dimension" if read else ""
        return f"{said} {len(asked):,} verdicts could be read{why}: it ranks nobody and is left out"


@dataclass(frozen=True)
class Examined:
    """What a benchmark that asks questions (ECDBench) made of models: `totals` maps supporter → [1 + RESAMPLES] on 0–100, the
    total and then that of every draw of its items, the same for every model. Languages are not told apart. `items` were
    asked of each model, `questions` of all."""

    title: str
    totals: Mapping[str, Floats]
    items: int
    questions: int

    def averages(self, language: Language) -> Averages | None:
        """The totals, in whichever language; None where there are none."""
        names = [name for name in sorted(self.totals) if not np.isnan(self.totals[name][0])]
        if not names:
            return None
        every = np.stack([self.totals[name] for name in names], axis=1)
        pairs = list(combinations(range(len(names)), 2))
        gaps = np.stack([every[:, a] - every[:, b] for a, b in pairs], axis=1) if pairs else every[:, :0]
        errors = np.nanstd(gaps[1:], axis=0)
        p = beside_interval(student_p(gaps[0], errors, np.full(len(pairs), self.items), 100), gaps[1:])
        tested = [None if np.isnan(one) else float(one) for one in p]
        around = [estimate(float(gap[0]), gap[1:], self.items, self.items) for gap in gaps.T]
        differences = [
            paired.Difference(a, b, None, float(every[0, a]), float(every[0, b]), gap, one, corrected, holds(corrected))
            for (a, b), gap, one, corrected in zip(pairs, around, tested, holm_of(tested), strict=True)
        ]
        return Averages(self.title, "items", names, every[0], every[1:], self.items, differences, list(self.items * errors**2))


def as_one_judge(judgements: Sequence[Judgement]) -> Iterator[Judgement]:
    """A panel's verdicts as those of one judge, whose repeats they are: they are averaged."""
    first: dict[tuple[str, str], int] = {}
    for judgement in judgements:
        key = judgement.dialogue_id, judgement.dimension
        first[key] = first.get(key, -1) + 1
        changes = {"judge": "panel", "condition": {}, "repeat": first[key]}
        yield judgement.model_copy(update=changes)


# --- are supporters ranked alike ----------------------------------------------------------------------------------------------


def tau(one: Averages, other: Averages) -> Estimate:
    """Kendall's tau-b of the supporters that both have (their number is n), and between what it must lie.

    A pair's order stands where its difference is significant in both, after Holm's correction over the pairs of both; every
    other pair may be ordered either way, as may two floors, which are not tested. So the truth lies between the bounds in 95 %
    of studies at least, whatever the two frameworks have in common. (Percentiles of tau's own draws seldom hold it where
    differences are small: noise takes order away, and each draw adds its own.)
    """
    from scipy.stats import kendalltau

    names = [name for name in one.names if name in other.names]
    if len(names) < 2:
        return Estimate(None, None, None, len(names))
    seen = float(kendalltau(*([side.seen[side.names.index(name)] for name in names] for side in (one, other))).statistic)
    if np.isnan(seen):
        return Estimate(None, None, None, len(names))
    sides = [{(side.names[gap.first], side.names[gap.second]): gap for gap in side.differences} for side in (one, other)]
    couples = [[side[pair] for side in sides] for pair in combinations(names, 2)]
    corrected = holm_of([side.p for couple in couples for side in couple])
    stands = [all(map(holds, both)) for both in zip(corrected[::2], corrected[1::2], strict=True)]
    signs = [np.sign(float(x.estimate.mean or 0) * float(y.estimate.mean or 0)) for x, y in couples]
    sure, unsure = float(np.array(signs)[stands].sum()), stands.count(False)
    low, high = ((sure + side * unsure) / len(couples) for side in (-1, 1))
    return Estimate(seen, min(low, seen), max(high, seen), len(names))


def rank_tables(frameworks: Sequence[FrameworkScores | Examined], language: Language) -> list[Table]:
    """Averages of the supporters by framework, and Kendall's tau of every two frameworks."""
    every = [found for one in frameworks if (found := one.averages(language))]
    names = sorted({name for one in every for name in one.names})
    if len(names) < 2:
        return []
    estimates = [one.estimates() for one in every]
    return [
        Table(
            f"study-averages-{language}",
            f"The same supporters by every framework, {language}",
            ("supporter", *(one.title for one in every)),
            tuple((name, *(of_one.get(name) for of_one in estimates)) for name in names),
            (
                f"Averages of 0–100 over a framework's own dimensions, [{SMOOTHED} over cards or profiles], n = how many."
                + (f" {EXAMINED}" if any(isinstance(one, Examined) for one in frameworks) else ""),
            ),
            STUDY,
        ),
        Table(
            f"study-ranks-{language}",
            f"Are they ranked alike? {language}",
            ("framework", "and", "Kendall's tau-b", "people played"),
            tuple(
                (one.title, other.title, tau(one, other), "the same" if one.people == other.people else "others")
                for one, other in combinations(every, 2)
            ),
            (
                "−1 to 1, n = supporters that both have. [At least 95 %: a pair's order stands where its difference is "
                f"significant in both frameworks ({TEST}, Holm's correction over both), any other pair may be either way, as "
                "may two floors]. From below 0 to 1: this study cannot tell.",
            ),
            STUDY,
        ),
    ]


# --- which dimensions measure the same --------------------------------------------------------------------------------------


Trials = Sequence[Floats]  # the scores [dimensions] of each trial
Cells = Mapping[tuple[str, str], Trials]  # by card and supporter


def _cells(framework: FrameworkScores, language: Language) -> tuple[Cells, Sequence[str]]:
    """(card, supporter) → the dialogues' scores [dimensions], one for each trial with all dimensions."""
    known = {dialogue.id: dialogue for dialogue in framework.dialogues}
    found = contestants_of(framework.dialogues, framework.judgements, framework.rubric, card_of=lambda one: one.id)
    cells: dict[tuple[str, str], list[Floats]] = {}
    for contestant in found:
        for id, (sums, counts) in contestant.cards.items():
            if contestant.language == language and counts.all():
                cells.setdefault((card_of(known[id]), contestant.supporter), []).append(sums / counts)
    return cells, [dimension_label(framework.rubric, name) for name in framework.rubric.dimensions]


def reliabilities(cells: Sequence[Trials], weights: Floats) -> Floats:
    """How much of the variance of a cell's mean over trials is the cell's own: (MSB − MSW) / MSB of a one-way analysis of
    variance, under weights 0 or 1 [draws, cells]: [draws, dimensions]. NaN where no cell has two trials, or cells do not
    differ."""
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
    """Pearson's correlation of every column of x with every one of y under weights [draws, rows]: [draws, columns of x, columns
    of y]; NaN where one does not vary."""
    total = weights.sum(axis=1, keepdims=True)
    mean_x, mean_y = weights @ x / total, weights @ y / total
    both = np.einsum("dr,ri,rj->dij", weights, x, y) / total[..., None] - mean_x[:, :, None] * mean_y[:, None, :]
    spread_x, spread_y = weights @ x**2 / total - mean_x**2, weights @ y**2 / total - mean_y**2
    size = np.sqrt(np.maximum(spread_x, 0)[:, :, None] * np.maximum(spread_y, 0)[:, None, :])
    result: Floats = np.divide(both, size, out=np.full(both.shape, np.nan), where=size > 1e-9)
    return result


@dataclass(frozen=True)
class Association:
    """How two dimensions go together: `seen` over the same dialogues, `cleared` of the luck of trials (at most 1), and the
    `reliability` of both sides."""

    seen: Estimate
    cleared: Estimate
    reliability: tuple[float | None, float | None]


def associations(mine: Cells, theirs: Cells) -> list[list[Association]]:
    """Of every dimension of one side with every one of the other, over the (card, supporter) that both have; none for fewer
    than three. Intervals leave out cards in turn."""
    both = sorted(mine.keys() & theirs.keys())
    if len(both) < 3:
        return []
    x, y = (np.stack([np.mean(list(cells[key]), axis=0) for key in both]) for cells in (mine, theirs))
    cards = {name: place for place, name in enumerate(sorted({card for card, _ in both}))}
    weights = left_out(len(cards))[:, [cards[card] for card, _ in both]]
    seen = _correlations(x, y, weights)
    trust = [reliabilities([cells[key] for key in both], weights) for cells in (mine, theirs)]
    product = trust[0][:, :, None] * trust[1][:, None, :]
    sound = (trust[0][:, :, None] > 0) & (trust[1][:, None, :] > 0)
    cleared = np.divide(seen, np.sqrt(np.where(sound, product, np.nan)))
    own = [[None if np.isnan(part) else float(part) for part in side[0]] for side in trust]
    return [
        [
            Association(
                jackknife(seen[:, i, j], len(both), CORRELATION_FROM),
                jackknife(cleared[:, i, j], len(both), CORRELATION_FROM, fisher=False),
                (own[0][i], own[1][j]),
            )
            for j in range(y.shape[1])
        ]
        for i in range(x.shape[1])
    ]


def dimension_table(one: FrameworkScores, other: FrameworkScores, language: Language) -> Table | None:
    """Correlations of the dimensions of two frameworks that judged the same dialogues, as seen and disattenuated; None where
    they share fewer than three cells. Pairs of which one does not vary are counted below the table."""
    (mine, names), (theirs, names2) = _cells(one, language), _cells(other, language)
    found = associations(mine, theirs)
    if not found:
        return None
    rows: list[tuple[Cell, ...]] = [
        (name, name2, pair.seen, pair.cleared, *pair.reliability)
        for name, of_one in zip(names, found, strict=True)
        for name2, pair in zip(names2, of_one, strict=True)
        if pair.seen.mean is not None
    ]
    rows.sort(key=lambda row: -(row[2].mean or 0) if isinstance(row[2], Estimate) else 0)
    pairs = len(names) * len(names2)
    still = (
        f" Left out, because one of the two does not vary: {pairs - len(rows)} of {pairs} pairs." if len(rows) < pairs else ""
    )
    return Table(
        f"study-dimensions-{language}",
        f"Which dimensions go together, {one.title} and {other.title}, {language}",
        (one.title, other.title, "correlation", "disattenuated", f"reliability, {one.title}", f"reliability, {other.title}"),
        tuple(rows),
        (
            "Pearson's correlation over the same dialogues (means over trials of a supporter and card; n = these), "
            f"[95 % interval: {JACKKNIFE}; cards are left out]. Disattenuated: by the root of both reliabilities, cut at 1, "
            "[jackknife]; reliability: the share of the variance of such a mean that is not the luck of the "
            f"trials. A dash: one trial alone, or nothing but that luck.{still}",
            "Supporters that differ in everything make every dimension go with every other: look at who was compared.",
        ),
        STUDY,
    )


# --- which parts supporters with the fewest calls ---------------------------------------------------------------------------


def call_table(frameworks: Sequence[FrameworkScores | Examined], language: Language) -> Table | None:
    """How many pairs each framework tells apart, and what that takes; None where none has two supporters."""
    rows = [row for one in frameworks for row in _call_row(one, language)]
    if not rows:
        return None
    columns = ("framework", "cards, profiles or items", "calls", "calls per card and supporter", "significant pairs", "pairs")
    return Table(
        f"study-calls-{language}",
        f"Which framework parts supporters with the fewest calls? {language}",
        (*columns, "calls a pair needs"),
        tuple(rows),
        (
            f"Told apart: by {TEST} (ECDBench: items, by its bootstrap standard error), Holm's correction; two floors and the "
            "same dialogues are no pair. Calls a pair "
            f"needs: for the middle pair, to be shown in {100 * POWER:.0f} of 100 studies if its difference is as large as it "
            "looks here, a guess. A dash: half of the pairs look alike."
            + " FEEL's calls judge dialogues that ESC-Eval held: its own are the panel's alone."
            * any(r[0] == "FEEL" for r in rows)
            + " ECDBench's calls are its questions." * any(isinstance(one, Examined) for one in frameworks),
        ),
        STUDY,
    )


def _call_row(framework: FrameworkScores | Examined, language: Language) -> list[tuple[Cell, ...]]:
    """The framework's row; none for fewer than two supporters."""
    found = framework.averages(language)
    if found is None or len(found.names) < 2:
        return []
    if isinstance(framework, Examined):
        calls, each = framework.questions, framework.questions / len(found.names) / framework.items
    else:
        of_language = sum(dialogue.language == language for dialogue in framework.dialogues)
        asked = framework.calls * of_language / max(len(framework.dialogues), 1)
        cells = sum(
            one.complete(counts) for one in framework.contestants(language).values() for _, counts in one.cards.values()
        )
        calls, each = round(asked), asked / max(cells, 1)
    tested = [(pair, spread) for pair, spread in zip(found.differences, found.spreads, strict=True) if pair.holds is not None]
    apart = sum(bool(pair.holds) for pair, _ in tested)
    cards = [cards_needed(pair.estimate.mean or 0, spread, ALPHA / len(tested), POWER) for pair, spread in tested]
    needed = [2 * each * number for number in cards if number is not None]
    middle = float(np.median(needed)) if 2 * len(needed) > len(cards) else None  # not defined for half of the pairs
    return [(framework.title, found.n, calls, each, apart, len(tested), middle)]
