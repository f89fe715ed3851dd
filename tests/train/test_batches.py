"""The order of training examples depends on the seed and the epoch's number, and on nothing that happened before."""

import pytest

pytestmark = pytest.mark.slow

LENGTHS = [(7 * number) % 40 + 1 for number in range(100)]


@pytest.mark.parametrize("group", [0, 4])
def test_every_epoch_is_a_permutation_of_its_own(group: int) -> None:
    import torch

    from train.steps import EpochSampler

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


def steps(batch: int, seed: int = 0, lengths: list[int] = LENGTHS) -> list[list[int]]:
    """The examples of each step of an epoch, in order."""
    from train.steps import EpochSampler

    order = list(EpochSampler(lengths, batch, seed))
    size = batch or 4
    return [order[start : start + size] for start in range(0, len(order), size)]


def test_the_examples_of_a_step_have_like_lengths() -> None:
    def spread(found: list[list[int]]) -> float:
        return sum(max(LENGTHS[i] for i in step) - min(LENGTHS[i] for i in step) for step in found) / len(found)

    assert spread(steps(4)) < 0.3 * spread(steps(0))


def test_short_and_long_steps_come_in_random_order() -> None:
    """transformers' sampler orders fifty steps from long to short: their mean lengths then fall in step with evaluations."""
    import random

    from scipy.stats import spearmanr
    from transformers.trainer_pt_utils import get_length_grouped_indices

    rng = random.Random(0)
    lengths = [min(2048, max(60, int(rng.lognormvariate(6.3, 0.75)))) for _ in range(13_300)]

    def trend(found: list[list[int]]) -> float:
        """How mean lengths go with the place among fifty whole steps (−1: longest first)."""
        means = [sum(lengths[i] for i in step) / len(step) for step in found[:50]]
        return float(spearmanr(range(len(means)), means).statistic)

    trends = [trend(steps(64, seed, lengths)) for seed in range(20)]
    assert abs(sum(trends) / 20) < 0.15 and max(map(abs, trends)) < 0.5  # chance: 0 ± 0.03, and at most 0.4 of 20
    theirs = get_length_grouped_indices(lengths, 64)
    assert trend([theirs[at : at + 64] for at in range(0, 3200, 64)]) < -0.99
    # What is left over is drawn like the rest, not what is shortest.
    left = [sum(lengths[i] for i in steps(64, seed, lengths)[-1]) / (13_300 % 64) for seed in range(20)]
    assert sum(left) / 20 == pytest.approx(sum(lengths) / 13_300, rel=0.2)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_step_has_the_same_examples_on_any_number_of_processes(processes: int) -> None:
    """By accelerate's own division of batches among processes."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    from train.steps import EpochSampler

    rows, accumulation = 2, 8 // (2 * processes)  # a global batch of eight
    sampler = EpochSampler(LENGTHS[:96], 8, seed=1)
    shards = [
        list(BatchSamplerShard(BatchSampler(sampler, rows, drop_last=False), processes, rank)) for rank in range(processes)
    ]
    order = list(sampler)
    for step in range(12):
        seen = [i for shard in shards for batch in shard[step * accumulation : (step + 1) * accumulation] for i in batch]
        assert sorted(seen) == sorted(order[8 * step : 8 * step + 8])
