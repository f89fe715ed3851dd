"""`esc-eval run --until decided`: plays cards in batches until the differences are decided, or all cards are played."""

from collections import Counter
from dataclasses import replace

from core.errors import UserError
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runner.work import Outcome
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.statistics.components import Looks
from evalsuite.statistics.leaderboard import Tally


def planned(resolved: DialogueFramework) -> tuple[Looks, list[int]]:
    """The looks at the run, and the limit of cards per language at each. Raises `UserError` for a shard."""
    if resolved.shard:
        raise UserError("--until: a shard has only a part of the cards and cannot tell: leave --shard or --until out")
    return Looks.plan(list(Counter(person.language for person in resolved.played).values()))


def simulate(runner: Runner) -> Outcome:
    """Hold and judge batch after batch of dialogues until all differences are decided, no cards are left or something is lost.
    Afterwards the runner has the limit of the last batch."""
    resolved = runner.resolved
    looks, limits = planned(resolved)
    for number, (limit, cards, level) in enumerate(zip(limits, looks.cards, looks.levels, strict=True), start=1):
        runner.resolved = replace(resolved, config=resolved.config.model_copy(update={"limit": limit}))
        outcome = pipeline.simulate(runner, score=True)
        runner.run.keep_looks(looks)
        dialogues, judgements = list(outcome.dialogues), list(outcome.judgements)
        if outcome.ended_early or any(d.lost for d in dialogues) or any(j.lost for j in judgements):
            break
        boards = Tally(dialogues, judgements, resolved.rubric, runner.run.config().floors(), level=level).pooled
        compared = [pair for board in boards if board.scorer.judge == resolved.models.judge.name for pair in board.asked]
        decided = sum(pair.holds is True for pair in compared)
        enough = "; no more cards are needed" if decided == len(compared) else ""
        runner.say(f"look {number} of {len(limits)}, {cards} cards: {decided} of {len(compared)} comparisons decided{enough}")
        if enough:
            break
    return outcome
