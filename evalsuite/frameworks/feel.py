"""FEEL (Zhang et al., 2024): several judges score given dialogues by band probabilities, over ten rounds (section 3.3).

What becomes of the scores is in `evalsuite.statistics.ensemble` (weights) and `model_ranking` (section 4.2). A judge is a model
with a persona, a file of the prompt pack, so that one model can be several judges. Method `tokens` is beyond the paper: such a
distribution from token probabilities, all aspects in one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console

from core.errors import UserError, near
from core.files import digest, write_jsonl
from core.judge_prompts import JudgeMethod, check_pack
from core.paths import IN_NAME
from core.prompts import PromptPack
from core.records import Dialogue, Judgement, Language
from core.specs import ModelSpec
from evalsuite.judge.base import Bands
from evalsuite.judge.judge import Judge
from evalsuite.role_play.seekers import ask_all
from evalsuite.runner.pipeline import Fleet
from evalsuite.runs.config import EvalConfig, Resolved, overridden
from evalsuite.runs.folder import Run
from evalsuite.runs.identity import identity
from evalsuite.statistics.band_lines import OffSum
from evalsuite.statistics.band_methods import Cost
from evalsuite.statistics.summary import scorer_of
from serve.client import ChatClient

FRAMEWORK = "feel"
Method = Literal["bands", "tokens"]
_ASKED: dict[Method, JudgeMethod] = {"bands": "bands", "tokens": "joint"}


class JudgeEntry(BaseModel):
    """One judge: a model (a name in configs/models, or a spec file) and who it is told to be (persona_NAME.j2 of the pack)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str
    persona: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")] = "psychologist"


class FeelConfig(BaseModel):
    """One run of FEEL's judges. `rounds` and `temperature` (above 0) are those of `bands`; `tokens` asks once.

    `endpoints` maps model names to base URLs of servers that are already up; what is missing there is launched, one model
    after the other.
    """

    model_config = ConfigDict(extra="forbid")
    framework: Literal["feel"] = "feel"
    judges: Annotated[list[JudgeEntry], Field(min_length=1)]
    methods: Annotated[list[Method], Field(min_length=1)] = ["bands"]
    rounds: Annotated[int, Field(ge=1, le=100)] = 10
    temperature: Annotated[float, Field(gt=0, le=2)] = 0.7
    off_sum: OffSum = "renormalise"
    rubric: Annotated[str, IN_NAME] = "feel"
    prompts: Annotated[str, IN_NAME] = "feel"
    languages: Annotated[list[Language], Field(min_length=1)] = ["en", "zh"]
    concurrency: Annotated[int, Field(gt=0)] | None = None
    endpoints: dict[str, str] = {}
    out: str

    @model_validator(mode="after")
    def _once(self) -> FeelConfig:
        for name, given in (("judges", self.judges), ("methods", self.methods), ("languages", self.languages)):
            if len(set(given)) < len(given):
                raise ValueError(f"{name}: one is given twice{'; rounds ask a judge again' if name == 'judges' else ''}")
        return self


def load_feel_config(path: Path, overrides: dict[str, Any]) -> FeelConfig:
    """A panel's config (`evalsuite.runs.config.overridden`)."""
    return overridden(path, FeelConfig, "FEEL config", overrides)


@dataclass(frozen=True)
class Member:
    """One judge of the panel, loaded and checked. The templates of `prompts` know its persona."""

    entry: JudgeEntry
    resolved: Resolved
    prompts: PromptPack

    @property
    def spec(self) -> ModelSpec:
        return self.resolved.judge


def members(config: FeelConfig) -> list[Member]:
    """The panel, judges of one model together, as only one model is up at a time. Raises `UserError` for whatever is missing or
    does not fit together; nothing is started yet."""
    found: list[Member] = []
    for entry in config.judges:
        asked = EvalConfig(
            seeker=entry.model,  # nobody speaks here: a run's config has to name one
            judge=entry.model,
            rubric=config.rubric,
            method=_ASKED[config.methods[0]],
            prompts=config.prompts,
            languages=config.languages,
            concurrency=config.concurrency,
            out=config.out,
        )
        resolved = Resolved(asked)
        for method in config.methods:
            check_pack(resolved.judge_prompts, _ASKED[method], config.languages)
        resolved.judge_prompts.require(config.languages, [f"persona_{entry.persona}.j2"])
        if "tokens" in config.methods and not resolved.judge.endpoint.top_logprobs:
            raise UserError(f"model {resolved.judge.name}: its endpoint gives no token probabilities (top_logprobs: 0)")
        assert resolved.rubric is not None, "loaded, so that it is checked"
        found.append(Member(entry, resolved, resolved.judge_prompts.with_values(persona=entry.persona)))
    for a, b in itertools.combinations(found, 2):  # by model's name and persona a judge is known, in records and to servers
        if a.spec.name == b.spec.name and (a.spec != b.spec or a.entry.persona == b.entry.persona):
            raise UserError(f"judges: {a.entry.model} and {b.entry.model} are both named {a.spec.name}: rename one")
    known = list(dict.fromkeys(member.spec.name for member in found))
    for name, url in config.endpoints.items():
        if name not in known:
            raise UserError(f"endpoint for {name!r}: no such judge in this run: {near(name, known)}")
        for member in found:
            if member.spec.name == name:
                member.resolved.config.endpoints[name] = url
    return sorted(found, key=lambda member: known.index(member.spec.name))


def score(
    run: Run, config: FeelConfig, panel: Sequence[Member], dialogues: Sequence[Dialogue], console: Console
) -> list[Judgement]:
    """Every judge's verdicts by every method. Writes dialogues.jsonl, judgements.jsonl and costs.jsonl (`Cost` records); the
    same command resumes."""
    if other := set(run.config()) - {FRAMEWORK}:
        raise UserError(f"--out {run.folder} holds another run's records ({', '.join(sorted(other))}); use another --out")
    run.claim(
        FRAMEWORK,
        {
            **config.model_dump(include={"methods", "rounds", "temperature", "off_sum", "languages"}),
            "judges": [{"persona": member.entry.persona, **identity(member.spec)} for member in panel],
            "rubric": panel[0].resolved.rubric.model_dump(mode="json"),
            "prompts": {"pack": config.prompts, "fingerprint": panel[0].prompts.fingerprint()},
            "dialogues": {"count": len(dialogues), "sha256": digest([d.model_dump(mode="json") for d in dialogues])},
        },
    )
    judgements: list[Judgement] = []
    costs: list[Cost] = []
    for _, group in itertools.groupby(panel, key=lambda member: member.spec.name):
        own = list(group)
        with Fleet(run, own[0].resolved) as fleet:
            for member, method in itertools.product(own, config.methods):
                found, cost = _asked(run, config, member, fleet, method, dialogues, console)
                judgements += found
                costs.append(cost)
    write_jsonl(run.folder / "dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "judgements.jsonl", judgements)
    write_jsonl(run.folder / "costs.jsonl", costs)
    return judgements


def _asked(
    run: Run,
    config: FeelConfig,
    member: Member,
    fleet: Fleet,
    method: Method,
    dialogues: Sequence[Dialogue],
    console: Console,
) -> tuple[list[Judgement], Cost]:
    spec = member.spec
    if method == "bands":
        spec = spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"temperature": config.temperature})})
    asked_through: list[ChatClient] = []

    async def judged(client: ChatClient, dialogue: Dialogue) -> list[Judgement]:
        asked_through[:] = [client]
        bands = Bands(config.rounds, config.off_sum)
        judge = Judge(client, spec, member.resolved.rubric, member.prompts, _ASKED[method], bands)
        return [_named(each, method, member.entry.persona) for each in await judge.score(dialogue)]

    found = ask_all(run, member.resolved, fleet, console, dialogues, judged, f"feel {method}", "dialogues")
    judgements = [judgement for of_one in found for judgement in of_one]
    tally = asked_through[0].tallies[spec.name, "judge"]
    return judgements, Cost(
        judge=scorer_of(judgements[0]).name,
        dialogues=len(dialogues),
        calls=tally.calls,
        prompt_tokens=tally.prompt_tokens,
        completion_tokens=tally.completion_tokens,
    )


def _named(judgement: Judgement, method: Method, persona: str) -> Judgement:
    """With the persona as condition. By token probabilities the verdict is the mean, as it is for bands; without any there is
    none."""
    changed: dict[str, Any] = {"condition": judgement.condition | {"persona": persona}}
    if method == "tokens":
        changed |= {"method": "tokens", "value": judgement.expected}
    return judgement.model_copy(update=changed)
