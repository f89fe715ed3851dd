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

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import UserError
from core.judge_prompts import transcript_of_turns
from core.prompts import PromptPack
from core.records import Dialogue, Language, Turn, dialogue_id
from core.specs import ModelSpec
from data_prep.profiles import Profile, profile_text
from evalsuite.dialogues.hold import ModelSide, Plan, Utterance, utterance
from evalsuite.runs.config import Resolved
from serve.answers import Reply
from serve.batch import together
from serve.client import ChatClient, Question

FRAMEWORK = "emoharbor"
_LABELS: dict[Language, dict[str, str]] = {
    "en": {"appraisal": "Appraisal", "emotion": "Emotion", "goal": "Goal"},
    "zh": {"appraisal": "认知", "emotion": "情绪", "goal": "目标"},
}
_COLON = {"en": ": ", "zh": "："}
_NOTHING = {"none", "无", ""}
_MARKS = "\"'“”‘’「」『』*`()（）.。!！~～…,，;； \t\r\n"


def plans(resolved: Resolved, client: ChatClient) -> Iterator[Plan]:
    """Every dialogue of a run: profiles × supporters × trials, without profiles that the supporter's languages leave out."""
    prompts, paper = resolved.prompts, resolved.config.mode == "paper"
    for supporter in resolved.supporters:
        for profile in resolved.profiles:
            language = profile.language
            if language not in supporter.languages:
                continue
            known = profile_text(profile, language, simple=True) if paper else ""
            system = prompts.render(language, "supporter_system.j2", user_info=known, limit=paper)
            # Odd in the paper: nothing at all has been said to a supporter that is to begin; some chat templates refuse that.
            lead = None if paper else prompts.render(language, "opening.txt")
            for trial in range(resolved.config.trials):
                id = dialogue_id(FRAMEWORK, profile.id, supporter.name, resolved.simulator, trial)
                yield Plan(
                    id=id,
                    language=language,
                    framework=FRAMEWORK,
                    source=profile.source or FRAMEWORK,
                    source_id=profile.source_id,
                    profile_id=profile.id,
                    supporter=supporter.name,
                    simulator=resolved.simulator,
                    trial=trial,
                    seeker_side=person(resolved, client, profile, id),
                    supporter_side=ModelSide(client, supporter, "supporter", id, system=system, lead=lead),
                    exchanges=resolved.config.exchanges,
                    first="supporter",
                )


def person(resolved: Resolved, client: ChatClient, profile: Profile, dialogue: str) -> Person:
    """The seeker of one dialogue, as the run's config has it played."""
    own = resolved.emoharbor
    return Person(
        client=client,
        prompts=resolved.prompts,
        language=profile.language,
        dialogue=dialogue,
        profile=profile_text(profile, profile.language, simple=own.simulator == "simple_profile"),
        start=initial_state(profile),
        talker=resolved.seeker,
        thinker=resolved.thinker,
        triples=own.triples,
    )


def initial_state(profile: Profile) -> str:
    """What is before the chat (algorithm 1, line 2): the profile's emotional state and goals; "" where it has neither."""
    parts = [profile.counselling.state, *profile.counselling.goals]
    return ("; " if profile.language == "en" else "；").join(part for part in parts if part)


def ending_phrases(prompts: PromptPack, language: Language) -> tuple[str, ...]:
    """The closed list of phrases that end a chat, as the seeker is told them. Raises `UserError` for an empty list."""
    phrases = tuple(line.strip() for line in prompts.render(language, "endings.txt").splitlines() if line.strip())
    if not phrases or not all(map(_bare, phrases)):
        raise UserError(f"{prompts.folder / language / 'endings.txt'}: no ending phrase, or one without words")
    return phrases


def ends(text: str, phrases: Sequence[str]) -> bool:
    """Whether a line is one of the phrases and nothing else; case, quotation marks and the full stop do not matter.

    A phrase inside a longer line ends nothing: "I don't want to continue" may be about a job.
    """
    return _bare(text) in {_bare(phrase) for phrase in phrases}


def _bare(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("’", "'").strip(_MARKS)).casefold()


def triple(text: str, language: Language) -> dict[str, str | None]:
    """Appraisal, emotion and goal (equation 2) from three labelled lines; null for a part that has no line of its own, has two
    of them, or is said to be absent."""
    found: dict[str, str | None] = {}
    for part, label in _LABELS[language].items():
        lines = re.findall(rf"^[ \t*\-]*{label}[ \t*]*[:：](.*)$", text, re.M | re.I)
        said = lines[0].strip(" \t*").strip() if len(lines) == 1 else ""
        found[part] = None if said.rstrip(".。").casefold() in _NOTHING else said
    return found


@dataclass(frozen=True)
class Person:
    """The seeker: the Thinker reads the reply and thinks, then the Talker speaks (equations 2 and 4).

    Both are shown the whole of the seeker's memory as one text. The state of a turn is `{"text": monologue}`; with `triples`,
    appraisal, emotion and goal are read out of the monologue by one more call, which changes nothing in the chat.
    """

    client: ChatClient
    prompts: PromptPack
    language: Language
    dialogue: str
    profile: str
    start: str
    talker: ModelSpec
    thinker: ModelSpec | None
    triples: bool

    async def speak(self, turns: Sequence[Turn]) -> Utterance:
        thought = await self._think(turns)
        if thought is None:
            return await self._talk(turns, None)
        if thought.stopped:
            return thought
        state, said = await together([self._state(thought, len(turns)), self._talk(turns, thought.text)])
        return Utterance(said.text, [*thought.replies, *state.replies, *said.replies], state.state, said.ended, said.stopped)

    async def think(self, turns: Sequence[Turn]) -> Utterance:
        """The state alone, with no word said: for dialogues that were held without a Thinker."""
        thought = await self._think(turns)
        if thought is None:
            raise ValueError("this seeker has no Thinker")
        return thought if thought.stopped else await self._state(thought, len(turns))

    async def _think(self, turns: Sequence[Turn]) -> Utterance | None:
        if self.thinker is None:
            return None
        system = self.prompts.render(self.language, "thinker_system.j2", profile=self.profile)
        memory = transcript_of_turns(turns, self.language, states=True)
        user = self.prompts.render(self.language, "thinker.j2", transcript=memory, start=self.start)
        return utterance(await self._ask(self.thinker, "thinker", len(turns), system, user))

    async def _talk(self, turns: Sequence[Turn], thought: str | None) -> Utterance:
        phrases = ending_phrases(self.prompts, self.language)
        system = self.prompts.render(
            self.language, "talker_system.j2", profile=self.profile, endings=phrases, thinks=thought is not None
        )
        memory = transcript_of_turns(turns, self.language, states=True, thought=thought)
        user = self.prompts.render(self.language, "talker.j2", transcript=memory, start=self.start)
        said = utterance(await self._ask(self.talker, "talker", len(turns), system, user))
        return Utterance(said.text, said.replies, None, not said.stopped and ends(said.text, phrases), said.stopped)

    async def _state(self, thought: Utterance, turn: int) -> Utterance:
        """The thought as the state of a turn, with the calls that it took beyond the thought itself."""
        state: dict[str, Any] = {"text": thought.text}
        if not self.triples or self.thinker is None:
            return Utterance("", [], state)
        system = self.prompts.render(self.language, "triple_system.j2")
        user = self.prompts.render(self.language, "triple.j2", monologue=thought.text)
        reply = await self._ask(self.thinker, "triple", turn, system, user, triple_regex(self.language))
        return Utterance("", [reply], state | triple(reply.text, self.language))

    async def _ask(self, spec: ModelSpec, part: str, turn: int, system: str, user: str, regex: str | None = None) -> Reply:
        question = Question(
            [{"role": "system", "content": system}, {"role": "user", "content": user}],
            sample={"dialogue": self.dialogue, "turn": turn, "part": part},
            sampling=spec.sampling,
            served_name=spec.served_name(),
            purpose="seeker",
            regex=regex,
            session=self.dialogue,
        )
        return await self.client.ask(spec, question)


def triple_regex(language: Language) -> str:
    """What a constrained server may answer when it is asked for appraisal, emotion and goal."""
    return r"\n".join(rf"{label}{_COLON[language]}[^\n]{{1,120}}" for label in _LABELS[language].values())


def unthought(dialogue: Dialogue) -> list[int]:
    """The places of the seeker's turns that have no thought, though the supporter has spoken before them."""
    heard = next((place for place, turn in enumerate(dialogue.turns) if turn.role == "supporter"), len(dialogue.turns))
    return [
        place
        for place, turn in enumerate(dialogue.turns)
        if turn.role == "seeker" and place > heard and not (turn.state or {}).get("text")
    ]


async def with_states(resolved: Resolved, client: ChatClient, dialogue: Dialogue) -> Dialogue:
    """A given dialogue with the states that its seeker has not got: the Thinker reads it turn by turn (section 4.1.2).

    What was said stays as it is, states that are there are kept. A thought that cannot be had (refused, empty, too long a
    dialogue) leaves its turn without one. Raises `UserError` when the dialogue's profile is not among the run's.
    """
    bare = unthought(dialogue)
    if not bare:
        return dialogue
    resolved.shown.profile(dialogue)
    profile = next(each for each in resolved.known_profiles if each.id == dialogue.profile_id)
    seeker = person(resolved, client, profile, dialogue.id)
    turns = list(dialogue.turns)
    for place in bare:
        thought = await seeker.think(turns[:place])
        if not thought.stopped:
            turns[place] = turns[place].model_copy(update={"state": (turns[place].state or {}) | (thought.state or {})})
    return dialogue.model_copy(update={"turns": tuple(turns)})
