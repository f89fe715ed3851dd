"""Records: one JSON object a line, unknown fields rejected. Their field names are the interface between the rooms.

Every record holds what was said, by whom and under which condition. Clock times are kept elsewhere (`timing.json`), so
that two runs that did the same leave the same bytes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from core.files import digest

Language = Literal["en", "zh"]
Role = Literal["seeker", "supporter"]
Message = dict[Literal["role", "content"], str]  # of a chat, as an endpoint takes it
# How a dialogue ended. `infrastructure`: a server was lost. `rejected`: a server worked, but answered one call with an error
# that is neither a full context nor a refusal, or never to the end. Both say nothing about either side (`LOST`): nobody judges
# such a dialogue, and the same command asks for what is missing.
Termination = Literal["max_turns", "seeker_ended", "refusal", "empty_reply", "context_overflow", "infrastructure", "rejected"]
LOST = frozenset({"infrastructure", "rejected"})
Stopped = Literal["refusal", "empty_reply", "context_overflow"]  # what of a reply is no turn
Verdict = Literal["a", "b", "tie"]  # which of two is better
Order = Literal["ab", "ba"]  # which of two was shown first
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def number(text: str) -> float:
    """The number that a cell holds: digits 0 to 9 with a point, an exponent and white space around, as in `3`, `-0.5`, ` 1e2 `.

    Raises `ValueError` for all else, also for what `float` would take: `1_0`, `nan`, `inf`, digits of other scripts.
    """
    value = float(text) if NUMBER.fullmatch(text.strip()) else math.nan
    if not math.isfinite(value):
        raise ValueError("a number is expected")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is expected, not true or false")
    return number(value) if isinstance(value, str) else value


def plain_name(text: str) -> str:
    """The name itself. Raises `ValueError` for one with control characters, which no spreadsheet or page shows."""
    if _CONTROL.search(text):
        raise ValueError("a control character (a line end, a tab or NUL) in a name")
    return text


def _level(text: str) -> str:
    if not re.fullmatch(r"0|-?[1-9][0-9]{0,2}", text):  # written in one way only: they are looked up by their text
        raise ValueError("the key is not a whole score")
    return text


Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_number)]
Count = Annotated[Whole, Field(ge=0, le=2**53)]  # what JSON holds exactly
_PLAIN = AfterValidator(plain_name)
Name = Annotated[str, _PLAIN]
Identifier = Annotated[str, Field(min_length=1, max_length=200), _PLAIN]
Part = Annotated[str, Field(min_length=1, max_length=150), _PLAIN]  # what an identifier is made with
_Value = Annotated[Number, Field(ge=-1000, le=1000)]  # no rubric goes further: tables that list all levels would not end
_Level = Annotated[str, AfterValidator(_level)]
_Probability = Annotated[Number, Field(ge=0)]


class Record(BaseModel):
    """Base of all records: immutable, unknown fields rejected, NaN refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RoleCard(Record):
    """Who the seeker is (ESC-Eval section 2.2): demographics as free text, and the problem with its events.

    `category` is a path in configs/taxonomy.yaml (level 1, or levels 1 to 3), `quality` follows table 8.
    """

    id: Identifier
    language: Language
    age: str = ""
    gender: str = ""
    occupation: str = ""
    problem: Annotated[str, Field(min_length=1)]
    source: Name
    source_id: Name | None = None
    card_method: Literal["llm", "heuristic", "written"]
    category: tuple[str, ...] | None = None
    quality: Literal["high", "middle", "invalid"] | None = None


class Turn(Record):
    """One utterance. `state` is a seeker's inner state (EmoHarbor); it never reaches a supporter."""

    role: Role
    text: str
    state: dict[str, Any] | None = None


class Post(Record):
    """A single-turn request for help as a corpus has it, with the first reply to it where there is one."""

    id: Identifier
    language: Language
    source: Name
    source_id: Name
    text: Annotated[str, Field(min_length=1)]
    reply: str | None = None


class Line(Record):
    """One utterance of a role-play dialogue: the played character's own, or that of whoever it talks to (by name)."""

    role: Literal["character", "partner"]
    name: Name
    text: Annotated[str, Field(min_length=1)]


class RolePlay(Record):
    """A general role-play dialogue: `character` is played; `persona` and `scene` are "" where the corpus says nothing.

    Lines are as the corpus has them: one speaker may have several in a row.
    """

    id: Identifier
    language: Language
    source: Name
    source_id: Name
    character: Annotated[Name, Field(min_length=1)]
    persona: str = ""
    scene: str = ""
    lines: Annotated[tuple[Line, ...], Field(min_length=1)]


class Usage(Record):
    """What a dialogue cost: tokens as the servers counted them, and calls. No clock time.

    `reasoning_tokens` is 0 where the server does not report it; `reasoning_characters` is counted by the client. `cut_off` is
    how many replies were cut off at the token limit, by role; it is left out where none was.
    """

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    reasoning_tokens: Count = 0
    reasoning_characters: Count = 0
    calls: Count = 0
    cut_off: dict[str, Count] = Field(default={}, exclude_if=lambda cut_off: not cut_off)

    def __add__(self, other: Usage) -> Usage:
        cut_off = Counter(self.cut_off) + Counter(other.cut_off)
        sums = {name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields if name != "cut_off"}
        return Usage(**sums, cut_off=dict(sorted(cut_off.items())))


class Dialogue(Record):
    """Turns between one seeker and one supporter. Imported corpora leave card, models and termination null."""

    id: Identifier
    language: Language
    framework: Name | None = None
    source: Name
    source_id: Name | None = None
    card_id: Name | None = None
    profile_id: Name | None = None
    supporter: Name | None = None
    simulator: Name | None = None
    trial: Count = 0
    turns: tuple[Turn, ...]
    termination: Termination | None = None
    usage: Usage | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Dialogue:
        if not self.turns and self.termination in (None, "max_turns", "seeker_ended"):
            raise ValueError("turns: a dialogue without turns needs the termination that stopped it")
        return self

    @property
    def lost(self) -> bool:
        """Whether the service failed, so that the dialogue is missing rather than ended."""
        return self.termination in LOST

    @property
    def ended_by(self) -> Role | None:
        """Whose reply ended the dialogue early: the side that was to speak next when it stopped (None at max_turns).

        Only a dialogue that the supporter opens can stop before any turn.
        """
        if self.termination in (None, "max_turns"):
            return None
        if self.termination == "seeker_ended":
            return "seeker"
        return "supporter" if not self.turns or self.turns[-1].role == "seeker" else "seeker"

    @property
    def exchanges(self) -> int:
        """Answered seeker turns: pairs of a seeker turn and the supporter turn after it."""
        pairs = zip(self.turns, self.turns[1:], strict=False)
        return sum(a.role == "seeker" and b.role == "supporter" for a, b in pairs)


class SupportDialogue(Record):
    """A corpus's emotional-support dialogue with what the corpus says about its seeker; empty where it says nothing.

    `situation` is a summary of the trouble that is not one of the turns, `problem` and `emotion` are the corpus's own labels,
    `survey` the scores that the corpus's own people gave it (missing ones are left out).
    """

    dialogue: Dialogue
    situation: str = ""
    problem: str = ""
    emotion: str = ""
    age: str = ""
    gender: str = ""
    occupation: str = ""
    survey: dict[str, Number] = {}

    @property
    def id(self) -> str:
        return self.dialogue.id

    @property
    def language(self) -> Language:
        return self.dialogue.language


def dialogue_id(framework: str, subject: str, supporter: str, simulator: str, trial: int) -> str:
    """The id of a simulated dialogue: a hash of what makes it this dialogue and no other (16 hex digits)."""
    return digest([framework, subject, supporter, simulator, trial], 16)


class Judgement(Record):
    """One judge's verdict on one dimension. A verdict that could not be read has `value: null` and its raw text.

    `distribution` maps whole scores (as text) to their probabilities, `expected` is its mean; both are null when the
    judge gave no token probabilities. `condition` holds the experimental condition (mode, order, strategy); `method` is how the
    verdict was asked for (joint, per_dimension, paper; `given` for verdicts from elsewhere).
    """

    dialogue_id: Identifier
    language: Language
    judge: Identifier
    rubric: Identifier
    dimension: Identifier
    value: _Value | None
    expected: _Value | None = None
    distribution: dict[_Level, _Probability] | None = None
    turn: Count | None = None
    repeat: Count = 0
    condition: dict[Name, Name] = {}
    method: Name = "given"
    raw: str = ""

    @property
    def lost(self) -> bool:
        """Whether there is no verdict because the service failed, not because of what was said."""
        return self.condition.get("failure") in LOST

    @model_validator(mode="after")
    def _probabilities(self) -> Judgement:
        if self.distribution is not None and abs(sum(self.distribution.values()) - 1) > 1e-3:
            raise ValueError("distribution does not sum to 1")
        return self


class HumanScore(Record):
    """One annotator's score (or a score that holds by construction) on one dimension of one dialogue."""

    dialogue_id: Identifier
    language: Language
    annotator: Identifier
    rubric: Identifier
    dimension: Identifier
    value: _Value
    turn: Count | None = None


class Preference(Record):
    """Which of two dialogues an annotator preferred, and in which order they were shown."""

    dialogue_a: Identifier
    dialogue_b: Identifier
    annotator: Identifier
    question: Name
    verdict: Verdict
    order: Order


class Comparison(Record):
    """Which of two systems `a` and `b` did better on an item, as an annotator saw it: a row of a table, without dialogues.

    There is a `verdict`, a `degree` or both. `degree` says by how much a is better, from −n (b far better) over 0 (a tie) to n.
    `order` is which of the two was shown first, where that is known.
    """

    item: Identifier
    a: Identifier
    b: Identifier
    annotator: Identifier
    question: Identifier = "preferred"
    verdict: Verdict | None = None
    degree: Number | None = None
    order: Order | None = None

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
        """The verdict; that of a degree is its sign."""
        if self.degree is None:
            assert self.verdict is not None, "one of the two is given"
            return self.verdict
        return "a" if self.degree > 0 else "b" if self.degree < 0 else "tie"
