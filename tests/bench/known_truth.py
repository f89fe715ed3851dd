"""Simulated studies whose truth is known: how often what `study`, `power` and `fork` say of them is right.

Each function makes so many studies from a seed and asks the very functions that the verbs use.
"""

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from scipy.stats import kendalltau

from core.files import write_text
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.rubrics import load_rubric
from core.statistics.bootstrap import Floats
from core.statistics.inference import ALPHA
from core.tables import Estimate, to_console, to_markdown
from evalsuite.statistics import paired
from evalsuite.statistics.components import Components, Observation, cards_needed, components, spreads
from evalsuite.statistics.suggestions import spread_and_error
from evalsuite.trust.between_frameworks import Averages, associations, averages_of, tau
from evalsuite.trust.commands.fork import Forked, score_differences, seeker_differences
from evalsuite.trust.commands.power import PlannedStudy
from tests.bench.claims import claim_table, every_claim
from tests.bench.figures import OUT, Bench, OutOption
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric

LEVELS = 7  # dimensions of a score in these studies: an average of so many is nearly continuous


def _generator(kind: object, seed: int) -> np.random.Generator:
    """Studies of two kinds have nothing in common."""
    return np.random.default_rng((seed, zlib.crc32(repr(kind).encode())))


def _scores(quality: Floats, rng: np.random.Generator, dimensions: int, noise: float) -> Floats:
    """Whole levels of 0–4 in points, [..., dimensions], of a quality in points [...]."""
    seen = quality[..., None] + rng.normal(0, noise, (*quality.shape, dimensions))
    return 25.0 * np.clip(np.round(seen / 25), 0, 4)


# --- the interval of Kendall's tau -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rankings:
    """Two frameworks' true averages of the supporters, and how many cards each plays; `together`: the same dialogues."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    cards: int
    together: bool


RANKINGS = {
    "alike, far apart": Rankings((30, 40, 50, 60, 70), (35, 42, 52, 60, 72), 20, True),
    "alike, near each other": Rankings((46, 48, 50, 52, 54), (45, 47, 50, 53, 55), 20, True),
    "one swap": Rankings((35, 42, 50, 58, 65), (35, 50, 42, 58, 65), 20, False),
    "in between": Rankings((40, 45, 50, 55, 60), (50, 40, 60, 45, 55), 20, False),
    "upside down": Rankings((40, 45, 50, 55, 60), (60, 55, 50, 45, 40), 20, True),
    "few cards": Rankings((40, 45, 50, 55, 60), (42, 44, 52, 54, 58), 5, False),
    "many supporters": Rankings(tuple(range(40, 60, 2)), tuple(range(41, 61, 2)), 30, True),
}


Bounds = Callable[[Averages, Averages], Estimate]


def redrawn(one: Averages, other: Averages) -> Estimate:
    """What seems natural: percentiles of the tau of each draw."""
    pairs = np.array(list(combinations(range(len(one.names)), 2)))
    x, y = (np.sign(side.draws[:, pairs[:, 0]] - side.draws[:, pairs[:, 1]]) for side in (one, other))
    low, high = np.percentile((x * y).mean(axis=1), [2.5, 97.5])
    return Estimate(tau(one, other).mean, float(low), float(high), len(one.names))


def tau_intervals(shape: Rankings, samples: int, bounds: Bounds = tau, seed: int = 0) -> tuple[float, list[Estimate]]:
    """The true tau, and the estimate of each study. A card is easier or harder for all; a dialogue has luck of its own, which
    frameworks that judge the same dialogues share."""
    rng = _generator(shape, seed)
    size = (shape.cards, len(shape.first))
    names = [f"s{place:02}" for place in range(size[1])]
    found = []
    for _ in range(samples):
        luck = [rng.normal(0, 12, (shape.cards, 1)) + rng.normal(0, 14, size) for _ in range(2)]
        if shape.together:
            luck[1] = luck[0]
        sides = []
        for title, means, lucky in zip("ab", (shape.first, shape.second), luck, strict=True):
            scores = _scores(np.array(means) + lucky, rng, LEVELS, 12)
            people = "cards" if shape.together else f"people of {title}"
            sides.append(averages_of(title, people, names, scores, np.ones_like(scores)))
        found.append(bounds(*sides))
    return float(kendalltau(shape.first, shape.second).statistic), found


# --- correlations of dimensions, as seen and disattenuated -------------------------------------------------------------------


@dataclass(frozen=True)
class Measures:
    """Two dimensions that measure qualities of a correlation `true`, with noise a trial of each (points), on so many cards;
    supporters differ by `apart`."""

    true: float
    noise: tuple[float, float]
    cards: int
    apart: float = 0.0
    supporters: int = 4
    trials: int = 2


MEASURES = {
    "the same quality": Measures(0.95, (8, 8), 40),
    "half the same": Measures(0.5, (8, 12), 40),
    "nothing in common": Measures(0.0, (8, 8), 40),
    "few cards": Measures(0.6, (8, 8), 12),
    "much noise": Measures(0.6, (16, 16), 40),
    "supporters far apart": Measures(0.3, (8, 8), 30, apart=12.0),
}
_QUALITY = 10.0  # standard deviation of a dialogue's quality over cards
_SHARED = 5.0  # and of what all supporters' dialogues on a card share


def correlation_truth(shape: Measures) -> tuple[float, float]:
    """The correlation of means over trials, and that of the qualities."""
    levels = _levels(shape)
    spread = _QUALITY**2 + _SHARED**2 + float(levels.var())
    covariance = shape.true * (_QUALITY**2 + _SHARED**2) + float(levels.var())
    noisy = [spread + noise**2 / shape.trials for noise in shape.noise]
    return covariance / float(np.sqrt(noisy[0] * noisy[1])), covariance / spread


def _levels(shape: Measures) -> Floats:
    levels: Floats = shape.apart * (np.arange(shape.supporters, dtype=np.float64) - (shape.supporters - 1) / 2)
    return levels


def correlation_intervals(shape: Measures, samples: int, seed: int = 0) -> list[tuple[Estimate, Estimate]]:
    """Of each study the correlation as seen and disattenuated."""
    rng = _generator(shape, seed)
    both = np.array([[1, shape.true], [shape.true, 1]])
    size = (shape.cards, shape.supporters)
    found = []
    for _ in range(samples):
        cards = rng.multivariate_normal([0, 0], _SHARED**2 * both, shape.cards)
        quality = _levels(shape)[:, None] + cards[:, None] + rng.multivariate_normal([0, 0], _QUALITY**2 * both, size)
        trials = quality[:, :, None] + rng.normal(0, shape.noise, (*size, shape.trials, 2))
        sides: list[dict[tuple[str, str], list[Floats]]] = [
            {(f"c{c}", f"s{s}"): list(trials[c, s, :, side : side + 1]) for c, s in product(*map(range, size))}
            for side in range(2)
        ]
        ((seen, cleared, *_),) = associations(*sides)
        found.append((seen, cleared))
    return found


# --- components, and the cards that they plan ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Design:
    """A run: supporters × cards × judges × trials, of which a share is lost."""

    supporters: int
    cards: int
    judges: int
    trials: int
    lost: float = 0.0


TRUE = {
    "card": 90.0,
    "supporter × card": 40.0,
    "card × judge": 15.0,
    "supporter × card × judge": 8.0,
    "draw": 50.0,
    "rest": 20.0,
}  # variances of what is drawn with the cards; supporters and judges are these, with fixed levels
SUPPORTERS, JUDGES = 5.0, 3.0  # standard deviations of their levels
DESIGNS = {
    "12 cards": Design(3, 12, 2, 2),
    "one judge, 30 cards": Design(3, 30, 1, 2),
    "40 cards": Design(3, 40, 2, 2),
    "40 cards, a tenth lost": Design(3, 40, 2, 2, 0.1),
}


def observed(design: Design, rng: np.random.Generator, gaps: Floats | None = None) -> list[Observation]:
    """A run's averages; `gaps` are added to the supporters' levels in place of those of `SUPPORTERS`."""
    s, c, j, t = design.supporters, design.cards, design.judges, design.trials
    level = np.linspace(-1, 1, s) * SUPPORTERS * 1.2 if gaps is None else gaps

    def drawn(name: str, *axes: int) -> Floats:
        return rng.normal(0, TRUE[name] ** 0.5, axes)

    scores = 50 + level[:, None, None, None] + JUDGES * np.linspace(-1, 1, j)[:, None] + np.zeros((s, c, j, t))
    scores = scores + drawn("card", c, 1, 1) + drawn("supporter × card", s, c, 1, 1) + drawn("card × judge", c, j, 1)
    scores = scores + drawn("supporter × card × judge", s, c, j, 1) + drawn("draw", s, c, 1, t) + drawn("rest", s, c, j, t)
    kept = rng.random(scores.shape) >= design.lost
    return [
        Observation(f"s{a}", f"c{b}", "k", f"j{d}", str(e), float(scores[a, b, d, e]))
        for a, b, d, e in product(range(s), range(c), range(j), range(t))
        if kept[a, b, d, e]
    ]


def true_variance(name: str, judges: int) -> float | None:
    """Of a component, or of several that the design cannot tell apart; None for what is not drawn with the cards. With one
    judge, what crosses the judge is part of what does not."""
    parts = name.split(", ")
    if not all(part in TRUE for part in parts):
        return None
    hidden = [f"{part} × judge" for part in parts] if judges == 1 else []
    return sum(TRUE.get(part, 0.0) for part in (*parts, *hidden))


def component_studies(design: Design, samples: int, seed: int = 0) -> list[Components]:
    rng = _generator(design, seed)
    return [components(observed(design, rng)) for _ in range(samples)]


def shown(design: Design, difference: float, samples: int, seed: int = 0) -> tuple[float, float]:
    """A pilot run of the design plans the cards for a difference (power 0.8, one pair); a run of that many cards then shows it
    or does not, by the test of leaderboards. The share of runs that show it: with the true spread, and with the pilot's."""
    rng = _generator((design, difference), seed)
    pair = Design(2, design.cards, design.judges, design.trials)
    truth = 2 * (TRUE["supporter × card"] + TRUE["draw"] / pair.trials)
    truth += 2 * (TRUE["supporter × card × judge"] + TRUE["rest"] / pair.trials) / pair.judges
    hits = []
    for _ in range(samples):
        pilot = observed(pair, rng, np.zeros(2))
        (spread,) = spreads(pilot)
        planned = PlannedStudy("en", components(pilot), [spread], difference, 1, 0.8).needed(spread, pair.trials)
        row = []
        for needed in (cards_needed(difference, truth, ALPHA, 0.8), planned.mean if planned else None):
            assert needed is not None
            cards = int(needed)
            runs = observed(Design(2, cards, pair.judges, pair.trials), rng, np.array([difference, 0.0]))
            sums = np.zeros((cards, 2, 1))
            for one in runs:
                sums[int(one.card[1:]), int(one.supporter[1:]), 0] += one.score
            counts = np.full(sums.shape, float(pair.judges * pair.trials))
            row.append(bool(paired.differences(sums, counts, [(0, 1)], average_only=True)[0].holds))
        hits.append(row)
    alone, delivered = np.mean(hits, axis=0)
    return float(alone), float(delivered)


# --- forks without an effect --------------------------------------------------------------------------------------------------


_BEGINNING = (Turn(role="seeker", text="It hurts."), Turn(role="supporter", text="I see."))
_LINES = ("Thank you, I feel better.", "It still hurts.", "I do not know what to do about it, and nobody else does.")


@dataclass(frozen=True)
class Alarms:
    """Shares of forks without an effect in which something is said to hold: any score, the average's own p at most 0.05, and
    anything of what the seeker does afterwards."""

    scores: float
    average: float
    seeker: float


def without_effect(draws: int, samples: int, seed: int = 0) -> Alarms:
    """Forks whose two sides are drawn alike: a draw's dialogue is good or bad, and its seeker says one to four more lines."""
    rng = np.random.default_rng((seed, draws))
    rubric = load_rubric("esc_eval")
    scores, average, seeker = [], [], []
    for _ in range(samples):
        dialogues: list[Dialogue] = []
        verdicts: list[Judgement] = []
        for side, draw in product(("changed", "as it was"), range(draws)):
            luck, id = rng.normal(0, 0.7), f"{side} {draw}"
            later = [Turn(role="seeker", text=str(text)) for text in rng.choice(_LINES, rng.integers(1, 5))]
            dialogues.append(make_dialogue(id, side, trial=draw).model_copy(update={"turns": (*_BEGINNING, *later)}))
            for name in rubric.dimensions:
                level = int(np.clip(round(2 + luck + rng.normal(0, 0.8)), 0, 4))
                verdicts.append(make_judgement(id, name, level, rubric=rubric.name))
        forked = Forked(dialogues[0], 1, "as it was", "changed", "I see", dialogues, verdicts)
        found = score_differences(forked, rubric)
        scores.append(any(one.holds for one in found))
        average.append((1.0 if found[-1].p is None else found[-1].p) <= ALPHA)
        seeker.append(any(one.holds for one in seeker_differences(forked)))
    return Alarms(*(float(np.mean(each)) for each in (scores, average, seeker)))


# --- whether a judge's spread goes with its error -----------------------------------------------------------------------------


INSIGHTS = (0.0, 0.3, 0.7)  # correlations of the normals behind spread and error


def insight_coverage(true: float, samples: int, labels: int = 40, seed: int = 0) -> float:
    """The share of studies whose interval of `spread_and_error` holds Spearman's true correlation."""
    rng = _generator((true, labels), seed)
    rubric = make_rubric("warm", low=0, high=100)
    both = rng.multivariate_normal([0, 0], [[1, true], [true, 1]], (samples, labels))
    found = []
    for normals in both:
        # Two repeats lie a spread apart, and their mean an error above people's score, which is 0.
        spread, error = (10 * np.exp(0.5 * normals)).T
        verdicts = [
            make_judgement(str(n), "warm", float(e + side * s), repeat=int(side > 0))
            for n, (s, e) in enumerate(zip(spread / 4, 40 + error / 4, strict=True))
            for side in (-1, 1)
        ]
        scores = [
            HumanScore(dialogue_id=str(n), language="en", annotator="anna", rubric=rubric.name, dimension="warm", value=0)
            for n in range(labels)
        ]
        found.append(spread_and_error(verdicts, scores, rubric))
    return held(found, float(6 / np.pi * np.arcsin(true / 2)))


def held(estimates: list[Estimate], truth: float) -> float:
    """The share of intervals that hold the truth; one that is missing holds nothing."""
    bounds = [(e.low, e.high) for e in estimates]
    return float(np.mean([low is not None and high is not None and low - 1e-9 <= truth <= high + 1e-9 for low, high in bounds]))


def tau_coverage(shape: Rankings, samples: int, bounds: Bounds = tau) -> float:
    truth, found = tau_intervals(shape, samples, bounds)
    return held(found, truth)


def correlation_coverage(shape: Measures, samples: int) -> tuple[float, float]:
    """The shares whose intervals hold the true correlation as seen and disattenuated."""
    found, truth = correlation_intervals(shape, samples), correlation_truth(shape)
    return held([seen for seen, _ in found], truth[0]), held([cleared for _, cleared in found], truth[1])


def component_coverage(design: Design, samples: int) -> dict[str, float]:
    """For every component that crosses the card, the share of runs whose interval holds it."""
    runs = component_studies(design, samples)
    truths = [true_variance(part.name, design.judges) for part in runs[0].parts]
    names = [(place, part.name, truth) for place, (part, truth) in enumerate(zip(runs[0].parts, truths, strict=True)) if truth]
    return {
        name: held([Estimate(run.parts[place].variance, run.parts[place].low, run.parts[place].high, 0) for run in runs], truth)
        for place, name, truth in names
    }


def main(
    samples: Annotated[int, typer.Option(min=10, help="Studies of each kind.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the studies; choices were made on others than the default.")] = 2026,
    only: Annotated[
        list[str] | None, typer.Option(help="Only the claims of this subject (tests/bench/truth_SUBJECT.py); repeat.")
    ] = None,
    out: OutOption = OUT,
) -> None:
    """What tables claim beside how often it is true: intervals, tests, ranks, plans, over simulated studies of known truth."""
    bench = Bench("known-truth", "Simulated studies with known truth, %", studies=samples, seed=seed)
    console, found = Console(width=None if sys.stdout.isatty() else 180), []
    for claim in every_claim(samples, seed, only or ()):
        found.append(claim)
        bench.say(f"{claim.claim}, {claim.population}, {claim.clusters}: {claim.promised:g}, {claim.measured:.1f}")
    table = claim_table(found)
    to_console(table, console)
    write_text(out / "claims.md", to_markdown(table))
    if only:
        return
    # The figures of `study`, `power`, `people suggest` and `fork`.
    target: dict[str, Any] = {"at_least": 93, "aim": "93 to 97"}
    for name, ranking in RANKINGS.items():
        bench.add(f"Kendall's tau, {name}", 100 * tau_coverage(ranking, samples), at_least=93, aim="93 or more")
        bench.add(f"Kendall's tau by percentiles of draws, {name}", 100 * tau_coverage(ranking, samples, redrawn))
    for name, shape in MEASURES.items():
        seen, cleared = correlation_coverage(shape, samples)
        bench.add(f"correlation, {name}", 100 * seen, **target)
        bench.add(f"disattenuated, {name}", 100 * cleared, **target)
    for true in INSIGHTS:
        bench.add(f"spread and error, {true}", 100 * insight_coverage(true, samples), **target)
    for draws in (6, 12):
        alarms = without_effect(draws, samples)
        for what, share in (("scores", alarms.scores), ("average", alarms.average), ("seeker", alarms.seeker)):
            bench.add(f"fork without an effect, {draws} draws: {what}", 100 * share, at_most=8, aim="5")
    for difference in (5.0, 8.0):
        alone, planned = shown(DESIGNS["one judge, 30 cards"], difference, samples)
        bench.add(f"a difference of {difference:g} is shown, spread known", 100 * alone, at_least=74, aim="80")
        bench.add(f"a difference of {difference:g} is shown, spread of a pilot", 100 * planned, at_least=74, aim="80")
    for name, design in DESIGNS.items():
        for part, share in component_coverage(design, samples).items():
            bench.add(f"{name}: {part}", 100 * share, **target)
    bench.deliver(out)
