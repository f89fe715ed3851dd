"""People's scores as verdicts of a judge called `people`, so that figures for judges can be computed for people."""

from collections.abc import Sequence
from operator import attrgetter

from core.grouping import means_by
from core.records import HumanScore, Judgement

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
    fields = ("dialogue_id", "rubric", "dimension", "turn", "language")
    read = [(verdict, verdict.value) for verdict in verdicts if verdict.value is not None]
    means = means_by(((verdict.judge, *attrgetter(*fields)(verdict)), value) for verdict, value in read)
    return [
        HumanScore(annotator=judge, value=mean, **dict(zip(fields, values, strict=True)))
        for (judge, *values), mean in means.items()
    ]
