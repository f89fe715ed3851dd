"""The seeker and the ranker of a run around a supporter that something else runs: an environment of reinforcement learning.

The dialogue is `evalsuite.dialogues.hold`'s and the verdict the judge's, as in every run: what is rewarded in training is what
`esc-eval run` would score. A trainer asks an `Episode` what the supporter is shown next, gives it the reply, and takes the
reward at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import validated
from core.records import Dialogue, Judgement, Message, Turn, dialogue_id
from core.rubrics import Rubric
from core.specs import load_spec
from core.statistics.means import exact_mean
from evalsuite.dialogues.floors import FLOORS, with_floor
from evalsuite.dialogues.hold import ModelSide, Plan, Side, Utterance, hold, utterance
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import framework_of
from evalsuite.statistics.reply_length import mean_reply_length
from serve.answers import Reply
from serve.batch import together
from serve.callables import CallableSpec
from serve.client import ChatClient
from serve.questions import Models
from serve.store import CallStore

POLICY = "policy"


@dataclass(frozen=True)
class Brevity:
    """What long replies cost, since judges reward length: nothing up to `free` characters a reply on average, and from there
    `cost` for every further `free` characters."""

    free: float = 600.0
    cost: float = 0.1

    def of(self, dialogue: Dialogue) -> float:
        """0 or less."""
        return -self.cost * max(0.0, (mean_reply_length(dialogue) or 0.0) / self.free - 1)


@dataclass(frozen=True)
class Rewarded:
    """A finished dialogue with its verdicts and its reward."""

    dialogue: Dialogue
    judgements: Sequence[Judgement]
    judged: float | None
    """The mean of its scores, from 0 to 1; None where a verdict is missing."""
    brevity: float

    @property
    def reward(self) -> float | None:
        return None if self.judged is None else self.judged + self.brevity


def judged(dialogue: Dialogue, judgements: Sequence[Judgement], rubric: Rubric) -> float | None:
    """The average over the dimensions, each from its scale to 0 (worst) to 1: of expected scores where the judge gives
    probabilities. What the judge found nothing to score in is left out.

    0 where the supporter's refused, empty or overflowing reply ended the dialogue: leaving early must not pay. None where the
    dialogue was lost or one of its verdicts is missing: no reward is better than that of the other dimensions.
    """
    if dialogue.lost:
        return None
    if dialogue.ended_by == "supporter":
        return 0.0
    asked = [one for one in judgements if one.turn is None and not one.unasked]
    values = [(one.dimension, one.value if one.expected is None else one.expected) for one in asked]
    shares: dict[str, list[float]] = {}
    for dimension, value in values:
        if value is None:
            return None
        worst, best = rubric.ends(dimension)
        shares.setdefault(dimension, []).append((value - worst) / (best - worst))
    if rubric.weights is None:
        return exact_mean(chain.from_iterable(shares.values())) if shares else None
    return rubric.average({dimension: exact_mean(of) for dimension, of in shares.items()})


@dataclass
class _Policy:
    """The supporter's side: hands on what it is shown, and waits for what is replied."""

    side: ModelSide
    shown: asyncio.Queue[list[Message]] = field(default_factory=asyncio.Queue)
    replies: asyncio.Queue[Reply] = field(default_factory=asyncio.Queue)

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        await self.shown.put(self.side.messages(turns))
        return utterance(await self.replies.get(), self.side.verbatim)


@dataclass(frozen=True)
class _Opened:
    """A seeker whose first line is that of its group."""

    first: asyncio.Future[Utterance]
    side: Side

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        begins = all(turn.role != "seeker" for turn in turns)
        return await (asyncio.shield(self.first) if begins else self.side.speak(client, turns))


class Episode:
    """One dialogue under way. Made by `Environment.group` in a running event loop."""

    def __init__(self, environment: Environment, client: ChatClient, plan: Plan) -> None:
        assert isinstance(plan.supporter_side, ModelSide)
        self._environment, self._client = environment, client
        self._policy = _Policy(plan.supporter_side)
        self._held = asyncio.create_task(hold(replace(plan, supporter_side=self._policy), client))

    async def prompt(self) -> list[Message] | None:
        """What the supporter is shown next; None where the dialogue is over."""
        shown = asyncio.create_task(self._policy.shown.get())
        await asyncio.wait([shown, self._held], return_when=asyncio.FIRST_COMPLETED)
        if shown.done():
            return shown.result()
        shown.cancel()
        self._held.result()  # an error of ours is raised here
        return None

    def reply(self, text: str, cut_off: bool = False) -> None:
        """What the supporter says to the last prompt."""
        self._policy.replies.put_nowait(Reply(text=text, finish_reason="length" if cut_off else "stop"))

    def overflow(self) -> None:
        """The next reply does not fit the supporter's context any more."""
        self._policy.replies.put_nowait(Reply(text="", finish_reason="context_overflow"))

    async def rewarded(self) -> Rewarded:
        """The dialogue at its end, judged."""
        return await self._environment.rewarded(self._client, await self._held)

    def abandon(self) -> None:
        """Leave a dialogue that nobody goes on with."""
        self._held.cancel()


class Environment:
    """Role cards, a seeker and a judge, as a run's config has them. Raises `UserError` for what is wrong in it."""

    def __init__(self, settings: Mapping[str, Any], store: Path, brevity: Brevity | None = None) -> None:
        """`settings`: fields of a run's config (`seeker`, `judge`, `cards`, `languages`, `exchanges` …). `store`: where the
        answers of seeker and judge are kept."""
        framework = framework_of(str(settings.get("framework", EvalConfig.model_fields["framework"].default)))
        assert issubclass(framework, DialogueFramework)
        config = validated(framework.config_model, {**settings, "supporters": [POLICY]}, "settings")
        assert isinstance(config, EvalConfig)
        self.resolved = framework(config, given={POLICY: CallableSpec.of(POLICY, _nobody)})
        self.brevity = brevity or Brevity()
        self.plans = {plan.opening.person: plan for plan in self.resolved.plans()}
        self._store, self._checked, self._told = store, False, set[str]()
        for spec in self._asked:
            if spec.endpoint.base_url is None and spec.name not in config.endpoints:
                raise UserError(f"model {spec.name}: no server is started for training: name one as {spec.name}@URL")
        self.resolved.judge_prompts  # noqa: B018  what is missing is said now

    @property
    def _asked(self) -> list[Any]:
        return [*self.resolved.models.seekers, self.resolved.models.judge]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ChatClient]:
        """The client that asks seeker and judge."""
        store, config = CallStore(self._store), self.resolved.config
        try:
            async with ChatClient(store, config.endpoints, concurrency=config.concurrency, told=self._told) as client:
                for spec in self._asked if not self._checked else ():
                    await client.check(spec, [spec.served_name()])
                self._checked = True
                yield client
        finally:
            store.close()

    def group(self, client: ChatClient, person: str, trials: Sequence[int]) -> list[Episode]:
        """Episodes on one card (or profile) that begin with the same line of the seeker's. A trial is a number that no other
        episode on it has."""
        plan = self.plans[person]
        plans = [self._numbered(plan, trial) for trial in trials]
        if plan.first == "seeker":
            speaking = plans[0].seeker_side.speak(client, plan.opening.turns)
            first = asyncio.ensure_future(speaking)
            plans = [replace(one, seeker_side=_Opened(first, one.seeker_side)) for one in plans]
        return [Episode(self, client, one) for one in plans]

    def _numbered(self, plan: Plan, trial: int) -> Plan:
        """The plan as a dialogue of its own."""
        made = plan.opening
        id = dialogue_id(made.framework, made.person, POLICY, made.simulator, trial)
        seeker: Any = plan.seeker_side
        return replace(
            plan,
            opening=replace(made, id=id, trial=trial),
            seeker_side=replace(seeker, dialogue=id),
        )

    async def rewarded(self, client: ChatClient, dialogue: Dialogue) -> Rewarded:
        """A dialogue's verdicts and reward."""
        verdicts = await self.resolved.judge(client).score(dialogue)
        reward = judged(dialogue, verdicts, self.resolved.rubric)
        return Rewarded(dialogue, verdicts, reward, self.brevity.of(dialogue))

    async def floors(self, client: ChatClient, people: Sequence[str]) -> dict[str, float]:
        """What supporters that need no model are rewarded with, on average: a policy that is worth training beats them, and a
        judge that does not tell them from a model rewards nothing. Those that have no reward are left out."""
        specs = [load_spec(name) for name in FLOORS]
        plans = [
            with_floor(
                replace(plan, opening=replace(plan.opening, id=f"{spec.name}-{plan.id}", supporter=spec.name)), spec.floor, {}
            )
            for spec in specs
            for plan in (self.plans[person] for person in people)
            if spec.speaks(plan.opening.language)
        ]

        async def one(plan: Plan) -> Rewarded:
            return await self.rewarded(client, await hold(plan, client))

        found: dict[str, list[float]] = {}
        for rewarded in await together(one(plan) for plan in plans):
            if rewarded.reward is not None:
                found.setdefault(str(rewarded.dialogue.supporter), []).append(rewarded.reward)
        return {name: exact_mean(rewards) for name, rewards in found.items()}


def _nobody(messages: list[Message]) -> str:
    raise AssertionError("the policy is asked by its trainer")
