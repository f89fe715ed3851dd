"""Methods `tree` and `tree_once`: the questions of a rubric that is a tree, in one call for each question reached, or one for
all.

Questions that are not reached have no verdict, even if they were answered. The outcome is the sum of the points of the answers
on the path; it has no value if one of them could not be read. In a rubric with several outcomes, each gets the worst level that
an answer on the path gives it. If the path ends at an unreadable answer, the outcomes still open there have no value, unless
they are at their worst already.
"""

from collections.abc import Awaitable, Callable

from core.errors import UserError
from core.records import Dialogue, Judgement
from core.rubrics import Rubric
from core.scales import NOT_APPLICABLE, OUTCOME, open_outcomes
from evalsuite.judge.judge import Judge
from evalsuite.judge.methods import Method
from evalsuite.judge.scores import check_answers, scored


async def _each(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    async def answered(key: str) -> Judgement:
        return (await scored(judge, dialogue, key, [key]))[0]

    return await walk(judge, dialogue, answered)


async def _once(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    answers = {j.dimension: j for j in await scored(judge, dialogue, "all", list(judge.rubric.questions or ()))}

    async def answered(key: str) -> Judgement:
        return answers[key]

    return await walk(judge, dialogue, answered)


async def walk(
    judge: Judge, dialogue: Dialogue, answered: Callable[[str], Awaitable[Judgement]], cut_short: bool = False
) -> list[Judgement]:
    """The verdicts on the outcomes of a tree and on all its questions, asked from the first to the end of a path. `cut_short`:
    an unreadable answer ends the path, and the answers before it count."""
    tree, rubric = judge.rubric.questions or {}, judge.rubric
    key, points, verdicts, not_applicable = next(iter(tree)), 0.0, dict[str, Judgement](), False
    levels = dict[str, tuple[float, str]]()  # outcome → its level so far, and the answer that gave it
    while key in tree:
        last = verdicts[key] = await answered(key)
        outcome = tree[key].outcome
        if outcome in rubric.outcomes:
            levels.setdefault(outcome, (rubric.ends(outcome)[1], ""))
        if last.value is None:
            break
        answer = tree[key].answers[rubric.scale_of(key).level(last.value)]
        if answer.level is not None:
            level = (rubric.scale_of(outcome).levels or {})[answer.level], last.raw
            levels[outcome] = min(levels[outcome], level, key=lambda pair: rubric.normalised(outcome, pair[0]))
        key, points, not_applicable = answer.goto, points + answer.points, answer.not_applicable
    raw, failure = last.raw, last.condition.get("failure")
    for name in tree.keys() - verdicts.keys():  # questions after a lost call keep its failure: a resumed run asks them
        verdicts[name] = judge.judgement(dialogue, name, "", failure=failure, not_reached=failure is None)
    questions = [verdicts[name] for name in tree]
    if not rubric.outcomes:
        total = None if last.value is None else points
        return [*questions, judge.judgement(dialogue, OUTCOME, raw, total, failure=failure)]
    undecided = open_outcomes(tree, last.dimension) if last.value is None and not (cut_short and failure is None) else set()

    def outcome_of(name: str) -> Judgement:
        if not_applicable:
            return judge.judgement(dialogue, name, raw, NOT_APPLICABLE)
        level, reason = levels.get(name, (None, ""))
        if name in undecided and level != rubric.ends(name)[0]:  # the worst level is certain already
            return judge.judgement(dialogue, name, raw, failure=failure)
        return judge.judgement(dialogue, name, reason, level, not_reached=level is None)

    return [*map(outcome_of, rubric.outcomes), *questions]


def check_tree(rubric: Rubric) -> None:
    """Raise `UserError` for a rubric without questions."""
    if not rubric.questions:
        raise UserError(f"rubric {rubric.name}: methods tree and tree_once need questions; this rubric has dimensions")


def check_once(rubric: Rubric) -> None:
    """Raise as `check_tree`, and for labels that no line of the answer could be recognised by."""
    check_tree(rubric)
    check_answers(rubric, "tree_once")


each = Method(_each, check=check_tree)
once = Method(_once, check=check_once)
