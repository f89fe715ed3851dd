"""A run's budget: what is asked ends with it, and what has begun is finished before more begins."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from core.endpoints import Price
from core.errors import UserError
from serve.answers import Reply
from serve.budget import Budget, Share
from serve.client import ChatClient
from serve.failures import NotReached, NotUp
from serve.store import CallStore
from tests.endpoint import Answer, Endpoint
from tests.serve.test_client import question, spec
from tests.serve.test_limits import Time


@pytest.mark.parametrize(
    ("limit", "answers", "told"),
    [
        ({"max_calls": 3}, 3, "max_calls 3 is reached: raise it to continue"),
        ({"max_cost": 0.0001}, 4, "max_cost 0.0001 is reached"),  # 10 + 2 × 10 = 30 millionths a call
        ({"max_time": 50}, 5, "max_time 50 s is over"),
    ],
)
async def test_a_budget_ends_the_run_and_counts_what_the_store_has(
    tmp_path: Path, limit: dict[str, Any], answers: int, told: str
) -> None:
    time, store = Time(), CallStore(tmp_path / "calls.sqlite")

    def behave(body: dict[str, Any], count: int) -> Answer:
        time.now += 10
        return Answer("two words")

    with Endpoint(behave) as endpoint:
        model = spec(endpoint.url, endpoint={"price": Price(input=1, output=10)})
        for already in (False, True):
            async with ChatClient(store, budget=Budget(clock=time, **limit), clock=time) as client:
                client.budget.begin([model], store.tokens())
                got = 0
                for number in range(8):
                    try:
                        await client.ask(model, question(f"{already} {number}"))
                        got += 1
                    except NotReached:
                        assert client.threshold.cause is not None and told in client.threshold.cause
            assert got == (0 if already and "max_time" not in limit else answers)
    store.close()


@pytest.mark.slow
async def test_calls_under_way_count_for_the_limit_on_calls(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint(lambda body, count: Answer("fine", delay=0.05)) as endpoint:
        async with ChatClient(store, budget=Budget(max_calls=3)) as client:
            calls = (client.ask(spec(endpoint.url), question(str(number))) for number in range(8))
            ended = await asyncio.gather(*calls, return_exceptions=True)
    assert len(store) == 3 and sum(isinstance(end, NotReached) for end in ended) == 5
    store.close()


def test_a_limit_on_cost_wants_prices() -> None:
    with pytest.raises(UserError, match=r"my-model has no prices: put endpoint\.price"):
        Budget(max_cost=1.0).begin([spec()], {})
    Budget(max_cost=1.0).begin([spec(endpoint={"price": {"input": 0, "output": 0}})], {})
    Budget(max_calls=1).begin([spec()], {})


async def works(budget: Budget, number: int, calls: int = 4, cost: float = 0.0, seconds: float = 0.0) -> list[int]:
    """Pieces of work that each take so many calls, all at once: how many calls each was allowed."""
    got = [0] * number
    model = spec(endpoint={"price": Price(input=1_000_000, output=0)})

    async def one(place: int) -> None:
        async with budget.room(str(place), Share(calls, cost)):
            for _ in range(calls):
                refused = budget.begin_call()
                await asyncio.sleep(0)
                if isinstance(budget.clock, Time):
                    budget.clock.now += seconds
                budget.end_call(model, None if refused else Reply(text="x", prompt_tokens=1))
                if refused:
                    return
                got[place] += 1

    await asyncio.gather(*map(one, range(number)))
    return got


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [
        ({"max_calls": 14}, [4, 4, 4, 2, 0, 0, 0, 0]),
        ({"max_calls": 16}, [4, 4, 4, 4, 0, 0, 0, 0]),
        ({"max_cost": 9.0}, [4, 4, 1, 0, 0, 0, 0, 0]),
        ({"max_calls": 1000}, [4] * 8),
    ],
)
async def test_a_budget_is_spent_on_whole_pieces_of_work(limit: dict[str, Any], allowed: list[int]) -> None:
    assert await works(Budget(**limit), 8, cost=4.0) == allowed


async def test_where_time_is_short_few_begin_before_one_is_known_to_fit() -> None:
    time = Time()
    got = await works(Budget(max_time=100, clock=time), 40, seconds=1)
    assert sum(calls == 4 for calls in got) >= 20 and sum(0 < calls < 4 for calls in got) <= 6, got


async def test_what_is_kept_for_later_is_taken_by_nobody_else() -> None:
    budget = Budget(max_calls=7)
    async with budget.room("a", Share(5), later=Share(2)):
        for _ in range(3):
            assert budget.begin_call() is None
            budget.end_call(spec(), Reply(text="x"))
    async with budget.room("b", Share(5)):
        assert budget.begin_call() is None
        budget.end_call(spec(), Reply(text="x"))
        assert budget.begin_call() is None
        budget.end_call(spec(), Reply(text="x"))
        assert "max_calls 7 is reached" in (budget.begin_call() or "")
        budget.end_call(spec(), None)
    async with budget.room("a", Share(99)):
        for _ in range(2):
            assert budget.begin_call() is None, "its share is kept"
            budget.end_call(spec(), Reply(text="x"))


async def test_work_that_a_later_phase_goes_on_with_keeps_its_share() -> None:
    budget = Budget(max_calls=8)
    for place in "ab":
        with pytest.raises(NotUp):
            async with budget.room(place, Share(4)):
                assert budget.begin_call() is None
                budget.end_call(spec(), Reply(text="x"))
                raise NotUp
    assert await works(budget, 1) == [0], "there is room for nothing else"
