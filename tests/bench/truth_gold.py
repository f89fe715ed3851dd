"""What is claimed of judges beside gold: intervals of agreement, tests between judges and against the majority class, the best.

Gold is as ESC-Eval's: a card has a dozen dialogues, and what a judge gets wrong of a card, it gets wrong again. Others have few
cards, dialogues without cards, or turns of one dialogue.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from core.records import HumanScore, Judgement
from core.statistics.accuracy import quadratic_kappa, rank_correlation
from core.statistics.bootstrap import Floats
from core.tables import Estimate
from evalsuite.report.headlines import doubt
from evalsuite.statistics.agreement import agreement
from evalsuite.statistics.contestants import Clusters
from evalsuite.statistics.judge_figures import beaten, compare
from evalsuite.statistics.summary import AVERAGE
from tests.bench.claims import Claim, coverage, false_alarms, judged, levels

DESIGNS = {"30 cards of 13": (30, 13), "12 cards of 4": (12, 4), "60 dialogues": (60, 1), "20 dialogues of 6 turns": (20, 6)}
SHAPES, STICKY = ("floor", "middle", "ceiling"), (0.5, 0.9)
SURE = (0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)  # probabilities that a judge gives its scores
CELLS = [*product(SHAPES, STICKY, DESIGNS)]
COVERED = [cell for place, cell in enumerate(CELLS) if place % 2 == place // 4 % 2]
TESTED = [CELLS[place] for place in (0, 5, 10, 15, 18, 21)]
FIGURES = ("acc", "acc_soft", "kappa", "spearman", "ece")
LARGE = 20_000  # cards of which the truth is taken


class Judged(NamedTuple):
    """Gold, verdicts and their probabilities, each [cards, dialogues, dimensions]."""

    gold: Floats
    values: Floats
    sure: Floats


def draw(
    shape: str, rng: np.random.Generator, cards: int, dialogues: int, dimensions: int, sticky: float, over: float
) -> Judged:
    """A judge that is right as often as it says, less `over`, and mostly off by one where it is wrong."""
    gold = levels(shape, rng, cards, dialogues, dimensions)
    place = rng.integers(len(SURE), size=gold.shape)
    values = np.choose(place, [judged(gold, rng, sure - over, sticky=sticky) for sure in SURE])
    further = judged(np.ones_like(gold), rng, 0.7, sticky=sticky) != 1
    return Judged(gold, np.clip(values + (values - gold) * further, 0, 4), np.array(SURE)[place])


def truth(shape: str, sticky: float, over: float) -> dict[str, float]:
    """What the figures are of a large sample; the same for every design."""
    gold, values, sure = (part.ravel() for part in draw(shape, np.random.default_rng(97), LARGE, 4, 1, sticky, over))
    every, hits = np.ones((1, len(gold))), values == gold
    gaps = [abs((hits - sure)[sure == level].sum()) for level in SURE]
    return {
        "acc": float(hits.mean()),
        "acc_soft": float((np.abs(values - gold) <= 1).mean()),
        "kappa": float(quadratic_kappa(values, gold, every)[0]),
        "spearman": float(rank_correlation(values, gold, every)[0]),
        "ece": float(sum(gaps) / len(gold)),
    }


def records(
    gold: Floats, values: dict[str, Floats], sure: Floats | None = None
) -> tuple[dict[str, list[Judgement]], list[HumanScore], Clusters]:
    """Scores [cards, dialogues, dimensions] as the product reads them."""
    places = [*product(*map(range, gold.shape))]
    common: list[dict[str, Any]] = [
        {"dialogue_id": f"{card}-{dialogue}", "language": "en", "dimension": f"d{d}", "rubric": "r"}
        for card, dialogue, d in places
    ]
    told = [None] * len(places) if sure is None else sure.ravel().tolist()
    judges = {
        name: [
            Judgement.model_construct(
                **key, judge=name, value=value, distribution=None if p is None else {f"{value:.0f}": p}, turn=None, method="",
                condition={}, repeat=0,
            )
            for key, value, p in zip(common, of.ravel().tolist(), told, strict=True)
        ]
        for name, of in values.items()
    }  # fmt: skip
    scores = [
        HumanScore.model_construct(**key, annotator="a", value=value, turn=None)
        for key, value in zip(common, gold.ravel().tolist(), strict=True)
    ]
    return judges, scores, Clusters({f"{card}-{dialogue}": f"card {card}" for card, dialogue, _ in places}, "cards")


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """Coverage first, then tests."""
    for number, (shape, sticky, design) in enumerate(COVERED):
        size, over = DESIGNS[design], (0.0, 0.15)[number // 2 % 2]
        expected = truth(shape, sticky, over)
        rng = np.random.default_rng((seed, number, 1))
        found: dict[tuple[str, str], list[Estimate]] = {}
        for _ in range(max(studies // 5, 1)):
            one = draw(shape, rng, *size, 2, sticky, over)
            judges, scores, clusters = records(one.gold, {"j": one.values}, one.sure)
            rows = agreement(judges["j"], scores, clusters)["en"]
            for name, what in (("d0", "a dimension"), (AVERAGE, "the average")):
                for figure in FIGURES:
                    row = rows[name]
                    cell = Estimate(row[figure], row[f"{figure}_low"], row[f"{figure}_high"], row["n"])
                    found.setdefault((figure, what), []).append(cell)
        where = f"{shape}, {design}, errors go together {sticky:g}, too sure by {over:g}"
        for (figure, what), cells in found.items():
            if any(cell.low is not None for cell in cells):
                yield coverage(f"interval of {figure}, {what}", where, size[0], cells, expected[figure])
    yield from _tests(studies, seed)


def _tests(studies: int, seed: int) -> Iterator[Claim]:
    """Three judges that are right equally often, as often as the majority class."""
    for number, (shape, sticky, design) in enumerate(TESTED):
        size = DESIGNS[design]
        gold = levels(shape, np.random.default_rng(96), LARGE, 4, 1)
        most = np.unique(gold, return_counts=True)[1].max() / gold.size
        lucky = float((judged(gold, np.random.default_rng(95), 0.0) == gold).mean())  # a step beyond the end of the scale
        right = (most - lucky) / (1 - lucky)
        rng = np.random.default_rng((seed, number, 2))
        pair: list[bool] = []
        better: list[bool] = []
        best: dict[bool, list[bool]] = {True: [], False: []}
        for _ in range(max(studies // 5, 1)):
            one = levels(shape, rng, *size, 2)
            judges, scores, clusters = records(one, {name: judged(one, rng, right, sticky=sticky) for name in "abc"})
            differences = compare(judges, scores, "native", clusters=clusters)
            pair.append((differences[-1].p or 1) <= 0.05)
            worse = beaten(differences)
            for average in best:
                best[average].append(any((dimension == AVERAGE) == average for _, dimension, _ in worse))
            better.append(not doubt({"a": agreement(judges["a"], scores, clusters)}, "a", "en"))
        where = f"{shape}, {design}, errors go together {sticky:g}"
        yield false_alarms("two judges that are equally good differ in the average", where, size[0], pair)
        yield false_alarms("one of three equal judges is beaten in the average", where, size[0], best[True])
        yield false_alarms("one of three equal judges is beaten in a dimension", where, size[0], best[False])
        yield false_alarms("a judge as good as the majority class beats it", where, size[0], better)
