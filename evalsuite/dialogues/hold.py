"""Dialogues: one loop for every framework, and any number of them in flight.

A framework supplies a `Seeker`, a `Supporter` and a `Plan`; what ends a dialogue, what is counted and what is recorded is the
same everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from core.records import Dialogue, Language, Message, Role, Stopped, Termination, Turn, Usage
from core.specs import ModelSpec
from serve.answers import Reply
from serve.client import ChatClient, Question
from serve.failures import Unanswered


@dataclass(frozen=True)
class Utterance:
    """What a side said. `state` is a seeker's inner state, `ended` that the seeker closed the dialogue with this line."""

    text: str
    replies: Sequence[Reply] = ()
    state: dict[str, Any] | None = None
    ended: bool = False
    stopped: Stopped | None = None


class Seeker(Protocol):
    """The person in distress; sees every turn so far, its own states included."""

    async def speak(self, client: ChatClient, turns: Sequence[Turn]) -> Utterance: ...


class Supporter(Protocol):
    """The system under test; sees what was said, never a state."""

    async def speak(self, client: ChatClient, turns: Sequence[Turn]) -> Utterance: ...


@dataclass(frozen=True)
class Plan:
    """One dialogue to hold: its identity (a Dialogue's fields), an opening and how it goes on.

    `opening` turns are fixed and cost no call; `first` speaks after them; `exchanges` is how many times both sides speak.
    """

    id: str
    language: Language
    framework: str
    source: str
    supporter: str
    simulator: str
    seeker_side: Seeker
    supporter_side: Supporter
    exchanges: int
    card_id: str | None = None
    profile_id: str | None = None
    source_id: str | None = None
    trial: int = 0
    opening: tuple[Turn, ...] = ()
    first: Role = "seeker"


def utterance(reply: Reply) -> Utterance:
    """A model's reply as an utterance: refusal, overflow and emptiness are told apart, wording is not judged."""
    if reply.refused:
        return Utterance(reply.text, [reply], stopped="refusal")
    if reply.finish_reason == "context_overflow":
        return Utterance("", [reply], stopped="context_overflow")
    text = reply.text.strip()
    return Utterance(text, [reply], stopped=None if text else "empty_reply")


@dataclass(frozen=True)
class ModelSide:
    """A model as seeker or supporter: its own lines are `assistant`, the other side's are `user`.

    `hidden_opening` leaves that many opening turns out of its history. `lead` is a line of the other side's that stands before
    everything, where this side speaks first: chat templates want a user message to begin with.
    """

    spec: ModelSpec
    role: Role
    dialogue: str
    system: str | None = None
    hidden_opening: int = 0
    lead: str | None = None

    async def speak(self, client: ChatClient, turns: Sequence[Turn]) -> Utterance:
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        messages += [{"role": "user", "content": self.lead}] if self.lead else []
        for turn in turns[self.hidden_opening :]:
            messages.append({"role": "assistant" if turn.role == self.role else "user", "content": turn.text})
        question = Question(
            messages,
            sample={"dialogue": self.dialogue, "turn": len(turns)},
            sampling=self.spec.sampling,
            served_name=self.spec.served_name(),
            purpose=self.role,
            session=self.dialogue,
        )
        return utterance(await client.ask(self.spec, question))


@dataclass
class _Account:
    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    characters: int = 0
    calls: int = 0
    cut_off: Counter[str] = field(default_factory=Counter)

    def add(self, role: Role, replies: Iterable[Reply]) -> None:
        for reply in replies:
            self.cut_off[role] += reply.finish_reason == "length"
            self.prompt += reply.prompt_tokens
            self.completion += reply.completion_tokens
            self.reasoning += reply.reasoning_tokens
            self.characters += reply.reasoning_characters
            self.calls += 1

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            reasoning_tokens=self.reasoning,
            reasoning_characters=self.characters,
            calls=self.calls,
            cut_off={role: count for role, count in sorted(self.cut_off.items()) if count},
        )


def _unthinking(turn: Turn) -> Turn:
    return turn if turn.state is None else turn.model_copy(update={"state": None})


async def hold(plan: Plan, client: ChatClient) -> Dialogue:
    """Hold one dialogue to its end and record how it ended.

    A refused, empty or overflowing reply is not a turn: the dialogue ends before it, and `Dialogue.ended_by` says whose
    it was. A server that is lost, or rejects a call, ends only this dialogue; the client lists why.
    """
    turns = list(plan.opening)
    account = _Account()
    termination: Termination = "max_turns"
    order: tuple[Role, Role] = ("seeker", "supporter") if plan.first == "seeker" else ("supporter", "seeker")
    try:
        for role in order * plan.exchanges:
            if role == "seeker":
                said = await plan.seeker_side.speak(client, turns)
            else:  # a seeker's inner state never reaches the supporter
                said = await plan.supporter_side.speak(client, [_unthinking(turn) for turn in turns])
            account.add(role, said.replies)
            if said.stopped:
                termination = said.stopped
                break
            turns.append(Turn(role=role, text=said.text, state=said.state))
            if said.ended:
                termination = "seeker_ended"
                break
    except Unanswered as error:
        termination = error.outcome
    return Dialogue(
        id=plan.id,
        language=plan.language,
        framework=plan.framework,
        source=plan.source,
        source_id=plan.source_id,
        card_id=plan.card_id,
        profile_id=plan.profile_id,
        supporter=plan.supporter,
        simulator=plan.simulator,
        trial=plan.trial,
        turns=tuple(turns),
        termination=termination,
        usage=account.usage(),
    )
