"""Methods `paper`, `joint` and `per_dimension`: a judge answers with one digit per dimension. Rubrics whose scores are not
digits are left to `evalsuite.judge.words`.

If the server reports token probabilities, every score comes with its distribution and expected value.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

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
from serve.questions import closed_object

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
    # The first request puts the dialogue into the server's prefix cache for the others.
    ahead = 1 if judge.method == "per_dimension" else 0
    first = [await _scored(judge, dialogue, name, [name]) for name in names[:ahead]]
    others = await together(_scored(judge, dialogue, name, [name]) for name in names[ahead:])
    return [judgement for judgements in (*first, *others) for judgement in judgements]


async def _scored(judge: Judge, dialogue: Dialogue, sample: str, names: Sequence[str]) -> list[Judgement]:
    """The judgements on the dimensions that one request asks for. `sample` is the dimension, or "all"."""
    if not judge.rubric.digits:
        return await words.scored(judge, dialogue, sample, names)
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
        readable=lambda text: _read(judge, text, names) is not None,
    )
    if isinstance(answer, NoVerdict):
        return [judge.judgement(dialogue, name, answer.raw, failure=answer.reason) for name in names]
    scores = _read(judge, answer.text, names)
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


def _read(judge: Judge, text: str, names: Sequence[str]) -> list[int] | None:
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
        scores = _read_lines(text, judge.rubric, names)
    if len(names) == 1 and not scores:
        nameless = [value for key, value in (last_object(text) or {}).items() if plain(key) in NAMELESS]
        return nameless if len(nameless) == 1 and type(nameless[0]) is int and nameless[0] in scales[0].scores else None
    return [scores[name] for name in names] if all(name in scores for name in names) else None


def _read_lines(text: str, rubric: Rubric, names: Sequence[str]) -> dict[str, int]:
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


def check_joint(rubric: Rubric) -> None:
    """Raise `UserError` for a tree, and for labels that no line could be recognised by."""
    no_tree(rubric)
    words.check_joint(rubric)


def check_paper(rubric: Rubric) -> None:
    """Raise `UserError` for scores that are not digits, which the published parser would confuse."""
    no_tree(rubric)
    if not rubric.digits:
        raise UserError(f"rubric {rubric.name}: paper mode reads one digit per dimension: leave out `mode: paper`")


joint = Method(score, check=check_joint)
per_dimension = Method(score, by_dimension=True)
paper = Method(score, check=check_paper, by_dimension=True)
