"""What is found out of a server, against endpoints that refuse, ignore and reason as the real ones do."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from core.endpoints import Endpoint as SpecEndpoint
from core.prompts import load_pack
from core.records import Dialogue, Judgement, Message, Turn
from core.rubrics import load_rubric
from core.specs import ModelSpec, Sampling
from evalsuite.judge.judge import Judge
from serve.client import ChatClient
from serve.dialect import PROBED, PROBES
from serve.failures import FIRST_CALLS, Rejected
from serve.questions import Question
from serve.store import CallStore
from tests.dialects import Dialect as ServerDialect
from tests.dialects import DialectName, Speaker
from tests.endpoint import Answer, Endpoint, echo, error

TURNS = (Turn(role="seeker", text="I cannot sleep."), Turn(role="supporter", text="Since when?"))


def dialogue(number: int) -> Dialogue:
    return Dialogue(id=f"d{number}", language="en", framework="esc_eval", source="test", turns=TURNS)


def model(url: str, **changes: Any) -> ModelSpec:
    endpoint = SpecEndpoint(base_url=url, **changes.pop("wishes", {}))
    return ModelSpec(name="my-model", about="", roles=("judge",), languages=("en",), endpoint=endpoint, **changes)


async def judged(
    folder: Path, endpoint: Endpoint, many: int = 1, method: Any = "joint", of: str = "esc_eval", **changes: Any
) -> tuple[list[Judgement], list[str]]:
    """Verdicts on so many dialogues, asked at once by the rubric and prompts `of` a framework, and what the console said."""
    store, said = CallStore(folder / "calls.sqlite"), list[str]()
    async with ChatClient(store, backoff_s=0.001, attempts=2, say=said.append) as client:
        spec = model(endpoint.url, **changes)
        await client.check(spec, [spec.served_name()])
        judge = Judge(client, spec, load_rubric(of), load_pack(of), method)
        judgements = await asyncio.gather(*(judge.score(dialogue(number)) for number in range(many)))
    store.close()
    return [judgement for verdicts in judgements for judgement in verdicts], said


def probes(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [body for body in requests if "hello" in body["messages"][-1]["content"]]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["joint", "per_dimension"])
async def test_openai_holds_a_judge_by_a_json_schema_found_out_once(tmp_path: Path, method: str) -> None:
    dialect = ServerDialect("openai")
    with Endpoint(Speaker(dialect), dialect=dialect) as endpoint:
        judgements, said = await judged(tmp_path, endpoint, many=8, method=method)
        assert len(probes(endpoint.requests)) == 1 and len(endpoint.refused) == 1, "one of two ways is refused, one is taken"
        asked = len(endpoint.requests)
        again, _ = await judged(tmp_path, endpoint, many=8, method=method)
        assert len(endpoint.requests) == asked and again == judgements
    assert len(judgements) == 8 * 7 and all(judgement.value is not None for judgement in judgements)
    assert all("response_format" in body for body in endpoint.requests)
    assert said == ["model my-model: answers are constrained by response_format with a JSON schema"]


async def test_vllm_is_known_by_its_list_and_asked_no_question_of_its_own(tmp_path: Path) -> None:
    dialect = ServerDialect("vllm")
    with Endpoint(Speaker(dialect), dialect=dialect) as endpoint:
        judgements, _ = await judged(tmp_path, endpoint, many=3)
    assert len(endpoint.requests) == 3 and not endpoint.refused
    assert all(body["structured_outputs"]["regex"] == "[0-4]{7}" and body["max_tokens"] == 8 for body in endpoint.requests)
    assert all(judgement.value is not None for judgement in judgements)


async def test_a_trial_is_kept_before_anything_is_answered(tmp_path: Path) -> None:
    """A run that is killed between the trial and the first verdict does not pay for the trial again."""
    dialect = ServerDialect("openai")
    speaker = Speaker(dialect)

    def behave(body: dict[str, Any], count: int) -> Answer:
        return speaker(body, count) if probes([body]) else Answer(status=500)

    with Endpoint(behave, dialect=dialect) as endpoint:
        lost, _ = await judged(tmp_path, endpoint)
        assert all(judgement.value is None for judgement in lost)
        assert ["response_format" in body for body in probes(endpoint.requests)] == [True, True], "a trial, and why a 500"
        endpoint.behave = speaker
        judgements, said = await judged(tmp_path, endpoint)
        assert all(judgement.value is not None for judgement in judgements)
        assert len(probes(endpoint.requests)) == 2 and len(endpoint.refused) == 1 and "JSON schema" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openai", "vllm", "plain"])
@pytest.mark.parametrize(("method", "of"), [("bands", "feel"), ("json", "emoharbor")])
async def test_bands_and_json_are_read_from_every_kind_of_server(
    tmp_path: Path, name: DialectName, method: str, of: str
) -> None:
    """vLLM is held to a pattern, OpenAI to a schema where there is one (bands have none), a plain server is asked in words."""
    dialect = ServerDialect(name)
    with Endpoint(Speaker(dialect), dialect=dialect) as endpoint:
        judgements, _ = await judged(tmp_path, endpoint, many=3, method=method, of=of)
    asked = [body for body in endpoint.requests if body not in probes(endpoint.requests)]
    assert all(judgement.value is not None for judgement in judgements) and len({j.value for j in judgements}) > 1
    assert all(("regex" in body.get("structured_outputs", {})) == (name == "vllm") for body in asked)
    assert all(("response_format" in body) == (name == "openai" and method == "json") for body in asked)


@pytest.mark.slow
async def test_calls_wait_while_the_cause_of_another_s_refusal_is_found(tmp_path: Path) -> None:
    """Each would be refused in the old way as often as it may be tried, and the model given up."""
    dialect, looking = ServerDialect("vllm"), threading.Event()
    speaker = Speaker(dialect)

    def behave(body: dict[str, Any], count: int) -> Answer:
        if body.keys() & {"structured_outputs", "response_format"}:
            if probes([body]):
                looking.set()
            return Answer(status=500)
        return Answer("hello", delay=0.2) if probes([body]) else speaker(body, count)

    with Endpoint(behave, dialect=dialect) as endpoint:
        async with ChatClient(CallStore(tmp_path / "calls.sqlite"), backoff_s=0.01) as client:
            spec = model(endpoint.url)
            await client.check(spec, [spec.served_name()])
            judge = Judge(client, spec, load_rubric("esc_eval"), load_pack("esc_eval"), "joint")

            async def later(number: int) -> list[Judgement]:
                await asyncio.to_thread(looking.wait)
                return await judge.score(dialogue(number))

            verdicts = await asyncio.gather(judge.score(dialogue(0)), *map(later, range(1, 9)))
    assert all(verdict.value is not None for judgements in verdicts for verdict in judgements)


@pytest.mark.parametrize(
    "dialect", [ServerDialect("plain"), ServerDialect("openai", json_schema=False)], ids=["ignores", "refuses"]
)
async def test_a_server_that_bears_no_constraint_is_asked_in_words(tmp_path: Path, dialect: ServerDialect) -> None:
    with Endpoint(Speaker(dialect), dialect=dialect) as endpoint:
        judgements, said = await judged(tmp_path, endpoint, many=4)
    questions = [body for body in endpoint.requests if body not in probes(endpoint.requests)]
    assert len(questions) == 4 and all(not {"response_format", "structured_outputs"} & body.keys() for body in questions)
    assert all(judgement.value is not None for judgement in judgements)
    assert "cannot be constrained" in said[0]


async def test_what_a_reasoning_model_refuses_is_left_out_and_it_has_room_to_reason(tmp_path: Path) -> None:
    dialect = ServerDialect("openai", reasoning_model=True)
    with Endpoint(Speaker(dialect, reasoning=900), dialect=dialect) as endpoint:
        judgements, said = await judged(tmp_path, endpoint, many=6, sampling=Sampling(temperature=0.0, max_tokens=512))
        asked = len(endpoint.requests)
        again, _ = await judged(tmp_path, endpoint, many=6, sampling=Sampling(temperature=0.0, max_tokens=512))
        assert len(endpoint.requests) == asked and again == judgements
    assert all(judgement.value is not None for judgement in judgements)
    last = endpoint.requests[-1]
    assert last["max_completion_tokens"] == 512 + 4096
    assert not {"max_tokens", "temperature", "logprobs", "structured_outputs"} & last.keys()
    assert any("reasons: it gets 4,096 more tokens" in line for line in said)
    assert any("no token probabilities; temperature is the server's default" in line for line in said)


async def test_the_room_for_reasoning_is_the_spec_s(tmp_path: Path) -> None:
    dialect = ServerDialect("vllm")
    with Endpoint(Speaker(dialect, reasoning=900, shown="field"), dialect=dialect) as endpoint:
        sampling = Sampling(max_tokens=64, reasoning_tokens=0)
        judgements, _ = await judged(tmp_path, endpoint, sampling=sampling)
    assert len(endpoint.requests) == 1 and all(judgement.value is None for judgement in judgements)


async def test_a_wish_of_the_spec_is_not_overruled(tmp_path: Path) -> None:
    dialect = ServerDialect("openai")
    with Endpoint(Speaker(dialect), dialect=dialect) as endpoint:
        judgements, _ = await judged(tmp_path, endpoint, wishes={"constraint": "structured_outputs"})
    assert not endpoint.requests and {judgement.condition["failure"] for judgement in judgements} == {"rejected"}


async def test_a_question_that_is_refused_for_itself_changes_nothing(tmp_path: Path) -> None:
    """A small question shows that the fields are taken, once; nothing is left out for what one dialogue holds."""

    def behave(body: dict[str, Any], count: int) -> Answer:
        return echo(body, count) if probes([body]) else error(400, "Unrecognized request argument supplied: top_k")

    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint(behave) as endpoint:
        spec = model(endpoint.url)
        async with ChatClient(store) as client:
            for number in range(3):
                question = Question([{"role": "user", "content": "x"}], {"n": number}, Sampling(), "my-model", "seeker")
                with pytest.raises(Rejected, match="top_k"):
                    await client.ask(spec, question)
    store.close()
    assert len(probes(endpoint.requests)) == 1 and len(endpoint.requests) == 4
    assert all("temperature" in body for body in endpoint.requests)


async def test_a_choice_comes_without_the_object_around_it(tmp_path: Path) -> None:
    dialect, store = ServerDialect("openai"), CallStore(tmp_path / "calls.sqlite")
    with Endpoint(Speaker(dialect), dialect=dialect) as endpoint:
        async with ChatClient(store) as client:
            messages: list[Message] = [{"role": "user", "content": "A or B?"}]
            question = Question(messages, {"n": 1}, Sampling(), "my-model", "judge", choices=("A", "B"))
            reply = await client.ask(model(endpoint.url), question)
    store.close()
    assert reply.text in ("A", "B") and not set(PROBED) & {reply.text}


async def test_refusals_of_many_first_calls_at_once_end_no_run(tmp_path: Path) -> None:
    dialect, store = ServerDialect("openai", reasoning_model=True), CallStore(tmp_path / "calls.sqlite")
    with Endpoint(Speaker(dialect), dialect=dialect) as endpoint:
        spec = model(endpoint.url, sampling=Sampling(temperature=0.7, top_p=0.9))
        async with ChatClient(store, concurrency=32) as client:
            said: list[Message] = [{"role": "user", "content": "hello"}]
            questions = [Question(said, {"dialogue": f"d{n}"}, spec.sampling, "my-model", "seeker") for n in range(32)]
            replies = await asyncio.gather(*(client.ask(spec, question) for question in questions))
    store.close()
    assert len(endpoint.refused) > FIRST_CALLS and client.threshold.cause is None and not client.failures
    assert all(reply.text for reply in replies) and len(endpoint.requests) == 32


REFUSALS = [  # what refuses, in which words, what becomes of the request
    ("top_logprobs", "top_logprobs must be less than or equal to 5", {"top_logprobs": 5}),
    ("top_logprobs", "Range of top_logprobs should be [0, 8]", {"top_logprobs": 8}),
    ("top_logprobs", "Requested sample logprobs of 20, which is greater than max allowed: 5", {"top_logprobs": 5}),
    ("logprobs", "logprobs is not supported with this model", {"logprobs": None, "top_logprobs": None}),
    ("logprobs", "nope", {"logprobs": None, "top_logprobs": None}),
    ("temperature", "nope", {"temperature": None, "logprobs": True, "top_logprobs": 20, "seed": 7}),
    ("seed", "nope", {"seed": None, "temperature": 0.5, "logprobs": True}),
    ("max_tokens", "nope", {"max_completion_tokens": 512, "temperature": 0.5, "logprobs": True}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("refused", "told", "left"), REFUSALS)
async def test_what_a_server_refuses_is_lowered_or_left_out_whatever_it_says(
    tmp_path: Path, refused: str, told: str, left: dict[str, Any]
) -> None:
    """And nothing else is: what a diagnosis left out on its way is given back."""
    most = 8 if "8" in told else 5 if "5" in told else 0

    def behave(body: dict[str, Any], count: int) -> Answer:
        return error(400, told) if body.get(refused, 0) > most else Answer("fine")

    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint(behave) as endpoint:
        spec = model(endpoint.url).model_copy(update={"name": "logprobs-temperature"})
        sampling = Sampling(temperature=0.5, seed=1)
        for number in (1, 2):
            question = Question([{"role": "user", "content": "x"}], {"n": number}, sampling, "my-model", "judge", logprobs=True)
            async with ChatClient(store) as client:
                assert (await client.ask(spec, question)).text == "fine"
        asked = len(endpoint.requests)
        async with ChatClient(store) as client:
            await client.ask(spec, question)
    store.close()
    last = endpoint.requests[-1]
    assert {name: last.get(name) for name in left if name != "seed"} == {name: left[name] for name in left if name != "seed"}
    assert ("seed" in last) == (left.get("seed", 7) is not None)
    assert len(endpoint.requests) == asked <= 2 + PROBES and endpoint.requests[-1]["messages"][0]["content"] == "x"


async def test_a_server_that_refuses_everything_is_asked_no_more_than_ten_times(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint(
        lambda body, count: error(400, "no", metadata={"raw": '{"error": {"message": "the vendor says why"}}'})
    ) as endpoint:
        async with ChatClient(store) as client:
            for number in range(3):
                question = Question([{"role": "user", "content": "x"}], {"n": number}, Sampling(seed=1), "my-model", "seeker")
                with pytest.raises(Rejected, match="the vendor says why; a small question was refused too: as it was, no seed"):
                    await client.ask(model(endpoint.url), question)
    store.close()
    assert len(endpoint.requests) <= 3 + PROBES


async def test_a_judge_whose_schema_is_refused_is_asked_in_words(tmp_path: Path) -> None:
    """Some take an enumeration of strings, which the trial has, and none of numbers."""
    speaker = Speaker(ServerDialect("openai"))

    def behave(body: dict[str, Any], count: int) -> Answer:
        if '"type":"integer"' in orjson.dumps(body).decode():
            return error(
                400, "Invalid value at 'generation_config.response_schema.properties[0].value.enum[0]' (TYPE_STRING), 0"
            )
        return speaker(body, count)

    with Endpoint(behave, dialect=ServerDialect("openai")) as endpoint:
        judgements, said = await judged(tmp_path, endpoint, many=3)
        asked = len(endpoint.requests)
        again, _ = await judged(tmp_path, endpoint, many=3)
        assert len(endpoint.requests) == asked and again == judgements
    assert all(judgement.value is not None for judgement in judgements)
    assert said == ["model my-model: answers cannot be constrained: the prompt describes their form, and they are parsed"]
