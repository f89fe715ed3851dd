"""`esc-eval agree`: judges against human (or synthetic) scores, and against each other (table 4 of ESC-Eval); people among
themselves; judges' and metrics' scores correlated with people's (tables 3, 13, 14 and 15)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from core.errors import UserError, near, say
from core.files import read_jsonl, read_object, write_text
from core.options import choice, console
from core.paths import MaybeFiles, MaybeName, Reads
from core.records import HumanScore, Judgement
from core.rubrics import Rubric, known_rubric
from core.tables import to_markdown
from data_prep.scores.annotator_agreement import agreement, agreement_table, pair_table
from data_prep.scores.human import RubricCheck, gold_scores_of, of_annotators, read_dialogues
from evalsuite.commands.options import (
    AgainstOption,
    AnnotatorOption,
    ClusterOption,
    GoldOption,
    out_tables,
)
from evalsuite.commands.output import deliver
from evalsuite.commands.verdicts import (
    VERDICTS,
    MaybeVerdicts,
    OnlyJudgeOption,
    judgements_of,
    of_judgements,
    of_judges,
    of_people,
    scored_clusters,
    verdict_files,
)
from evalsuite.judge.surface import baseline_judgements, read_split
from evalsuite.papers.reported.against import against
from evalsuite.statistics.agreement import item_of
from evalsuite.statistics.clusters import Clusters
from evalsuite.statistics.coefficients import LEVELS
from evalsuite.statistics.correlation import PairBy, Pairing, SampleBy, alignment_tables, correlation_tables, correlations
from evalsuite.statistics.judge_figures import JudgeSettings, judge_figures
from evalsuite.statistics.judges import by_judge, gold_of
from evalsuite.statistics.people import scores_of_judges, verdicts_of_people
from evalsuite.statistics.summary import checked

IN_SPLIT = Reads(
    "folder",
    ("train.jsonl", "valid.jsonl", "test.jsonl", "rubric.yaml"),
    made="`python -m data_prep rank-sft --out {path}` makes it",
)
SHOWN_PAIRS = 40  # of annotators, on the console
R = TypeVar("R", Judgement, HumanScore)


def agree(
    gold: GoldOption,
    judgements: Annotated[
        MaybeVerdicts, typer.Option(help=f"{VERDICTS} Without any, the annotators of --gold are compared with each other.")
    ] = None,
    judge: OnlyJudgeOption = None,
    correlate: Annotated[
        str | None,
        typer.Option(
            metavar="dialogue|system",
            help="Correlate scores instead. dialogue: those of the same dialogue. system: those of the same sample and system, "
            "also when people judged other dialogues than the judge did, as in tables 3 and 13 to 15.",
        ),
    ] = None,
    sample: Annotated[
        str,
        typer.Option(
            help="With --correlate, what a sample is. card: a dialogue's card, else its profile, else its source_id. source: "
            "its source_id, which a situation shares with the dialogues simulated on the card made of it."
        ),
    ] = "card",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON (shares 0-1).")] = False,
    mode: Annotated[
        str,
        typer.Option(help="What becomes of unreadable verdicts. paper: they count as wrong. native: they are left out."),
    ] = "native",
    rubric: Annotated[
        MaybeName, typer.Option(help="Only verdicts and scores on this rubric: a name, or the file of one of your own.")
    ] = None,
    gold_rubric: Annotated[
        str | None, typer.Option(help="The rubric that gold is on, where it is not that of the verdicts.")
    ] = None,
    annotator: AnnotatorOption = None,
    only_shared: Annotated[
        bool,
        typer.Option("--only-shared", help="Leave out what only one side has, and say how much; without it, that is an error."),
    ] = False,
    versus: AgainstOption = None,
    split: Annotated[
        Path | None,
        typer.Option(
            help="Folder of `python -m data_prep rank-sft` on whose test split the verdicts are. Adds the majority class of "
            "its training split, means over languages, and seconds per dialogue. What it keeps together is resampled as one.",
        ),
        IN_SPLIT,
    ] = None,
    dialogues: Annotated[
        MaybeFiles,
        typer.Option(
            help="Dialogue records (JSONL) of what was scored, for --cluster and --correlate (sample and system); a run folder "
            "brings its own. With --split: for a classifier on surface features. Repeat for more."
        ),
    ] = None,
    cluster: ClusterOption = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="JUDGE", help="Test only against this judge, or baseline. Repeat for more."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures as JSON, table4.md and every table as CSV (matrices included)."),
        out_tables("agreement", "annotators.json", "correlation.json", "table4.md"),
    ] = None,
) -> None:
    """Compare judges with gold, per language and dimension: ACC, ACC_soft, n, parse rate, intervals, kappa, Spearman, ECE,
    majority.

    A judge is one judge asked on one rubric, by one method, under one condition. Several are set side by side as in table 4 of
    ESC-Eval, and tested against each other on the items that both judged: Student's t over clusters, Holm's correction. Bold
    are the judges whom no other beats by a significant difference. Scores of one card go together, so a card is drawn whole
    (--cluster).

    With --split, rankers beside what they have to beat: the majority class, a classifier on surface features, and the untrained
    base where `python -m train test` without an adapter judged as well.

    Without --judgements, people among themselves, per language, rubric and dimension: Krippendorff's alpha, weighted kappa (of
    every two people, too), the shares of equal scores and of those within one point. No dialogue texts are needed. Halves,
    thirds and scores of turns may be given.

    With --correlate, Spearman, Pearson and Kendall (tau-b) of each dimension with each, with intervals (tables 3, 13, 14 and 15
    of ESC-Eval). Either side may be people's scores or judges' verdicts, and metrics come in as judgements too. Repeats are
    averaged to their dialogue first, and turns where it has no score as a whole. A coefficient that is not defined (equal
    scores, or one system only) is a dash, never 0, and is in no mean. Example, the judges of a run on its gold set:

    esc-eval agree --gold runs/mine --judgements runs/mine
    """
    choice("--mode", mode, ("paper", "native"))
    if correlate:
        pairing = Pairing(choice("--correlate", correlate, get_args(PairBy)), choice("--sample", sample, get_args(SampleBy)))
        unused = {"--gold-rubric": gold_rubric, "--split": split, "--cluster": cluster, "--reference": reference}
        if given := [option for option, value in unused.items() if value]:
            raise UserError(f"--correlate: leave out {', '.join(given)}")
        _correlate(judgements or [], gold, judge, annotator or [], dialogues or [], pairing, rubric, versus, as_json, out)
        return
    if sample != "card":
        raise UserError("--sample: it is for --correlate: give both or leave it out")
    if not judgements:
        others: dict[str, object] = {
            "--judge": judge,
            "--gold-rubric": gold_rubric,
            "--against": versus,
            "--split": split,
            "--dialogues": dialogues,
            "--cluster": cluster,
            "--reference": reference,
        }
        others |= {"--only-shared": only_shared, "--mode": mode != "native"}
        if refused := [option for option, value in others.items() if value]:
            raise UserError(
                f"without --judgements people are compared with each other: give them, or leave out {', '.join(refused)}"
            )
        _people(gold, rubric, annotator or [], out, as_json)
        return
    places, judgements = judgements, [*verdict_files(judgements, gold)]
    verdicts, scores = of_judges(judgements_of(judgements, _rubric(rubric, ())), judge), gold_scores_of(gold)
    known = _rubric(rubric, verdicts)
    name = known.name if known and rubric is not None else rubric
    if name is not None:
        verdicts = _only(verdicts, name, "--rubric", "verdict")
    if golden := gold_rubric or name:
        scores = _only(scores, golden, "--gold-rubric", "gold score")
    scores = of_annotators(scores, annotator or [])
    if known is not None:
        verdicts = list(checked(verdicts, known))
    left_out = ""
    if only_shared:
        verdicts, scores, left_out = _shared(verdicts, scores)
    sources = Counter(name.partition("@")[0] for name in {verdict.judge for verdict in verdicts} if "@" in name)
    settings = JudgeSettings(mode, known, left_out, any(count > 1 for count in sources.values()), reference or [])
    chosen: list[dict[str, Any]] = []
    if split is not None:
        if cluster is not None:
            raise UserError("--cluster: what --split keeps together is drawn whole: leave one of them out")
        made = read_split(split)
        groups = Clusters(made.groups, "groups of the split")
        settings = replace(settings, clusters=groups, averages=True, seconds=_seconds(judgements))
        baselines, chosen = baseline_judgements(verdicts, made, read_dialogues(dialogues) if dialogues else None)
        verdicts += baselines
    else:
        scored = {verdict.dialogue_id for verdict in verdicts}
        settings = replace(settings, clusters=scored_clusters(cluster, dialogues or [], places, gold, scored))
    judges = by_judge(verdicts)
    result, tables = judge_figures(judges, scores, settings)
    if chosen:
        result["surface"] = chosen
    tables = replace(tables, first=against(tables.first, versus), judges=against(tables.judges, versus))
    if out is not None:
        write_text(out / "table4.md", "\n".join(map(to_markdown, (*tables.first, *tables.tests, *tables.judges))))
    printed = [*(tables.first if len(judges) > 1 else ()), *tables.tests, *tables.judges]
    deliver("agreement", result, tables.all(), out, as_json, printed)


def _seconds(paths: Sequence[Path]) -> dict[tuple[str, str], float]:
    """Seconds per dialogue by judge and method, from the timing.json that `python -m train test` writes beside judgements.
    Those of a judge that is spread over files (one adapter per dimension) add up."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for path in paths:
        beside = path.with_name("timing.json")
        timing = read_object(beside, "seconds by judge") if beside.is_file() else {}
        for judge, method in {(j.judge, j.method) for j in read_jsonl(path, Judgement, "judgements")}:
            measured = timing.get(judge)
            if isinstance(measured, dict) and "seconds_per_dialogue" in measured:
                seconds[judge, method] += float(measured["seconds_per_dialogue"])
    return dict(seconds)


def _rubric(asked: str | None, verdicts: Sequence[Judgement]) -> Rubric | None:
    """The rubric's file, for labels and scale: of the one given, or of the only one that the verdicts name; None where there is
    no such file."""
    names = {verdict.rubric for verdict in verdicts}
    name = asked if asked is not None else names.pop() if len(names) == 1 else None
    return None if name is None else known_rubric(name)


def _people(paths: Sequence[Path], rubric: str | None, names: Sequence[str], out: Path | None, as_json: bool) -> None:
    """Agreement of annotators. Scores on a rubric whose file is known must fit it; others are taken as they are."""
    asked = None if rubric is None else known_rubric(rubric)
    fits = RubricCheck([Path(rubric)] if rubric is not None and asked and rubric != asked.name else [])
    rubrics: dict[str, Rubric | None] = {asked.name: asked} if asked else {}

    def check(score: HumanScore) -> None:
        if score.rubric not in rubrics:
            rubrics[score.rubric] = known_rubric(score.rubric)
        if rubrics[score.rubric] is not None:
            fits(score)

    scores = gold_scores_of(paths, check)
    if rubric is not None:
        scores = _only(scores, asked.name if asked else rubric, "--rubric", "score")
    rows = agreement(of_annotators(scores, names), [known for known in rubrics.values() if known])
    if not rows:
        raise UserError(
            "--gold: no dialogue (and no turn) has scores of two people on one dimension; to compare a judge with them, "
            "give its --judgements"
        )
    tables = [agreement_table(rows), pair_table(rows)]
    shown = tables if len(tables[1].rows) <= SHOWN_PAIRS else tables[:1]
    deliver("annotators", {"annotators": [asdict(row) for row in rows]}, tables, out, as_json, shown)
    if len(shown) < len(tables) and not as_json:
        text = f"{len(tables[1].rows)} pairs of annotators are too many to show here: see --json or --out"
        console.print(text)


def _only(records: Sequence[R], rubric: str, option: str, what: str) -> list[R]:
    kept = [record for record in records if record.rubric == rubric]
    if not kept:
        raise UserError(f"{option}: no {what} is on rubric {rubric}: {near(rubric, {record.rubric for record in records})}")
    return kept


def _shared(verdicts: Sequence[Judgement], scores: Sequence[HumanScore]) -> tuple[list[Judgement], list[HumanScore], str]:
    """Both sides on the items that both have, and what was left out in words."""
    wanted = {item_of(score) for score in scores}
    kept = [verdict for verdict in verdicts if item_of(verdict) in wanted]
    if not kept:
        raise UserError("--only-shared: no verdict and no gold score are on the same dialogue, dimension and turn")
    golden = gold_of(kept, scores)
    alone = len(verdicts) - len(kept), len(scores) - len(golden)
    return kept, golden, f"Left out: {alone[0]} verdicts without gold, {alone[1]} gold scores without a verdict."


_WITHOUT = "without --dialogues, the sample level; intervals are over dialogues, each taken as a sample of its own"


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
    """Both sides of `agree --correlate`, people or judges each, and the tables of their correlation."""
    if not dialogues:
        for option, text in {"--correlate": pairing.by, "--sample": pairing.sample}.items():
            if text in ("system", "source"):
                what = "what sample and system a dialogue belongs to is in the dialogues"
                raise UserError(f"{option} {text}: {what}: give --dialogues")
    if not judgements:
        raise UserError("two sides are needed to correlate: --judgements and --gold")
    by_people = [path for path in judgements if of_people(path)]
    by_judges = [path for path in judgements if path not in by_people]
    if judge and not by_judges:
        raise UserError("--judge: --judgements holds people's scores: leave it out")
    verdicts = of_judges(judgements_of(verdict_files(by_judges, gold)), judge) if by_judges else []
    verdicts += verdicts_of_people(gold_scores_of(by_people))
    gold_people = [path for path in gold if not of_judgements(path)]
    golden = of_annotators(gold_scores_of(gold_people), annotators) if gold_people else []
    golden += scores_of_judges(judgements_of(path for path in gold if path not in gold_people))
    names = {verdict.rubric for verdict in verdicts} | {score.rubric for score in golden}
    rubrics = {name: known for name in sorted(names) if (known := known_rubric(name))}
    if rubric is not None and (own := known_rubric(rubric)):
        rubrics[own.name] = own
    records = read_dialogues(dialogues) if dialogues else None
    levels = LEVELS if dialogues else ("dataset",)
    rows, left_out = correlations(verdicts, golden, records, "value", pairing, levels, rubrics)
    for line in [*([] if dialogues else [_WITHOUT]), *left_out]:
        say(f"left out: {line}", err=True)
    tables = against([*correlation_tables(rows), *alignment_tables(rows)], versus)
    deliver("correlation", {"correlation": [row.row() for row in rows]}, tables, out, as_json)
