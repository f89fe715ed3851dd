"""`esc-eval pairwise`: people's choices between two systems, from a table."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from core.options import choice
from core.paths import InFiles
from data_prep.scores.human import read_comparisons
from evalsuite.commands.options import JsonOption, TablesOption, out_tables
from evalsuite.commands.output import deliver, plain
from evalsuite.role_play.pairwise import TITLES
from evalsuite.statistics.win_rates import Mode, Words, choices_of, win_rate_tables

WORDS = Words("pairwise", "system", "items")


def pairwise(
    table: Annotated[
        InFiles,
        typer.Argument(
            help="Tables, CSV or JSONL: item, a, b, annotator, and verdict (a, b, tie) or degree (from -n, b far better, to n, "
            "a far better); question and order (ab: a was shown first; ba) may be left out."
        ),
    ],
    mode: Annotated[
        str, typer.Option(help="Who saw both orders. native: answers that differ are a tie. paper: every answer is a vote.")
    ] = "native",
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("pairwise")] = None,
) -> None:
    """Which of two systems people prefer, supporters or simulators, from a table alone: no cards, no dialogues.

    Per question: win rates of every system and pair with intervals over items, ties, mean degrees, whether the place that a
    system was shown in matters, and how far annotators agree.
    """
    choices = [*choices_of(read_comparisons(table))]
    tables = [*win_rate_tables(choices, choice("--mode", mode, get_args(Mode)), WORDS, TITLES)]
    deliver("pairwise", plain(tables), tables, out, as_json)
