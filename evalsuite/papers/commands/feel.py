"""`esc-eval paper feel`: FEEL's judges, their ensemble, and how metrics rank supporters (Zhang et al., 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near, say
from core.files import write_json, write_jsonl
from core.options import SetOption, console, name_and_value
from core.paths import InFile, InFiles, MaybeFiles, Reads
from core.records import HumanScore, Judgement
from core.rubrics import known_rubric, load_rubric
from core.settings import fields_set
from core.tables import json_record
from core.verbs import Verbs
from core.yaml_files import read_yaml
from data_prep.scores.human import gold_scores_of, read_dialogues, read_preferences
from data_prep.scores.rank_sft import group_of
from evalsuite.commands.options import (
    DialoguesOption,
    JsonOption,
    MaybeResumedOption,
    OwnRubricOption,
    TablesOption,
    out_tables,
    refuse,
)
from evalsuite.commands.output import deliver, exit_if_lost, plain, print_json, talk
from evalsuite.commands.verdicts import judgements_of
from evalsuite.papers.feel import ensemble as equations
from evalsuite.papers.feel.ensemble import Scores, Weights
from evalsuite.papers.feel.panel import Feel, load_feel_config
from evalsuite.papers.feel.panel import score as score_all
from evalsuite.papers.feel.ranking import compare_ranks, human_ranks, metric_ranks, ranking_table
from evalsuite.papers.feel.tables import fit_modes, fit_tables
from evalsuite.papers.reported.against import against
from evalsuite.runner.engine import Runner
from evalsuite.runs.folder import open_run
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.people import languages_with
from evalsuite.statistics.correlation import Pairing
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import scorer_of

app = Verbs(
    no_args_is_help=True,
    help="FEEL: judges give the probability of every score, an ensemble weighs them by how they agree with people.",
    epilog="Example: esc-eval paper feel score --config configs/eval/feel.yaml --dialogues dialogues.jsonl --out runs/feel, "
    "then esc-eval paper feel ensemble --judgements runs/feel/judgements.jsonl --gold scores.csv --out runs/weights",
)

JudgementsOption = Annotated[
    InFiles, typer.Option("--judgements", help="Judgement records (JSONL) of any judges. Repeat for more files.")
]


@app.command("score")
def score(
    config: Annotated[InFile, typer.Option("--config", help="The panel of judges; see configs/eval/feel.yaml.")],
    dialogues: Annotated[InFiles, typer.Option("--dialogues", help="Dialogue records (JSONL). Repeat for more.")],
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many dialogues, the first ones.")] = None,
    settings: SetOption = None,
    out: Annotated[MaybeResumedOption, out_tables("feel_score", "dialogues.jsonl", "judgements.jsonl", "costs.jsonl")] = None,
    as_json: JsonOption = False,
) -> None:
    """Have every judge score dialogues on the six aspects: OUT/judgements.jsonl, one verdict per dialogue, aspect and round.

    A verdict is the mean score by the probabilities that the judge gives to the scores 0 to 3. Numbers that do not sum to 1
    within 0.02 are renormalised (or null, by `off_sum` of the config), and counted; what cannot be read is null. Judges are
    asked for bands, as in the paper, or for token probabilities in one call; by both (--set methods=[bands,tokens]), the
    methods are compared as well.
    """
    loaded = load_feel_config(config, {"out": out}, settings or ())
    read = read_dialogues(dialogues)
    if "languages" not in fields_set(settings or ()):
        loaded.languages = languages_with(loaded.languages, {}, read, {})
    panel = Feel(loaded)
    scored_dialogues = [dialogue for dialogue in read if dialogue.language in loaded.languages][:limit]
    if not scored_dialogues:
        raise UserError(f"{', '.join(map(str, dialogues))}: no dialogue in {', '.join(loaded.languages)}")
    with open_run(Path(loaded.out)) as run:
        judgements = score_all(run, panel, scored_dialogues, lambda resolved: Runner(run, resolved, talk(as_json)))
        scored = ScoredRun(run.folder, run.config(), Tally(scored_dialogues, judgements, panel.members[0].rubric))
        tables = list(Feel.tables(scored))
        deliver("feel_score", plain(tables), tables, run.folder, as_json)
    exit_if_lost(sum(verdict.lost for verdict in judgements), len(judgements), "verdicts", run.failures())


@app.command("ensemble")
def ensemble(
    judgements: JudgementsOption,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for the weights and tables, or for the ensemble's judgements."),
        out_tables("feel_*", "weights_*.json", "judgements.jsonl", "ablation.jsonl"),
    ],
    gold: Annotated[
        MaybeFiles,
        typer.Option(
            "--gold",
            help="People's scores (HumanScore records, JSONL or CSV) to weigh the judges by. Annotators are averaged. Repeat "
            "for more files.",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="Weights that were fitted with --gold, to score what the same judges judged."),
        Reads(beside=True, made="`esc-eval paper feel ensemble --gold SCORES` writes it"),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="HUMAN=ASPECT",
            help="Which aspect a dimension that people scored stands for; all others are left out. Repeat for more. Without "
            "it, every dimension stands for itself. ESConv's survey: --map empathy=comprehensibility, relevance=coherence.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Only verdicts by this method (bands, tokens). A folder that holds both needs it: asked by two methods, a "
            "judge would count as two. Repeat for more, to compare them.",
        ),
    ] = None,
    dialogues: DialoguesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Weigh the judges by how they agree with people (--gold), or score with the weights found (--weights).

    With --gold: Spearman's correlation with people, aspect by aspect (equation 2), saved with the data's hash.
    OUT/weights_paper.json is fitted on all dialogues and reported on the same, as in the paper; OUT/weights_native.json is
    fitted on one half and reported on the other. With --dialogues, those on one card or of one text stay in one half. A judge
    whose correlation is negative or not defined gets weight 0; where none is above 0, all weigh the same. The tables set each
    judge, their plain mean, the ensemble, and the ensembles that lack one judge beside people (tables 1, 2 and 4).

    With --weights: the ensemble's scores (equation 3) as judgements of a judge named feel, OUT/judgements.jsonl, and those of
    the ensembles that lack one judge, OUT/ablation.jsonl (table 4). A dialogue that lacks the score of a judge with weight gets
    value null. `agree` and `paper feel rank` take the files.
    """
    if bool(gold) == bool(weights):
        raise UserError("give --gold to weigh the judges, or --weights to score with weights that are there")
    if weights:
        refuse("with --weights nothing is fitted", map=maps, method=method, dialogues=dialogues)
        _apply(judgements, weights, out, as_json)
        return
    verdicts = _by_methods(judgements_of(judgements), method or [])
    panel, rubric = equations.panel_of(verdicts), verdicts[0].rubric
    people = _people_on(gold_scores_of(gold or []), maps, (verdict.dimension for verdict in verdicts))
    groups = {dialogue.id: group_of(dialogue) for dialogue in read_dialogues(dialogues)} if dialogues else None
    fitted, rows, left_out = fit_modes(panel, people, rubric, groups)
    if left_out:
        say(f"native mode is left out: {left_out}", err=True)
    for of_mode in fitted:
        write_json(out / f"weights_{of_mode.mode}.json", of_mode.model_dump(mode="json"))
    figures = {
        "weights": {of_mode.mode: [w.model_dump(mode="json") for w in of_mode.weights] for of_mode in fitted},
        "correlation": [json_record(row) for row in rows],
        "data": {of_mode.mode: of_mode.data for of_mode in fitted},
    }
    if deliver("feel_fit", figures, [*fit_tables(fitted, rows)], out, as_json):
        console.print("written: " + ", ".join(str(out / f"weights_{of_mode.mode}.json") for of_mode in fitted))


def _apply(paths: Sequence[Path], file: Path, out: Path, as_json: bool) -> None:
    """Write the scores of the ensemble, and of those that lack one judge; print what they come to."""
    weights = read_yaml(file, Weights, "weights")  # JSON is YAML
    try:
        weights.by_aspect()
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    every = judgements_of(paths)
    verdicts = [verdict for verdict in every if verdict.rubric == weights.rubric]
    if not verdicts:
        rubrics = near(weights.rubric, {verdict.rubric for verdict in every})
        raise UserError(f"weights are for rubric {weights.rubric}, no judgement is on it: {rubrics}")
    scores = [*equations.apply(weights, verdicts, ablation=True)]
    whole = [score for score in scores if score.judge == equations.ENSEMBLE]
    write_jsonl(out / "judgements.jsonl", whole)
    write_jsonl(out / "ablation.jsonl", (score for score in scores if score.judge != equations.ENSEMBLE))
    dialogues = {score.dialogue_id for score in whole}
    fitted_on, unweighted = len(dialogues & set(weights.fitted_on)), equations.unweighted(weights, verdicts)
    missing = sum(score.value is None for score in whole)
    if as_json:
        counts = {"dialogues": len(dialogues), "scores": len(whole), "null": missing, "without_weights": unweighted}
        print_json(counts | {"fitted_on": fitted_on, "weights": weights.id, "data": weights.data})
        return
    written = out / "judgements.jsonl"
    console.print(f"{len(whole)} scores of {len(dialogues)} dialogues, {missing} null; written: {written}", soft_wrap=True)
    if unweighted:
        console.print(f"not scored, no weights: {', '.join(unweighted)}")
    if fitted_on:
        console.print(f"{fitted_on} of these dialogues the weights were fitted on")


@app.command("rank")
def rank(
    judgements: JudgementsOption,
    preferences: Annotated[
        InFiles, typer.Option("--preferences", help="Preference records (JSONL): which of two dialogues people found better.")
    ],
    dialogues: Annotated[
        InFiles, typer.Option("--dialogues", help="Dialogue records (JSONL): they say which supporter and topic. Repeat.")
    ],
    rubric: OwnRubricOption = None,
    versus: Annotated[str | None, typer.Option("--against", metavar="feel", help="The paper's tables 3 and 4 below.")] = None,
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("feel_*")] = None,
) -> None:
    """Do metrics rank supporters as people do? Spearman, Kendall, RMSE and MAE of ranks, topic by topic (tables 3 and 4).

    Judgements are of any metric: the files of `paper feel ensemble`, a judge's, or metric_judgements.jsonl of `paper respond`
    (BLEU, ROUGE, METEOR). Several aspects become one rank by their mean; by the mean of the ranks on each where their rubric
    (bundled, or given with --rubric) has several scales. People's ranks are wins minus losses over all questions. A topic is a
    dialogue's card, else its profile, else its source_id, else itself.
    """
    spoken, pairing = read_dialogues(dialogues), Pairing("system", "card")
    choices, verdicts = read_preferences(preferences), judgements_of(judgements)
    own = {one.name: one for one in (load_rubric(str(path)) for path in rubric or [])}
    known = [own.get(name) or known_rubric(name) for name in {verdict.rubric for verdict in verdicts}]
    mixed = {one.name for one in known if one and one.shared_scale is None}
    rankings = compare_ranks(human_ranks(choices, spoken, pairing), metric_ranks(verdicts, spoken, pairing, mixed))
    (table,) = against([ranking_table(rankings)], versus)
    deliver("feel_rank", {"ranking": [ranking.record() for ranking in rankings]}, [table], out, as_json)


def _by_methods(judgements: Sequence[Judgement], methods: Sequence[str]) -> list[Judgement]:
    """The verdicts by these methods; without any, all, and a `UserError` where some judge has verdicts by several."""
    asked: dict[tuple[str, object], set[str]] = defaultdict(set)
    for judgement in judgements:
        scorer = scorer_of(judgement)
        asked[scorer.judge, scorer.condition].add(scorer.method)
    known = {method for methods_used in asked.values() for method in methods_used}
    for method in methods:
        if method not in known:
            raise UserError(f"--method: no judgement by method {method!r}: {near(method, known)}")
    for (judge, _), methods_used in asked.items():
        if not methods and len(methods_used) > 1:
            raise UserError(
                f"judge {judge} has verdicts by methods {' and '.join(sorted(methods_used))}: choose one with --method"
            )
    return [judgement for judgement in judgements if not methods or judgement.method in methods]


def _people_on(scores: Sequence[HumanScore], maps: Sequence[str] | None, judged: Iterable[str]) -> Scores:
    """People's mean scores by aspect, as --map says; `judged`: the aspects that judges have verdicts on."""
    aspects = set(judged)
    pairs: dict[str, str] = {}
    for text in maps or []:
        name, aspect = name_and_value("--map", text, "HUMAN=ASPECT")
        if name in pairs:
            raise UserError(f"--map {text}: {name} is given twice")
        if aspect not in aspects:
            raise UserError(f"--map {text}: no judge scored {aspect!r}: {near(aspect, aspects)}")
        pairs[name] = aspect
    return equations.people_of(scores, pairs)
