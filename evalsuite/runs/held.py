"""The present content of a run folder, if the run is resumed or grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from core.differences import differing_leaves
from core.errors import UserError
from core.files import each_placed, holds
from core.records import Dialogue, Judgement, Language
from data_prep.played import Played
from evalsuite.runs.folder import Run
from evalsuite.runs.identity import HeldSpec
from evalsuite.runs.judgement_sets import VERDICTS, JudgementSet
from evalsuite.runs.people import RECORDS, read_people

P = TypeVar("P", bound=Played)
T = TypeVar("T")


@dataclass(frozen=True)
class Held:
    """The dialogues of a run folder, and their supporters and people. Supporters that never answered are left out."""

    folder: Path
    supporters: Sequence[HeldSpec] = ()
    """In the order of the folder's config."""
    languages: Sequence[Language] = ()
    trials: int = 1
    references: str | None = None
    """The hash of what the supporters of source dialogues said, where they are floors."""
    names: frozenset[str] = field(default_factory=frozenset)
    """The supporters' names."""
    judged: JudgementSet | None = None
    """The verdicts of the judge that is asked now."""

    @classmethod
    def of(cls, run: Run, judged: JudgementSet | None) -> Held | None:
        """The content of a folder; None if no dialogue was held there."""
        config = run.claimed_config()
        simulated = config.simulated
        if simulated is None:
            return None
        claimed = config.root["simulate"].get("supporters", [])
        supporters = [HeldSpec.of(model, run.folder / "config.json") for model in claimed if run.answered_by(model)]
        return cls(
            run.folder,
            supporters,
            simulated.languages,
            simulated.trials,
            simulated.references,
            frozenset(spec.name for spec in supporters),
            judged,
        )

    @cached_property
    def people(self) -> list[Played]:
        """Everybody who was played."""
        return read_people(self.folder)

    def _each(self) -> Iterator[Dialogue]:
        """The records, streamed; empty if no run has finished."""
        path = self.folder / "dialogues.jsonl"
        records = each_placed(path, Dialogue, "dialogues") if path.exists() else ()
        return (dialogue for _, dialogue in records if dialogue.supporter in self.names)

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids of the records, which need not be in memory for them."""
        return frozenset(dialogue.id for dialogue in self._each())

    @cached_property
    def dialogues(self) -> dict[str, Dialogue]:
        """The records by id."""
        return {dialogue.id: dialogue for dialogue in self._each()}

    @cached_property
    def judgements(self) -> dict[str, list[Judgement]]:
        """The verdicts by dialogue, those on single turns last."""
        by_dialogue: dict[str, list[Judgement]] = {}
        for name in VERDICTS:
            for judgement in self.judged.records(name) if self.judged else []:
                by_dialogue.setdefault(judgement.dialogue_id, []).append(judgement)
        return by_dialogue

    def _holds(self, chosen: Sequence[P]) -> bool:
        """Whether exactly these people were played: comparing the file is several times as fast as reading it."""
        name = next(name for name, record in RECORDS.items() if isinstance(chosen[0], record))
        return holds(self.folder / name, chosen)

    def people_with(self, chosen: Sequence[P], languages: Iterable[Language]) -> list[P]:
        """The people played so far, then the new ones, language by language. Raises `UserError` if a person with the same id
        has changed."""
        new = {person.id: person for person in chosen}
        together: list[P] = []
        for person in () if self._holds(chosen) else self.people:
            if not isinstance(person, type(chosen[0])):
                continue
            other = new.pop(person.id, person)
            if lines := differing_leaves(person.model_dump(mode="json"), other.model_dump(mode="json")):
                raise UserError(
                    f"{self.folder} was made with another {person.id}: {'; '.join(lines)}. Use another --out, or the old file"
                )
            together.append(person)
        together += new.values()
        return [person for language in languages for person in together if person.language == language]


def joined(present: Iterable[T], new: Iterable[T]) -> list[T]:
    """The present items in their order, then the new ones."""
    return list(dict.fromkeys([*present, *new]))
