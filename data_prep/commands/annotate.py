"""`cards annotate`: sheets for two workers and a third person, and the cards as the three settled them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from core.errors import UserError
from core.files import check_unique, sha256_file
from core.ledger import Build
from core.options import OutOption, SeedOption, choice, console, writes
from core.paths import IN_FILE, SHEET
from core.records import RoleCard
from core.statistics.bootstrap import SMOOTHED
from core.statistics.reliability import AGREEMENT
from core.tables import Table, to_console
from core.verbs import Verbs
from data_prep.cards import annotation, load_cards
from data_prep.cards.annotation import (
    Agreement,
    Decision,
    Mark,
    Mode,
    Outcome,
    agreement,
    questions,
    readings_differ,
    settle,
)
from data_prep.cards.sheets import refuse_to_overwrite, remove_unanswered
from data_prep.cards.taxonomy import Taxonomy, load_taxonomy

app = Verbs(no_args_is_help=True, help="Annotation of role cards by two workers and a third person (appendix A.2).")
_WORKERS = ("worker_1", "worker_2")

CardsOption = Annotated[Path, typer.Option("--cards", help="Role cards: JSONL, or a published JSON file."), IN_FILE]


@app.command("export")
def export(cards: CardsOption, out: Annotated[OutOption, writes("worker_*", "guide.txt")], seed: SeedOption = 0) -> None:
    """Write one sheet for each of two workers, as CSV and XLSX, in an order of their own, and the rules as guide.txt."""
    loaded = load_cards(cards)
    refuse_to_overwrite(out, _WORKERS, annotation.WORKERS_SHEET)
    taxonomy = load_taxonomy()
    build = Build(out, "cards annotate export", seed)
    build.input(cards)
    build.step("cards on each sheet", len(loaded))
    for worker in _WORKERS:
        order = annotation.shuffled(loaded, seed, worker)
        for name in annotation.write_sheets(build.folder, worker, order, taxonomy):
            build.output(name, len(order))
    annotation.write_guide(build.folder / "guide.txt", taxonomy)
    build.output("guide.txt")
    build.finish(console)


@app.command("import")
def import_(
    cards: CardsOption,
    sheet: Annotated[
        list[Path], typer.Option("--sheet", help="A worker's sheet, CSV or XLSX; give it twice, one a worker."), SHEET
    ],
    out: Annotated[OutOption, writes("cards.jsonl", "dropped.jsonl", "third.*")],
    third: Annotated[
        list[Path], typer.Option("--third", help="A sheet of the third person, CSV or XLSX; may be repeated."), SHEET
    ] = [],  # noqa: B006 (typer wants a list; it is not changed)
    mode: Annotated[
        str, typer.Option("--mode", help="native: high stays high where both say it. paper: appendix A.2 word by word.")
    ] = "native",
    seed: SeedOption = 0,
) -> None:
    """Settle every card by the rules of appendix A.2; what needs a third person goes to OUT/third.csv and third.xlsx.

    Fill in one of the two and run this again with --third. CSV may be UTF-8 with or without a byte-order mark, parted by
    commas, semicolons or tabs. The seed draws the intervals of the agreement.
    """
    chosen: Mode = choice("--mode", mode, get_args(Mode))
    sheets = [*sheet, *third]
    if len(sheet) != 2:
        raise UserError(f"--sheet: given {len(sheet)} times; give one sheet of each of the two workers")
    if len({path.resolve() for path in sheets}) < len(sheets):
        raise UserError("--sheet, --third: the same file is given twice")
    if sha256_file(sheet[0]) == sha256_file(sheet[1]):
        raise UserError(f"--sheet: {sheet[0]} and {sheet[1]} are the same to the byte: two workers' own sheets are needed")
    taxonomy = load_taxonomy()
    loaded = {card.id: card for card in load_cards(cards)}
    marks = [annotation.read_marks(path, loaded, taxonomy) for path in sheet]
    first, second = marks
    asked = {card_id: questions(first[card_id], second[card_id]) for card_id in loaded}
    decisions: dict[str, Decision] = {}
    for path in third:
        more = annotation.read_decisions(path, loaded, asked, taxonomy)
        check_unique(path, [*decisions, *more], "cards in the third person's sheets")
        decisions |= more
    outcomes = {i: settle(first[i], second[i], decisions.get(i), chosen) for i in loaded}
    waiting = [card for card in loaded.values() if outcomes[card.id].state == "open"]
    if waiting:
        refuse_to_overwrite(out, ["third"], annotation.THIRD_SHEET)
    pairs = [(first[i], second[i]) for i in loaded]
    agreed = agreement(pairs, seed)
    figures = _figures(pairs, outcomes)
    build = Build(out, "cards annotate import", seed, {"mode": chosen})
    build.figures = {**figures, "agreement": [asdict(row) for row in agreed]}
    build.input(cards, *sheets)
    _write(build, list(loaded.values()), outcomes)
    _write_third(build, waiting, outcomes, marks, taxonomy)
    _print(agreed, figures, chosen)
    build.finish(console)


def _write(build: Build, cards: list[RoleCard], outcomes: dict[str, Outcome]) -> None:
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
    build: Build, waiting: list[RoleCard], outcomes: dict[str, Outcome], marks: list[dict[str, Mark]], taxonomy: Taxonomy
) -> None:
    if not waiting:
        remove_unanswered(build.out, "third", annotation.THIRD_SHEET)
        return
    asked = {card.id: outcomes[card.id].open for card in waiting}
    for name in annotation.write_third(build.folder, waiting, asked, marks, taxonomy):
        build.output(name, len(waiting))
    where = f"{build.out}/third.csv or third.xlsx"
    console.print(f"{len(waiting)} cards wait for a third person: fill in {where}")


def _figures(pairs: list[tuple[Mark, Mark]], outcomes: dict[str, Outcome]) -> dict[str, Any]:
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
