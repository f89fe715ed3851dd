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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.errors import UserError, at
from core.records import HumanScore
from core.statistics.means import exact_mean
from data_prep.scores.annotation import ACCEPTED, TOLERATED, Asked, Mode

JOINT = "joint"  # the sheet of what all review together
Given = dict[tuple[str, str], dict[str, HumanScore]]  # (dialogue, dimension) → annotator → score


def _hundredths(one: float, other: float) -> int:
    """How far two scores lie apart, in hundredths of a point: 0.1 steps are not exact."""
    return round(100 * abs(one - other))


def apart(values: Sequence[float]) -> bool:
    """Whether any two of the scores lie more than a point apart."""
    return bool(values) and _hundredths(max(values), min(values)) > 100 * TOLERATED


def who_again(values: Mapping[str, float], mode: Mode = "native") -> tuple[str, ...] | None:
    """Annotators, in alphabetical order, who must score again; None where all review the scores jointly. `values` maps
    annotator to score. Raises `UserError` in mode `paper` for another number of annotators than three."""
    if mode == "paper":
        return _as_published(values)
    if not apart(list(values.values())):
        return ()
    outliers = []
    for name in sorted(values):
        others = [value for other, value in values.items() if other != name]
        if len(others) > 1 and not apart(others):  # then it is the name's own score that lies more than a point from another
            outliers.append(name)
    return tuple(outliers) or None


def _as_published(values: Mapping[str, float]) -> tuple[str, ...]:
    """The rule of the authors' script. Odd: section 3.2 has all annotators review together where the script lists the scores
    for each of the three; and of two who are equally far from the middle, the script takes the first."""
    if len(values) != 3:
        raise UserError(f"paper mode compares three annotators, as the authors did; here are {len(values)}: use --mode native")
    low, middle, high = sorted(values.values())
    if min(_hundredths(low, middle), _hundredths(middle, high)) >= 100 * TOLERATED:
        return tuple(sorted(values))
    if not apart([low, high]):
        return ()
    return (max(sorted(values), key=lambda name: _hundredths(values[name], middle)),)


@dataclass(frozen=True)
class Contested:
    """What is to be scored again: by annotator, and jointly (dialogue id → dimensions)."""

    by_annotator: dict[str, Asked] = field(default_factory=dict)
    joint: Asked = field(default_factory=dict)


def contested(scores: Sequence[HumanScore], mode: Mode = "native") -> Contested:
    """What the first round leaves open. Raises `UserError` for scores of single turns, which the protocol does not know, and in
    mode `paper` for an item that has not three scores."""
    again: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    joint: dict[str, list[str]] = defaultdict(list)
    for (dialogue, dimension), values in _grouped(scores).items():
        with at(f"dialogue {dialogue}, {dimension}"):
            names = who_again({name: score.value for name, score in values.items()}, mode)
        if names is None:
            joint[dialogue].append(dimension)
        for name in names or ():
            again[name][dialogue].append(dimension)
    return Contested({name: _asked(again[name]) for name in sorted(again)}, _asked(joint))


def _asked(keys: Mapping[str, Sequence[str]]) -> Asked:
    return {dialogue: tuple(dimensions) for dialogue, dimensions in keys.items()}


def _grouped(scores: Sequence[HumanScore]) -> Given:
    groups: Given = defaultdict(dict)
    for score in scores:
        if score.turn is not None:
            raise UserError(f"dialogue {score.dialogue_id}: turn {score.turn}: only scores of whole dialogues are rescored")
        groups[score.dialogue_id, score.dimension][score.annotator] = score
    return dict(groups)


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
    """The second round's scores in place of the first's, and the mean of all annotators a dialogue and dimension.

    `again` holds what annotators gave on what they were asked for, `jointly` what all agreed on: it becomes everybody's score.
    An item without all of its answers waits and has no mean; its scores stay as they were.
    """
    asked = contested(first, mode)
    second = {(s.annotator, s.dialogue_id, s.dimension): s.value for s in again}
    agreed = {(s.dialogue_id, s.dimension): s.value for s in jointly}
    scores: list[HumanScore] = []
    accepted, waiting, still = [], [], []
    for (dialogue, dimension), by_annotator in _grouped(first).items():
        due = [
            (name, dialogue, dimension)
            for name, asked_of in asked.by_annotator.items()
            if dimension in asked_of.get(dialogue, ())
        ]
        joint = dimension in asked.joint.get(dialogue, ())
        values = {name: score.value for name, score in by_annotator.items()}
        if (joint and (dialogue, dimension) not in agreed) or any(key not in second for key in due):
            waiting.append((dialogue, dimension))
            scores += by_annotator.values()
            continue
        values |= {name: second[name, dialogue, dimension] for name, _, _ in due}
        if joint:
            values = dict.fromkeys(values, agreed[dialogue, dimension])
        scores += [score.model_copy(update={"value": values[name]}) for name, score in by_annotator.items()]
        if apart(list(values.values())):
            still.append((dialogue, dimension))
        final = {"annotator": ACCEPTED, "value": exact_mean(values.values())}
        accepted.append(next(iter(by_annotator.values())).model_copy(update=final))
    return Final(scores, accepted, sorted(waiting), sorted(still))
