"""Dialogues: one loop for every framework, and any number of them in flight.

A framework supplies both sides (`Side`) in a `Plan`; what ends a dialogue, what is counted and what is recorded is the
same everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from core.records import (
    Dialogue,
    Language,
    Message,
    Role,
    RoleCard,
    Stopped,
    Termination,
    Turn,
    Usage,
    dialogue_id,
)
from core.side_prompts import chat
from core.specs import ModelSpec
from data_prep.played import Played
from serve.answers import Reply
from serve.callables import PLACE
from serve.failures import Unanswered
from serve.questions import Models, Question


@dataclass(frozen=True)
class Utterance:
    """What a side said. `state` is a seeker's inner state, `ended` that the seeker closed the dialogue with this line."""

    text: str
    replies: Sequence[Reply] = ()
    state: dict[str, Any] | None = None
    ended: bool = False
    stopped: Stopped | None = None


class Side(Protocol):
    """One side of a dialogue. The seeker sees every turn so far, its own states included; the supporter sees no state."""

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance: ...


@dataclass(frozen=True)
class Opening:
    """A dialogue that is not held yet: who is to talk with whom, and the fixed turns that it begins with, which cost no call.

    `hold` makes a record of it; the fields are those of `Dialogue`.
    """

    id: str
    language: Language
    framework: str
    source: str
    supporter: str
    simulator: str
    source_id: str | None = None
    card_id: str | None = None
    profile_id: str | None = None
    trial: int = 0
    turns: tuple[Turn, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, framework: str, person: Played, supporter: str, simulator: str, trial: int) -> Opening:
        """The dialogue of a person, played by a simulator, with a supporter."""
        card, profile = (person.id, None) if isinstance(person, RoleCard) else (None, person.id)
        id = dialogue_id(framework, person.id, supporter, simulator, trial)
        played = person.source_id, card, profile
        return cls(id, person.language, framework, person.source or framework, supporter, simulator, *played, trial)

    @property
    def person(self) -> str:
        """The id of the card or profile that is played."""
        return self.card_id or self.profile_id or ""


@dataclass(frozen=True)
class Plan:
    """One dialogue to hold: as it opens, and how it goes on.

    `first` speaks after the fixed turns; `exchanges` is how many times both sides speak, at most.
    """

    opening: Opening
    seeker_side: Side
    supporter_side: Side
    exchanges: int
    first: Role = "seeker"
    spoken: int = 0
    """How many turns after the fixed ones the opening has already, of a dialogue that is continued."""

    @property
    def id(self) -> str:
        """The dialogue's id."""
        return self.opening.id


def utterance(reply: Reply, verbatim: bool = False, endings: Sequence[str] = ()) -> Utterance:
    """A model's reply as an utterance: refusal, overflow and emptiness are told apart, wording is not judged. `verbatim` keeps
    the white space around it; a reply with one of the `endings` in it closes the dialogue, in any case."""
    if reply.refused:
        return Utterance(reply.text, [reply], stopped="refusal")
    if reply.finish_reason == "context_overflow":
        return Utterance("", [reply], stopped="context_overflow")
    text = reply.text.strip()
    said = reply.verbatim if verbatim and reply.verbatim else text
    ended = any(ending.lower() in said.lower() for ending in endings)
    return Utterance(said, [reply], ended=ended, stopped=None if text else "empty_reply")


@dataclass(frozen=True)
class ModelSide:
    """A model as seeker or supporter: it is shown the dialogue as its own chat (`core.side_prompts.chat`). A supporter whose
    spec has a system message is told that one.

    `hidden_opening` leaves that many opening turns out of its history. `lead` is a line of the other side's that stands before
    everything, where this side speaks first: chat templates want a user message to begin with. `verbatim`: white space around
    its replies stays. `hears` is told a reply while it is written (`Question.hears`). `endings`: what a seeker says to take
    leave. `remembers`: how many turns it is shown, the last ones; of a dialogue that has begun then without `lead`. `stand_in`:
    what an empty reply counts as; without it, that ends the dialogue.
    """

    spec: ModelSpec
    role: Role
    dialogue: str
    system: str | None = None
    hidden_opening: int = 0
    lead: str | None = None
    verbatim: bool = False
    hears: Callable[[str], None] | None = None
    endings: Sequence[str] = ()
    remembers: int | None = None
    stand_in: str = ""

    def __post_init__(self) -> None:
        if self.role == "supporter" and self.spec.system is not None:
            object.__setattr__(self, "system", self.spec.system)

    def messages(self, turns: Sequence[Turn]) -> list[Message]:
        """What it is shown of a dialogue."""
        seen = turns[self.hidden_opening :]
        if self.remembers is None or not seen:
            return chat(seen, self.role, self.system, self.lead)
        return chat(seen[-self.remembers :], self.role, self.system)

    def question(self, turns: Sequence[Turn], turn: int) -> Question:
        """What it is asked after these turns, for the dialogue's turn of that number."""
        return Question(
            self.messages(turns),
            sample={"dialogue": self.dialogue, "turn": turn},
            sampling=self.spec.sampling,
            served_name=self.spec.served_name(),
            purpose=self.role,
            session=self.dialogue,
            hears=self.hears,
        )

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        said = utterance(await client.ask(self.spec, self.question(turns, len(turns))), self.verbatim, self.endings)
        empty = said.stopped == "empty_reply" and bool(self.stand_in)
        return replace(said, text=self.stand_in, stopped=None) if empty else said


def usage_of(replies: Sequence[tuple[Role, Reply]]) -> Usage:
    """What replies of these roles cost together."""
    cut_off = Counter(role for role, reply in replies if reply.finish_reason == "length")
    return Usage(
        prompt_tokens=sum(reply.prompt_tokens for _, reply in replies),
        completion_tokens=sum(reply.completion_tokens for _, reply in replies),
        reasoning_tokens=sum(reply.reasoning_tokens for _, reply in replies),
        reasoning_characters=sum(reply.reasoning_characters for _, reply in replies),
        calls=len(replies),
        cut_off=dict(sorted(cut_off.items())),
    )


def _unthinking(turn: Turn) -> Turn:
    return turn if turn.state is None else turn.model_copy(update={"state": None})


async def hold(plan: Plan, client: Models) -> Dialogue:
    """Hold one dialogue to its end and record how it ended.

    A refused, empty or overflowing reply is not a turn: the dialogue ends before it, and `Dialogue.ended_by` says whose
    it was. A server that is lost, or rejects a call, ends only this dialogue; the client lists why.
    """
    turns, replies = list(plan.opening.turns), list[tuple[Role, Reply]]()
    heard = [_unthinking(turn) for turn in turns]  # what reaches the supporter: no inner state of the seeker's
    termination: Termination = "max_turns"
    order: tuple[Role, Role] = ("seeker", "supporter") if plan.first == "seeker" else ("supporter", "seeker")
    try:
        for number, role in list(enumerate(order * plan.exchanges))[plan.spoken :]:
            PLACE.set((plan.opening.person or None, number // 2 + 1))
            if role == "seeker":
                said = await plan.seeker_side.speak(client, turns)
            else:
                said = await plan.supporter_side.speak(client, heard)
            replies += [(role, reply) for reply in said.replies]
            if said.stopped:
                termination = said.stopped
                break
            turns.append(Turn(role=role, text=said.text, state=said.state))
            heard.append(_unthinking(turns[-1]))
            if said.ended:
                termination = "seeker_ended"
                break
    except Unanswered as error:
        termination = error.outcome
    return Dialogue(**vars(plan.opening) | {"turns": tuple(turns), "termination": termination, "usage": usage_of(replies)})
