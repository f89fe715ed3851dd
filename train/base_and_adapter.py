"""A base and a LoRA adapter on it, side by side: how likely lines are to each, and what each says next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from core.errors import UserError
from train.decoding import token_batches
from train.examples import IGNORED, Prepared, encode_stock
from train.models import adapter_switched_on, greedy_lines

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Floats = NDArray[np.float64]
Row = dict[str, list[int]]

BATCH_TOKENS = 4096  # padding included
HEAD_TOKENS = 512  # scored tokens whose logits are held at a time
NEW_TOKENS = 64


def _progress(batches: list[list[int]], what: str) -> Iterable[list[int]]:
    console = Console(stderr=True)
    return track(batches, what, console=console, transient=True, disable=not console.is_terminal)


@dataclass
class BaseAndAdapter:
    """A base with an adapter on it (`train.models.load_adapters`)."""

    peft: PeftModel
    """The model, in evaluation mode."""
    tokenizer: PreTrainedTokenizerBase
    """The base's."""
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Gives the context that the recipe's precision asks for."""
    budget: int = BATCH_TOKENS
    """Tokens of a batch, padding included."""

    @contextmanager
    def _as(self, voice: str) -> Iterator[None]:
        import torch

        with torch.inference_mode(), adapter_switched_on(self.peft, None if voice == "base" else 0), self.autocast():
            yield

    def nll(self, rows: Sequence[Row], voice: str, what: str) -> Floats:
        """Negative log-likelihood of each row's labelled tokens, summed, in nats: [rows]. `voice` is base or adapter.

        Logits are made for labelled positions only, by the output layer alone: a base that scales or caps its logits
        afterwards is refused with `UserError`.
        """
        import torch

        from train.batches import padded

        inner: PreTrainedModel = self.peft.get_base_model()
        head = inner.get_output_embeddings()
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(inner.config, name, None) not in (None, 1, 1.0):
                raise UserError(
                    f"base: its config sets {name}, which this comparison does not apply: its perplexity would be wrong"
                )
        sums = np.zeros(len(rows))
        for batch in _progress(token_batches([len(row["input_ids"]) for row in rows], self.budget), what):
            ids = padded([rows[i]["input_ids"] for i in batch], 0).to(inner.device)
            mask = padded([[1] * len(rows[i]["input_ids"]) for i in batch], 0).to(inner.device)
            labels = padded([rows[i]["labels"] for i in batch], IGNORED).to(inner.device)[:, 1:]
            scored = labels != IGNORED
            with self._as(voice):
                hidden = inner.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
                parts = zip(hidden[:, :-1][scored].split(HEAD_TOKENS), labels[scored].split(HEAD_TOKENS), strict=True)
                losses = [torch.nn.functional.cross_entropy(head(h).float(), w, reduction="none") for h, w in parts]
            summed = torch.zeros(len(batch), dtype=torch.float64, device=inner.device)
            summed.index_add_(0, scored.nonzero()[:, 0], torch.cat(losses).double())
            sums[batch] = summed.cpu().numpy()
        return sums

    def lines(self, prompts: Sequence[list[int]], voice: str, what: str) -> list[tuple[str, bool]]:
        """The greedy continuation of each prompt (token ids), and whether it ended within `NEW_TOKENS`."""
        lines: dict[int, tuple[str, bool]] = {}
        for batch in _progress(token_batches([len(prompt) for prompt in prompts], self.budget), what):
            with self._as(voice):
                generated = greedy_lines(self.peft.get_base_model(), self.tokenizer, [prompts[i] for i in batch], NEW_TOKENS)
            lines.update(zip(batch, generated, strict=True))
        return [lines[index] for index in range(len(prompts))]


def stock_rows(prepared: Prepared, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """The same dialogues under the tokenizer's own template, with the same tokens labelled (cut where ours were cut).

    Raises `UserError` when the tokens that would be scored differ, or the template cannot be scored turn by turn.
    """
    rows = []
    for example, ours in zip(prepared.examples, prepared.rows, strict=True):
        ids, labels = encode_stock(tokenizer, example.messages)
        places = [place for place, label in enumerate(labels) if label != IGNORED]
        wanted = [label for label in ours["labels"] if label != IGNORED]
        if [labels[place] for place in places[: len(wanted)]] != wanted:
            raise UserError(f"dialogue {example.id}: the base's own template makes other tokens of the same seeker lines")
        # What follows the last scored token is scored by nobody and seen by nothing that is.
        size = len(ids) if len(places) == len(wanted) else places[len(wanted) - 1] + 1
        rows.append({"input_ids": ids[:size], "labels": labels[:size]})
    return rows
