"""`rescore`: FEEL's second round of human scores: sheets of what is contested, and the final means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.ledger import Build
from core.options import OutOption, SeedOption, console, writes
from core.paths import IN_FILE, IN_NAME, SHEET, Verbs
from core.records import Dialogue, HumanScore
from core.rubrics import Rubric, load_rubric
from core.tables import to_console
from data_prep.cards.sheets import refuse_to_overwrite
from data_prep.scores import annotation
from data_prep.scores.annotator_agreement import Agreed, agreement, agreement_table
from data_prep.scores.human import Check, read_dialogues, read_scores
from data_prep.scores.rescoring import JOINT, Contested, contested, finish

app = Verbs(
    no_args_is_help=True, help="A second round for human scores more than a point apart, joint review, final means (FEEL, 3.2)."
)

DialoguesOption = Annotated[list[Path], typer.Option("--dialogues", help="Dialogue records (JSONL). Repeat for more."), IN_FILE]
ScoresOption = Annotated[
    list[Path],
    typer.Option("--gold", help="The first round: HumanScore records (JSONL, or CSV with its columns); halves may be given."),
    IN_FILE,
]
RubricOption = Annotated[
    str, typer.Option("--rubric", help="What was scored: a rubric by name or the path of a YAML file."), IN_NAME
]


@app.command("export")
def export(
    dialogues: DialoguesOption,
    scores: ScoresOption,
    out: Annotated[OutOption, writes("*.csv", "*.xlsx")],
    rubric: RubricOption = "feel",
) -> None:
    """Write a sheet for each annotator who must score again (NAME.csv, NAME.xlsx), and joint.* for what all review together.

    An annotator scores again who differs from another by more than one point while the others lie within one point of each
    other; other discrepancies of more than a point are reviewed jointly. Sheets show all scores given, without names; column
    decide names what is asked for. Fill in one of the two files and give it to `import`.
    """
    build = Build(out, "rescore export", settings={"rubric": rubric})
    rules, first_round, spoken = _read(dialogues, scores, rubric, build)
    open_items = contested(first_round)
    sheets = {**open_items.by_annotator, **({JOINT: open_items.joint} if open_items.joint else {})}
    refuse_to_overwrite(out, list(sheets), annotation.review_layout(rules))
    for name, asked in sheets.items():
        for file in annotation.write_review(build.folder, spoken, asked, first_round, rules, name, halves=True):
            build.output(file, len(asked))
    _count(build, first_round, open_items)
    build.finish(console)


@app.command("import")
def import_(
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
) -> None:
    """First round and sheets → OUT/scores.jsonl (everybody's, after the second round) and OUT/accepted.jsonl (final means).

    What is not answered yet waits and has no mean. Agreement (Krippendorff's alpha, kappa) is shown before and after; the seed
    draws its intervals. accepted.jsonl is what `esc-eval feel fit --gold` and `esc-eval agree --gold` take.
    """
    build = Build(out, "rescore import", seed, {"rubric": rubric})
    rules, first_round, spoken = _read(dialogues, scores, rubric, build)
    open_items = contested(first_round)
    again: list[HumanScore] = []
    jointly: list[HumanScore] = []
    if doubled := sorted({path.stem for path in sheet if [p.stem for p in sheet].count(path.stem) > 1}):
        raise UserError(f"--sheet: {doubled[0]} is given twice; one sheet each")
    for path in sheet:
        if path.stem != JOINT and path.stem not in open_items.by_annotator:
            names = [*open_items.by_annotator, JOINT]
            raise UserError(f"--sheet {path}: nobody named {path.stem!r} was asked again: {near(path.stem, names)}")
        build.input(path)
        asked = open_items.joint if path.stem == JOINT else open_items.by_annotator[path.stem]
        read = annotation.read_review(path, spoken, asked, rules, build.step(f"sheet {path.name}"), halves=True)
        (jointly if path.stem == JOINT else again).extend(read)
    final = finish(first_round, again, jointly)
    step = build.step("scores of a dialogue on a dimension")
    step.taken, step.kept = len(final.accepted) + len(final.waiting), len(final.accepted)
    for dialogue, dimension in final.waiting:
        step.drop("waits for a second score or the joint review", f"{dialogue}/{dimension}")
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


def _read(
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


def _count(build: Build, first_round: Sequence[HumanScore], open_items: Contested) -> None:
    items = {(score.dialogue_id, score.dimension) for score in first_round}
    again = {(d, k) for asked in open_items.by_annotator.values() for d, keys in asked.items() for k in keys}
    joint = {(d, k) for d, keys in open_items.joint.items() for k in keys}
    step = build.step("scores of a dialogue on a dimension")
    step.taken, step.kept = len(items), len(items - again - joint)
    for dialogue, dimension in sorted(again):
        step.drop("scored again by some", f"{dialogue}/{dimension}")
    for dialogue, dimension in sorted(joint):
        step.drop("reviewed jointly", f"{dialogue}/{dimension}")


def _show(rows: dict[str, list[Agreed]]) -> None:
    for when, agreed in rows.items():
        if agreed:
            table = agreement_table(agreed)
            notes = (table.notes[0].replace("Before any review. ", ""), *table.notes[1:])
            to_console(replace(table, title=f"{table.title}, {when} the second round", notes=notes), console)
