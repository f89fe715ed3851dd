"""Two people annotate every role card: the correction rules of ESC-Eval's appendix A.2, how well the two agree, and their
sheets.

The rules, for one card:
- one of the two says invalid → the card is dropped;
- one says high, the other middle → a third person decides, high or middle;
- otherwise: both say middle → middle. Both say high → see `Mode`;
- the same category → accepted; different ones → the third person decides, and may take any of the 35.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from core.errors import UserError, near
from core.files import CONFIGS, write_text
from core.grouping import group_by
from core.people_tables import shortened
from core.records import Language, RoleCard
from core.statistics.bootstrap import SHARES, estimate, smoothed_means
from core.statistics.reliability import ALPHA_FROM, cohen_kappa, jackknife, krippendorff_alpha, left_out
from core.tables import Estimate
from core.yaml_files import load_yaml
from data_prep.cards.sheets import SheetChoice, SheetLayout, SheetRow, read_filled, write_both
from data_prep.cards.taxonomy import Path3, Taxonomy

T = TypeVar("T")
Quality = Literal["high", "middle", "invalid"]
# Appendix A.2 names invalid, and high against middle, and makes all remaining cards middle. Read word by word (`paper`), a card
# that both call high is among the remaining, and only a third person can make a card high. `native` keeps what both say, which
# must be what is meant. Commands print how many cards the two readings part.
Mode = Literal["native", "paper"]
QUALITIES: tuple[Quality, ...] = ("high", "middle", "invalid")  # in order: agreement on quality is ordinal
RULES: dict[Quality, dict[Language, list[str]]] = load_yaml(CONFIGS / "card_quality.yaml", "rules of card quality")


@dataclass(frozen=True)
class Mark:
    """What one person said about one card. `category` is a path of three English names; None is allowed for invalid cards."""

    quality: Quality
    category: Path3 | None = None


@dataclass(frozen=True)
class Decision:
    """What the third person said about one card; None for what was not asked."""

    quality: Quality | None = None
    category: Path3 | None = None


@dataclass(frozen=True)
class AnnotationOutcome:
    """What the rules make of one card. `open` names what waits for a third person: quality, category, or both.

    `unused` names answers of the third person that the rules did not ask for: they change nothing.
    """

    state: Literal["kept", "dropped", "open"]
    quality: Quality | None = None
    category: Path3 | None = None
    open: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def settle(first: Mark, second: Mark, third: Decision | None = None, mode: Mode = "native") -> AnnotationOutcome:
    """The rules above for one card. Raises `ValueError` when the third person, asked for high or middle, says invalid."""
    third = third or Decision()
    answered = {name for name in ("quality", "category") if getattr(third, name) is not None}
    if "invalid" in (first.quality, second.quality):
        return AnnotationOutcome("dropped", "invalid", unused=tuple(sorted(answered)))
    asked = questions(first, second)
    if "quality" in asked and third.quality == "invalid":
        raise ValueError("the third person decides between high and middle; an invalid card is what one of the two says")
    agreed: Quality = "middle" if mode == "paper" else first.quality
    quality = third.quality if "quality" in asked else agreed
    category = third.category if "category" in asked else first.category
    waiting = tuple(name for name in asked if name not in answered)
    unused = tuple(sorted(answered - set(asked)))
    if waiting:
        return AnnotationOutcome("open", quality, category, waiting, unused)
    return AnnotationOutcome("kept", quality, category, (), unused)


def questions(first: Mark, second: Mark) -> tuple[str, ...]:
    """What a third person must decide for a card: nothing, quality, category or both (in that order)."""
    if "invalid" in (first.quality, second.quality):
        return ()
    asked = ("quality",) if first.quality != second.quality else ()
    return asked + (("category",) if first.category != second.category else ())


def readings_differ(first: Mark, second: Mark) -> bool:
    """Whether the two modes give this card another quality: both people say high."""
    return first.quality == second.quality == "high"


# --- agreement --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """Agreement of two people on one question about `n` cards, with 95 % intervals over cards: `jackknife`, of the share
    `smoothed_means`.

    A figure that is not defined, because nothing varies, is None.

    `raw` is the share of equal answers (0–1), `kappa` Cohen's (-1–1, nominal), `kappa_linear` Cohen's with linear weights
    (ordinal questions only), `alpha` Krippendorff's (ordinal for ordinal questions, else nominal).
    """

    question: str
    n: int
    raw: Estimate
    kappa: Estimate
    alpha: Estimate
    kappa_linear: Estimate | None = None


def agreement(pairs: list[tuple[Mark, Mark]], seed: int) -> list[Agreement]:
    """Agreement on quality (all cards), and on category levels 1 and 3 (cards that both gave a category)."""
    result = [_question("quality", [(a.quality, b.quality) for a, b in pairs], QUALITIES, True, seed)]
    both = [(a.category, b.category) for a, b in pairs if a.category and b.category]
    for level in (1, 3):
        answers = [(a[:level], b[:level]) for a, b in both]
        names = sorted({name for pair in answers for name in pair})
        result.append(_question(f"category, level {level}", answers, names, False, seed))
    return result


def _question(name: str, answers: Sequence[tuple[Any, Any]], values: Sequence[Any], ordinal: bool, seed: int) -> Agreement:
    answers = sorted(answers, key=str)  # no figure depends on the order of rows
    n, place = len(answers), {value: position for position, value in enumerate(values)}
    cards = np.zeros((n, len(values), len(values)))  # each card's pair of answers
    for card, (first, second) in enumerate(answers):
        cards[card, place[first], place[second]] = 1
    equal = np.trace(cards, axis1=1, axis2=2)[:, None]
    without = (left_out(n, seed) @ cards.reshape(n, -1)).reshape(-1, *cards.shape[1:]) if n else cards.sum(0, keepdims=True)
    distance = np.abs(np.subtract.outer(np.arange(len(values)), np.arange(len(values)))).astype(float)
    nominal = (distance > 0).astype(float)
    raw = Estimate(None, None, None, 0)
    if n:
        raw = estimate(round(float(equal.mean()), 6), smoothed_means(equal, np.ones((n, 1)), SHARES, seed)[:, 0], n, n)
    return Agreement(
        name,
        n,
        raw=raw,
        kappa=jackknife(cohen_kappa(without, nominal), n),
        alpha=jackknife(krippendorff_alpha(without + without.transpose(0, 2, 1), ordinal), n, ALPHA_FROM),
        kappa_linear=jackknife(cohen_kappa(without, distance), n) if ordinal else None,
    )


# --- sheets: cards as rows for two workers and a third person ---------------------------------------------------------------


SHEET = "cards"
_CARD = ("card_id", "language", "age", "gender", "occupation", "problem", "source")
ANSWERS = ("quality", "category", "note")
COLUMNS = (*_CARD, *ANSWERS)
_WORKERS = ("first_quality", "second_quality", "first_category", "second_category")
THIRD_COLUMNS = (*_CARD, *_WORKERS, "decide", *ANSWERS)
WORKERS_SHEET = SheetLayout(SHEET, COLUMNS, ANSWERS, "card_id", "problem")
THIRD_SHEET = SheetLayout(SHEET, THIRD_COLUMNS, ANSWERS, "card_id", "problem")
_DECIDE = {("quality",): "quality", ("category",): "category", ("quality", "category"): "both"}
_IN_TEXT = 37  # what the paper's text says (section 2.2.3); table 9 has the rows of the taxonomy


def shuffled(cards: Sequence[RoleCard], seed: int, worker: str) -> list[RoleCard]:
    """The cards in this worker's own order: one language after the other, shuffled inside each."""
    result: list[RoleCard] = []
    for language, block in sorted(group_by(cards, lambda card: card.language).items()):
        random.Random(f"{seed}/annotate/{worker}/{language}").shuffle(block)
        result += block
    return result


def write_sheets(folder: Path, name: str, cards: Sequence[RoleCard], taxonomy: Taxonomy) -> list[str]:
    """A worker's sheet as NAME.csv and NAME.xlsx, the answers empty; returns the two names."""
    return _write(folder, name, WORKERS_SHEET, [_card_cells(card) for card in cards], QUALITIES, taxonomy)


def write_third(
    folder: Path,
    cards: Sequence[RoleCard],
    asked: Mapping[str, tuple[str, ...]],
    marks: Sequence[Mapping[str, Mark]],
    taxonomy: Taxonomy,
) -> list[str]:
    """The third person's sheet (third.csv, third.xlsx): what both workers said, and in `decide` what is asked for."""
    rows = []
    for card in sorted(cards, key=lambda card: card.language):
        first, second = (by_card[card.id] for by_card in marks)
        rows.append(
            _card_cells(card)
            | {"first_quality": first.quality, "second_quality": second.quality, "decide": _DECIDE[asked[card.id]]}
            | {"first_category": leaf_name(first.category, card.language, taxonomy)}
            | {"second_category": leaf_name(second.category, card.language, taxonomy)}
        )
    return _write(folder, "third", THIRD_SHEET, rows, QUALITIES[:2], taxonomy)


def leaf_name(path: Path3 | None, language: Language, taxonomy: Taxonomy) -> str:
    """The name of a category of level 3 in a card's language; "" for none."""
    return taxonomy.leaves[path].label(language) if path else ""


def _card_cells(card: RoleCard) -> dict[str, str]:
    return {"card_id": card.id} | {name: getattr(card, name) for name in _CARD[1:]}


def _write(
    folder: Path,
    name: str,
    layout: SheetLayout,
    rows: Sequence[Mapping[str, str]],
    qualities: Sequence[str],
    taxonomy: Taxonomy,
) -> list[str]:
    choices = [SheetChoice("quality", 0, len(rows) - 1, f"rules!$A$2:$A${len(qualities) + 1}")]
    languages = [row["language"] for row in rows]
    for language, letter in (("en", "C"), ("zh", "F")):  # one block of rows a language; its names in its language
        if language in languages:
            first = languages.index(language)
            last = first + languages.count(language) - 1
            choices.append(SheetChoice("category", first, last, f"taxonomy!${letter}$2:${letter}${len(taxonomy.leaves) + 1}"))
    more = {"taxonomy": _tree(taxonomy), "rules": _rules(qualities, taxonomy)}
    return write_both(folder, name, layout, rows, choices, more)


def _tree(taxonomy: Taxonomy) -> list[list[str]]:
    """A row for every category of level 3: English in columns A to C, Chinese in D to F."""
    rows = [["level 1", "level 2", "category", "一级", "二级", "类别"]]
    for area in taxonomy.categories:
        for group in area.children:
            rows += [[area.en, group.en, leaf.en, area.zh, group.zh, leaf.zh] for leaf in group.children]
    count = len(taxonomy.leaves)
    rows += [[], [f"{count} categories (table 9 of ESC-Eval prints {count} rows; its text speaks of {_IN_TEXT})."]]
    return [*rows, [f"共 {count} 类（ESC-Eval 表 9 印有 {count} 行；正文写的是 {_IN_TEXT} 类）。"]]


def _rules(qualities: Sequence[str], taxonomy: Taxonomy) -> list[list[str]]:
    """The words for `quality` in column A, from row 2; then their rules (all three), and how to fill in the sheet."""
    rows = [["quality", "", ""], *([quality] for quality in qualities), [], ["", "English", "中文"]]
    for quality in QUALITIES:
        for en, zh in zip(RULES[quality]["en"], RULES[quality]["zh"], strict=True):
            rows.append([quality, en, zh])
    return [
        *rows,
        [],
        ["", "Write one of the words above under quality.", "在 quality 一栏填写上面的一个词。"],
        [
            "",
            "Write one name from the sheet taxonomy (English or Chinese) under category; invalid cards need none.",
            "在 category 一栏填写 taxonomy 表中的一个类别名（中文或英文均可）；无效的卡可以不填。",
        ],
        ["", "Where there is a column decide, it says what you are asked for.", "如有 decide 一栏，它说明需要你决定什么。"],
    ]


def write_guide(path: Path, taxonomy: Taxonomy) -> None:
    """The rules and the taxonomy as text, for those who work on the CSV."""
    lines = ["\t".join(row).strip() for row in (*_rules(QUALITIES, taxonomy), [], *_tree(taxonomy))]
    write_text(path, "\n".join(lines) + "\n")


# --- what came back, as marks -----------------------------------------------------------------------------------------------
# Every cell that cannot be read is an error with its place: annotations are paid for, none is left out silently.


def read_marks(path: Path, cards: Mapping[str, RoleCard], taxonomy: Taxonomy) -> dict[str, Mark]:
    """A worker's sheet as {card id: mark}, one for every card. Raises `UserError` with file, line or row, and column for:
    an unknown, doubled or missing card, another problem text than the card's, an empty cell, an unknown word."""

    def mark(card_id: str, row: SheetRow) -> Mark:
        quality: Quality | None = None
        with row.faults.noting():
            quality = _quality(row)
            if quality is None:
                raise row.fault("quality", f"empty; expected {', '.join(QUALITIES)} (card {card_id})")
        category = _category(row, taxonomy)
        if category is None and quality not in (None, "invalid"):
            raise row.fault("category", f"empty; expected a category of level 3 (card {card_id})")
        return Mark(quality or "invalid", category)

    marks = _answers(path, WORKERS_SHEET, cards, mark)
    missing = [card_id for card_id in cards if card_id not in marks]
    if missing:
        raise UserError(f"{path}: no row for {len(missing)} of {len(cards)} cards, the first {missing[0]}")
    return marks


def read_decisions(
    path: Path, cards: Mapping[str, RoleCard], asked: Mapping[str, tuple[str, ...]], taxonomy: Taxonomy
) -> dict[str, Decision]:
    """The third person's sheet as {card id: decision}. `asked` says what each card waits for; what was asked may not be empty.

    Cards without a row stay undecided: delete the rows of those that are not decided yet. Raises `UserError` as `read_marks`
    does, and for `invalid` where high or middle is asked.
    """

    def decision(card_id: str, row: SheetRow) -> Decision:
        wanted = asked.get(card_id, ())
        for name in wanted:
            with row.faults.noting():
                if not row.cells[name].strip():
                    raise row.fault(name, f"empty, but asked for (card {card_id}); delete the row if it is not decided yet")
        quality = None
        with row.faults.noting():
            quality = _quality(row)
            if "quality" in wanted and quality == "invalid":
                raise row.fault("quality", f"the third person decides between high and middle (card {card_id})")
        return Decision(quality, _category(row, taxonomy))

    return _answers(path, THIRD_SHEET, cards, decision)


def _answers(
    path: Path, layout: SheetLayout, cards: Mapping[str, RoleCard], answer: Callable[[str, SheetRow], T]
) -> dict[str, T]:
    """{card id: answer}, checked against the cards."""
    return read_filled(path, layout, {card_id: card.problem for card_id, card in cards.items()}, "card", answer)


def _quality(row: SheetRow) -> Quality | None:
    word = row.cells["quality"].strip()
    if not word:
        return None
    for quality in QUALITIES:
        if word.lower() == quality:
            return quality
    raise row.fault("quality", f"unknown word {shortened(word)!r}: {near(word.lower(), QUALITIES)}")


def _category(row: SheetRow, taxonomy: Taxonomy) -> Path3 | None:
    name = row.cells["category"].strip()
    if not name:
        return None
    named = {title.lower(): path for path, leaf in taxonomy.leaves.items() for title in (leaf.en, leaf.zh)}
    if name.lower() not in named:
        titles = [title for leaf in taxonomy.leaves.values() for title in (leaf.en, leaf.zh)]
        raise row.fault("category", f"unknown category {shortened(name)!r}: {near(name, titles)}")
    return named[name.lower()]
