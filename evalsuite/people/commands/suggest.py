"""`esc-eval people suggest`: draws dialogues of a scored run for people to rate next."""

from collections import Counter
from collections.abc import Sequence
from math import isclose
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.files import read_jsonl, write_jsonl
from core.options import SeedOption, choice, console
from core.paths import MaybeFiles, Writes
from core.records import HumanScore, Judgement
from core.tables import Estimate, fmt
from data_prep.scores.human import gold_scores_of
from data_prep.scores.weights import BEFORE, WEIGHTS, read_weights, weights_beside, write_weights
from evalsuite.commands.options import InRun, JudgedByOption
from evalsuite.dialogues.floors import FLOORS
from evalsuite.runs import shards
from evalsuite.runs.judgement_sets import chosen_set
from evalsuite.runs.records import read_run
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.suggestions import closest, spread_and_error, suggest, uncertainty
from evalsuite.statistics.summary import checked, supporter_of


def suggest_dialogues(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Scored run folder.")],
    budget: Annotated[int, typer.Option(min=1, help="How many dialogues people can rate.")],
    out: Annotated[
        Path, typer.Option(help="Folder for the dialogues drawn."), Writes(("dialogues.jsonl", "weights.csv", BEFORE))
    ] = Path("runs/suggested"),
    supporter: Annotated[
        list[str] | None,
        typer.Option(help="A supporter to compare; repeat for more. Default: the two that the judge distinguishes least."),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="spread|random", help="spread: dialogues with an unsure judge more often. random: evenly.")
    ] = "spread",
    people: Annotated[
        MaybeFiles,
        typer.Option(help="Existing scores by people, on the run's rubric: these are not drawn again. Repeat for more."),
    ] = None,
    judge: JudgedByOption = None,
    seed: SeedOption = 0,
) -> None:
    """Draw the dialogues that people should score to compare two supporters, preferring those of which the judge is unsure.

    Give OUT/dialogues.jsonl to `esc-eval people create --dialogues`. OUT/weights.csv next to it has the probability of each
    draw: the study keeps and exports it, and `leaderboard RUN --people EXPORT/scores.jsonl` weights by it, so the board stays
    unbiased if all of them are scored. A judge is unsure if its probabilities or repeats are spread. If the spread does not
    predict its error on the gold set and --people, `--by random` is better, and a warning says so.

    With --people a further round is drawn from dialogues that neither they nor the gold set scored. If it changes the weights
    of the first draw, OUT/weights_before.csv has the new ones: put it in place of the weights.csv next to the scores.

    Example: esc-eval people suggest runs/quick --budget 8 --out runs/suggested
    """
    evenly = choice("--by", by, ("spread", "random")) == "random"
    records = read_run(run.name, run, judge)
    names = dict.fromkeys(map(supporter_of, records.dialogues))
    for name in supporter or []:
        if name not in names:
            raise UserError(f"--supporter {name}: not in {run}: {near(name, names)}")
    verdicts = [verdict for verdict in checked(records.judgements, records.rubric) if verdict.turn is None]
    if supporter:
        candidates = [dialogue for dialogue in records.dialogues if supporter_of(dialogue) in supporter]
    else:
        floors = {*FLOORS, *records.floors}
        pairs = closest(Tally(records.dialogues, verdicts, records.rubric, floors).boards, floors)
        candidates = [dialogue for dialogue in records.dialogues if (dialogue.language, supporter_of(dialogue)) in pairs]
    if not candidates:
        raise UserError(f"{run}: no verdict on a whole dialogue to choose the supporters by: give --supporter")
    labelled_verdicts, scores = _labelled(records, verdicts, judge, people or [])
    association = None if evenly else spread_and_error(labelled_verdicts, scores, records.rubric)
    old = read_weights(weights_beside(people or []))
    labelled = {score.dialogue_id: old.get(score.dialogue_id, 1.0) for score in scores}
    draws, before = suggest(candidates, verdicts, records.rubric, budget, seed, evenly, labelled)
    write_jsonl(out / "dialogues.jsonl", [draw.dialogue for draw in draws])
    weights = {draw.dialogue.id: draw.weight for draw in draws}
    write_weights(out / WEIGHTS, weights)
    kept = {id: weight for id, weight in (old | before).items() if id not in weights}
    changed = any(not isclose(weight, kept.get(id, 0)) for id, weight in (old | {id: labelled[id] for id in before}).items())
    if changed:
        write_weights(out / BEFORE, kept)
    else:
        (out / BEFORE).unlink(missing_ok=True)
    with_spread = len(uncertainty(verdicts, records.rubric).keys() & {dialogue.id for dialogue in candidates} - before.keys())
    scored = f" ({len(before)} more are scored)" if before else ""
    basis = "a random choice" if evenly else f"{with_spread} of these with the judge's own spread"
    console.print(f"{len(draws)} of {len(candidates) - len(before)} dialogues{scored}, {basis}", soft_wrap=True)
    if association is not None and with_spread:
        console.print(_insight(association), soft_wrap=True)
    counts = Counter((draw.dialogue.language, supporter_of(draw.dialogue)) for draw in draws)
    for (language, name), count in sorted(counts.items()):
        console.print(f"{language}, {name}: {count}", soft_wrap=True)
    if changed:
        console.print(f"replace {WEIGHTS} next to the earlier scores with {out / BEFORE}", soft_wrap=True)
    console.print(
        f"next: esc-eval people create STUDY --dialogues {out / 'dialogues.jsonl'} --rubric NAME --raters 2", soft_wrap=True
    )


def _labelled(
    records: RunRecords, verdicts: Sequence[Judgement], judge: str | None, people: Sequence[Path]
) -> tuple[list[Judgement], list[HumanScore]]:
    """The judge's verdicts on dialogues that people or the gold set scored, and these scores."""
    folder = chosen_set(records.folder, shards.whole(records.folder), judge).folder
    scores = gold_scores_of(people)
    if others := {score.rubric for score in scores} - {records.rubric.name}:
        raise UserError(f"--people: scores on {', '.join(sorted(others))}, but the run's are on {records.rubric.name}")
    labelled = {score.dialogue_id for score in scores}
    judged = [verdict for verdict in verdicts if verdict.dialogue_id in labelled]
    gold = records.folder / "gold_scores.jsonl", folder / "gold_judgements.jsonl"
    if gold[0].exists():
        scores += gold_scores_of([gold[0]])
    if gold[1].exists():
        judged += read_jsonl(gold[1], Judgement, "judgements")
    whole = [score for score in scores if score.turn is None and score.dimension in records.rubric.dimensions]
    return [verdict for verdict in judged if verdict.turn is None], whole


def _insight(association: Estimate) -> str:
    """Whether the judge's spread predicts its error, in a sentence."""
    if association.mean is None or association.low is None:
        return (
            f"Whether the judge's spread predicts its error is unknown ({association.n} labelled dialogues). If it does not, "
            "a random choice is better (--by random)"
        )
    figures = f"Spearman's correlation {fmt(association, 2)}, over labelled dialogues"
    if association.low > 0:
        return f"The judge's spread predicts its error: {figures}"
    return (
        f"warning: there is no evidence that the judge's spread predicts its error: {figures}. A draw by it then needs more "
        "labels than a random choice: use --by random"
    )
