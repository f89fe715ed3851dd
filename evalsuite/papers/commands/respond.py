"""`esc-eval paper respond`: supporters answer at every turn of given dialogues, and replies are measured against references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.errors import UserError
from core.files import write_jsonl
from core.options import SetOption
from core.paths import MaybeFile, MaybeFiles, Reads
from core.records import Dialogue
from data_prep.responses import Response, answered, paired, read_responses
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import (
    DialoguesOption,
    JsonOption,
    MaybeResumedOption,
    SupporterOption,
    out_tables,
    refuse,
    resolve,
)
from evalsuite.commands.output import deliver, exit_if_lost, talk
from evalsuite.dialogues.replies import respond as ask
from evalsuite.papers.text_metrics import figures, figures_json, judgements, measure, metric_tables, need_metrics
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import Run, open_run
from evalsuite.runs.identity import hashed, identity
from evalsuite.runs.models import unspoken
from serve.batch import Batch


def respond(
    config: Annotated[
        MaybeFile, typer.Option("--config", help="What to ask; see configs/eval. Its seeker, judge and cards are not used.")
    ] = None,
    supporter: SupporterOption = None,
    dialogues: DialoguesOption = None,
    responses: Annotated[
        list[Path] | None,
        typer.Option("--responses", help="Replies that are there (responses.jsonl). Repeat for more supporters."),
        Reads(beside=True),
    ] = None,
    references: Annotated[
        MaybeFiles,
        typer.Option(
            "--references",
            help="Reference dialogues (JSONL) of the same id, else of the same card or source id: the k-th reply in "
            "--dialogues is compared with the reference's k-th.",
        ),
    ] = None,
    settings: SetOption = None,
    out: Annotated[MaybeResumedOption, out_tables("metrics", "responses.jsonl", "metric_judgements.jsonl")] = None,
    as_json: JsonOption = False,
) -> None:
    """Have a supporter answer wherever the supporter of given dialogues spoke, on the real history, and measure the replies.

    With --config and --dialogues, supporters are asked: OUT/responses.jsonl. What they said before is not in the history: every
    reply stands alone (figure 1 of ESC-Eval, left). The real reply is the reference. Refused, empty and overflowing replies are
    recorded as such. With --responses, or --dialogues and --references, nothing is asked.

    Measured are BLEU-1/2/4, ROUGE-1/2/L, METEOR and Distinct-1/2 per supporter, with n and intervals over dialogues, 0 to 100:
    OUT/metrics.json, and for every reply OUT/metric_judgements.jsonl, which `agree --correlate` takes. English is counted in
    words, Chinese in characters and in jieba's words. How each was counted (tokenizer, smoothing, METEOR's matchers, versions)
    stands below the tables.

    Example: esc-eval paper respond --config configs/eval/esc_eval.yaml --dialogues esconv/dialogues.jsonl
    --supporter my-model@http://127.0.0.1:8000/v1 --out runs/replies
    """
    if config is None:
        refuse("nothing is asked without --config", supporter=supporter, set=settings)
        _measure(_given(responses or [], dialogues or [], references or []), None if out is None else Path(out), as_json)
        return
    refuse("with --config supporters are asked in --dialogues", responses=responses, references=references)
    if not dialogues:
        raise UserError("--config: give the dialogues to answer in with --dialogues")
    progress = talk(as_json)
    resolved = resolve(config, supporters=supporter, floors=False, settings=settings, out=out, dialogues=dialogues)
    if floors := [spec.name for spec in resolved.models.supporters if spec.floor]:
        raise UserError(f"--supporter {floors[0]}: a floor has no replies of its own to measure: name models")
    wanted = _wanted(resolved, dialogues)
    need_metrics({dialogue.language for dialogue in wanted})  # before anything is asked
    with open_run(resolved.out) as run:
        replies = _ask_all(run, resolved, wanted, progress)
        if not all(reply.lost for reply in replies):
            _measure(replies, run.folder, as_json)
    exit_if_lost(sum(reply.lost for reply in replies), len(replies), "replies")


def _wanted(resolved: DialogueFramework, paths: Sequence[Path]) -> list[Dialogue]:
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


def _ask_all(run: Run, resolved: DialogueFramework, dialogues: Sequence[Dialogue], progress: Console) -> list[Response]:
    """Claim the folder, ask one supporter after the other, write responses.jsonl."""
    run.claim(
        "respond",
        {
            "mode": resolved.config.mode,
            "dialogues": hashed(dialogues),
            "supporters": [identity(spec) for spec in resolved.models.supporters],
        },
    )
    run.settle()
    responses: list[Response] = []
    with run.timed("respond"):
        for spec in resolved.models.supporters:
            if left_out := unspoken(spec, resolved.config.languages):
                progress.print(f"{spec.name} does not speak {', '.join(left_out)}: those dialogues are left out for it")
            spoken = [dialogue for dialogue in dialogues if spec.speaks(dialogue.language)]
            url = resolved.config.endpoints.get(spec.name)
            with Batch(spec, run.store.path, progress, url, resolved.config.concurrency) as batch:
                responses += ask(batch, spoken)
    write_jsonl(run.folder / "responses.jsonl", responses)
    return responses


def _given(responses: list[Path], dialogues: list[Path], references: list[Path]) -> list[Response]:
    """Replies that are there: in files of their own, or in whole dialogues, each beside its reference."""
    if bool(responses) == bool(dialogues) or bool(dialogues) != bool(references):
        raise UserError("give --config with --dialogues to ask supporters, or --responses, or --dialogues with --references")
    replies = read_responses(responses) if responses else paired(read_dialogues(dialogues), read_dialogues(references))
    if all(response.lost for response in replies):
        raise UserError(f"{', '.join(map(str, responses or dialogues))}: no reply to measure")
    return replies


def _measure(replies: Sequence[Response], out: Path | None, as_json: bool) -> None:
    samples = measure(replies)
    rows = [*figures(samples)]
    if out is not None:
        write_jsonl(out / "metric_judgements.jsonl", judgements(samples))
    deliver("metrics", figures_json(rows), [*metric_tables(rows, replies)], out, as_json)
