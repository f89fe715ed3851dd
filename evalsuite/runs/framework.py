"""What a framework defines, and where frameworks are found.

A framework is one class in one module. Those of this project are listed here. A config names your own by its place, or by the
name that its package gives it in an entry point of the group `esc_eval.frameworks`:

    framework: my_package.my_module:MyFramework

    [project.entry-points."esc_eval.frameworks"]
    my_framework = "my_package.my_module:MyFramework"
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import BaseModel

from core.errors import UserError, near, say
from core.records import Dialogue, RoleCard, Used
from core.specs import ModelSpec
from core.tables import Table
from data_prep.profiles import Played
from evalsuite.dialogues.hold import Opening, Plan
from evalsuite.runs.run_config import RunConfig
from serve.questions import Models

if TYPE_CHECKING:  # a run loads no statistics before it has scores
    from evalsuite.statistics.leaderboard import Tally

GROUP = "esc_eval.frameworks"
_BUNDLED = {
    "esc_eval": "evalsuite.papers.esc_eval:EscEval",
    "emoharbor": "evalsuite.papers.emoharbor:EmoHarbor",
    "feel": "evalsuite.papers.feel:Feel",
    "healthbench": "evalsuite.papers.healthbench:HealthBench",
    "vera_mh": "evalsuite.papers.vera_mh:VeraMh",
    "mindeval": "evalsuite.papers.mindeval:MindEval",
    "esc_judge": "evalsuite.papers.esc_judge:EscJudge",
}


@dataclass(frozen=True)
class ScoredRun:
    """A scored run folder, as the input of a report."""

    folder: Path
    config: RunConfig
    tally: Tally
    """Its dialogues and judgements, with their statistics."""
    usage: Used = field(default_factory=dict)
    timing: Mapping[str, Any] = field(default_factory=dict)
    """timing.json by stage."""

    @property
    def framework(self) -> str:
        """The framework that played the dialogues; "given dialogues" if none did."""
        simulated = self.config.simulated
        return (simulated and simulated.framework) or "given dialogues"


class Alarm(NamedTuple):
    """A dialogue with an event that no average may hide."""

    dialogue: Dialogue
    what: str
    """The event, as a sentence without its full stop: who, with whom, what."""


class Framework:
    """One published procedure. An instance is a run: its config, with everything that it names loaded and checked.

    Defaults for whatever a framework does not define. A framework that plays dialogues derives from
    `evalsuite.runs.dialogue_framework.DialogueFramework`.
    """

    name: ClassVar[str] = ""
    """In configs and records."""
    title: ClassVar[str] = ""
    """In reports."""
    config_model: ClassVar[type[BaseModel]]
    """A run's config, with the framework's own section."""
    may_leave: ClassVar[bool] = False
    """Whether the seeker may end a dialogue."""
    opens_freely: ClassVar[bool] = False
    """Whether supporters open dialogues in their own words."""
    templates: ClassVar[Sequence[str]] = ()
    """Files that the prompt pack must have, in addition to the judge's."""
    dialogue_parts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The wording that the dialogues depend on: label of a part → patterns of its files in the pack."""
    judge_parts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The wording that the judgements depend on, likewise."""
    importer: ClassVar[str] = ""
    """The command that reads the published wording from a user's clone; "" without one."""

    # --- a run ------------------------------------------------------------------------------------------------------------

    def people(self) -> Sequence[Played]:
        """The role cards or profiles to play; none if dialogues are given."""
        return ()

    def plan(self, opening: Opening, person: Any, supporter: ModelSpec) -> Plan:
        """How the dialogue of one of `people` with a supporter is played."""
        raise NotImplementedError(f"{self.name}: plan")

    def identity(self) -> dict[str, Any]:
        """What the dialogues depend on besides models and prompts, usually the people. A folder with another is refused."""
        return {}

    def judging_identity(self) -> dict[str, Any]:
        """What the judgements depend on in addition to the judge, the rubric, the method and the prompts."""
        return {}

    def people_of(self, dialogues: Sequence[Dialogue]) -> Sequence[Played]:
        """The people of given dialogues, if the judge sees them."""
        return ()

    def refuse_incomplete(self, dialogue: Dialogue) -> None:
        """Raise `UserError` for a given dialogue that cannot be judged."""

    def completing(self, dialogues: Iterable[Dialogue]) -> list[ModelSpec]:
        """The models that add what given dialogues lack for the judge; none if they are complete."""
        return []

    async def completed(self, client: Models, dialogue: Dialogue) -> Dialogue:
        return dialogue

    # --- its report -------------------------------------------------------------------------------------------------------

    @classmethod
    def players(cls, simulator: str) -> Sequence[str]:
        """The models behind the seeker's name in records."""
        return [simulator]

    @classmethod
    def card(cls, person: Any) -> RoleCard:
        """A person as a report shows them. Role cards need no change."""
        assert isinstance(person, RoleCard)
        return person

    @classmethod
    def wrote(cls, run: ScoredRun) -> bool:
        """Whether a run folder belongs to this framework."""
        return run.framework in (cls.name, f"{cls.__module__}:{cls.__qualname__}")

    @classmethod
    def tables(cls, run: ScoredRun) -> Iterable[Table]:
        """Tables in addition to those of every run, shown after the scores, those on costs with the costs."""
        return ()

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterable[tuple[str, str]]:
        """What a reader must know to compare the figures: (name, text)."""
        return ()

    @classmethod
    def cautions(cls, run: ScoredRun) -> Iterable[str]:
        """What the figures must not be taken for, as sentences."""
        return ()

    @classmethod
    def alarms(cls, run: ScoredRun) -> Iterable[Alarm]:
        """Dialogues that a report shows before everything else, whatever the figures are; the worst first."""
        return ()


@lru_cache
def _entries(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """The frameworks of other packages on `sys.path`, and those of this project; reads the metadata of every package."""
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    return others | {name: EntryPoint(name, place, GROUP) for name, place in _BUNDLED.items()}


def entries() -> dict[str, EntryPoint]:
    """All frameworks by name, not yet loaded."""
    return _entries(tuple(sys.path))


def framework_of(name: str) -> type[Framework]:
    """The framework of a name, or at `module:Class`. Raises `UserError` if it is unknown or cannot be loaded."""
    installed = entries()
    entry = EntryPoint(name, name, GROUP) if ":" in name else installed.get(name)
    if entry is None:
        raise UserError(f"unknown framework {name[:100]!r}: {near(name[:100], installed)}, or module:Class for one of your own")
    if ":" in name and "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # the path of an installed program lacks the current folder
    package = f" (package {entry.dist.name})" if entry.dist else ""
    try:
        framework: type[Framework] = entry.load()
    except Exception as error:  # other people's modules may raise anything when imported
        reason = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        where = f"; looked for on PYTHONPATH and in {Path.cwd()}" if ":" in name and isinstance(error, ImportError) else ""
        raise UserError(f"framework {name}{package} cannot be loaded: {reason}{where}") from None
    if not (isinstance(framework, type) and issubclass(framework, Framework) and framework.name):
        raise UserError(f"framework {name}{package}: a class with a name, derived from DialogueFramework, is expected")
    return framework


def frameworks() -> Iterator[type[Framework]]:
    """All frameworks that can be loaded, one by one; prints a warning, once, for each that cannot."""
    for name in entries():
        try:
            yield framework_of(name)
        except Exception as error:  # other people's packages may raise anything when imported
            problem = error if isinstance(error, UserError) else f"framework {name} cannot be loaded: {error!r}"
            _warn(f"warning: {problem}; it is left out")


@lru_cache
def _warn(text: str) -> None:
    say(text, err=True)


def framework_of_run(run: ScoredRun) -> type[Framework] | None:
    """The framework that wrote a run folder, None if none did."""
    if ":" in run.framework:
        return framework_of(run.framework)
    return next((framework for framework in frameworks() if framework.wrote(run)), None)


@lru_cache
def opens_freely(name: str | None) -> bool:
    """Whether the supporters of a framework open dialogues in their own words."""
    if name in _BUNDLED:
        return framework_of(name).opens_freely
    return name in entries() and any(framework.name == name and framework.opens_freely for framework in frameworks())
