"""Answers other than single digits: scores of 10 and more, halves, named levels, "n/a". If one dimension is asked about, the
answer is the score alone; if several are, one line each: `Warmth: 7`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.scales import NOT_APPLICABLE, Verdict
from evalsuite.judge.json_answers import answer_value, last_object, plain, read_answer
from evalsuite.judge.judge import Judge, NoVerdict
from serve.answers import Reply, sound
from serve.questions import closed_object

AROUND = " .。*`\"'[]()▁Ġ\t\r\n"  # characters without meaning around a verdict
NAMELESS = ("score", "rating", "得分", "评分", "分数")  # names for the only dimension asked about
MARKS = "*" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_NAMELESS = (*NAMELESS, "answer", "回答")


async def scored(judge: Judge, dialogue: Dialogue, sample: str, names: Sequence[str]) -> list[Judgement]:
    """The judgements on the dimensions that one request asks for. `sample` is the dimension, or "all"."""
    rubric, language = judge.rubric, dialogue.language
    choices = tuple(rubric.answers(names[0], language)) if len(names) == 1 else None
    enums = {name: {"enum": [answer_value(answer) for answer in rubric.answers(name, language)]} for name in names}
    longest, pattern = form(rubric, names, language)
    room = len(longest.encode()) + 1  # a token is at least one byte
    sampling = judge.spec.sampling
    answer = await judge.ask(
        dialogue,
        judge_messages(judge.prompts, rubric, dialogue, judge.method, names),
        {"dimension": sample},
        adapter=sample,
        sampling=sampling.model_copy(update={"max_tokens": max(sampling.max_tokens, room)}),
        choices=choices,
        regex=None if choices else pattern,
        schema=closed_object(enums),
        held_tokens=room,
        logprobs=choices is not None,
        readable=lambda text: read(text, rubric, names, language) is not None,
    )
    if isinstance(answer, NoVerdict):
        return [judge.judgement(dialogue, name, answer.raw, failure=answer.reason) for name in names]
    verdicts = read(answer.text, rubric, names, language)
    if verdicts is None:
        return [judge.judgement(dialogue, name, answer.text) for name in names]
    probabilities, broken = distribution(answer, rubric.answers(names[0], language)) if choices else (None, False)
    return [
        judge.judgement(dialogue, name, answer.text, verdict, probabilities, broken=broken)
        for name, verdict in zip(names, verdicts, strict=True)
    ]


def read(text: str, rubric: Rubric, names: Sequence[str], language: Language) -> list[Verdict] | None:
    """The verdicts in an answer, one for each dimension; None if one of them cannot be read."""
    if len(names) == 1 and (single := _verdict(rubric, names[0], text)) is not None:
        return [single]
    verdicts: Mapping[str, Verdict]
    if "{" in text:
        verdicts = read_answer(text, rubric).scores
        nameless = [value for key, value in (last_object(text) or {}).items() if plain(key) in _NAMELESS]
        if len(names) == 1 and not verdicts and len(nameless) == 1:
            single = rubric.verdict(names[0], str(nameless[0]))
            return None if single is None else [single]
    else:
        verdicts = _read_lines(text, rubric, names, language)
    return [verdicts[name] for name in names] if all(name in verdicts for name in names) else None


def lines_of(
    text: str, rubric: Rubric, names: Sequence[str], language: Language, nameless: Sequence[str] = ()
) -> dict[str, str]:
    """Dimension → the text after the colon of its line. Dimensions without a line, or with several, are left out. `nameless`
    are further names that stand for any of these dimensions."""
    texts: dict[str, list[str]] = {}
    for line in text.splitlines():
        head, colon, answer = line.replace("：", ":").partition(":")
        if colon:
            texts.setdefault(head.lstrip(MARKS + "#>.-0123456789").rstrip(MARKS).casefold(), []).append(answer.strip(" \t*"))
    lines: dict[str, str] = {}
    for key in names:
        labels = {label.casefold() for label in (key, rubric.label(key, language), *nameless)}
        candidates = [answer for label in labels for answer in texts.get(label, [])]
        if len(candidates) == 1:
            lines[key] = candidates[0]
    return lines


def _read_lines(text: str, rubric: Rubric, names: Sequence[str], language: Language) -> dict[str, Verdict]:
    lines = lines_of(text, rubric, names, language, _NAMELESS if len(names) == 1 else ())
    verdicts = {name: _verdict(rubric, name, line) for name, line in lines.items()}
    return {name: verdict for name, verdict in verdicts.items() if verdict is not None}


def _verdict(rubric: Rubric, name: str, text: str) -> Verdict | None:
    """The verdict of a text on a dimension. Signs around the text and around a level's name ("late (or never)") are ignored."""
    bare = text.strip(AROUND)
    if (verdict := rubric.verdict(name, bare)) is not None:
        return verdict
    levels = rubric.scale_of(name).levels or {}
    return next((number for level, number in levels.items() if level.strip(AROUND).casefold() == bare.casefold()), None)


def distribution(reply: Reply, answers: Mapping[str, Verdict]) -> tuple[dict[str, float] | None, bool]:
    """The probabilities of the scores by the answer's first token, and whether the reported probabilities are impossible.

    None if the answer is more than one of `answers`, or if a possible token begins several of them ("1" and "10"), since how
    they share its probability is unknown. "n/a" is no score: the probabilities are conditional on another answer.
    """
    named = {name.casefold(): verdict for name, verdict in answers.items()}
    text = reply.text.strip().casefold()
    if reply.tokens is None or text not in named or named[text] == NOT_APPLICABLE:
        return None, False
    generated = "".join(token for token, _ in reply.tokens).strip().casefold()
    first = next(((token, alternatives) for token, alternatives in reply.tokens if token.strip()), None)
    if first is None or generated != text or not sound(*first):
        return None, True
    mass: dict[str, float] = dict.fromkeys(named, 0.0)
    for token, logprob in first[1].items():
        matches = [name for name in named if token.strip() and name.startswith(token.strip().casefold())]
        partial = "\ufffd" in token and not "".join(named).isascii()  # some bytes of a character, which may begin any answer
        if len(matches) > 1 or partial:
            return None, False
        if matches:
            mass[matches[0]] += math.exp(logprob)
    scores = {f"{verdict:g}": mass[name] for name, verdict in named.items() if verdict != NOT_APPLICABLE}
    total = math.fsum(scores.values())
    unknown = len(first[1]) < 2 or not total
    return (None if unknown else {score: share / total for score, share in scores.items()}), False


def escaped(text: str) -> str:
    """A text escaped for a server's regular expression, but not its blanks: some servers know no escape for them."""
    return re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", text)


def form(rubric: Rubric, names: Sequence[str], language: Language) -> tuple[str, str]:
    """The longest answer about these dimensions, a line each under its label, and a regular expression of all answers."""
    answers = [(rubric.label(name, language), list(rubric.answers(name, language))) for name in names]
    longest = (f"{label}: {max(texts, key=lambda text: len(text.encode()))}" for label, texts in answers)
    patterns = (f"{escaped(label)}: ({'|'.join(map(escaped, texts))})" for label, texts in answers)
    return "\n".join(longest), r"\n".join(patterns)


def check_lines(rubric: Rubric, read_sample: Callable[[Language], Mapping[str, Any]], method: str) -> None:
    """Raise `UserError` for labels whose lines cannot be recognised in an answer: they are used twice, contain a colon or begin
    with a number. `read_sample` reads a well-formed answer in a language, by dimension."""
    for language in rubric.languages:
        readable = read_sample(language)
        unread = [
            f"dimensions.{key}.label.{language}: {rubric.label(key, language)!r}"
            for key in rubric.dimensions
            if key not in readable
        ]
        if unread:
            raise UserError(
                f"rubric {rubric.name}: {', '.join(unread)}: method {method} finds a line by its label or key: use one that "
                "no other dimension has, without a colon, that begins with a letter"
            )


def check_joint(rubric: Rubric, method: str = "joint") -> None:
    """`check_lines`, if the rubric's answers are lines."""
    keys = list(rubric.dimensions)
    if not rubric.digits:
        check_lines(rubric, lambda code: _read_lines(form(rubric, keys, code)[0], rubric, keys, code), method)
