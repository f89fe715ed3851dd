"""A framework of one's own, whole: a warm line, whose callers each have one worry and speak first.

It needs this module alone. A config names it: `framework: my_package.my_module:WarmLine`.
"""

from collections.abc import Iterator
from statistics import mean

from pydantic import BaseModel

from core.records import RoleCard
from core.specs import ModelSpec
from core.tables import Table
from evalsuite.dialogues.hold import ModelSide, Opening, Plan
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun


class WarmLineSection(BaseModel):
    """The framework's own settings: the section `warm_line` of a config."""

    worries: list[str] = ["My exam is tomorrow.", "My neighbour moved away."]


class WarmLineConfig(EvalConfig):
    """A run's config, with the section and with defaults of its own."""

    exchanges: int = 2
    warm_line: WarmLineSection = WarmLineSection()


class WarmLine(DialogueFramework):
    """A run with everything that its config names."""

    name = "warm_line"
    title = "Warm line"
    config_model = WarmLineConfig
    config: WarmLineConfig

    def people(self) -> list[RoleCard]:
        shared = {"language": "en", "source": self.name, "card_method": "written"}
        worries = enumerate(self.config.warm_line.worries)
        return [RoleCard.model_validate({"id": f"caller-{n}", "problem": worry, **shared}) for n, worry in worries]

    def plan(self, opening: Opening, person: RoleCard, supporter: ModelSpec) -> Plan:
        system = f"You call a warm line. You are worried: {person.problem}"
        caller = ModelSide(self.models.seeker, "seeker", opening.id, system=system, lead="Warm line, good evening.")
        return Plan(opening, caller, ModelSide(supporter, "supporter", opening.id), self.config.exchanges)

    @classmethod
    def tables(cls, run: ScoredRun) -> list[Table]:
        turns = mean(len(dialogue.turns) for dialogue in run.tally.dialogues)
        return [Table("warm_line", "Calls", ("calls", "turns per call"), ((len(run.tally.dialogues), turns),), section="Calls")]

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        yield "Callers", "one worry each, read from the config"
