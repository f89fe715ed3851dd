"""Methods `paper`, `joint` and `per_dimension`: a judge answers with one digit a dimension.

Where the server reports token probabilities, every score comes with its distribution and expected value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import orjson

from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement
from core.rubrics import Scale
from evalsuite.judge.base import BaseJudge, NoVerdict
from serve.answers import Reply, choice_probabilities
from serve.batch import together
from serve.dialect import closed_object
from serve.questions import Question


async def score(judge: BaseJudge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement a dimension, in the rubric's order."""
    names = list(judge.rubric.dimensions)
    if judge.method == "joint":
        return await _scored(judge, dialogue, "all", names)
    # One request warms the server's prefix cache with the dialogue; the others share it.
    ahead = 1 if judge.method == "per_dimension" else 0
    first = [await _scored(judge, dialogue, name, [name]) for name in names[:ahead]]
    others = await together(_scored(judge, dialogue, name, [name]) for name in names[ahead:])
    return [judgement for judgements in (*first, *others) for judgement in judgements]


async def _scored(judge: BaseJudge, dialogue: Dialogue, sample: str, names: Sequence[str]) -> list[Judgement]:
    """The judgements on the dimensions that one request asks for; `sample` is one dimension, or "all"."""
    answer = await _ask(judge, dialogue, sample, names)
    if isinstance(answer, NoVerdict):
        return [judge.judgement(dialogue, name, answer.raw, failure=answer.reason) for name in names]
    scales = [judge.rubric.scale_of(name) for name in names]
    scores = _read(judge, answer.text, names)
    if scores is None:
        return [judge.judgement(dialogue, name, answer.text) for name in names]
    tokens = digit_distributions(answer, scales)
    if len(names) == 1:  # free text may hold other digits before the verdict's
        tokens = [token for token in tokens if token[0] == scores[0]][:1]
    # Tokenizers that merge digits ("32") give no distribution a dimension; the digits still stand.
    same = [score for score, _ in tokens] == scores
    distributions = [distribution for _, distribution in tokens] if same else [None] * len(names)
    broken = same or of_another_text(answer)
    return [
        judge.judgement(dialogue, name, answer.text, score, distribution, broken=broken and distribution is None)
        for name, score, distribution in zip(names, scores, distributions, strict=True)
    ]


async def _ask(judge: BaseJudge, dialogue: Dialogue, sample: str, names: Sequence[str]) -> Reply | NoVerdict:
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


def _read(judge: BaseJudge, text: str, names: Sequence[str]) -> list[int] | None:
    """The scores in an answer, one for each dimension; None where they cannot be read."""
    scales = [judge.rubric.scale_of(name) for name in names]
    if judge.method == "paper":
        score = paper_score(text, scales[0].scores)
        return None if score is None else [score]
    # Digits alone, or parted by white space or commas, or an object of them. Anything else is unread.
    digits = re.sub(r"[\s,，、]+", "", text)
    if re.fullmatch(digits_regex(scales), digits, re.ASCII):
        return [int(digit) for digit in digits]
    return _read_object(text, names, scales)


def _read_object(text: str, names: Sequence[str], scales: Sequence[Scale]) -> list[int] | None:
    """The scores in a JSON object by dimension; None for anything else."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or value.keys() != set(names):
        return None
    scores = [value[name] for name in names]
    sound = all(type(score) is int and score in scale.scores for score, scale in zip(scores, scales, strict=True))
    return scores if sound else None


def paper_score(reply: str, scores: Sequence[int]) -> int | None:
    """The published parser: the first label, tried in ascending order, that occurs anywhere in the reply.

    Odd: "4, as there are 0 faults" is read as 0. The published code gives -1 where there is none; here it is None.
    """
    return next((score for score in scores if str(score) in reply), None)


def digit_distributions(reply: Reply, scales: Sequence[Scale]) -> list[tuple[int, dict[str, float] | None]]:
    """(score, distribution) for every token of a reply that is exactly one score of its scale.

    The first such token is on the first of `scales`, the second on the second, and so on; further ones are on the last. The
    distribution is None where the figures cannot be log-probabilities of that token.
    """
    scores: list[tuple[int, dict[str, float] | None]] = []
    for token, alternatives in reply.tokens or []:
        labels = [str(score) for score in scales[min(len(scores), len(scales) - 1)].scores]
        if token.strip() in labels:
            scores.append((int(token), choice_probabilities(token, alternatives, labels)))
    return scores


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
