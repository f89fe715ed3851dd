"""The paper's own leaderboard (table 5), as scores that a board can hold beside others."""

from __future__ import annotations

from evalsuite.fdaef.registry import Benchmark
from evalsuite.fdaef.scores import ModelScores
from evalsuite.reported.tables import load_reported

PAPER, LEADERBOARD = "ecdbench", "5"


def published_scores(benchmark: Benchmark) -> list[ModelScores]:
    """The capability scores of the paper's leaderboard, as scores given for whole capabilities."""
    paths = {part.label: key for key, part in benchmark.capabilities.items()}
    models: dict[str, dict[str, float]] = {}
    for cell in load_reported(PAPER).cells[LEADERBOARD]:
        if cell.at["column"] in paths and cell.value is not None:
            models.setdefault(cell.at["Model"], {})[paths[cell.at["column"]]] = float(cell.value)
    return [ModelScores(model, {}, capabilities) for model, capabilities in models.items()]
