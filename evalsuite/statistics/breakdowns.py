"""Scores by category of the seekers' problems, and by a field of the dialogues (a version, a week, a country)."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from core.errors import UserError, near
from core.grouping import group_by
from core.names import in_order
from core.records import RoleCard
from core.statistics.bootstrap import SMOOTHED
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import card_of, row_key
from evalsuite.statistics.contestants import contestants_of, design_of, pooled, stack
from evalsuite.statistics.leaderboard import Tally, cells_of, score_cells, score_notes
from evalsuite.statistics.summary import BREAKDOWNS, Scorer, dimension_at, dimension_label, supporter_of

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
