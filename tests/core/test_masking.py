"""Keys are masked in text however they are written, and refused in addresses."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from core.endpoints import Endpoint as SpecEndpoint
from core.masking import mask_answer, mask_message, mask_paths
from core.specs import ModelSpec
from serve.failures import Rejected
from serve.http import Route
from tests.endpoint import Answer, Endpoint
from tests.serve.test_client import ask, question, spec

KEY = 'sk-4/f9"c\\2&d<1'  # everything that JSON, URLs and HTML escape
WAYS = {
    "plain": KEY,
    "JSON": json.dumps(KEY)[1:-1],
    "JSON in JSON": json.dumps(json.dumps(KEY)[1:-1])[1:-1],
    "JSON, slashes escaped": json.dumps(KEY)[1:-1].replace("/", "\\/"),
    "URL": quote(KEY, safe=""),
    "URL, lower case": quote(KEY, safe="").lower(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_key_is_masked_however_it_is_escaped(way: str) -> None:
    text = f"before{WAYS[way]}after, and {WAYS[way]}"
    assert mask_message(text, KEY) == mask_answer(text, KEY) == "before***after, and ***"


@pytest.mark.parametrize(
    ("key", "message", "answer"),
    [
        ("EMPTY", "wrong key ***, I feel EMPTYish", "wrong key EMPTY, I feel EMPTYish"),
        ("x", "wrong key ***, exceeds the context", "wrong key x, exceeds the context"),
        ("1", "wrong key ***, 12 of 13 tokens", "wrong key 1, 12 of 13 tokens"),
        ("hunter2", "wrong key ***, 2", "wrong key hunter2, 2"),
        ("hunter22", "wrong key ***, 2", "wrong key ***, 2"),
    ],
)
def test_a_short_key_is_masked_in_messages_as_a_word_and_takes_nothing_out_of_answers(
    key: str, message: str, answer: str
) -> None:
    told = answer.replace("***", key)
    assert (mask_message(told, key), mask_answer(told, key)) == (message, answer)


@pytest.mark.parametrize("way", ["JSON", "JSON, every character", "plain"])
@pytest.mark.parametrize("status", [200, 400])
async def test_a_server_that_sends_the_key_back_in_json_leaves_it_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, status: int
) -> None:
    """Raw bytes hold it escaped: what is masked is the decoded text. Token texts are kept too, for the judge."""
    key = "sk-4f9c2d1"
    monkeypatch.setenv("A_KEY", key)
    said = "".join(f"\\u{ord(c):04x}" for c in key) if "every" in way else key
    text = f'"You sent {said}, did you not?"'
    parts = ("You sent ", said, ", did you not?")
    tokens = ", ".join(f'{{"token": "{t}", "logprob": 0, "top_logprobs": [{{"token": "{t}", "logprob": 0}}]}}' for t in parts)
    choice = f'{{"message": {{"content": {text}}}, "finish_reason": "stop", "logprobs": {{"content": [{tokens}]}}}}'
    body = f'{{"choices": [{choice}]}}' if status == 200 else f'{{"error": {{"message": {text}}}}}'
    with Endpoint(lambda request, count: Answer(status=status, body=body.encode())) as endpoint:
        model = spec(endpoint.url, endpoint={"api_key_env": "A_KEY"})
        if status == 200:
            (reply,) = await ask(tmp_path, endpoint, question(), model=model)
            assert reply.text == "You sent ***, did you not?" and reply.tokens is not None
            assert reply.tokens[1] == ("***", {"***": 0.0})
        else:
            with pytest.raises(Rejected, match=r"You sent \*\*\*, did you not\?"):
                await ask(tmp_path, endpoint, question(), model=model)
        assert endpoint.headers[0]["Authorization"] == f"Bearer {key}"
    assert not [path for path in tmp_path.iterdir() if key.encode() in path.read_bytes()]


def test_plain_addresses_are_taken() -> None:
    for url in ("http://127.0.0.1:8000/v1", "https://host.example/a/b/v1", "http://[::1]:80/v1"):
        assert SpecEndpoint(base_url=url).base_url == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/sk-abcdef123456/v1", "https://h/***/v1"),
        ("https://h/a/hf_abcdefgh123/v1", "https://h/a/***/v1"),
        ("https://h/eyJhbGciOi.abc.def/v1", "https://h/***/v1"),
        ("https://h/v2/0123456789abcdef0123456789abcdef", "https://h/v2/***"),
        ("https://h/openai/deployments/gpt-4o-2024-11-20", "https://h/openai/deployments/gpt-4o-2024-11-20"),
        ("https://h/Qwen2.5-72B-Instruct-GPTQ-Int4/v1", "https://h/Qwen2.5-72B-Instruct-GPTQ-Int4/v1"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("https://token-server12345.example/v1", "https://token-server12345.example/v1"),
    ],
)
def test_a_token_in_an_addresss_path_is_not_shown(url: str, shown: str) -> None:
    known = ModelSpec.model_validate({"name": "m", "endpoint": {"base_url": "http://h/v1"}})
    assert mask_paths(f"model m at {url}: lost") == f"model m at {shown}: lost"
    route = Route.to(known, url)
    assert route.where == f"model m at {shown}" and route.redact(f"cannot reach {url}") == f"cannot reach {shown}"
