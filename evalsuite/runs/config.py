"""The config of a run: a YAML file in configs/eval with command-line overrides."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from core.endpoints import named_part
from core.errors import UserError
from core.files import validated
from core.masking import PlainUrl
from core.paths import IN_FILE, IN_NAME, IN_SPEC, SUFFIXES, check_config
from core.records import Language, Role
from core.settings import fields_set, read_yaml, with_settings
from core.specs import Sampling
from evalsuite.judge.methods import native_method
from evalsuite.runs.framework import framework_of, frameworks
from evalsuite.runs.run_config import Shard
from serve.limits import HOUR, START_TIMEOUT

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
C = TypeVar("C", bound=BaseModel)


def duration(value: Any) -> Any:
    """Seconds from a number, or from text with a unit as in `90s`, `30m`, `1.5h`."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", value.strip(), re.ASCII)
    if match is None:
        raise ValueError("expected a duration: seconds, or as in 90s, 30m, 4h")
    return float(match[1]) * _UNITS[match[2]]


Duration = Annotated[float, BeforeValidator(duration), Field(ge=0, le=10**9)]


class GoldConfig(BaseModel):
    """Dialogues with known scores, for measuring the judge's agreement with them."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    dialogues: Annotated[str, IN_NAME] = "synthetic"
    """A JSONL file of dialogues. `synthetic` is the bundled set, whose scores are true by construction; `synthetic_test` is
    the part that `rank-sft` holds out with seed 0, for judges trained on the rest."""
    scores: Annotated[str | None, IN_FILE] = None
    """The JSONL file of human scores of these dialogues."""
    limit: Annotated[int, Field(gt=0, le=10**6)] | None = None
    """Sample this many dialogues per language (seed 0)."""


class Variant(Sampling):
    """What a variant changes in the specs of the models under test: the system message, fields of their sampling."""

    system: str | None = None
    """The supporter's system message: text, or the path of a text file."""


def _forbid_unknown(model: type[BaseModel]) -> None:
    """Make the sections of a model forbid unknown fields unless they state otherwise."""
    kinds = [kind for field in model.model_fields.values() for kind in (field.annotation, *get_args(field.annotation))]
    for section in (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)):
        section.model_config.setdefault("extra", "forbid")
        _forbid_unknown(section)
    model.model_rebuild(force=True)


class EvalConfig(BaseModel):
    """One run. A model is a name in configs/models, a spec file, or NAME@URL (NAME@URL#VARIABLE: with the key in that
    environment variable). Files are looked for beside the config, then from the current folder. Durations are seconds, or as in
    90s, 30m, 4h."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    framework: str = "esc_eval"
    """The published procedure to follow, or your own as module:Class."""
    mode: Literal["paper", "native"] = "native"
    """paper: as published, oddities included. native: our own procedure."""
    model: Annotated[str | None, IN_SPEC] = None
    """The model of every role that is not named: seeker, supporter, judge."""
    seeker: Annotated[str | None, IN_SPEC] = None
    """Model that plays the seeker."""
    supporters: Annotated[list[str], IN_SPEC] = []
    """The models under test."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Temperature of the models under test. Default: from their specs (0). Seeker and judge keep their own."""
    max_tokens: Annotated[int, Field(gt=0, le=2**31)] | None = None
    """Longest reply of the models under test, in tokens. Default: from their specs (512). Seeker and judge keep their own."""
    variants: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=50)], Variant] = {}
    """Every model under test as several supporters, MODEL.VARIANT each, which differ in a system message or in sampling:
    variants.warm.temperature=0.7, variants.kind.system=kind.txt."""
    floors: bool = False
    """Add supporters that need no model (silent, parrot, lecture): a model should beat them, and a judge should notice."""
    references: Annotated[list[str], IN_FILE] = []
    """The dialogues from which cards were made (JSONL). With `floors`, their supporters' replies are another floor."""
    judge: Annotated[str | None, IN_SPEC] = None
    """Model that scores."""
    rubric: Annotated[str, IN_NAME] = "esc_eval"
    """The rubric for scoring: a name in configs/rubrics, or a file."""
    method: Annotated[str, AfterValidator(native_method)] = "joint"
    """How the judge is asked: all dimensions at once, one at a time, JSON with reasons, or band probabilities; a tree of
    questions one by one (tree) or at once (tree_once); the criteria of each case one by one (criteria). Only with a prompt pack
    of your own: a line per dimension (lines), two supporters' dialogues side by side (pairs)."""
    prompts: Annotated[str | None, IN_NAME] = None
    """Prompt pack with the seeker's instructions, by name (configs/prompts) or folder. Default: the first in `learnt` of the
    seeker's spec, or `esc_eval`."""
    judge_prompts: Annotated[str | None, IN_NAME] = None
    """Prompt pack with the judge's questions, by name (configs/prompts) or folder. Default: the first in `learnt` of the
    judge's spec, or the seeker's pack, or `esc_eval`, or for rubrics of other scales `any_rubric`. Rarely needed."""
    languages: Annotated[list[Language], Field(min_length=1)] = ["en", "zh"]
    """Languages to play and judge."""
    limit: Annotated[int, Field(gt=0, le=10**6)] | None = None
    """At most this many cards (or profiles) per language."""
    until: Literal["decided"] | None = None
    """decided: play cards in batches, in random order, and stop as soon as every difference between models (or between a single
    model and each floor) is decided, or `limit` is reached. Intervals and tests are corrected for repeated looks. As an option
    it plays up to all cards, or --limit; the config's own `limit` is for runs of a fixed size."""
    exchanges: Annotated[int, Field(gt=0, le=10**6)] = 5
    """At most this many exchanges per dialogue."""
    trials: Annotated[int, Field(gt=0, le=10**6)] = 1
    """Dialogues per card (or profile) and supporter."""
    shard: Annotated[str, AfterValidator(lambda text: str(Shard.parse(text)))] | None = None
    """Only the I-th of N equal parts of the dialogues: one machine's part. See merge."""
    concurrency: Annotated[int, Field(gt=0, le=10**6)] | None = None
    """Calls in flight at once. Default: as many per server as it handles."""
    fail_on_error: Annotated[float, Field(gt=0, le=10**9)] | None = None
    """End the run early when this many dialogues have failed: a share (below 1) or a number. Default: at the first 401, 403 or
    404, and when the first 20 calls to a model were all rejected."""
    call_timeout: Annotated[Duration, Field(gt=0)] | None = None
    """Time limit of one try of a call (30s, 5m). Default: 10m."""
    attempts: Annotated[int, Field(gt=0, le=1000)] | None = None
    """Tries of a call that fails temporarily. Default: 8."""
    patience: Duration = HOUR
    """How long to wait for a server that refuses connections or answers only 429, 503 or 529; the console says so once per
    minute. The run does not wait on other errors, or for servers that it launched. Default: 1h; 0: not at all."""
    start_timeout: Annotated[Duration, Field(gt=0)] = START_TIMEOUT
    """How long a launched server may take to load its model and answer (20m), without the download before. Default: 15m."""
    phases: bool | None = None
    """Play all dialogues first, then stop their servers and start the judge's. Default: only if they do not fit together."""
    max_time: Duration | None = None
    """Ask nothing more after this time (4h) of one command. As many dialogues as fit are played and judged, records and report
    are written; the same command resumes. Exit code 1."""
    max_calls: Annotated[int, Field(ge=0)] | None = None
    """At most this many answers in the run folder, earlier tries included; then as after `max_time`."""
    max_cost: Annotated[float, Field(ge=0)] | None = None
    """Ask nothing more once the run folder's answers have cost this much, by `endpoint.price` in the specs (per million
    tokens); calls in flight finish and may exceed it; then as after `max_time`."""
    keep_messages_kb: Annotated[int, Field(ge=0, le=10**6)] = 32
    """The call store keeps the messages of a call with its answer if they have at most this many KB (0: none)."""
    replay: Annotated[str | None, IN_NAME] = None
    """Take all answers from a recorded run and ask no model: `demo`, or a run folder of the same cards, models and prompts."""
    roles: dict[str, Role] = {}
    """Further names of speakers in given dialogues, each with its side: roles.coach=supporter."""
    anonymise: bool = False
    """Replace the personal data that presidio finds in given dialogues by its kind, before any model is called."""
    gold: GoldConfig | None = None
    """A gold set, to measure the judge on."""
    endpoints: dict[str, PlainUrl] = {}
    """Base URLs of servers that are already up, by model name. Other models are launched."""
    out: str | None = None
    """The run folder. Default: runs/FRAMEWORK/SUPPORTER, several supporters joined by +."""

    @model_validator(mode="before")
    @classmethod
    def _misplaced(cls, values: Any) -> Any:
        """Refuse a field of another framework with the name of that framework."""
        for field in sorted(map(str, set(values) - set(cls.model_fields))) if isinstance(values, dict) else ():
            for other in frameworks():
                if field in other.config_model.model_fields:
                    framework = values.get("framework", cls.model_fields["framework"].default)
                    raise ValueError(f"{field}: belongs to framework {other.name}, this config's is {framework}")
        return values

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        """Forbid unknown fields in all sections, also of frameworks from other packages."""
        _forbid_unknown(cls)


def load_config(path: Path, overrides: dict[str, Any], settings: Sequence[str] = ()) -> EvalConfig:
    """A run's config, of its framework's `config_model`; the arguments are those of `overridden`."""
    framework = read_yaml(path, _Framework, "eval config").framework
    chosen = next((text.removeprefix("framework=") for text in settings if text.startswith("framework=")), framework)
    try:
        model = framework_of(overrides.get("framework") or chosen).config_model
    except UserError as error:
        raise UserError(f"{path}: framework: {error}") from None
    if not issubclass(model, EvalConfig):
        raise UserError(f"{path}: framework: {framework} has no runs but verbs of its own: see `esc-eval paper {framework}`")
    return overridden(path, model, "eval config", overrides, settings)


def _beside(value: Any, folder: Path) -> Any:
    """A value of a config. Files beside the config are named by their path from the current folder."""
    if isinstance(value, dict):
        return {key: _beside(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_beside(item, folder) for item in value]
    file = named_part(value) if isinstance(value, str) else ""
    if file.endswith((*SUFFIXES, ".txt")) and len(file) < 200 and (folder / file).is_file():
        return f"{folder / file}{value[len(file) :]}"
    return value


class _Framework(BaseModel):
    framework: str = EvalConfig.model_fields["framework"].default


def overridden(path: Path | None, model: type[C], what: str, overrides: dict[str, Any], settings: Sequence[str] = ()) -> C:
    """A config file with the changes of the command line: options (None: not given) and `--set FIELD=VALUE`. Errors name file,
    line and field, or the option. The verb's outputs may not overwrite inputs that the config names. Files that the config
    names are looked for beside it, then from the current folder."""
    config = read_yaml(path, model, what) if path else model()
    options = {key: value for key, value in overrides.items() if value is not None}
    for field in options.keys() & fields_set(settings):
        raise UserError(f"--set {field}: also given as an option: keep one")
    fields = _beside(config.model_dump(exclude_unset=True), path.parent if path else Path())
    chosen = validated(model, with_settings(fields | options, settings, model), "command line")
    check_config(chosen)
    return chosen
