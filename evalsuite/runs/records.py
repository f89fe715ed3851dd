"""The records of finished runs, and several runs on one board: the dialogues on the cards that all of them have."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import check_unique, digest, read_jsonl, read_object
from core.records import Dialogue, Judgement, Language
from core.settings import differing_leaves
from core.statistics.bootstrap import LEVEL
from evalsuite.runs import shards
from evalsuite.runs.contents import VERDICTS, as_of, chosen_set
from evalsuite.runs.folder import looks_of
from evalsuite.runs.people import read_people
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.contestants import card_of, cards_of
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import languages_of, supporter_of

# In these, runs may differ: supporters, and the amount of data.
_FREE = {"supporters", "cards", "profiles", "languages", "trials", "references"}
_Place = tuple[Language, str, int]  # a language, a card with its contents, a trial


def read_runs(folders: Sequence[Path], least: int = 2, judge: str | None = None) -> list[RunRecords]:
    """The records of at least `least` scored run folders, named by their folders (by their paths if names are equal). Raises
    `UserError` for a folder that is given twice or is not a whole scored run, and like `contents.chosen_set`."""
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


@dataclass(frozen=True)
class SharedCards:
    """Comparable runs as one tally, and those that are not comparable."""

    runs: list[RunRecords]
    """The first run, and those with the same settings."""
    apart: dict[str, list[str]]
    """Run → its settings that differ from the first run's (`setting: first's → its`)."""
    tally: Tally
    """The dialogues on the shared cards. A supporter that several runs have is called `run/supporter`."""
    shared: dict[Language, int]
    """Cards × trials that all the runs have."""
    left_out: dict[str, int]
    """Run → number of its dialogues on cards and trials that not all runs have."""


def shared_cards(runs: Sequence[RunRecords], cluster: str | None = None) -> SharedCards:
    """The runs with the settings of the first one, on the cards and trials that they all have. Cards are equal if their ids and
    contents are; dialogues that are equal in two runs (floors) count once. Raises `UserError` if no card is shared."""
    first = runs[0]
    differences = {run.name: differing_leaves(made_with(first.config), made_with(run.config)) for run in runs[1:]}
    alike = [run for run in runs if not differences.get(run.name)]
    places = [{_place(run, dialogue) for dialogue in run.dialogues} for run in alike]
    shared = set.intersection(*places)
    if not shared:
        names = ", ".join(run.name for run in alike)
        raise UserError(f"{names}: no card is in all of these runs: simulate them on the same cards (--cards, --limit)")
    dialogues: list[Dialogue] = []
    judgements: list[Judgement] = []
    kept: dict[tuple[str, _Place], Dialogue] = {}  # supporter, place → the dialogue of the first run that has it
    renamed = _renamed(alike, shared)
    left_out = Counter[str]()
    for run in alike:
        ids: dict[str, str] = {}
        for dialogue in run.dialogues:
            place, supporter = _place(run, dialogue), supporter_of(dialogue)
            if place not in shared:
                left_out[run.name] += 1
            elif (run.name, supporter) in renamed:
                ids[dialogue.id] = f"{run.name}/{dialogue.id}"
                changes = {"id": ids[dialogue.id], "supporter": f"{run.name}/{supporter}"}
                dialogues.append(dialogue.model_copy(update=changes))
            elif (supporter, place) not in kept:
                ids[dialogue.id] = dialogue.id
                kept[supporter, place] = dialogue
                dialogues.append(dialogue)
        judgements += [
            judgement.model_copy(update={"dialogue_id": ids[judgement.dialogue_id]})
            for judgement in run.judgements
            if judgement.dialogue_id in ids
        ]
    counts = {language: sum(place[0] == language for place in shared) for language in languages_of(dialogues)}
    different = {name: lines for name, lines in differences.items() if lines}
    floors = {name for run in alike for floor in run.floors for name in (floor, f"{run.name}/{floor}")}
    tally = Tally(dialogues, judgements, first.rubric, floors, cluster, max(run.level for run in alike))
    return SharedCards(alike, different, tally, counts, dict(left_out))


def made_with(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run's dialogues and judgements, without those that may differ."""
    simulated = {key: value for key, value in config.get("simulate", {}).items() if key not in _FREE}
    return {"simulate": simulated, "score": config.get("score", {})}


def _place(run: RunRecords, dialogue: Dialogue) -> _Place:
    card = dialogue.card_id or dialogue.profile_id or ""
    return dialogue.language, f"{card_of(dialogue)} {run.cards.get(card, '')}", dialogue.trial or 0


def _renamed(runs: Sequence[RunRecords], shared: set[_Place]) -> set[tuple[str, str]]:
    """(Run, supporter) of the supporters that several runs have with different dialogues."""
    turns_by_run: dict[str, dict[str, dict[_Place, Any]]] = {}  # by supporter
    for run in runs:
        for dialogue in run.dialogues:
            if (place := _place(run, dialogue)) in shared:
                turns_by_run.setdefault(supporter_of(dialogue), {}).setdefault(run.name, {})[place] = dialogue.turns
    differ = {name: runs for name, runs in turns_by_run.items() if any(t != next(iter(runs.values())) for t in runs.values())}
    return {(run, supporter) for supporter, by_run in differ.items() for run in by_run}
