"""An order for records that their content gives: no figure, interval or table may depend on the order of the rows of a file.

Means of floats differ in their last digits with the order of the numbers, and a bootstrap draws places in a list: what reads
judgements and scores for figures puts them into this order first.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from core.files import CONFIGS
from core.records import HumanScore, Judgement
from core.rubrics import Rubric, load_rubric
from evalsuite.statistics.summary import scorer_of


def judgements_in_order(judgements: Iterable[Judgement], rubric: Rubric | None = None) -> list[Judgement]:
    """By judge (name, method, condition, rubric), language, dimension, dialogue, turn and repeat.

    Dimensions come as `rubric`, where it is given, or the bundled rubric of the judgement's name has them, others by name.
    """
    return sorted(judgements, key=lambda j: (scorer_of(j), *_key(j, rubric), j.repeat))


def scores_in_order(scores: Iterable[HumanScore]) -> list[HumanScore]:
    """By rubric, language, dimension (as for judgements), dialogue, turn and annotator."""
    return sorted(scores, key=lambda score: (*_key(score), score.annotator))


def _key(record: Judgement | HumanScore, rubric: Rubric | None = None) -> tuple[object, ...]:
    place = _place(record.rubric, record.dimension, rubric)
    return record.rubric, record.language, place, record.dialogue_id, -1 if record.turn is None else record.turn


def _place(name: str, dimension: str, rubric: Rubric | None = None) -> tuple[int, str]:
    known = _bundled(name) if rubric is None else tuple(rubric.dimensions)
    return known.index(dimension) if dimension in known else len(known), dimension


@cache
def _bundled(name: str) -> tuple[str, ...]:
    """The dimensions of the bundled rubric of that name, none where there is no such rubric."""
    bundled = {path.stem for path in (CONFIGS / "rubrics").glob("*.yaml")}
    return tuple(load_rubric(name).dimensions) if name in bundled else ()
