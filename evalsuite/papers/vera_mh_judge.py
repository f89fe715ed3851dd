"""The published judge of VERA-MH, which answers a tree's questions in words and is read by the first option in them.

Odd in it: "Not Relevant" contains "No" and is read as that; an answer that is not in the form asked counts as the first option;
and an answer with no option in it ends the walk, unless it begins with yes or no (the rubric's answers that are not offered).
"""

from __future__ import annotations

from collections.abc import Sequence

from core.languages import of
from core.records import Dialogue, Judgement
from evalsuite.judge.judge import Judge, NoVerdict
from evalsuite.judge.methods import Method
from evalsuite.judge.tree import check_tree, walk
from serve.questions import Question


def read_published(text: str, options: Sequence[str]) -> str:
    """The published parser: the first option that occurs in the answer, else its first word."""
    if "ANSWER:" not in text:
        return options[0]
    answer = text.split("ANSWER:", 1)[1].split("REASONING:")[0].strip()
    found = next((option for option in options if option.lower() in answer.lower()), None)
    return found or (answer.split()[0] if answer else options[0])


async def _published(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    prompts, language, tree = judge.prompts, dialogue.language, judge.rubric.questions or {}
    talk = prompts.text(language, "transcript_paper.j2", turns=dialogue.turns)
    system = prompts.text(language, "judge_tree_paper_system.j2", conversation=talk)

    async def answered(key: str) -> Judgement:
        question = tree[key]
        offered = [name for name, answer in question.answers.items() if answer.offered]
        texts = (of(by, language, "questions") if by else "" for by in (question.text, question.examples))
        values = dict(zip(("question_text", "examples_text"), texts, strict=True), options_str=", ".join(offered))
        asked = prompts.text(language, "judge_tree_paper.j2", **values)
        answer = await judge.reply(
            Question(
                [{"role": "system", "content": system}, {"role": "user", "content": asked}],
                sample={"dialogue": dialogue.id, "dimension": key, "repeat": judge.repeat},
                sampling=judge.spec.sampling,
                served_name=judge.spec.served_name(language, key),
                purpose="judge",
                session=dialogue.id,
            )
        )
        if isinstance(answer, NoVerdict):
            return judge.judgement(dialogue, key, answer.raw, failure=answer.reason)
        if not answer.text.strip():  # the published judge takes the first option: nobody said it
            return judge.judgement(dialogue, key, answer.text)
        said, levels = read_published(answer.text, offered), judge.rubric.scale_of(key).levels or {}
        return judge.judgement(dialogue, key, answer.text, levels.get(said, levels.get(said.lower())))

    return await walk(judge, dialogue, answered, cut_short=True)


tree_paper = Method(_published, check=check_tree)
