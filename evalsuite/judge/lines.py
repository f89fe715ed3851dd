"""Method `lines`: one request in the words of a published pack; the answer has a line `LABEL: NUMBER` for every dimension
(MindEval's judge).

The first place where a label, a colon and a number follow each other is that dimension's score, wherever it stands; between two
scores of the scale as well. A number off the scale is no score, nor is a dimension scored that the answer does not name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from evalsuite.judge.judge import Judge, NoVerdict
from evalsuite.judge.methods import Method
from serve.questions import Question


def numbers_in(text: str, rubric: Rubric, language: Language) -> dict[str, float]:
    """Dimension → the number after its label, as it stands in an answer, for those that have one."""
    labels = {name: re.escape(rubric.label(name, language)) for name in rubric.dimensions}
    found = {name: re.search(rf"{label}:\s*([0-9]+\.?[0-9]*)", text) for name, label in labels.items()}
    return {name: float(match[1]) for name, match in found.items() if match}


def scores_in(text: str, rubric: Rubric, language: Language) -> dict[str, float]:
    """`numbers_in` that are on the scale."""
    scales: Mapping[str, tuple[float, float]] = {name: (scale.min, scale.max) for name, scale in rubric.scales.items()}
    found = numbers_in(text, rubric, language)
    return {name: number for name, number in found.items() if scales[name][0] <= number <= scales[name][1]}


async def _score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    rubric, language, names = judge.rubric, dialogue.language, list(judge.rubric.dimensions)
    more = {"transcript": judge.shown.transcript(dialogue), **judge.shown.more(dialogue)}
    answer = await judge.reply(
        Question(
            judge_messages(judge.prompts, rubric, dialogue, judge.method, names, more),
            sample={"dialogue": dialogue.id, "dimension": "all", "repeat": judge.repeat},
            sampling=judge.spec.sampling,
            served_name=judge.spec.served_name(language, "all"),
            purpose="judge",
            session=dialogue.id,
            readable=lambda text: len(scores_in(text, rubric, language)) == len(names),
        )
    )
    if isinstance(answer, NoVerdict):
        return [judge.judgement(dialogue, name, answer.raw, failure=answer.reason) for name in names]
    scores = scores_in(answer.text, rubric, language)
    return [judge.judgement(dialogue, name, answer.text, scores.get(name)) for name in names]


by_lines = Method(_score, on_scale=False)
