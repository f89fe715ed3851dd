"""Method `bands`: a judge gives the probability of every score of every dimension (FEEL, section 3.3).

One request asks for all dimensions, a line each (`evalsuite.judge.band_lines` reads them). A round's score is the mean of
that distribution (the inner sum of equation 1). Rounds are calls of their own (`repeat`); `evalsuite.papers.feel.ensemble`
averages them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.scales import COUNTED, NOT_APPLICABLE, not_applicable, word
from evalsuite.judge.band_lines import lines_of, read_bands
from evalsuite.judge.json_answers import last_object
from evalsuite.judge.judge import Judge
from evalsuite.judge.methods import Method, no_tree
from evalsuite.judge.words import check_lines, escaped
from serve.answers import Reply
from serve.batch import together
from serve.questions import Question


async def score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement per dimension and round, rounds in order; `value` is the mean of the distribution."""
    # One request warms the server's prefix cache with the dialogue; the other rounds share it.
    first = await _round(judge, dialogue, 0)
    others = await together(_round(judge, dialogue, repeat) for repeat in range(1, judge.bands.rounds))
    return [judgement for judgements in (first, *others) for judgement in judgements]


async def _round(judge: Judge, dialogue: Dialogue, repeat: int) -> list[Judgement]:
    rubric, spec, keys = judge.rubric, judge.spec, list(judge.rubric.dimensions)
    # A token is a byte or more: what is asked for fits, whatever the tokenizer.
    room = max(spec.sampling.max_tokens, len(_answer(rubric, dialogue.language).encode()) + 1)
    answer = await judge.reply(
        Question(
            judge_messages(judge.prompts, rubric, dialogue, "bands", keys),
            sample={"dialogue": dialogue.id, "dimension": "bands", "repeat": repeat},
            sampling=spec.sampling.model_copy(update={"max_tokens": room}),
            served_name=spec.served_name(dialogue.language),
            purpose="judge",
            regex=answer_regex(rubric, dialogue.language),
            session=dialogue.id,
            readable=lambda text: None not in _distributions(judge, dialogue, text).values(),
        )
    )
    if isinstance(answer, Reply):
        read = _distributions(judge, dialogue, answer.text).items()
        judgements = [
            judge.judgement(dialogue, key, answer.text, one)
            if one == NOT_APPLICABLE
            else judge.judgement(dialogue, key, answer.text, distribution=one)
            for key, one in read
        ]
    else:
        judgements = [judge.judgement(dialogue, key, answer.raw, failure=answer.reason) for key in keys]
    # The verdict is the mean and no whole score: equation 1.
    return [judgement.model_copy(update={"value": judgement.expected, "repeat": repeat}) for judgement in judgements]


def _distributions(judge: Judge, dialogue: Dialogue, text: str) -> dict[str, dict[str, float] | Literal["n/a"] | None]:
    """Dimension → probabilities, or "n/a"; None where an answer's line cannot be read. A JSON object may stand in place of the
    lines."""
    if found := last_object(text):
        said = {
            name: " ".join(f"{score}={p}" for score, p in told.items()) if isinstance(told, dict) else told
            for name, told in found.items()
        }
        text = "\n".join(f"{name}: {told}" for name, told in said.items())
    rubric, read = judge.rubric, read_bands(text, judge.rubric, dialogue.language)
    found_as: dict[str, dict[str, float] | Literal["n/a"] | None] = {}
    found_as |= {key: line.distribution(judge.bands.off_sum) if line else None for key, line in read.items()}
    for key, told in lines_of(text, rubric, list(rubric.dimensions), dialogue.language).items():
        if rubric.dimensions[key].not_applicable and not_applicable(told):
            found_as[key] = NOT_APPLICABLE
    return found_as


def check_labels(rubric: Rubric) -> None:
    """Raise `UserError` for a scale of more scores than one can give probabilities, and for labels as `check_lines` does."""
    no_tree(rubric)
    for key, scale in rubric.scales.items():
        if len(scale.scores) > COUNTED:
            raise UserError(
                f"rubric {rubric.name}: dimensions.{key}.scale: {len(scale.scores)} scores are too many to give each a "
                f"probability: method bands takes up to {COUNTED}, the others take any scale"
            )
    read = {code: read_bands(_answer(rubric, code), rubric, code) for code in rubric.languages}
    check_lines(rubric, lambda code: {key: line for key, line in read[code].items() if line}, "bands")


def answer_regex(rubric: Rubric, language: Language) -> str:
    """What a server that constrains may answer: the asked lines with numbers of two decimals. No regular expression makes them
    sum to 1: that stays with the model, and with the rule for those that do not."""
    number = r"(0\.[0-9][0-9]|1\.00)"
    return r"\n".join(_lines(rubric, language, number, escaped))


def _answer(rubric: Rubric, language: Language) -> str:
    """An answer of the asked form; with numbers of two decimals all are as long."""
    return "\n".join(_lines(rubric, language, "0.00"))


def _lines(rubric: Rubric, language: Language, number: str, written: Callable[[str], str] = str) -> Iterator[str]:
    """A line for each dimension under its label: `number` for every score of its scale, or in a pattern also "n/a"."""
    for key, dimension in rubric.dimensions.items():
        scale = rubric.scale_of(key)
        scores = " ".join(f"{written(scale.name(score, language))}={number}" for score in scale.scores)
        nothing = dimension.not_applicable and written is escaped
        told = f"({scores}|{word(NOT_APPLICABLE, language)})" if nothing else scores
        yield f"{written(rubric.label(key, language))}: {told}"


by_bands = Method(score, check=check_labels)
