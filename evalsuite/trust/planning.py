"""What a run says of the cards and trials that a difference needs, and what ESC-Eval's table 2 could show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from core.records import Language
from core.statistics.inference import ALPHA, TEST
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.components import (
    Components,
    Observation,
    Spread,
    cards_needed,
    least_shown,
    shown_with,
)
from evalsuite.statistics.contestants import contestants_of
from evalsuite.statistics.summary import Value, supporter_of

PLANNING = "How many cards, trials and judges"  # heading of the tables
TRIALS = (1, 2, 3, 5)
SPREADS = (5, 10, 15, 20, 25, 30, 40)  # standard deviations of a card's difference, in points


def observations_of(runs: Sequence[RunRecords], value: Value = "value") -> dict[Language, list[Observation]]:
    """The average of every dialogue that has all dimensions, by language; runs are of one judge each. Trials in which the very
    same was said (at temperature 0) are one draw, as is a dialogue that lies in two run folders."""
    found: dict[Language, dict[tuple[str, ...], Observation]] = {}
    for run in runs:
        known = {dialogue.id: dialogue for dialogue in run.dialogues}
        whole = [judgement for judgement in run.judgements if judgement.turn is None]
        for one in contestants_of(run.dialogues, whole, run.rubric, value, card_of=lambda dialogue: dialogue.id):
            for id, (sums, counts) in one.cards.items():
                dialogue = known[id]
                if counts.all():
                    said = "\n".join(turn.text for turn in dialogue.turns) or str(dialogue.trial)
                    seeker = dialogue.simulator or dialogue.source
                    where = (supporter_of(dialogue), card_of(dialogue), seeker, one.scorer.name, said)
                    found.setdefault(one.language, {})[where] = Observation(*where, float((sums / counts).mean()))
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
        "On the paper's own design: one dialogue a supporter and card, one score a dimension. Least: what holds in "
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
