"""What one run is: a YAML file in configs/eval with command-line overrides, resolved into models, cards, rubric and prompts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from core.errors import UserError
from core.files import check_unique, explain, read_yaml
from core.judge_prompts import JudgeMethod, check_pack
from core.masking import PlainUrl
from core.paths import IN_FILE, IN_NAME, check_config
from core.prompts import PromptPack, load_pack
from core.records import Dialogue, HumanScore, Language, RoleCard
from core.rubrics import Rubric, load_rubric
from core.specs import Endpoint, ModelSpec, Sampling, load_spec, model_names
from data_prep.cards import bundled_cards, load_cards
from data_prep.profiles import Profile, bundled_profiles, load_profiles, profile_text
from data_prep.scores import synthetic
from data_prep.scores.human import read_dialogues
from data_prep.scores.rank_sft import synthetic_test
from evalsuite.judge.base import Shown
from evalsuite.runs.config_emoharbor import TEMPLATES, Agent, EmoHarborConfig
from evalsuite.runs.shards import Shard
from evalsuite.statistics.agreement import read_gold
from serve.limits import HOUR

PAPER_SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_tokens=512)
# What a config of a framework need not say, where it differs from ESC-Eval.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "emoharbor": {"rubric": "emoharbor", "method": "json", "prompts": "emoharbor", "exchanges": 15},
}


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def duration(given: Any) -> Any:
    """Seconds from a number, or from text with a unit as in `90s`, `30m`, `1.5h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", given.strip(), re.ASCII) if isinstance(given, str) else None
    if isinstance(given, str) and found is None:
        raise ValueError("expected a duration: seconds, or as in 90s, 30m, 4h")
    return float(found[1]) * _UNITS[found[2]] if found else given


Duration = Annotated[float, BeforeValidator(duration), Field(ge=0, le=10**9)]
C = TypeVar("C", bound=BaseModel)
J = TypeVar("J")
P = TypeVar("P", RoleCard, Profile)


class GoldConfig(BaseModel):
    """Dialogues with known scores, on which the judge's agreement is measured.

    `dialogues: synthetic` is the bundled set whose scores hold by construction, `synthetic_test` its test split (what
    `rank-sft` holds out with seed 0, for judges that were trained on the rest); otherwise two JSONL files (Dialogue,
    HumanScore). `limit` draws that many dialogues a language (seed 0).
    """

    model_config = ConfigDict(extra="forbid")
    dialogues: Annotated[str, IN_NAME] = "synthetic"
    scores: Annotated[str | None, IN_FILE] = None
    limit: Annotated[int, Field(gt=0, le=10**6)] | None = None


class EvalConfig(BaseModel):
    """One run. Models are names in configs/models or paths of spec files; `cards` are `bundled` or paths of card files.

    `framework: emoharbor` plays `profiles` (`bundled` or paths) instead of cards, and its section holds its own settings.

    `prompts` is the pack that seekers are told from, `judge_prompts` the judge's (without it, the same): a ranker is asked in
    the pack that it learnt. `endpoints` maps model names to base URLs of servers that are already up; what is missing there is
    launched. `concurrency` fixes how many calls are under way at once; without it each server gets what it bears.
    `fail_on_error` is how many dialogues may fail before the run ends early: a share below 1, a number from 1 on; without it a
    run ends when a key or model is refused, or the first calls to a model are all rejected (`serve.failures.Threshold`).
    `keep_messages_kb`: the call store keeps the messages of a call beside its answer if they have at most so many KB (0: none).

    `call_timeout`, `attempts`, `patience` and `max_time` (durations: seconds, or as in 90s, 30m, 4h), `max_calls` and
    `max_cost` bound what calls and runs take: the command's options of the same names explain them.
    """

    model_config = ConfigDict(extra="forbid")
    framework: Literal["esc_eval", "emoharbor"] = "esc_eval"
    mode: Literal["paper", "native"] = "native"
    seeker: Annotated[str, IN_NAME]
    supporters: Annotated[list[str], IN_NAME] = []
    judge: Annotated[str, IN_NAME]
    rubric: Annotated[str, IN_NAME] = "esc_eval"
    method: Literal["joint", "per_dimension", "json", "bands"] = "joint"
    prompts: Annotated[str, IN_NAME] = "esc_eval"
    judge_prompts: Annotated[str | None, IN_NAME] = None
    cards: Annotated[list[str], IN_NAME] = ["bundled"]
    profiles: Annotated[list[str] | None, IN_NAME] = None
    emoharbor: EmoHarborConfig | None = None
    languages: Annotated[list[Language], Field(min_length=1)] = ["en", "zh"]
    limit: Annotated[int, Field(gt=0, le=10**6)] | None = None
    exchanges: Annotated[int, Field(gt=0, le=10**6)] = 5
    trials: Annotated[int, Field(gt=0, le=10**6)] = 1
    shard: Annotated[str, AfterValidator(lambda text: str(Shard.parse(text)))] | None = None
    concurrency: Annotated[int, Field(gt=0, le=10**6)] | None = None
    fail_on_error: Annotated[float, Field(gt=0, le=10**9)] | None = None
    call_timeout: Annotated[Duration, Field(gt=0)] | None = None
    attempts: Annotated[int, Field(gt=0, le=1000)] | None = None
    patience: Duration = HOUR
    max_time: Duration | None = None
    max_calls: Annotated[int, Field(ge=0)] | None = None
    max_cost: Annotated[float, Field(ge=0)] | None = None
    keep_messages_kb: Annotated[int, Field(ge=0, le=10**6)] = 32
    gold: GoldConfig | None = None
    endpoints: dict[str, PlainUrl] = {}
    out: str

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, given: Any) -> Any:
        framework = given.get("framework") if isinstance(given, dict) else None
        return _DEFAULTS[framework] | given if isinstance(framework, str) and framework in _DEFAULTS else given

    @model_validator(mode="after")
    def _one_framework(self) -> EvalConfig:
        if self.framework == "emoharbor":
            if "cards" in self.model_fields_set:
                raise ValueError("cards: role cards belong to framework esc_eval; emoharbor plays `profiles`")
            if self.gold is not None and self.gold.scores is None:
                raise ValueError("gold: the bundled sets have ESC-Eval's dimensions; name gold.dialogues and gold.scores")
            if problem := (self.emoharbor or EmoHarborConfig()).problem(self.mode, self.method):
                raise ValueError(problem)
        for name in ("profiles", "emoharbor"):
            if self.framework != "emoharbor" and getattr(self, name) is not None:
                raise ValueError(f"{name}: belongs to framework emoharbor, this config's is {self.framework}")
        return self


def load_config(path: Path, overrides: dict[str, Any]) -> EvalConfig:
    """A run's config (`overridden`)."""
    return overridden(path, EvalConfig, "eval config", overrides)


def overridden(path: Path, kind: type[C], what: str, overrides: dict[str, Any]) -> C:
    """A config file with command-line overrides (None: not given); errors name file, line and field, or the option. What it
    names as an input may not be replaced by the verb that asks."""
    config = read_yaml(path, kind, what)
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        chosen = kind.model_validate(config.model_dump(exclude_unset=True) | given)
    except ValidationError as error:
        raise UserError(f"command line: {explain(error)}") from None
    check_config(chosen)
    return chosen


@dataclass(frozen=True)
class Resolved:
    """A config with everything it names loaded and checked; nothing has been written or started yet.

    Raises `UserError` on construction or first use for whatever is missing, malformed or does not fit together.
    """

    config: EvalConfig
    base_url: str | None = None
    api_key_env: str | None = None

    @property
    def shard(self) -> Shard | None:
        """Which part of the dialogues is done here; None for all."""
        return Shard.parse(self.config.shard) if self.config.shard else None

    def part(self, jobs: Sequence[J]) -> list[J]:
        """What of all jobs is done here."""
        return self.shard.take(jobs) if self.shard else list(jobs)

    @property
    def method(self) -> JudgeMethod:
        own = self.config.framework == "esc_eval" and self.config.mode == "paper"  # EmoHarbor's published method is `json`
        return "paper" if own else self.config.method

    @property
    def emoharbor(self) -> EmoHarborConfig:
        return self.config.emoharbor or EmoHarborConfig()

    @cached_property
    def seeker(self) -> ModelSpec:
        return self._played(self._speaks(load_spec(self.config.seeker), "seeker"), "talker")

    @cached_property
    def thinker(self) -> ModelSpec | None:
        """The model that thinks for the seeker (EmoHarbor); None where nobody does."""
        if self.config.framework != "emoharbor" or self.emoharbor.simulator == "one_agent":
            return None
        return self._played(self._speaks(load_spec(self.emoharbor.thinker or self.config.seeker), "seeker"), "thinker")

    @property
    def simulator(self) -> str:
        """The seeker's name in the records: its models, and the ablation if it is one."""
        names = [self.seeker.name, *([self.thinker.name] if self.thinker else [])]
        ablation = "" if self.emoharbor.simulator == "full" else f" ({self.emoharbor.simulator.replace('_', ' ')})"
        return "+".join(dict.fromkeys(names)) + ablation

    @cached_property
    def judge(self) -> ModelSpec:
        spec = self._speaks(load_spec(self.config.judge), "judge")
        return self.emoharbor.sampled(spec, "judge") if self.config.framework == "emoharbor" else spec

    @cached_property
    def shown(self) -> Shown:
        """What the judge is shown of the seeker: the dialogue alone by any method but `json` of EmoHarbor."""
        if self.config.framework != "emoharbor" or self.method != "json":
            return Shown(mode=self.config.mode)
        known = self.known_profiles if self.emoharbor.judging != "dialogue" else []
        texts = {profile.id: profile_text(profile, profile.language) for profile in known}
        return Shown(self.emoharbor.judging, texts, self.emoharbor.per_turn, self.config.mode)

    @cached_property
    def supporters(self) -> list[ModelSpec]:
        if not self.config.supporters:
            raise UserError("no supporter given: name one with --supporter, or under `supporters:` in the config")
        specs = [self._played(self._supporter(name), "supporter") for name in self.config.supporters]
        names = [spec.name for spec in specs]
        if len(set(names)) < len(names):
            raise UserError(f"supporters: the same name twice in {', '.join(names)}")
        return specs

    @cached_property
    def rubric(self) -> Rubric:
        rubric = load_rubric(self.config.rubric)
        missing = [language for language in self.config.languages if language not in rubric.languages]
        if missing:
            raise UserError(f"rubric {rubric.name} has no {missing[0]} text (it has {', '.join(rubric.languages)})")
        return rubric

    @cached_property
    def prompts(self) -> PromptPack:
        pack = load_pack(self.config.prompts)
        if self.config.framework == "emoharbor":
            pack.require(self.config.languages, TEMPLATES)
        return pack

    @cached_property
    def judge_prompts(self) -> PromptPack:
        pack = load_pack(self.judge_pack)
        check_pack(pack, self.method, self.config.languages)
        return pack

    @property
    def judge_pack(self) -> str:
        """The name of the pack that the judge is asked in."""
        return self.config.judge_prompts or self.config.prompts

    @cached_property
    def cards(self) -> list[RoleCard]:
        """The cards of the wanted languages, at most `limit` a language, in file order."""
        return self._people(self.config.cards, bundled_cards, load_cards, "card", self.config.limit)

    @cached_property
    def profiles(self) -> list[Profile]:
        """The profiles of the wanted languages, at most `limit` a language, in file order."""
        return self._profiles(self.config.limit)

    @cached_property
    def known_profiles(self) -> list[Profile]:
        """All profiles of the wanted languages: given dialogues may be with any of them, whatever `limit` says."""
        return self._profiles(None)

    def _profiles(self, limit: int | None) -> list[Profile]:
        return self._people(self.config.profiles or ["bundled"], bundled_profiles, load_profiles, "profile", limit)

    def _people(
        self,
        names: Sequence[str],
        bundled: Callable[[Language], Path],
        load: Callable[[Path], list[P]],
        what: str,
        limit: int | None,
    ) -> list[P]:
        languages = self.config.languages
        paths: list[Path] = []
        for name in names:
            paths += [bundled(language) for language in languages] if name == "bundled" else [Path(name)]
        where = ", ".join(map(str, paths))
        people = [person for path in paths for person in load(path)]
        check_unique(where, (person.id for person in people), f"{what} ids")
        chosen: list[P] = []
        for language in languages:
            chosen += [person for person in people if person.language == language][:limit]
        if not chosen:
            have = ", ".join(sorted({person.language for person in people}))
            raise UserError(f"{where}: no {what} in {', '.join(languages)} (the file has {have})")
        return chosen

    @cached_property
    def gold(self) -> tuple[list[Dialogue], list[HumanScore]]:
        """Dialogues and scores of the gold set, in the wanted languages."""
        gold = self.config.gold
        if gold is None:
            return [], []
        if gold.dialogues == "synthetic":
            dialogues, scores = synthetic.build(languages=tuple(self.config.languages))
        elif gold.dialogues == "synthetic_test":
            dialogues, scores = synthetic_test()
        elif gold.scores is None:
            raise UserError("gold.scores: name the JSONL file of scores that belongs to gold.dialogues")
        else:
            dialogues, scores = read_dialogues([Path(gold.dialogues)]), read_gold(Path(gold.scores))
        chosen: list[Dialogue] = []
        for language in self.config.languages:
            have = [dialogue for dialogue in dialogues if dialogue.language == language]
            if gold.limit is not None and gold.limit < len(have):
                kept = set(random.Random(0).sample(range(len(have)), gold.limit))
                have = [dialogue for index, dialogue in enumerate(have) if index in kept]
            chosen += have
        for dialogue in chosen:
            self.shown.profile(dialogue)  # an unknown one is refused before anything is started
        ids = {dialogue.id for dialogue in chosen}
        return chosen, [s for s in scores if s.dialogue_id in ids and s.dimension in self.rubric.dimensions]

    def _supporter(self, name: str) -> ModelSpec:
        if self.base_url is None:
            return load_spec(name)
        known = name in model_names() or name.endswith((".yaml", ".yml"))
        endpoint = {"base_url": self.base_url, "api_key_env": self.api_key_env}
        if known:
            spec = load_spec(name)
            return spec.model_copy(update={"endpoint": spec.endpoint.model_copy(update=endpoint)})
        return ModelSpec(
            name=re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "supporter",
            about="named on the command line",
            roles=("supporter",),
            languages=("en", "zh"),
            endpoint=Endpoint(model=name, **endpoint),
        )

    def _played(self, spec: ModelSpec, agent: Agent) -> ModelSpec:
        """A dialogue's side as it is sampled: by EmoHarbor's temperatures, or in ESC-Eval's paper mode greedy with up to 512
        new tokens (its published script)."""
        if self.config.framework == "emoharbor":
            return self.emoharbor.sampled(spec, agent)
        return spec.model_copy(update={"sampling": PAPER_SAMPLING}) if self.config.mode == "paper" else spec

    def _speaks(self, spec: ModelSpec, needed: str) -> ModelSpec:
        if needed not in spec.roles:
            raise UserError(f"model {spec.name} cannot be the {needed}: its spec gives it the roles {', '.join(spec.roles)}")
        for language in self.config.languages:
            if language not in spec.languages:
                raise UserError(f"model {spec.name} does not speak {language}; choose --language {spec.languages[0]}")
        return spec


def unspoken(spec: ModelSpec, languages: Sequence[Language]) -> list[Language]:
    """The wanted languages that a supporter does not speak: its cards in them are left out, and the run says so."""
    return [language for language in languages if language not in spec.languages]
