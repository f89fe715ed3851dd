"""Judgements: any model scores a dialogue on any rubric, by one of several methods.

What is asked is in data_prep.judge_prompts; here is how the answers are constrained, read and recorded. Where the server gives
token probabilities, every score comes with its distribution and expected value. Method `bands` is in `evalsuite.judge_bands`,
method `json` in `evalsuite.judge_json`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from core.errors import UserError
from core.judge_prompts import JudgeMethod, judge_messages
from core.prompts import PromptPack
from core.records import Dialogue, Judgement
from core.rubrics import Rubric, Scale
from core.specs import ModelSpec
from evalsuite import judge_bands, judge_json
from serve.answers import Reply, sound
from serve.batch import together
from serve.client import ChatClient, Question
from serve.failures import Unanswered

LONGEST = 32_768  # characters of a reply that are read and kept: no verdict that was asked for is as long
CUT = "\n[cut off here: the rest was not read]"  # holds nothing that any parser reads as a score


def paper_score(reply: str, scores: Sequence[int]) -> int | None:
    """The published parser: the first label, tried in ascending order, that occurs anywhere in the reply.

    Odd: "4, as there are 0 faults" is read as 0. The published code gives -1 where nothing is found; here it is None.
    """
    return next((score for score in scores if str(score) in reply), None)


def digit_distributions(reply: Reply, scales: Sequence[Scale]) -> list[tuple[int, dict[str, float] | None]]:
    """(score, distribution) for every token of a reply that is exactly one score of its scale.

    The first such token is on the first of `scales`, the second on the second, and so on; further ones are on the last. A
    distribution is the softmax over the scale's scores of the reported log-probabilities: servers report them before the
    constraint's mask, so they are renormalised here. A score that is not among the reported alternatives counts 0. None where
    the figures cannot be log-probabilities of that token (`serve.answers.sound`).
    """
    found: list[tuple[int, dict[str, float] | None]] = []
    for token, alternatives in reply.tokens or []:
        labels = dict.fromkeys(map(str, scales[min(len(found), len(scales) - 1)].scores), 0.0)
        if token.strip() not in labels:
            continue
        if not sound(token, alternatives):
            found.append((int(token), None))
            continue
        mass = dict(labels)  # with the same keys: a run keeps one distribution a verdict
        top = max(logprob for alternative, logprob in alternatives.items() if alternative.strip() in labels)
        for alternative, logprob in alternatives.items():
            if alternative.strip() in labels:
                mass[alternative.strip()] += math.exp(logprob - top)
        total = sum(mass.values())
        found.append((int(token), {score: value / total for score, value in mass.items()}))
    return found


def digits_regex(scales: Iterable[Scale]) -> str:
    """As many digits as there are scales, each from its own."""
    runs = ((scale, sum(1 for _ in run)) for scale, run in groupby(scales))
    return "".join(f"[{scale.min}-{scale.max}]{{{count}}}" for scale, count in runs)


def of_another_text(reply: Reply) -> bool:
    """Whether a server reported tokens that are not those of the text, or nothing that is a list of tokens."""
    if reply.tokens is None:
        return False
    said, reported = (re.sub(r"[^0-9]+", "", text) for text in (reply.text, "".join(token for token, _ in reply.tokens)))
    return not reply.tokens or said not in reported


def most_probable(distribution: Mapping[str, float]) -> int:
    """The score with the highest probability, the lowest of equals."""
    return int(max(distribution, key=lambda score: distribution[score]))


def expectation(distribution: Mapping[str, float]) -> float:
    """The mean score of a distribution."""
    return sum(float(score) * probability for score, probability in distribution.items())


class NoVerdict(NamedTuple):
    """Why there is no answer to read: `infrastructure`, `context_overflow` or `refusal`, with what the model said then."""

    reason: str
    raw: str = ""


@dataclass(frozen=True)
class Judge:
    """A model that scores dialogues on a rubric.

    Every dialogue gets one judgement a dimension, whatever happens: what could not be read, was refused, did not fit the
    judge's context, found no server or was rejected is `value: null` (the reason in `condition.failure` where nothing was
    read). Where a server's token probabilities cannot be true, the score in the text stands alone
    (`condition.probabilities: broken`).
    """

    client: ChatClient
    spec: ModelSpec
    rubric: Rubric
    prompts: PromptPack
    method: JudgeMethod
    bands: judge_bands.Bands = field(default_factory=judge_bands.Bands)
    shown: judge_json.Shown = field(default_factory=judge_json.Shown)

    def __post_init__(self) -> None:
        if self.method in ("joint", "bands", "json") and self.spec.adapters is not None:
            raise UserError(f"judge {self.spec.name} has one adapter a dimension: use method per_dimension or paper")
        if self.method != "paper" and not all(scale.min >= 0 and scale.max <= 9 for scale in self.rubric.scales.values()):
            raise UserError(f"rubric {self.rubric.name}: native methods read one digit a dimension, the scale must be in 0-9")
        if self.method == "bands":
            judge_bands.check_labels(self.rubric)

    @property
    def mode(self) -> str:
        return "paper" if self.method == "paper" else "native"

    async def score(self, dialogue: Dialogue) -> list[Judgement]:
        """One judgement a dimension, in the rubric's order; by method `bands` so many for every round, and by method `json` so
        many more for every turn of the supporter where these are wanted."""
        keys = list(self.rubric.dimensions)
        if dialogue.lost or not self._supported(dialogue):
            reason = str(dialogue.termination) if dialogue.lost else "no_supporter_turn"
            return [self.judgement(dialogue, key, "", failure=reason) for key in keys]
        if self.method == "bands":
            return await judge_bands.score(self, dialogue)
        if self.method == "json":
            return await judge_json.score(self, dialogue)
        if self.method == "joint":
            return await self._joint(dialogue, keys)
        if self.method == "per_dimension":
            # One request warms the server's prefix cache with the dialogue; the other six share it.
            first = await self._single(dialogue, keys[0])
            return [first, *await together(self._single(dialogue, key) for key in keys[1:])]
        return await together(self._single(dialogue, key) for key in keys)

    @staticmethod
    def _supported(dialogue: Dialogue) -> bool:
        """Whether there is anything of the supporter's to score. A fixed greeting answers nobody; EmoHarbor's supporters open
        in words of their own, and a seeker who leaves at once has judged them."""
        opened = dialogue.framework == "emoharbor" and any(turn.role == "supporter" for turn in dialogue.turns)
        return opened or dialogue.exchanges > 0

    async def _ask(self, dialogue: Dialogue, key: str, dimensions: Sequence[str]) -> Reply | NoVerdict:
        """The reply on these dimensions, or the reason why there is none. `key` names the sample: one dimension, or "all"."""
        scales, digits = [self.rubric.scale_of(name) for name in dimensions], len(dimensions)
        messages = judge_messages(self.prompts, self.rubric, dialogue, self.method, dimensions)
        constrained = self.method != "paper" and self.spec.endpoint.constrained
        # A constrained answer is as long as its digits; free text gets the spec's own limit (a reasoning judge needs it).
        sampling = self.spec.sampling.model_copy(update={"max_tokens": digits + 1} if constrained else {})
        question = Question(
            messages,
            sample={"dialogue": dialogue.id, "dimension": key, "repeat": 0},
            sampling=sampling,
            served_name=self.spec.served_name(dialogue.language, key),
            purpose="judge",
            choices=tuple(map(str, scales[0].scores)) if constrained and digits == 1 else None,
            regex=digits_regex(scales) if constrained and digits > 1 else None,
            logprobs=True,
            session=dialogue.id,
            readable=lambda text: self._read(text, scales) is not None,
        )
        return await self.reply(question)

    async def reply(self, question: Question) -> Reply | NoVerdict:
        """The judge's reply, cut to `LONGEST`, or the reason why there is none. A refusal is none, whatever it says."""
        try:
            reply = await self.client.ask(self.spec, question)
        except Unanswered as error:
            return NoVerdict(error.outcome)
        if reply.finish_reason == "context_overflow":
            return NoVerdict("context_overflow")
        if len(reply.text) > LONGEST:
            reply = reply.model_copy(update={"text": reply.text[:LONGEST] + CUT})
        return NoVerdict("refusal", reply.text) if reply.refused else reply

    async def _joint(self, dialogue: Dialogue, keys: list[str]) -> list[Judgement]:
        answer = await self._ask(dialogue, "all", keys)
        if isinstance(answer, NoVerdict):
            return [self.judgement(dialogue, key, answer.raw, failure=answer.reason) for key in keys]
        scales = [self.rubric.scale_of(key) for key in keys]
        scores = self._read(answer.text, scales)
        if scores is None:
            return [self.judgement(dialogue, key, answer.text) for key in keys]
        found = digit_distributions(answer, scales)
        told = [score for score, _ in found] == scores
        # Tokenizers that merge digits ("32") give no distribution a dimension; the digits still stand.
        distributions = [d for _, d in found] if told else [None] * len(keys)
        broken = None in distributions if told else of_another_text(answer)
        return [
            self.judgement(dialogue, key, answer.text, score, distribution, broken=broken and distribution is None)
            for key, score, distribution in zip(keys, scores, distributions, strict=True)
        ]

    async def _single(self, dialogue: Dialogue, key: str) -> Judgement:
        answer = await self._ask(dialogue, key, [key])
        if isinstance(answer, NoVerdict):
            return self.judgement(dialogue, key, answer.raw, failure=answer.reason)
        scale = self.rubric.scale_of(key)
        read = self._read(answer.text, [scale])
        score = read[0] if read else None
        found = [d for value, d in digit_distributions(answer, [scale]) if value == score]
        broken = score is not None and (found[0] is None if found else of_another_text(answer))
        return self.judgement(dialogue, key, answer.text, score, found[0] if found else None, broken=broken)

    def _read(self, text: str, scales: Sequence[Scale]) -> list[int] | None:
        """The scores in an answer, one for each scale; None where they cannot be read."""
        if self.method != "paper":
            return self._read_digits(text, scales)
        score = paper_score(text, scales[0].scores)
        return None if score is None else [score]

    @staticmethod
    def _read_digits(text: str, scales: Sequence[Scale]) -> list[int] | None:
        """Exactly one score of each scale: digits alone, or parted by white space or commas. Anything else is unread."""
        digits = re.sub(r"[\s,，、]+", "", text)
        if not re.fullmatch(digits_regex(scales), digits, re.ASCII):
            return None
        return [int(digit) for digit in digits]

    def judgement(
        self,
        dialogue: Dialogue,
        key: str,
        raw: str,
        value: int | None = None,
        distribution: dict[str, float] | None = None,
        failure: str | None = None,
        broken: bool = False,
    ) -> Judgement:
        """The verdict is the most probable score (native; a sampled answer may differ from it) or the label read (paper).
        `broken`: the server's probabilities cannot be true."""
        if distribution and self.method != "paper" and distribution.get(str(value)) != max(distribution.values()):
            value = most_probable(distribution)
        condition = {"mode": self.mode} | ({"failure": failure} if failure else {})
        return Judgement(
            dialogue_id=dialogue.id,
            language=dialogue.language,
            judge=self.spec.name,
            rubric=self.rubric.name,
            dimension=key,
            value=value,
            expected=expectation(distribution) if distribution else None,
            distribution=distribution,
            condition=condition | ({"probabilities": "broken"} if broken else {}),
            method=self.method,
            raw=raw,
        )
