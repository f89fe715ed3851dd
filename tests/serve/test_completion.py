"""What is read of a completion's body: the text whatever stands around it, and nothing that is none."""

import json
from typing import Any

import pytest

from serve.answers import sound
from serve.failures import Unreadable
from serve.reading import ErrorInAnswer, count_of, looks_like_reasoning, read_reply, split_reasoning, text_of, tokens_of
from tests.serve.test_client import spec


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
