"""A user's own clone of the published ESC-Eval repository as records: cards, sample dialogues, ESC-RANK's scores of them.

Files are found by name in any folder: `card_high_*.json` and `test_*.json` (cards), `result/…/SUPPORTER_LANGUAGE.json` or
`result_SUPPORTER_LANGUAGE.json` (dialogues on the cards of test_*.json, in their order), `score/…` or `score_…` likewise
(ESC-RANK's verdicts as the published scorer wrote them, -1 where it could not parse an answer).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from core.errors import UserError
from core.records import Dialogue, Judgement, Language, RoleCard, Turn
from core.rows import CorpusReader, Dropped, Malformed
from core.rubrics import load_rubric
from data_prep.published.prompts import DIMENSIONS

RUBRIC, UNREAD = "esc_eval", -1
_CARDS = re.compile(r"(card_high|test)_(en|zh|ch)\.json")
_CARD_KINDS = {"card_high": "high cards", "test": "test cards"}
_RUN = re.compile(r"(?:(result|score)_)?(.+)_(en|zh)\.json")
# Both spellings occur: the first in the sample dialogues, the second in what the script at its last commit writes.
_MARKERS: dict[str, Literal["seeker", "supporter"]] = {
    "AI assistant：": "supporter",
    "AI assitant：": "supporter",
    "ESC-Role：": "seeker",
}
MARKED = ("AI assistant：", "ESC-Role：")  # the spellings that the published scorer recognises
_LANGUAGE: dict[str, Language] = {"en": "en", "zh": "zh", "ch": "zh"}


@dataclass(frozen=True)
class PublishedRun:
    """The dialogues (or scores) of one supporter in one language: `name` is `SUPPORTER_LANGUAGE`."""

    name: str
    supporter: str
    language: Language
    path: Path

    def dialogue_id(self, index: str) -> str:
        """The id of the dialogue with this key in the file, and of its scores."""
        return f"esc-eval-{self.name}-{index}"


@dataclass
class Clone:
    """The files of a clone. Cards by (high cards or test cards, language), runs by name."""

    cards: dict[tuple[str, Language], Path] = field(default_factory=dict)
    results: dict[str, PublishedRun] = field(default_factory=dict)
    scores: dict[str, PublishedRun] = field(default_factory=dict)
    scripts: list[Path] = field(default_factory=list)

    def missing(self) -> list[str]:
        """The files of a complete clone that this one lacks, a line each."""
        lines = []
        for language in ("en", "zh"):
            lines += [f"{kind} in {language}" for kind in _CARD_KINDS.values() if (kind, language) not in self.cards]
            for kind, runs in (("result", self.results), ("score", self.scores)):
                if not any(run.language == language for run in runs.values()):
                    lines.append(f"{kind} files in {language} (*_{language}.json in a folder named {kind})")
        return lines


def find_clone(folder: Path) -> Clone:
    """The published files in a folder. Raises `UserError` if there are none, or two of one name."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder} (a clone of the published ESC-Eval repository is expected)")
    clone = Clone()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or not path.is_file():
            continue
        if path.suffix == ".py":
            clone.scripts.append(path)
        elif match := _CARDS.fullmatch(path.name):
            _add(clone.cards, (_CARD_KINDS[match[1]], _LANGUAGE[match[2]]), path)
        elif match := _RUN.fullmatch(path.name):
            kinds = [match[1]] if match[1] else [part for part in parts[:-1] if part in ("result", "score")]
            if kinds:
                run = PublishedRun(f"{match[2]}_{match[3]}", match[2], _LANGUAGE[match[3]], path)
                _add(clone.results if kinds[-1] == "result" else clone.scores, run.name, run)
    if not (clone.cards or clone.results or clone.scores or clone.scripts):
        names = "card_high_*.json, test_*.json, result and score files, scripts"
        raise UserError(f"{folder}: none of the published files ({names})")
    return clone


def _add(files: dict[Any, Any], key: Any, value: Path | PublishedRun) -> None:
    if files.setdefault(key, value) is not value:
        first, second = (item.path if isinstance(item, PublishedRun) else item for item in (files[key], value))
        raise UserError(f"two files of one name: {first} and {second}; keep one of them")


def read_dialogues(run: PublishedRun, cards: Sequence[RoleCard], reader: CorpusReader) -> Iterator[Dialogue]:
    """The dialogues of one result file, each linked to the test card at its index, if there is one. A unit is one dialogue,
    which the fixed greeting opens; its id ends in its key."""
    by_place = {str(place): card.id for place, card in enumerate(cards)}
    for index, value in _entries(run, reader):
        with reader.accounting(reader.row(f"{run.path}: dialogue {index[:60]}", value)):
            if not isinstance(value, list) or not value or not all(isinstance(line, str) for line in value):
                raise Malformed("expected a list of lines")
            yield Dialogue(
                id=run.dialogue_id(index),
                language=run.language,
                framework="esc_eval",
                source="esc-eval",
                source_id=f"{run.name}/{index}",
                card_id=by_place.get(index),
                supporter=run.supporter,
                simulator="esc-role",
                turns=tuple(turn_of(line, place) for place, line in enumerate(value)),
                termination="max_turns",
            )


def turn_of(line: str, place: int) -> Turn:
    """A line of a result file as a turn, with its white space."""
    for marker, role in _MARKERS.items():
        if line.startswith(marker):
            return Turn(role=role, text=line.removeprefix(marker))
    raise Malformed(f"line {place} begins with none of {', '.join(_MARKERS)}")


def read_scores(run: PublishedRun, dialogue_ids: set[str], reader: CorpusReader) -> Iterator[Judgement]:
    """ESC-RANK's verdicts in one score file, one per dimension; unreadable ones (-1) have no value. A unit is one score."""
    scale = load_rubric(RUBRIC).scores
    for index, value in _entries(run, reader):
        where = f"{run.path}: dialogue {index[:60]}"
        if not isinstance(value, dict):
            reader.malformed(reader.row(where, value), "expected an object of scores")
            continue
        for key, score in value.items():
            with reader.accounting(reader.row(f"{where}, {key[:60]}", score)):
                if key not in DIMENSIONS:
                    raise Malformed(f"unknown dimension {key!r} (known: {', '.join(DIMENSIONS)})")
                if type(score) is not int or score not in (*scale, UNREAD):
                    raise Malformed(f"{score!r} is not a score ({scale[0]} to {scale[-1]}, or {UNREAD})")
                if run.dialogue_id(index) not in dialogue_ids:
                    raise Dropped("no such dialogue")
                yield Judgement(
                    dialogue_id=run.dialogue_id(index),
                    language=run.language,
                    judge="esc-rank-published",
                    rubric=RUBRIC,
                    dimension=DIMENSIONS[key],
                    value=None if score == UNREAD else score,
                    condition={"mode": "paper"},
                    method="paper",
                )


def _entries(run: PublishedRun, reader: CorpusReader) -> list[tuple[str, Any]]:
    value = reader.json(run.path)
    if not isinstance(value, dict):
        raise UserError(f"{run.path}: expected a JSON object, found {type(value).__name__}")
    return list(value.items())
