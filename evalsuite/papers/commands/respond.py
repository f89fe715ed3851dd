"""`esc-eval paper respond`: supporters answer on real histories (ESC-Eval, figure 1, left) wherever the supporter of a given
dialogue spoke, and replies are compared with references.

A supporter sees the real dialogue up to that place, never its own earlier replies; the real supporter's turn is the reference.
Consecutive turns of one side are joined. Supporter turns before the seeker's first (a greeting) are neither answered nor shown:
chat templates require the user to begin, and ESC-Eval's dialogues hide their greeting, too.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError
from core.files import write_jsonl
from core.grouping import group_by
from core.options import SetOption
from core.paths import MaybeFile, MaybeFiles, Reads
from core.records import Dialogue, Stopped
from core.specs import ModelSpec
from data_prep.responses import Answered, Response, answered, paired, read_responses
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
from evalsuite.dialogues.hold import ModelSide, usage_of, utterance
from evalsuite.papers.text_metrics import figures, figures_json, judgements, measure, metric_tables, need_metrics
from evalsuite.runs.folder import open_run
from evalsuite.runs.models import unspoken
from evalsuite.runs.run_config import hashed, identity
from serve.answers import Reply
from serve.batch import Batch
from serve.failures import Lost, Unanswered


def respond(
    config: Annotated[
        MaybeFile, typer.Option("--config", help="A run's config; see configs/eval. Its seeker, judge and cards are not used.")
    ] = None,
    supporter: SupporterOption = None,
    dialogues: DialoguesOption = None,
    responses: Annotated[
        list[Path] | None,
        typer.Option("--responses", help="Existing replies (responses.jsonl). Repeat for more supporters."),
        Reads(beside=True),
    ] = None,
    references: Annotated[
        MaybeFiles,
        typer.Option(
            "--references",
            help="Reference dialogues (JSONL) of the same id, or else the same card or source id: the k-th reply in "
            "--dialogues is compared with the k-th of the reference.",
        ),
    ] = None,
    settings: SetOption = None,
    out: Annotated[MaybeResumedOption, out_tables("metrics", "responses.jsonl", "metric_judgements.jsonl")] = None,
    as_json: JsonOption = False,
) -> None:
    """Have supporters answer at the supporter's turns of given dialogues, on the real history, and measure the replies.

    With --config and --dialogues, supporters are asked: OUT/responses.jsonl. The history has the real turns, not their earlier
    replies (figure 1 of ESC-Eval, left), and the real reply is the reference. With --responses, or --dialogues and
    --references, no model is asked.

    Metrics: BLEU-1/2/4, ROUGE-1/2/L, METEOR and Distinct-1/2 per supporter, with n and intervals over dialogues, 0 to 100:
    OUT/metrics.json, and for every reply OUT/metric_judgements.jsonl, which `agree --correlate` takes. English is counted in
    words, Chinese in characters and in jieba's words; notes below the tables say how each metric was counted.

    Example: esc-eval paper respond --config configs/eval/esc_eval.yaml --dialogues esconv/dialogues.jsonl
    --supporter my-model@http://127.0.0.1:8000/v1 --out runs/replies
    """
    folder = None if out is None else Path(out)
    if config is None:
        refuse("no model is asked without --config", supporter=supporter, set=settings)
        if bool(responses) == bool(dialogues) or bool(dialogues) != bool(references):
            raise UserError(
                "give --config with --dialogues to ask supporters, or --responses, or --dialogues with --references"
            )
        replies = (
            read_responses(responses)
            if responses
            else paired(read_dialogues(dialogues or []), read_dialogues(references or []))
        )
        if all(response.lost for response in replies):
            raise UserError(f"{', '.join(map(str, responses or dialogues or []))}: no reply to measure")
        _measure(replies, folder, as_json)
        return
    refuse("with --config, supporters answer in --dialogues", responses=responses, references=references)
    if not dialogues:
        raise UserError("--config: give the dialogues to answer in with --dialogues")
    resolved = resolve(config, supporters=supporter, floors=False, settings=settings, out=out, dialogues=dialogues)
    if floors := [spec.name for spec in resolved.models.supporters if spec.floor]:
        raise UserError(f"--supporter {floors[0]}: a floor has no replies of its own to measure: name models")
    languages, limit = resolved.config.languages, resolved.config.limit
    given = read_dialogues(dialogues)
    by_language = group_by(given, lambda dialogue: dialogue.language)
    kept = {dialogue.id for language in languages for dialogue in by_language.get(language, [])[:limit]}
    chosen = [dialogue for dialogue in given if dialogue.id in kept]
    if not any(answered(dialogue.turns) for dialogue in chosen):
        problem = "with a supporter's turn after a seeker's: there is nothing to answer"
        raise UserError(f"{', '.join(map(str, dialogues))}: no dialogue in {', '.join(languages)} {problem}")
    need_metrics({dialogue.language for dialogue in chosen})  # before any call
    supporters, progress = resolved.models.supporters, talk(as_json)
    settled = {"mode": resolved.config.mode, "dialogues": hashed(chosen), "supporters": [identity(s) for s in supporters]}
    with open_run(resolved.out) as run:
        run.claim("respond", settled)
        run.settle()
        replies = []
        with run.timed("respond"):
            for spec in supporters:
                if left_out := unspoken(spec, languages):
                    progress.print(f"{spec.name} does not speak {', '.join(left_out)}: it skips those dialogues")
                url = resolved.config.endpoints.get(spec.name)
                with Batch(spec, run.store.path, progress, url, resolved.config.concurrency) as batch:
                    replies += replies_on(batch, [dialogue for dialogue in chosen if spec.speaks(dialogue.language)])
        write_jsonl(run.folder / "responses.jsonl", replies)
        if not all(reply.lost for reply in replies):
            _measure(replies, run.folder, as_json)
    exit_if_lost(sum(reply.lost for reply in replies), len(replies), "replies")


def _measure(replies: Sequence[Response], out: Path | None, as_json: bool) -> None:
    samples = measure(replies)
    rows = [*figures(samples)]
    if out is not None:
        write_jsonl(out / "metric_judgements.jsonl", judgements(samples))
    deliver("metrics", figures_json(rows), [*metric_tables(rows, replies)], out, as_json)


def replies_on(batch: Batch, dialogues: Iterable[Dialogue]) -> list[Response]:
    """The replies of the batch's model at every place of the dialogues, in order. Stored replies are not asked for again."""
    spec = batch.spec
    places = [(dialogue, place) for dialogue in dialogues for place in answered(dialogue.turns)]
    questions = [ModelSide(spec, "supporter", dialogue.id).question(place.history, place.turn) for dialogue, place in places]
    replies = batch.ask(questions, "replies")
    return [_response(spec, dialogue, place, reply) for (dialogue, place), reply in zip(places, replies, strict=True)]


def _response(spec: ModelSpec, dialogue: Dialogue, place: Answered, reply: Reply | Unanswered) -> Response:
    termination: Stopped | Lost | None
    if isinstance(reply, Unanswered):
        text, termination, usage = "", reply.outcome, None
    else:
        line = utterance(reply)
        text, termination, usage = line.text, line.stopped, usage_of([("supporter", reply)])
    return Response(
        dialogue_id=dialogue.id,
        language=dialogue.language,
        turn=place.turn,
        supporter=spec.name,
        text=text,
        reference=place.text,
        termination=termination,
        usage=usage,
    )
