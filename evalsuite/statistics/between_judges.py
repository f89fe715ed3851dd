"""How far the judges of a run agree with each other on its dialogues, without gold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from core.grouping import group_by
from core.records import Judgement
from core.rubrics import Rubric
from core.statistics.accuracy import spearman
from core.statistics.bootstrap import SMOOTHED
from core.statistics.means import exact_mean
from core.statistics.reliability import AGREEMENT as INTERVALS
from core.tables import Cell, Table
from data_prep.scores.annotator_agreement import ScoredItem, agreement_on
from evalsuite.statistics.summary import AGREEMENT, Scorer, dimension_label, languages_of, scorer_of


def between_judges(verdicts: Sequence[Judgement], rubric: Rubric) -> Iterator[Table]:
    """One table per language with several judges: every pair of judges on every dimension, over the dialogues on which both
    have readable verdicts; a judge's repeats are averaged first."""
    for language in languages_of(verdicts):
        of_dimensions = group_by((j for j in verdicts if j.language == language), lambda j: j.dimension)
        scorers = sorted({scorer_of(j) for j in verdicts if j.language == language})
        unique = len({scorer.judge for scorer in scorers}) == len(scorers)
        names = {scorer: scorer.judge if unique else scorer.name for scorer in scorers}
        rows = [
            {"dimension": dimension_label(rubric, name), **row}
            for pair in combinations(scorers, 2)
            for name in rubric.dimensions
            if (row := _row(names, pair, of_dimensions.get(name, [])))
        ]
        if rows:
            note = (
                f"On dialogues (n) with two readable verdicts. Kappa: quadratic weights. Intervals over dialogues: 95 % "
                f"{INTERVALS}; of shares: {SMOOTHED}. Minus: the mean of the first judge's scores minus the other's, points. "
                "A dash: nothing varies. Judges that agree may both be wrong: compare them with gold."
            )
            title = f"Judges against each other, {language}"
            yield Table.of(f"between-judges-{language}", title, rows, [note], AGREEMENT)


def _row(names: Mapping[Scorer, str], pair: tuple[Scorer, Scorer], verdicts: Sequence[Judgement]) -> dict[str, Cell]:
    """Two judges on one dimension; empty if they share no dialogue."""
    read: dict[ScoredItem, dict[str, list[float]]] = {}
    places = {key: place for place, key in enumerate(sorted({(j.dialogue_id, j.turn or 0) for j in verdicts}))}
    for j in verdicts:
        if j.value is not None and (scorer := scorer_of(j)) in pair:
            item = ScoredItem(j.dialogue_id, places[j.dialogue_id, j.turn or 0])
            read.setdefault(item, {}).setdefault(names[scorer], []).append(j.value)
    shared = {item: by_judge for item, by_judge in read.items() if len(by_judge) == 2}
    values = {item: {judge: exact_mean(by_judge[judge]) for judge in by_judge} for item, by_judge in shared.items()}
    figures = agreement_on(values)
    if figures is None:
        return {}
    a, b = (names[scorer] for scorer in pair)
    first, second = ([by_judge[name] for _, by_judge in sorted(values.items(), key=str)] for name in (a, b))
    return {
        **{"judge": a, "and": b, "weighted kappa": figures.kappa, "Spearman": spearman(first, second)},
        **{"equal %": figures.equal.times(100), "within 1 %": figures.near.times(100)},
        "minus, points": exact_mean([x - y for x, y in zip(first, second, strict=True)]),
    }
