"""Dialogues that people held with supporters, and the ratings they gave afterwards (ESC-Eval section 3.3: 20 situations, each
talked over with 5 models), in a form of our own. Every row must be right: errors name file, line and column.

Dialogues, as JSON lines with one dialogue a line,

    {"situation": "test/17", "supporter": "model-a", "language": "en", "turns": [{"role": "seeker", "text": "…"}, …]}

or as CSV with one utterance a row, in the order in which they were said:

    situation,supporter,language,role,text
    test/17,model-a,en,seeker,…

Ratings, as CSV or as JSON lines with these fields, one score a row, 0 to 4 or whatever the rubric's scale is:

    situation,supporter,annotator,rubric,dimension,value
    test/17,model-a,anna,esc_eval_human,empathy,3

`trial` (0 if left out) tells dialogues apart that were held on one situation with one supporter. `profile` or `card` may say
who the seeker is (EmoHarbor's participants) or plays (table 1's people). A role is seeker or supporter; messages that
one side sent in a row become one turn, their texts on lines of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import StringConstraints, model_validator

from core.errors import UserError, at, near
from core.files import validated
from core.names import one_spelling
from core.people_tables import Faults
from core.records import Annotator, Count, Dialogue, HumanScore, Identifier, Language, Record, Role, System, Turn, dialogue_id
from core.rows import read_table
from data_prep.scores.human import read_dialogues
from data_prep.sources.support import merged

SOURCE = "held"
KIND = "held dialogues and their ratings"

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class HeldTalk(NamedTuple):
    """Which dialogue: what it was about, with whom, and the how manieth of those."""

    situation: str
    supporter: str
    trial: int

    def __str__(self) -> str:
        return f"{self.situation} with {self.supporter}" + (f", trial {self.trial}" if self.trial else "")


class _OfTalk(Record):
    situation: Identifier
    supporter: System
    trial: Count = 0

    @property
    def talk(self) -> HeldTalk:
        return HeldTalk(self.situation, self.supporter, self.trial)


class _HeldTurn(Record):
    role: Role
    text: _Text


class _OfDialogue(_OfTalk):
    language: Language
    profile: Identifier | None = None
    card: Identifier | None = None

    @model_validator(mode="after")
    def _one_seeker(self) -> _OfDialogue:
        if self.profile and self.card:
            raise ValueError("profile and card: a dialogue's seeker has one of them")
        return self

    def person(self) -> dict[str, str | None]:
        return {"profile_id": self.profile, "card_id": self.card}


class _HeldDialogue(_OfDialogue):
    turns: tuple[_HeldTurn, ...]


class _Utterance(_OfDialogue, _HeldTurn):
    pass


class _HeldRating(_OfTalk):
    annotator: Annotator
    rubric: Identifier
    dimension: Identifier
    value: Any  # as HumanScore has it


def read_held(paths: Sequence[Path]) -> dict[HeldTalk, Dialogue]:
    """The dialogues of `.jsonl` and `.csv` files, in order: framework null, `source_id` the situation.

    Raises `UserError` with file, line and column for a malformed row, a dialogue that stands twice or in which one side says
    nothing, and one whose language changes.
    """
    dialogues: dict[HeldTalk, Dialogue] = {}

    def each(where: str, held: _HeldDialogue) -> None:
        if held.talk in dialogues:
            raise UserError(f"{where}: situation: the dialogue on {held.talk} stands twice (number them in trial)")
        turns = merged(Turn(role=utterance.role, text=utterance.text) for utterance in held.turns)
        for role in ("seeker", "supporter"):
            if role not in {turn.role for turn in turns}:
                raise UserError(f"{where}: turns: in the dialogue on {held.talk} the {role} says nothing")
        dialogues[held.talk] = Dialogue(
            id=dialogue_id(SOURCE, held.situation, held.supporter, "", held.trial),
            language=held.language,
            source=SOURCE,
            source_id=held.situation,
            supporter=held.supporter,
            trial=held.trial,
            turns=turns,
            **held.person(),
        )

    for path in paths:
        if path.suffix.lower() == ".jsonl":
            read_table(path, _HeldDialogue, KIND, each)
            continue
        with Faults() as faults:
            for where, held in _by_utterance(path):
                with faults.noting():
                    each(where, held)
    one_spelling(dialogues.values(), "held dialogues")
    return dialogues


def _by_utterance(path: Path) -> Iterator[tuple[str, _HeldDialogue]]:
    first: dict[HeldTalk, tuple[str, _Utterance]] = {}
    turns: dict[HeldTalk, list[_HeldTurn]] = {}

    def each(where: str, utterance: _Utterance) -> None:
        _, begun = first.setdefault(utterance.talk, (where, utterance))
        if utterance.language != begun.language:
            raise UserError(f"{where}: language: {utterance.language}, but {utterance.talk} began in {begun.language}")
        if utterance.person() != begun.person():
            raise UserError(f"{where}: profile, card: {utterance.talk} began with another one, or with none")
        turns.setdefault(utterance.talk, []).append(_HeldTurn(role=utterance.role, text=utterance.text))

    read_table(path, _Utterance, KIND, each)
    for talk, (where, begun) in first.items():
        begun_with = {"language": begun.language, "profile": begun.profile, "card": begun.card}
        yield where, _HeldDialogue(**talk._asdict(), **begun_with, turns=tuple(turns[talk]))


def read_ratings(
    paths: Sequence[Path], held: dict[HeldTalk, Dialogue], check: Callable[[HumanScore], None]
) -> list[HumanScore]:
    """The ratings of `.csv` and `.jsonl` files as scores of the held dialogues, each given to `check`.

    Raises `UserError` with file, line and column for a malformed rating, one of a dialogue that is not `held`, one that an
    annotator gave twice, and what `check` refuses (a `UserError`).
    """
    scores: dict[tuple[str, ...], HumanScore] = {}

    def each(where: str, rating: _HeldRating) -> None:
        if rating.talk not in held:
            raise UserError(f"{where}: {_unknown(rating.talk, held)}")
        dialogue = held[rating.talk]
        fields = rating.model_dump(exclude={"situation", "supporter", "trial"})
        score = validated(HumanScore, {"dialogue_id": dialogue.id, "language": dialogue.language} | fields, where)
        with at(where):
            check(score)
        key = (score.dialogue_id, score.annotator, score.rubric, score.dimension)
        if key in scores:
            raise UserError(f"{where}: {score.annotator} rated {rating.talk} / {score.dimension} twice")
        scores[key] = score

    for path in paths:
        read_table(path, _HeldRating, KIND, each)
    one_spelling(scores.values(), "ratings")
    return list(scores.values())


def _unknown(talk: HeldTalk, held: dict[HeldTalk, Dialogue]) -> str:
    """Which column of a rating fits no dialogue."""
    situations = {other.situation for other in held}
    if talk.situation not in situations:
        return f"situation: no dialogue on {talk.situation!r}: {near(talk.situation, situations)}"
    supporters = {other.supporter for other in held if other.situation == talk.situation}
    if talk.supporter not in supporters:
        return f"supporter: no dialogue on {talk.situation!r} with {talk.supporter!r}: {near(talk.supporter, supporters)}"
    return f"trial: no dialogue on {talk}"


def references(paths: Sequence[Path], held: dict[HeldTalk, Dialogue]) -> list[Dialogue]:
    """The corpus's own dialogue of each situation: supporters can answer on its history, and its replies are the references.

    `paths` hold `Dialogue` records whose `source_id` is a situation; others are passed over. In the order of the situations.
    Raises `UserError` for a situation without one, or with two.
    """
    files = ", ".join(map(str, paths))
    wanted = list(dict.fromkeys(talk.situation for talk in held))
    matching: dict[str, Dialogue] = {}
    for dialogue in read_dialogues(paths):
        situation = dialogue.source_id
        if situation is None or situation not in wanted:
            continue
        if situation in matching:
            both = f"{matching[situation].id} and {dialogue.id}"
            raise UserError(f"{files}: source_id: {both} are both of situation {situation!r}")
        matching[situation] = dialogue
    if missing := [situation for situation in wanted if situation not in matching]:
        listed = ", ".join(map(repr, missing[:3]))
        raise UserError(f"{files}: source_id: no dialogue of situation {listed} ({len(missing)} of {len(wanted)} lack one)")
    return [matching[situation] for situation in wanted]
