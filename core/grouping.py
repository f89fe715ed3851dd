"""Records in groups, and means of scores: the same for every order of the rows, and equal to the result on paper.

Scores are decimals, which floats only approximate. As sums of floats, 1.4, 2.8 and 3.3 have the mean 2.5 in one order and
2.4999999999999996 in another, and rounding halves up then gives 3 or 2. `math.fsum` would make the order irrelevant, but add
the approximations: 0.6, 2.3 and 4.6 give 2.4999999999999996 in every order.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from operator import itemgetter
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_by(records: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The records of each key, both in the order of the input."""
    groups: dict[K, list[T]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def exact_mean(scores: Iterable[float]) -> float:
    """The mean of one or more scores, each taken as the decimal it is written as; only the result is rounded to a float."""
    numbers = list(scores)
    if len(numbers) == 1:
        return numbers[0]
    return float(sum(Fraction(str(float(score))) for score in numbers) / len(numbers))


def means_by(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    """The mean of each key's numbers, in the order in which keys first occur."""
    return {key: exact_mean(number for _, number in group) for key, group in group_by(pairs, itemgetter(0)).items()}


def comparable(number: float) -> float:
    """A number to 12 significant digits, for comparing, ranking or rounding to whole scores.

    Means of means, or of thirds that a file has as 2.3333333333333335, are slightly off in their last digits, but numbers that
    are equal on paper must tie. Round only the final mean, not those that go into another.
    """
    return float(f"{number:.12g}")


def mean_of_all(figures: Iterable[float | None]) -> float | None:
    """The unweighted mean of figures; None if one is undefined, since a mean of the others would not be comparable."""
    numbers = list(figures)
    defined = [figure for figure in numbers if figure is not None]
    return math.fsum(defined) / len(defined) if len(defined) == len(numbers) else None
