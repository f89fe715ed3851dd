"""What answers on pairs of seekers come to: votes, win rates (ESC-Eval figure 3), and what the order shown does to the answers.

In native mode an annotator's answers on a pair are one vote, and a tie where they change with the order; in paper mode every
answer is a vote of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.records import Dialogue, Language
from data_prep.scores.accuracy import share
from data_prep.scores.bootstrap import interval, resampled_means
from data_prep.tables import Cell, Estimate, Table
from evalsuite.role_play.pairwise import Mode, PairAnswer, Verdict
from evalsuite.role_play.seekers import ROLE_PLAY, seeker_of
from evalsuite.statistics.summary import LOST
from serve.errors import UserError


@dataclass(frozen=True)
class Vote:
    """What one annotator's answers on one pair come to, between seekers `a` and `b` (in alphabetical order)."""

    language: Language
    card: str
    a: str
    b: str
    verdict: Verdict | None


def votes_of(answers: Sequence[PairAnswer], dialogues: Sequence[Dialogue], mode: Mode) -> list[Vote]:
    """The votes of answers on these dialogues.

    Native: an annotator's answers on a pair are one vote: their verdict where all orders agree, a tie where they differ, None
    where one of them could not be read. Paper: every answer is a vote. An answer that was lost with a server takes its vote
    along. Raises `UserError` for a dialogue that is not given, or two dialogues on different cards or of one seeker.
    """
    known = {dialogue.id: dialogue for dialogue in dialogues}
    grouped: dict[tuple[object, ...], list[Vote]] = defaultdict(list)
    lost = set()
    for number, answer in enumerate(answers):
        vote, pair = _vote(answer, known)
        key = number if mode == "paper" else None, answer.annotator, pair
        grouped[key].append(vote)
        if answer.failure == LOST:
            lost.add(key)
    votes = []
    for members in (members for key, members in grouped.items() if key not in lost):
        verdicts = {member.verdict for member in members}
        verdict: Verdict | None = None if None in verdicts else verdicts.pop() if len(verdicts) == 1 else "tie"
        first = members[0]
        votes.append(Vote(first.language, first.card, first.a, first.b, verdict))
    return votes


def _vote(answer: PairAnswer, known: dict[str, Dialogue]) -> tuple[Vote, tuple[str, str]]:
    for id in (answer.dialogue_a, answer.dialogue_b):
        if id not in known:
            raise UserError(f"answer by {answer.annotator}: no dialogue {id!r} among those given")
    a, b = known[answer.dialogue_a], known[answer.dialogue_b]
    verdict = answer.verdict
    if seeker_of(a) > seeker_of(b):
        a, b = b, a
        verdict = {"a": "b", "b": "a"}.get(verdict or "", verdict)  # type: ignore[assignment]
    where = f"answer by {answer.annotator} on {a.id} and {b.id}"
    if seeker_of(a) == seeker_of(b):
        raise UserError(f"{where}: both are of seeker {seeker_of(a)}")
    if a.card_id is None or a.card_id != b.card_id:
        raise UserError(f"{where}: card_id: {a.card_id or 'none'} and {b.card_id or 'none'}; a pair is on one card")
    return Vote(a.language, a.card_id, seeker_of(a), seeker_of(b), verdict), (a.id, b.id)


def rate(votes: Sequence[Vote], points: Callable[[Vote], float]) -> Estimate:
    """Mean points of the votes with a verdict, in percent, with a 95 % bootstrap interval over cards; n counts votes.

    Cards are drawn whole, with all their votes. No interval with fewer than two cards.
    """
    read = [vote for vote in votes if vote.verdict is not None]
    if not read:
        return Estimate(None, None, None, 0)
    places = {card: place for place, card in enumerate(sorted({vote.card for vote in read}))}
    sums, counts = np.zeros((2, len(places), 1))
    for vote in read:
        sums[places[vote.card]] += 100 * points(vote)
        counts[places[vote.card]] += 1
    mean = float(sums.sum() / counts.sum())
    if len(places) < 2:
        return Estimate(mean, None, None, len(read))
    return Estimate(mean, *interval(resampled_means(sums, counts)[:, 0]), len(read))


def _points(seeker: str) -> Callable[[Vote], float]:
    def points(vote: Vote) -> float:
        return 0.5 if vote.verdict == "tie" else float((vote.a if vote.verdict == "a" else vote.b) == seeker)

    return points


def pairwise_tables(answers: Sequence[PairAnswer], dialogues: Sequence[Dialogue], mode: Mode) -> list[Table]:
    """Win rates of every seeker, every pair of seekers, and what annotators make of the order (figure 3, and beyond)."""
    votes = votes_of(answers, dialogues, mode)
    notes = (
        "Win rate: share of votes won, a tie counts half, with a 95 % bootstrap interval over cards (none for a single card). "
        "Decided: share of the votes that are no tie, Wilson's 95 % interval. Votes without a readable answer are in no rate.",
        f"{mode} mode: "
        + (
            "one vote an annotator and pair; answers that change with the order shown are a tie."
            if mode == "native"
            else "every answer is a vote of its own, whatever the other order gave."
        ),
    )
    overall, pairs = [], []
    for language in sorted({vote.language for vote in votes}):
        own = [vote for vote in votes if vote.language == language]
        ranked = []
        for seeker in sorted({name for vote in own for name in (vote.a, vote.b)}):
            mine = [vote for vote in own if seeker in (vote.a, vote.b)]
            ranked.append((language, seeker, *_counts(mine, seeker)))
        overall += sorted(ranked, key=lambda row: -(row[7].mean or 0.0))
        for a, b in sorted({(vote.a, vote.b) for vote in own}):
            pairs.append((language, a, b, *_counts([vote for vote in own if (vote.a, vote.b) == (a, b)], a)))
    figures = ("cards", "won", "ties", "lost", "unread", "win rate %", "of decided %")
    return [
        Table(
            key="role_play-win_rates",
            title="Closer to a human: all pairs",
            columns=("language", "seeker", *figures),
            rows=tuple(overall),
            notes=notes,
            section=ROLE_PLAY,
        ),
        Table(
            key="role_play-pairs",
            title="Closer to a human: pair by pair",
            columns=("language", "seeker", "against", *figures),
            rows=tuple(pairs),
            notes=notes,
            section=ROLE_PLAY,
        ),
        _position(answers),
    ]


def _counts(votes: Sequence[Vote], seeker: str) -> tuple[int, int, int, int, int, Estimate, Estimate]:
    """Cards, won, ties, lost, unread, win rate, share of the decided, as one seeker's."""
    points = _points(seeker)
    read = Counter(points(vote) for vote in votes if vote.verdict is not None)
    won, ties, lost = read[1.0], read[0.5], read[0.0]
    unread = sum(vote.verdict is None for vote in votes)
    return len({vote.card for vote in votes}), won, ties, lost, unread, rate(votes, points), share(won, won + lost)


def _position(answers: Sequence[PairAnswer]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for annotator in sorted({answer.annotator for answer in answers}):
        own = [answer for answer in answers if answer.annotator == annotator and answer.failure != LOST]
        read = [answer for answer in own if answer.verdict is not None]
        decided = [answer for answer in read if answer.verdict != "tie"]
        first = sum(answer.verdict == answer.order[0] for answer in decided)
        both: dict[frozenset[str], list[str]] = defaultdict(list)
        for answer in read:
            chosen = {"a": answer.dialogue_a, "b": answer.dialogue_b}.get(answer.verdict or "", "tie")
            both[frozenset((answer.dialogue_a, answer.dialogue_b))].append(chosen)
        twice = [chosen for chosen in both.values() if len(chosen) > 1]
        stable = sum(len(set(chosen)) == 1 for chosen in twice)
        shares = (share(first, len(decided)), share(stable, len(twice)))
        rows.append((annotator, len(own), 100 * len(read) / len(own) if own else None, len(read) - len(decided), *shares))
    return Table(
        key="role_play-position",
        title="What the order shown does to the answers",
        columns=("annotator", "answers", "parse rate %", "ties", "first shown picked %", "same in both orders %"),
        rows=tuple(rows),
        notes=(
            "First shown picked: share of the answers that are no tie; 50 without a bias to either place. Wilson's 95 % "
            "intervals, which take answers as independent.",
        ),
        section=ROLE_PLAY,
    )
