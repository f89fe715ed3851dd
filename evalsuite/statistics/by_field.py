"""Scores by a field of the dialogues (a version, a week, a country), and the difference where the field has two values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from core.errors import UserError, near
from core.grouping import group_by
from core.names import in_order
from core.tables import Cell, Table
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import row_key
from evalsuite.statistics.contestants import contestants_of, design_of, pooled, stack
from evalsuite.statistics.leaderboard import Tally, cells_of, score_cells, score_notes
from evalsuite.statistics.summary import BREAKDOWNS, dimension_at, dimension_label, supporter_of


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
        notes |= dict.fromkeys(score_notes([cell for block in blocks for cell in block], tally.rubric, "value"))
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
