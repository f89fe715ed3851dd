"""The seeker as a multi-turn environment of `verifiers`, with the judge's scores as its reward.

    verifiers.load_environment("esc-eval", seeker="esc-role@http://…/v1", judge="esc-rank@http://…/v1")

The policy is the supporter. Dialogues, verdicts and rewards are those of `evalsuite.environment`.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import verifiers as vf
from datasets import Dataset

from core.records import Message
from evalsuite.environment import Brevity, Environment, Rewarded
from serve.client import ChatClient


def load_environment(
    seeker: str,
    judge: str,
    cards: str | Sequence[str] = "bundled",
    languages: Sequence[str] = ("en",),
    free_characters: float = Brevity.free,
    length_cost: float = Brevity.cost,
    store: str | None = None,
    **settings: Any,
) -> vf.Environment:
    """The environment. `seeker` and `judge` are served models: NAME@URL, NAME@URL#VARIABLE, or a spec with an endpoint.

    `free_characters`, `length_cost`: the penalty on long replies (`Brevity`). `store`: SQLite file for their answers.
    `settings`: further fields of a run's config, such as `exchanges`, `rubric`, `method`, `limit`."""
    files = [cards] if isinstance(cards, str) else list(cards)
    config = {"seeker": seeker, "judge": judge, "cards": files, "languages": list(languages), **settings}
    path = Path(store) if store else Path(tempfile.mkdtemp(prefix="esc-eval-")) / "calls.sqlite"
    environment = Environment(config, path, Brevity(free_characters, length_cost))
    rows = [{"prompt": [], "info": {"person": person}} for person in environment.plans]
    return SeekerEnv(environment, dataset=Dataset.from_list(rows))


class SeekerEnv(vf.MultiTurnEnv):
    """A person in distress, who answers each message of the policy until the dialogue is over."""

    def __init__(self, environment: Environment, **kwargs: Any) -> None:
        super().__init__(rubric=vf.Rubric(funcs=[reward, judged, brevity], weights=[1.0, 0.0, 0.0]), **kwargs)
        self._environment, self._trials = environment, itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exits = AsyncExitStack()

    async def _client(self) -> ChatClient:
        """The client that all rollouts of an event loop share."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._exits = loop, AsyncExitStack()
            self._opening = loop.create_task(self._exits.enter_async_context(self._environment.open()))
        return await asyncio.shield(self._opening)

    async def setup_state(self, state: vf.State) -> None:
        """The seeker speaks first."""
        client = await self._client()
        (state["episode"],) = self._environment.group(client, state["info"]["person"], [next(self._trials)])
        prompt = await state["episode"].prompt()
        if prompt is None:
            await self._end(state)
        state["prompt"] = _messages(prompt or [])

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        """The seeker's next turn; empty if the dialogue is over."""
        step = state["trajectory"][-1]
        state["episode"].reply(str(messages[-1].content or ""), cut_off=bool(step["is_truncated"]))
        prompt = await state["episode"].prompt()
        if prompt is None:
            await self._end(state)
            return []
        return _messages(prompt[-1:])

    async def _end(self, state: vf.State) -> None:
        """Judge the dialogue within the rollout, so that a lost call makes the rollout fail."""
        rewarded: Rewarded = await state["episode"].rewarded()
        state["rewarded"] = rewarded
        state["final_env_response"] = []
        if rewarded.reward is None:
            ended = rewarded.dialogue.termination
            raise vf.InfraError(f"dialogue {rewarded.dialogue.id} has no reward: it ended by {ended}, or a verdict is missing")

    @vf.cleanup
    async def leave(self, state: vf.State) -> None:
        """Cancel the dialogue of a rollout that ended before it."""
        if episode := state.pop("episode", None):
            episode.abandon()

    @vf.teardown
    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self._exits.aclose()
        self._loop = None


def _messages(messages: Sequence[Message]) -> vf.Messages:
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    return [kinds[message["role"]](content=message["content"]) for message in messages]


async def reward(state: vf.State) -> float:
    """The judge's score minus the penalty on length; 0 for a failed rollout, which has `state["error"]`."""
    rewarded: Rewarded | None = state.get("rewarded")
    return float(rewarded.reward or 0.0) if rewarded else 0.0


async def judged(state: vf.State) -> float:
    """The judge's score, 0–1."""
    rewarded: Rewarded | None = state.get("rewarded")
    return float(rewarded.judged or 0.0) if rewarded else 0.0


async def brevity(state: vf.State) -> float:
    """The penalty on length, 0 or less."""
    rewarded: Rewarded | None = state.get("rewarded")
    return rewarded.brevity if rewarded else 0.0
