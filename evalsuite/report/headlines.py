"""The first lines of a report: which model is ahead and by how much, whether its judge is reliable, and warnings."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from core.languages import name_of
from core.records import Dialogue, Judgement, Language, Termination
from core.statistics.bootstrap import LEVEL
from core.tables import Estimate, fmt
from evalsuite.report.charts import Agreement
from evalsuite.statistics.components import FEWEST_PLANNED
from evalsuite.statistics.contestants import DIALOGUE, Contestant
from evalsuite.statistics.leaderboard import Board
from evalsuite.statistics.paired import Difference
from evalsuite.statistics.summary import AVERAGE, MISSING, broken, languages_of, missing, short_names

TOO_FEW = "too few cards to tell"

Gaps = Mapping[tuple[str, str], Difference]  # (the higher average, the lower one) → their difference

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


def answer(board: Board, boards: Sequence[Board] = ()) -> str:
    """A sentence: which model is ahead of which, by how much, on how many cards, and by which judge of `boards`. A single model
    is compared with the floors."""
    averages = {block[-1].supporter: block[-1].estimate for block in (board.scores[place] for place in board.order)}
    ranked = [name for name, estimate in averages.items() if estimate.mean is not None]
    models = [name for name in ranked if name not in board.floors] or ranked
    judged = f"judged by {_judge(board, boards)}"
    if not ranked:
        some = any(cell.estimate.n for block in board.scores for cell in block)
        return f"{'No supporter has a score on every dimension' if some else 'No score could be read'}, {judged}."
    if len(ranked) == 1:
        alone = _points(averages[ranked[0]], board.level)
        return f"{ranked[0]} has {alone} on average, {judged}; there is no other score to compare it with."
    rivals = models if len(models) > 1 else ranked
    names = [contestant.supporter for contestant in board.contestants]
    gaps = {(names[gap.first], names[gap.second]): gap for gap in board.asked}
    if found := {pair: gap for pair, gap in gaps.items() if gap.holds}:
        return f"{_ahead(board, rivals, found, models[0])}, {judged}."
    if board.fewest_cards:
        cards = max(gap.estimate.n for gap in gaps.values())
        return f"{TOO_FEW.capitalize()}: at least {board.fewest_cards} are needed, not {cards}, {judged}."
    gaps = {pair: gap for pair, gap in gaps.items() if gap.holds is not None}
    floors = [name for name in rivals if name not in models]
    who = f"{models[0]} and {_floors(floors)}" if floors else _listed(models)
    if not gaps:
        why = "what they said is the same, or was not read on the same cards" if board.models else "floors are not tested"
        return f"{who} could not be compared: {why}."
    (high, low), widest = max(gaps.items(), key=lambda gap: gap[1].estimate.mean or 0)
    of = f"{high} over {low} " if len(gaps) > 1 else ""
    return f"No difference found between {who}: {of}{_gap(board, widest)}, {judged}."


def agreeing(first: Board, others: Sequence[Board]) -> tuple[str, list[str]]:
    """A sentence on the judges that find the same differences as the first, and one for each judge that does not."""
    boards, shown = [first, *others], _shown(first)
    same = [_judge(board, boards) for board in others if _shown(board) == shown]
    same_finding = f"{_listed(same)} {'finds' if len(same) == 1 else 'find'} the same." if same else ""
    return same_finding, [f"Another judge: {answer(board, boards)}" for board in others if _shown(board) != shown]


def _shown(board: Board) -> set[tuple[str, str]]:
    """The significant differences that decide, as (better, worse)."""
    names = [contestant.supporter for contestant in board.contestants]
    return {(names[gap.first], names[gap.second]) for gap in board.asked if gap.holds}


def _ahead(board: Board, rivals: Sequence[str], found: Gaps, first: str) -> str:
    """Which supporters the first model is ahead of or behind, or the complete order if all differences are significant."""
    steps = [(high, low) for high, low in pairwise(rivals) if high not in board.floors and low not in board.floors]
    if 1 < len(steps) < 4 and all(pair in found for pair in combinations(rivals[: len(steps) + 1], 2)):
        further = [
            f"{high} of {low} by {fmt(gap.mean, 1)} ({fmt(gap.low, 1)} to {fmt(gap.high, 1)})"
            for high, low, gap in ((*step, found[step].estimate) for step in steps[1:])
        ]
        return f"{first} is ahead of {steps[0][1]} by {_gap(board, found[steps[0]])}, and {_listed(further)}"
    better = [name for name in rivals if (name, first) in found]
    worse = [name for name in rivals if (first, name) in found]
    level = [name for name in rivals if name not in (first, *better, *worse)]
    if better:
        return f"{_floors(better[:1])}, is ahead of {first} by {_gap(board, found[better[0], first])}"
    if not worse:
        (high, low), gap = next(iter(found.items()))
        but = f"{high} is ahead of {low} by {_gap(board, gap)}"
        return f"No difference found between {first}, highest on average, and the others, but {but}"
    floors = worse[0] in board.floors
    if len(worse) == 1:
        whom = f"{_floors(worse)}," if floors else worse[0]
    else:
        every = f"{len(worse)} of {len(worse) + len(level)}" if level else "both" if len(worse) == 2 else f"all {len(worse)}"
        whom = f"{every} {'floors' if floors else 'other models'}, of the nearest, {worse[0]},"
    tie = f"; no difference from {_listed(level, 'or')} was found" if level else ""
    return f"{first} is ahead of {whom} by {_gap(board, found[first, worse[0]])}{tie}"


def belief(agreements: Mapping[str, Agreement], judge: str, languages: Sequence[Language]) -> tuple[bool, str]:
    """Whether a judge is reliable in all these languages, and why."""
    measured = [language for language in languages if _shares(agreements, judge, language)]
    if not measured:
        return False, f"Do not rely on {judge}: it was measured on no gold set, so nobody knows how well it judges."
    shares = ((name_of(language), *_shares(agreements, judge, language)) for language in measured)
    shown = ", ".join(f"{language} {own:.1f} % right against {majority:.1f} %" for language, own, majority in shares)
    if not any(doubt(agreements, judge, language) for language in languages):
        return True, f"{judge} does better on its gold set than always giving the most frequent score ({shown})."
    lacking = [f"measured on no {name_of(language)} gold set" for language in languages if language not in measured]
    weak = any(doubt(agreements, judge, language) for language in measured)
    reasons = ["not shown to do better on its gold set than always giving the most frequent score"] * weak + lacking
    return False, f"Do not rely on {judge}: it is {', and '.join(reasons)} ({shown})."


def doubt(agreements: Mapping[str, Agreement], judge: str, language: str) -> bool:
    """Whether a judge has no gold set in a language, or does not beat the majority class there: the interval of the difference
    of their ACC on the same gold is not above 0."""
    low = agreements.get(judge, {}).get(language, {}).get(AVERAGE, {}).get("over_majority_low")
    return not _shares(agreements, judge, language) or low is None or low <= 0


def _shares(agreements: Mapping[str, Agreement], judge: str, language: str) -> tuple[float, ...]:
    """The judge's ACC and that of the majority class, in per cent; empty without gold."""
    figures = agreements.get(judge, {}).get(language, {}).get(AVERAGE, {})
    shares = tuple(100 * figures[name] for name in ("acc", "majority_acc") if figures.get(name) is not None)
    return shares if len(shares) == 2 else ()


def verdict(first: str, other: str, gap: Difference, unit: str = "cards", level: float = LEVEL) -> str:
    """A clause on which of two is better, if `gap` (first minus second, with an interval of this level) shows it."""
    if gap.estimate.mean is None:
        return f"{first} and {other} cannot be compared: a side has no readable verdict on some dimension"
    if gap.holds:
        better, worse, sign = (first, other, 1) if gap.estimate.mean > 0 else (other, first, -1)
        return f"{better} is better than {worse} by {_points(gap.estimate.times(sign))} on {gap.estimate.n:,} {unit}"
    if gap.estimate.n < FEWEST_PLANNED:
        few = f"{TOO_FEW.replace('cards', unit).capitalize()} {first} from {other}"
        return f"{few}: at least {FEWEST_PLANNED} are needed, there are {gap.estimate.n}"
    return f"No difference found between {first} and {other}: {_points(gap.estimate, level)} on {gap.estimate.n:,} {unit}"


def found_in(gap: Difference, better: str = "better", worse: str = "worse") -> str:
    """A difference in a word or two."""
    if gap.holds and gap.estimate.mean is not None:
        return better if gap.estimate.mean > 0 else worse
    return "not tested" if gap.holds is None else TOO_FEW if gap.estimate.n < FEWEST_PLANNED else "no difference found"


def unbeaten(board: Board) -> Iterator[str]:
    """Sentences on models that do not significantly beat a floor in the average, although there are enough cards."""
    names = [contestant.supporter for contestant in board.contestants]
    beaten = {(names[gap.first], names[gap.second]) for gap in board.differences if gap.holds}
    ranked = [names[place] for place in board.order]
    floors = [name for name in ranked if name in board.floors]
    failing: dict[tuple[str, ...], list[str]] = {}  # the same floors → the models that do not beat them
    for name in ranked if not board.fewest_cards else ():
        missed = tuple(floor for floor in floors if (name, floor) not in beaten)
        if name not in floors and missed:
            failing.setdefault(missed, []).append(name)
    for missed, models in failing.items():
        yield f"{_listed(models)} {'is' if len(models) == 1 else 'are'} not shown to beat {_floors(missed)}."


def _judge(board: Board, boards: Sequence[Board]) -> str:
    """The judge's name, with the method or condition if it scored in several ways."""
    several = sum(other.scorer.judge == board.scorer.judge for other in boards) > 1
    return board.scorer.judge if not several else short_names(other.scorer for other in boards)[board.scorer]


def _floors(names: Sequence[str]) -> str:
    return f"{_listed(names)}, which need{'s' * (len(names) == 1)} no model"


def _listed(names: Sequence[str], last: str = "and") -> str:
    shown = names if len(names) <= 5 else [*names[:4], f"{len(names) - 4} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {last} {shown[-1]}"


def _gap(board: Board, difference: Difference) -> str:
    unit = unit_of(board.contestants[difference.first])
    return f"{_points(difference.estimate, board.level)} on {difference.estimate.n:,} {unit}"


def unit_of(contestant: Contestant) -> str:
    """The unit of a contestant's scores: cards, or what is drawn whole instead."""
    return "dialogues" if next(iter(contestant.cards), "").startswith(DIALOGUE) else "cards"


def _points(cell: Estimate, level: float = LEVEL) -> str:
    interval = "" if cell.low is None else f" ({round(100 * level, 1):g} % interval {fmt(cell.low, 1)} to {fmt(cell.high, 1)})"
    return f"{fmt(cell.mean, 1)} points of 100{interval}"


def counted(dialogues: Sequence[Dialogue]) -> str:
    """How many dialogues there are and how they ended."""
    languages = ", ".join(
        f"{sum(d.language == language for d in dialogues):,} {name_of(language)}" for language in languages_of(dialogues)
    )
    count = f"{len(dialogues):,} dialogue{'s' if len(dialogues) != 1 else ''} ({languages})"
    ends = Counter(dialogue.termination for dialogue in dialogues)
    if not dialogues or set(ends) == {None}:
        return f"{count}."
    endings = [f"{ends[reason]:,} ended {words}" for reason, words in ENDINGS.items() if ends[reason]]
    return f"{count}: {', '.join(endings)}."


def unread(judgements: Sequence[Judgement]) -> str:
    """Sentences on verdicts without a value, by reason, and on broken probabilities; empty if there are none."""
    reasons, sentences = list[str](), list[str]()
    for reason, count in missing(judgements).items():
        share = f" of {len(judgements):,} verdicts ({fmt(100 * count / len(judgements), 1)} %)"
        reasons.append(f"{count:,}{'' if reasons else share} {MISSING.get(reason, f'failed ({reason})')}")
    if reasons:
        sentences.append(f"{', '.join(reasons)}: they are in no mean.")
    if unsound := broken(judgements):
        sentences.append(f"{unsound:,} verdicts came with broken probabilities: the score in their text stands.")
    return " ".join(sentences)
