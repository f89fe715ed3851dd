"""Which fields a chat endpoint takes and how it refuses the others: OpenAI's API, vLLM's, and one that knows no constraint.

`Speaker` answers as a chat model would: what a judge is asked for in plain words, constraints held to, and, where it reasons,
nothing at all when the limit ends before the reasoning does.
"""

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import orjson

from tests.endpoint import Answer, echo, error

DialectName = Literal["openai", "vllm", "plain"]
Reasoning = Literal["hidden", "field"]  # told in the usage alone; in `reasoning_content`
_COMMON = """model messages temperature top_p n stream stream_options stop max_tokens max_completion_tokens presence_penalty
    frequency_penalty logit_bias logprobs top_logprobs user seed tools tool_choice parallel_tool_calls response_format"""
_OPENAI = """audio functions function_call metadata modalities prediction prompt_cache_key reasoning_effort safety_identifier
    service_tier store verbosity web_search_options"""
_KNOWN = frozenset(f"{_COMMON} {_OPENAI}".split())  # by OpenAI's chat completions


@dataclass
class Dialect:
    """What one kind of server refuses, and what it says beside an answer.

    `openai` refuses every unknown field as OpenAI does, and for a reasoning model also `max_tokens`, any temperature or top_p
    but 1, and log-probabilities; with `json_schema=False` it is a server that knows no `response_format` either. `vllm` takes
    `structured_outputs` and tells `max_model_len`. `plain` ignores what it does not know, constraints among it.
    """

    name: DialectName = "openai"
    reasoning_model: bool = False
    json_schema: bool = True
    context: int = 32_768

    def problem(self, body: dict[str, Any]) -> Answer | None:
        """How a request is refused; None where it is not."""
        if self.name == "openai" and (refused := self._openai_problem(body)):
            return refused
        if body.get("top_logprobs", 0) > 20:
            return error(400, "Invalid value for 'top_logprobs': must be less than or equal to 20.", param="top_logprobs")
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        if self.name == "vllm" and limit >= self.context:
            return error(
                400,
                f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's maximum context length is "
                f"{self.context} tokens and your request has 10 input tokens ({limit} > {self.context} - 10).",
                type="BadRequestError",
            )
        return None

    def _openai_problem(self, body: dict[str, Any]) -> Answer | None:
        known = _KNOWN if self.json_schema else _KNOWN - {"response_format"}
        if unknown := [field for field in body if field not in known]:
            several = "s" if len(unknown) > 1 else ""
            return _invalid(f"Unrecognized request argument{several} supplied: {', '.join(sorted(unknown))}")
        if self.reasoning_model:
            if "max_tokens" in body:
                problem = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
                return _invalid(f"Unsupported parameter: {problem}", "max_tokens", "unsupported_parameter")
            for field in ("temperature", "top_p"):
                if body.get(field, 1) != 1:
                    problem = (
                        f"'{field}' does not support {body[field]} with this model. Only the default (1) value is supported."
                    )
                    return _invalid(f"Unsupported value: {problem}", field, "unsupported_value")
            if body.get("logprobs"):
                return _invalid("You are not allowed to request logprobs from this model")
        if "max_tokens" in body and "max_completion_tokens" in body:
            return _invalid("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
        if body.get("top_logprobs") is not None and not body.get("logprobs"):
            return _invalid("'logprobs' must be set when 'top_logprobs' is.", "logprobs")
        wanted = body.get("response_format") or {"type": "text"}
        if wanted["type"] == "json_object" and "json" not in str(body["messages"]).lower():
            problem = "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
            return _invalid(problem, "messages")
        if wanted["type"] == "json_schema" and (fault := _schema_fault(wanted["json_schema"])):
            return _invalid(f"Invalid schema for response_format: {fault}", "response_format")
        return None

    def listed(self, name: str) -> dict[str, Any]:
        """A model's entry in /v1/models."""
        entry = {"id": name, "object": "model", "owned_by": "vllm" if self.name == "vllm" else "system"}
        return entry | ({"max_model_len": self.context} if self.name == "vllm" else {})


def _invalid(message: str, param: str | None = None, code: str | None = None) -> Answer:
    return error(400, message, type="invalid_request_error", param=param, code=code)


def _schema_fault(named: dict[str, Any]) -> str | None:
    """What OpenAI's strict mode finds wrong with a schema: every object closed, every property required, nothing unknown."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", named.get("name", "")):
        return "name is missing or holds other than letters, digits, _ and -"

    def fault(schema: dict[str, Any]) -> str | None:
        if schema.get("type") == "object":
            if schema.get("additionalProperties") is not False:
                return "'additionalProperties' is required to be supplied and to be false."
            if sorted(schema.get("required", ())) != sorted(schema["properties"]):
                return "'required' is required to be supplied and to be an array including every key in properties."
            return next(filter(None, map(fault, schema["properties"].values())), None)
        return None

    return fault(named["schema"]) if named.get("strict") else None


@dataclass
class Speaker:
    """A behaviour like a chat model's: replies that depend on everything asked, verdicts (digits, bands, JSON with scores from
    1 to 5) where they are asked for in words or by a constraint that the dialect knows.

    `reasoning` is how many tokens it reasons before it says anything; a limit below cuts it off with no text.
    """

    dialect: Dialect
    reasoning: int = 0
    shown: Reasoning = "hidden"

    def __call__(self, body: dict[str, Any], count: int) -> Answer:
        text = self._text(body, count)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or math.inf
        # A digit is a token, a word is one, a sign is one.
        needed = len(re.findall(r"\d|[^\W\d]+|[^\w\s]", text)) + self.reasoning
        if limit < needed:
            cut = int(limit)
            thought = min(self.reasoning, cut)
            kept = "".join(re.findall(r"\s*\S", text)[: cut - thought]) if cut > thought else ""
            return self._answer(kept, thought, cut, "length")
        answer = self._answer(text, self.reasoning, needed, "stop")
        if body.get("logprobs") and re.fullmatch(r"\d+", text):
            places = range(min(body.get("top_logprobs", 0), 5))
            tops = {digit: [_top(digit, place) for place in places] for digit in text}
            answer.logprobs = [{"token": digit, "logprob": -0.1, "top_logprobs": tops[digit]} for digit in text]
        return answer

    def _answer(self, text: str, thought: int, written: int, finish: str) -> Answer:
        usage = {"completion_tokens": written}
        message: dict[str, Any] = {}
        if thought and self.shown == "hidden":
            usage["completion_tokens_details"] = {"reasoning_tokens": thought}  # type: ignore[assignment]
        elif thought:
            message["reasoning_content"] = " ".join(["so"] * thought)
        return Answer(text, finish_reason=finish, message=message, usage=usage)

    def _text(self, body: dict[str, Any], count: int) -> str:
        seed = hashlib.sha256(orjson.dumps([body["messages"], body["model"]])).digest()
        if self.dialect.name == "vllm" and "structured_outputs" in body:
            return echo(body, count).text
        wanted = body.get("response_format") or {}
        if self.dialect.name != "plain" and wanted.get("type") == "json_schema":
            return orjson.dumps(_instance(wanted["json_schema"]["schema"], iter(seed * 8))).decode()
        asked = body["messages"][-1]["content"]
        if found := re.search(r"from (\d) to (\d), in (\w+) digits?|(\d) 到 (\d) 分，共 (\d+) 个数字", asked):
            low, high, times = [group for group in found.groups() if group]
            number = 1 if times == "one" else int(times)
            return "".join(str(int(low) + byte % (int(high) - int(low) + 1)) for byte in seed[:number])
        if bands := re.findall(r"^.+: 0=p.*$", asked, re.M):
            return "\n".join(_certain(line, byte) for line, byte in zip(bands, seed, strict=False))
        if form := re.search(r'^\{"analysis".*\}$', asked, re.M):
            draw = cycle(seed)
            return re.sub(r"\bN\b", lambda _: str(1 + next(draw) % 5), form[0])
        return f"line {seed.hex()[:12]}"


def _certain(line: str, byte: int) -> str:
    """A line of probabilities in which one score is certain."""
    scores = re.findall(r"(\d)=p", line)
    given = iter("1.00" if place == byte % len(scores) else "0.00" for place in range(len(scores)))
    return re.sub(r"(?<==)p", lambda _: next(given), line)


def _top(digit: str, place: int) -> dict[str, Any]:
    other = (int(digit) + place) % 10
    return {"token": str(other), "logprob": -0.1 if place == 0 else -4.0 - place}


def _instance(schema: dict[str, Any], draw: Iterator[int]) -> Any:
    """A value that fits a schema, drawn from bytes."""
    if "enum" in schema:
        return schema["enum"][next(draw) % len(schema["enum"])]
    kind = schema.get("type")
    if kind == "object":
        return {key: _instance(part, draw) for key, part in schema["properties"].items()}
    if kind == "integer":
        low, high = schema.get("minimum", 0), schema.get("maximum", 9)
        return low + next(draw) % (high - low + 1)
    if kind == "number":
        return next(draw) % 101 / 100
    if kind == "array":
        return [_instance(schema["items"], draw) for _ in range(schema.get("minItems", 1))]
    return f"text {next(draw)}"
