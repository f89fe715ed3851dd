"""`check` describes a file of role cards or profiles, and finds the dialogues that evaluation cards may have been made from."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from core.errors import UserError
from core.files import check_unique, read_object, sha256_file
from core.languages import PAPER_LANGUAGES, in_order, name_of
from core.ledger import Build
from core.options import OutIfAnyOption, console, writes
from core.paths import IN_FILE
from core.records import Language, RoleCard
from core.tables import Cell, Table, to_console
from data_prep.cards import load_cards, load_taxonomy
from data_prep.profiles import is_profile_file, load_profiles
from data_prep.profiles.check import check_profiles, gaps, table, tables
from data_prep.role_play.contamination import THRESHOLD, Document, by_chance, link, read_documents

Stage = Literal["extract", "filter", "human-filter"]
STAGES: dict[Stage, str] = {"extract": "Extract", "filter": "GPT-4_F", "human-filter": "Human_F"}
QUALITIES = ("high", "middle", "")  # "" is for cards that are invalid or unrated
TABLE6: dict[Language, tuple[int, int, int, int, int]] = {  # the three stages, high, middle
    "en": (3673, 2792, 1708, 331, 1455),
    "zh": (2023, 1566, 1093, 324, 769),
}
NOTES6 = (
    "The paper's English Middle does not fit its row: 1,708 after the human filter less 331 High leaves 1,377, not 1,455; "
    "1,377 + 769 = 2,146 is what table 9 sums to, and 2,801 = 1,708 + 1,093.",
    "The paper's Chinese Extract, 2,023, is more than the 2,000 items that table 5 draws.",
)
NOTES9 = (
    "A row counts all cards below it, also those whose category goes no deeper. Not rated: no quality yet, or invalid.",
    "The paper's text speaks of 37 categories; its table 9 has 35 rows, and they account for every card, so these are used.",
    "Ten High cells are lost in print (a dash, also in their sums). The printed ones sum to 374; 655 in all leave 281.",
)
NO_CATEGORY, OUTSIDE = "no category", "outside the taxonomy"
StageCounts = Mapping[Stage, Counter[Language]]


def stages_of(files: Sequence[Path]) -> tuple[StageCounts, list[str]]:
    """Cards after each stage, by language, in the manifests beside the files and beside the files that those were made from;
    and notes on files that changed after their manifest was written, which are not counted."""
    counts, notes = defaultdict[Stage, Counter[Language]](Counter), list[str]()
    visited: set[Path] = set()
    pending = [path.resolve() for path in files]
    while pending:
        path = pending.pop(0)
        manifest_path = path.parent / "manifest.json"
        if manifest_path in visited or not manifest_path.is_file():
            continue
        try:
            manifest = read_object(manifest_path, "a manifest")
            inputs, outputs, steps = (manifest[name] for name in ("inputs", "outputs", "steps"))
        except (UserError, KeyError):
            notes.append(f"{manifest_path} is not a manifest of ours: its stages are not counted")
            continue
        if path.name not in outputs:
            continue
        visited.add(manifest_path)
        if path.is_file() and outputs[path.name]["sha256"] != sha256_file(path):
            notes.append(f"{path} changed after its manifest was written: its stages are not counted")
            continue
        for row in steps:  # steps named `STAGE LANGUAGE` are what the cards commands write
            for stage, language in product(STAGES, PAPER_LANGUAGES):
                if row["step"] == f"{stage} {language}":
                    counts[stage][language] += row["out"]
        for name in map(Path, inputs):
            if name.suffix == ".jsonl":  # relative to where the command ran, or to the folder above its output
                pending.append((name if name.is_file() else manifest_path.parent.parent / name).resolve())
    return counts, notes


def table6(cards: Sequence[RoleCard], stages: StageCounts, notes: Sequence[str] = ()) -> Table:
    """Cards per stage and quality by language, with the paper's row below each; stages that no manifest names are empty."""
    quality = Counter((card.language, _quality(card)) for card in cards)
    rows: list[tuple[Cell, ...]] = []
    for language in in_order([*PAPER_LANGUAGES, *(card.language for card in cards)]):
        name = name_of(language)
        counts = [stages[stage][language] if stage in stages else None for stage in STAGES]
        rows.append((name, "here", *counts, *(quality[language, kind] for kind in QUALITIES)))
        rows += [(name, "paper", *TABLE6[language], None)] if language in TABLE6 else []
    columns = ("Language", "", *STAGES.values(), "High", "Middle", "Not rated")
    return Table("table6", "Role cards at each stage (table 6)", columns, tuple(rows), (*notes, *NOTES6))


def _quality(card: RoleCard) -> str:
    return card.quality if card.quality in ("high", "middle") else ""


@dataclass(frozen=True)
class Bar:
    """A place in the tree (or outside it) and its cards by quality, including those of deeper places."""

    place: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def name(self) -> str:
        """Its own name, indented by level."""
        return "  " * (len(self.place) - 1) + self.place[-1]


def tree(cards: Sequence[RoleCard]) -> list[Bar]:
    """Every place of the taxonomy in its order, then the cards outside it and those without a category."""
    counts, taxonomy = Counter[tuple[tuple[str, ...], str]](), load_taxonomy()
    for card in cards:
        place: tuple[str, ...] = tuple(card.category or (NO_CATEGORY,))
        if card.category and not any(path[: len(place)] == place for path in taxonomy.leaves):
            place = (OUTSIDE,)
        counts.update((place[:depth], _quality(card)) for depth in range(1, len(place) + 1))
    order = [path[:depth] for path in taxonomy.leaves for depth in (1, 2, 3)] + [(OUTSIDE,), (NO_CATEGORY,)]
    return [Bar(place, tuple(counts[place, quality] for quality in QUALITIES)) for place in dict.fromkeys(order)]


def table9(cards: Sequence[RoleCard]) -> Table:
    """High and middle cards of the three levels, beside the printed figures of the 35 leaves and their sums."""
    rows: list[tuple[Cell, ...]] = []
    leaves = load_taxonomy().leaves
    for bar in tree(cards):
        below = [leaf for path, leaf in leaves.items() if path[: len(bar.place)] == bar.place]
        if below:
            lost = any(leaf.high is None for leaf in below)
            high: Cell = None if lost else sum(leaf.high or 0 for leaf in below)
            rows.append((bar.name, *bar.counts, high, sum(leaf.middle or 0 for leaf in below)))
        elif bar.total:
            rows.append((bar.name, *bar.counts, None, None))
    totals = [sum(_quality(card) == kind for card in cards) for kind in QUALITIES]
    printed = (sum(leaf.high or 0 for leaf in leaves.values()), sum(leaf.middle or 0 for leaf in leaves.values()))
    rows.append(("Sum", *totals, *printed))
    columns = ("Category", "High", "Middle", "Not rated", "High (paper)", "Middle (paper)")
    return Table("table9", "Role cards of each category (table 9)", columns, tuple(rows), NOTES9)


def print_distribution(bars: Sequence[Bar], console: Console) -> None:
    """Print one bar per place, indented by level and scaled to the terminal's width; shares are of all cards."""
    total = sum(bar.total for bar in bars if len(bar.place) == 1)
    most = max((bar.total for bar in bars), default=1)
    names = max((len(bar.name) for bar in bars), default=0)
    width = max(10, min(40, console.width - names - 20))
    console.print(Text(f"Distribution of {total} cards (figure 5)"))
    for bar in bars:
        blocks = "█" * max(1, round(width * bar.total / most))
        line = f"{bar.name:<{names}} {bar.total:>6} {100 * bar.total / total:5.1f} %  {blocks}"
        console.print(Text(line), no_wrap=True, crop=True)


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
            to_console(table6(cards, *stages_of(card_files)), console)
            to_console(table9(cards), console)
            print_distribution([bar for bar in tree(cards) if bar.total], console)
        failed = bool(profile_files) and _show_profiles(profile_files)
    if out:
        build.finish(console)
    else:
        build.print_steps(console)
    if failed:
        raise typer.Exit(1)


def _show_profiles(files: Sequence[Path]) -> bool:
    """Whether anything is wrong."""
    profiles = [profile for path in files for profile in load_profiles(path)]
    check_unique(", ".join(map(str, files)), (profile.id for profile in profiles), "profile ids")
    findings = check_profiles(profiles)
    for summary in (*tables(profiles), table(findings, len(profiles))):
        to_console(summary, console)
    for gap in gaps(profiles):
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
