"""`python -m train VERB`: the steps before and after training. Training itself: `accelerate launch train/esc_….py`."""

from core.starting import interrupted  # noqa: F401 - before the slow imports

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, need_modules, run_cli
from core.paths import IN_FILE, IN_MODEL, Reads, Writes
from core.verbs import program
from train.plan import plan
from train.recipes import UNTRAINED, read_recipe

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")


def test(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="Recipe (configs/train) with task, base and precision. Overrides may follow."), IN_FILE
    ],
    out: Annotated[
        Path,
        typer.Option(help="Folder for judgements-NAME.jsonl and timing.json, or for compare.json, compare.md and lines.jsonl."),
        Writes(("judgements-*.jsonl", "timing.json", "compare.json", "compare.md", "lines.jsonl")),
    ],
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FOLDER",
            help="An adapter of that base. A ranker may have several (NAME@SEED for seeds), or none to test the base alone.",
        ),
        Reads("folder", IN_MODEL.files, labelled=True),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Held-out data. Default: test.jsonl beside a ranker's train_file, the whole valid_file of a seeker."),
        IN_FILE,
    ] = None,
) -> None:
    """Measure trained adapters on held-out data, without a server, according to the recipe's task.

    A ranker judges its test split as under constrained serving; `esc-eval agree --split` makes the table. A seeker is compared
    with its base: perplexity of real seeker lines, and the next lines of both. Examples:

    python -m train test configs/train/esc_rank_embedded.yaml --adapter runs/train/rank-0/adapter --out runs/train/rank_test

    python -m train test configs/train/esc_role_embedded.yaml --adapter runs/role/adapter --out runs/role/compare
    """
    adapters = named_adapters(adapter or [])
    need_modules("torch", "transformers", "trl", "peft", purpose="running a model without a server")
    settings = read_recipe(recipe, context.args)
    if settings.task == "rank":
        from train.compare import judge_split

        split = data or Path(settings.data.train_file).with_name("test.jsonl")
        judge_split(settings, split, adapters, not adapters, out)
    elif settings.task == "role":
        from train.compare import compare_seeker

        if len(adapters) != 1:
            raise UserError(f"--adapter: one seeker is compared with its base: give one, not {len(adapters)}")
        [folder] = adapters.values()
        compare_seeker(settings, data or Path(settings.data.valid_file), folder, out)
    else:
        raise UserError(f"{recipe}: task: {settings.task}: only rankers and seekers are tested here; use `esc-eval run`")


def named_adapters(options: Sequence[str]) -> dict[str, Path]:
    """{name: folder} from `NAME=FOLDER` or `FOLDER`; a folder called adapter… gets the name of its parent folder."""
    adapters: dict[str, Path] = {}
    for option in options:
        name, equals, place = option.partition("=")
        folder = Path(place)
        if not equals or "/" in name:
            folder = Path(option)
            name = folder.absolute().parent.name if folder.name.startswith("adapter") else folder.name
        if not _NAME.fullmatch(name):
            raise UserError(f"--adapter {option}: {name!r} cannot be part of a file's name; write NAME=FOLDER")
        if name in adapters or name == UNTRAINED:
            raise UserError(f"--adapter {option}: the name {name} is taken; write NAME=FOLDER with another")
        adapters[name] = folder
    return adapters


app = program(
    "Before and after training. Training itself: accelerate launch train/esc_role.py (or esc_rank.py) --config RECIPE."
)
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}  # --learning_rate 1e-4 and the like go to the recipe
app.command("plan", context_settings=OVERRIDES)(plan)
app.command("test", context_settings=OVERRIDES)(test)


def main() -> None:
    """Entry point of the console script."""
    run_cli(app)


if __name__ == "__main__":
    main()
