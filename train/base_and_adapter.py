"""A base and a LoRA adapter on it, side by side: how likely given lines are to each, and what each says next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from core.errors import UserError
from serve.checkpoints.lora import WEIGHTS, adapter_rank
from serve.checkpoints.model_card import read_training
from train.chat_templates import IGNORED, encode_stock
from train.examples import Prepared

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Floats = NDArray[np.float64]
Row = dict[str, list[int]]

BATCH_TOKENS = 4096  # padding included
HEAD_TOKENS = 512  # scored tokens whose logits are held at a time
NEW_TOKENS = 64


def load_adapter(base: PreTrainedModel, folder: Path) -> PeftModel:
    """The base with a role adapter on it. Raises `UserError` for a folder that is none, half written, or of another base."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    adapter_rank(folder, "--adapter")
    training = read_training(folder)
    if training is not None and training.kind != "role":
        raise UserError(f"--adapter: {folder} is a ranker, not a seeker simulator")
    try:
        model = PeftModel.from_pretrained(base, str(folder))
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"--adapter: base and adapter do not fit: {folder}: {str(error).strip().splitlines()[-1].strip()}"
        ) from None
    with safe_open(folder / WEIGHTS, "np") as stored:
        other = set(stored.keys()) ^ set(get_peft_model_state_dict(model))
    if other:
        raise UserError(f"--adapter: base and adapter do not fit: {folder}: {len(other)} tensors, for example {min(other)}")
    return model.eval()


def batches(lengths: Sequence[int], budget: int = BATCH_TOKENS) -> list[list[int]]:
    """Indices in batches of similar length, each of at most `budget` tokens with padding (a longer one alone)."""
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not found or (len(found[-1]) + 1) * lengths[index] > budget:
            found.append([])
        found[-1].append(index)
    return found


def _progress(found: list[list[int]], what: str) -> Iterable[list[int]]:
    console = Console(stderr=True)
    return track(found, what, console=console, transient=True, disable=not console.is_terminal)


@dataclass
class BaseAndAdapter:
    """A base with an adapter on it; `autocast` gives the context that the recipe's precision asks for."""

    peft: PeftModel
    tokenizer: PreTrainedTokenizerBase
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    budget: int = BATCH_TOKENS

    def _as(self, voice: str) -> AbstractContextManager[Any]:
        return self.peft.disable_adapter() if voice == "base" else nullcontext()

    def nll(self, rows: Sequence[Row], voice: str, what: str) -> Floats:
        """Negative log-likelihood of each row's labelled tokens, summed, in nats: [rows]. `voice` is base or adapter.

        Logits are made for labelled positions only, by the output layer alone: a base that scales or caps its logits
        afterwards is refused with `UserError`.
        """
        import torch

        inner: PreTrainedModel = self.peft.get_base_model()
        head = inner.get_output_embeddings()
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(inner.config, name, None) not in (None, 1, 1.0):
                raise UserError(
                    f"base: its config sets {name}, which this comparison does not apply: its perplexity would be wrong"
                )
        sums = np.zeros(len(rows))
        for batch in _progress(batches([len(row["input_ids"]) for row in rows], self.budget), what):
            width = max(len(rows[i]["input_ids"]) for i in batch)
            ids = torch.zeros((len(batch), width), dtype=torch.long)
            mask = torch.zeros_like(ids)
            labels = torch.full_like(ids, IGNORED)
            for place, index in enumerate(batch):
                size = len(rows[index]["input_ids"])
                ids[place, :size] = torch.tensor(rows[index]["input_ids"])
                labels[place, :size] = torch.tensor(rows[index]["labels"])
                mask[place, :size] = 1
            ids, mask, labels = (each.to(inner.device) for each in (ids, mask, labels[:, 1:]))
            scored = labels != IGNORED
            wanted = labels[scored]
            with torch.inference_mode(), self._as(voice), self.autocast():
                hidden = inner.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
                parts = zip(hidden[:, :-1][scored].split(HEAD_TOKENS), wanted.split(HEAD_TOKENS), strict=True)
                losses = [torch.nn.functional.cross_entropy(head(h).float(), w, reduction="none") for h, w in parts]
            summed = torch.zeros(len(batch), dtype=torch.float64, device=inner.device)
            summed.index_add_(0, scored.nonzero()[:, 0], torch.cat(losses).double())
            sums[batch] = summed.cpu().numpy()
        return sums

    def lines(self, prompts: Sequence[list[int]], voice: str, what: str) -> list[tuple[str, bool]]:
        """The greedy continuation of each prompt (token ids), and whether it ended within `NEW_TOKENS`."""
        import torch

        inner: PreTrainedModel = self.peft.get_base_model()
        end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        ends = sorted({end, self.tokenizer.eos_token_id} - {None})
        found: dict[int, tuple[str, bool]] = {}
        for batch in _progress(batches([len(prompt) for prompt in prompts], self.budget), what):
            width = max(len(prompts[i]) for i in batch)
            ids = torch.tensor([[end] * (width - len(prompts[i])) + prompts[i] for i in batch], device=inner.device)
            mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in batch], device=inner.device)
            with torch.inference_mode(), self._as(voice), self.autocast():
                said = inner.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                    num_beams=1,
                    repetition_penalty=1.0,  # some bases' generation config sets one, and it applies to greedy search, too
                    eos_token_id=ends,
                    pad_token_id=end,
                )
            for index, tokens in zip(batch, said[:, width:].tolist(), strict=True):
                stop = next((place for place, token in enumerate(tokens) if token in ends), None)
                found[index] = (self.tokenizer.decode(tokens[:stop], skip_special_tokens=True).strip(), stop is not None)
        return [found[index] for index in range(len(prompts))]


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
