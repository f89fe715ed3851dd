"""The simulator audit: rates of what simulators do and people in trouble do not (beyond the paper, whose B.3 names some).

The rules are in `evalsuite.checks.simulator_rules`. A rate is meaningful only compared with that of human seekers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from core.grouping import group_by
from core.languages import in_order, name_of
from core.records import Dialogue, RoleCard
from core.statistics.bootstrap import SHARES, SMOOTHED
from core.tables import Cell, Estimate, Table
from data_prep.line_checks import knows
from evalsuite.checks.simulator_rules import CHECKS, COUNTED, EARLY, EVERYTHING, REPEATED, Finding, lines_of, told_at_once
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.paired import over_cards
from evalsuite.statistics.summary import seeker_of, supporter_of

SECTION = "Simulator audit"


@dataclass(frozen=True)
class Audited:
    """A dialogue's findings by check (None: the check does not apply), and the share of the card told in the first line."""

    dialogue: Dialogue
    findings: Mapping[str, list[Finding] | None]
    told: float | None


def audit(dialogues: Sequence[Dialogue], cards: Mapping[str, RoleCard]) -> list[Audited]:
    """Every check on every dialogue with a seeker's line, sorted by dialogue id. `cards` maps dialogue id → its card."""
    audited = []
    for dialogue in sorted(dialogues, key=lambda dialogue: dialogue.id):
        if any(lines_of(dialogue)):
            card, has_phrases = cards.get(dialogue.id), knows(dialogue.language)
            checks = ((name, check, has_phrases or name in COUNTED) for name, (_, check) in CHECKS.items())
            findings = {name: check(dialogue, card) if applies else None for name, check, applies in checks}
            audited.append(Audited(dialogue, findings, told_at_once(dialogue, card)))
    return audited


def findings(audited: Iterable[Audited]) -> list[Finding]:
    """Every finding, dialogue by dialogue."""
    return [finding for dialogue in audited for of_check in dialogue.findings.values() for finding in of_check or ()]


def audit_table(audited: Sequence[Audited]) -> Table:
    """The share of dialogues with a finding, by seeker, supporter, language and check."""
    groups = group_by(audited, lambda a: (seeker_of(a.dialogue), supporter_of(a.dialogue), a.dialogue.language))
    rows: list[dict[str, Cell]] = []
    for (seeker, supporter, language), members in sorted(groups.items()):
        rows.append({"seeker": seeker, "supporter": supporter, "language": language})
        heads = (*(label for label, _ in CHECKS.values()), "card told in first line %")
        rows[-1] |= dict(zip(heads, _shares(members), strict=True))
    notes = [
        f"Share of dialogues with at least one finding, n = dialogues that the check applies to, [{SMOOTHED} over cards]. The "
        "checks are fixed phrases and counted words: they miss other wordings, and their share among human seekers is their "
        "rate of false alarms.",
        "Leaves the card: states another age, gender or trade than the card. Applies where the card has one of them.",
        f"Cheers up too soon: thanks, relief or a farewell in the first {EARLY} lines.",
        f"Says all at once: the first line has {EVERYTHING:.0%} or more of the content words (zh: pairs of characters) of the "
        f"card's problem. The last column is the mean share.",
        f"Repeats itself: {REPEATED:.0%} or more of a line's runs of three words (zh: characters) occur in one earlier line.",
    ]
    lacking = in_order(member.dialogue.language for member in audited if not knows(member.dialogue.language))
    if lacking:
        notes.append(f"There are no phrases to look for in {', '.join(map(name_of, lacking))}: those checks are left out.")
    return Table.of("simulator_audit", "What seekers do that people do not", rows, notes, SECTION)


def _shares(members: Sequence[Audited]) -> list[Estimate]:
    """The shares of dialogues with a finding by check, and last the mean share of the card that is told, in per cent; cards are
    drawn whole. Checks that apply to the same dialogues are computed together."""
    flags = [[nan if (f := m.findings.get(name)) is None else bool(f) for name in CHECKS] for m in members]
    told_shares = [nan if member.told is None else member.told for member in members]
    shares = 100 * np.column_stack([np.array(flags, dtype=float), told_shares])
    cells = [Estimate(None, None, None, 0)] * shares.shape[1]
    for columns in group_by(range(len(cells)), lambda column: tuple(np.isnan(shares[:, column]))).values():
        applies = ~np.isnan(shares[:, columns[0]])
        if applies.any():
            cards = [card_of(member.dialogue) for member, counted in zip(members, applies, strict=True) if counted]
            estimates = over_cards(shares[applies][:, columns], cards, 100 * SHARES)
            cells = [estimates[columns.index(place)] if place in columns else cell for place, cell in enumerate(cells)]
    return cells
