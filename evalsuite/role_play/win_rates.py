"""What answers on pairs of seekers come to (ESC-Eval figure 3): choices between the seekers of two dialogues on one card."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import UserError
from core.records import LOST, Dialogue
from core.tables import Table
from evalsuite.role_play.pairwise import QUESTION, PairAnswer
from evalsuite.role_play.seekers import ROLE_PLAY, seeker_of
from evalsuite.statistics.win_rates import Choice, Mode, Words, win_rate_tables

WORDS = Words("role_play", "seeker", "cards", ROLE_PLAY)
TITLES = {QUESTION: "Closer to a human"}


def choices_of(answers: Sequence[PairAnswer], dialogues: Sequence[Dialogue]) -> list[Choice]:
    """Answers on these dialogues as choices between their seekers.

    Raises `UserError` for a dialogue that is not given, or two dialogues on different cards or of one seeker.
    """
    known = {dialogue.id: dialogue for dialogue in dialogues}
    return [_choice(answer, known) for answer in answers]


def _choice(answer: PairAnswer, known: dict[str, Dialogue]) -> Choice:
    for id in (answer.dialogue_a, answer.dialogue_b):
        if id not in known:
            raise UserError(f"answer by {answer.annotator}: no dialogue {id!r} among those given")
    a, b = known[answer.dialogue_a], known[answer.dialogue_b]
    where = f"answer by {answer.annotator} on {a.id} and {b.id}"
    if seeker_of(a) == seeker_of(b):
        raise UserError(f"{where}: both are of seeker {seeker_of(a)}")
    if a.card_id is None or a.card_id != b.card_id:
        raise UserError(f"{where}: card_id: {a.card_id or 'none'} and {b.card_id or 'none'}; a pair is on one card")
    return Choice(
        a.language,
        a.card_id,
        seeker_of(a),
        seeker_of(b),
        answer.verdict,
        annotator=answer.annotator,
        question=answer.question,
        outputs=(a.id, b.id),
        first=seeker_of(a if answer.order == "ab" else b),
        lost=answer.failure in LOST,
    ).sorted()


def pairwise_tables(answers: Sequence[PairAnswer], dialogues: Sequence[Dialogue], mode: Mode) -> list[Table]:
    """Win rates of every seeker, every pair of seekers, and what annotators make of the order (figure 3, and beyond)."""
    return win_rate_tables(choices_of(answers, dialogues), mode, WORDS, TITLES)
