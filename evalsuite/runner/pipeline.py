"""The stages of a run: dialogues are held and scored in one stream, every record is rebuilt from the call store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel

from core.errors import UserError
from core.files import write_json, write_jsonl
from core.records import Dialogue, Judgement, Usage
from core.specs import ModelSpec
from data_prep.scores.human import read_dialogues
from evalsuite.dialogues.floors import with_floors
from evalsuite.dialogues.hold import Plan, hold
from evalsuite.judge.judge import Judge
from evalsuite.runner.engine import Runner
from evalsuite.runs.folder import Run
from evalsuite.runs.framework import opened_freely
from evalsuite.runs.identity import hashed
from evalsuite.runs.resolved import Resolved, unspoken
from evalsuite.runs.versions import versions
from evalsuite.statistics.agreement import agreement
from serve.answers import Tally
from serve.client import ChatClient
from serve.failures import FailedCall

Job = Plan | Dialogue


@dataclass
class Outcome:
    """What a stage made, in the order of its jobs."""

    dialogues: list[Dialogue] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    """Verdicts on whole dialogues."""
    turn_judgements: list[Judgement] = field(default_factory=list)
    """Verdicts on parts of them."""
    failures: list[FailedCall] = field(default_factory=list)
    """Calls without an answer."""
    ended_early: str | None = None
    """Why the stage ended before its end."""
    usage: dict[str, dict[str, Usage]] = field(default_factory=dict)
    """Role → model → what it used."""


def simulate(runner: Runner, score: bool) -> Outcome:
    """Hold every dialogue of a run and, with `score`, judge each as soon as it ends. Writes cards or profiles, dialogues and
    judgements."""
    run, resolved = runner.run, runner.resolved
    for spec in resolved.supporters:
        if left_out := unspoken(spec, resolved.config.languages):
            runner.console.print(f"{spec.name} does not speak {', '.join(left_out)}: what is played in it is left out")
    run.claim("simulate", resolved.simulate_identity())
    if score:
        run.claim("score", resolved.score_identity())
    planned = list(resolved.plans())
    spoken = list(with_floors(planned, resolved.supporters, resolved.replies))
    if silent := len(planned) - len(spoken):
        runner.say(f"reference: {silent} dialogues are left out: --references has no source dialogue of their cards")
    plans = resolved.part(spoken)
    names = {plan.dialogue.supporter for plan in plans}  # a shard needs only some
    speaking = [spec for spec in resolved.supporters if spec.name in names and spec.floor is None]
    specs = [*resolved.seekers, *([resolved.judge] if score else []), *speaking]
    outcome = _execute(runner, resolved, "simulate", specs, plans, score)
    _write_people(run, resolved.people())
    write_jsonl(run.folder / "dialogues.jsonl", outcome.dialogues)
    if score:
        _write_judgements(run, outcome)
    return outcome


def score(runner: Runner, dialogues: Path) -> Outcome:
    """Judge given dialogues. Writes them beside the judgements, so that the folder can be reported on its own."""
    run, resolved = runner.run, runner.resolved
    chosen = [d for d in read_dialogues([dialogues]) if d.language in resolved.config.languages]
    if not chosen:
        raise UserError(f"{dialogues}: no dialogue in {', '.join(resolved.config.languages)}")
    people = resolved.people_of(chosen)
    path = run.folder / "dialogues.jsonl"
    from_elsewhere = dialogues.resolve() != path.resolve()
    if from_elsewhere:
        if "simulate" in run.config():
            raise UserError(f"--dialogues {dialogues}: {run.folder} holds a run's own dialogues; use another --out")
        run.claim("dialogues", hashed(chosen))
        chosen = resolved.part(chosen)  # a run's own dialogues are this shard's already
    for dialogue in chosen:
        resolved.shown.profile(dialogue)  # an unknown one is refused before anything is started
    run.claim("score", resolved.score_identity())
    outcome = _execute(runner, resolved, "score", [resolved.judge, *resolved.completing(chosen)], chosen, judged=True)
    if from_elsewhere:
        write_jsonl(path, outcome.dialogues)
        _write_people(run, people)
    _write_judgements(run, outcome)
    return outcome


def score_gold(runner: Runner) -> Outcome:
    """Judge the gold set and measure the agreement. Writes gold_*.jsonl and agreement.json (not for a shard)."""
    run, resolved = runner.run, runner.resolved.judging_whole()  # people scored whole dialogues
    dialogues, scores = resolved.gold
    run.claim("gold", resolved.gold_identity())
    part = resolved.part(dialogues)
    outcome = _execute(runner, resolved, "gold", [resolved.judge, *resolved.completing(part)], part, judged=True)
    write_jsonl(run.folder / "gold_dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "gold_scores.jsonl", scores)
    write_jsonl(run.folder / "gold_judgements.jsonl", outcome.judgements)
    if resolved.shard is None:  # a part's would pass for the whole's; `esc-eval merge` makes it
        write_json(run.folder / "agreement.json", {"agreement": agreement(outcome.judgements, scores)})
    return outcome


def _write_people(run: Run, people: Mapping[str, Sequence[BaseModel]]) -> None:
    for name, records in people.items():
        write_jsonl(run.folder / name, records)


def _write_judgements(run: Run, outcome: Outcome) -> None:
    """Verdicts on whole dialogues; those on parts of them (EmoHarbor's per turn) have a file of their own."""
    write_jsonl(run.folder / "judgements.jsonl", outcome.judgements)
    if outcome.turn_judgements:
        write_jsonl(run.folder / "turn_judgements.jsonl", outcome.turn_judgements)


def _execute(
    runner: Runner, resolved: Resolved, stage: str, specs: Sequence[ModelSpec], jobs: Sequence[Job], judged: bool
) -> Outcome:
    """Hold or take every dialogue and, with `judged`, judge it as soon as it is there."""
    run = runner.run
    judge = None
    if judged:  # refused before anything is asked
        asked = resolved.judge, resolved.rubric, resolved.judge_prompts, resolved.method
        judge = Judge(ChatClient(run.store), *asked, shown=resolved.shown, opened_freely=opened_freely())

    async def work(client: ChatClient, job: Job) -> tuple[Dialogue, list[Judgement]]:
        dialogue = await hold(job, client) if isinstance(job, Plan) else job
        judgements: list[Judgement] = []
        if judge is not None:
            complete = dialogue if isinstance(job, Plan) else await resolved.completed(client, dialogue)
            dialogue = dialogue if complete.lost else complete
            judgements = await replace(judge, client=client).score(complete)
        if dialogue.lost or any(judgement.lost for judgement in judgements):
            client.threshold.dialogue_failed(len(jobs))
        return dialogue, judgements

    def keep_versions(servers: Mapping[str, str | None]) -> None:
        packs = {resolved.config.prompts: resolved.prompts, resolved.judge_pack: resolved.judge_prompts}
        run.keep_versions(versions(packs, resolved.rubric, servers))

    keep_versions({})
    failed = run.store.failed_items()  # in earlier tries
    answers = runner.answered(
        stage, specs, jobs, work, "dialogues", tries=lambda job: failed.get(job.id, 0), checked=keep_versions
    )
    client = answers.client
    usage = run.keep_usage(stage, {(model, role): _usage(tally, role) for (model, role), tally in client.tallies.items()})
    if answers.rate is not None:
        calls = {"/".join(who): asdict(tally) for who, tally in client.tallies.items()}
        run.keep_timing(stage, calls=calls, latency_s=run.store.latency(), in_flight=client.limits)
        runner.console.print(f"{stage}: {len(jobs)} dialogues, {answers.rate}")
    judgements = [judgement for _, of_one in answers.results for judgement in of_one]
    return Outcome(
        dialogues=[dialogue for dialogue, _ in answers.results],
        judgements=[judgement for judgement in judgements if judgement.turn is None],
        turn_judgements=[judgement for judgement in judgements if judgement.turn is not None],
        failures=client.failures,
        ended_early=client.threshold.cause,
        usage=usage,
    )


def _usage(tally: Tally, role: str) -> Usage:
    """The part of a tally that is the same for an interrupted run and an undisturbed one."""
    return Usage(
        calls=tally.calls,
        prompt_tokens=tally.prompt_tokens,
        completion_tokens=tally.completion_tokens,
        reasoning_tokens=tally.reasoning_tokens,
        cut_off={role: tally.cut_off} if tally.cut_off else {},
    )
