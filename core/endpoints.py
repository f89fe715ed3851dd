"""Models behind a URL, as command lines name them (NAME@URL, or NAME@URL#VARIABLE with a key), and the endpoint of a spec: an
OpenAI-compatible server and what it accepts, or an agent of another kind."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from core.errors import UserError
from core.masking import PlainUrl, problem_of
from core.settings import Settings

FORM = "NAME@http://HOST:PORT/v1"
SPEC_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Address:
    """A model behind a URL: `name` is the server's name or a spec's, `key_variable` the environment variable with the key."""

    name: str
    url: str
    key_variable: str | None


def named_part(text: str) -> str:
    """The text before the URL, or all of it if there is no URL. A served name may itself contain an @."""
    return re.split(r"@(?=https?://)", text, maxsplit=1, flags=re.IGNORECASE)[0]


def address_of(text: str) -> Address | None:
    """The parts of NAME@URL; None for the name of a spec or a file. Raises `UserError` for a malformed address."""
    name = named_part(text)
    if name == text:
        before, sign, _ = text[1:].partition("@")  # the rest may hold a password, so the message leaves it out
        if re.match(r"https?://", text, re.IGNORECASE):
            raise UserError(f"put the model's name before its address: {FORM}")
        if sign and not text.endswith(SPEC_FILES):
            raise UserError(f"model {text[:1]}{before[:100]}@…: no http:// or https:// after the @: expected {FORM}")
        return None
    place, sign, variable = text[len(name) + 1 :].partition("#")
    if not name:
        raise UserError(f"put the model's name before its address: {FORM}")
    if problem := url_problem(place):
        raise UserError(f"model {name}: {problem}")
    if sign:
        check_key_variable(variable, f"model {name}: the part after #")
    return Address(name, place.rstrip("/"), variable or None)


def url_problem(url: str) -> str | None:
    """Why a text is not a server's address; None if it is one."""
    if problem := problem_of(url):
        return problem
    return None if re.match(r"https?://[^/\s]+", url, re.IGNORECASE) else "expected http://HOST:PORT/v1"


def check_key_variable(variable: str, where: str) -> None:
    """Raise `UserError` for a text that is not the name of a variable, without repeating it: it may be the key itself."""
    named = variable in os.environ or re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable)  # keys have small letters: gsk_…, hf_…
    if not named or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise UserError(f"{where} takes the name of an environment variable that is set, never the key itself")


def secret_of(variable: str, where: str) -> str:
    """The key (or another header's value) in an environment variable. Raises `UserError` if it is unset or unfit."""
    value = os.environ.get(variable)
    if not value:
        raise UserError(f"{where}: set the environment variable {variable} to its API key")
    if not re.fullmatch(r"[!-~]+", value):
        raise UserError(f"{where}: the key in {variable} contains a space, a line break or a character forbidden in headers")
    return value


def is_loopback(address: str) -> bool:
    """Whether a host name or address means this machine."""
    try:
        return address == "localhost" or ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:  # another name, or "" (all addresses)
        return False


def record_name(served: str, fallback: str) -> str:
    """A name for records and files, made from the server's name for a model."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", served).strip("-._")[:100].rstrip("-._") or fallback


Constraint = Literal["structured_outputs", "json_schema", "none"]
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]
# Fields that the run itself sets in every request.
OURS = r"model|messages|n|stream.*|max_\w*tokens|temperature|top_p|seed|(top_)?logprobs|response_format|structured_outputs"
KEY_VARIABLES = set[str]()  # the api_key_env of every spec loaded so far: servers that we launch do not inherit them


class Price(Settings):
    """Prices per million tokens, in the currency of max_cost."""

    input: Annotated[float, Field(ge=0)]
    """Per million tokens of prompts."""
    output: Annotated[float, Field(ge=0)]
    """Per million tokens of answers."""

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of one call."""
        return (prompt_tokens * self.input + completion_tokens * self.output) / 10**6


class AgentCall(Settings):
    """A request to an agent that is not a chat model, and the part of the response to use."""

    path: str = ""
    """Appended to `base_url`. `{session}`, `{dialogue}` and `{card}` stand for ids."""
    method: Literal["POST", "PUT", "PATCH", "GET", "DELETE"] = "POST"
    """The request's method."""
    request: dict[str, JsonValue] | None = None
    """The request's JSON; null: none. In its texts, `{message}` becomes the last line said to the agent, and `{session}`,
    `{dialogue}`, `{card}`, `{exchange}` (from 1) and `{role}` their values; the text `{messages}` alone becomes the whole
    chat."""
    response: Annotated[str, Field(pattern=r"^(/.*)?$")] = ""
    """A JSON pointer into the response (`/output/0/text`; -1: the last item) to a turn's text, or an opened session's id."""

    @field_validator("path")
    @classmethod
    def _valid(cls, path: str) -> str:
        if unknown := set(re.findall(r"\{(\w*)\}", path)) - {"session", "dialogue", "card"}:
            raise ValueError(f"unknown placeholder {{{min(unknown)}}}: use {{session}}, {{dialogue}} or {{card}}")
        if path and not path.startswith("/"):
            raise ValueError("must begin with a slash: it is appended to base_url")
        return path


class Endpoint(Settings):
    """An OpenAI-compatible server and what it accepts, or an agent of another kind."""

    kind: Literal["chat", "agent"] = Field(default="chat", exclude_if=lambda kind: kind == "chat")
    """chat: an OpenAI-compatible server. agent: anything that takes a line and returns one, asked as in `turn`. It plays one
    side of dialogues, learns which dialogue each line belongs to, and has a session per dialogue if `open` opens one."""
    turn: AgentCall | None = Field(default=None, exclude_if=lambda call: call is None)
    """The request for an agent's next line."""
    open: AgentCall | None = Field(default=None, exclude_if=lambda call: call is None)
    """The request that opens an agent's session for a dialogue. Null: the dialogue's id is the session's."""
    close: AgentCall | None = Field(default=None, exclude_if=lambda call: call is None)
    """The request that closes the session."""

    base_url: PlainUrl | None = None
    """The server's address, including `/v1`. Null: the launcher starts a server on a free port."""
    api_key_env: str | None = None
    """The environment variable that holds the key; the key itself is never in a file."""
    model: str | None = None
    """The server's name for the model. Null: the spec's name."""
    constraint: Constraint | None = None
    """How the server constrains an answer: vLLM's `structured_outputs`, OpenAI's `json_schema` (a `response_format`), or
    `none`: plain text, which is parsed. Null: tried out with the first answers."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Log-probabilities to request per token; 0: none. Null: 20 (OpenAI's and vLLM's limit), or none if refused."""
    max_tokens_field: MaxTokensField | None = None
    """The server's name for the limit on a reply. Null: `max_tokens`, or the other name if the server wants that."""
    max_response_mb: Annotated[int, Field(gt=0, le=1024)] = 8
    """Limit on an answer in megabytes, decompressed. Even the longest replies with log-probabilities are far smaller."""
    any_model: bool = False
    """Accept answers under any model name, for routers that spell it variously. Otherwise a change of name ends the run."""
    lists_models: bool = True
    """Whether `/models` takes the key: a run looks there before its first call. Anthropic's wants the key in another header."""
    system_role: bool | None = Field(default=None, exclude_if=lambda value: value is None)
    """Whether it accepts a system message; if not, that is put before the user's first. Null: true until refused."""
    extra_body: dict[str, Any] = Field(default={}, exclude_if=lambda fields: not fields)
    """Further fields of every request, such as `enable_thinking`, `reasoning_effort` or a gateway's `provider`."""
    headers: dict[str, str] = Field(default={}, exclude_if=lambda names: not names)
    """Further headers of every request: name → the environment variable with the value, which is never in a file."""
    query: dict[str, str] = Field(default={}, exclude_if=lambda fields: not fields)
    """Query parameters of every request, such as Azure's `api-version`. Keys belong in `headers`."""
    ca_bundle: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """A PEM file of certificates to trust in addition to the system's. SSL_CERT_FILE does the same for all endpoints."""
    verify: bool = Field(default=True, exclude_if=lambda verify: verify)
    """Whether to check the server's certificate. If false, anybody on the network path can read and answer the requests."""
    price: Price | None = None
    """Prices, for max_cost."""
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Most requests per minute; specs with the same `base_url` share the lowest limit."""
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    """Most tokens per minute, prompts and answers; shared like `requests_per_minute`."""

    @model_validator(mode="after")
    def _of_its_kind(self) -> Endpoint:
        if self.kind == "agent" and (self.turn is None or self.base_url is None):
            raise ValueError("an agent (kind: agent) needs a base_url and a turn")
        if self.kind == "chat" and (calls := [name for name in ("turn", "open", "close") if getattr(self, name)]):
            raise ValueError(f"{calls[0]}: belongs to an agent: write kind: agent")
        return self

    @model_validator(mode="after")
    def _adds(self) -> Endpoint:
        KEY_VARIABLES.update(filter(None, [self.api_key_env, *self.headers.values()]))
        if field := next((name for name in self.extra_body if re.fullmatch(OURS, name)), None):
            raise ValueError(f"extra_body: {field} is set by the run: see `sampling` and `endpoint`")
        for name, variable in self.headers.items():  # neither is repeated: it may be the key itself
            if not re.fullmatch(r"[A-Za-z0-9-]+", name) or not re.fullmatch(r"[A-Za-z_]\w*", variable):
                raise ValueError("headers: expected a header's name, and the environment variable that holds its value")
        if secret := next((name for name in self.query if re.search("key|token|secret|sig|password", name, re.I)), None):
            raise ValueError(f"query: {secret}: a key belongs in `headers`, which name the variable that holds it")
        return self
