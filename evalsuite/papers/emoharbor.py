"""EmoHarbor (Ye et al.): a Thinker and a Talker together play the person of a profile, who then judges the supporter as a user
(section 2.2, algorithm 1).

Protocol: the supporter speaks first, on an empty history; the Thinker reads the reply and writes down what goes on inside; the
Talker writes the next line; at most 15 exchanges, and the seeker may end with a phrase of a closed list. There are two
memories: the seeker's holds the thoughts (`Turn.state`), the supporter's only what was said (`evalsuite.dialogues.hold`).

Where the paper leaves a gap: line 2's InitialState is the profile's own emotional state and goals, shown to both agents as what
was before the chat, without a call. Line 6 hands the Talker the initial state, section 2.2 the updated one: the updated one is
taken. `{user_info}` of the supporter's prompt (H.1, paper mode) is the simple profile, not the script of reactions. A seeker
without a Thinker is the ablation "One Agent" (section 4.1.1).
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
from evalsuite.judge.base import Shown
from evalsuite.papers.emoharbor_seeker import PlayedPerson, initial_state, unthought
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.identity import hashed, identity
from evalsuite.runs.models import Role, RunModels
from evalsuite.runs.run_config import Judged, ModelIdentity, Simulated
from serve.failures import Unanswered
from serve.questions import Models

Agent = Literal["thinker", "talker", "supporter", "judge"]
Judging = Literal["dialogue", "profile", "states"]
TEMPERATURES: Mapping[Agent, float] = {"thinker": 0.1, "talker": 0.7, "supporter": 0.7, "judge": 0.0}  # section 3.3
_SHOWN = {"dialogue": "the dialogue alone", "profile": "dialogue and profile", "states": "dialogue, profile and states"}


class RoleSampling(Settings):
    """What a run changes of the sampling of one agent's model; what is not named stays as the model's spec has it."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """The paper's unless given, and in paper mode always."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the probability that is drawn from."""
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    """Longest reply."""
    seed: int | None = None
    """Seed of the draws."""


class EmoHarborSection(Settings):
    """EmoHarbor's own settings. The Talker is the run's `seeker`."""

    thinker: Annotated[str | None, IN_SPEC] = None
    """The model that thinks for the seeker; without one the Talker's does."""
    simulator: Literal["full", "one_agent", "simple_profile"] = "full"
    """The full seeker, or an ablation of section 4.1.1 (`one_agent`: no Thinker; `simple_profile`: played from demographics and
    counselling alone)."""
    triples: bool = False
    """Read appraisal, emotion and goal out of every thought, a call each."""
    judging: Judging = "states"
    """What the judge is shown (section 4.1.2)."""
    per_turn: bool = False
    """Judge after every turn of the supporter as well."""
    sampling: dict[Agent, RoleSampling] = Field(default={})
    """Changes to the models' own sampling, by agent."""


class EmoHarborConfig(EvalConfig):
    """A run of EmoHarbor."""

    framework: Literal["emoharbor"] = "emoharbor"
    """EmoHarbor."""
    rubric: Annotated[str, IN_NAME] = "emoharbor"
    """The rubric that dialogues are scored on: a name in configs/rubrics, or a file."""
    method: Literal["joint", "per_dimension", "json", "bands"] = "json"
    """How the judge is asked; the published way is `json`."""
    prompts: Annotated[str | None, IN_NAME] = "emoharbor"
    """The prompt pack of all agents: a name in configs/prompts, or a folder."""
    exchanges: Annotated[int, Field(gt=0, le=10**6)] = 15
    """How many times both sides speak, at most. The seeker may leave sooner."""
    profiles: Annotated[list[str] | None, IN_NAME] = None
    """The profiles that are played: `bundled`, or files (our JSONL, or SAGE's). Default: bundled."""
    emoharbor: EmoHarborSection = EmoHarborSection()
    """EmoHarbor's own settings."""

    @model_validator(mode="after")
    def _fits(self) -> EmoHarborConfig:
        """Refuse what does not go together."""
        section = self.emoharbor
        fixed = [
            agent for agent, sampling in section.sampling.items() if sampling.temperature not in (None, TEMPERATURES[agent])
        ]
        if self.gold is not None and self.gold.scores is None:
            raise ValueError("gold: the bundled sets have ESC-Eval's dimensions; name gold.dialogues and gold.scores")
        if self.method != "json" and (unused := sorted(section.model_fields_set & {"judging", "per_turn"})):
            raise ValueError(f"emoharbor.{unused[0]}: belongs to method json, this config's is {self.method}")
        if section.simulator == "one_agent" and section.judging == "states" and self.method == "json":
            raise ValueError("emoharbor.judging: a seeker of one agent has no states to judge by: choose profile or dialogue")
        if section.simulator == "one_agent" and (section.triples or section.thinker):
            raise ValueError("emoharbor.simulator: one_agent has no Thinker: leave out thinker and triples")
        supporters = TEMPERATURES["supporter"]
        if self.mode == "paper" and self.temperature not in (None, supporters):
            raise ValueError(f"temperature: paper mode fixes that of supporters at {supporters}")
        if self.mode == "paper" and fixed:
            agent = fixed[0]
            raise ValueError(f"emoharbor.sampling.{agent}.temperature: paper mode fixes it at {TEMPERATURES[agent]}")
        return self


class _Simulated(Simulated):
    simulator: str
    thinker: ModelIdentity | None = None


class _Judged(Judged):
    judging: Judging | None = None


class EmoHarborModels(RunModels):
    """The models of a run of EmoHarbor: the Talker is its seeker, and another may think for it."""

    config: EmoHarborConfig

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        return self._sampled(spec, "talker" if role == "seeker" else role)

    def _sampled(self, spec: ModelSpec, agent: Agent) -> ModelSpec:
        """The spec as it is sampled for an agent. Raises `UserError` when its replies leave no room in its context."""
        changes = self.config.emoharbor.sampling.get(agent, RoleSampling()).model_dump(exclude_none=True)
        sampling = Sampling.model_validate(spec.sampling.model_dump() | {"temperature": TEMPERATURES[agent]} | changes)
        if spec.context_length is not None and sampling.max_tokens >= spec.context_length:
            raise UserError(
                f"emoharbor.sampling.{agent}.max_tokens: {sampling.max_tokens} leaves no room in the context of {spec.name} "
                f"({spec.context_length})"
            )
        return spec.model_copy(update={"sampling": sampling})

    @cached_property
    def thinker(self) -> ModelSpec | None:
        """The model that thinks for the seeker; None where nobody does."""
        if self.config.emoharbor.simulator == "one_agent":
            return None
        return self._sampled(
            self.speaks(self.model(self.config.emoharbor.thinker or self.named("seeker")), "seeker"), "thinker"
        )

    @property
    def seekers(self) -> list[ModelSpec]:
        return [self.seeker, *([self.thinker] if self.thinker else [])]

    @property
    def names(self) -> list[str]:
        return [*super().names, *([self.config.emoharbor.thinker] if self.config.emoharbor.thinker else [])]

    @property
    def simulator(self) -> str:
        """The seeker's name in the records: its models, and the ablation if it is one."""
        ablation = (
            "" if self.config.emoharbor.simulator == "full" else f" ({self.config.emoharbor.simulator.replace('_', ' ')})"
        )
        return "+".join(dict.fromkeys(spec.name for spec in self.seekers)) + ablation


class EmoHarbor(DialogueFramework):
    """A run of EmoHarbor with everything that its config names."""

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

    @property
    def section(self) -> EmoHarborSection:
        return self.config.emoharbor

    @cached_property
    def models(self) -> EmoHarborModels:
        return EmoHarborModels(self.config, self.held, self.given)

    @classmethod
    def players(cls, simulator: str) -> Sequence[str]:
        """The models in a `simulator`, without the ablation."""
        return simulator.partition(" (")[0].split("+")

    @cached_property
    def profiles(self) -> list[Profile]:
        return self._profiles(self.config.limit)

    @cached_property
    def known_profiles(self) -> list[Profile]:
        """All profiles of the wanted languages: given dialogues may be with any of them, whatever `limit` says."""
        return self._profiles(None, every=True)

    def _profiles(self, limit: int | None, every: bool = False) -> list[Profile]:
        return self.load_people(Profile, self.config.profiles or ["bundled"], limit, every)

    def people(self) -> list[Profile]:
        return self.profiles

    def people_of(self, dialogues: Sequence[Dialogue]) -> list[Profile]:
        ids = {dialogue.profile_id for dialogue in dialogues}
        return [profile for profile in self.known_profiles if profile.id in ids] if self._shows_profiles else []

    def identity(self) -> dict[str, Any]:
        thinker = self.models.thinker
        return {
            **super().identity(),
            "simulator": self.section.simulator,
            "triples": self.section.triples,
            "thinker": identity(thinker) if thinker else None,
        }

    def judging_identity(self) -> dict[str, Any]:
        if self.method != "json":
            return {}
        judging, thinker = self.section.judging, self.models.thinker
        return {
            "judging": judging,
            "per_turn": self.section.per_turn,
            "profiles": hashed(self.known_profiles) if judging != "dialogue" else None,
            # States that given dialogues lack are simulated.
            "thinker": identity(thinker) if thinker and judging == "states" else None,
        }

    @cached_property
    def shown(self) -> Shown:
        """What the judge is shown of the seeker: the dialogue alone by any method but `json`."""
        if self.method != "json":
            return Shown(mode=self.config.mode)
        judging = self.section.judging
        profile = {"profile": self._shown_profile} if self._shows_profiles else {}
        return Shown(judging, states=judging == "states", per_turn=self.section.per_turn, mode=self.config.mode, **profile)

    @property
    def _shows_profiles(self) -> bool:
        return self.method == "json" and self.section.judging != "dialogue"

    @cached_property
    def _by_id(self) -> dict[str, Profile]:
        return {profile.id: profile for profile in self.known_profiles}

    def _profile_of(self, dialogue: Dialogue) -> Profile:
        """Who was played. Raises `UserError` for a dialogue of an unknown profile."""
        id = dialogue.profile_id
        if id is None or id not in self._by_id:
            what = f"profile {id!r} is not among the run's profiles" if id else "no profile_id"
            raise UserError(
                f"dialogue {dialogue.id}: {what}; judging by {self.section.judging} needs the seeker's profile: name its file "
                "under `profiles:`, or judge by the dialogue alone (`emoharbor: {judging: dialogue}`)"
            )
        return self._by_id[id]

    def _shown_profile(self, dialogue: Dialogue) -> str:
        profile = self._profile_of(dialogue)
        return profile_text(profile, profile.language)

    def refuse_incomplete(self, dialogue: Dialogue) -> None:
        self.shown.profile(dialogue)
        if self.completing([dialogue]):
            raise UserError(
                f"dialogue {dialogue.id}: its seeker has no thoughts to judge by: `run --only score` simulates them and writes "
                "them into its dialogues.jsonl, or judge by the profile (`emoharbor: {judging: profile}`)"
            )

    def judging_whole(self) -> EmoHarbor:
        section = self.section.model_copy(update={"per_turn": False})
        return replace(self, config=self.config.model_copy(update={"emoharbor": section}))

    def plan(self, opening: Opening, person: Profile, supporter: ModelSpec) -> Plan:
        language, paper = person.language, self.config.mode == "paper"
        shown = profile_text(person, language, simple=True) if paper else ""
        system = self.prompts.render(language, "supporter_system.j2", user_info=shown, limit=paper)
        # Odd in the paper: a supporter that is to begin is told nothing at all; some chat templates refuse that.
        lead = None if paper else self.prompts.render(language, "opening.txt")
        return Plan(
            opening,
            seeker_side=self._person(person, opening.id),
            supporter_side=ModelSide(supporter, "supporter", opening.id, system=system, lead=lead),
            exchanges=self.config.exchanges,
            first="supporter",
        )

    def _person(self, profile: Profile, dialogue: str) -> PlayedPerson:
        """The seeker of one dialogue, as the config has it played."""
        return PlayedPerson(
            prompts=self.prompts,
            language=profile.language,
            dialogue=dialogue,
            profile=profile_text(profile, profile.language, simple=self.section.simulator == "simple_profile"),
            start=initial_state(profile),
            talker=self.models.seeker,
            thinker=self.models.thinker,
            triples=self.section.triples,
            examples=self.config.mode == "paper",
        )

    def completing(self, dialogues: Iterable[Dialogue]) -> list[ModelSpec]:
        """The Thinker, where the judge is to be shown states that a dialogue has not got."""
        thinker = self.models.thinker
        return [thinker] if thinker and self.shown.states and any(map(unthought, dialogues)) else []

    async def completed(self, client: Models, dialogue: Dialogue) -> Dialogue:
        """A given dialogue with the states that its seeker has not got: the Thinker reads it turn by turn (section 4.1.2).

        What was said stays as it is, states that are there are kept. A thought that cannot be had (refused, empty, too long a
        dialogue) leaves its turn without one; where the Thinker does not answer, the dialogue cannot be judged now. Raises
        `UserError` when the dialogue's profile is not among the run's.
        """
        if not self.completing([dialogue]):
            return dialogue
        seeker = self._person(self._profile_of(dialogue), dialogue.id)
        turns = list(dialogue.turns)
        try:
            for place in unthought(dialogue):
                thought = await seeker.think(client, turns[:place])
                if not thought.stopped:
                    turns[place] = turns[place].model_copy(update={"state": (turns[place].state or {}) | (thought.state or {})})
        except Unanswered as error:
            return dialogue.model_copy(update={"termination": error.outcome})
        return dialogue.model_copy(update={"turns": tuple(turns)})

    @classmethod
    def card(cls, person: Profile | RoleCard) -> RoleCard:
        if isinstance(person, RoleCard):
            return person
        who = person.demographics
        return RoleCard(
            id=person.id,
            language=person.language,
            age="" if who.age is None else str(who.age),
            gender=who.gender,
            occupation=who.occupation,
            problem=person.counselling.problem,
            source=person.source,
            card_method="written",
        )

    @classmethod
    def wrote(cls, run: ScoredRun) -> bool:
        """Whether its seekers held the dialogues, or its judge was shown given ones."""
        scored = run.config.stage("score", _Judged)
        return super().wrote(run) or bool(scored and scored.judging)

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        """What supporters were told, who played the seeker and what the judge was shown."""
        simulated, scored = run.config.stage("simulate", _Simulated), run.config.stage("score", _Judged)
        if simulated and simulated.seeker and super().wrote(run):
            paper = "who the seeker is, and to keep to 28 words on average and 97 at most (paper)"
            yield "Supporters told", paper if simulated.mode == "paper" else "neither who the seeker is nor a length (native)"
            thinker = simulated.thinker.name if simulated.thinker else "nobody"
            yield "Seeker", f"{simulated.simulator.replace('_', ' ')}: {thinker} thinks, {simulated.seeker.name} talks"
        if scored and scored.judging:
            yield "Judge shown", _SHOWN[scored.judging]
