"""The order of training examples depends on the seed and the epoch's number, and on nothing that happened before."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

LENGTHS = [(7 * number) % 40 + 1 for number in range(100)]


@pytest.mark.parametrize("group", [0, 4])
def test_every_epoch_is_a_permutation_of_its_own(group: int) -> None:
    import torch

    from train.batches import EpochSampler

    sampler = EpochSampler(LENGTHS, group, seed=3)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        torch.rand(5)  # what else is drawn does not matter
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    later = EpochSampler(LENGTHS, group, seed=3)
    later.set_epoch(2)
    assert list(later) == orders[2]
    assert list(EpochSampler(LENGTHS, group, seed=4)) != orders[0]


def test_groups_have_like_lengths() -> None:
    from train.batches import EpochSampler

    def spread(order: list[int]) -> float:
        groups = [order[start : start + 4] for start in range(0, 100, 4)]
        return sum(max(LENGTHS[i] for i in g) - min(LENGTHS[i] for i in g) for g in groups) / len(groups)

    assert spread(list(EpochSampler(LENGTHS, 4, seed=0))) < 0.3 * spread(list(EpochSampler(LENGTHS, 0, seed=0)))
