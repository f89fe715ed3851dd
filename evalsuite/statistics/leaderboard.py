"""Leaderboards (table 2 of ESC-Eval): supporters × dimensions on 0–100, with ranks by what differences are significant; and
scores by category of the seekers' problems and by a field of the dialogues (a version, a week, a country)."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product

from core.errors import UserError, near
from core.grouping import group_by
from core.names import in_order
from core.records import Dialogue, Judgement, Language, RoleCard
from core.rubrics import Rubric, Scale
from core.statistics.bootstrap import LEVEL, SMOOTHED
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.components import FEWEST_PLANNED
from evalsuite.statistics.contestants import Contestant, card_of, contestants_of, design_of, pooled, row_key, stack
from evalsuite.statistics.summary import (
    AVERAGE,
    BREAKDOWNS,
    SCORES,
    Scorer,
    checked,
    dimension_at,
    dimension_label,
    supporter_of,
)

OTHER = "other"  # supporters whose spec names no group
FAMILIES = "Corrected together: the pairs of models, and separately pairs with floors, within one judge and language."


@dataclass(frozen=True)
class Score:
    """A supporter's score (0–100) by one scorer on a dimension or `average`. `asked` counts its verdicts but those lost with a
    server, and `read` the readable ones among them."""

    language: Language
    scorer: Scorer
    supporter: str
    dimension: str
    estimate: Estimate
    asked: int
    read: int


@dataclass(frozen=True)
class Board:
    """All supporters by one scorer, in one language or in several (`POOLED`).

    `contestants` come by name; `scores` are theirs, on every dimension and then on the average. `order` holds their places by
    falling average; `differences` are between every two in the average, the better one first. `floors` need no model. `level`
    is that of intervals and tests: above 0.95 if they are looked at several times."""

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
        """The places of the contestants that are not floors."""
        return [place for place, contestant in enumerate(self.contestants) if contestant.supporter not in self.floors]

    @property
    def asked(self) -> list[paired.Difference]:
        """The differences that decide: between models, or between a single model and every floor; none between same
        dialogues."""
        models, rivals = set(self.models), self.contestants
        ends = 2 if len(models) > 1 else 1
        gaps = [gap for gap in self.differences if len({gap.first, gap.second} & models) == ends]
        return [gap for gap in gaps if not rivals[gap.first].alike(rivals[gap.second])]

    @property
    def fewest_cards(self) -> int | None:
        """The cards that a decision needs, if one of `asked` is undecided and has fewer; else None."""
        undecided = any(not gap.holds and gap.estimate.n < FEWEST_PLANNED for gap in self.asked)
        return FEWEST_PLANNED if undecided else None

    @cached_property
    def ranks(self) -> list[tuple[int, int] | None]:
        """The possible ranks among models (`paired.rank_ranges`); None for a floor."""
        return paired.rank_ranges(self.differences, len(self.contestants), self.models)


def cells_of(contestants: Sequence[Contestant], rubric: Rubric, level: float = LEVEL) -> list[list[Score]]:
    """Each contestant's scores on every dimension and then on the average, with intervals over their cards."""
    names = [*rubric.dimensions, AVERAGE]
    readable = [contestant.readable.total() for contestant in contestants]
    rows = paired.card_estimates(*stack(contestants), readable, design=design_of(contestants), level=level)
    blocks = []
    for rival, row in zip(contestants, rows, strict=True):
        source, cells = (rival.language, rival.scorer, rival.supporter), zip(names, row, strict=True)
        blocks.append([Score(*source, name, cell, rival.asked[name], rival.read[name]) for name, cell in cells])
    return blocks


def family(first: Contestant, second: Contestant, floors: Collection[str]) -> str | None:
    """The family in which a pair is corrected (`paired.differences`): models, or models with floors; None for pairs not
    tested: two floors, or the same dialogues by the same scorer."""
    ends = (first.supporter in floors) + (second.supporter in floors)
    if ends == 2 or first.alike(second):
        return None
    return "floors" if ends else "models"


def boards_by_scorer(
    contestants: Sequence[Contestant], rubric: Rubric, floors: Collection[str] = (), level: float = LEVEL
) -> list[Board]:
    """A board for every language (or all together, for `pooled` contestants) and scorer."""
    boards = []
    for (language, scorer), rivals in group_by(contestants, lambda c: (c.language, c.scorer)).items():
        scores = cells_of(rivals, rubric, level)
        averages = [block[-1].estimate.mean for block in scores]
        order = sorted(range(len(rivals)), key=lambda place: 1.0 if (mean := averages[place]) is None else -mean)
        pairs = list(combinations(order, 2))
        families = [family(rivals[a], rivals[b], floors) for a, b in pairs]
        gaps = paired.differences(*stack(rivals), pairs, True, families=families, design=design_of(rivals), level=level)
        boards.append(Board(language, scorer, rivals, scores, order, gaps, floors, level))
    return boards


def leaderboard(boards: Sequence[Board], rubric: Rubric, groups: Mapping[str, str] | None = None) -> Iterator[Table]:
    """One table per language: supporters by falling average × dimensions on 0–100 with 95 % intervals and n, their average, and
    the parse rate; for a rubric on one scale from 1 another on its own scale, as its paper prints them. A figure on 0–4 is the
    mean × 25 of ESC-Eval's table 2. `groups` maps supporter → group; supporters without one are `other`."""
    for language, of_language in group_by(boards, lambda board: board.language).items():
        ranked = any(rank for board in of_language for rank in board.ranks)
        names = [contestant.supporter for board in of_language for contestant in board.contestants]
        group_of = {name: (groups or {}).get(name, OTHER) for name in names}
        lines: list[dict[str, Cell]] = []
        for board in of_language:
            for place in board.order:
                supporter = board.contestants[place].supporter
                lines.append({"rank": paired.rank_text(board.ranks[place])} if ranked else {})
                lines[-1] |= {"supporter": supporter, **board.scorer.column(len(of_language) > 1), AVERAGE: None}
                lines[-1] |= {"group": group_of[supporter]} if {*group_of.values()} != {OTHER} else {}
                lines[-1] |= score_cells(board.scores[place], rubric)
        notes = [*score_notes([cell for board in of_language for cell in board.cells], rubric)]
        notes += [*at_level(of_language), *[paired.RANKS] * ranked, *saturation(of_language, rubric)]
        yield Table.of(f"leaderboard-{language}", f"Leaderboard, {language}", lines, notes, SCORES)
        if rubric.alike and (scale := rubric.shared_scale) and scale.min:
            title = f"Leaderboard on {scale.min}–{scale.max}, {language}"
            scaled = [{head: _on(scale, cell) for head, cell in line.items()} for line in lines]
            yield Table.of(f"leaderboard-own-{language}", title, scaled, ["The board above on the rubric's own scale."], SCORES)


def _on(scale: Scale, cell: Cell) -> Cell:
    """A figure on 0–100 converted to a scale; other cells stay as they are."""
    if not isinstance(cell, Estimate):
        return cell
    mean, low, high = (None if end is None else scale.min + end * scale.span / 100 for end in (cell.mean, cell.low, cell.high))
    return Estimate(mean, low, high, cell.n)


def at_level(boards: Sequence[Board]) -> Iterator[str]:
    """A note on intervals at a level above 95 %."""
    if (level := max(board.level for board in boards)) > LEVEL:
        yield (
            f"This run may stop early: its intervals are at {100 * level:.1f} % and its tests at {1 - level:.3f}, so that all "
            "looks together keep 95 % and 0.05 (evalsuite/statistics/components.py)."
        )


def saturation(boards: Sequence[Board], rubric: Rubric) -> Iterator[str]:
    """Notes on dimensions at the same end of the scale in all dialogues of several models, which cannot distinguish models."""
    for end in (0.0, 100.0):
        names = [
            dimension_label(rubric, name)
            for column, name in enumerate(rubric.dimensions)
            if name in rubric.scored
            for means in ([board.scores[place][column].estimate.mean for place in board.models] for board in boards)
            if len(means) > 1 and set(means) == {end}
        ]
        if names:
            named = ", ".join(dict.fromkeys(names))
            yield f"At {end:g} for every model: {named}. Differences in the average come from the other dimensions only."


def pairwise_differences(boards: Sequence[Board]) -> Iterator[Table]:
    """One table per language with several supporters: the difference of every two in the average, the better first."""
    for language, of_language in group_by(boards, lambda board: board.language).items():
        rows: list[dict[str, Cell]] = []
        for board in of_language:
            for gap in board.differences:
                first, second = (board.contestants[place].supporter for place in (gap.first, gap.second))
                rows.append({"supporter": first, "against": second, **board.scorer.column(len(of_language) > 1)})
                rows[-1] |= paired.by_column(gap)
        if rows:
            unpaired = any(gap.unpaired for board in of_language for gap in board.differences)
            notes = [paired.NOTE, FAMILIES, *at_level(of_language), *[paired.UNPAIRED] * unpaired]
            title = f"Differences between supporters in the average, {language}"
            yield Table.of(f"differences-{language}", title, rows, notes, SCORES)


def score_cells(block: Sequence[Score], rubric: Rubric) -> dict[str, Cell]:
    """One contestant's table cells: every dimension, the average, and the parse rate in per cent."""
    shown = [score for score in block if score.dimension in (*rubric.scored, AVERAGE)]
    cells: dict[str, Cell] = {dimension_label(rubric, score.dimension): score.estimate for score in shown}
    last = block[-1]
    return cells | {"parse rate %": 100 * last.read / last.asked if last.asked else None}


def ends(rubric: Rubric, top: int) -> str:
    """Which scores are mapped to 0 and to `top`."""
    scale = rubric.shared_scale
    if any(dimension.higher_is == "worse" for dimension in rubric.dimensions.values()):
        return f"each dimension's worst score → 0, its best → {top}: higher is better throughout"
    return f"{scale.min} → 0, {scale.max} → {top}" if scale else f"each dimension's lowest score → 0, its highest → {top}"


def score_notes(cells: Sequence[Score], rubric: Rubric) -> Iterator[str]:
    """The notes below a table of scores."""
    scorers = {cell.scorer for cell in cells}
    if len(scorers) == 1:
        yield f"Judged by {scorers.pop().name} on rubric {rubric.name}."
    over = f"{SMOOTHED} over cards (dialogues without a card: themselves)"
    yield f"Mean score on 0–100 ({ends(rubric, 100)}), [{over}], n = dialogues with a readable verdict."
    weights = {dimension_label(rubric, key): f"{rubric.dimensions[key].weight:g}" for key in rubric.scored}
    listed = ", ".join(f"{label} {weight}" for label, weight in weights.items())
    kind = f"mean of the dimensions, weighted {listed}" if len({*weights.values()}) > 1 else "unweighted mean of the dimensions"
    yield f"{AVERAGE}: {kind}; its n counts dialogues with any readable verdict."
    if any(cell.estimate.mean is not None and cell.estimate.low is None for cell in cells):
        yield "There is no interval for n = 1, for dialogues that are all on one card, or for an average over such a dimension."
    if any(dimension.not_applicable for dimension in rubric.dimensions.values()) or rubric.questions:
        yield "Verdicts that a dimension does not apply, and questions not reached, count in no mean and no parse rate."
    if any(cell.read < cell.asked for cell in cells):
        yield "Unreadable verdicts are in no mean and lower the parse rate; verdicts lost with a server do not."


@dataclass(frozen=True)
class Tally:
    """The records of a run on one rubric, and the boards made from them, which all parts of a report share. `judgements` on
    other rubrics are left out. `cluster` is what intervals draw whole (`cluster_key`). Every property raises `UserError` for a
    verdict that does not fit the rubric, and all but `verdicts` for one on a dialogue that is not in the run."""

    dialogues: Sequence[Dialogue]
    judgements: Sequence[Judgement]
    rubric: Rubric
    floors: Collection[str] = ()
    cluster: str | None = None
    level: float = LEVEL

    @cached_property
    def verdicts(self) -> list[Judgement]:
        """The judgements on the rubric."""
        return list(checked(self.judgements, self.rubric))

    @cached_property
    def boards(self) -> list[Board]:
        """One board per language and scorer."""
        contestants = contestants_of(self.dialogues, self.judgements, self.rubric, row_key(self.cluster))
        return boards_by_scorer(contestants, self.rubric, self.floors, self.level)

    @cached_property
    def pooled(self) -> list[Board]:
        """One board per scorer, over all languages: the one that decides."""
        contestants = pooled(self.contestants)
        if len(contestants) == len(self.contestants):
            return self.boards
        return boards_by_scorer(contestants, self.rubric, self.floors, self.level)

    @property
    def contestants(self) -> list[Contestant]:
        return [contestant for board in self.boards for contestant in board.contestants]

    @cached_property
    def scores(self) -> list[Score]:
        """The cells of all boards."""
        return [cell for board in self.boards for cell in board.cells]


# --- by category and by field ---------------------------------------------------------------------------------------------


NONE = "no category"


def by_category(tally: Tally, cards: Mapping[str, RoleCard]) -> Iterator[Table]:
    """One table per language: supporters by falling average × top level of the cards' category, `NONE` last; none if no card
    has a category. Intervals are over a category's cards."""
    category_of: dict[str, str] = {}
    for dialogue in tally.dialogues:
        card = cards.get(dialogue.card_id or dialogue.profile_id or "")
        category_of[card_of(dialogue)] = card.category[0] if card and card.category else NONE
    if not {*category_of.values()} - {NONE}:
        return
    categories = sorted({*category_of.values()}, key=lambda name: (name == NONE, name))
    for language, boards in group_by(tally.boards, lambda board: board.language).items():
        cells: dict[tuple[str, Scorer, str], Estimate] = {}
        for category, board in product(categories, boards):
            rivals = []
            for rival in board.contestants:
                if own := {card: row for card, row in rival.cards.items() if category_of[card] == category}:
                    rivals.append(replace(rival, cards=own, readable=Counter({card: rival.readable[card] for card in own})))
            for block in cells_of(rivals, tally.rubric) if rivals else ():
                cells[category, board.scorer, block[-1].supporter] = block[-1].estimate
        shown = dict.fromkeys(category for category, *_ in cells)
        rows: list[dict[str, Cell]] = []
        for board in boards:
            for name in (board.contestants[place].supporter for place in board.order):
                rows.append({"supporter": name, **board.scorer.column(len(boards) > 1)})
                rows[-1] |= {category: cells.get((category, board.scorer, name)) for category in shown}
        note = f"Mean on 0–100, [{SMOOTHED} over cards], n = dialogues with a readable verdict. Categories are not tested."
        yield Table.of(f"categories-{language}", f"Average by category of the role card, {language}", rows, [note], BREAKDOWNS)


def by_field(tally: Tally, field: str) -> Iterator[Table]:
    """A row per value of the field, over all languages and all supporters but floors. Of two values, the later in order is
    compared with the earlier. Raises `UserError` for a field that no dialogue has."""
    dialogues = [dialogue for dialogue in tally.dialogues if supporter_of(dialogue) not in tally.floors]
    fields = {name for dialogue in dialogues for name in dialogue.fields} | {"language", "source", "supporter", "trial"}
    if field not in fields:
        raise UserError(f"--by {field}: no dialogue has this field: {near(field, fields)}")
    values = {dialogue.id: str(dialogue.fields.get(field, getattr(dialogue, field, f"no {field}"))) for dialogue in dialogues}
    grouped = [dialogue.model_copy(update={"supporter": values[dialogue.id]}) for dialogue in dialogues]
    verdicts = [verdict for verdict in tally.verdicts if verdict.dialogue_id in values]
    contestants = pooled(contestants_of(grouped, verdicts, tally.rubric, card_of=row_key(tally.cluster)))
    rows, gaps = list[dict[str, Cell]](), list[dict[str, Cell]]()
    notes = dict[str, None]()
    by_scorer = group_by(contestants, lambda contestant: contestant.scorer)
    for scorer, groups in by_scorer.items():
        groups.sort(key=lambda group: in_order(group.supporter))
        judged, blocks = scorer.column(len(by_scorer) > 1), cells_of(groups, tally.rubric, tally.level)
        notes |= dict.fromkeys(score_notes([cell for block in blocks for cell in block], tally.rubric))
        for group, block in zip(groups, blocks, strict=True):
            clusters = design_of([group]).clusters
            drawn = len(group.cards) if clusters is None else int(clusters.max()) + 1
            rows.append({field: group.supporter, **judged, "dialogues": group.readable.total(), "clusters": drawn})
            rows[-1] |= score_cells(block, tally.rubric)
        pairs = [(1, 0)] if len(groups) == 2 else []
        for gap in paired.differences(*stack(groups), pairs, design=design_of(groups), level=tally.level):
            label = dimension_label(tally.rubric, dimension_at(tally.rubric, gap.dimension))
            gaps.append({field: groups[1].supporter, "against": groups[0].supporter, **judged, "dimension": label})
            gaps[-1] |= {"mean": gap.first_mean, "mean against": gap.second_mean} | paired.by_column(gap)
    name, whole = re.sub(r"\W+", "-", field), f"one {tally.cluster}" if tally.cluster else "one card, else each by itself"
    clusters_are = f"Clusters, which intervals and tests draw whole: the dialogues of {whole}."
    yield Table.of(f"by-{name}", f"Scores by {field}", rows, [*notes, clusters_are], BREAKDOWNS)
    if gaps:
        # Not paired by user: users with dialogues under one value only would drop out of the means.
        both = f"A {tally.cluster} with both values counts as a separate one on each side, which widens the interval."
        gap_notes = [paired.NOTE, paired.UNPAIRED, *[both] * bool(tally.cluster)]
        yield Table.of(f"by-{name}-gap", f"Difference by {field}", gaps, gap_notes, BREAKDOWNS)
