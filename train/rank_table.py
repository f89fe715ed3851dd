"""`python -m train rank-table`: rankers beside what they have to beat, on one test split (figures: `train.rank_figures`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.files import read_jsonl, read_object, write_json, write_text
from core.options import console
from core.paths import IN_FILE, Reads, Writes
from core.records import Judgement
from core.rubrics import Rubric
from core.statistics.bootstrap import RESAMPLES, interval
from core.tables import Cell, Estimate, Table, to_console, to_markdown
from data_prep.scores.human import read_dialogues
from train.examples import read_rank, rubric_beside
from train.rank_figures import ALL, FIGURES, Difference, Judge, Row, Verdicts, compared, groups_of, languages_of, table_rows
from train.rank_test import UNTRAINED
from train.surface import SURFACE, Item, Key, items, majority_judgements, surface_judgements

IN_DATA = Reads("folder", ("train.jsonl", "valid.jsonl", "test.jsonl", "rubric.yaml"))
MAJORITY, TEST_MAJORITY = "majority (train)", "majority (test)"
FEW = 20  # groups, below which the percentile bootstrap is known to cover less than it says


def rank_table(
    data: Annotated[Path, typer.Option("--data", help="Folder that `python -m data_prep rank-sft` wrote."), IN_DATA],
    dialogues: Annotated[list[Path], typer.Option("--dialogues", help="JSONL of all its dialogues. Repeat for more."), IN_FILE],
    judgements: Annotated[
        list[Path],
        typer.Option("--judgements", help="JSONL of judgements of its test split (rank-test, esc-eval). Repeat."),
        IN_FILE,
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for table.json and table.md."), Writes(("table.json", "table.md"))],
    title: Annotated[str, typer.Option("--title", help="Title of the tables.")] = "Rankers on the test split",
    against: Annotated[
        str, typer.Option("--against", metavar="JUDGE", help="Paired differences of all other trained judges to this row, too.")
    ] = "",
    language: Annotated[
        str, typer.Option("--language", help="Only en or zh, where rank-test RECIPE --language scored no more than that.")
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the surface classifier's forests.")] = 0,
) -> None:
    """Judges beside the majority class, a classifier on surface features, and the untrained base, with paired intervals."""
    rubric = rubric_beside(data / "test.jsonl")
    train, valid, test = (items(read_rank(data / f"{name}.jsonl", language=language)) for name in ("train", "valid", "test"))
    # No figure depends on the order of the test split. What is trained does on that of its training data, as rankers do.
    test = {key: sorted(own) for key, own in sorted(test.items())}
    talks = {dialogue.id: dialogue for dialogue in read_dialogues(dialogues)}
    given, seconds = read_judges(judgements, test, rubric)
    surface, chosen = surface_judgements(train, valid, test, talks, rubric, seed)
    found: dict[Judge, Verdicts] = {
        (MAJORITY, ""): _by_item(majority_judgements(train, test, MAJORITY, rubric)),
        (TEST_MAJORITY, ""): _by_item(majority_judgements(test, test, TEST_MAJORITY, rubric)),
        (SURFACE, ""): _by_item(surface),
    } | given
    rows = table_rows(found, test, rubric, seconds)
    differences = [*against_baselines(rows, test)]
    if against:
        other = named(rows, against)
        differences += [d for row in trained(rows) if row.family != other.family for d in compared(row, other, test)]
    tables = [*figure_tables(rows, test, title)]
    if differences:
        tables.append(difference_table(differences, title))
    for table in tables:
        to_console(table, console)
    facts = {
        "title": title,
        "groups": {language: len(groups_of(test, language)) for language in languages_of(test)},
        "resamples": RESAMPLES,
        "rows": [row.json() for row in rows],
        "differences": [vars(d) | {"verdict": d.verdict} for d in differences],
        "surface": chosen,
    }
    write_json(out / "table.json", facts)
    write_text(out / "table.md", "\n".join(map(to_markdown, tables)))


def read_judges(
    paths: Sequence[Path], test: Mapping[Key, Sequence[Item]], rubric: Rubric
) -> tuple[dict[Judge, Verdicts], dict[Judge, float]]:
    """Verdicts by judge and method (file by file, in each by name), and seconds a dialogue where the timing.json of rank-test
    is beside the file.

    A judge may be spread over files (one adapter a dimension); its seconds add up.

    Raises `UserError` unless every judge has every item of the test split, on its scale, once, and nothing else.
    """
    wanted = {(item.dialogue_id, dimension) for (_, dimension), own in test.items() for item in own}
    found: dict[Judge, Verdicts] = {}
    seconds: dict[Judge, float] = defaultdict(float)
    for path in paths:
        records = read_jsonl(path, Judgement, "judgements")
        beside = path.with_name("timing.json")
        timing = read_object(beside, "seconds by judge") if beside.is_file() else {}
        for judge in sorted({(j.judge, j.method) for j in records}):
            found.setdefault(judge, {})
            if judge[0] in timing:
                seconds[judge] += float(timing[judge[0]]["seconds_per_dialogue"])
        for j in records:
            where = f"{path}: {j.judge}, dialogue {j.dialogue_id}, {j.dimension}"
            key = (j.dialogue_id, j.dimension)
            if j.rubric != rubric.name:
                raise UserError(f"{where}: rubric: {j.rubric}, but the split was made with {rubric.name}")
            if key not in wanted:
                raise UserError(f"{where}: not in the test split: these are judgements of other data")
            if key in found[j.judge, j.method]:
                raise UserError(f"{where}: scored twice by {j.method} (the same judge's other seeds are NAME@SEED)")
            if j.value is not None and j.value not in rubric.scores:
                raise UserError(
                    f"{where}: value: {j.value:g} is not a score of the scale {rubric.scores[0]}-{rubric.scores[-1]}"
                )
            if j.judge in (MAJORITY, TEST_MAJORITY, SURFACE):
                raise UserError(f"{where}: judge: the name {j.judge} is that of a baseline: give it another")
            found[j.judge, j.method][key] = j
    for (name, method), verdicts in found.items():
        if missing := sorted(wanted - set(verdicts)):
            raise UserError(
                f"{name} ({method}): {len(missing)} of {len(wanted)} items of the test split are not judged, for example "
                f"dialogue {missing[0][0]}, {missing[0][1]}: figures over different items do not compare"
            )
    return found, dict(seconds)


def _by_item(judgements: Sequence[Judgement]) -> Verdicts:
    return {(j.dialogue_id, j.dimension): j for j in judgements}


def named(rows: Sequence[Row], name: str) -> Row:
    """The row of that name, or of that name without @seed (then the mean over seeds); `UserError` when there is none."""
    for row in rows:
        if name in (row.name, row.family):
            return row
    raise UserError(f"--against: no judge {name!r}: {near(name, {row.name for row in rows} | {row.family for row in rows})}")


def against_baselines(rows: Sequence[Row], test: Mapping[Key, Sequence[Item]]) -> Iterator[Difference]:
    """Every trained judge (the mean over its seeds) against majority, surface and the untrained base asked in the same way."""
    baselines = [row for row in rows if row.name in (MAJORITY, SURFACE)]
    bases = [row for row in rows if _is_base(row)]
    for row in trained(rows):
        for other in [*baselines, *(base for base in bases if base.method == row.method)]:
            yield from compared(row, other, test)


def trained(rows: Sequence[Row]) -> list[Row]:
    """A row for every trained judge: the mean over its seeds where it has several."""
    leading = list({(row.family, row.method): row for row in reversed(rows)}.values())[::-1]
    return [row for row in leading if row.method and not _is_base(row)]


def _is_base(row: Row) -> bool:
    return row.family.partition(" · ")[0] == UNTRAINED


def figure_tables(rows: Sequence[Row], test: Mapping[Key, Sequence[Item]], title: str) -> Iterator[Table]:
    """One table a language, then the mean over languages where there are several."""
    languages = languages_of(test)
    timed = any(row.seconds is not None for row in rows)
    for language in [*languages, ALL] if len(languages) > 1 else languages:
        body: list[tuple[Cell, ...]] = []
        for row in rows:
            average = row.average[language]
            cells: list[Cell] = [row.name]
            for name in FIGURES:
                value = average[name]
                share = None if value is None else 100 * value
                if name in row.draws[language]:
                    low, high = interval(row.draws[language][name])
                    cells.append(Estimate(share, 100 * low, 100 * high, int(average["n"] or 0)))
                else:
                    cells.append(share if name == "ece" else value)
            body.append((*cells, *([row.seconds] if timed else [])))
        sizes = {each: len(groups_of(test, each)) for each in (languages if language == ALL else [language])}
        groups = ", ".join(f"{size} {each}" for each, size in sizes.items())
        notes = [
            f"Means over dimensions; n counts ratings. [95 % percentile intervals, {RESAMPLES:,} resamples of groups "
            f"({groups}; the same for every judge)]. An unreadable verdict is wrong. A dash: undefined in some dimension."
        ]
        if min(sizes.values()) < FEW:
            notes.append(f"Fewer than {FEW} groups: such intervals tend to be too narrow.")
        yield Table(
            key=f"rank-{language}",
            title=f"{title}, {'mean over languages' if language == ALL else language}",
            columns=("judge", "ACC %", "ACC_soft %", "kappa", "Spearman", "ECE %", *(["s a dialogue"] if timed else [])),
            rows=tuple(body),
            notes=tuple(notes),
        )


def difference_table(differences: Sequence[Difference], title: str) -> Table:
    """Differences in points of ACC."""
    return Table(
        key="rank-differences",
        title=f"{title}: differences in ACC",
        columns=("judge", "minus", "language", "points", "verdict"),
        rows=tuple(
            (d.a, d.b, d.language, Estimate(100 * d.acc, 100 * d.low, 100 * d.high, d.n), d.verdict) for d in differences
        ),
        notes=("Paired: both are resampled together. A tie: the interval contains 0.",),
    )
