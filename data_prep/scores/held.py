"""Dialogues that people held with supporters, and their ratings afterwards (ESC-Eval section 3.3: 20 situations, each discussed
with 5 models), in our own form. Every row must be right: errors name file, line and column.

Dialogues, as JSON lines with one dialogue per line,

    {"situation": "test/17", "supporter": "model-a", "language": "en", "turns": [{"role": "seeker", "text": "…"}, …]}

or as CSV with one utterance per row, in their order:

    situation,supporter,language,role,text
    test/17,model-a,en,seeker,…

Ratings, as CSV or JSON lines with these fields, one score per row on the rubric's scale, such as 0 to 4:

    situation,supporter,annotator,rubric,dimension,value
    test/17,model-a,anna,esc_eval_human,empathy,3

`trial` (default 0) numbers the dialogues on one situation with one supporter. `profile` or `card` may say who the seeker is
(EmoHarbor's participants) or plays (table 1's people). A role is seeker or supporter; consecutive messages of one side become
one turn, their texts on separate lines.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

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
    """A dialogue's situation, supporter, and number among those with both the same."""

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
    def _one_seeker(self) -> Self:
        if self.profile and self.card:
            raise ValueError("profile and card: a dialogue's seeker has one of them")
        return self


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
    """The dialogues of `.jsonl` and `.csv` files, in order: framework null, `source_id` the situation. Raises `UserError` with
    file, line and column for a malformed row, and for a dialogue that occurs twice or lacks one side."""
    dialogues: dict[HeldTalk, Dialogue] = {}

    def each(where: str, row: _HeldDialogue) -> None:
        if row.talk in dialogues:
            raise UserError(f"{where}: situation: the dialogue on {row.talk} occurs twice (number them in trial)")
        turns = merged(Turn(role=utterance.role, text=utterance.text) for utterance in row.turns)
        for role in ("seeker", "supporter"):
            if role not in {turn.role for turn in turns}:
                raise UserError(f"{where}: turns: in the dialogue on {row.talk} the {role} says nothing")
        dialogues[row.talk] = Dialogue(
            id=dialogue_id(SOURCE, row.situation, row.supporter, "", row.trial),
            language=row.language,
            source=SOURCE,
            source_id=row.situation,
            supporter=row.supporter,
            trial=row.trial,
            turns=turns,
            profile_id=row.profile,
            card_id=row.card,
        )

    for path in paths:
        if path.suffix.lower() == ".jsonl":
            read_table(path, _HeldDialogue, KIND, each)
            continue
        with Faults() as faults:
            for where, row in _by_utterance(path):
                with faults.noting():
                    each(where, row)
    one_spelling(dialogues.values(), "held dialogues")
    return dialogues


def _by_utterance(path: Path) -> list[tuple[str, _HeldDialogue]]:
    turns: dict[_OfDialogue, tuple[str, list[_HeldTurn]]] = {}
    heads: dict[HeldTalk, _OfDialogue] = {}

    def each(where: str, utterance: _Utterance) -> None:
        head = _OfDialogue.model_validate(utterance.model_dump(exclude={"role", "text"}))
        if heads.setdefault(head.talk, head) != head:
            raise UserError(f"{where}: situation: {head.talk} began in another language, or with another profile or card")
        turns.setdefault(head, (where, []))[1].append(_HeldTurn(role=utterance.role, text=utterance.text))

    read_table(path, _Utterance, KIND, each)
    return [(where, _HeldDialogue(**vars(head), turns=tuple(lines))) for head, (where, lines) in turns.items()]


def read_ratings(
    paths: Sequence[Path], dialogues: dict[HeldTalk, Dialogue], check: Callable[[HumanScore], None]
) -> list[HumanScore]:
    """The ratings in `.csv` and `.jsonl` files as scores of the dialogues, each passed to `check`. Raises `UserError` with
    file, line and column for a rating that is malformed, of an unknown dialogue, given twice, or refused by `check`."""
    scores: dict[tuple[str, ...], HumanScore] = {}

    def each(where: str, rating: _HeldRating) -> None:
        if rating.talk not in dialogues:
            names = near(str(rating.talk), map(str, dialogues))
            raise UserError(f"{where}: situation, supporter: no dialogue on {rating.talk}: {names}")
        dialogue = dialogues[rating.talk]
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


def references(paths: Sequence[Path], dialogues: dict[HeldTalk, Dialogue]) -> list[Dialogue]:
    """The corpus's own dialogue (a `Dialogue` with the situation as `source_id`) of each situation, in their order. Raises
    `UserError` for a situation with none or two."""
    files = ", ".join(map(str, paths))
    wanted = list(dict.fromkeys(talk.situation for talk in dialogues))
    matching: dict[str, Dialogue] = {}
    for dialogue in read_dialogues(paths):
        situation = dialogue.source_id
        if situation is None or situation not in wanted:
            continue
        if (first := matching.setdefault(situation, dialogue)) is not dialogue:
            raise UserError(f"{files}: source_id: {first.id} and {dialogue.id} are both of situation {situation!r}")
    if missing := [situation for situation in wanted if situation not in matching]:
        listed = ", ".join(map(repr, missing[:3]))
        raise UserError(f"{files}: source_id: no dialogue of situation {listed} ({len(missing)} of {len(wanted)} lack one)")
    return [matching[situation] for situation in wanted]
