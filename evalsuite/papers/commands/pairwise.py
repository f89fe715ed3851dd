"""`esc-eval paper pairwise`: which of two seekers, or of any two systems, is preferred, by a judge or by people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from core.errors import UserError
from core.files import first_object, write_jsonl
from core.options import SetOption, choice
from core.paths import MaybeFiles
from core.records import LOST
from core.tables import Table
from data_prep.scores.human import read_comparisons, read_dialogues, read_preferences
from evalsuite.commands.options import JsonOption, ModeOption, refuse, resolve
from evalsuite.commands.output import deliver, exit_if_lost, plain, talk
from evalsuite.papers.commands.role_play import (
    BESIDE,
    CardsOption,
    ConfigOption,
    OutOption,
    SeekersOption,
    read_seekers,
    write_seekers,
)
from evalsuite.papers.role_play.pairwise import TITLES, compare_seekers, given_answers, pairs_of, pairwise_tables
from evalsuite.papers.role_play.win_rates import Mode, Words, choices_of, win_rate_tables
from evalsuite.runner.engine import Runner
from evalsuite.runs.folder import open_run

WORDS = Words("pairwise", "system", "items")


def pairwise(
    choices: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CHOICES…",
            help="People's choices: Preference records (JSONL) between two --dialogues; or tables (CSV, JSONL) "
            "of item, a, b, annotator, and verdict (a, b, tie) or degree (from -n, b far better, to n, a far better); question "
            "and order (ab: a was shown first; ba) may be left out.",
        ),
        BESIDE,
    ] = None,
    dialogues: Annotated[
        list[Path] | None,
        typer.Option("--dialogues", help="The dialogues that Preference records are about (JSONL). Repeat for more."),
        BESIDE,
    ] = None,
    config: ConfigOption = None,
    seeker: SeekersOption = None,
    cards: CardsOption = None,
    profiles: Annotated[
        MaybeFiles, typer.Option("--profiles", help="Profiles beside those of EmoHarbor's run folders. Repeat.")
    ] = None,
    settings: SetOption = None,
    mode: ModeOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Figure 3 of ESC-Eval: which of two seekers on one card is closer to a human; figure 5 of EmoHarbor: on one profile.

    With --config and two or more --seeker a judge sees every pair in both orders: OUT/answers.jsonl (all answers),
    OUT/preferences.jsonl (the readable ones), and what they are about in OUT/pairwise_dialogues.jsonl and pairwise_cards.jsonl
    or pairwise_profiles.jsonl. With CHOICES, people's: of seekers, supporters or any systems, a table needs no dialogues.

    Per question: win rates of every system and pair with intervals over items, ties, mean degrees, whether the place that a
    system was shown in matters, and how far annotators agree. Natively answers that change with the order are a tie; in paper
    mode every answer is a vote. The tables are in OUT/tables.

    Example: esc-eval paper pairwise choices.csv
    """
    if choices:
        why = "with CHOICES nothing is asked"
        refuse(why, config=config, seeker=seeker, cards=cards, profiles=profiles, set=settings)
        tables = _given(choices, dialogues or [], choice("--mode", mode or "native", get_args(Mode)))
        deliver("pairwise", plain(tables), tables, out and out / "tables", as_json)
        return
    if config is None or not seeker or out is None:
        raise UserError("give --config, two or more --seeker NAME=PLACE and --out to ask a judge, or CHOICES that people made")
    refuse("is for CHOICES that people made", dialogues=dialogues)
    resolved = resolve(config, settings=settings, mode=mode, out=str(out))
    progress = talk(as_json)
    seekers = read_seekers(seeker, cards, resolved, progress, profiles)
    pairs, left_out = pairs_of(seekers)
    for name, count in sorted(left_out.items()):
        progress.print(f"{name}: {count} dialogues, unanswered or cut off by a failing server, are in no pair", soft_wrap=True)
    with open_run(out) as run, Runner(run, resolved, progress) as runner:
        answers = compare_seekers(runner, seekers, pairs)
        write_seekers(run.folder, "pairwise", seekers)
        write_jsonl(run.folder / "answers.jsonl", answers)
        readable = [preference for answer in answers if (preference := answer.preference()) is not None]
        write_jsonl(run.folder / "preferences.jsonl", readable)
        tables = pairwise_tables(answers, seekers.dialogues, resolved.config.mode)
        deliver("pairwise", plain(tables), tables, run.folder / "tables", as_json)
    exit_if_lost(sum(answer.failure in LOST for answer in answers), len(answers), "answers", run.failures())


def _given(paths: Sequence[Path], dialogues: Sequence[Path], mode: Mode) -> list[Table]:
    """The tables of people's choices: between dialogues, which tell the seekers, or between systems by name."""
    records = [path for path in paths if path.suffix == ".jsonl" and "dialogue_a" in first_object(path, "choices")]
    if not records:
        return [*win_rate_tables([*choices_of(read_comparisons(paths))], mode, WORDS, TITLES)]
    if len(records) < len(paths) or not dialogues:
        what = "the others are tables" if dialogues else "give the dialogues with --dialogues"
        raise UserError(f"{records[0]}: choices between two dialogues: {what}")
    return pairwise_tables(given_answers(read_preferences(paths)), read_dialogues(dialogues), mode)
