"""lm-eval's client for OpenAI-compatible completions, with one request for all single-token options of a prompt.

lm-eval sends every option with its whole prompt. If options are single tokens (A, B, C …), the log-probabilities of the next
token give the same figures for all of them at once, for a fraction of the work, since servers do not reuse a cached prompt when
its own log-probabilities are requested. Options that are not among the alternatives returned are asked one by one.
"""

import asyncio
import itertools
from collections import defaultdict
from operator import itemgetter
from typing import Any

from lm_eval.models.openai_completions import LocalCompletionsAPI

ALTERNATIVES = 1000  # next tokens that a server we launch may return (vLLM's --max-logprobs); vLLM's own default is 20
Request = tuple[Any, list[int], list[int]]  # the texts, the prompt's tokens, the option's tokens
Tops = dict[int, float]


class SharedPrompts(LocalCompletionsAPI):
    """See the module. Takes the arguments of lm-eval's own client."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._first = _FirstTokens(**settings)
        self._alternatives: int | None = None  # unknown until the first question; 0: the server returns no token ids

    def _loglikelihood_tokens(self, requests: list[Request], **kwargs: Any) -> list[tuple[float, bool]]:
        by_prompt: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, (_, prompt, option) in enumerate(requests):
            if len(option) == 1 and len(prompt) < self.max_length:
                by_prompt[tuple(prompt)].append(place)
        prompts = [prompt for prompt, places in by_prompt.items() if len(places) > 1]
        answers: dict[int, tuple[float, bool]] = {}
        for shared, tops in zip(prompts, self._tops(prompts), strict=True):
            for place in by_prompt[shared]:
                (token,) = requests[place][2]
                if token in tops:
                    answers[place] = (tops[token], tops[token] == max(tops.values()))
        single = [place for place in range(len(requests)) if place not in answers]
        if single:
            replies = super()._loglikelihood_tokens([requests[place] for place in single], **kwargs)
            answers |= dict(zip(single, replies, strict=True))
        return [answers[place] for place in range(len(requests))]

    def _tops(self, prompts: list[tuple[int, ...]]) -> list[Tops]:
        """The log-probabilities of the likeliest next tokens, by their ids; empty if the server does not return them."""
        if prompts and self._alternatives is None:
            self._alternatives = next((count for count in (ALTERNATIVES, 20) if self._returns(prompts[0], count)), 0)
        if not prompts or not self._alternatives:
            return [{} for _ in prompts]
        requests = self._first.get_batched_requests(
            [list(prompt) for prompt in prompts],
            cache_keys=[None] * len(prompts),
            generate=True,
            gen_kwargs=_settings(self._alternatives),
        )
        return list(itertools.chain.from_iterable(asyncio.run(requests)))

    def _returns(self, prompt: tuple[int, ...], count: int) -> bool:
        try:
            answer = self._first.model_call([list(prompt)], generate=True, gen_kwargs=_settings(count))
            return bool(_FirstTokens.parse_generations(answer)[0])
        except Exception:  # refused or not understood; if the server is down, the single requests will report it
            return False


class _FirstTokens(LocalCompletionsAPI):
    """A generation of one token, read as the log-probabilities of its alternatives."""

    @staticmethod
    def parse_generations(outputs: Any, **kwargs: Any) -> list[Tops]:
        tokens = []
        for choice in sorted(outputs["choices"], key=itemgetter("index")):
            tops = choice["logprobs"]["top_logprobs"][0]
            tokens.append({int(token.removeprefix("token_id:")): float(value) for token, value in tops.items()})
        return tokens


def _settings(count: int) -> dict[str, Any]:
    return {"max_tokens": 1, "temperature": 0, "logprobs": count, "return_tokens_as_token_ids": True}
