"""The models of a run: their roles, and which of their servers run at the same time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from core.endpoints import FORM
from core.errors import UserError, near
from core.files import digest, validated
from core.judge_prompts import asks, check_pack
from core.machine import Machine
from core.prompts import load_pack
from core.records import Language
from core.rubrics import Rubric
from core.specs import ModelSpec, Sampling, load_spec, packs_without_rules, prompt_text
from evalsuite.dialogues.hold import FLOORS, REFERENCE
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.contents import Held
from evalsuite.runs.run_config import RunConfig, identity
from serve.callables import callable_of
from serve.store import CallStore

if TYPE_CHECKING:
    from serve.placement import PhaseModels
    from serve.units import Needs

PACK = "esc_eval"  # for plain seekers and judges
ANY = "any_rubric"  # for plain judges, if the other pack does not describe the scale
_LONGEST = 80  # characters of a run folder's name
Role = Literal["seeker", "supporter", "judge"]
BUNDLED = Path(__file__).parent.parent / "recordings"


@dataclass(frozen=True)
class Recording:
    """The answers of a run folder: a bundled one (by name) or your own (by path)."""

    name: str
    store: Path
    recorded: str
    """The day of its last answer."""
    precisions: Mapping[str, str]
    """Model → its dtype when recorded, which this machine might not choose; calls are found by it."""

    @classmethod
    def read(cls, name: str) -> Recording:
        """Raises `UserError` if there is no such recording, or it has no answers."""
        folder = BUNDLED / name if "/" not in name and (BUNDLED / name).is_dir() else Path(name)
        store = folder / "calls.sqlite"
        if not store.is_file():
            names = [path.name for path in BUNDLED.iterdir()] if BUNDLED.is_dir() else []
            raise UserError(f"replay {name}: no run folder (no calls.sqlite), and no bundled recording: {near(name, names)}")
        try:
            with sqlite3.connect(f"file:{store.absolute()}?mode=ro", uri=True) as answers:
                last = answers.execute("SELECT max(time) FROM calls").fetchone()[0]
        except sqlite3.Error as error:
            raise UserError(f"replay {name}: {store} cannot be read: {error}") from None
        if last is None:
            raise UserError(f"replay {name}: {store} holds no answer")
        models = RunConfig.read(folder).specs()
        precisions = {model: str(claimed["dtype"]) for model, claimed in models.items() if "dtype" in claimed}
        return cls(folder.name, store, time.strftime("%Y-%m-%d", time.gmtime(last)), precisions)

    def spec(self, spec: ModelSpec) -> ModelSpec:
        """A model's spec with its precision in the recording."""
        if spec.serve.dtype != "auto" or spec.name not in self.precisions:
            return spec
        options = spec.serve.model_dump() | {"dtype": self.precisions[spec.name]}
        return spec.model_copy(update={"serve": type(spec.serve).model_validate(options)})

    def into(self, store: CallStore) -> None:
        """Copy the answers into a run's store, where the run finds them."""
        store.add_from(self.store)

    def __str__(self) -> str:
        return f"{self.name}, recorded on {self.recorded}"


class RunModels:
    """The models of a config, loaded and checked on first use; no server is started here. A framework may change a model's
    sampling in a role (`sampled`), and have several models play the seeker. Raises `UserError` for an unsuitable model."""

    planned = False
    """Whether no model will be called. If the prompts that a model has learnt are missing, ours then replace them."""

    def __init__(self, config: Any, folder: Held | None = None, given: Mapping[str, ModelSpec] | None = None) -> None:
        self.config: EvalConfig = config
        self._folder = folder
        self._given = given or {}

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        """A model's spec with its sampling in a role."""
        return spec

    def identity(self, spec: ModelSpec) -> dict[str, Any]:
        """A seeker or supporter in the identity of the dialogues."""
        return identity(spec)

    @property
    def seekers(self) -> list[ModelSpec]:
        return [self.seeker]

    @property
    def simulator(self) -> str:
        """The seeker's name in the records."""
        return self.seeker.name

    @property
    def names(self) -> list[str]:
        """The config's names of its models, without the supporters."""
        return list(filter(None, [self.config.seeker, self.config.judge, self.config.model]))

    def named(self, role: Literal["seeker", "judge"]) -> str:
        """The config's name of the model of a role. Raises `UserError` if there is none."""
        name = getattr(self.config, role) or self.config.model
        if name is None:
            raise UserError(f"no {role} given: name one with --{role} {FORM}, or with --model for every role that is not named")
        return str(name)

    @property
    def tested(self) -> list[str]:
        """The config's names of the models under test, without floors."""
        return self.config.supporters or list(filter(None, [self.config.model]))

    @cached_property
    def recording(self) -> Recording | None:
        """The run whose answers are replayed."""
        return Recording.read(self.config.replay) if self.config.replay is not None else None

    def model(self, name: str) -> ModelSpec:
        """The spec of a model that the config names; in a replay, as recorded."""
        spec = self._given.get(name) or load_spec(name)
        spec = self.recording.spec(spec) if self.recording else spec
        return callable_of(spec, self.config.endpoints.get(spec.name))

    def speaks(self, spec: ModelSpec, role: str) -> ModelSpec:
        """The spec. Raises `UserError` if the model cannot take the role, or not in all languages."""
        if role not in spec.roles:
            raise UserError(f"model {spec.name} cannot be the {role}: its spec gives it the roles {', '.join(spec.roles)}")
        for language in self.config.languages:
            if not spec.speaks(language):
                raise UserError(f"model {spec.name} does not speak {language}; choose --language {spec.languages[0]}")
        return spec

    @cached_property
    def seeker(self) -> ModelSpec:
        return self.sampled(self.speaks(self.model(self.named("seeker")), "seeker"), "seeker")

    @cached_property
    def judge(self) -> ModelSpec:
        return self.sampled(self.speaks(self.model(self.named("judge")), "judge"), "judge")

    @property
    def judge_name(self) -> str | None:
        """The judge's name; None if the config names no judge."""
        name = self.config.judge or self.config.model
        return self.model(name).name if name else None

    @cached_property
    def without_variants(self) -> list[ModelSpec]:
        """The models under test of the config, floors included."""
        floors = [*FLOORS, *([REFERENCE] if self.config.references else [])] if self.config.floors else []
        chosen = [*self.tested, *(name for name in floors if name not in self.tested)]
        specs = [self.sampled(self.model(name), "supporter") for name in chosen]
        changes = self.config.model_dump(include={"temperature", "max_tokens"}, exclude_none=True)
        return [self._changed(spec, "command line", changes) if changes and not spec.floor else spec for spec in specs]

    @cached_property
    def supporters(self) -> list[ModelSpec]:
        """The models under test, floors included, those of the run folder first."""
        if not self.tested and not self.config.floors:
            raise UserError(f"no supporter given: name one with --supporter {FORM}, or under `supporters:` in the config")
        specs = [variant for spec in self.without_variants for variant in self._variants(spec)]
        if self.config.mode == "paper" and (self.config.variants or any(spec.system is not None for spec in specs)):
            raise UserError("mode paper has published system messages only: leave out --system, variants and `system` in specs")
        names = [spec.name for spec in specs]
        if len(set(names)) < len(names):
            raise UserError(f"supporters: the same name twice in {', '.join(names)}: rename one in a spec file")
        tested = self.without_variants[: len(self.tested)] or specs
        if not any(spec.speaks(language) for spec in tested for language in self.config.languages):
            spoken = "; ".join(f"{spec.name} speaks {', '.join(spec.languages)}" for spec in specs)
            raise UserError(f"no supporter speaks {', '.join(self.config.languages)} ({spoken}): choose another --language")
        if self._folder is None:
            return specs
        return list({spec.name: spec for spec in (*self._folder.supporters, *specs)}.values())

    def _variants(self, spec: ModelSpec) -> list[ModelSpec]:
        """A model under test as its supporters: itself, or one per variant of the config, all served as the same model."""
        variants = list[ModelSpec]()
        endpoint = spec.endpoint.model_copy(update={"model": spec.served_name()})
        for name, variant in self.config.variants.items() if not spec.floor else ():
            system = spec.system if variant.system is None else prompt_text(variant.system)
            sampling = variant.model_dump(exclude_unset=True, exclude={"system"})
            changes = {"name": f"{spec.name}.{name}", "system": system, "endpoint": endpoint}
            variants.append(self._changed(spec, f"variants.{name} of {spec.name}", sampling, **changes))
        return variants or [spec]

    def _changed(self, spec: ModelSpec, source: str, sampling: Mapping[str, Any], **fields: Any) -> ModelSpec:
        """A model with other sampling. Raises `UserError` if its replies then leave no room in its context."""
        fields["sampling"] = Sampling.model_validate({**spec.sampling.model_dump(), **sampling})
        changed = spec.model_copy(update=fields)
        validated(ModelSpec, changed.model_dump(exclude_unset=True), source)
        return changed

    def phases(self, launched: Sequence[ModelSpec], needs: Needs, machine: Machine | None = None) -> list[PhaseModels]:
        """The launched models, by which of their servers run at the same time (`serve.placement.phases`)."""
        from serve.placement import phases  # not needed unless a server is started

        seekers = self.seekers if self.config.seeker or self.config.model else []  # a judge alone needs no seeker
        always = [spec for spec in launched if spec.name in {seeker.name for seeker in seekers}]
        last = [spec for spec in launched if spec.name == self.judge_name]
        others = [spec for spec in launched if spec not in always and spec not in last]
        return phases(always, others, last, machine, needs, self.config.phases)

    @property
    def spare(self) -> set[str]:
        """The models that a run can lose: each of several supporters without another role."""
        if not self.tested or sum(not spec.floor for spec in self.supporters) < 2:
            return set()
        return {spec.name for spec in self.supporters} - {spec.name for spec in self.seekers} - {self.judge_name or ""}


def default_folder(models: RunModels) -> Path:
    """The default run folder, named after the supporters joined by +. Raises `UserError` if there are none."""
    if not models.tested and not models.config.floors:
        raise UserError("no supporter given, and the run folder is named after the supporters: give --supporter or --out")
    specs = models.without_variants
    names = [spec.name for spec in specs if not spec.floor] or [spec.name for spec in specs]
    name = "+".join(names)
    short = name if len(name) <= _LONGEST else f"{names[0][:_LONGEST]}+{len(names) - 1}-{digest(names, 8)}"
    return Path("runs", models.config.framework, short)


def drawn_as(spec: ModelSpec, sampling: Sampling) -> ModelSpec:
    """A model with published sampling. If that leaves little room in its context, replies keep the limit of its spec."""
    if spec.context_length is not None and spec.context_length <= 2 * sampling.max_tokens:
        sampling = sampling.model_copy(update={"max_tokens": spec.sampling.max_tokens})
    return spec.model_copy(update={"sampling": sampling})


def unspoken(spec: ModelSpec, languages: Sequence[Language]) -> list[Language]:
    """The languages that a supporter does not speak: its cards in them are left out, with a warning."""
    return [language for language in languages if not spec.speaks(language)]


# --- the prompt pack of a role: one that its model has learnt, or for a plain model that of the config -------------------


def seeker_pack(models: RunModels) -> str:
    """The name of the seekers' pack. Raises `UserError` for a pack that a seeker has not learnt."""
    wanted = models.config.prompts.rstrip("/") if models.config.prompts else None
    packs = [_learnt(models, "seeker", spec, wanted, "prompts") for spec in models.seekers]
    return next(filter(None, packs), wanted or PACK)


def judge_pack(models: RunModels, method: str, rubric: Rubric) -> str:
    """The name of the judge's pack. That of a plain model states the rules, and the scale if they do not. Raises `UserError`
    for a pack that the judge has not learnt, and for a method that it was not trained for."""
    judge, wanted = models.judge, (models.config.judge_prompts or "").rstrip("/") or None
    if wanted is not None:
        load_pack(wanted)  # faults of the pack itself are reported first
    if (methods := judge.learnt_methods) and method not in methods:
        how = "mode: paper" if "paper" in methods else f"method: {methods[0]}"
        raise UserError(f"judge {judge.name} was not trained to be asked by method {method}, but {', '.join(methods)}: {how}")
    if learnt := _learnt(models, "judge", judge, wanted, "judge_prompts"):
        return learnt
    pack = wanted or models.config.prompts or _of_seeker(models, method) or PACK
    if pack != PACK and (ranker := packs_without_rules().get(pack)):
        raise UserError(
            f"judge {judge.name} has not learnt the prompt pack {pack}, which leaves the rules out "
            f"(it is {ranker}'s): leave out judge_prompts, or write `learnt: [{pack}]` into its spec if it was"
        )
    return pack if wanted or asks(load_pack(pack), method, rubric) else ANY


def _of_seeker(models: RunModels, method: str) -> str | None:
    """The pack that the seeker has learnt, if it has the judge's prompts, too: published packs are for both."""
    name = models.config.seeker or models.config.model
    for pack in models.model(name).learnt if name else ():
        with suppress(UserError):
            check_pack(load_pack(pack), method, models.config.languages)
            return pack
    return None


def _learnt(models: RunModels, role: Role, spec: ModelSpec, wanted: str | None, option: str) -> str | None:
    """The pack that a model has learnt, if any. Raises `UserError` if another is wanted, or its folder is missing."""
    if not spec.learnt:
        return None
    if wanted is not None and wanted not in spec.learnt:
        raise UserError(
            f"{role} {spec.name} has learnt the prompt pack {spec.learnt[0]} and is not asked in {wanted}: leave out {option}, "
            f"or add {wanted} to `learnt` in its spec if it was trained in it"
        )
    pack = wanted or spec.learnt[0]
    if "/" in pack and not Path(pack).is_dir():
        if models.planned:
            return None
        raise UserError(
            f"{role} {spec.name} has learnt the prompts in {pack}, which is no folder: see its spec (published prompts come "
            f"from your clone: python -m data_prep import --source esc_eval=CLONE --out {Path(pack).parent})"
        )
    return pack
