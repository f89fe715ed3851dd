"""What a judge's card finds in judges that are without fault or have a known one, and what `judge-card --accuracy` promises.

A faultless judge misses gold as often as its probabilities say, favours nothing, and says nearly the same when it is asked
again. Verdicts on one card go together, in what they are and in what they get wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from core.records import Dialogue, HumanScore, Judgement, Turn
from core.statistics.bootstrap import Floats
from evalsuite.runs.run_config import RunConfig
from evalsuite.statistics.judges import calibration_error
from evalsuite.statistics.reply_length import Replies, length_biases
from evalsuite.statistics.summary import Scorer
from evalsuite.trust.health import AGAIN, AS_IS, FLOOR, INJECTED, NEUTRAL, REVERSED
from evalsuite.trust.judge_card import FAULT, JudgeCardInput, judge_card
from evalsuite.trust.selective import SelectiveCase, threshold_for
from tests.bench.claims import COVERAGE, Claim, false_alarms, levels
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric

NAMES = tuple("abcdefg")
RUBRIC = make_rubric(*NAMES)
CONFIG = RunConfig({"score": {"judge": {"name": "j"}, "rubric": RUBRIC.model_dump(mode="json")}})


def shown(claim: str, population: str, clusters: int, found: list[bool]) -> Claim:
    """How often a fault that is there is found: nothing is promised."""
    return Claim(
        f"{claim} (power, for information)", population, clusters, COVERAGE, 0.0, 100 * float(np.mean(found)), len(found)
    )


def faultless(rng: np.random.Generator, cards: int, each: int, probed: int) -> JudgeCardInput:
    """A judge that was asked of `each` dialogues of every card, and of variants of `probed` of them. Gold goes with length."""
    gold = levels("middle", rng, cards, each, len(NAMES))
    long = np.exp(0.4 * (gold.mean(axis=-1) - 2) + rng.normal(0, 0.5, gold.shape[:2])) * 60
    dialogues: list[Dialogue] = []
    scores: list[HumanScore] = []
    verdicts: list[Judgement] = []
    for card, own in np.ndindex(cards, each):
        name = f"{card}-{own}"
        turns = (Turn(role="seeker", text=name), Turn(role="supporter", text="x" * int(long[card, own] + 1)))
        dialogues.append(make_dialogue(name, card_id=f"c{card}" if each > 1 else None, turns=turns))
        shared = rng.normal()
        for place, dimension in enumerate(NAMES):
            right, sure = int(gold[card, own, place]), float(rng.uniform(0.45, 0.9))
            hit = 0.7 * shared + 0.71 * rng.normal() <= norm.ppf(sure)
            said = right if hit else right - 1 if right == 4 or (right and rng.random() < 0.5) else right + 1
            spread = {str(level): (1 - sure) / 4 for level in range(5)} | {str(said): sure}
            base = {"dialogue_id": name, "language": "en", "annotator": "a", "rubric": "test"}
            scores.append(HumanScore.model_validate(base | {"dimension": dimension, "value": right}))
            verdicts.append(make_judgement(name, dimension, said, distribution=spread))
    few = [dialogues[place] for place in rng.permutation(len(dialogues))[:probed]]
    values = {(j.dialogue_id, j.dimension): j.value or 0 for j in verdicts}
    asked: list[Judgement] = []
    for variant in (AS_IS, NEUTRAL, INJECTED, REVERSED, AGAIN, *(f"{FLOOR}{name}" for name in ("silent", "parrot", "lecture"))):
        for dialogue in few:
            # What is changed moves the verdicts of a dialogue together, up as often as down; asked again, 3 in 100 change.
            luck = rng.choice((-1, 0, 0, 1)) if variant not in (AS_IS, AGAIN) else 0
            for dimension in NAMES:
                value = values[dialogue.id, dimension]
                moved = rng.random() < (0.03 if variant == AGAIN else 0 if variant == AS_IS else 0.4)
                value = value - 1 if variant.startswith(FLOOR) else value + (luck or int(rng.choice((-1, 1)))) * moved
                verdict = make_judgement(dialogue.id, dimension, min(max(value, 0), 4), condition={"variant": variant})
                asked.append(verdict)
    given: dict[str, Any] = {"dialogues": dialogues, "gold": scores, "on_gold": verdicts, "rubric": RUBRIC, "config": CONFIG}
    given |= {"probed_dialogues": few, "probed": asked, "synthetic": False, "versions": {}, "facts": ()}
    return JudgeCardInput(judge="j", mode="native", **given)


def told(
    rng: np.random.Generator, clusters: int, together: float, low: float, more: float = 0.0
) -> list[tuple[Judgement, float]]:
    """Seven verdicts a cluster with gold that are right as often as they say, from `low` on, or `more` seldom; what they get
    wrong goes `together`."""
    pairs = []
    for cluster in range(clusters):
        shared, base = rng.normal(), rng.uniform(low, 0.99)
        for name in NAMES:
            sure = 0.5 * base + 0.5 * float(rng.uniform(low, 0.99))
            hit = np.sqrt(together) * shared + np.sqrt(1 - together) * rng.normal() <= norm.ppf(max(sure - more, 0.01))
            spread = {"1": sure, "0": 1 - sure}
            pairs.append((make_judgement(str(cluster), name, 1, distribution=spread), float(hit)))
    return pairs


@dataclass(frozen=True)
class Reading:
    """A judge's reading of a quality that goes with length: the error of one score, and how much length adds."""

    noise: float
    bias: float = 0.0


READINGS = {"as good as gold": Reading(0.5), "noisier than gold": Reading(1.0)}


def replies(rng: np.random.Generator, cards: int, each: int, judge: Reading | None, slope: float = 0.5) -> list[list[Replies]]:
    """The judge's and gold's averages of seven levels; without a reading the judge always says the same. Quality goes with
    length by `slope`."""
    cuts = np.array((-1.2, -0.4, 0.4, 1.2))
    quality = 0.7 * rng.normal(size=(cards, 1)) + 0.7 * rng.normal(size=(cards, each))
    long: Floats = slope * quality + 0.87 * rng.normal(size=(cards, each))

    def scored(reading: Reading) -> Floats:
        seen = quality + reading.bias * long + reading.noise * rng.normal(size=(cards, each))
        whole: Floats = (
            (seen[..., None, None] + reading.noise * rng.normal(size=(cards, each, 7, 1)) > cuts).sum(axis=-1).mean(axis=-1)
        )
        return whole

    sides = [np.full((cards, each), 3.0) if judge is None else scored(judge), scored(Reading(0.5))]
    names, clusters = [f"{card}" for card in range(cards)], [f"c{card}" for card in range(cards)]
    lengths = np.exp(0.4 * long) * 100
    return [
        [
            Replies("en", Scorer("j", "joint", ()), f"s{own}", names, clusters, lengths[:, own], side[:, own])
            for own in range(each)
        ]
        for side in sides
    ]


def taken_by_length(rng: np.random.Generator, cards: int, each: int, judge: Reading | None, slope: float = 0.5) -> bool:
    """Whether the judge is found to go with length more than gold does."""
    (one,) = length_biases(*replies(rng, cards, each, judge, slope))
    return one.p is not None and one.p <= 0.05 and (one.difference.mean or 0) > 0


def cases(rng: np.random.Generator, clusters: int, slope: float, base: float, together: float) -> list[SelectiveCase]:
    """Seven verdicts a cluster, right with a chance that goes with the judge's confidence by `slope`; far too sure."""
    size = clusters, len(NAMES)
    knows = np.sqrt(0.25) * rng.normal(size=(clusters, 1)) + np.sqrt(0.75) * rng.normal(size=size)
    luck = np.sqrt(together) * rng.normal(size=(clusters, 1)) + np.sqrt(1 - together) * rng.normal(size=size)
    right = luck <= norm.ppf(1 / (1 + np.exp(-(base + slope * knows))))
    sure = 0.5 + 0.5 / (1 + np.exp(-2 - knows))
    return [
        SelectiveCase(str(cluster), float(sure[cluster, place]), bool(right[cluster, place]))
        for cluster, place in np.ndindex(size)
    ]


def true_accuracy(slope: float, base: float) -> tuple[Floats, Floats]:
    """How sure many verdicts are, the surest first, and how often those are right that are at least as sure."""
    whole = cases(np.random.default_rng(7), 20_000, slope, base, 0.0)
    sure, right = np.array([(case.confidence, case.right) for case in whole]).T
    order = np.argsort(-sure)
    return sure[order], right[order].cumsum() / np.arange(1, len(order) + 1)


def claims(studies: int, seed: int) -> Iterator[Claim]:
    """The card, its checks by themselves, and the promise of `--accuracy`."""
    for cards, each in ((40, 1), (15, 4)):
        rng = np.random.default_rng((seed, cards, each))
        found = [judge_card(faultless(rng, cards, each, 20)).figures["checks"] for _ in range(max(studies // 10, 1))]
        population = "a faultless judge" + (f", {each} dialogues per card" if each > 1 else "")
        yield false_alarms(
            "a judge's card finds a fault", population, cards, [any(c["outcome"] == FAULT for c in card) for card in found]
        )
        for name in dict.fromkeys(check["name"] for card in found for check in card if check["p"] is not None):
            alarms = [
                check["p"] <= 0.05 for card in found for check in card if check["name"] == name and check["p"] is not None
            ]
            yield false_alarms(f"check by itself: {name}", population, cards, alarms)
    for clusters, together, low in ((20, 0.0, 0.3), (20, 0.8, 0.3), (20, 0.4, 0.8), (60, 0.8, 0.8)):
        rng = np.random.default_rng((seed, clusters, int(10 * together), 1))
        for more in (0.0, 0.2):
            errors = [calibration_error({"all": told(rng, clusters, together, low, more)}) for _ in range(max(studies // 4, 1))]
            found_out = [error is not None and error.p <= 0.05 for error in errors]
            population = f"probabilities from {low:g}, hits that go together by {together:g}"
            if more:
                yield shown("an overconfident judge is found out", population, clusters, found_out)
            else:
                yield false_alarms("calibration: a true judge is at fault", population, clusters, found_out)
    for cards, each in ((20, 1), (20, 3), (60, 1)):
        rng = np.random.default_rng((seed, cards, each, 2))
        for name, judge in {"that always says the same": None, **READINGS}.items():
            alarms = [taken_by_length(rng, cards, each, judge) for _ in range(max(studies // 4, 1))]
            yield false_alarms("length: a fair judge is at fault", f"a judge {name}, {each} supporters", cards, alarms)
        alarms = [taken_by_length(rng, cards, each, Reading(0.7, 1.0)) for _ in range(max(studies // 4, 1))]
        yield shown("a judge that adds points for length is found", f"{each} supporters", cards, alarms)
    rng = np.random.default_rng((seed, 20, 3, 5))
    worse = [taken_by_length(rng, 20, 3, READINGS["noisier than gold"], -0.5) for _ in range(max(studies // 4, 1))]
    yield false_alarms("length: a fair judge is at fault", "a judge noisier than gold, longer replies are worse", 20, worse)
    # Outside what the check says it takes for granted: it cannot know that gold is the worse of the two.
    better = [taken_by_length(rng, 20, 3, Reading(0.1)) for _ in range(max(studies // 4, 1))]
    yield shown("length: a fair judge that is more reliable than gold is at fault", "3 supporters", 20, better)
    for slope, base in ((0.0, 1.35), (0.5, 1.2), (1.0, 1.3)):
        sure, accuracy = true_accuracy(slope, base)
        for clusters, together in ((12, 0.6), (30, 0.8), (80, 0.6)):
            rng = np.random.default_rng((seed, clusters, int(10 * together), 3))
            chosen = [threshold_for(cases(rng, clusters, slope, base, together), 0.8).least for _ in range(studies)]
            broken = [one is not None and accuracy[np.searchsorted(-sure, -one, side="right") - 1] < 0.8 for one in chosen]
            population = f"accuracy of all {100 * accuracy[-1]:.0f} %, hits that go together by {together:g}"
            claim = "judge-card --accuracy: spoken verdicts are right less often than 80 %"
            yield false_alarms(claim, population, clusters, broken)
