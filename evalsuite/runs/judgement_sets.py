"""The judgement sets of a run folder: the verdicts of each judge on the same dialogues.

The first judge's records are in the run folder itself, and its stages are `score` and `gold`. Those of another judge are in
judges/NAME, and its stages are `score NAME` and `gold NAME`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from core.errors import UserError, near
from core.files import each_placed, write_json, write_jsonl
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import Rubric
from core.settings import differing_leaves
from evalsuite.runs.folder import Run
from evalsuite.runs.run_config import SCORE, RunConfig

JUDGES = "judges"
VERDICTS = ("judgements.jsonl", "turn_judgements.jsonl")
FILES = (*VERDICTS, "gold_judgements.jsonl", "agreement.json")
_OWN = {"judge", "method", "prompts"}  # in which the sets of a folder may differ


@dataclass(frozen=True)
class JudgementSet:
    """One judge's records in a run folder."""

    run: Path
    judge: str
    """The judge's name; "" if the config names none."""
    stage: str = SCORE
    """Its stage in config.json, usage.json, timing.json and failures.json."""

    @property
    def gold_stage(self) -> str:
        """The stage of the verdicts on the gold set."""
        return "gold" + self.stage.removeprefix(SCORE)

    @property
    def folder(self) -> Path:
        """The folder of its records."""
        return self.run if self.stage == SCORE else self.run / JUDGES / self.judge

    @property
    def file(self) -> str:
        """The file of its verdicts on whole dialogues, relative to the run folder."""
        return str(self.folder.relative_to(self.run) / VERDICTS[0])

    def records(self, name: str = VERDICTS[0]) -> list[Judgement]:
        """The verdicts in one of its files; none if there is no such file."""
        return list(self.each(name))

    def each(self, name: str = VERDICTS[0]) -> Iterator[Judgement]:
        """The same, read one by one."""
        path = self.folder / name
        return (judgement for _, judgement in (each_placed(path, Judgement, "judgements") if path.exists() else ()))

    def measure(
        self, verdicts: Iterable[Judgement], scores: Sequence[HumanScore], dialogues: Sequence[Dialogue], rubric: Rubric | None
    ) -> None:
        """Write the judge's agreement with the gold set."""
        from evalsuite.statistics.agreement import agreement, in_steps  # a run that claims its folder loads no statistics
        from evalsuite.statistics.clusters import clusters_of

        agreed = agreement(*in_steps(verdicts, scores, rubric), clusters_of(dialogues))
        write_json(self.folder / "agreement.json", {"agreement": agreed})

    def clear(self) -> None:
        """Remove all records."""
        for name in FILES:
            (self.folder / name).unlink(missing_ok=True)

    def drop(self, dialogues: set[str]) -> int:
        """Remove the verdicts on these dialogues; returns the number of dialogues that had any."""
        dropped: set[str] = set()
        for name in VERDICTS:
            records = self.records(name)
            kept = [judgement for judgement in records if judgement.dialogue_id not in dialogues]
            if len(kept) < len(records):
                dropped |= {judgement.dialogue_id for judgement in records} & dialogues
                write_jsonl(self.folder / name, kept)
        return len(dropped)


def sets_of(folder: Path, config: RunConfig) -> list[JudgementSet]:
    """Every judge's records in a run folder, in the order in which they were begun."""
    return [JudgementSet(folder, judged.judge.name if judged.judge else "", stage) for stage, judged in config.judged.items()]


def set_of(run: Run, judge: str) -> JudgementSet:
    """The set of this command's judge: its own, or a new one, which replaces that of a first judge that never answered."""
    sets = {judged.judge: judged for judged in sets_of(run.folder, run.claimed_config())}
    first = next(iter(sets), judge)
    another = first != judge and run.store.has_answer(first, "judge")
    return sets.get(judge, JudgementSet(run.folder, judge, f"{SCORE} {judge}" if another else SCORE))


def chosen_set(folder: Path, config: RunConfig, judge: str | None) -> JudgementSet:
    """The set to read. Raises `UserError` if there is none, and for several without a judge's name."""
    sets = {judged.judge: judged for judged in sets_of(folder, config)}
    if not sets:
        raise UserError(f"{folder} has no judgements yet: run `esc-eval run --only score --config CONFIG --out {folder}` first")
    if judge is None and len(sets) > 1:
        raise UserError(f"{folder} was scored by {len(sets)} judges: choose one with --judge: {', '.join(sets)}")
    if judge is not None and judge not in sets:
        raise UserError(f"--judge {judge}: did not score {folder}: {near(judge, sets)}")
    return next(iter(sets.values())) if judge is None else sets[judge]


def claim_set(run: Run, chosen: JudgementSet, settings: dict[str, Any], grows: Collection[str]) -> None:
    """Claim a set's stage. Raises `UserError` if the set was made with other settings, or differs from the first set in more
    than judge, method and prompts: sets are only comparable with the same rubric, mode and view of the dialogue."""
    config = run.claimed_config()
    first = config.root.get(SCORE, {}) if chosen.stage != SCORE else settings
    free = _OWN.union(grows)
    shared = ({field: value for field, value in stage.items() if field not in free} for stage in (first, settings))
    old, new = (orjson.loads(orjson.dumps(fields)) for fields in shared)
    if lines := "; ".join(differing_leaves(old, new)):
        raise UserError(
            f"{chosen.run} was scored in another way by its first judge: {lines}. Judges of one folder may differ in model, "
            "method and prompts: use the old options, or score the dialogues into another folder (--dialogues)"
        )
    run.claim(chosen.stage, settings, grows)


def as_of(config: RunConfig, chosen: JudgementSet) -> RunConfig:
    """A run's config with the chosen set as its only one."""
    kept = {stage: settings for stage, settings in config.root.items() if stage not in config.judged}
    return RunConfig(kept | {SCORE: config.root[chosen.stage]})
