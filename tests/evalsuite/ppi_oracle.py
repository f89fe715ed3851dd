"""What ppi-python, by the authors of prediction-powered inference, makes of data that the tests make again.

    make setup-peers    # it brings a downloader along, so it is not in our environment
    .venv-peers/bin/python tests/evalsuite/ppi_oracle.py > tests/evalsuite/ppi_python.json

Needs numpy and ppi-python alone. The library tells unlabelled data from labelled; here the judge's mean is over all, which is
the same estimate at another λ: its λ is ours times unlabelled / all.
"""

import json
from typing import Any

import numpy as np

CASES = {
    "good judge, 50 of 300": (50, 300, 6.0, 8.0),
    "weak judge, 50 of 300": (50, 300, 30.0, 0.0),
    "useless judge, 40 of 200": (40, 200, 1000.0, 0.0),
    "good judge, 12 of 60": (12, 60, 6.0, -10.0),
}  # labels, dialogues, the judge's noise and its bias, in points


def data(name: str) -> tuple[Any, Any, int]:
    """The judge's points and people's on all dialogues, of which people scored the first so many."""
    labels, dialogues, noise, bias = CASES[name]
    rng = np.random.default_rng(sum(name.encode()))
    people = 25.0 * rng.binomial(4, 0.6, dialogues)
    judge = np.clip(people + bias + rng.normal(0, noise, dialogues), 0, 100)
    return judge, people, labels


def figures() -> dict[str, dict[str, float]]:
    """Of each case: the library's λ (cut to 0–1, as ours is) with its estimate and 95 % interval, and the estimates at 0 and 1,
    between which all others lie on a line."""
    from ppi_py import ppi_mean_ci, ppi_mean_pointestimate  # type: ignore[import-not-found]

    def number(value: Any) -> float:
        return float(np.ravel(value)[0])

    found = {}
    for name in CASES:
        judge, people, labels = data(name)
        given = people[:labels], judge[:labels], judge[labels:]
        at_0, at_1, own = (number(ppi_mean_pointestimate(*given, lam=lam)) for lam in (0.0, 1.0, None))
        lam = min(max((own - at_0) / (at_1 - at_0), 0.0), 1.0)
        low, high = map(number, ppi_mean_ci(*given, alpha=0.05, lam=lam))
        found[name] = {"lambda": lam, "at_0": at_0, "at_1": at_1, "low": low, "high": high}
    return found


if __name__ == "__main__":
    print(json.dumps(figures(), indent=1))
