"""Sheets of role cards for two workers and a third person, and the cards as the three settled them (ESC-Eval, appendix A.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import check_unique, sha256_file
from core.ledger import Build
from core.options import console
from core.records import RoleCard
from core.statistics.bootstrap import SMOOTHED
from core.statistics.reliability import AGREEMENT
from core.tables import Table, to_console
from data_prep.cards import annotation
from data_prep.cards.annotation import (
    Agreement,
    AnnotationOutcome,
    Decision,
    Mark,
    Mode,
    agreement,
    questions,
    readings_differ,
    settle,
)
from data_prep.cards.sheets import columns_of, refuse_to_overwrite, remove_unanswered
from data_prep.cards.taxonomy import Taxonomy, load_taxonomy

_SEED = 0  # of the draws behind the intervals
_WORKERS = ("worker_1", "worker_2")


def export_marks(cards: Sequence[RoleCard], files: Sequence[Path], out: Path, seed: int) -> None:
    """Write one sheet for each of two workers, as CSV and XLSX, in an order of their own, and the rules as guide.txt."""
    refuse_to_overwrite(out, _WORKERS, annotation.WORKERS_SHEET)
    taxonomy = load_taxonomy()
    build = Build(out, "sheet export", seed)
    build.input(*files)
    build.step("cards on each sheet", len(cards))
    for worker in _WORKERS:
        order = annotation.shuffled(cards, seed, worker)
        for name in annotation.write_sheets(build.folder, worker, order, taxonomy):
            build.output(name, len(order))
    annotation.write_guide(build.folder / "guide.txt", taxonomy)
    build.output("guide.txt")
    build.finish(console)


def import_marks(cards: Sequence[RoleCard], files: Sequence[Path], sheets: Sequence[Path], mode: Mode, out: Path) -> None:
    """Settle every card by the rules of appendix A.2; what needs a third person goes to OUT/third.csv and third.xlsx.

    `sheets` are those of two workers and, with a column `decide`, of the third person; `files` are what the cards were read
    from. Raises `UserError` for other numbers of sheets, and for one that is given twice.
    """
    third = [path for path in sheets if "decide" in columns_of(path, annotation.SHEET)]
    workers = [path for path in sheets if path not in third]
    if len({path.resolve() for path in sheets}) < len(sheets):
        raise UserError("the same file is given twice: two workers' own sheets are needed")
    if len(workers) != 2:
        raise UserError(f"{len(workers)} sheets of workers are given: give one of each of the two (or one with a column keep)")
    if sha256_file(workers[0]) == sha256_file(workers[1]):
        raise UserError(f"{workers[0]} and {workers[1]} are the same to the byte: two workers' own sheets are needed")
    taxonomy = load_taxonomy()
    loaded = {card.id: card for card in cards}
    marks = [annotation.read_marks(path, loaded, taxonomy) for path in workers]
    first, second = marks
    asked = {card_id: questions(first[card_id], second[card_id]) for card_id in loaded}
    decisions: dict[str, Decision] = {}
    for path in third:
        more = annotation.read_decisions(path, loaded, asked, taxonomy)
        check_unique(path, [*decisions, *more], "cards in the third person's sheets")
        decisions |= more
    outcomes = {i: settle(first[i], second[i], decisions.get(i), mode) for i in loaded}
    waiting = [card for card in cards if outcomes[card.id].state == "open"]
    if waiting:
        refuse_to_overwrite(out, ["third"], annotation.THIRD_SHEET)
    pairs = [(first[i], second[i]) for i in loaded]
    agreed = agreement(pairs, _SEED)
    figures = _figures(pairs, outcomes)
    build = Build(out, "sheet import", _SEED, {"mode": mode})
    build.figures = {**figures, "agreement": [asdict(row) for row in agreed]}
    build.input(*files, *workers, *third)
    _write(build, cards, outcomes)
    _write_third(build, waiting, outcomes, marks, taxonomy)
    _print(agreed, figures, mode)
    build.finish(console)


def _write(build: Build, cards: Sequence[RoleCard], outcomes: dict[str, AnnotationOutcome]) -> None:
    """cards.jsonl and dropped.jsonl, in the order of the cards' file; the step that counts them."""

    def unsettled(card: RoleCard) -> str | None:
        if outcomes[card.id].state == "open":
            return f"waits for a third person ({' and '.join(outcomes[card.id].open)})"
        return "invalid" if outcomes[card.id].state == "dropped" else None

    build.step("settle").sieve(cards, unsettled)
    for state, name in (("kept", "cards.jsonl"), ("dropped", "dropped.jsonl")):
        settled = [(card, outcome) for card in cards if (outcome := outcomes[card.id]).state == state]
        build.write(name, [card.model_copy(update={"quality": o.quality, "category": o.category}) for card, o in settled])


def _write_third(
    build: Build,
    waiting: list[RoleCard],
    outcomes: dict[str, AnnotationOutcome],
    marks: list[dict[str, Mark]],
    taxonomy: Taxonomy,
) -> None:
    if not waiting:
        remove_unanswered(build.out, "third", annotation.THIRD_SHEET)
        return
    asked = {card.id: outcomes[card.id].open for card in waiting}
    for name in annotation.write_third(build.folder, waiting, asked, marks, taxonomy):
        build.output(name, len(waiting))
    where = f"{build.out}/third.csv or third.xlsx"
    console.print(f"{len(waiting)} cards wait for a third person: fill in {where}")


def _figures(pairs: list[tuple[Mark, Mark]], outcomes: dict[str, AnnotationOutcome]) -> dict[str, Any]:
    kept = [outcome for outcome in outcomes.values() if outcome.state == "kept"]
    return {
        "high": sum(outcome.quality == "high" for outcome in kept),
        "middle": sum(outcome.quality == "middle" for outcome in kept),
        "both_say_high": sum(readings_differ(a, b) for a, b in pairs),
        "third_answers_not_asked_for": sorted(card_id for card_id, outcome in outcomes.items() if outcome.unused),
    }


def _print(agreed: list[Agreement], figures: dict[str, Any], mode: Mode) -> None:
    to_console(
        Table(
            key="agreement",
            title="Agreement of the two workers",
            columns=("Question", "Cards", "Equal", "Cohen's kappa", "Linear weights", "Krippendorff's alpha"),
            rows=tuple((row.question, row.n, row.raw, row.kappa, row.kappa_linear, row.alpha) for row in agreed),
            notes=(f"Intervals over cards: 95 % {AGREEMENT}; of shares: {SMOOTHED}.",),
        ),
        console,
    )
    both = f"{figures['both_say_high']} cards that both workers call high are high in native mode, middle in paper mode"
    console.print(f"{mode} mode: {figures['high']} high, {figures['middle']} middle; {both}")
    unused = figures["third_answers_not_asked_for"]
    if unused:
        console.print(f"not asked for, not used: the third person's answers on {len(unused)} cards ({', '.join(unused[:3])})")
