"""A study: its items and questions, and who is given what. Made once from records, then fixed."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal

from pydantic import Field, model_validator

from core.errors import UserError
from core.files import digest
from core.grouping import group_by
from core.languages import of
from core.records import Dialogue, HumanScore, Language, Order, Turn
from core.rubrics import Rubric
from core.settings import Settings
from core.specs import ModelSpec
from data_prep.profiles import Played, played_text
from data_prep.profiles.build import Seed, draft
from data_prep.profiles.record import TRAITS, BigFive, Profile

Replies = Mapping[str, tuple[float | None, str]]  # question → place on its scale, and words
_IN_WORDS = ("age", "gender", "occupation", "relationship", "interests", "problem", "wishes")


class Ask(Settings):
    """A question, answered on a scale or, without one, in words."""

    text: dict[Language, str]
    """The wording of the question."""
    scale: str | None = None
    """The name of the answer's scale."""
    trait: str | None = None
    """The Big Five trait that agreement indicates."""
    reversed: bool = False
    """Whether agreement indicates the opposite of the trait."""
    optional: bool = False
    """Whether it may be left empty."""


class Questionnaire(Settings):
    """The questions by name, in the order of the page."""

    scales: dict[str, dict[Language, tuple[str, ...]]]
    """Name → the meanings of its places, from 1."""
    person: dict[str, Ask]
    """Once, before the first talk: the profile in words (age, problem, …), and statements on traits."""
    talk: dict[str, Ask] = Field(default={})
    """Before every talk: parts of the profile that may have changed."""
    mood: dict[str, Ask] = Field(default={})
    """Feelings, before and after every talk."""

    @model_validator(mode="after")
    def _whole(self) -> Questionnaire:
        for name, ask in self.named().items():
            if ask.scale not in (None, *self.scales):
                raise ValueError(f"{name}: no scale {ask.scale!r}: expected one of {', '.join(self.scales)}")
            if ask.trait not in (None, *TRAITS["en"]) or (ask.trait and ask.scale is None):
                raise ValueError(f"{name}: trait {ask.trait!r}: give a scale, and one of {', '.join(TRAITS['en'])}")
            if not ask.trait and name.partition(".")[2] not in (*_IN_WORDS, *self.mood):
                raise ValueError(f"{name}: no field of a profile: expected one of {', '.join(_IN_WORDS)}")
        if "problem" not in self.person or self.person["problem"].scale or self.person["problem"].optional:
            raise ValueError("person: ask for the problem, in words: every profile needs one")
        return self

    def named(self) -> dict[str, Ask]:
        """The questions by their names in answers, such as `person.age`, `before.sad` and `after.sad`."""
        groups = {"person": self.person, "before": self.talk | self.mood, "after": self.mood}
        return {f"{group}.{key}": ask for group, asks in groups.items() for key, ask in asks.items()}

    @staticmethod
    def text(ask: Ask, language: Language) -> str:
        """The wording of a question in a language."""
        return of(ask.text, language, "text of a questionnaire")

    def words(self, ask: Ask, language: Language) -> tuple[str, ...]:
        """The meanings of the places of a question's scale."""
        return of(self.scales[ask.scale], language, "scale of a questionnaire") if ask.scale else ()

    def profile(self, id: str, language: Language, replies: Replies) -> Profile:
        """The profile of the person in a talk; their feelings before it are the profile's state."""
        texts = {}
        for name, ask in self.named().items():
            value, text = replies.get(name, (None, ""))
            texts[name] = text.strip() if value is None else self.words(ask, language)[int(value) - 1]
        fields = {key: texts.get(f"before.{key}") or texts.get(f"person.{key}", "") for key in _IN_WORDS}
        interests = tuple(part for part in re.split(r"\s*[,;，；、\n]\s*", fields.pop("interests")) if part)
        feelings = ((ask, texts[f"before.{key}"]) for key, ask in self.mood.items())
        state = "; ".join(f"{self.text(ask, language)}: {feeling}" for ask, feeling in feelings if feeling)
        profile = draft(Seed(id=id, language=language, interests=interests, big_five=self._big_five(replies), **fields))
        return profile.model_copy(update={"counselling": profile.counselling.model_copy(update={"state": state})})

    def _big_five(self, replies: Replies) -> BigFive | None:
        """Each trait by the mean of its statements: low in the lower two fifths of the scale, high in the upper; None if a
        trait has no answer."""
        shares: dict[str, list[float]] = {trait: [] for trait in TRAITS["en"]}
        for key, ask in self.person.items():
            if ask.trait and (value := replies.get(f"person.{key}", (None, ""))[0]) is not None:
                share = (value - 1) / (len(self.words(ask, "en")) - 1)
                shares[ask.trait].append(1 - share if ask.reversed else share)
        means = {trait: sum(values) / len(values) for trait, values in shares.items() if values}
        levels = {trait: "low" if mean < 0.4 else "high" if mean > 0.6 else "middle" for trait, mean in means.items()}
        return BigFive.model_validate(levels) if len(levels) == len(shares) else None


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


@dataclass(frozen=True)
class Item:
    """A dialogue, or two, shown together, and the `systems` behind them. All who read its language see a `check`."""

    id: str
    language: Language
    systems: tuple[str, ...] = ()
    check: bool = False


Items = list[tuple[Item, Content]]


def rated_items(
    dialogues: Sequence[Dialogue], rubric: Rubric, played: Mapping[str, Played], checks: Sequence[HumanScore] = ()
) -> tuple[Items, dict[str, dict[str, float]]]:
    """One item per dialogue, and the attention checks: item → dimension → score. Raises `UserError` for a dialogue that cannot
    be rated, and a check of a dialogue that is not given."""
    expected: dict[str, dict[str, float]] = defaultdict(dict)
    ids = {dialogue.id: item_id(dialogue.id) for dialogue in dialogues}
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


def item_id(*dialogues: str) -> str:
    """A blind name, since ids of imported dialogues may contain the supporter's name."""
    return digest(["people", *dialogues], 12)


Purpose = Literal["item", "check", "repeat", "talk", "profile"]


@dataclass(frozen=True)
class Person:
    """A rater and the languages that they read, the preferred one first."""

    code: str
    languages: tuple[Language, ...]


@dataclass(frozen=True)
class RaterTask:
    """An item for a rater, at a place in that rater's order; `order`: which of two dialogues is shown first."""

    rater: str
    item: str
    place: int
    order: Order
    purpose: Purpose
    details: Mapping[str, Any] = field(default_factory=dict)
    """A talk's supporter, language and turns."""


def assign(items: Sequence[Item], people: Sequence[Person], overlap: int, repeats: int, seed: int) -> list[RaterTask]:
    """Tasks, rater by rater. Each item goes to `overlap` people; if all read all languages, loads differ by one item at most.

    Each rater has a random order of their own, with checks among the items, and sees `repeats` items again at the end. Which of
    two dialogues is first alternates over the raters of an item, from a random start. Raises `UserError` for a language that
    fewer than `overlap` people read.
    """
    rng = random.Random(f"{seed}/people")
    loads: Counter[str] = Counter()
    system_loads: Counter[tuple[str, str]] = Counter()
    assigned: dict[str, list[tuple[Item, Order]]] = {person.code: [] for person in people}
    for language, block in group_by([item for item in items if not item.check], lambda item: item.language).items():
        readers = [person.code for person in people if language in person.languages]
        if len(readers) < overlap:
            raise UserError(f"overlap {overlap}: {len(readers)} raters read {language}: invite more, or lower the overlap")
        for item in rng.sample(block, len(block)):
            burdens = {code: (loads[code], sum(system_loads[code, s] for s in item.systems), rng.random()) for code in readers}
            start = rng.randrange(2)
            for number, code in enumerate(sorted(readers, key=burdens.__getitem__)[:overlap]):
                assigned[code].append((item, "ab" if (start + number) % 2 == 0 else "ba"))
                loads[code] += 1
                system_loads.update((code, system) for system in item.systems)
    return [task for person in people for task in _ordered(person, assigned[person.code], items, repeats, seed)]


def _ordered(
    person: Person, assigned: Sequence[tuple[Item, Order]], items: Sequence[Item], repeats: int, seed: int
) -> list[RaterTask]:
    """A rater's tasks, language by language in their order of preference."""
    rng = random.Random(f"{seed}/people/{person.code}")
    ordered: list[tuple[Item, Order, Purpose]] = []
    for language in person.languages:
        block: list[tuple[Item, Order, Purpose]] = [(i, order, "item") for i, order in assigned if i.language == language]
        rng.shuffle(block)
        for check in (item for item in items if item.check and item.language == language):
            # Not the first: attention can flag only after some work.
            block.insert(rng.randint(min(1, len(block)), len(block)), (check, rng.choice(("ab", "ba")), "check"))
        ordered += block
    candidates = [(item, order) for item, order, purpose in ordered if purpose == "item"]
    # From the first half, so that raters repeat their judgement and not their memory of it.
    half = (len(candidates) + 1) // 2
    for item, order in rng.sample(candidates[: max(1, half)], min(repeats, half)):
        ordered.append((item, "ba" if order == "ab" else "ab", "repeat"))
    return [RaterTask(person.code, item.id, place, order, purpose) for place, (item, order, purpose) in enumerate(ordered)]


def assign_talks(
    people: Sequence[Person], supporters: Sequence[str], cards: Sequence[Item], seed: int, profiled: bool = False
) -> list[RaterTask]:
    """A talk of every rater with every supporter, in their preferred language; if `profiled`, after a task about themselves.

    Blind and balanced: over the raters, each supporter has each place equally often. If there are `cards`, raters play them in
    turn; otherwise they speak for themselves. Raises `UserError` if a rater has no card to play.
    """
    rng = random.Random(f"{seed}/people/talks")
    order, tasks, played = rng.sample(list(supporters), len(supporters)), [], Counter[str]()
    for shift, person in enumerate(rng.sample(list(people), len(people))):
        language = person.languages[0]
        playable = [card for card in cards if card.language == language]
        if cards and not playable:
            raise UserError(f"rater {person.code}: no role card or profile in {language}, their first language")
        empty: dict[str, Any] = {"language": language, "turns": [], "ended": None, "help": False, "failed": None, "broken": ""}
        if profiled:
            tasks.append(RaterTask(person.code, "", 0, "ab", "profile", empty | {"supporter": ""}))
        for place in range(len(order)):
            card = playable[played[language] % len(playable)].id if playable else ""
            played[language] += 1
            supporter = order[(place + shift) % len(order)]
            tasks.append(RaterTask(person.code, card, place + profiled, "ab", "talk", empty | {"supporter": supporter}))
    return tasks
