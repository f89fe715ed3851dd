"""Blind sheets for people who score dialogues, their scores as records, and FEEL's second round with its final means."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from core.errors import UserError, near
from core.files import check_unique, sha256_file, write_json, write_text
from core.grouping import group_by
from core.languages import in_order
from core.ledger import Build
from core.names import Spellings, composed
from core.options import console
from core.records import HumanScore
from core.rubrics import flat_rubric
from core.tables import to_console
from data_prep.cards.sheets import columns_of, refuse_to_overwrite
from data_prep.profiles import load_played, played_text
from data_prep.scores import annotation, label_studio
from data_prep.scores.annotation import Mode, ScoreSheets
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import RubricCheck, read_dialogues, read_scores
from data_prep.scores.rescoring import JOINT, contested, finish

_SEED = 0  # of the draws behind the intervals


class ScoredSheet(NamedTuple):
    """What people score: files of dialogues, the rubric by name, and the cards or profiles that the seekers play."""

    dialogues: list[Path]
    rubric: str
    cards: list[Path]
    profiles: list[Path]


def export_scores(scored: ScoredSheet, annotators: list[str], each: int, out: Path, seed: int) -> None:
    """Write one sheet per annotator, as CSV and XLSX, and the rules as guide.txt; each dialogue goes to `each` of them."""
    if not annotators:
        raise UserError("name the people who score the dialogues: --annotator NAME, once for each (or --form label-studio)")
    sheets, build = _to_score(scored, out, "sheet export", seed, {"each": each})
    assigned = annotation.assign(sheets.dialogues, annotators, each, seed)
    refuse_to_overwrite(build, annotators)
    for name, dialogues in assigned.items():
        for file in sheets.write(build.folder, name, dialogues):
            build.output(file, len(dialogues))
    sheets.write_guide(build.folder / "guide.txt", in_order(dialogue.language for dialogue in sheets.dialogues))
    build.output("guide.txt")
    build.finish(console)


def export_tasks(scored: ScoredSheet, out: Path) -> None:
    """Write the same for Label Studio: tasks to import and a labelling configuration, for each language of the dialogues."""
    sheets, build = _to_score(scored, out, "sheet export")
    for language, talks in group_by(sheets.dialogues, lambda dialogue: dialogue.language).items():
        write_json(build.folder / f"tasks_{language}.json", label_studio.tasks(talks, sheets.played))
        build.output(f"tasks_{language}.json", len(talks))
        labels = label_studio.configuration(sheets.rubric, language, bool(sheets.played))
        write_text(build.folder / f"labels_{language}.xml", labels)
        build.output(f"labels_{language}.xml")
    build.finish(console)


def import_scores(scored: ScoredSheet, files: list[Path], mode: Mode, out: Path) -> None:
    """Annotators' and reviewers' sheets, and Label Studio's exports → OUT/scores.jsonl (every annotator's) and accepted.jsonl
    (settled); what waits → OUT/review.csv, .xlsx. Sheets are recognised by their columns."""
    columns = {path: columns_of(path, annotation.SHEET) for path in files if path.suffix.lower() != ".json"}
    exports = [path for path in files if "annotation_id" in columns.get(path, {"annotation_id"})]
    reviews = [path for path in files if "given" in columns.get(path, ())]
    _check_files([path for path in files if path not in (*exports, *reviews)], files)
    sheets, build = _to_score(scored, out, "sheet import", _SEED, {"mode": mode})
    build.input(*files)
    scores: list[HumanScore] = []
    for path in (path for path in files if path not in reviews):
        if path in exports:
            step = build.step(f"results {path.name}")
            scores += label_studio.read_results(path, sheets.dialogues, sheets.rubric, step)
        else:
            scores += sheets.read_scores(path, build.step(f"sheet of {path.stem}"))
    if not scores:
        raise UserError(f"no annotator's score in {', '.join(map(str, files))}")
    names = (f"{score.annotator}/{score.dialogue_id}/{score.dimension}" for score in scores)
    check_unique(", ".join(map(str, files)), names, "scores of one annotator")
    open_items = annotation.to_review(scores, sheets.rubric, mode)
    decided = [score for path in reviews for score in sheets.read_review(path, open_items, build.step(f"review {path.name}"))]
    check_unique(", ".join(map(str, reviews)), [f"{s.dialogue_id}/{s.dimension}" for s in decided], "decisions")
    settled = annotation.settle(scores, decided, open_items)
    _count(build, scores, {"waits for a reviewer": _items(settled.waiting)})
    rows = agreement(scores, [sheets.rubric], _SEED)
    build.figures = {"agreement": [asdict(row) for row in rows]}
    build.write("scores.jsonl", scores)
    build.write("accepted.jsonl", settled.accepted)
    if settled.waiting:
        refuse_to_overwrite(build, [annotation.REVIEW])
        written = sheets.write_review(build.folder, settled.waiting, scores)
        for name in written:
            build.output(name, len(settled.waiting))
        where = f"fill in {build.out / written[0]} or {written[1]}"
        console.print(f"{len(settled.waiting)} dialogues wait for a reviewer: {where}", soft_wrap=True)
    if rows:
        to_console(agreement_table(rows), console)
    else:
        console.print("no dialogue has scores of two people: agreement is not defined")
    build.finish(console)


def _to_score(
    scored: ScoredSheet, out: Path, command: str, seed: int | None = None, settings: Mapping[str, object] = {}
) -> tuple[ScoreSheets, Build]:
    """The sheets of the dialogues in which the supporter answers at least once, and the ledger. Raises `UserError` where it is
    not given who the seekers are meant to be, if the rubric rates them."""
    rubric = flat_rubric(scored.rubric, "a sheet")
    build = Build(out, command, seed, {**settings, "rubric": rubric.name})
    build.input(*scored.dialogues)
    dialogues = build.step("dialogues").sieve(
        read_dialogues(scored.dialogues), lambda dialogue: None if dialogue.exchanges else "no answer of a supporter"
    )
    if not dialogues:
        raise UserError(f"{', '.join(map(str, scored.dialogues))}: no dialogue in which a supporter answers")
    people = [*scored.cards, *scored.profiles]
    if rubric.rates != "seeker":
        if people:
            raise UserError(f"--cards, --profiles: rubric {rubric.name} rates the supporter, who knows neither: leave them out")
        return ScoreSheets(dialogues, rubric), build
    if not people:
        raise UserError(f"--rubric {rubric.name} rates the seeker against who it plays: give --cards FILE or --profiles FILE")
    build.input(*people)
    by_id = load_played(scored.cards, scored.profiles)
    return ScoreSheets(dialogues, rubric, {dialogue.id: played_text(dialogue, by_id) for dialogue in dialogues}), build


def _check_files(sheets: Sequence[Path], files: Sequence[Path]) -> None:
    """Raise `UserError` unless every person's work is a file of its own, with a name of its own."""
    names = [composed(path.stem) for path in sheets]
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"the sheet of {min(doubled)} is given twice; a file's name is its annotator's: one sheet each")
    spellings = Spellings()
    for path in sheets:
        spellings.add("annotator", composed(path.stem), path)
    if annotation.ACCEPTED in names:
        raise UserError(f"a sheet is named {annotation.ACCEPTED}: rename it to its annotator's name")
    first: dict[str, Path] = {}
    for path in files:
        if (earlier := first.setdefault(sha256_file(path), path)) is not path:
            raise UserError(f"{earlier} and {path} are identical files: people's own sheets are needed")


def _count(build: Build, scores: Sequence[HumanScore], unsettled: Mapping[str, Set[str]]) -> None:
    """Count what was scored, by dialogue and dimension; `unsettled` has those that are dropped, by reason."""
    reasons = {item: reason for reason, items in unsettled.items() for item in items}
    scored = sorted({f"{score.dialogue_id}/{score.dimension}" for score in scores})
    build.step("scores of a dialogue on a dimension").sieve(scored, reasons.get, str)


def _items(dimensions_of: annotation.OpenItems) -> set[str]:
    return {f"{dialogue}/{dimension}" for dialogue, dimensions in dimensions_of.items() for dimension in dimensions}


# --- FEEL's second round -----------------------------------------------------------------------------------------------------


def export_again(dialogues: list[Path], gold: list[Path], rubric: str, mode: Mode, out: Path) -> None:
    """Write a sheet for each annotator who must score again (NAME.csv, NAME.xlsx), and joint.* for what all review together: a
    row for each dimension to be scored, with all earlier scores, without names."""
    build = Build(out, "sheet export", settings={"rubric": rubric, "mode": mode})
    sheets, first_round = _first_round(dialogues, gold, rubric, build)
    open_items = contested(first_round, mode)
    wanted = open_items.by_annotator | ({JOINT: open_items.joint} if open_items.joint else {})
    refuse_to_overwrite(build, list(wanted))
    for name, of_person in wanted.items():
        for file in sheets.write_review(build.folder, of_person, first_round, name):
            build.output(file, len(of_person))
    rescored = set().union(*map(_items, open_items.by_annotator.values()))
    _count(build, first_round, {"scored again by some": rescored, "reviewed jointly": _items(open_items.joint)})
    build.finish(console)


def import_again(dialogues: list[Path], gold: list[Path], files: list[Path], rubric: str, mode: Mode, out: Path) -> None:
    """First round and sheets → OUT/scores.jsonl (everybody's, after the second round) and OUT/accepted.jsonl (final means). An
    item without all its answers waits and has no mean."""
    build = Build(out, "sheet import", _SEED, {"rubric": rubric, "mode": mode})
    sheets, first_round = _first_round(dialogues, gold, rubric, build)
    open_items = contested(first_round, mode)
    second_round: list[HumanScore] = []
    jointly: list[HumanScore] = []
    _check_files(files, [])
    for path in files:
        name = composed(path.stem)
        if name != JOINT and name not in open_items.by_annotator:
            names = [*open_items.by_annotator, JOINT]
            raise UserError(f"{path}: nobody named {name!r} was asked again: {near(name, names)}")
        build.input(path)
        of_person = open_items.joint if name == JOINT else open_items.by_annotator[name]
        read = sheets.read_review(path, of_person, build.step(f"sheet {path.name}"))
        (jointly if name == JOINT else second_round).extend(read)
    final = finish(first_round, second_round, jointly, mode)
    waiting = {f"{dialogue}/{dimension}" for dialogue, dimension in final.waiting}
    _count(build, first_round, {"waits for a second score or the joint review": waiting})
    rows = {"before": agreement(first_round, [sheets.rubric], _SEED), "after": agreement(final.scores, [sheets.rubric], _SEED)}
    build.figures = {
        "agreement": {when: [asdict(row) for row in agreed] for when, agreed in rows.items()},
        "still_apart": [f"{dialogue}/{dimension}" for dialogue, dimension in final.still_apart],
    }
    build.write("scores.jsonl", final.scores)
    build.write("accepted.jsonl", final.accepted)
    for when, agreed in rows.items():
        if agreed:
            table = agreement_table(agreed)
            to_console(replace(table, title=f"{table.title}, {when} the second round"), console)
    if final.still_apart:
        console.print(f"{len(final.still_apart)} means are of scores that are still more than a point apart")
    build.finish(console)


def _first_round(
    dialogues: Sequence[Path], scores: Sequence[Path], rubric: str, build: Build
) -> tuple[ScoreSheets, list[HumanScore]]:
    """The sheets, and the first-round scores (whole or half, of people whose names can name a file)."""
    rules = flat_rubric(rubric, "a sheet")
    talks = read_dialogues(dialogues)
    check = RubricCheck([Path(rubric)] if rubric.endswith((".yaml", ".yml")) else [], talks)
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
    return ScoreSheets(talks, rules, halves=True), first_round
