"""A ranker's answers as a constrained server gives them: greedily, digit after digit, each among the scale's tokens and given
the digits before it (the model's own, not the right ones). Scoring a test split and validation in training both decode here.

Shapes: R rows (examples) in a batch, T tokens, D digits of the longest answer, S scores of the scale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_prep.scores.rank_sft import RankExample
from train.prefix_tree import alike, tree

if TYPE_CHECKING:
    import torch

    from train.last_layer import LastLayer

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Unit:
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


def units(examples: Sequence[RankExample], prompts: Sequence[list[int]], fits: Sequence[bool]) -> list[Unit]:
    """The examples that fit, by dialogue, with what their prompts have in common apart."""
    of_dialogue: dict[str, list[int]] = defaultdict(list)
    for place, example in enumerate(examples):
        if fits[place]:
            of_dialogue[example.dialogue_id].append(place)
    found = []
    for places in of_dialogue.values():
        own = [prompts[place] for place in places]
        shared = next((i for i, column in enumerate(zip(*own, strict=False)) if len(set(column)) > 1), len(min(own, key=len)))
        common = min(shared, *(len(prompt) - 1 for prompt in own))
        found.append(Unit(tuple(places), own[0][:common], tuple(prompt[common:] for prompt in own)))
    return found


def batched(found: Sequence[Unit], batch_tokens: int) -> Iterator[list[Unit]]:
    """Units of like length together, the longest first: a batch that is too large for the memory is the first one."""
    batch: list[Unit] = []
    for unit in sorted(found, key=lambda unit: -unit.cached):
        if batch and (len(batch) + 1) * batch[0].cached > batch_tokens:
            yield batch
            batch = []
        batch.append(unit)
    if batch:
        yield batch


def decode(model: Any, batch: Sequence[Unit], tokens: Sequence[int], digits: int) -> Shares:
    """Probabilities [R, digits, S] over `tokens` of a batch's answers; the model has to be in evaluation mode."""
    import torch

    with torch.inference_mode():
        ids, mask = _left([unit.head for unit in batch], model.device)
        cache = _forward(model, ids, mask, None).past_key_values
        owner = torch.tensor([number for number, unit in enumerate(batch) for _ in unit.tails], device=model.device)
        cache.batch_select_indices(owner)
        ids, fresh = _left([tail for unit in batch for tail in unit.tails], model.device)
        mask = torch.cat([mask[owner], fresh], 1)
        scale = torch.tensor(list(tokens), device=model.device)
        logits = _forward(model, ids, mask, cache).logits[:, -1, scale]
        return greedy(model, logits, mask, cache, scale, digits).cpu().numpy()


def decode_kept(model: Any, batch: Sequence[Unit], tokens: Sequence[int], way: LastLayer) -> Shares:
    """`decode` of answers of one digit [R, 1, S] by way of what is kept: further adapters read no dialogue again."""
    import torch

    found, scale = [], torch.tensor(list(tokens), device=model.device)
    for unit in batch:
        prompts = [unit.head + tail for tail in unit.tails]
        shares = torch.empty(len(prompts), len(scale), dtype=torch.float64, device=model.device)
        for group in alike(prompts, [""] * len(prompts)):  # as in training: in the paper's order each is a row
            made = tree([prompts[n] for n in group])
            row = {
                "input_ids": made.ids,
                "position_ids": made.positions,
                "until": made.until,
                "places": [path[-1] for path in made.paths],
                "labels": [0] * len(made.paths),  # any: each of the places is asked
            }
            inputs = {name: torch.tensor([values], device=model.device) for name, values in row.items()}
            with torch.inference_mode():
                logits = way.logits(model, inputs | {"lengths": torch.tensor([len(made.ids)])}, scale)
            shares[group] = logits[0].double().softmax(-1)
        found.append(shares)
    return torch.cat(found)[:, None].cpu().numpy()


def greedy(model: Any, logits: torch.Tensor, mask: torch.Tensor, cache: Any, scale: torch.Tensor, digits: int) -> torch.Tensor:
    """Probabilities [R, digits, S] over the tokens `scale` [S], each digit after the most probable ones before it.

    `logits` [R, S] are those of the first digit; `cache` holds the T tokens read so far, of which `mask` [R, T] says which
    count: after them it is one token a further digit, `digits` − 1 passes. Of equal scores the lowest is taken.
    """
    import torch

    found: list[torch.Tensor] = []
    for step in range(digits):
        if step:
            ids = scale[found[-1].argmax(1)][:, None]  # the first of equals
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            logits = _forward(model, ids, mask, cache).logits[:, -1, scale]
        found.append(logits.double().softmax(-1))
    return torch.stack(found, 1)


def _left(rows: Sequence[list[int]], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [rows, longest], padded on the left. What stands in for the padding is masked, so any token will do."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
    return ids, torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)


def _forward(model: Any, ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> Any:
    """The model's output for `ids`, the last tokens of `mask`: a token's position is the count of unmasked ones before it."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    return model(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
    )
