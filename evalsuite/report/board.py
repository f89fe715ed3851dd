"""A page over several runs: the leaderboard of all comparable supporters, and why the others are not comparable."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from core.specs import EMBEDDED_PREFIX
from core.tables import Table
from evalsuite.report import charts
from evalsuite.report.report import ReportContent
from evalsuite.runs.shared_cards import SharedCards, shared_cards
from evalsuite.statistics.comparison import RunRecords, agreements_of
from evalsuite.statistics.leaderboard import leaderboard, pairwise_differences
from evalsuite.statistics.summary import distributions

RUNS = "Runs"  # heading of the page
SETTINGS_SHOWN = 5  # the most of a run that is not comparable


def board(runs: Sequence[RunRecords], cluster: str | None = None) -> ReportContent:
    """The content of the page. Raises `UserError` if the runs share no card."""
    together = shared_cards(runs, cluster)
    tally, first = together.tally, together.runs[0].config
    scores_given = distributions(tally.verdicts, tally.rubric)
    return ReportContent(
        title="Leaderboard over " + (f"{len(together.runs)} runs" if len(together.runs) > 1 else "one run"),
        framework=first.get("simulate", {}).get("framework", "given dialogues"),
        mode=first["score"].get("mode", "native"),
        plumbing=any(f"'checkpoint': '{EMBEDDED_PREFIX}" in str(run.config) for run in together.runs),
        synthetic_gold=False,
        tally=tally,
        cards={},
        agreements=agreements_of(together.runs),
        tables=[*leaderboard(tally.boards, tally.rubric), *pairwise_differences(tally.boards), scores_given, *_runs(together)],
        charts=[*charts.distribution_charts(scores_given, tally.rubric)],
        generated=time.strftime("%Y-%m-%d %H:%M"),
        warnings=[*_warnings(together)],
    )


def _runs(together: SharedCards) -> Iterator[Table]:
    rows = [
        {"run": run.name, "folder": str(run.folder), "dialogues": len(run.dialogues)}
        | {"left out": together.left_out.get(run.name, 0)}
        for run in together.runs
    ]
    shared = ", ".join(f"{language} {count}" for language, count in together.shared.items())
    note = f"Cards (times trials) that all these runs have: {shared}. Only they count."
    yield Table.of("runs", "Runs on this board", rows, [note], RUNS)
    if together.apart:
        others = [{"run": run, "setting: first run's → its own": line} for run, of in together.apart.items() for line in of]
        yield Table.of("runs-apart", f"Runs that do not compare with {together.runs[0].name}", others, section=RUNS)


def _warnings(together: SharedCards) -> Iterator[str]:
    for run, lines in together.apart.items():
        more = f" and {len(lines) - SETTINGS_SHOWN} more" if len(lines) > SETTINGS_SHOWN else ""
        yield f"{run} is not on this board: it was made with other settings ({'; '.join(lines[:SETTINGS_SHOWN])}{more})."
    if left_out := {run: count for run, count in together.left_out.items() if count}:
        counts = ", ".join(f"{count:,} of {run}" for run, count in left_out.items())
        yield f"Left out are dialogues on cards that not all runs have: {counts}."
