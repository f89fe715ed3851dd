"""Dialogues of a policy in training with the seeker, for TRL's GRPOTrainer: all of a batch turn by turn, as token ids.

A dialogue is one completion: the policy's replies, which carry the loss, and between them the seeker's lines with the marks of
the chat template, which do not (`env_mask`). What the policy said is never tokenised anew. The reward comes with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.records import Message
from evalsuite.environment import Environment, Episode, Rewarded
from serve.batch import together
from serve.client import ChatClient
from train.examples import CHATML, encode_prompt, neutral
from train.models import policy_end

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOTrainer


@dataclass
class PolicyCompletion:
    """One dialogue as the policy reads and writes it."""

    episode: Episode
    shown: list[Message] | None = None
    """What it answers next; None where the dialogue is over."""
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """1 where the policy spoke."""
    logprobs: list[float] = field(default_factory=list)

    def hears(self, ids: list[int]) -> None:
        """What is not the policy's."""
        self.ids += ids
        self.own += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def says(self, ids: list[int], logprobs: list[float] | None) -> None:
        """What the policy has sampled."""
        self.ids += ids
        self.own += [1] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)


class Rollouts:
    """TRL's `rollout_func`: prompts are the ids of role cards, as often as the group has dialogues."""

    def __init__(self, environment: Environment, tokenizer: PreTrainedTokenizerBase, context: int) -> None:
        self._environment, self._tokenizer, self._context = environment, tokenizer, context
        self._end = policy_end(tokenizer)
        self.markers = 0  # in what seekers said, broken up
        self._newline = tokenizer.encode("\n", add_special_tokens=False)

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        completions, rewarded = asyncio.run(self._held(prompts, trainer))
        return {
            "prompt_ids": [one.prompt for one in completions],
            "completion_ids": [one.ids for one in completions],
            "logprobs": [one.logprobs for one in completions] if trainer.use_vllm else None,
            "env_mask": [one.own for one in completions],
            "judged": [one.judged for one in rewarded],
            "brevity": [one.brevity if one.judged is not None else None for one in rewarded],
        }

    async def _held(self, prompts: list[str], trainer: GRPOTrainer) -> tuple[list[PolicyCompletion], list[Rewarded]]:
        accelerator = trainer.accelerator
        # Numbers that no other step and no other process gives.
        first = (trainer.state.global_step * accelerator.num_processes + accelerator.process_index) * len(prompts)
        async with self._environment.open() as client:
            completions: list[PolicyCompletion] = []
            for person, group in groupby(range(len(prompts)), key=lambda place: prompts[place]):
                trials = [first + place for place in group]
                completions += [PolicyCompletion(one) for one in self._environment.group(client, person, trials)]
            while await self._shown(completions, trainer):
                self._answer(completions, trainer)
            rewarded = await together(one.episode.rewarded() for one in completions)
            self._check(client, rewarded)
        for one in completions:
            if not one.ids:  # lost before its first reply: nothing to learn from, but TRL wants a token
                one.prompt = one.prompt or [self._end]
                one.hears([self._end])
        return completions, rewarded

    async def _shown(self, completions: list[PolicyCompletion], trainer: GRPOTrainer) -> bool:
        """Wait for the seekers' lines; whether the policy has anything left to say, in any process."""
        from accelerate.utils import gather_object

        async def listen(one: PolicyCompletion) -> None:
            one.shown = await one.episode.prompt()
            if one.shown is None:
                return
            new = one.shown[-1:] if one.prompt else one.shown
            self.markers += neutral(self._tokenizer, new)[1]
            if not one.prompt:
                one.prompt = encode_prompt(self._tokenizer, new)
            else:
                closing = [] if one.ids[-1] == self._end else [self._end]
                one.hears(closing + self._newline + encode_prompt(self._tokenizer, new, CHATML))
            if len(one.prompt) + len(one.ids) + trainer.args.max_completion_length > self._context:
                one.episode.overflow()
                await listen(one)

        await together(listen(one) for one in completions if one.shown is not None or not one.prompt)
        return any(gather_object([any(one.shown is not None for one in completions)]))

    def _answer(self, completions: list[PolicyCompletion], trainer: GRPOTrainer) -> None:
        """Sample a reply of every dialogue that waits for one."""
        # TRL's own way to its backends (transformers, vLLM) is not public, but there is no other. It takes equally many prompts
        # from all processes, so dialogues that are over give one, too, whose answer nobody reads.
        several = trainer.accelerator.num_processes > 1
        asked = [one for one in completions if several or one.shown is not None]
        prompts = [one.prompt + one.ids if one.shown is not None else one.prompt or [self._end] for one in asked]
        replies, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
        for place, one in enumerate(asked):
            if one.shown is not None:
                ids = list(replies[place])
                one.says(ids, logprobs[place] if logprobs else None)
                one.episode.reply(self._tokenizer.decode(ids, skip_special_tokens=True), cut_off=ids[-1:] != [self._end])

    def _check(self, client: ChatClient, rewarded: list[Rewarded]) -> None:
        """Raise `UserError` where seeker or judge are gone: training on without rewards would only cost time."""
        if all(one.reward is None for one in rewarded):
            failed = next((failure.reason for failure in client.failures), "no verdict of the judge could be read")
            raise UserError(
                f"no dialogue of this step has a reward: {client.threshold.cause or failed}; the same command resumes"
            )


@contextmanager
def policy_server() -> Iterator[None]:
    """What TRL says of the policy's vLLM server that is not there, or that takes no weights, as one line."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if "vLLM" not in str(error):
            raise
        raise UserError(f"vllm_server_base_url: {' '.join(str(error).split())}") from error


def judged(**columns: Any) -> list[float | None]:
    """The judge's part of the reward, under this name in the log."""
    rewards: list[float | None] = columns["judged"]
    return rewards


def brevity(**columns: Any) -> list[float | None]:
    """What length costs, under this name in the log."""
    rewards: list[float | None] = columns["brevity"]
    return rewards
