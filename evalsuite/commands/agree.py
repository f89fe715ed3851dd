"""`esc-eval agree` compares judges with human (or synthetic) scores and with each other (table 4 of ESC-Eval), compares people
with each other, and correlates the scores of judges and metrics with people's (tables 3, 13, 14 and 15)."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from core.errors import UserError, near, say
from core.files import first_object, read_jsonl, read_object, write_text
from core.names import composed, one_spelling
from core.options import choice, console
from core.paths import IN_RUNS, MaybeFiles, MaybeName, Reads
from core.people_tables import table_lines
from core.records import Dialogue, HumanScore, Judgement
from core.rows import read_table
from core.rubrics import Rubric, known_rubric
from core.tables import json_record, to_markdown
from data_prep.scores.annotator_agreement import agreement, agreement_table, pair_table
from data_prep.scores.human import RubricCheck, gold_scores_of, of_annotators, read_dialogues, refuse_twice
from evalsuite.commands.options import AgainstOption, ClusterOption, GoldOption, out_tables, refuse
from evalsuite.commands.output import deliver
from evalsuite.judge.surface import baseline_judgements, read_split
from evalsuite.papers.reported.against import against
from evalsuite.runs import shards
from evalsuite.runs.contents import sets_of
from evalsuite.statistics.agreement import item_of, judgements_in_order, refuse_doubled
from evalsuite.statistics.contestants import DIALOGUE, Clusters, clusters_of, scores_of_judges, verdicts_of_people
from evalsuite.statistics.correlation import (
    LEVELS,
    PairBy,
    Pairing,
    SampleBy,
    alignment_tables,
    correlation_tables,
    correlations,
)
from evalsuite.statistics.judge_figures import JudgeSettings, judge_figures
from evalsuite.statistics.judges import by_judge, gold_of
from evalsuite.statistics.summary import checked, scorer_of

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
IN_SPLIT = Reads(
    "folder",
    ("train.jsonl", "valid.jsonl", "test.jsonl", "rubric.yaml"),
    made="`python -m data_prep rank-sft --out {path}` makes it",
)
SHOWN_PAIRS = 40  # of annotators, on the console
R = TypeVar("R", Judgement, HumanScore)


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


def agree(
    gold: GoldOption,
    judgements: Annotated[
        MaybeVerdicts, typer.Option(help=f"{VERDICTS} Without it, the annotators of --gold are compared with each other.")
    ] = None,
    judge: OnlyJudgeOption = None,
    correlate: Annotated[
        str | None,
        typer.Option(
            metavar="dialogue|system",
            help="Correlate scores instead. dialogue: scores of the same dialogue. system: scores of the same sample and "
            "system, even if people and the judge scored different dialogues, as in tables 3 and 13 to 15.",
        ),
    ] = None,
    sample: Annotated[
        str,
        typer.Option(
            help="With --correlate: what a sample is. card: a dialogue's card, or else its profile, or else its source_id. "
            "source: its source_id, which a real dialogue shares with those simulated on the card made from it."
        ),
    ] = "card",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON (shares 0-1).")] = False,
    mode: Annotated[str, typer.Option(help="How unreadable verdicts count. paper: as wrong. native: not at all.")] = "native",
    rubric: Annotated[
        MaybeName, typer.Option(help="Use only verdicts and scores on this rubric: a name, or your own rubric file.")
    ] = None,
    gold_rubric: Annotated[
        str | None, typer.Option(help="The rubric of the gold scores, if it is not that of the verdicts.")
    ] = None,
    annotator: Annotated[
        list[str] | None, typer.Option("--annotator", help="Use only the scores of this annotator. Repeat for more.")
    ] = None,
    only_shared: Annotated[
        bool,
        typer.Option(
            "--only-shared", help="Leave out items that only one side has, and print how many; by default they are an error."
        ),
    ] = False,
    versus: AgainstOption = None,
    split: Annotated[
        Path | None,
        typer.Option(
            help="Folder of `python -m data_prep rank-sft`, if the verdicts are on its test split. Adds the majority class of "
            "its training split, means over languages, and seconds per dialogue. Its groups are resampled whole."
        ),
        IN_SPLIT,
    ] = None,
    dialogues: Annotated[
        MaybeFiles,
        typer.Option(
            help="Records of the scored dialogues (JSONL), for --cluster and --correlate (sample and system); those of a run "
            "folder are found. With --split: for a classifier on surface features. Repeat for more."
        ),
    ] = None,
    cluster: ClusterOption = None,
    reference: Annotated[
        list[str] | None, typer.Option(metavar="JUDGE", help="Test only against this judge or baseline. Repeat for more.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures as JSON, table4.md, and all tables and matrices as CSV."),
        out_tables("agreement", "annotators.json", "correlation.json", "table4.md"),
    ] = None,
) -> None:
    """Compare judges with gold, per language and dimension: ACC, ACC_soft, n, parse rate, intervals, kappa, Spearman, ECE,
    majority.

    The same model on another rubric, by another method or under another condition counts as another judge. Several judges are
    shown as in table 4 of ESC-Eval, and tested against each other on the items that both judged: Student's t over clusters,
    with Holm's correction. Judges that no other beats significantly are bold. Scores on one card are not independent, so
    intervals and tests resample whole cards (--cluster).

    With --split, rankers are compared with their baselines: the majority class, a classifier on surface features, and the
    untrained base model if `python -m train test` without an adapter judged the split, too.

    Without --judgements, people are compared with each other, per language, rubric and dimension: Krippendorff's alpha,
    weighted kappa (also of every two people), the shares of equal scores and of scores within one point. No dialogue texts are
    needed. Scores may be halves or thirds, and scores of turns.

    With --correlate, the table has Spearman, Pearson and Kendall (tau-b) of each dimension with each, with intervals (tables 3,
    13, 14 and 15 of ESC-Eval). Either side may be people's scores or judges' verdicts; metrics are given as judgements.
    Repeats are averaged per dialogue first, and so are scores of turns if the dialogue has none as a whole. An undefined
    coefficient (equal scores, or only one system) is shown as a dash, never 0, and no mean includes it. Example, the judges of
    a run on its gold set:

    esc-eval agree --gold runs/mine --judgements runs/mine
    """
    choice("--mode", mode, ("paper", "native"))
    if correlate:
        pairing = Pairing(choice("--correlate", correlate, get_args(PairBy)), choice("--sample", sample, get_args(SampleBy)))
        refuse("leave it out with --correlate", gold_rubric=gold_rubric, split=split, cluster=cluster, reference=reference)
        _correlate(judgements or [], gold, judge, annotator or [], dialogues or [], pairing, rubric, versus, as_json, out)
        return
    refuse("is an option of --correlate: give both, or leave it out", sample=sample != "card")
    if not judgements:
        refuse(
            "without --judgements, people are compared with each other: give it, or leave this option out",
            **{"judge": judge, "gold_rubric": gold_rubric, "against": versus, "split": split, "dialogues": dialogues},
            **{"cluster": cluster, "reference": reference, "only_shared": only_shared, "mode": mode != "native"},
        )
        _people(gold, rubric, annotator or [], out, as_json)
        return
    places, judgements = judgements, [*verdict_files(judgements, gold)]
    by_name = None if rubric is None else known_rubric(rubric)
    verdicts, scores = of_judges(judgements_of(judgements, by_name), judge), gold_scores_of(gold)
    names = {verdict.rubric for verdict in verdicts}
    rules = known_rubric(names.pop()) if rubric is None and len(names) == 1 else by_name
    name = by_name.name if by_name else rubric
    if name is not None:
        verdicts = _only(verdicts, name, "--rubric", "verdict")
    if golden := gold_rubric or name:
        scores = _only(scores, golden, "--gold-rubric", "gold score")
    scores = of_annotators(scores, annotator or [])
    if rules is not None:
        verdicts = list(checked(verdicts, rules))
    left_out = ""
    if only_shared:
        verdicts, scores, left_out = _shared(verdicts, scores)
    sources = Counter(name.partition("@")[0] for name in {verdict.judge for verdict in verdicts} if "@" in name)
    settings = JudgeSettings(mode, rules, left_out, any(count > 1 for count in sources.values()), reference or [])
    chosen: list[dict[str, Any]] = []
    if split is not None:
        refuse("--split resamples its own groups whole: leave one of them out", cluster=cluster)
        data = read_split(split)
        groups = Clusters(data.groups, "groups of the split")
        settings = replace(settings, clusters=groups, averages=True, seconds=_seconds(judgements))
        baselines, chosen = baseline_judgements(verdicts, data, read_dialogues(dialogues) if dialogues else None)
        verdicts += baselines
    else:
        scored = {verdict.dialogue_id for verdict in verdicts}
        settings = replace(settings, clusters=scored_clusters(cluster, dialogues or [], places, gold, scored))
    judges = by_judge(verdicts)
    result, tables = judge_figures(judges, scores, settings)
    if chosen:
        result["surface"] = chosen
    tables = tables._replace(first=against(tables.first, versus), judges=against(tables.judges, versus))
    if out is not None:
        write_text(out / "table4.md", "\n".join(map(to_markdown, (*tables.first, *tables.tests, *tables.judges))))
    printed = [*(tables.first if len(judges) > 1 else ()), *tables.tests, *tables.judges]
    deliver("agreement", result, [*chain.from_iterable(tables)], out, as_json, printed)


def _seconds(paths: Sequence[Path]) -> dict[tuple[str, str], float]:
    """Seconds per dialogue by judge and method, from the timing.json that `python -m train test` writes next to judgements.
    Those of a judge with several files (one adapter per dimension) are added up."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for path in paths:
        file = path.with_name("timing.json")
        timing = read_object(file, "seconds by judge") if file.is_file() else {}
        for judge, method in {(j.judge, j.method) for j in read_jsonl(path, Judgement, "judgements")}:
            measured = timing.get(judge)
            if isinstance(measured, dict) and "seconds_per_dialogue" in measured:
                seconds[judge, method] += float(measured["seconds_per_dialogue"])
    return dict(seconds)


def _people(paths: Sequence[Path], rubric: str | None, names: Sequence[str], out: Path | None, as_json: bool) -> None:
    """Agreement of annotators. Scores on a rubric with a file must fit it; others are not checked."""
    rules = None if rubric is None else known_rubric(rubric)
    fits = RubricCheck([Path(rubric)] if rubric is not None and rules and rubric != rules.name else [])
    rubrics: dict[str, Rubric | None] = {rules.name: rules} if rules else {}

    def check(score: HumanScore) -> None:
        if score.rubric not in rubrics:
            rubrics[score.rubric] = known_rubric(score.rubric)
        if rubrics[score.rubric] is not None:
            fits(score)

    scores = gold_scores_of(paths, check)
    if rubric is not None:
        scores = _only(scores, rules.name if rules else rubric, "--rubric", "score")
    rows = agreement(of_annotators(scores, names), [file for file in rubrics.values() if file])
    if not rows:
        raise UserError(
            "--gold: no dialogue (and no turn) has scores of two people on one dimension; to compare a judge with them, "
            "give its --judgements"
        )
    tables = [agreement_table(rows), pair_table(rows)]
    shown = tables if len(tables[1].rows) <= SHOWN_PAIRS else tables[:1]
    deliver("annotators", {"annotators": [asdict(row) for row in rows]}, tables, out, as_json, shown)
    if len(shown) < len(tables) and not as_json:
        console.print(f"{len(tables[1].rows)} pairs of annotators are too many to show here: see --json or --out")


def _only(records: Sequence[R], rubric: str, option: str, noun: str) -> list[R]:
    kept = [record for record in records if record.rubric == rubric]
    if not kept:
        raise UserError(f"{option}: no {noun} is on rubric {rubric}: {near(rubric, {record.rubric for record in records})}")
    return kept


def _shared(verdicts: Sequence[Judgement], scores: Sequence[HumanScore]) -> tuple[list[Judgement], list[HumanScore], str]:
    """The verdicts and scores on items that both have, and a sentence on what was left out."""
    items = {item_of(score) for score in scores}
    kept = [verdict for verdict in verdicts if item_of(verdict) in items]
    if not kept:
        raise UserError("--only-shared: no verdict and no gold score are on the same dialogue, dimension and turn")
    golden = gold_of(kept, scores)
    unmatched = len(verdicts) - len(kept), len(scores) - len(golden)
    return kept, golden, f"Left out: {unmatched[0]} verdicts without gold, {unmatched[1]} gold scores without a verdict."


def _correlate(
    judgements: Sequence[Path],
    gold: Sequence[Path],
    judge: Sequence[str] | None,
    annotators: Sequence[str],
    dialogues: Sequence[Path],
    pairing: Pairing,
    rubric: str | None,
    versus: str | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """The tables of `agree --correlate`; either side may be people's scores or judges' verdicts."""
    if not dialogues:
        why = "only the dialogues have their sample and system: give --dialogues"
        refuse(why, correlate=pairing.by == "system", sample=pairing.sample == "source")
    if not judgements:
        raise UserError("two sides are needed to correlate: give --judgements and --gold")
    by_people = [path for path in judgements if scored_by(path) == "annotator"]
    by_judges = [path for path in judgements if path not in by_people]
    refuse("--judgements are people's scores: leave --judge out", judge=judge and not by_judges)
    verdicts = of_judges(judgements_of(verdict_files(by_judges, gold)), judge) if by_judges else []
    verdicts += verdicts_of_people(gold_scores_of(by_people))
    gold_people = [path for path in gold if scored_by(path) != "judge"]
    golden = of_annotators(gold_scores_of(gold_people), annotators) if gold_people else []
    golden += scores_of_judges(judgements_of(path for path in gold if path not in gold_people))
    names = {verdict.rubric for verdict in verdicts} | {score.rubric for score in golden}
    files = map(known_rubric, [*sorted(names), *([] if rubric is None else [rubric])])
    rubrics = {file.name: file for file in files if file}
    records = read_dialogues(dialogues) if dialogues else None
    levels = LEVELS if dialogues else ("dataset",)
    rows, left_out = correlations(verdicts, golden, records, pairing, levels, rubrics)
    if not dialogues:
        left_out = ["without --dialogues, the sample level; intervals treat each dialogue as its own sample", *left_out]
    for line in left_out:
        say(f"left out: {line}", err=True)
    tables = against([*correlation_tables(rows), *alignment_tables(rows)], versus)
    deliver("correlation", {"correlation": [json_record(row, "scorer", "estimate") for row in rows]}, tables, out, as_json)
