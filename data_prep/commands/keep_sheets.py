"""Sheets on which a person keeps or drops role cards, between the model's filter and the annotation (third column of ESC-Eval's
table 6), or a random sample of profiles (EmoHarbor, appendix B)."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import UserError
from core.files import check_unique
from core.ledger import Build
from core.options import console
from core.records import RoleCard
from data_prep.cards.sheets import SheetChoice, SheetLayout, SheetRow, read_filled, refuse_to_overwrite, write_both
from data_prep.commands.cards import CARDS, DROPPED, steps_of
from data_prep.profiles.check import check_profiles
from data_prep.profiles.record import Profile, profile_text
from data_prep.profiles.vocabulary import load_vocabulary

_REJECTED = "rejected by a person"
_CARD = ("language", "age", "gender", "occupation", "problem")
CARD_SHEET = SheetLayout(
    "cards", ("card_id", "keep", "note", *_CARD, "category", "source"), ("keep", "note"), "card_id", "problem"
)
_PROFILE = ("profile_id", "language", "profile", "findings", "keep", "note")
PROFILE_SHEET = SheetLayout("profiles", _PROFILE, ("keep", "note"), "profile_id", "profile")
_CARD_RULES = (
    "yes: it tells what happened, to one person. no: feelings without an event, or contradictions.",
    "yes：写明了一个人遇到的事。no：只有情绪没有事件，或前后不符。",
)
_PROFILE_RULES = (
    "yes: one believable person, consistent, and nothing identifies a real person. no: anything else.",
    "yes：一个可信的人，各部分对得上，看不出真实个人。no：其他情况。",
)


def export_cards(cards: Sequence[RoleCard], files: Sequence[Path], out: Path, seed: int) -> None:
    """Write a row per card, without an answer, to OUT/keep.csv and keep.xlsx."""
    rows = []
    for card in cards:
        shown = {name: getattr(card, name) for name in (*_CARD, "source")}
        rows.append(shown | {"card_id": card.id, "category": " / ".join(card.category or ())})
    _write(CARD_SHEET, rows, _CARD_RULES, files, out, seed)


def export_profiles(profiles: Sequence[Profile], files: Sequence[Path], sample: int, out: Path, seed: int) -> None:
    """Do the same for a seeded sample of the profiles, in the files' order, with the findings of the checks."""
    places = random.Random(f"{seed}/profiles/inspect").sample(range(len(profiles)), min(sample, len(profiles)))
    findings = check_profiles(profiles, load_vocabulary())
    rows = []
    for profile in (profiles[place] for place in sorted(places)):
        problems = [f"{finding.field}: {finding.problem}" for finding in findings if finding.profile_id == profile.id]
        row = {"profile_id": profile.id, "language": profile.language, "profile": profile_text(profile, profile.language)}
        rows.append(row | {"findings": "\n".join(problems)})
    _write(PROFILE_SHEET, rows, _PROFILE_RULES, files, out, seed)


def import_cards(cards: Sequence[RoleCard], files: Sequence[Path], sheets: Sequence[Path], out: Path) -> None:
    """Sheets and cards → OUT/cards.jsonl and dropped.jsonl. Raises `UserError` for a card without a decision."""
    build, keep = _read(CARD_SHEET, {card.id: card.problem for card in cards}, files, sheets, out)
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
    build, keep = _read(PROFILE_SHEET, texts, files, sheets, out)
    inspected = [profile for profile in profiles if profile.id in keep]
    build.step("inspected").sieve(inspected, lambda profile: None if keep[profile.id] else _REJECTED)
    build.write("profiles.jsonl", [profile for profile in profiles if keep.get(profile.id, True)])
    build.finish(console)


def _write(
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


def _read(
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
