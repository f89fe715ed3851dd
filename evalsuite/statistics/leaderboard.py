"""Leaderboards (table 2 of ESC-Eval): supporters × dimensions on 0–100, with ranks that say which differences hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import get_args

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric, Scale
from core.statistics.bootstrap import LEVEL, SMOOTHED, Floats
from core.statistics.means import exact_mean
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import card_of as card_of
from evalsuite.statistics.clusters import clusters_in, row_key
from evalsuite.statistics.components import FEWEST_PLANNED
from evalsuite.statistics.draws import first_draws
from evalsuite.statistics.summary import AVERAGE, SCORES, Scorer, Value, checked, dimension_label, scorer_of, supporter_of

POOLED: Language = "mul"  # type: ignore[assignment]  # ISO 639-2: several languages together
OTHER = "other"  # supporters whose spec names no group
FAMILIES = "Corrected together: the pairs of models, and apart from them models with floors, within one judge and language."


@dataclass(frozen=True)
class Score:
    """One cell of a leaderboard: a supporter on a dimension (or `average`), 0–100, as one scorer sees it.

    `asked` counts verdicts and `read` the readable ones among them, repeats and turns included, those lost with a server not.
    """

    language: Language
    scorer: Scorer
    supporter: str
    dimension: str
    estimate: Estimate
    asked: int
    read: int


@dataclass
class Contestant:
    """One supporter as one scorer sees it, in one language or in several (`POOLED`): its scores (0–100) card by card.

    `cards` maps card → two rows [2, dimensions]: the sum of its dialogues' means, and how many dialogues have one. `readable`
    counts its dialogues with any readable verdict; `asked` and `read` count verdicts by dimension, and under `average` all.
    `said` maps card → what was said in its dialogues. `dialogues` maps dialogue → what `cards` are the sums of, by id; none of
    `POOLED`.
    """

    language: Language
    scorer: Scorer
    supporter: str
    cards: dict[str, Floats] = field(default_factory=dict)
    readable: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    said: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    dialogues: dict[str, Floats] = field(default_factory=dict)

    def alike(self, other: Contestant) -> bool:
        """Whether the scorer is the same, and what was said on every card that both have."""
        shared = self.said.keys() & other.said.keys()
        return self.scorer == other.scorer and bool(shared) and all(self.said[card] == other.said[card] for card in shared)


@dataclass(frozen=True)
class Board:
    """All supporters as one scorer sees them, in one language or in several (`POOLED`), counted once for every table and chart
    that shows them.

    `contestants` come by name; `scores` are theirs, each on every dimension and then on the average. `order` holds their places
    by falling average, and `differences` are those of every two in the average, the better first. `floors` name supporters that
    need no model. `level` is that of intervals and tests: above 0.95 where they are looked at several times.
    """

    language: Language
    scorer: Scorer
    contestants: list[Contestant]
    scores: list[list[Score]]
    order: list[int]
    differences: list[paired.Difference]
    floors: Collection[str] = ()
    level: float = LEVEL

    @property
    def cells(self) -> list[Score]:
        """All scores, supporters by falling average."""
        return [cell for place in self.order for cell in self.scores[place]]

    @property
    def models(self) -> list[int]:
        """The places of the contestants that are no floors."""
        return [place for place, one in enumerate(self.contestants) if one.supporter not in self.floors]

    @property
    def asked(self) -> list[paired.Difference]:
        """The differences that decide: those of models, or of a single model with every floor. Pairs of the same dialogues are
        none."""
        models = set(self.models)
        ends = 2 if len(models) > 1 else 1
        return [
            one
            for one in self.differences
            if len({one.first, one.second} & models) == ends
            and not self.contestants[one.first].alike(self.contestants[one.second])
        ]

    @property
    def fewest_cards(self) -> int | None:
        """How many cards are needed to tell anything, where some of `asked` is undecided and has fewer; None elsewhere."""
        few = any(not one.holds and one.estimate.n < FEWEST_PLANNED for one in self.asked)
        return FEWEST_PLANNED if few else None

    @cached_property
    def ranks(self) -> list[tuple[int, int] | None]:
        """The ranks among models that the differences leave open (`paired.rank_ranges`); None for a floor."""
        return paired.rank_ranges(self.differences, len(self.contestants), self.models)


def contestants_of(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    value: Value = "value",
    card_of: Callable[[Dialogue], str] = card_of,
) -> list[Contestant]:
    """Every language × scorer × supporter with its scores, sorted by them (English first).

    A dialogue's repeats and turns are averaged first, so that each dialogue counts once; trials in which the very same was said
    (at temperature 0) are one dialogue. A score s becomes (s − min) / (max − min) × 100 of its dimension's scale. `value` says
    whether verdicts or their expectations (from token probabilities) are taken.
    Raises `UserError` for a judgement of a dialogue that is not among `dialogues`, or one that does not fit the rubric.
    """
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    said = {dialogue.id: tuple(turn.text for turn in dialogue.turns) for dialogue in dialogues}
    first = first_draws(dialogues)
    columns = {name: index for index, name in enumerate(rubric.dimensions)}
    contestants: dict[tuple[Language, Scorer, str], Contestant] = {}
    verdicts: dict[tuple[Language, Scorer, str], dict[str, list[list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: [[] for _ in columns])
    )
    for judgement in checked(judgements, rubric):
        dialogue = by_id.get(judgement.dialogue_id)
        if dialogue is None:
            raise UserError(f"judgement by {judgement.judge}: dialogue_id: no dialogue {judgement.dialogue_id!r} in this run")
        key = dialogue.language, scorer_of(judgement), supporter_of(dialogue)
        contestant = contestants.get(key) or contestants.setdefault(key, Contestant(*key))
        contestant.asked[judgement.dimension] += not judgement.lost
        contestant.read[judgement.dimension] += judgement.value is not None
        figures = verdicts[key][first[dialogue.id]]
        if judgement.value is None:
            continue
        figure = judgement.value if value == "value" else judgement.expected
        if figure is not None:
            figures[columns[judgement.dimension]].append(figure)
    scales = [(scale.min, scale.span) for scale in rubric.scales.values()]
    for key, contestant in contestants.items():
        for counts in (contestant.asked, contestant.read):
            counts[AVERAGE] = counts.total()
        # Sorted, so that no figure depends on the order in which records came in.
        for id, figures in sorted(verdicts[key].items()):
            card = card_of(by_id[id])
            scores = [(exact_mean(of) - low) * 100 / span if of else 0 for of, (low, span) in zip(figures, scales, strict=True)]
            row = contestant.dialogues[id] = np.array([scores, [bool(of) for of in figures]], dtype=float)
            contestant.cards[card] = contestant.cards.get(card, 0.0) + row
            contestant.readable[card] += any(figures)
            contestant.said.setdefault(card, set()).add(said[id])
    order = list(get_args(Language))
    return sorted(contestants.values(), key=lambda one: (order.index(one.language), one.scorer, one.supporter))


def stack(contestants: Sequence[Contestant]) -> tuple[Floats, Floats]:
    """The contestants' sums and counts on all their cards together, each [cards, contestants, dimensions]."""
    cards = {name: row for row, name in enumerate(sorted({card for one in contestants for card in one.cards}))}
    width = next(iter(contestants[0].cards.values())).shape[1]
    sums, counts = np.zeros((2, len(cards), len(contestants), width))
    for place, one in enumerate(contestants):
        for card, row in one.cards.items():
            sums[cards[card], place], counts[cards[card], place] = row
    return sums, counts


_IN = "\x1e"  # between a card and its language in the names of a pooled contestant's cards


def design_of(contestants: Sequence[Contestant]) -> paired.Design:
    """How the rows of `stack` were drawn; strata are languages, where several are pooled."""
    rows = sorted({card for one in contestants for card in one.cards})
    languages = np.unique([row.partition(_IN)[2] for row in rows], return_inverse=True)[1]
    return paired.Design(clusters_in([row.partition(_IN)[0] for row in rows]), languages if languages.any() else None)


def pooled(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Every scorer × supporter over all its languages."""
    together: dict[tuple[Scorer, str], Contestant] = {}
    for one in contestants:
        whole = together.setdefault((one.scorer, one.supporter), Contestant(POOLED, one.scorer, one.supporter))
        for card in one.cards:
            row = f"{card}{_IN}{one.language}"
            whole.cards[row], whole.readable[row], whole.said[row] = one.cards[card], one.readable[card], one.said[card]
        whole.asked += one.asked
        whole.read += one.read
    return [together[key] for key in sorted(together)]


def cells_of(contestants: Sequence[Contestant], rubric: Rubric, level: float = LEVEL) -> list[list[Score]]:
    """Each contestant's scores on every dimension and then on the average; intervals over all their cards."""
    names = [*rubric.dimensions, AVERAGE]
    readable = [one.readable.total() for one in contestants]
    rows = paired.card_estimates(*stack(contestants), readable, design=design_of(contestants), level=level)
    return [
        [
            Score(one.language, one.scorer, one.supporter, name, cell, one.asked[name], one.read[name])
            for name, cell in zip(names, row, strict=True)
        ]
        for one, row in zip(contestants, rows, strict=True)
    ]


def family(first: Contestant, second: Contestant, floors: Collection[str]) -> str | None:
    """Which differences a pair is corrected with (`paired.differences`): those of models, or those of models with floors. None
    where nothing is asked: of two floors, and of the same dialogues by the same scorer."""
    ends = (first.supporter in floors) + (second.supporter in floors)
    if ends == 2 or first.alike(second):
        return None
    return "floors" if ends else "models"


def boards_of(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    value: Value = "value",
    floors: Collection[str] = (),
    cluster: str | None = None,
    level: float = LEVEL,
) -> list[Board]:
    """A board for every language and scorer. See `contestants_of` for how scores are counted and what is refused. `cluster`:
    what is drawn whole (`cluster_key`)."""
    contestants = contestants_of(dialogues, judgements, rubric, value, row_key(cluster))
    return boards_by_scorer(contestants, rubric, floors, level)


def boards_by_scorer(
    contestants: Sequence[Contestant], rubric: Rubric, floors: Collection[str] = (), level: float = LEVEL
) -> list[Board]:
    """A board for every language (or all, of `pooled` contestants) and scorer."""
    boards = []
    for (language, scorer), rivals in group_by(contestants, lambda one: (one.language, one.scorer)).items():
        scores = cells_of(rivals, rubric, level)
        order = sorted(range(len(rivals)), key=lambda place: -_average(scores[place]))
        pairs = list(combinations(order, 2))
        families = [family(rivals[a], rivals[b], floors) for a, b in pairs]
        found = paired.differences(
            *stack(rivals), pairs, average_only=True, families=families, design=design_of(rivals), level=level
        )
        boards.append(Board(language, scorer, rivals, scores, order, found, floors, level))
    return boards


def leaderboard(
    boards: Sequence[Board], rubric: Rubric, value: Value = "value", groups: Mapping[str, str] | None = None
) -> Iterator[Table]:
    """One table a language: supporters × dimensions on 0–100 with 95 % intervals and n, their average, and the parse rate.

    On 0–4 a figure is the mean × 25 of ESC-Eval's table 2. Several judges, methods or conditions are separate rows. Where
    several models were tested there is a rank (`Board.ranks`). Rows come by falling average. `groups` maps supporter → group
    (`groups_of`), a mark beside the average; a supporter without one is `other`.
    """
    for language, of_language in group_by(boards, lambda board: board.language).items():
        lines: list[dict[str, Cell]] = []
        for board in of_language:
            for place in board.order:
                supporter, cells = board.contestants[place].supporter, score_cells(board.scores[place])
                line: dict[str, Cell] = {"rank": paired.rank_text(board.ranks[place]), "supporter": supporter}
                line |= {"judged by": board.scorer.name, AVERAGE: None, "group": (groups or {}).get(supporter, OTHER)}
                lines.append(line | dict(zip(score_columns(rubric), cells, strict=True)))
        ranked = any(line["rank"] for line in lines)
        grouped = any(line["group"] != OTHER for line in lines)
        shown = {"rank": ranked, "judged by": len(of_language) > 1, "group": grouped}
        columns = tuple(column for column in lines[0] if shown.get(column, True))
        scores = [cell for board in of_language for cell in board.cells]
        yield Table(
            key=f"leaderboard-{language}",
            title=f"Leaderboard, {language}" + (" (expected scores)" if value == "expected" else ""),
            columns=columns,
            rows=tuple(tuple(line[column] for column in columns) for line in lines),
            notes=(
                *score_notes(scores, rubric, value),
                *at_level(of_language),
                *[paired.RANKS] * ranked,
                *saturation(of_language, rubric),
            ),
            section=SCORES,
        )
        if (own := rubric.shared_scale) and own.min:  # as the tables of such a rubric's paper are printed
            yield Table(
                key=f"leaderboard-own-{language}",
                title=f"Leaderboard on {own.min}–{own.max}, {language}",
                columns=columns,
                rows=tuple(tuple(_on(own, line[column]) for column in columns) for line in lines),
                notes=(f"The board above on the rubric's own scale, {own.min} to {own.max}.",),
                section=SCORES,
            )


def _on(scale: Scale, cell: Cell) -> Cell:
    """A figure of 0–100 on a scale; any other cell as it is."""
    if not isinstance(cell, Estimate):
        return cell
    mean, low, high = (None if one is None else scale.min + one * scale.span / 100 for one in (cell.mean, cell.low, cell.high))
    return Estimate(mean, low, high, cell.n)


def at_level(boards: Sequence[Board]) -> Iterator[str]:
    """What is to be known of intervals at another level than 95 %."""
    if (level := max(board.level for board in boards)) > LEVEL:
        yield (
            f"This run may stop early: its intervals are at {100 * level:.1f} % and its tests at {1 - level:.3f}, so that all "
            "looks together keep 95 % and 0.05 (evalsuite/statistics/looks.py)."
        )


def saturation(boards: Sequence[Board], rubric: Rubric) -> Iterator[str]:
    """Which dimensions have the same end of the scale for all dialogues of several models: they tell no model from another, and
    do nothing but shrink the average's differences."""
    for end in (0.0, 100.0):
        names = [
            dimension_label(rubric, name)
            for column, name in enumerate(rubric.dimensions)
            for means in ([board.scores[place][column].estimate.mean for place in board.models] for board in boards)
            if len(means) > 1 and set(means) == {end}
        ]
        if names:
            named = ", ".join(dict.fromkeys(names))
            yield f"At {end:g} for every model: {named}. What the average says of differences rests on the other dimensions."


def pairwise_differences(boards: Sequence[Board]) -> Iterator[Table]:
    """One table a language with several supporters: the difference of every two in their average, and whether it holds.

    The better of two (by the leaderboard) comes first. Intervals, tests and Holm's correction: `paired.differences`.
    """
    for language, of_language in group_by(boards, lambda board: board.language).items():
        several = len(of_language) > 1
        rows: list[tuple[Cell, ...]] = []
        for board in of_language:
            for difference in board.differences:
                names = (board.contestants[place].supporter for place in (difference.first, difference.second))
                rows.append((*names, *[board.scorer.name] * several, *paired.cells(difference)))
        if rows:
            yield Table(
                key=f"differences-{language}",
                title=f"Differences between supporters in the average, {language}",
                columns=("supporter", "against", *["judged by"] * several, *paired.COLUMNS),
                rows=tuple(rows),
                notes=(
                    paired.NOTE,
                    FAMILIES,
                    *at_level(of_language),
                    *[paired.UNPAIRED] * any(one.unpaired for board in of_language for one in board.differences),
                ),
                section=SCORES,
            )


def score_columns(rubric: Rubric) -> tuple[str, ...]:
    """Column heads of `score_cells`."""
    return (*(dimension_label(rubric, dimension) for dimension in rubric.dimensions), AVERAGE, "parse rate %")


def score_cells(block: Sequence[Score]) -> tuple[Cell, ...]:
    """One contestant's table cells: every dimension, the average, and the parse rate in per cent."""
    last = block[-1]
    return (*(cell.estimate for cell in block), 100 * last.read / last.asked if last.asked else None)


def ends(rubric: Rubric, top: int) -> str:
    """Which scores become 0 and `top`."""
    scale = rubric.shared_scale
    return f"{scale.min} → 0, {scale.max} → {top}" if scale else f"each dimension's lowest score → 0, its highest → {top}"


def score_notes(cells: Sequence[Score], rubric: Rubric, value: Value) -> Iterator[str]:
    """What a reader of a table of scores must know."""
    scorers = {cell.scorer for cell in cells}
    if len(scorers) == 1:
        yield f"Judged by {scorers.pop().name} on rubric {rubric.name}."
    yield (
        f"Mean score on 0–100 ({ends(rubric, 100)}), [{SMOOTHED} over cards (dialogues without a card: "
        "themselves)], n = dialogues with a readable verdict."
    )
    yield f"{AVERAGE}: unweighted mean of the dimensions; its n counts dialogues with any readable verdict."
    if any(cell.estimate.mean is not None and cell.estimate.low is None for cell in cells):
        yield (
            "No interval is given at n = 1, or where all dialogues are on one card, nor of an average over such a dimension."
        )
    if any(cell.read < cell.asked for cell in cells):
        yield "Unreadable verdicts are in no mean; they lower the parse rate. Those that were lost with a server do not."
    if value == "expected":
        yield "Expected scores are means of the judge's token probabilities; verdicts without probabilities are left out."


def _average(block: Sequence[Score]) -> float:
    mean = block[-1].estimate.mean
    return -1.0 if mean is None else mean


# --- tally ------------------------------------------------------------------------------------------------------------------
# A run's records counted once: every table, chart and sentence of a report is made from the same tally.


@dataclass(frozen=True)
class Tally:
    """The records of a run on one rubric and what they come to. `judgements` may hold verdicts on other rubrics too; all that
    follows is on this one.

    Every property raises `UserError` for a verdict that does not fit the rubric, and all but `verdicts` for one of a dialogue
    that is not in the run.
    """

    dialogues: Sequence[Dialogue]
    judgements: Sequence[Judgement]
    rubric: Rubric
    floors: Collection[str] = ()
    """Supporters that need no model."""
    cluster: str | None = None
    """What is drawn whole where it is not the card."""
    level: float = LEVEL
    """That of intervals and tests: above 0.95 where they are looked at several times."""

    @cached_property
    def verdicts(self) -> list[Judgement]:
        """The judgements on the rubric."""
        return list(checked(self.judgements, self.rubric))

    @cached_property
    def boards(self) -> list[Board]:
        """One board a language and scorer."""
        return boards_of(
            self.dialogues, self.judgements, self.rubric, floors=self.floors, cluster=self.cluster, level=self.level
        )

    @cached_property
    def pooled(self) -> list[Board]:
        """One board a scorer, over all languages: what is decided is decided here."""
        together = pooled(self.contestants)
        if len(together) == len(self.contestants):
            return self.boards
        return boards_by_scorer(together, self.rubric, self.floors, self.level)

    @property
    def contestants(self) -> list[Contestant]:
        return [one for board in self.boards for one in board.contestants]

    @cached_property
    def scores(self) -> list[Score]:
        """Every leaderboard cell: language × scorer × supporter (by falling average) × dimension, and then `average`."""
        return [cell for board in self.boards for cell in board.cells]
