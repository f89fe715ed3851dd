"""Sequences that begin alike, read once: what they share is computed a single time, forward and backward.

The seven questions about a dialogue share all of it. A row holds such sequences as a tree in depth-first order: a token sees
the tokens on the way from the root to itself, and has the position it would have if its sequence stood alone, so every
sequence gets the logits it would get by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tree:
    """T tokens that hold N sequences. `until[t]` is the end of the subtree of token t: tokens t … until[t] - 1 see it.

    `paths[n]` are the places in the tree of sequence n's tokens.
    """

    ids: list[int]
    positions: list[int]
    until: list[int]
    paths: list[list[int]]


def tree(sequences: Sequence[Sequence[int]]) -> Tree:
    """The tree of sequences, which may be of any length; equal ones share all of it."""
    ids: list[int] = []
    positions: list[int] = []
    until: list[int] = []
    paths: list[list[int]] = [[] for _ in sequences]
    # What is still to lay out: sequences that agree up to `depth`; None closes the subtrees that were opened after a place.
    stack: list[tuple[list[int], int] | tuple[None, list[int]]] = [([n for n, s in enumerate(sequences) if s], 0)]
    while stack:
        group, at = stack.pop()
        if group is None:
            for place in at:  # type: ignore[union-attr]
                until[place] = len(ids)
            continue
        assert isinstance(at, int)
        children: dict[int, list[int]] = {}
        for n in group:
            children.setdefault(sequences[n][at], []).append(n)
        if len(children) > 1:
            stack += [(members, at) for members in reversed(children.values())]
            continue
        # One way on: follow it as far as it does not fork and nothing ends.
        opened: list[int] = []
        while True:
            place, token = len(ids), sequences[group[0]][at]
            ids.append(token)
            positions.append(at)
            until.append(place + 1)
            opened.append(place)
            for n in group:
                paths[n].append(place)
            at += 1
            group = [n for n in group if len(sequences[n]) > at]
            if not group or len({sequences[n][at] for n in group}) > 1:
                break
        stack.append((None, opened))
        if group:
            stack.append((group, at))
    return Tree(ids, positions, until, paths)


def alike(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Which sequences to read together: neighbours in sorted order that share at least half of the shorter one.

    Groups are in the order of their first members, and so are members in them: nothing depends on how sequences compare.
    """
    order = sorted(range(len(sequences)), key=lambda n: list(sequences[n]))
    groups: list[list[int]] = []
    for n in order:
        if groups and 2 * _shared(sequences[groups[-1][-1]], sequences[n]) >= min(
            len(sequences[groups[-1][-1]]), len(sequences[n])
        ):
            groups[-1].append(n)
        else:
            groups.append([n])
    return sorted(sorted(group) for group in groups)


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def visible(until: torch.Tensor) -> torch.Tensor:
    """Which tokens see which, from `until` [B, T] (0 for padding): [B, 1, T, T], true where row's token sees column's.

    Padding sees itself alone, so that no row of the softmax is empty.
    """
    import torch

    place = torch.arange(until.shape[1], device=until.device)
    seen = (place[None, :, None] >= place[None, None, :]) & (place[None, :, None] < until[:, None, :])
    return (seen | torch.eye(until.shape[1], dtype=torch.bool, device=until.device))[:, None]
