"""Metrics' rankings of supporters compared with people's (FEEL section 4.2, tables 3 and 4).

- A *topic* is what the supporters were given: a card, profile or source item (`correlation.Pairing`). People say which of two
  dialogues on a topic is better, on any number of questions. A supporter's tally is wins minus losses (a tie is neither);
  tallies become ranks from 1 (best), equal tallies share their mean rank.
- A metric (any scorer) ranks the supporters of a topic by its scores. The paper does not say how six aspects become one rank.
  Our rule: a supporter's score is the mean over aspects if they share a scale, else the mean of its ranks on them. A supporter
  that lacks a score on an aspect that others on the topic have is not ranked there.
- Within a topic, over the supporters that both ranked: Spearman, Kendall (tau-b), RMSE and MAE of the ranks (equations 4 to 7);
  then the mean over topics. Coefficients are undefined if one side ranks all supporters equal, and all four for fewer than two.
- Intervals: 95 %, percentile bootstrap over topics.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.errors import UserError
from core.grouping import comparable, exact_mean, means_by
from core.records import Dialogue, Judgement, Preference
from core.statistics.accuracy import ratio
from core.statistics.bootstrap import Floats, estimates, resampled_means
from core.tables import Cell, Estimate, Table
from evalsuite.papers.feel_ensemble import FEEL
from evalsuite.statistics.correlation import Pairing, coefficients, known_dialogue
from evalsuite.statistics.summary import scorer_of

FIGURES = ("spearman", "kendall", "rmse", "mae")
Ranks = dict[str, dict[str, float]]  # topic → supporter → rank


def ranks_of(scores: Mapping[str, float]) -> dict[str, float]:
    """Rank 1 for the highest score; equal scores get their mean rank."""
    from scipy.stats import rankdata

    return dict(zip(scores, rankdata([-value for value in scores.values()]).tolist(), strict=True))


def human_ranks(preferences: Iterable[Preference], dialogues: Sequence[Dialogue], pairing: Pairing) -> Ranks:
    """Ranks within each topic by wins minus losses over all questions and annotators. Raises `UserError` for an unknown
    dialogue, and for a pair on two topics or of one supporter."""
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    tallies: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for preference in preferences:
        where = f"preference by {preference.annotator} on {preference.dialogue_a} and {preference.dialogue_b}"
        a, b = (pairing.unit(known_dialogue(by_id, id, where)) for id in (preference.dialogue_a, preference.dialogue_b))
        if a.sample != b.sample:
            raise UserError(f"{where}: topics {a.sample!r} and {b.sample!r}; a pair must be on the same topic")
        if a.system == b.system:
            raise UserError(f"{where}: both are of supporter {a.system}")
        won = {"a": 1, "b": -1, "tie": 0}[preference.verdict]
        tallies[a.sample][a.system] += won
        tallies[a.sample][b.system] -= won
    return {topic: ranks_of(tally) for topic, tally in tallies.items()}


def metric_ranks(
    judgements: Iterable[Judgement], dialogues: Sequence[Dialogue], pairing: Pairing, mixed: Collection[str] = ()
) -> dict[str, Ranks]:
    """Every scorer's ranks by the rule above: scorer → topic → supporter → rank; `mixed` names the rubrics with several scales.
    Repeats, turns and dialogues of one supporter on one topic are averaged first; `condition.supporter` names the supporter if
    it is not the dialogue's own.

    Raises `UserError` for an unknown dialogue, and for a scorer with verdicts on several rubrics: their scales may differ.
    """
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    numbers: list[tuple[tuple[str, str, str, str], float]] = []
    rubrics: dict[str, str] = {}
    for judgement in judgements:
        name = scorer_of(judgement).without("supporter").name
        if rubrics.setdefault(name, judgement.rubric) != judgement.rubric:
            raise UserError(f"{name}: verdicts on rubrics {rubrics[name]} and {judgement.rubric}: give those on a single one")
        if judgement.value is not None:
            dialogue = known_dialogue(by_id, judgement.dialogue_id, f"judgement by {judgement.judge}")
            unit = pairing.unit(dialogue, judgement.condition.get("supporter"))
            numbers.append(((name, unit.sample, judgement.dimension, unit.system), judgement.value))
    means: dict[tuple[str, str], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for (name, topic, aspect, system), mean in means_by(numbers).items():
        means[name, topic][aspect][system] = mean
    ranks: dict[str, Ranks] = {name: {} for name in rubrics}
    for (name, topic), aspects in means.items():
        complete = sorted(set.intersection(*map(set, aspects.values())))
        sides = [{s: by_system[s] for s in complete} for by_system in aspects.values()]
        if rubrics[name] in mixed:  # negated, since rank 1 is best
            ranked = [ranks_of({s: comparable(score) for s, score in side.items()}) for side in sides]
            sides = [{s: -rank for s, rank in side.items()} for side in ranked]
        ranks[name][topic] = ranks_of({s: comparable(exact_mean(side[s] for side in sides)) for s in complete})
    return ranks


class Ranking(NamedTuple):
    """How closely one scorer's ranks follow people's. Each figure's `n` counts the topics in which it is defined; `supporters`:
    the fewest and most in a topic (0 without topics)."""

    scorer: str
    figures: dict[str, Estimate]
    topics: int
    supporters: tuple[int, int]

    def record(self) -> dict[str, Any]:
        figures = {name: figure.record() for name, figure in self.figures.items()}
        return {"scorer": self.scorer, "topics": self.topics, "supporters": list(self.supporters), **figures}


def compare_ranks(people: Ranks, metrics: Mapping[str, Ranks]) -> list[Ranking]:
    """Every scorer against people; figures are empty for a scorer that shares no topic with people. Raises `UserError` if no
    scorer does."""
    rankings = []
    for scorer, ranks in metrics.items():
        rows, sizes = [], []
        for topic in sorted(set(people) & set(ranks)):
            shared = sorted(set(people[topic]) & set(ranks[topic]))
            if len(shared) > 1:
                # Ranked again among the shared supporters.
                sides = [ranks_of({name: -side[topic][name] for name in shared}) for side in (people, ranks)]
                rows.append(topic_figures(*([side[name] for name in shared] for side in sides)))
                sizes.append(len(shared))
        averaged = dict.fromkeys(FIGURES, Estimate(None, None, None, 0))
        if rows:  # the mean of every figure over the topics in which it is defined
            values = np.array(rows)
            defined = (~np.isnan(values)).astype(np.float64)
            topics, sums = defined.sum(axis=0), np.nan_to_num(values)
            draws = resampled_means(sums, defined)
            averaged = dict(zip(FIGURES, estimates(ratio(sums.sum(axis=0), topics), draws, topics, topics), strict=True))
        rankings.append(Ranking(scorer, averaged, len(rows), (min(sizes, default=0), max(sizes, default=0))))
    if not any(ranking.topics for ranking in rankings):
        raise UserError("no topic has two supporters that both a scorer and people ranked")
    return rankings


def topic_figures(people: Sequence[float], metric: Sequence[float]) -> Floats:
    """Equations 4 to 7 on two or more ranks of one topic, in the same order of supporters: `FIGURES`, NaN if undefined."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (metric, people))
    spearman, _, kendall = coefficients(x, y, np.zeros(len(x), dtype=np.intp), np.ones((1, 1)))[0]
    return np.array([spearman, kendall, np.sqrt(np.mean((x - y) ** 2)), np.mean(np.abs(x - y))])


def ranking_table(rankings: Sequence[Ranking]) -> Table:
    """Table 3 of FEEL (and table 4, with the ensembles without one judge)."""
    columns = ("scorer", "Spear.", "Kend.", "RMSE", "MAE", "topics", "supporters")
    rows: list[tuple[Cell, ...]] = [
        (r.scorer, *(r.figures[name] for name in FIGURES), r.topics, "–".join(map(str, dict.fromkeys(r.supporters))))
        for r in rankings
    ]
    notes = (
        "Within each topic, then averaged; [95 % percentile bootstrap over topics], n = topics with a defined figure. People: "
        "wins minus losses over all questions, ties are neither; equal tallies share their mean rank.",
        "A scorer ranks supporters by their mean over aspects; if scales differ, by the mean of their ranks on them.",
    )
    return Table(
        "feel_ranking", "Scorers' ranks of the supporters against people's", columns, tuple(rows), notes, FEEL, decimals=3
    )
