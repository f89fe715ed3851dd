"""Reading a server's answer: the reply in a whole or streamed body, split into reasoning and answer.

Servers agree on the text of an answer and on little else, so everything else is read leniently. Reasoning may be in tags of
many spellings, in channels (gpt-oss), in parts of the content (Mistral), in separate fields, or after a tag opened by the chat
template, so that the text has only the closing one.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import aiohttp
import orjson

from core.markers import CONTROL, REASONING
from core.masking import mask_answer
from core.specs import ModelSpec
from serve.answers import MOST, Reply, Tokens
from serve.failures import Unreadable, error_text, meaning_of, vocabulary

_NO_MASS = -9999.0  # vLLM's log-probability for minus infinity
# Some servers use their vocabulary's spelling: ▁ or Ġ for a blank, Ċ for a line break.
_SPELLINGS = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n", "\ufeff": None})


class ErrorInAnswer(Unreadable):
    """A 200 with an error, whatever else it contains; `status` and `body` are those of the error."""

    def __init__(self, error: Any) -> None:
        self.body = orjson.dumps({"error": error})
        codes = (str(error.get(name)) for name in ("code", "status")) if isinstance(error, dict) else ()
        status = next((int(code) for code in codes if re.fullmatch("[45][0-9]{2}", code)), 500)
        lasts = meaning_of(status, self.body) in ("context_overflow", "content_filter")
        super().__init__(f"an error in the answer: {error_text(self.body)}", 400 if lasts else status)


def read_reply(spec: ModelSpec, raw: bytes, key: str | None = None) -> Reply:
    """A 200 body as a Reply, with the key masked. Raises `Unreadable` for no completion, `ErrorInAnswer` for an error in it."""
    try:
        body = parse(raw)
        if isinstance(body, list) and len(body) == 1:  # Gemini's errors
            body = body[0]
        choice = (body.get("choices") or [{}])[0]
        for error in (body.get("error"), choice.get("error")):
            if any(error.values()) if isinstance(error, dict) else error:  # some send an empty error with every answer
                raise ErrorInAnswer(error)
        message = choice.get("message")
        withheld = not isinstance(message, dict) and _withheld(body)
        finish = "content_filter" if withheld else finish_reason(choice)
        if message is None and finish in ("content_filter", "length"):
            message = {}
        content, apart = text_of(message.get("content"))
        apart += reasoning_beside(message)
        text, inline = split_reasoning(spec, content, apart)
        if not text and split_reasoning(spec, apart)[1]:  # the server took the answer for reasoning
            text, apart = split_reasoning(spec, apart)
        reasoning = apart + inline
        if message.get("refusal") or (not text and not reasoning and _withheld(body)):
            finish = "content_filter"
        tokens, model = _of_answer(spec, tokens_of(choice.get("logprobs")), text, reasoning), body.get("model")
        if tokens and key:
            masked = ({mask_answer(other, key): value for other, value in others.items()} for _, others in tokens)
            tokens = [(mask_answer(token, key), others) for (token, _), others in zip(tokens, masked, strict=True)]
        return Reply(
            text=mask_answer(text, key),
            finish_reason=finish,
            refused=finish == "content_filter",
            **_counts(body.get("usage")),
            reasoning_characters=len(reasoning),
            reasoning=mask_answer(bare(reasoning), key) if reasoning and not text else None,
            tokens=tokens,
            model=mask_answer(model, key)[:200] if isinstance(model, str) and model.strip() else None,
            verbatim=mask_answer(content, key) if content != text == content.strip() else None,
        )
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise Unreadable(f"unreadable answer ({type(error).__name__}): {error_text(raw)}") from None


def _withheld(value: Any, depth: int = 8) -> bool:
    """Whether a body without text names a content filter, in a finish reason, a block reason or a verdict."""
    if isinstance(value, str):
        return value.lower().partition(":")[0].strip() in vocabulary().finish_reasons["content_filter"]
    if isinstance(value, dict):
        blocked = any(
            part and re.search("block|filtered", name, re.I) and isinstance(part, str | bool) for name, part in value.items()
        )
        return blocked or (depth > 0 and any(_withheld(part, depth - 1) for part in value.values()))
    return isinstance(value, list) and depth > 0 and any(_withheld(part, depth - 1) for part in value)


def parse(raw: bytes) -> Any:
    """The value of JSON as Python writes it, with NaN and lone surrogates (as U+FFFD). Raises `ValueError` otherwise."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(raw.decode("utf-8"), parse_int=lambda digits: int(digits) if len(digits) < 20 else None)
            text = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def finish_reason(choice: dict[str, Any]) -> str | None:
    """Why a choice ended, in OpenAI's terms. Null is accepted: some servers never say, DashScope says "null". Raises
    `Unreadable` for reasons that do not mean the end of a reply (`error`, `abort`), and `tool_calls`: we never offer tools."""
    reason = choice.get("finish_reason")
    name = str(reason).lower().partition(":")[0].strip()
    if reason is None or name in ("", "null"):
        return None
    for openai_name, names in vocabulary().finish_reasons.items():
        if name in names:
            return openai_name
    raise Unreadable(f"bad finish reason {reason!r}", meaning="passing")


def _counts(usage: Any) -> dict[str, int]:
    """The token counts of a reply; tokens that only the total includes are reasoning (Gemini's OpenAI layer)."""
    prompt, completion = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    hidden = max(0, count_of(usage, "total_tokens") - prompt - completion) if prompt else 0
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    reasoning = count_of(details, "reasoning_tokens") or hidden
    return {"prompt_tokens": prompt, "completion_tokens": completion + hidden, "reasoning_tokens": reasoning}


def count_of(usage: Any, name: str) -> int:
    """A number of tokens from a usage object; 0 if it has no plausible one."""
    value = usage.get(name) if isinstance(usage, dict) else None
    if type(value) is int and 0 <= value <= MOST:  # the common case
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return min(max(int(value), 0), MOST)


def tokens_of(logprobs: Any) -> Tokens | None:
    """The generated tokens, each with the log-probabilities of its alternatives and itself (none if one is not finite). None if
    the server reported none, empty if it reported anything but a list of tokens."""
    if not logprobs or (isinstance(logprobs, dict) and not logprobs.get("content")):
        return None
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(entries, list) or not all(_is_token(token) for token in entries):
        return []
    return [(token["token"].translate(_SPELLINGS), _alternatives(token)) for token in entries]


def _is_token(token: Any) -> bool:
    return isinstance(token, dict) and isinstance(token.get("token"), str)


def _alternatives(token: Mapping[str, Any]) -> dict[str, float]:
    others = token.get("top_logprobs") or []
    logprobs = {}
    for entry in [*(others if isinstance(others, list) else [None]), token]:
        value = entry.get("logprob") if _is_token(entry) else None
        if value == -math.inf:
            value = _NO_MASS
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return {}
        name = entry["token"]
        logprobs[name if name.isascii() else name.translate(_SPELLINGS)] = float(value)
    return logprobs


def _of_answer(spec: ModelSpec, tokens: Tokens | None, text: str, reasoning: str) -> Tokens | None:
    """The answer's tokens among all generated ones: those at the end that spell it. Empty if that is not certain."""
    answer, first, spelling = "".join(text.split()), len(tokens or ()), ""
    while tokens and first and len(spelling) < len(answer):
        first -= 1
        token = tokens[first][0]
        if not CONTROL.fullmatch(token.strip()):
            spelling = "".join(token.split()) + spelling
    if not tokens or spelling != answer:
        return tokens and []
    before = "".join(token for token, _ in tokens[:first])
    words = "".join(CONTROL.sub("", before).split())
    last = next(reversed(list(_tags(*spec.think_tags).finditer(before.rstrip()[-2 * _LONGEST :]))), None)
    closed = last is not None and not last["opening"] and last.end() == len(last.string)
    certain = closed or words in ("", "".join(reasoning.split()))
    return [entry for entry in tokens[first:] if not CONTROL.fullmatch(entry[0].strip())] if certain else []


# ---- reasoning

_OPENING = (
    rf"<\|?(?:begin_of_|start_)?{REASONING}\|?>|(?-i:\[THINK\])|◁think▷|<\|channel>thought|<\|inner_prefix\|>"
    r"|<unused94>(?:thought)?"
    r"|<\|channel\|>(?!\s*final)[^<]{1,80}(?:<\|constrain\|>[^<]{1,20})?<\|message\|>"  # gpt-oss: analysis, commentary
)
_CLOSING = (
    rf"<(?:\|?/|\|?end_(?:of_)?){REASONING}\|?>|(?-i:\[/THINK\])|◁/think▷|<channel\|>|<\|inner_suffix\|>|<unused95>"
    r"|<\|channel\|>\s*final[^<]{0,20}(?:<\|constrain\|>[^<]{1,20})?<\|message\|>"
    r"|(?:<\|end\|>)?<\|begin\|>assistant<\|content\|>"  # Solar: the answer is a separate message
)
# Beginnings in words, each with its ending: gpt-oss without its control tokens, and Granite.
_IN_WORDS = {
    re.compile(r"\s*(?:assistant)?(?:analysis|commentary)(?=[^a-z\s,.;:!?'’-])"): "assistantfinal",
    re.compile(r"\s*Here is my thought process:"): "Here is my response:",
}
_WRAPPED = re.compile(r"<(answer|response|output|final|final_answer)>(.*?)(?:</\1>)?", re.S | re.I)
_FIRST_MARKER = re.compile(
    r"(?:<s>|<bos>|<BOS_TOKEN>|<\|(?:im_start|start|assistant|(?:begin_of|start)_?\w{0,20}|end_header_id)\|>)(?:assistant\b)?\s*",
    re.I,
)
_LAST_MARKER = re.compile(rf"(?:{CONTROL.pattern}|<\|(?:im_)?start\|>assistant)\Z")
_LONGEST = 64  # most characters of a control marker
_NAMED = re.compile(r"(?!.*signature).*(?:reason|think|thought)", re.I)
_TEXTS = frozenset({"text", "thinking", "thought", "reasoning", "reasoning_content", "summary", "content"})
_UNKNOWN = re.compile(r"(?=<\|[a-z]\w{2,30}\|>|<([a-z][\w:-]{2,30})>.*</\1>|\[([A-Z_]{4,30})\].*\[/\2\])\S{1,34}?[>\]]", re.S)
_ALOUD = re.compile(
    r"[*#_ ]{0,4}(?:thinking|thought|reasoning)(?: process)?[*_]{0,2}\s?[:：\n]|okay, (?:so )?the user\b|(?:好的|嗯)，用户",
    re.I,
)


def split_reasoning(spec: ModelSpec, text: str, apart: str = "") -> tuple[str, str]:
    """(answer, reasoning) of a reply's text; `apart` is reasoning from other fields. An unclosed block is reasoning to its end.
    A closing tag without an opening one makes everything before it reasoning."""
    for beginning, ending in _IN_WORDS.items():
        if begun := beginning.match(text):
            thought, _, answer = text[begun.end() :].rpartition(ending) if ending in text else (text[begun.end() :], "", "")
            return bare(answer), thought.strip()
    if not (spec.think_in_prompt or any(sign in text for sign in ("<", "[", "◁", "\ufeff", spec.think_tags[1]))):
        return text.strip(), ""  # the common case
    tags = list(_tags(*spec.think_tags).finditer(text))
    if spec.think_in_prompt and not apart and all(tag["opening"] for tag in tags):
        return "", text
    answers, thoughts, place, inside = list[str](), list[str](), 0, False
    for tag in tags:
        if not inside and not tag["opening"]:  # the template opened the block in the prompt
            thoughts.extend(answers)
            answers.clear()
            inside = True
        (thoughts if inside else answers).append(text[place : tag.start()])
        inside, place = bool(tag["opening"]), tag.end()
    (thoughts if inside else answers).append(text[place:])
    return bare("".join(answers)), "".join(thoughts)


@lru_cache
def _tags(opening: str, closing: str) -> re.Pattern[str]:
    return re.compile(f"{re.escape(closing)}|{_CLOSING}|(?P<opening>{re.escape(opening)}|{_OPENING})", re.I)


def bare(text: str) -> str:
    """An answer without leftovers at its ends: white space, a byte-order mark, control tokens, a tag around all of it."""
    text = text.strip("\ufeff").strip()
    while marker := _FIRST_MARKER.match(text):
        text = text[marker.end() :]
    end = len(text)
    while marker := _LAST_MARKER.search(text[max(0, end - _LONGEST) : end]):
        end = len(text[: end - len(marker[0])].rstrip())
    wrapped = _WRAPPED.fullmatch(text, 0, end)
    return bare(wrapped[2]) if wrapped else text[:end]


def text_of(content: Any) -> tuple[str, str]:
    """A message's text and reasoning from content: a string, null, or a list of parts. Raises `TypeError` for others."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise TypeError(f"content is {type(content).__name__}")
    texts, thoughts = list[str](), list[str]()
    for part in content:
        fields = part if isinstance(part, dict) else {"text": part}
        kind = str(fields.get("type", "text"))
        if fields.get("thought") is True or _NAMED.match(kind):
            thoughts.append(_words(fields))
        elif kind in ("text", "output_text") and isinstance(fields.get("text"), str):
            texts.append(fields["text"])
    return "".join(texts), "".join(thoughts)


def reasoning_beside(message: Mapping[str, Any]) -> str:
    """The reasoning in a separate field (`reasoning_content`, `reasoning`, `thinking_blocks` …), or ""."""
    others = message.keys() - {"role", "content"}
    return next(filter(None, (_words(message[name]) for name in sorted(others) if _NAMED.match(name))), "") if others else ""


def _words(value: Any, depth: int = 6) -> str:
    if isinstance(value, str) or not depth:
        return value if isinstance(value, str) else ""
    if isinstance(value, dict):
        value = [part for name, part in value.items() if name in _TEXTS]
    return "".join(_words(part, depth - 1) for part in value) if isinstance(value, list) else ""


def looks_like_reasoning(answer: str) -> str | None:
    """The beginning of an answer that may contain reasoning in an unknown form; None for any other."""
    begun = _UNKNOWN.match(answer) or _ALOUD.match(answer)
    return begun[0].strip() if begun else None


# ---- streamed replies

_TAG_BEGUN = re.compile(r"(?:<[|/a-z][^<>\s]{0,40}|\[/?T?H?I?N?K?|◁[^▷]{0,10})\Z", re.I)


async def read_stream(response: aiohttp.ClientResponse, most: int, hears: Callable[[str], None]) -> tuple[bytes, bool]:
    """The body that the answer would have without streaming, and whether it is complete: reading stops after `most` bytes. An
    error in the middle is the body. `hears` gets the text so far. Raises `Unreadable` if the stream ends before the reply."""
    message = dict.fromkeys(("content", "reasoning", "refusal"), "")
    choice: dict[str, Any] = {"message": message}
    body: dict[str, Any] = {"choices": [choice]}
    read, line, ended = 0, b"", False
    async for piece in response.content.iter_any():
        read += len(piece)
        if read > most:
            return b"", False
        *lines, line = (line + piece).split(b"\n")
        before = len(message["content"])
        for data in (entry.removeprefix(b"data:").strip() for entry in lines if entry.startswith(b"data:")):
            if data == b"[DONE]":
                ended = True
                continue
            try:
                event = orjson.loads(data)
                if event.get("error"):
                    return data, True
                body |= {name: event[name] for name in ("model", "usage") if event.get(name)}
                for part in event.get("choices") or ():
                    delta = part.get("delta") or {}
                    content, thought = text_of(delta.get("content"))
                    message["content"] += content
                    message["reasoning"] += thought + reasoning_beside(delta)
                    message["refusal"] += delta.get("refusal") or ""
                    choice |= {name: part[name] for name in ("error", "finish_reason") if part.get(name)}
            except (orjson.JSONDecodeError, TypeError, AttributeError) as error:
                shown = data[:200].decode("utf-8", "replace")
                raise Unreadable(f"unreadable event ({type(error).__name__}): {shown}") from None
        if len(message["content"]) > before:
            hears(message["content"])
    if not ended and "finish_reason" not in choice:
        raise Unreadable("the stream broke off in the middle of the reply")
    return orjson.dumps(body), True


def so_far(spec: ModelSpec, text: str, key: str | None) -> str:
    """The presentable part of an unfinished reply: without reasoning and key, or the beginning of either at the end."""
    shown = split_reasoning(spec, text)[0]
    for start in (spec.think_tags[0], key or ""):
        begun = next((size for size in range(min(len(start) - 1, len(shown)), 0, -1) if start.startswith(shown[-size:])), 0)
        shown = shown[: len(shown) - begun]
    return mask_answer(_TAG_BEGUN.sub("", shown), key)
