"""Scores by category of the seekers' problems: every supporter's average on the cards of each category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from core.grouping import group_by
from core.records import Language, RoleCard
from core.statistics.bootstrap import SMOOTHED
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.leaderboard import Board, Tally, cells_of
from evalsuite.statistics.summary import BREAKDOWNS, Scorer

NONE = "no category"


class Average(NamedTuple):
    """A supporter's average (0–100) on the cards of one category, as one scorer sees it."""

    language: Language
    scorer: Scorer
    supporter: str
    estimate: Estimate


def by_category(tally: Tally, cards: Mapping[str, RoleCard]) -> dict[str, list[Average]]:
    """Top level of the cards' categories → averages of every language, scorer and supporter; `NONE` comes last. Empty if no
    card has a category. Intervals are over the category's cards; n counts its dialogues with a readable verdict."""
    category_of: dict[str, str] = {}
    for dialogue in tally.dialogues:
        card = cards.get(dialogue.card_id or dialogue.profile_id or "")
        category_of[card_of(dialogue)] = card.category[0] if card and card.category else NONE
    categories = set(category_of.values())
    averages: dict[str, list[Average]] = {}
    for category in sorted(categories, key=lambda name: (name == NONE, name)) if categories - {NONE} else ():
        averages[category] = []
        for board in tally.boards:
            rivals = []
            for rival in board.contestants:
                if own := {card: row for card, row in rival.cards.items() if category_of[card] == category}:
                    rivals.append(replace(rival, cards=own, readable=Counter({card: rival.readable[card] for card in own})))
            for block in cells_of(rivals, tally.rubric) if rivals else ():
                averages[category].append(Average(board.language, board.scorer, block[-1].supporter, block[-1].estimate))
    return averages


def category_tables(boards: Sequence[Board], averages: Mapping[str, Sequence[Average]]) -> Iterator[Table]:
    """One table per language: supporters by falling average × categories."""
    pairs = [(category, average) for category, group in averages.items() for average in group]
    for language, of_language in group_by(boards, lambda board: board.language).items() if averages else ():
        cells = {(category, a.scorer, a.supporter): a.estimate for category, a in pairs if a.language == language}
        shown = list(dict.fromkeys(category for category, *_ in cells))
        rows: list[dict[str, Cell]] = []
        for board in of_language:
            for name in (board.contestants[place].supporter for place in board.order):
                row: dict[str, Cell] = {"supporter": name, **board.scorer.column(len(of_language) > 1)}
                rows.append(row | {category: cells.get((category, board.scorer, name)) for category in shown})
        note = f"Mean on 0–100, [{SMOOTHED} over cards], n = dialogues with a readable verdict. Categories are not tested."
        yield Table.of(f"categories-{language}", f"Average by category of the role card, {language}", rows, [note], BREAKDOWNS)
