"""The verdicts given to `esc-eval agree`: files of any judges, or run folders."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.files import first_object, read_jsonl
from core.names import composed, one_spelling
from core.paths import IN_RUNS, Reads
from core.people_tables import table_lines
from core.records import Dialogue, Judgement
from core.rows import read_table
from core.rubrics import Rubric
from data_prep.scores.human import refuse_twice
from evalsuite.runs import shards
from evalsuite.runs.contents import sets_of
from evalsuite.statistics.agreement import item_of, judgements_in_order, refuse_doubled
from evalsuite.statistics.clusters import DIALOGUE, Clusters, clusters_of
from evalsuite.statistics.summary import scorer_of

IN_VERDICTS = Reads(
    "place",
    (
        *("judgements.jsonl", "gold_judgements.jsonl", "judges/*/judgements.jsonl", "judges/*/gold_judgements.jsonl"),
        *("dialogues.jsonl", "gold_dialogues.jsonl"),
    ),
)
MaybeVerdicts = Annotated[list[Path] | None, IN_VERDICTS]
VERDICTS = "Verdicts of any judges: Judgement records (JSONL, or CSV with their columns), or a run folder. Repeat for more."
OnlyJudgeOption = Annotated[
    list[str] | None, typer.Option("--judge", help="Use only the verdicts of this judge. Repeat for more. Default: all judges.")
]


def scored_by(path: Path) -> str | None:
    """Whose scores a file has, by its first record: "annotator" or "judge"; None for a folder, and for both or neither."""
    if path.is_dir():
        return None
    if path.suffix.lower() in (".csv", ".xlsx"):
        fields = set(next((cells for _, cells in table_lines(path)), ()))
    else:
        fields = set(first_object(path, "records"))
    scorers = fields & {"annotator", "judge"}
    return scorers.pop() if len(scorers) == 1 else None


def verdict_files(places: Sequence[Path], gold: Sequence[Path]) -> Iterator[Path]:
    """The files of verdicts. A run folder stands for the files of all its judges: on its gold set if `gold` is that set, else
    on its dialogues. Raises `UserError` for a folder without any."""
    golden = {path.parent.resolve() for path in gold if path.name == IN_RUNS["--gold"]}
    for place in places:
        if not place.is_dir():
            yield place
            continue
        name = "gold_judgements.jsonl" if place.resolve() in golden else "judgements.jsonl"
        folders = [judging.folder for judging in sets_of(place, shards.whole(place))] or [place]
        files = [folder / name for folder in folders if (folder / name).exists()]
        if not files:
            raise UserError(
                f"--judgements {place}: no {name} in it: run `esc-eval run --only score --config CONFIG --out {place}` first"
            )
        yield from files


def read_judgements(path: Path, rubric: Rubric | None = None) -> list[Judgement]:
    """Judges' verdicts from JSONL, CSV or XLSX, in the order of `judgements_in_order`. A verdict given twice is an error."""
    read = read_table if path.suffix.lower() in (".csv", ".xlsx") else read_jsonl
    judgements = read(path, Judgement, "judgements")
    refuse_doubled(str(path), ((*item_of(j), j.rubric, scorer_of(j), j.repeat) for j in judgements))
    return judgements_in_order(judgements, rubric)


def judgements_of(paths: Iterable[Path], rubric: Rubric | None = None) -> list[Judgement]:
    """Verdicts from several files, in their order. A verdict given twice is an error, even in two files."""
    judgements: list[Judgement] = []
    files: dict[tuple[object, ...], Path] = {}
    for path in paths:
        for j in read_judgements(path, rubric):
            refuse_twice(files, path, j.judge, j, (*item_of(j), j.rubric, scorer_of(j), j.repeat))
            judgements.append(j)
    one_spelling(judgements, "judgements")
    return judgements


def scored_clusters(
    by: str | None, dialogues: Sequence[Path], places: Sequence[Path], gold: Sequence[Path], ids: Collection[str]
) -> Clusters:
    """The clusters (--cluster) of the dialogues with these `ids`, by their records in `dialogues` and in the run folders among
    `places` or of `gold`. Without records each dialogue is a cluster; raises `UserError` if `by` needs records."""
    folders = [place for place in places if place.is_dir()]
    folders += [path.parent for path in gold if path.name == IN_RUNS["--gold"]]
    files = [folder / name for folder in folders for name in ("dialogues.jsonl", "gold_dialogues.jsonl")]
    files = [*dialogues, *(file for file in dict.fromkeys(files) if file.exists())]
    records = [dialogue for file in files for dialogue in read_jsonl(file, Dialogue, "dialogues") if dialogue.id in ids]
    if not records and by not in (None, DIALOGUE):
        raise UserError(f"--cluster {by}: the records of these dialogues are missing: give --dialogues, or a run folder")
    return clusters_of(records, by)


def of_judges(verdicts: Sequence[Judgement], judges: Sequence[str] | None) -> list[Judgement]:
    """The verdicts of these judges (by default all). Raises `UserError` for a judge that gave none."""
    names = {verdict.judge for verdict in verdicts}
    judges = [composed(name) for name in judges or []]
    for name in judges:
        if name not in names:
            raise UserError(f"--judge {name}: gave none of the verdicts: {near(name, names)}")
    return [verdict for verdict in verdicts if not judges or verdict.judge in judges]
