"""The page of `esc-eval power`: where the variance of a score comes from, and how often so many cards show a difference."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from core.statistics.inference import ALPHA
from core.tables import Estimate, Table
from evalsuite.report.charts import LANGUAGES, Chart, bar_panels
from evalsuite.report.figures import curve, panels, trace
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.components import FEWEST_PLANNED, Spread
from evalsuite.statistics.planning import PLANNING, Planned, component_table, need_table

_POINTS = 14  # numbers of cards along a line
_WIDEST = 4  # times the cards that are there: no line goes further


def power_sheet(planned: Sequence[Planned], more: Sequence[Table], runs: Sequence[str], plumbing: bool) -> Sheet:
    """The page; `more` are tables that no run is behind (the paper's)."""
    tables = [
        table
        for one in planned
        for table in (
            component_table(one.language, one.found),
            need_table(one),
        )
    ]
    return Sheet(
        title=PLANNING,
        cautions=[PLUMBING] if plumbing else [],
        findings=[sentence for one in planned for sentence in _findings(one)],
        facts=[*([("Runs", ", ".join(runs))] if runs else []), ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        tables=[*tables, *more],
        charts=[
            chart
            for one in planned
            for chart in (_share_chart(one), *(_power_chart(one, pair) for pair in [one.widest] if pair))
        ],
        figures={"plumbing": plumbing, "languages": {one.language: _figures(one) for one in planned}},
    )


def _figures(one: Planned) -> Mapping[str, object]:
    return {
        "components": [asdict(part) | {"facets": sorted(part.facets)} for part in one.found.parts],
        "levels": one.found.levels,
        "trials": one.found.trials,
        "pairs": [asdict(pair) | {"spread": pair.variance**0.5} for pair in one.spreads],
    }


def _findings(one: Planned) -> Iterator[str]:
    name, pair = LANGUAGES[one.language], one.widest
    whole = sum(part.counted for part in one.found.parts)
    if whole > 0:
        largest = max(one.found.parts, key=lambda part: part.counted)
        yield f"{name}: the largest source of variance is {largest.name}, {100 * largest.counted / whole:.0f} % of the whole."
    if pair is None:
        few = any(pair.cards < FEWEST_PLANNED for pair in one.spreads) or not one.spreads
        why = f"too few cards to plan from: {FEWEST_PLANNED} of both" if few else "supporters differ by the same on all cards"
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


def _share_chart(one: Planned) -> Chart:
    parts = one.found.parts
    whole = sum(part.counted for part in parts) or 1.0
    shares = [100 * part.counted / whole for part in parts]
    bars = trace("bar", x=shares, y=list(range(len(shares))), text=[f"{share:.0f}" for share in shares])
    return Chart(
        f"components-{one.language}",
        f"Where the variance comes from, {LANGUAGES[one.language]}",
        "Share of each source. The card alone parts no supporters: pairing takes it out.",
        f"components-{one.language}",
        bar_panels([part.name for part in parts], ["share, %"], [[bars]]),
    )


def _power_chart(one: Planned, pair: Spread) -> Chart:
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
