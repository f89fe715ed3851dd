"""When a run may stop: looks are planned, and their levels keep 5 % over all of them."""

import numpy as np
import pytest
from scipy.special import ndtri

from core.statistics.bootstrap import LEVEL
from evalsuite.statistics.components import Looks


@pytest.mark.parametrize(
    ("available", "cards", "limits"),
    [
        ([18, 18], (12, 18, 28, 36), [6, 9, 14, 18]),
        ([18], (12, 18), [12, 18]),
        ([4, 50], (12, 16, 22, 31, 45, 54), [8, 12, 18, 27, 41, 50]),
        ([5, 5], (10,), [5]),
        ([1], (1,), [1]),
    ],
)
def test_looks_begin_with_a_dozen_cards_and_end_with_all(
    available: list[int], cards: tuple[int, ...], limits: list[int]
) -> None:
    assert Looks.plan(available) == (Looks(cards), limits)


def test_a_run_that_is_looked_at_once_has_the_usual_level() -> None:
    assert Looks((10,)).levels == pytest.approx([LEVEL], abs=1e-5)


@pytest.mark.parametrize("cards", [(12, 18, 28, 36), (12, 18, 28, 42, 64, 96, 144)])
def test_what_is_spent_by_each_look_is_proportional_to_its_cards(cards: tuple[int, ...]) -> None:
    """Random walks of so many normal cards each: how many have been beyond their bound by each look."""
    looks, walks = Looks(cards), 100_000
    rng = np.random.default_rng(1)
    sizes = np.diff([0, *cards])
    z = np.cumsum(rng.normal(size=(walks, len(cards))) * np.sqrt(sizes), axis=1) / np.sqrt(cards)
    beyond = np.abs(z) > -ndtri((1 - np.array(looks.levels)) / 2)
    spent = np.logical_or.accumulate(beyond, axis=1).mean(axis=0)
    assert spent == pytest.approx(0.05 * np.array(cards) / cards[-1], abs=4 * np.sqrt(0.05 / walks))


def test_cards_between_two_looks_have_the_level_of_the_next() -> None:
    looks = Looks((12, 18, 36))
    assert [looks.level_at(n) for n in (3, 12, 13, 36)] == [looks.levels[place] for place in (0, 0, 1, 2)]
    assert looks.level_at(40) == LEVEL
