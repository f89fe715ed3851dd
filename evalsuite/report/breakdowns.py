"""Scores by the cards' category and by reply length, and the models' cost, as tables with charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from core.errors import clean
from core.grouping import group_by
from core.languages import name_of
from core.records import RoleCard
from core.tables import Table, fmt
from evalsuite.report.charts import Chart, bar_panels
from evalsuite.report.figures import Figure, label, panels, trace
from evalsuite.statistics.categories import by_category, category_tables
from evalsuite.statistics.dialogue_costs import THOUSAND, ModelUse
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.reply_length import LengthEffect, Replies, average_table, length_effects, replies_of
from evalsuite.statistics.summary import AVERAGE, short_names

DOTS = 1000  # the most dialogues drawn in a panel


def breakdowns(tally: Tally, cards: Mapping[str, RoleCard]) -> tuple[list[Table], list[Chart]]:
    """Averages by category, if the cards have categories, and against reply length."""
    tables = list(category_tables(tally.boards, by_category(tally, cards)))
    replies = replies_of(tally.dialogues, tally.contestants)
    if not replies:
        return tables, []
    effects = length_effects(replies, tally.rubric, [AVERAGE])
    return [*tables, average_table(replies, effects)], [*_length_chart(replies, effects)]


def _length_chart(replies: Sequence[Replies], effects: Sequence[LengthEffect]) -> Iterator[Chart]:
    """A panel per language and scorer, with a dot per dialogue and a diamond for each supporter's mean."""
    pooled = {(effect.language, effect.scorer): effect.cells[AVERAGE] for effect in effects if effect.supporter is None}
    names = short_names(part.scorer for part in replies)
    titles, traces, drawn_all = [], [], True
    for (language, scorer), group in group_by(replies, lambda part: (part.language, part.scorer)).items():
        read = [(clean(part.supporter), part.lengths, part.scores[:, -1], ~np.isnan(part.scores[:, -1])) for part in group]
        points = [(x, y, who) for who, xs, ys, defined in read for x, y in zip(xs[defined], ys[defined], strict=True)]
        if not points:
            continue
        step = -(-len(points) // DOTS)
        drawn_all = drawn_all and step == 1
        means = [(xs[defined].mean(), ys[defined].mean(), f"{who}, mean") for who, xs, ys, defined in read if defined.any()]
        traces.append([_dots("dialogue", points[::step]), _dots("supporter", means)])
        name = name_of(language) + (f", {clean(names[scorer])}" if len(names) > 1 else "")
        titles.append(f"{name}: correlation {fmt(pooled[language, scorer])}")
    if titles:
        yield Chart(
            "reply-length",
            "Average against reply length, dialogue by dialogue",
            "Dots: dialogues" + ("" if drawn_all else f" (about {DOTS:,} of a panel, evenly chosen)") + ". Diamonds: means of "
            "supporters. Above each panel Spearman's correlation within supporters, with its 95 % interval.",
            "reply-length",
            panels("lengths", titles, traces, 2, showlegend=False),
        )


def cost_charts(uses: Sequence[ModelUse]) -> Iterator[Chart]:
    """Bars of each supporter's tokens per dialogue, and of its cost if prices are known."""
    supporters = [use for use in uses if use.role == "supporter" and use.dialogues]
    if len(supporters) < 2:
        return
    figures: dict[str, list[float | None]] = {
        "tokens in": [use.usage.prompt_tokens / use.dialogues for use in supporters],
        "tokens out": [use.usage.completion_tokens / use.dialogues for use in supporters],
    }
    if any(use.cost is not None for use in supporters):
        figures[THOUSAND] = [use.cost_of_thousand for use in supporters]
    bars = []
    for values in figures.values():
        texts = ["" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values]
        bars.append([trace("bar", x=values, y=list(range(len(values))), text=texts)])
    yield Chart(
        "model-costs",
        "What a dialogue takes of each supporter",
        "Means over its dialogues, the supporter's own calls alone.",
        "model-costs",
        bar_panels([clean(use.model) for use in supporters], list(figures), bars),
    )


def _dots(style: str, points: Sequence[tuple[float, float, str]]) -> Figure:
    return trace(
        style,
        x=[round(float(x), 1) for x, _, _ in points],
        y=[round(float(y), 2) for _, y, _ in points],
        text=[label(who) for _, _, who in points],
    )
