"""`respond` has supporters answer at every turn of given dialogues; `metrics` measures replies against reference replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UserError, near
from core.files import write_jsonl
from core.options import console
from core.paths import InFile, InFiles, MaybeFiles, MaybeOutFile
from core.records import Dialogue
from data_prep.responses import Response, answered, paired, read_responses
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import (
    EndpointOption,
    JsonOption,
    LanguageOption,
    MaybeResumedOption,
    SupporterOption,
    TablesOption,
    out_tables,
    resolve,
)
from evalsuite.commands.output import deliver, exit_if_lost
from evalsuite.dialogues.hold import respond as ask
from evalsuite.runs.folder import Run, open_run
from evalsuite.runs.identity import hashed, identity
from evalsuite.runs.resolved import Resolved, unspoken
from evalsuite.statistics.text_figures import figures, figures_json, metric_tables
from evalsuite.statistics.text_metrics import judgements, measure, need_metrics
from serve.batch import Batch


def respond(
    config: Annotated[
        InFile,
        typer.Option(
            "--config",
            help="What to run; see configs/eval. Its seeker, judge and cards are not used; options below override it.",
        ),
    ],
    dialogues: Annotated[InFiles, typer.Option("--dialogues", help="Dialogue records (JSONL) to answer in. Repeat for more.")],
    supporter: SupporterOption = None,
    endpoint: EndpointOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="At most this many dialogues a language, the first ones.")
    ] = None,
    language: LanguageOption = None,
    mode: Annotated[
        str | None, typer.Option("--mode", help="paper: drawn as the checkpoint says, 512 tokens. native: as the spec says.")
    ] = None,
    metrics: Annotated[bool, typer.Option(help="Also measure the replies against the real ones (see `metrics`).")] = True,
    out: Annotated[MaybeResumedOption, out_tables("metrics", "responses.jsonl")] = None,
) -> None:
    """Have a supporter answer wherever the supporter of given dialogues spoke, on the real history: OUT/responses.jsonl.

    What it said before is not in that history: every reply stands alone (figure 1 of ESC-Eval, left). The real reply is kept as
    reference, and BLEU, ROUGE, METEOR and Distinct are written to OUT/metrics.json. Refused, empty and overflowing replies
    are recorded as such.

    Example: esc-eval respond --config configs/eval/esc_eval.yaml --dialogues esconv/dialogues.jsonl --language en
    --supporter my-model@http://127.0.0.1:8000/v1 --out runs/replies
    """
    overrides: dict[str, Any] = {
        "supporters": supporter,
        "floors": False,
        "limit": limit,
        "language": language,
        "mode": mode,
        "out": out,
    }
    resolved = resolve(config, endpoint, **overrides)
    if floors := [spec.name for spec in resolved.supporters if spec.floor]:
        raise UserError(f"--supporter {floors[0]}: a floor has no replies of its own to measure: name models")
    urls, names = resolved.config.endpoints, [spec.name for spec in resolved.supporters]
    for name in (pair.partition("=")[0] for pair in endpoint or []):
        if name not in names:
            raise UserError(f"endpoint for {name!r}: no such supporter in this run: {near(name, names)}")
    wanted = _wanted(resolved, dialogues)
    if metrics:
        need_metrics({dialogue.language for dialogue in wanted})  # before anything is asked
    with open_run(resolved.out) as run:
        responses = _ask_all(run, resolved, urls, wanted)
        if metrics and not all(response.lost for response in responses):
            text_figures = [*figures(measure(responses))]
            tables = [*metric_tables(text_figures, responses)]
            deliver("metrics", figures_json(text_figures), tables, run.folder, as_json=False)
    exit_if_lost(sum(response.lost for response in responses), len(responses), "replies")


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
            "dialogues": hashed(dialogues),
            "supporters": [identity(spec) for spec in resolved.supporters],
        },
    )
    run.settle()
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


def metrics(
    responses: Annotated[
        MaybeFiles, typer.Option("--responses", help="Replies (JSONL) as `respond` writes them. Repeat for more supporters.")
    ] = None,
    dialogues: Annotated[
        MaybeFiles, typer.Option("--dialogues", help="Instead: whole dialogues (JSONL), compared with --references.")
    ] = None,
    references: Annotated[
        MaybeFiles,
        typer.Option(
            "--references",
            help="Reference dialogues (JSONL) of the same id, else of the same card or source id: a supporter's k-th reply is "
            "compared with the reference's k-th.",
        ),
    ] = None,
    as_json: JsonOption = False,
    out: Annotated[TablesOption, out_tables("metrics")] = None,
    judgements_out: Annotated[
        MaybeOutFile,
        typer.Option(
            "--judgements-out", help="JSONL file for every reply's own values, which `agree --correlate` takes as judgements."
        ),
    ] = None,
) -> None:
    """BLEU-1/2/4, ROUGE-1/2/L, METEOR and Distinct-1/2 of replies, per supporter, with n and intervals over dialogues.

    All figures are 0–100. English is counted in words, Chinese in characters and in jieba's words. How each was counted
    (tokenizer, smoothing, METEOR's matchers, versions) is printed below the tables.

    Example: esc-eval metrics --responses runs/replies/responses.jsonl --judgements-out metrics.jsonl
    """
    replies = _replies(responses or [], dialogues or [], references or [])
    samples = measure(replies)
    rows = [*figures(samples)]
    tables = [*metric_tables(rows, replies)]
    if judgements_out is not None:
        write_jsonl(judgements_out, judgements(samples))
    deliver("metrics", figures_json(rows), tables, out, as_json)


def _replies(responses: list[Path], dialogues: list[Path], references: list[Path]) -> list[Response]:
    if bool(responses) == bool(dialogues):
        raise UserError("give either --responses, or --dialogues with --references")
    if bool(dialogues) != bool(references):
        raise UserError("--dialogues and --references go together")
    replies = read_responses(responses) if responses else paired(read_dialogues(dialogues), read_dialogues(references))
    if all(response.lost for response in replies):
        raise UserError(f"{', '.join(map(str, responses or dialogues))}: no reply to measure")
    return replies
