"""Dialogues: one loop for every framework, and any number of them in flight.

A framework supplies both sides (`Side`) in a `Plan`. How dialogues end, and what is counted and recorded, is the same for all.

Floors are supporters that need no model, on every board, so that a bad judge shows: one that rates one kind sentence, or the
seeker's own words, as highly as a model's replies does not tell supporters apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from core.languages import of, texts
from core.prompts import chat
from core.records import Dialogue, Language, Message, Role, RoleCard, Stopped, Termination, Turn, Usage, dialogue_id
from core.specs import Floor, ModelSpec
from data_prep.profiles import Played
from serve.answers import Reply
from serve.callables import PLACE
from serve.failures import Unanswered
from serve.questions import Models, Question

FLOORS = ("silent", "parrot", "lecture")  # specs in configs/models
REFERENCE = "reference"  # a further one, if source dialogues are given
Source = tuple[str, str]  # a corpus and the id of a dialogue in it


@dataclass(frozen=True)
class Utterance:
    """One line of a side. `state`: a seeker's inner state. `ended`: the seeker ends the dialogue with this line."""

    text: str
    replies: Sequence[Reply] = ()
    state: dict[str, Any] | None = None
    ended: bool = False
    stopped: Stopped | None = None


class Side(Protocol):
    """One side of a dialogue. The seeker sees all turns so far with its own inner states, the supporter sees no states."""

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance: ...


@dataclass(frozen=True)
class Opening:
    """A planned dialogue: who talks with whom, and the fixed turns it begins with. `hold` makes a `Dialogue` of it."""

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
    """One dialogue to hold: its opening, and how it goes on. `first` speaks after the fixed turns; each side speaks at most
    `exchanges` times."""

    opening: Opening
    seeker_side: Side
    supporter_side: Side
    exchanges: int
    first: Role = "seeker"
    spoken: int = 0
    """In a continued dialogue, how many turns the opening has after the fixed ones."""

    @property
    def id(self) -> str:
        return self.opening.id


def utterance(reply: Reply, verbatim: bool = False, endings: Sequence[str] = ()) -> Utterance:
    """A model's reply as an utterance, stopped if it is refused, too long for the context or empty. `verbatim` keeps the white
    space around it. A reply that contains one of the `endings`, in any case, ends the dialogue."""
    if reply.refused:
        return Utterance(reply.text, [reply], stopped="refusal")
    if reply.finish_reason == "context_overflow":
        return Utterance("", [reply], stopped="context_overflow")
    text = reply.text.strip()
    line = reply.verbatim if verbatim and reply.verbatim else text
    ended = any(ending.lower() in line.lower() for ending in endings)
    return Utterance(line, [reply], ended=ended, stopped=None if text else "empty_reply")


@dataclass(frozen=True)
class ModelSide:
    """A model as seeker or supporter, which is shown the dialogue as its own chat (`core.prompts.chat`). For a supporter,
    the system message of its spec replaces `system`.

    `hidden_opening`: the number of opening turns left out of its history. `lead`: a line of the other side put before the
    history if this side speaks first, as chat templates require a user message first. `verbatim`: keep the white space around
    its replies. `hears` receives a reply as it is written (`Question.hears`). `endings`: what a seeker says to end the
    dialogue. `remembers`: the number of last turns it is shown, without `lead` once there are turns. `stand_in`: replaces an
    empty reply, which otherwise ends the dialogue.
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
        shown = turns[self.hidden_opening :]
        if self.remembers is None or not shown:
            return chat(shown, self.role, self.system, self.lead)
        return chat(shown[-self.remembers :], self.role, self.system)

    def question(self, turns: Sequence[Turn], turn: int) -> Question:
        """The call for the next turn after these; `turn` is its number in the dialogue."""
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
        line = utterance(await client.ask(self.spec, self.question(turns, len(turns))), self.verbatim, self.endings)
        empty = line.stopped == "empty_reply" and bool(self.stand_in)
        return replace(line, text=self.stand_in, stopped=None) if empty else line


def usage_of(replies: Sequence[tuple[Role, Reply]]) -> Usage:
    """The usage of replies, with the number cut off per role."""
    cut_off = Counter(role for role, reply in replies if reply.finish_reason == "length")
    return Usage(
        prompt_tokens=sum(reply.prompt_tokens for _, reply in replies),
        completion_tokens=sum(reply.completion_tokens for _, reply in replies),
        reasoning_tokens=sum(reply.reasoning_tokens for _, reply in replies),
        reasoning_characters=sum(reply.reasoning_characters for _, reply in replies),
        calls=len(replies),
        cut_off=dict(sorted(cut_off.items())),
    )


async def hold(plan: Plan, client: Models) -> Dialogue:
    """Hold one dialogue to its end and record how it ended.

    A refused, empty or overflowing reply is not a turn: the dialogue ends before it, and `Dialogue.ended_by` is the side that
    gave it. A lost server or a rejected call ends only this dialogue; the client lists the reason.
    """
    turns, replies = list(plan.opening.turns), list[tuple[Role, Reply]]()
    stateless = [turn.model_copy(update={"state": None}) for turn in turns]  # the supporter sees no inner states
    termination: Termination = "max_turns"
    order: tuple[Role, Role] = ("seeker", "supporter") if plan.first == "seeker" else ("supporter", "seeker")
    try:
        for number, role in list(enumerate(order * plan.exchanges))[plan.spoken :]:
            PLACE.set((plan.opening.person or None, number // 2 + 1))
            if role == "seeker":
                line = await plan.seeker_side.speak(client, turns)
            else:
                line = await plan.supporter_side.speak(client, stateless)
            replies += [(role, reply) for reply in line.replies]
            if line.stopped:
                termination = line.stopped
                break
            turns.append(Turn(role=role, text=line.text, state=line.state))
            stateless.append(Turn(role=role, text=line.text))
            if line.ended:
                termination = "seeker_ended"
                break
    except Unanswered as error:
        termination = error.outcome
    return Dialogue(**vars(plan.opening) | {"turns": tuple(turns), "termination": termination, "usage": usage_of(replies)})


@dataclass(frozen=True)
class FloorSide:
    """A floor as the supporter of one dialogue. It asks no model."""

    floor: Floor
    text: str
    """Its reply in the dialogue's language."""
    replies: Sequence[str] = ()
    """The replies of the source dialogue's supporter."""
    given: int = 0
    """The number of supporter turns that the dialogue begins with."""

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        if self.floor.kind == "reference":
            return Utterance(self.replies[sum(turn.role == "supporter" for turn in turns) - self.given])
        return Utterance(_line(self.floor, self.text, turns))


def _line(floor: Floor, text: str, turns: Sequence[Turn]) -> str:
    """The floor's reply to these turns."""
    lines = [turn.text for turn in turns if turn.role == "seeker"]
    return lines[-1] if lines and floor.kind == "parrot" else text


def text_of(floor: Floor, name: str, language: Language) -> str:
    """A floor's reply in a language, from its spec or floors.yaml in the language's folder; "" for a floor without a text."""
    own = texts(language, "floors.yaml")
    if name in own and language not in floor.text:
        return str(own[name])
    return of(floor.text, language, f"text of floor {name}") if floor.text else ""


def answered_by(floor: Floor, name: str, dialogue: Dialogue) -> Dialogue:
    """A finished dialogue with the supporter's answers replaced by the floor's. The seeker's turns stay as they were."""
    text, turns = text_of(floor, name, dialogue.language), list(dialogue.turns)
    for place, turn in enumerate(turns):
        if turn.role == "supporter" and any(before.role == "seeker" for before in turns[:place]):
            turns[place] = turn.model_copy(update={"text": _line(floor, text, turns[:place])})
    return dialogue.model_copy(update={"turns": tuple(turns)})


def replies_by_source(dialogues: Iterable[Dialogue]) -> dict[Source, list[str]]:
    """The supporter's answers in each source dialogue, by corpus and id. Dialogues without a source id are left out."""
    from data_prep.responses import answered

    return {(d.source, d.source_id): [place.text for place in answered(d.turns)] for d in dialogues if d.source_id}


def with_floor(plan: Plan, floor: Floor | None, replies: Mapping[Source, Sequence[str]]) -> Plan:
    """The plan with the floor, if there is one, as its supporter. A reference speaks as often as it did in its source dialogue,
    which must be among the `replies`."""
    if floor is None:
        return plan
    opening = plan.opening
    source = replies.get((opening.source, opening.source_id or ""), ())
    given = sum(turn.role == "supporter" for turn in opening.turns)
    side = FloorSide(floor, text_of(floor, opening.supporter, opening.language), source, given)
    exchanges = min(plan.exchanges, len(source)) if floor.kind == "reference" else plan.exchanges
    return replace(plan, supporter_side=side, exchanges=exchanges)
