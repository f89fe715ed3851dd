"""A command-line program: what every entry point has in common."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from core.paths import Verbs


def program(about: str, epilog: str | None = None) -> Verbs:
    """An app with -h, --version and completion, to which verbs are added."""
    settings = {"help_option_names": ["-h", "--help"]}
    app = Verbs(no_args_is_help=True, pretty_exceptions_enable=False, context_settings=settings, help=about, epilog=epilog)

    @app.callback()
    def options(
        shown: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
        ] = False,
    ) -> None:
        pass

    return app


def _version(shown: bool) -> None:
    if shown:
        try:
            typer.echo(f"esc-eval {version('esc-eval')}")
        except PackageNotFoundError:
            typer.echo("esc-eval, not installed: run from its sources")
        raise typer.Exit
