"""The first lines of a report: who did best and worst, how much was held and read, and what to be wary of, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from core.records import Dialogue, Judgement, Termination
from core.rubrics import Rubric
from core.tables import Estimate, fmt
from evalsuite.report.charts import LANGUAGES
from evalsuite.statistics.leaderboard import Score, ranks, tally
from evalsuite.statistics.summary import AVERAGE, MISSING, Scorer, broken, languages_of, missing

# Language, scorer, supporter → rank on the average (1 is best, equal ranks where no difference holds).
Ranks = Mapping[tuple[str, Scorer, str], int | None]

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


def ranks_of(dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric) -> Ranks:
    """The leaderboard's ranks."""
    found: dict[tuple[str, Scorer, str], int | None] = {}
    contestants = tally(dialogues, judgements, rubric)
    for _, group in groupby(contestants, key=lambda one: (one.language, one.scorer)):
        rivals = list(group)
        found |= {(one.language, one.scorer, one.supporter): rank for one, rank in zip(rivals, ranks(rivals), strict=True)}
    return found


def standings(cells: Sequence[Score], ranks: Ranks) -> Iterator[str]:
    """Best and worst supporter of each language by average, as each scorer sees it; one sentence where there is but one."""
    several = len({cell.scorer for cell in cells}) > 1
    groups: dict[tuple[str, Scorer], list[Score]] = {}
    for cell in cells:
        if cell.dimension == AVERAGE and cell.estimate.mean is not None:
            groups.setdefault((cell.language, cell.scorer), []).append(cell)
    for (language, scorer), own in groups.items():
        own = sorted(own, key=lambda cell: -(cell.estimate.mean or 0))
        where = LANGUAGES[language] + (f", judged by {scorer.name}" if several else "")

        def told(cell: Score, count: int = len(own)) -> str:
            rank = ranks.get((cell.language, cell.scorer, cell.supporter))
            place = f", rank {rank} of {count}" if rank is not None and count > 1 else ""
            return f"{cell.supporter} ({_spoken(cell.estimate)}{place})"

        first = [cell for cell in own if ranks.get((cell.language, cell.scorer, cell.supporter)) == 1]
        if len(own) == 1:
            yield f"{where}: {told(own[0])} is the only supporter."
        elif len(first) == len(own):
            yield f"{where}: no supporter is told apart from another; highest average {told(own[0])}, lowest {told(own[-1])}."
        else:
            yield f"{where}: best on average is {told(own[0])}, worst {told(own[-1])}."


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
    told = [f"{ends[reason]:,} ended {words}" for reason, words in ENDINGS.items() if ends[reason]]
    return f"{count}: {', '.join(told)}."


def unread(judgements: Sequence[Judgement]) -> str:
    """How many verdicts have no value and why, and how many came with broken probabilities; empty where all is well."""
    counts, unsound = missing(judgements), broken(judgements)
    told = [f"{count:,} {MISSING.get(reason, f'failed ({reason})')}" for reason, count in counts.items()]
    if told:
        share = 100 * next(iter(counts.values())) / len(judgements)
        first, _, words = told[0].partition(" ")
        told = [f"{first} of {len(judgements):,} verdicts ({fmt(share, 1)} %) {words}", *told[1:]]
    sentences = [f"{', '.join(told)}: they are in no mean."] if told else []
    if unsound:
        sentences.append(f"{unsound:,} verdicts came with broken probabilities: the score in their text stands.")
    return " ".join(sentences)
