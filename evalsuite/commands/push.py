"""`esc-eval push`: adapters, data sets, results and reports to the Hugging Face hub."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from core.hub import Publication, publish
from core.options import console
from core.paths import IN_FOLDER
from core.verbs import Verbs
from data_prep.publication import dataset_to_publish
from evalsuite.commands.options import InRun, JudgedByOption
from evalsuite.report.publication import report_to_publish, results_to_publish
from serve.checkpoints.model_card import adapter_to_publish

app = Verbs(
    no_args_is_help=True,
    help="Publish on the Hugging Face hub: an adapter, a data set, a run's scores, its report.\n\n"
    "The token is the hub's own: `hf auth login`, or the variable HF_TOKEN. --dry-run shows every file and sends nothing.",
    epilog="Example: esc-eval push report runs/quick my-name/my-report --dry-run",
)

RepoArgument = Annotated[
    str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub. It is made where there is none.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show every file and the card; send nothing.")]
PrivateOption = Annotated[bool, typer.Option("--private", help="A repository that is made is private.")]


@app.command("adapter")
def adapter(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An adapter, such as OUT/adapter of a training."), IN_FOLDER],
    repo: RepoArgument,
    private: PrivateOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """A LoRA adapter with its card: base, data by hash, figures beside their baselines (`model-index`), licence.

    Where the training recorded no licence, the base's is taken, from its card on the hub or its bundled spec.
    """
    _push(adapter_to_publish(folder, repo), private, dry_run)


@app.command("data")
def data(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What a verb of data_prep made."), IN_FOLDER],
    repo: RepoArgument,
    private: PrivateOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """A data set with its card, for `load_dataset`: train, valid and test are splits, other records a config each.

    It is refused where the licence of a corpus in it forbids it or states nothing (configs/data/corpora.yaml), private or not.
    """
    _push(dataset_to_publish(folder, repo), private, dry_run)


@app.command("results")
def results(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Scored run folder.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The model's repository on the hub.")],
    benchmark: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="The data set on the hub that the results are of: the cards.")
    ],
    supporter: Annotated[str | None, typer.Option(help="Whose scores, where the run tests several models.")] = None,
    judge: JudgedByOption = None,
    report: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Space with the report, as the source.")] = None,
    private: PrivateOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """A run's scores as the hub's evaluation results (.eval_results/), with judge, n, interval and floors in the notes."""
    _push(results_to_publish(run, repo, benchmark, supporter, judge, report), private, dry_run)


@app.command("report")
def report(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Run folder with a report.")],
    repo: RepoArgument,
    private: PrivateOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """A run's report as a static Space. It shows the dialogues: the licence of the cards' corpus has to allow that."""
    _push(report_to_publish(run, repo), private, dry_run)


def _push(publication: Publication, private: bool, dry_run: bool) -> None:
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
