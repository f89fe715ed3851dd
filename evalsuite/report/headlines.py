"""The first lines of a report: who did best and worst, how much was held and read, and what to be wary of, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from core.records import Dialogue, Judgement, Termination
from core.tables import Estimate, fmt
from evalsuite.report.charts import LANGUAGES, Agreement
from evalsuite.statistics.leaderboard import Board
from evalsuite.statistics.summary import AVERAGE, MISSING, broken, languages_of, missing

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


def standings(boards: Sequence[Board], agreements: Mapping[str, Agreement]) -> Iterator[str]:
    """Best and worst supporter of each language by average, as each scorer sees it; one sentence where there is but one.

    No best is named on the word of a judge that nobody measured, or that is not better than the majority class: `agreements`
    maps judge → its agreement with people.
    """
    several = len({board.scorer for board in boards}) > 1
    for board in boards:
        ranked = [(board.scores[place][-1], board.ranks[place]) for place in board.order]
        averages = [(cell, rank) for cell, rank in ranked if cell.estimate.mean is not None]
        if not averages:
            continue
        where = LANGUAGES[board.language] + (f", judged by {board.scorer.name}" if several else "")
        (best, top), (worst, last), many = averages[0], averages[-1], len(averages)
        first, lowest = (f"{cell.supporter} ({_spoken(cell.estimate)}" for cell in (best, worst))
        if many == 1:
            yield f"{where}: {first}) is the only supporter."
        elif all(rank == 1 for _, rank in averages):
            yield (
                f"{where}: no supporter is told apart from another, so all {many} share rank 1; highest average {first}), "
                f"lowest {lowest})."
            )
        elif doubt := _doubt(board.scorer.judge, agreements.get(board.scorer.judge, {}).get(board.language)):
            yield f"{where}: no best supporter is named, as {doubt}; highest average {first}), lowest {lowest})."
        else:
            place = f", rank {top} of {many}" if top is not None else ""
            end = f", rank {last} of {many}" if last is not None else ""
            if last is not None and last < many:  # a rank counts who is shown to be better
                end += f", as only {last - 1} {'is' if last == 2 else 'are'} shown to be better"
            yield f"{where}: best on average is {first}{place}), worst {lowest}{end})."


def _doubt(judge: str, agreement: Mapping[str, Mapping[str, float | None]] | None) -> str | None:
    """Why a judge's word is not enough to name a best; None where its accuracy lies above the majority class."""
    figures = (agreement or {}).get(AVERAGE, {})
    acc, low, majority = (figures.get(name) for name in ("acc", "acc_low", "majority_acc"))
    if acc is None or majority is None:
        return f"no gold set says how good the judge {judge} is"
    if (acc if low is None else low) > majority:
        return None
    interval = "" if low is None else f", 95 % interval from {fmt(100 * low, 1)}"
    return (
        f"the judge {judge} is not shown to be better than giving everybody the commonest score (right in "
        f"{fmt(100 * acc, 1)} % of the gold set{interval}; the commonest score {fmt(100 * majority, 1)} %)"
    )


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
