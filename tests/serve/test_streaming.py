"""Replies that are heard while they are written, by the client that asks everything else: tries, store, errors, refusals."""

from pathlib import Path
from typing import Any

import pytest

from serve.failures import Rejected, ServerLost
from serve.reading import so_far
from tests.answers import LASTING
from tests.endpoint import FAULTS, Answer, Endpoint, error
from tests.serve.test_client import ask, question, spec

TEXT = "I hear that you lost your cat."


@pytest.mark.slow
async def test_a_reply_is_heard_as_it_is_written_and_is_the_reply_that_one_piece_would_be(tmp_path: Path) -> None:
    heard: list[str] = []
    with Endpoint(lambda body, count: Answer(TEXT, drip=0.2 if "stream" in body else 0)) as endpoint:
        (streamed,) = await ask(tmp_path, endpoint, question(hears=heard.append))
        (stored,) = await ask(tmp_path, endpoint, question(hears=heard.append), offline=True)
        (whole,) = await ask(tmp_path / "other", endpoint, question())
        first, second = endpoint.requests
    assert streamed == stored == whole and whole.completion_tokens == 7, "one key, one reply, the same counts"
    assert first.pop("stream") and first.pop("stream_options") == {"include_usage": True} and first == second
    assert heard[-1] == TEXT and len(heard) > 1 and all(TEXT.startswith(text) for text in heard)


@pytest.mark.parametrize("first", [Answer(TEXT, cut=True), Answer(TEXT, drop=True), FAULTS["503"], FAULTS["broken off"]])
async def test_a_stream_that_breaks_off_is_tried_again_and_heard_from_its_beginning(tmp_path: Path, first: Answer) -> None:
    heard: list[str] = []
    with Endpoint(lambda body, count: first if count == 1 else Answer("No, " + TEXT)) as endpoint:
        (reply,) = await ask(tmp_path, endpoint, question(hears=heard.append))
    assert reply.text == heard[-1] == "No, " + TEXT


async def test_a_stream_that_always_breaks_off_is_no_reply_and_is_not_stored(tmp_path: Path) -> None:
    heard: list[str] = []
    with Endpoint(lambda body, count: Answer(TEXT, cut=True)) as endpoint:
        for _ in range(2):
            with pytest.raises(ServerLost, match="gave up after 3 attempts"):
                await ask(tmp_path, endpoint, question(hears=heard.append), attempts=3)
        assert len(endpoint.requests) == 6 and heard and TEXT not in heard


async def test_an_error_in_the_middle_is_the_error_that_it_is(tmp_path: Path) -> None:
    begun = b'data: {"choices": [{"delta": {"content": "I hear"}}]}\n\n'

    def ends(event: bytes) -> Any:
        headers = {"Content-Type": "text/event-stream"}
        return lambda body, count: Answer(body=begun + b"data: " + event + b"\n\n", headers=headers)

    heard: list[str] = []
    with Endpoint(ends(b'{"error": {"code": "content_filter", "message": "filtered"}}')) as endpoint:
        (reply,) = await ask(tmp_path, endpoint, question(hears=heard.append))
    assert reply.refused and not reply.text
    in_the_choice = b'{"error": null, "choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 502}}]}'
    ends_early = b'{"choices": [{"delta": {"content": "that"}}]}'
    for event in (b'{"error": {"message": "overloaded"}}', in_the_choice, b"{not JSON", b"[DONE", ends_early):
        with Endpoint(ends(event)) as endpoint, pytest.raises(ServerLost):
            await ask(tmp_path / str(len(event)), endpoint, question(hears=heard.append), attempts=2)


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_does_not_stream_is_asked_for_one_piece(tmp_path: Path, status: int) -> None:
    def behave(body: dict[str, Any], count: int) -> Answer:
        return error(status, "Extra inputs are not permitted: stream_options") if "stream" in body else Answer(TEXT)

    heard: list[str] = []
    with Endpoint(behave) as endpoint:
        (reply,) = await ask(tmp_path, endpoint, question(hears=heard.append))
    assert reply.text == TEXT and not heard


async def test_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    model = {"endpoint": {"max_response_mb": 1}}
    with Endpoint(lambda body, count: Answer("x" * 2**20)) as endpoint, pytest.raises(Rejected, match="more than 1 MB"):
        await ask(tmp_path, endpoint, question(hears=lambda text: None), model=spec(endpoint.url, **model))


@pytest.mark.parametrize("tags", ["<think> </think>", "[THINK] [/THINK]", "◁think▷ ◁/think▷", "analysisI assistantfinal"])
async def test_reasoning_is_not_heard(tmp_path: Path, tags: str) -> None:
    opening, closing = tags.split()
    heard: list[str] = []
    answer = Answer(f"{opening} Is it far?{closing} {TEXT}", message={"reasoning": "Hm.", "thinking": None})
    with Endpoint(lambda body, count: answer) as endpoint:
        (reply,) = await ask(tmp_path, endpoint, question(hears=heard.append))
    assert reply.text == heard[-1] == TEXT and reply.reasoning_characters >= len("Is it far?Hm.")
    assert all(TEXT.startswith(text) for text in heard)


def test_the_beginning_of_a_tag_or_a_key_is_held_back() -> None:
    model = spec()
    assert so_far(model, "Hello <thi", None) == "Hello " and so_far(model, "1 < 2", None) == "1 < 2"
    assert so_far(model, "It is sk-secret-k", "sk-secret-key-123") == "It is "
    assert so_far(model.model_copy(update={"think_in_prompt": True}), "Let me see", None) == ""


async def test_what_ignores_the_wish_or_refuses_the_question_is_read_as_ever(tmp_path: Path) -> None:
    whole = Answer(body=b'{"choices": [{"message": {"content": "Whole."}, "finish_reason": "stop"}]}')
    with Endpoint(lambda body, count: whole) as endpoint:
        (reply,) = await ask(tmp_path, endpoint, question(hears=print))
    assert reply.text == "Whole."
    with Endpoint(lambda body, count: LASTING["rejected"]["418"]) as endpoint, pytest.raises(Rejected, match="stout"):
        await ask(tmp_path / "other", endpoint, question(hears=print))
