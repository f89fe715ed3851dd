"""How well the parts of a benchmark separate models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from core.statistics.inference import ALPHA, holm
from core.tables import Table
from evalsuite.papers.ecdbench.aggregate import Layer, ModelResult, Node

LAYERS: tuple[Layer, ...] = ("capability", "sub_capability", "task", "dataset")


def separation_table(results: Sequence[ModelResult]) -> Table:
    """Every node for which at least two models have a score (0 to 100), the largest spread first within each layer."""
    places: dict[str, list[Node]] = {}
    for result in results:
        for node in result.root.walk():
            if node.layer in LAYERS and node.partial is not None and node.share:
                places.setdefault(node.path, []).append(node)
    rows = [(nodes[0], _row(nodes)) for nodes in places.values() if len(nodes) > 1]
    rows.sort(key=lambda pair: (LAYERS.index(pair[0].layer), -pair[1]["SD"], pair[0].path))
    note = (
        "reliability: the share of the models' variance that is not due to the sampling of items (0 to 1). significant pairs: "
        "z of the difference by its bootstrap standard error, p at most 0.05 after Holm's correction over a row's pairs. A "
        "dash: scores without items."
    )
    return Table.of("separation", "Which parts separate models", [row for _, row in rows], (note,), section="Discrimination")


def _row(nodes: Sequence[Node]) -> dict[str, Any]:
    from scipy.stats import norm

    place, scores = nodes[0], np.array([node.partial for node in nodes], dtype=np.float64)
    spread, reliability, significant = float(scores.std(ddof=1)), None, None
    pairs = list(combinations(range(len(nodes)), 2))
    if all(node.drawn and len(node.values) > 1 for node in nodes):
        draws = np.stack([node.values[1:] for node in nodes])
        noise = float(np.nanvar(draws, axis=1, ddof=1).mean())
        reliability = max(0.0, 1 - noise / spread**2) if spread > 1e-9 else None
        gaps = np.array([scores[i] - scores[j] for i, j in pairs])
        # Paired, since models with the same items share the draws.
        errors = np.array([np.nanstd(draws[i] - draws[j], ddof=1) for i, j in pairs])
        # A difference that never varies has no standard error to test it by: its pair is not counted.
        z = np.divide(np.abs(gaps), errors, out=np.full(len(gaps), np.nan), where=errors > 1e-9)
        p = holm(2 * norm.sf(z))
        significant = int((p[~np.isnan(p)] <= ALPHA).sum())
    return {
        "place": place.label if place.layer == "capability" else place.path,
        "layer": place.layer.replace("_", "-"),
        "models": len(nodes),
        "mean": float(scores.mean()),
        "SD": spread,
        "lowest": float(scores.min()),
        "highest": float(scores.max()),
        "reliability": reliability,
        "significant pairs": significant,
        "pairs": len(pairs),
    }
