"""Any response at all, over a real connection: status, headers, body, encoding, timing. A call ends in a reply or in a named
failure, in time, and a judge's score is one that the answer holds."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.prompts import load_pack
from core.records import LOST, Dialogue, Turn
from core.rubrics import load_rubric
from evalsuite.judge.judge import Judge
from serve.answers import Reply
from serve.client import ChatClient
from serve.failures import Unanswered
from serve.store import CallStore
from tests.endpoint import FAULTS, LASTING, Answer, Endpoint
from tests.serve.test_client import question, spec

RUBRIC = load_rubric("esc_eval")
DIALOGUE = Dialogue(
    id="d \u2028 é",
    language="en",
    source="test",
    turns=(Turn(role="seeker", text="I lost my job."), Turn(role="supporter", text="I am sorry.")),
)
CALL_S, TRIES = 0.1, 2  # a try, tries a call
LIMIT_S = 60.0  # far beyond both: a call that takes longer hangs

_texts = st.text(max_size=40) | st.sampled_from(["3333333", "3", "0 4 4 3 2 1 0", "I hear you.", "<think>3", "policy of 2023"])
_completions = st.builds(
    lambda text, finish, refusal, usage: json.dumps(
        {"choices": [{"message": {"content": text, "refusal": refusal}, "finish_reason": finish}], "usage": usage}
    ).encode(),
    _texts | st.none() | st.integers() | st.lists(_texts, max_size=2),
    st.sampled_from(["stop", "length", "content_filter", "abort", "error", "", None, 7]),
    st.sampled_from([None, "", "I cannot."]),
    st.none() | st.just("many") | st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), st.integers()),
)
_errors = st.builds(
    lambda message, code: json.dumps({"error": {"message": message, "code": code}}).encode(),
    _texts | st.sampled_from(["maximum context length", "content policy"]),
    st.sampled_from([None, 400, "context_length_exceeded", "content_filter"]),
)
_plain = _completions | _completions | _errors | st.binary(max_size=60) | st.sampled_from([b"", b"null", b"[]", b"{}", b"[[[["])
_encodings: dict[str, Any] = {"": bytes, "identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress, "br": bytes}


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """A response of any kind; half of them have status 200."""
    status = draw(st.just(200) | st.sampled_from([201, 204, 301, 304, 400, 401, 404, 408, 413, 418, 422, 429, 500, 503, 599]))
    encoding = draw(st.just("") | st.sampled_from([*_encodings, "made-up"]))
    encode = _encodings.get(draw(st.just(encoding) | st.sampled_from(list(_encodings))), bytes)  # mostly what the header says
    headers = {"Content-Encoding": encoding} if encoding else {}
    headers |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "Retry-After": st.sampled_from(["0", "-1", "nan", "Wed, 21 Oct 2099 07:28:00 GMT", "soon"]),
                "Content-Type": st.sampled_from(["text/html", "application/json; charset=klingon", "image/png"]),
                "Location": st.sampled_from(["/v1/chat/completions", "http://u:p@127.0.0.1:1/", "::::"]),
            },
        )
    )
    end: dict[str, Any] = draw(st.sampled_from([{}, {}, {}, {}, {}, {"drop": True}, {"reset": True}, {"delay": 5 * CALL_S}]))
    return Answer(status=status, headers=headers, body=encode(draw(_plain)), **end)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as started:
        yield started


KNOWN = [a for of in (FAULTS, *LASTING.values()) for a in of.values() if not (a.restart or a.delay or a.drip)]


@pytest.mark.slow
@given(first=answers() | st.sampled_from(KNOWN), then=answers() | st.sampled_from(KNOWN))
def test_a_call_ends_in_a_reply_or_a_named_failure(
    endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory, first: Answer, then: Answer
) -> None:
    store = CallStore(tmp_path_factory.mktemp("fuzz") / "calls.sqlite")

    async def call() -> None:
        async with ChatClient(store, attempts=TRIES, timeout_s=CALL_S, give_up_s=1, backoff_s=0.001) as client:
            model = spec(endpoint.url)
            replies: list[Reply | Unanswered] = []
            for text in ("one", "two"):
                try:
                    replies.append(await asyncio.wait_for(client.ask(model, question(text)), LIMIT_S))
                except Unanswered as error:
                    replies.append(error)
                    assert str(error).startswith("model my-model at ") and "\n" not in str(error)
            for reply in replies:
                if isinstance(reply, Reply) and reply.text:
                    assert reply.finish_reason in ("stop", "length", "content_filter", None)
            judge = Judge(client, model, RUBRIC, load_pack("esc_eval"), "joint")
            for verdict in await asyncio.wait_for(judge.score(DIALOGUE), LIMIT_S):
                if verdict.value is not None:
                    assert verdict.raw.replace(" ", "").replace(",", "").isdigit() and str(int(verdict.value)) in verdict.raw
                else:
                    assert verdict.lost == (verdict.condition.get("failure") in LOST)

    script = iter([first, then])
    endpoint.behave = lambda body, count: next(script, then)
    try:
        asyncio.run(call())
    finally:
        store.close()


@pytest.mark.slow
def test_the_fuzz_reaches_replies_and_failures_of_every_kind(endpoint: Endpoint, tmp_path: Path) -> None:
    """What the test above is worth: its responses give replies, refusals, overflows, rejections and losses."""
    store = CallStore(tmp_path / "calls.sqlite")
    ends = set()

    async def call(answer: Answer, number: int) -> str:
        endpoint.behave = lambda body, count: answer
        async with ChatClient(store, attempts=1, timeout_s=60, backoff_s=0.001) as client:
            try:
                reply = await client.ask(spec(endpoint.url), question(str(number)))
            except Unanswered as error:
                return error.outcome
            return reply.finish_reason or "none"

    for number, answer in enumerate([Answer("hello"), *(one for of in LASTING.values() for one in of.values())]):
        ends.add(asyncio.run(call(answer, number)))
    store.close()
    assert ends >= {"stop", "content_filter", "context_overflow", "rejected", "infrastructure"}
