"""Lengths in tokens, counted with a real tokenizer: no model library is loaded for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.errors import UserError, need_modules
from core.records import Message
from serve.checkpoints.embedded import materialise
from serve.checkpoints.places import local_path

EMBEDDED = "embedded"


class TokenCounter:
    """Counts tokens of chat messages with a checkpoint's tokenizer: `embedded`, a folder (or its tokenizer.json), or a hub id.

    Raises `UserError` when there is no tokenizer.json to read.
    """

    def __init__(self, place: str = EMBEDDED) -> None:
        need_modules("tokenizers", purpose="counting tokens")
        from tokenizers import Tokenizer

        folder = materialise() if place == EMBEDDED else local_path(place, "tokenizer")
        try:
            if folder is None:
                self._tokenizer = Tokenizer.from_pretrained(place)
            else:
                self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json" if folder.is_dir() else Path(folder)))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"tokenizer {place}: cannot be read: {error}") from None

    def count(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of each message in ChatML, the form that we train on: turn markers and role included.

        The markers are special tokens, so nothing merges across messages and the counts of a dialogue add up exactly.
        """
        texts = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
