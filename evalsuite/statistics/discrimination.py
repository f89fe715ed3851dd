"""How well scores distinguish models (EmoHarbor section 4.1.3 and appendix E, table 2).

Ratings are [users, models]: user u's rating of model m, NaN if there is none. σ²_between (9) is the variance of the models'
means around the mean of all ratings, σ²_within (10) the mean over models of the variance of their users' ratings:

- MSR (11) = σ²_between / σ²_within, and MAC (12) = σ²_between / (σ²_between + σ²_within) = MSR / (1 + MSR).
- `f_paper` (13) divides both by degrees of freedom, although σ²_between has not been multiplied by the number of users and
  σ²_within is already a mean square. `f` is the F of one-way analysis of variance. With U users for every model,
  f_paper = f · (U − 1) / U.
- `f_blocked` takes into account that the same users rated all models: it divides σ²_between by its expectation under chance,
  the mean error variance over users of the models' distances from the overall mean. Without missing ratings it is the F of
  repeated measures. Its p uses Box's degrees of freedom (1954), since models may differ in spread.
- The paper does not name the tests of the pairwise proportion (14); ours are those of every table of differences.

The intervals are of MSR and MAC among all users like these, without what chance adds to σ²_between. Users are left out in turn
(`components.root_interval`): an interval from the noncentral F, which treats the ratings of one user as independent, covered
the truth in 61 to 85 % of simulated studies (docs/measurements.md).

Where ratings are missing, a model's mean and variance are over its own users, and M(U − 1) in (13) is the number of ratings
minus that of models."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import Annotator, Language, Number, System
from core.rows import RowModel, read_table
from core.rubrics import Rubric
from core.statistics.accuracy import ratio
from core.statistics.bootstrap import SMOOTHED, Floats, scale_levels
from core.statistics.inference import ALPHA, TEST, contributions
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.components import FEWEST, GROUPS, root_interval
from evalsuite.statistics.contestants import Contestant, stack
from evalsuite.statistics.summary import AVERAGE, Scorer, dimension_label

CORRECTION = "Holm"
DISCRIMINATION = "Discrimination"  # heading of the report
_NOTES = (
    "MSR: variance of the models' means over the mean variance among a model's users; MAC: MSR / (1 + MSR); n = ratings. Chance"
    " alone raises both; the [95 % interval: jackknife over users on the scale of the cube root] is of their values among all "
    "users like these, without chance: where models hardly differ, it lies below the figure. F (paper): formula 13 of the "
    "paper; F: one-way analysis of variance; F (blocked) and its p: repeated measures, since the same users rated all models.",
    f"Significant: share of the pairs of models with a significant difference ({TEST}, here users; {CORRECTION}'s correction "
    f"over the pairs, {ALPHA:g}).",
)


@dataclass(frozen=True)
class Discrimination:
    """How well ratings distinguish these models; figures are None where `undefined` (name → reason) says why.

    `n` of `msr` and `mac` counts ratings. `df` are the degrees of freedom of `f`, and `p` is the tail probability of
    `f_blocked` by `df_blocked`. `pairs` are the differences between every two models (places in `models`), in the ratings' own
    unit."""

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
    f_blocked: float | None
    df_blocked: tuple[float, float] | None
    p: float | None
    pairs: list[paired.Difference]
    undefined: dict[str, str] = field(default_factory=dict)

    @property
    def told_apart(self) -> int:
        """Pairs whose difference is significant after correction."""
        return sum(bool(pair.holds) for pair in self.pairs)

    @property
    def proportion(self) -> float | None:
        """Formula (14): `told_apart` over the number of pairs; None if no pair could be tested."""
        return None if "pairwise" in self.undefined else self.told_apart / len(self.pairs)

    def figures(self) -> dict[str, Any]:
        """A JSON object; `pairwise.p` maps "A vs B" to p after correction, `pairwise.pairs` has all figures of every pair."""
        pairs = [
            {"a": self.models[pair.first], "b": self.models[pair.second], "difference": pair.estimate.mean}
            | {name: getattr(pair.estimate, name) for name in ("low", "high", "n")}
            | {"p": pair.p, "p_corrected": pair.holm, "holds": pair.holds}
            for pair in self.pairs
        ]
        p_values = {f"{pair['a']} vs {pair['b']}": pair["p_corrected"] for pair in pairs}
        pairwise = {"p": p_values, "test": TEST, "correction": CORRECTION, "alpha": ALPHA}
        pairwise["told_apart"] = None if "pairwise" in self.undefined else self.told_apart
        return {
            **{"msr": self.msr.mean, "mac": self.mac.mean},
            "anova": {name: getattr(self, name) for name in ("f_paper", "f", "df", "f_blocked", "df_blocked", "p")},
            "pairwise": pairwise | {"proportion": self.proportion, "pairs": pairs},
            **{"msr_interval": [self.msr.low, self.msr.high], "mac_interval": [self.mac.low, self.mac.high]},
            **{"between": self.between, "within": self.within, "models": list(self.models), "users": self.users},
            **{"ratings": self.msr.n, "missing": self.missing, "undefined": self.undefined},
        }


OfRun = dict[tuple[Language, Scorer, str], Discrimination]  # by dimension, or `average`


class _Rating(RowModel):
    user: Annotator
    model: System
    score: Number | None


def read_ratings(path: Path, scale: tuple[float, float] | None = None) -> tuple[Floats, list[str]]:
    """Ratings [users, models] and the models' names from a CSV file (or JSON lines) of user, model and score; sorted by name.
    An empty score is a missing rating. Raises `UserError` with file, line and column, also for a second score of a user and
    model (trials must be averaged first) and for a score outside the `scale`."""
    if scale and not scale[0] < scale[1]:
        raise UserError(f"scale ({scale[0]:g}, {scale[1]:g}): give the lowest score first, then the highest")
    scores: dict[tuple[str, str], float] = {}

    def each(where: str, row: _Rating) -> None:
        if (row.user, row.model) in scores:
            raise UserError(f"{where}: score: user {row.user!r} has two for model {row.model!r}: average repeats first")
        if scale and row.score is not None and not scale[0] <= row.score <= scale[1]:
            raise UserError(f"{where}: score: {row.score:g} is outside the scale of {scale[0]:g} to {scale[1]:g}")
        scores[row.user, row.model] = nan if row.score is None else row.score

    read_table(path, _Rating, "scores", each)
    users, models = (sorted({key[side] for key in scores}) for side in (0, 1))
    return np.array([[scores.get((user, model), nan) for model in models] for user in users]), models


def discriminate(ratings: Floats, models: Sequence[str], scale: tuple[float, float] | None = None) -> Discrimination:
    """MSR, MAC, every F and the pairwise tests of ratings [users, models]; rows without a rating are skipped.

    Without a `scale` (lowest and highest score) differences have no interval, since intervals allow for ratings that nobody has
    seen; the tests then use the lowest and highest rating."""
    from scipy import special

    ratings = ratings[~np.isnan(ratings).all(axis=1)]
    present = ~np.isnan(ratings)
    counts = present.sum(axis=0)
    users, total = len(ratings), int(counts.sum())
    df = max(len(models) - 1, 0), max(total - len(models), 0)
    reason = _defined(models, users, counts)
    between = within = f = msr = low = high = f_blocked = df_blocked = p = None
    if reason is None:
        between, within, errors = _variances(ratings)
        if within == 0:
            reason = "no model's scores differ between its users: the divisor is 0"
        else:
            chance = float(np.trace(errors))
            msr, (low, high) = between / within, _msr_bounds(ratings)
            means = np.nansum(ratings, axis=0) / counts
            shifts = (counts * (means - np.nansum(ratings) / total) ** 2).sum()
            f = float((shifts / df[0]) / (np.nansum((ratings - means) ** 2) / df[1]))
            if chance > 1e-12 * within:
                free = chance**2 / float((errors**2).sum())  # models - 1 if all distances have the same spread
                f_blocked, df_blocked = between * len(models) / chance, (free, free * (users - 1))
                p = float(special.fdtrc(*df_blocked, f_blocked))
    undefined = {} if reason is None else dict.fromkeys(("msr", "mac", "anova"), reason)
    couples = list(combinations(range(len(models)), 2)) if users > 1 else []
    spread = np.ptp(ratings[present]) if total else 0
    levels = scale_levels(*scale) if scale else scale_levels(0, float(spread) or 1.0)  # only differences matter
    stacked = np.nan_to_num(ratings)[:, :, None], present[:, :, None].astype(float)
    pairs = paired.differences(*stacked, couples, average_only=True, levels=levels)
    if scale is None:
        pairs = [replace(pair, estimate=Estimate(pair.estimate.mean, None, None, pair.estimate.n)) for pair in pairs]
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
        f_blocked=f_blocked,
        df_blocked=df_blocked,
        p=p,
        pairs=pairs,
        undefined=undefined,
    )


def _share(msr: float | None) -> float | None:
    return None if msr is None else msr / (1 + msr)


def _defined(models: Sequence[str], users: int, counts: Floats) -> str | None:
    """Why σ²_between and σ²_within are undefined; None if they are defined."""
    if len(models) < 2:
        return f"{len(models) or 'no'} model{'s' * (not models)}: there is nothing to compare"
    if users < 2:
        return f"{users or 'no'} user{'s' * (not users)}: the spread between users is unknown"
    thin = [f"{name} ({count})" for name, count in zip(models, counts, strict=True) if count < 2]
    return f"too few scores to have a variance: {', '.join(thin)}" if thin else None


def _variances(ratings: Floats) -> tuple[float, float, Floats]:
    """σ²_between, σ²_within, and the error covariance [models, models] of the models' distances from the overall mean; chance
    adds the mean of its diagonal to σ²_between."""
    present = ~np.isnan(ratings)
    counts, sums = present.sum(axis=0), np.nan_to_num(ratings)
    means, parts, _ = contributions(sums, present.astype(np.float64))
    grand, own, users = contributions(sums.sum(axis=1), present.sum(axis=1).astype(np.float64))
    gaps = ratings - means
    # Differences within rounding count as none: averages of the same scores may differ in the last digit.
    gaps[np.abs(gaps) <= 1e-12 * np.abs(means)] = 0
    within = float((np.nansum(gaps**2, axis=0) / (counts - 1)).mean())
    distances = parts - own[:, None]
    return float(((means - grand) ** 2).mean()), within, int(users) / (int(users) - 1) * distances.T @ distances


def _msr_bounds(ratings: Floats) -> tuple[float, float] | tuple[None, None]:
    """The interval of MSR among all users like these; (None, None) for fewer than `FEWEST` users, and if MSR is undefined when
    a group of them is left out."""
    groups = np.arange(len(ratings)) % GROUPS
    ratios = []
    for kept in (ratings, *(ratings[groups != group] for group in range(min(GROUPS, len(ratings))))):
        if len(ratings) < FEWEST or ((~np.isnan(kept)).sum(axis=0) < 2).any() or not (parts := _variances(kept))[1]:
            return None, None
        between, within, errors = parts
        ratios.append((between - np.trace(errors) / len(errors)) / within)
    low, high = root_interval(np.array(ratios[0]), np.array(ratios[1:]))
    return max(float(low), 0.0), max(float(high), 0.0)


def of_run(contestants: Sequence[Contestant], rubric: Rubric) -> OfRun:
    """Every language, scorer and dimension of a run, and the average: supporters are the models, cards or profiles the users.
    A user's rating (0–100) of a supporter is the mean of their dialogues. `contestants` are counted from verdicts on whole
    dialogues."""
    rows: OfRun = {}
    for (language, scorer), rivals in group_by(contestants, lambda c: (c.language, c.scorer)).items():
        sums, counts = stack(rivals)
        ratings = ratio(sums, counts)
        columns = {name: ratings[:, :, place] for place, name in enumerate(rubric.dimensions)}
        columns |= {AVERAGE: paired.average_of(ratings, rivals[0].design.weights)} if len(columns) > 1 else {}
        names = [contestant.supporter for contestant in rivals]
        rows |= {(language, scorer, name): discriminate(matrix, names, (0, 100)) for name, matrix in columns.items()}
    return rows


# --- tables ----------------------------------------------------------------------------------------------------------------


def tables(discrimination: Discrimination) -> Iterator[Table]:
    """The figures of one set of ratings, and every pair of models."""
    yield _figures_table("discrimination", "Discrimination", [({"scores": "given"}, discrimination)])
    names = discrimination.models
    rows = [{"model": names[p.first], "against": names[p.second], **paired.by_column(p)} for p in discrimination.pairs]
    if rows:
        bounded = any(pair.estimate.low is not None for pair in discrimination.pairs)
        interval = f"[{SMOOTHED} over users]" if bounded else "without an interval (their scale is not given)"
        note = f"Difference in the scores' own unit, {interval}, n = users who rated both. p: {TEST}."
        yield Table.of("discrimination-pairs", "Pairs of models", rows, [note], DISCRIMINATION)


def run_tables(of_run: OfRun, rubric: Rubric) -> Iterator[Table]:
    """One table per language of a run; its pairs, on the average, are in the leaderboard's table of differences."""
    for language, rows in group_by(of_run.items(), lambda row: row[0][0]).items():
        several = len({scorer for (_, scorer, _), _ in rows}) > 1
        parts = [
            ({**scorer.column(several), "dimension": dimension_label(rubric, name)}, part) for (_, scorer, name), part in rows
        ]
        yield _figures_table(f"discrimination-{language}", f"Discrimination, {language}", parts)


def _figures_table(key: str, title: str, parts: Sequence[tuple[dict[str, Cell], Discrimination]]) -> Table:
    rows: list[dict[str, Cell]] = []
    reasons: dict[str, list[str]] = {}
    for names, part in parts:
        p = None if part.p is None else "< 0.0001" if part.p < 1e-4 else f"{part.p:.4f}"
        rows.append({**names, "users": part.users, "models": len(part.models), "MSR": part.msr, "MAC": part.mac})
        rows[-1] |= {"F (paper)": part.f_paper, "F": part.f, "F (blocked)": part.f_blocked, "p": p}
        rows[-1] |= {"pairs": len(part.pairs), "significant": part.proportion}
        for reason in dict.fromkeys(part.undefined.values()):
            figures = ", ".join(name for name, why in part.undefined.items() if why == reason)
            reasons.setdefault(f"{figures} undefined: {reason}", []).append(" ".join(map(str, names.values())))
    notes = [*_NOTES]
    if missing := sum(part.missing for _, part in parts):
        notes.append(f"Missing ratings: {missing}; a model's mean and variance are over its own users.")
    notes += [f"{reason} ({', '.join(names)})." for reason, names in reasons.items()]
    return Table.of(key, title, rows, notes, DISCRIMINATION)
