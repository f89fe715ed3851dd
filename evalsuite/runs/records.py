"""The records of finished runs, for comparisons."""

from collections.abc import Sequence
from pathlib import Path

from core.errors import UserError
from core.files import check_unique, digest, read_jsonl, read_object
from core.records import Dialogue, Judgement
from core.statistics.bootstrap import LEVEL
from evalsuite.runs import shards
from evalsuite.runs.folder import looks_of
from evalsuite.runs.judgement_sets import VERDICTS, as_of, chosen_set
from evalsuite.runs.people import read_people
from evalsuite.statistics.clusters import cards_of
from evalsuite.statistics.comparison import RunRecords


def read_runs(folders: Sequence[Path], least: int = 2, judge: str | None = None) -> list[RunRecords]:
    """The records of at least `least` scored run folders, named by their folders (by their paths if names are equal). Raises
    `UserError` for a folder that is given twice or is not a whole scored run, and like `judgement_sets.chosen_set`."""
    check_unique("runs", (str(folder.resolve()) for folder in folders), "folders")
    if len(folders) < least:
        raise UserError("a comparison needs at least two run folders: name another")
    short = [folder.resolve().name for folder in folders]
    names = [name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders, strict=True)]
    return [read_run(name, folder, judge) for name, folder in zip(names, folders, strict=True)]


def read_run(name: str, folder: Path, judge: str | None = None) -> RunRecords:
    """The records of a scored run folder under a name. Raises `UserError` like `read_runs`."""
    config = shards.whole(folder)
    judged = chosen_set(folder, config, judge)
    config = as_of(config, judged)
    scored = config.scored
    assert scored is not None
    dialogues = read_jsonl(folder / "dialogues.jsonl", Dialogue, "dialogues")
    measured, (looks, _) = judged.folder / "agreement.json", looks_of(folder)
    return RunRecords(
        name=name,
        folder=folder,
        config=config.by_supporter(),
        rubric=scored.rubric,
        dialogues=dialogues,
        judgements=read_jsonl(judged.folder / VERDICTS[0], Judgement, "judgements"),
        cards={person.id: digest(person.model_dump(mode="json")) for person in read_people(folder)},
        floors=config.floors(),
        turn_judgements=judged.records("turn_judgements.jsonl"),
        stage=judged.stage,
        level=looks.level_at(cards_of(dialogues)) if looks else LEVEL,
        agreement=read_object(measured, "agreement").get("agreement", {}) if measured.exists() else {},
    )
