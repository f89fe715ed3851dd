"""A model's results as plain data, for JSON: scores 0 to 100, shares 0 to 1, undefined figures null."""

from __future__ import annotations

from typing import Any

from evalsuite.fdaef.aggregate import ModelResult, Node
from evalsuite.fdaef.tables import lowest_items


def model_figures(result: ModelResult) -> dict[str, Any]:
    """A model's total, gate and capabilities."""
    root, gate = result.root, result.gate
    return {
        "model": result.model,
        "total": {
            "listed": root.score,
            "algorithm_5": result.gated,
            "reasons": result.reasons,
            "partial": {"listed": root.partial, "algorithm_5": result.gated_partial, "share": root.share, "n": root.n},
            "interval": _interval(root),
        },
        "gate": None
        if gate is None
        else {
            "capability": gate.path,
            "threshold": result.threshold,
            "score": gate.score,
            "partial": gate.partial,
            "share": gate.share,
            "passed": result.passed,
            "passing_draws": result.passing,
        },
        "capabilities": {node.path: _node_figures(node) for node in root.children},
    }


def tree_figures(node: Node, items: int) -> dict[str, Any]:
    """A part of the benchmark with all below it, and so many single items of every method, lowest first."""
    figures = {"path": node.path, "layer": node.layer} | _node_figures(node)
    if (measured := node.measured) is not None:
        figures |= {
            "raw": measured.raw,
            "chance": measured.chance,
            "unread": measured.unread,
            "reasons": [node.reason] if node.reason else [],
        }
        figures |= {"items": dict(lowest_items(measured.items, items))} if items else {}
    return figures | {"children": [tree_figures(child, items) for child in node.children]} if node.children else figures


def _node_figures(node: Node) -> dict[str, Any]:
    return {
        "label": node.label,
        "weight": node.weight,
        "score": node.score,
        "partial": node.partial,
        "share": node.share,
        "interval": _interval(node),
        "n": node.n,
        "reasons": node.gaps,
    }


def _interval(node: Node) -> list[float] | None:
    estimate = node.estimate
    return None if estimate.low is None or estimate.high is None else [estimate.low, estimate.high]
