"""What the product claims, and how often the claim is true in simulated studies: the rows of `tests.bench known-truth`."""

import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

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
            "Populations are whole levels of 0–4, clustered by card (tests/bench/populations.py).",
        ),
    )
