"""A framework that holds dialogues: what a run of it plans, from its config and everything that the config names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel

from core.errors import UserError
from core.files import check_unique
from core.judge_prompts import check_pack
from core.prompts import PromptPack, load_pack
from core.records import Dialogue, HumanScore, Language
from core.rubrics import Rubric, load_rubric
from core.specs import ModelSpec
from data_prep.played import Played
from evalsuite.dialogues.floors import Source, replies_by_source, with_floor
from evalsuite.dialogues.hold import Opening, Plan
from evalsuite.judge.judge import Judge, Shown
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.framework import Framework, framework_of, opens_freely
from evalsuite.runs.held import Held, joined
from evalsuite.runs.identity import HeldSpec, hashed
from evalsuite.runs.models import RunModels, judge_pack, seeker_pack
from evalsuite.runs.people import file_of, load_people
from evalsuite.runs.shard import Shard
from serve.questions import Models

if TYPE_CHECKING:
    from data_prep.dialogue_files import Given

P = TypeVar("P", bound=Played)


@dataclass(frozen=True, eq=False)
class DialogueFramework(Framework):
    """A run: who is played, which dialogues are held, and what the judge is shown. Nothing has been written or started yet.

    A framework defines `people` and `plan`, and of the rest what is otherwise than here. Raises `UserError` on construction or
    first use for whatever is missing, malformed or does not fit together.
    """

    config: EvalConfig
    held: Held | None = None
    """What the run folder holds already: it counts as named in the config, before what is."""
    given: Mapping[str, ModelSpec] = field(default_factory=dict)
    """Models that a program hands over, by how the config names them."""
    _read: dict[tuple[Path, ...], list[Any]] = field(default_factory=dict, compare=False, repr=False)
    """People by the files that they were read from, which a run and what its folder holds share."""

    config_model: ClassVar[type[BaseModel]] = EvalConfig

    def identity(self) -> dict[str, Any]:
        return {file_of(self.played[0]).removesuffix(".jsonl"): hashed(self.played)} if self.played else {}

    @cached_property
    def played(self) -> list[Played]:
        """Everybody who is played: those in the run folder, then the others from `people`."""
        people = list(self.people())
        check_unique(f"framework {self.name}", (person.id for person in people), "ids of people")
        return self.held.people_with(people, self.languages) if self.held and people else people

    @cached_property
    def models(self) -> RunModels:
        """The models of all roles."""
        return RunModels(self.config, self.held, self.given)

    @property
    def method(self) -> str:
        """The judge's method."""
        return self.config.method

    @property
    def shown(self) -> Shown:
        """What the judge sees of the seeker."""
        return Shown(mode=self.config.mode)

    def judging_whole(self) -> Self:
        """A copy in which the judge scores only whole dialogues."""
        return self

    @property
    def out(self) -> Path:
        """The run folder. Raises `UserError` if neither the config nor a supporter names one."""
        return Path(self.config.out) if self.config.out is not None else Path("runs", self.config.framework, self.models.joined)

    @property
    def shard(self) -> Shard | None:
        """The part of the dialogues to hold here; None for all."""
        return Shard.parse(self.config.shard) if self.config.shard else None

    @property
    def languages(self) -> list[Language]:
        """The languages to play and judge."""
        return joined(self.held.languages if self.held else (), self.config.languages)

    @property
    def trials(self) -> int:
        """The number of dialogues per person and supporter."""
        return max(self.config.trials, self.held.trials if self.held else 0)

    @cached_property
    def rubric(self) -> Rubric:
        """The rubric."""
        return load_rubric(self.config.rubric)

    @cached_property
    def pack(self) -> str:
        """The name of the seekers' prompt pack."""
        return seeker_pack(self.models)

    @cached_property
    def prompts(self) -> PromptPack:
        """The seekers' prompt pack."""
        pack = load_pack(self.pack)
        pack.require(self.languages, self.templates)
        return pack

    @cached_property
    def judge_pack(self) -> str:
        """The name of the judge's prompt pack."""
        return judge_pack(self.models, self.method, self.rubric)

    @cached_property
    def judge_prompts(self) -> PromptPack:
        """The judge's prompt pack."""
        pack = load_pack(self.judge_pack)
        check_pack(pack, self.method, self.languages)
        return pack

    def judge(self, client: Models, **changes: Any) -> Judge:
        """The judge, who asks by this client; `changes` to it are fields of `Judge`."""
        judge = Judge(client, self.models.judge, self.rubric, self.judge_prompts, self.method)
        return replace(judge, shown=self.shown, opens_freely=opens_freely, **changes)

    @cached_property
    def gold(self) -> tuple[list[Dialogue], list[HumanScore]]:
        """Dialogues and scores of the gold set in the run's languages; empty if the config names no gold set."""
        if self.config.gold is None:
            return [], []
        from evalsuite.runs.gold import gold_set

        return gold_set(self.config.gold, self.languages, self.rubric, self.shown)

    @cached_property
    def replies(self) -> dict[Source, list[str]]:
        """The replies of the supporters in the source dialogues."""
        floors = (spec.floor for spec in self.models.supporters if not isinstance(spec, HeldSpec))
        if not self.config.references and any(floor and floor.kind == "reference" for floor in floors):
            raise UserError("supporter reference: give the dialogues that the cards were made from: --set references=FILE")
        if not self.config.references:
            return {}
        from data_prep.scores.human import read_dialogues

        return replies_by_source(read_dialogues([Path(path) for path in self.config.references]))

    def given_dialogues(self, path: Path) -> Given:
        """The dialogues of a file in the run's languages, of `in_any_language`."""
        given = self.in_any_language(path)
        return replace(given, dialogues=[dialogue for dialogue in given.dialogues if dialogue.language in self.languages])

    def in_any_language(self, path: Path) -> Given:
        """The dialogues of a file; it is read once. Those that do not say their language are in the only one of the config.
        Raises `UserError` with every fault."""
        if (path,) not in self._read:
            from data_prep.dialogue_files import read_given  # a run that holds dialogues reads none

            chosen = self.config.languages
            found = read_given(path, chosen[0] if len(chosen) == 1 else None, self.config.roles)
            if self.config.anonymise:
                from data_prep.personal_data import without_personal_data

                found = without_personal_data(found)
            self._read[path,] = [found]
        given: Given = self._read[path,][0]
        return given

    def load_people(self, record: type[P], names: Sequence[str], limit: int | None, every: bool = False) -> list[P]:
        """Cards or profiles of files (or `bundled`) in the config's languages, at most `limit` of each, after those that the
        run folder holds; at random for a run that may end early. `every`: in the folder's languages as well."""
        languages = self.languages if every else self.config.languages
        people = load_people(record, names, languages, limit, self.config.until is not None, self._read)
        return self.held.people_with(people, self.languages) if self.held else people

    def plans(self) -> Iterator[Plan]:
        """The dialogues to hold here: supporters × people × trials, or a shard's part of them.

        Left out are languages that a supporter does not speak, and references without a source dialogue.
        """
        pairs = [(*pair, trial) for pair in self._pairs() if self._can_answer(*pair) for trial in range(self.trials)]
        for supporter, person, trial in self.shard.take(pairs) if self.shard else pairs:
            opening = Opening.of(self.name, person, supporter.name, self.models.simulator, trial)
            yield with_floor(self.plan(opening, person, supporter), supporter.floor, self.replies)

    def silent(self) -> int:
        """The number of dialogues that a reference cannot hold, because it has no source dialogue of the person."""
        return self.trials * sum(not self._can_answer(*pair) for pair in self._pairs())

    def _pairs(self) -> Iterator[tuple[ModelSpec, Played]]:
        pairs = itertools.product(self.models.supporters, self.played)
        return ((supporter, person) for supporter, person in pairs if supporter.speaks(person.language))

    def _can_answer(self, supporter: ModelSpec, person: Played) -> bool:
        reference = supporter.floor is not None and supporter.floor.kind == "reference"
        return not reference or bool(self.replies.get((person.source or self.name, person.source_id or "")))


def resolve_config(config: EvalConfig) -> DialogueFramework:
    """The config as an instance of its framework."""
    framework = framework_of(config.framework)
    assert issubclass(framework, DialogueFramework), "`load_config` refuses others"
    return framework(config)
