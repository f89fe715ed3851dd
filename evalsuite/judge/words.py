"""Answers that are no row of digits: ten and more, halves, levels by name, "n/a". One dimension is answered by that alone,
several by a line each, `Warmth: 7`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.scales import NOT_APPLICABLE, Verdict
from evalsuite.judge.band_lines import lines_of
from evalsuite.judge.json_answers import answer_value, last_object, plain, read_answer
from evalsuite.judge.judge import Judge, NoVerdict
from serve.answers import Reply, sound
from serve.questions import Question, closed_object

AROUND = " .。*`\"'[]()▁Ġ\t\r\n"  # what may stand around a verdict and says nothing
NAMELESS = ("score", "rating", "得分", "评分", "分数")  # what a lone dimension is called
_NAMELESS = (*NAMELESS, "answer", "回答")


async def scored(judge: Judge, dialogue: Dialogue, sample: str, names: Sequence[str]) -> list[Judgement]:
    """The judgements on the dimensions that one request asks for; `sample` is one dimension, or "all"."""
    rubric, language = judge.rubric, dialogue.language
    lone = list(rubric.answers(names[0], language)) if len(names) == 1 else None
    enums = {name: {"enum": [answer_value(one) for one in rubric.answers(name, language)]} for name in names}
    longest, pattern = form(rubric, names, language)
    room = len(longest.encode()) + 1  # a token is a byte or more
    spec = judge.spec
    answer = await judge.reply(
        Question(
            judge_messages(judge.prompts, rubric, dialogue, judge.method, names),
            sample={"dialogue": dialogue.id, "dimension": sample, "repeat": judge.repeat},
            sampling=spec.sampling.model_copy(update={"max_tokens": max(spec.sampling.max_tokens, room)}),
            served_name=spec.served_name(language, sample),
            purpose="judge",
            choices=None if lone is None else tuple(lone),
            regex=None if lone else pattern,
            schema=closed_object(enums),
            held_tokens=room,
            logprobs=lone is not None,
            session=dialogue.id,
            readable=lambda text: read(text, rubric, names, language) is not None,
        )
    )
    if isinstance(answer, NoVerdict):
        return [judge.judgement(dialogue, name, answer.raw, failure=answer.reason) for name in names]
    verdicts = read(answer.text, rubric, names, language)
    if verdicts is None:
        return [judge.judgement(dialogue, name, answer.text) for name in names]
    spread, broken = distribution(answer, rubric.answers(names[0], language)) if lone else (None, False)
    return [
        judge.judgement(dialogue, name, answer.text, verdict, spread, broken=broken)
        for name, verdict in zip(names, verdicts, strict=True)
    ]


def read(text: str, rubric: Rubric, names: Sequence[str], language: Language) -> list[Verdict] | None:
    """The verdicts in an answer, one for each dimension; None where one of them cannot be read."""
    if len(names) == 1 and (alone := _meant(rubric, names[0], text)) is not None:
        return [alone]
    found: Mapping[str, Verdict]
    if "{" in text:
        found = read_answer(text, rubric).scores
        others = [value for key, value in (last_object(text) or {}).items() if plain(key) in _NAMELESS]
        if len(names) == 1 and not found and len(others) == 1:
            alone = rubric.verdict(names[0], str(others[0]))
            return None if alone is None else [alone]
    else:
        found = _of_lines(text, rubric, names, language)
    return [found[name] for name in names] if all(name in found for name in names) else None


def _of_lines(text: str, rubric: Rubric, names: Sequence[str], language: Language) -> dict[str, Verdict]:
    said = lines_of(text, rubric, names, language, _NAMELESS if len(names) == 1 else ())
    read_as = {name: _meant(rubric, name, one) for name, one in said.items()}
    return {name: verdict for name, verdict in read_as.items() if verdict is not None}


def _meant(rubric: Rubric, name: str, text: str) -> Verdict | None:
    """What a text says of a dimension; signs around it count as little as at the ends of a level's name, "late (or never)"."""
    bare = text.strip(AROUND)
    if (verdict := rubric.verdict(name, bare)) is not None:
        return verdict
    levels = rubric.scale_of(name).levels or {}
    return next((number for level, number in levels.items() if level.strip(AROUND).casefold() == bare.casefold()), None)


def distribution(reply: Reply, answers: Mapping[str, Verdict]) -> tuple[dict[str, float] | None, bool]:
    """The probabilities of the scores by the answer's first token, and whether what the server reports cannot be true.

    None where the answer is more than one of `answers`, and where some token that was possible begins several of them ("1" and
    "10"): how they share its probability is not known. "n/a" is no score: the others' probabilities are given that one applies.
    """
    named = {name.casefold(): verdict for name, verdict in answers.items()}
    text = reply.text.strip().casefold()
    if reply.tokens is None or text not in named or named[text] == NOT_APPLICABLE:
        return None, False
    written = "".join(token for token, _ in reply.tokens).strip().casefold()
    first = next(((token, others) for token, others in reply.tokens if token.strip()), None)
    if first is None or written != text or not sound(*first):
        return None, True
    mass: dict[str, float] = dict.fromkeys(named, 0.0)
    for token, logprob in first[1].items():
        begun = [name for name in named if token.strip() and name.startswith(token.strip().casefold())]
        part = "\ufffd" in token and not "".join(named).isascii()  # of a character's bytes: whose, nobody knows
        if len(begun) > 1 or part:
            return None, False
        if begun:
            mass[begun[0]] += math.exp(logprob)
    scores = {f"{verdict:g}": mass[name] for name, verdict in named.items() if verdict != NOT_APPLICABLE}
    total = math.fsum(scores.values())
    alone = len(first[1]) < 2 or not total
    return (None if alone else {score: share / total for score, share in scores.items()}), False


def escaped(text: str) -> str:
    """A text for a server's regular expression: of blanks and the like some know no escape."""
    return re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", text)


def form(rubric: Rubric, names: Sequence[str], language: Language) -> tuple[str, str]:
    """The longest answer about these dimensions, a line each under its label, and a regular expression of all answers."""
    answers = [(rubric.label(name, language), list(rubric.answers(name, language))) for name in names]
    longest = (f"{label}: {max(of_one, key=lambda text: len(text.encode()))}" for label, of_one in answers)
    patterns = (f"{escaped(label)}: ({'|'.join(map(escaped, of_one))})" for label, of_one in answers)
    return "\n".join(longest), r"\n".join(patterns)


def check_lines(rubric: Rubric, found: Callable[[Language], Mapping[str, Any]], method: str) -> None:
    """Raise `UserError` for a label whose line could not be recognised in any answer: two alike, a colon in it, a number before
    it. `found` reads an answer of the asked form in a language."""
    for language in rubric.languages:
        for key in rubric.dimensions.keys() - found(language).keys():
            label = rubric.label(key, language)
            raise UserError(
                f"rubric {rubric.name}: dimensions.{key}.label.{language}: {label!r}: method {method} finds a line by label "
                "or key: a label is nobody else's, has no colon and begins with a letter"
            )


def check_joint(rubric: Rubric) -> None:
    """`check_lines` of a rubric whose answers are lines."""
    keys = list(rubric.dimensions)
    if not rubric.digits:
        check_lines(rubric, lambda code: _of_lines(form(rubric, keys, code)[0], rubric, keys, code), "joint")
