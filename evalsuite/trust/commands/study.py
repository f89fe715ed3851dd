"""`esc-eval study`: several frameworks, or finished runs of any benchmarks, on the same supporters."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from core.errors import UserError, need_modules
from core.files import CONFIGS, digest, read_jsonl, write_jsonl
from core.languages import check_language, name_of
from core.options import SetOption, console
from core.paths import IN_FOLDER, MaybeModel, MaybeModels, Writes
from core.records import Language
from core.settings import fields_set
from core.specs import EMBEDDED_PREFIX, ModelSpec
from core.statistics.bootstrap import SMOOTHED
from core.tables import Cell, Estimate, Table, fmt, per_cent
from evalsuite.commands.options import LanguageOption, MaybeRuns, refuse, resolve
from evalsuite.commands.output import deliver_page, exit_if_lost
from evalsuite.papers.ecdbench.aggregate import aggregate
from evalsuite.papers.ecdbench.plan import Examination, TaskPlan, layout_of, plan_tasks
from evalsuite.papers.ecdbench.registry import load_benchmark
from evalsuite.papers.ecdbench.scores import read_scores
from evalsuite.papers.feel import Cost, Feel, load_feel_config
from evalsuite.papers.feel import score as ask_panel
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Forest, ForestLine, Sheet
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Launched, Runner
from evalsuite.runs import shards
from evalsuite.runs.contents import as_of, chosen_set, sets_of
from evalsuite.runs.dialogue_framework import DialogueFramework, RunIdentity
from evalsuite.runs.folder import open_run
from evalsuite.runs.framework import ScoredRun, framework_of_run
from evalsuite.runs.records import read_run
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import AVERAGE, languages_of, sums_of, supporter_of
from evalsuite.trust.between_frameworks import (
    STUDY,
    Averages,
    Examined,
    FrameworkScores,
    as_one_judge,
    call_table,
    dimension_table,
    rank_tables,
)

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
        frameworks = scores_of_runs(finished)
        names = sorted({supporter_of(dialogue) for framework in frameworks for dialogue in framework.dialogues})
        judged_by = ", ".join(dict.fromkeys(framework.judge for framework in frameworks))
        plumbing = any(shards.whole(folder).plumbing for folder in finished)
        title = "Several benchmarks on the same supporters"
        return _deliver(study_sheet(frameworks, None, names, judged_by, plumbing, title), out)
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


ALIKE, DIFFERENTLY, UNKNOWN = "alike", "differently", "unknown"  # how two frameworks rank supporters, relative to each other


def study_sheet(
    frameworks: Sequence[FrameworkScores],
    examined: Examined | None,
    supporters: Sequence[str],
    judge: str,
    plumbing: bool,
    title: str = STUDY,
) -> Sheet:
    """The page: a column per framework. Dimensions of two that judged the same dialogues are correlated."""
    every: list[FrameworkScores | Examined] = [*frameworks, *([examined] if examined else [])]
    tables: list[Table] = [*judge_tables(frameworks)]
    forests: list[Forest] = []
    findings: list[str] = []
    pairs: dict[str, list[str]] = {ALIKE: [], DIFFERENTLY: [], UNKNOWN: []}
    floors = {floor for framework in frameworks for floor in framework.floors}
    for language in languages_of(dialogue for framework in frameworks for dialogue in framework.dialogues):
        name, ranks = name_of(language), rank_tables(every, language)
        averages = [*filter(None, (framework.averages(language) for framework in every))]
        dimensions = filter(None, (dimension_table(*pair, language) for pair in combinations(frameworks, 2)))
        numbered = (replace(table, key=table.key + f"-{n}" * (n > 1)) for n, table in enumerate(dimensions, start=1))
        others = [disagreement_table(averages, language) if ranks else None, call_table(every, language), *numbered]
        tables += [*ranks, *filter(None, others)]
        findings += [f"{name}, {each.title}: {reason}." for each in frameworks if (reason := each.unread(language))]
        if ranks:
            forests.append(_forest(name, averages, floors))
            findings += _highest(name, averages)
            for first, second, tau, _ in ranks[1].rows:
                if isinstance(tau, Estimate) and tau.mean is not None:  # no bounds: the order of every pair stands
                    low, high = (tau.mean if end is None else end for end in (tau.low, tau.high))
                    kind = ALIKE if low > 0 else DIFFERENTLY if high < 0 else UNKNOWN
                    pairs[kind].append(f"{first} and {second} ({name}, Kendall's tau {fmt(tau)})")
    cautions = [PLUMBING] * plumbing
    for framework in frameworks:
        cautions += [text if text.startswith(framework.title) else f"{framework.title}: {text}" for text in framework.warnings]
    return Sheet(
        title=title,
        cautions=cautions,
        findings=[_answer(pairs), *findings],
        facts=[
            ("Supporters", ", ".join(supporters)),
            ("Seeker and judge" if title == STUDY else "Judges", judge),
            *((each.title, f"{len(each.dialogues):,} dialogues, {each.calls:,} calls") for each in frameworks),
            *([(examined.title, f"{examined.questions:,} questions")] if examined else []),
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        forests=forests,
        tables=tables,
        figures={"plumbing": plumbing},
    )


def judge_tables(frameworks: Sequence[FrameworkScores]) -> Iterator[Table]:
    """How far each framework's judge agrees with people, or whatever it was measured on; no table if no judge is named."""
    rows: list[tuple[Cell, ...]] = []
    for framework in frameworks:
        for language in (framework.agreement or [""]) if framework.judge else ():
            figures = framework.agreement.get(language, {}).get(AVERAGE, {})
            acc, low, high = (figures.get(name) for name in ("acc", "acc_low", "acc_high"))
            cell = Estimate(acc, low, high, int(figures.get("n", 0))).times(100)
            language_name, majority = name_of(language) if language else None, per_cent(figures.get("majority_acc"))
            rows.append((framework.title, framework.judge, framework.gold or "nothing", language_name, cell, majority))
    columns = ("framework", "judge", "measured on", "language", "right, %", "most frequent score, %")
    notes = (
        "Right: verdicts that equal the gold score, over all dimensions, [95 % interval], n = verdicts. To compare: how many "
        "would be right if every verdict were the most frequent score. The scores of a synthetic gold set are not from people.",
    )
    if rows:
        yield Table("study-judges", "How far does each judge agree with people?", columns, tuple(rows), notes, STUDY)


def disagreement_table(averages: Sequence[Averages], language: Language) -> Table | None:
    """Pairs of supporters that two frameworks order differently; None if there are none."""
    rows: list[tuple[Cell, ...]] = []
    for both in combinations(averages, 2):
        gaps, others = ({(x.names[gap.first], x.names[gap.second]): gap for gap in x.differences} for x in both)
        for pair, first in gaps.items():
            second = others.get(pair)
            if second and (first.estimate.mean or 0) * (second.estimate.mean or 0) < 0:
                titles = [side.title for side, gap in zip(both, (first, second), strict=True) if gap.holds]
                significant = "both" if len(titles) == 2 else titles[0] if titles else "neither"
                rows.append((*pair, both[0].title, first.estimate, both[1].title, second.estimate, significant))
    columns = ("supporter", "against", "by", "difference", "by", "difference", "significant in")
    note = f"Differences of averages, [{SMOOTHED}]. Where neither or only one is significant, it may be chance."
    title = f"Where do they disagree? {language}"
    return Table(f"study-disagreements-{language}", title, columns, tuple(rows), (note,), STUDY) if rows else None


def _answer(pairs: Mapping[str, Sequence[str]]) -> str:
    """Whether the frameworks rank supporters alike, from descriptions of pairs of frameworks by `ALIKE` and so on."""
    if pairs[DIFFERENTLY]:
        return f"Some frameworks rank these supporters differently: {'; '.join(pairs[DIFFERENTLY])}."
    if pairs[ALIKE] and not pairs[UNKNOWN]:
        return "The frameworks rank these supporters alike."
    if pairs[ALIKE]:
        return f"Some frameworks rank these supporters alike: {'; '.join(pairs[ALIKE])}. For the others this study cannot tell."
    return "This study cannot tell whether the frameworks rank these supporters alike."


def _highest(language: str, every: Sequence[Averages]) -> Iterator[str]:
    """The supporters with the highest averages, and frameworks that cannot tell supporters apart."""
    best: dict[str, list[str]] = {}
    for averages in every:
        if len(set(averages.seen)) > 1:
            best.setdefault(averages.names[int(averages.seen.argmax())], []).append(averages.title)
        elif len(averages.names) > 1:
            yield f"{language}, {averages.title}: all supporters have the same average, so it ranks nobody."
    if best:
        named = ", ".join(f"{name} ({', '.join(titles)})" for name, titles in best.items())
        yield f"{language}, highest average: {named}."


def _forest(title: str, every: Sequence[Averages], floors: Collection[str]) -> Forest:
    estimates = [averages.estimates() for averages in every]
    order = {name: place for place, name in enumerate(np.array(every[0].names)[np.argsort(-every[0].seen)])}
    names = sorted(set().union(*estimates), key=lambda name: (name in floors, order.get(name, len(order))))
    lines = [ForestLine(name, [[cells.get(name)] for cells in estimates], floor=name in floors) for name in names]
    return Forest(f"Average of 0–100, {title}", lines, [averages.title for averages in every])


def scores_of_runs(folders: Sequence[Path]) -> list[FrameworkScores]:
    """The scores in run folders of any framework, one per folder and judge. Raises `UserError` for a folder that is not a
    scored run or given twice, and if no supporter is in two of them."""
    frameworks: list[FrameworkScores] = []
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run folder is given twice: name each run once")
    for folder in folders:
        config = shards.whole(folder)
        with open_run(folder) as run:
            calls = sum(used.calls for used in sums_of(run.usage().values()).values())
        judges: list[str | None] = [record.judge for record in sets_of(folder, config)]
        for judge in judges or [None]:  # without a judge, `read_run` says what is missing
            record = read_run(folder.name, folder, judge)
            run_config = as_of(config, chosen_set(folder, config, judge))
            scored = ScoredRun(folder, run_config, Tally(record.dialogues, record.judgements, record.rubric, record.floors))
            source = framework_of_run(scored)
            alarms = [*source.alarms(scored)] if source else []
            warnings = [f"{len(alarms)} dialogues that no average may hide, first {alarms[0].what}."] if alarms else []
            title = source.title if source else f"Rubric {record.rubric.name}"
            if any(other.title == title for other in frameworks):
                title = f"{title} ({folder.name}, {judge})"
            people = digest(sorted(record.cards)) if record.cards else str(folder)
            records = record.dialogues, record.judgements, record.rubric, calls, record.floors, judge or ""
            gold = ("synthetic" if config.synthetic_gold else config.gold.dialogues) if config.gold else ""
            warnings += source.cautions(scored) if source else ()
            frameworks.append(FrameworkScores(title, people, *records, gold, record.agreement, warnings))
    supporters = [{supporter_of(dialogue) for dialogue in record.dialogues} for record in frameworks]
    if len(frameworks) > 1 and not any(a & b for a, b in combinations(supporters, 2)):
        raise UserError("no supporter is in two of these runs: give runs of the same supporters")
    return frameworks
