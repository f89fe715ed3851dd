"""Choices between two systems, by people or judges: votes, win rates, degrees, agreement, and the effect of the order shown.

In native mode an annotator's answers on a pair are one vote, and a tie if they change with the order; in paper mode every
answer is a vote of its own. Intervals and tests are over items, which are resampled whole with all their votes. Systems are
ranked by their strengths (`core.statistics.inference`), since a raw win rate depends on the opponents a system met.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from core.grouping import exact_mean, group_by
from core.records import Comparison, Verdict
from core.statistics.accuracy import AGREEMENT
from core.statistics.bootstrap import SHARES, SMOOTHED, Floats, scale_levels
from core.statistics.inference import ALPHA, FEWEST, TEST, Strengths, holds, holm_of, strengths
from core.tables import Cell, Estimate, Table, file_keys
from data_prep.scores.annotator_agreement import ScoredItem, agreement_on
from evalsuite.statistics.paired import COLUMNS, Difference, by_column, over_cards, rank_ranges, rank_text

Mode = Literal["paper", "native"]
_OTHER: Mapping[Verdict | None, Verdict | None] = {"a": "b", "b": "a", "tie": "tie", None: None}
_SIDE = {"a": 1.0, "tie": 0.0, "b": -1.0}


@dataclass(frozen=True)
class Choice:
    """One answer, or one vote made of several, on the outputs of two systems `a` and `b` (in alphabetical order) for an item.

    `verdict` is None if it could not be read or the answer was `lost` with a server. `degree` says by how much `a` is better
    (negative: `b`). `outputs` identifies the outputs if systems have several for an item; `first` is the system that was shown
    first, None if that is not recorded.
    """

    language: str
    item: str
    a: str
    b: str
    verdict: Verdict | None
    degree: float | None = None
    annotator: str = ""
    question: str = ""
    outputs: tuple[str, str] = ("", "")
    first: str | None = None
    lost: bool = False

    @property
    def systems(self) -> tuple[str, str]:
        return self.a, self.b

    @property
    def pair(self) -> tuple[str, ...]:
        """The identity of what was compared: language, item, systems, outputs."""
        return self.language, self.item, *self.systems, *self.outputs

    def sorted(self) -> Choice:
        """The same choice with the systems in alphabetical order."""
        if self.a <= self.b:
            return self
        degree = None if self.degree is None else -self.degree
        return replace(self, a=self.b, b=self.a, verdict=_OTHER[self.verdict], degree=degree, outputs=self.outputs[::-1])


@dataclass(frozen=True)
class Words:
    """The tables' nouns for a system and for items; `key` begins the tables' names."""

    key: str
    system: str
    items: str
    section: str = ""


def choices_of(comparisons: Iterable[Comparison]) -> Iterator[Choice]:
    """A table's rows as choices."""
    for row in comparisons:
        first = None if row.order is None else row.a if row.order == "ab" else row.b
        about = (row.degree, row.annotator, row.question)
        yield Choice("", row.item, row.a, row.b, row.choice, *about, first=first).sorted()


def votes(choices: Iterable[Choice], mode: Mode) -> list[Choice]:
    """Answers as votes, sorted, so that nothing depends on the order of the answers.

    Native: an annotator's answers to a question on a pair are one vote: their verdict if all orders agree, a tie if they
    differ, None if one of them could not be read; its degree is the mean of theirs. Paper: every answer is a vote. A vote with
    a lost answer is dropped.
    """
    ordered = sorted(choices, key=lambda c: (c.question, c.pair, c.annotator, c.first or "", str(c.verdict), c.degree or 0))
    if mode == "paper":
        return [choice for choice in ordered if not choice.lost]
    counted = []
    for members in group_by(ordered, lambda choice: (choice.question, choice.pair, choice.annotator)).values():
        if any(member.lost for member in members):
            continue
        verdicts = {member.verdict for member in members}
        verdict: Verdict | None = None if None in verdicts else verdicts.pop() if len(verdicts) == 1 else "tie"
        degrees = [member.degree for member in members if member.degree is not None]
        degree = exact_mean(degrees) if len(degrees) == len(members) else None
        counted.append(replace(members[0], verdict=verdict, degree=degree, first=None))
    return counted


# --- figures ----------------------------------------------------------------------------------------------------------------


def mean_over_items(choices: Sequence[Choice], value: Callable[[Choice], float], levels: Floats) -> Estimate:
    """Mean value of the votes, with a 95 % interval over items (None for a single item); n counts votes. `levels` are the
    values that a vote can have."""
    if not choices:
        return Estimate(None, None, None, 0)
    values = np.array([[value(vote)] for vote in choices], dtype=np.float64)
    return over_cards(values, [vote.item for vote in choices], levels)[0]


def rate(choices: Sequence[Choice], points: Callable[[Choice], float]) -> Estimate:
    """Mean points of the votes with a verdict, in per cent; see `mean_over_items`."""
    read = [vote for vote in choices if vote.verdict is not None]
    return mean_over_items(read, lambda vote: 100 * points(vote), 100 * SHARES)


def _points(system: str, vote: Choice) -> float:
    return 0.5 if vote.verdict == "tie" else float((vote.a if vote.verdict == "a" else vote.b) == system)


def _counts(choices: Sequence[Choice], system: str, items: str) -> dict[str, Cell]:
    """How one system fared in these votes."""
    points = partial(_points, system)
    read = Counter(points(vote) for vote in choices if vote.verdict is not None)
    degrees = [vote for vote in choices if vote.degree is not None]
    most = max((abs(vote.degree or 0.0) for vote in degrees), default=0.0)
    levels = scale_levels(-most, most)
    return {
        items: len({vote.item for vote in choices}),
        "won": read[1.0],
        "ties": read[0.5],
        "lost": read[0.0],
        "unread": sum(vote.verdict is None for vote in choices),
        "win rate %": rate(choices, points),
        "of decided %": rate([vote for vote in choices if vote.verdict != "tie"], points),
        "degree": mean_over_items(degrees, lambda vote: (vote.degree or 0.0) * (1 if vote.a == system else -1), levels),
    }


def strengths_of(choices: Sequence[Choice], systems: Sequence[str]) -> tuple[Strengths | None, list[Difference]]:
    """The systems' strengths, and every pair's difference from an even share, tested with correction over all pairs; (None, [])
    unless all systems were compared, directly or through others."""
    read = [vote for vote in choices if vote.verdict is not None]
    fitted = strengths(
        [vote.item for vote in read],
        np.array([[systems.index(name) for name in vote.systems] for vote in read], dtype=np.intp).reshape(-1, 2),
        np.array([_points(vote.a, vote) for vote in read]),
        len(systems),
    )
    if fitted is None:
        return None, []
    corrected = holm_of([p for _, p in fitted.pairs.values()])
    differences = []
    for (pair, (share, p)), holm in zip(fitted.pairs.items(), corrected, strict=True):
        mean = share.mean or 0
        differences.append(Difference(*pair, None, mean, 100 - mean, replace(share, mean=mean - 50), p, holm, holds(holm)))
    return fitted, differences


# --- tables -----------------------------------------------------------------------------------------------------------------


def win_rate_tables(choices: Sequence[Choice], mode: Mode, words: Words, titles: Mapping[str, str] = {}) -> Iterator[Table]:
    """For each question: win rates of every system and every pair, the effect of the order shown, and the annotators'
    agreement; tables without rows are left out. `titles`: question → its name in titles, if another."""
    questions = sorted(group_by(choices, lambda choice: choice.question).items())
    keys = file_keys([question for question, _ in questions], "question")
    for question, part in questions:
        tail, title = f"-{keys[question]}" if len(questions) > 1 else "", titles.get(question, question)
        for table in (*_rates(part, mode, words, title), _position(part, words, title), _agreement(part, words, title)):
            if table.rows:
                yield replace(table, key=f"{words.key}-{table.key}{tail}", section=words.section)


def _rates(choices: Sequence[Choice], mode: Mode, words: Words, title: str) -> list[Table]:
    counted = votes(choices, mode)
    by_language = sorted(group_by(counted, lambda vote: vote.language).items())
    graded = any(vote.degree is not None for vote in counted)
    notes = [
        f"Win rate: share of votes won, a tie counts half; decided: without ties. [{SMOOTHED} over {words.items}] (none for a "
        "single one). Votes without a readable answer are in no rate.",
    ]
    if any(choice.first is not None for choice in choices):
        native = "one vote per annotator and pair; answers that change with the order shown are a tie."
        notes.append(f"{mode} mode: {native if mode == 'native' else 'every answer is a vote of its own.'}")
    if graded:
        notes.append(f"Degree: by how much the {words.system} is better (below 0: worse); interval as for rates.")
    overall: list[dict[str, Cell]] = []
    pairs: list[dict[str, Cell]] = []
    for language, part in by_language:
        lead: dict[str, Cell] = {"language": language} if any(name for name, _ in by_language) else {}
        systems = sorted({name for vote in part for name in vote.systems})
        fitted, differences = strengths_of(part, systems)
        ranks, rows = rank_ranges(differences, len(systems)), []
        for place, name in enumerate(systems):
            figures = _counts([vote for vote in part if name in vote.systems], name, words.items)
            fit = {"rank": rank_text(ranks[place]), "expected %": fitted.shares[place] if fitted else None}
            rows.append(lead | {words.system: name} | fit | figures)
        by_share = ("expected %", "win rate %")
        rows.sort(key=lambda row: [-((isinstance(cell := row[head], Estimate) and cell.mean) or 0) for head in by_share])
        overall += rows
        tested = {(systems[difference.first], systems[difference.second]): difference for difference in differences}
        by_pair = group_by(part, lambda vote: vote.systems)
        for a, b in sorted(tested.keys() | by_pair.keys()):
            difference = tested.get((a, b))
            figures = _counts(by_pair.get((a, b), []), a, words.items)
            figures["expected %"] = replace(difference.estimate, mean=difference.first_mean) if difference else None
            test = by_column(difference) if difference else dict.fromkeys(COLUMNS)
            del test[COLUMNS[0]]
            pairs.append(lead | {words.system: a, "against": b} | figures | test)
    for row in () if graded else (*overall, *pairs):
        del row["degree"]
    model = (
        f"by Bradley-Terry strengths, with a tie as half a win for each [95 % over {words.items}, from {FEWEST} on]. A dash: "
        f"some {words.system}s were never compared, not even through others."
    )
    board_note = (
        f"Expected: the share that a {words.system} would win if it met every other equally often, {model} Rank: the places "
        f"that the significant differences between two {words.system}s allow (pair by pair)."
    )
    pair_note = (
        f"Expected: the share that the {words.system} would win against the other, from all votes, {model} p for an even "
        f"share: {TEST}, two-sided, above {ALPHA:g} if the interval contains 50; the difference is significant if p after "
        f"Holm's correction over all pairs is at most {ALPHA:g}."
    )
    return [
        Table.of("win_rates", f"{title} (all pairs)", overall, (board_note, *notes)),
        Table.of("pairs", f"{title} (pair by pair)", pairs, (pair_note, *notes)),
    ]


def _position(choices: Sequence[Choice], words: Words, title: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    shown = [choice for choice in choices if choice.first is not None and not choice.lost]
    for annotator, part in sorted(group_by(shown, lambda choice: choice.annotator).items()):
        read = [choice for choice in part if choice.verdict is not None]
        decided = [choice for choice in read if choice.verdict != "tie"]
        first = rate(decided, lambda choice: float((choice.a if choice.verdict == "a" else choice.b) == choice.first))
        twice = [several for several in group_by(read, lambda choice: choice.pair).values() if len(several) > 1]
        same = [replace(of[0], verdict="a" if len({choice.verdict for choice in of}) == 1 else "b") for of in twice]
        stable = rate(same, lambda pair: float(pair.verdict == "a"))
        rows.append((annotator, len(part), 100 * len(read) / len(part), len(read) - len(decided), first, stable))
    columns = ("annotator", "answers", "parse rate %", "ties", "first shown picked %", "same in both orders %")
    note = f"First shown picked: share of the decided answers; 50 without a position bias. [{SMOOTHED} over {words.items}]."
    return Table("position", f"{title} (effect of the order shown)", columns, tuple(rows), (note,))


def _agreement(choices: Sequence[Choice], words: Words, title: str) -> Table:
    """Agreement pair by pair: over several pairs, alpha would depend on which system of each is listed first."""
    decided = [vote for vote in votes(choices, "native") if vote.verdict is not None]
    graded = bool(decided) and all(vote.degree is not None for vote in decided)
    rows: list[tuple[Cell, ...]] = []
    for (a, b), part in sorted(group_by(decided, lambda vote: vote.systems).items()):
        outputs = {pair: number for number, pair in enumerate(sorted({vote.pair for vote in part}))}
        items: dict[ScoredItem, dict[str, float]] = defaultdict(dict)
        for vote in part:
            value = vote.degree if graded and vote.degree is not None else _SIDE[vote.verdict or "tie"]
            items[ScoredItem(vote.item, outputs[vote.pair])][vote.annotator] = value
        if figures := agreement_on(items):
            rows.append((a, b, figures.people, figures.alpha, figures.kappa, figures.equal))
    columns = (words.system, "against", "people", "Krippendorff's alpha", "weighted kappa", "equal")
    note = (
        f"{'Degrees' if graded else 'Verdicts (one, tie, other)'} from at least two people; n: pairs of outputs. Alpha is "
        "ordinal; kappa has quadratic weights and is the mean over pairs of people, weighted by their shared items. Equal: "
        f"share of pairs of answers. Intervals over {words.items}: 95 % {AGREEMENT}; of shares: {SMOOTHED}. A dash: undefined, "
        "since nothing varies."
    )
    return Table("agreement", f"{title} (agreement of the annotators)", columns, tuple(rows), (note,))
