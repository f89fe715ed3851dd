"""A framework that plays dialogues: a run plans them from its config and everything that the config names. `RunIdentity` is the
identity with which the run claims its folder."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel

from core.errors import UserError
from core.files import check_unique, digest, validated
from core.judge_prompts import check_pack, templates_of
from core.languages import PAPER_LANGUAGES, fingerprint, tell, words
from core.languages import file_of as language_file
from core.prompts import PromptPack, load_pack
from core.records import Dialogue, HumanScore, Language
from core.rubrics import Rubric, load_rubric
from core.specs import ModelSpec
from data_prep.profiles import Played
from evalsuite.dialogues.hold import Opening, Plan, Source, replies_by_source, with_floor
from evalsuite.judge.judge import Judge, Shown
from evalsuite.runs.config import EvalConfig, GoldConfig
from evalsuite.runs.contents import Held
from evalsuite.runs.framework import Framework, framework_of, opens_freely
from evalsuite.runs.models import RunModels, default_folder, judge_pack, seeker_pack
from evalsuite.runs.people import file_of, load_people
from evalsuite.runs.run_config import HeldSpec, Shard, hashed, identity
from serve.questions import Models

if TYPE_CHECKING:
    from data_prep.dialogue_files import Given

P = TypeVar("P", bound=Played)


@dataclass(frozen=True, eq=False)
class DialogueFramework(Framework):
    """A run: the people, the dialogues to play, and what the judge sees. A framework defines `people` and `plan`, and overrides
    what differs. Raises `UserError` on construction or first use for whatever is missing, malformed or inconsistent."""

    config: EvalConfig
    held: Held | None = None
    """The content of the run folder, which comes before what the config names."""
    given: Mapping[str, ModelSpec] = field(default_factory=dict)
    """Models that a program hands over, by their names in the config."""
    _read: dict[tuple[Path, ...], list[Any]] = field(default_factory=dict, compare=False, repr=False)
    """What was read, by its files: shared by copies of this run."""

    config_model: ClassVar[type[BaseModel]] = EvalConfig
    models_class: ClassVar[type[RunModels]] = RunModels

    def identity(self) -> dict[str, Any]:
        return {file_of(self.played[0]).removesuffix(".jsonl"): hashed(self.played)} if self.played else {}

    @cached_property
    def played(self) -> list[Played]:
        """All people to play: those of the run folder, then `people`."""
        people = list(self.people())
        check_unique(f"framework {self.name}", (person.id for person in people), "ids of people")
        return self.held.people_with(people, self.languages) if self.held and people else people

    @cached_property
    def models(self) -> RunModels:
        return self.models_class(self.config, self.held, self.given)

    @property
    def method(self) -> str:
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
        return Path(self.config.out) if self.config.out is not None else default_folder(self.models)

    @property
    def shard(self) -> Shard | None:
        """The part of the dialogues that is played here; None for all."""
        return Shard.parse(self.config.shard) if self.config.shard else None

    @property
    def languages(self) -> list[Language]:
        """The languages to play and judge, those of the run folder first."""
        return list(dict.fromkeys([*(self.held.languages if self.held else ()), *self.config.languages]))

    @property
    def trials(self) -> int:
        """Dialogues per person and supporter."""
        return max(self.config.trials, self.held.trials if self.held else 0)

    @cached_property
    def rubric(self) -> Rubric:
        return load_rubric(self.config.rubric)

    @cached_property
    def pack(self) -> str:
        """The name of the seekers' prompt pack."""
        return seeker_pack(self.models)

    @cached_property
    def prompts(self) -> PromptPack:
        pack = load_pack(self.pack)
        pack.require(self.languages, self.templates)
        return pack

    @cached_property
    def judge_pack(self) -> str:
        """The name of the judge's prompt pack."""
        return judge_pack(self.models, self.method, self.rubric)

    @cached_property
    def judge_prompts(self) -> PromptPack:
        pack = load_pack(self.judge_pack)
        check_pack(pack, self.method, self.languages)
        return pack

    def judge(self, client: Models, **changes: Any) -> Judge:
        """The judge, with this client; `changes` are fields of `Judge`."""
        judge = Judge(client, self.models.judge, self.rubric, self.judge_prompts, self.method)
        return replace(judge, shown=self.shown, opens_freely=opens_freely, **changes)

    @cached_property
    def gold(self) -> tuple[list[Dialogue], list[HumanScore]]:
        """Dialogues and scores of the gold set in the run's languages; none without a gold set."""
        gold = self.config.gold
        return gold_set(gold, self.languages, self.rubric, self.shown) if gold else ([], [])

    @cached_property
    def replies(self) -> dict[Source, list[str]]:
        """The supporters' replies in the source dialogues."""
        return _replies(self.config.references, self.models)

    def given_dialogues(self, path: Path, in_any_language: bool = False) -> Given:
        """The dialogues of a file, which is read once, in the run's languages. Raises `UserError` with every fault."""
        if (path,) not in self._read:
            from data_prep.dialogue_files import read_given  # a run that plays dialogues reads none

            languages = self.config.languages
            records = read_given(path, languages[0] if len(languages) == 1 else None, self.config.roles)
            if self.config.anonymise:
                from data_prep.dialogue_files import without_personal_data

                records = without_personal_data(records)
            self._read[path,] = [records]
        given: Given = self._read[path,][0]
        dialogues = [dialogue for dialogue in given.dialogues if in_any_language or dialogue.language in self.languages]
        return replace(given, dialogues=dialogues)

    def load_people(self, record: type[P], names: Sequence[str], limit: int | None, every: bool = False) -> list[P]:
        """Cards or profiles of the config's languages (`every`: and the folder's), at most `limit` each, after the folder's."""
        languages = self.languages if every else self.config.languages
        people = load_people(record, names, languages, limit, self.config.until is not None, self._read)
        return self.held.people_with(people, self.languages) if self.held else people

    def plans(self) -> Iterator[Plan]:
        """The dialogues to play here: supporters × people × trials, or a shard's part of them, without languages that a
        supporter does not speak and references without a source dialogue."""
        pairs = [(*pair, trial) for pair, can_answer in self._pairs() if can_answer for trial in range(self.trials)]
        for supporter, person, trial in self.shard.take(pairs) if self.shard else pairs:
            opening = Opening.of(self.name, person, supporter.name, self.models.simulator, trial)
            yield with_floor(self.plan(opening, person, supporter), supporter.floor, self.replies)

    def silent(self) -> int:
        """The number of dialogues that are left out because a person has no source dialogue for the reference."""
        return self.trials * sum(not can_answer for _, can_answer in self._pairs())

    def _pairs(self) -> Iterator[tuple[tuple[ModelSpec, Played], bool]]:
        """Supporters and people of the same language, and whether the supporter has replies; only a reference may lack them."""
        for supporter, person in itertools.product(self.models.supporters, self.played):
            reference = supporter.floor is not None and supporter.floor.kind == "reference"
            if supporter.speaks(person.language):
                source = person.source or self.name, person.source_id or ""
                yield (supporter, person), not reference or bool(self.replies.get(source))


def _replies(references: Sequence[str], models: RunModels) -> dict[Source, list[str]]:
    if references:
        from data_prep.scores.human import read_dialogues

        return replies_by_source(read_dialogues([Path(path) for path in references]))
    floors = (spec.floor for spec in models.supporters if not isinstance(spec, HeldSpec))
    if any(floor and floor.kind == "reference" for floor in floors):
        raise UserError("supporter reference: give the dialogues that the cards were made from: --set references=FILE")
    return {}


def dialogue_framework(settings: Mapping[str, Any]) -> type[DialogueFramework]:
    """The framework that fields of a config name. Raises `UserError` if it plays no dialogues."""
    name = str(settings.get("framework", EvalConfig.model_fields["framework"].default))
    framework = framework_of(name)
    if not issubclass(framework, DialogueFramework):
        raise UserError(f"framework {name} holds no dialogues: use `esc-eval paper {name}`")
    return framework


def run_of(settings: Mapping[str, Any], given: Mapping[str, ModelSpec]) -> DialogueFramework:
    """A run with these fields of a config, and with models that a program hands over."""
    framework = dialogue_framework(settings)
    config = validated(framework.config_model, dict(settings), "settings")
    assert isinstance(config, EvalConfig)
    return framework(config, given=given)


def resolve_config(config: EvalConfig) -> DialogueFramework:
    """The config as an instance of its framework."""
    return dialogue_framework({"framework": config.framework})(config)


def gold_set(
    gold: GoldConfig, languages: Sequence[Language], rubric: Rubric, shown: Shown
) -> tuple[list[Dialogue], list[HumanScore]]:
    """The dialogues in these languages, at most `limit` per language, and their scores on the rubric's dimensions. Raises
    `UserError` for a set without scores, and for a dialogue whose profile the judge should see but is not known."""
    dialogues: Sequence[Dialogue]
    scores: Sequence[HumanScore]
    if gold.dialogues == "synthetic":  # each module is imported only for its own set
        from data_prep.scores import synthetic

        dialogues, scores = synthetic.build(languages=tuple(languages))
    elif gold.dialogues == "synthetic_test":
        from data_prep.scores.rank_sft import synthetic_test

        dialogues, scores = synthetic_test()
    elif gold.scores is None:
        raise UserError("gold.scores: name the JSONL file of scores that belongs to gold.dialogues")
    else:
        from data_prep.scores.human import read_dialogues, read_scores

        dialogues, scores = read_dialogues([Path(gold.dialogues)]), read_scores(Path(gold.scores))
    chosen: list[Dialogue] = []
    for language in languages:
        available = [dialogue for dialogue in dialogues if dialogue.language == language]
        if gold.limit is not None and gold.limit < len(available):
            available = [available[index] for index in sorted(random.Random(0).sample(range(len(available)), gold.limit))]
        chosen += available
    for dialogue in chosen:
        shown.profile(dialogue)  # refuses an unknown profile before anything is started
    ids = {dialogue.id for dialogue in chosen}
    return chosen, [score for score in scores if score.dialogue_id in ids and score.dimension in rubric.dimensions]


@dataclass(frozen=True)
class RunIdentity:
    """The identity of a run by stage, as JSON. Each method loads and checks everything that its stage uses."""

    framework: DialogueFramework

    def simulate(self) -> dict[str, Any]:
        """What the dialogues depend on."""
        framework, models = self.framework, self.framework.models
        earlier = framework.held.references if framework.held else None
        references = digest(sorted(framework.replies.items())) if framework.replies else earlier
        return {
            "framework": framework.config.framework,
            "mode": framework.config.mode,
            **framework.identity(),
            "languages": framework.languages,
            "exchanges": framework.config.exchanges,
            "trials": framework.trials,
            **({"replay": str(models.recording)} if models.recording else {}),
            "seeker": models.identity(models.seeker),
            "supporters": [models.identity(spec) for spec in models.supporters],
            **({"references": references} if references else {}),
            "prompts": self._prompts(framework.pack, framework.prompts, framework.dialogue_parts),
            **self._texts(framework.prompts, [*framework.prompts.of_dialogues(framework.config.mode == "paper")]),
        }

    def score(self) -> dict[str, Any]:
        """What the judgements depend on in addition to the dialogues."""
        framework = self.framework
        return {
            "mode": framework.config.mode,
            "judge": identity(framework.models.judge),
            "rubric": framework.rubric.model_dump(mode="json"),
            "method": framework.method,
            "prompts": self._prompts(framework.judge_pack, framework.judge_prompts, framework.judge_parts),
            **self._texts(framework.judge_prompts, templates_of(framework.method), framework.rubric),
            **framework.judging_identity(),
        }

    def gold(self) -> dict[str, Any]:
        """What the agreement depends on: the gold set, by its hash."""
        dialogues, scores = self.framework.gold
        gold = self.framework.config.gold or GoldConfig()
        records = hashed([*dialogues, *scores]) | {"count": len(dialogues)}
        return {"dialogues": gold.dialogues, "limit": gold.limit, **records}

    def _prompts(self, name: str, pack: PromptPack, parts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        paper = self.framework.config.mode == "paper"
        ours = {"own_wording": pack.own_wording(self.framework.languages, parts)} if paper else {}
        return {"pack": name, "fingerprint": pack.fingerprint(), **ours}

    def _texts(self, pack: PromptPack, templates: Sequence[str], rubric: Rubric | None = None) -> dict[str, Any]:
        """For each language beyond those of the papers: the hash of its texts, and the texts that are English instead."""
        texts = []
        for language in (code for code in self.framework.languages if code not in PAPER_LANGUAGES):
            names = ["words.yaml", f"prompts/{pack.folder.name}", *([f"rubrics/{rubric.name}.yaml"] if rubric else [])]
            own = fingerprint(language, names)
            lacking = ["words"] if language_file(language, "words.yaml") is None else []
            lacking += ["rubric"] if rubric and not rubric.speaks(language) else []
            lacking += [template for template in templates if pack.file(language, template) is None]
            if lacking:
                tell(language, ", ".join(lacking))
            reviewed = words(language).reviewed if own else "no texts of its own"
            texts.append({"name": language, "sha256": own, "english": lacking, "reviewed": reviewed})
        return {"texts": texts} if texts else {}

    def own_wording(self, simulate: bool, score: bool) -> list[str]:
        """The parts of the published prompts that have our wording, of these stages of a run in paper mode."""
        framework, languages = self.framework, self.framework.languages
        if framework.config.mode != "paper":
            return []
        ours = framework.prompts.own_wording(languages, framework.dialogue_parts) if simulate else []
        return ours + (framework.judge_prompts.own_wording(languages, framework.judge_parts) if score else [])
