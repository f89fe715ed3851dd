"""The stages of a run: dialogues are held and scored in one stream, every record is rebuilt from the call store.

A stage first replays from the store alone; only when something is missing are servers started and asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from data_prep.records import Dialogue, Judgement, Usage
from data_prep.scores.human import read_dialogues
from evalsuite.config import Resolved, unspoken
from evalsuite.dialogue import Failures, Plan, hold
from evalsuite.frameworks import esc_eval
from evalsuite.judge import Judge
from evalsuite.runs import Run
from evalsuite.statistics.agreement import agreement
from serve.batch import in_flight
from serve.client import ChatClient, NotStored, Tally
from serve.errors import UserError, near
from serve.files import digest, read_bytes, write_json, write_jsonl
from serve.launch import Servers
from serve.plan import plan_servers
from serve.progress import CallProgress
from serve.specs import ModelSpec, load_spec

Job = Plan | Dialogue


class Fleet:
    """Where every model of a run answers: endpoints given in the config, and servers that are launched when first needed and
    stay up until the `with` block ends, so that the stages share them."""

    def __init__(self, run: Run, resolved: Resolved) -> None:
        self._run = run
        self._endpoints = dict(resolved.config.endpoints)
        self._roles = (resolved.config.seeker, resolved.config.judge)
        self._servers = ExitStack()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        self._servers.close()

    def up(self, specs: Sequence[ModelSpec]) -> Mapping[str, str]:
        """Base URLs by model name, after launching what is not up yet."""
        known = {load_spec(name).name for name in self._roles} | {spec.name for spec in specs}
        for name in self._endpoints:
            if name not in known and not any(name.startswith(f"{model}.") for model in known):
                raise UserError(f"endpoint for {name!r}: no such model in this run: {near(name, known)}")
        missing = {s.name: s for s in specs if s.name not in self._endpoints and s.endpoint.base_url is None}
        if missing:
            with self._run.timed("servers"):
                servers = self._servers.enter_context(Servers(plan_servers(list(missing.values()), self._run.logs)))
            self._endpoints = {**servers.endpoints, **self._endpoints}
        return self._endpoints


@dataclass
class Outcome:
    """What a stage made, in the order of its jobs."""

    dialogues: list[Dialogue] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    failures: Failures = field(default_factory=Failures)


def simulate(run: Run, resolved: Resolved, fleet: Fleet, console: Console, score: bool) -> Outcome:
    """Hold every dialogue of a run and, with `score`, judge each as soon as it ends. Writes cards, dialogues, judgements."""
    for spec in resolved.supporters:
        if left_out := unspoken(spec, resolved.config.languages):
            console.print(f"{spec.name} does not speak {', '.join(left_out)}: those cards are left out for it")
    run.claim("simulate", resolved.simulate_config())
    if score:
        run.claim("score", resolved.score_config())
    specs = [resolved.seeker, *resolved.supporters, *([resolved.judge] if score else [])]
    outcome = _execute(
        run, resolved, fleet, console, lambda client: list(esc_eval.plans(resolved, client)), specs, score, "simulate"
    )
    write_jsonl(run.folder / "cards.jsonl", resolved.cards)
    write_jsonl(run.folder / "dialogues.jsonl", outcome.dialogues)
    if score:
        write_jsonl(run.folder / "judgements.jsonl", outcome.judgements)
    return outcome


def score(run: Run, resolved: Resolved, fleet: Fleet, console: Console, dialogues: Path) -> Outcome:
    """Judge given dialogues. Writes them beside the judgements, so that the folder can be reported on its own."""
    given = [d for d in read_dialogues([dialogues]) if d.language in resolved.config.languages]
    if not given:
        raise UserError(f"{dialogues}: no dialogue in {', '.join(resolved.config.languages)}")
    own = run.folder / "dialogues.jsonl"
    from_elsewhere = dialogues.resolve() != own.resolve()
    if from_elsewhere:
        if "simulate" in run.config():
            raise UserError(f"--dialogues {dialogues}: {run.folder} holds a run's own dialogues; use another --out")
        run.claim("dialogues", {"count": len(given), "sha256": digest([each.model_dump(mode="json") for each in given])})
    run.claim("score", resolved.score_config())
    outcome = _execute(run, resolved, fleet, console, lambda _: given, [resolved.judge], True, "score")
    if from_elsewhere:
        write_jsonl(own, outcome.dialogues)
    write_jsonl(run.folder / "judgements.jsonl", outcome.judgements)
    return outcome


def score_gold(run: Run, resolved: Resolved, fleet: Fleet, console: Console) -> Outcome:
    """Judge the gold set and measure the agreement. Writes gold_*.jsonl and agreement.json."""
    dialogues, scores = resolved.gold
    run.claim("gold", resolved.gold_config())
    outcome = _execute(run, resolved, fleet, console, lambda _: dialogues, [resolved.judge], True, "gold")
    write_jsonl(run.folder / "gold_dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "gold_scores.jsonl", scores)
    write_jsonl(run.folder / "gold_judgements.jsonl", outcome.judgements)
    write_json(run.folder / "agreement.json", {"agreement": agreement(outcome.judgements, scores)})
    return outcome


def _execute(
    run: Run,
    resolved: Resolved,
    fleet: Fleet,
    console: Console,
    jobs: Callable[[ChatClient], Sequence[Job]],
    specs: Sequence[ModelSpec],
    judged: bool,
    stage: str,
) -> Outcome:
    concurrency = resolved.config.concurrency

    async def work(endpoints: Mapping[str, str], offline: bool) -> Outcome:
        async with ChatClient(run.store, endpoints, concurrency, offline=offline) as client:
            if not offline:
                await _check(client, resolved, specs)
            listed = jobs(client)
            quiet = Console(quiet=True) if offline else console
            with CallProgress(len(listed), client, quiet, stage, "dialogues") as progress:
                outcome = await _stream(client, resolved, listed, judged, concurrency, progress)
            _write_usage(run, stage, client.tallies)
            if not offline:
                timing["calls"] = {"/".join(who): asdict(tally) for who, tally in client.tallies.items()}
                timing["latency_s"] = run.store.latency()
                console.print(f"{stage}: {len(listed)} dialogues, {progress.rate()}")
            return outcome

    try:
        return asyncio.run(work({}, offline=True))
    except NotStored:
        endpoints = fleet.up(specs)
        with run.timed(stage) as timing:
            return asyncio.run(work(endpoints, offline=False))


async def _check(client: ChatClient, resolved: Resolved, specs: Sequence[ModelSpec]) -> None:
    for spec in specs:
        names = {spec.served_name()}
        if spec.adapters is not None:
            names = {
                spec.served_name(language, dimension)
                for language in resolved.config.languages
                for dimension in resolved.rubric.dimensions
            }
        await client.check(spec, sorted(names))


async def _stream(
    client: ChatClient, resolved: Resolved, jobs: Sequence[Job], judged: bool, width: int, progress: CallProgress
) -> Outcome:
    judge = Judge(client, resolved.judge, resolved.rubric, resolved.judge_prompts, resolved.method) if judged else None
    dialogues: dict[str, Dialogue] = {}
    judgements: dict[str, list[Judgement]] = {}
    failures = Failures()

    async def one(job: Job) -> None:
        dialogue = await hold(job, failures) if isinstance(job, Plan) else job
        dialogues[job.id] = dialogue
        if judge is not None:
            judgements[job.id] = await judge.score(dialogue)
        progress.step()

    await in_flight(jobs, one, width)
    ordered = [job.id for job in jobs]
    return Outcome(
        [dialogues[id] for id in ordered],
        [judgement for id in ordered for judgement in judgements.get(id, [])],
        failures,
    )


def _write_usage(run: Run, stage: str, tallies: Mapping[tuple[str, str], Tally]) -> None:
    """usage.json: stage → role → model → Usage; the same for an interrupted run and an undisturbed one."""
    path = run.folder / "usage.json"
    usage: dict[str, Any] = orjson.loads(read_bytes(path, "usage")) if path.exists() else {}
    usage[stage] = {}
    for (model, role), tally in sorted(tallies.items()):
        counted = Usage(
            calls=tally.calls,
            prompt_tokens=tally.prompt_tokens,
            completion_tokens=tally.completion_tokens,
            reasoning_tokens=tally.reasoning_tokens,
        )
        usage[stage].setdefault(role, {})[model] = counted.model_dump()
    write_json(path, usage)
