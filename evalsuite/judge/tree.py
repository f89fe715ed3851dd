"""Methods `tree` and `tree_once`: the questions of a rubric that is a tree, one call for each that is reached, or one for all.

Questions that are not reached have no verdict, and no call or answer counts for them. The outcome is the sum of the points of
the answers on the way; it has none where an answer on the way could not be read. Of several outcomes each has the worst level
given on the way; one that was not read to its end has none, unless it is at its worst already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from core.errors import UserError
from core.records import Dialogue, Judgement
from core.rubrics import Rubric
from core.scales import NOT_APPLICABLE
from core.trees import OUTCOME, open_outcomes
from evalsuite.judge.judge import Judge
from evalsuite.judge.methods import Method
from evalsuite.judge.words import check_joint, scored


async def _each(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    async def answered(key: str) -> Judgement:
        return (await scored(judge, dialogue, key, [key]))[0]

    return await walk(judge, dialogue, answered)


async def _once(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    answers = {one.dimension: one for one in await scored(judge, dialogue, "all", list(judge.rubric.questions or ()))}

    async def answered(key: str) -> Judgement:
        return answers[key]

    return await walk(judge, dialogue, answered)


async def walk(
    judge: Judge, dialogue: Dialogue, answered: Callable[[str], Awaitable[Judgement]], cut_short: bool = False
) -> list[Judgement]:
    """The verdicts on the questions from the first to an end, then what was not reached, and the outcomes. `cut_short`: an
    answer that could not be read is an end, and what was answered before it counts."""
    tree, rubric = judge.rubric.questions or {}, judge.rubric
    key, points, reached, nothing = next(iter(tree)), 0.0, dict[str, Judgement](), False
    given = dict[str, tuple[float, str]]()  # outcome → its level so far, and the answer that gave it
    while key in tree:
        said, place = await answered(key), key
        reached[key] = said
        outcome = tree[key].outcome
        if outcome in rubric.outcomes:
            given.setdefault(outcome, (rubric.ends(outcome)[1], ""))
        if said.value is None:
            break
        answer = tree[key].answers[rubric.scale_of(key).level(said.value)]
        if answer.level is not None:
            level = (rubric.scale_of(outcome).levels or {})[answer.level], said.raw
            given[outcome] = min(given[outcome], level, key=lambda one: rubric.normalised(outcome, one[0]))
        key, points, nothing = answer.goto, points + answer.points, answer.not_applicable
    raw, failure = said.raw, said.condition.get("failure")
    for name in tree.keys() - reached.keys():  # what a lost call would have led to is asked for when the run goes on
        reached[name] = judge.judgement(dialogue, name, "", failure=failure, not_reached=failure is None)
    questions = [reached[name] for name in tree]
    if not rubric.outcomes:
        total = None if said.value is None else points
        return [*questions, judge.judgement(dialogue, OUTCOME, raw, total, failure=failure)]
    undecided = open_outcomes(tree, place) if said.value is None and not (cut_short and failure is None) else set()

    def outcome_of(name: str) -> Judgement:
        if nothing:
            return judge.judgement(dialogue, name, raw, NOT_APPLICABLE)
        level, why = given.get(name, (None, ""))
        if name in undecided and level != rubric.ends(name)[0]:  # nothing is worse
            return judge.judgement(dialogue, name, raw, failure=failure)
        return judge.judgement(dialogue, name, why, level, not_reached=level is None)

    return [*map(outcome_of, rubric.outcomes), *questions]


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
