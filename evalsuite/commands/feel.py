"""`esc-eval feel`: FEEL's judges, their ensemble, and how metrics rank supporters (Zhang et al., 2024)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from core.errors import UserError, say
from core.files import write_json, write_jsonl
from core.options import choice, console
from core.paths import InFile, InFiles, MaybeFiles, MaybeName, OutFile, Reads
from core.rubrics import known_rubric
from core.verbs import Verbs
from data_prep.scores.human import gold_scores_of, of_annotators, read_dialogues, read_preferences
from data_prep.scores.rank_sft import group_of
from evalsuite.commands.feel_inputs import (
    FeelTablesOption,
    HumanOption,
    HumanRubricOption,
    JudgementsOption,
    MapOption,
    MethodsOption,
    RubricOption,
    both_sides,
    on_rubric,
    people_on,
    read_weights,
)
from evalsuite.commands.options import (
    AnnotatorOption,
    EndpointOption,
    InRun,
    JsonOption,
    LanguageOption,
    MaybeResumedOption,
    endpoints_of,
    out_tables,
)
from evalsuite.commands.output import deliver, exit_if_lost, plain, print_json, talk
from evalsuite.commands.verdicts import judgements_of
from evalsuite.frameworks.feel import Feel, load_feel_config
from evalsuite.frameworks.feel import score as score_all
from evalsuite.reported.against import against
from evalsuite.runner.engine import Runner
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.run_config import Judged
from evalsuite.statistics import ensemble
from evalsuite.statistics.correlation import Pairing, SampleBy
from evalsuite.statistics.ensemble import MODES
from evalsuite.statistics.feel_tables import agreement_table, fit_modes, fit_tables, people_table
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.model_ranking import Combine, compare_ranks, human_ranks, metric_ranks, ranking_table

app = Verbs(
    no_args_is_help=True,
    help="FEEL: judges give the probability of every score, an ensemble weighs them by how they agree with people.",
    epilog="Example: esc-eval feel score --config configs/eval/feel.yaml --dialogues dialogues.jsonl --out runs/feel, then "
    "esc-eval feel fit --judgements runs/feel/judgements.jsonl --gold scores.csv --weights weights.json",
)


@app.command("score")
def score(
    config: Annotated[InFile, typer.Option("--config", help="The panel of judges; see configs/eval/feel.yaml.")],
    dialogues: Annotated[InFiles, typer.Option("--dialogues", help="Dialogue records (JSONL). Repeat for more.")],
    rounds: Annotated[int | None, typer.Option("--rounds", help="How often each judge is asked about a dialogue.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="bands: as the paper asks. tokens: token probabilities, one call. Repeat for both."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many dialogues, the first ones.")] = None,
    language: LanguageOption = None,
    endpoint: EndpointOption = None,
    out: Annotated[MaybeResumedOption, out_tables("feel_score", "dialogues.jsonl", "judgements.jsonl", "costs.jsonl")] = None,
    as_json: JsonOption = False,
) -> None:
    """Have every judge score dialogues on the six aspects: OUT/judgements.jsonl, one verdict a dialogue, aspect and round.

    A verdict is the mean score by the probabilities that the judge gives to the scores 0 to 3. Numbers that do not sum to 1
    within 0.02 are renormalised (or null, by `off_sum` of the config), and counted; what cannot be read is null.
    """
    overrides = {"rounds": rounds, "methods": method or None, "languages": [language] if language else None, "out": out}
    loaded = load_feel_config(config, overrides)
    loaded.endpoints.update(endpoints_of(endpoint))
    panel = Feel(loaded)
    scored_dialogues = [dialogue for dialogue in read_dialogues(dialogues) if dialogue.language in loaded.languages][:limit]
    if not scored_dialogues:
        raise UserError(f"{', '.join(map(str, dialogues))}: no dialogue in {', '.join(loaded.languages)}")
    with open_run(Path(loaded.out)) as run:
        judgements = score_all(run, panel, scored_dialogues, lambda resolved: Runner(run, resolved, talk(as_json)))
        scored = ScoredRun(run.folder, run.config(), Tally(scored_dialogues, judgements, panel.members[0].rubric))
        tables = list(Feel.tables(scored))
        deliver("feel_score", plain(tables), tables, run.folder, as_json)
    exit_if_lost(sum(verdict.lost for verdict in judgements), len(judgements), "verdicts", run.failures())


@app.command("fit")
def fit(
    judgements: JudgementsOption,
    human: HumanOption,
    weights: Annotated[OutFile, typer.Option("--weights", help="JSON file to write the weights to.")],
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="Which weights to save. native: fitted on one part of the dialogues, reported on the other. paper: fitted and "
            "reported on the same ones. Both are shown.",
        ),
    ] = "native",
    share: Annotated[
        float, typer.Option("--share", min=0.05, max=0.95, help="The share of the dialogues that native mode fits on.")
    ] = 0.5,
    seed: Annotated[int, typer.Option("--seed", help="Draws that part.")] = 0,
    rubric: RubricOption = None,
    human_rubric: HumanRubricOption = None,
    maps: MapOption = None,
    annotator: AnnotatorOption = None,
    method: MethodsOption = None,
    dialogues: Annotated[
        MaybeFiles,
        typer.Option(
            "--dialogues",
            help="The dialogues (JSONL): those on one card or of one text stay in one part. Without them each is on its own.",
        ),
    ] = None,
    as_json: JsonOption = False,
    out: FeelTablesOption = None,
) -> None:
    """Weights of the judges by Spearman's correlation with people, aspect by aspect (equation 2), saved with their data's hash.

    A judge whose correlation is negative or not defined gets weight 0; where none is above 0, all weigh the same. The tables
    set each judge, their plain mean, the ensemble, and the ensembles that lack one judge beside people (tables 1, 2 and 4).
    """
    chosen = choice("--mode", mode, MODES)
    panel, people, name = both_sides(judgements, human, rubric, human_rubric, maps, annotator, method)
    known = {dialogue.id: group_of(dialogue) for dialogue in read_dialogues(dialogues)} if dialogues else None
    fitted, rows, left_out = fit_modes(panel, people, name, known, share, seed, chosen)
    if left_out:
        say(f"native mode is left out: {left_out}", err=True)
    saved = next(fitted_weights for fitted_weights in fitted if fitted_weights.mode == chosen)
    write_json(weights, saved.model_dump(mode="json"))
    figures = {
        "weights": {
            fitted_weights.mode: [w.model_dump(mode="json") for w in fitted_weights.weights] for fitted_weights in fitted
        },
        "correlation": [row.record() for row in rows],
        "data": saved.data,
        "saved": saved.mode,
    }
    if deliver("feel_fit", figures, [*fit_tables(fitted, rows)], out, as_json):
        console.print(f"written: {weights} ({saved.mode} mode)")


@app.command("apply")
def apply(
    judgements: JudgementsOption,
    weights: Annotated[
        Path,
        typer.Option("--weights", help="The JSON file that `fit` wrote."),
        Reads(made="`esc-eval feel fit --weights {path}` writes it"),
    ],
    to: Annotated[OutFile, typer.Option("--to", help="JSONL file for the ensemble's judgements.")],
    rubric: RubricOption = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Also the ensembles that lack one judge, for `rank` (table 4).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """The ensemble's scores (equation 3) of what the same judges judged, as judgements of a judge named feel.

    A dialogue that lacks the score of a judge with weight gets value null. `agree` and `feel rank` take the file.
    """
    saved = read_weights(weights)
    verdicts = on_rubric(judgements_of(judgements), rubric or saved.rubric)
    ensemble_verdicts = [*ensemble.apply(saved, verdicts, ablation)]
    write_jsonl(to, ensemble_verdicts)
    whole = [verdict for verdict in ensemble_verdicts if verdict.judge == ensemble.ENSEMBLE]
    seen = set(saved.fitted_on) & {verdict.dialogue_id for verdict in whole}
    counts: dict[str, Any] = {
        "dialogues": len({verdict.dialogue_id for verdict in whole}),
        "scores": len(whole),
        "null": sum(verdict.value is None for verdict in whole),
        "without_weights": ensemble.unweighted(saved, verdicts),
        "fitted_on": len(seen),
        "weights": saved.id,
        "data": saved.data,
    }
    if as_json:
        print_json(counts)
        return
    text = f"{counts['scores']} scores of {counts['dialogues']} dialogues, {counts['null']} null; written: {to}"
    console.print(text, soft_wrap=True)
    if counts["without_weights"]:
        console.print(f"not scored, no weights: {', '.join(counts['without_weights'])}")
    if seen:
        console.print(f"{len(seen)} of these dialogues the weights were fitted on")


@app.command("rank")
def rank(
    judgements: JudgementsOption,
    preferences: Annotated[
        InFiles, typer.Option("--preferences", help="Preference records (JSONL): which of two dialogues people found better.")
    ],
    dialogues: Annotated[
        InFiles, typer.Option("--dialogues", help="Dialogue records (JSONL): they say which supporter and topic. Repeatable.")
    ],
    rubric: Annotated[
        MaybeName,
        typer.Option(
            "--rubric", help="Only judgements on this rubric: a name, or the file of one of your own, to know its scales."
        ),
    ] = None,
    combine: Annotated[
        str,
        typer.Option(
            "--combine",
            help="How several aspects become one rank. mean: by their mean score. ranks: by the mean of the ranks on each.",
        ),
    ] = "mean",
    sample: Annotated[
        str,
        typer.Option(
            "--sample",
            help="What a topic is. card: a dialogue's card, else its profile, else its source_id, else itself. source: its "
            "source_id, which supporters who answered one text share.",
        ),
    ] = "card",
    versus: Annotated[str | None, typer.Option("--against", metavar="feel", help="The paper's tables 3 and 4 below.")] = None,
    as_json: JsonOption = False,
    out: FeelTablesOption = None,
) -> None:
    """Do metrics rank supporters as people do? Spearman, Kendall, RMSE and MAE of ranks, topic by topic (tables 3 and 4).

    Judgements are of any metric: `feel apply --ablation`, a judge, or `esc-eval metrics --judgements-out` (BLEU, ROUGE,
    METEOR). People's ranks are wins minus losses over all questions. Give one file of judgements after the other.
    """
    rule: Combine = choice("--combine", combine, get_args(Combine))
    kind: SampleBy = choice("--sample", sample, get_args(SampleBy))
    spoken, pairing = read_dialogues(dialogues), Pairing("system", kind)
    choices = read_preferences(preferences)
    verdicts = judgements_of(judgements)
    if rubric is not None:
        asked = known_rubric(rubric)
        verdicts = on_rubric(verdicts, asked.name if asked else rubric)
        if asked and rule == "mean":
            asked.one_scale("--combine mean (unlike --combine ranks)")
    rankings = compare_ranks(human_ranks(choices, spoken, pairing), metric_ranks(verdicts, spoken, pairing, rule))
    table = ranking_table(rankings, rule)
    table = against([table], versus)[0]
    deliver("feel_rank", {"combine": rule, "ranking": [ranking.record() for ranking in rankings]}, [table], out, as_json)


@app.command("compare-methods")
def compare_methods(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="A folder of `feel score` with --method bands --method tokens.")],
    human: Annotated[
        MaybeFiles, typer.Option("--gold", help="HumanScore records, for the correlation of each method with people.")
    ] = None,
    human_rubric: HumanRubricOption = None,
    maps: MapOption = None,
    annotator: AnnotatorOption = None,
    as_json: JsonOption = False,
    out: FeelTablesOption = None,
) -> None:
    """Rounds of band probabilities against one call for token probabilities, on the same dialogues: spread, cost, agreement.

    With --gold also how each goes with people, aspect by aspect.
    """
    config = shards.whole(run)
    judged = config.stage(Feel.name, Judged)
    if judged is None:
        raise UserError(f"{run}: not a folder of `esc-eval feel score`")
    verdicts = judgements_of([run / "judgements.jsonl"])
    tables = [*Feel.tables(ScoredRun(run, config, Tally([], verdicts, judged.rubric))), agreement_table(verdicts)]
    if not tables[1].rows:
        raise UserError(f"{run}: no judge was asked by both methods; run `feel score` with --method bands --method tokens")
    if human:
        scores = of_annotators(gold_scores_of(human), annotator or [])
        people = people_on(scores, human_rubric, maps, judged.rubric.dimensions)
        tables.append(people_table(ensemble.panel_of(verdicts), people))
    deliver("feel_methods", plain(tables), tables, out, as_json)
