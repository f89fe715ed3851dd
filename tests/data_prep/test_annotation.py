"""Appendix A.2's correction rules, case by case, and agreement against independent implementations."""

import random

import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from data_prep.cards import Path3, load_taxonomy
from data_prep.commands.card_sheets import QUALITIES, Mark, Mode, Quality, agreement, questions, settle

LEAVES = list(load_taxonomy().leaves)
ONE, OTHER, THIRD = LEAVES[0], LEAVES[20], LEAVES[34]  # the third person may take any category, not only one of the two

# What the third person says:                 nothing     high        middle      invalid
NATIVE: dict[tuple[Quality, Quality], tuple[str, str, str, str]] = {
    ("high", "high"): ("high", "high", "high", "high"),
    ("high", "middle"): ("open", "high", "middle", "error"),
    ("high", "invalid"): ("dropped", "dropped", "dropped", "dropped"),
    ("middle", "high"): ("open", "high", "middle", "error"),
    ("middle", "middle"): ("middle", "middle", "middle", "middle"),
    ("middle", "invalid"): ("dropped", "dropped", "dropped", "dropped"),
    ("invalid", "high"): ("dropped", "dropped", "dropped", "dropped"),
    ("invalid", "middle"): ("dropped", "dropped", "dropped", "dropped"),
    ("invalid", "invalid"): ("dropped", "dropped", "dropped", "dropped"),
}
PAPER = NATIVE | {("high", "high"): ("middle", "middle", "middle", "middle")}
SAID: tuple[Quality | None, ...] = (None, "high", "middle", "invalid")
CASES = [
    (mode, pair, said, expected, same, decides)
    for mode, table in (("native", NATIVE), ("paper", PAPER))
    for pair, row in table.items()
    for said, expected in zip(SAID, row, strict=True)
    for same in (True, False)
    for decides in (True, False)
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "pair", "said", "expected", "same", "decides"), CASES)
def test_every_case_of_appendix_a2(
    mode: Mode, pair: tuple[Quality, Quality], said: Quality | None, expected: str, same: bool, decides: bool
) -> None:
    """`same`: the workers agree on the category; `decides`: the third person names one."""
    first, second = Mark(pair[0], ONE), Mark(pair[1], ONE if same else OTHER)
    third = Mark(said, THIRD if decides else None)
    if expected == "error":
        with pytest.raises(ValueError, match="between high and middle"):
            settle(first, second, third, mode)
        return
    outcome = settle(first, second, third, mode)
    if expected == "dropped":
        assert (outcome.state, outcome.quality, outcome.category, outcome.open) == ("dropped", "invalid", None, ())
        return
    waits = (["quality"] if expected == "open" else []) + (["category"] if not same and not decides else [])
    assert outcome.open == tuple(waits)
    assert outcome.state == ("open" if waits else "kept")
    if not waits:
        assert outcome.quality == expected
        assert outcome.category == (ONE if same else THIRD)


def test_no_third_person_is_the_same_as_one_who_says_nothing() -> None:
    marks = Mark("high", ONE), Mark("middle", OTHER)
    assert settle(*marks) == settle(*marks, Mark())
    assert questions(*marks) == ("quality", "category")


def test_an_invalid_card_asks_nobody() -> None:
    assert questions(Mark("invalid"), Mark("high", ONE)) == ()
    assert settle(Mark("invalid"), Mark("high", ONE), Mark("high", OTHER)).state == "dropped"


# --- agreement --------------------------------------------------------------------------------------------------------------


def drawn(seed: int, n: int = 120, equal: float = 0.6) -> list[tuple[Mark, Mark]]:
    rng = random.Random(seed)

    def mark() -> Mark:
        quality = rng.choice(QUALITIES)
        return Mark(quality, rng.choice(LEAVES) if quality != "invalid" else None)

    firsts = [mark() for _ in range(n)]
    return [(first, first if rng.random() < equal else mark()) for first in firsts]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_quality_against_the_libraries(seed: int) -> None:
    pairs = drawn(seed)
    row = agreement(pairs, 0)[0]
    a, b = (np.array([QUALITIES.index(pair[i].quality) for pair in pairs]) for i in (0, 1))
    assert row.n == len(pairs)
    assert row.raw.mean == pytest.approx((a == b).mean(), abs=1e-6)
    assert row.kappa.mean == pytest.approx(cohen_kappa_score(a, b), abs=1e-6)
    assert row.kappa_linear is not None
    assert row.kappa_linear.mean == pytest.approx(cohen_kappa_score(a, b, weights="linear"), abs=1e-6)
    alpha = krippendorff.alpha(np.array([a, b]), level_of_measurement="ordinal", value_domain=[0, 1, 2])
    assert row.alpha.mean == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize(("position", "level"), [(1, 1), (2, 3)])
def test_categories_against_the_libraries(position: int, level: int) -> None:
    pairs = drawn(4)
    row = agreement(pairs, 0)[position]
    both: list[tuple[Path3, Path3]] = [(a.category, b.category) for a, b in pairs if a.category and b.category]
    assert 0 < row.n == len(both) < len(pairs)
    a, b = (["/".join(pair[i][:level]) for pair in both] for i in (0, 1))
    names = sorted({*a, *b})
    numbers = np.array([[names.index(x) for x in column] for column in (a, b)])
    assert row.kappa.mean == pytest.approx(cohen_kappa_score(a, b), abs=1e-6)
    assert row.alpha.mean == pytest.approx(krippendorff.alpha(numbers, level_of_measurement="nominal"), abs=1e-6)
    assert row.kappa_linear is None


def test_intervals_hold_the_value_and_follow_the_seed() -> None:
    pairs = drawn(5)
    row, again, other = (agreement(pairs, seed)[0] for seed in (0, 0, 1))
    assert row == again
    assert row.raw.mean == other.raw.mean and row.raw != other.raw
    assert row.alpha.low is not None and row.alpha.high is not None and row.alpha.mean is not None
    assert row.alpha.low < row.alpha.mean < row.alpha.high


@pytest.mark.slow
def test_the_interval_covers_as_often_as_it_says() -> None:
    """Of 100 samples from a known source, about 95 intervals hold the agreement of the source (here 0.6 + 0.4 · 1/3)."""
    qualities = ([(Mark(a.quality), Mark(b.quality)) for a, b in drawn(seed, 150)] for seed in range(100))
    estimates = [agreement(pairs, 0)[0].raw for pairs in qualities]  # without categories, which take two thirds of the time
    inside = sum(e.low <= 0.6 + 0.4 / 3 <= e.high for e in estimates if e.low is not None and e.high is not None)
    assert 88 <= inside <= 100


@pytest.mark.parametrize("pairs", [[], [(Mark("high", ONE), Mark("high", ONE))] * 5])
def test_without_variation_nothing_is_claimed(pairs: list[tuple[Mark, Mark]]) -> None:
    for row in agreement(pairs, 0):
        assert (row.kappa.mean, row.kappa.low, row.alpha.mean, row.alpha.high) == (None, None, None, None)
        assert row.raw.mean == (1.0 if pairs else None)
