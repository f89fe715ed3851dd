"""What the verbs of `esc-eval feel` read: judgements on one rubric by one method, people's scores by aspect, saved weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.files import read_yaml
from core.paths import InFiles
from core.records import HumanScore, Judgement
from data_prep.scores.human import gold_scores_of, of_annotators
from evalsuite.commands.options import TablesOption, out_tables
from evalsuite.commands.verdicts import judgements_of
from evalsuite.statistics import ensemble
from evalsuite.statistics.ensemble import Panel, Scores, Weights
from evalsuite.statistics.summary import scorer_of

JudgementsOption = Annotated[
    InFiles, typer.Option("--judgements", help="Judgement records (JSONL) of any judges. Repeat for more files.")
]
HumanOption = Annotated[
    InFiles, typer.Option("--gold", help="HumanScore records (JSONL, or CSV with its columns). Annotators are averaged.")
]
RubricOption = Annotated[str | None, typer.Option("--rubric", help="Only judgements on this rubric.")]
HumanRubricOption = Annotated[
    str | None, typer.Option("--gold-rubric", help="Only human scores on this rubric; without it, all that are given.")
]
MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="HUMAN=ASPECT",
        help="Which aspect a dimension that people scored stands for; all others are left out. Repeat for more. Without it, "
        "every dimension stands for itself. For ESConv's survey: --map empathy=comprehensibility --map relevance=coherence.",
    ),
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="Only verdicts by this method (bands, tokens). A folder that holds both needs it: asked by two methods, a judge "
        "would count as two. Repeat for more, if that is meant.",
    ),
]
FeelTablesOption = Annotated[TablesOption, out_tables("feel_*")]


def read_weights(path: Path) -> Weights:
    """Weights that `feel fit` saved (JSON is YAML); errors name file, line and field."""
    saved = read_yaml(path, Weights, "weights")
    try:
        saved.by_aspect()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return saved


def both_sides(
    judgements: Sequence[Path],
    human: Sequence[Path],
    rubric: str | None,
    human_rubric: str | None,
    maps: Sequence[str] | None,
    annotators: Sequence[str] | None,
    methods: Sequence[str] | None,
) -> tuple[Panel, Scores, str]:
    """The judges' scores on one rubric, people's mean scores by aspect, and the rubric's name."""
    verdicts = judgements_of(judgements)
    if rubric is not None:
        verdicts = on_rubric(verdicts, rubric)
    verdicts = by_methods(verdicts, methods or [])
    scores = of_annotators(gold_scores_of(human), annotators or [])
    people = people_on(scores, human_rubric, maps, (verdict.dimension for verdict in verdicts))
    return ensemble.panel_of(verdicts), people, verdicts[0].rubric


def by_methods(judgements: Sequence[Judgement], methods: Sequence[str]) -> list[Judgement]:
    """The verdicts by these methods; without any, all, and a `UserError` where some judge has verdicts by several."""
    asked: dict[tuple[str, object], set[str]] = defaultdict(set)
    for judgement in judgements:
        scorer = scorer_of(judgement)
        asked[scorer.judge, scorer.condition].add(scorer.method)
    known = {method for methods_used in asked.values() for method in methods_used}
    for method in methods:
        if method not in known:
            raise UserError(f"--method: no judgement by method {method!r}: {near(method, known)}")
    for (judge, _), methods_used in asked.items():
        if not methods and len(methods_used) > 1:
            raise UserError(
                f"judge {judge} has verdicts by methods {' and '.join(sorted(methods_used))}: choose one with --method"
            )
    return [judgement for judgement in judgements if not methods or judgement.method in methods]


def people_on(
    scores: Sequence[HumanScore], human_rubric: str | None, maps: Sequence[str] | None, judged: Iterable[str]
) -> Scores:
    """People's mean scores by aspect, as --gold-rubric and --map say; `judged`: the aspects that judges have verdicts on."""
    if human_rubric is not None:
        known = {score.rubric for score in scores}
        scores = [score for score in scores if score.rubric == human_rubric]
        if not scores:
            raise UserError(f"--gold-rubric: no human score on {human_rubric!r}: {near(human_rubric, known)}")
    aspects = set(judged)
    pairs: dict[str, str] = {}
    for text in maps or []:
        name, parted, aspect = text.partition("=")
        if not parted or not name or not aspect or name in pairs:
            raise UserError(f"--map {text!r}: expected HUMAN=ASPECT, each dimension once")
        if aspect not in aspects:
            raise UserError(f"--map {text}: no judge scored {aspect!r}: {near(aspect, aspects)}")
        pairs[name] = aspect
    return ensemble.people_of(scores, pairs)


def on_rubric(judgements: Sequence[Judgement], rubric: str) -> list[Judgement]:
    on_it = [judgement for judgement in judgements if judgement.rubric == rubric]
    if not on_it:
        raise UserError(f"--rubric: no judgement on {rubric!r}: {near(rubric, {judgement.rubric for judgement in judgements})}")
    return on_it
