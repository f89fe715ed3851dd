"""The end of a run: records are taken as they were left where nothing that they were made of has changed since.

Making 100,000 dialogues of three calls again from their stored answers takes minutes, comparing hashes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.files import digest, sha256_file
from core.records import Dialogue, Judgement, Usage
from evalsuite.runner.outcome import Outcome
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import USED, Run
from evalsuite.runs.judgement_sets import VERDICTS, JudgementSet
from evalsuite.runs.people import PEOPLE
from evalsuite.runs.spool import Written
from evalsuite.runs.versions import versions


@dataclass(frozen=True)
class End:
    """The end of a run whose dialogues are judged by one judge or by none."""

    run: Run
    resolved: DialogueFramework
    judging: JudgementSet | None
    identities: Sequence[Any]
    """What decides its dialogues and its judgements, as config.json has it."""
    code: Sequence[str]
    """Hashes of the program that makes them, as it was before they were made."""

    @property
    def _stages(self) -> list[str]:
        return ["simulate", *([self.judging.stage] if self.judging else [])]

    def _state(self, then: float) -> str:
        """A hash of all that the records were made of, of stored answers those until `then`, and of the records."""
        of, run = self.resolved, self.run
        specs = [*of.models.seekers, *of.models.supporters, *([of.models.judge] if self.judging else [])]
        packs = {of.pack: of.prompts} | ({of.judge_pack: of.judge_prompts} if self.judging else {})
        made_by = [versions(packs, of.rubric, {}, specs), self.code, str(of.shard)]
        paths = [run.folder / name for name in (*PEOPLE, "dialogues.jsonl")] + [
            path for one in self._verdicts() for path in one
        ]
        files = {str(path.relative_to(run.folder)): sha256_file(path) for path in paths if path.exists()}
        used = USED.dump_python({stage: run.usage().get(stage, {}) for stage in self._stages}, mode="json")
        return digest([self.identities, made_by, files, used, run.store.state(then)])

    def _verdicts(self) -> list[list[Path]]:
        """The files of verdicts on whole dialogues, and on parts of them."""
        return [[path] if self.judging and (path := self.judging.folder / name).exists() else [] for name in VERDICTS]

    def keep(self, outcome: Outcome) -> None:
        """Remember that this is the end, unless something is missing."""
        if not (outcome.failures or outcome.ended_early or outcome.unfinished):
            now = time.time()
            self.run.store.keep_end(self._stages[-1], now, self._state(now))

    def outcome(self) -> Outcome | None:
        """What the run left; None where it has not come to its end, or would make other records now."""
        run, known = self.run, self.run.store.end_of(self._stages[-1])
        again = run.retry.kinds or run.failures().keys() & self._stages or not run.versions()
        if again or known is None or known[1] != self._state(known[0]):
            return None
        run.settle()
        usage: dict[str, dict[str, Usage]] = {}
        for stage in self._stages:
            usage |= run.usage().get(stage, {})
        whole, parts = (Written(Judgement, paths) for paths in self._verdicts())
        file = f"{self.judging.folder.relative_to(run.folder) / VERDICTS[0]}" if self.judging else ""
        return Outcome(Written(Dialogue, [run.folder / "dialogues.jsonl"]), whole, parts, file=file, usage=usage)
