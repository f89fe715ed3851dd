"""People's scores as verdicts of a judge called `people`, so that figures for judges can be computed for people."""

from __future__ import annotations

from collections.abc import Sequence

from core.grouping import group_by
from core.records import HumanScore, Judgement
from core.statistics.means import exact_mean

PEOPLE = "people"


def verdicts_of_people(scores: Sequence[HumanScore]) -> list[Judgement]:
    """A verdict for each score. Annotators count as repeats, so that a dialogue's scores on a dimension are averaged first."""
    places = {name: place for place, name in enumerate(sorted({score.annotator for score in scores}))}
    method = f"{len(places)} annotator{'s' * (len(places) > 1)}"
    fields = {"dialogue_id", "language", "rubric", "dimension", "value", "turn"}
    common = ((score.annotator, score.model_dump(include=fields)) for score in scores)
    return [Judgement(judge=PEOPLE, method=method, repeat=places[name], **values) for name, values in common]


def scores_of_judges(verdicts: Sequence[Judgement]) -> list[HumanScore]:
    """Readable verdicts as people's scores: each judge is an annotator, whose repeats are averaged."""
    read = (verdict for verdict in verdicts if verdict.value is not None)
    same = group_by(read, lambda verdict: (verdict.dialogue_id, verdict.judge, verdict.rubric, verdict.dimension, verdict.turn))
    return [
        HumanScore(
            dialogue_id=dialogue,
            language=repeats[0].language,
            annotator=judge,
            rubric=rubric,
            dimension=dimension,
            value=exact_mean(verdict.value for verdict in repeats if verdict.value is not None),
            turn=turn,
        )
        for (dialogue, judge, rubric, dimension, turn), repeats in same.items()
    ]
