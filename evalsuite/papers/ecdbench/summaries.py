"""Summaries: the model under test writes them, a judge scores them, and the judge's verdicts become scores.

Table 6 of ECDBench has LCSTS, CNewSum and VCSum scored by a model for completeness and conciseness, and says neither how a
summary is asked for nor what the scores mean: the request (configs/prompts/summary) and the rubric (summary) are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import UserError, near
from core.files import check_unique, read_jsonl
from core.grouping import group_by
from core.prompts import load_pack
from core.records import Dialogue, Judgement, Language, Termination, Turn, dialogue_id
from core.rubrics import load_rubric
from core.tables import Table
from data_prep.scores.human import read_dialogues
from evalsuite.dialogues.hold import utterance
from evalsuite.papers.ecdbench.forms import Doc
from evalsuite.papers.ecdbench.local_data import SUMMARY
from evalsuite.papers.ecdbench.registry import Benchmark
from evalsuite.papers.ecdbench.scores import TaskScore
from evalsuite.papers.ecdbench.tasks import draw
from serve.answers import Reply
from serve.batch import Batch
from serve.failures import Unanswered
from serve.questions import Question

FRAMEWORK = "ecdbench"


@dataclass(frozen=True)
class SourceDocument:
    """What is to be summarised; `item` is its place in the dataset's files."""

    dataset: str
    item: str
    language: Language
    text: str


def sampled(name: str, docs: Sequence[Doc], limit: int, seed: int) -> list[SourceDocument]:
    """The documents of dataset `name` that are asked, in file order: `limit` of them, drawn as items of other tasks are."""
    return [
        SourceDocument(name, f"{SUMMARY}:{index}", docs[index]["language"], docs[index]["text"])
        for index in sorted(draw(range(len(docs)), name, limit, seed))
    ]


def summarise(batch: Batch, documents: Iterable[SourceDocument], called: str) -> list[Dialogue]:
    """One dialogue a document: the request with the document, and the summary of the batch's model, recorded as `called`.

    A refused, empty or overflowing reply is no turn, as in `evalsuite.dialogues.hold`; neither is a call that a server lost or
    rejected.
    """
    prompts, spec = load_pack(SUMMARY), batch.spec
    asked = [(one, prompts.render(one.language, "request.j2", text=one.text)) for one in documents]
    questions = [
        Question(
            [{"role": "user", "content": request}],
            sample={"dataset": one.dataset, "item": one.item},
            sampling=spec.sampling,
            served_name=spec.served_name(),
            purpose="supporter",
        )
        for one, request in asked
    ]
    replies = batch.ask(questions, "summaries")
    return [_dialogue(*pair, reply, called) for pair, reply in zip(asked, replies, strict=True)]


def _dialogue(document: SourceDocument, request: str, reply: Reply | Unanswered, called: str) -> Dialogue:
    turns = [Turn(role="seeker", text=request)]
    termination: Termination
    if isinstance(reply, Unanswered):
        termination = reply.outcome
    else:
        said = utterance(reply)
        termination = said.stopped or "max_turns"
        if said.stopped is None:
            turns.append(Turn(role="supporter", text=said.text))
    return Dialogue(
        id=dialogue_id(FRAMEWORK, f"{document.dataset}/{document.item}", called, "", 0),
        language=document.language,
        framework=FRAMEWORK,
        source=document.dataset,
        source_id=document.item,
        supporter=called,
        turns=tuple(turns),
        termination=termination,
    )


def summaries_table(benchmark: Benchmark, dialogues: Sequence[Dialogue]) -> Table:
    """How many summaries every dataset has, and why others are missing."""
    rows = []
    for name, written in group_by(dialogues, lambda dialogue: dialogue.source).items():
        without = Counter(str(dialogue.termination) for dialogue in written if not dialogue.exchanges)
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(without.items()))
        rows.append((name, benchmark.datasets[name].label, len(written), len(written) - without.total(), why))
    return Table("summaries", "Summaries for a judge", ("dataset", "name", "items", "summaries", "none, because"), tuple(rows))


def judged_scores(judgements: Path, summaries: Path, judge: str | None = None) -> list[TaskScore]:
    """A judge's verdicts on `summaries` as scores, one a summary and dimension, in the order of the summaries.

    A verdict that could not be read has no value; where the model wrote no summary, every dimension has the scale's lowest.
    Raises `UserError` for verdicts of another rubric or on other dialogues, for several judges of which none is named, for a
    verdict given twice, and for one that is missing, also because a server failed.
    """
    rubric, written = load_rubric(SUMMARY), {dialogue.id: dialogue for dialogue in read_dialogues([summaries])}
    for dialogue in written.values():
        if dialogue.framework != FRAMEWORK or dialogue.source_id is None or dialogue.supporter is None:
            raise UserError(
                f"{summaries}: dialogue {dialogue.id}: not a summary that `esc-eval paper ecdbench run` had written"
            )
        if dialogue.lost:
            raise UserError(
                f"{summaries}: {dialogue.source} {dialogue.source_id} has no summary because a server failed "
                f"({dialogue.termination}): run the same `paper ecdbench run` again, then score"
            )
    judged = _of_judge(judgements, read_jsonl(judgements, Judgement, "judgements"), judge)
    verdicts = {(verdict.dialogue_id, verdict.dimension): verdict for verdict in judged}
    for (name, dimension), verdict in verdicts.items():
        where = f"{judgements}: dialogue {name}"
        if verdict.rubric != rubric.name:
            raise UserError(f"{where}: rubric {verdict.rubric!r}: summaries are scored on {rubric.name!r}")
        if dimension not in rubric.dimensions:
            raise UserError(f"{where}: {rubric.name} has no dimension {dimension!r}: {near(dimension, rubric.dimensions)}")
        if name not in written:
            raise UserError(f"{where}: {summaries} has no such summary: give the file that was scored")
    check_unique(judgements, (f"{one.dialogue_id} {one.dimension}" for one in judged), "verdicts")
    scores = []
    for dialogue in written.values():
        for dimension in rubric.dimensions:
            judgement = verdicts.get((dialogue.id, dimension))
            if judgement is None or judgement.lost:
                what = "no verdict" if judgement is None else f"no verdict ({judgement.condition['failure']})"
                raise UserError(
                    f"{judgements}: dialogue {dialogue.id}: {what} on {dimension}: score all of {summaries} "
                    "(the same command asks only for what is missing)"
                )
            value = judgement.value if dialogue.exchanges else float(rubric.scale_of(dimension).min)
            place = {"dataset": dialogue.source, "metric": dimension, "item": dialogue.source_id}
            scores.append(TaskScore.model_validate({"model": dialogue.supporter, **place, "value": value}))
    return scores


def _of_judge(path: Path, every_verdict: Sequence[Judgement], judge: str | None) -> list[Judgement]:
    names = list(dict.fromkeys(verdict.judge for verdict in every_verdict))
    if judge is not None and judge not in names:
        raise UserError(f"--judge: {path} has no verdict of {judge!r}: {near(judge, names)}")
    if judge is None and len(names) > 1:
        raise UserError(f"{path}: verdicts of {len(names)} judges, give those of one: {', '.join(names[:12])}")
    return [verdict for verdict in every_verdict if judge in (None, verdict.judge)]
