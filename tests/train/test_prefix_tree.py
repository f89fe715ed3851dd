"""Trees of sequences against the sequences themselves."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.steps import alike, tree

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
