"""Whether planned cards show what they were planned for, and whether intervals of MSR and MAC hold: simulated studies."""

from collections.abc import Iterator

import numpy as np

from core.statistics.bootstrap import Floats
from core.statistics.inference import ALPHA
from evalsuite.statistics.components import FEWEST_BOUNDED, Components, Observation, Spread, cards_needed, spreads
from evalsuite.statistics.discrimination import discriminate
from evalsuite.statistics.paired import differences
from evalsuite.trust.commands.power import PlannedStudy
from tests.bench.claims import COVERAGE, Claim, coverage, false_alarms, levels

POWER = 0.8
MANY = 200_000  # cards that stand for a population
FAILS = 0.15  # how often the third model fails outright: its differences spread more, and further one way
SHAPES = {"middle": (0.35, 0.0, 0.0), "ceiling": (0.5, -0.3, 0.0), "floor": (0.7, -0.2, 0.0)}
PAIRS = {"of one spread": (0, 1), "with a model that fails": (0, 2)}  # places among three models
RATED = {"middle": (-0.5, 0.0, 0.3, 0.5), "ceiling": (-0.6, 0.0, 0.2, 0.6), "floor": (-0.3, 0.0, 0.0, 0.8), "alike": (0.0,) * 4}
PILOTS, USERS = (12, 30), (5, 12, 30)


def averages(shape: str, rng: np.random.Generator, cards: int) -> Floats:
    """Averages of seven dimensions of three models, [cards, 3] on 0–100."""
    scores = 25 * levels(shape, rng, cards, 3, 7, np.array(SHAPES[shape])).mean(axis=2)
    scores[rng.random(cards) < FAILS, 2] = 0
    return scores


def pilot_spreads(scores: Floats) -> dict[tuple[str, str], Spread]:
    """What `esc-eval power` knows of every pair from a pilot [cards, models]."""
    every = np.ndenumerate(scores)
    found = spreads([Observation(f"m{model}", f"c{card}", "k", "j", "0", float(score)) for (card, model), score in every])
    return {(one.first, one.second): one for one in found}


def shown(shape: str, rng: np.random.Generator, pair: tuple[int, int], cards: int, studies: int) -> float:
    """In what share of boards of so many cards the pair's difference holds, beside those of the two other pairs."""
    scores = np.stack([averages(shape, rng, cards) for _ in range(studies)], axis=1).reshape(cards, -1, 1)
    couples = [(3 * study + a, 3 * study + b) for study in range(studies) for a, b in ((0, 1), (0, 2), (1, 2))]
    families = [first // 3 for first, _ in couples]
    held = differences(scores, np.ones(scores.shape), couples, average_only=True, families=families)
    place = ((0, 1), (0, 2), (1, 2)).index(pair)
    return float(np.mean([bool(one.holds) for one in held[place::3]]))


def plans(studies: int, rng: np.random.Generator) -> Iterator[Claim]:
    """Power that planned cards deliver on average, and whether the interval of their number holds what is needed."""
    alone = Components([], {}, 1.0, 0, 0.0)  # one trial and no other judges: components play no part
    for shape in SHAPES:
        whole = averages(shape, rng, MANY)
        pilots = {cards: [pilot_spreads(averages(shape, rng, cards)) for _ in range(studies)] for cards in PILOTS}
        for name, (first, second) in PAIRS.items():
            gaps = whole[:, first] - whole[:, second]
            difference, variance = float(gaps.mean()), float(gaps.var())
            known = cards_needed(difference, variance, ALPHA / 3, POWER)
            assert known is not None
            grid = np.unique(np.geomspace(max(known / 4, 3), 4 * known, 7).astype(int))
            power = [shown(shape, rng, (first, second), int(cards), studies) for cards in grid]
            for cards, every in pilots.items():
                own = [found[f"m{first}", f"m{second}"] for found in every]
                # A pilot in which no card differs plans nothing, and its user asks for a larger one.
                needs = [need for one in own if (need := PlannedStudy("en", alone, [one], difference, 3, POWER).needed(one, 1))]
                delivered = np.interp(np.log([float(need.mean or 0) for need in needs]), np.log(grid), power)
                yield Claim(
                    "cards planned", f"{shape}, {name}", cards, COVERAGE, 100 * POWER, 100 * float(delivered.mean()), studies
                )
                if cards >= FEWEST_BOUNDED:
                    yield coverage("interval of cards planned", f"{shape}, {name}", cards, needs, known)


def true_msr(shape: str, rng: np.random.Generator) -> float:
    """Among all users."""
    ratings = rated(shape, rng, MANY)
    return float(ratings.mean(axis=0).var() / ratings.var(axis=0).mean())


def rated(shape: str, rng: np.random.Generator, users: int) -> Floats:
    """Ratings [users, models]; models that are alike differ in spread."""
    ratings = levels("middle" if shape == "alike" else shape, rng, users, 4, 1, np.array(RATED[shape]))[:, :, 0]
    return 2 + (ratings - 2) * np.array([0.5, 1, 1, 1]) if shape == "alike" else ratings


def separations(studies: int, rng: np.random.Generator) -> Iterator[Claim]:
    """Intervals of MSR and MAC where users are shared, and the blocked p and the pairs where models are alike."""
    for shape in RATED:
        truth = 0.0 if shape == "alike" else true_msr(shape, rng)
        for users in USERS:
            found = [discriminate(rated(shape, rng, users), "abcd", (0, 4)) for _ in range(studies)]
            yield coverage("MSR", shape, users, [one.msr for one in found], truth)
            yield coverage("MAC", shape, users, [one.mac for one in found], truth / (1 + truth))
            if shape == "alike":
                yield false_alarms("p of the blocked F", shape, users, [one.p is not None and one.p <= ALPHA for one in found])
                yield false_alarms("pairs told apart", shape, users, [one.told_apart > 0 for one in found])


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """The rows of this subject."""
    rng = np.random.default_rng((seed, 5))
    yield from plans(studies, rng)
    yield from separations(studies, rng)
