"""`esc-eval paper feel`: FEEL's judges, their ensemble, and how metrics rank supporters (Zhang et al., 2024)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, at, near, say
from core.files import write_json, write_jsonl
from core.grouping import group_by
from core.options import SetOption, console, name_and_value
from core.paths import InFile, InFiles, MaybeFiles, Reads
from core.records import Judgement
from core.rubrics import known_rubric, load_rubric
from core.settings import fields_set, read_yaml
from core.tables import json_record
from core.verbs import Verbs
from data_prep.scores.human import gold_scores_of, read_dialogues, read_preferences
from data_prep.scores.rank_sft import group_of
from evalsuite.commands.agree import judgements_of
from evalsuite.commands.options import (
    DialoguesOption,
    JsonOption,
    MaybeResumedOption,
    OwnRubricOption,
    out_tables,
    refuse,
)
from evalsuite.commands.output import deliver, exit_if_lost, plain, print_json, talk
from evalsuite.papers import feel_ensemble as equations
from evalsuite.papers.feel import Feel, load_feel_config
from evalsuite.papers.feel import score as score_all
from evalsuite.papers.feel_ensemble import Weights, fit_modes, fit_tables
from evalsuite.papers.feel_ranking import compare_ranks, human_ranks, metric_ranks, ranking_table
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
    help="FEEL: judges give the probability of every score, an ensemble weights them by their agreement with people.",
    epilog="Example: esc-eval paper feel score --config configs/eval/feel.yaml --dialogues dialogues.jsonl --out runs/feel, "
    "then esc-eval paper feel ensemble --judgements runs/feel/judgements.jsonl --gold scores.csv --out runs/weights",
)


@app.command("score")
def score(
    config: Annotated[InFile, typer.Option("--config", help="The panel of judges; see configs/eval/feel.yaml.")],
    dialogues: Annotated[InFiles, typer.Option("--dialogues", help="Dialogue records (JSONL). Repeat for more.")],
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Score only the first LIMIT dialogues.")] = None,
    settings: SetOption = None,
    out: Annotated[MaybeResumedOption, out_tables("feel_score", "dialogues.jsonl", "judgements.jsonl", "costs.jsonl")] = None,
    as_json: JsonOption = False,
) -> None:
    """Have every judge score dialogues on the six aspects: OUT/judgements.jsonl, one verdict per dialogue, aspect and round.

    A verdict is the mean score under the judge's probabilities of the scores 0 to 3. Probabilities that do not sum to 1 within
    0.02 are renormalised (or null, by `off_sum` of the config) and counted; unreadable ones are null. Judges are asked for
    bands, as in the paper, or for token probabilities in one call; with both (--set methods=[bands,tokens]), the methods are
    compared as well.
    """
    loaded = load_feel_config(config, {"out": out}, settings or ())
    given = read_dialogues(dialogues)
    if "languages" not in fields_set(settings or ()):
        loaded.languages = languages_with(loaded.languages, {}, given, {})
    panel = Feel(loaded)
    chosen = [dialogue for dialogue in given if dialogue.language in loaded.languages][:limit]
    if not chosen:
        raise UserError(f"{', '.join(map(str, dialogues))}: no dialogue in {', '.join(loaded.languages)}")
    with open_run(Path(loaded.out)) as run:
        judgements = score_all(run, panel, chosen, lambda resolved: Runner(run, resolved, talk(as_json)))
        scored = ScoredRun(run.folder, run.config(), Tally(chosen, judgements, panel.members[0].rubric))
        tables = list(Feel.tables(scored))
        deliver("feel_score", plain(tables), tables, run.folder, as_json)
    exit_if_lost(sum(verdict.lost for verdict in judgements), len(judgements), "verdicts", run.failures())


@app.command("ensemble")
def ensemble(
    judgements: Annotated[
        InFiles, typer.Option("--judgements", help="Judgement records (JSONL) of any judges. Repeat for more files.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for the weights and tables, or for the ensemble's judgements."),
        out_tables("feel_*", "weights_*.json", "judgements.jsonl", "ablation.jsonl"),
    ],
    gold: Annotated[
        MaybeFiles,
        typer.Option("--gold", help="People's scores (HumanScore records, JSONL or CSV) to fit weights to. Repeat for more."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="Score the same judges' dialogues with weights fitted earlier with --gold."),
        Reads(beside=True, made="`esc-eval paper feel ensemble --gold SCORES` writes it"),
    ] = None,
    preferences: Annotated[
        MaybeFiles,
        typer.Option("--preferences", help="Preference records (JSONL): which of two dialogues people found better. Repeat."),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="HUMAN=ASPECT",
            help="Map a dimension that people scored to an aspect; other dimensions are left out. Repeat for more. Without it, "
            "names stay as they are. ESConv's survey: --map empathy=comprehensibility, relevance=coherence.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Only verdicts by this method (bands, tokens). Required for a folder with both, where a judge would count "
            "twice. Repeat for more, to compare them.",
        ),
    ] = None,
    dialogues: DialoguesOption = None,
    rubric: OwnRubricOption = None,
    versus: Annotated[
        str | None, typer.Option("--against", metavar="feel", help="Add rows of the paper's tables 3 and 4.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Weight judges by their agreement with people (--gold), score with fitted weights (--weights), or compare rankings.

    With --gold: Spearman's correlation with people, aspect by aspect (equation 2). OUT/weights_paper.json is fitted on all
    dialogues and reported on the same, as in the paper; OUT/weights_native.json is fitted on one half and reported on the
    other (with --dialogues, those on one card or of one text stay together). A judge whose correlation is negative or undefined
    gets weight 0; if none is above 0, all have equal weights. The tables compare each judge, their plain mean, the ensemble,
    and the ensembles without one judge with people (tables 1, 2 and 4).

    With --weights: the ensemble's scores (equation 3) as judgements of a judge named feel, OUT/judgements.jsonl, and those of
    the ensembles without one judge, OUT/ablation.jsonl (table 4); null where a judge with weight gave no score.

    With --preferences and --dialogues: metrics' rankings of supporters compared with people's within each topic (tables 3, 4).
    Judgements may be of any metric: the files above, or `paper respond`'s metric_judgements.jsonl (BLEU, ROUGE, METEOR).
    Several aspects become one rank by their mean, or by the mean of the ranks on each if their rubric (bundled, or given with
    --rubric) has several scales. People's ranks are wins minus losses. A topic is a dialogue's card, profile or source item.
    """
    if sum(map(bool, (gold, weights, preferences))) != 1:
        raise UserError("give --gold to fit weights, --weights to score with fitted ones, or --preferences to compare rankings")
    if not gold:
        refuse("belongs to --gold", map=maps, method=method)
    if not preferences:
        refuse("belongs to --preferences", rubric=rubric, against=versus)
    if weights:
        refuse("--weights are fitted already", dialogues=dialogues)
        _apply(judgements, weights, out, as_json)
        return
    given, verdicts = read_dialogues(dialogues) if dialogues else [], judgements_of(judgements)
    if preferences:
        own = {each.name: each for each in (load_rubric(str(path)) for path in rubric or [])}
        used = [own.get(name) or known_rubric(name) for name in {verdict.rubric for verdict in verdicts}]
        mixed = {each.name for each in used if each and each.shared_scale is None}
        choices, pairing = read_preferences(preferences), Pairing("system", "card")
        rankings = compare_ranks(human_ranks(choices, given, pairing), metric_ranks(verdicts, given, pairing, mixed))
        ranked = {"ranking": [ranking.record() for ranking in rankings]}
        deliver("feel_rank", ranked, against([ranking_table(rankings)], versus), out, as_json)
        return
    verdicts = _by_methods(verdicts, method or [])
    aspects = dict(name_and_value("--map", text, "HUMAN=ASPECT") for text in maps or [])
    if unknown := sorted({*aspects.values()} - (judged := {verdict.dimension for verdict in verdicts})):
        raise UserError(f"--map: no judge scored {unknown[0]!r}: {near(unknown[0], judged)}")
    people = equations.people_of(gold_scores_of(gold or []), aspects)
    groups = {dialogue.id: group_of(dialogue) for dialogue in given} if dialogues else None
    fitted, rows, left_out = fit_modes(equations.panel_of(verdicts), people, verdicts[0].rubric, groups)
    if left_out:
        say(f"native mode is left out: {left_out}", err=True)
    for mode_weights in fitted:
        write_json(out / f"weights_{mode_weights.mode}.json", mode_weights.model_dump(mode="json"))
    figures = {
        "weights": {w.mode: [entry.model_dump(mode="json") for entry in w.weights] for w in fitted},
        "correlation": [json_record(row) for row in rows],
        "data": {w.mode: w.data for w in fitted},
    }
    if deliver("feel_fit", figures, [*fit_tables(fitted, rows)], out, as_json):
        console.print("written: " + ", ".join(str(out / f"weights_{w.mode}.json") for w in fitted))


def _apply(paths: Sequence[Path], file: Path, out: Path, as_json: bool) -> None:
    weights = read_yaml(file, Weights, "weights")  # JSON is YAML
    with at(file):
        weighted = weights.by_aspect().keys()
    given = judgements_of(paths)
    verdicts = [verdict for verdict in given if verdict.rubric == weights.rubric]
    if not verdicts:
        rubrics = near(weights.rubric, {verdict.rubric for verdict in given})
        raise UserError(f"weights are for rubric {weights.rubric}, no judgement is on it: {rubrics}")
    by_ensemble = group_by(equations.apply(weights, verdicts), lambda score: score.judge == equations.ENSEMBLE)
    whole, written = by_ensemble[True], out / "judgements.jsonl"
    write_jsonl(written, whole)
    write_jsonl(out / "ablation.jsonl", by_ensemble.get(False, []))
    dialogues, missing = {score.dialogue_id for score in whole}, sum(score.value is None for score in whole)
    fitted_on = len(dialogues & set(weights.fitted_on))
    judged = {equations.Aspect(verdict.language, verdict.dimension) for verdict in verdicts}
    unweighted = sorted("/".join(aspect) for aspect in judged - weighted)
    if as_json:
        counts = {"dialogues": len(dialogues), "scores": len(whole), "null": missing, "without_weights": unweighted}
        print_json(counts | {"fitted_on": fitted_on, "weights": weights.id, "data": weights.data})
        return
    console.print(f"{len(whole)} scores of {len(dialogues)} dialogues, {missing} null; written: {written}", soft_wrap=True)
    if unweighted:
        console.print(f"not scored, no weights: {', '.join(unweighted)}")
    if fitted_on:
        console.print(f"the weights were fitted on {fitted_on} of these dialogues")


def _by_methods(judgements: Sequence[Judgement], methods: Sequence[str]) -> list[Judgement]:
    """The verdicts by these methods; if none are given, all verdicts, with a `UserError` for a judge with several methods."""
    by_judge = group_by(map(scorer_of, judgements), lambda scorer: (scorer.judge, scorer.condition))
    present = {judgement.method for judgement in judgements}
    for method in methods:
        if method not in present:
            raise UserError(f"--method: no judgement by method {method!r}: {near(method, present)}")
    for (judge, _), scorers in by_judge.items():
        used = {scorer.method for scorer in scorers}
        if not methods and len(used) > 1:
            raise UserError(f"judge {judge} has verdicts by methods {' and '.join(sorted(used))}: choose one with --method")
    return [judgement for judgement in judgements if not methods or judgement.method in methods]
