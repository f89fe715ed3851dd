"""What evalica makes of votes that the tests make again: strengths of Bradley and Terry, a tie being half a win for each.

    make setup-peers    # it needs pandas and a Rust extension, so it is not in our environment
    .venv-peers/bin/python tests/evalsuite/evalica_oracle.py > tests/evalsuite/evalica.json

Needs numpy and evalica alone. The library's scores are the exponentials of strengths; what is kept is the expected share, in
per cent, of each system against the others met equally often.
"""

import json
from typing import Any

import numpy as np

CASES = {"even schedule": (4, 30, 1.0), "some pairs seldom": (5, 40, 0.15), "twenty systems": (20, 40, 0.1)}
# systems, items, and how often the pair that is shown the least is on an item


def data(name: str) -> tuple[list[str], Any, Any]:
    """Items of the votes, their two systems [votes, 2], and the points of the first."""
    systems, items, least = CASES[name]
    rng = np.random.default_rng(sum(name.encode()))
    pairs = [(a, b) for a in range(systems) for b in range(a + 1, systems)]
    often = np.linspace(1.0, least, len(pairs)) * min(1.0, 12 / len(pairs))
    strength = rng.normal(0, 0.7, systems)
    votes = []
    for item in range(items):
        for (a, b), chance in zip(pairs, often, strict=True):
            if rng.random() < chance:
                gap = strength[a] - strength[b] + rng.normal(0, 1.2)
                votes.append((f"{item:02}", a, b, 0.5 if abs(gap) < 0.2 else float(gap > 0)))
    return [vote[0] for vote in votes], np.array([vote[1:3] for vote in votes]), np.array([vote[3] for vote in votes])


def figures() -> dict[str, list[float]]:
    """Of each case the expected share of every system."""
    from evalica import Winner, bradley_terry  # type: ignore[import-not-found]

    words = {1.0: Winner.X, 0.5: Winner.Draw, 0.0: Winner.Y}
    found = {}
    for name in CASES:
        _, systems, points = data(name)
        first, second = systems.T.tolist()
        result = bradley_terry(first, second, [words[one] for one in points.tolist()], tolerance=1e-12, limit=100_000)
        scores = result.scores.sort_index().to_numpy()
        chance = 100 * scores[:, None] / (scores[:, None] + scores)
        found[name] = ((chance.sum(axis=1) - 50) / (len(scores) - 1)).tolist()
    return found


if __name__ == "__main__":
    print(json.dumps(figures(), indent=1))
