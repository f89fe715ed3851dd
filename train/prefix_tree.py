"""Sequences with common prefixes, which are computed only once, forward and backward: the seven questions about a dialogue
share all of it. A row holds them as a tree in depth-first order: a token sees the tokens on the path from the root to itself,
and has the same position as in its sequence alone, so every sequence gets the same logits as alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tree:
    """T tokens of N sequences. `until[t]` is the end of the subtree of token t: tokens t … until[t] - 1 see it. `paths[n]` are
    the indices in the tree of sequence n's tokens."""

    ids: list[int]
    positions: list[int]
    until: list[int]
    paths: list[list[int]]


def tree(sequences: Sequence[Sequence[int]]) -> Tree:
    """The tree of sequences of any lengths; equal sequences share all their tokens."""
    ids, positions, until = list[int](), list[int](), list[int]()
    paths: list[list[int]] = [[] for _ in sequences]

    def lay(group: list[int], at: int) -> None:
        """Append the tokens from `at` on of sequences that agree before it."""
        opened: list[int] = []
        while group:
            forks: dict[int, list[int]] = {}
            for n in group:
                forks.setdefault(sequences[n][at], []).append(n)
            if len(forks) > 1:
                for members in forks.values():
                    lay(members, at)
                break
            place = len(ids)
            ids.append(sequences[group[0]][at])
            positions.append(at)
            until.append(place + 1)
            opened.append(place)
            for n in group:
                paths[n].append(place)
            at += 1
            group = [n for n in group if len(sequences[n]) > at]
        for place in opened:
            until[place] = len(ids)

    lay([n for n, sequence in enumerate(sequences) if sequence], 0)
    return Tree(ids, positions, until, paths)


def alike(sequences: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[int]]:
    """Groups of sequences to read together: those with one name (a dialogue's) whose neighbours in sorted order share at least
    half of the shorter one. Groups are in the order of their first members, and members in the given order."""
    order = sorted(range(len(sequences)), key=lambda n: (names[n], list(sequences[n])))
    groups: list[list[int]] = []
    for n in order:
        last = groups[-1][-1] if groups else n
        shorter = min(len(sequences[last]), len(sequences[n]))
        if groups and names[last] == names[n] and 2 * shared(sequences[last], sequences[n]) >= shorter:
            groups[-1].append(n)
        else:
            groups.append([n])
    return sorted(sorted(group) for group in groups)


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def visible(until: torch.Tensor) -> torch.Tensor:
    """The attention mask from `until` [B, T] (0 for padding): [B, 1, T, T], true where the row's token sees the column's.
    Padding sees only itself, so that no row of the softmax is empty."""
    import torch

    column = torch.arange(until.shape[1], device=until.device)
    row = column[:, None]
    return (((row >= column) & (row < until[:, None, :])) | (row == column))[:, None]
