"""FEEL's two rounds of human scores (section 3.2): who scores again, what all discuss, and the final means.

The first round's scores of a dialogue on a dimension stand if no two are more than one point apart. Otherwise:

- `native`, the condition as written in section 3.2: an annotator scores again who differs from another by more than one point
  while the others are within one point of each other (of 1, 2, 3 both 1 and 3 do); if there is none, all review the item
  jointly and agree on one score. Two annotators who are more than a point apart review jointly.
- `paper`, the rule in the authors' script for its three annotators: if every two are a point or more apart (1, 2, 3), all three
  score again, each alone; otherwise the one farthest from the middle score does. Nothing is reviewed jointly.

There is no third round: scores that are still apart after the second are counted and averaged.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from core.errors import UserError, at
from core.grouping import exact_mean, group_by
from core.records import HumanScore
from data_prep.scores.annotation import ACCEPTED, TOLERATED, Mode, OpenItems

JOINT = "joint"  # the sheet of what all review together


def _hundredths(a: float, b: float) -> int:
    """The difference of two scores in hundredths of a point, since steps of 0.1 are not exact."""
    return round(100 * abs(a - b))


def apart(values: Sequence[float]) -> bool:
    """Whether any two of the scores are more than a point apart."""
    return bool(values) and _hundredths(max(values), min(values)) > 100 * TOLERATED


def who_again(values: Mapping[str, float], mode: Mode = "native") -> tuple[str, ...] | None:
    """The annotators, in alphabetical order, who must score again; None if all review the scores jointly. `values` maps
    annotator to score. Raises `UserError` in mode `paper` unless there are three annotators."""
    if mode == "paper":
        # The rule in the authors' script. It differs from section 3.2, where all annotators review together what the script
        # lists for each of the three; and of two who are equally far from the middle, the script takes the first.
        if len(values) != 3:
            raise UserError(f"paper mode compares three annotators, as the authors did, not {len(values)}: use --mode native")
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
        if len(others) > 1 and not apart(others):  # so this annotator's own score is more than a point from another
            outliers.append(name)
    return tuple(outliers) or None


@dataclass(frozen=True)
class Contested:
    """The items to score again: by annotator, and jointly (dialogue id → dimensions)."""

    by_annotator: dict[str, OpenItems] = field(default_factory=dict)
    joint: OpenItems = field(default_factory=dict)


def contested(scores: Sequence[HumanScore], mode: Mode = "native") -> Contested:
    """The items that the first round leaves open. Raises `UserError` for scores of single turns, which the protocol lacks, and
    in mode `paper` for an item without exactly three scores."""
    rescored: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    joint: dict[str, list[str]] = defaultdict(list)
    for (dialogue, dimension), _, names in _first_round(scores, mode):
        if names is None:
            joint[dialogue].append(dimension)
        for name in names or ():
            rescored[name][dialogue].append(dimension)
    by_annotator = {name: {key: tuple(dimensions) for key, dimensions in rescored[name].items()} for name in sorted(rescored)}
    return Contested(by_annotator, {key: tuple(dimensions) for key, dimensions in joint.items()})


def _first_round(
    scores: Sequence[HumanScore], mode: Mode
) -> Iterator[tuple[tuple[str, str], list[HumanScore], tuple[str, ...] | None]]:
    for score in scores:
        if score.turn is not None:
            raise UserError(f"dialogue {score.dialogue_id}: turn {score.turn}: only scores of whole dialogues are rescored")
    for (dialogue, dimension), group in group_by(scores, lambda score: (score.dialogue_id, score.dimension)).items():
        with at(f"dialogue {dialogue}, {dimension}"):
            names = who_again({score.annotator: score.value for score in group}, mode)
        yield (dialogue, dimension), group, names


@dataclass(frozen=True)
class Final:
    """The scores after the second round, the accepted means (annotator `accepted`), and the items (dialogue, dimension) that
    wait, or whose scores are still more than a point apart."""

    scores: list[HumanScore]
    accepted: list[HumanScore]
    waiting: list[tuple[str, str]]
    still_apart: list[tuple[str, str]]


def finish(
    first: Sequence[HumanScore], rescored: Sequence[HumanScore], jointly: Sequence[HumanScore], mode: Mode = "native"
) -> Final:
    """The second round's scores (`jointly` agreed ones become everybody's) in place of the first's, and the mean of all
    annotators per dialogue and dimension. An item without all its answers waits and has no mean; its scores stay."""
    second = {(s.annotator, s.dialogue_id, s.dimension): s.value for s in rescored}
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
