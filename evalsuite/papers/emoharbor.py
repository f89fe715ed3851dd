"""EmoHarbor (Ye et al.): a Thinker and a Talker together play the person of a profile, who then judges the supporter as a user
(section 2.2, algorithm 1).

Protocol: the supporter speaks first, with an empty history; the Thinker reads the reply and writes down the seeker's thoughts;
the Talker writes the next line; at most 15 exchanges, and the seeker may end the chat with a phrase from a closed list.

Gaps in the paper, and how they are filled: line 2's InitialState is the profile's own emotional state and goals, shown to both
agents as the state before the chat, without a call. Line 6 hands the Talker the initial state, section 2.2 the updated one: the
Talker gets the updated one. `{user_info}` of the supporter's prompt (H.1, paper mode) is the simple profile, not the script of
reactions. A seeker without a Thinker is the ablation "One Agent" (section 4.1.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from core.errors import UserError
from core.paths import IN_NAME, IN_SPEC
from core.records import Dialogue, RoleCard
from core.settings import Settings
from core.specs import ModelSpec, Sampling
from data_prep.profiles import Profile, profile_text
from evalsuite.dialogues.hold import ModelSide, Opening, Plan
from evalsuite.judge.judge import Shown
from evalsuite.papers.emoharbor_seeker import PlayedPerson, card_of, initial_state, unthought
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.models import Role, RunModels
from evalsuite.runs.run_config import Judged, ModelIdentity, Simulated, hashed, identity
from serve.questions import Models

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


class PlayedSimulated(Simulated):
    simulator: str
    thinker: ModelIdentity | None = None


class ShownJudged(Judged):
    judging: Judging | None = None


class EmoHarbor(DialogueFramework):
    """A run of EmoHarbor, with everything that its config names."""

    name = "emoharbor"
    title = "EmoHarbor"
    config_model = EmoHarborConfig
    config: EmoHarborConfig
    templates = (
        *("supporter_system.j2", "opening.txt", "endings.txt", "thinker_system.j2", "thinker.j2"),
        *("talker_system.j2", "talker.j2", "triple_system.j2", "triple.j2"),
    )
    dialogue_parts: ClassVar = {
        "the supporter's prompt": ["supporter_system.j2"],
        "the Thinker's prompt": ["thinker*.j2", "_*.j2"],
        "the Talker's prompt": ["talker*.j2", "_*.j2", "endings.txt"],
    }
    judge_parts: ClassVar = {"the judge's prompt": ["judge_*.j2"]}
    may_leave = True
    opens_freely = True

    @cached_property
    def models(self) -> EmoHarborModels:
        return EmoHarborModels(self.config, self.held, self.given)

    @classmethod
    def players(cls, simulator: str) -> Sequence[str]:
        """The models named in a `simulator`, without the ablation."""
        return simulator.partition(" (")[0].split("+")

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """All profiles of the run's languages, by id: given dialogues may be with any of them, whatever `limit` says."""
        profiles = self.load_people(Profile, self.config.profiles or ["bundled"], None, every=True)
        return {profile.id: profile for profile in profiles}

    def people(self) -> list[Profile]:
        return self.load_people(Profile, self.config.profiles or ["bundled"], self.config.limit)

    def people_of(self, dialogues: Sequence[Dialogue]) -> list[Profile]:
        if self.shown.strategy == "dialogue":
            return []
        ids = {dialogue.profile_id for dialogue in dialogues}
        return [profile for profile in self.profiles.values() if profile.id in ids]

    def identity(self) -> dict[str, Any]:
        thinker = self.models.thinker
        seeker = {"simulator": self.config.emoharbor.simulator, "triples": self.config.emoharbor.triples}
        return {**super().identity(), **seeker, "thinker": identity(thinker) if thinker else None}

    def judging_identity(self) -> dict[str, Any]:
        if self.method != "json":
            return {}
        judging, thinker = self.config.emoharbor.judging, self.models.thinker
        return {
            "judging": judging,
            "per_turn": self.config.emoharbor.per_turn,
            "profiles": hashed([*self.profiles.values()]) if judging != "dialogue" else None,
            # States that given dialogues lack are simulated.
            "thinker": identity(thinker) if thinker and judging == "states" else None,
        }

    @cached_property
    def shown(self) -> Shown:
        """What the judge is shown of the seeker; methods other than `json` show the dialogue alone."""
        if self.method != "json":
            return Shown(mode=self.config.mode)
        judging = self.config.emoharbor.judging
        shown = Shown(judging, states=judging == "states", per_turn=self.config.emoharbor.per_turn, mode=self.config.mode)

        def text(dialogue: Dialogue) -> str:
            profile = self._profile_of(dialogue)
            return profile_text(profile, profile.language)

        return shown if judging == "dialogue" else replace(shown, profile=text)

    def _profile_of(self, dialogue: Dialogue) -> Profile:
        """The seeker's profile. Raises `UserError` if it is not among the run's."""
        id = dialogue.profile_id
        if id is None or id not in self.profiles:
            problem = f"profile {id!r} is not among the run's profiles" if id else "no profile_id"
            raise UserError(
                f"dialogue {dialogue.id}: {problem}; judging by {self.config.emoharbor.judging} needs the seeker's profile: "
                "name its file under `profiles:`, or judge by the dialogue alone (`emoharbor: {judging: dialogue}`)"
            )
        return self.profiles[id]

    def refuse_incomplete(self, dialogue: Dialogue) -> None:
        self.shown.profile(dialogue)
        if self.completing([dialogue]):
            raise UserError(
                f"dialogue {dialogue.id}: its seeker has no thoughts to judge by: let `run --only score` simulate them (they "
                "go into its dialogues.jsonl), or judge by the profile (`emoharbor: {judging: profile}`)"
            )

    def judging_whole(self) -> EmoHarbor:
        section = self.config.emoharbor.model_copy(update={"per_turn": False})
        return replace(self, config=self.config.model_copy(update={"emoharbor": section}))

    def plan(self, opening: Opening, person: Profile, supporter: ModelSpec) -> Plan:
        language, paper = person.language, self.config.mode == "paper"
        user_info = profile_text(person, language, simple=True) if paper else ""
        system = self.prompts.render(language, "supporter_system.j2", user_info=user_info, limit=paper)
        # Odd in the paper: the supporter begins on an empty conversation, which some chat templates refuse.
        lead = None if paper else self.prompts.render(language, "opening.txt")
        return Plan(
            opening,
            seeker_side=self._person(person, opening.id),
            supporter_side=ModelSide(supporter, "supporter", opening.id, system=system, lead=lead),
            exchanges=self.config.exchanges,
            first="supporter",
        )

    def _person(self, profile: Profile, dialogue: str) -> PlayedPerson:
        return PlayedPerson(
            self.prompts,
            profile.language,
            dialogue,
            profile=profile_text(profile, profile.language, simple=self.config.emoharbor.simulator == "simple_profile"),
            start=initial_state(profile),
            talker=self.models.seeker,
            thinker=self.models.thinker,
            triples=self.config.emoharbor.triples,
            examples=self.config.mode == "paper",
        )

    def completing(self, dialogues: Iterable[Dialogue]) -> list[ModelSpec]:
        """The Thinker, if the judge is to be shown states that a dialogue lacks."""
        thinker = self.models.thinker
        return [thinker] if thinker and self.shown.states and any(map(unthought, dialogues)) else []

    async def completed(self, client: Models, dialogue: Dialogue) -> Dialogue:
        """A given dialogue with the seeker's missing states: the Thinker reads it turn by turn (section 4.1.2).
        Raises `UserError` if its profile is not among the run's."""
        if not self.completing([dialogue]):
            return dialogue
        return await self._person(self._profile_of(dialogue), dialogue.id).completed(client, dialogue)

    @classmethod
    def card(cls, person: Profile | RoleCard) -> RoleCard:
        return person if isinstance(person, RoleCard) else card_of(person)

    @classmethod
    def wrote(cls, run: ScoredRun) -> bool:
        """Whether EmoHarbor's seekers held the dialogues, or its judge scored given ones."""
        scored = run.config.stage("score", ShownJudged)
        return super().wrote(run) or bool(scored and scored.judging)

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        """What supporters were told, who played the seeker, and what the judge was shown."""
        simulated, scored = run.config.stage("simulate", PlayedSimulated), run.config.stage("score", ShownJudged)
        if simulated and simulated.seeker and super().wrote(run):
            paper = "who the seeker is, and to keep to 28 words on average and 97 at most (paper)"
            native = "neither who the seeker is nor how long to write (native)"
            yield "Supporters told", paper if simulated.mode == "paper" else native
            thinker = simulated.thinker.name if simulated.thinker else "nobody"
            yield "Seeker", f"{simulated.simulator.replace('_', ' ')}: {thinker} thinks, {simulated.seeker.name} talks"
        if scored and scored.judging:
            parts = {"dialogue": "the dialogue alone", "profile": "dialogue and profile"}
            yield "Judge shown", parts.get(scored.judging, "dialogue, profile and states")
