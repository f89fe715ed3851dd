"""`respond` has supporters answer at every turn of given dialogues."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from data_prep.records import Dialogue
from data_prep.scores.human import read_dialogues
from data_prep.tables import to_console
from evalsuite.commands.metrics import write_figures
from evalsuite.config import Resolved, identity, load_config, unspoken
from evalsuite.respond import Response, answered
from evalsuite.respond import respond as ask
from evalsuite.runs import Run, open_run
from evalsuite.text_figures import figures, metric_tables
from evalsuite.text_metrics import measure, need_metrics
from serve.batch import Batch
from serve.errors import UserError, near
from serve.files import digest, write_jsonl

console = Console()


def respond(
    config: Annotated[
        Path,
        typer.Option(
            "--config",
            help="What to run; see configs/eval. Its seeker, judge and cards are not used; options below override it.",
        ),
    ],
    dialogues: Annotated[
        list[Path], typer.Option("--dialogues", help="Dialogue records (JSONL) to answer in. Repeat for more.")
    ],
    supporter: Annotated[
        list[str] | None,
        typer.Option(
            "--supporter", help="Model that answers: a name in configs/models, a spec file, or with --base-url any served name."
        ),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="OpenAI-compatible URL at which the supporter answers.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the key for --base-url.")] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option("--endpoint", metavar="NAME=URL", help="A server that is already up for a supporter.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="At most this many dialogues a language, the first ones.")
    ] = None,
    language: Annotated[str | None, typer.Option("--language", help="en or zh; without it, those of the config.")] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", help="paper: greedy, at most 512 tokens. native: the model's own sampling.")
    ] = None,
    metrics: Annotated[bool, typer.Option(help="Also measure the replies against the real ones (see `metrics`).")] = True,
    out: Annotated[str | None, typer.Option("--out", help="Run folder. The same folder and command resume.")] = None,
) -> None:
    """Have a supporter answer wherever the supporter of given dialogues spoke, on the real history: OUT/responses.jsonl.

    What it said before is not in that history: every reply stands alone (figure 1 of ESC-Eval, left). The real reply is kept as
    reference, and BLEU, ROUGE-L, METEOR and Distinct are written to OUT/metrics.json. Refused, empty and overflowing replies
    are recorded as such.

    Example: esc-eval respond --config configs/eval/esc_eval.yaml --dialogues esconv/dialogues.jsonl --language en
    --supporter my-model --base-url http://127.0.0.1:8000/v1 --out runs/replies
    """
    overrides: dict[str, Any] = {
        "supporters": supporter,
        "limit": limit,
        "languages": [language] if language else None,
        "mode": mode,
        "out": out,
    }
    loaded = load_config(config, overrides)
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {base_url!r}: expected http://HOST:PORT/v1")
    if base_url is not None and len(loaded.supporters) != 1:
        raise UserError("--base-url is the address of one supporter: name it with one --supporter")
    resolved = Resolved(loaded, base_url, api_key_env)
    urls = loaded.endpoints | _endpoints(endpoint or [], [spec.name for spec in resolved.supporters])
    given = _wanted(resolved, dialogues)
    if metrics:
        need_metrics({dialogue.language for dialogue in given})  # before anything is asked
    with open_run(Path(loaded.out)) as run:
        responses = _ask_all(run, resolved, urls, given)
        if metrics and any(response.termination != "infrastructure" for response in responses):
            found = figures(measure(responses))
            tables = metric_tables(found, responses)
            write_figures(run.folder, found, tables)
            for table in tables:
                to_console(table, console)
    if lost := sum(response.termination == "infrastructure" for response in responses):
        print(
            f"error: {lost} of {len(responses)} replies are missing because a server was lost. "
            "Run the same command again to ask only for those",
            file=sys.stderr,
        )
        sys.exit(1)


def _endpoints(pairs: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, _, url = pair.partition("=")
        if not url.startswith(("http://", "https://")):
            raise UserError(f"--endpoint {pair!r}: expected NAME=http://HOST:PORT/v1")
        if name not in known:
            raise UserError(f"endpoint for {name!r}: no such supporter in this run: {near(name, known)}")
        found[name] = url
    return found


def _wanted(resolved: Resolved, paths: Sequence[Path]) -> list[Dialogue]:
    """The dialogues in the config's languages, at most `limit` of each, in file order."""
    count: Counter[str] = Counter()
    wanted = []
    for dialogue in read_dialogues(paths):
        limit = resolved.config.limit
        if dialogue.language in resolved.config.languages and (limit is None or count[dialogue.language] < limit):
            count[dialogue.language] += 1
            wanted.append(dialogue)
    where = ", ".join(map(str, paths))
    if not wanted:
        raise UserError(f"{where}: no dialogue in {', '.join(resolved.config.languages)}")
    if not any(answered(dialogue.turns) for dialogue in wanted):
        raise UserError(f"{where}: in no dialogue does a supporter answer a seeker: there is nothing to answer")
    return wanted


def _ask_all(run: Run, resolved: Resolved, urls: dict[str, str], dialogues: Sequence[Dialogue]) -> list[Response]:
    """Claim the folder, ask one supporter after the other, write responses.jsonl."""
    run.claim(
        "respond",
        {
            "mode": resolved.config.mode,
            "dialogues": {"count": len(dialogues), "sha256": digest([d.model_dump(mode="json") for d in dialogues])},
            "supporters": [identity(spec) for spec in resolved.supporters],
        },
    )
    responses: list[Response] = []
    with run.timed("respond"):
        for spec in resolved.supporters:
            if left_out := unspoken(spec, resolved.config.languages):
                console.print(f"{spec.name} does not speak {', '.join(left_out)}: those dialogues are left out for it")
            spoken = [dialogue for dialogue in dialogues if dialogue.language in spec.languages]
            url = urls.get(spec.name)
            with Batch(spec, run.store.path, console, url, resolved.config.concurrency) as batch:
                responses += ask(batch, spoken)
    write_jsonl(run.folder / "responses.jsonl", responses)
    return responses
