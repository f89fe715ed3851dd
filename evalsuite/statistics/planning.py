"""Tables of a generalizability study: components, cards that a difference needs, and what ESC-Eval's table 2 could show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from core.grouping import group_by
from core.records import Language
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.components import Components, Observation, cards_needed, least_shown, shown_with
from evalsuite.statistics.leaderboard import card_of, contestants_of
from evalsuite.statistics.paired import ALPHA
from evalsuite.statistics.summary import Value, supporter_of

PLANNING = "How many cards, trials and judges"  # heading of the tables
TRIALS = (1, 2, 3, 5)
SPREADS = (5, 10, 15, 20, 25, 30, 40)  # standard deviations of a card's difference, in points


def observations_of(runs: Sequence[RunRecords], value: Value = "value") -> dict[Language, list[Observation]]:
    """The average of every dialogue that has all dimensions, by language; runs are of one judge each."""
    found: dict[Language, list[Observation]] = {}
    for run in runs:
        known = {dialogue.id: dialogue for dialogue in run.dialogues}
        whole = [judgement for judgement in run.judgements if judgement.turn is None]
        for one in contestants_of(run.dialogues, whole, run.rubric, value, card_of=lambda dialogue: dialogue.id):
            for id, (sums, counts) in one.cards.items():
                dialogue = known[id]
                if counts.all():
                    seeker = dialogue.simulator or dialogue.source
                    where = (supporter_of(dialogue), card_of(dialogue), seeker, one.scorer.name, str(dialogue.trial))
                    found.setdefault(one.language, []).append(Observation(*where, float((sums / counts).mean())))
    # A dialogue that lies in two run folders, scored by one judge in both, is one observation.
    return {language: list({one[:5]: one for one in every}.values()) for language, every in found.items()}


def component_table(language: Language, found: Components) -> Table:
    """Every component with its share of the whole."""
    whole = sum(part.counted for part in found.parts) or 1.0
    rows = tuple(
        (
            part.name,
            Estimate(part.variance, part.low, part.high, part.levels),
            100 * part.counted / whole,
            part.counted**0.5,
        )
        for part in found.parts
    )
    levels = ", ".join(f"{number} {facet}{'s' * (number != 1)}" for facet, number in found.levels.items())
    return Table(
        key=f"components-{language}",
        title=f"Where the variance of the average comes from, {language}",
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


def need_table(language: Language, found: Components, difference: float, pairs: int, power: float) -> Table:
    """Cards that a difference needs, by trials, with these judges and seekers and with others like them."""
    judges, seekers, alpha = found.levels["judge"], found.levels["seeker"], ALPHA / pairs
    present = found.levels["card"]
    parted = found.trials > 1
    rows: list[tuple[Cell, ...]] = []
    for trials in TRIALS if parted else TRIALS[:1]:
        row: list[Cell] = [trials]
        for other in (False, True) if judges * seekers > 1 else (False,):
            errors = found.difference(trials, judges, seekers, other)
            cards = cards_needed(difference, *errors, alpha, power)
            row += [cards, cards and cards * trials, least_shown(*errors, present, alpha, power)]
        rows.append(tuple(row))
    heads = ["trials", "cards", "dialogues a supporter", f"least difference on {present} cards"]
    if judges * seekers > 1:
        heads += ["cards (others)", "dialogues (others)", "least difference (others)"]
    return Table(
        key=f"needed-{language}",
        title=f"What a difference of {difference:g} points needs, {language}",
        columns=tuple(heads),
        rows=tuple(rows),
        notes=(
            f"Shown in {100 * power:.0f} of 100 runs by a paired t test at {ALPHA:g} / {pairs} (so many comparisons), both "
            f"supporters on the same cards, {judges} judge{'s' * (judges != 1)} and {seekers} seeker{'s' * (seekers != 1)}. A "
            "dash: no number of cards is enough, or no difference between cards was seen.",
            *(
                ["(others): for judges and seekers like these, drawn anew; without it, for these."]
                if judges * seekers > 1
                else []
            ),
            *(
                []
                if parted
                else ["With one trial nobody can say what a second one would save: run with --trials 2 to part the draw."]
            ),
        ),
        section=PLANNING,
    )


def paper_tables(averages: Mapping[str, Mapping[str, float]], cards: Mapping[str, int], power: float) -> list[Table]:
    """Which of the differences of ESC-Eval's table 2 its cards could have shown. `averages` maps language → supporter → average
    of 0–100; the spread of a card's difference is not published, so it is assumed."""
    rows: list[tuple[Cell, ...]] = []
    worst: list[tuple[Cell, ...]] = []
    for language, of_one in averages.items():
        pairs = [(a, b, abs(of_one[a] - of_one[b])) for a, b in combinations(of_one, 2)]
        number = cards[language]
        for spread in SPREADS:
            least = [least_shown(spread**2, 0, number, level, power) for level in (ALPHA, ALPHA / len(pairs))]
            shown = [sum(gap >= bound for _, _, gap in pairs) for bound in least]
            rows.append((language, number, spread, least[0], shown[0], least[1], shown[1], len(pairs)))
        # Scores of 0–100 with mean m have a variance of at most m (100 − m), and two independent ones the sum.
        bound = {name: mean * (100 - mean) for name, mean in of_one.items()}
        sure = sum(
            shown_with(gap, bound[a] + bound[b], 0, number, ALPHA / len(pairs)) >= power for a, b, gap in pairs if gap > 0
        )
        gaps = np.sort([gap for _, _, gap in pairs])
        middle = Estimate(float(np.median(gaps)), float(gaps[0]), float(gaps[-1]), len(gaps))
        worst.append((language, number, len(pairs), middle, sure))
    notes = (
        "On the paper's own design: one dialogue a supporter and card, one score a dimension. Least: what a paired t "
        f"test shows in {100 * power:.0f} of 100 such studies at {ALPHA:g}, alone and corrected for all pairs. Shown: pairs of "
        "the table that lie as far apart.",
        "The spread of one card's difference in the average (its standard deviation, in points) is not published; `esc-eval "
        "power RUN` gives that of a run.",
    )
    return [
        Table(
            "table2-power",
            "What table 2 of ESC-Eval could show",
            (
                "language",
                "cards",
                "spread of a card's difference",
                "least",
                "shown",
                "least, all pairs",
                "shown, all pairs",
                "pairs",
            ),
            tuple(rows),
            notes,
            PLANNING,
        ),
        Table(
            "table2-gaps",
            "Its differences in the average, and those that no spread can hide",
            ("language", "cards", "pairs", "difference: median [least, largest]", "shown at the widest spread"),
            tuple(worst),
            (
                "At the widest spread: scores at the ends of the scale only (variance m (100 − m) at a mean of m), two "
                "supporters independent, corrected for all pairs.",
            ),
            PLANNING,
        ),
    ]


def spread_of(found: Components) -> float:
    """The standard deviation of one card's difference between two supporters, with the run's own trials and judges."""
    return float(np.sqrt(found.difference(found.trials, found.levels["judge"], found.levels["seeker"], False)[0]))


def pairs_of(observations: Sequence[Observation]) -> int:
    """How many pairs of supporters there are, one at least."""
    number = len(group_by(observations, lambda one: one.supporter))
    return max(number * (number - 1) // 2, 1)
