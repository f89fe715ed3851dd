"""What bounds calls: patience with a server that is away, a rate, a budget; and when a run ends early. No test waits."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.endpoints import Endpoint as SpecEndpoint
from core.endpoints import Price
from core.errors import UserError
from core.specs import ModelSpec
from serve.answers import Reply
from serve.client import ChatClient
from serve.failures import FIRST_CALLS, NotReached, NotUp, Rejected, ServerLost, Threshold
from serve.limits import Budget, Rate, Share
from serve.store import CallStore
from tests.endpoint import Answer, Endpoint
from tests.serve.test_client import question, spec


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def asked(tmp_path: Path, behave: Callable[[dict[str, Any], int], Answer], **settings: Any) -> dict[str, Any]:
    """One call in a time of its own: its text or error, the seconds and requests that it took, and what was said meanwhile."""
    time, said = Time(), list[str]()
    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint(behave) as endpoint:
        url = settings.pop("url", endpoint.url)
        settings |= {"launched": (url,)} if settings.pop("own", False) else {}
        async with ChatClient(store, clock=time, sleep=time.sleep, say=said.append, **settings) as client:
            try:
                text = (await client.ask(spec(url), question())).text
            except ServerLost as error:
                text = str(error)
        store.close()
        return {"text": text, "seconds": time.now, "requests": len(endpoint.requests), "said": said}


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_a_server_that_is_away_is_waited_for_and_that_is_said_once_a_minute(tmp_path: Path, status: int) -> None:
    """Half an hour: eight attempts last little more than a minute."""
    back = 1800 / 22.5  # tries: the mean of a wait is 22.5 s
    result = await asked(
        tmp_path, lambda body, count: Answer("back") if count > back else Answer(status=status), patience_s=3600
    )
    assert result["text"] == "back" and result["requests"] == int(back) + 1
    assert 1200 < result["seconds"] < 2400
    assert result["seconds"] / 90 - 1 < len(result["said"]) <= result["seconds"] / 60
    assert f"HTTP {status}" in result["said"][0] and "waiting up to 60 min (patience)" in result["said"][0]


async def test_refused_connections_are_waited_for_until_patience_ends(tmp_path: Path) -> None:
    result = await asked(tmp_path, lambda body, count: Answer(), patience_s=600, url="http://127.0.0.1:1/v1")
    assert "gave up after 8 attempts" in result["text"] and "127.0.0.1:1" in result["text"]
    assert 600 < result["seconds"] < 800


@pytest.mark.parametrize(
    ("status", "settings"), [(503, {}), (503, {"patience_s": 3600, "own": True}), (500, {"patience_s": 3600})]
)
async def test_without_patience_and_for_servers_of_ones_own_and_other_failures_the_attempts_count(
    tmp_path: Path, status: int, settings: dict[str, Any]
) -> None:
    result = await asked(tmp_path, lambda body, count: Answer(status=status), **{"patience_s": 0} | settings)
    assert "gave up after 8 attempts" in result["text"] and result["requests"] == 8 and not result["said"]


async def test_a_server_that_answers_others_is_busy_and_not_away(tmp_path: Path) -> None:
    """The call that gets nothing but 503 while others are answered has its attempts, no more."""

    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer(status=503) if "bad" in body["messages"][0]["content"] else Answer("fine")

    time, store = Time(), CallStore(tmp_path / "calls.sqlite")
    with Endpoint(behave) as endpoint:
        async with ChatClient(store, concurrency=2, clock=time, patience_s=10**9) as client:
            numbers = itertools.count()

            async def sleep(seconds: float) -> None:
                await client.ask(spec(endpoint.url), question(f"good {next(numbers)}"))

            client.sleep = sleep
            with pytest.raises(ServerLost, match="gave up after 8 attempts"):
                await client.ask(spec(endpoint.url), question("bad"))
    store.close()


async def test_the_time_spent_in_patience_is_no_latency(tmp_path: Path) -> None:
    time, store = Time(), CallStore(tmp_path / "calls.sqlite")
    with Endpoint(lambda body, count: Answer("back") if count > 20 else Answer(status=503)) as endpoint:
        async with ChatClient(store, clock=time, sleep=time.sleep, patience_s=3600, give_up_s=30) as client:
            await client.ask(spec(endpoint.url), question())
    assert time.now > 300 and store.latency()["max"] == pytest.approx(0, abs=1e-6)
    store.close()


async def begun(
    rate: Rate, time: Time, calls: int, payload: int = 30, answer: int = 90, used: int | None = None
) -> list[float]:
    """When so many calls that all want to go at once may go; each has ended when the next begins."""
    starts = []
    for _ in range(calls):
        aside = await rate.wait(payload, answer)
        starts.append(time.now)
        if used is not None:
            rate.settle(aside, used)
    return starts


async def test_requests_a_minute_are_evenly_spaced_and_the_lowest_of_several_specs_holds() -> None:
    time = Time()
    rate = Rate(time, time.sleep)
    assert await begun(rate, time, 5) == [0] * 5, "nothing is stated"
    rate.tighten(SpecEndpoint(requests_per_minute=60))
    rate.tighten(SpecEndpoint(requests_per_minute=30))
    rate.tighten(SpecEndpoint())
    assert await begun(rate, time, 4) == [0, 2, 4, 6]


async def test_tokens_a_minute_count_the_prompt_and_what_the_answer_really_had() -> None:
    """A hundred tokens are set aside for each call: 30 bytes are ten, ninety may come."""
    time = Time()
    rate = Rate(time, time.sleep)
    rate.tighten(SpecEndpoint(tokens_per_minute=600))  # ten a second
    assert await begun(rate, time, 3) == pytest.approx([0, 10, 20])
    time.now = 100
    assert await begun(rate, time, 3, used=20) == pytest.approx([100, 102, 104])


async def test_the_rate_is_one_for_all_specs_of_a_base_url_and_outlasts_a_client(tmp_path: Path) -> None:
    """A stage has a client of its own: the gold set's judge states no rate and stands where the supporter states one."""
    time, store, rates = Time(), CallStore(tmp_path / "calls.sqlite"), dict[str, Rate]()
    with Endpoint() as endpoint:
        stated = spec(endpoint.url, endpoint={"requests_per_minute": 6})
        other = spec(endpoint.url).model_copy(update={"name": "other"})
        for stage, models in enumerate([(other, stated), (other,)]):
            async with ChatClient(store, clock=time, sleep=time.sleep, rates=rates) as client:
                for model in models:
                    await client.check(model, ["my-model"])
                for number in range(3):
                    await client.ask(other, question(f"{stage} {number}"))
        assert time.now == pytest.approx(50), "six calls, ten seconds between them"
    store.close()


@pytest.mark.slow
async def test_what_was_begun_first_has_the_rate_first(tmp_path: Path) -> None:
    time, store, arrived = Time(), CallStore(tmp_path / "calls.sqlite"), list[str]()

    def behave(body: dict[str, Any], count: int) -> Answer:
        arrived.append(body["messages"][-1]["content"][0])
        return Answer("fine")

    async def sleep(seconds: float) -> None:
        while len(store) < len(arrived):  # noqa: ASYNC110 (time passes when all that was sent is answered)
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        time.now += seconds

    async def dialogue(client: ChatClient, model: ModelSpec, name: str) -> None:
        for turn in range(3):
            await client.ask(model, question(f"{name} {turn}", session=name))

    with Endpoint(behave) as endpoint:
        model = spec(endpoint.url, endpoint={"requests_per_minute": 60})
        async with ChatClient(store, clock=time, sleep=sleep, rates={}) as client:
            await asyncio.gather(*(dialogue(client, model, name) for name in "abcd"))
    assert arrived[0] == "a" and arrived.index("d") > max(place for place, name in enumerate(arrived) if name == "a")
    store.close()


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


A, B = ("http://a/v1", "m"), ("http://b/v1", "m")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_or_model_ends_a_run_at_once(status: int) -> None:
    threshold = Threshold()
    threshold.answered(A)
    threshold.rejected(A, Rejected(f"HTTP {status}", status))
    assert threshold.cause == f"HTTP {status} (set fail_on_error N to continue nevertheless)"


def test_a_model_that_has_answered_once_may_reject_any_number_of_calls() -> None:
    threshold = Threshold()
    threshold.answered(A)
    for _ in range(10 * FIRST_CALLS):
        threshold.rejected(A, Rejected("no", 400))
    for _ in range(FIRST_CALLS - 1):
        threshold.rejected(B, Rejected("no", 400))
    assert threshold.cause is None
    threshold.rejected(B, Rejected("no", 400))
    assert threshold.cause == "the first 20 calls were all rejected: no"


@pytest.mark.parametrize(
    ("limit", "total", "ends_at"), [(0.1, 100, 10), (0.25, 10, 3), (1, 100, 1), (7, 100, 7), (0.001, 10, 1)]
)
def test_the_number_or_share_of_dialogues_that_may_fail(limit: float, total: int, ends_at: int) -> None:
    """As Inspect AI counts: at the number, or at the share of all (a quarter of ten is reached by the third)."""
    threshold = Threshold(limit)
    for _ in range(3 * FIRST_CALLS):
        threshold.rejected(A, Rejected("no", 401))  # the number replaces the other rules
    for _ in range(ends_at):
        assert threshold.cause is None
        threshold.dialogue_failed(total)
    assert threshold.cause == f"{ends_at} of {total} dialogues failed (fail_on_error {limit:g})"
