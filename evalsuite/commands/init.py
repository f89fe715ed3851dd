"""`esc-eval init`: the files of a first run, to adapt."""

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
        Path, typer.Argument(metavar="DIR", help="Folder to write to; existing files are never replaced."), Writes(FILES)
    ],
) -> None:
    """Write the files of a first run: a config, four role cards, a rubric of four questions, and a supporter's system prompt.

    They run as they are, with any model behind an OpenAI-compatible URL; then adapt them. Example:

    esc-eval init mine

    esc-eval run --config mine/config.yaml --model my-model@http://127.0.0.1:8000/v1
    """
    if existing := [name for name in FILES if (folder / name).exists()]:
        raise UserError(f"{folder}: {', '.join(existing)}: exists already and is not replaced: choose another folder")
    for name in FILES:
        write_bytes(folder / name, read_bytes(EXAMPLE / name, "example"))
    console.print(f"written: {', '.join(FILES)}\nesc-eval run --config {folder}/config.yaml --model NAME@URL", soft_wrap=True)
