"""Methods `paper`, `joint` and `per_dimension`: a judge answers with one digit per dimension; in rubrics whose scores are not
digits, with scores of 10 and more, halves, named levels or "n/a": alone if one dimension is asked about, or one line each:
`Warmth: 7`.

If the server reports token probabilities, every score comes with its distribution and expected value.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric, Scale
from core.scales import NOT_APPLICABLE, Verdict
from evalsuite.judge.json_answers import answer_value, last_object, names_of, plain, read_answer
from evalsuite.judge.judge import Judge, NoVerdict
from evalsuite.judge.methods import Method, no_tree
from serve.answers import Reply, Tokens, choice_probabilities, sound
from serve.batch import together
from serve.questions import closed_object

_DIGIT = re.compile("[0-9]")
_LINE = re.compile(
    r"[#>|*_`\s-]{0,9}(?:[0-9]{1,2}(?:\.(?![0-9])|[)、])\s?)?[*_`|\s\"']{0,9}"
    r"(?:(?P<label>[^0-9:：=|*/]{1,60}?)[\s*_`\"']{0,9}[:：=|–—-]{1,3}[\s*_`\"']{0,9})?"
    r"(?P<score>[0-9])(?:\s?(?:/|out of)\s?(?P<most>[0-9]))?\s?分?(?![.,/-]?[0-9])[^0-9]*"
)
AROUND = " .。*`\"'[]()▁Ġ\t\r\n"  # characters without meaning around a verdict
NAMELESS = ("score", "rating", "得分", "评分", "分数")  # names for the only dimension asked about
MARKS = "*" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_NAMELESS = (*NAMELESS, "answer", "回答")


async def score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement per dimension, in the rubric's order."""
    names = list(judge.rubric.dimensions)
    if judge.method == "joint":
        return await _digits(judge, dialogue, "all", names)
    # The first request puts the dialogue into the server's prefix cache for the others.
    ahead = 1 if judge.method == "per_dimension" else 0
    first = [await _digits(judge, dialogue, name, [name]) for name in names[:ahead]]
    others = await together(_digits(judge, dialogue, name, [name]) for name in names[ahead:])
    return [judgement for judgements in (*first, *others) for judgement in judgements]


async def _digits(judge: Judge, dialogue: Dialogue, sample: str, names: Sequence[str]) -> list[Judgement]:
    """The judgements on the dimensions that one request asks for. `sample` is the dimension, or "all"."""
    if not judge.rubric.digits:
        return await scored(judge, dialogue, sample, names)
    scales = [judge.rubric.scale_of(name) for name in names]
    constrained = judge.method != "paper"
    integers = {n: {"type": "integer", "enum": list(scale.scores)} for n, scale in zip(names, scales, strict=True)}
    answer = await judge.ask(
        dialogue,
        judge_messages(judge.prompts, judge.rubric, dialogue, judge.method, names),
        {"dimension": sample},
        adapter=sample,
        choices=tuple(map(str, scales[0].scores)) if constrained and len(names) == 1 else None,
        regex=digits_regex(scales) if constrained and len(names) > 1 else None,
        schema=closed_object(integers) if constrained else None,
        held_tokens=len(names) + 1,  # only for a constrained answer: free text has the spec's own limit
        logprobs=True,
        readable=lambda text: _digits_in(judge, text, names) is not None,
    )
    if isinstance(answer, NoVerdict):
        return [judge.judgement(dialogue, name, answer.raw, failure=answer.reason) for name in names]
    scores = _digits_in(judge, answer.text, names)
    if scores is None:
        return [judge.judgement(dialogue, name, answer.text) for name in names]
    tokens, broken = verdict_tokens(answer.tokens or [], names, scores), of_another_text(answer)
    return [
        judge.judgement(
            dialogue,
            name,
            answer.text,
            score,
            token and choice_probabilities(*token, map(str, scale.scores)),
            broken=broken or bool(token and not sound(*token)),
        )
        for name, score, scale, token in zip(names, scores, scales, tokens, strict=True)
    ]


def _digits_in(judge: Judge, text: str, names: Sequence[str]) -> list[int] | None:
    """The scores in an answer, one for each dimension; None if they cannot be read."""
    scales = [judge.rubric.scale_of(name) for name in names]
    if judge.method == "paper":
        digit = paper_score(text, [int(score) for score in scales[0].scores])
        return None if digit is None else [digit]
    # Digits, perhaps separated by white space or commas; or an object or lines that are just as clear.
    digits = re.sub(r"[\s,，、]+", "", text.strip(AROUND))
    if re.fullmatch(digits_regex(scales), digits, re.ASCII):
        return [int(digit) for digit in digits]
    if "{" in text:
        scores = {name: int(score) for name, score in read_answer(text, judge.rubric).scores.items()}
    else:
        scores = _digits_in_lines(text, judge.rubric, names)
    if len(names) == 1 and not scores:
        nameless = [value for key, value in (last_object(text) or {}).items() if plain(key) in NAMELESS]
        return nameless if len(nameless) == 1 and type(nameless[0]) is int and nameless[0] in scales[0].scores else None
    return [scores[name] for name in names] if all(name in scores for name in names) else None


def _digits_in_lines(text: str, rubric: Rubric, names: Sequence[str]) -> dict[str, int]:
    """Scores in lines like `2. Empathy: 3/4`. Every line with a digit must score a dimension or end in a colon, and no
    dimension may have two. A single dimension need not be named."""
    scores: dict[str, int] = {}
    for line in map(str.strip, filter(_DIGIT.search, text.splitlines())):
        if line.rstrip("*_ ").endswith((":", "：")):
            continue
        match = _LINE.fullmatch(line)
        label = plain(match["label"] or "") if match else ""
        key = next((name for name in names if label in names_of(rubric, name)), None)
        if key is None and len(names) == 1 and label in ("", *NAMELESS):
            key = names[0]
        if match is None or key is None or key in scores:
            return {}
        scale, score, most = rubric.scale_of(key), int(match["score"]), match["most"]
        if score not in scale.scores or (most and int(most) != scale.max):
            return {}
        scores[key] = score
    return scores


def paper_score(reply: str, scores: Sequence[int]) -> int | None:
    """The published parser: the lowest score whose digit occurs anywhere in the reply; None (published: -1) if none does. So
    "4, as there are 0 faults" is read as 0."""
    return next((score for score in scores if str(score) in reply), None)


def verdict_tokens(tokens: Tokens, names: Sequence[str], scores: Sequence[int]) -> list[tuple[str, dict[str, float]] | None]:
    """For each score that was read, its token in the answer, with its alternatives. None if that is uncertain: tokenizers merge
    digits ("32"), and the words around a score may contain its digit."""
    starts, written = dict[int, tuple[str, dict[str, float]]](), ""
    for token, alternatives in tokens:
        if spelled := "".join(token.split()):
            starts[len(written)] = (token, alternatives)
            written += spelled
    if len(names) == 1:
        places = [match.start() for match in re.finditer(str(scores[0]), written)]
    elif re.search(r"[^\W\d_]", written):  # an object, whose keys may be in any order
        places = [match.end() - 1 for name in names for match in re.finditer(rf'"{re.escape(name)}":"?[0-9]', written)]
    else:
        places = [match.start() for match in _DIGIT.finditer(written)]
    digits = [starts.get(place) for place in places] if len(places) == len(names) else [None] * len(names)
    return [token if token and token[0].strip() == str(score) else None for token, score in zip(digits, scores, strict=True)]


def digits_regex(scales: Iterable[Scale]) -> str:
    """A pattern of as many digits as there are scales, each from its own scale."""
    runs = ((scale, sum(1 for _ in run)) for scale, run in groupby(scales))
    return "".join(f"[{scale.min}-{scale.max}]{{{count}}}" for scale, count in runs)


def of_another_text(reply: Reply) -> bool:
    """Whether the tokens that a server reported are not those of the text, or are none at all."""
    if reply.tokens is None:
        return False
    text, tokens = (re.sub(r"[^0-9]+", "", text) for text in (reply.text, "".join(token for token, _ in reply.tokens)))
    return not reply.tokens or text not in tokens


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
        verdicts = _lines_digits_in(text, rubric, names, language)
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


def _lines_digits_in(text: str, rubric: Rubric, names: Sequence[str], language: Language) -> dict[str, Verdict]:
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


def check_answers(rubric: Rubric, method: str) -> None:
    """`check_lines`, if the rubric's answers are lines."""
    keys = list(rubric.dimensions)
    if not rubric.digits:
        check_lines(rubric, lambda code: _lines_digits_in(form(rubric, keys, code)[0], rubric, keys, code), method)


def check_joint(rubric: Rubric) -> None:
    """Raise `UserError` for a tree, and for labels that no line could be recognised by."""
    no_tree(rubric)
    check_answers(rubric, "joint")


def check_paper(rubric: Rubric) -> None:
    """Raise `UserError` for scores that are not digits, which the published parser would confuse."""
    no_tree(rubric)
    if not rubric.digits:
        raise UserError(f"rubric {rubric.name}: paper mode reads one digit per dimension: leave out `mode: paper`")


joint = Method(score, check=check_joint)
per_dimension = Method(score, by_dimension=True)
paper = Method(score, check=check_paper, by_dimension=True)
