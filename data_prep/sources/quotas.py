"""How many items of a corpus are drawn, and which."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from core.errors import UserError, near
from core.files import read_yaml
from core.ledger import Step


class Quotas(BaseModel):
    """How many items to draw of each corpus (configs/data/table5.yaml)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    source: str
    quotas: dict[str, Annotated[int, Field(ge=0)]]


def wanted_items(names: list[str], quotas: Path | None, limit: int | None) -> dict[str, int | None]:
    """How many items to draw of each corpus; None takes all. Corpora of a quota file that are not given count as asked for."""
    if quotas is None:
        return dict.fromkeys(names, limit)
    by_corpus = read_yaml(quotas, Quotas, "quota file").quotas
    for name in names:
        if name not in by_corpus:
            raise UserError(f"{quotas}: no quota for {name}: {near(name, by_corpus)} (or use --limit)")
    return dict(by_corpus)


def draw(items: list[Any], wanted: int | None, seed: int, name: str, step: Step) -> list[Any]:
    """A seeded sample in the corpus's order, all items where there are too few."""
    count = len(items) if wanted is None else min(wanted, len(items))
    places = random.Random(f"{seed}/cards/{name}").sample(range(len(items)), count)
    chosen = {items[place].id for place in places}
    return step.sieve(items, lambda item: None if item.id in chosen else "beyond the quota")
