"""What the product claims, and how often the claim is true in simulated studies: the rows of `tests.bench known-truth`."""

import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from core.statistics.bootstrap import Floats
from core.tables import Estimate, Table

COVERAGE, ERROR = "coverage", "false alarms"
TOLERANCE = 3.0  # points by which a claim may fail before the product no longer prints it


@dataclass(frozen=True)
class Claim:
    """One row. `promised` and `measured` are per cent of `studies`: how often an interval holds the truth (`COVERAGE`), or a
    difference is found where there is none (`ERROR`), on studies of one `population`. `fewest` says on how many clusters."""

    claim: str
    population: str
    clusters: int
    kind: str
    promised: float
    measured: float
    studies: int

    @property
    def kept(self) -> bool:
        """Whether it fails by no more than `TOLERANCE` and what chance does to so many studies (three standard errors, as there
        are hundreds of claims)."""
        chance = 300 * np.sqrt(self.promised / 100 * (1 - self.promised / 100) / self.studies)
        short = self.promised - self.measured if self.kind == COVERAGE else self.measured - self.promised
        return bool(short <= TOLERANCE + chance)


def coverage(claim: str, population: str, clusters: int, estimates: Iterable[Estimate], truth: float) -> Claim:
    """The claim that 95 % of these intervals hold the truth. A refused one (low None) claims nothing and does not count; but
    where fewer than a fifth are given, in no usual studies, the share is of all studies that claim nothing false."""
    every = list(estimates)
    given = [(e.low, e.high) for e in every if e.low is not None and e.high is not None]
    held = [low - 1e-9 <= truth <= high + 1e-9 for low, high in given]
    if given and len(given) < len(every) / 5:
        population = f"{population}, given in {len(given)} of {len(every)}"
        held += [True] * (len(every) - len(given))
    return Claim(claim, population, clusters, COVERAGE, 95.0, 100 * float(np.mean(held)) if held else float("nan"), len(held))


def false_alarms(claim: str, population: str, clusters: int, found: Iterable[bool]) -> Claim:
    """The claim that in at most 5 % of studies without a difference one is found."""
    alarms = list(found)
    return Claim(claim, population, clusters, ERROR, 5.0, 100 * float(np.mean(alarms)), len(alarms))


def every_claim(studies: int, seed: int, only: Sequence[str] = ()) -> Iterator[Claim]:
    """The claims of all modules `tests.bench.truth_SUBJECT`, or of some subjects."""
    package = import_module("tests.bench")
    subjects = [
        one.name.removeprefix("truth_") for one in pkgutil.iter_modules(package.__path__) if one.name.startswith("truth_")
    ]
    for subject in only or subjects:
        yield from import_module(f"tests.bench.truth_{subject}").claims(studies, seed)


def claim_table(claims: Sequence[Claim]) -> Table:
    """Every claim beside what was measured; those that fail are in it, too."""
    return Table(
        "claims",
        "What is claimed, and how often it is true",
        ("claim", "studies of", "clusters", "promised %", "measured %", "studies", "kept"),
        tuple(
            (
                *(c.claim, c.population, c.clusters, f"{'≥' if c.kind == COVERAGE else '≤'} {c.promised:g}", c.measured),
                *(c.studies, "yes" if c.kept else "NO"),
            )
            for c in claims
        ),
        (
            f"Kept: no more than {TOLERANCE:g} points, and three standard errors of so many studies, short of the promise. "
            "Populations are whole levels of 0–4, clustered by card (tests/bench/claims.py).",
        ),
    )


# Populations as people score: a latent quality, cut at thresholds, to which card, dialogue and dimension add their own, so the
# scores of a card go together. EPITOME's mechanisms lie at the floor, ESConv's surveys at the ceiling, EmpathicComm's experts
# in the middle.
SHAPES: dict[str, tuple[float, float, float, float]] = {
    "floor": (1.0, 1.6, 2.2, 2.8),
    "low": (0.3, 1.0, 1.6, 2.2),
    "middle": (-1.2, -0.4, 0.4, 1.2),
    "high": (-2.2, -1.6, -1.0, -0.3),
    "ceiling": (-2.8, -2.2, -1.6, -1.0),
}
CARD, DIALOGUE, OWN = 0.6, 0.5, 0.6  # standard deviations of what a card, a dialogue and a score have of their own


def levels(
    shape: str, rng: np.random.Generator, cards: int, supporters: int, dimensions: int, shift: float | Floats = 0.0
) -> Floats:
    """Whole levels of 0–4, [cards, supporters, dimensions]: one dialogue a supporter and card. `shift` [supporters] moves the
    latent quality, so that supporters differ; without it they are exchangeable."""
    quality = (
        rng.normal(0, CARD, (cards, 1, 1))
        + rng.normal(0, DIALOGUE, (cards, supporters, 1))
        + rng.normal(0, OWN, (cards, supporters, dimensions))
        + np.broadcast_to(np.asarray(shift, dtype=np.float64), (supporters,))[:, None]
    )
    return (quality[..., None] > np.array(SHAPES[shape])).sum(axis=-1).astype(np.float64)


def judged(gold: Floats, rng: np.random.Generator, agreement: float = 0.6, bias: float = 0.0, sticky: float = 0.5) -> Floats:
    """A judge's verdicts on gold levels [cards, …]: right with this chance, else a neighbour, upwards more often by `bias`.
    Of errors, the share `sticky` is the same for a whole card: what a judge gets wrong of a card, it gets wrong again."""
    shape = (gold.shape[0], *[1] * (gold.ndim - 1))
    shared = rng.random(gold.shape) < sticky
    draw = np.where(shared, rng.random(shape), rng.random(gold.shape))
    step = np.where(np.where(shared, rng.random(shape), rng.random(gold.shape)) < 0.5 + bias, 1.0, -1.0)
    return np.clip(np.where(draw < agreement, gold, gold + step), 0, 4)


def systematic(chance: Floats, rng: np.random.Generator, alike: int = 1) -> Floats:
    """A systematic sample in random order of each column: 1 where drawn. So many blocks of columns are drawn in one order and
    from one start, as `suggest` draws from supporters."""
    rows, columns = chance.shape
    order = np.argsort(np.tile(rng.random((rows, columns // alike)), alike), axis=0)
    start = np.tile(rng.random(columns // alike), alike)
    passed = np.floor(np.cumsum(np.take_along_axis(chance, order, axis=0), axis=0) + start + 1e-9)
    picked = np.zeros(chance.shape)
    np.put_along_axis(picked, order, (np.diff(passed, axis=0, prepend=0) > 0).astype(float), axis=0)
    return picked
