"""The first sentence of a report and the forest plots below it: what they claim is what the differences say."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evalsuite.report.headlines import agreeing, answer, belief, doubt, unbeaten
from evalsuite.report.sheet import board_forest, difference_forests, dimension_forest
from evalsuite.statistics.leaderboard import Board, Tally
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric

RUBRIC = make_rubric("empathy", "skill")
LEVELS: dict[str, float] = {"good": 4, "mid": 2, "poor": 0}


def board(
    levels: dict[str, float], cards: int = 14, floors: tuple[str, ...] = (), judge: str = "j", noise: Callable[[int], int] = int
) -> Board:
    """Supporters that get their level on every card, one more on the cards where `noise` says so (of card and supporter)."""
    dialogues, judgements = [], []
    for place, (name, level) in enumerate(levels.items()):
        for n in range(cards):
            dialogue = make_dialogue(f"{name}{n}", name, card_id=f"c{n}")
            value = min(4, level + noise(n + 3 * place) % 2)
            dialogues.append(dialogue)
            judgements += [make_judgement(dialogue.id, key, value, judge=judge) for key in RUBRIC.dimensions]
    (made,) = Tally(dialogues, judgements, RUBRIC, floors).pooled
    return made


def of(made: Board, first: str, second: str) -> str:
    """How a difference is told."""
    names = [one.supporter for one in made.contestants]
    (one,) = (one for one in made.differences if {names[one.first], names[one.second]} == {first, second})
    cell = one.estimate
    return f"{cell.mean:.1f} points of 100 (95 % interval {cell.low:.1f} to {cell.high:.1f}) on {cell.n} cards"


def told(made: Board, **holds: bool) -> Board:
    """The board with these differences found or not, whatever the scores say."""
    names = [one.supporter for one in made.contestants]
    kept = [replace(one, holds=holds.get(f"{names[one.first]}_{names[one.second]}", one.holds)) for one in made.differences]
    return replace(made, differences=kept)


def test_the_answer_says_who_is_ahead_by_how_much_on_how_many_cards_by_which_judge() -> None:
    two = board({"good": 3, "poor": 0})
    assert answer(two) == f"good is ahead of poor by {of(two, 'good', 'poor')}, judged by j."
    three = board(LEVELS)
    (low,) = (f"{one.mean:.1f} ({one.low:.1f} to {one.high:.1f})" for one in [three.differences[-1].estimate])
    order = f"good is ahead of mid by {of(three, 'good', 'mid')}, and mid of poor by {low}, judged by j."
    assert answer(three) == order
    both = f"good is ahead of both other models, of the nearest, mid, by {of(three, 'good', 'mid')}, judged by j."
    assert answer(told(three, mid_poor=False)) == both
    tied = told(three, good_mid=False)
    behind = of(three, "good", "poor")
    assert answer(tied) == f"good is ahead of poor by {behind}; no difference from mid was found, judged by j."
    odd = told(three, good_mid=False, good_poor=False)
    assert answer(odd) == (
        "No difference found between good, highest on average, and the others, but mid is ahead of poor by "
        f"{of(three, 'mid', 'poor')}, judged by j."
    )


def test_equal_models_and_few_cards_are_two_answers() -> None:
    equal = board({"a": 2, "b": 2}, noise=lambda n: n * n // 3)
    (one,) = equal.differences
    first, second = (equal.contestants[place].supporter for place in (one.first, one.second))
    assert answer(equal) == f"No difference found between {first} and {second}: {of(equal, 'a', 'b')}, judged by j."
    few = board({"good": 4, "poor": 0}, cards=3)
    assert few.fewest_cards and not few.differences[0].holds
    assert answer(few) == f"Too few cards to tell: at least {few.fewest_cards} are needed, not 3, judged by j."
    assert not list(unbeaten(board({"good": 4, "silent": 0}, 3, ("silent",)))), "too few cards are no failure of the model"
    assert [line.said for line in next(difference_forests(few)).lines] == ["too few cards to tell"]


def test_a_model_alone_is_compared_with_the_floors() -> None:
    floors = ("parrot", "silent")
    one = board({"good": 3, "parrot": 1, "silent": 0}, floors=floors)
    assert answer(one) == f"good is ahead of both floors, of the nearest, parrot, by {of(one, 'good', 'parrot')}, judged by j."
    assert not list(unbeaten(one))
    worse = board({"poor": 0, "parrot": 2, "silent": 0}, floors=floors, noise=lambda n: n * n // 3)
    assert answer(worse) == f"parrot, which needs no model, is ahead of poor by {of(worse, 'parrot', 'poor')}, judged by j."
    assert list(unbeaten(worse)) == ["poor is not shown to beat parrot and silent, which need no model."]
    (cell,) = (block[-1].estimate for block in board({"good": 3}).scores)
    alone = f"good has {cell.mean:.1f} points of 100 (95 % interval {cell.low:.1f} to {cell.high:.1f}) on average"
    assert answer(board({"good": 3})) == f"{alone}, judged by j; there is no other score to compare it with."


def test_what_cannot_be_compared_says_why() -> None:
    floors = ("parrot", "silent")
    only = answer(board({"parrot": 1, "silent": 0}, floors=floors))
    assert only == "parrot and silent could not be compared: floors are not tested."
    unread = Tally([make_dialogue("d", "m", card_id="c")], [make_judgement("d", "skill", None)], RUBRIC).pooled
    assert answer(unread[0]) == "No score could be read, judged by j."
    half = Tally([make_dialogue("d", "m", card_id="c")], [make_judgement("d", "skill", 3)], RUBRIC).pooled
    assert answer(half[0]) == "No supporter has a score on every dimension, judged by j."


def test_further_judges_agree_or_are_quoted() -> None:
    first, same, other = (board(LEVELS, judge=judge) for judge in ("j", "same", "other"))
    other = told(other, good_mid=False)
    said, against = agreeing(first, [same, other])
    assert said == "same finds the same." and against == [f"Another judge: {answer(other)}"]
    assert answer(other).endswith("; no difference from mid was found, judged by other.")


def figures(acc: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"acc": acc, "over_majority_low": low, "over_majority_high": high, "majority_acc": 0.45, "n": 56}


@pytest.mark.parametrize(
    ("gold", "doubted", "said"),
    [
        (None, True, "Do not rely on j: it was measured on no gold set, so nobody knows how well it judges."),
        (figures(0.5, -0.1, 0.2), True, "most frequent score (English 50.0 % right against 45.0 %)."),
        (figures(0.3, -0.25, -0.05), True, "Do not rely on j: it is not shown to do better"),
        (figures(0.6, None, None), True, "Do not rely on j: it is not shown to do better"),
        # The interval that counts is that of the difference.
        (figures(0.6, 0.01, 0.3) | {"acc_low": 0.4}, False, "j does better on its gold set than"),
    ],
)
def test_a_judge_is_relied_on_where_it_is_shown_to_beat_the_majority_class(
    gold: dict[str, Any] | None, doubted: bool, said: str
) -> None:
    agreements = {"j": {"en": {"average": gold}}} if gold else {}
    assert doubt(agreements, "j", "en") is doubted and doubt(agreements, "j", "zh") and doubt(agreements, "other", "en")
    relied, sentence = belief(agreements, "j", ["en"])
    assert relied is not doubted and said in sentence
    if gold:
        relied, sentence = belief(agreements, "j", ["en", "zh"])
        assert not relied and "measured on no Chinese gold set" in sentence


def test_forests_hold_the_figures_of_the_board() -> None:
    made = board(LEVELS | {"silent": 1}, floors=("silent",))
    other = board(LEVELS | {"silent": 1}, floors=("silent",), judge="k", noise=lambda n: n // 2)
    averages = {block[-1].supporter: block[-1].estimate for block in made.scores}
    forest = board_forest([made, other], "Average")
    ranks = [(line.name, line.rank, line.floor) for line in forest.lines]
    assert ranks == [("good", "1", False), ("mid", "2", False), ("poor", "3", False), ("silent", None, True)]
    assert forest.judges == ["j", "k"]
    assert [line.columns[0][0] for line in forest.lines] == [averages[line.name] for line in forest.lines]
    assert (forest.at(0), forest.at(62.5), forest.at(100)) == ("0.00%", "62.50%", "100.00%")
    dimensions = dimension_forest(made, RUBRIC)
    assert dimensions.columns == ["Empathy", "Skill"] and all(len(line.columns) == 2 for line in dimensions.lines)
    references = {forest.title: forest for forest in difference_forests(made)}
    assert list(references) == ["good", "mid", "poor", "silent"]
    ahead = {line.name: line for line in references["mid"].lines}
    assert [(name, line.said) for name, line in ahead.items()] == [("good", "ahead"), ("poor", "behind"), ("silent", "behind")]
    back = {line.name: line for line in references["good"].lines}["mid"]
    (there,), (here,) = ahead["good"].columns[0], back.columns[0]
    assert there is not None and here is not None
    assert (here.mean, here.low, here.high) == (-there.mean, -there.high, -there.low)  # type: ignore[operator]
    assert references["mid"].figure(12.34) == "+12.3" and references["mid"].figure(-12.34) == "\N{MINUS SIGN}12.3"
