"""What a server's answer says: reply, reasoning, why it stopped, token probabilities."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from core.masking import mask_answer
from core.specs import ModelSpec
from serve import completion
from serve.server_errors import Meaning, error_text, meaning_of

Count = Annotated[int, Field(ge=0, le=2**53)]
# Finish reasons, in lower case. The first name of each is OpenAI's, which Reply has; the others come from servers of before or
# from behind proxies that pass on what a provider calls it.
_STOPPED = {"stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete"}  # Together, TGI, Anthropic, Cohere
_CUT_OFF = {"length", "max_tokens", "model_length", "model_context_window_exceeded"}  # Anthropic, Gemini; Mistral; Zhipu
_FILTERED = {
    "content_filter",
    "sensitive",  # Zhipu
    "refusal",  # Anthropic
    *("safety", "recitation", "blocklist", "prohibited_content", "spii"),  # Gemini
    "error_toxic",  # Cohere
}


class Unreadable(Exception):
    """A 200 whose body is not a finished chat completion."""


class BadFinish(Unreadable):
    """A completion that the server broke off, or ended for a reason that is not known: its text is not a reply."""


class Reply(BaseModel):
    """One answer. `text` is without reasoning; `tokens` holds, per generated token, its alternatives' log-probabilities
    (null: none reported; see `serve.completion.tokens_of`).

    `finish_reason` is `stop`, `length` (cut off at the token limit), `content_filter`, null where the server gives none, or
    `context_overflow` when prompt and reply do not fit the model. `refused` is set by the server's own signal only (a `refusal`
    field, a finish reason or error of its content filter): nothing is guessed from the wording.
    `model` is what the server says answered (null where it names none).
    `reasoning_tokens` is what the server reports (0 where it does not), `reasoning_characters` is counted here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    finish_reason: str | None = None
    refused: bool = False
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    reasoning_tokens: Count = 0
    reasoning_characters: Count = 0
    tokens: list[tuple[str, dict[str, float]]] | None = None
    model: str | None = None

    @property
    def empty(self) -> bool:
        """Whether it holds nothing at all, not even reasoning, a refusal or a reason for stopping early."""
        return not (self.text.strip() or self.reasoning_characters or self.refused) and self.finish_reason in (None, "stop")


def reply_of_error(meaning: Meaning) -> Reply:
    """The reply that an error stands for."""
    return Reply(text="", finish_reason=meaning, refused=meaning == "content_filter")


def split_reasoning(spec: ModelSpec, text: str) -> tuple[str, str]:
    """(reply, reasoning): what stands in think tags is taken out. An unclosed block is reasoning to its end."""
    opening, closing = spec.think_tags
    if spec.think_in_prompt and closing not in text:
        return "", text
    if closing in text and (opening not in text or text.index(closing) < text.index(opening)):
        text = opening + text  # the template opened the block in the prompt
    block = re.compile(re.escape(opening) + "(.*?)(?:" + re.escape(closing) + "|$)", re.S)
    return block.sub("", text).strip(), "".join(block.findall(text))


def read_reply(spec: ModelSpec, raw: bytes, key: str | None = None) -> Reply:
    """A 200 body as a Reply, with the key masked; an error in a 200 counts as the error that it is.

    Raises `Unreadable` for a body that is not a completion, `BadFinish` for one that was broken off.
    """
    try:
        body = completion.parse(raw)
        choice = body["choices"][0]
        message, usage = choice["message"], body.get("usage")
        details = usage.get("completion_tokens_details") if isinstance(usage, Mapping) else None
        said, reasoning = split_reasoning(spec, completion.text_of(message.get("content")))
        separate = message.get("reasoning") or message.get("reasoning_content") or ""
        finish = "content_filter" if message.get("refusal") else finish_reason(choice)
        return Reply(
            text=mask_answer(said, key),
            finish_reason=finish,
            refused=finish == "content_filter",
            prompt_tokens=completion.count_of(usage, "prompt_tokens"),
            completion_tokens=completion.count_of(usage, "completion_tokens"),
            reasoning_tokens=completion.count_of(details, "reasoning_tokens"),
            reasoning_characters=len(reasoning) + (len(separate) if isinstance(separate, str) else 0),
            tokens=_tokens(choice, key),
            model=_named(body.get("model"), key),
        )
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if b'"error"' in raw and (meaning := meaning_of(200, raw)):
            return reply_of_error(meaning)
        raise Unreadable(f"unreadable answer ({type(error).__name__}): {error_text(raw)}") from None


def _named(model: object, key: str | None) -> str | None:
    """The model that a server names, where it is a name at all."""
    return mask_answer(model, key)[:200] if isinstance(model, str) and model.strip() else None


def finish_reason(choice: dict[str, Any]) -> str | None:
    """Why a choice ended, in OpenAI's words. Null is let pass: some servers never say, DashScope says "null".

    Raises `BadFinish` for everything that is not known to end a reply: `error`, `abort`, `network_error`; `tool_calls` too, as
    no tool is ever offered.
    """
    given = choice.get("finish_reason")
    name = str(given).lower().partition(":")[0].strip()
    if given is None or name in ("", "null"):
        return None
    if name in _STOPPED:
        return "stop"
    if name in _CUT_OFF:
        return "length"
    if name in _FILTERED:
        return "content_filter"
    raise BadFinish(f"bad finish reason {given!r}")


def _tokens(choice: dict[str, Any], key: str | None) -> completion.Tokens | None:
    tokens = completion.tokens_of(choice.get("logprobs"))
    if tokens is None:
        return None
    return [
        (mask_answer(token, key), {mask_answer(other, key): logprob for other, logprob in alternatives.items()})
        for token, alternatives in tokens
    ]


def choice_probabilities(token: str, alternatives: Mapping[str, float], choices: Iterable[str]) -> dict[str, float] | None:
    """The probabilities of choices that are one token each, where a reply's `token` is one of them; they sum to 1.

    Servers report log-probabilities before the constraint's mask, so they are renormalised over the choices. A choice that is
    not among the reported alternatives counts 0. None where the figures cannot be log-probabilities of that token
    (`serve.completion.sound`).
    """
    if not completion.sound(token, alternatives):
        return None
    mass = dict.fromkeys(choices, 0.0)
    reported = [(other.strip(), logprob) for other, logprob in alternatives.items() if other.strip() in mass]
    top = max(logprob for _, logprob in reported)
    for choice, logprob in reported:
        mass[choice] += math.exp(logprob - top)
    total = sum(mass.values())
    return {choice: value / total for choice, value in mass.items()}
