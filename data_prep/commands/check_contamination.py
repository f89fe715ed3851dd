"""`check-contamination` searches training data for dialogues that evaluation cards may have been made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from core.errors import UserError
from core.files import check_unique
from core.ledger import Build
from core.options import OutOption, console, writes
from core.paths import IN_FILE
from core.records import LANGUAGES, RoleCard
from data_prep.cards import load_cards
from data_prep.role_play.contamination import (
    THRESHOLD,
    Document,
    Match,
    by_chance,
    contaminated,
    link,
    read_documents,
)

_BIN, _BAR, _EXCERPT = 0.2, 40, 240
_QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}


def check_contamination(
    cards: Annotated[
        list[Path], typer.Option("--cards", help="Evaluation cards: JSONL, or ESC-Eval's JSON. Repeat for more."), IN_FILE
    ],
    data: Annotated[
        list[Path],
        typer.Option(
            "--data",
            help="JSONL of role-play examples, Dialogues, SupportDialogues or your own corpus (docs/data.md). Repeat for more.",
        ),
        IN_FILE,
    ],
    out: Annotated[OutOption, writes("matches.jsonl")],
    top: Annotated[int, typer.Option("--top", min=1, help="Best matches kept for each card.")] = 10,
    max_examples: Annotated[int, typer.Option("--max-examples", min=0, help="Highest matches shown with excerpts.")] = 5,
) -> None:
    """Search data for dialogues that evaluation cards may have been made from. Exit code 1 when something is flagged.

    Cards that were made from none of these dialogues are flagged too. Beside the count stands how many of so many cards that is
    in a corpus of this size: the fewest and the most over corpora of support that are no card's source (docs/measurements.md).

    Word statistics come from the data searched: give all files of a set at once. Writes OUT/matches.jsonl (each card's best
    matches and all flagged ones) and the manifest, with both counts.
    """
    build = Build(out, "check-contamination", settings={"threshold": THRESHOLD, "top": top})
    with console.status("reading cards and data"):
        wanted = [card for path in cards for card in load_cards(path)]
        documents = [document for path in data for document in read_documents(path)]
        build.input(*cards, *data)
    check_unique("--cards", (card.id for card in wanted), "card ids")
    check_unique("--data", (id for id, _, _ in documents), "dialogue ids")
    if not {card.language for card in wanted} & {language for _, language, _ in documents}:
        raise UserError("no card and no dialogue share a language: nothing to compare (check --cards and --data)")
    with console.status(f"searching {len(documents)} dialogues for {len(wanted)} cards"):
        matches = link(wanted, documents, top)
    flagged = contaminated(matches)
    _account(build, wanted, documents, flagged)
    figures = _figures(wanted, documents, flagged)
    build.figures |= figures
    _report(wanted, documents, matches, figures, max_examples)
    build.write("matches.jsonl", matches)
    build.finish(console)
    if flagged:
        alike = len({match.document_id for match in flagged})
        low, high = (sum(row["by_chance"][end] for row in figures.values()) for end in (0, 1))
        text = f"FLAGGED: {alike} dialogues match {len({m.card_id for m in flagged})} cards; {_span(low, high)} by chance alone"
        console.print(text, soft_wrap=True)
        raise typer.Exit(1)
    console.print("clean: no dialogue matches a card", soft_wrap=True)


def _figures(cards: Sequence[RoleCard], documents: Sequence[Document], flagged: Sequence[Match]) -> dict[str, dict[str, Any]]:
    """By language that both have: cards, dialogues, cards flagged, and how many would be by chance alone (fewest, most)."""
    cards_of, dialogues_of = Counter(card.language for card in cards), Counter(language for _, language, _ in documents)
    return {
        language: {
            "cards": cards_of[language],
            "dialogues": dialogues_of[language],
            "flagged": len({match.card_id for match in flagged if match.language == language}),
            "by_chance": by_chance(cards_of[language], dialogues_of[language], language),
        }
        for language in LANGUAGES
        if cards_of[language] and dialogues_of[language]
    }


def _span(low: float, high: float) -> str:
    """A range of numbers of cards; decimals only where they matter."""
    few, most = (f"{value:.0f}" if high >= 10 else f"{value:.1f}" for value in (low, high))
    return f"{few} to {most}"


def _account(build: Build, cards: Sequence[RoleCard], documents: Sequence[Document], flagged: Sequence[Match]) -> None:
    known = {card.language for card in cards}
    suspects = {match.document_id for match in flagged}

    def suspicion(document: Document) -> str | None:
        if document[1] not in known:
            return "not searched: no card in its language"
        return "matches an evaluation card" if document[0] in suspects else None

    build.step("search").sieve(documents, suspicion, lambda document: document[0])


def _report(
    cards: Sequence[RoleCard],
    documents: Sequence[Document],
    matches: Sequence[Match],
    figures: Mapping[str, dict[str, Any]],
    examples: int,
) -> None:
    """Counts and those by chance, the distribution of each card's best score, and the highest matches."""
    by_id = {card.id: card for card in cards}
    best = [match for match in matches if match.rank == 1]
    for language in sorted({card.language for card in cards}):
        asked = [card.id for card in cards if card.language == language]
        among = sum(other == language for _, other, _ in documents)
        console.print(f"{language}: {len(asked)} cards, {among} dialogues", soft_wrap=True)
        if among:
            counts = figures[language]
            console.print(f"  {counts['flagged']} cards flagged; {_span(*counts['by_chance'])} by chance alone", soft_wrap=True)
            scores = {match.card_id: match.score for match in best}
            _distribution([scores.get(id, 0.0) for id in asked])
    texts = {id: text for id, _, text in documents}
    for match in sorted(best, key=lambda match: (-match.score, match.card_id))[:examples]:
        console.print(f"{match.score:.2f} {match.card_id} ~ {match.document_id}", soft_wrap=True)
        for name, text in (("card", by_id[match.card_id].problem), ("dialogue", texts[match.document_id])):
            console.print(f"    {name}: {_excerpt(text)}", soft_wrap=True)


def _distribution(scores: Sequence[float]) -> None:
    quantiles = "  ".join(f"{name} {np.quantile(scores, share):.2f}" for name, share in _QUANTILES.items())
    console.print(f"  each card's best score: {quantiles} (flagged from {THRESHOLD:.2f})", soft_wrap=True)
    bins = np.bincount(np.floor(np.asarray(scores) / _BIN + 1e-9).astype(int))
    for place, count in enumerate(bins):
        bar = "█" * max(int(count > 0), round(_BAR * count / bins.max()))
        mark = "!" if place * _BIN >= THRESHOLD - 1e-9 else " "
        console.print(f"  {mark} {place * _BIN:.1f}–{(place + 1) * _BIN:.1f} {count:5d} {bar}")


def _excerpt(text: str) -> str:
    line = " / ".join(text.split("\n"))
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + "…"
