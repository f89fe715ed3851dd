"""The scripted endpoint's dialects refuse what real servers refuse, where no test of the client would see that they do not."""

import re
from typing import Any

import pytest

from tests.dialects import Dialect, Speaker

REQUEST = {"model": "my-model", "messages": [{"role": "user", "content": "Rate from 0 to 4, in 7 digits: …"}]}
OPEN = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 4}}, "required": ["a"]}


def schema(**more: Any) -> dict[str, Any]:
    named = {"name": "a", "strict": True, "schema": OPEN | more}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


@pytest.mark.parametrize(
    ("dialect", "fields", "words"),
    [
        (Dialect(), {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        (Dialect(), {"response_format": {"type": "json_object"}}, "must contain the word 'json'"),
        (Dialect(), schema(), "'additionalProperties' is required"),
        (Dialect(), schema(additionalProperties=False, required=[]), "'required' is required"),
        (Dialect("vllm"), {"max_tokens": 40_000}, "is too large: 40000"),
    ],
)
def test_a_request_is_refused_in_the_server_s_own_words(dialect: Dialect, fields: dict[str, Any], words: str) -> None:
    refusal = dialect.problem(REQUEST | fields)
    assert refusal is not None and refusal.status == 400 and refusal.body and words in refusal.body.decode()


@pytest.mark.parametrize(("name", "pattern"), [("openai", r'\{"a":[0-4]\}'), ("vllm", "x"), ("plain", "[0-4]{7}")])
def test_each_dialect_holds_to_the_constraint_that_it_knows_and_a_plain_one_to_none(name: Any, pattern: str) -> None:
    fields = {"structured_outputs": {"choice": ["x"]}} if name == "vllm" else schema(additionalProperties=False)
    assert Dialect(name).problem(REQUEST | fields) is None
    assert re.fullmatch(pattern, Speaker(Dialect(name))(REQUEST | fields, 1).text)
