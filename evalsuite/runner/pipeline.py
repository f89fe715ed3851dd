"""The stages of a run: dialogues are held and scored in one stream, every record is rebuilt from the call store.

A stage first replays from the store alone; only when something is missing are servers started and asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from core.errors import UserError, near
from core.files import digest, read_object, write_json, write_jsonl
from core.records import Dialogue, Judgement, Usage
from core.specs import ModelSpec, load_spec
from data_prep.scores.human import read_dialogues
from evalsuite.dialogues.hold import Plan, hold
from evalsuite.frameworks import emoharbor, esc_eval
from evalsuite.judge.judge import Judge
from evalsuite.runs.config import Resolved, unspoken
from evalsuite.runs.folder import Run
from evalsuite.runs.identity import gold_config, score_config, simulate_config
from evalsuite.runs.versions import versions
from evalsuite.statistics.agreement import agreement
from serve.answers import Tally
from serve.batch import in_flight
from serve.checkpoints.places import commits
from serve.client import ChatClient
from serve.failures import FailedCall, NotStored, Threshold, Unanswered
from serve.launch import Servers
from serve.plan import plan_servers
from serve.progress import CallProgress

Job = Plan | Dialogue
_PLANS: dict[str, Callable[[Resolved, ChatClient], Iterator[Plan]]] = {
    "esc_eval": esc_eval.plans,
    "emoharbor": emoharbor.plans,
}


class Fleet:
    """Where every model of a run answers: endpoints given in the config, and servers that are launched when first needed and
    stay up until the `with` block ends, so that the stages share them."""

    def __init__(self, run: Run, resolved: Resolved) -> None:
        self._run = run
        self._endpoints = dict(resolved.config.endpoints)
        named = (resolved.config.seeker, resolved.emoharbor.thinker, resolved.config.judge)
        self._roles = tuple(name for name in named if name)
        # A shard may be given the endpoint of a supporter that only others of its shards speak to.
        self._supporters = lambda: resolved.supporters if resolved.config.supporters else []
        self._servers = ExitStack()
        self.launched: set[str] = set()  # base URLs of servers of ours

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        self._servers.close()

    def up(self, specs: Sequence[ModelSpec]) -> Mapping[str, str]:
        """Base URLs by model name, after launching what is not up yet."""
        known = {load_spec(name).name for name in self._roles} | {spec.name for spec in specs}
        if not known.issuperset(self._endpoints):
            known |= {spec.name for spec in self._supporters()}
        for name in self._endpoints:
            if name not in known and not any(name.startswith(f"{model}.") for model in known):
                raise UserError(f"endpoint for {name!r}: no such model in this run: {near(name, known)}")
        missing = {s.name: s for s in specs if s.name not in self._endpoints and s.endpoint.base_url is None}
        if missing:
            with self._run.timed("servers") as timing:
                servers = self._servers.enter_context(Servers(plan_servers(list(missing.values()), self._run.logs)))
                timing["commits"] = self._run.same_commits(commits(missing.values()))
            self._endpoints = {**servers.endpoints, **self._endpoints}
            self.launched |= set(servers.endpoints.values())
        return self._endpoints


@dataclass(repr=False)  # asyncio.run asks for it twice a run: seconds, and a string as large as all records together
class Outcome:
    """What a stage made, in the order of its jobs; which calls failed, why it ended early if it did, and what it used by role
    and model."""

    dialogues: list[Dialogue] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    turn_judgements: list[Judgement] = field(default_factory=list)
    failures: list[FailedCall] = field(default_factory=list)
    ended_early: str | None = None
    usage: dict[str, dict[str, Usage]] = field(default_factory=dict)


def simulate(run: Run, resolved: Resolved, fleet: Fleet, console: Console, score: bool) -> Outcome:
    """Hold every dialogue of a run and, with `score`, judge each as soon as it ends. Writes cards or profiles, dialogues and
    judgements."""
    for spec in resolved.supporters:
        if left_out := unspoken(spec, resolved.config.languages):
            console.print(f"{spec.name} does not speak {', '.join(left_out)}: what is played in it is left out")
    run.claim("simulate", simulate_config(resolved))
    if score:
        run.claim("score", score_config(resolved))
    specs = [*_seekers(resolved), *([resolved.judge] if score else [])]
    plans = _PLANS[resolved.config.framework]
    outcome = _execute(
        run, resolved, fleet, console, lambda client: resolved.part(list(plans(resolved, client))), specs, score, "simulate"
    )
    _write_people(run, resolved)
    write_jsonl(run.folder / "dialogues.jsonl", outcome.dialogues)
    if score:
        _write_judgements(run, outcome)
    return outcome


def score(run: Run, resolved: Resolved, fleet: Fleet, console: Console, dialogues: Path) -> Outcome:
    """Judge given dialogues. Writes them beside the judgements, so that the folder can be reported on its own."""
    given = [d for d in read_dialogues([dialogues]) if d.language in resolved.config.languages]
    if not given:
        raise UserError(f"{dialogues}: no dialogue in {', '.join(resolved.config.languages)}")
    seekers = {each.profile_id for each in given}
    own = run.folder / "dialogues.jsonl"
    from_elsewhere = dialogues.resolve() != own.resolve()
    if from_elsewhere:
        if "simulate" in run.config():
            raise UserError(f"--dialogues {dialogues}: {run.folder} holds a run's own dialogues; use another --out")
        run.claim("dialogues", {"count": len(given), "sha256": digest([each.model_dump(mode="json") for each in given])})
        given = resolved.part(given)  # a run's own dialogues are this shard's already
    for dialogue in given:
        resolved.shown.profile(dialogue)  # an unknown one is refused before anything is started
    run.claim("score", score_config(resolved))
    outcome = _execute(run, resolved, fleet, console, lambda _: given, _judges(resolved, given), True, "score")
    if from_elsewhere:
        write_jsonl(own, outcome.dialogues)
        if resolved.shown.profiles:
            write_jsonl(run.folder / "profiles.jsonl", [each for each in resolved.known_profiles if each.id in seekers])
    _write_judgements(run, outcome)
    return outcome


def _judges(resolved: Resolved, given: Sequence[Dialogue]) -> list[ModelSpec]:
    """Who is asked to judge given dialogues: the judge, and the Thinker where it is to be shown states that they lack."""
    lacking = resolved.shown.strategy == "states" and any(map(emoharbor.unthought, given))
    return [resolved.judge, *([resolved.thinker] if lacking and resolved.thinker else [])]


def _seekers(resolved: Resolved) -> list[ModelSpec]:
    return [resolved.seeker, *([resolved.thinker] if resolved.thinker else [])]


def _write_people(run: Run, resolved: Resolved) -> None:
    if resolved.config.framework == "emoharbor":
        write_jsonl(run.folder / "profiles.jsonl", resolved.profiles)
    else:
        write_jsonl(run.folder / "cards.jsonl", resolved.cards)


def _write_judgements(run: Run, outcome: Outcome) -> None:
    """Verdicts on whole dialogues; those on parts of them (EmoHarbor's per turn) have a file of their own."""
    write_jsonl(run.folder / "judgements.jsonl", outcome.judgements)
    if outcome.turn_judgements:
        write_jsonl(run.folder / "turn_judgements.jsonl", outcome.turn_judgements)


def score_gold(run: Run, resolved: Resolved, fleet: Fleet, console: Console) -> Outcome:
    """Judge the gold set and measure the agreement. Writes gold_*.jsonl and agreement.json (not for a shard)."""
    dialogues, scores = resolved.gold
    run.claim("gold", gold_config(resolved))
    part = resolved.part(dialogues)
    if resolved.shown.per_turn:  # people scored whole dialogues
        own = resolved.emoharbor.model_copy(update={"per_turn": False})
        resolved = replace(resolved, config=resolved.config.model_copy(update={"emoharbor": own}))
    outcome = _execute(run, resolved, fleet, console, lambda _: part, _judges(resolved, part), True, "gold")
    write_jsonl(run.folder / "gold_dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "gold_scores.jsonl", scores)
    write_jsonl(run.folder / "gold_judgements.jsonl", outcome.judgements)
    if resolved.shard is None:  # a part's would pass for the whole's; `esc-eval merge` makes it
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
    needed, config = list(specs), resolved.config
    limits: dict[str, Any] = {"timeout_s": config.call_timeout, "attempts": config.attempts}
    limits = {name: value for name, value in limits.items() if value is not None}

    async def work(endpoints: Mapping[str, str], offline: bool) -> Outcome:
        threshold = Threshold(resolved.config.fail_on_error)
        async with ChatClient(
            run.store,
            endpoints,
            resolved.config.concurrency,
            offline=offline,
            threshold=threshold,
            retry=run.retry,
            budget=run.budget,
            patience_s=config.patience,
            launched=fleet.launched,
            say=lambda text: console.print(text, soft_wrap=True, highlight=False, markup=False),
            **limits,
            keep_messages=1024 * resolved.config.keep_messages_kb,
        ) as client:
            listed = jobs(client)
            needed[:] = [*specs, *_speaking(resolved, listed)]
            servers = {} if offline else await _check(client, resolved, needed)
            run.keep_versions(versions(resolved, servers))
            quiet = Console(quiet=True) if offline else console
            with CallProgress(len(listed), client, quiet, stage, "dialogues") as progress:
                outcome = await _stream(client, resolved, listed, judged, progress)
            outcome.usage = _usage(client.tallies)
            _write_usage(run, stage, outcome.usage)
            run.keep_failures(stage, client.failures)
            outcome.failures, outcome.ended_early = client.failures, threshold.cause
            if not offline:
                timing["calls"] = {"/".join(who): asdict(tally) for who, tally in client.tallies.items()}
                timing["latency_s"] = run.store.latency()
                timing["in_flight"] = client.limits
                console.print(f"{stage}: {len(listed)} dialogues, {progress.rate()}")
            return outcome

    try:
        return asyncio.run(work({}, offline=True))
    except NotStored:
        run.budget.begin(needed, run.store.tokens())
        endpoints = fleet.up(needed)
        with run.timed(stage) as timing:
            return asyncio.run(work(endpoints, offline=False))


def _speaking(resolved: Resolved, jobs: Sequence[Job]) -> list[ModelSpec]:
    """The supporters of these jobs: a shard needs only some, and none speaks where given dialogues are judged."""
    names = {job.supporter for job in jobs if isinstance(job, Plan)}
    return [spec for spec in resolved.supporters if spec.name in names] if names else []


async def _check(client: ChatClient, resolved: Resolved, specs: Sequence[ModelSpec]) -> dict[str, str | None]:
    """Check that every model is served; returns model → version of its server, where that is told."""
    versions = {}
    for spec in specs:
        names = {spec.served_name()}
        if spec.adapters is not None:
            names = {
                spec.served_name(language, dimension)
                for language in resolved.config.languages
                for dimension in resolved.rubric.dimensions
            }
        await client.check(spec, sorted(names))
        versions[spec.name] = await client.server_version(spec, min(names))
    return versions


async def _thought_through(resolved: Resolved, client: ChatClient, dialogue: Dialogue) -> Dialogue:
    """A given dialogue with its seeker's states; one that cannot be judged now when the Thinker does not answer."""
    try:
        return await emoharbor.with_states(resolved, client, dialogue)
    except Unanswered as error:
        return dialogue.model_copy(update={"termination": error.outcome})


def _judge(client: ChatClient, resolved: Resolved) -> Judge:
    shown = resolved.shown
    return Judge(client, resolved.judge, resolved.rubric, resolved.judge_prompts, resolved.method, shown=shown)


async def _stream(client: ChatClient, resolved: Resolved, jobs: Sequence[Job], judged: bool, progress: CallProgress) -> Outcome:
    judge = _judge(client, resolved) if judged else None
    dialogues: dict[str, Dialogue] = {}
    judgements: dict[str, list[Judgement]] = {}

    async def one(job: Job) -> None:
        dialogue = await hold(job) if isinstance(job, Plan) else job
        dialogues[job.id] = dialogue
        if judge is not None:
            if judge.shown.strategy == "states" and not isinstance(job, Plan):
                dialogue = await _thought_through(resolved, client, dialogue)
                if not dialogue.lost:
                    dialogues[job.id] = dialogue
            judgements[job.id] = await judge.score(dialogue)
        if dialogue.lost or any(judgement.lost for judgement in judgements.get(job.id, [])):
            client.threshold.dialogue_failed(len(jobs))
        progress.step()

    failed = client.store.failed_items()  # in earlier tries: they come last, so that they keep nothing else from being asked
    await in_flight(sorted(jobs, key=lambda job: failed.get(job.id, 0)), one, client.width)
    ordered = [job.id for job in jobs]
    found = [judgement for id in ordered for judgement in judgements.get(id, [])]
    return Outcome(
        [dialogues[id] for id in ordered],
        [judgement for judgement in found if judgement.turn is None],
        [judgement for judgement in found if judgement.turn is not None],
    )


def _usage(tallies: Mapping[tuple[str, str], Tally]) -> dict[str, dict[str, Usage]]:
    """Role → model → what it used; the same for an interrupted run and an undisturbed one."""
    usage: dict[str, dict[str, Usage]] = {}
    for (model, role), tally in sorted(tallies.items()):
        usage.setdefault(role, {})[model] = Usage(
            calls=tally.calls,
            prompt_tokens=tally.prompt_tokens,
            completion_tokens=tally.completion_tokens,
            reasoning_tokens=tally.reasoning_tokens,
            cut_off={role: tally.cut_off} if tally.cut_off else {},
        )
    return usage


def _write_usage(run: Run, stage: str, used: Mapping[str, Mapping[str, Usage]]) -> None:
    """usage.json: stage → role → model → Usage."""
    path = run.folder / "usage.json"
    usage = read_object(path, "a run's usage") if path.exists() else {}
    usage[stage] = {role: {model: one.model_dump() for model, one in models.items()} for role, models in used.items()}
    write_json(path, usage)
