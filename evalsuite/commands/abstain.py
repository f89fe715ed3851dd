"""`esc-eval abstain`: where a judge should say nothing, and the dialogues that people should score instead."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated

import typer

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.options import console
from core.paths import MaybeFile
from core.records import Dialogue, Judgement
from evalsuite.commands.options import InRun, JsonOption, JudgedByOption, PageOption, out_page
from evalsuite.commands.output import deliver_page
from evalsuite.report.abstention import accuracy_sheet, coverage_sheet
from evalsuite.runs import shards
from evalsuite.runs.judgement_sets import VERDICTS, as_of, chosen_set
from evalsuite.statistics.agreement import gold_scores_of, paired
from evalsuite.statistics.clusters import clusters_of
from evalsuite.statistics.conformal import cases_of, kept_table, sets_of_run, tried, tried_table
from evalsuite.statistics.judges import gold_of
from evalsuite.statistics.selective import by_language, spoken_sets, threshold_for

SETS, QUEUE = "score_sets.jsonl", "people_dialogues.jsonl"


def abstain(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Run folder, scored, its judge measured on gold.")],
    accuracy: Annotated[
        float | None,
        typer.Option(
            "--accuracy",
            min=0.5,
            max=0.99,
            help="How often spoken verdicts are to be right. Default, without --coverage: 0.8.",
        ),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option("--coverage", min=0.5, max=0.99, help="Instead: how often a set is to hold the right score.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--most",
            min=1,
            max=9,
            metavar="N",
            help="With --coverage: how many scores a set may hold for the judge to speak.",
        ),
    ] = None,
    gold: Annotated[
        MaybeFile, typer.Option("--gold", help="People's scores to calibrate on. Default: the run's gold set.")
    ] = None,
    gold_judgements: Annotated[
        MaybeFile, typer.Option("--gold-judgements", help="The judge's verdicts on what --gold scores. Default: the run's.")
    ] = None,
    judge: JudgedByOption = None,
    as_json: JsonOption = False,
    out: Annotated[PageOption, out_page("abstain", SETS, QUEUE)] = None,
) -> None:
    """The verdicts of a judge that are right as often as asked, by its probabilities; of all others it says nothing.

    Shown on gold: how much is kept, and how right the judge is when it speaks, with a lower bound that holds in 95 of 100 gold
    sets, beside all its verdicts. With --coverage, for each language and dimension, sets of scores that hold the right one as
    often as stated; where a set holds more than one score the judge says nothing. With --out a page with charts is written,
    OUT/score_sets.jsonl has what every verdict of the run leaves possible, and OUT/people_dialogues.jsonl the dialogues on
    which the judge says nothing, most of them first: `people create` takes that file. Example:

    esc-eval abstain runs/mine --accuracy 0.8 --out runs/unsure

    esc-eval people create studies/unsure --dialogues runs/unsure/people_dialogues.jsonl --rubric esc_eval_human --raters 2
    """
    if accuracy is not None and coverage is not None:
        raise UserError("--accuracy and --coverage are two promises: give one of them")
    if most is not None and coverage is None:
        raise UserError("--most: how many scores a set may hold, for --coverage")
    if (gold is None) != (gold_judgements is None):
        raise UserError(
            "--gold and --gold-judgements go together: people's scores, and the judge's verdicts on the same dialogues"
        )
    config = shards.whole(run)
    chosen = chosen_set(run, config, judge)
    scored = as_of(config, chosen).scored
    assert scored is not None, "`chosen_set` found it"
    rubric = scored.rubric
    places = gold or run / "gold_scores.jsonl", gold_judgements or chosen.folder / "gold_judgements.jsonl"
    for path in places:
        if not path.exists():
            raise UserError(f"{path}: no such file: run with a gold set (gold: in the config), or give --gold")
    verdicts = [one for one in read_jsonl(places[1], Judgement, "judgements") if one.turn is None]
    scores = gold_of(verdicts, gold_scores_of([places[0]]))
    # People's scores of --gold may be of other dialogues: those are clusters of their own.
    records = (run / name for name in ("gold_dialogues.jsonl", "dialogues.jsonl"))
    dialogues = [one for path in records if path.exists() for one in read_jsonl(path, Dialogue, "dialogues")]
    clusters = clusters_of(dialogues)
    cases = cases_of(paired(verdicts, scores), rubric, clusters)
    given, synthetic = chosen.records(VERDICTS[0]), gold is None and config.synthetic_gold
    if coverage is None:
        wanted = 0.8 if accuracy is None else accuracy
        found = {language: threshold_for(every, wanted) for language, every in by_language(cases).items()}
        sets = [*spoken_sets(found, given, rubric)]
        sheet = accuracy_sheet(chosen.judge, cases, found, rubric, wanted, config.plumbing, synthetic)
    else:
        few = most or 1
        rows, sets = [*tried(cases, rubric, coverage, few)], [*sets_of_run(cases, given, rubric, coverage, few)]
        tables = [tried_table(rows, rubric, coverage, few)]
        sheet = coverage_sheet(chosen.judge, cases, rows, tables, rubric, (coverage, few), config.plumbing, synthetic)
    if sets:
        sheet = replace(sheet, tables=[*sheet.tables, kept_table(sets, rubric, clusters)])
    printed = deliver_page("abstain", sheet, out, as_json)
    if out is None:
        return
    unsure = Counter(one.dialogue_id for one in sets if not one.kept)
    by_id = {one.id: one for one in dialogues}
    queue = [by_id[id] for id, _ in sorted(unsure.items(), key=lambda item: (-item[1], item[0]))]
    write_jsonl(out / SETS, sets)
    write_jsonl(out / QUEUE, queue)
    if printed:
        asked = len({one.dialogue_id for one in sets})
        console.print(f"{out / QUEUE}: {len(queue)} of {asked} dialogues, for `esc-eval people create`", soft_wrap=True)
