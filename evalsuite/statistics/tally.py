"""A run's records counted once: every table, chart and sentence of a report is made from the same tally."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from core.records import Dialogue, Judgement
from core.rubrics import Rubric
from evalsuite.statistics.leaderboard import Board, Contestant, Score, boards_of
from evalsuite.statistics.summary import checked


@dataclass(frozen=True)
class Tally:
    """The records of a run on one rubric and what they come to. `judgements` may hold verdicts on other rubrics too; all that
    follows is on this one.

    Every property raises `UserError` for a verdict that does not fit the rubric, and all but `verdicts` for one of a dialogue
    that is not in the run.
    """

    dialogues: Sequence[Dialogue]
    judgements: Sequence[Judgement]
    rubric: Rubric

    @cached_property
    def verdicts(self) -> list[Judgement]:
        """The judgements on the rubric."""
        return list(checked(self.judgements, self.rubric))

    @cached_property
    def boards(self) -> list[Board]:
        """One board a language and scorer."""
        return boards_of(self.dialogues, self.judgements, self.rubric)

    @property
    def contestants(self) -> list[Contestant]:
        return [one for board in self.boards for one in board.contestants]

    @cached_property
    def scores(self) -> list[Score]:
        """Every leaderboard cell: language × scorer × supporter (by falling average) × dimension, and then `average`."""
        return [cell for board in self.boards for cell in board.cells]
