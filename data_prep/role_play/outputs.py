"""Files of a finished role-play set in addition to its records: a `datasets` folder and the data card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from core.files import write_text
from core.grouping import group_by
from core.ledger import Build
from core.records import RoleCard
from core.rows import Source
from data_prep.role_play.contamination import THRESHOLD
from data_prep.role_play.mix import CAUTIOUS, CAUTIOUS_OWN, GENERAL_PROMPTS, RoleSet, RoleSftConfig

TEMPLATES = Path(__file__).parent


def write_dataset(result: RoleSet, build: Build, name: str) -> None:
    """OUT/NAME, for `datasets.load_from_disk`."""
    from datasets import Dataset, DatasetDict, disable_progress_bars

    disable_progress_bars()
    parts = {"train": result.train, "valid": result.valid}
    rows = {part: [example.model_dump(mode="json") for example in examples] for part, examples in parts.items() if examples}
    folder = build.folder / name
    DatasetDict({part: Dataset.from_list(values) for part, values in rows.items()}).save_to_disk(str(folder))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            build.output(path.relative_to(build.folder).as_posix())


def write_data_card(
    result: RoleSet,
    mix: RoleSftConfig,
    evaluation: Sequence[RoleCard],
    eval_names: Sequence[str],
    sources: Sequence[Source],
    build: Build,
) -> None:
    """Write README.md: the set's sources and rules, and how close it comes to the evaluation's cards."""
    source_of = {card.id: card.source for card in evaluation}
    scores: dict[str, list[float]] = defaultdict(list)
    for match in result.matches:
        scores[f"cards from {source_of[match.card_id]}, before"].append(match.score)
    if result.left:
        scores["all cards, in the finished set"] = [match.score for match in result.left]
    values = {
        "config": mix,
        "general": GENERAL_PROMPTS,
        "result": result,
        "manifest": build.manifest(),
        "rows": _rows(result),
        "evaluation": len(evaluation),
        "evaluation_files": ", ".join(Path(name).name for name in eval_names),
        "threshold": THRESHOLD,
        "cautious": CAUTIOUS,
        "cautious_own": CAUTIOUS_OWN,
        "scores": {name: quantiles(values) for name, values in sorted(scores.items())},
        "sources": sources,
    }
    template = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True)
    write_text(build.folder / "README.md", template.get_template("data_card.md.j2").render(values) + "\n")
    build.output("README.md")


def _rows(result: RoleSet) -> list[dict[str, Any]]:
    """A row per source and language of the set."""
    train = {example.id for example in result.train}
    rows = []
    for (source, language), group in group_by([*result.train, *result.valid], lambda e: (e.source, e.language)).items():
        tokens = quantiles([example.tokens for example in group])
        of_train = sum(example.id in train for example in group)
        rows.append(
            {
                "source": source,
                "language": language,
                "kind": group[0].kind,
                "cards": ", ".join(sorted({example.card_method for example in group if example.card_method})),
                "train": of_train,
                "valid": len(group) - of_train,
                "turns": f"{quantiles([example.turns for example in group])['median']:g}",
                "tokens": f"{tokens['median']:g}, {tokens['p95']:g}, {tokens['max']:g}",
            }
        )
    return rows


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """n, minimum, quartiles, 95th percentile and maximum (empty without values)."""
    if not values:
        return {"n": 0}
    low, first, median, third, high, top = np.quantile(np.asarray(values, dtype=float), [0, 0.25, 0.5, 0.75, 0.95, 1])
    named = {"min": low, "q25": first, "median": median, "q75": third, "p95": high, "max": top}
    return {"n": len(values)} | {name: round(float(value), 4) for name, value in named.items()}
