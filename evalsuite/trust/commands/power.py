"""`esc-eval power`: where the variance of a score comes from, what a difference needs, and what ESC-Eval's table 2 shows."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from operator import itemgetter
from typing import Annotated

import numpy as np
import typer

from core.errors import UserError
from core.languages import name_of
from core.records import Language
from core.statistics.accuracy import ratio
from core.statistics.inference import ALPHA, TEST
from core.tables import Cell, Estimate, Table
from evalsuite.commands.options import JsonOption, MaybeRuns, PageOption, out_page
from evalsuite.commands.output import deliver_page
from evalsuite.papers.reported import load_reported
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.runs import shards
from evalsuite.runs.contents import sets_of
from evalsuite.runs.records import read_run
from evalsuite.statistics import paired
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.components import (
    FEWEST_BOUNDED,
    FEWEST_PLANNED,
    Components,
    Observation,
    Spread,
    cards_needed,
    components,
    least_shown,
    shown_with,
    spreads,
)
from evalsuite.statistics.contestants import card_of, contestants_of
from evalsuite.statistics.summary import seeker_of, supporter_of

_CARDS = {"EN": "English", "ZH": "Chinese"}


def power(
    runs: Annotated[
        MaybeRuns, typer.Argument(metavar="RUN…", help="Scored run folders; give several to include several seekers.")
    ] = None,
    difference: Annotated[
        float, typer.Option("--difference", min=0.01, max=100, help="Difference to detect, in points on 0-100.")
    ] = 3,
    share: Annotated[float, typer.Option("--power", min=0.5, max=0.999, help="Probability of detecting it (0-1).")] = 0.8,
    against: Annotated[
        str | None, typer.Option("--against", metavar="paper", help="paper: plan from ESC-Eval's table 2.")
    ] = None,
    as_json: JsonOption = False,
    out: Annotated[PageOption, out_page("power")] = None,
) -> None:
    """Show how much of a score's variance is due to supporter, card, seeker, draw and judge, and how many cards detect a
    difference.

    A run with `--set trials=2` or more separates the draw from the card, several judges (`run --judge`) separate the judge,
    several runs the seeker. Every pair of models is planned from its own spread (a single model with each floor).

    Example: esc-eval power runs/mine --difference 3
    """
    if against not in (None, "paper"):
        raise UserError(f"--against {against}: the only choice is paper (table 2 of ESC-Eval)")
    if not runs and against is None:
        raise UserError("nothing to plan from: give scored run folders, or --against paper")
    records: list[RunRecords] = []
    for folder in runs or []:  # one record for each judge
        judges = [judged.judge for judged in sets_of(folder, shards.whole(folder))]
        records += [read_run(folder.name, folder, judge) for judge in judges] or [read_run(folder.name, folder)]
    if rubrics := {record.rubric.name for record in records} - {records[0].rubric.name} if records else set():
        raise UserError(f"{records[0].folder} is scored on {records[0].rubric.name}, others on {', '.join(sorted(rubrics))}")
    floors = {name for record in records for name in record.floors}
    planned = []
    for language, observations in observations_of(records).items():
        if len({observation.supporter for observation in observations}) < 2:
            raise UserError(f"{language}: a single supporter has no difference to show: give a run of two or more")
        pairs = spreads(observations, floors)
        planned.append(PlannedStudy(language, components(observations), pairs, difference, max(len(pairs), 1), share))
    if records and not planned:
        raise UserError("no dialogue of these runs has a readable verdict on every dimension")
    more = [*paper_tables(share)] if against else []
    plumbing = any(shards.whole(run).plumbing for run in runs or [])
    deliver_page("power", power_sheet(planned, more, [str(run) for run in runs or []], plumbing), out, as_json)


PLANNING = "How many cards, trials and judges"  # heading of the tables
TRIALS = (1, 2, 3, 5)
SPREADS = (5, 10, 15, 20, 25, 30, 40)  # standard deviations of a card's difference, in points


def observations_of(runs: Sequence[RunRecords]) -> dict[Language, list[Observation]]:
    """The average of every dialogue with all dimensions, by language; every run has one judge. Trials with identical texts (at
    temperature 0) are one draw, as is a dialogue that is in two run folders."""
    by_language: dict[Language, dict[tuple[str, ...], Observation]] = {}
    for run in runs:
        by_id = {dialogue.id: dialogue for dialogue in run.dialogues}
        whole = [judgement for judgement in run.judgements if judgement.turn is None]
        for contestant in contestants_of(run.dialogues, whole, run.rubric):
            for id, (sums, counts) in contestant.dialogues.items():
                dialogue = by_id[id]
                if contestant.complete(counts):
                    text = "\n".join(turn.text for turn in dialogue.turns) or str(dialogue.trial)
                    labels = (supporter_of(dialogue), card_of(dialogue), seeker_of(dialogue), contestant.scorer.name)
                    average = float(paired.average_of(ratio(sums, counts), contestant.design.weights))
                    by_language.setdefault(contestant.language, {})[*labels, text] = Observation(*labels, text, average)
    return {language: list(every.values()) for language, every in by_language.items()}


@dataclass(frozen=True)
class PlannedStudy:
    """A plan from one language's scores: to show a difference (points of 0–100) in a share `power` of runs, corrected for so
    many pairs. `spreads` are those of the pairs, the widest first."""

    language: Language
    components: Components
    spreads: Sequence[Spread]
    difference: float
    pairs: int
    power: float

    @property
    def trials(self) -> Sequence[int]:
        """The numbers of trials that the run allows to plan for."""
        return TRIALS if self.components.trials > 1 else TRIALS[:1]

    @property
    def shares(self) -> list[float]:
        """Every component's share of the whole, in per cent."""
        whole = sum(part.counted for part in self.components.parts) or 1.0
        return [100 * part.counted / whole for part in self.components.parts]

    @property
    def widest(self) -> Spread | None:
        """The pair that needs the most cards; None if no pair that varies has enough cards."""
        return next((pair for pair in self.spreads if pair.enough and pair.variance), None)

    def variance(self, pair: Spread, trials: float) -> float:
        """The variance of a card's difference with so many trials: the pair's own, scaled by the components' draw."""
        own, planned = (self.components.difference(number)[0] for number in (self.components.trials, trials))
        return pair.variance * (planned / own if own else 1)

    def needed(self, pair: Spread, trials: float, others: bool = False) -> Estimate | None:
        """The cards that a pair needs at so many trials, with bounds from the interval of its variance; `others`: for findings
        about other judges and seekers like these. None if the pair has too few cards."""
        if not pair.enough:
            return None
        variance, staying = self.variance(pair, trials), self.components.difference(trials)[1] if others else 0.0
        alpha = ALPHA / self.pairs
        cards = cards_needed(self.difference, variance, alpha, self.power, pair.degrees, staying)
        ends = [cards_needed(self.difference, variance * end, alpha, self.power, None, staying) for end in pair.bounds() or ()]
        low, high = ends if None not in ends and ends else (None, None)
        return None if cards is None else Estimate(cards, low, high, pair.cards)

    def least(self, pair: Spread) -> float | None:
        """The smallest difference that the pair's own cards and trials show; None if its spread says too little."""
        if not pair.enough or not pair.variance:
            return None
        return least_shown(pair.variance, pair.cards, ALPHA / self.pairs, self.power, pair.degrees)

    def shown(self, pair: Spread, trials: float, cards: int) -> float:
        """The share (0–1) of runs of so many cards in which the difference is shown."""
        return shown_with(self.difference, self.variance(pair, trials), cards, ALPHA / self.pairs, pair.degrees)


def paper_tables(power: float) -> Iterator[Table]:
    """Which differences between averages of ESC-Eval's table 2 its cards (table 6) could have shown. The spread of a card's
    difference is unpublished, so several are assumed."""
    reported, averages = load_reported("esc_eval"), dict[str, list[float]]()
    for cell in reported.select("2", {"column": "Average"}, "table 2"):
        assert cell.value is not None, "the averages of table 2 are whole"
        averages.setdefault(cell.at["Language"], []).append(float(cell.value))
    rows: list[tuple[Cell, ...]] = []
    gaps: list[tuple[Cell, ...]] = []
    for language, means in averages.items():
        pairs = [abs(a - b) for a, b in combinations(means, 2)]
        (cards,) = reported.select("6", {"Language": _CARDS[language], "column": "High"}, "table 6")
        assert cards.value is not None, "table 6 is whole"
        number = int(cards.value)
        for spread in SPREADS:
            least = [least_shown(spread**2, number, level, power) for level in (ALPHA, ALPHA / len(pairs))]
            shown = [sum(bound is not None and gap >= bound for gap in pairs) for bound in least]
            rows.append((language, number, spread, least[0], shown[0], least[1], shown[1], len(pairs)))
        middle = Estimate(float(np.median(pairs)), min(pairs), max(pairs), len(pairs))
        gaps.append((language, number, len(pairs), middle))
    notes = (
        "With the paper's own design: one dialogue per supporter and card, one score per dimension. Least: the smallest "
        f"difference shown in {100 * power:.0f} of 100 such studies ({TEST}, with an interval that excludes 0) at {ALPHA:g}, "
        "alone and corrected for all pairs. Shown: pairs of the table that differ by at least that much.",
        "The spread of a card's difference in the average (its standard deviation, in points) is unpublished; `esc-eval power "
        "RUN` gives that of a run.",
    )
    heads = ("spread of a card's difference", "least", "shown", "least, all pairs", "shown, all pairs", "pairs")
    columns: tuple[str, ...] = ("language", "cards", *heads)
    yield Table("table2-power", "What table 2 of ESC-Eval could show", columns, tuple(rows), notes, PLANNING)
    columns = ("language", "cards", "pairs", "difference: median [least, largest]")
    yield Table("table2-gaps", "Its differences in the average", columns, tuple(gaps), section=PLANNING)


# --- the page ---------------------------------------------------------------------------------------------------------------


def power_sheet(planned: Sequence[PlannedStudy], more: Sequence[Table], runs: Sequence[str], plumbing: bool) -> Sheet:
    """The page; `more` are tables without a run (the paper's)."""
    findings = [sentence for study in planned for sentence in _needed(study)]
    figures: dict[str, object] = {}
    for study in planned:
        share, source = max(zip(study.shares, (part.name for part in study.components.parts), strict=True), key=itemgetter(0))
        findings.append(f"{name_of(study.language)}: the largest source of variance is {source}, {share:.0f} % of the whole.")
        figures[study.language] = {
            "components": [asdict(part) | {"facets": sorted(part.facets)} for part in study.components.parts],
            "levels": study.components.levels,
            "trials": study.components.trials,
            "pairs": [asdict(pair) | {"spread": pair.variance**0.5} for pair in study.spreads],
        }
    return Sheet(
        title=PLANNING,
        cautions=[PLUMBING] if plumbing else [],
        findings=findings,
        facts=[*([("Runs", ", ".join(runs))] if runs else []), ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        main=[f"needed-{study.language}" for study in planned],
        tables=[*(table for study in planned for table in (_component_table(study), _need_table(study))), *more],
        figures={"plumbing": plumbing, "languages": figures},
    )


def _component_table(study: PlannedStudy) -> Table:
    components = study.components
    parts = zip(components.parts, study.shares, strict=True)
    rows = tuple((p.name, Estimate(p.variance, p.low, p.high, p.levels), share, p.counted**0.5) for p, share in parts)
    levels = ", ".join(f"{number} {facet}{'s' * (number != 1)}" for facet, number in components.levels.items())
    notes = (
        f"{components.scores:,} averages of 0–100 ({levels}; {components.trials:.1f} dialogues per supporter, card, seeker), "
        f"mean {components.mean:.1f}. Estimated by sums of squares; below 0 counts as 0. [95 %: jackknife over cards on the "
        "scale of the cube root, for other cards like these; sources that do not cross the card have none], n = levels.",
        "Sources listed together cannot be separated by this design: more trials separate the draw from the interaction of "
        "supporter and card, more judges separate it from the judge's own noise.",
    )
    columns = ("source", "variance", "share %", "standard deviation")
    title = f"Where the variance of the average comes from, {study.language}"
    return Table(f"components-{study.language}", title, columns, rows, notes, PLANNING)


def _need_table(study: PlannedStudy) -> Table:
    """The cards that every pair's difference needs, by trials, for these judges and seekers and for others like them."""
    several = study.components.levels["judge"] * study.components.levels["seeker"] > 1
    kinds = [(trials, others) for others in (False, True)[: 1 + several] for trials in study.trials]
    rows: list[tuple[Cell, ...]] = []
    for pair in study.spreads:
        spread, (low, high) = pair.variance**0.5, pair.bounds() or (None, None)
        cell = Estimate(spread, low and spread * low**0.5, high and spread * high**0.5, pair.cards)
        rows.append((pair.first, pair.second, cell, *(study.needed(pair, *kind) for kind in kinds), study.least(pair)))
    heads = [f"cards, {trials} trial{'s' * (trials != 1)}{' (others)' * others}" for trials, others in kinds]
    notes = (
        f"Every pair by its own spread, n = shared cards. So many cards show the difference in {100 * study.power:.0f} of 100 "
        f"runs, on average over plans made from runs like this: by {TEST} at {ALPHA:g} / {study.pairs} (the number of "
        "comparisons), with an interval that excludes 0. [95 %: the cards needed if the spread lies at the ends of its "
        f"interval, which pairs of models have from {FEWEST_BOUNDED} cards up.] A dash: fewer than {FEWEST_PLANNED} cards "
        f"(with a floor {FEWEST_BOUNDED}), whose spread says too little; no number of cards is enough; or cards do not differ.",
        *["(others): for other judges and seekers like these; without it, for these."] * several,
        *["One trial does not tell what a second saves: --set trials=2 separates the draw."] * (len(study.trials) == 1),
        "Trials with identical texts count as one.",
    )
    columns = ("supporter", "against", "spread of a card's difference", *heads, "least difference on these cards")
    title = f"What a difference of {study.difference:g} points needs, {study.language}"
    return Table(f"needed-{study.language}", title, columns, tuple(rows), notes, PLANNING)


def _needed(study: PlannedStudy) -> Iterator[str]:
    name, pair = name_of(study.language), study.widest
    if pair is None:
        few = f"too few cards to plan from: {FEWEST_PLANNED} of both, or {FEWEST_BOUNDED} against a floor, are needed"
        same = "supporters differ by the same on all cards: what more cards would show cannot be told"
        yield f"{name}: {same if study.spreads and all(pair.enough for pair in study.spreads) else few}."
        return
    runs = f"{100 * study.power:.0f} of 100 runs"
    goal = f"{name}: to show a difference of {study.difference:g} points between {pair.first} and {pair.second} in {runs}"
    needs = [(trials, need) for trials in study.trials if (need := study.needed(pair, trials))]
    if not needs:
        yield f"{goal}, no number of cards is enough."
        return
    cards = []
    for trials, need in needs:
        bounds = "" if need.low is None else f" ({need.low:,.0f} to {need.high:,.0f})"
        cards.append(f"{need.mean:,.0f} cards{bounds} with {trials} trial{'s' * (trials != 1)}")
    share = study.shown(pair, study.components.trials, pair.cards)
    yield f"{goal} takes {', '.join(cards)}; the {pair.cards} of this run show it in {100 * share:.0f} of 100."
    if len(study.spreads) > 1:
        yield f"{name}: no pair varies more between cards than these two; the others are in the table."
