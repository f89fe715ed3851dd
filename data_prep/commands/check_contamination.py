"""`check-contamination` searches training data for dialogues that evaluation cards may have been made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from data_prep.cards import load_cards
from data_prep.commands.options import OutOption, console, writes
from data_prep.ledger import Build
from data_prep.records import Language, RoleCard
from data_prep.role_play.contamination import THRESHOLD, Match, contaminated, link, match_records, read_documents
from serve.errors import UserError
from serve.files import check_unique
from serve.paths import IN_FILE

_BIN, _BAR, _EXCERPT = 0.2, 40, 240
_FEW = 500  # dialogues of a language; fewer overrate words that are common elsewhere
_QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}


def check_contamination(
    cards: Annotated[
        list[Path], typer.Option("--cards", help="Evaluation cards: JSONL, or ESC-Eval's JSON. Repeat for more."), IN_FILE
    ],
    data: Annotated[
        list[Path],
        typer.Option("--data", help="JSONL of role-play examples, Dialogues or SupportDialogues. Repeat for more."),
        IN_FILE,
    ],
    out: Annotated[OutOption, writes("matches.jsonl")],
    top: Annotated[int, typer.Option("--top", min=1, help="Best matches kept for each card.")] = 10,
    max_examples: Annotated[int, typer.Option("--max-examples", min=0, help="Highest matches shown with excerpts.")] = 5,
) -> None:
    """Search data for dialogues that evaluation cards may have been made from. Exit code 1 when something is flagged.

    Word statistics come from the data searched: give all files of a set at once. Writes OUT/matches.jsonl (each card's best
    matches and all flagged ones) and the manifest.
    """
    build = Build(out, "check-contamination", settings={"threshold": THRESHOLD, "top": top})
    with console.status("reading cards and data"):
        wanted = [card for path in cards for card in load_cards(path)]
        documents = [document for path in data for document in read_documents(path)]
        for path in (*cards, *data):
            build.input(path)
    check_unique("--cards", (card.id for card in wanted), "card ids")
    check_unique("--data", (id for id, _, _ in documents), "dialogue ids")
    if not {card.language for card in wanted} & {language for _, language, _ in documents}:
        raise UserError("no card and no dialogue share a language: nothing to compare (check --cards and --data)")
    with console.status(f"searching {len(documents)} dialogues for {len(wanted)} cards"):
        matches = link(wanted, documents, top)
    flagged = contaminated(matches)
    _account(build, wanted, documents, flagged)
    _report(wanted, documents, matches, max_examples)
    build.write(
        "matches.jsonl",
        match_records(matches, wanted),
    )
    build.finish(console)
    few = [language for language in ("en", "zh") if 0 < sum(other == language for _, other, _ in documents) < _FEW]
    caution = f" (few dialogues in {', '.join(few)}: give all files of a set at once for a sure answer)" if few else ""
    if flagged:
        alike = len({match.document_id for match in flagged})
        text = f"CONTAMINATED: {alike} dialogues match {len({m.card_id for m in flagged})} cards{caution}"
        console.print(text, highlight=False, soft_wrap=True)
        raise typer.Exit(1)
    console.print(f"clean: no dialogue matches a card{caution}", highlight=False, soft_wrap=True)


def _account(
    build: Build, cards: Sequence[RoleCard], documents: Sequence[tuple[str, Language, str]], flagged: Sequence[Match]
) -> None:
    step = build.step("search")
    step.taken = len(documents)
    known = {card.language for card in cards}
    suspects = {match.document_id for match in flagged}
    for id, language, _ in documents:
        if language not in known:
            step.drop("not searched: no card in its language", id)
        elif id in suspects:
            step.drop("matches an evaluation card", id)
        else:
            step.kept += 1


def _report(
    cards: Sequence[RoleCard], documents: Sequence[tuple[str, Language, str]], matches: Sequence[Match], examples: int
) -> None:
    """Counts, the distribution of each card's best score, and the highest matches."""
    by_id = {card.id: card for card in cards}
    best = [match for match in matches if match.rank == 1]
    for language in sorted({card.language for card in cards}):
        asked = [card.id for card in cards if card.language == language]
        among = sum(other == language for _, other, _ in documents)
        few = " (few: expect false alarms; give all files of the set)" if 0 < among < _FEW else ""
        console.print(f"{language}: {len(asked)} cards, {among} dialogues{few}", highlight=False, soft_wrap=True)
        if among:
            found = {match.card_id: match.score for match in best}
            _distribution([found.get(id, 0.0) for id in asked])
    texts = {id: text for id, _, text in documents}
    for match in sorted(best, key=lambda match: (-match.score, match.card_id))[:examples]:
        console.print(f"{match.score:.2f} {match.card_id} ~ {match.document_id}", highlight=False, markup=False, soft_wrap=True)
        for name, text in (("card", by_id[match.card_id].problem), ("dialogue", texts[match.document_id])):
            console.print(f"    {name}: {_excerpt(text)}", highlight=False, markup=False, soft_wrap=True)


def _distribution(scores: Sequence[float]) -> None:
    quantiles = "  ".join(f"{name} {np.quantile(scores, share):.2f}" for name, share in _QUANTILES.items())
    console.print(f"  each card's best score: {quantiles} (flagged from {THRESHOLD:.2f})", highlight=False, soft_wrap=True)
    bins = np.bincount(np.floor(np.asarray(scores) / _BIN + 1e-9).astype(int))
    for place, count in enumerate(bins):
        bar = "█" * max(int(count > 0), round(_BAR * count / bins.max()))
        mark = "!" if place * _BIN >= THRESHOLD - 1e-9 else " "
        console.print(f"  {mark} {place * _BIN:.1f}–{(place + 1) * _BIN:.1f} {count:5d} {bar}", highlight=False)


def _excerpt(text: str) -> str:
    line = " / ".join(text.split("\n"))
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + "…"
