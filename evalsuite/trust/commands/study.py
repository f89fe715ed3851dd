"""`esc-eval study`: do ESC-Eval, EmoHarbor, FEEL and ECDBench agree on the same supporters?"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UserError, need_modules
from core.files import CONFIGS, read_jsonl, write_jsonl
from core.languages import check_language
from core.options import SetOption, console
from core.paths import IN_FOLDER, MaybeModel, MaybeModels, Writes
from core.settings import fields_set
from core.specs import EMBEDDED_PREFIX, ModelSpec
from evalsuite.commands.options import LanguageOption, MaybeRuns, refuse, resolve
from evalsuite.commands.output import deliver_page, exit_if_lost
from evalsuite.papers.ecdbench.aggregate import aggregate
from evalsuite.papers.ecdbench.asking import Examination
from evalsuite.papers.ecdbench.plan import TaskPlan, layout_of, plan_tasks
from evalsuite.papers.ecdbench.registry import load_benchmark
from evalsuite.papers.ecdbench.scores import read_scores
from evalsuite.papers.feel.panel import Feel, load_feel_config
from evalsuite.papers.feel.panel import score as ask_panel
from evalsuite.papers.feel.tables import Cost
from evalsuite.report.sheet import Sheet
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Launched, Runner
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import open_run
from evalsuite.runs.run_identity import RunIdentity
from evalsuite.statistics.summary import sums_of
from evalsuite.trust.between_frameworks import Examined, FrameworkScores, as_one_judge
from evalsuite.trust.study import study_of_runs, study_sheet

# Defaults of a study; reliability needs two trials.
_USUAL = {"trials": 2, "exchanges": 5, "temperature": 0.7, "floors": True}
_PERSONAS = ("psychologist", "peer", "editor")
_RUN = ("dialogues.jsonl", "judgements.jsonl", "cards.jsonl", "profiles.jsonl", "costs.jsonl")


def study(
    finished: Annotated[
        MaybeRuns, typer.Argument(metavar="RUN…", help="Scored runs of any benchmarks, to compare without calls.")
    ] = None,
    supporter: Annotated[
        MaybeModels, typer.Option("--supporter", metavar="MODEL", help="Model under test. Repeat for more.")
    ] = None,
    model: Annotated[
        MaybeModel, typer.Option("--model", metavar="MODEL", help="Plays the seeker, and judges in every framework.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=2, metavar="N", help="Cards, and profiles, per language.")] = 5,
    language: LanguageOption = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="ECDBench's data sets, as for `paper ecdbench run --data`: adds ECDBench to the study."),
        IN_FOLDER,
    ] = None,
    items: Annotated[int, typer.Option("--items", min=2, metavar="N", help="Items of each of ECDBench's data sets.")] = 20,
    settings: SetOption = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder of the study; the same command resumes."),
        Writes(("study.*", "tables/*", *(f"*/{name}" for name in _RUN), "ecdbench/*/scores.jsonl", "ecdbench/*/datasets/*")),
    ] = Path("runs/study"),
) -> None:
    """Run ESC-Eval, EmoHarbor and FEEL's panel on the same supporters, and ECDBench if it has data: do they rank supporters
    alike, do their dimensions correlate, and which distinguishes supporters with the fewest calls?

    With RUN folders, it compares finished runs of any benchmarks: a column per benchmark, how far each judge agrees with
    people, the benchmarks' warnings, and where they disagree.

    Each supporter, and the floors, hold two dialogues per card or profile, of five exchanges, at temperature 0.7: change this
    with --set trials, exchanges, temperature and floors. The run folders in OUT can be reported and extended like any other.
    Writes OUT/study.html, .json and .md. Examples:

    esc-eval study --supporter a@http://127.0.0.1:8000/v1 --supporter b@http://127.0.0.1:8001/v1
    --model gpt-4.1@https://api.openai.com/v1#OPENAI_API_KEY

    esc-eval study runs/vera_mh runs/mindeval runs/healthbench --out runs/one_page
    """
    if finished:
        refuse("finished runs need no calls: leave it out", supporter=supporter, model=model, data=data, set=settings)
        return _deliver(study_of_runs(finished), out)
    if not supporter or model is None:
        raise UserError("nothing to study: give --supporter and --model, or scored run folders of several benchmarks")
    if language is not None:
        check_language("--language", language)
    played: dict[str, Any] = {"supporters": supporter, "limit": limit, "seeker": model, "judge": model, "language": language}
    played |= {field: value for field, value in _USUAL.items() if field not in fields_set(settings or ())}
    runs = {
        name: resolve(CONFIGS / "eval" / config, settings, out=str(out / name), **played)
        for name, config in (("esc_eval", "api.yaml"), ("emoharbor", "study_emoharbor.yaml"))
    }
    judges = [{"model": model, "persona": persona} for persona in _PERSONAS]
    overrides = {"judges": judges, "rounds": 1, "languages": [language] if language else None, "out": str(out / "feel")}
    panel = load_feel_config(CONFIGS / "eval" / "feel.yaml", overrides)
    judge = runs["esc_eval"].models.judge.name
    panel.endpoints.update({name: url for name, url in runs["esc_eval"].config.endpoints.items() if name == judge})
    feel = Feel(panel)
    for resolved in runs.values():  # problems surface before anything is written or started
        RunIdentity(resolved).simulate()
        RunIdentity(resolved).score()
    planned = None
    if data is not None:  # without its summaries, which need a judge
        need_modules("lm_eval", purpose="ECDBench's tasks")
        planned = replace(plan_tasks(load_benchmark("ecdbench"), layout_of(data), data, None, False), summaries={})
        planned.check()
    with Launched() as servers:
        frameworks = [_held(name, resolved, servers) for name, resolved in runs.items()]
        frameworks.append(_panel(feel, out / "feel", frameworks[0], servers))
        models = [spec for spec in runs["esc_eval"].models.supporters if spec.floor is None]
        examined = None if planned is None else _examined(planned, models, servers, items, out / "ecdbench")
    played_by = runs["esc_eval"].models
    specs = [*played_by.seekers, played_by.judge, *played_by.supporters]
    plumbing = any(str(spec.checkpoint).startswith(EMBEDDED_PREFIX) for spec in specs)
    names = [spec.name for spec in played_by.supporters]
    _deliver(study_sheet(frameworks, examined, names, played_by.judge.name, plumbing), out)
    verdicts = [judgement for framework in frameworks for judgement in framework.judgements]
    exit_if_lost(sum(judgement.lost for judgement in verdicts), len(verdicts), "judgements")


def _deliver(sheet: Sheet, out: Path) -> None:
    deliver_page("study", sheet, out, printed=[table for table in sheet.tables if "study-dimensions" not in table.key])


def _held(name: str, resolved: DialogueFramework, servers: Launched) -> FrameworkScores:
    """A framework's dialogues and verdicts, made now or read from its folder."""
    with open_run(resolved.out) as run, Runner(run, resolved, console, shared=servers) as runner:
        outcome = pipeline.simulate(runner, score=True)
        records = [*outcome.dialogues], [*outcome.judgements], resolved.rubric
        calls = sum(used.calls for used in sums_of(run.usage().values()).values())
        floors = {spec.name for spec in resolved.models.supporters if spec.floor}
        return FrameworkScores(resolved.title, "cards" if name == "esc_eval" else "profiles", *records, calls, floors)


def _panel(feel: Feel, folder: Path, first: FrameworkScores, servers: Launched) -> FrameworkScores:
    """FEEL's verdicts on existing dialogues; the panel counts as one judge."""
    whole = [dialogue for dialogue in first.dialogues if not dialogue.lost and dialogue.exchanges]
    if not whole:
        raise UserError(f"{folder}: no dialogue was completed: there is nothing for FEEL's panel to judge")
    with open_run(folder) as run:
        judgements = ask_panel(run, feel, whole, lambda resolved: Runner(run, resolved, console, shared=servers))
    calls = sum(cost.calls for cost in read_jsonl(folder / "costs.jsonl", Cost, "costs"))
    return FrameworkScores(feel.title, "cards", whole, [*as_one_judge(judgements)], feel.members[0].rubric, calls, first.floors)


def _examined(planned: TaskPlan, models: Sequence[ModelSpec], servers: Launched, items: int, out: Path) -> Examined:
    """ECDBench's totals of every model."""
    benchmark = load_benchmark("ecdbench")
    up = servers.endpoints
    if not all(model.name in up or model.endpoint.base_url for model in models):
        servers.close()  # each model gets the machine to itself
        up = {}
    totals, item_counts = {}, []
    for model in models:
        changes = {"base_url": up[model.name]} if model.name in up else {}
        spec = model.model_copy(update={"endpoint": model.endpoint.model_copy(update=changes)})
        with open_run(out / model.name) as run:
            scores, _ = Examination(benchmark, spec, items, console).ask(run, planned)
            write_jsonl(run.folder / "scores.jsonl", scores)
        (read,) = read_scores([out / model.name / "scores.jsonl"], benchmark)
        totals[model.name] = aggregate(benchmark, read, "left_out").root.values
        item_counts.append(len({(score.dataset, score.item) for score in scores}))
    return Examined(benchmark.title, totals, min(item_counts, default=0), sum(item_counts))
