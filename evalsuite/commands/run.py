"""`esc-eval run` makes a run; `esc-eval status` shows its progress."""

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from core.errors import UserError, printable, say
from core.files import read_jsonl
from core.machine import Machine
from core.options import SetOption, choice, console
from core.paths import IN_NAME, InFile, MaybeModel, MaybeModels, Reads
from core.records import Dialogue, Judgement
from core.tables import Table, to_console
from evalsuite.commands.options import (
    MODELS,
    CardsOption,
    InRun,
    LanguageOption,
    OutOption,
    RoleModelOption,
    SupporterOption,
    refuse,
    resolve,
    setting,
)
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Launched, Runner
from evalsuite.runner.work import Outcome, lost_in, problems_of
from evalsuite.runs.contents import JudgementSet, sets_of
from evalsuite.runs.dialogue_framework import DialogueFramework, RunIdentity
from evalsuite.runs.folder import Run, open_run
from serve.answers import KINDS, Reply, Retry, kinds_of
from serve.limits import Budget

STAGES = ("simulate", "score")
_OLDER = "not recorded"  # in stores of older versions
_FILES = {
    "judgements.jsonl": "verdicts",
    "turn_judgements.jsonl": "verdicts on turns",
    "gold_judgements.jsonl": "verdicts on the gold set",
}


def run(
    config: Annotated[InFile, typer.Option("--config", help="Config of the run (YAML); see configs/eval.")],
    settings: SetOption = None,
    model: RoleModelOption = None,
    supporter: SupporterOption = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            "--system",
            metavar="FILE_OR_TEXT",
            help="System prompt of the models under test, as text, a file or - (standard input); it replaces EmoHarbor's. "
            "Repeat for more: every model is tested with every prompt, as MODEL.PROMPT after the file's name. See variants in "
            "the config.",
            rich_help_panel=MODELS,
        ),
        IN_NAME,
    ] = None,
    seeker: Annotated[MaybeModel, setting("seeker", "--seeker", panel=MODELS, metavar="MODEL")] = None,
    judge: Annotated[
        MaybeModels,
        typer.Option("--judge", metavar="MODEL", help="Model that scores. Repeat for more.", rich_help_panel=MODELS),
    ] = None,
    cards: CardsOption = None,
    language: LanguageOption = None,
    limit: Annotated[int | None, setting("limit", "--limit", metavar="N")] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="simulate|score", help="Only hold the dialogues, or only judge existing ones; without a report."),
    ] = None,
    dialogues: Annotated[
        Path | None,
        typer.Option(
            help="With --only score: dialogues from elsewhere, judged into a new folder (--out): our JSONL, chat format "
            "(`messages`), ShareGPT, a table of turns (CSV, TSV, XLSX), an Inspect log, OpenAI's stored completions."
        ),
        Reads(beside=True),
    ] = None,
    until: Annotated[str | None, setting("until", "--until", metavar="decided")] = None,
    shard: Annotated[str | None, setting("shard", "--shard", metavar="I/N")] = None,
    retry: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,…",
            help="Replace stored answers of these kinds: empty, refusal, length (cut off), context_overflow, unreadable (no "
            "verdict). The new answer counts, the old one stays in the store, everything after it is asked again, and the "
            "report gives the number. At temperature 0, many servers repeat the same answer.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only print which servers would run where, and the calls, tokens and cost.")
    ] = False,
    gpus: Annotated[
        str | None, typer.Option(metavar="GPU,…", help="With --plan: plan for these GPUs (8xh100, or gigabytes: 80,80, 2x80).")
    ] = None,
    out: OutOption = None,
) -> None:
    """Hold dialogues, judge them, measure the judge's agreement with the gold set if there is one, and write the report.

    The config defines the run. The options below override what changes most often, and --set overrides any other field. The
    same command resumes a run; with more supporters, cards, trials or judges it extends it. Another judge on the same dialogues
    adds a second judgement set, in judges/NAME of the run folder, and the report shows both. Examples:

    esc-eval run --config configs/eval/api.yaml --model my-model@http://127.0.0.1:8000/v1

    esc-eval run --config configs/eval/demo.yaml --only score --judge another.yaml --out runs/mine
    """
    stages = choice("--only", only, STAGES) if only else None
    overrides: dict[str, Any] = {
        **{"model": model, "supporters": supporter, "seeker": seeker, "cards": cards, "language": language, "limit": limit},
        **{"until": until, "shard": shard, "out": out, "system": system},
    }
    given = [dialogues or Path(out or "", "dialogues.jsonl")] if stages == "score" else []
    judges = [resolve(config, settings, **overrides, judge=name, dialogues=given) for name in judge or (None,)]
    simulated, scored = stages != "score", stages != "simulate"
    refuse("existing dialogues are only judged: give --only score, too", dialogues=dialogues and simulated)
    refuse("no supporter is asked with --only score: leave it out", system=system and not simulated)
    refuse("no judge is asked with --only simulate: leave it out", judge=len(judges) > 1 and not scored)
    refuse("it needs dialogues and their verdicts: leave out --only", until=until and only)
    refuse("it is the machine to plan for: give --plan, too", gpus=gpus and not plan)
    if plan:
        from evalsuite.runner.forecast import stand_ins

        notes = dict[str, None]()
        for each in judges:
            specs = [*(each.models.seekers if simulated else []), *([each.models.judge] if scored else [])]
            notes |= dict.fromkeys(stand_ins(each, specs))
        for note in notes:
            _say(note)
    resolved, settled = judges[0], judges[0].config
    path = dialogues or resolved.out / "dialogues.jsonl"
    _check(judges, simulated, scored, path)
    if plan:
        _plan(judges, gpus, None if simulated else path, scored)
        return
    if ours := RunIdentity(resolved).own_wording(simulated, scored):
        published = f"; `{resolved.importer}` reads the published wording from your clone" if resolved.importer else ""
        _say(f"paper mode, in our words: {', '.join(ours)}{published}")
    again = Retry.parse(retry)
    with open_run(resolved.out) as opened:
        opened.claim_shard(resolved.shard)
        if recording := resolved.models.recording:
            _say(f"a replay of {recording}: no model is asked")
            recording.into(opened.store)
        opened.retry, opened.budget = again, Budget(settled.max_time, settled.max_calls, settled.max_cost)
        with Launched() as servers:
            runners = [
                Runner(opened, each, console, shared=servers, later=judges[number:])
                for number, each in enumerate(judges, start=1)
            ]
            if simulated and scored and settled.until:
                from evalsuite.runner import until as until_decided

                outcomes = [until_decided.simulate(runners[0])]
            else:
                outcomes = [pipeline.simulate(runners[0], scored) if simulated else pipeline.score(runners[0], path)]
            outcomes += [pipeline.score(runner, path) for runner in runners[1:] if len(outcomes[0].dialogues)]
            for runner in runners if scored and settled.gold is not None else ():
                if not any(outcome.ended_early for outcome in outcomes):
                    outcomes.append(pipeline.score_gold(runner))
        if not len(outcomes[0].dialogues):
            _say("no report: no dialogue is finished yet")
        elif simulated and scored and resolved.shard:
            _say(f"shard {resolved.shard} is done: `esc-eval merge` joins all {resolved.shard.of} and writes the report")
        elif simulated and scored:
            from evalsuite.report.content import report_run  # slow to import, so only with something to report

            report_run(opened, console, outcomes)
        elif scored and resolved.shard is None:
            _say(f"the report does not have these verdicts yet: `esc-eval report {quote(str(opened.folder))}` writes it")
    _finish(resolved, simulated, outcomes)


def status(folder: Annotated[InRun, typer.Argument(metavar="RUN", help="A run folder; the run may be in progress.")]) -> None:
    """Show the progress of a run: answered and failed calls by role and model, how many answers are empty, refused, cut off or
    unreadable (which `run --retry` asks for again), and what is missing."""
    if not (folder / "calls.sqlite").exists():
        raise UserError(
            f"not a run folder (no calls.sqlite): {folder}: `esc-eval run --config CONFIG --out {quote(str(folder))}` makes one"
        )
    run = Run(folder)
    try:
        for table in (calls(run), records(run)):
            to_console(table, console)
    finally:
        run.store.close()


def calls(run: Run) -> Table:
    """The calls of a run folder, also while the run is in progress."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for role, spec, stored in run.store.replies():
        for kind in ("answered", *kinds_of(Reply.model_construct(**stored))):
            counts[role or _OLDER, spec or _OLDER, kind] += 1
    for role, spec, _, number in run.store.failed():
        counts[role, spec, "failed"] += number
    for role, spec, _, number in run.store.asked_again():
        counts[role or _OLDER, spec or _OLDER, "asked again"] += number
    columns = ("answered", *(kind for kind in KINDS if kind != "unreadable"), "failed", "asked again")
    return Table(
        key="calls",
        title="Calls",
        columns=("role", "model", *columns),
        rows=tuple((*model, *(counts[*model, name] for name in columns)) for model in sorted({cell[:2] for cell in counts})),
        notes=(
            "failed: no answer so far; the same command asks for these last. empty, refusal, length (cut off), "
            "context_overflow: --retry asks again. The counts include answers in dialogues that were sampled again since.",
        ),
    )


def records(run: Run) -> Table:
    """The records of a run folder, also while the run is in progress."""
    rows = [("dialogues", reason, number) for reason, number in _reasons(run.folder / "dialogues.jsonl")]
    sets = sets_of(run.folder, run.config()) or [JudgementSet(run.folder, "")]
    for judged, (name, noun) in product(sets, _FILES.items()):
        if (path := judged.folder / name).exists():
            label = f"{noun} by {judged.judge}" if len(sets) > 1 else noun
            rows += [(label, reason, number) for reason, number in _reasons(path)]
    return Table(
        key="records",
        title="Records",
        columns=("records", "of which", "number"),
        rows=tuple(rows),
        notes=(
            "infrastructure, rejected: missing; the same command asks for them. unreadable: --retry unreadable asks again.",
            *(f"The budget was used up: {text}." for stage in run.timing().values() if (text := stage.get("unfinished"))),
        ),
    )


def _reasons(path: Path) -> list[tuple[str, int]]:
    """The records of a file by outcome, the most frequent first."""
    if not path.exists():
        return [("not written yet: the run has not finished", 0)]
    reasons: Counter[str] = Counter()
    if path.name == "dialogues.jsonl":
        for dialogue in read_jsonl(path, Dialogue, "dialogues", allow_empty=True):
            reasons[dialogue.termination or _OLDER] += 1
    else:
        for judgement in read_jsonl(path, Judgement, "judgements", allow_empty=True):
            failure = str(judgement.condition.get("failure", "unreadable"))
            reasons[failure if judgement.value is None else "read"] += 1
    return reasons.most_common()


def _check(judges: Sequence[DialogueFramework], simulated: bool, scored: bool, path: Path) -> None:
    """Check all that the stages use, before anything is written. `path`: the dialogues to score if none are simulated."""
    resolved = judges[0]
    if simulated and scored and resolved.config.until:
        from evalsuite.runner import until as until_decided

        until_decided.planned(resolved)
    if simulated:
        RunIdentity(resolved).simulate()
    names = [each.models.judge.name for each in judges] if len(judges) > 1 else []
    if len(set(names)) < len(names):
        raise UserError(f"--judge: the same name twice in {', '.join(names)}: rename one of them in a spec file")
    for each in judges if scored else ():
        RunIdentity(each).score()
        if resolved.config.gold is not None:
            RunIdentity(each).gold()
    if not simulated:
        if not path.exists():
            raise UserError(f"{path}: no such file: `esc-eval run --only simulate` makes it; --dialogues takes other files")
        for note in resolved.given_dialogues(path).notes:
            _say(f"{path}: {note}")


def _plan(judges: Sequence[DialogueFramework], gpus: str | None, dialogues: Path | None, scored: bool) -> None:
    """Print the servers, calls, tokens and cost of the run. `dialogues`: those to score, if none are simulated."""
    from evalsuite.runner.forecast import forecast

    machine, config = Machine.parse(gpus) if gpus else Machine.here(), judges[0].config
    for each in judges:
        for table in pipeline.servers(each, machine, dialogues, scored):
            to_console(table, console)
    planned = forecast(pipeline.planned(judges[0], dialogues, scored)[0], judges if scored else [])
    to_console(planned.table(Budget(config.max_time, config.max_calls, config.max_cost)), console)


def _finish(resolved: DialogueFramework, simulated: bool, outcomes: Sequence[Outcome]) -> None:
    """Print how many verdicts have no value, and why, how many replies were cut off, and which trials repeat each other.

    Exit with code 1 if something is missing because a server failed or the budget was used up, which the same command asks for
    again, or if no verdict of a judge can be read.
    """
    from evalsuite.statistics.contestants import repeats  # slow to import, so only with something to count
    from evalsuite.statistics.summary import cut_off, in_trouble

    floors = {spec.name for spec in resolved.models.supporters if spec.floor} if simulated else set()
    for warning in repeats(list(outcomes[0].dialogues), floors) if resolved.config.trials > 1 else ():
        _say(f"warning: {warning}")
    unreadable: dict[str, str] = {}
    for outcome in outcomes:
        judgements = outcome.judgements
        null = (j for j in judgements if j.value is None and not j.lost and not j.unasked)
        reasons = Counter(str(j.condition.get("failure", "unreadable")) for j in null)
        if reasons:
            counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            _say(f"{reasons.total()} of {len(judgements)} verdicts have no value (null in {outcome.file}): {counts}")
        reasons.pop("no_supporter_turn", None)  # the judge was not asked
        if reasons and not any(j.value is not None for j in judgements):
            example = max((j for j in judgements if not j.lost), key=lambda j: bool(j.raw.strip()))
            raw = printable(" ".join(example.raw.split()))[:200]
            problem = "can be read" if set(reasons) == {"unreadable"} else f"has a value ({', '.join(sorted(reasons))})"
            text = f"no verdict of the judge {example.judge} {problem}; it said, for example: {raw or 'nothing'}"
            unreadable[example.judge] = text
    used = [outcome.usage for outcome in outcomes]
    if sentence := cut_off(used):
        _say(sentence)
    for warning in in_trouble(used, (judgement for outcome in outcomes for judgement in outcome.judgements)):
        _say(f"warning: {warning}")
    kept = {dialogue for outcome in outcomes for dialogue in outcome.kept}
    if earlier := set.union(*lost_in(outcomes)) & kept:
        _say(f"{len(earlier)} dialogues of earlier commands are missing or not fully judged: run those commands again")
    problems = problems_of(outcomes)
    for text in unreadable.values():
        say(f"error: {text}", err=True)
    if problems:
        say(f"error: {'; '.join(problems)}. Run the same command again to ask only for those", err=True)
    if problems or unreadable:
        sys.exit(1)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True)
