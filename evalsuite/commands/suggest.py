"""`esc-eval people suggest`: which dialogues of a scored run people should rate next."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.files import write_jsonl
from core.options import SeedOption, console
from core.paths import Writes
from evalsuite.commands.options import InRun, JudgedByOption
from evalsuite.dialogues.floors import FLOORS
from evalsuite.runs.records import read_run
from evalsuite.statistics.leaderboard import boards_of
from evalsuite.statistics.suggestions import WEIGHTS, closest, suggest, uncertainty, write_weights
from evalsuite.statistics.summary import checked, supporter_of


def suggest_dialogues(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Scored run folder.")],
    budget: Annotated[int, typer.Option(min=1, help="How many dialogues people can rate.")],
    out: Annotated[Path, typer.Option(help="Folder for what was drawn."), Writes(("dialogues.jsonl", "weights.csv"))] = Path(
        "runs/suggested"
    ),
    supporter: Annotated[
        list[str] | None,
        typer.Option(
            "--supporter",
            help="A supporter to tell apart from the others named; repeat. Default: in each language the two that the judge "
            "tells apart the least.",
        ),
    ] = None,
    judge: JudgedByOption = None,
    seed: SeedOption = 0,
) -> None:
    """Draw the dialogues whose scores by people tell two supporters apart: often those of which the judge is unsure.

    Every supporter gets labels, and more the less sure the judge is of it. OUT/dialogues.jsonl is what `esc-eval people create
    --dialogues` takes. OUT/weights.csv beside it says with which chance each was drawn: the study keeps it, its export has it
    again, and `esc-eval leaderboard RUN --people EXPORT/scores.jsonl` weighs by it, so that the board stays unbiased. Score
    all of them: leaving some out changes the chances. Unsure is a judge whose probabilities or repeats are spread; of a judge
    that gave neither, all dialogues of a supporter have the same chance.

    Example: esc-eval people suggest runs/quick --budget 8 --out runs/suggested
    """
    records = read_run(run.name, run, judge)
    names = dict.fromkeys(map(supporter_of, records.dialogues))
    for name in supporter or []:
        if name not in names:
            raise UserError(f"--supporter {name}: not in {run}: {near(name, names)}")
    verdicts = [one for one in checked(records.judgements, records.rubric) if one.turn is None]
    if supporter:
        wanted = [one for one in records.dialogues if supporter_of(one) in supporter]
    else:
        pairs = closest(boards_of(records.dialogues, verdicts, records.rubric), FLOORS)
        wanted = [one for one in records.dialogues if (one.language, supporter_of(one)) in pairs]
    if not wanted:
        raise UserError(f"{run}: no verdict on a whole dialogue, so nothing says who is to be told apart: give --supporter")
    found = suggest(wanted, verdicts, records.rubric, budget, seed)
    write_jsonl(out / "dialogues.jsonl", [one.dialogue for one in found])
    write_weights(out / WEIGHTS, {one.dialogue.id: 1 / one.chance for one in found})
    known = len(uncertainty(verdicts, records.rubric).keys() & {one.id for one in wanted})
    console.print(f"{len(found)} of {len(wanted)} dialogues, {known} of these with the judge's own spread", soft_wrap=True)
    for (language, name), count in sorted(
        Counter((one.dialogue.language, supporter_of(one.dialogue)) for one in found).items()
    ):
        console.print(f"{language}, {name}: {count}", soft_wrap=True)
    console.print(
        f"next: esc-eval people create STUDY --dialogues {out / 'dialogues.jsonl'} --rubric NAME --raters 2", soft_wrap=True
    )
