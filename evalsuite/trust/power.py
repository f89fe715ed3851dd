"""`esc-eval power`: where the variance of a score comes from, how many cards, trials and judges a difference needs, and what
ESC-Eval's table 2 could show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from operator import itemgetter

import numpy as np

from core.languages import name_of
from core.records import Language
from core.statistics.inference import ALPHA, TEST
from core.statistics.reliability import ratio
from core.tables import Cell, Estimate, Table
from evalsuite.report.charts import Chart, bar_panels
from evalsuite.report.figures import curve, panels, trace
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.components import (
    FEWEST_BOUNDED,
    FEWEST_PLANNED,
    Components,
    Observation,
    Spread,
    cards_needed,
    least_shown,
    shown_with,
)
from evalsuite.statistics.contestants import contestants_of
from evalsuite.statistics.summary import supporter_of

PLANNING = "How many cards, trials and judges"  # heading of the tables
TRIALS = (1, 2, 3, 5)
SPREADS = (5, 10, 15, 20, 25, 30, 40)  # standard deviations of a card's difference, in points


def observations_of(runs: Sequence[RunRecords]) -> dict[Language, list[Observation]]:
    """The average of every dialogue that has all dimensions, by language; runs are of one judge each. Trials in which the very
    same was said (at temperature 0) are one draw, as is a dialogue that lies in two run folders."""
    found: dict[Language, dict[tuple[str, ...], Observation]] = {}
    for run in runs:
        known = {dialogue.id: dialogue for dialogue in run.dialogues}
        whole = [judgement for judgement in run.judgements if judgement.turn is None]
        for one in contestants_of(run.dialogues, whole, run.rubric, card_of=lambda dialogue: dialogue.id):
            for id, (sums, counts) in one.cards.items():
                dialogue = known[id]
                if one.complete(counts):
                    said = "\n".join(turn.text for turn in dialogue.turns) or str(dialogue.trial)
                    seeker = dialogue.simulator or dialogue.source
                    where = (supporter_of(dialogue), card_of(dialogue), seeker, one.scorer.name, said)
                    average = float(paired.average_of(ratio(sums, counts), one.weights))
                    found.setdefault(one.language, {})[where] = Observation(*where, average)
    return {language: list(every.values()) for language, every in found.items()}


@dataclass(frozen=True)
class PlannedStudy:
    """What is asked of one language's scores: a difference (points of 0–100) that is to be shown in the share `power` of runs,
    corrected for so many pairs; `spreads` are those of the pairs, the widest first."""

    language: Language
    found: Components
    spreads: Sequence[Spread]
    difference: float
    pairs: int
    power: float

    @property
    def trials(self) -> Sequence[int]:
        """The numbers of trials that this run can plan for."""
        return TRIALS if self.found.trials > 1 else TRIALS[:1]

    @property
    def widest(self) -> Spread | None:
        """The pair that needs the most cards; None where no pair that varies has enough."""
        return next((pair for pair in self.spreads if pair.enough and pair.variance), None)

    def variance(self, pair: Spread, trials: float) -> float:
        """Of a card's difference with so many trials: the pair's own, by what the components say of the draw."""
        here, there = (self.found.difference(number)[0] for number in (self.found.trials, trials))
        return pair.variance * (there / here if here else 1)

    def needed(self, pair: Spread, trials: float, others: bool = False) -> Estimate | None:
        """Cards for one pair at so many trials, with what a variance at the ends of its own interval would need; `others`: for
        judges and seekers like these, drawn anew. None for too few cards."""
        if not pair.enough:
            return None
        variance, staying = self.variance(pair, trials), self.found.difference(trials)[1] if others else 0.0
        alpha = ALPHA / self.pairs
        cards = cards_needed(self.difference, variance, alpha, self.power, pair.degrees, staying)
        ends = [cards_needed(self.difference, variance * end, alpha, self.power, None, staying) for end in pair.bounds() or ()]
        low, high = ends if None not in ends and ends else (None, None)
        return None if cards is None else Estimate(cards, low, high, pair.cards)

    def least(self, pair: Spread) -> float | None:
        """The least difference that the pair's own cards and trials show; None where its spread says too little."""
        if not pair.enough or not pair.variance:
            return None
        return least_shown(pair.variance, pair.cards, ALPHA / self.pairs, self.power, pair.degrees)

    def shown(self, pair: Spread, trials: float, cards: int) -> float:
        """In what share of runs of so many cards the difference is shown (0–1)."""
        return shown_with(self.difference, self.variance(pair, trials), cards, ALPHA / self.pairs, pair.degrees)


def paper_tables(averages: Mapping[str, Mapping[str, float]], cards: Mapping[str, int], power: float) -> Iterator[Table]:
    """Which of the differences of ESC-Eval's table 2 its cards could have shown. `averages` maps language → supporter → average
    of 0–100; the spread of a card's difference is not published, so it is assumed."""
    rows: list[tuple[Cell, ...]] = []
    worst: list[tuple[Cell, ...]] = []
    for language, of_one in averages.items():
        pairs = [(a, b, abs(of_one[a] - of_one[b])) for a, b in combinations(of_one, 2)]
        number = cards[language]
        for spread in SPREADS:
            least = [least_shown(spread**2, number, level, power) for level in (ALPHA, ALPHA / len(pairs))]
            shown = [sum(bound is not None and gap >= bound for _, _, gap in pairs) for bound in least]
            rows.append((language, number, spread, least[0], shown[0], least[1], shown[1], len(pairs)))
        # Scores of 0–100 with mean m have a variance of at most m (100 − m), and two independent ones the sum.
        bound = {name: mean * (100 - mean) for name, mean in of_one.items()}
        sure = sum(shown_with(gap, bound[a] + bound[b], number, ALPHA / len(pairs)) >= power for a, b, gap in pairs if gap > 0)
        gaps = np.sort([gap for _, _, gap in pairs])
        middle = Estimate(float(np.median(gaps)), float(gaps[0]), float(gaps[-1]), len(gaps))
        worst.append((language, number, len(pairs), middle, sure))
    notes = (
        "On the paper's own design: one dialogue per supporter and card, one score per dimension. Least: what is shown in "
        f"{100 * power:.0f} of 100 such studies ({TEST}, with an interval that leaves out 0) at {ALPHA:g}, alone and corrected "
        "for all pairs. Shown: pairs of the table that lie as far apart.",
        "The spread of one card's difference in the average (its standard deviation, in points) is not published; `esc-eval "
        "power RUN` gives that of a run.",
    )
    heads = ("spread of a card's difference", "least", "shown", "least, all pairs", "shown, all pairs", "pairs")
    columns: tuple[str, ...] = ("language", "cards", *heads)
    yield Table("table2-power", "What table 2 of ESC-Eval could show", columns, tuple(rows), notes, PLANNING)
    title = "Its differences in the average, and those that no spread can hide"
    columns = ("language", "cards", "pairs", "difference: median [least, largest]", "shown at the widest spread")
    note = (
        "At the widest spread: scores at the ends of the scale only (variance m (100 − m) at a mean of m), two supporters "
        "independent, corrected for all pairs."
    )
    yield Table("table2-gaps", title, columns, tuple(worst), (note,), PLANNING)


# --- the page ---------------------------------------------------------------------------------------------------------------


_POINTS = 14  # numbers of cards along a line
_WIDEST = 4  # times the cards that are there: no line goes further


def power_sheet(planned: Sequence[PlannedStudy], more: Sequence[Table], runs: Sequence[str], plumbing: bool) -> Sheet:
    """The page; `more` are tables that no run is behind (the paper's)."""
    findings = [sentence for one in planned for sentence in _needed(one)]
    figures: dict[str, object] = {}
    for one in planned:
        share, source = max(zip(_shares(one), (part.name for part in one.found.parts), strict=True), key=itemgetter(0))
        findings.append(f"{name_of(one.language)}: the largest source of variance is {source}, {share:.0f} % of the whole.")
        figures[one.language] = {
            "components": [asdict(part) | {"facets": sorted(part.facets)} for part in one.found.parts],
            "levels": one.found.levels,
            "trials": one.found.trials,
            "pairs": [asdict(pair) | {"spread": pair.variance**0.5} for pair in one.spreads],
        }
    return Sheet(
        title=PLANNING,
        cautions=[PLUMBING] if plumbing else [],
        findings=findings,
        facts=[*([("Runs", ", ".join(runs))] if runs else []), ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        main=[f"needed-{one.language}" for one in planned],
        tables=[*(table for one in planned for table in (_component_table(one), _need_table(one))), *more],
        charts=[
            chart
            for one in planned
            for chart in (_share_chart(one), *(_power_chart(one, pair) for pair in [one.widest] if pair))
        ],
        figures={"plumbing": plumbing, "languages": figures},
    )


def _component_table(one: PlannedStudy) -> Table:
    """Every component with its share of the whole."""
    found = one.found
    rows = tuple(
        (part.name, Estimate(part.variance, part.low, part.high, part.levels), share, part.counted**0.5)
        for part, share in zip(found.parts, _shares(one), strict=True)
    )
    levels = ", ".join(f"{number} {facet}{'s' * (number != 1)}" for facet, number in found.levels.items())
    return Table(
        key=f"components-{one.language}",
        title=f"Where the variance of the average comes from, {one.language}",
        columns=("source", "variance", "share %", "standard deviation"),
        rows=rows,
        notes=(
            f"{found.scores:,} averages of 0–100 ({levels}; {found.trials:.1f} dialogues of one supporter, card and seeker), "
            f"mean {found.mean:.1f}. Estimated by sums of squares; below 0 counts as 0. [95 %: jackknife over cards on the "
            "scale of the cube root, for other cards like these; what does not cross the card has none], n = levels.",
            "Sources that stand together cannot be told apart by this design: more trials part the draw from the crossing of "
            "supporter and card, more judges part it from the judge's own noise.",
        ),
        section=PLANNING,
    )


def _need_table(one: PlannedStudy) -> Table:
    """Cards that the difference of every pair needs, by trials, with these judges and seekers and with others like them."""
    several = one.found.levels["judge"] * one.found.levels["seeker"] > 1
    kinds = [(trials, others) for others in (False, True)[: 1 + several] for trials in one.trials]
    rows: list[tuple[Cell, ...]] = []
    for pair in one.spreads:
        spread, (low, high) = pair.variance**0.5, pair.bounds() or (None, None)
        around = Estimate(spread, low and spread * low**0.5, high and spread * high**0.5, pair.cards)
        rows.append((pair.first, pair.second, around, *(one.needed(pair, *kind) for kind in kinds), one.least(pair)))
    heads = [f"cards, {trials} trial{'s' * (trials != 1)}{' (others)' * others}" for trials, others in kinds]
    return Table(
        key=f"needed-{one.language}",
        title=f"What a difference of {one.difference:g} points needs, {one.language}",
        columns=("supporter", "against", "spread of a card's difference", *heads, "least difference on these cards"),
        rows=tuple(rows),
        notes=(
            f"Every pair by its own spread, n = cards of both. So many cards show the difference in {100 * one.power:.0f} of "
            f"100 runs, on average over runs like this that plan so: by {TEST} at {ALPHA:g} / {one.pairs} (so many "
            "comparisons), with an interval that leaves out 0. [95 %: what is needed if the spread lies at the ends of its "
            f"interval, which pairs of models have from {FEWEST_BOUNDED} cards on.] A dash: fewer than {FEWEST_PLANNED} cards "
            f"(against a floor {FEWEST_BOUNDED}), whose spread says too little; no number of cards is enough; or no difference "
            "between cards was seen.",
            *["(others): for judges and seekers like these, drawn anew; without it, for these."] * several,
            *["With one trial nobody can say what a second one would save: run with --set trials=2 to part the draw."]
            * (len(one.trials) == 1),
            "Trials in which the very same was said count as one.",
        ),
        section=PLANNING,
    )


def _shares(one: PlannedStudy) -> list[float]:
    """Of every component its share of the whole, in per cent."""
    whole = sum(part.counted for part in one.found.parts) or 1.0
    return [100 * part.counted / whole for part in one.found.parts]


def _needed(one: PlannedStudy) -> Iterator[str]:
    name, pair = name_of(one.language), one.widest
    if pair is None:
        few = any(not pair.enough for pair in one.spreads) or not one.spreads
        wanted = f"{FEWEST_PLANNED} of both, or {FEWEST_BOUNDED} against a floor"
        why = f"too few cards to plan from: {wanted}" if few else "supporters differ by the same on all cards"
        yield f"{name}: {why}{' are needed' * few}{': what more of them would show cannot be told' * (not few)}."
        return
    wanted = f"{name}: to show a difference of {one.difference:g} points between {pair.first} and {pair.second}"
    wanted += f" in {100 * one.power:.0f} of 100 runs"
    needs = [(trials, need) for trials in one.trials if (need := one.needed(pair, trials))]
    if not needs:
        yield f"{wanted}, no number of cards is enough."
        return
    cards = []
    for trials, need in needs:
        around = "" if need.low is None else f" ({need.low:,.0f} to {need.high:,.0f})"
        cards.append(f"{need.mean:,.0f} cards{around} with {trials} trial{'s' * (trials != 1)}")
    here = one.shown(pair, one.found.trials, pair.cards)
    yield f"{wanted} takes {', '.join(cards)}; the {pair.cards} that are here show it in {100 * here:.0f} of 100."
    if len(one.spreads) > 1:
        yield f"{name}: no pair varies more between cards than these two; the others are in the table."


def _share_chart(one: PlannedStudy) -> Chart:
    shares = _shares(one)
    bars = trace("bar", x=shares, y=list(range(len(shares))), text=[f"{share:.0f}" for share in shares])
    return Chart(
        f"components-{one.language}",
        f"Where the variance comes from, {name_of(one.language)}",
        "Share of each source. The card alone parts no supporters: pairing takes it out.",
        f"components-{one.language}",
        bar_panels([part.name for part in one.found.parts], ["share, %"], [[bars]]),
    )


def _power_chart(one: PlannedStudy, pair: Spread) -> Chart:
    needed = [need.mean or 0 for trials in one.trials if (need := one.needed(pair, trials)) is not None]
    last = min(max([*needed, pair.cards]) * 1.25, _WIDEST * max(pair.cards, min(needed, default=pair.cards)))
    grid = sorted({int(cards) for cards in np.linspace(3, max(last, 10), _POINTS)})
    lines = []
    for place, trials in enumerate(one.trials):
        points = []
        for cards in grid:
            share = 100 * one.shown(pair, trials, cards)
            text = f"{cards} cards, {trials} trial{'s' * (trials != 1)}: shown in {share:.0f} of 100 runs"
            points.append((cards, Estimate(share, None, None, cards), text))
        (line,) = curve(f"{trials} trial{'s' * (trials != 1)}", place, points, step=False, band=False)
        lines.append(line | {"hovertemplate": "%{text}<extra></extra>"})
    axes = {"xaxis": {"title": {"text": "cards"}}, "yaxis": {"title": {"text": "shown, % of runs"}}}
    return Chart(
        f"power-{one.language}",
        f"How often a difference of {one.difference:g} points is shown, {name_of(one.language)}",
        f"Of {pair.first} and {pair.second}, the pair that varies most, by the number of cards, at {ALPHA:g} / {one.pairs}; "
        f"wanted are {100 * one.power:.0f} of 100 runs. The run has {pair.cards} cards of both.",
        f"needed-{one.language}",
        panels("curves", [name_of(one.language)], [lines], 1, 260, showlegend=True, **axes),
    )
