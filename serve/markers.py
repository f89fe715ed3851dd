"""Control markers of chat templates in ordinary text: broken up, so that no text can open a turn of its own."""

from __future__ import annotations

import re
from functools import lru_cache

# Tokenizers read these inside a message as control tokens. By family: ChatML, Llama 3, Phi, GLM, Command R and others (<|…|>),
# DeepSeek (full-width bars), Llama 2 and Mistral ([INST] …), Gemma, InternLM and MOSS (<eoa>, [UNUSED_TOKEN_146]), Baichuan
# (<reserved_106>), ChatGLM ([gMASK]<sop>), BERT's and others' names for padding and the like.
CONTROL = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>"
    r"|</?(?:s|start_of_turn|end_of_turn|bos|eos|pad|unk|mask|sop|eop|eoa|eoh|eosys|eot|seed:[a-z]{1,12})>"
    r"|<(?:BOS|EOS|PAD|UNK|CLS|SEP|EOP)_TOKEN>|<(?:unused|reserved_|extra_id_)[0-9]{1,5}>|<start_of_image>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|MODEL_SETTINGS|CALL_ID|ARGS|THINK|IMG|PREFIX"
    r"|SUFFIX|MIDDLE)\]"
    r"|\[(?:UNUSED_TOKEN_[0-9]{1,5}|g?MASK|sMASK|CLS|SEP|PAD|UNK)\]|<<(?:/?SYS)>>|<\|channel>|<channel\|>|◁/?think▷"
)
# How models name the tags around their reasoning.
REASONING = (
    r"(?:[\w.-]{1,20}[:_-])?(?:deep|inner_?)?(?:think(?:ing)?|thoughts?|thought_process|reason(?:ing)?|reflection|scratchpad"
    r"|monologue|analysis)(?:_[a-z]{1,12})?"
)
# What stands for reasoning and tools. Our own system messages may ask for them; nobody else's text may hold them.
_TAGS = re.compile(rf"</?(?:{REASONING}|tool_call|tool_calls|tool_response|tool_responses|tools|function_call)>", re.I)


def defang(text: str, role: str = "user") -> str:
    """Chat-control markers in a message (`<|im_end|>`, `[INST]`, `</s>`, `<think>` …) broken up with a space; a system message
    keeps its tags of reasoning and tools, for which prompts ask. Records keep the text as it was."""
    if (
        "<" not in text and "[" not in text and "◁" not in text
    ):  # every marker begins with one of them; most messages hold neither
        return text
    return _broken_up(text, role)


@lru_cache(maxsize=256)  # a dialogue, and a system message, is sent many times
def _broken_up(text: str, role: str) -> str:
    text = CONTROL.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)
    return text if role == "system" else _TAGS.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)
