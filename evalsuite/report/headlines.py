"""The first lines of a report: who did best and worst, how much was held and read, and what to be wary of, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from core.records import Dialogue, Judgement, Termination
from core.tables import Estimate, fmt
from evalsuite.report.charts import LANGUAGES
from evalsuite.statistics.leaderboard import Board
from evalsuite.statistics.summary import MISSING, broken, languages_of, missing

ENDINGS: dict[Termination | None, str] = {
    "max_turns": "after the planned exchanges",
    "seeker_ended": "because the seeker took leave",
    "refusal": "with a refusal",
    "empty_reply": "with an empty reply",
    "context_overflow": "because the context was full",
    "infrastructure": "because a server was lost",
    "rejected": "because a server rejected a call",
    None: "for no recorded reason",
}


def standings(boards: Sequence[Board]) -> Iterator[str]:
    """Best and worst supporter of each language by average, as each scorer sees it; one sentence where there is but one."""
    several = len({board.scorer for board in boards}) > 1
    for board in boards:
        ranked = [(board.scores[place][-1], board.ranks[place]) for place in board.order]
        averages = [(cell, rank) for cell, rank in ranked if cell.estimate.mean is not None]
        if not averages:
            continue
        where = LANGUAGES[board.language] + (f", judged by {board.scorer.name}" if several else "")
        names = []
        for cell, rank in averages:
            place = f", rank {rank} of {len(averages)}" if rank is not None and len(averages) > 1 else ""
            names.append(f"{cell.supporter} ({_spoken(cell.estimate)}{place})")
        if len(names) == 1:
            yield f"{where}: {names[0]} is the only supporter."
        elif all(rank == 1 for _, rank in averages):
            yield f"{where}: no supporter is told apart from another; highest average {names[0]}, lowest {names[-1]}."
        else:
            yield f"{where}: best on average is {names[0]}, worst {names[-1]}."


def _spoken(estimate: Estimate) -> str:
    interval = "" if estimate.low is None else f", 95 % interval {fmt(estimate.low, 1)} to {fmt(estimate.high, 1)}"
    return f"{fmt(estimate.mean, 1)} of 100{interval}, n = {estimate.n:,}"


def held(dialogues: Sequence[Dialogue]) -> str:
    """How many dialogues there are and how they ended."""
    languages = ", ".join(
        f"{sum(d.language == language for d in dialogues):,} {LANGUAGES[language]}" for language in languages_of(dialogues)
    )
    count = f"{len(dialogues):,} dialogue{'s' if len(dialogues) != 1 else ''} ({languages})"
    ends = Counter(dialogue.termination for dialogue in dialogues)
    if not dialogues or set(ends) == {None}:
        return f"{count}."
    endings = [f"{ends[reason]:,} ended {words}" for reason, words in ENDINGS.items() if ends[reason]]
    return f"{count}: {', '.join(endings)}."


def unread(judgements: Sequence[Judgement]) -> str:
    """How many verdicts have no value and why, and how many came with broken probabilities; empty where all is well."""
    counts, unsound = missing(judgements), broken(judgements)
    reasons = [f"{count:,} {MISSING.get(reason, f'failed ({reason})')}" for reason, count in counts.items()]
    if reasons:
        share = 100 * next(iter(counts.values())) / len(judgements)
        first, _, words = reasons[0].partition(" ")
        reasons = [f"{first} of {len(judgements):,} verdicts ({fmt(share, 1)} %) {words}", *reasons[1:]]
    sentences = [f"{', '.join(reasons)}: they are in no mean."] if reasons else []
    if unsound:
        sentences.append(f"{unsound:,} verdicts came with broken probabilities: the score in their text stands.")
    return " ".join(sentences)
