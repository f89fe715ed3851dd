"""The main job: run | simulate | score | status | merge | migrate | report."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, printable, say
from core.machine import Machine
from core.options import console
from core.paths import Reads
from core.records import Dialogue
from core.tables import Table, to_console
from core.wandb_offline import need_wandb
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import (
    OUT_RUN,
    AgainstOption,
    GateOptions,
    InRun,
    InRuns,
    OwnRubricOption,
    PeopleOption,
    RunOptions,
    ScoreOptions,
    SimulateOptions,
    WandbOption,
    WholeRunOptions,
    grouped,
)
from evalsuite.report.by_people import by_people, people_scores
from evalsuite.report.content import report_run
from evalsuite.runner import pipeline, until
from evalsuite.runner.engine import Launched, Runner
from evalsuite.runner.forecast import forecast
from evalsuite.runner.outcome import Outcome
from evalsuite.runs import migration, shards
from evalsuite.runs.folder import Run, open_run
from evalsuite.runs.status import status as tables_of_status
from evalsuite.statistics.draws import repeats
from evalsuite.statistics.summary import cut_off, in_trouble
from serve.answers import Retry
from serve.budget import Budget


@grouped
def run(options: WholeRunOptions, gates: GateOptions, wandb: WandbOption = False) -> None:
    """Simulate, score, measure agreement on the gold set (if the config has one) and write the report."""
    _work(options, simulate=True, score=True, report=True, wandb=wandb, gates=gates)


@grouped
def simulate(options: SimulateOptions) -> None:
    """Only hold the dialogues: writes OUT/dialogues.jsonl."""
    _work(options, simulate=True)


@grouped
def score(
    options: ScoreOptions,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Run folder whose dialogues are judged. Default: that of --out or the config."),
        OUT_RUN,
    ] = None,
    dialogues: Annotated[
        Path | None,
        typer.Option(help="Dialogue records (JSONL) from elsewhere, for a folder of their own (--out)."),
        Reads(beside=True),
    ] = None,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also write the report and log its tables and plots there.")] = False,
) -> None:
    """Only score dialogues: writes judgements.jsonl, and the gold set's agreement if the config has one.

    Another judge on the same dialogues is a second judgement set, in judges/NAME of the run folder: the first one's records
    stay as they are, and the report sets both side by side. Examples:

    esc-eval score runs/mine --config configs/eval/demo.yaml --judge another.yaml

    esc-eval score --config configs/eval/demo.yaml --dialogues dialogues.jsonl --out runs/given
    """
    if folder is not None and options.out is not None:
        raise UserError(f"--out {options.out}: RUN is the folder already; leave one of them out")
    options.out = options.out if folder is None else str(folder)
    _work(options, score=True, report=wandb, wandb=wandb, dialogues=dialogues)


def status(
    folder: Annotated[InRun, typer.Argument(metavar="RUN", help="A run folder; a run may be at work in it.")],
) -> None:
    """How far a run is: calls answered and failed by role and model, how many answers are empty, refused, cut off or
    unreadable (what --retry of run, simulate and score asks again), and what is missing."""
    if not (folder / "calls.sqlite").exists():
        raise UserError(
            f"not a run folder (no calls.sqlite): {folder}: `esc-eval run --config CONFIG --out {folder}` makes one"
        )
    run = Run(folder)
    try:
        for table in tables_of_status(run):
            to_console(table, console)
    finally:
        run.store.close()


def merge(
    folders: Annotated[InRuns, typer.Argument(metavar="RUN…", help="The run folders of all shards, in any order.")],
    out: Annotated[Path, typer.Option("--out", help="Run folder to make: what one unsharded run would have left."), OUT_RUN],
) -> None:
    """Put the shards of one run (run, simulate or score with --shard I/N) together, and write its report.

    Records, config, usage and finished calls are those of one run, byte for byte; seconds are added up. A shard that is
    missing, doubled, unfinished or of another config is refused, before anything is written. Example:

    esc-eval merge runs/full-1 runs/full-2 runs/full-3 runs/full-4 --out runs/full
    """
    dialogues = shards.merge(folders, out)
    console.print(f"{out}: {len(dialogues)} dialogues of {len(folders)} shards", soft_wrap=True)
    with open_run(out) as run:
        if "score" in run.config():
            report_run(run, console)
    if lost := sum(dialogue.lost for dialogue in dialogues):
        say(
            f"error: {lost} dialogues are missing because a server failed. Run the shards' command without --shard and with "
            f"--out {out} to ask only for those",
            err=True,
        )
        raise typer.Exit(1)


def migrate(
    folders: Annotated[InRuns, typer.Argument(metavar="RUN…", help="Run folders, also those of shards.")],
) -> None:
    """Bring run folders of an earlier version's form to the present one, and say what was changed.

    Earlier forms of the same major version are read as they are; this is for those of an earlier one, and for whoever wants all
    folders alike. Every folder is changed whole or not at all; one that has the present form is left as it is. Example:

    esc-eval migrate runs/mine
    """
    for folder in folders:
        had, steps = migration.migrate(folder)
        lines = [f"{folder}: has form {had} already"] if not steps else [f"{folder}: form {had}"]
        lines += [f"  → {step.version}: {step.told}" for step in steps]
        console.print("\n".join(lines), soft_wrap=True)


@grouped
def report(
    folder: Annotated[InRun, typer.Argument(metavar="RUN", help="A run folder."), OUT_RUN],
    gates: GateOptions,
    gold: PeopleOption = None,
    rubric: OwnRubricOption = None,
    versus: AgainstOption = None,
    wandb: WandbOption = False,
) -> None:
    """Write report.html, report.json, report.md and every table as CSV (tables/) of a run folder again, from its records.

    With --gold, people's scores of these dialogues too, as a leaderboard of their own (table 2 of ESC-Eval). A later report
    without the option leaves them out. Gates are for the verdicts of the first judge.
    """
    _check_wandb(wandb)
    if rubric and not gold:
        raise UserError("--rubric: it is for --gold: give both or leave it out")
    config = shards.whole(folder)
    first = config.scored
    checks = gates.parse(first.rubric, first.judge.name if first.judge else None) if first else None

    def people(dialogues: Sequence[Dialogue]) -> Iterator[Table]:
        return by_people(dialogues, *people_scores(gold or [], rubric or [], dialogues), config.floors())

    with open_run(folder) as opened:
        report_run(opened, console, wandb, versus, people if gold else None)
    if checks and checks.failed(folder):
        raise typer.Exit(1)


def _work(
    options: RunOptions,
    simulate: bool = False,
    score: bool = False,
    report: bool = False,
    wandb: bool = False,
    dialogues: Path | None = None,
    gates: GateOptions | None = None,
) -> None:
    """The stages of a run that are asked for, in its folder. Everything that they use is loaded and checked before anything is
    written or started."""
    resolved, *others = judges = options.resolved()
    config, shard = resolved.config, resolved.shard
    _check_wandb(wandb, config.shard)
    path = dialogues or resolved.out / "dialogues.jsonl"
    checks = gates.parse(resolved.rubric, resolved.judge.name) if gates else None
    if checks and config.shard:
        raise UserError(
            "--fail-under, --fail-if-worse: a shard has no report; give them to `esc-eval report` of the merged run"
        )
    if report and config.until:
        until.planned(resolved)
    if simulate:
        resolved.simulate_identity()
    names = [one.judge.name for one in judges] if others else []
    if len(set(names)) < len(names):
        raise UserError(f"--judge: the same name twice in {', '.join(names)}: give one another name in a spec file")
    for one in judges if score else ():
        one.score_identity()
        if config.gold is not None:
            one.gold_identity()
    if not simulate:
        if not path.exists():
            raise UserError(
                f"{path}: no such file: hold dialogues first with `esc-eval simulate`, or give others (--dialogues)"
            )
        read_dialogues([path])
    if options.gpus and not options.plan:
        raise UserError("--gpus is a machine to plan for: give --plan, too")
    if options.plan:
        machine, given = Machine.parse(options.gpus) if options.gpus else Machine.here(), None if simulate else path
        for one in judges:
            to_console(pipeline.servers(one, machine, given, score), console)
        asked = forecast(pipeline.planned(resolved, given, score)[0], judges if score else [])
        to_console(asked.table(Budget(config.max_time, config.max_calls, config.max_cost)), console)
        return
    if ours := resolved.own_wording(simulate, score):
        published = f"; `{resolved.importer}` reads the published wording from your clone" if resolved.importer else ""
        _say(f"paper mode, in our words: {', '.join(ours)}{published}")
    retry = Retry.parse(options.retry)
    with open_run(resolved.out) as opened:
        shards.claim(opened, shard)
        if resolved.recording:
            _say(f"a replay of {resolved.recording}: no model is asked")
            resolved.recording.into(opened.store)
        opened.retry, opened.budget = retry, Budget(config.max_time, config.max_calls, config.max_cost)
        with Launched() as servers:
            runners = [
                Runner(opened, one, console, bounded=True, shared=servers, later=judges[number:])
                for number, one in enumerate(judges, start=1)
            ]
            if report and config.until:
                outcomes = [until.simulate(runners[0])]
            else:
                outcomes = [pipeline.simulate(runners[0], score) if simulate else pipeline.score(runners[0], path)]
            outcomes += [pipeline.score(runner, path) for runner in runners[1:] if len(outcomes[0].dialogues)]
            if score and config.gold is not None:
                outcomes += [pipeline.score_gold(runner) for runner in runners if not any(one.ended_early for one in outcomes)]
        if not len(outcomes[0].dialogues):
            _say("no dialogue is finished yet: no report")
        elif report and shard is None:
            report_run(opened, console, wandb)
        elif report and shard:
            _say(f"shard {shard} is done: `esc-eval merge` puts all {shard.of} together and writes the report")
        elif score and shard is None:
            _say(f"no report yet with these verdicts: `esc-eval report {opened.folder}` writes it")
    failed = checks is not None and len(outcomes[0].dialogues) > 0 and checks.failed(resolved.out)
    floors = {spec.name for spec in resolved.supporters if spec.floor} if simulate else set()
    for told in repeats(list(outcomes[0].dialogues), floors) if resolved.config.trials > 1 else ():
        _say(f"warning: {told}")
    _finish(*outcomes)
    if failed:
        raise typer.Exit(1)


def _check_wandb(wanted: bool, shard: str | None = None) -> None:
    """Say that wandb is not there, or has nothing to show, before the long work, not after it."""
    if wanted and shard:
        raise UserError("--wandb: a shard has no report; use `esc-eval report --wandb` on the merged run")
    if wanted:
        need_wandb()


def _finish(*outcomes: Outcome) -> None:
    """Say how many verdicts have no value, and why, and how many replies were cut off. Exit code 1 when something is missing
    because a server failed or the budget was used up, which running again asks for; and where a judge cannot be read at all."""
    unreadable: dict[str, str] = {}
    for outcome in outcomes:
        judgements = outcome.judgements
        unread = Counter(str(j.condition.get("failure", "unreadable")) for j in judgements if j.value is None and not j.lost)
        if unread:
            reasons = ", ".join(f"{count} {reason}" for reason, count in unread.most_common())
            _say(f"{unread.total()} of {len(judgements)} verdicts have no value (null in {outcome.file}): {reasons}")
        unread.pop("no_supporter_turn", None)  # the judge was not asked
        if unread and not any(j.value is not None for j in judgements):
            example = max((j for j in judgements if not j.lost), key=lambda j: bool(j.raw.strip()))
            raw = printable(" ".join(example.raw.split()))[:200]
            judge, why = (
                example.judge,
                "can be read" if set(unread) == {"unreadable"} else f"has a value ({', '.join(sorted(unread))})",
            )
            unreadable[judge] = f"no verdict of the judge {judge} {why}; it said, for example: {raw or 'nothing'}"
    used = [outcome.usage for outcome in outcomes]
    if sentence := cut_off(used):
        _say(sentence)
    for warning in in_trouble(used, (judgement for outcome in outcomes for judgement in outcome.judgements)):
        _say(f"warning: {warning}")
    kept = {dialogue for outcome in outcomes for dialogue in outcome.kept}
    lost = {dialogue.id for outcome in outcomes for dialogue in outcome.dialogues if dialogue.lost}
    unscored = {judgement.dialogue_id for outcome in outcomes for judgement in outcome.judgements if judgement.lost} - lost
    if earlier := (lost | unscored) & kept:
        _say(f"{len(earlier)} dialogues of earlier commands are missing or not judged to the end: those commands ask for them")
    lost, unscored = lost - kept, unscored - kept
    early = next((outcome.ended_early for outcome in outcomes if outcome.ended_early), None)
    unfinished = "; ".join(outcome.unfinished for outcome in outcomes if outcome.unfinished)
    problems = [f"the run ended early: {early}: {unfinished}"] if unfinished else []
    if lost or unscored:
        failures = [failure for outcome in outcomes for failure in outcome.failures]
        reason = f"the run ended early: {early}" if early else failures[0].reason if failures else "a server was lost"
        kinds = Counter(failure.outcome for failure in failures)
        calls = f" ({kinds['rejected']} calls rejected, {kinds['infrastructure']} lost: failures.json)" if failures else ""
        missing = f"{len(lost)} dialogues and the judgements of {len(unscored)} more are missing: {reason}{calls}"
        problems.insert(0, missing)
    for text in unreadable.values():
        say(f"error: {text}", err=True)
    if problems:
        say(f"error: {'; '.join(problems)}. Run the same command again to ask only for those", err=True)
    if problems or unreadable:
        sys.exit(1)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True)
