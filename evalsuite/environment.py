"""A reinforcement learning environment: the seeker and the judge of a run, around a supporter that a trainer runs.

Dialogues are held by `evalsuite.dialogues.hold` and scored by the judge as in every run, so training rewards what `esc-eval
run` would score. A trainer gets the supporter's next prompt from an `Episode`, gives it the reply, and takes the reward at the
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from core.errors import UserError
from core.grouping import exact_mean
from core.records import Dialogue, Judgement, Message, Turn, dialogue_id
from core.rubrics import Rubric
from core.specs import ModelSpec, load_spec
from evalsuite.dialogues.hold import FLOORS, ModelSide, Plan, Side, Utterance, hold, utterance, with_floor
from evalsuite.runs.dialogue_framework import run_of
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
    """A penalty on long replies, as judges reward length: `cost` for every `free` characters of the mean beyond `free`."""

    free: float = 600.0
    cost: float = 0.1

    def of(self, dialogue: Dialogue) -> float:
        """The penalty of a dialogue, 0 or less."""
        return -self.cost * max(0.0, (mean_reply_length(dialogue) or 0.0) / self.free - 1)


@dataclass(frozen=True)
class Rewarded:
    """A finished dialogue with its verdicts and its reward."""

    dialogue: Dialogue
    judgements: Sequence[Judgement]
    judged: float | None
    """The mean of its scores (0–1); None if a verdict is missing."""
    brevity: float

    @property
    def reward(self) -> float | None:
        return None if self.judged is None else self.judged + self.brevity


def judged(dialogue: Dialogue, judgements: Sequence[Judgement], rubric: Rubric) -> float | None:
    """The average over the dimensions, each scaled to 0 (worst) to 1, by expected scores if the judge gives probabilities.
    Dimensions without anything to score are left out.

    0 if the supporter's refused, empty or overflowing reply ended the dialogue, as ending it early must not pay. None if the
    dialogue was lost or one of its verdicts is missing: no reward is better than one of the other dimensions alone.
    """
    if dialogue.lost:
        return None
    if dialogue.ended_by == "supporter":
        return 0.0
    scores: dict[str, list[float]] = {}
    for judgement in judgements:
        if judgement.turn is not None or judgement.unasked:
            continue
        value = judgement.value if judgement.expected is None else judgement.expected
        if value is None:
            return None
        worst, best = rubric.ends(judgement.dimension)
        scores.setdefault(judgement.dimension, []).append((value - worst) / (best - worst))
    if rubric.weights is None:
        return exact_mean(chain.from_iterable(scores.values())) if scores else None
    return rubric.average({dimension: exact_mean(values) for dimension, values in scores.items()})


@dataclass
class _Policy:
    """The supporter's side: passes prompts to the trainer, and waits for its replies."""

    side: ModelSide
    prompts: asyncio.Queue[list[Message]] = field(default_factory=asyncio.Queue)
    replies: asyncio.Queue[Reply] = field(default_factory=asyncio.Queue)

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        await self.prompts.put(self.side.messages(turns))
        return utterance(await self.replies.get(), self.side.verbatim)


@dataclass(frozen=True)
class _Opened:
    """A seeker whose first turn is shared by its group."""

    first: asyncio.Future[Utterance]
    side: Side

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        is_first = all(turn.role != "seeker" for turn in turns)
        return await (asyncio.shield(self.first) if is_first else self.side.speak(client, turns))


class Episode:
    """A dialogue in progress. `Environment.group` makes it in a running event loop."""

    def __init__(self, environment: Environment, client: ChatClient, plan: Plan) -> None:
        assert isinstance(plan.supporter_side, ModelSide)
        self._environment, self._client = environment, client
        self._policy = _Policy(plan.supporter_side)
        self._dialogue = asyncio.create_task(hold(replace(plan, supporter_side=self._policy), client))

    async def prompt(self) -> list[Message] | None:
        """The supporter's next prompt; None if the dialogue is over."""
        prompt = asyncio.create_task(self._policy.prompts.get())
        await asyncio.wait([prompt, self._dialogue], return_when=asyncio.FIRST_COMPLETED)
        if prompt.done():
            return prompt.result()
        prompt.cancel()
        self._dialogue.result()  # raises an error of our own
        return None

    def reply(self, text: str, cut_off: bool = False) -> None:
        """Answer the last prompt as the supporter."""
        self._policy.replies.put_nowait(Reply(text=text, finish_reason="length" if cut_off else "stop"))

    def overflow(self) -> None:
        """Report that the next reply no longer fits the supporter's context."""
        self._policy.replies.put_nowait(Reply(text="", finish_reason="context_overflow"))

    async def rewarded(self) -> Rewarded:
        return await self._environment.rewarded(self._client, await self._dialogue)

    def abandon(self) -> None:
        """Cancel a dialogue that is not continued."""
        self._dialogue.cancel()


class Environment:
    """The role cards, seeker and judge of a run's config. Raises `UserError` for errors in it."""

    def __init__(self, settings: Mapping[str, Any], store: Path, brevity: Brevity | None = None) -> None:
        """`settings`: fields of a run's config (`seeker`, `judge`, `cards` …). `store`: SQLite file for their answers."""
        self.resolved = run_of({**settings, "supporters": [POLICY]}, {POLICY: CallableSpec.of(POLICY, _nobody)})
        self.brevity = brevity or Brevity()
        self.plans = {plan.opening.person: plan for plan in self.resolved.plans()}
        self._store, self._checked, self._told = store, False, set[str]()
        self._models = [*self.resolved.models.seekers, self.resolved.models.judge]
        for spec in self._models:
            if spec.endpoint.base_url is None and spec.name not in self.resolved.config.endpoints:
                raise UserError(f"model {spec.name}: no server is started for training: name one as {spec.name}@URL")
        self.resolved.judge_prompts  # noqa: B018  raises now if a prompt is missing

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ChatClient]:
        """The client that asks seeker and judge."""
        store, config = CallStore(self._store), self.resolved.config
        try:
            async with ChatClient(store, config.endpoints, concurrency=config.concurrency, told=self._told) as client:
                for spec in self._models if not self._checked else ():
                    await client.check(spec, [spec.served_name()])
                self._checked = True
                yield client
        finally:
            store.close()

    def group(self, client: ChatClient, person: str, trials: Sequence[int]) -> list[Episode]:
        """Episodes on one card (or profile) that begin with the same turn of the seeker, one per trial (a number used once)."""
        plan, plans = self.plans[person], []
        opening, seeker = plan.opening, cast(Any, plan.seeker_side)
        for trial in trials:
            id = dialogue_id(opening.framework, opening.person, POLICY, opening.simulator, trial)
            own = replace(opening, id=id, trial=trial)
            plans.append(replace(plan, opening=own, seeker_side=replace(seeker, dialogue=id)))
        if plan.first == "seeker":
            first = asyncio.ensure_future(plans[0].seeker_side.speak(client, opening.turns))
            plans = [replace(plan, seeker_side=_Opened(first, plan.seeker_side)) for plan in plans]
        return [Episode(self, client, plan) for plan in plans]

    async def rewarded(self, client: ChatClient, dialogue: Dialogue) -> Rewarded:
        verdicts = await self.resolved.judge(client).score(dialogue)
        reward = judged(dialogue, verdicts, self.resolved.rubric)
        return Rewarded(dialogue, verdicts, reward, self.brevity.of(dialogue))

    async def floors(self, client: ChatClient, people: Sequence[str]) -> dict[str, float]:
        """Floor → its mean reward on these people. A useful policy beats the floors, and a judge that rewards them like a model
        is of no use. Floors without any reward are left out."""

        async def rewarded_floor(spec: ModelSpec, plan: Plan) -> Rewarded:
            opening = replace(plan.opening, id=f"{spec.name}-{plan.id}", supporter=spec.name)
            dialogue = await hold(with_floor(replace(plan, opening=opening), spec.floor, {}), client)
            return await self.rewarded(client, dialogue)

        pairs = [(spec, self.plans[person]) for spec in map(load_spec, FLOORS) for person in people]
        spoken = [(spec, plan) for spec, plan in pairs if spec.speaks(plan.opening.language)]
        rewards: dict[str, list[float]] = {}
        for rewarded in await together(rewarded_floor(*pair) for pair in spoken):
            if rewarded.reward is not None:
                rewards.setdefault(str(rewarded.dialogue.supporter), []).append(rewarded.reward)
        return {name: exact_mean(values) for name, values in rewards.items()}


def _nobody(messages: list[Message]) -> str:
    raise AssertionError("only the trainer asks the policy")
