"""Sheets of role cards for two workers and a third person, and the cards as they settled them (ESC-Eval, appendix A.2)."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from core.errors import UserError, near
from core.files import CONFIGS, check_unique, sha256_file, write_text
from core.grouping import group_by
from core.ledger import Build
from core.options import console
from core.people_tables import shortened
from core.records import Language, RoleCard
from core.settings import load_yaml
from core.statistics.accuracy import AGREEMENT
from core.statistics.bootstrap import SMOOTHED
from core.tables import Table, to_console
from data_prep.cards.annotation import QUALITIES, Mark, Mode, Quality, agreement, questions, settle
from data_prep.cards.sheets import (
    SheetChoice,
    SheetLayout,
    SheetRow,
    columns_of,
    read_filled,
    refuse_to_overwrite,
    write_both,
)
from data_prep.cards.taxonomy import Taxonomy, load_taxonomy
from data_prep.commands.cards import CARDS, DROPPED, steps_of
from data_prep.profiles.check import check_profiles
from data_prep.profiles.record import Profile, profile_text
from data_prep.profiles.vocabulary import load_vocabulary

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
    taxonomy = load_taxonomy()
    build = Build(out, "sheet export", seed)
    refuse_to_overwrite(build, _WORKERS)
    build.input(*files)
    build.step("cards on each sheet", len(cards))
    for worker in _WORKERS:
        rows: list[dict[str, str]] = []
        for language, block in sorted(group_by(cards, lambda card: card.language).items()):
            random.Random(f"{seed}/annotate/{worker}/{language}").shuffle(block)
            rows += map(_cells, block)
        write_sheet(build, worker, WORKERS_SHEET, rows, QUALITIES, taxonomy)
    lines = ["\t".join(row).strip() for row in (*_rules(QUALITIES), [], *_tree(taxonomy))]
    write_text(build.folder / "guide.txt", "\n".join(lines) + "\n")  # for those who work on the CSV
    build.output("guide.txt")
    build.finish(console)


def import_marks(cards: Sequence[RoleCard], files: Sequence[Path], sheets: Sequence[Path], mode: Mode, out: Path) -> None:
    """Settle every card by the rules of appendix A.2; what needs a third person goes to OUT/third.csv and third.xlsx. `sheets`
    are those of the two workers and, with a column `decide`, of the third person; `files` are those of the cards. Raises
    `UserError` for another number of sheets, and for one that is given twice."""
    third = [path for path in sheets if "decide" in columns_of(path, SHEET)]
    workers = [path for path in sheets if path not in third]
    if len({path.resolve() for path in sheets}) < len(sheets):
        raise UserError("the same file is given twice: two workers' own sheets are needed")
    if len(workers) != 2:
        raise UserError(f"{len(workers)} sheets of workers are given: give one of each of the two (or one with a column keep)")
    if sha256_file(workers[0]) == sha256_file(workers[1]):
        raise UserError(f"{workers[0]} and {workers[1]} are identical files: two workers' own sheets are needed")
    taxonomy = load_taxonomy()
    loaded = {card.id: card for card in cards}
    first, second = (read_marks(path, WORKERS_SHEET, loaded, taxonomy) for path in workers)
    for path, marks in zip(workers, (first, second), strict=True):
        if missing := [id for id in loaded if id not in marks]:
            raise UserError(f"{path}: no row for {len(missing)} of {len(loaded)} cards, the first {missing[0]}")
    disputed = {id: questions(first[id], second[id]) for id in loaded}
    decisions: dict[str, Mark] = {}
    for path in third:
        marks = read_marks(path, THIRD_SHEET, loaded, taxonomy, disputed)
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
                category = taxonomy.leaves[mark.category].label(card.language) if mark.category else ""
                row |= {f"{worker}_quality": mark.quality or "", f"{worker}_category": category}
            rows.append(row)
        write_sheet(build, "third", THIRD_SHEET, rows, QUALITIES[:2], taxonomy)
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
    build: Build,
    name: str,
    layout: SheetLayout,
    rows: Sequence[Mapping[str, str]],
    qualities: Sequence[str],
    taxonomy: Taxonomy,
) -> None:
    """NAME.csv and NAME.xlsx as outputs of the build; the rows form one block per language, with empty answers."""
    choices = [SheetChoice("quality", 0, len(rows) - 1, f"rules!$A$2:$A${len(qualities) + 1}")]
    languages = [row["language"] for row in rows]
    for language, letter in (("en", "C"), ("zh", "F")):
        if language in languages:
            first = languages.index(language)
            last = first + languages.count(language) - 1
            choices.append(SheetChoice("category", first, last, f"taxonomy!${letter}$2:${letter}${len(taxonomy.leaves) + 1}"))
    extra = {"taxonomy": _tree(taxonomy), "rules": _rules(qualities)}
    for file in write_both(build.folder, name, layout, rows, choices, extra):
        build.output(file, len(rows))


def _tree(taxonomy: Taxonomy) -> list[list[str]]:
    """A row for every category of level 3: English in columns A to C, Chinese in D to F."""
    rows = [["level 1", "level 2", "category", "一级", "二级", "类别"]]
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
    taxonomy: Taxonomy,
    disputed: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Mark]:
    """A returned sheet as {card id: mark}. `disputed`, for the third person's, says what each card waits for.

    Annotations are paid for, so none is left out silently: raises `UserError` with file, line or row, and column for an unknown
    or doubled card, a problem text that is not the card's, an empty cell that needs an answer, an unknown word, and an
    "invalid" by the third person. Cards without a row stay undecided.
    """
    categories = {title.lower(): path for path, leaf in taxonomy.leaves.items() for title in (leaf.en, leaf.zh)}

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
            titles = [title for leaf in taxonomy.leaves.values() for title in (leaf.en, leaf.zh)]
            raise row.fault("category", f"unknown category {shortened(name)!r}: {near(name, titles)}")
        if not name and "category" in wanted and (disputed is not None or quality not in (None, "invalid")):
            empty = f"empty; expected a category of level 3 (card {card_id})"
            raise row.fault("category", empty if disputed is None else undecided)
        return Mark(quality, categories.get(name.lower()))

    return read_filled(path, layout, {id: card.problem for id, card in cards.items()}, "card", mark)


# --- keep or drop ------------------------------------------------------------------------------------------------------------
# Role cards between the model's filter and the annotation (third column of ESC-Eval's table 6), or a random sample of profiles
# (EmoHarbor, appendix B).

_REJECTED = "rejected by a person"
_KEEP_CARD = ("language", "age", "gender", "occupation", "problem")
CARD_SHEET = SheetLayout(
    "cards", ("card_id", "keep", "note", *_KEEP_CARD, "category", "source"), ("keep", "note"), "card_id", "problem"
)
_PROFILE = ("profile_id", "language", "profile", "findings", "keep", "note")
PROFILE_SHEET = SheetLayout("profiles", _PROFILE, ("keep", "note"), "profile_id", "profile")
_KEEP_RULES = (
    "yes: it tells what happened, to one person. no: feelings without an event, or contradictions.",
    "yes：写明了一个人遇到的事。no：只有情绪没有事件，或前后不符。",
)
_PROFILE_RULES = (
    "yes: one believable person, consistent, and nothing identifies a real person. no: anything else.",
    "yes：一个可信的人，各部分对得上，看不出真实个人。no：其他情况。",
)


def export_keep_cards(cards: Sequence[RoleCard], files: Sequence[Path], out: Path, seed: int) -> None:
    """Write a row per card, without an answer, to OUT/keep.csv and keep.xlsx."""
    rows = []
    for card in cards:
        shown = {name: getattr(card, name) for name in (*_KEEP_CARD, "source")}
        rows.append(shown | {"card_id": card.id, "category": " / ".join(card.category or ())})
    _write_keep(CARD_SHEET, rows, _KEEP_RULES, files, out, seed)


def export_profiles(profiles: Sequence[Profile], files: Sequence[Path], sample: int, out: Path, seed: int) -> None:
    """Do the same for a seeded sample of the profiles, in the files' order, with the findings of the checks."""
    places = random.Random(f"{seed}/profiles/inspect").sample(range(len(profiles)), min(sample, len(profiles)))
    findings = check_profiles(profiles, load_vocabulary())
    rows = []
    for profile in (profiles[place] for place in sorted(places)):
        problems = [f"{finding.field}: {finding.problem}" for finding in findings if finding.profile_id == profile.id]
        row = {"profile_id": profile.id, "language": profile.language, "profile": profile_text(profile, profile.language)}
        rows.append(row | {"findings": "\n".join(problems)})
    _write_keep(PROFILE_SHEET, rows, _PROFILE_RULES, files, out, seed)


def import_kept_cards(cards: Sequence[RoleCard], files: Sequence[Path], sheets: Sequence[Path], out: Path) -> None:
    """Sheets and cards → OUT/cards.jsonl and dropped.jsonl. Raises `UserError` for a card without a decision."""
    build, keep = _read_kept(CARD_SHEET, {card.id: card.problem for card in cards}, files, sheets, out)
    if undecided := [card.id for card in cards if card.id not in keep]:
        listed = f"{', '.join(undecided[:3])} ({len(undecided)} cards without a decision)"
        raise UserError(f"{', '.join(map(str, sheets))}: card_id: no row for {listed}")
    for language, step in steps_of(build, "human-filter", (card.language for card in cards)).items():
        step.sieve([card for card in cards if card.language == language], lambda c: None if keep[c.id] else _REJECTED)
    build.write(CARDS, [card for card in cards if keep[card.id]])
    build.write(DROPPED, [card for card in cards if not keep[card.id]])
    build.finish(console)


def import_profiles(profiles: Sequence[Profile], files: Sequence[Path], sheets: Sequence[Path], out: Path) -> None:
    """Sheets and profiles → OUT/profiles.jsonl without those that a person rejected."""
    texts = {profile.id: profile_text(profile, profile.language) for profile in profiles}
    build, keep = _read_kept(PROFILE_SHEET, texts, files, sheets, out)
    inspected = [profile for profile in profiles if profile.id in keep]
    build.step("inspected").sieve(inspected, lambda profile: None if keep[profile.id] else _REJECTED)
    build.write("profiles.jsonl", [profile for profile in profiles if keep.get(profile.id, True)])
    build.finish(console)


def _write_keep(
    layout: SheetLayout, rows: Sequence[Mapping[str, str]], rules: Sequence[str], files: Sequence[Path], out: Path, seed: int
) -> None:
    build = Build(out, "sheet export", seed)
    refuse_to_overwrite(build, ["keep"])
    build.input(*files)
    choices = [SheetChoice("keep", 0, len(rows) - 1, "rules!$A$2:$A$3")]
    extra = {"rules": [[line] for line in ("keep", "yes", "no", *rules)]}
    for name in write_both(build.folder, "keep", layout, rows, choices, extra):
        build.output(name, len(rows))
    build.finish(console)


def _read_kept(
    layout: SheetLayout, texts: Mapping[str, str], files: Sequence[Path], sheets: Sequence[Path], out: Path
) -> tuple[Build, dict[str, bool]]:
    build = Build(out, "sheet import")
    build.input(*files, *sheets)
    return build, read_keep(sheets, layout, texts)


def read_keep(paths: Sequence[Path], layout: SheetLayout, texts: Mapping[str, str]) -> dict[str, bool]:
    """Whether to keep each card or profile in the sheets, by its id. `texts` maps the possible ids to the texts in the sheets.
    Raises `UserError` with file, line and column for an unknown or doubled id, a text that has changed since, and a `keep` that
    is neither yes nor no."""

    def keep(_: str, row: SheetRow) -> bool:
        word = row.cells["keep"].strip().lower()
        if word not in ("yes", "no"):
            raise row.fault("keep", "write yes or no" + (f", not {word[:40]!r}" if word else "; it is empty"))
        return word == "yes"

    sheets = [read_filled(path, layout, texts, layout.sheet.removesuffix("s"), keep) for path in paths]
    check_unique(", ".join(map(str, paths)), (id for sheet in sheets for id in sheet), layout.sheet)
    return {id: answer for sheet in sheets for id, answer in sheet.items()}
