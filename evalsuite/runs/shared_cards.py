"""Several runs on one board: the dialogues on the cards that all of them have, with distinct names of supporters."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import UserError
from core.records import Dialogue, Judgement, Language
from core.settings import differing_leaves
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import languages_of, supporter_of

# In these, runs may differ: supporters, and the amount of data.
_FREE = {"supporters", "cards", "profiles", "languages", "trials", "references"}
_Place = tuple[Language, str, int]  # a language, a card with its contents, a trial


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
