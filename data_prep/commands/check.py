"""`check` describes a file of role cards or profiles, and finds the dialogues that evaluation cards may have been made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from core.errors import UserError
from core.files import check_unique
from core.languages import in_order
from core.ledger import Build
from core.options import OutIfAnyOption, console, writes
from core.paths import IN_FILE
from core.records import RoleCard
from core.tables import to_console
from data_prep.cards import load_cards
from data_prep.cards import stats as card_stats
from data_prep.cards.taxonomy import load_taxonomy
from data_prep.profiles import is_profile_file, load_profiles
from data_prep.profiles import stats as profile_stats
from data_prep.profiles.check import check_profiles, table
from data_prep.profiles.vocabulary import load_vocabulary
from data_prep.role_play.contamination import THRESHOLD, Document, Match, by_chance, link, read_documents

_EXCERPT = 240  # characters
_TOP, _EXAMPLES = 10, 5  # best matches kept of each card, and the highest ones shown with excerpts
_QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}


def check(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Role cards (our JSONL, your own sheet, ESC-Eval's JSON), or profiles (our JSONL, or SAGE's file).",
            metavar="FILE...",
        ),
        IN_FILE,
    ],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            help="JSONL of role-play examples, Dialogues, SupportDialogues or your own corpus (docs/data.md). Repeat for more.",
        ),
        IN_FILE,
    ] = None,
    out: Annotated[OutIfAnyOption, writes("cards.html", "profiles.html", "matches.jsonl")] = None,
) -> None:
    """Describe role cards or profiles; with --data, search for dialogues that the cards may have been made from.

    For cards: ESC-Eval's tables 6 and 9 beside the paper's figures, and figure 5. For profiles: what is missing, contradictory
    or repeated, and who they are (EmoHarbor's figures 3, 4 and 8). With --out, also as a page, OUT/cards.html or
    profiles.html. Exit code 1 if a profile is wrong; findings by a rule of thumb are for a person to judge.

    With --data, exit code 1 if anything is flagged. Some cards are flagged although none of these dialogues is their source:
    beside the count stands how many to expect by chance in a corpus of this size, as the lowest and highest over corpora that
    are no card's source (docs/measurements.md). Word statistics come from the data searched: give all files of a set at once.
    OUT/matches.jsonl has each card's best matches and all flagged ones.
    """
    profile_files = [path for path in files if is_profile_file(path)]
    card_files = [path for path in files if path not in profile_files]
    if data and profile_files:
        raise UserError(f"--data: only the sources of role cards are searched for; {profile_files[0]} holds none")
    build = Build(out or Path(), "check", settings={"threshold": THRESHOLD, "top": _TOP} if data else None)
    build.input(*files, *(data or []))
    cards = [card for path in card_files for card in load_cards(path)]
    check_unique(", ".join(map(str, card_files)), (card.id for card in cards), "card ids")
    if data:
        failed = _search(cards, data, build, out is not None)
    else:
        if cards:
            _show_cards(cards, card_files, build, out is not None)
        failed = bool(profile_files) and _show_profiles(profile_files, build, out is not None)
    if out:
        build.finish(console)
    else:
        build.print_steps(console)
    if failed:
        raise typer.Exit(1)


def _show_cards(cards: Sequence[RoleCard], files: Sequence[Path], build: Build, page: bool) -> None:
    taxonomy = load_taxonomy()
    tables = [card_stats.table6(cards, card_stats.stages_of(files)), card_stats.table9(cards, taxonomy)]
    bars = [bar for bar in card_stats.tree(cards, taxonomy) if bar.total]
    if page:
        card_stats.write_figure(build.folder / "cards.html", bars, tables, [path.name for path in files])
        build.output("cards.html")
    for summary in tables:
        to_console(summary, console)
    card_stats.print_distribution(bars, console)


def _show_profiles(files: Sequence[Path], build: Build, page: bool) -> bool:
    """Whether anything is wrong."""
    profiles, vocabulary = [profile for path in files for profile in load_profiles(path)], load_vocabulary()
    check_unique(", ".join(map(str, files)), (profile.id for profile in profiles), "profile ids")
    findings = check_profiles(profiles, vocabulary)
    tables, gaps = profile_stats.tables(profiles, vocabulary), profile_stats.gaps(profiles, vocabulary)
    if page:
        names = [path.name for path in files]
        profile_stats.write_page(build.folder / "profiles.html", tables, gaps, names, len(profiles))
        build.output("profiles.html")
    for summary in (*tables, table(findings, len(profiles))):
        to_console(summary, console)
    for gap in gaps:
        console.print(Text(gap))
    return any(finding.kind == "wrong" for finding in findings)


def _search(cards: Sequence[RoleCard], data: Sequence[Path], build: Build, keep: bool) -> bool:
    """Whether any dialogue is flagged; `keep` writes the matches."""
    with console.status("reading the data"):
        documents = [document for path in data for document in read_documents(path)]
    check_unique("--data", (id for id, _, _ in documents), "dialogue ids")
    if not {card.language for card in cards} & {language for _, language, _ in documents}:
        raise UserError("no card shares a language with a dialogue: nothing to compare (check FILE and --data)")
    with console.status(f"searching {len(documents)} dialogues for {len(cards)} cards"):
        matches = link(cards, documents, _TOP)
    flagged = [match for match in matches if match.flagged]
    languages, suspects = {card.language for card in cards}, {match.document_id for match in flagged}

    def suspicion(document: Document) -> str | None:
        if document[1] not in languages:
            return "not searched: no card in its language"
        return "matches an evaluation card" if document[0] in suspects else None

    build.step("search").sieve(documents, suspicion, lambda document: document[0])
    cards_of, dialogues_of = Counter(card.language for card in cards), Counter(language for _, language, _ in documents)
    # Per language of both: the cards flagged, and how many to expect by chance alone (lowest, highest).
    figures: dict[str, dict[str, Any]] = {
        language: {
            "cards": cards_of[language],
            "dialogues": dialogues_of[language],
            "flagged": len({match.card_id for match in flagged if match.language == language}),
            "by_chance": by_chance(cards_of[language], dialogues_of[language], language),
        }
        for language in in_order(cards_of)
        if dialogues_of[language]
    }
    build.figures |= figures
    _report(cards, documents, matches, figures)
    if keep:
        build.write("matches.jsonl", matches)
    text = "clean: no dialogue matches a card"
    if flagged:
        alike = len({match.document_id for match in flagged})
        measured = [row["by_chance"] for row in figures.values()]
        chance = None if None in measured else (sum(low for low, _ in measured), sum(high for _, high in measured))
        text = f"FLAGGED: {alike} dialogues match {len({m.card_id for m in flagged})} cards; {_by_chance(chance)}"
    console.print(text, soft_wrap=True)
    return bool(flagged)


def _by_chance(chance: tuple[float, float] | None) -> str:
    """How many cards are flagged by chance alone, in words; decimals only where they matter."""
    if chance is None:
        return "the number by chance alone was not measured in this language"
    low, high = chance
    few, most = (f"{value:.0f}" if high >= 10 else f"{value:.1f}" for value in (low, high))
    return f"{few} to {most} by chance alone"


def _report(
    cards: Sequence[RoleCard], documents: Sequence[Document], matches: Sequence[Match], figures: Mapping[str, dict[str, Any]]
) -> None:
    """Print the counts beside those by chance, the distribution of each card's best score, and the highest matches."""
    by_id = {card.id: card for card in cards}
    best = [match for match in matches if match.rank == 1]
    for language in sorted({card.language for card in cards}):
        ids = [card.id for card in cards if card.language == language]
        among = sum(other == language for _, other, _ in documents)
        console.print(f"{language}: {len(ids)} cards, {among} dialogues", soft_wrap=True)
        if among:
            counts = figures[language]
            console.print(f"  {counts['flagged']} cards flagged; {_by_chance(counts['by_chance'])}", soft_wrap=True)
            scores = {match.card_id: match.score for match in best}
            by_card = [scores.get(id, 0.0) for id in ids]
            quantiles = "  ".join(f"{name} {np.quantile(by_card, share):.2f}" for name, share in _QUANTILES.items())
            console.print(f"  each card's best score: {quantiles} (flagged from {THRESHOLD:.2f})", soft_wrap=True)
    texts = {id: text for id, _, text in documents}
    for match in sorted(best, key=lambda match: (-match.score, match.card_id))[:_EXAMPLES]:
        console.print(f"{match.score:.2f} {match.card_id} ~ {match.document_id}", soft_wrap=True)
        for name, text in (("card", by_id[match.card_id].problem), ("dialogue", texts[match.document_id])):
            line = " / ".join(text.split("\n"))
            console.print(f"    {name}: {line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + '…'}", soft_wrap=True)
