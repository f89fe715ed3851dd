"""The first lines of a report: who did best and worst, how much was held and read, and what to be wary of, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from core.records import Dialogue, Judgement, Termination
from core.tables import Estimate, fmt
from evalsuite.report.charts import LANGUAGES, Agreement
from evalsuite.statistics.leaderboard import Board
from evalsuite.statistics.summary import AVERAGE, MISSING, broken, languages_of, missing, short_names

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


def standings(boards: Sequence[Board], doubt: Callable[[str, str], str]) -> Iterator[str]:
    """Which model is best and worst in each language by average, as each scorer sees it, and of how many of the others it is
    told apart; one sentence where there is but one. Floors are no rivals: `unbeaten` has them.

    `doubt(judge, language)` says why no best is to be named by a judge; "" where it may be.
    """
    for board in boards:
        models = set(board.models) or set(board.order)
        averages = [board.scores[place][-1] for place in board.order if place in models]
        ranked = [cell for cell in averages if cell.estimate.mean is not None]
        if not ranked:
            continue
        where = _where(board, boards)
        best, worst = ranked[0], ranked[-1]
        if len(ranked) == 1:
            kind = "model" if board.models else "supporter"
            yield f"{where}: {best.supporter} ({_spoken(best.estimate)}) is the only {kind}."
            continue
        among = [one for one in board.differences if {one.first, one.second} <= models]
        names = {cell.supporter for cell in ranked}
        apart = [(better, worse) for better, worse in _apart(board) if {better, worse} <= names]
        ahead, behind = sum(a == best.supporter for a, _ in apart), sum(b == worst.supporter for _, b in apart)
        others = len(ranked) - 1
        first = f"{best.supporter} ({_spoken(best.estimate)}; ahead of {_counted(ahead, others)} by a difference that holds)"
        last = f"{worst.supporter} ({_spoken(worst.estimate)}; behind {_counted(behind, others)} by a difference that holds)"
        if not apart:
            first, last = (f"{one.supporter} ({_spoken(one.estimate)})" for one in (best, worst))
            found = (
                "no supporter is shown to be better than another"
                if any(one.holds is not None for one in among)
                else "supporters could not be compared: the same dialogues, or fewer than two cards"
            )
            yield f"{where}: {found}; highest average {first}, lowest {last}."
        elif reason := doubt(board.scorer.judge, board.language):
            yield f"{where}: no best is named, because {reason}. Highest average {first}, lowest {last}."
        else:
            yield f"{where}: best on average is {first}, lowest {last}."


def _counted(number: int, others: int) -> str:
    return f"{number} of the {others} others" if others > 1 else "the other"


def unbeaten(boards: Sequence[Board], floors: Collection[str]) -> Iterator[str]:
    """Which supporters are not shown to beat a floor, a supporter that needs no model, in the average."""
    for board in boards:
        apart = set(_apart(board))
        names = [board.contestants[place].supporter for place in board.order]
        present = [name for name in names if name in floors]
        failing: dict[tuple[str, ...], list[str]] = {}  # the same floors → the supporters that do not beat them
        for name in names:
            missed = tuple(floor for floor in present if (name, floor) not in apart)
            if name not in floors and missed:
                failing.setdefault(missed, []).append(name)
        for missed, supporters in failing.items():
            are = "are" if len(supporters) > 1 else "is"
            yield (
                f"{_where(board, boards)}: {_listed(supporters)} {are} not shown to beat {_listed(missed)}, which "
                f"{'need' if len(missed) > 1 else 'needs'} no model."
            )


def _apart(board: Board) -> Iterator[tuple[str, str]]:
    """(better, worse) of every two supporters whose difference in the average holds."""
    for one in board.differences:
        if one.holds and one.estimate.mean is not None:
            names = [board.contestants[place].supporter for place in (one.first, one.second)]
            yield (names[0], names[1]) if one.estimate.mean > 0 else (names[1], names[0])


def _where(board: Board, boards: Sequence[Board]) -> str:
    names = short_names(one.scorer for one in boards)
    return LANGUAGES[board.language] + (f", judged by {names[board.scorer]}" if len(names) > 1 else "")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def doubt(agreements: Mapping[str, Agreement], judge: str, language: str) -> str:
    """Why a judge's best is not named: it was measured on no gold set in the language, or is not shown to be right more often
    than the majority class. "" where it is: the interval of ACC less the majority class's on the same gold lies above 0.
    """
    figures = agreements.get(judge, {}).get(language, {}).get(AVERAGE, {})
    names = "acc", "over_majority_low", "over_majority_high", "majority_acc"
    acc, low, high, majority = (figures.get(name) for name in names)
    if acc is None or majority is None:
        return f"nobody knows how well {judge} judges {LANGUAGES[language]}: it was measured on no gold set"
    if low is not None and low > 0:
        return ""
    interval = "" if low is None or high is None else f", difference [{100 * low:.1f}, {100 * high:.1f}]"
    clusters = f" in {figures['clusters']:,} {figures['clustered_by']}" if figures.get("clusters") else ""
    return (
        f"{judge} is not shown to judge better than the majority class (gold set: ACC {100 * acc:.1f}, majority class "
        f"{100 * majority:.1f}{interval}, n = {figures.get('n'):,}{clusters})"
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
