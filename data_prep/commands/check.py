"""`check` describes a file of role cards or profiles, and finds the dialogues that evaluation cards may have been made from."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

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
from data_prep.role_play.contamination import THRESHOLD, Document, by_chance, link, read_documents

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
    out: Annotated[OutIfAnyOption, writes("matches.jsonl")] = None,
) -> None:
    """Describe role cards or profiles; with --data, search for dialogues that the cards may have been made from.

    For cards: ESC-Eval's tables 6 and 9 beside the paper's figures, and figure 5. For profiles: what is missing, contradictory
    or repeated, and who they are (EmoHarbor's figures 3, 4 and 8). Exit code 1 if a profile is wrong; findings by a rule of
    thumb are for a person to judge.

    With --data, exit code 1 if anything is flagged. Beside the count stands how many to expect by chance in a corpus of this
    size, as the lowest and highest over corpora that are no card's source (docs/measurements.md). Word statistics come from
    the data searched: give all files of a set at once. OUT/matches.jsonl has each card's best matches and all flagged ones.
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
            _show_cards(cards, card_files)
        failed = bool(profile_files) and _show_profiles(profile_files)
    if out:
        build.finish(console)
    else:
        build.print_steps(console)
    if failed:
        raise typer.Exit(1)


def _show_cards(cards: Sequence[RoleCard], files: Sequence[Path]) -> None:
    taxonomy = load_taxonomy()
    to_console(card_stats.table6(cards, card_stats.stages_of(files)), console)
    to_console(card_stats.table9(cards, taxonomy), console)
    card_stats.print_distribution([bar for bar in card_stats.tree(cards, taxonomy) if bar.total], console)


def _show_profiles(files: Sequence[Path]) -> bool:
    """Whether anything is wrong."""
    profiles, vocabulary = [profile for path in files for profile in load_profiles(path)], load_vocabulary()
    check_unique(", ".join(map(str, files)), (profile.id for profile in profiles), "profile ids")
    findings = check_profiles(profiles, vocabulary)
    for summary in (*profile_stats.tables(profiles, vocabulary), table(findings, len(profiles))):
        to_console(summary, console)
    for gap in profile_stats.gaps(profiles, vocabulary):
        console.print(Text(gap))
    return any(finding.kind == "wrong" for finding in findings)


def _search(cards: Sequence[RoleCard], data: Sequence[Path], build: Build, keep: bool) -> bool:
    """Whether any dialogue is flagged; `keep` writes the matches."""
    with console.status("reading the data"):
        documents = [document for path in data for document in read_documents(path)]
    check_unique("--data", (id for id, _, _ in documents), "dialogue ids")
    cards_of, dialogues_of = Counter(card.language for card in cards), Counter(language for _, language, _ in documents)
    if not cards_of.keys() & dialogues_of.keys():
        raise UserError("no card shares a language with a dialogue: nothing to compare (check FILE and --data)")
    with console.status(f"searching {len(documents)} dialogues for {len(cards)} cards"):
        matches = link(cards, documents, _TOP)
    flagged = [match for match in matches if match.flagged]
    suspects = {match.document_id for match in flagged}

    def suspicion(document: Document) -> str | None:
        if document[1] not in cards_of:
            return "not searched: no card in its language"
        return "matches an evaluation card" if document[0] in suspects else None

    build.step("search").sieve(documents, suspicion, lambda document: document[0])
    best = {match.card_id: match for match in matches if match.rank == 1}
    for language in (language for language in in_order(cards_of) if dialogues_of[language]):
        found = len({match.card_id for match in flagged if match.language == language})
        chance = by_chance(cards_of[language], dialogues_of[language], language)
        counts = {"cards": cards_of[language], "dialogues": dialogues_of[language], "flagged": found, "by_chance": chance}
        build.figures[language] = counts
        usual = f"{chance[0]:.1f} to {chance[1]:.1f} by chance alone" if chance else "not measured by chance in this language"
        what = f"{language}: {found} of {counts['cards']} cards flagged among {counts['dialogues']} dialogues; {usual}"
        console.print(what, soft_wrap=True)
        scores = [best[card.id].score if card.id in best else 0.0 for card in cards if card.language == language]
        quantiles = "  ".join(f"{name} {np.quantile(scores, share):.2f}" for name, share in _QUANTILES.items())
        console.print(f"  each card's best score: {quantiles} (flagged from {THRESHOLD:.2f})", soft_wrap=True)
    problems, texts = {card.id: card.problem for card in cards}, {id: text for id, _, text in documents}
    for match in sorted(best.values(), key=lambda match: (-match.score, match.card_id))[:_EXAMPLES]:
        console.print(f"{match.score:.2f} {match.card_id} ~ {match.document_id}", soft_wrap=True)
        for name, text in (("card", problems[match.card_id]), ("dialogue", texts[match.document_id])):
            line = " / ".join(text.split("\n"))
            console.print(f"    {name}: {line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + '…'}", soft_wrap=True)
    if keep:
        build.write("matches.jsonl", matches)
    cards_flagged = len({match.card_id for match in flagged})
    clean = "clean: no dialogue matches a card"
    console.print(f"FLAGGED: {len(suspects)} dialogues match {cards_flagged} cards" if flagged else clean, soft_wrap=True)
    return bool(flagged)
