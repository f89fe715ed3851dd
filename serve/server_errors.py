"""What a server's error body means: a prompt that is too long, a content policy, or something else.

Servers have no common code for either, so codes and wordings of many are listed: OpenAI, Azure, vLLM, SGLang, TGI, llama.cpp,
Ollama, LM Studio, Anthropic, Gemini, Bedrock, Mistral, Together, Groq, xAI, OpenRouter, DashScope, Zhipu, DeepSeek, Moonshot,
MiniMax, Volcano, LiteLLM. Only codes and the server's own message are looked at, never the rest of the body: some send the
prompt back in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import orjson

Meaning = Literal["context_overflow", "content_filter"]
_READ = 4000  # characters of a message that are looked at

# Codes are compared in lower case without "_" and "-". 1261 and 1301 are Zhipu's, 1026 and 1027 MiniMax's.
_OVERFLOW_CODES = {
    "contextlengthexceeded",
    "exceedcontextsizeerror",
    "modelmaxprompttokensexceeded",
    "modelcontextwindowexceeded",
    "contextwindowexceedederror",
    "requesttoolarge",
    "1261",
}
_POLICY_CODES = {
    "contentfilter",
    "contentpolicyviolation",
    "responsibleaipolicyviolation",
    "datainspectionfailed",
    "moderationblocked",
    "1301",
    "1026",
    "1027",
}
_POLICY_CODE_END = "sensitivecontentdetected"  # Volcano: InputTextSensitiveContentDetected and others
_OVERFLOW = re.compile(
    r"context[_ ]length|maximum (?:model|prompt) length|max_model_len|longer than the max|too many tokens"
    r"|context (?:window|size|limit) (?:has been )?exceed"
    r"|exceeds? (?:the )?(?:model )?(?:available )?context (?:window|size|limit)"
    r"|context window exceeds|configured context size|exceed_context_size|ContextWindowExceeded"
    r"|prompt (?:is )?too long|input is too long|exceeds max length|exceeds the maximum length"
    r"|input token count.{0,40}exceeds|exceeded model token limit|input tokens exceed the configured limit"
    r"|prompt token count.{0,40}exceeds|token limit exceeded|too large for model with"
    r"|reduce the length of the (?:messages|prompt|input)|range of input length should be"
    r"|`inputs` (?:tokens \+ `max_new_tokens` must be <=|must have less than)|输入.{0,10}超长|超(?:过|出)最大长度",
    re.I,
)
_POLICY = re.compile(
    r"content[_ ]?filter|content[_ ](?:management|policy)|DataInspectionFailed|data_inspection_failed|content exists risk"
    r"|(?:may contain|contains) inappropriate content|considered high risk|input was flagged|flagged as potentially violating"
    r"|violates? .{0,40}(?:usage|content) (?:polic|guideline)|(?:in|out)put new_sensitive|敏感内容",
    re.I,
)


def meaning_of(status: int, raw: bytes) -> Meaning | None:
    """What an error of this status with this body means for the reply; None for anything but a full context or a policy."""
    body = _parsed(raw)
    codes = {re.sub(r"[_-]", "", code.lower()) for code in _codes(body)}
    message = error_text(raw)[:_READ]
    if status == 413 or codes & _OVERFLOW_CODES:
        return "context_overflow"
    if codes & _POLICY_CODES or any(code.endswith(_POLICY_CODE_END) for code in codes) or _POLICY.search(message):
        return "content_filter"
    return "context_overflow" if _OVERFLOW.search(message) else None


def error_text(raw: bytes) -> str:
    """The server's own words: code and message of a JSON error, or the body as text."""
    body = _parsed(raw)
    if body is None:
        return raw.decode("utf-8", "replace")
    error = body.get("error", body)
    if not isinstance(error, dict):
        return str(error)
    return " ".join(str(error[key]) for key in ("code", "message", "detail") if error.get(key)) or str(error)


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """The body as an object; Gemini puts it into a list of one."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body if isinstance(body, dict) else None


def _codes(body: dict[str, Any] | None) -> Iterator[str]:
    """Every code and type that a body has in the places where servers put them."""
    error = (body or {}).get("error")
    inner = [error.get(name) for name in ("innererror", "metadata")] if isinstance(error, dict) else []
    for part in (body, error, *inner):
        if isinstance(part, dict):
            codes = (part.get(name) for name in ("code", "type", "error_type", "error_code", "status"))
            yield from (str(code) for code in codes if isinstance(code, str | int))
