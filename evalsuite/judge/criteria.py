"""Method `criteria`: every case has its own criteria with points, and one call per criterion asks whether the answer meets it.

A score is the points of the criteria that are met, divided by the sum of all positive points (HealthBench: Arora et al. 2025,
`calculate_score` of its script): at most 1, and below 0 if the deductions outweigh. The dimension `score` counts all criteria
of a case, any other dimension those with a tag of its name, alone or after a colon (`axis:accuracy`); it does not apply if none
of them has positive points. If an answer cannot be read, the criterion is asked about once more; after that, the scores it
counts towards are null.
"""

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
from serve.questions import closed_object

WHOLE = "score"  # the dimension of all criteria
_MET, _WHY = "criteria_met", "explanation"
_ROOM = 400  # tokens of a constrained answer
_SCHEMA = closed_object({_WHY: {"type": "string"}, _MET: {"type": "boolean", "enum": [True, False]}})
Mark = Mapping[str, Any]  # a criterion, whether it is `met` (null: unreadable) and what the judge `said`


def bearing(marks: Iterable[Mark], dimension: str) -> list[Mark]:
    """The marks that count towards a dimension or tag."""
    return [m for m in marks if dimension == WHOLE or any(dimension in (t, t.rpartition(":")[2]) for t in m["tags"])]


def score_of(marks: Iterable[Mark]) -> float | None:
    """The points of the criteria met, divided by all positive points; None if there are no positive points."""
    marks = list(marks)
    most = sum(mark["points"] for mark in marks if mark["points"] > 0)
    return sum(mark["points"] for mark in marks if mark["met"]) / most if most else None


async def score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement per dimension. That on `score` has all marks as its `raw`, a JSON list."""
    transcript, language = judge.shown.transcript(dialogue), dialogue.language
    system = judge.prompts.render(language, "judge_system.j2")
    first: list[Message] = [{"role": "system", "content": system}] if system else []

    async def marked(number: int, case: Criterion) -> dict[str, Any]:
        fields = {"transcript": transcript, "criterion": case.criterion, "item": case.item}
        prompt = judge.prompts.render(language, "judge_criteria.j2", **fields)
        return case.model_dump() | await _mark(judge, dialogue, number, [*first, {"role": "user", "content": prompt}])

    marks = await together(marked(number, case) for number, case in enumerate(judge.shown.criteria(dialogue)))
    raw = orjson.dumps(marks).decode()
    if len(raw) > LONGEST:
        raw = orjson.dumps([mark | {"said": ""} for mark in marks]).decode()
    judgements = []
    for key in judge.rubric.dimensions:
        counted = bearing(marks, key)
        unread = [mark for mark in counted if mark["met"] is None]
        points = score_of(counted)
        value: Verdict | None = NOT_APPLICABLE if points is None else None if unread else points
        failure = next((mark["failure"] for mark in unread if "failure" in mark), None) if value is None else None
        judgement = judge.judgement(dialogue, key, raw if key == WHOLE else "", value, failure=failure)
        condition = judgement.condition | {"mode": judge.shown.mode}
        judgements.append(judgement.model_copy(update={"condition": condition}))
    return judgements


async def _mark(judge: Judge, dialogue: Dialogue, number: int, messages: Sequence[Message]) -> dict[str, Any]:
    """Whether a criterion is `met` and what the judge `said`, or the `failure` to answer."""
    regex = rf'\{{"{_WHY}": "[^"\\\n\r\t]{{1,{words(dialogue.language).reason}}}", "{_MET}": (true|false)\}}'
    # The published script does not constrain the answer.
    form: dict[str, Any] = {} if judge.shown.mode == "paper" else {"regex": regex, "schema": _SCHEMA, "held_tokens": _ROOM}
    mark: dict[str, Any] = {}
    for attempt in range(2):
        readable = (lambda text: _met(text) is not None) if attempt else None  # the first attempt is retried anyway
        reply = await judge.ask(dialogue, messages, {"criterion": number, "attempt": attempt}, readable=readable, **form)
        if not isinstance(reply, Reply):
            return {"met": None, "said": reply.raw, "failure": reply.reason}
        mark = {"met": _met(reply.text), "said": reply.text}
        if mark["met"] is not None:
            break
    return mark


def _met(text: str) -> bool | None:
    met = (last_object(text) or {}).get(_MET)
    return met if isinstance(met, bool) else None


by_criteria = Method(score, on_scale=False)
