"""Options that bound what a run takes: time, calls, money, and how long a server is waited for."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Limits"
CallTimeoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Longest that one try of a call may take (30s, 5m). Default: 10m.", rich_help_panel=_PANEL
    ),
]
AttemptsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Tries of a call that fails for the moment. Default: 8.", rich_help_panel=_PANEL)
]
PatienceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long to wait for a server that refuses connections or answers only 429, 503 or 529; the console says so once "
        "a minute. Other errors are not waited for, nor are servers that this command launched. Default: 1h; 0: not at all.",
        rich_help_panel=_PANEL,
    ),
]
MaxTimeOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Ask nothing more after this time (4h) of this command. Calls under way are finished, records and report written; "
        "the same command goes on. Exit code 1.",
        rich_help_panel=_PANEL,
    ),
]
MaxCallsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="At most so many answers in the run folder, earlier tries included; then as above.",
        rich_help_panel=_PANEL,
    ),
]
MaxCostOption = Annotated[
    float | None,
    typer.Option(
        metavar="SUM",
        help="Ask nothing more once the run folder's answers have cost this much, by endpoint.price in the specs (of a million "
        "tokens); calls under way are finished and may go over it; then as above.",
        rich_help_panel=_PANEL,
    ),
]
