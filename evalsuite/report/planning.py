"""The page of `esc-eval power`: where the variance of a score comes from, and how often so many cards show a difference."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from core.records import Language
from core.tables import Estimate, Table
from evalsuite.report.charts import LANGUAGES, Chart, bar_panels
from evalsuite.report.figures import curve, panels, trace
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.statistics.components import Components, cards_needed, shown_with
from evalsuite.statistics.paired import ALPHA
from evalsuite.statistics.planning import PLANNING, TRIALS, component_table, need_table, spread_of

_POINTS = 14  # numbers of cards along a line
_WIDEST = 4  # times the cards that are there: no line goes further


@dataclass(frozen=True)
class Planned:
    """What is asked of one language's scores: a difference (points of 0–100) that is to be shown in the share `power` of runs,
    corrected for so many pairs."""

    language: Language
    found: Components
    difference: float
    pairs: int
    power: float

    def needed(self, trials: float) -> int | None:
        """Cards with these judges and seekers, at so many trials."""
        return cards_needed(self.difference, *self._errors(trials), ALPHA / self.pairs, self.power)

    def shown(self, trials: float, cards: int) -> float:
        """In what share of runs of so many cards the difference is shown (0–1)."""
        return shown_with(self.difference, *self._errors(trials), cards, ALPHA / self.pairs)

    @property
    def varies(self) -> bool:
        """Whether the difference of two supporters is not the same on all cards."""
        return self._errors(1) != (0.0, 0.0)

    @property
    def trials(self) -> Sequence[int]:
        """The numbers of trials that this run can plan for."""
        return TRIALS if self.found.trials > 1 else TRIALS[:1]

    def _errors(self, trials: float) -> tuple[float, float]:
        levels = self.found.levels
        return self.found.difference(trials, levels["judge"], levels["seeker"], False)


def power_sheet(planned: Sequence[Planned], more: Sequence[Table], runs: Sequence[str], plumbing: bool) -> Sheet:
    """The page; `more` are tables that no run is behind (the paper's)."""
    tables = [
        table
        for one in planned
        for table in (
            component_table(one.language, one.found),
            need_table(one.language, one.found, one.difference, one.pairs, one.power),
        )
    ]
    return Sheet(
        title=PLANNING,
        cautions=[PLUMBING] if plumbing else [],
        findings=[sentence for one in planned for sentence in _findings(one)],
        facts=[*([("Runs", ", ".join(runs))] if runs else []), ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        tables=[*tables, *more],
        charts=[chart for one in planned for chart in (_share_chart(one), *([_power_chart(one)] if one.varies else []))],
        figures={"plumbing": plumbing, "languages": {one.language: _figures(one.found) for one in planned}},
    )


def _figures(found: Components) -> Mapping[str, object]:
    return {
        "components": [asdict(part) | {"facets": sorted(part.facets)} for part in found.parts],
        "levels": found.levels,
        "trials": found.trials,
        "spread": spread_of(found),
    }


def _findings(one: Planned) -> Iterator[str]:
    name, present = LANGUAGES[one.language], one.found.levels["card"]
    whole = sum(part.counted for part in one.found.parts)
    if whole > 0:
        largest = max(one.found.parts, key=lambda part: part.counted)
        yield f"{name}: the largest source of variance is {largest.name}, {100 * largest.counted / whole:.0f} % of the whole."
    needs = [(trials, one.needed(trials)) for trials in one.trials]
    said = [f"{cards:,} cards with {trials} trial{'s' * (trials != 1)}" for trials, cards in needs if cards is not None]
    wanted = f"{name}: to show a difference of {one.difference:g} points in {100 * one.power:.0f} of 100 runs"
    if not one.varies:
        yield f"{name}: supporters differ by the same on all {present} cards: what more of them would show cannot be told."
    elif not said:
        yield f"{wanted}, no number of cards is enough."
    else:
        here = one.shown(one.found.trials, present)
        yield f"{wanted} takes {', '.join(said)}; the {present} cards that are here show it in {100 * here:.0f} of 100."


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


def _power_chart(one: Planned) -> Chart:
    needed = [cards for trials in one.trials if (cards := one.needed(trials)) is not None]
    present = one.found.levels["card"]
    last = min(max([*needed, present]) * 1.25, _WIDEST * max(present, min(needed, default=present)))
    grid = sorted({int(cards) for cards in np.linspace(3, max(last, 10), _POINTS)})
    lines = []
    for place, trials in enumerate(one.trials):
        points = []
        for cards in grid:
            share = 100 * one.shown(trials, cards)
            text = f"{cards} cards, {trials} trial{'s' * (trials != 1)}: shown in {share:.0f} of 100 runs"
            points.append((cards, Estimate(share, None, None, cards), text))
        (line,) = curve(f"{trials} trial{'s' * (trials != 1)}", place, points, step=False, band=False)
        lines.append(line | {"hovertemplate": "%{text}<extra></extra>"})
    axes = {"xaxis": {"title": {"text": "cards"}}, "yaxis": {"title": {"text": "shown, % of runs"}}}
    return Chart(
        f"power-{one.language}",
        f"How often a difference of {one.difference:g} points is shown, {LANGUAGES[one.language]}",
        f"By the number of cards, at {ALPHA:g} / {one.pairs}; wanted are {100 * one.power:.0f} of 100 runs. The run has "
        f"{present} cards.",
        f"needed-{one.language}",
        panels("curves", [LANGUAGES[one.language]], [lines], 1, 260, showlegend=True, **axes),
    )
