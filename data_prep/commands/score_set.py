"""`score-set` writes the synthetic score set."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

from core.ledger import Build
from core.options import OutOption, SeedOption, console, writes
from core.statistics.accuracy import majority
from data_prep.scores import synthetic


def score_set(out: Annotated[OutOption, writes("dialogues.jsonl", "scores.jsonl")], seed: SeedOption = 0) -> None:
    """Write the synthetic score set: dialogues whose seven scores hold by construction, en and zh.

    Good hand-written dialogues and their controlled degradations; the rules are in data_prep/scores/synthetic_rules.py.
    """
    dialogues, scores = synthetic.build(seed)
    build = Build(out, "score-set", seed, {"synthetic": True})
    build.write("dialogues.jsonl", dialogues)
    build.write("scores.jsonl", scores)
    console.print(f"{len(dialogues)} dialogues, {len(scores)} scores (synthetic: scores hold by construction)")
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for score in scores:
        values[score.language, score.dimension].append(score.value)
    for (language, dimension), numbers in values.items():
        labels = majority(numbers)
        counts = "  ".join(f"{label}: {count}" for label, count in labels["counts"].items())
        console.print(f"{language} {dimension:<12} {counts}  majority {100 * labels['majority_acc']:.1f} %")
    build.finish(console)
