"""ESC-Eval (Zhao et al., EMNLP 2024): a simulator plays a role card, the supporter answers, a ranker scores (section 2).

Protocol: a fixed greeting of the supporter opens; the seeker sees it, the supporter does not; five exchanges follow.

Paper mode sends what the published scripts send, with the prompts of a user's own clone (`import` compares them with ours): a
system message for every supporter, replies with the white space around them, sampled as in the script. The script has three
models; all others answer at temperature 0, as appendix C.2 says. The report lists the remaining differences from the script.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from core.paths import IN_NAME
from core.prompts import SUPPORTER_PAPER, greeting, seeker_system, supporter_system
from core.records import RoleCard, Turn
from core.specs import ModelSpec, Sampling
from evalsuite.dialogues.hold import ModelSide, Opening, Plan
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.models import Role, RunModels


class EscEvalConfig(EvalConfig):
    """A run of ESC-Eval."""

    framework: Literal["esc_eval"] = "esc_eval"
    """ESC-Eval."""
    cards: Annotated[list[str], IN_NAME, Field(default_factory=lambda: ["bundled"])]
    """The role cards to play: `bundled`, or card files."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Temperature of the models under test. Default: that of their specs (0). Paper mode accepts only 0, which then applies to
    the seeker too, and to models that the published script samples otherwise."""

    @model_validator(mode="after")
    def _as_published(self) -> EscEvalConfig:
        for name, allowed in (("temperature", (None, 0)), ("max_tokens", (None,))):
            if self.mode == "paper" and getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}: paper mode samples replies as the published script does (paper_sampling in the spec), or at "
                    "temperature 0, as appendix C.2 says"
                )
        return self


class EscEvalModels(RunModels):
    """The models of a run of ESC-Eval: in paper mode both sides are sampled as in the published script, or at temperature 0."""

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        if self.config.mode != "paper" or role == "judge":
            return spec
        sampling = spec.paper_sampling or Sampling()
        if self.config.temperature is not None:
            sampling = Sampling(max_tokens=sampling.max_tokens)
        return spec.model_copy(update={"sampling": sampling})

    def identity(self, spec: ModelSpec) -> dict[str, Any]:
        script = spec.paper_sampling if self.config.mode == "paper" else None
        return super().identity(spec) | ({"paper_sampling": script.model_dump(mode="json")} if script else {})


class EscEval(DialogueFramework):
    """A run of ESC-Eval, with everything that its config names."""

    name = "esc_eval"
    title = "ESC-Eval"
    config_model = EscEvalConfig
    models_class = EscEvalModels
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
    def method(self) -> str:
        return "paper" if self.config.mode == "paper" else self.config.method

    def people(self) -> list[RoleCard]:
        return self.load_people(RoleCard, self.config.cards, self.config.limit)

    def plan(self, opening: Opening, person: RoleCard, supporter: ModelSpec) -> Plan:
        paper = self.config.mode == "paper"
        greeted = Turn(role="supporter", text=greeting(self.prompts, person.language))
        system = seeker_system(self.prompts, person, paper)
        # Odd in the script: supporters are told that they are helpful assistants, and nothing about emotional support.
        helpful = supporter_system(self.prompts, person.language) if paper else None
        return Plan(
            replace(opening, turns=(greeted,)),
            seeker_side=ModelSide(self.models.seeker, "seeker", opening.id, system, verbatim=paper),
            supporter_side=ModelSide(supporter, "supporter", opening.id, helpful, hidden_opening=1, verbatim=paper),
            exchanges=self.config.exchanges,
        )

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        """How a run in paper mode differs from the published script."""
        simulated = run.config.simulated
        if simulated is None or simulated.mode != "paper":
            return
        by_sampling: dict[str, list[str]] = {}
        for model in (*simulated.players.values(), *simulated.supporters):
            fields = model.model_extra or {}
            if "floor" in fields:
                continue
            if (script := fields.get("paper_sampling")) is None:
                sampling = "at temperature 0, in no script"
            else:
                sampling = "as in the script" if script == fields["sampling"] else "at temperature 0, unlike the script"
            by_sampling.setdefault(sampling, []).append(model.name)
        yield "Replies sampled", "; ".join(f"{sampling}: {', '.join(names)}" for sampling, names in by_sampling.items())
        yield (
            "Differences from the script",
            "an empty reply ends a dialogue; reasoning is removed from replies; chat template markers in them are broken up",
        )
