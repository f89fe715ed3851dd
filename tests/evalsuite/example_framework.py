"""A framework of one's own, whole: a warm line, whose callers each have one worry and speak first.

It needs this module alone. A config names it: `framework: my_package.my_module:WarmLine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from statistics import mean
from typing import Any

from pydantic import BaseModel

from core.records import RoleCard
from core.tables import Table
from evalsuite.dialogues.hold import ModelSide, Plan
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.identity import hashed
from evalsuite.runs.resolved import Resolved


class WarmLineSection(BaseModel):
    """The framework's own settings: the section `warm_line` of a config."""

    worries: list[str] = ["My exam is tomorrow.", "My neighbour moved away."]


class WarmLineConfig(EvalConfig):
    """A run's config, with the section and with defaults of its own."""

    exchanges: int = 2
    warm_line: WarmLineSection = WarmLineSection()


class WarmLine(Resolved):
    """A run with everything that its config names."""

    name = "warm_line"
    title = "Warm line"
    config_model = WarmLineConfig
    config: WarmLineConfig

    @cached_property
    def callers(self) -> list[RoleCard]:
        """One a worry; a report shows them as it shows role cards."""
        worries = enumerate(self.config.warm_line.worries)
        return [
            RoleCard(id=f"caller-{n}", language="en", problem=worry, source=self.name, card_method="written")
            for n, worry in worries
        ]

    def people(self) -> dict[str, list[RoleCard]]:
        """Written into the run folder."""
        return {"cards.jsonl": self.callers}

    def identity(self) -> dict[str, Any]:
        """Kept in config.json: with other worries, the folder is refused."""
        return {"callers": hashed(self.callers)}

    def plans(self) -> Iterator[Plan]:
        """Every caller calls every supporter."""
        for dialogue, caller, supporter in self.beginnings(self.callers):
            system = f"You call a warm line. You are worried: {caller.problem}"
            yield Plan(
                dialogue,
                seeker_side=ModelSide(self.seeker, "seeker", dialogue.id, system=system, lead="Warm line, good evening."),
                supporter_side=ModelSide(supporter, "supporter", dialogue.id),
                exchanges=self.config.exchanges,
            )

    @classmethod
    def tables(cls, run: ScoredRun) -> list[Table]:
        """How long a call is."""
        turns = mean(len(dialogue.turns) for dialogue in run.tally.dialogues)
        return [Table("warm_line", "Calls", ("calls", "turns a call"), ((len(run.tally.dialogues), turns),), section="Calls")]

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        """What a reader must know."""
        yield "Callers", "one worry each, read from the config"
