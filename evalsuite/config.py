"""What one run is: a YAML file in configs/eval with command-line overrides, resolved into models, cards, rubric and prompts."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_prep.cards import bundled_cards, load_cards
from data_prep.judge_prompts import Method, check_pack
from data_prep.prompts import PromptPack, load_pack
from data_prep.records import Dialogue, HumanScore, Language, RoleCard
from data_prep.rubrics import Rubric, load_rubric
from data_prep.scores import synthetic
from data_prep.scores.human import read_dialogues
from data_prep.scores.rank_sft import synthetic_test
from evalsuite.statistics.agreement import read_gold
from serve.errors import UserError
from serve.files import check_unique, digest, explain, read_yaml
from serve.specs import Endpoint, ModelSpec, Sampling, load_spec, model_names

PAPER_SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_tokens=512)


class GoldConfig(BaseModel):
    """Dialogues with known scores, on which the judge's agreement is measured.

    `dialogues: synthetic` is the bundled set whose scores hold by construction, `synthetic_test` its test split (what
    `rank-sft` holds out with seed 0, for judges that were trained on the rest); otherwise two JSONL files (Dialogue,
    HumanScore). `limit` draws that many dialogues a language (seed 0).
    """

    model_config = ConfigDict(extra="forbid")
    dialogues: str = "synthetic"
    scores: str | None = None
    limit: Annotated[int, Field(gt=0)] | None = None


class EvalConfig(BaseModel):
    """One run. Models are names in configs/models or paths of spec files; `cards` are `bundled` or paths of card files.

    `prompts` is the pack that seekers are told from, `judge_prompts` the judge's (without it, the same): a ranker is asked in
    the pack that it learnt. `endpoints` maps model names to base URLs of servers that are already up; what is missing there is
    launched.
    """

    model_config = ConfigDict(extra="forbid")
    framework: Literal["esc_eval"] = "esc_eval"
    mode: Literal["paper", "native"] = "native"
    seeker: str
    supporters: list[str] = []
    judge: str
    rubric: str = "esc_eval"
    method: Literal["joint", "per_dimension"] = "joint"
    prompts: str = "esc_eval"
    judge_prompts: str | None = None
    cards: list[str] = ["bundled"]
    languages: Annotated[list[Language], Field(min_length=1)] = ["en", "zh"]
    limit: Annotated[int, Field(gt=0)] | None = None
    exchanges: Annotated[int, Field(gt=0)] = 5
    trials: Annotated[int, Field(gt=0)] = 1
    concurrency: Annotated[int, Field(gt=0)] = 64
    gold: GoldConfig | None = None
    endpoints: dict[str, str] = {}
    out: str


def load_config(path: Path, overrides: dict[str, Any]) -> EvalConfig:
    """A config file with command-line overrides (None: not given); errors name file, line and field, or the option."""
    config = read_yaml(path, EvalConfig, "eval config")
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return EvalConfig.model_validate(config.model_dump() | given)
    except ValidationError as error:
        raise UserError(f"command line: {explain(error)}") from None


@dataclass(frozen=True)
class Resolved:
    """A config with everything it names loaded and checked; nothing has been written or started yet.

    Raises `UserError` on construction or first use for whatever is missing, malformed or does not fit together.
    """

    config: EvalConfig
    base_url: str | None = None
    api_key_env: str | None = None

    @property
    def method(self) -> Method:
        return "paper" if self.config.mode == "paper" else self.config.method

    @cached_property
    def seeker(self) -> ModelSpec:
        return self._played(load_spec(self.config.seeker), "seeker")

    @cached_property
    def judge(self) -> ModelSpec:
        return self._speaks(load_spec(self.config.judge), "judge")

    @cached_property
    def supporters(self) -> list[ModelSpec]:
        if not self.config.supporters:
            raise UserError("no supporter given: name one with --supporter, or under `supporters:` in the config")
        specs = [self._played(self._supporter(name), None) for name in self.config.supporters]
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
        return load_pack(self.config.prompts)

    @cached_property
    def judge_prompts(self) -> PromptPack:
        pack = load_pack(self._judge_pack)
        check_pack(pack, self.method, self.config.languages)
        return pack

    @property
    def _judge_pack(self) -> str:
        return self.config.judge_prompts or self.config.prompts

    @cached_property
    def cards(self) -> list[RoleCard]:
        """The cards of the wanted languages, at most `limit` a language, in file order."""
        languages = self.config.languages
        paths: list[Path] = []
        for name in self.config.cards:
            paths += [bundled_cards(language) for language in languages] if name == "bundled" else [Path(name)]
        where = ", ".join(map(str, paths))
        cards = [card for path in paths for card in load_cards(path)]
        check_unique(where, (card.id for card in cards), "card ids")
        chosen = []
        for language in languages:
            chosen += [card for card in cards if card.language == language][: self.config.limit]
        if not chosen:
            have = ", ".join(sorted({card.language for card in cards}))
            raise UserError(f"{where}: no card in {', '.join(languages)} (the file has {have})")
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
            name=re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "supporter",
            about="named on the command line",
            roles=("supporter",),
            languages=("en", "zh"),
            endpoint=Endpoint(model=name, **endpoint),
        )

    def _played(self, spec: ModelSpec, needed: str | None) -> ModelSpec:
        """A dialogue's side; paper mode fixes its sampling (greedy, up to 512 new tokens: ESC-Eval's published script)."""
        if needed:
            self._speaks(spec, needed)
        return spec.model_copy(update={"sampling": PAPER_SAMPLING}) if self.config.mode == "paper" else spec

    def _speaks(self, spec: ModelSpec, needed: str) -> ModelSpec:
        if needed not in spec.roles:
            raise UserError(f"model {spec.name} cannot be the {needed}: its spec gives it the roles {', '.join(spec.roles)}")
        for language in self.config.languages:
            if language not in spec.languages:
                raise UserError(f"model {spec.name} does not speak {language}; choose --language {spec.languages[0]}")
        return spec

    def simulate_config(self) -> dict[str, Any]:
        """What decides the dialogues of this run, as JSON: the run folder is claimed with it."""
        return {
            "framework": self.config.framework,
            "mode": self.config.mode,
            "cards": {"count": len(self.cards), "sha256": digest([card.model_dump(mode="json") for card in self.cards])},
            "languages": self.config.languages,
            "exchanges": self.config.exchanges,
            "trials": self.config.trials,
            "seeker": identity(self.seeker),
            "supporters": [identity(spec) for spec in self.supporters],
            "prompts": {"pack": self.config.prompts, "fingerprint": self.prompts.fingerprint()},
        }

    def score_config(self) -> dict[str, Any]:
        """What decides the judgements, beyond the dialogues themselves."""
        return {
            "mode": self.config.mode,
            "judge": identity(self.judge),
            "rubric": self.rubric.model_dump(mode="json"),
            "method": self.method,
            "prompts": {"pack": self._judge_pack, "fingerprint": self.judge_prompts.fingerprint()},
        }

    def gold_config(self) -> dict[str, Any]:
        """What decides the agreement: the gold set by its hash."""
        dialogues, scores = self.gold
        records = [record.model_dump(mode="json") for record in (*dialogues, *scores)]
        assert self.config.gold is not None
        return {
            "dialogues": self.config.gold.dialogues,
            "limit": self.config.gold.limit,
            "count": len(dialogues),
            "sha256": digest(records),
        }


def identity(spec: ModelSpec) -> dict[str, Any]:
    """What a model is, without where it answers: ports and addresses of servers may change between tries of one run."""
    kept = spec.model_dump(mode="json", exclude={"about", "roles", "licence", "endpoint", "serve"})
    asked = spec.endpoint.model_dump(mode="json", exclude={"base_url", "api_key_env"})
    return kept | {"endpoint": asked, "dtype": spec.serve.dtype, "fingerprint": spec.fingerprint()}


def unspoken(spec: ModelSpec, languages: Sequence[Language]) -> list[Language]:
    """The wanted languages that a supporter does not speak: its cards in them are left out, and the run says so."""
    return [language for language in languages if language not in spec.languages]
