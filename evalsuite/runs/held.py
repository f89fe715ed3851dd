"""The content of a run folder that is resumed or grows: it is kept, and new dialogues are added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from core.errors import UserError
from core.files import each_placed, holds
from core.records import Dialogue, Judgement, Language
from core.settings import differing_leaves
from data_prep.played import Played
from evalsuite.runs.folder import Run
from evalsuite.runs.identity import HeldSpec
from evalsuite.runs.judgement_sets import VERDICTS, JudgementSet
from evalsuite.runs.people import file_of, read_people

P = TypeVar("P", bound=Played)


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
        """The records by id."""
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
