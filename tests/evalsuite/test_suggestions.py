"""Which dialogues people are asked to score (`people suggest`): chances, draws, further rounds and their weights."""

from collections import Counter

import numpy as np
import pytest

from core.errors import UserError
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.suggestions import Suggestion, chances, closest, drawn, split, suggest, uncertainty, weights_together
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric


def test_chances_and_draws() -> None:
    chance = chances(np.array([0.0, 1, 1, 8]), 2)
    assert chance.sum() == pytest.approx(2) and chance.max() <= 1 and chance[0] < chance[1] == chance[2] < chance[3]
    assert chances(np.ones(3), 5).tolist() == [1, 1, 1]
    errors = np.random.default_rng(0).uniform(0, 1, 30)
    wanted = chances(errors, 10)
    counts = np.zeros(30)
    for seed in range(400):
        places = drawn(wanted, seed)
        assert len(places) == 10
        counts[places] += 1
    assert counts / 400 == pytest.approx(wanted, abs=0.1)


def test_a_judges_spread_is_of_its_probabilities_or_its_repeats() -> None:
    rubric = make_rubric("fluency", "empathy")
    sure = make_judgement("a", "fluency", 3).model_copy(update={"distribution": {"3": 1.0}})
    torn = make_judgement("b", "fluency", 3).model_copy(update={"distribution": {"0": 0.5, "4": 0.5}})
    twice = [make_judgement("c", "empathy", value).model_copy(update={"repeat": value}) for value in (1, 3)]
    found = uncertainty([sure, torn, *twice, make_judgement("d", "fluency", 1)], rubric)
    assert found == {"a": 0, "b": 50, "c": pytest.approx(25 * 2**0.5)}


def test_both_supporters_get_labels_and_the_less_sure_one_more() -> None:
    sure, torn = np.full(20, 2.0), np.full(20, 20.0)
    assert split([sure, sure], 10) == [5, 5] and split([np.zeros(20), np.zeros(20)], 10) == [5, 5]
    few, many = split([sure, torn], 20)
    assert 4 <= few < many and few + many == 20
    assert split([torn, sure, sure, sure], 4) == [1, 1, 1, 1], "never one without"
    assert split([sure[:3], torn[:2]], 50) == [3, 2]
    # By hand: the first two each, then where error² / (n (n + 1)) is largest. Errors² are 1 and 4, and half goes by their mean.
    assert split([np.full(9, 1.0), np.full(9, 2.0)], 6) == [3, 3] and split([np.full(9, 1.0), np.full(9, 2.0)], 7) == [3, 4]


def test_a_draw_gives_each_supporter_its_labels_and_takes_one_cards_dialogues_together() -> None:
    rubric = make_rubric("fluency")
    held = [
        make_dialogue(f"{name}-{language}-{card}", name, language, card_id=f"c{card}")
        for name in ("a", "b")
        for language in ("en", "zh")
        for card in range(6)
    ]
    for seed in range(5):
        found, _ = suggest(held, [], rubric, 8, seed)
        assert Counter((one.dialogue.supporter, one.dialogue.language) for one in found) == dict.fromkeys(
            [("a", "en"), ("a", "zh"), ("b", "en"), ("b", "zh")], 2
        )
        assert [one.weight for one in found] == [pytest.approx(3)] * 8
        cards = {name: {one.dialogue.card_id for one in found if one.dialogue.supporter == name} for name in ("a", "b")}
        assert cards["a"] == cards["b"], "chances are alike, so cards are too"
    with pytest.raises(UserError, match=r"--budget 3: too few .* a \(en\), a \(zh\), b \(en\), b \(zh\)"):
        suggest(held, [], rubric, 3)


def test_the_two_that_are_told_apart_the_least_are_looked_for() -> None:
    scores = {"best": [4] * 12, "good": [3, 2, 3, 4] * 3, "fair": [3, 3, 2, 3] * 3, "silent": [0, 1] * 6, "parrot": [1, 0] * 6}
    held = [make_dialogue(f"{name}-{card}", name, card_id=f"c{card}") for name, own in scores.items() for card in range(12)]
    verdicts = [make_judgement(f"{name}-{card}", "fluency", own[card]) for name, own in scores.items() for card in range(12)]
    rubric = make_rubric("fluency")
    boards = Tally(held, verdicts, rubric).boards
    assert closest(boards, ("silent", "parrot")) == {("en", "good"), ("en", "fair")}
    assert closest(boards, ()) == {("en", "silent"), ("en", "parrot")}
    assert closest(boards, ("silent", "parrot", "best", "good")) == {("en", "fair")}, "no floor is worth people's time"
    apart = [one for one in verdicts if one.dialogue_id.startswith(("best", "silent"))]
    assert closest(Tally(held, apart, rubric).boards, ()) == {("en", "best"), ("en", "silent")}, (
        "none whose interval holds zero"
    )


@pytest.mark.slow
@pytest.mark.parametrize("studies", [40, pytest.param(1000, marks=pytest.mark.full)])
def test_a_further_round_leaves_out_what_is_scored_and_stays_unbiased(studies: int) -> None:
    """People's scores are higher where the judge is surer, so that neither round is a fair sample of them."""
    rng = np.random.default_rng(1)
    held = [make_dialogue(f"{name}-{card}", name, card_id=f"c{card}") for name in ("a", "b") for card in range(24)]
    unsure, rubric = rng.random(48) ** 2, make_rubric("fluency")
    people = {one.id: 4 * (1 - spread) + rng.normal(0, 0.5) for one, spread in zip(held, unsure, strict=True)}
    verdicts = [
        make_judgement(one.id, "fluency", 2).model_copy(
            update={"distribution": {"0": spread / 2, "2": 1 - spread, "4": spread / 2}}
        )
        for one, spread in zip(held, unsure, strict=True)
    ]
    means: dict[str, list[float]] = {"together": [], "as first drawn": [], "unweighted": []}
    for seed in range(studies):
        first, _ = suggest(held, verdicts, rubric, 12, seed)
        had = {one.dialogue.id: one.weight for one in first}
        second, before = suggest(held, verdicts, rubric, 16, seed, labelled=had)
        assert before.keys() == had.keys() and not had.keys() & {one.dialogue.id for one in second} and len(second) == 16
        own = [one for one in first if one.dialogue.supporter == "a"]
        new = [one for one in second if one.dialogue.supporter == "a"]
        means["together"].append(weighted(people, {one.dialogue.id: before[one.dialogue.id] for one in own}, new))
        means["as first drawn"].append(weighted(people, had, own))
        means["unweighted"].append(float(np.mean([people[one.dialogue.id] for one in (*own, *new)])))
    truth = np.mean([people[one.id] for one in held if one.supporter == "a"])
    bias = {name: float(np.mean(each) - truth) for name, each in means.items()}
    error = np.std(means["together"]) / studies**0.5
    assert abs(bias["together"]) < 3 * error and bias["unweighted"] < -4 * error
    assert np.std(means["together"]) < np.std(means["as first drawn"])


def weighted(people: dict[str, float], before: dict[str, float], drawn: list[Suggestion]) -> float:
    weights = before | {one.dialogue.id: one.weight for one in drawn}
    return sum(weight * people[id] for id, weight in weights.items() if id.startswith("a-")) / sum(
        weight for id, weight in weights.items() if id.startswith("a-")
    )


def test_two_rounds_of_a_random_choice_are_one_and_all_that_is_scored_leaves_nothing() -> None:
    old, new = weights_together(np.full(12, 5.0), np.full(8, 8 / 48), 60)
    assert old.tolist() == pytest.approx([5] * 12) and new.tolist() == pytest.approx([5] * 8), "as if 20 had been drawn at once"
    # By hand, 2 of 6 first by the chances 1/4 and 1/2, then 2 of the other 4 by 1/2: share 2 · 2 / (4 · 4) = 1/4, and but for a
    # factor the first weigh share · 6 · (4, 2) / 6 + 3/4, the others 3/4 · 2.
    old, new = weights_together(np.array([4.0, 2.0]), np.array([0.5, 0.5]), 6)
    assert (old / new[0]).tolist() == pytest.approx([1.75 / 1.5, 1.25 / 1.5]) and new[0] == pytest.approx(1.5 * 2)
    held = [make_dialogue(f"a-{card}", "a", card_id=f"c{card}") for card in range(6)]
    with pytest.raises(UserError, match="all of these dialogues have scores"):
        suggest(held, [], make_rubric("fluency"), 2, labelled=dict.fromkeys((one.id for one in held), 1.0))
    found, before = suggest(held, [], make_rubric("fluency"), 9, labelled={"a-0": 1.0})
    assert len(found) == 5 and [one.weight for one in found] == [pytest.approx(1)] * 5 and before == {"a-0": pytest.approx(1)}
