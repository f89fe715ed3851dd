"""`esc-eval power`: where the variance of a score comes from, and how many cards, trials and judges a difference needs."""

from typing import Annotated

import typer

from core.errors import UserError
from evalsuite.commands.options import JsonOption, MaybeRuns, PageOption, out_page
from evalsuite.commands.output import deliver_page
from evalsuite.papers.reported.tables import load_reported
from evalsuite.runs import shards
from evalsuite.runs.judgement_sets import sets_of
from evalsuite.runs.records import read_run
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.components import components, spreads
from evalsuite.trust.power import PlannedStudy, observations_of, paper_tables, power_sheet

_CARDS = {"EN": "English", "ZH": "Chinese"}


def power(
    runs: Annotated[
        MaybeRuns, typer.Argument(metavar="RUN…", help="Scored run folders; give several to include several seekers.")
    ] = None,
    difference: Annotated[
        float, typer.Option("--difference", min=0.01, max=100, help="Difference to detect, in points on 0-100.")
    ] = 3,
    share: Annotated[float, typer.Option("--power", min=0.5, max=0.999, help="Probability of detecting it (0-1).")] = 0.8,
    against: Annotated[
        str | None, typer.Option("--against", metavar="paper", help="paper: plan from ESC-Eval's table 2.")
    ] = None,
    as_json: JsonOption = False,
    out: Annotated[PageOption, out_page("power")] = None,
) -> None:
    """Show how much of a score's variance is due to supporter, card, seeker, draw and judge, and how many cards detect a
    difference.

    A run with `--set trials=2` or more separates the draw from the card, several judges (`run --judge`) separate the judge,
    several runs the seeker. Every pair of models is planned from its own spread (a single model with each floor).

    Example: esc-eval power runs/mine --difference 3
    """
    if against not in (None, "paper"):
        raise UserError(f"--against {against}: the only choice is paper (table 2 of ESC-Eval)")
    if not runs and against is None:
        raise UserError("nothing to plan from: give scored run folders, or --against paper")
    records: list[RunRecords] = []
    for folder in runs or []:  # one record for each judge
        judges = [judged.judge for judged in sets_of(folder, shards.whole(folder))]
        records += [read_run(folder.name, folder, judge) for judge in judges] or [read_run(folder.name, folder)]
    if rubrics := {record.rubric.name for record in records} - {records[0].rubric.name} if records else set():
        raise UserError(f"{records[0].folder} is scored on {records[0].rubric.name}, others on {', '.join(sorted(rubrics))}")
    floors = {name for record in records for name in record.floors}
    planned = []
    for language, observations in observations_of(records).items():
        if len({observation.supporter for observation in observations}) < 2:
            raise UserError(f"{language}: a single supporter has no difference to show: give a run of two or more")
        pairs = spreads(observations, floors)
        planned.append(PlannedStudy(language, components(observations), pairs, difference, max(len(pairs), 1), share))
    if records and not planned:
        raise UserError("no dialogue of these runs has a readable verdict on every dimension")
    more = [*paper_tables(*_table2(), share)] if against else []
    plumbing = any(shards.whole(run).plumbing for run in runs or [])
    deliver_page("power", power_sheet(planned, more, [str(run) for run in runs or []], plumbing), out, as_json)


def _table2() -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """The averages of table 2 by language and supporter, and the numbers of their cards (table 6)."""
    reported = load_reported("esc_eval")
    averages: dict[str, dict[str, float]] = {}
    for cell in reported.select("2", {"column": "Average"}, "table 2"):
        assert cell.value is not None, "the averages of table 2 are whole"
        averages.setdefault(cell.at["Language"], {})[cell.at["Model"]] = float(cell.value)
    cards = {}
    for language in averages:
        (cell,) = reported.select("6", {"Language": _CARDS[language], "column": "High"}, "table 6")
        assert cell.value is not None, "table 6 is whole"
        cards[language] = int(cell.value)
    return averages, cards
