"""How well scores tell models apart (EmoHarbor section 4.1.3 and appendix E, table 2).

Ratings are [users, models]: what user u gave model m, NaN where there is nothing. σ²_between (9) is the variance of the models'
means around the mean of all ratings, σ²_within (10) the mean over models of the variance of their users' ratings:

- MSR (11) = σ²_between / σ²_within, and MAC (12) = σ²_between / (σ²_between + σ²_within) = MSR / (1 + MSR).
- `f_paper` (13) divides both by degrees of freedom, although σ²_between has not been multiplied by the number of users and
  σ²_within is a mean square already. `f` is the F of one-way analysis of variance. With U users everywhere
  f_paper = f · (U − 1) / U.
- The pairwise proportion (14) is over tests that the paper does not name; ours are those of every table of differences.

Where ratings are missing, a model's mean and variance are over its own users, and M(U − 1) in (13) is the number of ratings
less that of models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from core.errors import UserError
from core.files import read_placed
from core.grouping import group_by
from core.records import Language, Number, number, plain_name
from core.rubrics import Rubric
from core.statistics.bootstrap import LEVEL, POINTS, SMOOTHED, Floats, scale_levels
from core.tables import Cell, Estimate, Table
from data_prep.cards.sheets import SheetRow, read_sheet
from evalsuite.statistics import paired
from evalsuite.statistics.leaderboard import Contestant, stack
from evalsuite.statistics.summary import AVERAGE, Scorer, dimension_label

TEST = "paired sign-flip permutation test over users, two-sided"
CORRECTION = "Holm"
_LARGEST = 1e6  # F times its degrees of freedom, above which the noncentral distribution is not inverted
DISCRIMINATION = "Discrimination"  # heading of the report
_COLUMNS = ("users", "models", "MSR", "MAC", "F (paper)", "F", "p", "pairs", "told apart")
_NOTES = (
    "MSR: variance of the models' means by the mean variance among a model's users; MAC: MSR / (1 + MSR); both with [95 % "
    "interval by the noncentral F distribution] and n = ratings. F (paper): the paper's formula 13; F and p: one-way analysis "
    "of variance, which does not know that the same users rated all models. Chance alone lifts MSR: where models hardly "
    "differ, the interval lies below the figure.",
    f"Told apart: share of the pairs of models whose difference holds ({TEST}; {CORRECTION}'s correction over the pairs, "
    f"{paired.ALPHA:g}).",
)


@dataclass(frozen=True)
class Discrimination:
    """How well `ratings` of these models tell them apart; figures are None where `undefined` (name → reason) says why.

    `msr` and `mac` have the 95 % interval that the noncentral F distribution gives to what they estimate, and n = ratings.
    `df` are the degrees of freedom of `f` and `p` its tail probability. `pairs` are the differences of every two models (places
    in `models`), in the ratings' own unit, Holm's correction over all of them.
    """

    models: tuple[str, ...]
    users: int
    missing: int
    between: float | None
    within: float | None
    msr: Estimate
    mac: Estimate
    f_paper: float | None
    f: float | None
    df: tuple[int, int]
    p: float | None
    pairs: list[paired.Difference]
    undefined: dict[str, str] = field(default_factory=dict)

    @property
    def told_apart(self) -> int:
        """Pairs whose difference holds after correction."""
        return sum(bool(pair.holds) for pair in self.pairs)

    @property
    def proportion(self) -> float | None:
        """Formula (14): `told_apart` by the number of pairs; None where no pair could be tested."""
        return None if "pairwise" in self.undefined else self.told_apart / len(self.pairs)

    def figures(self) -> dict[str, Any]:
        """For JSON. `pairwise.p` maps "A vs B" to p after correction; `pairwise.pairs` has everything on every pair."""
        pairs = [
            {
                "a": self.models[pair.first],
                "b": self.models[pair.second],
                "difference": pair.estimate.mean,
                "low": pair.estimate.low,
                "high": pair.estimate.high,
                "n": pair.estimate.n,
                "p": pair.p,
                "p_corrected": pair.holm,
                "holds": pair.holds,
            }
            for pair in self.pairs
        ]
        return {
            "msr": self.msr.mean,
            "mac": self.mac.mean,
            "anova": {"f_paper": self.f_paper, "f": self.f, "p": self.p, "df": self.df},
            "pairwise": {
                "p": {f"{pair['a']} vs {pair['b']}": pair["p_corrected"] for pair in pairs},
                "test": TEST,
                "correction": CORRECTION,
                "alpha": paired.ALPHA,
                "told_apart": None if "pairwise" in self.undefined else self.told_apart,
                "proportion": self.proportion,
                "pairs": pairs,
            },
            "msr_interval": [self.msr.low, self.msr.high],
            "mac_interval": [self.mac.low, self.mac.high],
            "between": self.between,
            "within": self.within,
            "models": list(self.models),
            "users": self.users,
            "ratings": self.msr.n,
            "missing": self.missing,
            "undefined": self.undefined,
        }


@dataclass(frozen=True)
class RunDiscrimination:
    """One dimension (or `average`, over the dialogues that have all dimensions) of a run, as one scorer sees it, on 0–100."""

    language: Language
    scorer: Scorer
    dimension: str
    discrimination: Discrimination

    def row(self) -> dict[str, Any]:
        """For JSON: who and what, then `Discrimination.figures`."""
        who = {"language": self.language, "dimension": self.dimension} | self.scorer.record()
        return who | self.discrimination.figures()


def discriminate(ratings: Floats, models: Sequence[str], levels: Floats | None = None) -> Discrimination:
    """MSR, MAC, both F and the pairwise tests of ratings [users, models]; rows without any rating are passed over.
    `levels` of their scale are five from the lowest rating to the highest where it is not known."""
    from scipy import stats

    ratings = ratings[~np.isnan(ratings).all(axis=1)]
    present = ~np.isnan(ratings)
    counts = present.sum(axis=0)
    users, total = len(ratings), int(counts.sum())
    df = max(len(models) - 1, 0), max(total - len(models), 0)
    reason, between, within, f = _defined(models, users, counts), None, None, None
    if reason is None:
        means = np.nansum(ratings, axis=0) / counts
        between = float(((means - np.nansum(ratings) / total) ** 2).mean())
        gaps = ratings - means
        # What differs by rounding alone is equal: the average of the same ten scores is.
        gaps[np.abs(gaps) <= 1e-12 * np.abs(means)] = 0
        squares = np.nansum(gaps**2, axis=0)
        within = float((squares / (counts - 1)).mean())
        if within == 0:
            reason = "no model's scores differ between its users: the divisor is 0"
        else:
            shifts = counts * (means - np.nansum(ratings) / total) ** 2
            f = float((shifts.sum() / df[0]) / (squares.sum() / df[1]))
    undefined = {} if reason is None else dict.fromkeys(("msr", "mac", "anova"), reason)
    msr = between / within if between is not None and within else None
    low, high = (None, None) if f is None else _separation_bounds(f, df, total)
    couples = list(combinations(range(len(models)), 2)) if users > 1 else []
    if levels is None:
        levels = scale_levels(float(np.nanmin(ratings)), float(np.nanmax(ratings))) if total else POINTS
    pairs = paired.differences(
        np.nan_to_num(ratings)[:, :, None], present[:, :, None].astype(float), couples, average_only=True, levels=levels
    )
    if not any(pair.p is not None for pair in pairs):
        undefined["pairwise"] = reason or "no two models have a user in common"
    return Discrimination(
        models=tuple(models),
        users=users,
        missing=ratings.size - total,
        between=between,
        within=within,
        msr=Estimate(msr, low, high, total),
        mac=Estimate(_share(msr), _share(low), _share(high), total),
        f_paper=None if msr is None else msr * df[1] / df[0],
        f=f,
        df=df,
        p=None if f is None else float(stats.f.sf(f, *df)),
        pairs=pairs,
        undefined=undefined,
    )


def _share(msr: float | None) -> float | None:
    return None if msr is None else msr / (1 + msr)


def _defined(models: Sequence[str], users: int, counts: Floats) -> str | None:
    """Why σ²_between and σ²_within are not defined, None where they are."""
    if len(models) < 2:
        return f"{len(models) or 'no'} model{'s' * (not models)}: there is nothing to tell apart"
    if users < 2:
        return f"{users or 'no'} user{'s' * (not users)}: how much users differ cannot be told"
    thin = [f"{name} ({count})" for name, count in zip(models, counts, strict=True) if count < 2]
    return f"too few scores to have a variance: {', '.join(thin)}" if thin else None


def _separation_bounds(f: float, df: tuple[int, int], total: int) -> tuple[float | None, float | None]:
    """The interval of MSR at `LEVEL`: F is noncentral with λ = ratings · MSR where errors are independent and normal.

    No bootstrap over users: resampled means spread more than means, so that models which are all alike would get an interval
    that leaves out 0. (None, None) where F is too large for the distribution to be inverted.
    """
    if f * df[0] > _LARGEST:
        return None, None
    tail = (1 - LEVEL) / 2
    low, high = (_noncentrality(f, df, probability) / total for probability in (1 - tail, tail))
    return low, high


def _noncentrality(f: float, df: tuple[int, int], probability: float) -> float:
    """The λ with which F is at most `f` with this probability; 0 where it is not even without any λ."""
    from scipy import optimize, stats

    def excess(noncentrality: float) -> float:
        return float(stats.ncf.cdf(f, *df, noncentrality)) - probability

    if stats.f.cdf(f, *df) <= probability:
        return 0.0
    high = 1.0 + 2 * f * df[0]
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high))


# --- what is given ---------------------------------------------------------------------------------------------------------


def read_ratings(path: Path) -> tuple[Floats, list[str]]:
    """Ratings [users, models] and the models' names from a sheet (or JSON lines) of user, model and score; both sorted by name.

    An empty score is a verdict that could not be read: a missing rating. Raises `UserError` with file, line and column, also
    for a user and model that come twice (average trials first: which of them counts is not for us to guess).
    """
    rows = [*_lines(path)] if path.suffix.lower() == ".jsonl" else read_sheet(path, "scores", ("user", "model", "score"))
    if not rows:
        raise UserError(f"{path}: no scores below the header")
    scores: dict[tuple[str, str], float] = {}
    for row in rows:
        user, model, text = (row.cells[name].strip() for name in ("user", "model", "score"))
        for name, cell in (("user", user), ("model", model)):
            if not cell:
                raise row.fault(name, "empty")
            try:
                plain_name(cell)
            except ValueError as error:
                raise row.fault(name, str(error)) from None
        if (user, model) in scores:
            raise row.fault("score", f"a second score of user {user!r} for model {model!r}: average repeats first")
        try:
            score = number(text) if text else math.nan
        except ValueError:
            problem = f"{text[:40]!r} is not a finite number; leave the cell empty for an unreadable verdict"
            raise row.fault("score", problem) from None
        scores[user, model] = score
    users, models = (sorted({key[side] for key in scores}) for side in (0, 1))
    ratings = np.array([[scores.get((user, model), math.nan) for model in models] for user in users])
    return ratings, models


class _Rating(BaseModel):
    model_config = ConfigDict(extra="forbid")
    user: str
    model: str
    score: Number | None


def _lines(path: Path) -> Iterator[SheetRow]:
    """JSON lines as a sheet has them; null is an empty cell."""
    for where, rating in read_placed(path, _Rating, "scores"):
        score = "" if rating.score is None else repr(rating.score)
        yield SheetRow(where, {"user": rating.user, "model": rating.model, "score": score})


def of_run(contestants: Sequence[Contestant], rubric: Rubric) -> list[RunDiscrimination]:
    """Every language, scorer and dimension of a run, and the average: supporters are the models, cards or profiles the users.

    A user's rating of a supporter is the mean of its dialogues with it. `contestants` are counted from verdicts on whole
    dialogues.
    """
    rows = []
    for (language, scorer), rivals in group_by(contestants, lambda one: (one.language, one.scorer)).items():
        sums, counts = stack(rivals)
        ratings = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        columns = {name: ratings[:, :, place] for place, name in enumerate(rubric.dimensions)}
        columns |= {AVERAGE: ratings.mean(axis=2)} if len(columns) > 1 else {}
        names = [one.supporter for one in rivals]
        rows += [
            RunDiscrimination(language, scorer, name, discriminate(matrix, names, POINTS)) for name, matrix in columns.items()
        ]
    return rows


# --- tables ----------------------------------------------------------------------------------------------------------------


def tables(discrimination: Discrimination) -> Iterator[Table]:
    """Of one set of ratings: its figures, and every pair."""
    yield _figures_table("discrimination", "Discrimination", ("scores",), [(("given",), discrimination)])
    names = discrimination.models
    if rows := tuple((names[pair.first], names[pair.second], *paired.cells(pair)) for pair in discrimination.pairs):
        note = f"Difference in the scores' own unit, [{SMOOTHED} over users], n = users who rated both. {TEST}."
        columns = ("model", "against", *paired.COLUMNS)
        yield Table("discrimination-pairs", "Pairs of models", columns, rows, (note,), DISCRIMINATION)


def run_tables(rows_of_run: Sequence[RunDiscrimination], rubric: Rubric) -> Iterator[Table]:
    """Of a run: one table a language. (Its pairs are in the leaderboard's table of differences and in the JSON.)"""
    for language, lines in group_by(rows_of_run, lambda row: row.language).items():
        several = len({row.scorer for row in lines}) > 1
        heads = (*["judged by"] * several, "dimension")
        names = [(*[row.scorer.name] * several, dimension_label(rubric, row.dimension)) for row in lines]
        parts = list(zip(names, (row.discrimination for row in lines), strict=True))
        yield _figures_table(f"discrimination-{language}", f"Discrimination, {language}", heads, parts)


def _figures_table(
    key: str, title: str, heads: tuple[str, ...], lines: Sequence[tuple[tuple[str, ...], Discrimination]]
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    reasons: dict[str, list[str]] = {}
    for names, part in lines:
        p = None if part.p is None else "< 0.0001" if part.p < 1e-4 else f"{part.p:.4f}"
        tests = (part.f_paper, part.f, p, len(part.pairs), part.proportion)
        rows.append((*names, part.users, len(part.models), part.msr, part.mac, *tests))
        for reason in dict.fromkeys(part.undefined.values()):
            what = ", ".join(name for name, why in part.undefined.items() if why == reason)
            reasons.setdefault(f"{what} undefined: {reason}", []).append(" ".join(names))
    missing = sum(part.missing for _, part in lines)
    notes = (
        *_NOTES,
        *([f"Missing ratings: {missing}; a model's mean and variance are over its own users."] if missing else []),
        *(f"{reason} ({', '.join(who)})." for reason, who in reasons.items()),
    )
    return Table(key, title, (*heads, *_COLUMNS), tuple(rows), notes, DISCRIMINATION)
