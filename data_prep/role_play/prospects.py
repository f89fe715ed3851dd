"""Whether the quotas of a training set can be met, from what is known of the corpora before any of them is at hand."""

from __future__ import annotations

from typing import NamedTuple

from core.tables import Table
from data_prep.role_play.mix import Quota, RoleSftConfig
from data_prep.sources import SOURCES


class Prospect(NamedTuple):
    """What a quota's corpus can give. A corpus of the user's own is not known before it is read."""

    quota: Quota
    gives: int | None = None
    known_by: str = "–"
    read: int | None = None
    published: int | None = None
    cards: str = "–"

    @property
    def short(self) -> bool:
        """Whether the quota asks for more than there is."""
        return self.gives is not None and self.gives < self.quota.count


def prospects(config: RoleSftConfig) -> list[Prospect]:
    """What each quota's corpus can give (`core.rows.RolePlayYield`)."""
    return [_prospect(quota) for quota in config.quotas]


def _prospect(quota: Quota) -> Prospect:
    source = SOURCES.get(quota.source)
    facts = source.role_sft.get(quota.language) if source else None
    if source is None or facts is None:
        return Prospect(quota)
    known_by = "counted" if facts.read == facts.published else "scaled" if facts.read else "size"
    cards = "–" if source.kind != "support" else "by a model" if facts.needs_cards else "own fields"
    return Prospect(quota, facts.most, known_by, facts.read, facts.published, cards)


def prospects_table(rows: list[Prospect], target: int) -> Table:
    """The prospects as a table, whose last row is the target."""
    counted = sum(row.quota.count for row in rows if row.known_by == "counted")
    return Table(
        key="prospects",
        title=f"Quotas of {target:,} dialogues, and what their corpora can give",
        columns=("Source", "Language", "Quota", "Gives", "Known by", "Read", "Published", "Cards"),
        rows=(
            *((row.quota.source, row.quota.language, row.quota.count, *row[1:]) for row in rows),
            ("all", None, target, None, f"counted: {counted:,}", None, None, None),
        ),
        notes=(
            "Known by: counted, the whole corpus went through every step; scaled, a part of it did; size, only its "
            "published number of dialogues is known. Cards by a model: no situation is stated, so `cards extract` comes first.",
        ),
    )
