"""The page of `esc-eval power`: where the variance of a score comes from, and how often so many cards show a difference."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from core.statistics.inference import ALPHA, TEST
from core.tables import Cell, Estimate, Table
from evalsuite.report.charts import LANGUAGES, Chart, bar_panels
from evalsuite.report.figures import curve, panels, trace
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.components import FEWEST_BOUNDED, FEWEST_PLANNED, Spread
from evalsuite.trust.planning import PLANNING, PlannedStudy

_POINTS = 14  # numbers of cards along a line
_WIDEST = 4  # times the cards that are there: no line goes further


def power_sheet(planned: Sequence[PlannedStudy], more: Sequence[Table], runs: Sequence[str], plumbing: bool) -> Sheet:
    """The page; `more` are tables that no run is behind (the paper's)."""
    return Sheet(
        title=PLANNING,
        cautions=[PLUMBING] if plumbing else [],
        findings=[*(sentence for one in planned for sentence in _needed(one)), *(_largest(one) for one in planned)],
        facts=[*([("Runs", ", ".join(runs))] if runs else []), ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        main=[f"needed-{one.language}" for one in planned],
        tables=[*(table for one in planned for table in (_component_table(one), _need_table(one))), *more],
        charts=[
            chart
            for one in planned
            for chart in (_share_chart(one), *(_power_chart(one, pair) for pair in [one.widest] if pair))
        ],
        figures={"plumbing": plumbing, "languages": {one.language: _figures(one) for one in planned}},
    )


def _figures(one: PlannedStudy) -> Mapping[str, object]:
    return {
        "components": [asdict(part) | {"facets": sorted(part.facets)} for part in one.found.parts],
        "levels": one.found.levels,
        "trials": one.found.trials,
        "pairs": [asdict(pair) | {"spread": pair.variance**0.5} for pair in one.spreads],
    }


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
            *["With one trial nobody can say what a second one would save: run with --trials 2 to part the draw."]
            * (len(one.trials) == 1),
            "Trials in which the very same was said count as one.",
        ),
        section=PLANNING,
    )


def _shares(one: PlannedStudy) -> list[float]:
    """Of every component its share of the whole, in per cent."""
    whole = sum(part.counted for part in one.found.parts) or 1.0
    return [100 * part.counted / whole for part in one.found.parts]


def _largest(one: PlannedStudy) -> str:
    shares = _shares(one)
    source = one.found.parts[shares.index(max(shares))].name
    return f"{LANGUAGES[one.language]}: the largest source of variance is {source}, {max(shares):.0f} % of the whole."


def _needed(one: PlannedStudy) -> Iterator[str]:
    name, pair = LANGUAGES[one.language], one.widest
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
    said = ", ".join(f"{_cards(need)} with {trials} trial{'s' * (trials != 1)}" for trials, need in needs)
    here = one.shown(pair, one.found.trials, pair.cards)
    yield f"{wanted} takes {said}; the {pair.cards} that are here show it in {100 * here:.0f} of 100."
    if len(one.spreads) > 1:
        yield f"{name}: no pair varies more between cards than these two; the others are in the table."


def _cards(need: Estimate) -> str:
    around = "" if need.low is None else f" ({need.low:,.0f} to {need.high:,.0f})"
    return f"{need.mean:,.0f} cards{around}"


def _share_chart(one: PlannedStudy) -> Chart:
    shares = _shares(one)
    bars = trace("bar", x=shares, y=list(range(len(shares))), text=[f"{share:.0f}" for share in shares])
    return Chart(
        f"components-{one.language}",
        f"Where the variance comes from, {LANGUAGES[one.language]}",
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
        f"How often a difference of {one.difference:g} points is shown, {LANGUAGES[one.language]}",
        f"Of {pair.first} and {pair.second}, the pair that varies most, by the number of cards, at {ALPHA:g} / {one.pairs}; "
        f"wanted are {100 * one.power:.0f} of 100 runs. The run has {pair.cards} cards of both.",
        f"needed-{one.language}",
        panels("curves", [LANGUAGES[one.language]], [lines], 1, 260, showlegend=True, **axes),
    )
