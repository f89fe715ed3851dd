"""Methods `lines`, `pairs` and `criteria`, which ask in the words of a published prompt pack.

`lines` (MindEval's judge): one request; the answer has a line `LABEL: NUMBER` for every dimension. A dimension's score is the
number after the first occurrence of its label and a colon, anywhere in the answer. It may lie between two scores of the scale.
A number off the scale is no score, and a dimension that the answer does not name has none.

`pairs` (ESC-Judge): which of two dialogues with the same person is better, asked for each dimension. A dialogue's verdict is 1
(won), 0.5 (tied) or 0 (lost). A dialogue is compared with that of every other supporter with the same person in the same trial.
In native mode both orders are asked; in paper mode only one, in which the dialogue that comes first in the run is shown first.
Every answer gives both dialogues of the pair a verdict: `condition` has the opponent (`against`) and the position (`shown`:
first or second), which do not make it another scorer's, and `repeat` numbers the answers.

`criteria`: every case has its own criteria with points, and one call per criterion asks whether the answer meets it. A score is
the points of the criteria that are met, divided by the sum of all positive points (HealthBench: Arora et al. 2025,
`calculate_score` of its script): at most 1, and below 0 if the deductions outweigh. The dimension `score` counts all criteria
of a case, any other dimension those with a tag of its name, alone or after a colon (`axis:accuracy`); it does not apply if none
of them has positive points. If an answer cannot be read, the criterion is asked about once more; after that, the scores it
counts towards are null.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.languages import words
from core.records import Dialogue, Judgement, Language, Message, Verdict
from core.rubrics import Criterion, Rubric
from core.scales import NOT_APPLICABLE
from core.scales import Verdict as Value
from evalsuite.judge.json_answers import last_object
from evalsuite.judge.judge import LONGEST, Judge, NoVerdict
from evalsuite.judge.methods import Method, no_tree
from serve.answers import Reply
from serve.batch import together
from serve.questions import closed_object

POINTS = {"a": 1.0, "tie": 0.5, "b": 0.0}
_NAMED = re.compile(r"\bmodel ([ab])\b|\b(tie)\b")
_FAVOURED = re.compile(r"\*\*(?:support\s+)?model\s+([ab])\*\* (?:demonstrates a slightly higher|performs better|outperforms)")
WHOLE = "score"  # the dimension of all criteria
_MET, _WHY = "criteria_met", "explanation"
_ROOM = 400  # tokens of a constrained answer
_SCHEMA = closed_object({_WHY: {"type": "string"}, _MET: {"type": "boolean", "enum": [True, False]}})
Mark = Mapping[str, Any]  # a criterion, whether it is `met` (null: unreadable) and what the judge `said`


def numbers_in(text: str, rubric: Rubric, language: Language) -> dict[str, float]:
    """Dimension → the number after its label in an answer, on the scale or not. Dimensions without one are left out."""
    labels = {name: re.escape(rubric.label(name, language)) for name in rubric.dimensions}
    matches = {name: re.search(rf"{label}:\s*([0-9]+\.?[0-9]*)", text) for name, label in labels.items()}
    return {name: float(match[1]) for name, match in matches.items() if match}


def scores_in(text: str, rubric: Rubric, language: Language) -> dict[str, float]:
    """Those of `numbers_in` that are on the scale."""
    numbers, scales = numbers_in(text, rubric, language), rubric.scales
    return {name: number for name, number in numbers.items() if scales[name].min <= number <= scales[name].max}


async def _lines(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    rubric, language, names = judge.rubric, dialogue.language, list(judge.rubric.dimensions)
    more = {"transcript": judge.shown.transcript(dialogue), **judge.shown.more(dialogue)}
    messages = judge_messages(judge.prompts, rubric, dialogue, judge.method, names, more)

    def readable(text: str) -> bool:
        return len(scores_in(text, rubric, language)) == len(names)

    answer = await judge.ask(dialogue, messages, {"dimension": "all"}, "all", readable=readable)
    if isinstance(answer, NoVerdict):
        return [judge.judgement(dialogue, name, answer.raw, failure=answer.reason) for name in names]
    scores = scores_in(answer.text, rubric, language)
    return [judge.judgement(dialogue, name, answer.text, scores.get(name)) for name in names]


def verdict_in(text: str) -> Verdict | None:
    """Which of "Model A", "Model B" and "Tie" the first line after the last "verdict" names; None unless it is exactly one."""
    _, heading, verdict = text.lower().rpartition("verdict")
    line = next(filter(None, (line.strip(" #*:<>") for line in verdict.splitlines())), "")
    named = {match[1] or match[2] for match in _NAMED.finditer(line)}
    return named.pop() if heading and len(named) == 1 else None  # type: ignore[return-value]


def published_verdict(text: str) -> Verdict | None:
    """The verdict as the published analysis (data_analysis.ipynb) reads the text after the first "# Verdict".

    "tie" counts anywhere, even in "identities". An answer without that heading is a tie, as is one that names both models
    without a phrase that favours one. None if neither a model nor a tie is named; the published code stops there.
    """
    verdict = text.split("# Verdict")[1].strip().lower() if "# Verdict" in text else "tie"
    named = [letter for letter in "ab" if f"model {letter}" in verdict]
    if "tie" in verdict:
        return "tie"
    if len(named) == 1:
        return named[0]  # type: ignore[return-value]
    favoured = _FAVOURED.search(verdict)
    return None if not named else favoured[1] if favoured else "tie"  # type: ignore[return-value]


def partners(dialogue: Dialogue, among: Sequence[Dialogue]) -> list[Dialogue]:
    """The dialogues of other supporters with the same person in the same trial, if they have an exchange and were not lost."""
    person = dialogue.card_id or dialogue.profile_id or dialogue.source_id
    return [
        other
        for other in among
        if (other.card_id or other.profile_id or other.source_id) == person is not None
        and (other.language, other.trial) == (dialogue.language, dialogue.trial)
        and other.supporter != dialogue.supporter
        and not other.lost
        and other.exchanges
    ]


async def _pairs(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    names, paper = list(judge.rubric.dimensions), judge.shown.mode == "paper"
    places = {other.id: place for place, other in enumerate(judge.among)}
    pairs: list[tuple[Dialogue, bool]] = []  # the other dialogue, and whether this one is shown first
    for other in partners(dialogue, judge.among):
        earlier = places[dialogue.id] < places[other.id]
        pairs += [(other, earlier)] if paper else [(other, True), (other, False)]
    if not pairs:
        return [judge.judgement(dialogue, name, "", failure="no_partner") for name in names]
    calls = [(number, name, other, first) for number, (other, first) in enumerate(pairs) for name in names]
    answers = await together(_answer(judge, *((dialogue, o) if first else (o, dialogue)), name) for _, name, o, first in calls)
    return [_judgement(judge, dialogue, *call, answer) for call, answer in zip(calls, answers, strict=True)]


async def _answer(judge: Judge, first: Dialogue, second: Dialogue, name: str) -> Reply | NoVerdict:
    """The answer on a pair, which is asked once and awaited by both dialogues."""
    key = first.id, second.id, name
    client, reply = judge.shared.get(key, (None, None))
    if reply is None or client is not judge.client:
        more = {"transcript_a": judge.shown.transcript(first), "transcript_b": judge.shown.transcript(second)}
        messages = judge_messages(judge.prompts, judge.rubric, first, judge.method, [name], more)
        sample = {"other": second.id, "dimension": name}
        asking = judge.ask(first, messages, sample, name, readable=lambda text: _reader(judge)(text) is not None)
        reply = asyncio.ensure_future(asking)
        judge.shared[key] = judge.client, reply
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting any more
    return await asyncio.shield(reply)  # if one dialogue is cancelled, the other goes on waiting


def _reader(judge: Judge) -> Callable[[str], Verdict | None]:
    return published_verdict if judge.shown.mode == "paper" else verdict_in


def _judgement(
    judge: Judge, dialogue: Dialogue, number: int, name: str, other: Dialogue, first: bool, answer: Reply | NoVerdict
) -> Judgement:
    """The verdict of an answer on a pair for one of its dialogues."""
    if isinstance(answer, NoVerdict):
        judgement = judge.judgement(dialogue, name, answer.raw, failure=answer.reason)
    else:
        verdict = _reader(judge)(answer.text)
        points = None if verdict is None else POINTS[verdict] if first else 1 - POINTS[verdict]
        judgement = judge.judgement(dialogue, name, answer.text, points)
    condition = judgement.condition | {"against": str(other.supporter), "shown": "first" if first else "second"}
    return judgement.model_copy(update={"repeat": number, "condition": condition})


def check_pairs(rubric: Rubric) -> None:
    """Raise `UserError` for a dimension whose scale is not lost (0), tied (0.5), won (1)."""
    no_tree(rubric)
    for name, scale in rubric.scales.items():
        if scale.scores != (0, 0.5, 1):
            levels = "{lost: 0, tied: 0.5, won: 1}"
            raise UserError(f"rubric {rubric.name}: {name}: method pairs needs `scale: {{levels: {levels}}}`, not {scale}")


def bearing(marks: Iterable[Mark], dimension: str) -> list[Mark]:
    """The marks that count towards a dimension or tag."""
    return [m for m in marks if dimension == WHOLE or any(dimension in (t, t.rpartition(":")[2]) for t in m["tags"])]


def score_of(marks: Iterable[Mark]) -> float | None:
    """The points of the criteria met, divided by all positive points; None if there are no positive points."""
    marks = list(marks)
    most = sum(mark["points"] for mark in marks if mark["points"] > 0)
    return sum(mark["points"] for mark in marks if mark["met"]) / most if most else None


async def _criteria(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
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
        value: Value | None = NOT_APPLICABLE if points is None else None if unread else points
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


by_lines = Method(_lines, on_scale=False)
by_pairs = Method(_pairs, check=check_pairs, by_dimension=True, on_scale=False, together=True)
by_criteria = Method(_criteria, on_scale=False)
