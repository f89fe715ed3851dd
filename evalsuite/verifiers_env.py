"""The seeker as a multi-turn environment of `verifiers`, with the ranker's scores as its reward.

    verifiers.load_environment("esc-eval", seeker="esc-role@http://…/v1", judge="esc-rank@http://…/v1")

The policy is the supporter. Dialogue, verdict and reward are those of `evalsuite.environment`.
"""

from __future__ import annotations

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
    """`seeker` and `judge` are models that are served (NAME@URL, NAME@URL#VARIABLE with a key, or a spec with an endpoint).

    `free_characters` and `length_cost`: what long replies cost (`Brevity`). `store`: the SQLite file that keeps their answers.
    `settings`: further fields of a run's config, as `exchanges`, `rubric`, `method`, `limit`.
    """
    chosen = [cards] if isinstance(cards, str) else list(cards)
    config = {"seeker": seeker, "judge": judge, "cards": chosen, "languages": list(languages), **settings}
    place = Path(store) if store else Path(tempfile.mkdtemp(prefix="esc-eval-")) / "calls.sqlite"
    environment = Environment(config, place, Brevity(free_characters, length_cost))
    rows = [{"prompt": [], "info": {"person": person}} for person in environment.plans]
    return SeekerEnv(environment, dataset=Dataset.from_list(rows))


class SeekerEnv(vf.MultiTurnEnv):
    """A person with a trouble, who answers each of the policy's messages until the dialogue is over."""

    def __init__(self, environment: Environment, **kwargs: Any) -> None:
        super().__init__(rubric=vf.Rubric(funcs=[reward, judged, brevity], weights=[1.0, 0.0, 0.0]), **kwargs)
        self._environment, self._trials = environment, itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exits = AsyncExitStack()

    async def _client(self) -> ChatClient:
        """One client for all rollouts of an event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._exits = loop, AsyncExitStack()
            self._opening = loop.create_task(self._exits.enter_async_context(self._environment.open()))
        return await asyncio.shield(self._opening)

    async def setup_state(self, state: vf.State) -> None:
        """The seeker speaks first."""
        client = await self._client()
        (state["episode"],) = self._environment.group(client, state["info"]["person"], [next(self._trials)])
        shown = await state["episode"].prompt()
        if shown is None:
            await self._end(state)
        state["prompt"] = _as_theirs(shown or [])

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        """The seeker's next line; none where the dialogue is over."""
        step = state["trajectory"][-1]
        state["episode"].reply(str(messages[-1].content or ""), cut_off=bool(step["is_truncated"]))
        shown = await state["episode"].prompt()
        if shown is None:
            await self._end(state)
            return []
        return _as_theirs(shown[-1:])

    async def _end(self, state: vf.State) -> None:
        """Judge, while a lost call still makes the rollout one that failed."""
        rewarded: Rewarded = await state["episode"].rewarded()
        state["rewarded"] = rewarded
        state["final_env_response"] = []
        if rewarded.reward is None:
            ended = rewarded.dialogue.termination
            raise vf.InfraError(f"dialogue {rewarded.dialogue.id} has no reward: it ended by {ended}, or a verdict is missing")

    @vf.cleanup
    async def leave(self, state: vf.State) -> None:
        """A rollout that ended before its dialogue leaves nothing waiting."""
        if episode := state.pop("episode", None):
            episode.abandon()

    @vf.teardown
    async def close(self) -> None:
        """Close what asks seeker and judge."""
        if self._loop is asyncio.get_running_loop():
            await self._exits.aclose()
        self._loop = None


def _as_theirs(messages: Sequence[Message]) -> vf.Messages:
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    return [kinds[message["role"]](content=message["content"]) for message in messages]


async def reward(state: vf.State) -> float:
    """Verdicts less the cost of length; 0 for a rollout that failed, which `state["error"]` tells apart."""
    rewarded: Rewarded | None = state.get("rewarded")
    return float(rewarded.reward or 0.0) if rewarded else 0.0


async def judged(state: vf.State) -> float:
    """The judge's part."""
    rewarded: Rewarded | None = state.get("rewarded")
    return float(rewarded.judged or 0.0) if rewarded else 0.0


async def brevity(state: vf.State) -> float:
    """The cost of length: 0 or less."""
    rewarded: Rewarded | None = state.get("rewarded")
    return rewarded.brevity if rewarded else 0.0
