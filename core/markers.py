"""Control markers of chat templates in ordinary text are broken up here, so that no text can end a message or open a turn, in
training data and in requests to servers: a tokenizer's special and added tokens, and what looks like one of any family."""

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import read_object

# Shapes that tokenizers read as control tokens inside a message, by model family.
CONTROL = re.compile(
    "|".join(
        (
            r"<\|[^|<>\n]{1,40}\|>|</?｜[^｜<>\n]{1,40}｜>?",  # ChatML, Llama, Phi, GLM, Granite, Command; DeepSeek (wide bars)
            r"<\|(?=[a-zA-Z/])[\w/:. -]{2,40}>|<(?=[a-zA-Z/])[\w/:. -]{2,40}\|>",  # Gemma 4
            r"\[\|(?:AI|[A-Za-z]{3}[\w -]{0,30})\|\]|\|\|\|[A-Z_]{3,30}\|\|\||◁/?[a-z_]{1,20}▷",  # EXAONE; OLMo; Kimi
            r"\][~!]{1,2}[a-z]~?[\[\]]|\[[a-z]~\[|\]<\][a-z:_ ]{1,30}\[>\[",  # MiniMax
            r">>(?:TITLE|ABSTRACT|INTRODUCTION|SUMMARY|COMMENT|QUESTION|ANSWER|DOMAIN|PREFIX|SUFFIX|MIDDLE)<<",  # Falcon
            r"<<(?:/?SYS)>>|<role>(?=[A-Z]{4,12}</role>)",  # Llama 2; Ling
            # Single names: beginnings and ends of text, turn, sentence and the like.
            r"(?i:</?(?:s|bos|eos|pad|unk|mask|sep|cls|sop|eosys|eo[acdhimprtv])>)",
            r"\[(?:[gs]?MASK|CLS|SEP|PAD|UNK|BOS|EOS|EO[TMDP])\]|\[@[A-Z]{2,5}@\]|\[(?:(?:start|end)_header|eot)_id\]",
            # Names in parts: <start_of_turn>, <longcat_user>, <seed:bos>, <fim_prefix>, <_bot>, <BOS_TOKEN>.
            r"(?i:</?(?:(?:longcat|seed|minimax|mm|fim|im|jupyter|commit|issue|gh|pr)[_:][\w:]{1,40}"
            r"|(?:start|end|begin|beginning)_of_\w{1,30}|\w{0,30}[_:](?:user|assistant|system|human|bot|observation"
            r"|turn|bos|eos|eot|eod|pad|unk|mask|sep|start|end|token|placeholder))>)",
            # Names with a number: <unused7>, [UNUSED_TOKEN_146], <reserved_106>, <SPECIAL_10>, [control_8], <mask:0>.
            r"(?i:[<\[](?:unused|reserved|special|extra|control|dummy|mask|pad|loc|seg)(?:_(?:special_)?(?:token|id))?[_:]?"
            r"[0-9]{1,6}[>\]])",
            # Llama 2, Mistral.
            r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_[A-Z]{3,12}|MODEL_SETTINGS|CALL_ID|ARGS|THINK|IMG(?:_[A-Z]{3,6})?"
            r"|(?:[A-Z]{4,10}_)+AUDIO|PREFIX|SUFFIX|MIDDLE)\]",
        )
    )
)
# Models' names for the tags around their reasoning.
REASONING = (
    r"(?:[\w.-]{1,20}[:_-])?(?:deep|inner_?)?(?:think(?:ing)?|thoughts?|thought_process|reason(?:ing)?|reflection|scratchpad"
    r"|monologue|analysis)(?:_[a-z]{1,12})?"
)
# Tags of reasoning and tools. Our own system messages may ask for them; no other text may contain them.
_TAGS = (
    rf"(?i:</?(?:{REASONING}|(?:[\w.-]{{1,20}}[:_-])?"
    r"(?:(?:tool|function)_?(?:call|response|result|output)s?|tools|arg_(?:key|value)))>)"
)
_OPENS = "<[]|>◁"  # the first characters of these patterns; most messages contain none of them


class Markers:
    """What counts as a marker: the general pattern, and a tokenizer's control tokens."""

    def __init__(self, tokens: Iterable[tuple[str, bool]] = ()) -> None:
        """`tokens`: a tokenizer's special and added tokens, each with its special flag. Those without it count if they are in
        brackets and not HTML tags, as Gemma has. White space and single characters never do: some models pad with "!"."""
        own = {text for text, special in tokens if len(text) > 1 and text.strip() and (special or _is_marker(text))}
        self.own = sorted(sorted(own), key=len, reverse=True)  # longest first, as some begin alike
        self._opens = sorted({*_OPENS, *(text[0] for text in self.own)})
        self._every = self._compiled(self.own, _TAGS)
        self._but_tags = self._compiled([text for text in self.own if not re.fullmatch(_TAGS, text)])

    @staticmethod
    def _compiled(own: Iterable[str], *patterns: str) -> re.Pattern[str]:
        return re.compile("|".join([*map(re.escape, own), *patterns, CONTROL.pattern]))

    def neutral(self, text: str, role: str = "user") -> tuple[str, int]:
        """A message's text with every marker broken up by a space (`< |im_end|>`, `[ INST]`), and the number of markers. System
        messages keep tags of reasoning and tools, since prompts ask for them. Records keep the original text."""
        for sign in self._opens:  # twenty times as fast as searching with a pattern
            if sign in text:
                return _broken_up(self._but_tags if role == "system" else self._every, text)
        return text, 0


@lru_cache(maxsize=512)  # dialogues and system messages are sent many times
def _broken_up(pattern: re.Pattern[str], text: str) -> tuple[str, int]:
    count, replaced = 0, 1
    while replaced:  # the rest of one marker may be another
        text, replaced = pattern.subn(lambda marker: f"{marker[0][0]} {marker[0][1:]}", text)
        count += replaced
    return text, count


GENERAL = Markers()


def _is_marker(text: str) -> bool:
    bracketed = re.fullmatch(r"[^\w\s].*\w.*[^\w\s]", text, re.S) and not re.fullmatch(r"</?[a-z]+[1-6]?>", text)
    return bool(bracketed or CONTROL.fullmatch(text) or re.fullmatch(_TAGS, text))


@lru_cache(maxsize=8)
def markers_of(tokenizer: Any) -> Markers:
    """The markers of a tokenizer of transformers."""
    added = [(token.content, token.special) for token in tokenizer.added_tokens_decoder.values()]
    return Markers([*added, *((text, True) for text in tokenizer.all_special_tokens)])


@lru_cache(maxsize=64)
def markers_in(folder: Path | None) -> Markers:
    """The markers of a checkpoint's folder, from its tokenizer's files; the general ones if none of these can be read."""
    tokens: list[tuple[str, bool]] = []
    for path in [folder / "tokenizer_config.json", folder / "tokenizer.json"] if folder else []:
        with suppress(UserError):
            fields = read_object(path, "a tokenizer's file")
            added = [*(fields.get("added_tokens_decoder") or {}).values(), *(fields.get("added_tokens") or [])]
            tokens += [(token["content"], bool(token.get("special"))) for token in added]
            tokens += [(text, True) for key, text in fields.items() if key.endswith("_token") and isinstance(text, str)]
    return Markers(tokens) if tokens else GENERAL
