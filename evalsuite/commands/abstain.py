"""`esc-eval abstain`: where a judge should say nothing, and the dialogues that people should score instead."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.options import console
from core.paths import MaybeFile
from core.records import Dialogue, Judgement
from evalsuite.commands.options import InRun, JsonOption, JudgedByOption, PageOption, out_page
from evalsuite.commands.output import deliver_page
from evalsuite.report.abstention import abstention_sheet
from evalsuite.runs import shards
from evalsuite.runs.judgement_sets import VERDICTS, as_of, chosen_set
from evalsuite.statistics.agreement import gold_scores_of, paired
from evalsuite.statistics.conformal import cases_of, kept_table, sets_of_run, tried, tried_table
from evalsuite.statistics.judges import gold_of

SETS, QUEUE = "score_sets.jsonl", "people_dialogues.jsonl"


def abstain(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Run folder, scored, its judge measured on gold.")],
    coverage: Annotated[
        float, typer.Option("--coverage", min=0.5, max=0.99, help="How often a set is to hold the right score.")
    ] = 0.9,
    most: Annotated[
        int, typer.Option("--most", min=1, max=9, metavar="N", help="Scores that a set may hold for the judge to speak.")
    ] = 1,
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
    """Score sets from the judge's probabilities that hold the right score as often as stated, for each language and dimension.

    Where a set holds more than one score the judge says nothing. Shown: coverage on gold, how much is kept, and agreement on
    what is kept beside that on all. With --out a page with charts is written, OUT/score_sets.jsonl has the set of every verdict
    of the run, and OUT/people_dialogues.jsonl the dialogues with such a verdict, most of them first: `people create` takes that
    file. Example:

    esc-eval abstain runs/mine --coverage 0.9 --out runs/unsure

    esc-eval people create studies/unsure --dialogues runs/unsure/people_dialogues.jsonl --rubric esc_eval_human --raters 2
    """
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
    cases = cases_of(paired(verdicts, scores), rubric)
    rows = [*tried(cases, rubric, coverage, most)]
    sets = [*sets_of_run(cases, chosen.records(VERDICTS[0]), rubric, coverage, most)]
    tables = [tried_table(rows, rubric, coverage, most), *([kept_table(sets, rubric)] if sets else [])]
    synthetic = gold is None and config.synthetic_gold
    sheet = abstention_sheet(chosen.judge, cases, rows, tables, rubric, (coverage, most), config.plumbing, synthetic)
    printed = deliver_page("abstain", sheet, out, as_json)
    if out is None:
        return
    unsure = Counter(one.dialogue_id for one in sets if not one.kept)
    dialogues = {one.id: one for one in read_jsonl(run / "dialogues.jsonl", Dialogue, "dialogues")}
    queue = [dialogues[id] for id, _ in sorted(unsure.items(), key=lambda item: (-item[1], item[0]))]
    write_jsonl(out / SETS, sets)
    write_jsonl(out / QUEUE, queue)
    if printed:
        asked = len({one.dialogue_id for one in sets})
        console.print(f"{out / QUEUE}: {len(queue)} of {asked} dialogues, for `esc-eval people create`", soft_wrap=True)
