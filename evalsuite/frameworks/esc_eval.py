"""ESC-Eval (Zhao et al., EMNLP 2024): a simulator plays a role card, the supporter answers, a ranker scores (section 2).

Protocol: a fixed greeting of the supporter opens; the seeker sees it, the supporter does not; five exchanges follow, greedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from core.judge_prompts import JudgeMethod
from core.paths import IN_NAME
from core.records import RoleCard, Turn
from core.seeker_prompts import greeting, seeker_system
from core.specs import ModelSpec, Sampling
from data_prep.cards import bundled_cards, load_cards
from evalsuite.dialogues.hold import ModelSide, Plan
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.identity import hashed
from evalsuite.runs.resolved import Resolved, Role

PAPER_SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_tokens=512)  # of its published script


class EscEvalConfig(EvalConfig):
    """A run of ESC-Eval."""

    framework: Literal["esc_eval"] = "esc_eval"
    """ESC-Eval."""
    cards: Annotated[list[str], IN_NAME, Field(default_factory=lambda: ["bundled"])]
    """The role cards that are played: `bundled`, or card files."""

    @model_validator(mode="after")
    def _as_published(self) -> EscEvalConfig:
        for name in ("temperature", "max_tokens"):
            if self.mode == "paper" and getattr(self, name) is not None:
                raise ValueError(f"{name}: paper mode samples supporters as published: greedily, at most 512 tokens")
        return self


class EscEval(Resolved):
    """A run of ESC-Eval with everything that its config names."""

    name = "esc_eval"
    title = "ESC-Eval"
    config_model = EscEvalConfig
    config: EscEvalConfig

    @property
    def method(self) -> JudgeMethod:
        return "paper" if self.config.mode == "paper" else self.config.method

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        """Both sides of a dialogue are greedy in paper mode."""
        paper = self.config.mode == "paper" and role != "judge"
        return spec.model_copy(update={"sampling": PAPER_SAMPLING}) if paper else spec

    @cached_property
    def cards(self) -> list[RoleCard]:
        return self.load_people(self.config.cards, bundled_cards, load_cards, "card", self.config.limit)

    def people(self) -> dict[str, list[RoleCard]]:
        return {"cards.jsonl": self.cards}

    def identity(self) -> dict[str, Any]:
        return {"cards": hashed(self.cards)}

    def plans(self) -> Iterator[Plan]:
        for dialogue, card, supporter in self.beginnings(self.cards):
            opening = Turn(role="supporter", text=greeting(self.prompts, card.language))
            system = seeker_system(self.prompts, card, self.config.mode == "paper")
            yield Plan(
                dialogue.model_copy(update={"turns": (opening,)}),
                seeker_side=ModelSide(self.seeker, "seeker", dialogue.id, system=system),
                supporter_side=ModelSide(supporter, "supporter", dialogue.id, hidden_opening=1),
                exchanges=self.config.exchanges,
            )
