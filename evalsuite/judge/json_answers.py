"""Method `json`: a judge answers with one JSON object that holds a reason and the score of every dimension (EmoHarbor, H.4).

    {"analysis": "...", "evaluation": {"empathetic": 4, ...}}

If the server can constrain answers, the object's schema is sent as a regular expression: with a JSON schema, servers let a weak
model write white space or a reason without end. Otherwise the object is searched for in the reply; trailing commas are accepted
(the paper's own example has one). If a score is missing or unreadable, the judge is told what was wrong and asked once more.
The answer with more scores counts (the first one if they have equally many), and its missing scores are null.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from core.judge_prompts import judge_messages, transcript_of_turns
from core.languages import words
from core.records import LOST, Dialogue, Judgement, Language, Message
from core.rubrics import Rubric
from core.scales import Verdict, level_name
from evalsuite.judge.judge import Judge, NoVerdict
from evalsuite.judge.methods import Method, no_tree
from serve.answers import Reply
from serve.batch import together
from serve.questions import closed_object

_ROOM, _ROOM_EACH = 400, 16  # tokens of a constrained answer: the reason, and a dimension's name with its score
_TRAILING_COMMA = r",(?=\s*+[}\]])"
# A string, the rest of a text after an unclosed quotation mark, or a trailing comma.
_STRING_OR_TRAILING_COMMA = re.compile(rf'("(?:[^"\\]|\\.)*+")|("(?:[^"\\]|\\.)*+\\?\Z)|{_TRAILING_COMMA}', re.S)
_FRACTION = re.compile("[0-9] ?(/|out of|分)")
_BRACES_OF_PROSE = re.compile(r"\{[^{}\"':：]*\}")
_BRACES = 64  # how many opening braces of a reply, counted from its end, are tried as the start of an object


@dataclass(frozen=True)
class JsonAnswer:
    """The scores read from one reply, by dimension, and what is wrong with it ("" if nothing)."""

    scores: Mapping[str, Verdict]
    problem: str
    raw: str


async def score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement per dimension on the whole dialogue (turn null), then, with `per_turn`, on it up to each supporter turn."""
    whole = await _scored(judge, dialogue, None)
    if not judge.shown.per_turn:
        return whole
    places = [place for place, turn in enumerate(dialogue.turns) if turn.role == "supporter"]
    parts = await together(_scored(judge, dialogue, place) for place in places)
    return whole + [judgement for part in parts for judgement in part]


def reached(dialogue: Dialogue, place: int) -> Dialogue:
    """The dialogue up to a supporter's turn, with the seeker's answer to it if there is one."""
    answered = dialogue.turns[place + 1 : place + 2]
    end = place + 2 if answered and answered[0].role == "seeker" else place + 1
    return dialogue.model_copy(update={"turns": dialogue.turns[:end]})


async def _scored(judge: Judge, dialogue: Dialogue, place: int | None) -> list[Judgement]:
    keys, scores = list(judge.rubric.dimensions), judge.rubric.scores
    part = dialogue if place is None else reached(dialogue, place)
    more: dict[str, object] = {
        "transcript": transcript_of_turns(part.turns, part.language, judge.shown.states),
        "profile": judge.shown.profile(dialogue),
        "states": judge.shown.states,
        "so_far": place is not None,
    }
    messages = judge_messages(judge.prompts, judge.rubric, part, "json", keys, more)
    first = await _ask(judge, dialogue, place, messages, 0)
    if not isinstance(first, JsonAnswer):
        return _judgements(judge, dialogue, place, first.raw, {}, first.reason)
    best, failure = first, None
    if first.problem:
        again = judge.prompts.render(dialogue.language, "judge_again.j2", problem=first.problem, low=scores[0], high=scores[-1])
        # Chat templates reject an empty message, so an empty answer is shown as dots.
        answered: list[Message] = [{"role": "assistant", "content": first.raw or "..."}, {"role": "user", "content": again}]
        second = await _ask(judge, dialogue, place, [*messages, *answered], 1)
        if isinstance(second, JsonAnswer):
            best = max(first, second, key=lambda answer: len(answer.scores))
        elif second.reason in LOST:  # a resumed run asks again for the missing scores
            failure = second.reason
    return _judgements(judge, dialogue, place, best.raw, best.scores, failure)


async def _ask(
    judge: Judge, dialogue: Dialogue, place: int | None, messages: Sequence[Message], attempt: int
) -> JsonAnswer | NoVerdict:
    reply = await judge.ask(
        dialogue,
        messages,
        {"dimension": "all", "attempt": attempt} | ({} if place is None else {"turn": place}),
        regex=answer_regex(judge.rubric, dialogue.language),
        schema=answer_schema(judge.rubric, dialogue.language),
        held_tokens=_ROOM + _ROOM_EACH * len(judge.rubric.dimensions),
        # The first attempt is retried anyway.
        readable=(lambda text: not read_answer(text, judge.rubric).problem) if attempt else None,
    )
    return read_answer(reply.text, judge.rubric) if isinstance(reply, Reply) else reply


def _judgements(
    judge: Judge, dialogue: Dialogue, place: int | None, raw: str, scores: Mapping[str, Verdict], failure: str | None
) -> list[Judgement]:
    """One judgement per dimension; without a score it is null, with the failure if there was one."""
    # `scope` makes verdicts on a part those of another scorer, so that they are never averaged with those on the whole.
    condition = {"mode": judge.shown.mode, "strategy": judge.shown.strategy} | ({} if place is None else {"scope": "turn"})
    judgements = (
        judge.judgement(dialogue, key, raw, scores.get(key), failure=None if key in scores else failure)
        for key in judge.rubric.dimensions
    )
    return [j.model_copy(update={"turn": place, "condition": j.condition | condition}) for j in judgements]


def answer_regex(rubric: Rubric, language: Language) -> str:
    """The answer as a regular expression: a reason of limited length, then a score or level for each key."""
    scores = []
    for key, scale in rubric.scales.items():
        values = (json.dumps(answer_value(answer), ensure_ascii=False) for answer in rubric.answers(key, language))
        digit = scale.digits and not rubric.dimensions[key].not_applicable
        score = f"[{scale.min}-{scale.max}]" if digit else f"({'|'.join(map(re.escape, values))})"
        scores.append(f'"{re.escape(key)}": {score}')
    reason = words(language).reason
    return rf'\{{"analysis": "[^"\\\n\r\t]{{1,{reason}}}", "evaluation": \{{{", ".join(scores)}\}}\}}'


def answer_value(answer: str) -> str | float:
    """An answer as its JSON value: a number, or a text."""
    with suppress(ValueError):
        return int(answer) if re.fullmatch("-?[0-9]+", answer) else float(answer)
    return answer


def answer_schema(rubric: Rubric, language: Language = "en") -> dict[str, Any]:
    """The answer as a JSON schema."""
    scores: dict[str, Any] = {}
    for key, scale in rubric.scales.items():
        whole = scale.digits and not rubric.dimensions[key].not_applicable
        values = [answer_value(answer) for answer in rubric.answers(key, language)]
        scores[key] = {"type": "integer", "enum": list(scale.scores)} if whole else {"enum": values}
    return closed_object({"analysis": {"type": "string"}, "evaluation": closed_object(scores)})


def read_answer(text: str, rubric: Rubric) -> JsonAnswer:
    """The scores in a reply. Dimensions may be named by key or label, in any case, with blanks, hyphens or underscores.

    Only the scale's scores are read, as numbers or text, under `evaluation` or at the top level. A dimension that is named
    twice with different scores is not read.
    """
    answer = last_object(text)
    if answer is None:
        problem = "the JSON object is malformed or cut off" if "{" in text else "there is no JSON object in it"
        return JsonAnswer({}, problem, text)
    evaluation = answer.get("evaluation", answer)
    names = {name: key for key in rubric.dimensions for name in names_of(rubric, key)} | {key: key for key in rubric.dimensions}
    verdicts: dict[str, set[Verdict | None]] = {}
    for name, value in evaluation.items() if isinstance(evaluation, Mapping) else ():
        if key := names.get(name, names.get(plain(name))):
            values = value if isinstance(value, _Twice) else [value]
            verdicts.setdefault(key, set()).update(_verdict(score, key, rubric) for score in values)
    single = {key: next(iter(values)) for key, values in verdicts.items() if len(values) == 1}
    scores = {key: score for key in rubric.dimensions if (score := single.get(key)) is not None}
    missing: dict[str, list[str]] = {}
    for key, scale in rubric.scales.items():
        if key not in scores:
            number = "whole number" if scale.step == 1 else "number"
            missing.setdefault(f"answer of {scale}" if scale.levels else f"{number} from {scale}", []).append(key)
    problems = (f"no {kind} for {', '.join(keys)}" for kind, keys in missing.items())
    return JsonAnswer(scores, "; ".join(problems), text)


class _Twice(list[Any]):
    """The values of a key that an object has more than once."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return {key: _Twice(listed) if len(listed) > 1 else listed[0] for key, listed in values.items()}


def last_object(text: str) -> dict[str, Any] | None:
    """The last complete JSON object in a text, which models may precede by thinking aloud.

    None if it is inside an object that cannot be read, or followed by one: then it is a draft or a quoted verdict, and the
    judge's own verdict is the unreadable object.
    """
    text = _STRING_OR_TRAILING_COMMA.sub(lambda match: match[1] or re.sub(_TRAILING_COMMA, "", match[2] or ""), text)
    decoder = json.JSONDecoder(object_pairs_hook=_pairs, strict=False)
    last, outside, end = None, "", 0
    for place in [match.start() for match in re.finditer("{", text)][-_BRACES:]:
        if place < end:  # inside the previous object
            continue
        with suppress(ValueError, RecursionError):  # ValueError: malformed, or a number of thousands of digits
            last, stop = decoder.raw_decode(text, place)
            outside, end = outside + text[end:place], stop
    after = _BRACES_OF_PROSE.sub("", _BRACES_OF_PROSE.sub("", text[end:]))
    return last if outside.count("{") == outside.count("}") and not re.search("[{}]", after) else None


def names_of(rubric: Rubric, key: str) -> set[str]:
    """What a judge may call a dimension, in `plain` spelling."""
    return {plain(name) for name in (key, *rubric.dimensions[key].label.values())}


def plain(name: str) -> str:
    """A name without case, blanks, hyphens and underscores."""
    return re.sub(r"[\s_-]+", "", name).casefold()


def _verdict(value: Any, key: str, rubric: Rubric) -> Verdict | None:
    """The verdict of a number, a number as text, or a level's name (JSON's true is a yes). A fraction ("3/5") is not read."""
    text = level_name(value) if isinstance(value, bool | int | float) else value
    return rubric.verdict(key, text) if isinstance(text, str) and not _FRACTION.search(text) else None


by_json = Method(score, check=no_tree)
