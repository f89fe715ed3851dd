"""Methods `paper`, `joint` and `per_dimension`: a judge answers with one digit per dimension, else by `evalsuite.judge.words`.

Where the server reports token probabilities, every score comes with its distribution and expected value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement
from core.rubrics import Rubric, Scale
from evalsuite.judge import words
from evalsuite.judge.json_answers import last_object, names_of, plain, read_answer
from evalsuite.judge.judge import Judge, NoVerdict
from evalsuite.judge.methods import Method, no_tree
from evalsuite.judge.words import AROUND, NAMELESS
from serve.answers import Reply, Tokens, choice_probabilities, sound
from serve.batch import together
from serve.questions import Question, closed_object

_DIGIT = re.compile("[0-9]")
_LINE = re.compile(
    r"[#>|*_`\s-]{0,9}(?:[0-9]{1,2}[.)、]\s?)?[*_`|\s\"']{0,9}"
    r"(?:(?P<label>[^0-9:：=|*/]{1,60}?)[\s*_`\"']{0,9}[:：=|–—-]{1,3}[\s*_`\"']{0,9})?"
    r"(?P<score>[0-9])(?:\s?(?:/|out of)\s?(?P<most>[0-9]))?\s?分?(?![.,/-]?[0-9])[^0-9]*"
)


async def score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement per dimension, in the rubric's order."""
    names = list(judge.rubric.dimensions)
    if judge.method == "joint":
        return await _scored(judge, dialogue, "all", names)
    # One request warms the server's prefix cache with the dialogue; the others share it.
    ahead = 1 if judge.method == "per_dimension" else 0
    first = [await _scored(judge, dialogue, name, [name]) for name in names[:ahead]]
    others = await together(_scored(judge, dialogue, name, [name]) for name in names[ahead:])
    return [judgement for judgements in (*first, *others) for judgement in judgements]


async def _scored(judge: Judge, dialogue: Dialogue, sample: str, names: Sequence[str]) -> list[Judgement]:
    """The judgements on the dimensions that one request asks for; `sample` is one dimension, or "all"."""
    if not judge.rubric.digits:
        return await words.scored(judge, dialogue, sample, names)
    answer = await _ask(judge, dialogue, sample, names)
    if isinstance(answer, NoVerdict):
        return [judge.judgement(dialogue, name, answer.raw, failure=answer.reason) for name in names]
    scales = [judge.rubric.scale_of(name) for name in names]
    scores = _read(judge, answer.text, names)
    if scores is None:
        return [judge.judgement(dialogue, name, answer.text) for name in names]
    tokens, lost = verdict_tokens(answer.tokens or [], names, scores), of_another_text(answer)
    return [
        judge.judgement(
            dialogue,
            name,
            answer.text,
            score,
            token and choice_probabilities(*token, map(str, scale.scores)),
            broken=lost or bool(token and not sound(*token)),
        )
        for name, score, scale, token in zip(names, scores, scales, tokens, strict=True)
    ]


async def _ask(judge: Judge, dialogue: Dialogue, sample: str, names: Sequence[str]) -> Reply | NoVerdict:
    """The reply on these dimensions, or the reason why there is none."""
    scales = [judge.rubric.scale_of(name) for name in names]
    held = judge.method != "paper"
    return await judge.reply(
        Question(
            judge_messages(judge.prompts, judge.rubric, dialogue, judge.method, names),
            sample={"dialogue": dialogue.id, "dimension": sample, "repeat": judge.repeat},
            sampling=judge.spec.sampling,
            served_name=judge.spec.served_name(dialogue.language, sample),
            purpose="judge",
            choices=tuple(map(str, scales[0].scores)) if held and len(names) == 1 else None,
            regex=digits_regex(scales) if held and len(names) > 1 else None,
            schema=closed_object({n: _integer(scale) for n, scale in zip(names, scales, strict=True)}) if held else None,
            # As long as its digits; free text gets the spec's own limit.
            held_tokens=len(names) + 1,
            logprobs=True,
            session=dialogue.id,
            readable=lambda text: _read(judge, text, names) is not None,
        )
    )


def _integer(scale: Scale) -> dict[str, Any]:
    return {"type": "integer", "enum": list(scale.scores)}


def _read(judge: Judge, text: str, names: Sequence[str]) -> list[int] | None:
    """The scores in an answer, one for each dimension; None where they cannot be read."""
    scales = [judge.rubric.scale_of(name) for name in names]
    if judge.method == "paper":
        score = paper_score(text, [int(score) for score in scales[0].scores])
        return None if score is None else [score]
    # Digits alone, or parted by white space or commas; or what a judge that was asked in words says with as little doubt.
    digits = re.sub(r"[\s,，、]+", "", text.strip(AROUND))
    if re.fullmatch(digits_regex(scales), digits, re.ASCII):
        return [int(digit) for digit in digits]
    found = _digits_in(text, judge.rubric) if "{" in text else _read_lines(text, judge.rubric, names)
    if len(names) == 1 and not found:
        nameless = [value for key, value in (last_object(text) or {}).items() if plain(key) in NAMELESS]
        return nameless if len(nameless) == 1 and type(nameless[0]) is int and nameless[0] in scales[0].scores else None
    return [found[name] for name in names] if all(name in found for name in names) else None


def _digits_in(text: str, rubric: Rubric) -> dict[str, int]:
    return {name: int(score) for name, score in read_answer(text, rubric).scores.items()}


def _read_lines(text: str, rubric: Rubric, names: Sequence[str]) -> dict[str, int]:
    """Scores in lines as `2. Empathy: 3/4`: every line with a digit is one of a dimension, or ends in a colon, and no dimension
    has two. A lone dimension need not be named."""
    found: dict[str, int] = {}
    for line in map(str.strip, filter(_DIGIT.search, text.splitlines())):
        if line.rstrip("*_ ").endswith((":", "：")):
            continue
        said = _LINE.fullmatch(line)
        label = plain(said["label"] or "") if said else ""
        key = next((name for name in names if label in names_of(rubric, name)), None)
        if key is None and len(names) == 1 and label in ("", *NAMELESS):
            key = names[0]
        if said is None or key is None or key in found:
            return {}
        scale, score, most = rubric.scale_of(key), int(said["score"]), said["most"]
        if score not in scale.scores or (most and int(most) != scale.max):
            return {}
        found[key] = score
    return found


def paper_score(reply: str, scores: Sequence[int]) -> int | None:
    """The published parser: the first label, tried in ascending order, that occurs anywhere in the reply.

    Odd: "4, as there are 0 faults" is read as 0. The published code gives -1 where there is none; here it is None.
    """
    return next((score for score in scores if str(score) in reply), None)


def verdict_tokens(tokens: Tokens, names: Sequence[str], scores: Sequence[int]) -> list[tuple[str, dict[str, float]] | None]:
    """For each score that was read in an answer the token, of all the answer's, that is this score and nothing else.

    None where that is not certain: tokenizers merge digits ("32"), and words around a score may hold it, too.
    """
    starts, written = dict[int, tuple[str, dict[str, float]]](), ""
    for token, alternatives in tokens:
        if spelled := "".join(token.split()):
            starts[len(written)] = (token, alternatives)
            written += spelled
    if len(names) == 1:
        places = [match.start() for match in re.finditer(str(scores[0]), written)]
    elif re.search(r"[^\W\d_]", written):  # an object: its keys may come in any order
        places = [match.end() - 1 for name in names for match in re.finditer(rf'"{re.escape(name)}":"?[0-9]', written)]
    else:
        places = [match.start() for match in _DIGIT.finditer(written)]
    found = [starts.get(place) for place in places] if len(places) == len(names) else [None] * len(names)
    return [token if token and token[0].strip() == str(score) else None for token, score in zip(found, scores, strict=True)]


def digits_regex(scales: Iterable[Scale]) -> str:
    """As many digits as there are scales, each from its own."""
    runs = ((scale, sum(1 for _ in run)) for scale, run in groupby(scales))
    return "".join(f"[{scale.min}-{scale.max}]{{{count}}}" for scale, count in runs)


def of_another_text(reply: Reply) -> bool:
    """Whether a server reported tokens that are not those of the text, or nothing that is a list of tokens."""
    if reply.tokens is None:
        return False
    text, tokens = (re.sub(r"[^0-9]+", "", text) for text in (reply.text, "".join(token for token, _ in reply.tokens)))
    return not reply.tokens or text not in tokens


def check_joint(rubric: Rubric) -> None:
    """Raise `UserError` for a tree, and for labels by which no line could be found."""
    no_tree(rubric)
    words.check_joint(rubric)


def check_paper(rubric: Rubric) -> None:
    """Raise `UserError` for a scale whose scores the published parser confuses: it looks for a digit anywhere."""
    no_tree(rubric)
    if not rubric.digits:
        raise UserError(f"rubric {rubric.name}: paper mode reads one digit per dimension: leave out mode: paper")


joint = Method(score, check=check_joint)
per_dimension = Method(score, by_dimension=True)
paper = Method(score, check=check_paper, by_dimension=True)
