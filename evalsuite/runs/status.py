"""The progress of a run: its calls by role and model, and its records by outcome."""

from collections import Counter
from itertools import product
from pathlib import Path

from core.files import read_jsonl
from core.records import Dialogue, Judgement
from core.tables import Table
from evalsuite.runs.folder import Run
from evalsuite.runs.judgement_sets import JudgementSet, sets_of
from serve.answers import KINDS, Reply, kinds_of

_OLDER = "not recorded"  # in stores of older versions
_FILES = {
    "judgements.jsonl": "verdicts",
    "turn_judgements.jsonl": "verdicts on turns",
    "gold_judgements.jsonl": "verdicts on the gold set",
}


def calls(run: Run) -> Table:
    """The calls of a run folder, also while the run is in progress."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for role, spec, stored in run.store.replies():
        for kind in ("answered", *kinds_of(Reply.model_construct(**stored))):
            counts[role or _OLDER, spec or _OLDER, kind] += 1
    for role, spec, _, number in run.store.failed():
        counts[role, spec, "failed"] += number
    for role, spec, _, number in run.store.asked_again():
        counts[role or _OLDER, spec or _OLDER, "asked again"] += number
    columns = ("answered", *(kind for kind in KINDS if kind != "unreadable"), "failed", "asked again")
    return Table(
        key="calls",
        title="Calls",
        columns=("role", "model", *columns),
        rows=tuple((*model, *(counts[*model, name] for name in columns)) for model in sorted({cell[:2] for cell in counts})),
        notes=(
            "failed: no answer so far; the same command asks for these last. empty, refusal, length (cut off), "
            "context_overflow: --retry asks again. The counts include answers in dialogues that were sampled again since.",
        ),
    )


def records(run: Run) -> Table:
    """The records of a run folder, also while the run is in progress."""
    rows = [("dialogues", reason, number) for reason, number in _reasons(run.folder / "dialogues.jsonl")]
    sets = sets_of(run.folder, run.config()) or [JudgementSet(run.folder, "")]
    for judged, (name, noun) in product(sets, _FILES.items()):
        if (path := judged.folder / name).exists():
            label = f"{noun} by {judged.judge}" if len(sets) > 1 else noun
            rows += [(label, reason, number) for reason, number in _reasons(path)]
    return Table(
        key="records",
        title="Records",
        columns=("records", "of which", "number"),
        rows=tuple(rows),
        notes=(
            "infrastructure, rejected: missing; the same command asks for them. unreadable: --retry unreadable asks again.",
            *(f"The budget was used up: {text}." for stage in run.timing().values() if (text := stage.get("unfinished"))),
        ),
    )


def _reasons(path: Path) -> list[tuple[str, int]]:
    """The records of a file by outcome, the most frequent first."""
    if not path.exists():
        return [("not written yet: the run has not finished", 0)]
    reasons: Counter[str] = Counter()
    if path.name == "dialogues.jsonl":
        for dialogue in read_jsonl(path, Dialogue, "dialogues", allow_empty=True):
            reasons[dialogue.termination or _OLDER] += 1
    else:
        for judgement in read_jsonl(path, Judgement, "judgements", allow_empty=True):
            failure = str(judgement.condition.get("failure", "unreadable"))
            reasons[failure if judgement.value is None else "read"] += 1
    return reasons.most_common()
