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
from evalsuite.runs.run_config import hashed, identity
from serve.questions import Models


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

    @property
    def section(self) -> EmoHarborSection:
        return self.config.emoharbor

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
        seeker = {"simulator": self.section.simulator, "triples": self.section.triples}
        return {**super().identity(), **seeker, "thinker": identity(thinker) if thinker else None}

    def judging_identity(self) -> dict[str, Any]:
        if self.method != "json":
            return {}
        judging, thinker = self.section.judging, self.models.thinker
        return {
            "judging": judging,
            "per_turn": self.section.per_turn,
            "profiles": hashed([*self.profiles.values()]) if judging != "dialogue" else None,
            # States that given dialogues lack are simulated.
            "thinker": identity(thinker) if thinker and judging == "states" else None,
        }

    @cached_property
    def shown(self) -> Shown:
        """What the judge is shown of the seeker; methods other than `json` show the dialogue alone."""
        if self.method != "json":
            return Shown(mode=self.config.mode)
        judging = self.section.judging
        shown = Shown(judging, states=judging == "states", per_turn=self.section.per_turn, mode=self.config.mode)

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
                f"dialogue {dialogue.id}: {problem}; judging by {self.section.judging} needs the seeker's profile: name its "
                "file under `profiles:`, or judge by the dialogue alone (`emoharbor: {judging: dialogue}`)"
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
        section = self.section.model_copy(update={"per_turn": False})
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
        """The seeker of one dialogue, played as the config says."""
        return PlayedPerson(
            self.prompts,
            profile.language,
            dialogue,
            profile=profile_text(profile, profile.language, simple=self.section.simulator == "simple_profile"),
            start=initial_state(profile),
            talker=self.models.seeker,
            thinker=self.models.thinker,
            triples=self.section.triples,
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
        return facts_of(run, super().wrote(run))
