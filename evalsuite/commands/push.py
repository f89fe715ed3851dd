"""`esc-eval push` publishes adapters, data sets, results and reports on the Hugging Face hub."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError
from core.hub import publish
from core.options import console
from core.paths import IN_FOLDER
from data_prep.publication import dataset_to_publish
from evalsuite.commands.options import JudgedByOption, refuse
from evalsuite.report.exports import report_to_publish, results_to_publish
from serve.checkpoints.model_card import adapter_to_publish


def push(
    folder: Annotated[Path, typer.Argument(help="An adapter, an output folder of data_prep, or a run folder."), IN_FOLDER],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub, created if it does not exist.")],
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Publish a run's scores instead of its report: the data set on the hub (the cards) that was run.",
        ),
    ] = None,
    supporter: Annotated[str | None, typer.Option(help="Publish the scores of this model, if the run tests several.")] = None,
    judge: JudgedByOption = None,
    report: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Space with the report, linked as the source of the scores.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show every file and the card; send nothing.")] = False,
) -> None:
    """Publish a folder on the Hugging Face hub. What it becomes depends on its content:

    - a LoRA adapter: a model with its card (base model, data by hash, figures with their baselines, licence);
    - data: a data set for `load_dataset`, refused if the licence of one of its corpora forbids this or is not stated;
    - a run: its report as a static Space, which shows the dialogues; with --benchmark, its scores as evaluation results of the
    tested model (.eval_results/).

    Log in with `hf auth login`, or put a token into the variable HF_TOKEN. Examples:

    esc-eval push runs/quick my-name/my-report --dry-run

    esc-eval push runs/quick my-name/my-model --benchmark my-name/my-cards
    """
    run = (folder / "config.json").is_file()
    more = {"supporter": supporter, "judge": judge, "report": report}
    if not run:
        refuse(f"is for a run's scores; {folder} is no run", benchmark=benchmark, **more)
    if not benchmark:
        refuse(f"give --benchmark, too, to publish the scores of {folder}", **more)
    if (folder / "adapter_config.json").is_file():
        publication = adapter_to_publish(folder, repo)
    elif (folder / "manifest.json").is_file():
        publication = dataset_to_publish(folder, repo)
    elif not run:
        raise UserError(
            f"{folder}: holds no adapter (adapter_config.json), no data set (manifest.json) and no run (config.json): give the "
            "output folder of a training, a verb of data_prep or a run"
        )
    elif benchmark:
        publication = results_to_publish(folder, repo, benchmark, supporter, judge, report)
    else:
        publication = report_to_publish(folder, repo)
    say = partial(console.print, soft_wrap=True)
    say(f"{publication.kind} {publication.repo}: {publication.title}")
    for name in sorted(publication.files):
        say(f"  {publication.size(name):>12,}  {name}")
    if not dry_run:
        say(publish(publication, private))
        return
    for name in sorted(publication.files):
        content = publication.files[name]
        if isinstance(content, bytes) and name.endswith((".md", ".yaml")):
            say(f"\n--- {name}\n{content.decode()}")
    say("nothing was sent (--dry-run)")
