"""FEEL's ensemble of judges (sections 3.3 and 4.1): equations 1 to 3, how weights are fitted, kept and applied, and tables 1,
2 and 4, which compare it with its judges.

- Equation 1: a judge's score of a dialogue on an aspect is the mean over its rounds (`repeat`) and turns. Unreadable rounds
  are left out; without any readable round, the judge has no score of the dialogue.
- Equation 2: a judge's weight on an aspect is its Spearman correlation with people's mean scores, divided by the sum over
  judges. Our rule, as the paper has none: a correlation that is negative or undefined (equal scores, fewer than two
  dialogues) counts 0, since such a judge adds nothing or misleads; if no judge is above 0, all have equal weights (`even` in
  the tables).
- Equation 3: the ensemble's score is the weighted mean. A dialogue without a score by a judge that has weight gets none.
- `paper` fits and reports on the same dialogues, `native` fits on one part and reports on the other.
- Equation 4 is Spearman's coefficient without ties; ours is computed on mean ranks, which is equal without ties. Equation 5 is
  Kendall's tau-b.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from core.errors import UserError, near
from core.files import check_unique, digest
from core.grouping import comparable, group_by, means_by
from core.records import HumanScore, Judgement, Language, Name
from core.settings import Settings
from core.statistics.accuracy import spearman
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.correlation import Coefficient, figures
from evalsuite.statistics.summary import scorer_of

ENSEMBLE = "feel"  # the ensemble's name as a judge
Mode = Literal["paper", "native"]


class Aspect(NamedTuple):
    language: Language
    dimension: str


Scores = dict[Aspect, dict[str, float]]  # aspect → dialogue → score
Panel = dict[str, Scores]  # judge → its scores


# --- the equations ----------------------------------------------------------------------------------------------------------


def shares(correlations: Mapping[str, float | None]) -> dict[str, float]:
    """Equation 2, with the rule above: judge → weight, 0 to 1 with sum 1, from judges' correlations (None: undefined)."""
    positive = {judge: max(correlation or 0.0, 0.0) for judge, correlation in correlations.items()}
    total = math.fsum(positive.values())
    if total == 0:
        return dict.fromkeys(correlations, 1 / len(correlations))
    return {judge: value / total for judge, value in positive.items()}


def combined(weights: Mapping[str, float], scores: Mapping[str, float | None]) -> float | None:
    """Equation 3: the weighted mean of one dialogue's scores on one aspect; None if a judge with weight has none."""
    parts = [(weight, scores.get(judge)) for judge, weight in weights.items() if weight]
    products = [weight * score for weight, score in parts if score is not None]
    return comparable(math.fsum(products)) if len(products) == len(parts) else None


def panel_of(judgements: Iterable[Judgement]) -> Panel:
    """Equation 1: every judge's mean score per dialogue and aspect. A judge's name is `Scorer.name`: model, method, condition.
    A judge without any readable verdict is kept, without scores. Raises `UserError` for judgements on several rubrics."""
    by_judge = group_by(judgements, lambda judgement: scorer_of(judgement).name)
    rubrics = {judgement.rubric for rounds in by_judge.values() for judgement in rounds}
    if len(rubrics) > 1:
        raise UserError(f"judgements on several rubrics ({', '.join(sorted(rubrics))}): give those on a single one")
    return {
        judge: _scores(((Aspect(j.language, j.dimension), j.dialogue_id), j.value) for j in rounds if j.value is not None)
        for judge, rounds in by_judge.items()
    }


def people_of(scores: Iterable[HumanScore], aspects: Mapping[str, str]) -> Scores:
    """People's mean score per dialogue and aspect; annotators' turns are averaged first.

    `aspects` maps a dimension that people scored to the judges' aspect; other dimensions are left out. If it is empty, names
    stay as they are. Raises `UserError` if several rubrics or dimensions map to one aspect, and for a dimension that nobody
    scored.
    """
    ratings = list(scores)
    scored = {score.dimension for score in ratings}
    for name in aspects:
        if name not in scored:
            raise UserError(f"--map {name}={aspects[name]}: people did not score {name!r}: {near(name, scored)}")
    kept = [score for score in ratings if not aspects or score.dimension in aspects]
    by_aspect = group_by(kept, lambda score: Aspect(score.language, aspects.get(score.dimension, score.dimension)))
    for aspect, of_aspect in by_aspect.items():
        sources = sorted({f"{score.rubric}/{score.dimension}" for score in of_aspect})
        if len(sources) > 1:
            doubled = f"{' and '.join(sources)} both map to {aspect.dimension}"
            raise UserError(f"human scores: {doubled}; choose with --map, or give scores on one rubric")
    turns = [((aspect, s.dialogue_id, s.annotator), s.value) for aspect, of_aspect in by_aspect.items() for s in of_aspect]
    return _scores(((aspect, dialogue), mean) for (aspect, dialogue, _), mean in means_by(turns).items())


def _scores(pairs: Iterable[tuple[tuple[Aspect, str], float]]) -> Scores:
    scores: Scores = {}
    for (aspect, dialogue), mean in means_by(pairs).items():
        scores.setdefault(aspect, {})[dialogue] = comparable(mean)
    return scores


# --- weights ----------------------------------------------------------------------------------------------------------------


class JudgeWeight(Settings):
    """One judge on one aspect: Spearman's correlation (None: undefined) over `n` dialogues, and the resulting weight."""

    language: Language
    dimension: Name
    judge: Name
    correlation: Annotated[float, Field(ge=-1, le=1)] | None
    n: Annotated[int, Field(ge=0)]
    weight: Annotated[float, Field(ge=0, le=1)]


class Weights(Settings):
    """The weights file of `paper feel ensemble`. `data`: hash of the scores used for the fit; `fitted_on`: their dialogues."""

    rubric: str
    mode: Mode
    data: str
    seed: int | None
    weights: Annotated[list[JudgeWeight], Field(min_length=1)]
    fitted_on: list[str]

    @property
    def id(self) -> str:
        """A hash of the weights: part of the condition of every score made with them."""
        return digest([weight.model_dump(mode="json") for weight in self.weights], 12)

    def by_aspect(self) -> dict[Aspect, dict[str, float]]:
        """Aspect → judge → weight. Raises `UserError` for an entry given twice and for weights that do not sum to 1."""
        check_unique("weights", (f"{entry.language}/{entry.dimension}/{entry.judge}" for entry in self.weights), "entries")
        by_aspect = group_by(self.weights, lambda entry: Aspect(entry.language, entry.dimension))
        for aspect, entries in by_aspect.items():
            if not math.isclose(total := math.fsum(entry.weight for entry in entries), 1, abs_tol=1e-6):
                raise UserError(f"weights: those of {'/'.join(aspect)} sum to {total:g}, not to 1")
        return {aspect: {entry.judge: entry.weight for entry in entries} for aspect, entries in by_aspect.items()}


def fit(panel: Panel, people: Scores, dialogues: Iterable[str], rubric: str, mode: Mode, seed: int | None = None) -> Weights:
    """Weights of every aspect that both judges and people scored, from the given dialogues; the order of judges has no effect.
    A judge's correlation is over the dialogues that it and people scored. Raises `UserError` if there are none."""
    chosen = set(dialogues)
    weights: list[JudgeWeight] = []
    used: list[list[Any]] = []
    judged = dict.fromkeys(aspect for aspects in panel.values() for aspect in aspects)
    for aspect in (aspect for aspect in judged if aspect in people):
        golden = {dialogue: value for dialogue, value in people[aspect].items() if dialogue in chosen}
        correlations: dict[str, tuple[float | None, int]] = {}
        for judge in sorted(panel):
            verdicts = panel[judge].get(aspect, {})
            ids = sorted(set(verdicts) & set(golden))
            correlations[judge] = spearman([verdicts[i] for i in ids], [golden[i] for i in ids]), len(ids)
            used += [[*aspect, judge, i, verdicts[i], golden[i]] for i in ids]
        weight = shares({judge: correlation for judge, (correlation, _) in correlations.items()})
        for judge, (correlation, n) in correlations.items():
            weights.append(JudgeWeight(**aspect._asdict(), judge=judge, correlation=correlation, n=n, weight=weight[judge]))
    if not used:
        raise UserError("no dialogue has a judge's and a human score on the same aspect: map people's names with --map")
    fitted_on = sorted({row[3] for row in used})
    return Weights(rubric=rubric, mode=mode, data=digest(used), seed=seed, weights=weights, fitted_on=fitted_on)


def part(groups: Mapping[str, str], share: float, seed: int) -> set[str]:
    """The dialogues to fit on: about `share` (0–1) of them, drawn by whole groups. `groups`: dialogue → its group. Raises
    `UserError` if one part would be empty."""
    members = group_by(sorted(groups), groups.__getitem__)
    names = sorted(members)
    random.Random(f"{seed}/feel fit").shuffle(names)
    chosen: set[str] = set()
    for name in names:
        if len(chosen) + len(members[name]) / 2 <= share * len(groups):
            chosen |= set(members[name])
    if not chosen or len(chosen) == len(groups):
        raise UserError(
            f"{len(groups)} dialogues in {len(names)} groups cannot be split into a part to fit on and a part to report on; "
            "use more dialogues"
        )
    return chosen


# --- new dialogues ----------------------------------------------------------------------------------------------------------


def ensemble_scores(panel: Panel, aspect: Aspect, weights: Mapping[str, float]) -> dict[str, float]:
    """The ensemble's score on an aspect of every dialogue that has one."""
    verdicts = {judge: panel.get(judge, {}).get(aspect, {}) for judge in weights}
    dialogues = set[str]().union(*verdicts.values())
    means = {i: combined(weights, {judge: values.get(i) for judge, values in verdicts.items()}) for i in dialogues}
    return {dialogue: value for dialogue, value in means.items() if value is not None}


def ensembles(weights: Weights) -> dict[str, dict[Aspect, dict[str, float]]]:
    """The ensemble's name as a judge → aspect → judge → weight; also for those without one judge (table 4), which have equation
    2 over the others."""
    sets, judges = {ENSEMBLE: weights.by_aspect()}, sorted({entry.judge for entry in weights.weights})
    for judge in judges if len(judges) > 1 else ():
        others = [entry for entry in weights.weights if entry.judge != judge]
        by_aspect = group_by(others, lambda entry: Aspect(entry.language, entry.dimension))
        sets[f"{ENSEMBLE} without {judge}"] = {
            aspect: shares({entry.judge: entry.correlation for entry in entries}) for aspect, entries in by_aspect.items()
        }
    return sets


def apply(weights: Weights, judgements: Sequence[Judgement]) -> Iterator[Judgement]:
    """The ensemble's scores of all dialogues as judgements, aspect by aspect, and those of the ensembles without one judge,
    named `feel without JUDGE`; None with the failure if a judge is missing. `judgements` are on the weights' rubric. Raises
    `UserError` for a judge with weight but no verdict here."""
    panel, sets = panel_of(judgements), ensembles(weights)
    languages = {j.language for j in judgements}
    needed = {entry.judge for entry in weights.weights if entry.weight and entry.language in languages}
    if unknown := sorted(needed - set(panel)):
        raise UserError(f"no verdict by judge {unknown[0]!r}, which has weight: {near(unknown[0], panel)}")
    dialogues = dict.fromkeys((j.dialogue_id, j.language) for j in judgements)
    condition = {"mode": weights.mode, "weights": weights.id}
    for name, by_aspect in sets.items():
        scores = {aspect: ensemble_scores(panel, aspect, by_judge) for aspect, by_judge in by_aspect.items()}
        for dialogue, language in dialogues:
            for aspect in (a for a in by_aspect if a.language == language):
                value = scores[aspect].get(dialogue)
                own_condition = condition | ({} if value is not None else {"failure": "judge_missing"})
                fields = {"dialogue_id": dialogue, "judge": name, "rubric": weights.rubric, "method": "ensemble"}
                yield Judgement(**fields, **aspect._asdict(), value=value, condition=own_condition)


# --- tables -----------------------------------------------------------------------------------------------------------------

FEEL = "FEEL"  # heading of the tables
EVEN = "mean of the judges"
FITTED: dict[Mode, str] = {
    "paper": "As in the paper, weights are fitted on the same dialogues that are reported on, which flatters the ensemble.",
    "native": "On dialogues that were not used to fit the weights.",
}
NOTE = "From -1 to 1, [95 % percentile bootstrap over dialogues], n = dialogues that people and all judges scored."


@dataclass(frozen=True)
class Row:
    """One scorer's correlation with people on one aspect: coefficients (−1 to 1) with 95 % bootstrap intervals over dialogues.

    All rows of an aspect and mode are over the same dialogues: those scored by every judge that has any score on the aspect.
    """

    mode: Mode
    language: Language
    dimension: str
    scorer: str
    spearman: Estimate
    kendall: Estimate


def report(panel: Panel, people: Scores, weights: Weights, dialogues: Iterable[str]) -> list[Row]:
    """Every judge, their unweighted mean, the ensemble, and with three or more judges the ensembles without one (table 4)."""
    chosen, rows = set(dialogues), []
    judges, sets = sorted(panel), ensembles(weights)
    sets = sets if len(judges) > 2 else {ENSEMBLE: sets[ENSEMBLE]}  # without one of two, the other is alone
    for aspect in sets[ENSEMBLE]:
        scoring = [judge for judge in judges if panel[judge].get(aspect)]
        shared = chosen & {i for i in people[aspect] if all(i in panel[judge][aspect] for judge in scoring)}
        contestants = {judge: panel[judge].get(aspect, {}) for judge in judges}
        contestants[EVEN] = ensemble_scores(panel, aspect, dict.fromkeys(scoring, 1 / len(scoring)))
        contestants |= {name: ensemble_scores(panel, aspect, of_set[aspect]) for name, of_set in sets.items()}
        for name, scores in contestants.items():
            coefficients = correlated(scores, people[aspect], sorted(shared & set(scores)))
            rows.append(Row(weights.mode, *aspect, name, coefficients["spearman"], coefficients["kendall"]))
    return rows


def fit_modes(
    panel: Panel, people: Scores, rubric: str, groups: Mapping[str, str] | None
) -> tuple[list[Weights], list[Row], str | None]:
    """Weights of both modes with their rows, and why native mode is left out, if it is.

    `groups`: dialogue → its group, which is never split; None: every dialogue is a group. Native mode fits on about half of the
    dialogues. Raises `UserError` for a dialogue that `groups` lacks.
    """
    by_aspect = [pair for scores in panel.values() for pair in scores.items()]
    shared = {i for aspect, scores in by_aspect for i in set(scores) & set(people.get(aspect, {}))}
    groups = {i: f"dialogue {i}" for i in shared} if groups is None else groups
    if missing := sorted(shared - set(groups)):
        raise UserError(f"--dialogues: no dialogue {missing[0]!r}, which judges and people scored ({len(missing)} are missing)")
    paper = fit(panel, people, shared, rubric, "paper")
    weights, rows = [paper], report(panel, people, paper, shared)
    try:
        chosen = part({i: groups[i] for i in shared}, 0.5, 0)
    except UserError as error:
        return weights, rows, str(error)
    native = fit(panel, people, chosen, rubric, "native", 0)
    return [paper, native], rows + report(panel, people, native, shared - chosen), None


def correlated(a: Mapping[str, float], b: Mapping[str, float], dialogues: Sequence[str]) -> dict[Coefficient, Estimate]:
    """The correlation of two scores of the same dialogues: coefficients, −1 to 1, with 95 % bootstrap intervals over them."""
    x, y = (np.array([scores[i] for i in dialogues], dtype=np.float64) for scores in (a, b))
    found = figures(x, y, np.arange(len(dialogues), dtype=np.intp), "dataset")
    return {name: estimate for name, (estimate, _, _) in found.items()}


def fit_tables(fitted: Sequence[Weights], rows: Sequence[Row]) -> Iterator[Table]:
    """Weights, and tables 1 and 2 of the paper (scorers × aspects), one per mode, language and coefficient."""
    weight_rows: list[tuple[Cell, ...]] = []
    for weights in fitted:
        positive = {(w.language, w.dimension) for w in weights.weights if (w.correlation or 0) > 0}
        for w in weights.weights:
            rule = "even" if (w.language, w.dimension) not in positive else "equation 2" if w.weight else "0 by rule"
            weight_rows.append((weights.mode, w.language, w.dimension, w.judge, w.correlation, w.n, w.weight, rule))
    notes = (
        "Weight: Spearman's correlation over the sum of the judges' (equation 2); negative and undefined ones count 0. even: "
        "no judge of that aspect correlates with people above 0, so all have equal weights.",
    )
    columns = ("mode", "language", "aspect", "judge", "Spearman", "n", "weight", "by")
    yield Table("feel_weights", "Weights of the judges", columns, tuple(weight_rows), notes, FEEL, decimals=3)
    for (mode, language), part in group_by(rows, lambda row: (row.mode, row.language)).items():
        scorers, aspects = dict.fromkeys(row.scorer for row in part), dict.fromkeys(row.dimension for row in part)
        for name in ("spearman", "kendall"):
            cells = {(row.scorer, row.dimension): getattr(row, name) for row in part}
            title = f"Judges and ensemble against people ({name}), {language}, {mode} mode"
            body = tuple((scorer, *(cells.get((scorer, aspect)) for aspect in aspects)) for scorer in scorers)
            yield Table(
                f"feel_{name}_{mode}_{language}", title, ("scorer", *aspects), body, (FITTED[mode], NOTE), FEEL, decimals=3
            )
