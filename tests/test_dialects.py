"""The scripted endpoint's dialects refuse what the real servers refuse: what is tested against them stands on this."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import orjson
import pytest

from tests.dialects import Dialect, Speaker
from tests.endpoint import Endpoint

_ASKED = {"model": "my-model", "messages": [{"role": "user", "content": "Rate from 0 to 4, in 7 digits: …"}]}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 4}}, "required": ["a"]}


def fetched(url: str, body: dict[str, Any] | None = None, key: str | None = None) -> tuple[int, Any]:
    """Status and JSON of a GET, or of a POST with a body."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, orjson.dumps(body) if body else None, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, orjson.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, orjson.loads(error.read())


def asked(dialect: Dialect, fields: dict[str, Any], reasoning: int = 0, key: str | None = None) -> tuple[int, Any]:
    with Endpoint(Speaker(dialect, reasoning), dialect=dialect, key=key) as endpoint:
        return fetched(f"{endpoint.url}/chat/completions", _ASKED | fields)


def said(dialect: Dialect, fields: dict[str, Any], reasoning: int = 0) -> str:
    text: str = asked(dialect, fields, reasoning)[1]["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize(
    ("fields", "reasoning_model", "words"),
    [
        ({"structured_outputs": {"choice": ["1"]}}, False, "Unrecognized request argument supplied: structured_outputs"),
        ({"top_logprobs": 21, "logprobs": True}, False, "top_logprobs"),
        ({"max_tokens": 5}, True, "Use 'max_completion_tokens' instead"),
        ({"temperature": 0.0}, True, "Only the default (1) value is supported"),
        ({"response_format": {"type": "json_object"}}, False, "must contain the word 'json'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": _SCHEMA}}},
            False,
            "'additionalProperties' is required",
        ),
        ({"model": "other"}, False, "does not exist"),
    ],
)
def test_openai_refuses_in_its_own_words(fields: dict[str, Any], reasoning_model: bool, words: str) -> None:
    status, answer = asked(Dialect("openai", reasoning_model), fields)
    assert status in (400, 404) and words in answer["error"]["message"]


def test_a_key_that_is_missing_or_wrong_is_refused_everywhere() -> None:
    assert asked(Dialect(), {}, key="secret")[0] == 401
    with Endpoint(dialect=Dialect("vllm"), key="secret") as endpoint:
        assert fetched(f"{endpoint.url}/models")[0] == 401
        entry = fetched(f"{endpoint.url}/models", key="secret")[1]["data"][0]
    assert entry["id"] == "my-model" and entry["max_model_len"] == 32_768 and endpoint.refused == []


def test_each_dialect_holds_to_the_constraint_that_it_knows_and_a_plain_one_to_none() -> None:
    closed = _SCHEMA | {"additionalProperties": False}
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": closed}}}
    choice = {"structured_outputs": {"choice": ["x"]}}
    assert re.fullmatch(r'\{"a":[0-4]\}', said(Dialect("openai"), schema))
    assert said(Dialect("vllm"), choice) == "x"
    for fields in (schema, choice):
        assert re.fullmatch("[0-4]{7}", said(Dialect("plain"), fields))


def test_a_limit_below_the_reasoning_leaves_no_text() -> None:
    answer = asked(Dialect("openai", True), {"max_completion_tokens": 200}, 300)[1]
    assert answer["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": ""},
        "finish_reason": "length",
    }
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 200}
    assert len(said(Dialect(), {"max_completion_tokens": 400}, 300)) == 7


@pytest.mark.slow
def test_it_can_be_started_as_a_program() -> None:
    command = [sys.executable, "-m", "tests.endpoint", "--dialect", "vllm", "--model", "a", "--model", "b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        listed = fetched(f"{process.stdout.readline().strip()}/models")[1]["data"]
        process.terminate()
    assert [entry["id"] for entry in listed] == ["a", "b"]
