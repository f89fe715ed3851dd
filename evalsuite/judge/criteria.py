"""Method `criteria`: every case has criteria of its own, with points, and one call each says whether the answer meets it.

A score is the points of the criteria that are met, of all points above 0 (HealthBench: Arora et al. 2025, `calculate_score` of
its script): 1 at most, below 0 where what was done wrong outweighs. The dimension `score` counts all criteria of a case, any
other one those with a tag of its name, alone or after a colon (`axis:accuracy`); it does not apply where none of them has
points above 0. A criterion whose answer cannot be read is asked about once more; then the scores that it bears on are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from core.languages import words
from core.records import Dialogue, Judgement, Message
from core.rubrics import Criterion
from core.scales import NOT_APPLICABLE, Verdict
from evalsuite.judge.json_answers import last_object
from evalsuite.judge.judge import LONGEST, Judge
from evalsuite.judge.methods import Method
from serve.answers import Reply
from serve.batch import together
from serve.questions import Question, closed_object

WHOLE = "score"  # the dimension of all criteria
_MET, _WHY = "criteria_met", "explanation"
_ROOM = 400  # tokens of an answer that is held to its form
_SCHEMA = closed_object({_WHY: {"type": "string"}, _MET: {"type": "boolean", "enum": [True, False]}})
Mark = Mapping[str, Any]  # a criterion with whether it is `met` (null: nobody knows) and what was `said`


def bearing(marks: Iterable[Mark], dimension: str) -> list[Mark]:
    """The marks that count on a dimension or tag."""
    return [m for m in marks if dimension == WHOLE or any(dimension in (t, t.rpartition(":")[2]) for t in m["tags"])]


def score_of(marks: Iterable[Mark]) -> float | None:
    """The points of what is met of all points above 0; None where there are none."""
    every = list(marks)
    most = sum(mark["points"] for mark in every if mark["points"] > 0)
    return sum(mark["points"] for mark in every if mark["met"]) / most if most else None


async def score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement per dimension; that on `score` has every mark as its `raw`: a JSON list."""
    shown, language = judge.shown.transcript(dialogue), dialogue.language
    system = judge.prompts.render(language, "judge_system.j2")
    first: list[Message] = [{"role": "system", "content": system}] if system else []

    async def marked(number: int, one: Criterion) -> dict[str, Any]:
        asked = judge.prompts.render(language, "judge_criteria.j2", transcript=shown, criterion=one.criterion, item=one.item)
        return one.model_dump() | await _mark(judge, dialogue, number, [*first, {"role": "user", "content": asked}])

    marks = await together(marked(number, one) for number, one in enumerate(judge.shown.criteria(dialogue)))
    raw = orjson.dumps(marks).decode()
    if len(raw) > LONGEST:
        raw = orjson.dumps([mark | {"said": ""} for mark in marks]).decode()
    made = []
    for key in judge.rubric.dimensions:
        counted = bearing(marks, key)
        unread = [mark for mark in counted if mark["met"] is None]
        value: Verdict | None = NOT_APPLICABLE if (found := score_of(counted)) is None else None if unread else found
        failure = next((mark["failure"] for mark in unread if "failure" in mark), None) if value is None else None
        one = judge.judgement(dialogue, key, raw if key == WHOLE else "", value, failure=failure)
        made.append(one.model_copy(update={"condition": one.condition | {"mode": judge.shown.mode}}))
    return made


async def _mark(judge: Judge, dialogue: Dialogue, number: int, messages: Sequence[Message]) -> dict[str, Any]:
    """Whether one criterion is met, with what was said; or why there is no answer."""
    held = judge.shown.mode != "paper"  # the published script leaves the form of the answer to the model
    regex = rf'\{{"{_WHY}": "[^"\\\n\r\t]{{1,{words(dialogue.language).reason}}}", "{_MET}": (true|false)\}}'
    said = ""
    for attempt in range(2):
        question = Question(
            messages,
            sample={"dialogue": dialogue.id, "criterion": number, "repeat": judge.repeat, "attempt": attempt},
            sampling=judge.spec.sampling,
            served_name=judge.spec.served_name(dialogue.language),
            purpose="judge",
            regex=regex if held else None,
            schema=_SCHEMA if held else None,
            held_tokens=_ROOM if held else None,
            session=dialogue.id,
            readable=(lambda text: _met(text) is not None) if attempt else None,  # the first answer has a second chance
        )
        reply = await judge.reply(question)
        if not isinstance(reply, Reply):
            return {"met": None, "said": reply.raw, "failure": reply.reason}
        said = reply.text
        if (met := _met(said)) is not None:
            return {"met": met, "said": said}
    return {"met": None, "said": said}


def _met(text: str) -> bool | None:
    met = (last_object(text) or {}).get(_MET)
    return met if isinstance(met, bool) else None


by_criteria = Method(score, on_scale=False)
