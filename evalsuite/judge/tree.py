"""Methods `tree` and `tree_once`: the questions of a rubric that is a tree, one call for each that is reached, or one for all.

Questions that are not reached have no verdict, and no call or answer counts for them. The outcome is the sum of the points of
the answers on the way; it has none where an answer on the way could not be read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from core.errors import UserError
from core.records import Dialogue, Judgement
from core.rubrics import Rubric
from core.trees import OUTCOME
from evalsuite.judge.judge import Judge
from evalsuite.judge.methods import Method
from evalsuite.judge.words import check_joint, scored


async def _each(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    async def answered(key: str) -> Judgement:
        return (await scored(judge, dialogue, key, [key]))[0]

    return await _walk(judge, dialogue, answered)


async def _once(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    answers = {one.dimension: one for one in await scored(judge, dialogue, "all", list(judge.rubric.questions or ()))}

    async def answered(key: str) -> Judgement:
        return answers[key]

    return await _walk(judge, dialogue, answered)


async def _walk(judge: Judge, dialogue: Dialogue, answered: Callable[[str], Awaitable[Judgement]]) -> list[Judgement]:
    """The verdicts on the questions from the first to an end, then what was not reached, and the outcome."""
    tree, rubric = judge.rubric.questions or {}, judge.rubric
    key, points, reached = next(iter(tree)), 0.0, dict[str, Judgement]()
    while key in tree:
        said = reached[key] = await answered(key)
        if said.value is None:
            break
        answer = tree[key].answers[rubric.scale_of(key).level(said.value)]
        key, points = answer.goto, points + answer.points
    raw, failure = said.raw, said.condition.get("failure")
    for name in tree.keys() - reached.keys():  # what a lost call would have led to is asked for when the run goes on
        reached[name] = judge.judgement(dialogue, name, "", failure=failure, not_reached=failure is None)
    outcome = None if said.value is None else points
    return [*(reached[name] for name in tree), judge.judgement(dialogue, OUTCOME, raw, outcome, failure=failure)]


def check_tree(rubric: Rubric) -> None:
    """Raise `UserError` for a rubric without questions."""
    if not rubric.questions:
        raise UserError(f"rubric {rubric.name}: methods tree and tree_once need questions; this rubric has dimensions")


def check_once(rubric: Rubric) -> None:
    """As `check_tree`, and for labels by which no line of the answer could be found."""
    check_tree(rubric)
    check_joint(rubric)


each = Method(_each, check=check_tree)
once = Method(_once, check=check_once)
