"""Records: one JSON object a line, unknown fields rejected. Their field names are the interface between the rooms.

Every record holds what was said, by whom and under which condition. Clock times are kept elsewhere (`timing.json`), so
that two runs that did the same leave the same bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from serve.files import digest

Language = Literal["en", "zh"]
Role = Literal["seeker", "supporter"]
# How a dialogue ended. `infrastructure`: a server was lost. `rejected`: a server worked, but answered one call with an error
# that is neither a full context nor a refusal, or never to the end. Both say nothing about either side (`LOST`): nobody judges
# such a dialogue, and the same command asks for what is missing.
Termination = Literal["max_turns", "seeker_ended", "refusal", "empty_reply", "context_overflow", "infrastructure", "rejected"]
LOST = frozenset({"infrastructure", "rejected"})
Identifier = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**53)]  # what JSON holds exactly


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
    source: str
    source_id: str | None = None
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
    source: str
    source_id: str
    text: Annotated[str, Field(min_length=1)]
    reply: str | None = None


class Line(Record):
    """One utterance of a role-play dialogue: the played character's own, or that of whoever it talks to (by name)."""

    role: Literal["character", "partner"]
    name: str
    text: Annotated[str, Field(min_length=1)]


class RolePlay(Record):
    """A general role-play dialogue: `character` is played; `persona` and `scene` are "" where the corpus says nothing.

    Lines are as the corpus has them: one speaker may have several in a row.
    """

    id: Identifier
    language: Language
    source: str
    source_id: str
    character: Annotated[str, Field(min_length=1)]
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
    framework: str | None = None
    source: str
    source_id: str | None = None
    card_id: str | None = None
    profile_id: str | None = None
    supporter: str | None = None
    simulator: str | None = None
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
    survey: dict[str, float] = {}

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

    `distribution` maps each score of the scale (as text) to its probability, `expected` is its mean; both are null when the
    judge gave no token probabilities. `condition` holds the experimental condition (mode, order, strategy); `method` is how the
    verdict was asked for (joint, per_dimension, paper; `given` for verdicts from elsewhere).
    """

    dialogue_id: Identifier
    language: Language
    judge: Identifier
    rubric: Identifier
    dimension: Identifier
    value: float | None
    expected: float | None = None
    distribution: dict[str, float] | None = None
    turn: Count | None = None
    repeat: Count = 0
    condition: dict[str, str] = {}
    method: str = "given"
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


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a score is a number, not true or false")
    return value


class HumanScore(Record):
    """One annotator's score (or a score that holds by construction) on one dimension of one dialogue."""

    dialogue_id: Identifier
    language: Language
    annotator: Identifier
    rubric: Identifier
    dimension: Identifier
    value: Annotated[float, BeforeValidator(_no_truth_value)]
    turn: Count | None = None


class Preference(Record):
    """Which of two dialogues an annotator preferred, and in which order they were shown."""

    dialogue_a: Identifier
    dialogue_b: Identifier
    annotator: Identifier
    question: str
    verdict: Literal["a", "b", "tie"]
    order: Literal["ab", "ba"]
