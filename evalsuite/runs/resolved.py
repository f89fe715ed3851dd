"""A run's config with everything that it names loaded and checked: what frameworks that hold dialogues are made from."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel

from core.addresses import FORM
from core.errors import UserError
from core.files import check_unique, digest
from core.judge_prompts import JudgeMethod, check_pack
from core.machine import Machine
from core.prompts import PromptPack, load_pack
from core.records import Dialogue, HumanScore, Language, RoleCard, dialogue_id
from core.rubrics import Rubric, load_rubric
from core.specs import ModelSpec, Sampling, load_spec, packs_without_rules
from data_prep.played import Played
from data_prep.scores import synthetic
from data_prep.scores.human import read_dialogues, read_gold
from data_prep.scores.rank_sft import synthetic_test
from evalsuite.dialogues.floors import FLOORS, REFERENCE, Source, replies_by_source
from evalsuite.judge.base import Shown
from evalsuite.runs.config import EvalConfig, GoldConfig
from evalsuite.runs.framework import Framework, framework_of
from evalsuite.runs.held import Held, joined
from evalsuite.runs.identity import HeldSpec, hashed, identity
from evalsuite.runs.recording import Recording
from evalsuite.runs.shard import Shard
from serve.callables import callable_of
from serve.phases import phases
from serve.questions import Models

PACK = "esc_eval"  # for plain seekers and judges
_LONGEST = 80  # characters of a run folder's name that is made of supporters' names
Role = Literal["seeker", "supporter", "judge"]
J = TypeVar("J")
P = TypeVar("P", bound=Played)


@dataclass(frozen=True)
class Resolved(Framework):
    """A config with everything it names loaded and checked; nothing has been written or started yet.

    A framework that holds dialogues derives from it. Where it defines nothing, the judge is shown the dialogue alone. Raises
    `UserError` on construction or first use for whatever is missing, malformed or does not fit together.
    """

    config: EvalConfig
    held: Held | None = None
    """What the run folder holds already: it counts as named in the config, before what is."""
    given: Mapping[str, ModelSpec] = field(default_factory=dict)
    """Models that a program hands over, by how the config names them."""
    _read: dict[tuple[Path, ...], list[Any]] = field(default_factory=dict, compare=False, repr=False)
    """Who is in files that were read: once for a run and for what its folder holds beside it."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    config_model: ClassVar[type[BaseModel]] = EvalConfig
    templates: ClassVar[Sequence[str]] = ()
    """Files that the prompt pack must have, besides the judge's."""
    dialogue_parts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The wording that decides the dialogues: what a part is called → patterns of its files in the pack."""
    judge_parts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The wording that decides the judgements."""
    importer: ClassVar[str] = ""
    """The command that reads the published wording from a user's clone, where there is one."""

    # --- what a framework may define -------------------------------------------------------------------------------------

    def people_of(self, dialogues: Sequence[Dialogue]) -> Mapping[str, Sequence[BaseModel]]:
        """Who is played in given dialogues, where the judge is shown it."""
        return {}

    def judging_identity(self) -> dict[str, Any]:
        """What decides the judgements, beyond the judge, the rubric, the method and the prompts."""
        return {}

    @property
    def seekers(self) -> list[ModelSpec]:
        """The models that play the seeker."""
        return [self.seeker]

    @property
    def simulator(self) -> str:
        """The seeker's name in the records."""
        return self.seeker.name

    @property
    def names(self) -> list[str]:
        """How the config names its models, besides the supporters."""
        return list(filter(None, [self.config.seeker, self.config.judge, self.config.model]))

    @property
    def shown(self) -> Shown:
        """What the judge is shown of the seeker."""
        return Shown(mode=self.config.mode)

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        """A model's spec as it is sampled in a role."""
        return spec

    def refuse_incomplete(self, dialogue: Dialogue) -> None:
        """Raise `UserError` for a given dialogue that cannot be judged as it is."""

    def completing(self, dialogues: Iterable[Dialogue]) -> list[ModelSpec]:
        """The models that add what given dialogues lack of what the judge is to be shown; none where they lack nothing."""
        return []

    async def completed(self, client: Models, dialogue: Dialogue) -> Dialogue:
        """A given dialogue with what it lacks."""
        return dialogue

    def judging_whole(self) -> Resolved:
        """The same, with the judge asked about whole dialogues alone."""
        return self

    def simulate_identity(self) -> dict[str, Any]:
        """What decides the dialogues of this run, as JSON: the run folder is claimed with it."""
        held = self.held.references if self.held else None
        references = digest(sorted(self.replies.items())) if self.replies else held
        return {
            "framework": self.config.framework,
            "mode": self.config.mode,
            **self.identity(),
            "languages": self.languages,
            "exchanges": self.config.exchanges,
            "trials": self.trials,
            **({"replay": str(self.recording)} if self.recording else {}),
            "seeker": identity(self.seeker),
            "supporters": [identity(spec) for spec in self.supporters],
            **({"references": references} if references else {}),
            "prompts": self._told(self.pack, self.prompts, self.dialogue_parts),
        }

    def score_identity(self) -> dict[str, Any]:
        """What decides the judgements, beyond the dialogues themselves."""
        return {
            "mode": self.config.mode,
            "judge": identity(self.judge),
            "rubric": self.rubric.model_dump(mode="json"),
            "method": self.method,
            "prompts": self._told(self.judge_pack, self.judge_prompts, self.judge_parts),
            **self.judging_identity(),
        }

    def _told(self, name: str, pack: PromptPack, parts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """A pack as an identity has it."""
        ours = {"own_wording": pack.own_wording(self.languages, parts)} if self.config.mode == "paper" else {}
        return {"pack": name, "fingerprint": pack.fingerprint(), **ours}

    def own_wording(self, simulate: bool, score: bool) -> list[str]:
        """What a run in paper mode has in our words of the published prompts, by the stages that are asked for."""
        if self.config.mode != "paper":
            return []
        ours = self.prompts.own_wording(self.languages, self.dialogue_parts) if simulate else []
        return ours + (self.judge_prompts.own_wording(self.languages, self.judge_parts) if score else [])

    def gold_identity(self) -> dict[str, Any]:
        """What decides the agreement: the gold set by its hash."""
        dialogues, scores = self.gold
        gold = self.config.gold or GoldConfig()
        records = hashed([*dialogues, *scores]) | {"count": len(dialogues)}
        return {"dialogues": gold.dialogues, "limit": gold.limit, **records}

    # --- what every run has ---------------------------------------------------------------------------------------------

    @property
    def out(self) -> Path:
        """The run folder. Raises `UserError` where neither the config nor a supporter names one."""
        if self.config.out is not None:
            return Path(self.config.out)
        if not self.tested and not self.config.floors:
            raise UserError(
                "no supporter given, which the run folder would be named by: name one with --supporter, or use --out"
            )
        names = [spec.name for spec in self.supporters if not spec.floor] or [spec.name for spec in self.supporters]
        joined_names = "+".join(names)
        if len(joined_names) > _LONGEST:
            joined_names = f"{names[0][:_LONGEST]}+{len(names) - 1}-{digest(names, 8)}"
        return Path("runs", self.config.framework, joined_names)

    @property
    def shard(self) -> Shard | None:
        """Which part of the dialogues is done here; None for all."""
        return Shard.parse(self.config.shard) if self.config.shard else None

    def part(self, jobs: Sequence[J]) -> list[J]:
        """What of all jobs is done here."""
        return self.shard.take(jobs) if self.shard else list(jobs)

    @property
    def languages(self) -> list[Language]:
        """Which languages are played and judged."""
        return joined(self.held.languages if self.held else (), self.config.languages)

    @property
    def trials(self) -> int:
        """How many dialogues are held on each person with each supporter."""
        return max(self.config.trials, self.held.trials if self.held else 0)

    @property
    def method(self) -> JudgeMethod:
        """How the judge is asked."""
        return self.config.method

    def named(self, role: Literal["seeker", "judge"]) -> str:
        """How the config names the model of a role. Raises `UserError` where it does not."""
        name = getattr(self.config, role) or self.config.model
        if name is None:
            raise UserError(f"no {role} given: name one with --{role} {FORM}, or with --model for every role that is not named")
        return str(name)

    @property
    def tested(self) -> list[str]:
        """How the config names the models under test, without floors."""
        return self.config.supporters or list(filter(None, [self.config.model]))

    @cached_property
    def recording(self) -> Recording | None:
        """The run whose answers are replayed."""
        return Recording.read(self.config.replay) if self.config.replay else None

    def model(self, name: str) -> ModelSpec:
        """The spec of a model that the config names; of a replay, as it was when it was recorded."""
        spec = self.given.get(name) or load_spec(name)
        spec = self.recording.spec(spec) if self.recording else spec
        return callable_of(spec, self.config.endpoints.get(spec.name))

    @cached_property
    def seeker(self) -> ModelSpec:
        """The model that speaks for the seeker."""
        return self.sampled(self.speaks(self.model(self.named("seeker")), "seeker"), "seeker")

    @cached_property
    def judge(self) -> ModelSpec:
        """The model that scores."""
        return self.sampled(self.speaks(self.model(self.named("judge")), "judge"), "judge")

    @cached_property
    def supporters(self) -> list[ModelSpec]:
        """The models under test."""
        if not self.tested and not self.config.floors:
            raise UserError(f"no supporter given: name one with --supporter {FORM}, or under `supporters:` in the config")
        chosen = [*self.tested, *(name for name in self._floors() if name not in self.tested)]
        specs = [self._tested(self.sampled(self.model(name), "supporter")) for name in chosen]
        names = [spec.name for spec in specs]
        if len(set(names)) < len(names):
            raise UserError(
                f"supporters: the same name twice in {', '.join(names)}: give one another name in a spec file (name, endpoint)"
            )
        if not any(set(spec.languages) & set(self.config.languages) for spec in specs[: len(self.tested)] or specs):
            known = "; ".join(f"{spec.name} speaks {', '.join(spec.languages)}" for spec in specs)
            raise UserError(f"no supporter speaks {', '.join(self.config.languages)} ({known}): choose another --language")
        named = dict(zip(names, specs, strict=True))
        return [*(named.pop(spec.name, spec) for spec in self.held.supporters), *named.values()] if self.held else specs

    def _floors(self) -> list[str]:
        """The floors that the config adds to the supporters."""
        return [*FLOORS, *([REFERENCE] if self.config.references else [])] if self.config.floors else []

    @cached_property
    def replies(self) -> dict[Source, list[str]]:
        """What the supporters of the source dialogues said."""
        floors = (spec.floor for spec in self.supporters if not isinstance(spec, HeldSpec))
        if not self.config.references and any(floor and floor.kind == "reference" for floor in floors):
            raise UserError("supporter reference: give the dialogues that the cards were made from: --set references=FILE")
        return replies_by_source(read_dialogues([Path(path) for path in self.config.references]))

    @cached_property
    def rubric(self) -> Rubric:
        """The rubric, which has all the languages."""
        rubric = load_rubric(self.config.rubric)
        missing = [language for language in self.languages if language not in rubric.languages]
        if missing:
            raise UserError(f"rubric {rubric.name} has no {missing[0]} text (it has {', '.join(rubric.languages)})")
        return rubric

    @cached_property
    def pack(self) -> str:
        """The pack that seekers are told from, by name: one that they have learnt, or for a plain model what the config says.

        Raises `UserError` for a pack that a seeker's spec does not claim.
        """
        wanted = self.config.prompts.rstrip("/") if self.config.prompts else None
        packs = [_learnt("seeker", spec, wanted, "prompts") for spec in self.seekers]
        return next(filter(None, packs), wanted or PACK)

    @cached_property
    def prompts(self) -> PromptPack:
        """The pack that seekers are told from."""
        pack = load_pack(self.pack)
        pack.require(self.languages, self.templates)
        return pack

    @cached_property
    def judge_prompts(self) -> PromptPack:
        """The pack that the judge is asked in."""
        pack = load_pack(self.judge_pack)
        check_pack(pack, self.method, self.languages)
        return pack

    @cached_property
    def judge_pack(self) -> str:
        """The pack that the judge is asked in: one that it has learnt, or for a plain model one with the rules.

        Raises `UserError` for a pack that the judge's spec does not claim.
        """
        wanted = (self.config.judge_prompts or "").rstrip("/") or None
        if wanted is not None:
            load_pack(wanted)  # what is wrong with the pack itself comes first
        if (methods := self.judge.learnt_methods) and self.method not in methods:
            how = "--mode paper" if "paper" in methods else f"method: {methods[0]}"
            raise UserError(
                f"judge {self.judge.name} was not trained to be asked by method {self.method}, but {', '.join(methods)}: {how}"
            )
        if learnt := _learnt("judge", self.judge, wanted, "judge_prompts"):
            return learnt
        pack = wanted or self.config.prompts or self._of_seeker() or PACK
        if pack != PACK and (ranker := packs_without_rules().get(pack)):
            raise UserError(
                f"judge {self.judge.name} has not learnt the prompt pack {pack}, which leaves the rules out "
                f"(it is {ranker}'s): leave out judge_prompts, or write `learnt: [{pack}]` into its spec if it was"
            )
        return pack

    def _of_seeker(self) -> str | None:
        """The pack that the named seeker has learnt, where it has the judge's prompts, too: a published one is for both."""
        name = self.config.seeker or self.config.model
        for pack in self.model(name).learnt if name else ():
            with suppress(UserError):
                check_pack(load_pack(pack), self.method, self.languages)
                return pack
        return None

    def phases(
        self, launched: Sequence[ModelSpec], needs: Mapping[str, int], machine: Machine | None = None
    ) -> list[list[ModelSpec]]:
        """Which of the models that servers are started for are up at the same time (`serve.phases.phases`)."""
        played = self.config.seeker or self.config.model  # a judge alone needs no seeker
        seekers = {spec.name for spec in self.seekers} if played else set()
        judge = self._judge_name
        always = [spec for spec in launched if spec.name in seekers]
        last = [spec for spec in launched if spec.name == judge]
        others = [spec for spec in launched if spec.name not in seekers and spec.name != judge]
        return phases(always, others, last, machine, needs, self.config.phases)

    @property
    def _judge_name(self) -> str | None:
        """The judge's name; None where only dialogues are held and none is named."""
        name = self.config.judge or self.config.model
        return self.model(name).name if name else None

    @property
    def spare(self) -> set[str]:
        """Models without which the others go on: each of several supporters that is nothing else in this run."""
        if not self.tested or sum(not spec.floor for spec in self.supporters) < 2:
            return set()
        needed = {spec.name for spec in self.seekers} | {self._judge_name}
        return {spec.name for spec in self.supporters} - needed

    def load_people(
        self,
        names: Sequence[str],
        bundled: Callable[[Language], Path],
        load: Callable[[Path], list[P]],
        noun: str,
        limit: int | None,
        every: bool = False,
    ) -> list[P]:
        """Cards or profiles of the config's languages, at most `limit` a language, in the order of their files, or at random
        (by their ids) for a run that may end early; after those that the run folder holds. `every`: of the folder's languages
        as well."""
        languages = self.languages if every else self.config.languages
        paths: list[Path] = []
        for name in names:
            paths += [bundled(language) for language in languages] if name == "bundled" else [Path(name)]
        where = ", ".join(map(str, paths))
        if (people := self._read.get(tuple(paths))) is None:
            people = self._read[tuple(paths)] = [person for path in paths for person in load(path)]
            check_unique(where, (person.id for person in people), f"{noun} ids")
        if self.config.until:
            people = sorted(people, key=lambda person: digest(person.id))
        chosen: list[P] = []
        for language in languages:
            chosen += [person for person in people if person.language == language][:limit]
        if not chosen:
            have = ", ".join(sorted({person.language for person in people}))
            raise UserError(f"{where}: no {noun} in {', '.join(languages)} (the file has {have})")
        return self.held.people_with(chosen, self.languages) if self.held else chosen

    def beginnings(self, people: Sequence[P]) -> Iterator[tuple[Dialogue, P, ModelSpec]]:
        """The dialogues to hold here, with who is played and the supporter: supporters × people × trials, or a shard's part.

        Left out are languages that a supporter does not speak, and references without a source dialogue.
        """
        trials = range(self.trials)
        all_of_them = [(*pair, trial) for pair in self._spoken(people) if not self._silent(*pair) for trial in trials]
        for supporter, person, trial in self.part(all_of_them):
            played = {"card_id" if isinstance(person, RoleCard) else "profile_id": person.id}
            dialogue = Dialogue(
                id=dialogue_id(self.name, person.id, supporter.name, self.simulator, trial),
                language=person.language,
                framework=self.name,
                source=person.source or self.name,
                source_id=person.source_id,
                supporter=supporter.name,
                simulator=self.simulator,
                trial=trial,
                turns=(),
                termination="infrastructure",  # until it is held
                **played,
            )
            yield dialogue, person, supporter

    def silent(self) -> int:
        """How many dialogues a reference cannot hold, since references have no source dialogue of who is played."""
        played = [person for people in self.people().values() for person in people if isinstance(person, Played)]
        return self.trials * sum(self._silent(*pair) for pair in self._spoken(played))

    def _spoken(self, people: Sequence[P]) -> Iterator[tuple[ModelSpec, P]]:
        pairs = itertools.product(self.supporters, people)
        return ((supporter, person) for supporter, person in pairs if person.language in supporter.languages)

    def _silent(self, supporter: ModelSpec, person: Played) -> bool:
        if supporter.floor is None or supporter.floor.kind != "reference":
            return False
        return not self.replies.get((person.source or self.name, person.source_id or ""))

    @cached_property
    def gold(self) -> tuple[list[Dialogue], list[HumanScore]]:
        """Dialogues and scores of the gold set, in the wanted languages."""
        gold = self.config.gold
        if gold is None:
            return [], []
        dialogues: Sequence[Dialogue]
        scores: Sequence[HumanScore]
        if gold.dialogues == "synthetic":
            dialogues, scores = synthetic.whole(tuple(self.languages))
        elif gold.dialogues == "synthetic_test":
            dialogues, scores = synthetic_test()
        elif gold.scores is None:
            raise UserError("gold.scores: name the JSONL file of scores that belongs to gold.dialogues")
        else:
            dialogues, scores = read_dialogues([Path(gold.dialogues)]), read_gold(Path(gold.scores))
        chosen: list[Dialogue] = []
        for language in self.languages:
            have = [dialogue for dialogue in dialogues if dialogue.language == language]
            if gold.limit is not None and gold.limit < len(have):
                kept = set(random.Random(0).sample(range(len(have)), gold.limit))
                have = [dialogue for index, dialogue in enumerate(have) if index in kept]
            chosen += have
        for dialogue in chosen:
            self.shown.profile(dialogue)  # an unknown one is refused before anything is started
        ids = {dialogue.id for dialogue in chosen}
        return chosen, [s for s in scores if s.dialogue_id in ids and s.dimension in self.rubric.dimensions]

    def _tested(self, spec: ModelSpec) -> ModelSpec:
        """A supporter's spec with what the config changes of the sampling of all. Raises `UserError` where its replies then
        leave no room in its context."""
        changes = {"temperature": self.config.temperature, "max_tokens": self.config.max_tokens}
        given = {name: value for name, value in changes.items() if value is not None}
        if not given or spec.floor:
            return spec
        sampling = Sampling.model_validate(spec.sampling.model_dump() | given)
        if spec.context_length is not None and sampling.max_tokens >= spec.context_length:
            raise UserError(
                f"max_tokens {sampling.max_tokens}: leaves no room in the context of {spec.name} ({spec.context_length})"
            )
        return spec.model_copy(update={"sampling": sampling})

    def speaks(self, spec: ModelSpec, role: str) -> ModelSpec:
        """The spec, of a model that can take the role in all the languages; `UserError` otherwise."""
        if role not in spec.roles:
            raise UserError(f"model {spec.name} cannot be the {role}: its spec gives it the roles {', '.join(spec.roles)}")
        for language in self.config.languages:
            if language not in spec.languages:
                raise UserError(f"model {spec.name} does not speak {language}; choose --language {spec.languages[0]}")
        return spec


def _learnt(role: Role, spec: ModelSpec, wanted: str | None, option: str) -> str | None:
    """The pack that a model is asked in because it has learnt it; None for one that has learnt none.

    Raises `UserError` where another is wanted, and where the folder of a pack is not there.
    """
    if not spec.learnt:
        return None
    if wanted is not None and wanted not in spec.learnt:
        raise UserError(
            f"{role} {spec.name} has learnt the prompt pack {spec.learnt[0]} and is not asked in {wanted}: leave out {option}, "
            f"or add {wanted} to `learnt` in its spec if it was trained in it"
        )
    pack = wanted or spec.learnt[0]
    if "/" in pack and not Path(pack).is_dir():
        raise UserError(
            f"{role} {spec.name} has learnt the prompts in {pack}, which is no folder: see its spec (published prompts come "
            f"from your clone: python -m data_prep import --source esc_eval=CLONE --out {Path(pack).parent})"
        )
    return pack


def resolve_config(config: EvalConfig) -> Resolved:
    """The config, resolved by its framework."""
    framework = framework_of(config.framework)
    assert issubclass(framework, Resolved), "`load_config` refuses others"
    return framework(config)


def unspoken(spec: ModelSpec, languages: Sequence[Language]) -> list[Language]:
    """The wanted languages that a supporter does not speak: its cards in them are left out, and the run says so."""
    return [language for language in languages if language not in spec.languages]
