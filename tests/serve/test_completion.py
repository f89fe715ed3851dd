"""What is read of a completion's body, whole or while it is written: the text whatever stands around it, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from serve.answers import sound
from serve.failures import Rejected, ServerLost, Unreadable
from serve.reading import ErrorInAnswer, count_of, looks_like_reasoning, read_reply, so_far, split_reasoning, text_of, tokens_of
from tests.answers import LASTING
from tests.endpoint import FAULTS, Answer, Endpoint, error
from tests.serve.test_client import ask, question, spec


def body(content: Any, usage: Any = None, **choice: Any) -> bytes:
    """A completion as Python's own writer makes it: NaN and half surrogate pairs are let through."""
    answered = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"} | choice
    return json.dumps({"choices": [answered], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "I hear "}, {"type": "text", "text": "you."}], "I hear you."),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "output_text", "text": "Yes."}, "!", 7, None], "Yes.!"),
        ([], ""),
        (None, ""),
        ("half a pair \ud83d, a whole \U0001f600", "half a pair \ufffd, a whole \U0001f600"),
    ],
)
def test_the_text_is_taken(content: Any, text: str) -> None:
    assert read_reply(spec(), body(content)).text == text


@pytest.mark.parametrize("content", [7, {"text": "x"}, True])
def test_what_is_no_text_is_none(content: Any) -> None:
    with pytest.raises(TypeError):
        text_of(content)
    with pytest.raises(Unreadable):
        read_reply(spec(), body(content))


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a": ' * 100_000, b"\xff{}", b"", b"7", b"NaN", b'{"choices": [NaN]}'])
def test_a_body_that_is_no_completion_is_unreadable(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        read_reply(spec(), raw)


@pytest.mark.parametrize(
    ("value", "count"),
    [(12, 12), ("12", 12), (12.0, 12), (-5, 0), (None, 0), ("many", 0), (True, 0), ([], 0), (10**30, 2**53), ("-3", 0)],
)
def test_odd_usage_does_not_cost_the_answer(value: Any, count: int) -> None:
    usage = {"prompt_tokens": value, "completion_tokens_details": {"reasoning_tokens": value}}
    reply = read_reply(spec(), body("hm", usage))
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens, reply.reasoning_tokens) == ("hm", count, 0, count)


@pytest.mark.parametrize(
    "usage", [None, [], "12", float("nan"), {"prompt_tokens": float("nan")}, {"prompt_tokens": float("inf")}]
)
def test_usage_of_another_shape_counts_nothing(usage: Any) -> None:
    assert count_of(usage, "prompt_tokens") == 0
    assert read_reply(spec(), body("hm", usage)).prompt_tokens == 0


@pytest.mark.parametrize(
    ("logprobs", "tokens"),
    [
        (None, None),
        ({}, None),
        ({"content": None}, None),
        ({"tokens": ["3"]}, None),  # the older API's: no figures that we read
        ("x", []),
        ({"content": "x"}, []),
        ({"content": [{"token": 3, "logprob": -1}]}, []),
        ({"content": [{"token": "3", "logprob": -1}]}, [("3", {"3": -1.0})]),
        ({"content": [{"token": "3", "logprob": "-1"}]}, [("3", {})]),
        ({"content": [{"token": "3", "logprob": -1, "top_logprobs": "x"}]}, [("3", {})]),
        ({"content": [{"token": "3", "logprob": float("nan")}]}, [("3", {})]),
        ({"content": [{"token": "3", "logprob": -0.5, "top_logprobs": [{"token": "4", "logprob": float("-inf")}]}]},
         [("3", {"4": -9999.0, "3": -0.5})]),
    ],
)  # fmt: skip
def test_probabilities_never_cost_the_text(logprobs: Any, tokens: Any) -> None:
    assert read_reply(spec(), body("3", logprobs=logprobs)).tokens == tokens
    if logprobs is None:
        assert tokens_of(logprobs) is None


@pytest.mark.parametrize(
    ("alternatives", "expected"),
    [
        ({"3": 0.0}, True),
        ({"3": -0.69, "4": -0.69}, True),  # rounded: together 1.003
        ({"3": -40.0, "The": -0.001}, True),  # forced by a constraint
        ({"3": 0.0, "4": 0.0}, False),
        ({"4": -0.1}, False),
        ({"3": 1000.0}, False),
        ({"3": float("nan")}, False),
        ({"3": -9999.0, "4": -9999.0}, False),
        ({}, False),
    ],
)
def test_which_figures_can_be_probabilities(alternatives: dict[str, float], expected: bool) -> None:
    assert sound("3", alternatives) is expected


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 502, "message": "upstream closed"}, 502),
        ({"code": "429"}, 429),
        ({"code": "server_error", "status": 503}, 503),
        ({"message": "overloaded"}, 500),
        ("overloaded", 500),
    ],
)
def test_an_error_beside_text_is_that_error(error: Any, status: int) -> None:
    beside = json.loads(body("I am so", error=error))
    for raw in (beside, {"choices": None, "error": error}, beside | {"error": error}, [{"error": error}]):
        with pytest.raises(ErrorInAnswer) as found:
            read_reply(spec(), json.dumps(raw).encode())
        assert found.value.status == status


@pytest.mark.parametrize(
    "choice",
    [
        {"finish_reason": "content_filter: PROHIBITED_CONTENT", "message": None},
        {"finish_reason": "SAFETY"},
        {"finish_reason": "stop", "native_finish_reason": "PROHIBITED_CONTENT", "message": {"content": ""}},
        {"finish_reason": None, "message": {"content": None}, "content_filter_results": {"violence": {"filtered": True}}},
    ],
)
def test_a_policy_without_a_word_of_the_model_is_a_refusal(choice: dict[str, Any]) -> None:
    reply = read_reply(spec(), json.dumps({"choices": [choice]}).encode())
    assert (reply.refused, reply.finish_reason, reply.text) == (True, "content_filter", "")
    said = choice | {"finish_reason": "stop", "message": {"content": "I am here, in safety"}}
    assert not read_reply(spec(), json.dumps({"choices": [said]}).encode()).refused, "words were said"


def test_a_body_without_a_choice_or_a_reason_is_no_answer() -> None:
    bodies: list[dict[str, Any]] = [{"choices": []}, {"choices": None, "usage": {}}]
    for raw in (*bodies, {"choices": [{"finish_reason": "stop", "message": None}]}):
        with pytest.raises(Unreadable):
            read_reply(spec(), json.dumps(raw).encode())


@pytest.mark.parametrize(
    ("message", "choice", "usage", "needs"),
    [
        ({}, {"finish_reason": "length"}, {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 200}, True),
        ({"content": None}, {"finish_reason": "length"}, None, True),
        ({"reasoning": "Let me"}, {"finish_reason": "length"}, None, True),
        ({"reasoning": "Let me"}, {"finish_reason": "stop"}, None, True),
        ({"content": "I hear", "reasoning": "Let me"}, {"finish_reason": "length"}, None, True),
        ({"content": "I hear"}, {"finish_reason": "length"}, None, False),
        ({"content": "I hear you.", "reasoning": "Let me"}, {"finish_reason": "stop"}, None, False),
        ({"content": ""}, {"finish_reason": "stop"}, None, False),
    ],
)
def test_a_reply_needs_room_where_its_reasoning_may_have_cost_the_answer(
    message: dict[str, Any], choice: dict[str, Any], usage: Any, needs: bool
) -> None:
    raw = {"choices": [{"message": message} | choice], "usage": usage}
    assert read_reply(spec(), json.dumps(raw).encode()).needs_room is needs


def test_tokens_that_only_the_total_holds_are_reasoning() -> None:
    usage = {"prompt_tokens": 310, "completion_tokens": 7, "total_tokens": 822}
    reply = read_reply(spec(), body("I hear you.", usage))
    assert (reply.completion_tokens, reply.reasoning_tokens) == (512, 505)


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        ("<plan>ask</plan>Hello", "<plan>"),
        ("<|inner|>ask", "<|inner|>"),
        ("[PLAN]ask[/PLAN]Hello", "[PLAN]"),
        ("**Thinking Process:**\n1. ask", "**Thinking Process:"),
        ("<p>Hello", None),
        ("[sighs] Hello", None),
        ("Thinking of you helps", None),
        ("<3 you", None),
    ],
)
def test_what_may_be_reasoning_in_an_unknown_shape_is_named(text: str, begun: str | None) -> None:
    answer, reasoning = split_reasoning(spec(), text)
    assert (looks_like_reasoning(answer), reasoning) == (begun, "")


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
