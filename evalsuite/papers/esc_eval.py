"""ESC-Eval (Zhao et al., EMNLP 2024): a simulator plays a role card, the supporter answers, a ranker scores (section 2).

Protocol: a fixed greeting of the supporter opens; the seeker sees it, the supporter does not; five exchanges follow.

Paper mode sends what the published scripts send, with the prompts of a user's own clone (`import`, which compares): a
system message for every supporter, replies as they come with the white space around them, drawn as the script draws them. It
has three models; all others answer at temperature 0, as appendix C.2 says. The report tells what is otherwise than the script.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from core.judge_prompts import JudgeMethod
from core.paths import IN_NAME
from core.records import RoleCard, Turn
from core.side_prompts import SUPPORTER_PAPER, greeting, seeker_system, supporter_system
from core.specs import ModelSpec, Sampling
from data_prep.cards import bundled_cards, load_cards
from evalsuite.dialogues.hold import ModelSide, Plan
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.identity import hashed
from evalsuite.runs.resolved import Resolved, Role


class EscEvalConfig(EvalConfig):
    """A run of ESC-Eval."""

    framework: Literal["esc_eval"] = "esc_eval"
    """ESC-Eval."""
    cards: Annotated[list[str], IN_NAME, Field(default_factory=lambda: ["bundled"])]
    """The role cards that are played: `bundled`, or card files."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Temperature of the models under test; that of their specs (0) unless given. Paper mode takes 0 alone, which then holds
    for the seeker too, and for models that the published script draws otherwise."""

    @model_validator(mode="after")
    def _as_published(self) -> EscEvalConfig:
        for name, allowed in (("temperature", (None, 0)), ("max_tokens", (None,))):
            if self.mode == "paper" and getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}: paper mode draws replies as the published script does (paper_sampling in the spec), or at "
                    "temperature 0, as appendix C.2 says"
                )
        return self


class EscEval(Resolved):
    """A run of ESC-Eval with everything that its config names."""

    name = "esc_eval"
    title = "ESC-Eval"
    config_model = EscEvalConfig
    config: EscEvalConfig
    dialogue_parts: ClassVar = {
        "the seeker's prompt": ["seeker_system.j2"],
        "the greeting": ["greeting.txt"],
        "the supporter's system message": [SUPPORTER_PAPER],
    }
    importer = "python -m data_prep import"
    judge_parts: ClassVar = {
        "the judge's prompt": ["judge_paper.j2", "_rules_*.j2"],
        "the judge's system message": ["judge_paper_system.j2"],
    }

    @property
    def method(self) -> JudgeMethod:
        return "paper" if self._paper else self.config.method

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        """In paper mode both sides of a dialogue are drawn as the published script draws them, or at temperature 0."""
        if not self._paper or role == "judge":
            return spec
        sampling = spec.paper_sampling or Sampling()
        if self.config.temperature is not None:
            sampling = Sampling(max_tokens=sampling.max_tokens)
        return spec.model_copy(update={"sampling": sampling})

    @property
    def _paper(self) -> bool:
        return self.config.mode == "paper"

    @cached_property
    def cards(self) -> list[RoleCard]:
        return self.load_people(self.config.cards, bundled_cards, load_cards, "card", self.config.limit)

    def people(self) -> dict[str, list[RoleCard]]:
        return {"cards.jsonl": self.cards}

    def identity(self) -> dict[str, Any]:
        return {"cards": hashed(self.cards)}

    def simulate_identity(self) -> dict[str, Any]:
        claimed = super().simulate_identity()
        if self._paper:
            for spec, model in zip((self.seeker, *self.supporters), (claimed["seeker"], *claimed["supporters"]), strict=True):
                if spec.paper_sampling:
                    model["paper_sampling"] = spec.paper_sampling.model_dump(mode="json")
        return claimed

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        """What a run in paper mode has otherwise than the published script."""
        simulated = run.config.simulated
        if simulated is None or simulated.mode != "paper":
            return
        drawn: dict[str, list[str]] = {}
        for model in (*simulated.players.values(), *simulated.supporters):
            fields = model.model_extra or {}
            if (script := fields.get("paper_sampling")) is None:
                how = "at temperature 0, in no script"
            else:
                how = "as the script does" if script == fields["sampling"] else "at temperature 0, unlike the script"
            if "floor" not in fields:
                drawn.setdefault(how, []).append(model.name)
        yield "Replies drawn", "; ".join(f"{how}: {', '.join(names)}" for how, names in drawn.items())
        yield (
            "Otherwise than the script",
            "an empty reply ends a dialogue; reasoning is taken out of a reply; markers of chat templates in it are broken up",
        )

    def plans(self) -> Iterator[Plan]:
        for dialogue, card, supporter in self.beginnings(self.cards):
            opening = Turn(role="supporter", text=greeting(self.prompts, card.language))
            system = seeker_system(self.prompts, card, self._paper)
            # Odd in the script: supporters are told that they are helpful, and nothing of what they are to do.
            helpful = supporter_system(self.prompts, card.language) if self._paper else None
            yield Plan(
                dialogue.model_copy(update={"turns": (opening,)}),
                seeker_side=ModelSide(self.seeker, "seeker", dialogue.id, system, verbatim=self._paper),
                supporter_side=ModelSide(supporter, "supporter", dialogue.id, helpful, hidden_opening=1, verbatim=self._paper),
                exchanges=self.config.exchanges,
            )
