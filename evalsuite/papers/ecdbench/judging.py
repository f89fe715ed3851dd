"""A judge scores the summaries that a model wrote: a run of its own beside them, which resumes and grows like any other."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from core.errors import UserError
from core.files import CONFIGS, write_jsonl
from data_prep.scores.human import read_dialogues
from evalsuite.papers.ecdbench.scores import TaskScore
from evalsuite.papers.ecdbench.summaries import judged_scores
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import DialogueFramework, resolve_config
from evalsuite.runs.folder import open_run
from evalsuite.runs.run_identity import RunIdentity

CONFIG = CONFIGS / "eval" / "ecdbench_summaries.yaml"


def resolved_judge(out: Path, judge: str) -> DialogueFramework:
    """The judge's own run, in OUT/judged, with everything that it needs loaded and checked."""
    resolved = resolve_config(load_config(CONFIG, {"judge": judge, "out": str(out / "judged")}))
    RunIdentity(resolved).score()
    return resolved


def judge_summaries(resolved: DialogueFramework, written: Path, console: Console) -> list[TaskScore]:
    """Have every summary of `written` judged, and return the verdicts as scores.

    Raises `UserError` when a server failed before all was judged: the same command asks only for the rest.
    """
    dialogues = resolved.out / "dialogues.jsonl"
    with open_run(resolved.out) as run:
        write_jsonl(dialogues, read_dialogues([written]))  # as the run's own: they may become more
        with Runner(run, resolved, console, bounded=True) as runner:
            outcome = pipeline.score(runner, dialogues)
    lost = sum(verdict.lost for verdict in outcome.judgements)
    if lost or outcome.ended_early:
        why = outcome.ended_early or "a server failed"
        raise UserError(
            f"{resolved.models.judge.name}: {lost} verdicts on summaries are missing: {why}. The same command asks for those"
        )
    return judged_scores(resolved.out / "judgements.jsonl", written, resolved.models.judge.name)
