"""The records in a run folder: dialogues, and the verdicts of each judge on them.

The first judge's records are in the run folder itself, and its stages are `score` and `gold`. Those of another judge are in
judges/NAME, and its stages are `score NAME` and `gold NAME`. A folder that is resumed or grows keeps its dialogues (`Held`).
Until a run ends, finished dialogues and their verdicts are in a `Spool`: only those in flight are in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, Generic, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel

from core.errors import UserError, near
from core.files import each_placed, holds, write_json, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.settings import differing_leaves
from data_prep.profiles import Played
from evalsuite.runs.folder import Run
from evalsuite.runs.people import file_of, read_people
from evalsuite.runs.run_config import SCORE, HeldSpec, RunConfig

JUDGES = "judges"
VERDICTS = ("judgements.jsonl", "turn_judgements.jsonl")
FILES = (*VERDICTS, "gold_judgements.jsonl", "agreement.json")
_OWN = {"judge", "method", "prompts"}  # in which the sets of a folder may differ
P = TypeVar("P", bound=Played)
R = TypeVar("R", bound=BaseModel)
Place = tuple[int, int]  # offset and length of a record in a spool, in bytes


class Piece(NamedTuple):
    """The places of a dialogue, of its verdicts on the whole, and of those on parts."""

    dialogue: Place
    whole: Sequence[Place]
    parts: Sequence[Place]


class Spool:
    """An unnamed file in a folder, which disappears once it is closed. Raises `UserError` if it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end = folder, 0
        with self._failing("write into"):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as it is read)

    def keep(self, dialogue: Dialogue, judgements: Sequence[Judgement]) -> Piece:
        whole = [judgement for judgement in judgements if judgement.turn is None]
        parts = [judgement for judgement in judgements if judgement.turn is not None]
        return Piece(self._write(dialogue), list(map(self._write, whole)), list(map(self._write, parts)))

    def _write(self, record: BaseModel) -> Place:
        text, begin = orjson.dumps(record.model_dump(mode="json")), self._end
        with self._failing("write into"):
            self._file.seek(begin)
            self._file.write(text)
        self._end += len(text)
        return begin, len(text)

    def read(self, place: Place) -> bytes:
        with self._failing("read in"):
            self._file.seek(place[0])  # this flushes what was written
            return self._file.read(place[1])

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"cannot {what} {self._folder}: {error.strerror or error}") from None


class Records(Generic[R]):
    """Records of a spool, read anew in each iteration."""

    def __init__(self, model: type[R], spool: Spool, places: Sequence[Place]) -> None:
        self._model, self._spool, self._places = model, spool, places

    def lines(self) -> Iterator[bytes]:
        """The records as lines of `core.files.write_jsonl`."""
        return map(self._spool.read, self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[R]:
        return map(self._model.model_validate_json, self.lines())


class Written(Records[R]):
    """Records in files of a run."""

    def __init__(self, model: type[R], paths: Sequence[Path]) -> None:
        self._model, self._paths = model, paths

    def lines(self) -> Iterator[bytes]:
        for path in self._paths:
            with path.open("rb") as handle:
                yield from (line.removesuffix(b"\n") for line in handle)

    def __len__(self) -> int:
        return sum(1 for _ in self.lines())


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
        from evalsuite.statistics.contestants import clusters_of

        agreed = agreement(*in_steps(verdicts, scores, rubric), clusters_of(dialogues))
        write_json(self.folder / "agreement.json", {"agreement": agreed})

    def clear(self) -> None:
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
        score = f"esc-eval run --only score --config CONFIG --out {quote(str(folder))}"
        raise UserError(f"{folder} has no judgements yet: run `{score}` first")
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


@dataclass(frozen=True)
class Held:
    """The dialogues of a run folder, their supporters and people. Supporters that never answered do not count."""

    folder: Path
    supporters: Sequence[HeldSpec]
    """In the order of the folder's config."""
    languages: Sequence[Language]
    trials: int
    references: str | None
    """The hash of the supporters' replies in the source dialogues, if these are a floor."""
    judged: JudgementSet | None = None
    """The verdicts of this command's judge."""

    @classmethod
    def of(cls, run: Run, judged: JudgementSet | None) -> Held | None:
        """The content of a folder; None if no dialogue was played there."""
        config = run.claimed_config()
        simulated = config.simulated
        if simulated is None:
            return None
        claimed = config.root["simulate"].get("supporters", [])
        supporters = [HeldSpec.of(model, run.folder / "config.json") for model in claimed if run.answered_by(model)]
        return cls(run.folder, supporters, simulated.languages, simulated.trials, simulated.references, judged)

    @cached_property
    def people(self) -> list[Played]:
        """All cards or profiles that were played."""
        return read_people(self.folder)

    def _each(self) -> Iterator[Dialogue]:
        """The records one by one; none before a run has finished."""
        path, names = self.folder / "dialogues.jsonl", {spec.name for spec in self.supporters}
        records = each_placed(path, Dialogue, "dialogues") if path.exists() else ()
        return (dialogue for _, dialogue in records if dialogue.supporter in names)

    @cached_property
    def ids(self) -> frozenset[str]:
        """The records' ids, without keeping the records in memory."""
        return frozenset(dialogue.id for dialogue in self._each())

    @cached_property
    def dialogues(self) -> dict[str, Dialogue]:
        return {dialogue.id: dialogue for dialogue in self._each()}

    @cached_property
    def judgements(self) -> dict[str, list[Judgement]]:
        """The verdicts by dialogue id, those on turns last."""
        by_dialogue: dict[str, list[Judgement]] = {}
        for name in VERDICTS:
            for judgement in self.judged.records(name) if self.judged else []:
                by_dialogue.setdefault(judgement.dialogue_id, []).append(judgement)
        return by_dialogue

    def people_with(self, chosen: Sequence[P], languages: Iterable[Language]) -> list[P]:
        """The people of the folder, then new ones, language by language. Raises `UserError` for one that has changed."""
        new = {person.id: person for person in chosen}
        people: list[P] = []
        same = holds(self.folder / file_of(chosen[0]), chosen)  # several times as fast as reading the file
        for person in () if same else self.people:
            if not isinstance(person, type(chosen[0])):
                continue
            current = new.pop(person.id, person)
            if lines := differing_leaves(person.model_dump(mode="json"), current.model_dump(mode="json")):
                raise UserError(
                    f"{self.folder} was made with another {person.id}: {'; '.join(lines)}. Use another --out, or the old file"
                )
            people.append(person)
        people += new.values()
        return [person for language in languages for person in people if person.language == language]
