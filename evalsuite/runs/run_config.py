"""config.json, with which a run folder is claimed, and the identity of models and records in it.

Its `format` is the version of the folder's form: of all files that a run writes, records, usage, timing, failures and store
included; 1.0 if there is none. Additions that earlier folders lack raise the minor number, and both forms are read. A change
that would be misread raises the major number, and other major versions are refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel, ValidationError

from core.endpoints import Endpoint
from core.errors import UserError
from core.files import explain, read_object, validated, write_json
from core.grouping import group_by
from core.languages import PAPER_LANGUAGES, name_of
from core.records import Language
from core.rubrics import Rubric
from core.settings import differing_leaves
from core.specs import EMBEDDED_PREFIX, ModelSpec, ServeOptions

FORMAT = "1.1"
NAME = "config.json"
SCORE = "score"  # the stage of the first judge; that of another is `score NAME`
Mode = Literal["paper", "native"]
S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")
_BY_NAME = {"supporters", "texts"}  # lists of objects with a `name`: models, languages
# How an endpoint is reached and what it costs. These may change during a run, since answers do not depend on them.
_REACHED = {
    "base_url",
    "api_key_env",
    "ca_bundle",
    "verify",
    "headers",  # their names are in the fingerprint
    "max_response_mb",
    "any_model",
    "lists_models",
    "price",
    "requests_per_minute",
    "tokens_per_minute",
}
# How a spec is used, and fields that `identity` adds itself.
_NOT_THE_MODEL = {"about", "serving", "roles", "learnt", "learnt_methods", "paper_sampling", "licence", "endpoint", "serve"}


@dataclass(frozen=True, order=True)
class Shard:
    """The part of a run that is in one folder: part `index` (from 1) of `of` equal parts."""

    index: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `I/N`; `ValueError` for anything else."""
        match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text, re.ASCII)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError("expected I/N with I from 1 to N, as in 2/4")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    def take(self, jobs: Sequence[T]) -> list[T]:
        """This shard's share of all jobs; shares differ by one at most."""
        return list(jobs[len(jobs) * (self.index - 1) // self.of : len(jobs) * self.index // self.of])


class _ConfigPart(BaseModel):
    model_config = ConfigDict(extra="allow")


class ModelIdentity(_ConfigPart):
    """A model as `identity` writes it: its spec without its address."""

    name: str
    fingerprint: str = ""
    checkpoint: str | None = None
    group: str | None = None
    system: str | None = None


class Hashed(_ConfigPart):
    """The number and hash of a stage's input records."""

    count: int = 0
    sha256: str = ""


class Prompts(_ConfigPart):
    """The prompt pack of a role."""

    fingerprint: str = ""
    own_wording: list[str] | None = None
    """In paper mode: the parts with our wording. Null in native mode."""


class Simulated(_ConfigPart):
    """What the dialogues depend on. A framework adds fields of its own."""

    framework: str = ""
    mode: Mode = "native"
    prompts: Prompts = Prompts()
    seeker: ModelIdentity | None = None
    supporters: list[ModelIdentity] = []
    languages: list[Language] = []
    trials: int = 1
    references: str | None = None
    replay: str | None = None
    cards: Hashed | None = None
    profiles: Hashed | None = None

    @property
    def players(self) -> dict[str, ModelIdentity]:
        """The models of the seeker's side by role: the seeker, and those that a framework adds."""
        models = {"seeker": self.seeker} if self.seeker else {}
        for role, value in (self.model_extra or {}).items():
            if isinstance(value, dict) and {"name", "fingerprint"} <= value.keys():
                models[role] = ModelIdentity.model_validate(value)
        return models


class Judged(_ConfigPart):
    """What the judgements of a stage depend on. A framework adds fields of its own, a panel its `judges`."""

    mode: Mode = "native"
    judge: ModelIdentity | None = None
    rubric: Rubric
    prompts: Prompts = Prompts()


class Gold(Hashed):
    """The gold set for measuring a judge."""

    dialogues: str = ""
    """Its name or file."""


def _lasting(settings: dict[str, Any], others: dict[str, Any], grows: Collection[str]) -> dict[str, Any]:
    """The part of a stage's settings that may not change: fields that do not grow, and by name the models that both have."""
    lasting = {field: value for field, value in settings.items() if field not in grows}
    for field in _BY_NAME.intersection(grows):
        both = {model["name"] for model in others.get(field, [])}
        lasting[field] = {model["name"]: model for model in settings.get(field, []) if model["name"] in both}
    return lasting


class RunConfig(RootModel[dict[str, dict[str, Any]]]):
    """config.json of a run folder: stage → what its records depend on, kept as claimed. Readers parse the stages they need."""

    _path: Path = PrivateAttr(default=Path(NAME))

    @classmethod
    def read(cls, folder: Path, claimed: bool = True) -> RunConfig:
        """The config of a run folder, empty if not `claimed` or without a file. Raises `UserError` for another form."""
        path = folder / NAME
        content = read_object(path, "a run's config") if claimed and path.exists() else {}
        version, ours = str(content.pop("format", "1.0")).partition(".")[0], FORMAT.partition(".")[0]
        if version != ours:
            raise UserError(
                f"{path}: format: the run has form {version[:60]}, and this esc-eval reads {ours}.x: install the esc-eval that "
                "made it (versions.json says which)"
            )
        config = validated(cls, content, path)
        config._path = path
        return config

    def __contains__(self, stage: str) -> bool:
        return stage in self.root

    def __bool__(self) -> bool:
        return bool(self.root)

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """The claimed settings by stage, without the shard."""
        return {stage: settings for stage, settings in self.root.items() if stage != "shard"}

    def claim(self, stage: str, settings: dict[str, Any], grows: Collection[str] = ()) -> None:
        """Set a stage; `write` writes it. Raises `UserError` with the difference if the stage has other settings. The fields in
        `grows` may change, but models of the same name may not."""
        settings = orjson.loads(orjson.dumps(settings))
        claimed = self.root.get(stage, settings)
        if lines := "; ".join(differing_leaves(_lasting(claimed, settings, grows), _lasting(settings, claimed, grows))):
            whole = "" if self.shard is None else " (a shard does not grow: grow the merged run)"
            made = f"{self._path.parent} was made with another {stage} config"
            raise UserError(f"{made}: {lines}{whole}. Use another --out, or the old options")
        self.root[stage] = settings

    def write(self) -> None:
        write_json(self._path, {"format": FORMAT} | self.root)

    def stage(self, name: str, model: type[S]) -> S | None:
        """A stage as a record, None if it did not run. Raises `UserError` if it is damaged."""
        if name not in self.root:
            return None
        try:
            return model.model_validate(self.root[name])
        except ValidationError as error:
            raise UserError(f"{self._path}: {name}.{explain(error)}; score the run again into a new folder") from None

    @property
    def shard(self) -> Shard | None:
        """The folder's part of a run; None for a whole run."""
        if "shard" not in self.root:
            return None
        try:
            return Shard.parse(f"{self.root['shard']['index']}/{self.root['shard']['of']}")
        except (KeyError, ValueError):
            raise UserError(f"{self._path}: shard: expected {{index, of}}") from None

    @property
    def simulated(self) -> Simulated | None:
        """The stage that played dialogues."""
        return self.stage("simulate", Simulated)

    @property
    def dialogues(self) -> Hashed | None:
        """The given dialogues, if the run only scored."""
        return self.stage("dialogues", Hashed)

    @property
    def scored(self) -> Judged | None:
        """The stage of the first judge."""
        return self.stage(SCORE, Judged)

    @property
    def judged(self) -> dict[str, Judged]:
        """The stages that judged dialogues, one per judge (`evalsuite.runs.contents`)."""
        stages = ((name, self.stage(name, Judged)) for name in self.root if name == SCORE or name.startswith(f"{SCORE} "))
        return {name: judged for name, judged in stages if judged}

    @property
    def gold(self) -> Gold | None:
        """The stage that judged the gold set."""
        return self.stage("gold", Gold)

    @property
    def probed(self) -> Judged | None:
        """The stage of judge health."""
        return self.stage("health", Judged)

    def by_supporter(self) -> dict[str, dict[str, Any]]:
        """All stages, with the supporters keyed by their names, so that a difference names the supporter and the field."""
        simulated = self.root.get("simulate", {})
        supporters = {spec["name"]: spec for spec in simulated.get("supporters", [])}
        return self.root | ({"simulate": simulated | {"supporters": supporters}} if simulated else {})

    def own_wording(self) -> list[str] | None:
        """The parts of the published prompts that had our wording in this run; None in native mode."""
        simulated = self.simulated
        packs = [*([simulated.prompts] if simulated else []), *(judged.prompts for judged in self.judged.values())]
        wordings = [pack.own_wording for pack in packs if pack.own_wording is not None]
        return list(dict.fromkeys(part for wording in wordings for part in wording)) if wordings else None

    def texts(self) -> Iterator[tuple[str, str]]:
        """The report's lines on languages other than English and Chinese: the reviewer of their texts, and texts in English."""
        every = (text for stage in self.root.values() for text in stage.get("texts", []))
        for language, texts in group_by(every, lambda text: str(text["name"])).items():
            lacking = ", ".join(dict.fromkeys(name for text in texts for name in text["english"]))
            yield f"Texts in {name_of(language)}", texts[0]["reviewed"] + (f"; in English: {lacking}" if lacking else "")

    def models(self) -> dict[str, ModelIdentity]:
        """All models of a run by `role name`."""
        simulated = self.simulated
        models = {f"supporter {spec.name}": spec for spec in simulated.supporters} if simulated else {}
        models |= {f"{role} {spec.name}": spec for role, spec in simulated.players.items()} if simulated else {}
        return models | {f"judge {judged.judge.name}": judged.judge for judged in self.judged.values() if judged.judge}

    @property
    def plumbing(self) -> bool:
        """Whether the embedded model has a role, so that the scores say nothing about quality."""
        return any(str(spec.checkpoint).startswith(EMBEDDED_PREFIX) for spec in self.models().values())

    @property
    def synthetic_gold(self) -> bool:
        """Whether the gold set is the bundled one, whose scores are true by construction."""
        return self.gold is not None and self.gold.dialogues in ("synthetic", "synthetic_test")

    def specs(self) -> dict[str, dict[str, Any]]:
        """All models of a run, with the judge of judge health: name → its claimed identity."""
        probed = self.probed
        models = [*self.models().values(), *([probed.judge] if probed and probed.judge else [])]
        return {spec.name: spec.model_dump(exclude_unset=True) for spec in models}

    def floors(self) -> set[str]:
        """The supporters that need no model and say nothing useful; references, which people wrote, do not count."""
        kinds = {spec.name: ((spec.model_extra or {}).get("floor") or {}).get("kind") for spec in self._supporters}
        return {name for name, kind in kinds.items() if kind not in (None, "reference")}

    def groups(self) -> dict[str, str]:
        """Supporter → group of table 2, if its spec names one."""
        return {spec.name: spec.group for spec in self._supporters if spec.group}

    @property
    def _supporters(self) -> list[ModelIdentity]:
        simulated = self.simulated
        return simulated.supporters if simulated else []


def hashed(records: Sequence[BaseModel]) -> dict[str, Any]:
    """The number of records and the `digest` of their list, with one record in memory at a time."""
    parts = (orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS) for record in records)
    whole = hashlib.sha256(b"[")
    for place, part in enumerate(parts):
        whole.update(b"," + part if place else part)
    whole.update(b"]")
    return {"count": len(records), "sha256": whole.hexdigest()}


def identity(spec: ModelSpec) -> dict[str, Any]:
    """A model without its address: ports and hosts of servers may change between tries of a run."""
    if isinstance(spec, HeldSpec):
        return spec._claimed
    kept = spec.model_dump(mode="json", exclude=_NOT_THE_MODEL)
    endpoint = spec.endpoint.model_dump(mode="json", exclude=_REACHED)
    eight_bits = {"fp8": sorted(spec.serve.fp8)} if spec.serve.fp8 else {}
    return kept | {"endpoint": endpoint, "dtype": spec.dtype, **eight_bits, "fingerprint": spec.fingerprint()}


class HeldSpec(ModelSpec):
    """A model with answers in a run folder, as the folder's config describes it. Stored answers are found by this identity. It
    needs neither weights nor a server, since it gets no further calls."""

    _claimed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, claimed: dict[str, Any], where: Path) -> HeldSpec:
        """From what `identity` wrote into the config at `where`. Raises `UserError` if that is damaged."""
        fields = {name: value for name, value in claimed.items() if name in cls.model_fields}
        endpoint = {name: value for name, value in fields.pop("endpoint", {}).items() if name in Endpoint.model_fields}
        if fields.get("languages") == [*PAPER_LANGUAGES]:  # the default, which specs leave out
            del fields["languages"]
        endpoint |= {} if fields.get("floor") else {"base_url": "http://nowhere.invalid/v1"}
        fields |= {"endpoint": endpoint, "about": "held", "roles": ("supporter",)}
        fields |= {"serve": {"dtype": claimed.get("dtype", ServeOptions().dtype)}}
        spec = validated(cls, fields, f"{where}: simulate.supporters")
        spec._claimed = claimed
        return spec

    def fingerprint(self) -> str:
        """The fingerprint of the weights that answered."""
        return str(self._claimed.get("fingerprint", ""))
