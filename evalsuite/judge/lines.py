"""Method `lines`: one request, in the words of a published prompt pack; the answer has a line `LABEL: NUMBER` for every
dimension (MindEval's judge).

A dimension's score is the number after the first occurrence of its label and a colon, anywhere in the answer. It may lie
between two scores of the scale. A number off the scale is no score, and a dimension that the answer does not name has none.
"""

import re

from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from evalsuite.judge.judge import Judge, NoVerdict
from evalsuite.judge.methods import Method


def numbers_in(text: str, rubric: Rubric, language: Language) -> dict[str, float]:
    """Dimension → the number after its label in an answer, on the scale or not. Dimensions without one are left out."""
    labels = {name: re.escape(rubric.label(name, language)) for name in rubric.dimensions}
    matches = {name: re.search(rf"{label}:\s*([0-9]+\.?[0-9]*)", text) for name, label in labels.items()}
    return {name: float(match[1]) for name, match in matches.items() if match}


def scores_in(text: str, rubric: Rubric, language: Language) -> dict[str, float]:
    """Those of `numbers_in` that are on the scale."""
    numbers, scales = numbers_in(text, rubric, language), rubric.scales
    return {name: number for name, number in numbers.items() if scales[name].min <= number <= scales[name].max}


async def _score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
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


by_lines = Method(_score, on_scale=False)
