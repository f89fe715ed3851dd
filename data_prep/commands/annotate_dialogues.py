"""`annotate-dialogues`: blind sheets for people who score dialogues, and their scores as records. `rescore`: sheets of what is
contested, and the final means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, get_args

import typer

from core.errors import UserError, near
from core.files import check_unique, sha256_file, write_json, write_text
from core.ledger import Build
from core.names import Spellings, composed
from core.options import OutOption, SeedOption, choice, console, writes
from core.paths import IN_FILE, IN_NAME, SHEET
from core.records import Dialogue, HumanScore
from core.rubrics import Rubric, load_rubric
from core.tables import to_console
from core.verbs import Verbs
from data_prep.cards.sheets import refuse_to_overwrite, remove_unanswered
from data_prep.played import load_played, played_text
from data_prep.scores import annotation, label_studio
from data_prep.scores.annotation import Mode
from data_prep.scores.annotator_agreement import Agreed, agreement, agreement_table
from data_prep.scores.human import Check, read_dialogues, read_scores
from data_prep.scores.rescoring import JOINT, contested, finish

app = Verbs(no_args_is_help=True, help="Scoring of dialogues by people, with a second review (table 16, appendix C.2).")

DialoguesOption = Annotated[list[Path], typer.Option("--dialogues", help="Dialogue records (JSONL). Repeat for more."), IN_FILE]
RubricOption = Annotated[
    str,
    typer.Option("--rubric", help="What is scored: a rubric by name (configs/rubrics) or the path of a YAML file."),
    IN_NAME,
]
CardsOption = Annotated[
    list[Path] | None,
    typer.Option("--cards", help="Role cards that the seekers play, for a rubric that rates seekers. Repeat for more."),
    IN_FILE,
]
ProfilesOption = Annotated[
    list[Path] | None,
    typer.Option("--profiles", help="The same as profiles, of EmoHarbor's dialogues. Repeat for more."),
    IN_FILE,
]


@app.command("export")
def export(
    dialogues: DialoguesOption,
    annotator: Annotated[list[str], typer.Option("--annotator", help="An annotator's name; repeat for more.")],
    out: Annotated[OutOption, writes("*.csv", "*.xlsx", "guide.txt")],
    each: Annotated[int, typer.Option("--each", help="How many people score each dialogue (the paper: 1).")] = 2,
    rubric: RubricOption = "esc_eval_human",
    cards: CardsOption = None,
    profiles: ProfilesOption = None,
    seed: SeedOption = 0,
) -> None:
    """Write one sheet an annotator, as CSV and XLSX, and the rules as guide.txt.

    A row a turn, then a row a dimension, with its rules beside the score. Where the rubric rates the seeker (role_play), the
    role card or profile stands above the dialogue. Sheets name neither supporter nor simulator (what a supporter says of itself
    stays: it is part of what is judged), and each has an order of its own. Fill in one of the two files for `import`.
    """
    rules = load_rubric(rubric)
    build = Build(out, "annotate-dialogues export", seed, {"rubric": rules.name, "each": each})
    loaded, played = _to_score(dialogues, rules, cards, profiles, build)
    sheets = annotation.assign(loaded, annotator, each, seed)
    refuse_to_overwrite(out, annotator, annotation.LAYOUT)
    for name, assigned in sheets.items():
        for file in annotation.write_sheet(build.folder, name, assigned, rules, played):
            build.output(file, len(assigned))
    languages = {dialogue.language for dialogue in loaded}
    annotation.write_guide(
        build.folder / "guide.txt", rules, [language for language in rules.languages if language in languages]
    )
    build.output("guide.txt")
    build.finish(console)


@app.command("import")
def import_(
    dialogues: DialoguesOption,
    sheet: Annotated[
        list[Path],
        typer.Option("--sheet", help="A filled-in sheet, CSV or XLSX; its file name is the annotator's name. Repeat for more."),
        SHEET,
    ],
    out: Annotated[OutOption, writes("scores.jsonl", "accepted.jsonl", f"{annotation.REVIEW}.*")],
    review: Annotated[
        list[Path], typer.Option("--review", help="The reviewer's sheet, CSV or XLSX. Repeat for more."), SHEET
    ] = [],  # noqa: B006 (typer wants a list; it is not changed)
    mode: Annotated[
        str,
        typer.Option(
            "--mode", help="native: a reviewer decides where scores lie more than one point apart. paper: everywhere."
        ),
    ] = "native",
    rubric: RubricOption = "esc_eval_human",
    cards: CardsOption = None,
    profiles: ProfilesOption = None,
    seed: SeedOption = 0,
) -> None:
    """Sheets → OUT/scores.jsonl (every annotator's) and OUT/accepted.jsonl (settled); what waits → OUT/review.csv, .xlsx.

    Fill in one of the two review sheets and run this again with --review. accepted.jsonl holds the reviewer's score where one
    was asked for, else the mean of the annotators: `esc-eval agree --gold` and training take it. The seed draws the intervals.
    """
    chosen: Mode = choice("--mode", mode, get_args(Mode))
    rules = load_rubric(rubric)
    _check_files(sheet, review)
    build = Build(out, "annotate-dialogues import", seed, {"mode": chosen, "rubric": rules.name})
    loaded, played = _to_score(dialogues, rules, cards, profiles, build)
    scores: list[HumanScore] = []
    for path in sheet:
        build.input(path)
        scores += annotation.read_scores(path, loaded, rules, build.step(f"sheet of {path.stem}"), played)
    if not scores:
        raise UserError(f"--sheet: no score in {', '.join(map(str, sheet))}")
    asked = annotation.to_review(scores, rules, chosen)
    decided: list[HumanScore] = []
    for path in review:
        build.input(path)
        decided += annotation.read_review(path, loaded, asked, rules, build.step(f"review {path.name}"), played=played)
    check_unique("--review", [f"{s.dialogue_id}/{s.dimension}" for s in decided], "decisions")
    settled = annotation.settle(scores, decided, asked)
    if settled.waiting:
        refuse_to_overwrite(out, [annotation.REVIEW], annotation.REVIEW_LAYOUT)
    _count(build, scores, {"waits for a reviewer": _items(settled.waiting)})
    rows = agreement(scores, [rules], seed)
    build.figures = {"agreement": [asdict(row) for row in rows]}
    build.write("scores.jsonl", scores)
    build.write("accepted.jsonl", settled.accepted)
    _write_review(build, loaded, settled.waiting, scores, rules, played)
    if rows:
        to_console(agreement_table(rows), console)
    else:
        console.print("no dialogue has scores of two people: agreement is not defined")
    build.finish(console)


@app.command("label-studio")
def label_studio_files(
    dialogues: DialoguesOption,
    out: Annotated[OutOption, writes("tasks_*.json", "labels_*.xml")],
    rubric: RubricOption = "esc_eval_human",
    cards: CardsOption = None,
    profiles: ProfilesOption = None,
) -> None:
    """The same for Label Studio: tasks to import and a labelling configuration, for each language of the dialogues.

    Let it hand each task to as many annotators as you want; `label-studio-import` reads its export (JSON or CSV).
    """
    rules = load_rubric(rubric)
    build = Build(out, "annotate-dialogues label-studio", settings={"rubric": rules.name})
    loaded, played = _to_score(dialogues, rules, cards, profiles, build)
    for language in rules.languages:
        if spoken := [dialogue for dialogue in loaded if dialogue.language == language]:
            write_json(build.folder / f"tasks_{language}.json", label_studio.tasks(spoken, played))
            build.output(f"tasks_{language}.json", len(spoken))
            write_text(build.folder / f"labels_{language}.xml", label_studio.configuration(rules, language, bool(played)))
            build.output(f"labels_{language}.xml")
    build.finish(console)


@app.command("label-studio-import")
def label_studio_import(
    dialogues: DialoguesOption,
    result: Annotated[
        list[Path],
        typer.Option("--result", help="Label Studio's export (JSON, CSV or XLSX). Repeat for more."),
        IN_FILE,
    ],
    out: Annotated[OutOption, writes("scores.jsonl")],
    rubric: RubricOption = "esc_eval_human",
) -> None:
    """Label Studio's results → OUT/scores.jsonl, as `import` writes them; annotators are called by their number there."""
    rules = load_rubric(rubric)
    build = Build(out, "annotate-dialogues label-studio-import", settings={"rubric": rules.name})
    loaded = _dialogues(dialogues, rules, build)
    build.input(*result)
    scores = [
        score for path in result for score in label_studio.read_results(path, loaded, rules, build.step(f"results {path.name}"))
    ]
    if not scores:
        raise UserError(f"--result: no score in {', '.join(map(str, result))}")
    named = (f"{score.annotator}/{score.dialogue_id}/{score.dimension}" for score in scores)
    check_unique(", ".join(map(str, result)), named, "scores of one annotator")
    build.write("scores.jsonl", scores)
    build.finish(console)


def _dialogues(paths: list[Path], rubric: Rubric, build: Build) -> list[Dialogue]:
    """The dialogues that can be scored: those in which the supporter answers at least once."""
    build.input(*paths)

    def unscored(dialogue: Dialogue) -> str | None:
        if dialogue.exchanges and dialogue.language not in rubric.languages:
            raise UserError(f"dialogue {dialogue.id}: rubric {rubric.name} has no {dialogue.language} text")
        return None if dialogue.exchanges else "no answer of a supporter"

    kept = build.step("dialogues").sieve(read_dialogues(paths), unscored)
    if not kept:
        raise UserError(f"{', '.join(map(str, paths))}: no dialogue in which a supporter answers")
    return kept


def _to_score(
    paths: list[Path], rubric: Rubric, cards: list[Path] | None, profiles: list[Path] | None, build: Build
) -> tuple[list[Dialogue], dict[str, str]]:
    """The dialogues that can be scored and, where the rubric rates seekers, dialogue id → who its seeker is meant to be. Raises
    `UserError` where that is unknown."""
    dialogues, given = _dialogues(paths, rubric, build), [*(cards or []), *(profiles or [])]
    if rubric.rates != "seeker":
        if given:
            raise UserError(f"--cards, --profiles: rubric {rubric.name} rates the supporter, who knows neither: leave them out")
        return dialogues, {}
    if not given:
        raise UserError(f"--rubric {rubric.name} rates the seeker against who it plays: give --cards FILE or --profiles FILE")
    build.input(*given)
    known = load_played(cards or [], profiles or [])
    return dialogues, {dialogue.id: played_text(dialogue, known) for dialogue in dialogues}


def _check_files(sheets: list[Path], reviews: list[Path]) -> None:
    """Two people's work is two files, with names of their own."""
    _check_names(sheets)
    if annotation.ACCEPTED in (path.stem for path in sheets):
        raise UserError(f"--sheet: a sheet named {annotation.ACCEPTED}: rename it to its annotator's name")
    seen: dict[str, Path] = {}
    for path in [*sheets, *reviews]:
        key = sha256_file(path)
        if key in seen:
            raise UserError(f"{seen[key]} and {path} are the same to the byte: people's own sheets are needed")
        seen[key] = path


def _check_names(sheets: list[Path]) -> None:
    if doubled := [name for name, count in Counter(composed(path.stem) for path in sheets).items() if count > 1]:
        raise UserError(f"--sheet: {min(doubled)} is given twice; a file's name is its annotator's: one sheet each")
    spellings = Spellings()
    for path in sheets:
        spellings.add("annotator", composed(path.stem), path)


def _count(build: Build, scores: Sequence[HumanScore], unsettled: Mapping[str, Set[str]]) -> None:
    """Count what was scored, a dialogue and dimension each; `unsettled` has those that are dropped, by the reason."""
    reasons = {item: reason for reason, items in unsettled.items() for item in items}
    scored = sorted({f"{score.dialogue_id}/{score.dimension}" for score in scores})
    build.step("scores of a dialogue on a dimension").sieve(scored, reasons.get, str)


def _items(asked: annotation.Asked) -> set[str]:
    return {f"{dialogue}/{dimension}" for dialogue, dimensions in asked.items() for dimension in dimensions}


def _write_review(
    build: Build,
    dialogues: list[Dialogue],
    waiting: annotation.Asked,
    scores: list[HumanScore],
    rubric: Rubric,
    played: annotation.Texts,
) -> None:
    if not waiting:
        remove_unanswered(build.out, annotation.REVIEW, annotation.REVIEW_LAYOUT)
        return
    sheet, workbook = annotation.write_review(build.folder, dialogues, waiting, scores, rubric, played=played)
    for name in (sheet, workbook):
        build.output(name, len(waiting))
    console.print(f"{len(waiting)} dialogues wait for a reviewer: fill in {build.out / sheet} or {workbook}", soft_wrap=True)


# --- rescore: FEEL's second round ---------------------------------------------------------------------------------------------


rescore = Verbs(
    no_args_is_help=True, help="A second round for human scores more than a point apart, joint review, final means (FEEL, 3.2)."
)

ScoresOption = Annotated[
    list[Path],
    typer.Option("--gold", help="The first round: HumanScore records (JSONL, or CSV with its columns); halves may be given."),
    IN_FILE,
]
RescoreMode = Annotated[
    str,
    typer.Option(
        "--mode",
        help="native: the paper's condition as it is written. paper: the rule of the authors' script, for three annotators "
        "(1, 2, 3: all of them score again).",
    ),
]


@rescore.command("export")
def export_again(
    dialogues: DialoguesOption,
    scores: ScoresOption,
    out: Annotated[OutOption, writes("*.csv", "*.xlsx")],
    rubric: RubricOption = "feel",
    mode: RescoreMode = "native",
) -> None:
    """Write a sheet for each annotator who must score again (NAME.csv, NAME.xlsx), and joint.* for what all review together.

    An annotator scores again who differs from another by more than one point while the others lie within one point of each
    other; other discrepancies of more than a point are reviewed jointly. In paper mode all three score again where every two
    lie a point or more apart, and otherwise the one who is farthest from the middle. Sheets have a row
    for each dimension that is asked for, with all scores given, without names. Fill in one of the two files for `import`.
    """
    chosen: Mode = choice("--mode", mode, get_args(Mode))
    build = Build(out, "rescore export", settings={"rubric": rubric, "mode": chosen})
    rules, first_round, spoken = _first_round(dialogues, scores, rubric, build)
    open_items = contested(first_round, chosen)
    sheets = {**open_items.by_annotator, **({JOINT: open_items.joint} if open_items.joint else {})}
    refuse_to_overwrite(out, list(sheets), annotation.REVIEW_LAYOUT)
    for name, asked in sheets.items():
        for file in annotation.write_review(build.folder, spoken, asked, first_round, rules, name, halves=True):
            build.output(file, len(asked))
    again = set().union(*map(_items, open_items.by_annotator.values()))
    _count(build, first_round, {"scored again by some": again, "reviewed jointly": _items(open_items.joint)})
    build.finish(console)


@rescore.command("import")
def import_again(
    dialogues: DialoguesOption,
    scores: ScoresOption,
    out: Annotated[OutOption, writes("scores.jsonl", "accepted.jsonl")],
    sheet: Annotated[
        list[Path],
        typer.Option("--sheet", help="A filled-in sheet, CSV or XLSX: NAME.* of an annotator, or joint.*. Repeat for more."),
        SHEET,
    ] = [],  # noqa: B006 (typer wants a list; it is not changed)
    rubric: RubricOption = "feel",
    seed: SeedOption = 0,
    mode: RescoreMode = "native",
) -> None:
    """First round and sheets → OUT/scores.jsonl (everybody's, after the second round) and OUT/accepted.jsonl (final means).

    What is not answered yet waits and has no mean. Agreement (Krippendorff's alpha, kappa) is shown before and after; the seed
    draws its intervals. Give the mode of `export`. accepted.jsonl is what `esc-eval feel fit --gold` and `esc-eval agree
    --gold` take.
    """
    chosen: Mode = choice("--mode", mode, get_args(Mode))
    build = Build(out, "rescore import", seed, {"rubric": rubric, "mode": chosen})
    rules, first_round, spoken = _first_round(dialogues, scores, rubric, build)
    open_items = contested(first_round, chosen)
    again: list[HumanScore] = []
    jointly: list[HumanScore] = []
    _check_names(sheet)
    for path in sheet:
        name = composed(path.stem)
        if name != JOINT and name not in open_items.by_annotator:
            names = [*open_items.by_annotator, JOINT]
            raise UserError(f"--sheet {path}: nobody named {name!r} was asked again: {near(name, names)}")
        build.input(path)
        asked = open_items.joint if name == JOINT else open_items.by_annotator[name]
        read = annotation.read_review(path, spoken, asked, rules, build.step(f"sheet {path.name}"), halves=True)
        (jointly if name == JOINT else again).extend(read)
    final = finish(first_round, again, jointly, chosen)
    waiting = {f"{dialogue}/{dimension}" for dialogue, dimension in final.waiting}
    _count(build, first_round, {"waits for a second score or the joint review": waiting})
    rows = {
        "before": agreement(first_round, [rules], seed),
        "after": agreement(final.scores, [rules], seed),
    }
    build.figures = {
        "agreement": {when: [asdict(row) for row in agreed] for when, agreed in rows.items()},
        "still_apart": [f"{dialogue}/{dimension}" for dialogue, dimension in final.still_apart],
    }
    build.write("scores.jsonl", final.scores)
    build.write("accepted.jsonl", final.accepted)
    _show(rows)
    if final.still_apart:
        console.print(f"{len(final.still_apart)} means are over scores still more than a point apart")
    build.finish(console)


def _first_round(
    dialogues: Sequence[Path], scores: Sequence[Path], rubric: str, build: Build
) -> tuple[Rubric, list[HumanScore], list[Dialogue]]:
    """The rubric, its first-round scores (whole or half, of people whose names can name a file), and the dialogues."""
    rules = load_rubric(rubric)
    spoken = read_dialogues(dialogues)
    check = Check([Path(rubric)] if rubric.endswith((".yaml", ".yml")) else [], spoken)
    first_round: list[HumanScore] = []
    build.input(*dialogues, *scores)
    for path in scores:
        for score in read_scores(path, check):
            where = f"{path}: {score.annotator} on {score.dialogue_id} / {score.dimension}"
            if score.rubric != rules.name:
                raise UserError(f"{where}: rubric: {score.rubric!r}, but --rubric is {rules.name}")
            if (2 * score.value) % 1:
                raise UserError(f"{where}: value: {score.value:g} is neither a whole nor a half number")
            first_round.append(score)
    names = sorted({score.annotator for score in first_round})
    annotation.check_names(names, "annotator")
    if JOINT in names:
        raise UserError(f"annotator {JOINT!r}: this name is kept for the joint review")
    keys = [(s.annotator, s.dialogue_id, s.dimension) for s in first_round]
    if len(set(keys)) < len(keys):
        raise UserError("--gold: an annotator scored a dialogue's dimension twice, in two files")
    return rules, first_round, spoken


def _show(rows: dict[str, list[Agreed]]) -> None:
    for when, agreed in rows.items():
        if agreed:
            table = agreement_table(agreed)
            notes = (table.notes[0].replace("Before any review. ", ""), *table.notes[1:])
            to_console(replace(table, title=f"{table.title}, {when} the second round", notes=notes), console)
