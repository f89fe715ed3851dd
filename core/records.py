"""Records: one JSON object per line, unknown fields rejected. Their field names are the interface between the rooms.

Clock times are kept elsewhere (`timing.json`), so that equal runs leave equal bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache, partial
from operator import is_, not_
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from core.files import digest
from core.languages import Language as Language
from core.names import Spelt, number_of, plain_name

Role = Literal["seeker", "supporter"]
Message = dict[Literal["role", "content"], str]  # a chat message in a request
# How a dialogue ended. `infrastructure`: a server was lost. `rejected`: a server worked, but answered a call with an error
# other than a full context or a refusal, or never finished. Both say nothing about either side (`LOST`): such dialogues are not
# judged, and the same command continues them.
Termination = Literal["max_turns", "seeker_ended", "refusal", "empty_reply", "context_overflow", "infrastructure", "rejected"]
LOST = frozenset({"infrastructure", "rejected"})
Stopped = Literal["refusal", "empty_reply", "context_overflow"]  # replies that are not turns
Verdict = Literal["a", "b", "tie"]  # the better of two
Order = Literal["ab", "ba"]  # the order in which two were shown
_LEVEL = re.compile(r"0|-?[1-9][0-9]{0,3}|-?(?:0|[1-9][0-9]{0,2})\.[0-9]{0,2}[1-9]")


@cache
def _level(text: str) -> str:
    if not _LEVEL.fullmatch(text):  # a single spelling, since scores are looked up by their text
        raise ValueError("the key is not a score")
    return text


Number = Annotated[float, BeforeValidator(number_of)]
Whole = Annotated[int, BeforeValidator(number_of)]
Count = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(number_of)]  # the range that JSON keeps exactly
_PLAIN = BeforeValidator(lambda value: plain_name(value) if isinstance(value, str) else value)
Name = Annotated[str, _PLAIN]
Identifier = Annotated[str, Field(min_length=1, max_length=200), _PLAIN]
Part = Annotated[str, Field(min_length=1, max_length=150), _PLAIN]  # a part of an identifier
Annotator = Annotated[Identifier, Spelt("annotator")]
JudgeName = Annotated[Identifier, Spelt("judge")]
System = Annotated[Identifier, Spelt("system")]  # a system whose replies or dialogues are scored or compared
# The widest range of a rubric: some tables list all scores.
_Value = Annotated[float, Field(ge=-1000, le=1000), BeforeValidator(number_of)]
_Level = Annotated[str, AfterValidator(_level)]
_Probability = Annotated[float, Field(ge=0), BeforeValidator(number_of)]


class Record(BaseModel):
    """Base of all records: immutable, unknown fields rejected, NaN refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class RoleCard(Record):
    """The seeker's role (ESC-Eval, section 2.2): a person and their problem."""

    id: Identifier
    """Unique among the cards of a run."""
    language: Language
    age: str = ""
    """Free text; empty where unknown."""
    gender: str = ""
    """Free text; empty where unknown."""
    occupation: str = ""
    """Free text; empty where unknown."""
    problem: Annotated[str, Field(min_length=1)]
    """The problem and its circumstances, from the seeker's point of view."""
    source: Name
    """The corpus that the card was made from."""
    source_id: Name | None = None
    """The dialogue or post in that corpus."""
    card_method: Literal["llm", "heuristic", "written"]
    """How the card was made: by a model, from the corpus's own fields, or by hand."""
    category: tuple[str, ...] | None = None
    """Path in `configs/taxonomy.yaml`: level 1 alone, or levels 1 to 3."""
    quality: Literal["high", "middle", "invalid"] | None = None
    """The annotators' verdict (ESC-Eval, table 8)."""
    text: str | None = Field(default=None, exclude_if=partial(is_, None))
    """The card's text in ESC-Eval's files, word for word, which the published prompt shows. Null for other cards."""
    details: dict[str, str] = Field(default={}, exclude_if=not_)
    """A benchmark's further fields about the person, by its own names: its prompts show them as `details["name"]`."""


class Turn(Record):
    """One utterance of a support dialogue."""

    role: Role
    """The speaker."""
    text: str
    """The words."""
    state: dict[str, Any] | None = None
    """The seeker's inner state (EmoHarbor). It never reaches a supporter."""


class Post(Record):
    """A request for help in a single turn, with the first reply if the corpus has one."""

    id: Identifier
    """Unique among all posts that are read together."""
    language: Language
    source: Name
    """The corpus."""
    source_id: Name
    """The post's id in that corpus."""
    text: Annotated[str, Field(min_length=1)]
    """The request."""
    reply: str | None = None
    """The first reply."""


class Line(Record):
    """One utterance of a role-play dialogue."""

    role: Literal["character", "partner"]
    """The played character, or its partner."""
    name: Name
    """The speaker's name."""
    text: Annotated[str, Field(min_length=1)]
    """The words."""


class RolePlay(Record):
    """A dialogue of general role play. Lines are the corpus's: a speaker may have several in a row."""

    id: Identifier
    """Unique among all dialogues that are read together."""
    language: Language
    source: Name
    """The corpus."""
    source_id: Name
    """The dialogue's id in that corpus."""
    character: Annotated[Name, Field(min_length=1)]
    """The name of the played character."""
    persona: str = ""
    """A description of the character, or empty."""
    scene: str = ""
    """The setting of the dialogue, or empty."""
    lines: Annotated[tuple[Line, ...], Field(min_length=1)]
    """The utterances in order."""


class Usage(Record):
    """Calls and tokens of a dialogue, as counted by the servers. No clock times."""

    prompt_tokens: Count = 0
    """Tokens read."""
    completion_tokens: Count = 0
    """Tokens written, reasoning included."""
    reasoning_tokens: Count = 0
    """Tokens of reasoning; 0 if the server does not report them."""
    reasoning_characters: Count = 0
    """Characters of reasoning, counted by the client."""
    calls: Count = 0
    """Model calls."""
    cut_off: dict[str, Count] = Field(default={}, exclude_if=not_)
    """Replies that were cut off at the token limit, by role. Left out if there were none."""

    def __add__(self, other: Usage) -> Usage:
        return Usage.total([self, other])

    @classmethod
    def total(cls, parts: Iterable[Usage]) -> Usage:
        """The sum of several."""
        usages, cut_off = list(parts), Counter[str]()
        for usage in usages:
            if usage.cut_off:
                cut_off.update(usage.cut_off)
        sums = {name: sum(getattr(usage, name) for usage in usages) for name in cls.model_fields if name != "cut_off"}
        return cls(**sums, cut_off=dict(sorted(cut_off.items())))


class Dialogue(Record):
    """Turns between one seeker and one supporter."""

    id: Identifier
    """A hash of framework, card or profile, supporter, simulator and trial; imported dialogues keep their own."""
    language: Language
    framework: Name | None = None
    """The framework whose protocol it followed. Null for imported dialogues."""
    source: Name
    """The corpus, or the source of the card or profile."""
    source_id: Name | None = None
    """The dialogue's id in that corpus."""
    card_id: Name | None = None
    """The role card that was played (ESC-Eval)."""
    profile_id: Name | None = None
    """The profile that was played (EmoHarbor)."""
    supporter: Annotated[Name | None, Spelt("system")] = None
    """The model under test."""
    simulator: Annotated[Name | None, Spelt("simulator")] = None
    """The model or models that played the seeker."""
    trial: Count = 0
    """The number of the repetition, from 0."""
    turns: tuple[Turn, ...]
    """The utterances in order."""
    termination: Termination | None = None
    """How the dialogue ended. Null for imported dialogues."""
    usage: Usage | None = None
    """Its calls and tokens."""
    fields: dict[str, str] = Field(default={}, exclude_if=not_)
    """Further facts about an imported dialogue, such as version, week or country. Reports group by them (--by)."""

    @model_validator(mode="after")
    def _not_empty(self) -> Dialogue:
        if not self.turns and self.termination in (None, "max_turns", "seeker_ended"):
            raise ValueError("turns: a dialogue without turns needs the termination that stopped it")
        return self

    @property
    def lost(self) -> bool:
        """Whether a server failed, so that the dialogue is missing rather than ended."""
        return self.termination in LOST

    @property
    def ended_by(self) -> Role | None:
        """The side that ended the dialogue early, whose turn was next (None at max_turns)."""
        if self.termination in (None, "max_turns"):
            return None
        if self.termination == "seeker_ended":
            return "seeker"
        # only a dialogue that the supporter opens can stop before any turn
        return "supporter" if not self.turns or self.turns[-1].role == "seeker" else "seeker"

    @property
    def exchanges(self) -> int:
        """Answered seeker turns: pairs of a seeker turn and the supporter turn after it."""
        pairs = zip(self.turns, self.turns[1:], strict=False)
        return sum(a.role == "seeker" and b.role == "supporter" for a, b in pairs)


Used = dict[str, dict[str, dict[str, Usage]]]
"""A run's usage: stage → role → model."""


class SupportDialogue(Record):
    """An emotional-support dialogue of a corpus, with the corpus's facts about its seeker; empty if it has none."""

    dialogue: Dialogue
    """The dialogue itself."""
    situation: str = ""
    """A summary of the problem that is not one of the turns."""
    problem: str = ""
    """The corpus's label of the problem."""
    emotion: str = ""
    """The corpus's label of the emotion."""
    age: str = ""
    """Free text."""
    gender: str = ""
    """Free text."""
    occupation: str = ""
    """Free text."""
    survey: dict[str, Number] = {}
    """Scores given by the corpus's participants, by question. Missing ones are left out."""

    @property
    def id(self) -> str:
        return self.dialogue.id

    @property
    def language(self) -> Language:
        return self.dialogue.language


def dialogue_id(framework: str, subject: str, supporter: str, simulator: str, trial: int) -> str:
    """The id of a simulated dialogue: 16 hex digits, a hash of everything that identifies it."""
    return digest([framework, subject, supporter, simulator, trial], 16)


class Judgement(Record):
    """One judge's verdict on one dimension of one dialogue."""

    dialogue_id: Identifier
    """The judged dialogue."""
    language: Language
    judge: JudgeName
    """The judge's name."""
    rubric: Identifier
    """The rubric's name."""
    dimension: Identifier
    """The rubric's dimension."""
    value: _Value | None
    """The score. Null if no verdict could be read: never 0, never left out."""
    expected: _Value | None = None
    """The mean of `distribution`."""
    distribution: dict[_Level, _Probability] | None = None
    """The probability of each score (written as text). Null if the judge gave no token probabilities."""
    turn: Count | None = None
    """The judged turn, from 0. Null for the whole dialogue."""
    repeat: Count = 0
    """The number of the repetition, from 0."""
    condition: dict[Name, Name] = {}
    """The experimental condition (mode, order, strategy). `failure` says why there is no verdict; `verdict` is `not_applicable`
    or `not_reached` (a question of a tree) if there is nothing to score. In a pair, `against` is the other system, and `shown`
    the position."""
    method: Name = "given"
    """The judge's method: joint, per_dimension, paper, json, bands, tree, tree_once, criteria, lines, pairs; or `given`."""
    raw: str = ""
    """The judge's reply, at most 32,768 characters."""

    @property
    def lost(self) -> bool:
        """Whether the verdict is missing because a server failed, not because of the judge's words."""
        return self.condition.get("failure") in LOST

    @property
    def unasked(self) -> bool:
        """Whether there was nothing to score: the dimension does not apply, or the tree did not reach the question."""
        return "verdict" in self.condition

    @model_validator(mode="after")
    def _probabilities(self) -> Judgement:
        if self.distribution is not None and abs(sum(self.distribution.values()) - 1) > 1e-3:
            raise ValueError("distribution does not sum to 1")
        return self


class HumanScore(Record):
    """An annotator's score, or one known by construction, on one dimension of one dialogue."""

    dialogue_id: Identifier
    """The scored dialogue."""
    language: Language
    annotator: Annotator
    """The scorer."""
    rubric: Identifier
    """The rubric's name."""
    dimension: Identifier
    """The rubric's dimension."""
    value: _Value
    """The score."""
    turn: Count | None = None
    """The scored turn, from 0. Null for the whole dialogue."""


class Preference(Record):
    """An annotator's preference between two dialogues."""

    dialogue_a: Identifier
    """The first dialogue."""
    dialogue_b: Identifier
    """The second dialogue."""
    annotator: Annotator
    """The person who chose."""
    question: Name
    """The question asked."""
    verdict: Verdict
    """The preferred dialogue."""
    order: Order
    """The order in which they were shown."""


class Comparison(Record):
    """A comparison of two systems on an item: a row of a table. It has a `verdict`, a `degree` or both."""

    item: Identifier
    """The item that both systems answered."""
    a: System
    """The first system."""
    b: System
    """The second system."""
    annotator: Annotator
    """The person who compared."""
    question: Identifier = "preferred"
    """The question asked."""
    verdict: Verdict | None = None
    """The better system."""
    degree: Number | None = None
    """By how much `a` is better: from −n (`b` is far better) over 0 (a tie) to n."""
    order: Order | None = None
    """The order in which they were shown, if known."""

    @model_validator(mode="after")
    def _answered(self) -> Comparison:
        if self.a == self.b:
            raise ValueError(f"a and b: both are {self.a!r}")
        if self.verdict is None and self.degree is None:
            raise ValueError("verdict and degree: neither is given")
        if self.verdict is not None and self.verdict != self.choice:
            raise ValueError(f"verdict and degree: verdict is {self.verdict}, degree {self.degree:g} (above 0: a is better)")
        return self

    @property
    def choice(self) -> Verdict:
        """The verdict, or the sign of the degree."""
        if self.degree is None:
            assert self.verdict is not None, "one of the two is given"
            return self.verdict
        return "a" if self.degree > 0 else "b" if self.degree < 0 else "tie"
