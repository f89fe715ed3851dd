"""What is claimed of people's scores and choices, where the truth is known: `leaderboard --people` (differences, intervals,
labels saved), agreement of raters, and votes between two systems (win rates, strengths, differences where there is none)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from core.statistics.accuracy import cohen_kappa, krippendorff_alpha
from core.statistics.bootstrap import Floats
from core.tables import Estimate
from data_prep.scores.annotator_agreement import Figures, ScoredItem, agreement_on
from evalsuite.papers.win_rates import Choice, rate, strengths_of
from evalsuite.statistics.suggestions import chances
from evalsuite.trust.powered_board import LabelledScores, differences_of, estimates, powered, saved
from tests.bench.claims import SHAPES, Claim, coverage, false_alarms, judged, levels, systematic

CARDS = 60


@dataclass(frozen=True)
class Shape:
    """A board: supporters, labels of each by people, dimensions, shape of the scores, and how often the judge is right (else it
    is a level off); `drawn` says whose cards are scored: each supporter's own, the same ones, or those of `people suggest`. A
    supporter has `each` dialogues on every card, of which people score so many in all."""

    supporters: int
    labels: int
    dimensions: int
    scores: str
    agreement: float = 0.6
    drawn: str = "own"
    shift: float = 0.0  # of the first supporter's latent quality
    each: int = 1

    def __str__(self) -> str:
        return (
            f"{self.supporters} supporters, {self.labels} labels, {self.dimensions} dimensions, {self.scores}, judge right in "
            f"{100 * self.agreement:.0f} %, cards {self.drawn}"
        )

    def sample(self, rng: np.random.Generator) -> LabelledScores:
        shift = np.where(np.arange(self.supporters) == 0, self.shift, 0.0)
        gold = levels(self.scores, rng, CARDS, self.each * self.supporters, self.dimensions, np.tile(shift, self.each))
        flat = (CARDS * self.each, self.supporters, self.dimensions)  # row by row the dialogues of a card
        people, judge = (25 * scores.reshape(flat) for scores in (gold, judged(gold, rng, self.agreement)))
        unsure = np.abs(people - judge).mean(axis=2) + rng.exponential(10, people.shape[:2])
        chance = chances(unsure if self.drawn == "suggested" else np.ones(unsure.shape), self.labels)
        # One order of cards for all supporters, or one of its own for each.
        picked = systematic(chance, rng, 1 if self.drawn == "own" else self.supporters)
        weight = np.broadcast_to((picked / chance)[..., None], people.shape)
        parts = (judge, np.ones(people.shape), weight * people, weight * judge, weight)
        return LabelledScores(*(part.reshape(CARDS, self.each, *flat[1:]).sum(axis=1) for part in parts))

    def truth(self, supporter: int = 1) -> float:
        """A supporter's true mean."""
        return _mean(self.scores, self.shift if supporter == 0 else 0.0)


@cache
def _mean(scores: str, shift: float) -> float:
    return 25 * float(levels(scores, np.random.default_rng(7), 200_000, 1, 1, shift).mean())


@dataclass(frozen=True)
class Outcome:
    """Of so many boards: whether any difference holds, intervals of means and differences, labels saved, and λ [boards,
    dimensions]."""

    alarms: list[bool]
    means: list[Estimate]
    gaps: list[Estimate]
    saved: list[Estimate]
    tuning: list[Floats]


def simulate(shape: Shape, studies: int, seed: int, judge: bool = True) -> Outcome:
    """So many boards, by both or (without `judge`) by people alone."""
    rng = np.random.default_rng((seed, shape.supporters, shape.labels, shape.dimensions))
    pairs, labels = list(combinations(range(shape.supporters), 2)), [shape.labels] * shape.supporters
    outcome = Outcome([], [], [], [], [])
    for _ in range(studies):
        found = powered(shape.sample(rng))
        side = found.both if judge else found.people
        gaps = differences_of(found, side, pairs)
        outcome.alarms.append(any(one.holds for one in gaps))
        outcome.means.extend(row[-1] for row in estimates(found, side, labels)[1:])  # all of one true mean
        outcome.gaps.extend(one.estimate for one in gaps)
        outcome.saved.append(saved(found, shape.labels))
        outcome.tuning.append(found.tuning)
    return outcome


def true_saved(shape: Shape, tuning: Floats) -> float:
    """Labels saved of boards with these λ [boards, dimensions] by the mean squared errors of both estimates, which are known
    from the moments of the population."""
    rng = np.random.default_rng(8)
    gold = levels(shape.scores, rng, 40_000, 1, shape.dimensions)
    people, judge = 25 * gold[:, 0].mean(axis=1), 25 * judged(gold, rng, shape.agreement)[:, 0]
    used = tuning / shape.dimensions
    of_judge = np.einsum("sd,de,se->s", used, np.cov(judge.T).reshape(2 * [shape.dimensions]), used)
    together = used @ ((people - people.mean()) @ (judge - judge.mean(axis=0)) / len(people))
    squared = people.var() / shape.labels + (of_judge - 2 * together) * (1 / shape.labels - 1 / CARDS)
    return max(shape.labels * float(people.var() / shape.labels / squared.mean() - 1), 0.0)


def board_claims(studies: int, seed: int) -> Iterator[Claim]:
    """Supporters that are alike, on boards of 3 and of 20; and labels saved, which are not given with unequal weights."""
    for shape in BOARDS:
        found, population, labels = simulate(shape, studies, seed), str(shape), shape.labels
        yield false_alarms("people and judge: no difference holds", population, labels, found.alarms)
        yield coverage("people and judge: interval of an average", population, labels, found.means, shape.truth())
        yield coverage("people and judge: interval of a difference", population, labels, found.gaps, 0.0)
        if shape.drawn != "suggested" and any(one.mean is not None for one in found.saved):
            known = true_saved(shape, np.array(found.tuning))
            yield coverage("people and judge: labels saved", population, shape.supporters * labels, found.saved, known)


BOARDS = (
    *(
        Shape(supporters, labels, *setting)
        for supporters, labels in ((3, 5), (3, 12), (20, 12))
        for setting in (
            (1, "floor", 0.9),
            (1, "middle", 0.3),
            (1, "ceiling", 0.6, "suggested"),
            (7, "floor", 0.6, "same"),
            (7, "middle", 0.9),
            (7, "ceiling", 0.3),
        )
    ),
    Shape(20, 5, 1, "middle", 0.3),
    Shape(20, 5, 7, "floor", 0.6, "same"),
    Shape(20, 30, 1, "ceiling", 0.9),
    Shape(20, 30, 7, "middle", 0.3),
)


# --- raters -----------------------------------------------------------------------------------------------------------------

SIZES = (5, 12, 30, 100)
_ITEMS = 200_000  # items of a study in which nothing is left to chance
_LEVELS = np.arange(5.0)


def rated(shape: str, rng: np.random.Generator, items: int, raters: int) -> Floats:
    """Whole levels of 0–4, [items, raters]: raters see the same quality, each with an error of their own."""
    return levels(shape, rng, items, 1, raters)[:, 0]


def truths(shape: str, raters: int, seed: int) -> dict[str, float]:
    """The figures of a study so large that they are the truth, from whole tables of counts."""
    scores = rated(shape, np.random.default_rng((seed, raters)), _ITEMS, raters).astype(int)
    pairs = [np.bincount(scores[:, a] * 5 + scores[:, b], minlength=25) for a, b in combinations(range(raters), 2)]
    tables = np.array(pairs, dtype=float).reshape(-1, 5, 5)
    both = tables.sum(0) + tables.sum(0).T
    gaps = np.abs(np.subtract.outer(_LEVELS, _LEVELS))
    return {
        "kappa": float(cohen_kappa(tables, gaps**2).mean()),
        "alpha": float(krippendorff_alpha(both[None] / (raters - 1), ordinal=True)[0]),
        "equal": float(both[gaps == 0].sum() / both.sum()),
        "near": float(both[gaps <= 1].sum() / both.sum()),
    }


def study(shape: str, rng: np.random.Generator, items: int, raters: int) -> Figures:
    """What the product says of one study."""
    scores = rated(shape, rng, items, raters)
    figures = agreement_on(
        {
            ScoredItem(f"{item:03}"): {f"r{who}": float(value) for who, value in enumerate(row)}
            for item, row in enumerate(scores)
        }
    )
    assert figures is not None
    return figures


def rater_claims(studies: int, seed: int) -> Iterator[Claim]:
    """Of every shape and size, with two, three and four raters in turn."""
    designs = [(place, step, shape, size) for place, shape in enumerate(SHAPES) for step, size in enumerate(SIZES)]
    for number, (place, step, shape, size) in enumerate(designs):
        raters = 2 + (place + step) % 3
        rng = np.random.default_rng((seed, number))
        found = [study(shape, rng, size, raters) for _ in range(studies if size < 100 else max(studies // 2, 10))]
        for name, truth in truths(shape, raters, seed).items():
            estimates: list[Estimate] = [getattr(one, name) for one in found]
            if any(one.low is not None for one in estimates):
                claim = f"interval of {'the share ' * (name in ('equal', 'near'))}{name}"
                yield coverage(claim, f"{shape}, {raters} raters", size, estimates, truth)


# --- votes ------------------------------------------------------------------------------------------------------------------

# Several annotators vote on an item and see the same replies, so their votes go together; some pairs are shown far more often
# than others, and what is shown first is picked a little more often.

ANNOTATORS = 3
ITEM, EYE = 1.0, 0.7  # standard deviations of a reply's quality on an item, and of an annotator's view of a pair
FIRST, TIE = 0.2, 0.25  # what the first place adds, and how near two replies are to be a tie
_VOTED = 1500  # items of a study in which little is left to chance
_APART = (1.5, 0.6, 0.2, 0.0, -0.3)  # the best meets the rest, of which the weak ones meet each other


def voted(strengths: Sequence[float], rng: np.random.Generator, items: int) -> list[Choice]:
    """Votes of `ANNOTATORS` on the pairs of each item that the schedule has: from one in ten items to nine in ten."""
    count = len(strengths)
    pairs = [*combinations(range(count), 2)]
    often = np.linspace(0.9, 0.1, len(pairs)) * min(1, 12 / len(pairs))
    replies = np.asarray(strengths) + rng.normal(0, ITEM, (items, count))
    names = [f"s{system:02}" for system in range(count)]
    found = []
    for item in range(items):
        for (a, b), chance in zip(pairs, often, strict=True):
            if rng.random() >= chance:
                continue
            for annotator in range(ANNOTATORS):
                first = rng.random() < 0.5
                gap = replies[item, a] - replies[item, b] + (FIRST if first else -FIRST) + rng.normal(0, EYE)
                verdict = "tie" if abs(gap) < TIE else "a" if gap > 0 else "b"
                shown = names[a if first else b]
                found.append(
                    Choice("", f"{item:04}", names[a], names[b], verdict, annotator=f"p{annotator}", first=shown)  # type: ignore[arg-type]
                )
    return found


def _won(choices: Sequence[Choice]) -> list[Choice]:
    return [one for one in choices if one.systems == ("s00", "s01")]


def _points(vote: Choice) -> float:
    return 0.5 if vote.verdict == "tie" else float(vote.verdict == "a")


def _true(strengths: Sequence[float], seed: int) -> tuple[Floats, float]:
    """The expected share of every system and the win rate of the first against the second."""
    large = voted(strengths, np.random.default_rng((seed, 1)), _VOTED)
    found, _ = strengths_of(large, sorted({name for one in large for name in one.systems}))
    assert found is not None
    return np.array([one.mean for one in found.shares]), 100 * float(np.mean([_points(one) for one in _won(large)]))


def vote_claims(studies: int, seed: int) -> Iterator[Claim]:
    """Systems apart, whose intervals are to hold the truth; and systems alike, of which none is to be called better."""
    systems = [f"s{system:02}" for system in range(20)]
    truth, against = _true(_APART, seed)
    for items in (8, 12, 30):
        rng = np.random.default_rng((seed, items))
        found = [voted(_APART, rng, items) for _ in range(studies)]
        rates = [rate(_won(one), _points) for one in found]
        yield coverage("interval of a win rate", "one pair of five systems", items, rates, against)
        strong = [told for one in found if (told := strengths_of(one, systems[: len(_APART)])[0])]
        for place, share in enumerate(truth):
            shares = [one.shares[place] for one in strong]
            yield coverage("interval of an expected share", f"{place + 1}. of five systems", items, shares, share)
    for count, items in ((2, 8), (2, 30), (4, 12), (8, 30), (20, 12), (20, 60)):
        rng = np.random.default_rng((seed, count, items))
        number = -(-studies * 4 // (4 + count))
        boards = (strengths_of(voted([0.0] * count, rng, items), systems[:count])[1] for _ in range(number))
        alarms = [any(one.holds for one in board) for board in boards]
        yield false_alarms("a difference of two systems holds", f"{count} alike", items, alarms)


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """Of all three."""
    for of in (board_claims, rater_claims, vote_claims):
        yield from of(studies, seed)
