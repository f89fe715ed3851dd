"""What is read of a completion's body: the text whatever stands around it, and nothing that is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve.answers import Unreadable, count_of, read_reply, sound, tokens_of
from serve.reasoning import text_of
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
