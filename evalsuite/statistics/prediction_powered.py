"""Leaderboards from many verdicts of a judge and few scores of people: prediction-powered estimates.

The judge's mean over all dialogues is corrected by what people say of the judge on the dialogues that they scored
(Angelopoulos et al. 2023, "Prediction-powered inference"; power tuning: Angelopoulos, Duchi and Zrnic 2023, "PPI++"):

    mean = λ · mean of the judge, all dialogues + mean of (people − λ · judge), scored dialogues

It is unbiased for people's mean over all dialogues if those that people scored are a random choice, or each has the weight
1 / its chance of being chosen. λ (0 to 1) makes the variance least: a judge that does not go with people gets 0, and what is
left is people's mean. The authors' library knows no clusters. Here cards are drawn whole in both terms together, so that what
one card's dialogues share, and what the two terms share, is in the intervals (`smoothed_means`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric
from core.statistics.bootstrap import POINTS, SMOOTHED, Floats, estimate, smoothed_means
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.leaderboard import Contestant, card_of, contestants_of
from evalsuite.statistics.people import verdicts_of_people
from evalsuite.statistics.summary import dimension_label

SECTION = "Judge and people together"
FEWEST = 5  # cards that people scored of a supporter: with fewer, no difference in variance is seen


@dataclass(frozen=True)
class Powered:
    """Of contestants × dimensions: means [contestants, dimensions] and draws [RESAMPLES, contestants, dimensions] in points of
    0–100, of the judge alone, of people alone, and of both; and λ [contestants, dimensions]."""

    judge: tuple[Floats, Floats]
    people: tuple[Floats, Floats]
    both: tuple[Floats, Floats]
    tuning: Floats


@dataclass(frozen=True)
class Scored:
    """Sums over the dialogues of each card, [cards, contestants, dimensions]: the judge's points and their number over all
    dialogues; and over those that people scored, each times its weight, people's points, the judge's, and the weights."""

    judge: Floats
    judged: Floats
    people: Floats
    judge_there: Floats
    weight: Floats


def powered(scored: Scored) -> Powered:
    """Estimates and draws of all columns. NaN where nobody scored."""
    cards, contestants, dimensions = scored.judge.shape
    columns = contestants * dimensions
    judge, judged, people, there, weight = (
        part.reshape(cards, columns) for part in (scored.judge, scored.judged, scored.people, scored.judge_there, scored.weight)
    )
    tuning = _tuning(judge, judged, people, there, weight)
    judge_mean, people_mean, there_mean = _mean(judge, judged), _mean(people, weight), _mean(there, weight)
    # Each contestant has a score of its own on the half card that nobody has seen: else it would cancel in differences.
    judge_draws, people_draws = (
        smoothed_means(sums, counts, POINTS, blocks=contestants) for sums, counts in ((judge, judged), (people, weight))
    )
    # There, the judge is one level off what people say.
    there_draws = smoothed_means(there, weight, POINTS[[1, 0, 3, 2, 3]], blocks=contestants)
    both_mean = people_mean + tuning * (judge_mean - there_mean)
    both_draws = people_draws + tuning * (judge_draws - there_draws)
    shape = (contestants, dimensions)
    return Powered(
        judge=(judge_mean.reshape(shape), judge_draws.reshape(-1, *shape)),
        people=(people_mean.reshape(shape), people_draws.reshape(-1, *shape)),
        both=(both_mean.reshape(shape), both_draws.reshape(-1, *shape)),
        tuning=tuning.reshape(shape),
    )


def _mean(sums: Floats, counts: Floats) -> Floats:
    totals = counts.sum(axis=0)
    return np.divide(sums.sum(axis=0), totals, out=np.full(totals.shape, np.nan), where=totals > 0)


def _parts(sums: Floats, counts: Floats) -> Floats:
    """What each card adds to the error of a mean (0 where it has nothing)."""
    totals = counts.sum(axis=0)
    return np.divide(sums - np.nan_to_num(_mean(sums, counts)) * counts, totals, out=np.zeros(sums.shape), where=totals > 0)


def _tuning(judge: Floats, judged: Floats, people: Floats, there: Floats, weight: Floats) -> Floats:
    """λ of each column: the least variance of people's part plus λ times the judge's, shrunk by how well that is known from few
    cards (as the adjusted R² is); 0 with fewer than `FEWEST`."""
    own = _parts(people, weight)
    other = _parts(judge, judged) - _parts(there, weight)
    products, squares, whole = (own * other).sum(axis=0), (other**2).sum(axis=0), (own**2).sum(axis=0)
    best = np.divide(-products, squares, out=np.zeros(len(squares)), where=squares > 1e-18)
    explained = np.divide(products**2, squares * whole, out=np.zeros(len(squares)), where=squares * whole > 1e-36)
    cards = (weight > 0).sum(axis=0)
    left = (1 - explained) / np.maximum(explained * (cards - 2), 1e-9)
    return np.where(cards >= FEWEST, np.clip(best, 0, 1) * np.clip(1 - left, 0, 1), 0.0)


# --- boards -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A supporter on such a board: averages over dimensions. `labels` are the dialogues that people scored, `saved` how many
    more of them people alone would need for an interval as narrow as both have."""

    supporter: str
    rank: int | None
    judge: Estimate
    people: Estimate
    both: Estimate
    dimensions: list[Estimate]
    tuning: float
    labels: int
    saved: float | None


@dataclass(frozen=True)
class PoweredBoard:
    """One language and judge: places by falling average, and every two supporters' difference (`Difference.first` and `second`
    are places)."""

    language: str
    judge: str
    places: list[Place]
    differences: list[paired.Difference]


def powered_boards(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    scores: Sequence[HumanScore],
    people_rubric: Rubric,
    weights: Mapping[str, float] | None = None,
) -> list[PoweredBoard]:
    """A board for every language and judge. `weights` (dialogue → 1 / chance) are 1 for a dialogue that has none.

    Raises `UserError` where people did not score a dimension of the judge's rubric.
    """
    if lacking := [name for name in rubric.dimensions if name not in people_rubric.dimensions]:
        raise UserError(f"--people: scores on rubric {people_rubric.name} lack {', '.join(lacking)} of rubric {rubric.name}")
    named = {dialogue.id: dialogue for dialogue in dialogues}
    wanted = [score for score in scores if score.dimension in rubric.dimensions]
    places = [list(people_rubric.dimensions).index(name) for name in rubric.dimensions]
    of_people = {
        (one.language, one.supporter): {id: row[:, places] for id, row in one.cards.items()}
        for one in contestants_of(dialogues, verdicts_of_people(wanted), people_rubric, card_of=lambda dialogue: dialogue.id)
    }
    judged = contestants_of(dialogues, judgements, rubric, card_of=lambda dialogue: dialogue.id)
    boards = []
    for (language, scorer), rivals in group_by(judged, lambda one: (one.language, one.scorer)).items():
        given = [of_people.get((one.language, one.supporter), {}) for one in rivals]
        if not any(given):
            continue
        scored, labels = _scored(rivals, given, named, weights or {})
        boards.append(_board(language, scorer.name, [one.supporter for one in rivals], scored, labels))
    if not boards:
        raise UserError("--people: none of the scored dialogues is in these runs")
    return boards


def _scored(
    rivals: Sequence[Contestant],
    given: Sequence[Mapping[str, Floats]],
    dialogues: Mapping[str, Dialogue],
    weights: Mapping[str, float],
) -> tuple[Scored, list[int]]:
    """Sums by card, and how many dialogues people scored of each contestant."""
    names = sorted({card_of(dialogues[id]) for one in rivals for id in one.cards})
    row_of = {name: row for row, name in enumerate(names)}
    width = next(iter(rivals[0].cards.values())).shape[1]
    judge, judged, people, there, weight = np.zeros((5, len(names), len(rivals), width))
    labels = [0] * len(rivals)
    for column, (one, of_people) in enumerate(zip(rivals, given, strict=True)):
        for id, (points, counts) in one.cards.items():
            row = row_of[card_of(dialogues[id])]
            judge[row, column] += points
            judged[row, column] += counts
            if id in of_people:
                sums, there_are = of_people[id]
                share = weights.get(id, 1.0) * (counts > 0) * (there_are > 0)
                people[row, column] += share * sums
                there[row, column] += share * points
                weight[row, column] += share
                labels[column] += bool(share.any())
    return Scored(judge, judged, people, there, weight), labels


def _board(language: str, judge: str, supporters: Sequence[str], scored: Scored, labels: Sequence[int]) -> PoweredBoard:
    found = powered(scored)
    rated, seen = (scored.weight > 0).sum(axis=0), (scored.judged > 0).sum(axis=0)
    dialogues = scored.judged.sum(axis=0).max(axis=1)
    means, draws = found.both
    order = sorted(range(len(supporters)), key=lambda place: -np.nan_to_num(means[place].mean(), nan=-1.0))
    differences = differences_of(means[order].mean(axis=1), draws[:, order].mean(axis=2), rated[order].min(axis=1))
    ranks = ranks_of(differences, len(order))

    def average(side: tuple[Floats, Floats], place: int, n: int, cards: int) -> Estimate:
        return estimate(float(side[0][place].mean()), side[1][:, place].mean(axis=1), n, cards)

    places = []
    for new, place in enumerate(order):
        n, cards = labels[place], int(rated[place].min())
        spread, alone = (side[1][:, place].mean(axis=1).var() for side in (found.both, found.people))
        places.append(
            Place(
                supporter=supporters[place],
                rank=ranks[new],
                judge=average(found.judge, place, int(dialogues[place]), int(seen[place].min())),
                people=average(found.people, place, n, cards),
                both=average(found.both, place, n, cards),
                dimensions=[
                    estimate(float(means[place, column]), draws[:, place, column], n, int(rated[place, column]))
                    for column in range(means.shape[1])
                ],
                tuning=float(found.tuning[place].mean()),
                labels=n,
                saved=n * max(0.0, float(alone / spread) - 1) if cards > 1 and spread > 0 else None,
            )
        )
    return PoweredBoard(language, judge, places, differences)


def ranks_of(differences: Sequence[paired.Difference], count: int) -> list[int | None]:
    """Ranks with ties of contestants that come best first: 1 + how many are better by a difference that holds. None for one
    that could be compared with no other."""
    tested = [one for one in differences if one.p is not None]
    return [
        1 + sum(bool(one.holds) and place == one.second for one in tested)
        if any(place in (one.first, one.second) for one in tested)
        else None
        for place in range(count)
    ]


def differences_of(means: Floats, draws: Floats, rated: NDArray[np.intp]) -> list[paired.Difference]:
    """Every two contestants, which come best first, in the average, from draws of the same cards, with Holm's correction."""
    from scipy.stats import norm

    couples = list(combinations(range(len(means)), 2))
    gaps = [float(means[one] - means[other]) for one, other in couples]
    drawn = [draws[:, one] - draws[:, other] for one, other in couples]
    fewest = [int(min(rated[one], rated[other])) for one, other in couples]
    p: list[float | None] = []
    for gap, spread, cards in zip(gaps, drawn, fewest, strict=True):
        error = float(spread.std())
        p.append(float(2 * norm.sf(abs(gap) / error)) if cards > 1 and error > 0 else None)
    return [
        paired.Difference(
            first=one,
            second=other,
            dimension=None,
            first_mean=None if np.isnan(gap) else float(means[one]),
            second_mean=None if np.isnan(gap) else float(means[other]),
            estimate=estimate(gap, spread, cards, cards),
            p=of_pair,
            holm=corrected,
            holds=None if corrected is None else corrected <= paired.ALPHA,
        )
        for (one, other), gap, spread, cards, of_pair, corrected in zip(
            couples, gaps, drawn, fewest, p, paired.holm_of(p), strict=True
        )
    ]


# --- tables -------------------------------------------------------------------------------------------------------------------


def powered_tables(boards: Sequence[PoweredBoard], rubric: Rubric) -> list[Table]:
    """For each language: judge, people and both side by side, the dimensions by both, and the differences."""
    tables = []
    for language, of_language in group_by(boards, lambda board: board.language).items():
        several = len(of_language) > 1
        rows: list[tuple[Cell, ...]] = []
        fine: list[tuple[Cell, ...]] = []
        gaps: list[tuple[Cell, ...]] = []
        for board in of_language:
            by = [board.judge] * several
            for one in board.places:
                row = (one.rank, one.supporter, *by, one.judge, one.people, one.both, one.tuning, one.labels, one.saved)
                rows.append(row)
                fine.append((one.supporter, *by, *one.dimensions))
            for gap in board.differences:
                pair = (board.places[gap.first].supporter, board.places[gap.second].supporter)
                gaps.append((*pair, *by, *paired.cells(gap)))
        judged = ["judged by"] * several
        tables += [
            Table(
                key=f"leaderboard-powered-{language}",
                title=f"Leaderboard, {language}: judge, people and both",
                columns=("rank", "supporter", *judged, "judge alone", "people alone", "both", "λ", "labels", "labels saved"),
                rows=tuple(rows),
                notes=(
                    f"Average on 0–100, [{SMOOTHED} over cards]; n: dialogues judged, and dialogues that people scored. Judge "
                    "alone: people may think otherwise. Both: the judge's mean over all dialogues, corrected by people's "
                    "scores where there are any; unbiased where the scored dialogues are a random choice, or weighted.",
                    "λ: how much of the judge is used (0: nothing, what is left is people's mean; so with fewer than "
                    f"{FEWEST} scored cards). Labels saved: scored dialogues more that people alone would need for an interval "
                    "as narrow.",
                    *([] if several else [f"Judged by {of_language[0].judge}."]),
                ),
                section=SECTION,
            ),
            Table(
                key=f"dimensions-powered-{language}",
                title=f"Dimensions, {language}, by judge and people together",
                columns=("supporter", *judged, *(dimension_label(rubric, name) for name in rubric.dimensions)),
                rows=tuple(fine),
                section=SECTION,
            ),
            Table(
                key=f"differences-powered-{language}",
                title=f"Differences in the average, {language}, by judge and people together",
                columns=("supporter", "against", *judged, *paired.COLUMNS),
                rows=tuple(gaps),
                notes=(
                    f"Points of 0–100, [{SMOOTHED} over cards], n: scored cards of the supporter that has fewer. p: normal, "
                    "by the draws' standard error; Holm's correction over the pairs of one judge.",
                ),
                section=SECTION,
            ),
        ]
    return [table for table in tables if table.rows]
