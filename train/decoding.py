"""A ranker's answers as a constrained server gives them: greedily, digit after digit, each among the scale's tokens and after
the digits before it (the model's own, not the right ones). Scoring a test split and validation in training both decode here.

Shapes: R rows (examples) in a batch, T tokens, D digits of the longest answer, S scores of the scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_prep.scores.rank_sft import RankExample

if TYPE_CHECKING:
    import torch

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class PromptGroup:
    """The examples of one dialogue (their places in the file): `head` begins all their prompts, each of `tails` ends one.

    Neither is ever empty: prompts begin with the same role marker, and every tail keeps at least its last token.
    """

    places: tuple[int, ...]
    head: list[int]
    tails: tuple[list[int], ...]

    @property
    def cached(self) -> int:
        """Tokens held in the cache while its answers are generated."""
        return len(self.tails) * (len(self.head) + max(map(len, self.tails)))


def prompt_groups(examples: Sequence[RankExample], prompts: Sequence[list[int]], fits: Sequence[bool]) -> list[PromptGroup]:
    """The examples that fit, by dialogue, with what their prompts have in common apart."""
    of_dialogue: dict[str, list[int]] = defaultdict(list)
    for place, example in enumerate(examples):
        if fits[place]:
            of_dialogue[example.dialogue_id].append(place)
    dialogues = []
    for places in of_dialogue.values():
        sequences = [prompts[place] for place in places]
        columns = enumerate(zip(*sequences, strict=False))
        shared = next((i for i, column in columns if len(set(column)) > 1), min(map(len, sequences)))
        head = min(shared, *(len(sequence) - 1 for sequence in sequences))
        dialogues.append(PromptGroup(tuple(places), sequences[0][:head], tuple(sequence[head:] for sequence in sequences)))
    return dialogues


def token_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Places in batches of like length, each of at most `budget` tokens with padding (a longer one alone).

    The longest come first: a batch that is too large for the memory is the first one.
    """
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > budget:
            batches.append([])
        batches[-1].append(place)
    return batches


class Decoder:
    """Probabilities [R, digits, S] over `tokens` of a batch's answers; the model has to be in evaluation mode."""

    def __call__(self, model: Any, batch: Sequence[PromptGroup], tokens: Sequence[int], digits: int) -> Shares:
        import torch

        from train.batches import left_padded

        with torch.inference_mode():
            # What stands in for the padding is masked, so any token will do.
            ids, mask = (tensor.to(model.device) for tensor in left_padded([group.head for group in batch], 0))
            cache = _forward(model, ids, mask, None).past_key_values
            owner = torch.tensor([number for number, group in enumerate(batch) for _ in group.tails], device=model.device)
            cache.batch_select_indices(owner)
            ids, fresh = (tensor.to(model.device) for tensor in left_padded([t for group in batch for t in group.tails], 0))
            mask = torch.cat([mask[owner], fresh], 1)
            scale = torch.tensor(list(tokens), device=model.device)
            logits = _forward(model, ids, mask, cache).logits[:, -1, scale]
            return greedy(model, logits, mask, cache, scale, digits).cpu().numpy()

    def take_spared(self) -> float:
        """Seconds of reading that were spared since this was last asked, because an earlier adapter had read the same."""
        return 0.0


def greedy(model: Any, logits: torch.Tensor, mask: torch.Tensor, cache: Any, scale: torch.Tensor, digits: int) -> torch.Tensor:
    """Probabilities [R, digits, S] over the tokens `scale` [S], each digit after the most probable ones before it.

    `logits` [R, S] are those of the first digit; `cache` holds the T tokens read so far, of which `mask` [R, T] says which
    count: after them it is one token a further digit, `digits` − 1 passes. Of equal scores the lowest is taken.
    """
    import torch

    shares: list[torch.Tensor] = []
    for step in range(digits):
        if step:
            ids = scale[shares[-1].argmax(1)][:, None]  # the first of equals
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            logits = _forward(model, ids, mask, cache).logits[:, -1, scale]
        shares.append(logits.double().softmax(-1))
    return torch.stack(shares, 1)


def _forward(model: Any, ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> Any:
    """The model's output for `ids`, the last tokens of `mask`: a token's position is the count of unmasked ones before it."""
    from train.batches import positions_of

    positions = positions_of(mask)[:, -ids.shape[1] :]
    return model(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
    )
