"""A verb as somebody types it, in this process."""

import typer
from typer.testing import CliRunner


def printed(app: typer.Typer, *words: object, code: int = 0) -> str:
    """Its standard output; all its output where it ends with another `code` than 0. Raises the `UserError` that ends it."""
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False, env={"COLUMNS": "250"})
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout
