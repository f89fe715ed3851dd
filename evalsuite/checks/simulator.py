"""What simulators do that people with a trouble do not: rates of an audit beyond the paper (which names some of it in B.3).

The rules are in `evalsuite.checks.simulator_rules`. A rate means something only beside that of human seekers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from core.grouping import group_by
from core.judge_prompts import transcript
from core.prompts import PromptPack
from core.records import Dialogue, Message, RoleCard
from core.statistics.bootstrap import SHARES, SMOOTHED
from core.tables import Cell, Estimate, Table
from evalsuite.checks.simulator_rules import CHECKS, EARLY, EVERYTHING, REPEATED, Finding, lines_of, told_at_once
from evalsuite.statistics.leaderboard import card_of
from evalsuite.statistics.paired import over_cards
from evalsuite.statistics.summary import seeker_of, supporter_of
from serve.answers import Reply
from serve.batch import Batch
from serve.failures import Unanswered
from serve.questions import Question

SECTION = "Simulator audit"
JUDGED = "leaves_card_judged"
_JUDGED_LABEL = "leaves the card, judged %"


@dataclass(frozen=True)
class Audited:
    """One dialogue's findings by check (None: the check does not apply), and the share of the card told in the first line."""

    dialogue: Dialogue
    findings: Mapping[str, list[Finding] | None]
    told: float | None


def audit(
    dialogues: Sequence[Dialogue], cards: Mapping[str, RoleCard], judged: Mapping[str, bool | None] | None = None
) -> list[Audited]:
    """Every check on every dialogue with at least one seeker line, sorted by dialogue id; the others are left out.

    `cards` maps dialogue id → its card. `judged` maps dialogue id → whether a judge found a contradiction to the card (None:
    unreadable); it becomes a check of its own.
    """
    audited = []
    for dialogue in sorted(dialogues, key=lambda dialogue: dialogue.id):
        if not any(lines_of(dialogue)):
            continue
        card = cards.get(dialogue.id)
        findings = {name: check(dialogue, card) for name, (_, check) in CHECKS.items()}
        if judged is not None:
            verdict = judged.get(dialogue.id)
            said = Finding(check=JUDGED, dialogue_id=dialogue.id, turn=None, text="", detail="a judge found a contradiction")
            findings[JUDGED] = None if verdict is None else [said] if verdict else []
        audited.append(Audited(dialogue, findings, told_at_once(dialogue, card)))
    return audited


def findings(audited: Iterable[Audited]) -> list[Finding]:
    """Every finding, dialogue by dialogue."""
    return [finding for one in audited for of_check in one.findings.values() for finding in of_check or ()]


def judge_cards(
    batch: Batch, prompts: PromptPack, dialogues: Sequence[Dialogue], cards: Mapping[str, RoleCard]
) -> dict[str, bool | None]:
    """Whether a judge finds a contradiction between seeker and card, by dialogue id; None where the answer is unreadable or a
    refusal, or the server failed. Only dialogues with a card are asked about."""
    asked = [dialogue for dialogue in dialogues if dialogue.id in cards and any(lines_of(dialogue))]
    spec = batch.spec
    questions = []
    for dialogue in asked:
        language, values = dialogue.language, {"card": cards[dialogue.id], "transcript": transcript(dialogue)}
        messages: list[Message] = [
            {"role": "system", "content": prompts.render(language, "audit_system.j2")},
            {"role": "user", "content": prompts.render(language, "audit_card.j2", **values)},
        ]
        question = Question(
            messages,
            sample={"dialogue": dialogue.id, "check": JUDGED},
            sampling=spec.sampling,
            served_name=spec.served_name(),
            purpose="judge",
            choices=("0", "1"),
            held_tokens=2,
        )
        questions.append(question)
    replies = batch.ask(questions, "dialogues")
    return {dialogue.id: _yes(reply) for dialogue, reply in zip(asked, replies, strict=True)}


def _yes(reply: Reply | Unanswered) -> bool | None:
    said = "" if isinstance(reply, Unanswered) or reply.refused else reply.text.strip().rstrip(".。")
    return {"0": False, "1": True}.get(said)


def audit_tables(audited: Sequence[Audited], examples: int = 3) -> list[Table]:
    """Per seeker, supporter and language the share of dialogues with a finding, by check, and up to `examples` of each check
    and seeker (the first ones, in the order of the ids)."""
    groups = group_by(audited, lambda one: (seeker_of(one.dialogue), supporter_of(one.dialogue), one.dialogue.language))
    labels = {name: label for name, (label, _) in CHECKS.items()}
    if any(JUDGED in one.findings for one in audited):
        labels[JUDGED] = _JUDGED_LABEL
    rows: list[tuple[Cell, ...]] = []
    for (seeker, supporter, language), members in sorted(groups.items()):
        rows.append((seeker, supporter, language, *_shares(members, list(labels))))
    return [
        Table(
            key="simulator_audit",
            title="What seekers do that people do not",
            columns=("seeker", "supporter", "language", *labels.values(), "card told in first line %"),
            rows=tuple(rows),
            notes=tuple(_notes()),
            section=SECTION,
        ),
        _examples(audited, labels, examples),
    ]


def _shares(members: Sequence[Audited], checks: Sequence[str]) -> list[Estimate]:
    """The shares of dialogues with a finding by check, and last the mean share of the card that is told, in per cent; cards are
    drawn whole. What applies to the same dialogues is computed together."""
    found = [[nan if one.findings.get(name) is None else bool(one.findings[name]) for name in checks] for one in members]
    told = [nan if one.told is None else one.told for one in members]
    shares = 100 * np.column_stack([np.array(found, dtype=float), told])
    cells = [Estimate(None, None, None, 0)] * shares.shape[1]
    for columns in group_by(range(len(cells)), lambda column: tuple(np.isnan(shares[:, column]))).values():
        applies = ~np.isnan(shares[:, columns[0]])
        if applies.any():
            cards = [card_of(one.dialogue) for one, counted in zip(members, applies, strict=True) if counted]
            estimates = over_cards(shares[applies][:, columns], cards, 100 * SHARES)
            cells = [estimates[columns.index(place)] if place in columns else cell for place, cell in enumerate(cells)]
    return cells


def _examples(audited: Sequence[Audited], labels: Mapping[str, str], count: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, label in labels.items():
        taken: dict[str, int] = defaultdict(int)
        for one in audited:
            seeker = seeker_of(one.dialogue)
            for finding in (one.findings.get(name) or [])[:1]:
                if taken[seeker] < count:
                    taken[seeker] += 1
                    text = finding.text if len(finding.text) <= 200 else finding.text[:199] + "…"
                    rows.append((label.removesuffix(" %"), seeker, finding.dialogue_id, finding.turn, finding.detail, text))
    return Table(
        key="simulator_audit-examples",
        title="Examples",
        columns=("check", "seeker", "dialogue", "turn", "why", "text"),
        rows=tuple(rows),
        notes=(f"The first finding of up to {count} dialogues a check and seeker; turns count from 0.",),
        section=SECTION,
    )


def _notes() -> Iterator[str]:
    yield (
        f"Share of dialogues with at least one finding, n = dialogues that the check applies to, [{SMOOTHED} over cards]. The "
        "checks are fixed phrases and counted words: they miss what is put otherwise, and their share among human seekers is "
        "their rate of false alarms."
    )
    yield "Leaves the card: states another age, gender or trade than the card. Applies where the card has one of them."
    yield f"Cheers up too soon: thanks, relief or a farewell in the first {EARLY} lines."
    yield (
        f"Says all at once: the first line has {EVERYTHING:.0%} or more of the content words (zh: pairs of characters) of the "
        f"card's problem. The last column is the mean share."
    )
    yield f"Repeats itself: {REPEATED:.0%} or more of a line's runs of three words (zh: characters) stand in one earlier line."
