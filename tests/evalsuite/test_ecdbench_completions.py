"""Options of one token asked together: the figures of lm-eval's own client, in fewer requests."""

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from evalsuite.papers.ecdbench.completions import ALTERNATIVES, SharedPrompts
from serve.checkpoints.places import materialise

WORDS = 3_000  # as many next tokens as the toy knows; those that are asked for have low ids
COMMON = 400


def logprob(before: list[int], token: int) -> float:
    """A toy language model: any fixed figure will do, as long as it depends on all that came before."""
    return (
        -50.0 * (token > COMMON) - (sum((place + 1) * one for place, one in enumerate(before)) * 31 + token * 17) % 997 / 10 - 1
    )


class Toy(ThreadingHTTPServer):
    """Answers /completions as vLLM does: `echo`, and `logprobs` of at most `most` alternatives, under their ids where `ids`."""

    def __init__(self, most: int = 10**6, ids: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.most, self.ids, self.bodies = most, ids, list[dict[str, Any]]()

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        self.bodies.append(body)
        (prompt,) = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        if body["logprobs"] > self.most:
            return None
        if body.get("echo"):
            own = [None, *(logprob(prompt[:i], prompt[i]) for i in range(1, len(prompt))), -1.0]
            found: dict[str, Any] = {"token_logprobs": own, "top_logprobs": [None, *({"x": value} for value in own[1:])]}
        else:
            every = sorted(((logprob(prompt, token), token) for token in range(WORDS)), reverse=True)[: body["logprobs"]]
            found = {"top_logprobs": [{f"token_id:{t}" if self.ids else f"w{t}": value for value, t in every}]}
        return {"choices": [{"index": 0, "text": "x", "logprobs": found}]}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Toy)
        found = self.server.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(400 if found is None else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found or {"error": "too many logprobs"}).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def toy() -> Iterator[Toy]:
    with Toy() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def asked(kind: type[LocalCompletionsAPI], toy: Toy) -> list[tuple[float, bool]]:
    questions = [(f"Which of {n}?\nAnswer:", option) for n in range(3) for option in (" A", " B", " C", " D")]
    questions += [("Which?\nAnswer:", " a longer option"), ("Alone.\nAnswer:", " A")]
    url = f"http://127.0.0.1:{toy.server_address[1]}/v1/completions"
    lm = kind(
        base_url=url, model="m", tokenizer=str(materialise()), tokenizer_backend="huggingface", num_concurrent=4, max_retries=1
    )
    return list(lm.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(questions)]))


@pytest.mark.slow
def test_figures_are_those_of_one_request_an_option_whatever_a_server_tells(toy: Toy) -> None:
    expected = [value for value, _ in asked(LocalCompletionsAPI, toy)]
    assert len(toy.bodies) == 14 and all(map(math.isfinite, expected))
    for most, ids, told in ((10**6, True, ALTERNATIVES), (20, True, 20), (5, True, None), (10**6, False, None)):
        toy.bodies.clear()
        toy.most, toy.ids = most, ids
        assert [value for value, _ in asked(SharedPrompts, toy)] == pytest.approx(expected)
        single = [body for body in toy.bodies if body.get("echo")]
        counts = [body["logprobs"] for body in toy.bodies if not body.get("echo")]
        # Probes, then three prompts. Singly: two that share theirs with nobody, and what the alternatives did not hold.
        probes = [ALTERNATIVES, 20] if told != ALTERNATIVES else [ALTERNATIVES]
        assert counts == probes + [told] * (3 if told else 0)
        assert 2 <= len(single) < 14 if told == ALTERNATIVES else len(single) <= 14
