"""`sheet export` writes sheets that people fill in, and `sheet import` reads them back: marks of role cards, scores of
dialogues, and decisions to keep or drop."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import typer

from core.errors import UserError
from core.files import check_unique
from core.ledger import Build
from core.options import OutOption, SeedOption, choice, console, writes
from core.paths import IN_FILE, IN_NAME, SHEET
from core.records import RoleCard
from core.verbs import Verbs
from data_prep.cards import load_cards
from data_prep.cards.sheets import SheetChoice, SheetLayout, SheetRow, columns_of, read_filled, refuse_to_overwrite, write_both
from data_prep.commands import card_sheets, dialogue_sheets
from data_prep.commands.cards import CARDS, DROPPED, steps_of
from data_prep.profiles import Profile, load_profiles
from data_prep.profiles.check import check_profiles
from data_prep.profiles.record import profile_text
from data_prep.scores.annotation import REVIEW, Mode

app = Verbs(no_args_is_help=True, help="Sheets that people fill in: export them, import what came back.")
T = TypeVar("T", RoleCard, Profile)
_NOTHING = "name the subject of the sheets: --cards, --profiles, --dialogues, or --dialogues with --gold"
_SAMPLE, _EACH = 20, 2  # profiles drawn, and people who score each dialogue

CardsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--cards",
        help="Role cards (our JSONL, your own sheet, ESC-Eval's JSON); with --dialogues the cards that the seekers play, for a "
        "rubric that rates seekers. Repeat for more.",
    ),
    IN_FILE,
]
ProfilesOption = Annotated[
    list[Path] | None, typer.Option("--profiles", help="EmoHarbor's profiles, likewise. Repeat for more."), IN_FILE
]
DialoguesOption = Annotated[
    list[Path] | None, typer.Option("--dialogues", help="Dialogue records (JSONL). Repeat for more."), IN_FILE
]
GoldOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--gold",
        help="The first round of scores, for FEEL's second one: HumanScore records (JSONL, or CSV with their columns); halves "
        "are allowed.",
    ),
    IN_FILE,
]
RubricOption = Annotated[
    str | None,
    typer.Option(
        "--rubric",
        help="The rubric for dialogues, by name (configs/rubrics) or path of a YAML file. Default: esc_eval_human, with --gold "
        "feel.",
    ),
    IN_NAME,
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        help="Default: native. Cards: a card that both call high is high (paper: appendix A.2 read literally). Dialogues: a "
        "reviewer decides where scores are more than one point apart (paper: everywhere). With --gold: the paper's condition "
        "as written (paper: the rule in the authors' script, for three annotators).",
    ),
]


@app.command("export")
def export(
    out: Annotated[OutOption, writes("*.csv", "*.xlsx", "guide.txt", "tasks_*.json", "labels_*.xml")],
    cards: CardsOption = None,
    profiles: ProfilesOption = None,
    dialogues: DialoguesOption = None,
    gold: GoldOption = None,
    annotator: Annotated[
        list[str] | None, typer.Option("--annotator", help="An annotator of dialogues by name; repeat for more.")
    ] = None,
    each: Annotated[
        int | None, typer.Option("--each", help="How many people score each dialogue (default: 2; the paper: 1).")
    ] = None,
    rubric: RubricOption = None,
    form: Annotated[
        Literal["keep", "label-studio"] | None,
        typer.Option(
            "--form", help="keep: one person keeps or drops role cards. label-studio: tasks and configuration for it."
        ),
    ] = None,
    mode: ModeOption = None,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="How many profiles are drawn for the sheet (default: 20).")
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Write sheets as CSV and XLSX; fill in either file for `sheet import`.

    --cards: a sheet for each of two workers, each in its own order, and the rules as guide.txt (ESC-Eval, appendix A.2).
    With --form keep: one sheet with a column keep, between the model's filter and the annotation (table 6).

    --profiles: a random sample for a person, with a column keep. The share rejected shows what to expect of the others.

    --dialogues: a blind sheet for each --annotator, in its own order, and guide.txt (table 16): a row per turn, then a row per
    dimension; if the rubric rates the seeker (role_play), the role card or profile comes first. With --form label-studio: the
    same as tasks and a labelling configuration for each language.

    --dialogues with --gold: NAME.* for each annotator who must score again, and joint.* for what all review together (FEEL,
    section 3.2). An annotator scores again who differs from another by more than one point while the others are within one
    point of each other; other discrepancies are reviewed jointly. In paper mode all three score again if every two are a
    point or more apart, and otherwise the one farthest from the middle score.
    """
    given = dict(locals())
    if dialogues and gold:
        _only("scores that are given again", given, "dialogues", "gold", "rubric", "mode")
        dialogue_sheets.export_again(dialogues, gold, rubric or "feel", _mode(mode), out)
    elif dialogues:
        scored = dialogue_sheets.ScoredSheet(dialogues, rubric or "esc_eval_human", cards or [], profiles or [])
        if form == "label-studio":
            _only("Label Studio's files", given, "dialogues", "cards", "profiles", "rubric", "form")
            dialogue_sheets.export_tasks(scored, out)
        else:
            _only("sheets of dialogues", given, "dialogues", "cards", "profiles", "rubric", "annotator", "each")
            dialogue_sheets.export_scores(scored, annotator or [], _EACH if each is None else each, out, seed)
    elif cards and form != "keep":
        _only("two workers' sheets of role cards", given, "cards")
        card_sheets.export_marks(_loaded(cards, load_cards, "card"), cards, out, seed)
    elif cards:
        _only("cards that a person keeps or drops", given, "cards", "form")
        export_keep_cards(_loaded(cards, load_cards, "card"), cards, out, seed)
    elif profiles:
        _only("profiles that a person keeps or drops", given, "profiles", "sample")
        export_profiles(_loaded(profiles, load_profiles, "profile"), profiles, sample or _SAMPLE, out, seed)
    else:
        raise UserError(_NOTHING)


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Filled-in sheets, CSV or XLSX, or Label Studio's export (JSON or CSV)."),
        SHEET,
    ],
    out: Annotated[
        OutOption, writes(CARDS, DROPPED, "third.*", "profiles.jsonl", "scores.jsonl", "accepted.jsonl", f"{REVIEW}.*")
    ],
    cards: CardsOption = None,
    profiles: ProfilesOption = None,
    dialogues: DialoguesOption = None,
    gold: GoldOption = None,
    rubric: RubricOption = None,
    mode: ModeOption = None,
) -> None:
    """Read filled-in sheets, with the same records and mode as for the export.

    --cards: the sheets of two workers settle every card by the rules of appendix A.2; what needs a third person goes to
    OUT/third.csv and third.xlsx: fill in one, and give it with the workers' sheets. Sheets with a column keep give cards.jsonl
    and dropped.jsonl, for --profiles profiles.jsonl without those that a person rejected.

    --dialogues: scores.jsonl has every annotator's scores (a sheet's file name is its annotator's name; annotators in Label
    Studio go by their number there), accepted.jsonl the settled ones: the reviewer's score where one was needed, else the mean
    of the annotators. What waits for a reviewer goes to OUT/review.csv and review.xlsx: fill in one, and give it, too.

    With --gold: the same after the second round, with the final means as accepted; unanswered items wait. `esc-eval agree
    --gold`, `esc-eval paper feel ensemble --gold` and training take accepted.jsonl.
    """
    given = dict(locals())
    if dialogues and gold:
        _only("scores that were given again", given, "dialogues", "gold", "rubric", "mode")
        dialogue_sheets.import_again(dialogues, gold, files, rubric or "feel", _mode(mode), out)
    elif dialogues:
        _only("sheets of dialogues", given, "dialogues", "cards", "profiles", "rubric", "mode")
        scored = dialogue_sheets.ScoredSheet(dialogues, rubric or "esc_eval_human", cards or [], profiles or [])
        dialogue_sheets.import_scores(scored, files, _mode(mode), out)
    elif cards and not any("keep" in columns_of(path, CARD_SHEET.sheet) for path in files):
        _only("two workers' sheets of role cards", given, "cards", "mode")
        card_sheets.import_marks(_loaded(cards, load_cards, "card"), cards, files, _mode(mode), out)
    elif cards:
        _only("cards that a person keeps or drops", given, "cards")
        import_kept_cards(_loaded(cards, load_cards, "card"), cards, files, out)
    elif profiles:
        _only("profiles that a person keeps or drops", given, "profiles")
        import_profiles(_loaded(profiles, load_profiles, "profile"), profiles, files, out)
    else:
        raise UserError(_NOTHING)


def _only(what: str, given: Mapping[str, Any], *options: str) -> None:
    """Raise `UserError` for a given option that does not apply to such sheets."""
    options = (*options, "out", "seed", "files")
    if unused := [name for name, value in given.items() if value and name not in options]:
        raise UserError(f"--{unused[0]}: does not apply to {what}: leave it out")


def _mode(mode: str | None) -> Mode:
    return choice("--mode", mode or "native", get_args(Mode))


def _loaded(paths: list[Path], load: Callable[[Path], list[T]], what: str) -> list[T]:
    records = [record for path in paths for record in load(path)]
    check_unique(f"--{what}s", (record.id for record in records), f"{what} ids")
    return records


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
    findings = check_profiles(profiles)
    rows = []
    for profile in (profiles[place] for place in sorted(places)):
        problems = [f"{finding.field}: {finding.problem}" for finding in findings if finding.profile_id == profile.id]
        row = {"profile_id": profile.id, "language": profile.language, "profile": profile_text(profile, profile.language)}
        rows.append(row | {"findings": "\n".join(problems)})
    _write_keep(PROFILE_SHEET, rows, _PROFILE_RULES, files, out, seed)


def import_kept_cards(cards: Sequence[RoleCard], files: Sequence[Path], sheets: Sequence[Path], out: Path) -> None:
    """Sheets and cards → OUT/cards.jsonl and dropped.jsonl. Raises `UserError` for a card without a decision."""
    keep = read_keep(sheets, CARD_SHEET, {card.id: card.problem for card in cards})
    if undecided := [card.id for card in cards if card.id not in keep]:
        listed = f"{', '.join(undecided[:3])} ({len(undecided)} cards without a decision)"
        raise UserError(f"{', '.join(map(str, sheets))}: card_id: no row for {listed}")
    build = Build(out, "sheet import")
    build.input(*files, *sheets)
    for language, step in steps_of(build, "human-filter", (card.language for card in cards)).items():
        step.sieve([card for card in cards if card.language == language], lambda c: None if keep[c.id] else _REJECTED)
    build.write(CARDS, [card for card in cards if keep[card.id]])
    build.write(DROPPED, [card for card in cards if not keep[card.id]])
    build.finish(console)


def import_profiles(profiles: Sequence[Profile], files: Sequence[Path], sheets: Sequence[Path], out: Path) -> None:
    """Sheets and profiles → OUT/profiles.jsonl without those that a person rejected."""
    texts = {profile.id: profile_text(profile, profile.language) for profile in profiles}
    keep = read_keep(sheets, PROFILE_SHEET, texts)
    build = Build(out, "sheet import")
    build.input(*files, *sheets)
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


def read_keep(paths: Sequence[Path], layout: SheetLayout, texts: Mapping[str, str]) -> dict[str, bool]:
    """Whether to keep each card or profile in the sheets, by its id. Raises `UserError` as `read_filled` does, and for a `keep`
    that is neither yes nor no."""

    def keep(_: str, row: SheetRow) -> bool:
        word = row.cells["keep"].strip().lower()
        if word not in ("yes", "no"):
            raise row.fault("keep", "write yes or no" + (f", not {word[:40]!r}" if word else "; it is empty"))
        return word == "yes"

    sheets = [read_filled(path, layout, texts, layout.sheet.removesuffix("s"), keep) for path in paths]
    check_unique(", ".join(map(str, paths)), (id for sheet in sheets for id in sheet), layout.sheet)
    return {id: answer for sheet in sheets for id, answer in sheet.items()}
