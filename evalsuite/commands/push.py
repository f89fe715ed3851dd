"""`esc-eval push`: adapters, data sets, results and reports to the Hugging Face hub."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError
from core.hub import publish
from core.options import console
from core.paths import IN_FOLDER
from data_prep.publication import dataset_to_publish
from evalsuite.commands.options import JudgedByOption
from evalsuite.report.publication import report_to_publish, results_to_publish
from serve.checkpoints.model_card import adapter_to_publish


def push(
    folder: Annotated[Path, typer.Argument(help="An adapter, what a verb of data_prep made, or a run folder."), IN_FOLDER],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub. It is made where there is none.")],
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Publish a run's scores, not its report: the data set on the hub that they are of (the cards).",
        ),
    ] = None,
    supporter: Annotated[str | None, typer.Option(help="Whose scores, where the run tests several models.")] = None,
    judge: JudgedByOption = None,
    report: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Space with the report, as the scores' source.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="A repository that is made is private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show every file and the card; send nothing.")] = False,
) -> None:
    """Publish on the Hugging Face hub. What is in the folder decides what is made of it:

    - a LoRA adapter: a model with its card (base, data by hash, figures beside their baselines, licence);
    - data: a data set for `load_dataset`; it is refused where the licence of a corpus in it forbids it or states nothing;
    - a run: its report as a static Space, which shows the dialogues; with --benchmark its scores as evaluation results of the
    model that was tested (.eval_results/).

    The token is the hub's own: `hf auth login`, or the variable HF_TOKEN. --dry-run sends nothing. Examples:

    esc-eval push runs/quick my-name/my-report --dry-run

    esc-eval push runs/quick my-name/my-model --benchmark my-name/my-cards
    """
    of_scores = {"--benchmark": benchmark, "--supporter": supporter, "--judge": judge, "--report": report}
    given = [option for option, value in of_scores.items() if value]
    run = (folder / "config.json").is_file()
    if given and not (benchmark and run):
        needs = (
            f"give --benchmark, too, to publish the scores of {folder}" if run else f"is for a run's scores; {folder} is no run"
        )
        raise UserError(f"{given[0]}: {needs}")
    if (folder / "adapter_config.json").is_file():
        publication = adapter_to_publish(folder, repo)
    elif (folder / "manifest.json").is_file():
        publication = dataset_to_publish(folder, repo)
    elif not run:
        raise UserError(
            f"{folder}: holds no adapter (adapter_config.json), no data set (manifest.json) and no run (config.json): give the "
            "folder that a training, a verb of data_prep or a run wrote"
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
