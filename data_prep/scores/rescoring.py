"""FEEL's two rounds of human scores (section 3.2): who scores again, what all discuss, and the final means.

After the first round, a dialogue's scores on a dimension are looked at together. Where no two lie more than one point apart,
they stand. The rest is done in one of two modes.

- `native`, the condition as section 3.2 writes it: an annotator scores again who differs from some other by more than one point
  while the others lie within one point of each other (of 1, 2, 3 both 1 and 3 do); where nobody does so, all review it jointly
  and agree on one score. It needs two others; two annotators more than a point apart review jointly.
- `paper`, the rule that the authors' script has for its three annotators: where every two lie a point or more apart (1, 2, 3),
  all three score again, each alone; otherwise the one who is farthest from the middle score. Nothing is reviewed jointly.

There is no third round: what still lies apart after the second is counted and averaged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from core.errors import UserError, at
from core.grouping import group_by
from core.records import HumanScore
from core.statistics.means import exact_mean
from data_prep.scores.annotation import ACCEPTED, TOLERATED, Mode, OpenItems

JOINT = "joint"  # the sheet of what all review together


def _hundredths(a: float, b: float) -> int:
    """How far two scores lie apart, in hundredths of a point: 0.1 steps are not exact."""
    return round(100 * abs(a - b))


def apart(values: Sequence[float]) -> bool:
    """Whether any two of the scores lie more than a point apart."""
    return bool(values) and _hundredths(max(values), min(values)) > 100 * TOLERATED


def who_again(values: Mapping[str, float], mode: Mode = "native") -> tuple[str, ...] | None:
    """Annotators, in alphabetical order, who must score again; None where all review the scores jointly. `values` maps
    annotator to score. Raises `UserError` in mode `paper` for another number of annotators than three."""
    if mode == "paper":
        # The rule of the authors' script. Odd: section 3.2 has all annotators review together where the script lists the scores
        # for each of the three; and of two who are equally far from the middle, the script takes the first.
        if len(values) != 3:
            raise UserError(
                f"paper mode compares three annotators, as the authors did; here are {len(values)}: use --mode native"
            )
        low, middle, high = sorted(values.values())
        if min(_hundredths(low, middle), _hundredths(middle, high)) >= 100 * TOLERATED:
            return tuple(sorted(values))
        farthest = max(sorted(values), key=lambda name: _hundredths(values[name], middle))
        return (farthest,) if apart([low, high]) else ()
    if not apart(list(values.values())):
        return ()
    outliers = []
    for name in sorted(values):
        others = [value for other, value in values.items() if other != name]
        if len(others) > 1 and not apart(others):  # then it is the name's own score that lies more than a point from another
            outliers.append(name)
    return tuple(outliers) or None


@dataclass(frozen=True)
class Contested:
    """What is to be scored again: by annotator, and jointly (dialogue id → dimensions)."""

    by_annotator: dict[str, OpenItems] = field(default_factory=dict)
    joint: OpenItems = field(default_factory=dict)


def contested(scores: Sequence[HumanScore], mode: Mode = "native") -> Contested:
    """What the first round leaves open. Raises `UserError` for scores of single turns, which the protocol does not know, and in
    mode `paper` for an item that has not three scores."""
    again: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    joint: dict[str, list[str]] = defaultdict(list)
    for (dialogue, dimension), _, names in _first_round(scores, mode):
        if names is None:
            joint[dialogue].append(dimension)
        for name in names or ():
            again[name][dialogue].append(dimension)
    by_annotator = {name: {key: tuple(dimensions) for key, dimensions in again[name].items()} for name in sorted(again)}
    return Contested(by_annotator, {key: tuple(dimensions) for key, dimensions in joint.items()})


def _first_round(
    scores: Sequence[HumanScore], mode: Mode
) -> Iterator[tuple[tuple[str, str], list[HumanScore], tuple[str, ...] | None]]:
    """(dialogue, dimension), its scores, and who must score again (`who_again`)."""
    for score in scores:
        if score.turn is not None:
            raise UserError(f"dialogue {score.dialogue_id}: turn {score.turn}: only scores of whole dialogues are rescored")
    for (dialogue, dimension), group in group_by(scores, lambda score: (score.dialogue_id, score.dimension)).items():
        with at(f"dialogue {dialogue}, {dimension}"):
            names = who_again({score.annotator: score.value for score in group}, mode)
        yield (dialogue, dimension), group, names


@dataclass(frozen=True)
class Final:
    """The scores after the second round, the accepted means (annotator `accepted`), what waits (dialogue, dimension), and what
    still lies more than a point apart."""

    scores: list[HumanScore]
    accepted: list[HumanScore]
    waiting: list[tuple[str, str]]
    still_apart: list[tuple[str, str]]


def finish(
    first: Sequence[HumanScore], again: Sequence[HumanScore], jointly: Sequence[HumanScore], mode: Mode = "native"
) -> Final:
    """The second round's scores in place of the first's, and the mean of all annotators per dialogue and dimension.

    `again` holds what annotators gave on what they were asked for, `jointly` what all agreed on: it becomes everybody's score.
    An item without all of its answers waits and has no mean; its scores stay as they were.
    """
    second = {(s.annotator, s.dialogue_id, s.dimension): s.value for s in again}
    agreed = {(s.dialogue_id, s.dimension): s.value for s in jointly}
    scores: list[HumanScore] = []
    accepted, waiting, still = [], [], []
    for item, group, names in _first_round(first, mode):
        answers = {score.annotator: agreed.get(item) for score in group}
        if names is not None:
            answers = {name: second.get((name, *item)) for name in names}
        new = {name: value for name, value in answers.items() if value is not None}
        if len(new) < len(answers):
            waiting.append(item)
            scores += group
            continue
        group = [score.model_copy(update={"value": new.get(score.annotator, score.value)}) for score in group]
        scores += group
        values = [score.value for score in group]
        if apart(values):
            still.append(item)
        accepted.append(group[0].model_copy(update={"annotator": ACCEPTED, "value": exact_mean(values)}))
    return Final(scores, accepted, sorted(waiting), sorted(still))
