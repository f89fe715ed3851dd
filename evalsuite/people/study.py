"""A study: the items shown to raters and the questions on them. Made once from records, then fixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, takewhile
from typing import Literal

from pydantic import Field, model_validator

from core.errors import UserError
from core.files import digest
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Language, RoleCard, Turn
from core.rubrics import Rubric
from core.settings import Settings
from core.specs import ModelSpec
from data_prep.played import Played, played_text
from evalsuite.people.assignment import Item
from evalsuite.people.questionnaire import Ask, Questionnaire

QuestionKey = tuple[str, int | None]  # a dimension or question, and the turn it is about (None: the whole)
COMMENT = "comment"  # the question of a task's comment; no dimension may have its name


class Talking(Settings):
    """The settings of talks that a config has."""

    least: int = Field(3, ge=1)
    """Exchanges before a talk may be rated."""
    most: int = Field(15, ge=1)
    """Exchanges after which a talk ends."""
    rate_after: tuple[int, ...] = ()
    """Exchanges after which a talk is rated midway."""
    questionnaire: Questionnaire | None = None
    """Questions to people about themselves."""


class Chat(Talking):
    """The settings of talks with supporters."""

    supporters: tuple[ModelSpec, ...] = Field(min_length=1)


class StudyDesign(Settings):
    """The settings of ratings and choices that a config has."""

    per: Literal["dialogue", "turn"] = "dialogue"
    """The unit of rating: a dialogue, or a turn of the rated side."""
    overlap: int = Field(2, ge=1)
    """Raters per item."""
    repeats: int = Field(0, ge=0)
    """Items that each rater sees again, unannounced."""
    second_round: bool = False
    """Once all have submitted, raters whose score stands out score again, and other contested scores are reviewed jointly
    (FEEL, section 3.2)."""
    thoughts: bool = False
    """Show seekers' thoughts (`state.text`), if the dialogues have them."""
    seed: int = 0
    """Seed of the assignment and orders of items."""


class Study(StudyDesign):
    """A study's definition, as stored in its database."""

    name: str = Field(pattern=r"^\w[\w.-]{0,60}$")
    kind: Literal["rate", "choose", "chat"]
    rubric: Rubric | None = None
    """The rubric of ratings; None for choices."""
    questions: dict[str, dict[Language, str]] = Field(default={})
    """Questions about two dialogues, by their names in `Preference.question`."""
    expected: dict[str, dict[str, float]] = Field(default={})
    """Attention checks: item → dimension → the score that an attentive rater gives, give or take a point."""
    weights: dict[str, float] = Field(default={})
    """For dialogues drawn by `people suggest`: dialogue → 1 / probability of being drawn."""
    consent: dict[Language, str] = Field(default={})
    """The text that a rater agrees to before anything is shown; empty: none."""
    chat: Chat | None = None

    @model_validator(mode="after")
    def _whole(self) -> Study:
        if self.rubric is not None and COMMENT in self.rubric.dimensions:
            raise ValueError(f"rubric: a dimension named {COMMENT!r}: the name is reserved for comments")
        if self.kind == "chat" and self.rubric is not None and self.rubric.rates == "seeker":
            raise ValueError(f"rubric: {self.rubric.name} rates the seeker, but here a person is the seeker")
        if self.second_round and (self.kind != "rate" or self.per != "dialogue" or self.overlap < 2):
            raise ValueError("second_round: only for scores of whole dialogues by two raters or more")
        return self

    @cached_property
    def asks(self) -> dict[str, Ask]:
        """The questions to people about themselves, by name."""
        return self.chat.questionnaire.named() if self.chat and self.chat.questionnaire else {}

    def required(self, keys: Sequence[QuestionKey]) -> list[QuestionKey]:
        """The questions among these that must be answered."""
        return [key for key in keys if not (key[0] in self.asks and self.asks[key[0]].optional)]

    def question_keys(self, dialogue: Dialogue | None = None) -> list[QuestionKey]:
        """The questions of a task, in the page's order."""
        if self.kind == "choose" or self.rubric is None:
            return [(name, None) for name in self.questions]
        if self.per == "dialogue" or dialogue is None:
            return [(name, None) for name in self.rubric.dimensions]
        turns = [place for place, turn in enumerate(dialogue.turns) if turn.role == self.rubric.rates]
        return [(name, place) for place in turns for name in self.rubric.dimensions]


class Content(Settings):
    """An item's content: one dialogue, or two, and the text of who is played, if raters see it."""

    dialogue: Dialogue
    other: Dialogue | None = None
    played: str = ""
    """Who the seeker plays."""

    def sides(self, order: str) -> tuple[Dialogue, Dialogue]:
        """Both dialogues in the order shown."""
        assert self.other is not None, "a choice has two dialogues"
        return (self.dialogue, self.other) if order == "ab" else (self.other, self.dialogue)

    @property
    def shared(self) -> tuple[Turn, ...]:
        """The turns that both dialogues begin with, shown once above two replies to one history."""
        pairs = zip(self.dialogue.turns, self.other.turns if self.other else (), strict=False)
        return tuple(a for a, _ in takewhile(lambda pair: (pair[0].role, pair[0].text) == (pair[1].role, pair[1].text), pairs))


Items = list[tuple[Item, Content]]


def rated_items(
    dialogues: Sequence[Dialogue], rubric: Rubric, played: Mapping[str, Played], checks: Sequence[HumanScore] = ()
) -> tuple[Items, dict[str, dict[str, float]]]:
    """One item per dialogue, and the attention checks: item → dimension → score. Raises `UserError` for a dialogue that cannot
    be rated, and a check of a dialogue that is not given."""
    expected: dict[str, dict[str, float]] = defaultdict(dict)
    ids = {dialogue.id: _item_id(dialogue.id) for dialogue in dialogues}
    for check in checks:
        if check.dialogue_id not in ids:
            raise UserError(f"checks: no dialogue {check.dialogue_id!r} among those given")
        expected[ids[check.dialogue_id]][check.dimension] = check.value
    items: Items = []
    for dialogue in dialogues:
        if all(turn.role != rubric.rates for turn in dialogue.turns):
            raise UserError(f"dialogue {dialogue.id}: the {rubric.rates}, who is rated, has no turn in it")
        text = played_text(dialogue, dict(played)) if rubric.rates == "seeker" else ""
        system = (dialogue.supporter if rubric.rates == "supporter" else dialogue.simulator) or dialogue.source
        id = ids[dialogue.id]
        items.append((Item(id, dialogue.language, (system,), id in expected), Content(dialogue=dialogue, played=text)))
    return items, dict(expected)


def pairs_of_supporters(dialogues: Sequence[Dialogue]) -> Iterator[tuple[Dialogue, Dialogue]]:
    """Every two dialogues of different supporters on the same card, profile or situation, in the same trial."""
    groups = group_by(dialogues, lambda d: (d.language, d.card_id or d.profile_id or d.source_id or d.id, d.trial))
    for group in groups.values():
        yield from ((a, b) for a, b in combinations(group, 2) if a.supporter != b.supporter)


def compared_items(pairs: Sequence[tuple[Dialogue, Dialogue]], systems: Mapping[str, str], played: Mapping[str, str]) -> Items:
    """One item per pair. `systems`: dialogue → the system compared; `played`: dialogue → who is played, if raters see it."""
    items: Items = []
    for a, b in pairs:
        item = Item(_item_id(a.id, b.id), a.language, (systems[a.id], systems[b.id]))
        items.append((item, Content(dialogue=a, other=b, played=played.get(a.id, ""))))
    return items


def played_items(played: Mapping[str, Played]) -> Items:
    """One item, with an empty dialogue, per card or profile that may be played in a talk."""
    items: Items = []
    for id, person in played.items():
        ids = {"id": id, "card_id" if isinstance(person, RoleCard) else "profile_id": id}
        empty = Dialogue(language=person.language, source="people", turns=(), termination="infrastructure", **ids)
        content = Content(dialogue=empty, played=played_text(empty, dict(played)))
        items.append((Item(_item_id(id), person.language), content))
    return items


def _item_id(*dialogues: str) -> str:
    """A blind name, since ids of imported dialogues may contain the supporter's name."""
    return digest(["people", *dialogues], 12)
