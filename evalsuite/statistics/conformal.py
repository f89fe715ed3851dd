"""Score sets with stated coverage: where a ranker's probabilities leave more than one score, it should say nothing.

Split conformal prediction by crepes, for each language and dimension by itself (a Mondrian category). Calibrated on gold, the
set of a new verdict holds the right score at least as often as stated, whatever the probabilities are worth, as long as new
dialogues are like those of the gold set. crepes takes probabilities as they are and needs numpy, pandas and scipy alone; MAPIE
wants a classifier of scikit-learn's form around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import Identifier, Judgement, Language, Record, Whole
from core.rubrics import Rubric
from core.statistics.accuracy import majority, round_half_up
from core.statistics.bootstrap import SEED, SHARES, SMOOTHED, Floats
from core.statistics.means import comparable
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.agreement import Paired
from evalsuite.statistics.clusters import Clusters
from evalsuite.statistics.judges import POOLED
from evalsuite.statistics.paired import over_cards
from evalsuite.statistics.summary import AGREEMENT, dimension_label

FOLDS = 5


class ScoreSet(Record):
    """The scores that a verdict leaves possible."""

    dialogue_id: Identifier
    """The judged dialogue."""
    language: Language
    judge: Identifier
    """The judge's name."""
    dimension: Identifier
    """The rubric's dimension."""
    scores: tuple[Whole, ...]
    """Those that are not ruled out; all of them where there are no probabilities."""
    kept: bool
    """Whether the judge says something: few enough scores are left."""


class Case(NamedTuple):
    """A verdict with gold: its dialogue's cluster, probabilities over the scale, the verdict and the rounded gold score."""

    cluster: str
    probabilities: Floats
    value: float
    gold: int


Cases = Mapping[tuple[Language, str], Sequence[Case]]  # by language and dimension


@dataclass(frozen=True)
class Tried:
    """How sets did on gold that they were not calibrated on, case by case: what they hold, and the case."""

    language: Language
    dimension: str
    sets: list[tuple[tuple[int, ...], Case]]
    kept: list[Case]


def cases_of(pairs: Paired, rubric: Rubric, clusters: Clusters) -> dict[tuple[Language, str], list[Case]]:
    """The verdicts with probabilities, by language and dimension. Raises `UserError` where a judge gave none."""
    cases: dict[tuple[Language, str], list[Case]] = {}
    for dimensions in pairs.values():
        for dimension, of_one in dimensions.items():
            for judgement, gold in of_one:
                if judgement.distribution and judgement.value is not None:
                    cluster, spread = clusters[judgement.dialogue_id], _over_scale(judgement, rubric)
                    case = Case(cluster, spread, judgement.value, round_half_up(gold))
                    cases.setdefault((judgement.language, dimension), []).append(case)
    if not cases:
        raise UserError("no verdict on gold has token probabilities: a score set needs them (see `esc-eval models --check`)")
    place = list(rubric.dimensions).index
    return dict(sorted(cases.items(), key=lambda item: (item[0][0], place(item[0][1]))))


def _over_scale(judgement: Judgement, rubric: Rubric) -> Floats:
    shares = judgement.distribution or {}
    return np.array([shares.get(str(score), 0.0) for score in rubric.scale_of(judgement.dimension).scores])


def score_sets(known: Sequence[Case], new: Sequence[Floats], scores: Sequence[int], coverage: float) -> list[tuple[int, ...]]:
    """The set of each new verdict, calibrated on known ones of the same language and dimension. With fewer known cases than
    coverage / (1 − coverage) nothing can be ruled out."""
    from crepes import ConformalClassifier  # type: ignore[import-untyped]

    right = np.array([case.probabilities[list(scores).index(case.gold)] for case in known])
    classifier = ConformalClassifier().fit(1 - right)
    p = classifier.predict_p(1 - np.stack(list(new)), smoothing=False)
    ruled_out = comparable(1 - coverage)  # at or below it; as a float 1 − 0.9 is less than a tenth
    return [tuple(score for score, value in zip(scores, row, strict=True) if comparable(value) > ruled_out) for row in p]


def right(cases: Sequence[Case]) -> Estimate:
    """The share of verdicts, in per cent, that are the gold score."""
    return share((case.cluster, case.value == case.gold) for case in cases)


def share(flags: Iterable[tuple[str, bool]]) -> Estimate:
    """The share, in per cent, of flags that are given with their clusters, which are drawn whole for its interval."""
    clusters, hits = zip(*flags, strict=True) if (flags := [*flags]) else ((), ())
    return (
        over_cards(100 * np.array(hits, dtype=np.float64)[:, None], clusters, 100 * SHARES)[0]
        if hits
        else Estimate(None, None, None, 0)
    )


def decided(scores: tuple[int, ...], most: int) -> bool:
    """Whether a set says something: not empty, and at most so many scores, next to each other."""
    return 0 < len(scores) <= most and scores[-1] - scores[0] == len(scores) - 1


def tried(cases: Cases, rubric: Rubric, coverage: float, most: int) -> Iterator[Tried]:
    """Every case with a set that was calibrated on others: the gold clusters in `FOLDS` parts, each tried on the rest."""
    units = sorted({case.cluster for of_one in cases.values() for case in of_one})
    order = np.random.default_rng(SEED).permutation(len(units))
    fold = {unit: int(place) % FOLDS for unit, place in zip(units, order, strict=True)}
    for (language, dimension), of_one in cases.items():
        parts = [fold[case.cluster] for case in of_one]
        sets: list[tuple[tuple[int, ...], Case]] = []
        for part in sorted(set(parts)):
            known = [case for case, own in zip(of_one, parts, strict=True) if own != part]
            new = [case for case, own in zip(of_one, parts, strict=True) if own == part]
            if known:
                scores = rubric.scale_of(dimension).scores
                found = score_sets(known, [case.probabilities for case in new], scores, coverage)
                sets += zip(found, new, strict=True)
        yield Tried(language, dimension, sets, [case for scores, case in sets if decided(scores, most)])


def whole_verdicts(judgements: Iterable[Judgement], rubric: Rubric) -> list[Judgement]:
    """The verdicts on whole dialogues that were not lost, by language, dimension and dialogue."""
    place = list(rubric.dimensions).index
    whole = (judgement for judgement in judgements if judgement.turn is None and not judgement.lost)
    return sorted(whole, key=lambda one: (one.language, place(one.dimension), one.dialogue_id))


def sets_of_run(
    cases: Cases,
    judgements: Iterable[Judgement],
    rubric: Rubric,
    coverage: float,
    most: int,
) -> Iterator[ScoreSet]:
    """The sets of verdicts without gold, calibrated on all cases. No score is ruled out where a language and dimension has no
    case, or a verdict no probabilities."""
    for (language, dimension), verdicts in group_by(
        whole_verdicts(judgements, rubric), lambda one: (one.language, one.dimension)
    ).items():
        scores, known = rubric.scale_of(dimension).scores, cases.get((language, dimension))
        spread = [one for one in verdicts if one.distribution]
        made = score_sets(known, [_over_scale(one, rubric) for one in spread], scores, coverage) if known and spread else []
        by_verdict = {id(one): one_set for one, one_set in zip(spread, made, strict=False)}
        for one in verdicts:
            left = by_verdict.get(id(one), tuple(scores))
            yield ScoreSet(
                dialogue_id=one.dialogue_id,
                language=language,
                judge=one.judge,
                dimension=dimension,
                scores=left,
                kept=decided(left, most),
            )


def tried_table(rows: Sequence[Tried], rubric: Rubric, coverage: float, most: int) -> Table:
    """What sets cover, how much is kept, and agreement on what is kept beside that on all."""
    body: list[tuple[Cell, ...]] = []
    for language, of_one in group_by(rows, lambda row: row.language).items():
        for row in (*of_one, Tried(language, POOLED, [s for r in of_one for s in r.sets], [c for r in of_one for c in r.kept])):
            cases = [case for _, case in row.sets]
            if not cases:
                continue
            covered = ((case.cluster, case.gold in scores) for scores, case in row.sets)
            most_frequent = 100 * majority([case.gold for case in row.kept])["majority_acc"] if row.kept else None
            body.append(
                (
                    language,
                    dimension_label(rubric, row.dimension),
                    share(covered),
                    sum(len(scores) for scores, _ in row.sets) / len(cases),
                    share((case.cluster, decided(scores, most)) for scores, case in row.sets),
                    right(row.kept),
                    most_frequent,
                    right(cases),
                )
            )
    size = "one score" if most == 1 else f"at most {most} scores next to each other"
    return Table(
        key="score-sets",
        title=f"Score sets that hold the gold score {100 * coverage:g} times in 100",
        columns=(
            *("language", "dimension", "covered %", "scores a set", "kept %"),
            *("ACC of what is kept %", "majority class there %", "ACC of all %"),
        ),
        rows=tuple(body),
        notes=(
            "Calibrated for each language and dimension on four fifths of the gold set, tried on the fifth. Kept: sets of "
            f"{size}; of all else the judge says nothing. n = verdicts, [{SMOOTHED} over cards, or dialogues without a card].",
            "Coverage holds over all verdicts, not over those that are kept, and for dialogues like those of the gold set.",
        ),
        section=AGREEMENT,
    )


def kept_table(sets: Sequence[ScoreSet], rubric: Rubric, clusters: Clusters) -> Table:
    """Of a run's own verdicts: how much is kept."""
    groups = group_by(sets, lambda one: (one.language, one.dimension))
    return Table(
        key="score-sets-run",
        title="What of the run's verdicts is kept",
        columns=("language", "dimension", "kept %", "scores a set"),
        rows=tuple(
            (
                language,
                dimension_label(rubric, dimension),
                share((clusters[one.dialogue_id], one.kept) for one in of_one),
                sum(len(one.scores) for one in of_one) / len(of_one),
            )
            for (language, dimension), of_one in groups.items()
        ),
        notes=(f"Calibrated on the whole gold set. n = verdicts, [{SMOOTHED} over cards, or dialogues without a card].",),
        section=AGREEMENT,
    )
