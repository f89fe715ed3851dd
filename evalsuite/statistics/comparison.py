"""Runs side by side: scores of several run folders on one rubric, paired differences, and what else changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from core.differences import differing_leaves
from core.errors import UserError
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from evalsuite.statistics import paired
from evalsuite.statistics.leaderboard import Contestant, Score, card_of, cells_of, contestants_of, stack
from evalsuite.statistics.paired import Difference
from evalsuite.statistics.summary import Value, languages_of


@dataclass(frozen=True)
class RunRecords:
    """A run folder's records; `cards` maps card or profile id → hash of what is in it, as far as the folder has them."""

    name: str
    folder: Path
    config: dict[str, Any]
    rubric: Rubric
    dialogues: list[Dialogue]
    judgements: list[Judgement]
    cards: dict[str, str]


@dataclass(frozen=True)
class Entry:
    """A contestant of one run under the name that the comparison gives it."""

    run: str
    name: str
    contestant: Contestant
    scores: list[Score]


@dataclass(frozen=True)
class LanguageComparison:
    """One language: the contestants of all runs, and the differences of those that belong together (places in `entries`).

    `cards` maps run → how many cards or dialogues it has verdicts on; `shared` is how many of them all runs have.
    """

    language: Language
    entries: list[Entry]
    differences: list[Difference]
    cards: dict[str, int]
    shared: int


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. `changed` holds (first run, other run, differences of their resolved configs)."""

    runs: list[RunRecords]
    value: Value
    languages: list[LanguageComparison]
    changed: list[tuple[str, str, list[str]]]

    @property
    def rubric(self) -> Rubric:
        return self.runs[0].rubric


def compare(runs: Sequence[RunRecords], value: Value = "value") -> Comparison:
    """Every language's contestants with their scores, and paired tests of those that belong together.

    Two contestants of different runs belong together when they have the same supporter, or when neither's supporter is in the
    other's run; the same holds for their scorers (so the same supporter under two judges is compared). The later run's comes
    first: a difference says what it gained. Holm's correction runs over all dimensions and pairs of a language.
    Raises `UserError` when the runs' rubrics differ.
    """
    first = runs[0]
    for run in runs[1:]:
        if run.rubric != first.rubric:
            old, new = (side.rubric.model_dump(mode="json") for side in (first, run))
            raise UserError(
                f"{first.name} and {run.name} were scored on different rubrics "
                f"({'; '.join(differing_leaves(old, new)[:3])}): score one of them again into a new folder"
            )
    ambiguous = ambiguous_cards(runs)
    languages = []
    for language in languages_of(dialogue for run in runs for dialogue in run.dialogues):
        rivals: list[tuple[str, Contestant]] = []
        for run in runs:

            def unit(dialogue: Dialogue, run: RunRecords = run) -> str:
                card = dialogue.card_id or dialogue.profile_id
                return card_of(dialogue) + (f" {run.cards.get(card, '')}" if card and card in ambiguous else "")

            contestants = contestants_of(run.dialogues, run.judgements, run.rubric, value, unit)
            rivals += [(run.name, one) for one in contestants if one.language == language]
        if rivals:
            languages.append(_language(language, rivals, [run.name for run in runs], first.rubric))
    plain = [run.config for run in runs]
    changed = [
        (first.name, run.name, differing_leaves(plain[0], config)) for run, config in zip(runs[1:], plain[1:], strict=True)
    ]
    return Comparison(list(runs), value, languages, changed)


def _language(
    language: Language, rivals: list[tuple[str, Contestant]], runs: Sequence[str], rubric: Rubric
) -> LanguageComparison:
    contestants = [one for _, one in rivals]
    names = _names(rivals)
    entries = [
        Entry(run, name, one, cells)
        for (run, one), name, cells in zip(rivals, names, cells_of(contestants, rubric), strict=True)
    ]
    cards: dict[str, set[str]] = {run: set() for run in runs}
    for run, one in rivals:
        cards[run].update(one.cards)
    differences = paired.differences(*stack(contestants), _partners(rivals))
    shared = set.intersection(*cards.values())
    return LanguageComparison(language, entries, differences, {run: len(shown) for run, shown in cards.items()}, len(shared))


def _partners(rivals: Sequence[tuple[str, Contestant]]) -> list[tuple[int, int]]:
    """Places of contestants that belong together, the later run's first."""
    supporters: dict[str, set[Any]] = {}
    scorers: dict[str, set[Any]] = {}
    for run, one in rivals:
        supporters.setdefault(run, set()).add(one.supporter)
        scorers.setdefault(run, set()).add(one.scorer)

    def together(left: tuple[str, Any], right: tuple[str, Any], known: dict[str, set[Any]]) -> bool:
        (run, name), (other_run, other) = left, right
        return name == other or (name not in known[other_run] and other not in known[run])

    return [
        (late, early)
        for early, late in combinations(range(len(rivals)), 2)
        for (run, one), (other_run, other) in [(rivals[early], rivals[late])]
        if run != other_run
        and together((run, one.supporter), (other_run, other.supporter), supporters)
        and together((run, one.scorer), (other_run, other.scorer), scorers)
    ]


def _names(rivals: Sequence[tuple[str, Contestant]]) -> list[str]:
    """`supporter`, or `run/supporter` where several have it, or that with the scorer where the run has several."""
    plain = [one.supporter for _, one in rivals]
    with_run = [f"{run}/{one.supporter}" for run, one in rivals]
    names = []
    for place, (_, one) in enumerate(rivals):
        if plain.count(plain[place]) == 1:
            names.append(plain[place])
        elif with_run.count(with_run[place]) == 1:
            names.append(with_run[place])
        else:
            names.append(f"{with_run[place]} ({one.scorer.name})")
    return names


def ambiguous_cards(runs: Sequence[RunRecords]) -> set[str]:
    """Ids under which the runs have different cards: these must not be paired."""
    texts: dict[str, set[str]] = {}
    for run in runs:
        for card, text in run.cards.items():
            texts.setdefault(card, set()).add(text)
    return {card for card, versions in texts.items() if len(versions) > 1}
