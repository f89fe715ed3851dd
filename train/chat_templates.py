"""ChatML with marks around what the model says, and the tokens and labels that follow from it.

The template is ours: it writes every message as `<|im_start|>role`, newline, text, `<|im_end|>`, newline, adds no system
message of its own (Qwen1.5's and SmolLM2's stock templates do when there is none), and marks the assistant's text and its
`<|im_end|>` for the loss, so that the model learns to stop. Qwen1.5, InternLM2 and SmolLM2 were all trained on this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.errors import UserError
from core.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100  # a label that carries no loss
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SAMPLE: list[Message] = [
    {"role": "system", "content": "You are A."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "How are you?"},
]


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, what: str) -> None:
    """Raise `UserError` unless both turn markers are single tokens: otherwise the base was not made for ChatML."""
    for marker in ("<|im_start|>", "<|im_end|>"):
        if len(tokenizer.encode(marker, add_special_tokens=False)) != 1:
            raise UserError(f"{what}: {marker} is not one token of its tokenizer: this base does not speak ChatML")


def chatml(tokenizer: PreTrainedTokenizerBase) -> str:
    """Our template for this tokenizer: after its beginning-of-text token where its own template writes one (InternLM2's does),
    because servers prompt with the checkpoint's own template."""
    if not tokenizer.chat_template or not tokenizer.bos_token:
        return CHATML
    text = tokenizer.apply_chat_template(SAMPLE, tokenize=False)
    return (
        "{{ bos_token }}" if text.startswith(tokenizer.bos_token) and tokenizer.bos_token != "<|im_start|>" else ""
    ) + CHATML


def serves_alike(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer's own template, which servers use, prompts as ours does when there is a system message."""
    if not tokenizer.chat_template:
        return False
    texts = [
        tokenizer.apply_chat_template(SAMPLE, chat_template=template, tokenize=False, add_generation_prompt=True)
        for template in (None, chatml(tokenizer))
    ]
    return texts[0] == texts[1]


def encode(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: str | None = None
) -> tuple[list[int], list[int]]:
    """Token ids of a dialogue and labels of the same length: the id where the assistant speaks, `IGNORED` elsewhere.

    `template` is `chatml(tokenizer)`, for callers that encode many.
    """
    out = tokenizer.apply_chat_template(
        list(messages),
        chat_template=template or chatml(tokenizer),
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids = list(out["input_ids"])
    return ids, [token if marked else IGNORED for token, marked in zip(ids, out["assistant_masks"], strict=True)]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: str | None = None) -> list[int]:
    """The tokens before the assistant's next line: what `encode` of the longer dialogue begins with."""
    out = tokenizer.apply_chat_template(
        list(messages), chat_template=template or chatml(tokenizer), tokenize=True, return_dict=True, add_generation_prompt=True
    )
    return list(out["input_ids"])


def encode_stock(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """The same under the tokenizer's own template, whose marks are missing: a message's tokens are found by what it adds.

    Scored are the assistant's text and `<|im_end|>`, as under our template, whatever the template writes around them.
    Raises `UserError` when the template is missing or rewrites earlier messages as a dialogue grows.
    """
    if not tokenizer.chat_template:
        raise UserError("the base's tokenizer has no chat template of its own")
    ids: list[int] = []
    labels: list[int] = []
    for end in range(1, len(messages) + 1):
        text = tokenizer.apply_chat_template(list(messages[:end]), tokenize=False)
        whole = tokenizer.encode(text, add_special_tokens=False)
        if whole[: len(ids)] != ids:
            raise UserError("the base's own chat template changes earlier messages: it cannot be scored turn by turn")
        new = whole[len(ids) :]
        label = [IGNORED] * len(new)
        if messages[end - 1]["role"] == "assistant":
            said = tokenizer.encode(messages[end - 1]["content"] + "<|im_end|>", add_special_tokens=False)
            start = next((i for i in range(len(new) - len(said), -1, -1) if new[i : i + len(said)] == said), None)
            if start is None:
                raise UserError("the base's own chat template changes what is said: it cannot be scored turn by turn")
            label[start : start + len(said)] = said
        ids, labels = whole, labels + label
    return ids, labels
