"""The seeker as a taskset and environment of `verifiers.v1`, with the ranker's scores as the reward.

    eval esc-eval --env.taskset.seeker esc-role@http://…/v1 --env.taskset.judge esc-rank@http://…/v1 -m MODEL

A task is a role card. The policy is the agent `supporter`, a chat without tools (verifiers' own harness `null`). Dialogue,
verdict and reward are those of `evalsuite.environment`.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import verifiers.v1 as vf
from pydantic import Field

from evalsuite.environment import Brevity, Environment

__all__ = ["SeekerEnv", "SeekerTaskset"]


class SeekerConfig(vf.TasksetConfig):
    """`--env.taskset.*`: fields of a run's config, and what long replies cost (`Brevity`)."""

    seeker: str = ""
    """The model that plays the seeker: NAME@URL, NAME@URL#VARIABLE with a key, or a spec with an endpoint."""
    judge: str = ""
    """The model that scores."""
    cards: list[str] = Field(default=["bundled"])
    languages: list[str] = Field(default=["en"])
    limit: int | None = None
    exchanges: int = 5
    rubric: str = "esc_eval"
    method: str = "joint"
    free_characters: float = Brevity.free
    length_cost: float = Brevity.cost

    def environment(self) -> Environment:
        """Cards, seeker and judge; their answers are kept in a folder of the system's for temporary files."""
        names = ("seeker", "judge", "cards", "languages", "limit", "exchanges", "rubric", "method")
        place = Path(tempfile.mkdtemp(prefix="esc-eval-")) / "calls.sqlite"
        return Environment(self.model_dump(include=set(names)), place, Brevity(self.free_characters, self.length_cost))


class Person(vf.TaskData):
    """Whom the supporter talks to: the id of a role card."""

    person: str


class SeekerTaskset(vf.Taskset[vf.Task[Person], SeekerConfig]):
    """A task a role card. The seeker speaks first, so a task has no prompt."""

    def load(self) -> Iterable[vf.Task[Person]]:
        for number, person in enumerate(self.config.environment().plans):
            yield vf.Task[Person](Person(idx=number, name=person, person=person), self.config.task)


class SeekerEnvConfig(vf.EnvConfig):
    """The one role beside the seeker and the ranker, which are served elsewhere."""

    supporter: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class SeekerEnv(vf.Env[SeekerEnvConfig]):
    """A person with a trouble, who answers each of the policy's messages until the dialogue is over."""

    async def start(self) -> None:
        """Open the client that asks seeker and ranker."""
        self._exits, self._trials = AsyncExitStack(), itertools.count()
        self._environment = self.config.taskset.environment()
        self._client = await self._exits.enter_async_context(self._environment.open())

    async def stop(self) -> None:
        """Close it."""
        await self._exits.aclose()

    async def run(self, task: vf.Task[Person], agents: vf.Agents) -> None:
        """One dialogue; its trace has the reward and its two parts. A dialogue without one is an episode that failed."""
        (held,) = self._environment.group(self._client, task.data.person, [next(self._trials)])
        try:
            async with agents.supporter.interaction(task) as talk:
                shown, said = await held.prompt(), 0
                while shown is not None:
                    segment = await talk.turn([dict(message) for message in (shown if not said else shown[-1:])])
                    if segment.terminated:
                        raise vf.EnvError(f"the policy stopped answering after {said} replies")
                    said += 1
                    held.reply(segment.last_reply, cut_off=talk.trace.is_truncated)
                    shown = await held.prompt()
                rewarded = await held.rewarded()
                if rewarded.reward is None or rewarded.judged is None:
                    ended = rewarded.dialogue.termination
                    raise vf.EnvError(
                        f"dialogue {rewarded.dialogue.id} has no reward: ended by {ended}, or a verdict is missing"
                    )
                talk.trace.record_reward("reward", rewarded.reward)
                talk.trace.record_metrics({"judged": rewarded.judged, "brevity": rewarded.brevity})
        finally:
            held.abandon()
