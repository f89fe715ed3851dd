"""FEEL (Zhang et al., 2024): several judges score given dialogues by band probabilities, over ten rounds (section 3.3).

`feel_ensemble` (weights) and `feel_ranking` (section 4.2), beside this file, use the scores. A judge is a model with a persona
(a file of the prompt pack), so one model can be several judges. Method `tokens` is not in the paper: it gets the distribution
from token probabilities, all aspects in one call.

- Spread of the rounds: the standard deviation (n − 1) of the rounds' scores per dialogue and aspect, averaged; it needs two
  readable rounds, so a single call has a dash.
- Agreement of the two methods of one model and persona: on the scores of equation 1, over dialogues that both scored.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from core.errors import UserError, near
from core.files import read_jsonl, write_jsonl
from core.grouping import group_by
from core.judge_prompts import check_pack
from core.names import Spelt
from core.paths import IN_NAME, IN_SPEC
from core.prompts import PromptPack
from core.records import Count, Dialogue, Judgement, Language, Name, Record
from core.rubrics import Rubric
from core.settings import Settings
from core.specs import ModelSpec
from core.statistics.bootstrap import estimate, resampled_means
from core.tables import PARTED, Cell, Estimate, Table
from evalsuite.judge.bands import off_sum_share
from evalsuite.judge.judge import Bands, Judge, OffSum
from evalsuite.papers.feel_ensemble import FEEL, correlated, panel_of
from evalsuite.runs.config import EvalConfig, overridden
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import Run
from evalsuite.runs.framework import Framework, ScoredRun, opens_freely
from evalsuite.runs.run_config import hashed, identity
from evalsuite.statistics.summary import scorer_of
from serve.client import ChatClient

Method = Literal["bands", "tokens"]
_JUDGE_METHODS: dict[Method, str] = {"bands": "bands", "tokens": "joint"}


class JudgeEntry(Settings):
    """One judge of a panel. One model can be several judges, as different personas."""

    model: Annotated[str, IN_SPEC]
    """A name in configs/models, a spec file, or NAME@URL."""
    persona: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")] = "psychologist"
    """Its persona: persona_NAME.j2 of the prompt pack."""


class FeelConfig(BaseModel):
    """A run of FEEL's judges."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    framework: Literal["feel"] = "feel"
    """FEEL."""
    judges: Annotated[list[JudgeEntry], Field(min_length=1)]
    """The panel."""
    methods: Annotated[list[Method], Field(min_length=1)] = ["bands"]
    """How judges are asked: band probabilities over several rounds, or token probabilities in one call."""
    rounds: Annotated[int, Field(ge=1, le=100)] = 10
    """Rounds of `bands` per dialogue."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 0.7
    """Sampling temperature of `bands`."""
    off_sum: OffSum = "renormalise"
    """How to treat probabilities that do not sum to 1."""
    rubric: Annotated[str, IN_NAME] = "feel"
    """The rubric: a name in configs/rubrics, or a file."""
    prompts: Annotated[str, IN_NAME] = "feel"
    """The judges' prompt pack: a name in configs/prompts, or a folder."""
    languages: Annotated[list[Language], Field(min_length=1)] = ["en", "zh"]
    """Languages to judge."""
    concurrency: Annotated[int, Field(gt=0)] | None = None
    """Calls in flight at once. Default: as many per server as it handles."""
    endpoints: dict[str, str] = {}
    """Base URLs of running servers, by model name. Other models are launched, one after the other."""
    out: str
    """The run folder."""

    @field_validator("judges", "methods", "languages")
    @classmethod
    def _once(cls, value: list[Any]) -> list[Any]:
        if len(set(value)) < len(value):
            raise ValueError("an entry is given twice; `rounds` repeats a judge")
        return value


def load_feel_config(path: Path, overrides: dict[str, Any], settings: Sequence[str] = ()) -> FeelConfig:
    """A panel's config from a file, with overrides (`evalsuite.runs.config.overridden`)."""
    return overridden(path, FeelConfig, "FEEL config", overrides, settings)


class Member(NamedTuple):
    """One judge of the panel, loaded and checked. `prompts` has its persona filled in."""

    entry: JudgeEntry
    resolved: DialogueFramework
    spec: ModelSpec
    rubric: Rubric
    prompts: PromptPack


class Feel(Framework):
    """A panel of judges, with everything that its config names; no server is started. FEEL judges given dialogues only. Raises
    `UserError` for whatever is missing or incompatible."""

    name = "feel"
    title = "FEEL"
    config_model = FeelConfig

    def __init__(self, config: FeelConfig) -> None:
        self.config = config
        self.members = _members(config)

    def identity(self) -> dict[str, Any]:
        first = self.members[0]
        return {
            **self.config.model_dump(include={"methods", "rounds", "temperature", "off_sum", "languages"}),
            "judges": [{"persona": member.entry.persona, **identity(member.spec)} for member in self.members],
            "rubric": first.rubric.model_dump(mode="json"),
            "prompts": {"pack": self.config.prompts, "fingerprint": first.prompts.fingerprint()},
        }

    @classmethod
    def wrote(cls, run: ScoredRun) -> bool:
        """Whether a panel judged."""
        return cls.name in run.config

    @classmethod
    def tables(cls, run: ScoredRun) -> Iterator[Table]:
        """Verdicts, spread of the rounds and cost of every judge; for judges asked by both methods, how these agree."""
        costs = read_jsonl(run.folder / "costs.jsonl", Cost, "costs")
        yield method_table(run.tally.judgements, costs, run.tally.rubric)
        if (agreement := agreement_table(run.tally.judgements)).rows:
            yield agreement


def _members(config: FeelConfig) -> list[Member]:
    """The panel, with judges of one model next to each other, as only one model is up at a time."""
    members: list[Member] = []
    shared = config.model_dump(include={"rubric", "prompts", "languages", "concurrency", "out"})
    shared |= {"method": _JUDGE_METHODS[config.methods[0]], "judge_prompts": config.prompts}
    for entry in config.judges:
        resolved = DialogueFramework(EvalConfig(judge=entry.model, **shared))
        for method in config.methods:
            check_pack(resolved.judge_prompts, _JUDGE_METHODS[method], config.languages)
        resolved.judge_prompts.require(config.languages, [f"persona_{entry.persona}.j2"])
        if "tokens" in config.methods and (judge := resolved.models.judge).endpoint.top_logprobs == 0:
            raise UserError(f"model {judge.name}: its endpoint gives no token probabilities (top_logprobs: 0)")
        prompts = resolved.judge_prompts.with_values(persona=entry.persona)
        members.append(Member(entry, resolved, resolved.models.judge, resolved.rubric, prompts))
    for a, b in itertools.combinations(members, 2):  # records and servers identify a judge by model name and persona
        if a.spec.name == b.spec.name and (a.spec != b.spec or a.entry.persona == b.entry.persona):
            raise UserError(f"judges: {a.entry.model} and {b.entry.model} are both named {a.spec.name}: rename one")
    names = list(dict.fromkeys(member.spec.name for member in members))
    for name, url in config.endpoints.items():
        if name not in names:
            raise UserError(f"endpoint for {name!r}: no such judge in this run: {near(name, names)}")
        for member in members:
            if member.spec.name == name:
                member.resolved.config.endpoints[name] = url
    return sorted(members, key=lambda member: names.index(member.spec.name))


def score(
    run: Run, panel: Feel, dialogues: Sequence[Dialogue], runner: Callable[[DialogueFramework], AbstractContextManager[Any]]
) -> list[Judgement]:
    """Every judge's verdicts by every method. Writes dialogues.jsonl, judgements.jsonl and costs.jsonl (`Cost` records); the
    same command resumes. `runner` opens the engine's `Runner`; one model is up at a time."""
    if others := run.config().stages.keys() - {panel.name}:
        raise UserError(f"--out {run.folder} holds another run's records ({', '.join(sorted(others))}); use another --out")
    run.claim(panel.name, panel.identity() | {"dialogues": hashed(dialogues)})
    judgements: list[Judgement] = []
    costs: list[Cost] = []
    for _, group in itertools.groupby(panel.members, key=lambda member: member.spec.name):
        members = list(group)
        with runner(members[0].resolved) as engine:
            for member, method in itertools.product(members, panel.config.methods):
                answers = engine.judged(f"feel {method}", dialogues, _work(panel.config, member, method), "dialogues")
                verdicts = [judgement for judgements in answers.results for judgement in judgements]
                tally = answers.client.tallies[member.spec.name, "judge"]
                judgements += verdicts
                counts = {name: getattr(tally, name) for name in ("calls", "prompt_tokens", "completion_tokens")}
                costs.append(Cost(judge=scorer_of(verdicts[0]).name, dialogues=len(dialogues), **counts))
    write_jsonl(run.folder / "dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "judgements.jsonl", judgements)
    write_jsonl(run.folder / "costs.jsonl", costs)
    return judgements


def _work(config: FeelConfig, member: Member, method: Method) -> Callable[[ChatClient, Dialogue], Awaitable[list[Judgement]]]:
    spec, bands = member.spec, Bands(config.rounds, config.off_sum)
    if method == "bands":  # at the panel's temperature
        spec = spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"temperature": config.temperature})})

    async def judged(client: ChatClient, dialogue: Dialogue) -> list[Judgement]:
        judge = Judge(client, spec, member.rubric, member.prompts, _JUDGE_METHODS[method], bands, opens_freely=opens_freely)
        verdicts = []
        for judgement in await judge.score(dialogue):
            changes: dict[str, Any] = {"condition": judgement.condition | {"persona": member.entry.persona}}
            if method == "tokens":  # the verdict is the mean, as for bands, and so None without probabilities
                changes |= {"method": "tokens", "value": judgement.expected}
            verdicts.append(judgement.model_copy(update=changes))
        return verdicts

    return judged


# --- band and token probabilities -------------------------------------------------------------------------------------------


class Cost(Record):
    """A line of costs.jsonl: one scorer's (`Scorer.name`) cost on all dialogues together, as its server counted."""

    judge: Annotated[Name, Spelt("judge")]
    dialogues: Annotated[Count, Field(gt=0)]
    calls: Count
    prompt_tokens: Count
    completion_tokens: Count


def method_table(judgements: Sequence[Judgement], costs: Sequence[Cost], rubric: Rubric) -> Table:
    """One row per scorer and language: verdicts, shares read and not summing to 1, both in per cent, spread, and cost (a dash
    for a scorer that is not in `costs`)."""
    by_scorer = group_by(judgements, lambda judgement: (scorer_of(judgement).name, judgement.language))
    prices = {c.judge: [n / c.dialogues for n in (c.calls, c.prompt_tokens, c.completion_tokens)] for c in costs}
    rows: list[tuple[Cell, ...]] = []
    for (scorer, language), verdicts in by_scorer.items():
        read = 100 * sum(judgement.value is not None for judgement in verdicts) / len(verdicts)
        figures = (len(verdicts), read, off_sum_share(verdicts, rubric), _spread(verdicts))
        rows.append((scorer, language, *figures, *prices.get(scorer, (None, None, None))))
    units = ("calls per dialogue", "prompt tokens per dialogue", "completion tokens per dialogue")
    columns = ("scorer", "language", "verdicts", "read %", "sum off %", "spread of the rounds", *units)
    notes = (
        "Spread: standard deviation of a dialogue's rounds on an aspect, averaged, [95 % percentile bootstrap over dialogues], "
        "n = dialogues. Sum off: verdicts whose numbers could be read and do not sum to 1 ± 0.02.",
        "Costs are per dialogue over all languages of the run.",
    )
    return Table("feel_methods", "Rounds of band probabilities and token probabilities", columns, tuple(rows), notes, FEEL)


def _spread(judgements: Sequence[Judgement]) -> Estimate:
    read = [judgement for judgement in judgements if judgement.value is not None]
    spreads: dict[str, list[float]] = defaultdict(list)
    for (dialogue, _), rounds in group_by(read, lambda judgement: (judgement.dialogue_id, judgement.dimension)).items():
        if len(rounds) > 1:
            spreads[dialogue].append(statistics.stdev(judgement.value or 0.0 for judgement in rounds))
    return _mean(spreads)


def _mean(values: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean of all numbers, with an interval over dialogues, which are resampled whole; n counts dialogues."""
    if not values:
        return Estimate(None, None, None, 0)
    sums, counts = (np.array([[f(numbers)] for numbers in values.values()], dtype=np.float64) for f in (sum, len))
    return estimate(float(sums.sum() / counts.sum()), resampled_means(sums, counts)[:, 0], len(values), len(values))


def agreement_table(judgements: Sequence[Judgement]) -> Table:
    """The two methods of every judge against each other, one row per aspect; no row for a judge asked by one method only."""
    by_judge = group_by(map(scorer_of, judgements), lambda scorer: (scorer.judge, scorer.condition))
    panel = panel_of(judgements)
    rows: list[tuple[Cell, ...]] = []
    for (judge, condition), scorers in by_judge.items():
        methods = {scorer.method: scorer.name for scorer in scorers}
        if {"bands", "tokens"} <= methods.keys():
            bands, tokens = panel[methods["bands"]], panel[methods["tokens"]]
            name = PARTED.join([judge, *(f"{key}={value}" for key, value in condition)])
            for aspect in (aspect for aspect in bands if aspect in tokens):
                ids = sorted(set(bands[aspect]) & set(tokens[aspect]))
                gaps = {i: [bands[aspect][i] - tokens[aspect][i]] for i in ids}
                means = _mean(gaps), _mean({i: [abs(gap)] for i, (gap,) in gaps.items()})
                rows.append((name, *aspect, correlated(bands[aspect], tokens[aspect], ids)["spearman"], *means))
    columns = ("judge", "language", "aspect", "Spearman", "bands − tokens", "|bands − tokens|")
    note = "On the scores of equation 1, in points; [95 % percentile bootstrap over dialogues], n = dialogues that both scored."
    title = "Band probabilities against token probabilities"
    return Table("feel_method_agreement", title, columns, tuple(rows), (note,), FEEL, decimals=3)
