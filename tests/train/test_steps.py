"""The order of training examples, trees of sequences against the sequences themselves, and the speed that a training logs."""

import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.train.conftest import made_recipe, train, untrained, write_data, write_recipe
from train.sizes import flops_per_token
from train.steps import alike, tree

LENGTHS = [(7 * number) % 40 + 1 for number in range(100)]


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_examples_of_a_step_have_like_lengths() -> None:
    def spread(found: list[list[int]]) -> float:
        return sum(max(LENGTHS[i] for i in step) - min(LENGTHS[i] for i in step) for step in found) / len(found)

    assert spread(steps(4)) < 0.3 * spread(steps(0))


@pytest.mark.slow
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


@pytest.mark.slow
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


Sequences = list[list[int]]


def test_a_tree_by_hand() -> None:
    made = tree([[7, 8, 1], [7, 8, 2, 3], [7, 8], [9]])
    assert made.ids == [7, 8, 1, 2, 3, 9]
    assert made.positions == [0, 1, 2, 2, 3, 0]
    assert made.until == [5, 5, 3, 5, 5, 6]
    assert made.paths == [[0, 1, 2], [0, 1, 3, 4], [0, 1], [5]]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=9))
def test_every_sequence_is_a_path_and_nothing_is_held_twice(sequences: Sequences) -> None:
    made = tree(sequences)
    for sequence, path in zip(sequences, made.paths, strict=True):
        assert [made.ids[place] for place in path] == sequence
        assert [made.positions[place] for place in path] == list(range(len(sequence)))
        for at, place in enumerate(path):  # a token is seen from those below it alone
            seen = [other for other in range(place + 1) if place < made.until[other]]
            assert seen == path[: at + 1]
    assert len(made.ids) == len({tuple(s[:length]) for s in sequences for length in range(1, len(s) + 1)})


@pytest.mark.slow
def test_a_sequence_that_ends_within_another_is_no_fork() -> None:
    assert len(tree([list(range(n)) for n in range(1, 3000, 2)]).ids) == 2999


def test_sequences_of_a_dialogue_that_share_half_are_read_together() -> None:
    first, other = [1, 2, 3, 4, 5, 6], [1, 2, 9, 9, 9, 9]
    assert alike([first, other, [*first, 7], [1, 2, 3]], "aaaa") == [[0, 2, 3], [1]]
    assert alike([[1, 2, 8, 8], [1, 2, 9, 9]], "aa") == [[0, 1]]
    assert alike([[1, 8, 8], [1, 9, 9]], "aa") == [[0], [1]]
    assert alike([first, [*first, 8], [*first, 9], [*first, 7]], "abab") == [[0, 2], [1, 3]]


def test_groups_are_in_the_order_of_their_first_members() -> None:
    sequences = [[9, 9, 9, 1], [3, 3, 3, 1], [9, 9, 9, 0], [3, 3, 3, 0]]
    assert alike(sequences, "aaaa") == [[0, 2], [1, 3]]


@pytest.mark.slow
def test_padding_sees_itself_alone() -> None:
    import torch

    from train.steps import visible

    rng = random.Random(0)
    sequences = [[rng.randrange(3) for _ in range(rng.randrange(1, 9))] for _ in range(6)]
    made = tree(sequences)
    seen = visible(torch.tensor([[*made.until, 0, 0]]))[0, 0]
    size = len(made.ids)
    assert seen[size:].tolist() == torch.eye(size + 2, dtype=torch.bool)[size:].tolist()
    assert not seen[:size, size:].any()
    for path in made.paths:
        for at, place in enumerate(path):
            assert seen[place].nonzero().flatten().tolist() == path[: at + 1]


@pytest.mark.slow
@pytest.mark.parametrize("task, packing", [("role", False), ("role", True), ("rank", False)])
def test_a_pass_is_counted_example_by_example(tmp_path: Path, tiny: dict[str, Path], task: Any, packing: bool) -> None:
    """Padding is not counted, and a packed row's tokens attend to their own dialogue."""
    data = write_data(tmp_path, task, train=6, valid=5)
    given: dict[str, Any] = {"per_device_train_batch_size": 6, "lora_dropout": 0.0} | ({"packing": True} if packing else {})
    trainer = untrained(made_recipe(tmp_path, task, tiny["llama"], data, **given))
    clock = trainer._clock
    rows = trainer.train_dataset
    lengths = [n for row in rows["seq_lengths"] for n in row] if packing else [len(row) for row in rows["input_ids"]]
    assert len(lengths) == 6 and len(rows) == (2 if packing else 6)
    clock.on_train_begin()
    for batch in trainer.get_train_dataloader():
        clock.reads(batch)
    clock.on_step_end()
    seconds, found = clock._steps[0][0], clock.since_log()
    assert found["tokens_per_second_per_device"] * seconds == pytest.approx(sum(lengths))
    # A token attends to itself, too, which half of the length does not say.
    operations = sum(n * flops_per_token(clock._shape, n + 1, False) for n in lengths)
    assert found["tflops_per_device"] * seconds * 1e12 == pytest.approx(operations) and clock.since_log() == {}


@pytest.mark.slow
def test_a_training_logs_and_keeps_its_speed(tmp_path: Path, tiny: dict[str, Path]) -> None:
    """On a CPU no peak is known, so no share of it."""
    out, data = tmp_path / "out", write_data(tmp_path, "role", train=6, valid=5)
    given = {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    train("role", write_recipe(tmp_path / "r.yaml", "role", tiny["llama"], data, out, **given))
    timing = orjson.loads((out / "timing.json").read_bytes())
    history = orjson.loads((out / "checkpoint-4" / "trainer_state.json").read_bytes())["log_history"]
    logged = [row for row in history if "loss" in row]
    assert len(timing["step_seconds"]) == 4 and len(logged) == 2 and "mfu" not in timing
    for figures in (timing, *logged):
        assert figures["tokens_per_second_per_device"] > 0 and 0 < figures["tflops_per_device"] < 10
