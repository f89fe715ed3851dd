"""The judge: a dialogue in, one judgement per dimension out.

The prompts are in `core.judge_prompts`. How a method constrains and reads answers is in its own module, listed in
`evalsuite.judge.methods`.
"""

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from core.errors import UserError
from core.judge_prompts import ALONE, published, says_scale, transcript
from core.prompts import PromptPack
from core.records import Dialogue, Judgement, Message
from core.rubrics import Criterion, Rubric
from core.scales import NOT_APPLICABLE, Verdict
from core.specs import ModelSpec
from evalsuite.judge.methods import method_of
from serve.answers import Reply
from serve.failures import Unanswered
from serve.questions import Models, Question

LONGEST = 32_768  # characters of a reply that are read and kept: no requested verdict is that long
CUT = "\n[cut off here: the rest was not read]"  # no parser reads a score in it


OffSum = Literal["renormalise", "null"]


@dataclass(frozen=True)
class Bands:
    """Settings of method `bands`: rounds per dialogue, and what to do with numbers that do not sum to 1."""

    rounds: int = 1
    off_sum: OffSum = "renormalise"


def no_criteria(dialogue: Dialogue) -> Sequence[Criterion]:
    """Raise `UserError`: most frameworks have one rubric for all dialogues."""
    raise UserError(f"method criteria: framework {dialogue.framework} has no criteria per case: use joint or another method")


@dataclass(frozen=True)
class Shown:
    """What a framework shows the judge in addition to the turns, and when it is asked (methods `json` and `criteria`); how a
    published prompt pack writes a dialogue (methods `criteria`, `lines` and `pairs`)."""

    strategy: str = "dialogue"
    """The framework's name for this view of the dialogue, kept in the records."""
    profile: Callable[[Dialogue], str] = lambda dialogue: ""
    """Describes the seeker, "" for no description. Raises `UserError` for a dialogue with an unknown seeker."""
    states: bool = False
    """Whether the transcript includes the seeker's inner states."""
    per_turn: bool = False
    """Also ask after every turn of the supporter (and the seeker's answer to it, if there is one)."""
    mode: Literal["paper", "native"] = "native"
    """Kept in the records."""
    criteria: Callable[[Dialogue], Sequence[Criterion]] = no_criteria
    """Method `criteria`: what a good answer in this dialogue contains. Raises `UserError` for an unknown dialogue."""
    transcript: Callable[[Dialogue], str] = transcript
    """The dialogue as a published pack writes it."""
    more: Callable[[Dialogue], Mapping[str, object]] = lambda dialogue: {}
    """Further variables for the pack's templates. Raises `UserError` for a dialogue that has none."""


class NoVerdict(NamedTuple):
    """Why there is no answer to read (`infrastructure`, `context_overflow` or `refusal`), and the text of a refusal."""

    reason: str
    raw: str = ""


@dataclass(frozen=True)
class Judge:
    """A model that scores dialogues on a rubric by a method. Every dialogue gets one judgement per dimension, whatever happens.

    The value is null if the answer was unreadable, refused, too long for the judge's context or rejected, or if no server
    answered; `condition.failure` has the reason if there was no answer to read. If a server reports impossible token
    probabilities, only the score in the text is kept (`condition.probabilities: broken`).
    """

    client: Models
    spec: ModelSpec
    rubric: Rubric
    prompts: PromptPack
    method: str
    """Its name in `evalsuite.judge.methods`."""
    bands: Bands = field(default_factory=Bands)
    shown: Shown = field(default_factory=Shown)
    opens_freely: Callable[[str | None], bool] = lambda framework: False
    """Whether a framework's supporters open dialogues in their own words."""
    repeat: int = 0
    """The number of this repetition of every question, from 0."""
    among: Sequence[Dialogue] = ()
    """The dialogues that are judged together, for methods that compare them."""
    shared: dict[tuple[str, ...], tuple[Models, Future[Reply | NoVerdict]]] = field(default_factory=dict, repr=False)
    """Replies that several dialogues wait for, by question, with the client that asked."""

    def __post_init__(self) -> None:
        method = method_of(self.method)
        if self.spec.adapters is not None and not method.by_dimension:
            raise UserError(f"judge {self.spec.name} has one adapter per dimension: use method per_dimension or paper")
        method.check(self.rubric)
        if method.on_scale and not (self.rubric.digits or published(self.method) or says_scale(self.prompts)):
            raise UserError(
                f"rubric {self.rubric.name}: prompt pack {self.prompts.folder.name} asks for one digit per dimension, which "
                "this rubric's scales are not: leave out judge_prompts, or write `judge_prompts: any_rubric`"
            )

    async def score(self, dialogue: Dialogue) -> list[Judgement]:
        """One judgement per dimension, in the rubric's order; per round with method `bands`, per turn with `Shown.per_turn`."""
        # A fixed greeting cannot be scored. An opening in the supporter's own words can, even if the seeker leaves at once.
        opened = self.opens_freely(dialogue.framework) and any(turn.role == "supporter" for turn in dialogue.turns)
        if dialogue.lost or not (opened or dialogue.exchanges):
            reason = str(dialogue.termination) if dialogue.lost else "no_supporter_turn"
            return [self.judgement(dialogue, name, "", failure=reason) for name in self.rubric.dimensions]
        judgements = await method_of(self.method).score(self, dialogue)
        if missing := self.rubric.dimensions.keys() - {judgement.dimension for judgement in judgements}:
            raise UserError(f"method {self.method}: no judgement on {', '.join(sorted(missing))} of dialogue {dialogue.id}")
        return judgements

    async def ask(
        self,
        dialogue: Dialogue,
        messages: Sequence[Message],
        sample: Mapping[str, Any],
        adapter: str | None = None,
        **fields: Any,
    ) -> Reply | NoVerdict:
        """Ask about a dialogue, as `reply` does. `sample` tells the question from others about it, `adapter` is the dimension
        whose adapter answers, and `fields` are further fields of `Question`."""
        fields = {"sampling": self.spec.sampling, "purpose": "judge", "session": dialogue.id, **fields}
        fields["sample"] = {"dialogue": dialogue.id, "repeat": self.repeat, **sample}
        return await self.reply(Question(messages, served_name=self.spec.served_name(dialogue.language, adapter), **fields))

    async def reply(self, question: Question) -> Reply | NoVerdict:
        """The judge's reply, cut to `LONGEST`, or why there is none. A refusal never counts as a reply."""
        try:
            reply = await self.client.ask(self.spec, question)
        except Unanswered as error:
            return NoVerdict(error.outcome)
        if reply.finish_reason == "context_overflow":
            return NoVerdict("context_overflow")
        if len(reply.text) > LONGEST:
            reply = reply.model_copy(update={"text": reply.text[:LONGEST] + CUT})
        return NoVerdict("refusal", reply.text) if reply.refused else reply

    def judgement(
        self,
        dialogue: Dialogue,
        dimension: str,
        raw: str,
        value: Verdict | None = None,
        distribution: dict[str, float] | None = None,
        failure: str | None = None,
        broken: bool = False,
        not_reached: bool = False,
    ) -> Judgement:
        """A judgement's record. `value` is what the text says, even if another score was more probable. `broken`: the server's
        probabilities are impossible, or not those of the answer. `not_reached`: a question off the path through a tree."""
        paper = published(self.method) or (self.method in ALONE and self.shown.mode == "paper")
        condition = {"mode": "paper" if paper else "native"} | ({"failure": failure} if failure else {})
        if not_reached or value == NOT_APPLICABLE:
            condition |= {"verdict": "not_reached" if not_reached else "not_applicable"}
        return Judgement(
            dialogue_id=dialogue.id,
            language=dialogue.language,
            judge=self.spec.name,
            rubric=self.rubric.name,
            dimension=dimension,
            value=None if value == NOT_APPLICABLE else value,
            expected=expectation(distribution) if distribution else None,
            distribution=distribution,
            repeat=self.repeat,
            condition=condition | ({"probabilities": "broken"} if broken else {}),
            method=self.method,
            raw=raw,
        )


def expectation(distribution: Mapping[str, float]) -> float:
    """The mean score of a distribution."""
    return sum(float(score) * probability for score, probability in distribution.items())
