"""Where a reply's reasoning ends and its answer begins, in every shape in which servers let reasoning through.

It may stand in tags of many spellings, in channels (gpt-oss), in parts of the content (Mistral), in fields of their own, or
behind a tag that the chat template opened, so that only the closing one is seen. A reply is split here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from core.markers import CONTROL, REASONING
from core.specs import ModelSpec

_OPENING = (
    rf"<\|?(?:begin_of_|start_)?{REASONING}\|?>|(?-i:\[THINK\])|◁think▷|<\|channel>thought|<\|inner_prefix\|>"
    r"|<unused94>(?:thought)?"
    r"|<\|channel\|>(?!\s*final)[^<]{1,80}(?:<\|constrain\|>[^<]{1,20})?<\|message\|>"  # gpt-oss: analysis, commentary
)
_CLOSING = (
    rf"<(?:\|?/|\|?end_(?:of_)?){REASONING}\|?>|(?-i:\[/THINK\])|◁/think▷|<channel\|>|<\|inner_suffix\|>|<unused95>"
    r"|<\|channel\|>\s*final[^<]{0,20}(?:<\|constrain\|>[^<]{1,20})?<\|message\|>"
    r"|(?:<\|end\|>)?<\|begin\|>assistant<\|content\|>"  # Solar: the answer is a message of its own
)
# Beginnings in words, with the ending that goes with each: gpt-oss whose control tokens were skipped, and Granite.
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
_LONGEST = 64  # characters of a control marker at most
_NAMED = re.compile(r"(?!.*signature).*(?:reason|think|thought)", re.I)
_TEXTS = frozenset({"text", "thinking", "thought", "reasoning", "reasoning_content", "summary", "content"})
_UNKNOWN = re.compile(r"(?=<\|[a-z]\w{2,30}\|>|<([a-z][\w:-]{2,30})>.*</\1>|\[([A-Z_]{4,30})\].*\[/\2\])\S{1,34}?[>\]]", re.S)
_ALOUD = re.compile(
    r"[*#_ ]{0,4}(?:thinking|thought|reasoning)(?: process)?[*_]{0,2}\s?[:：\n]|okay, (?:so )?the user\b|(?:好的|嗯)，用户",
    re.I,
)


def split_reasoning(spec: ModelSpec, text: str, apart: str = "") -> tuple[str, str]:
    """(answer, reasoning) of a reply's text; `apart` is reasoning that came beside the text.

    An unclosed block is reasoning to its end. A tag that closes no block makes everything before it reasoning.
    """
    for beginning, ending in _IN_WORDS.items():
        if begun := beginning.match(text):
            thought, _, answer = text[begun.end() :].rpartition(ending) if ending in text else (text[begun.end() :], "", "")
            return bare(answer), thought.strip()
    if not (spec.think_in_prompt or any(sign in text for sign in ("<", "[", "◁", "\ufeff", spec.think_tags[1]))):
        return text.strip(), ""  # most answers
    tags = list(_tags(*spec.think_tags).finditer(text))
    if spec.think_in_prompt and not apart and all(tag["opening"] for tag in tags):
        return "", text
    said, thoughts, place, inside = list[str](), list[str](), 0, False
    for tag in tags:
        if not inside and not tag["opening"]:  # the template opened the block in the prompt
            thoughts.extend(said)
            said.clear()
            inside = True
        (thoughts if inside else said).append(text[place : tag.start()])
        inside, place = bool(tag["opening"]), tag.end()
    (thoughts if inside else said).append(text[place:])
    return bare("".join(said)), "".join(thoughts)


@lru_cache
def _tags(opening: str, closing: str) -> re.Pattern[str]:
    return re.compile(f"{re.escape(closing)}|{_CLOSING}|(?P<opening>{re.escape(opening)}|{_OPENING})", re.I)


def ends_in_closing_tag(spec: ModelSpec, text: str) -> bool:
    """Whether what stands behind a text is an answer: it ends with a tag that closes a block of reasoning."""
    last = next(reversed(list(_tags(*spec.think_tags).finditer(text.rstrip()[-2 * _LONGEST :]))), None)
    return last is not None and not last["opening"] and last.end() == len(last.string)


def bare(text: str) -> str:
    """An answer without what templates and servers leave at its ends: white space, a byte order mark, control tokens, a tag
    around the whole of it."""
    text = text.strip("\ufeff").strip()
    while marker := _FIRST_MARKER.match(text):
        text = text[marker.end() :]
    end = len(text)
    while marker := _LAST_MARKER.search(text[max(0, end - _LONGEST) : end]):
        end = len(text[: end - len(marker[0])].rstrip())
    wrapped = _WRAPPED.fullmatch(text, 0, end)
    return bare(wrapped[2]) if wrapped else text[:end]


def text_of(content: Any) -> tuple[str, str]:
    """A message's text and the reasoning among its parts: content is a string, nothing, or a list of parts of which those of
    text and of thinking count. Raises `TypeError` for others."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise TypeError(f"content is {type(content).__name__}")
    said, thought = list[str](), list[str]()
    for part in content:
        fields = part if isinstance(part, Mapping) else {"text": part}
        kind = str(fields.get("type", "text"))
        if fields.get("thought") is True or _NAMED.match(kind):
            thought.append(_words(fields))
        elif kind in ("text", "output_text") and isinstance(fields.get("text"), str):
            said.append(fields["text"])
    return "".join(said), "".join(thought)


def reasoning_beside(message: Mapping[str, Any]) -> str:
    """The reasoning in a field of its own (`reasoning_content`, `reasoning`, `thinking_blocks` …); "" where there is none."""
    others = message.keys() - {"role", "content"}
    return next(filter(None, (_words(message[name]) for name in sorted(others) if _NAMED.match(name))), "") if others else ""


def _words(value: Any, depth: int = 6) -> str:
    if isinstance(value, str) or not depth:
        return value if isinstance(value, str) else ""
    if isinstance(value, Mapping):
        value = [part for name, part in value.items() if name in _TEXTS]
    return "".join(_words(part, depth - 1) for part in value) if isinstance(value, list) else ""


def looks_like_reasoning(answer: str) -> str | None:
    """How an answer begins that may hold reasoning in a shape that is not known here; None for any other."""
    begun = _UNKNOWN.match(answer) or _ALOUD.match(answer)
    return begun[0].strip() if begun else None
