"""Simulated raters with known severities and errors: agreement, the leaderboard and their intervals recover what was put in."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from core.records import Dialogue, HumanScore, Turn
from core.rubrics import Rubric
from core.tables import Estimate
from data_prep.scores.annotator_agreement import agreement
from evalsuite.people.study import Person, assign, rated_items
from evalsuite.statistics.contestants import verdicts_of_people
from evalsuite.statistics.leaderboard import Tally

RUBRIC = Rubric.model_validate(
    {
        "name": "simulated",
        "source": "made",
        "languages": ["en"],
        "scale": {"min": 0, "max": 10},
        "dimensions": {"quality": {"label": {"en": "Quality"}, "about": {"en": "How good it is."}}},
    }
)
QUALITY = {"good": 6.5, "middling": 5.0, "poor": 3.5}  # the means of what three supporters do on a card
SPREAD, ERROR = 1.2, 0.8  # of a supporter's dialogues around its mean, of a rater's scores around what is there
SEVERITY = {"r0": -0.6, "r1": -0.2, "r2": 0.2, "r3": 0.6}  # their mean is nothing: the raters together are fair
TURNS = (Turn(role="seeker", text="a"), Turn(role="supporter", text="b"))
STUDIES = 100


def study(seed: int, cards: int) -> tuple[list[Dialogue], list[HumanScore]]:
    """Who scores what is drawn as in every study; scores are whole, rounded up or down by chance: no bias is left."""
    rng = np.random.default_rng(seed)
    dialogues, values = [], {}
    for card in range(cards):
        for supporter, mean in QUALITY.items():
            turns = [*TURNS[:-1], TURNS[-1].model_copy(update={"text": f"{TURNS[-1].text} {supporter}"})]
            id = f"{supporter}-{card}"
            one = Dialogue(id=id, language="en", source="made", card_id=f"c{card}", supporter=supporter, turns=turns)
            dialogues.append(one)
            values[one.id] = rng.normal(mean, SPREAD)
    items, _ = rated_items(dialogues, RUBRIC, {})
    of_item = {item.id: content.dialogue.id for item, content in items}
    scores = []
    for task in assign([item for item, _ in items], [Person(code, ("en",)) for code in SEVERITY], 2, 0, seed):
        seen = values[of_item[task.item]] + SEVERITY[task.rater] + rng.normal(0, ERROR)
        score = min(10.0, max(0.0, np.floor(seen + rng.random())))
        fields = {"language": "en", "annotator": task.rater, "rubric": "simulated", "dimension": "quality"}
        scores.append(HumanScore(dialogue_id=of_item[task.item], value=score, **fields))
    return dialogues, scores


def covered(estimates: Iterator[Estimate], truth: float) -> float:
    """In how many per cent of the studies the interval holds the truth."""
    held = [one.low is not None and one.high is not None and one.low <= truth <= one.high for one in estimates]
    assert len(held) == STUDIES
    return 100 * float(np.mean(held))


@pytest.fixture(scope="module")
def studies() -> list[tuple[list[Dialogue], list[HumanScore]]]:
    return [study(seed, cards=40) for seed in range(STUDIES)]


@pytest.fixture(scope="module")
def truth() -> dict[str, float]:
    """The figures of studies so large that nothing is left to chance."""
    large = [agreement(study(10_000 + seed, cards=2000)[1], [RUBRIC])[0] for seed in range(2)]
    return {name: float(np.mean([getattr(one, name).mean for one in large])) for name in ("alpha", "kappa", "near")}


@pytest.mark.slow
def test_intervals_of_agreement_hold_what_was_put_in(
    studies: list[tuple[list[Dialogue], list[HumanScore]]], truth: dict[str, float]
) -> None:
    found = [agreement(scores, [RUBRIC], seed=seed)[0] for seed, (_, scores) in enumerate(studies)]
    for name in ("alpha", "kappa", "near"):
        share = covered((getattr(one, name) for one in found), truth[name])
        assert 90 <= share <= 99, (name, truth, share)
        mean = np.mean([getattr(one, name).mean for one in found])
        assert abs(mean - truth[name]) < (0.03 if name == "kappa" else 0.01), (name, mean)


@pytest.mark.slow
def test_the_leaderboard_recovers_the_supporters(studies: list[tuple[list[Dialogue], list[HumanScore]]]) -> None:
    boards = [Tally(dialogues, verdicts_of_people(scores), RUBRIC).boards[0] for dialogues, scores in studies]
    for supporter, mean in QUALITY.items():
        place = [one.supporter for one in boards[0].contestants].index(supporter)
        assert 90 <= covered((board.scores[place][0].estimate for board in boards), 10 * mean) <= 99, supporter
    right = 0
    for board in boards:
        means = [board.scores[place][0].estimate.mean or 0.0 for place in board.order]
        right += [board.contestants[place].supporter for place in board.order] == list(QUALITY)
        assert all(better >= worse for better, worse in pairwise(means))
    assert right == STUDIES, "supporters a point and a half apart are never mistaken on forty cards"
    true = [difference for board in boards for difference in board.differences]
    assert np.mean([bool(one.holds) for one in true]) > 0.95
