"""What a run may take: time, calls and money. When one is used up nothing more is asked, and what is there is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from core.errors import UserError
from core.specs import ModelSpec
from serve.answers import Reply

_MILLION = 10**6


class Budget:
    """Seconds count from its making, one command; calls and cost are those of the whole run folder, earlier tries included.

    A call is one answer. Calls that are under way when a limit is reached are finished: the cost may go over it by theirs.
    """

    def __init__(
        self,
        max_time: float | None = None,
        max_calls: int | None = None,
        max_cost: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_time, self._max_calls, self._max_cost = max_time, max_calls, max_cost
        self._clock, self._started = clock, clock()
        self._calls, self._cost, self._under_way = 0, 0.0, 0

    def begin(self, specs: Iterable[ModelSpec], stored: Mapping[str | None, tuple[int, int, int]]) -> None:
        """Count what is in the store: spec → (answers, prompt tokens, completion tokens).

        Raises `UserError` for a model without prices where there is a limit on cost; one that has a checkpoint is served by
        oneself and costs nothing.
        """
        by_name = {spec.name: spec for spec in specs}
        self._calls = sum(answers for answers, _, _ in stored.values())
        for spec in by_name.values() if self._max_cost is not None else ():
            if spec.endpoint.price is None and spec.checkpoint is None:
                raise UserError(
                    f"--max-cost: model {spec.name} has no prices: put endpoint.price: {{input: …, output: …}} (of a million "
                    "tokens) into its spec"
                )
        self._cost = sum(cost(by_name[name], *tokens) for name, (_, *tokens) in stored.items() if name in by_name)

    def begin_call(self) -> str | None:
        """A call is to be made: why it may not be, None where it may."""
        cause = self.over()
        if self._max_calls is not None and self._calls + self._under_way >= self._max_calls:
            cause = cause or f"--max-calls {self._max_calls} is reached: raise it to go on"
        self._under_way += 1
        return cause

    def over(self) -> str | None:
        """Why a call that was begun is not tried (again): time or money is used up."""
        if self._max_time is not None and self._clock() - self._started >= self._max_time:
            return f"--max-time {self._max_time:g} s is over"
        if self._max_cost is not None and self._cost >= self._max_cost:
            return f"--max-cost {self._max_cost:g} is reached ({self._cost:.2f} spent): raise it to go on"
        return None

    def ended(self, spec: ModelSpec, reply: Reply | None) -> None:
        """A call has ended, with an answer or without."""
        self._under_way -= 1
        if reply is not None:
            self._calls += 1
            self._cost += cost(spec, reply.prompt_tokens, reply.completion_tokens)


def cost(spec: ModelSpec, prompt_tokens: int, completion_tokens: int) -> float:
    """What so many tokens cost by the spec's prices, 0 without any."""
    price = spec.endpoint.price
    return (prompt_tokens * price.input + completion_tokens * price.output) / _MILLION if price else 0.0
