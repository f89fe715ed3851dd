"""Sheets of role cards for two workers and a third person, and the cards as they settled them (ESC-Eval, appendix A.2)."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from core.errors import UserError, near
from core.files import CONFIGS, check_unique, sha256_file, write_text
from core.grouping import group_by
from core.ledger import Build
from core.options import console
from core.people_tables import shortened
from core.records import Language, RoleCard
from core.settings import load_yaml
from core.statistics.accuracy import AGREEMENT, ALPHA_FROM, cohen_kappa, jackknife, krippendorff_alpha, left_out
from core.statistics.bootstrap import SHARES, SMOOTHED, estimate, smoothed_means
from core.tables import Estimate, Table, to_console
from data_prep.cards import Path3, load_taxonomy
from data_prep.cards.sheets import (
    SheetChoice,
    SheetLayout,
    SheetRow,
    columns_of,
    read_filled,
    refuse_to_overwrite,
    write_both,
)
from data_prep.commands.cards import CARDS, DROPPED

Quality = Literal["high", "middle", "invalid"]
# Appendix A.2 covers invalid cards and high against middle, and makes all remaining cards middle. Read literally (`paper`), a
# card that both call high is among the remaining, so only a third person can make a card high. `native` keeps it high, which
# must be what the authors meant. Commands print on how many cards the two readings differ.
Mode = Literal["native", "paper"]
QUALITIES: tuple[Quality, ...] = ("high", "middle", "invalid")  # in order: agreement on quality is ordinal


@dataclass(frozen=True)
class Mark:
    """One person's answers on one card. `category` is a path of three English names, or None for an invalid card. Fields that
    the third person was not asked about are None."""

    quality: Quality | None = None
    category: Path3 | None = None


@dataclass(frozen=True)
class AnnotationOutcome:
    """The result of the rules for one card. `open` names what waits for a third person: quality, category, or both. `unused`
    is whether the third person answered what the rules did not ask for, which is ignored."""

    state: Literal["kept", "dropped", "open"]
    quality: Quality | None = None
    category: Path3 | None = None
    open: tuple[str, ...] = ()
    unused: bool = False


def settle(first: Mark, second: Mark, third: Mark = Mark(), mode: Mode = "native") -> AnnotationOutcome:
    """The rules above for one card. Raises `ValueError` if the third person, who chooses high or middle, says invalid."""
    answered = {name for name in ("quality", "category") if getattr(third, name) is not None}
    if "invalid" in (first.quality, second.quality):
        return AnnotationOutcome("dropped", "invalid", unused=bool(answered))
    disputed = questions(first, second)
    if "quality" in disputed and third.quality == "invalid":
        raise ValueError("the third person decides between high and middle; only the two workers can call a card invalid")
    agreed = "middle" if mode == "paper" else first.quality
    quality = third.quality if "quality" in disputed else agreed
    category = third.category if "category" in disputed else first.category
    waiting = tuple(name for name in disputed if name not in answered)
    return AnnotationOutcome("open" if waiting else "kept", quality, category, waiting, bool(answered - set(disputed)))


def questions(first: Mark, second: Mark) -> tuple[str, ...]:
    """What a third person must decide for a card: nothing, quality, category or both (in that order)."""
    if "invalid" in (first.quality, second.quality):
        return ()
    return tuple(name for name in ("quality", "category") if getattr(first, name) != getattr(second, name))


@dataclass(frozen=True)
class Agreement:
    """Agreement of two people on one question about `n` cards, with 95 % intervals over cards; None where nothing varies.

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
    n = len(answers)
    cards = np.zeros((n, len(values), len(values)))  # each card's pair of answers
    for card, (first, second) in enumerate(answers):
        cards[card, values.index(first), values.index(second)] = 1
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


RULES: dict[Quality, dict[Language, list[str]]] = load_yaml(CONFIGS / "card_quality.yaml", "rules of card quality")
SHEET = "cards"
_CARD = ("card_id", "language", "age", "gender", "occupation", "problem", "source")
ANSWERS = ("quality", "category", "note")
_BOTH = ("first_quality", "second_quality", "first_category", "second_category")
WORKERS_SHEET = SheetLayout(SHEET, (*_CARD, *ANSWERS), ANSWERS, "card_id", "problem")
THIRD_SHEET = SheetLayout(SHEET, (*_CARD, *_BOTH, "decide", *ANSWERS), ANSWERS, "card_id", "problem")
_WORKERS = ("worker_1", "worker_2")
_SEED = 0  # of the draws behind the intervals


def export_marks(cards: Sequence[RoleCard], files: Sequence[Path], out: Path, seed: int) -> None:
    """Write one sheet for each of two workers, as CSV and XLSX, in an order of their own, and the rules as guide.txt."""
    build = Build(out, "sheet export", seed)
    refuse_to_overwrite(build, _WORKERS)
    build.input(*files)
    build.step("cards on each sheet", len(cards))
    for worker in _WORKERS:
        rows: list[dict[str, str]] = []
        for language, block in sorted(group_by(cards, lambda card: card.language).items()):
            random.Random(f"{seed}/annotate/{worker}/{language}").shuffle(block)
            rows += map(_cells, block)
        write_sheet(build, worker, WORKERS_SHEET, rows, QUALITIES)
    lines = ["\t".join(row).strip() for row in (*_rules(QUALITIES), [], *_tree())]
    write_text(build.folder / "guide.txt", "\n".join(lines) + "\n")  # for those who work on the CSV
    build.output("guide.txt")
    build.finish(console)


def import_marks(cards: Sequence[RoleCard], files: Sequence[Path], sheets: Sequence[Path], mode: Mode, out: Path) -> None:
    """Settle every card by the rules of appendix A.2, from the sheets of the two workers and, with a column `decide`, of the
    third person; what needs a third person goes to OUT/third.csv and third.xlsx."""
    third = [path for path in sheets if "decide" in columns_of(path, SHEET)]
    workers = [path for path in sheets if path not in third]
    if len({path.resolve() for path in sheets}) < len(sheets):
        raise UserError("the same file is given twice: two workers' own sheets are needed")
    if len(workers) != 2:
        raise UserError(f"{len(workers)} sheets of workers are given: give one of each of the two (or one with a column keep)")
    if sha256_file(workers[0]) == sha256_file(workers[1]):
        raise UserError(f"{workers[0]} and {workers[1]} are identical files: two workers' own sheets are needed")
    loaded = {card.id: card for card in cards}
    first, second = (read_marks(path, WORKERS_SHEET, loaded) for path in workers)
    for path, marks in zip(workers, (first, second), strict=True):
        if missing := [id for id in loaded if id not in marks]:
            raise UserError(f"{path}: no row for {len(missing)} of {len(loaded)} cards, the first {missing[0]}")
    disputed = {id: questions(first[id], second[id]) for id in loaded}
    decisions: dict[str, Mark] = {}
    for path in third:
        marks = read_marks(path, THIRD_SHEET, loaded, disputed)
        check_unique(path, [*decisions, *marks], "cards in the third person's sheets")
        decisions |= marks
    outcomes = {id: settle(first[id], second[id], decisions.get(id, Mark()), mode) for id in loaded}
    waiting = [card for card in cards if outcomes[card.id].state == "open"]
    unused = sorted(id for id, outcome in outcomes.items() if outcome.unused)
    pairs = [(first[id], second[id]) for id in loaded]
    agreed = agreement(pairs, _SEED)
    kept = [outcome.quality for outcome in outcomes.values() if outcome.state == "kept"]
    both_high = sum(a.quality == b.quality == "high" for a, b in pairs)  # where the two modes differ
    build = Build(out, "sheet import", _SEED, {"mode": mode})
    if waiting:
        refuse_to_overwrite(build, ["third"])
    build.figures = {
        "high": kept.count("high"),
        "middle": kept.count("middle"),
        "both_say_high": both_high,
        "third_answers_not_asked_for": unused,
        "agreement": [asdict(row) for row in agreed],
    }
    build.input(*files, *workers, *third)

    def unsettled(card: RoleCard) -> str | None:
        outcome = outcomes[card.id]
        if outcome.state == "open":
            return f"waits for a third person ({' and '.join(outcome.open)})"
        return "invalid" if outcome.state == "dropped" else None

    build.step("settle").sieve(cards, unsettled)
    for state, name in (("kept", CARDS), ("dropped", DROPPED)):
        settled = [(card, outcome) for card in cards if (outcome := outcomes[card.id]).state == state]
        build.write(name, [card.model_copy(update={"quality": o.quality, "category": o.category}) for card, o in settled])
    if waiting:
        rows = []
        for card in sorted(waiting, key=lambda card: card.language):
            row = _cells(card) | {"decide": "both" if len(outcomes[card.id].open) > 1 else outcomes[card.id].open[0]}
            for worker, mark in (("first", first[card.id]), ("second", second[card.id])):
                category = load_taxonomy().leaves[mark.category].label(card.language) if mark.category else ""
                row |= {f"{worker}_quality": mark.quality or "", f"{worker}_category": category}
            rows.append(row)
        write_sheet(build, "third", THIRD_SHEET, rows, QUALITIES[:2])
        console.print(f"{len(waiting)} cards wait for a third person: fill in {out}/third.csv or third.xlsx")
    columns = ("Question", "Cards", "Equal", "Cohen's kappa", "Linear weights", "Krippendorff's alpha")
    figures = [(row.question, row.n, row.raw, row.kappa, row.kappa_linear, row.alpha) for row in agreed]
    notes = (f"Intervals over cards: 95 % {AGREEMENT}; of shares: {SMOOTHED}.",)
    to_console(Table("agreement", "Agreement of the two workers", columns, tuple(figures), notes), console)
    both = f"{both_high} cards that both workers call high are high in native mode, middle in paper mode"
    console.print(f"{mode} mode: {kept.count('high')} high, {kept.count('middle')} middle; {both}")
    if unused:
        console.print(f"ignored, as not asked for: the third person's answers on {len(unused)} cards ({', '.join(unused[:3])})")
    build.finish(console)


def _cells(card: RoleCard) -> dict[str, str]:
    return {"card_id": card.id} | {name: getattr(card, name) for name in _CARD[1:]}


def write_sheet(
    build: Build, name: str, layout: SheetLayout, rows: Sequence[Mapping[str, str]], qualities: Sequence[str]
) -> None:
    """NAME.csv and NAME.xlsx as outputs of the build; the rows form one block per language, with empty answers."""
    choices = [SheetChoice("quality", 0, len(rows) - 1, f"rules!$A$2:$A${len(qualities) + 1}")]
    languages = [row["language"] for row in rows]
    for language, letter in (("en", "C"), ("zh", "F")):
        if language in languages:
            first = languages.index(language)
            last = first + languages.count(language) - 1
            choices.append(
                SheetChoice("category", first, last, f"taxonomy!${letter}$2:${letter}${len(load_taxonomy().leaves) + 1}")
            )
    extra = {"taxonomy": _tree(), "rules": _rules(qualities)}
    for file in write_both(build.folder, name, layout, rows, choices, extra):
        build.output(file, len(rows))


def _tree() -> list[list[str]]:
    """A row for every category of level 3: English in columns A to C, Chinese in D to F."""
    rows = [["level 1", "level 2", "category", "一级", "二级", "类别"]]
    taxonomy = load_taxonomy()
    for area in taxonomy.categories:
        for group in area.children:
            rows += [[area.en, group.en, leaf.en, area.zh, group.zh, leaf.zh] for leaf in group.children]
    count = len(taxonomy.leaves)
    rows += [[], [f"{count} categories (table 9 of ESC-Eval prints {count} rows; its text speaks of 37)."]]
    return [*rows, [f"共 {count} 类（ESC-Eval 表 9 印有 {count} 行；正文写的是 37 类）。"]]


def _rules(qualities: Sequence[str]) -> list[list[str]]:
    """The words for `quality` in column A, from row 2; then their rules (all three), and how to fill in the sheet."""
    texts = [(word, *pair) for word in QUALITIES for pair in zip(RULES[word]["en"], RULES[word]["zh"], strict=True)]
    how = (
        ("Write one of the words above under quality.", "在 quality 一栏填写上面的一个词。"),
        (
            "Write one name from the sheet taxonomy (English or Chinese) under category; invalid cards need none.",
            "在 category 一栏填写 taxonomy 表中的一个类别名（中文或英文均可）；无效的卡可以不填。",
        ),
        ("If there is a column decide, it says what you have to decide.", "如有 decide 一栏，它说明需要你决定什么。"),
    )
    head = [["quality", "", ""], *([quality] for quality in qualities), [], ["", "English", "中文"]]
    return [*head, *map(list, texts), [], *(["", *line] for line in how)]


def read_marks(
    path: Path,
    layout: SheetLayout,
    cards: Mapping[str, RoleCard],
    disputed: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Mark]:
    """A returned sheet as {card id: mark}. `disputed`, for the third person's, says what each card waits for. Annotations are
    paid for, so none is left out silently: raises `UserError` with the place of whatever cannot be read or is missing. Cards
    without a row stay undecided."""
    titles = {title: path for path, leaf in load_taxonomy().leaves.items() for title in (leaf.en, leaf.zh)}
    categories = {title.lower(): path for title, path in titles.items()}

    def mark(card_id: str, row: SheetRow) -> Mark:
        wanted = ("quality", "category") if disputed is None else disputed.get(card_id, ())
        undecided = f"empty, but asked for (card {card_id}); delete the row if it is not decided yet"
        quality: Quality | None = None
        with row.faults.noting():
            if word := row.cells["quality"].strip():
                quality = next((choice for choice in QUALITIES if word.lower() == choice), None)
                if quality is None:
                    raise row.fault("quality", f"unknown word {shortened(word)!r}: {near(word.lower(), QUALITIES)}")
            elif "quality" in wanted:
                empty = f"empty; expected {', '.join(QUALITIES)} (card {card_id})"
                raise row.fault("quality", empty if disputed is None else undecided)
            if disputed is not None and "quality" in wanted and quality == "invalid":
                raise row.fault("quality", f"the third person decides between high and middle (card {card_id})")
        name = row.cells["category"].strip()
        if name and name.lower() not in categories:
            raise row.fault("category", f"unknown category {shortened(name)!r}: {near(name, titles)}")
        if not name and "category" in wanted and (disputed is not None or quality not in (None, "invalid")):
            empty = f"empty; expected a category of level 3 (card {card_id})"
            raise row.fault("category", empty if disputed is None else undecided)
        return Mark(quality, categories.get(name.lower()))

    return read_filled(path, layout, {id: card.problem for id, card in cards.items()}, "card", mark)
