"""`esc-eval run --until decided`: cards are played in batches until the differences are decided, or all cards are played."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from core.errors import UserError
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runner.work import Outcome
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.looks import Looks


def planned(resolved: DialogueFramework) -> tuple[Looks, list[int]]:
    """When the run is looked at, and the limit of cards per language at each look. Raises `UserError` for a shard, which holds
    a part of every batch."""
    if resolved.shard:
        raise UserError("--until: a shard holds a part of the cards and cannot tell: leave --shard or --until out")
    return Looks.plan(list(Counter(person.language for person in resolved.played).values()))


def simulate(runner: Runner) -> Outcome:
    """Hold and judge the dialogues of one batch after another, as long as differences are undecided, there are more cards and
    nothing is lost. The runner has the last batch's limit afterwards."""
    asked = runner.resolved
    looks, limits = planned(asked)
    for place, (limit, cards, level) in enumerate(zip(limits, looks.cards, looks.levels, strict=True), start=1):
        runner.resolved = replace(asked, config=asked.config.model_copy(update={"limit": limit}))
        outcome = pipeline.simulate(runner, score=True)
        runner.run.keep_looks(looks)
        dialogues, judgements = list(outcome.dialogues), list(outcome.judgements)
        if outcome.ended_early or any(one.lost for one in dialogues) or any(one.lost for one in judgements):
            break
        boards = Tally(dialogues, judgements, asked.rubric, runner.run.config().floors(), level=level).pooled
        compared = [one for board in boards if board.scorer.judge == asked.models.judge.name for one in board.asked]
        decided = sum(one.holds is True for one in compared)
        enough = "; no more cards are needed" if decided == len(compared) else ""
        runner.say(f"look {place} of {len(limits)}, {cards} cards: {decided} of {len(compared)} comparisons decided{enough}")
        if enough:
            break
    return outcome
