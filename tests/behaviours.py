"""A chat endpoint that plays one behaviour of a real server, which a YAML file describes: tests/behaviours/NAME.yaml.

    about: A gateway that forwards to a vendor with another API.
    server: plain                       # what it takes beside: openai, vllm or plain (tests.dialects)
    rules:                              # the first that fits a request answers it; where none does, a chat model would
      - when: {has: [top_p]}            # see `Rule.when`
        status: 400
        body: {error: {message: "`top_p` is not known"}}
    expect: {dropped: [top_p]}          # of `esc-eval run --config configs/eval/api.yaml --limit 1`; see `Expected`

In `answer`, `message`, `logprobs` and `body`, the text `{answer}` stands for what a chat model would have answered: a line
where it is spoken to, digits or JSON where it is asked to judge.
"""

import asyncio
import operator
import re
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from pydantic import Field

from core.settings import Settings
from tests.dialects import Dialect, DialectName, Speaker
from tests.endpoint import Answer, Endpoint, written

FOLDER = Path(__file__).with_suffix("")
_COMPARISON = re.compile(r"(<=|>=|!=|<|>) *(\d+)( *- *prompt)?")
_OPERATORS = {"<=": operator.le, ">=": operator.ge, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
_MISSING = object()


class Token(Settings):
    """A token of `logprobs`; `{answer}` in its text makes it one token for each character of the answer."""

    token: str = "{answer}"
    logprob: float = -0.1
    top: dict[str, float] | None = None
    """Its alternatives with their log-probabilities. None: for a digit of the answer five likely ones, else the token alone."""

    def written(self, answer: str) -> list[dict[str, Any]]:
        """Its entries in `logprobs.content`."""
        if "{answer}" not in self.token:
            return [self._entry({self.token: self.logprob} if self.top is None else self.top)]
        likely = {self.token.replace("{answer}", str(digit)): -4.0 - digit for digit in range(5)}
        tokens = (Token.model_validate_json(self.model_dump_json().replace("{answer}", digit)) for digit in answer)
        return [token._entry(likely | {token.token: token.logprob} if token.top is None else token.top) for token in tokens]

    def _entry(self, top: dict[str, float]) -> dict[str, Any]:
        alternatives = [{"token": other, "logprob": logprob} for other, logprob in top.items()]
        return {"token": self.token, "logprob": self.logprob, "top_logprobs": alternatives}


class Rule(Settings):
    """How some requests are answered."""

    when: dict[str, Any] = Field(default={})
    """All of these: `has`, `lacks`: lists of fields (dots lead into objects); a field's name: its value, or `"> 8"`, `"!= 1"`,
    `"> 4096 - prompt"`; `limit`: the same for whichever field limits the answer's tokens; `first_role`; `asks`: `verdict` or
    `line`; `every`: N for every Nth call, but none that is made again; `first`: N for the first N calls."""
    status: int = 200
    headers: dict[str, str] = Field(default={})
    body: Any = None
    """Any JSON, in place of a completion."""
    answer: str = "{answer}"
    message: dict[str, Any] = Field(default={})
    """More fields of the assistant's message, or others in place of its own."""
    finish_reason: str | None = "stop"
    logprobs: tuple[Token | str, ...] | None = None
    """Sent where they are asked for. None: of the answer's digits alone."""
    usage: dict[str, Any] = Field(default={})
    most_prompt_tokens: int | None = None
    """A prompt is cut to so many tokens, and nothing is said of it but in the usage."""


class Expected(Settings):
    """What the headline command makes of the server. Where it ends with 0, it is also repeated, and has to ask nothing."""

    exit: int = 0
    verdicts: str | None = "as answered"
    """Every dialogue's verdicts are what the server gave, or `none`, or these digits; null: they are not looked at."""
    distributions: bool | None = None
    """Whether all verdicts have one, or none has."""
    terminations: tuple[str, ...] | None = None
    """How the dialogues of the model ended, each way once; floors end in ways of their own."""
    dropped: tuple[str, ...] = ()
    """Fields that the last request to speak and the last to judge lack, but not the first request."""
    never_spoken: tuple[str, ...] = ()
    """Words that no turn has."""
    console: tuple[str, ...] = ()
    page: tuple[str, ...] = ()
    """Words on the console and on the page (report.md)."""
    calls: int | None = None
    """At most so many."""


class Behaviour(Settings):
    """One server; `source` is the public thread that tells of it."""

    about: str
    source: str = ""
    server: DialectName = "plain"
    owned_by: str | None = None
    max_model_len: int | None = None
    models: tuple[str, ...] = ("my-model",)
    """What its list of models names."""
    models_status: int = 200
    models_seconds: float = 0.0
    rules: tuple[Rule, ...] = ()
    expect: Expected = Expected()


class Player(Endpoint):
    """The endpoint; `verdicts` holds the digits (or JSON) of every judgement that it has given, `last` the last request for a
    verdict and for a line."""

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(self._play, behaviour.models)
        self.behaviour, self.verdicts, self.last = behaviour, set[str](), dict[str, dict[str, Any]]()
        self._met = set[bytes]()
        self._dialect = Dialect(behaviour.server)
        self._speaker = Speaker(self._dialect)

    def _play(self, request: dict[str, Any], count: int) -> Answer:
        ordinary = self._speaker(request, count)
        asks = "verdict" if re.fullmatch(r"[0-9]+|\{.*\}", ordinary.text, re.S) else "line"
        self.last[asks] = request
        prompt = len(orjson.dumps(request["messages"])) // 4
        again = (body := orjson.dumps(request)) in self._met
        self._met.add(body)
        turn = 0 if again else len(self._met)
        rule = next((rule for rule in self.behaviour.rules if _fits(rule.when, request, count, turn, prompt, asks)), None)
        if rule is None and (refused := self._dialect.problem(request)):
            return refused
        rule = rule or Rule(finish_reason=ordinary.finish_reason)
        if rule.status == 200 and asks == "verdict":
            self.verdicts.add("".join(re.findall(r"\d", ordinary.text)))
        wanted = request.get("logprobs") and ordinary.text.isdecimal()
        tokens = (token if isinstance(token, Token) else Token(token=token) for token in rule.logprobs or ("{answer}",))
        return Answer(
            rule.answer.replace("{answer}", ordinary.text),
            status=rule.status,
            headers=rule.headers,
            message=orjson.loads(_filled(rule.message, ordinary.text)),
            finish_reason=rule.finish_reason,
            body=None if rule.body is None else _filled(rule.body, ordinary.text),
            logprobs=[entry for token in tokens for entry in token.written(ordinary.text)] if wanted else None,
            usage={"prompt_tokens": min(prompt, rule.most_prompt_tokens or prompt)} | ordinary.usage | rule.usage,
        )

    async def _models(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.behaviour.models_seconds)
        if self.behaviour.models_status != 200:
            return written(Answer(status=self.behaviour.models_status, body=b'{"error": {"message": "not for you"}}'))
        own: dict[str, Any] = {"owned_by": self.behaviour.owned_by} if self.behaviour.owned_by else {}
        own |= {"max_model_len": self.behaviour.max_model_len} if self.behaviour.max_model_len else {}
        return web.json_response({"object": "list", "data": [self._dialect.listed(name) | own for name in self.models]})


def _filled(value: Any, answer: str) -> bytes:
    """JSON with the answer wherever its texts say so."""
    return orjson.dumps(value).replace(b"{answer}", orjson.dumps(answer)[1:-1])


def _fits(when: dict[str, Any], request: dict[str, Any], count: int, turn: int, prompt: int, asks: str) -> bool:
    """Whether a request, the `count`th of all, the `turn`th that is new (0: it is not), of so many tokens, fits."""
    special = {
        "has": lambda names: all(_field(request, name) is not _MISSING for name in names),
        "lacks": lambda names: all(_field(request, name) is _MISSING for name in names),
        "first_role": lambda role: request["messages"][0]["role"] == role,
        "asks": lambda wanted: asks == wanted,
        "every": lambda number: turn > 0 and turn % number == 0,
        "first": lambda number: count <= number,
    }
    request = request | {"limit": request.get("max_completion_tokens", request.get("max_tokens", _MISSING))}
    return all(
        special[name](wanted) if name in special else _compares(_field(request, name), wanted, prompt)
        for name, wanted in when.items()
    )


def _field(request: Any, name: str) -> Any:
    for part in name.split("."):
        request = request.get(part, _MISSING) if isinstance(request, dict) else _MISSING
    return request


def _compares(value: Any, wanted: Any, prompt: int) -> bool:
    comparison = _COMPARISON.fullmatch(wanted) if isinstance(wanted, str) else None
    if value is _MISSING or not comparison:
        return bool(value == wanted)
    sign, number, less = comparison.groups()
    return bool(_OPERATORS[sign](value, int(number) - (prompt if less else 0)))
