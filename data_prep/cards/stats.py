"""Statistics of role cards as in the paper: counts per stage (table 6) and category (table 9), and the distribution (figure 5).

The stages of a card file are read from the manifests beside it and beside the files that it was made from.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from core.errors import UserError
from core.files import read_object, sha256_file
from core.languages import PAPER_LANGUAGES, in_order, name_of
from core.records import Language, RoleCard
from core.tables import Cell, Table
from data_prep.cards.taxonomy import Taxonomy

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


@dataclass
class StageCounts:
    """Cards after each stage by language; stages that no manifest mentions are missing. `notes` say what could not be read."""

    counts: Counter[tuple[Stage, Language]] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def of(self, stage: Stage, language: Language) -> int | None:
        return self.counts[stage, language] if any(stage == counted for counted, _ in self.counts) else None


def stages_of(files: Sequence[Path]) -> StageCounts:
    """The stages in the manifests beside the files, and beside the files that those were made from. A file without a manifest
    (the published ones) has none; one that changed after its manifest was written is not counted, and a note says so."""
    counts = StageCounts()
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
            counts.notes.append(f"{manifest_path} is not a manifest of ours: its stages are not counted")
            continue
        if path.name not in outputs:
            continue
        visited.add(manifest_path)
        if path.is_file() and outputs[path.name]["sha256"] != sha256_file(path):
            counts.notes.append(f"{path} changed after its manifest was written: its stages are not counted")
            continue
        for row in steps:  # steps named `STAGE LANGUAGE` are what the cards commands write
            for stage, language in product(STAGES, PAPER_LANGUAGES):
                if row["step"] == f"{stage} {language}":
                    counts.counts[stage, language] += row["out"]
        for name in map(Path, inputs):
            if name.suffix == ".jsonl":  # relative to where the command ran, or to the folder above its output
                pending.append((name if name.is_file() else manifest_path.parent.parent / name).resolve())
    return counts


def table6(cards: Sequence[RoleCard], stages: StageCounts) -> Table:
    """Cards per stage and quality by language, with the paper's row below each."""
    quality = Counter((card.language, _quality(card)) for card in cards)
    rows: list[tuple[Cell, ...]] = []
    for language in in_order([*PAPER_LANGUAGES, *(card.language for card in cards)]):
        name = name_of(language)
        counts = [stages.of(stage, language) for stage in STAGES]
        rows.append((name, "here", *counts, *(quality[language, kind] for kind in QUALITIES)))
        rows += [(name, "paper", *TABLE6[language], None)] if language in TABLE6 else []
    columns = ("Language", "", *STAGES.values(), "High", "Middle", "Not rated")
    return Table("table6", "Role cards at each stage (table 6)", columns, tuple(rows), (*stages.notes, *NOTES6))


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


def tree(cards: Sequence[RoleCard], taxonomy: Taxonomy) -> list[Bar]:
    """Every place of the taxonomy in its order, then the cards outside it and those without a category."""
    counts: Counter[tuple[tuple[str, ...], str]] = Counter()
    for card in cards:
        place: tuple[str, ...] = tuple(card.category or (NO_CATEGORY,))
        if card.category and not taxonomy.holds(place):
            place = (OUTSIDE,)
        counts.update((place[:depth], _quality(card)) for depth in range(1, len(place) + 1))
    order = [path[:depth] for path in taxonomy.leaves for depth in (1, 2, 3)] + [(OUTSIDE,), (NO_CATEGORY,)]
    return [Bar(place, tuple(counts[place, quality] for quality in QUALITIES)) for place in dict.fromkeys(order)]


def table9(cards: Sequence[RoleCard], taxonomy: Taxonomy) -> Table:
    """High and middle cards of the three levels, beside the printed figures of the 35 leaves and their sums."""
    rows: list[tuple[Cell, ...]] = []
    for bar in tree(cards, taxonomy):
        below = [leaf for path, leaf in taxonomy.leaves.items() if path[: len(bar.place)] == bar.place]
        if below:
            lost = any(leaf.high is None for leaf in below)
            high: Cell = None if lost else sum(leaf.high or 0 for leaf in below)
            rows.append((bar.name, *bar.counts, high, sum(leaf.middle or 0 for leaf in below)))
        elif bar.total:
            rows.append((bar.name, *bar.counts, None, None))
    totals = [sum(_quality(card) == kind for card in cards) for kind in QUALITIES]
    leaves = taxonomy.leaves.values()
    rows.append(("Sum", *totals, sum(leaf.high or 0 for leaf in leaves), sum(leaf.middle or 0 for leaf in leaves)))
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
