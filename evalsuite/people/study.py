"""A study: what is shown to raters and what they are asked. Made once from records, then fixed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from core.errors import UserError
from core.files import digest
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Language, RoleCard, Turn
from core.rubrics import Rubric
from core.specs import ModelSpec
from data_prep.played import Played, played_text
from evalsuite.people.assignment import Item
from evalsuite.people.questionnaire import Ask, Questionnaire

Kind = Literal["rate", "choose", "chat"]
Per = Literal["dialogue", "turn"]
_NAME = re.compile(r"\w[\w.-]{0,60}")
COMMENT = "comment"  # the question under which a task's comment is kept; no dimension may have its name


class Chat(BaseModel):
    """How people talk to supporters."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    supporters: tuple[ModelSpec, ...] = Field(min_length=1)
    least: int = Field(default=3, ge=1)
    """Exchanges after which a talk may be rated."""
    most: int = Field(default=15, ge=1)
    """Exchanges after which it ends."""
    rate_after: tuple[int, ...] = ()
    """Exchanges after which it is rated in the middle."""
    questionnaire: Questionnaire | None = None
    """What people tell of themselves."""


class Study(BaseModel):
    """The definition. It stands in the database as it was made."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    kind: Kind
    rubric: Rubric | None = None
    """What is rated."""
    per: Per = "dialogue"
    questions: dict[str, dict[Language, str]] = {}
    """What is asked about two dialogues, by the name that `Preference.question` has."""
    overlap: int = Field(default=2, ge=1)
    repeats: int = Field(default=0, ge=0)
    seed: int = 0
    thoughts: bool = False
    """Whether raters see what a seeker thought (`state.text`)."""
    expected: dict[str, dict[str, float]] = {}
    """Attention checks: item → dimension → the score that an attentive rater gives, give or take a point."""
    weights: dict[str, float] = {}
    """Of dialogues that `people suggest` drew: dialogue → 1 / chance of being drawn."""
    consent: dict[Language, str] = {}
    """What a rater agrees to before anything is shown; empty: nothing is asked."""
    chat: Chat | None = None
    second_round: bool = False
    """Whether raters whose scores stand out score again once all have submitted (FEEL, section 3.2)."""

    @model_validator(mode="after")
    def _whole(self) -> Study:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name: {self.name!r} is not usable: letters, digits, '.', '-' and '_' are")
        if self.kind in ("rate", "chat") and self.rubric is None:
            raise ValueError("rubric: none given")
        if self.rubric is not None and COMMENT in self.rubric.dimensions:
            raise ValueError(f"rubric: a dimension named {COMMENT!r}: the name is kept for comments")
        if self.kind == "choose" and not self.questions:
            raise ValueError("questions: none given")
        if self.kind == "chat" and self.rubric is not None and self.rubric.rates == "seeker":
            raise ValueError(f"rubric: {self.rubric.name} rates the seeker, who is the person that talks")
        if self.second_round and (self.kind != "rate" or self.per != "dialogue" or self.overlap < 2):
            raise ValueError("second_round: it is for scores of whole dialogues by two raters or more")
        if (self.kind == "chat") != (self.chat is not None):
            raise ValueError("chat: the settings of a talk belong to a study of kind chat")
        return self

    @cached_property
    def asks(self) -> dict[str, Ask]:
        """What people are asked about themselves, by the name of the question."""
        return self.chat.questionnaire.named() if self.chat and self.chat.questionnaire else {}

    def needed(self, asked: Sequence[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
        """What of it has to be answered."""
        return [one for one in asked if not (one[0] in self.asks and self.asks[one[0]].optional)]

    def asked(self, dialogue: Dialogue | None = None) -> list[tuple[str, int | None]]:
        """What a task asks for: (dimension or question, turn), in the page's order."""
        if self.kind == "choose" or self.rubric is None:
            return [(name, None) for name in self.questions]
        if self.per == "dialogue" or dialogue is None:
            return [(name, None) for name in self.rubric.dimensions]
        turns = [place for place, turn in enumerate(dialogue.turns) if turn.role == self.rubric.rates]
        return [(name, place) for place in turns for name in self.rubric.dimensions]


class Content(BaseModel):
    """What an item shows: one dialogue, or two, and who is played where that is to be seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    dialogue: Dialogue
    other: Dialogue | None = None
    played: str = ""
    """Who the seeker is meant to be."""

    def sides(self, first: str) -> tuple[Dialogue, Dialogue]:
        """Both dialogues as they are shown in an order."""
        assert self.other is not None, "a choice has two dialogues"
        return (self.dialogue, self.other) if first == "ab" else (self.other, self.dialogue)

    @property
    def shared(self) -> tuple[Turn, ...]:
        """The turns that both dialogues begin with: two replies to one history are shown below it."""
        pairs = zip(self.dialogue.turns, self.other.turns if self.other else (), strict=False)
        alike: list[Turn] = []
        for a, b in pairs:
            if (a.role, a.text) != (b.role, b.text):
                break
            alike.append(a)
        return tuple(alike)


Items = list[tuple[Item, Content]]


def rated_items(
    dialogues: Sequence[Dialogue], rubric: Rubric, played: Mapping[str, Played], checks: Sequence[HumanScore] = ()
) -> tuple[Items, dict[str, dict[str, float]]]:
    """An item a dialogue, and the attention checks: item → dimension → score.

    Raises `UserError` where a dialogue cannot be rated, or a check is of none of them.
    """
    expected: dict[str, dict[str, float]] = defaultdict(dict)
    ids = {dialogue.id: _item_id(dialogue.id) for dialogue in dialogues}
    for check in checks:
        if check.dialogue_id not in ids:
            raise UserError(f"checks: no dialogue {check.dialogue_id!r} among those given")
        expected[ids[check.dialogue_id]][check.dimension] = check.value
    items: Items = []
    for dialogue in dialogues:
        if all(turn.role != rubric.rates for turn in dialogue.turns):
            raise UserError(f"dialogue {dialogue.id}: the {rubric.rates}, who is rated, says nothing in it")
        text = played_text(dialogue, dict(played)) if rubric.rates == "seeker" else ""
        system = (dialogue.supporter if rubric.rates == "supporter" else dialogue.simulator) or dialogue.source
        id = ids[dialogue.id]
        items.append((Item(id, dialogue.language, (system,), id in expected), Content(dialogue=dialogue, played=text)))
    return items, dict(expected)


def pairs_of_supporters(dialogues: Sequence[Dialogue]) -> Iterator[tuple[Dialogue, Dialogue]]:
    """Every two dialogues of different supporters on one card, profile or situation, in the same trial."""
    groups = group_by(
        dialogues, lambda one: (one.language, one.card_id or one.profile_id or one.source_id or one.id, one.trial)
    )
    for group in groups.values():
        yield from ((a, b) for a, b in combinations(group, 2) if a.supporter != b.supporter)


def compared_items(pairs: Sequence[tuple[Dialogue, Dialogue]], systems: Mapping[str, str], played: Mapping[str, str]) -> Items:
    """An item a pair. `systems` maps dialogue → what is compared, `played` dialogue → who is played where that is shown."""
    items: Items = []
    for a, b in pairs:
        item = Item(_item_id(a.id, b.id), a.language, (systems[a.id], systems[b.id]))
        items.append((item, Content(dialogue=a, other=b, played=played.get(a.id, ""))))
    return items


def played_items(played: Mapping[str, Played]) -> Items:
    """An item for everybody who may be played in a talk: nothing is said in it yet."""
    items: Items = []
    for one in played.values():
        who = {"card_id": one.id} if isinstance(one, RoleCard) else {"profile_id": one.id}
        nothing = Dialogue(id=one.id, language=one.language, source="people", turns=(), termination="infrastructure", **who)
        content = Content(dialogue=nothing, played=played_text(nothing, dict(played)))
        items.append((Item(_item_id(one.id), one.language), content))
    return items


def _item_id(*dialogues: str) -> str:
    """A blind name: ids of imported dialogues may tell the supporter's name."""
    return digest(["people", *dialogues], 12)
