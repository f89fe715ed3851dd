"""The settings of EmoHarbor's runs, with the combinations that are refused, and their models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from core.errors import UserError
from core.paths import IN_NAME, IN_SPEC
from core.settings import Settings
from core.specs import ModelSpec, Sampling
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.models import Role, RunModels
from evalsuite.runs.run_config import Judged, ModelIdentity, Simulated

Agent = Literal["thinker", "talker", "supporter", "judge"]
Judging = Literal["dialogue", "profile", "states"]
TEMPERATURES: Mapping[Agent, float] = {"thinker": 0.1, "talker": 0.7, "supporter": 0.7, "judge": 0.0}  # section 3.3


class RoleSampling(Settings):
    """A run's changes to the sampling of one agent's model; settings left out stay as the model's spec has them."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Default: the paper's, which paper mode requires."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Probability mass that tokens are sampled from."""
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    """Most tokens per reply."""
    seed: int | None = None
    """Sampling seed."""


class EmoHarborSection(Settings):
    """EmoHarbor's own settings. The Talker is the run's `seeker`."""

    thinker: Annotated[str | None, IN_SPEC] = None
    """The model that thinks for the seeker. Default: the Talker's."""
    simulator: Literal["full", "one_agent", "simple_profile"] = "full"
    """The full seeker, or an ablation of section 4.1.1 (`one_agent`: no Thinker; `simple_profile`: played from demographics and
    counselling alone)."""
    triples: bool = False
    """Extract appraisal, emotion and goal from every thought, with one more call per turn."""
    judging: Judging = "states"
    """What the judge is shown (section 4.1.2)."""
    per_turn: bool = False
    """Judge after every turn of the supporter as well."""
    sampling: dict[Agent, RoleSampling] = Field(default={})
    """Changes to the models' own sampling, by agent."""

    def sampled(self, spec: ModelSpec, agent: Agent) -> ModelSpec:
        """The spec as it is sampled for an agent. Raises `UserError` if `max_tokens` fills its whole context."""
        changes = self.sampling.get(agent, RoleSampling()).model_dump(exclude_none=True)
        sampling = Sampling.model_validate(spec.sampling.model_dump() | {"temperature": TEMPERATURES[agent]} | changes)
        if spec.context_length is not None and sampling.max_tokens >= spec.context_length:
            raise UserError(
                f"emoharbor.sampling.{agent}.max_tokens: {sampling.max_tokens} leaves no room in the context of {spec.name} "
                f"({spec.context_length})"
            )
        return spec.model_copy(update={"sampling": sampling})


class EmoHarborConfig(EvalConfig):
    """A run of EmoHarbor."""

    framework: Literal["emoharbor"] = "emoharbor"
    """EmoHarbor."""
    rubric: Annotated[str, IN_NAME] = "emoharbor"
    """The rubric that dialogues are scored on: a name in configs/rubrics, or a file."""
    method: Literal["joint", "per_dimension", "json", "bands"] = "json"
    """How the judge is asked; the published method is `json`."""
    prompts: Annotated[str | None, IN_NAME] = "emoharbor"
    """The prompt pack of all agents: a name in configs/prompts, or a folder."""
    exchanges: Annotated[int, Field(gt=0, le=10**6)] = 15
    """Most exchanges per dialogue. The seeker may leave sooner."""
    profiles: Annotated[list[str] | None, IN_NAME] = None
    """The profiles to play: `bundled`, or files (our JSONL, or SAGE's). Default: bundled."""
    emoharbor: EmoHarborSection = EmoHarborSection()
    """EmoHarbor's own settings."""

    @model_validator(mode="after")
    def _compatible(self) -> EmoHarborConfig:
        section = self.emoharbor
        if self.gold is not None and self.gold.scores is None:
            raise ValueError("gold: the bundled sets have ESC-Eval's dimensions; name gold.dialogues and gold.scores")
        if self.method != "json" and (unused := sorted(section.model_fields_set & {"judging", "per_turn"})):
            raise ValueError(f"emoharbor.{unused[0]}: belongs to method json, this config's is {self.method}")
        if section.simulator == "one_agent" and section.judging == "states" and self.method == "json":
            raise ValueError("emoharbor.judging: a seeker of one agent has no states to judge by: choose profile or dialogue")
        if section.simulator == "one_agent" and (section.triples or section.thinker):
            raise ValueError("emoharbor.simulator: one_agent has no Thinker: leave out thinker and triples")
        temperatures: list[tuple[str, Agent, float | None]] = [("temperature", "supporter", self.temperature)]
        temperatures += [
            (f"emoharbor.sampling.{name}.temperature", name, s.temperature) for name, s in section.sampling.items()
        ]
        for field, agent, temperature in temperatures if self.mode == "paper" else ():
            if temperature not in (None, TEMPERATURES[agent]):
                raise ValueError(f"{field}: paper mode fixes it at {TEMPERATURES[agent]}")
        return self


class EmoHarborModels(RunModels):
    """The models of a run of EmoHarbor: the Talker is its seeker, and another model may think for it."""

    config: EmoHarborConfig

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        return self.config.emoharbor.sampled(spec, "talker" if role == "seeker" else role)

    @cached_property
    def thinker(self) -> ModelSpec | None:
        """The model that thinks for the seeker; None for the ablation without a Thinker."""
        section = self.config.emoharbor
        if section.simulator == "one_agent":
            return None
        return section.sampled(self.speaks(self.model(section.thinker or self.named("seeker")), "seeker"), "thinker")

    @property
    def seekers(self) -> list[ModelSpec]:
        return [self.seeker, *filter(None, [self.thinker])]

    @property
    def names(self) -> list[str]:
        return [*super().names, *filter(None, [self.config.emoharbor.thinker])]

    @property
    def simulator(self) -> str:
        """The seeker's name in the records: its models, and the ablation if it is one."""
        simulator = self.config.emoharbor.simulator
        ablation = "" if simulator == "full" else f" ({simulator.replace('_', ' ')})"
        return "+".join(dict.fromkeys(spec.name for spec in self.seekers)) + ablation


# --- facts read from a run folder -------------------------------------------------------------------------------------------


class PlayedSimulated(Simulated):
    simulator: str
    thinker: ModelIdentity | None = None


class ShownJudged(Judged):
    judging: Judging | None = None


def facts_of(run: ScoredRun, played: bool) -> Iterator[tuple[str, str]]:
    """What supporters were told, who played the seeker (if EmoHarbor's models did: `played`), and what the judge was shown."""
    simulated, scored = run.config.stage("simulate", PlayedSimulated), run.config.stage("score", ShownJudged)
    if simulated and simulated.seeker and played:
        paper = "who the seeker is, and to keep to 28 words on average and 97 at most (paper)"
        native = "neither who the seeker is nor how long to write (native)"
        yield "Supporters told", paper if simulated.mode == "paper" else native
        thinker = simulated.thinker.name if simulated.thinker else "nobody"
        yield "Seeker", f"{simulated.simulator.replace('_', ' ')}: {thinker} thinks, {simulated.seeker.name} talks"
    if scored and scored.judging:
        shown = {"dialogue": "the dialogue alone", "profile": "dialogue and profile", "states": "dialogue, profile and states"}
        yield "Judge shown", shown[scored.judging]
