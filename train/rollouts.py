"""Dialogues of a policy in training with the seeker, for TRL's GRPOTrainer: a batch at a time, turn by turn, as token ids.

A dialogue is one completion: the policy's replies, which carry the loss, and between them the seeker's lines with the markers
of the chat template, which do not (`env_mask`). The policy's replies are never tokenised again. Rewards are returned with them.
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
from train.examples import SAMPLE, encode_prompt, neutral, template_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOTrainer


@dataclass
class PolicyCompletion:
    """One dialogue as the policy reads and writes it."""

    episode: Episode
    shown: list[Message] | None = None
    """The messages to answer next; None if the dialogue is over."""
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """1 where the policy spoke."""
    logprobs: list[float] = field(default_factory=list)

    def hears(self, ids: list[int]) -> None:
        """Append tokens that are not the policy's."""
        self.ids += ids
        self.own += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def says(self, ids: list[int], logprobs: list[float] | None) -> None:
        """Append tokens that the policy sampled."""
        self.ids += ids
        self.own += [1] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)


class Rollouts:
    """TRL's `rollout_func`: prompts are the ids of role cards, each repeated for every dialogue of its group."""

    def __init__(self, environment: Environment, tokenizer: PreTrainedTokenizerBase, context: int) -> None:
        self._environment, self._tokenizer, self._context = environment, tokenizer, context
        self._end, self._before = template_of(tokenizer).end, len(encode_prompt(tokenizer, SAMPLE[1:2]))
        self.markers = 0  # broken up in seekers' lines

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        completions, rewarded = asyncio.run(self._held(prompts, trainer))
        return {
            "prompt_ids": [completion.prompt for completion in completions],
            "completion_ids": [completion.ids for completion in completions],
            "logprobs": [completion.logprobs for completion in completions] if trainer.use_vllm else None,
            "env_mask": [completion.own for completion in completions],
            "judged": [reward.judged for reward in rewarded],
            "brevity": [reward.brevity if reward.judged is not None else None for reward in rewarded],
        }

    async def _held(self, prompts: list[str], trainer: GRPOTrainer) -> tuple[list[PolicyCompletion], list[Rewarded]]:
        accelerator = trainer.accelerator
        # Trial numbers that no other step or process uses.
        first = (trainer.state.global_step * accelerator.num_processes + accelerator.process_index) * len(prompts)
        async with self._environment.open() as client:
            completions: list[PolicyCompletion] = []
            for person, group in groupby(range(len(prompts)), key=lambda place: prompts[place]):
                trials = [first + place for place in group]
                completions += [PolicyCompletion(episode) for episode in self._environment.group(client, person, trials)]
            while await self._shown(completions, trainer):
                self._answer(completions, trainer)
            rewarded = await together(completion.episode.rewarded() for completion in completions)
            if all(reward.reward is None for reward in rewarded):  # training on without rewards would only cost time
                failed = next((failure.reason for failure in client.failures), "no verdict of the judge could be read")
                cause = client.threshold.cause or failed
                raise UserError(f"no dialogue of this step has a reward: {cause}; the same command resumes")
        for completion in completions:
            if not completion.ids:  # lost before its first reply: nothing to learn from, but TRL needs a token
                completion.prompt = completion.prompt or [self._end]
                completion.hears([self._end])
        return completions, rewarded

    async def _shown(self, completions: list[PolicyCompletion], trainer: GRPOTrainer) -> bool:
        """Wait for the seekers' lines; whether the policy has anything left to say, in any process."""
        from accelerate.utils import gather_object

        async def listen(completion: PolicyCompletion) -> None:
            completion.shown = await completion.episode.prompt()
            if completion.shown is None:
                return
            new = completion.shown[-1:] if completion.prompt else completion.shown
            self.markers += neutral(self._tokenizer, new)[1]
            if not completion.prompt:
                completion.prompt = encode_prompt(self._tokenizer, new)
            else:
                closing = [] if completion.ids[-1] == self._end else [self._end]
                # The tokens after a reply, taken from another dialogue: re-encoding this one would change the sampled tokens.
                after = encode_prompt(self._tokenizer, [*SAMPLE[1:3], *new])[self._before :]
                completion.hears(closing + after[after.index(self._end) + 1 :])
            if len(completion.prompt) + len(completion.ids) + trainer.args.max_completion_length > self._context:
                completion.episode.overflow()
                await listen(completion)

        await together(
            listen(completion) for completion in completions if completion.shown is not None or not completion.prompt
        )
        return any(gather_object([any(completion.shown is not None for completion in completions)]))

    def _answer(self, completions: list[PolicyCompletion], trainer: GRPOTrainer) -> None:
        # TRL's access to its backends is not public, but there is no other. It needs equally many prompts from all processes:
        # finished dialogues send one, too, whose reply is ignored.
        several = trainer.accelerator.num_processes > 1
        batch = [completion for completion in completions if several or completion.shown is not None]
        prompts = [
            completion.prompt + completion.ids if completion.shown is not None else completion.prompt or [self._end]
            for completion in batch
        ]
        replies, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
        for place, completion in enumerate(batch):
            if completion.shown is not None:
                ids = list(replies[place])
                completion.says(ids, logprobs[place] if logprobs else None)
                completion.episode.reply(self._tokenizer.decode(ids, skip_special_tokens=True), cut_off=ids[-1:] != [self._end])


@contextmanager
def policy_server() -> Iterator[None]:
    """Raise TRL's errors about a vLLM server that is missing or takes no weights as `UserError` with one line."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if "vLLM" not in str(error):
            raise
        raise UserError(f"vllm_server_base_url: {' '.join(str(error).split())}") from error


def judged(**columns: Any) -> list[float | None]:
    """The judge's part of the reward; the log uses this name."""
    rewards: list[float | None] = columns["judged"]
    return rewards


def brevity(**columns: Any) -> list[float | None]:
    """The part of the reward for length; the log uses this name."""
    rewards: list[float | None] = columns["brevity"]
    return rewards
