"""`init`: the files of a first run, to be changed into one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError
from core.files import CONFIGS, read_bytes, write_bytes
from core.options import console
from core.paths import Writes

EXAMPLE, FILES = CONFIGS / "init", ("config.yaml", "cards.csv", "rubric.yaml", "prompt.txt")


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder; files that are there are never replaced."), Writes(FILES)
    ],
) -> None:
    """Write the files of a first run: a config, four role cards, a rubric of four questions, and a supporter's system prompt.

    They run as they are, with any model behind an OpenAI-compatible URL; then change them into yours. Example:

    esc-eval init mine

    esc-eval run --config mine/config.yaml --model my-model@http://127.0.0.1:8000/v1
    """
    if there := [name for name in FILES if (folder / name).exists()]:
        raise UserError(f"{folder}: {', '.join(there)}: there already, and nothing is replaced: choose another folder")
    for name in FILES:
        write_bytes(folder / name, read_bytes(EXAMPLE / name, "example"))
    console.print(f"written: {', '.join(FILES)}\nesc-eval run --config {folder}/config.yaml --model NAME@URL", soft_wrap=True)
