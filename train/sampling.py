"""The order of training examples, drawn anew for every epoch from the seed and the epoch's number alone.

transformers' length-grouped sampler draws from the global random state, which a resumed run has not restored yet when it draws:
it would see another order than the run that was killed, and skip the wrong examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

if TYPE_CHECKING:
    from trl import SFTTrainer as _Trainer
else:
    _Trainer = object


class EpochSampler(Sampler[int]):
    """A permutation of all examples; with `group` > 0, one in which runs of `group` examples have like lengths."""

    def __init__(self, lengths: Sequence[int], group: int, seed: int) -> None:
        self._lengths, self._group, self._seed, self._epoch = list(lengths), group, seed, 0

    def __len__(self) -> int:
        return len(self._lengths)

    def set_epoch(self, epoch: int) -> None:
        """Called by the data loader before every epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        if self._group:
            return iter(get_length_grouped_indices(self._lengths, self._group, generator=generator))
        return iter(torch.randperm(len(self._lengths), generator=generator).tolist())


class SeededOrder(_Trainer):
    """A trainer whose examples come in `EpochSampler`'s order (`train_sampling_strategy`: random or group_by_length)."""

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        lengths = [len(ids) for ids in self.train_dataset["input_ids"]]
        args = self.args
        grouped = args.train_sampling_strategy == "group_by_length"
        group = args.train_batch_size * args.gradient_accumulation_steps if grouped else 0
        return EpochSampler(lengths, group, args.data_seed if args.data_seed is not None else args.seed)
