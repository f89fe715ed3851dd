"""The main job: run | simulate | score | report."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.errors import UserError
from core.paths import Reads
from core.wandb_offline import need_wandb
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import (
    IN_RUN,
    OUT_RUN,
    AgainstOption,
    ScoreOptions,
    SimulateOptions,
    WandbOption,
    WholeRunOptions,
    grouped,
)
from evalsuite.report.content import report_run
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runner.pipeline import Outcome
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run
from evalsuite.runs.resolved import Resolved
from evalsuite.runs.shard import Shard
from evalsuite.statistics.summary import cut_off
from serve.answers import Retry
from serve.limits import Budget

console = Console()


@grouped
def run(options: WholeRunOptions, wandb: WandbOption = False) -> None:
    """Simulate, score, measure agreement on the gold set (if the config has one) and write the report."""
    resolved = options.resolved()
    _check_wandb(wandb, resolved.shard)
    _check_all(resolved, simulate=True, score=True)
    with _opened(resolved, options.retry) as runner:
        outcomes = [pipeline.simulate(runner, score=True)]
        if resolved.config.gold is not None and not outcomes[0].ended_early:
            outcomes.append(pipeline.score_gold(runner))
        _report(runner, wandb)
    _finish(*outcomes)


@grouped
def simulate(options: SimulateOptions) -> None:
    """Only hold the dialogues: writes OUT/dialogues.jsonl."""
    resolved = options.resolved()
    _check_all(resolved, simulate=True, score=False)
    with _opened(resolved, options.retry) as runner:
        outcome = pipeline.simulate(runner, score=False)
    _finish(outcome)


@grouped
def score(
    options: ScoreOptions,
    dialogues: Annotated[
        Path | None, typer.Option(help="Dialogue records (JSONL). Default: OUT/dialogues.jsonl."), Reads(beside=True)
    ] = None,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also write the report and log its tables and plots there.")] = False,
) -> None:
    """Only score dialogues: writes OUT/judgements.jsonl, and the gold set's agreement if the config has one."""
    resolved = options.resolved()
    _check_wandb(wandb, resolved.shard)
    _check_all(resolved, simulate=False, score=True)
    path = dialogues or Path(resolved.config.out) / "dialogues.jsonl"
    read_dialogues([path])  # a bad file is refused before the run folder is touched
    with _opened(resolved, options.retry) as runner:
        outcomes = [pipeline.score(runner, path)]
        if resolved.config.gold is not None and not outcomes[0].ended_early:
            outcomes.append(pipeline.score_gold(runner))
        if wandb:
            _report(runner, wandb)
    _finish(*outcomes)


def report(
    folder: Annotated[Path, typer.Option("--run", help="A run folder."), IN_RUN, OUT_RUN],
    versus: AgainstOption = None,
    wandb: WandbOption = False,
) -> None:
    """Write report.html, report.json, report.md and every table as CSV (tables/) of a run folder again, from its records."""
    _check_wandb(wandb)
    shards.whole(folder)
    with open_run(folder) as opened:
        report_run(opened, console, wandb, versus)


@contextmanager
def _opened(resolved: Resolved, retry: str | None) -> Iterator[Runner]:
    """What works in the run folder, if it is a whole run's or this shard's."""
    wanted = Retry.parse(retry)
    with open_run(Path(resolved.config.out)) as opened:
        shards.claim(opened, resolved.shard)
        opened.retry = wanted
        opened.budget = Budget(resolved.config.max_time, resolved.config.max_calls, resolved.config.max_cost)
        with Runner(opened, resolved, console, bounded=True) as runner:
            yield runner


def _report(runner: Runner, wandb: bool) -> None:
    """Write the report, after the servers have been stopped; of a shard there is none."""
    runner.close()
    shard = runner.resolved.shard
    if shard is None:
        report_run(runner.run, console, wandb)
    else:
        text = f"shard {shard} is done: `esc-eval merge` puts all {shard.of} together and writes the report"
        console.print(text, highlight=False, markup=False)


def _check_wandb(wanted: bool, shard: Shard | None = None) -> None:
    """Say that wandb is not there, or has nothing to show, before the long work, not after it."""
    if wanted and shard:
        raise UserError("--wandb: a shard has no report; use `esc-eval report --wandb` on the merged run")
    if wanted:
        need_wandb()


def _check_all(resolved: Resolved, simulate: bool, score: bool) -> None:
    """Load and check everything that the stages will use, before anything is written or started."""
    if simulate:
        resolved.simulate_identity()
    if score:
        resolved.score_identity()
        if resolved.config.gold is not None:
            resolved.gold_identity()


def _finish(*outcomes: Outcome) -> None:
    """Say how many verdicts have no value, and why, and how many replies were cut off. Exit code 1 when something is missing
    because a server failed; running again asks only for what is missing."""
    for outcome, file in zip(outcomes, ("judgements.jsonl", "gold_judgements.jsonl"), strict=False):
        judgements = outcome.judgements
        unread = Counter(str(j.condition.get("failure", "unreadable")) for j in judgements if j.value is None and not j.lost)
        if unread:
            reasons = ", ".join(f"{count} {reason}" for reason, count in unread.most_common())
            _say(f"{unread.total()} of {len(judgements)} verdicts have no value (null in {file}): {reasons}")
    if sentence := cut_off([outcome.usage for outcome in outcomes]):
        _say(sentence)
    lost = {dialogue.id for outcome in outcomes for dialogue in outcome.dialogues if dialogue.lost}
    unscored = {judgement.dialogue_id for outcome in outcomes for judgement in outcome.judgements if judgement.lost} - lost
    if lost or unscored:
        failures = [failure for outcome in outcomes for failure in outcome.failures]
        early = next((outcome.ended_early for outcome in outcomes if outcome.ended_early), None)
        reason = f"the run ended early: {early}" if early else failures[0].reason if failures else "a server was lost"
        kinds = Counter(failure.outcome for failure in failures)
        calls = f" ({kinds['rejected']} calls rejected, {kinds['infrastructure']} lost: failures.json)" if failures else ""
        print(
            f"error: {len(lost)} dialogues and the judgements of {len(unscored)} more are missing: {reason}{calls}. "
            "Run the same command again to ask only for those",
            file=sys.stderr,
        )
        sys.exit(1)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
