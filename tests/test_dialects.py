"""The scripted endpoint's dialects refuse what the real servers refuse: what is tested against them stands on this."""

import re
import urllib.error
import urllib.request
from typing import Any

import orjson
import pytest

from tests.dialects import Dialect, Speaker
from tests.endpoint import Endpoint

_REQUEST = {"model": "my-model", "messages": [{"role": "user", "content": "Rate from 0 to 4, in 7 digits: …"}]}
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


def replied(dialect: Dialect, fields: dict[str, Any], reasoning: int = 0, key: str | None = None) -> tuple[int, Any]:
    with Endpoint(Speaker(dialect, reasoning), dialect=dialect, key=key) as endpoint:
        return fetched(f"{endpoint.url}/chat/completions", _REQUEST | fields)


def text_of(dialect: Dialect, fields: dict[str, Any], reasoning: int = 0) -> str:
    text: str = replied(dialect, fields, reasoning)[1]["choices"][0]["message"]["content"]
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
    status, answer = replied(Dialect("openai", reasoning_model), fields)
    assert status in (400, 404) and words in answer["error"]["message"]


def test_a_key_that_is_missing_or_wrong_is_refused_everywhere() -> None:
    assert replied(Dialect(), {}, key="secret")[0] == 401
    with Endpoint(dialect=Dialect("vllm"), key="secret") as endpoint:
        assert fetched(f"{endpoint.url}/models")[0] == 401
        entry = fetched(f"{endpoint.url}/models", key="secret")[1]["data"][0]
    assert entry["id"] == "my-model" and entry["max_model_len"] == 32_768 and endpoint.refused == []


def test_each_dialect_holds_to_the_constraint_that_it_knows_and_a_plain_one_to_none() -> None:
    closed = _SCHEMA | {"additionalProperties": False}
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": closed}}}
    choice = {"structured_outputs": {"choice": ["x"]}}
    assert re.fullmatch(r'\{"a":[0-4]\}', text_of(Dialect("openai"), schema))
    assert text_of(Dialect("vllm"), choice) == "x"
    for fields in (schema, choice):
        assert re.fullmatch("[0-4]{7}", text_of(Dialect("plain"), fields))


def test_a_limit_below_the_reasoning_leaves_no_text() -> None:
    answer = replied(Dialect("openai", True), {"max_completion_tokens": 200}, 300)[1]
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "" and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 200}
    assert len(text_of(Dialect(), {"max_completion_tokens": 400}, 300)) == 7
