"""lm-eval's client for OpenAI-compatible completions, which asks options of one token after one prompt in a single request.

lm-eval sends every option with its whole prompt. Where options are single tokens (A, B, C …), the log-probabilities of the
first token to come say the same of all of them at once: the same figures for a fraction of the work, since servers read a
prompt anew wherever its own log-probabilities are asked for. Options that are not among the alternatives that a server tells
are asked singly.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from operator import itemgetter
from typing import Any

from lm_eval.models.openai_completions import LocalCompletionsAPI

ALTERNATIVES = 1000  # next tokens that a server we launch may tell of (vLLM's --max-logprobs); 20 is what vLLM allows by itself
Request = tuple[Any, list[int], list[int]]  # the texts, the prompt's tokens, the option's tokens
Tops = dict[int, float]


class SharedPrompts(LocalCompletionsAPI):
    """See the module. Takes what lm-eval's own client takes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._first = _FirstTokens(**settings)
        self._alternatives: int | None = None  # unknown until the first question; 0: the server tells no token ids

    def _loglikelihood_tokens(self, requests: list[Request], **kwargs: Any) -> list[tuple[float, bool]]:
        together: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, (_, prompt, option) in enumerate(requests):
            if len(option) == 1 and len(prompt) < self.max_length:
                together[tuple(prompt)].append(place)
        prompts = [prompt for prompt, places in together.items() if len(places) > 1]
        answers: dict[int, tuple[float, bool]] = {}
        for shared, tops in zip(prompts, self._tops(prompts), strict=True):
            for place in together[shared]:
                (token,) = requests[place][2]
                if token in tops:
                    answers[place] = (tops[token], tops[token] == max(tops.values()))
        rest = [place for place in range(len(requests)) if place not in answers]
        if rest:
            asked = super()._loglikelihood_tokens([requests[place] for place in rest], **kwargs)
            answers |= dict(zip(rest, asked, strict=True))
        return [answers[place] for place in range(len(requests))]

    def _tops(self, prompts: list[tuple[int, ...]]) -> list[Tops]:
        """The log-probabilities of the likeliest next tokens, by their ids; empty where the server does not tell them."""
        if prompts and self._alternatives is None:
            self._alternatives = next((count for count in (ALTERNATIVES, 20) if self._knows(prompts[0], count)), 0)
        if not prompts or not self._alternatives:
            return [{} for _ in prompts]
        asked = self._first.get_batched_requests(
            [list(prompt) for prompt in prompts],
            cache_keys=[None] * len(prompts),
            generate=True,
            gen_kwargs=_settings(self._alternatives),
        )
        return list(itertools.chain.from_iterable(asyncio.run(asked)))

    def _knows(self, prompt: tuple[int, ...], count: int) -> bool:
        """Whether the server answers with so many alternatives, under their ids."""
        try:
            answer = self._first.model_call([list(prompt)], generate=True, gen_kwargs=_settings(count))
            return bool(_FirstTokens.parse_generations(answer)[0])
        except Exception:  # refused or not understood: a server that is gone says so again when it is asked the old way
            return False


class _FirstTokens(LocalCompletionsAPI):
    """A generation of one token, read as the log-probabilities of what it could have been."""

    @staticmethod
    def parse_generations(outputs: Any, **kwargs: Any) -> list[Tops]:
        tokens = []
        for choice in sorted(outputs["choices"], key=itemgetter("index")):
            tops = choice["logprobs"]["top_logprobs"][0]
            tokens.append({int(token.removeprefix("token_id:")): float(value) for token, value in tops.items()})
        return tokens


def _settings(count: int) -> dict[str, Any]:
    return {"max_tokens": 1, "temperature": 0, "logprobs": count, "return_tokens_as_token_ids": True}
