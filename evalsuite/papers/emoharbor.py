"""EmoHarbor (Ye et al.): a Thinker and a Talker together play the person of a profile, who then judges the supporter as a user
(section 2.2, algorithm 1).

Protocol: the supporter speaks first, on an empty history; the Thinker reads the reply and writes down what goes on inside; the
Talker writes the next line; at most 15 exchanges, and the seeker may end with a phrase of a closed list.

Where the paper leaves a gap: line 2's InitialState is the profile's own emotional state and goals, shown to both agents as what
was before the chat, without a call. Line 6 hands the Talker the initial state, section 2.2 the updated one: the updated one is
taken. `{user_info}` of the supporter's prompt (H.1, paper mode) is the simple profile, not the script of reactions. A seeker
without a Thinker is the ablation "One Agent" (section 4.1.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from core.errors import UserError
from core.records import Dialogue, RoleCard
from core.specs import ModelSpec
from data_prep.profiles import Profile, profile_text
from evalsuite.dialogues.hold import ModelSide, Opening, Plan
from evalsuite.judge.judge import Shown
from evalsuite.papers.emoharbor_config import EmoHarborConfig, EmoHarborModels, EmoHarborSection, ShownJudged, facts_of
from evalsuite.papers.emoharbor_seeker import PlayedPerson, card_of, initial_state, unthought
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.identity import hashed, identity
from serve.questions import Models


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
    def known_profiles(self) -> dict[str, Profile]:
        """All profiles of the wanted languages by id: given dialogues may be with any of them, whatever `limit` says."""
        return {profile.id: profile for profile in self._profiles(None, every=True)}

    def _profiles(self, limit: int | None, every: bool = False) -> list[Profile]:
        return self.load_people(Profile, self.config.profiles or ["bundled"], limit, every)

    def people(self) -> list[Profile]:
        return self.profiles

    def people_of(self, dialogues: Sequence[Dialogue]) -> list[Profile]:
        ids = {dialogue.profile_id for dialogue in dialogues}
        shown = self.method == "json" and self.section.judging != "dialogue"
        return [profile for profile in self.known_profiles.values() if profile.id in ids] if shown else []

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
            "profiles": hashed([*self.known_profiles.values()]) if judging != "dialogue" else None,
            # States that given dialogues lack are simulated.
            "thinker": identity(thinker) if thinker and judging == "states" else None,
        }

    @cached_property
    def shown(self) -> Shown:
        """What the judge is shown of the seeker: the dialogue alone by any method but `json`."""
        if self.method != "json":
            return Shown(mode=self.config.mode)
        judging, per_turn, mode = self.section.judging, self.section.per_turn, self.config.mode
        if judging == "dialogue":
            return Shown(judging, per_turn=per_turn, mode=mode)

        def profile(dialogue: Dialogue) -> str:
            of_seeker = self._profile_of(dialogue)
            return profile_text(of_seeker, of_seeker.language)

        return Shown(judging, states=judging == "states", per_turn=per_turn, mode=mode, profile=profile)

    def _profile_of(self, dialogue: Dialogue) -> Profile:
        """Who was played. Raises `UserError` for a dialogue of an unknown profile."""
        id = dialogue.profile_id
        if id is None or id not in self.known_profiles:
            what = f"profile {id!r} is not among the run's profiles" if id else "no profile_id"
            raise UserError(
                f"dialogue {dialogue.id}: {what}; judging by {self.section.judging} needs the seeker's profile: name its file "
                "under `profiles:`, or judge by the dialogue alone (`emoharbor: {judging: dialogue}`)"
            )
        return self.known_profiles[id]

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
        Raises `UserError` when its profile is not among the run's."""
        if not self.completing([dialogue]):
            return dialogue
        return await self._person(self._profile_of(dialogue), dialogue.id).completed(client, dialogue)

    @classmethod
    def card(cls, person: Profile | RoleCard) -> RoleCard:
        return person if isinstance(person, RoleCard) else card_of(person)

    @classmethod
    def wrote(cls, run: ScoredRun) -> bool:
        """Whether its seekers held the dialogues, or its judge was shown given ones."""
        scored = run.config.stage("score", ShownJudged)
        return super().wrote(run) or bool(scored and scored.judging)

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        return facts_of(run, super().wrote(run))
