"""The section `emoharbor:` of a run's config: what EmoHarbor has beyond ESC-Eval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from core.errors import UserError
from core.paths import IN_NAME
from core.specs import ModelSpec, Sampling
from evalsuite.judge.base import Strategy

Agent = Literal["thinker", "talker", "supporter", "judge"]
TEMPERATURES: Mapping[Agent, float] = {"thinker": 0.1, "talker": 0.7, "supporter": 0.7, "judge": 0.0}  # section 3.3
# What a run takes of its prompt pack besides the judge's prompts.
TEMPLATES = (
    *("supporter_system.j2", "opening.txt", "endings.txt", "thinker_system.j2", "thinker.j2"),
    *("talker_system.j2", "talker.j2", "triple_system.j2", "triple.j2"),
)


class RoleSampling(BaseModel):
    """What a run changes of the sampling of one agent's model; what is not named stays as the model's spec has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    seed: int | None = None


class EmoHarborConfig(BaseModel):
    """EmoHarbor's own settings. The Talker is the run's `seeker`; without `thinker` the same model thinks.

    `simulator`: the full seeker, or an ablation of section 4.1.1 (`one_agent`: no Thinker; `simple_profile`: played from
    demographics and counselling alone). `triples` reads appraisal, emotion and goal out of every thought, a call each.
    `judging` is the strategy of section 4.1.2, `per_turn` also judges after every turn of the supporter. `sampling` changes the
    models' own, by agent; temperatures are the paper's unless given, and in paper mode always.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    thinker: Annotated[str | None, IN_NAME] = None
    simulator: Literal["full", "one_agent", "simple_profile"] = "full"
    triples: bool = False
    judging: Strategy = "states"
    per_turn: bool = False
    sampling: dict[Agent, RoleSampling] = {}

    def problem(self, mode: str, method: str) -> str | None:
        """What does not go together, or None."""
        if method != "json" and (unused := sorted(self.model_fields_set & {"judging", "per_turn"})):
            return f"emoharbor.{unused[0]}: belongs to method json, this config's is {method}"
        if self.simulator == "one_agent" and self.judging == "states" and method == "json":
            return "emoharbor.judging: a seeker of one agent has no states to judge by: choose profile or dialogue"
        if self.simulator == "one_agent" and (self.triples or self.thinker):
            return "emoharbor.simulator: one_agent has no Thinker: leave out thinker and triples"
        fixed = [agent for agent, own in self.sampling.items() if own.temperature not in (None, TEMPERATURES[agent])]
        if mode == "paper" and fixed:
            return f"emoharbor.sampling.{fixed[0]}.temperature: paper mode fixes it at {TEMPERATURES[fixed[0]]}"
        return None

    def sampled(self, spec: ModelSpec, agent: Agent) -> ModelSpec:
        """The spec as it is sampled for an agent. Raises `UserError` when its replies leave no room in its context."""
        given = self.sampling.get(agent, RoleSampling()).model_dump(exclude_none=True)
        sampling = Sampling.model_validate(spec.sampling.model_dump() | {"temperature": TEMPERATURES[agent]} | given)
        if spec.context_length is not None and sampling.max_tokens >= spec.context_length:
            raise UserError(
                f"emoharbor.sampling.{agent}.max_tokens: {sampling.max_tokens} leaves no room in the context of {spec.name} "
                f"({spec.context_length})"
            )
        return spec.model_copy(update={"sampling": sampling})
