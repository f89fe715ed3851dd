"""EmoHarbor's seeker: a Thinker and a Talker who together play the person of a profile (section 2.2).

The seeker's memory contains its thoughts (`Turn.state`), the supporter's only the words spoken.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.errors import UserError
from core.judge_prompts import transcript_of_turns
from core.languages import asked_in, words
from core.prompts import PromptPack
from core.records import Dialogue, Language, RoleCard, Turn
from core.specs import ModelSpec
from data_prep.profiles import Profile
from evalsuite.dialogues.hold import Utterance, utterance
from serve.answers import Reply
from serve.batch import together
from serve.failures import Unanswered
from serve.questions import Models, Question

_PARTS = ("appraisal", "emotion", "goal")
_MARKS = "\"'“”‘’「」『』*`()（）.。!！~～…,，;； \t\r\n"


def initial_state(profile: Profile) -> str:
    """The seeker's state before the chat (algorithm 1, line 2): the profile's emotional state and goals; "" without either."""
    parts = [profile.counselling.state, *profile.counselling.goals]
    return words(profile.language).semicolon.join(part for part in parts if part)


def card_of(profile: Profile) -> RoleCard:
    """A profile's demographics and problem as a role card."""
    demographics = profile.demographics
    return RoleCard(
        id=profile.id,
        language=profile.language,
        age="" if demographics.age is None else str(demographics.age),
        gender=demographics.gender,
        occupation=demographics.occupation,
        problem=profile.counselling.problem,
        source=profile.source,
        card_method="written",
    )


def ending_phrases(prompts: PromptPack, language: Language) -> tuple[str, ...]:
    """The closed list of phrases that end a chat, worded as in the seeker's prompt. Raises `UserError` for an empty list."""
    phrases = tuple(line.strip() for line in prompts.render(language, "endings.txt").splitlines() if line.strip())
    if not phrases or not all(map(_bare, phrases)):
        raise UserError(f"{prompts.folder / language / 'endings.txt'}: no ending phrase, or one without words; one per line")
    return phrases


def ends(text: str, phrases: Sequence[str]) -> bool:
    """Whether a line is one of the phrases and nothing else, whatever its case, quotation marks and closing punctuation. A
    phrase inside a longer line does not count: "I don't want to continue" may be about a job."""
    return _bare(text) in {_bare(phrase) for phrase in phrases}


def _bare(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("’", "'").strip(_MARKS)).casefold()


def triple(text: str, language: Language) -> dict[str, str | None]:
    """Appraisal, emotion and goal (equation 2) from three labelled lines; None for a part with no line or several lines of its
    own, and for one whose line says "none"."""
    parts: dict[str, str | None] = {}
    for part in _PARTS:
        lines = re.findall(rf"^[ \t*\-]*{asked_in(language)[part]}[ \t*]*[:：](.*)$", text, re.M | re.I)
        content = lines[0].strip(" \t*").strip() if len(lines) == 1 else ""
        parts[part] = None if content.rstrip(".。").casefold() in ("none", "无", "") else content
    return parts


@dataclass(frozen=True)
class PlayedPerson:
    """The seeker: the Thinker reads the reply and thinks, then the Talker speaks (equations 2 and 4).

    Both are shown the seeker's whole memory as one text. The state of a turn is `{"text": monologue}`; with `triples`, one more
    call extracts appraisal, emotion and goal from the monologue, which changes nothing in the chat.
    """

    prompts: PromptPack
    language: Language
    dialogue: str
    profile: str
    start: str
    talker: ModelSpec
    thinker: ModelSpec | None
    triples: bool
    examples: bool = False
    """Whether the Thinker is shown examples of thoughts (H.2)."""

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        thought = await self._think(client, turns)
        if thought is None:
            return await self._talk(client, turns, None)
        if thought.stopped:
            return thought
        state, line = await together([self._state(client, thought, len(turns)), self._talk(client, turns, thought.text)])
        return Utterance(line.text, [*thought.replies, *state.replies, *line.replies], state.state, line.ended, line.stopped)

    async def completed(self, client: Models, dialogue: Dialogue) -> Dialogue:
        """A dialogue held without a Thinker, with a thought at every turn that lacks one; everything else stays as it is.

        If a thought cannot be had (refused, empty, dialogue too long), its turn stays without one; if the Thinker's server
        fails, the dialogue gets that termination and cannot be judged now.
        """
        turns = list(dialogue.turns)
        try:
            for place in unthought(dialogue):
                thought = await self._think(client, turns[:place])
                if thought and not thought.stopped:
                    state = await self._state(client, thought, place)
                    turns[place] = turns[place].model_copy(update={"state": (turns[place].state or {}) | (state.state or {})})
        except Unanswered as error:
            return dialogue.model_copy(update={"termination": error.outcome})
        return dialogue.model_copy(update={"turns": tuple(turns)})

    async def _think(self, client: Models, turns: Sequence[Turn]) -> Utterance | None:
        if self.thinker is None:
            return None
        system = self.prompts.render(self.language, "thinker_system.j2", profile=self.profile, examples=self.examples)
        memory = transcript_of_turns(turns, self.language, states=True)
        user = self.prompts.render(self.language, "thinker.j2", transcript=memory, start=self.start)
        return utterance(await self._ask(client, self.thinker, "thinker", len(turns), system, user))

    async def _talk(self, client: Models, turns: Sequence[Turn], thought: str | None) -> Utterance:
        phrases = ending_phrases(self.prompts, self.language)
        system = self.prompts.render(
            self.language, "talker_system.j2", profile=self.profile, endings=phrases, thinks=thought is not None
        )
        memory = transcript_of_turns(turns, self.language, states=True, thought=thought)
        user = self.prompts.render(self.language, "talker.j2", transcript=memory, start=self.start)
        line = utterance(await self._ask(client, self.talker, "talker", len(turns), system, user))
        return replace(line, ended=not line.stopped and ends(line.text, phrases))

    async def _state(self, client: Models, thought: Utterance, turn: int) -> Utterance:
        """The thought as the state of a turn, with the replies of the call for the triple, if any."""
        state: dict[str, Any] = {"text": thought.text}
        if not self.triples or self.thinker is None:
            return Utterance("", [], state)
        system = self.prompts.render(self.language, "triple_system.j2")
        user = self.prompts.render(self.language, "triple.j2", monologue=thought.text)
        reply = await self._ask(client, self.thinker, "triple", turn, system, user, triple_regex(self.language))
        return Utterance("", [reply], state | triple(reply.text, self.language))

    async def _ask(
        self, client: Models, spec: ModelSpec, part: str, turn: int, system: str, user: str, regex: str | None = None
    ) -> Reply:
        question = Question(
            [{"role": "system", "content": system}, {"role": "user", "content": user}],
            sample={"dialogue": self.dialogue, "turn": turn, "part": part},
            sampling=spec.sampling,
            served_name=spec.served_name(),
            purpose="seeker",
            regex=regex,
            session=self.dialogue,
        )
        return await client.ask(spec, question)


def triple_regex(language: Language) -> str:
    """The pattern that a constrained answer with appraisal, emotion and goal is held to."""
    wording = asked_in(language)
    return r"\n".join(rf"{wording[part]}{wording.colon}[^\n]{{1,120}}" for part in _PARTS)


def unthought(dialogue: Dialogue) -> list[int]:
    """The indices of the seeker's turns without a thought that come after the supporter has spoken."""
    roles = [turn.role for turn in dialogue.turns]
    first = roles.index("supporter") if "supporter" in roles else len(roles)
    return [
        place
        for place, turn in enumerate(dialogue.turns)
        if turn.role == "seeker" and place > first and not (turn.state or {}).get("text")
    ]
