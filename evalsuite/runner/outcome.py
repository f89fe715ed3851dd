"""What a stage of a run made, and what it did not reach."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from core.records import Dialogue, Judgement, Usage
from evalsuite.runs.spool import Records
from serve.failures import FailedCall


@dataclass
class Outcome:
    """What a stage made, in the order of its jobs."""

    dialogues: Records[Dialogue]
    judgements: Records[Judgement]
    """Verdicts on whole dialogues."""
    turn_judgements: Records[Judgement]
    """Verdicts on parts of them."""
    failures: list[FailedCall] = field(default_factory=list)
    """Calls without an answer."""
    ended_early: str | None = None
    """Why the stage ended before its end."""
    not_reached: int = 0
    """Dialogues that the budget did not reach."""
    not_judged: int = 0
    """Dialogues whose verdicts it did not reach."""
    file: str = ""
    """Where the verdicts are, in the run folder."""
    usage: dict[str, dict[str, Usage]] = field(default_factory=dict)
    """Role → model → what it used."""
    kept: Collection[str] = ()
    """Dialogues that only earlier commands asked for."""

    @property
    def unfinished(self) -> str:
        """What the budget did not reach; "" where that is nothing."""
        parts = [(self.not_reached, "not asked"), (self.not_judged, "not judged")]
        told = "".join(f", {number:,} {what}" for number, what in parts if number)
        of = "of the gold set " if self.file.endswith("gold_judgements.jsonl") else ""
        return f"{len(self.dialogues) - self.not_judged:,} dialogues {of}are finished{told}" if told else ""
