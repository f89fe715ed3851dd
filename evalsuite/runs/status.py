"""The progress of a run: its calls by role and model, its records by how they ended, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from core.files import read_jsonl
from core.records import Dialogue, Judgement
from core.tables import Table
from evalsuite.runs.folder import Run
from evalsuite.runs.judgement_sets import JudgementSet, sets_of
from serve.answers import KINDS, Reply, kinds_of

_OLDER = "not recorded"  # in a store of an older version
_FILES = {
    "judgements.jsonl": "verdicts",
    "turn_judgements.jsonl": "verdicts on turns",
    "gold_judgements.jsonl": "verdicts on the gold set",
}


def status(run: Run) -> Iterator[Table]:
    """Calls and records of a run folder, as tables, also while the run is in progress."""
    yield _calls(run)
    yield _records(run)


def _calls(run: Run) -> Table:
    counts: Counter[tuple[str, str, str]] = Counter()
    for role, spec, stored in run.store.replies():
        who = role or _OLDER, spec or _OLDER
        counts[*who, "answered"] += 1
        for kind in kinds_of(Reply.model_construct(**stored)):
            counts[*who, kind] += 1
    for role, spec, _, number in run.store.failed():
        counts[role, spec, "failed"] += number
    for role, spec, _, number in run.store.asked_again():
        counts[role or _OLDER, spec or _OLDER, "asked again"] += number
    columns = ("answered", *(kind for kind in KINDS if kind != "unreadable"), "failed", "asked again")
    return Table(
        key="calls",
        title="Calls",
        columns=("role", "model", *columns),
        rows=tuple((*who, *(counts[*who, name] for name in columns)) for who in sorted({(r, m) for r, m, _ in counts})),
        notes=(
            "failed: without an answer so far, asked last by the same command. empty, refusal, length (cut off), "
            "context_overflow: --retry asks again; answers may be counted whose dialogue went another way since.",
        ),
    )


def _records(run: Run) -> Table:
    rows: list[tuple[str, str, int]] = []
    rows += [("dialogues", reason, number) for reason, number in _reasons(run.folder / "dialogues.jsonl")]
    sets = sets_of(run.folder, run.config()) or [JudgementSet(run.folder, "")]
    for judged, (name, what) in product(sets, _FILES.items()):
        if (path := judged.folder / name).exists():
            whose = f"{what} by {judged.judge}" if len(sets) > 1 else what
            rows += [(whose, reason, number) for reason, number in _reasons(path)]
    return Table(
        key="records",
        title="Records",
        columns=("records", "of which", "number"),
        rows=tuple(rows),
        notes=(
            "infrastructure, rejected: missing; the same command asks for them. --retry unreadable asks for those again.",
            *(f"The budget was used up: {text}." for stage in run.timing().values() if (text := stage.get("unfinished"))),
        ),
    )


def _reasons(path: Path) -> list[tuple[str, int]]:
    """How the records of a file ended, the most frequent first."""
    if not path.exists():
        return [("not written yet: the run has not come to its end", 0)]
    reasons: Counter[str] = Counter()
    if path.name == "dialogues.jsonl":
        for dialogue in read_jsonl(path, Dialogue, "dialogues", allow_empty=True):
            reasons[dialogue.termination or _OLDER] += 1
    else:
        for judgement in read_jsonl(path, Judgement, "judgements", allow_empty=True):
            read = judgement.value is not None
            reasons["read" if read else str(judgement.condition.get("failure", "unreadable"))] += 1
    return reasons.most_common()
