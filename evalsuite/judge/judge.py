"""The judge as the rest of the harness knows it: a dialogue in, one judgement a dimension out.

What is asked is in `core.judge_prompts`; how answers are constrained and read is in the module of each method
(`evalsuite.judge.methods`).
"""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import UserError
from core.records import Dialogue, Judgement
from evalsuite.judge.base import BaseJudge
from evalsuite.judge.methods import method_of


@dataclass(frozen=True)
class Judge(BaseJudge):
    """A model that scores dialogues on a rubric. Every dialogue gets one judgement a dimension, whatever happens."""

    def __post_init__(self) -> None:
        method = method_of(self.method)
        if self.spec.adapters is not None and not method.by_dimension:
            raise UserError(f"judge {self.spec.name} has one adapter a dimension: use method per_dimension or paper")
        method.check(self.rubric)

    async def score(self, dialogue: Dialogue) -> list[Judgement]:
        """One judgement a dimension, in the rubric's order; by method `bands` so many for every round, and by method `json` so
        many more for every turn of the supporter where these are wanted."""
        if dialogue.lost or not self._supported(dialogue):
            reason = str(dialogue.termination) if dialogue.lost else "no_supporter_turn"
            return [self.judgement(dialogue, name, "", failure=reason) for name in self.rubric.dimensions]
        return await method_of(self.method).score(self, dialogue)

    def _supported(self, dialogue: Dialogue) -> bool:
        """Whether there is anything of the supporter's to score. A fixed greeting answers nobody; but where supporters open in
        words of their own, a seeker who leaves at once has judged them."""
        opened = self.opens_freely(dialogue.framework) and any(turn.role == "supporter" for turn in dialogue.turns)
        return opened or dialogue.exchanges > 0
