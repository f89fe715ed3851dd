"""`esc-eval health`: does a judge reward length, its own kind, the order of asking, or replies that order it to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UserError
from core.options import console
from core.paths import InFile, InFiles, MaybeFile, MaybeFiles, MaybeName, Writes
from core.records import Dialogue, Judgement
from core.rubrics import Rubric, load_rubric
from core.tables import Table
from core.verbs import Verbs
from data_prep.scores.human import read_dialogues
from evalsuite.checks import health as checks
from evalsuite.checks.probe import drawn, load_injections
from evalsuite.checks.probe import probe as ask
from evalsuite.checks.shared_bases import sharing_table, sharings
from evalsuite.commands.options import (
    DialoguesOption,
    EndpointOption,
    JsonOption,
    JudgeOption,
    JudgePromptsOption,
    LanguageOption,
    MaybeRun,
    ModeOption,
    ResumedOption,
    TablesOption,
    ValueOption,
    out_tables,
    resolve,
    value_of,
)
from evalsuite.commands.output import deliver, exit_if_lost, plain
from evalsuite.commands.verdicts import judgements_of, read_judgements
from evalsuite.runner.engine import Runner
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run
from evalsuite.runs.judgement_sets import sets_of
from evalsuite.runs.run_config import RunConfig
from evalsuite.statistics.leaderboard import Tally, contestants_of
from evalsuite.statistics.reply_length import length_effects, replies_of
from evalsuite.statistics.summary import Value

app = Verbs(
    no_args_is_help=True,
    help="How far a judge can be trusted: length, its own kind, the order of asking, and replies that order it to score high.",
)


@app.command("probe")
def probe(
    config: Annotated[InFile, typer.Option("--config", help="Judge, rubric, method and prompts; see configs/eval.")],
    dialogues: Annotated[InFiles, typer.Option(help="Dialogue records (JSONL). Repeat for more.")],
    out: Annotated[ResumedOption, Writes(("health_dialogues.jsonl", "health_judgements.jsonl", "tables/*"))],
    judge: JudgeOption = None,
    judge_prompts: JudgePromptsOption = None,
    injections: Annotated[
        MaybeFile, typer.Option(help="Own injections (YAML as configs/health/injections.yaml) instead of the bundled ones.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="At most this many dialogues a language, drawn the same way every time."),
    ] = None,
    language: LanguageOption = None,
    mode: ModeOption = None,
    endpoint: EndpointOption = None,
) -> None:
    """Ask the judge about each dialogue as it is, with a neutral text appended, and with an order to score high appended.

    The joint method is also asked with the dimensions in reverse order. Writes OUT/health_judgements.jsonl and
    OUT/health_dialogues.jsonl, and prints the tables of `report`. Three or four calls a dialogue (joint method).
    """
    resolved = resolve(config, endpoint, judge=judge, judge_prompts=judge_prompts, language=language, mode=mode, out=out)
    texts = load_injections(injections)
    resolved.score_identity()  # whatever is wrong is told before anything is written or started
    chosen = [*drawn(read_dialogues(dialogues), resolved.config.languages, limit)]
    if not chosen:
        raise UserError(
            f"{', '.join(map(str, dialogues))}: no dialogue with an answer in {', '.join(resolved.config.languages)}"
        )
    with open_run(Path(out)) as run, Runner(run, resolved, console) as runner:
        judgements = ask(runner, chosen, texts)
        tables = _tables(Tally(chosen, judgements, resolved.rubric), run.config().specs(), "value")
        deliver("health", plain(tables), tables, run.folder / "tables", as_json=False)
    exit_if_lost(sum(judgement.lost for judgement in judgements), len(judgements), "judgements", run.failures())


@app.command("report")
def report(
    run: Annotated[
        MaybeRun,
        typer.Argument(metavar="RUN", help="A run folder: its dialogues and judgements, probed or scored, and its config."),
    ] = None,
    judgements: Annotated[
        MaybeFiles, typer.Option(help="Judgement records (JSONL): several ways of asking, several judges. Repeat.")
    ] = None,
    dialogues: DialoguesOption = None,
    rubric: Annotated[MaybeName, typer.Option(help="Rubric by name or file; default: the run's, else esc_eval.")] = None,
    value: ValueOption = "value",
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("health")] = None,
) -> None:
    """Tables from judgements that are there: score against length, shared bases, ways of asking, injections.

    What can be shown depends on what is given: a second way of asking (another method, another prompt, a probe's reverse order)
    for the order of asking; the output of `probe` for injections; a run folder (its config names the models) for shared bases.
    """
    figure = value_of(value)
    if run is None and not (judgements and dialogues):
        raise UserError("give a run folder, or --judgements FILE and --dialogues FILE")
    held, verdicts, config = _of_run(run) if run is not None else ([], [], RunConfig({}))
    held += read_dialogues(dialogues or [])
    verdicts += [judgement for path in judgements or [] for judgement in read_judgements(path)]
    if not verdicts:
        raise UserError(f"{run}: no judgements: `esc-eval run --only score` or `esc-eval health probe` makes them")
    unique = list({dialogue.id: dialogue for dialogue in held}.values())
    tables = _tables(Tally(unique, verdicts, _rubric(rubric, config)), config.specs(), figure)
    deliver("health", plain(tables), tables, out, as_json)


def _of_run(folder: Path) -> tuple[list[Dialogue], list[Judgement], RunConfig]:
    config = shards.whole(folder)
    dialogues: list[Dialogue] = []
    judgements: list[Judgement] = []
    of_judges = dict.fromkeys([folder, *(one.folder for one in sets_of(folder, config))])
    for prefix, places in (("", [*of_judges]), ("health_", [folder])):
        if files := [path for place in places if (path := place / f"{prefix}judgements.jsonl").exists()]:
            dialogues += read_dialogues([folder / f"{prefix}dialogues.jsonl"])
            judgements += judgements_of(files)
    return dialogues, judgements, config


def _rubric(name: str | None, config: RunConfig) -> Rubric:
    judged = config.scored or config.probed
    return judged.rubric if name is None and judged else load_rubric(name or "esc_eval")


def _tables(tally: Tally, specs: Mapping[str, Mapping[str, Any]], value: Value) -> list[Table]:
    """Every table that the judgements give."""
    rubric = tally.rubric
    shifts, effects = checks.asking_shifts(tally, value), checks.injection_effects(tally, value)
    contestants = contestants_of(tally.dialogues, checks.as_they_are(tally.judgements), rubric, value)
    replies = replies_of(tally.dialogues, contestants)
    return [
        checks.length_table(length_effects(replies, rubric), rubric),
        sharing_table(sharings(tally, specs, value)),
        *([checks.asking_table(shifts, rubric)] if shifts else []),
        *(checks.injection_tables(effects, list(checks.injection_kinds(tally, value)), rubric) if effects else []),
    ]
