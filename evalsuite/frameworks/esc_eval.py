"""ESC-Eval (Zhao et al., EMNLP 2024): a simulator plays a role card, the supporter answers, a ranker scores (section 2).

Protocol: a fixed greeting of the supporter opens; the seeker sees it, the supporter does not; five exchanges follow, greedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from core.judge_prompts import JudgeMethod
from core.paths import IN_NAME
from core.records import RoleCard, Turn, dialogue_id
from core.seeker_prompts import greeting, seeker_system
from core.specs import ModelSpec, Sampling
from data_prep.cards import bundled_cards, load_cards
from evalsuite.dialogues.hold import ModelSide, Plan
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.identity import hashed
from evalsuite.runs.resolved import Agent, Resolved

PAPER_SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_tokens=512)  # of its published script


class EscEvalConfig(EvalConfig):
    """A run of ESC-Eval."""

    framework: Literal["esc_eval"] = "esc_eval"
    """ESC-Eval."""
    cards: Annotated[list[str], IN_NAME, Field(default_factory=lambda: ["bundled"])]
    """The role cards that are played: `bundled`, or card files."""


class EscEval(Resolved):
    """A run of ESC-Eval with everything that its config names."""

    name = "esc_eval"
    title = "ESC-Eval"
    config_model = EscEvalConfig
    config: EscEvalConfig

    @property
    def method(self) -> JudgeMethod:
        """The published one in paper mode."""
        return "paper" if self.config.mode == "paper" else self.config.method

    def sampled(self, spec: ModelSpec, agent: Agent) -> ModelSpec:
        """Both sides of a dialogue are greedy in paper mode."""
        paper = self.config.mode == "paper" and agent != "judge"
        return spec.model_copy(update={"sampling": PAPER_SAMPLING}) if paper else spec

    @cached_property
    def cards(self) -> list[RoleCard]:
        """The cards of the wanted languages, at most `limit` a language, in file order."""
        return self.load_people(self.config.cards, bundled_cards, load_cards, "card", self.config.limit)

    def people(self) -> dict[str, list[RoleCard]]:
        """The role cards."""
        return {"cards.jsonl": self.cards}

    def identity(self) -> dict[str, Any]:
        """The role cards by their hash."""
        return {"cards": hashed(self.cards)}

    def plans(self) -> Iterator[Plan]:
        """Cards × supporters × trials, without cards in a language that the supporter does not speak."""
        for supporter in self.supporters:
            for card in self.cards:
                if card.language not in supporter.languages:
                    continue
                system = seeker_system(self.prompts, card)
                opening = Turn(role="supporter", text=greeting(self.prompts, card.language))
                for trial in range(self.config.trials):
                    id = dialogue_id(self.name, card.id, supporter.name, self.seeker.name, trial)
                    yield Plan(
                        id=id,
                        language=card.language,
                        framework=self.name,
                        source=card.source,
                        source_id=card.source_id,
                        card_id=card.id,
                        supporter=supporter.name,
                        simulator=self.seeker.name,
                        trial=trial,
                        seeker_side=ModelSide(self.seeker, "seeker", id, system=system),
                        supporter_side=ModelSide(supporter, "supporter", id, hidden_opening=1),
                        exchanges=self.config.exchanges,
                        opening=(opening,),
                    )
