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
from data_prep.scores.human import gold_scores_of
from evalsuite.commands.options import InRun, JsonOption, JudgedByOption, PageOption, out_page
from evalsuite.commands.output import deliver_page
from evalsuite.report.abstention import accuracy_sheet
from evalsuite.runs import shards
from evalsuite.runs.judgement_sets import VERDICTS, as_of, chosen_set
from evalsuite.statistics.agreement import paired
from evalsuite.statistics.clusters import clusters_of
from evalsuite.statistics.judges import gold_of
from evalsuite.statistics.selective import by_language, cases_of, spoken_verdicts, threshold_for

SPOKEN, QUEUE = "spoken.jsonl", "people_dialogues.jsonl"


def abstain(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Run folder, scored, its judge measured on gold.")],
    accuracy: Annotated[
        float, typer.Option("--accuracy", min=0.5, max=0.99, help="How often spoken verdicts are to be right.")
    ] = 0.8,
    gold: Annotated[
        MaybeFile, typer.Option("--gold", help="People's scores to calibrate on. Default: the run's gold set.")
    ] = None,
    gold_judgements: Annotated[
        MaybeFile, typer.Option("--gold-judgements", help="The judge's verdicts on what --gold scores. Default: the run's.")
    ] = None,
    judge: JudgedByOption = None,
    as_json: JsonOption = False,
    out: Annotated[PageOption, out_page("abstain", SPOKEN, QUEUE)] = None,
) -> None:
    """The verdicts of a judge that are right as often as asked, by its probabilities; of all others it says nothing.

    Shown on gold: how much is kept, and how right the judge is when it speaks, with a lower bound that holds in 95 of 100 gold
    sets, beside all its verdicts. With --out a page with charts is written, OUT/spoken.jsonl has the verdicts of the run that
    are kept, and OUT/people_dialogues.jsonl the dialogues on which the judge says nothing, most of them first: `people create`
    takes that file. Example:

    esc-eval abstain runs/mine --accuracy 0.8 --out runs/unsure

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
    # People's scores of --gold may be of other dialogues: those are clusters of their own.
    records = (run / name for name in ("gold_dialogues.jsonl", "dialogues.jsonl"))
    dialogues = [one for path in records if path.exists() for one in read_jsonl(path, Dialogue, "dialogues")]
    clusters = clusters_of(dialogues)
    cases = cases_of(paired(verdicts, scores), rubric, clusters)
    given, synthetic = chosen.records(VERDICTS[0]), gold is None and config.synthetic_gold
    found = {language: threshold_for(every, accuracy) for language, every in by_language(cases).items()}
    spoken = [*spoken_verdicts(found, given, rubric)]
    sheet = accuracy_sheet(chosen.judge, cases, found, spoken, clusters, rubric, accuracy, config.plumbing, synthetic)
    printed = deliver_page("abstain", sheet, out, as_json)
    if out is None:
        return
    unsure = Counter(one.dialogue_id for one in spoken if one.value is None)
    by_id = {one.id: one for one in dialogues}
    queue = [by_id[id] for id, _ in sorted(unsure.items(), key=lambda item: (-item[1], item[0]))]
    write_jsonl(out / SPOKEN, spoken)
    write_jsonl(out / QUEUE, queue)
    if printed:
        asked = len({one.dialogue_id for one in spoken})
        console.print(f"{out / QUEUE}: {len(queue)} of {asked} dialogues, for `esc-eval people create`", soft_wrap=True)
