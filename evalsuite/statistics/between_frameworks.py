"""Do frameworks agree? Whether they rank supporters alike, which dimensions go together, and which framework parts supporters
with the fewest calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import (
    PERCENTILE,
    POINTS,
    RESAMPLES,
    SEED,
    SMOOTHED,
    Floats,
    estimate,
    interval,
    resampled_means,
    smoothed_means,
)
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.components import cards_needed
from evalsuite.statistics.leaderboard import Contestant, card_of, contestants_of, stack
from evalsuite.statistics.summary import dimension_label

STUDY = "Do the frameworks agree?"  # heading of the page
POWER = 0.8


@dataclass(frozen=True)
class Framework:
    """What one framework made of the supporters: dialogues, and verdicts of one judge (or of a panel as one). `people` is who
    is played: frameworks with the same are resampled together. `calls` were made for the whole."""

    title: str
    people: str
    dialogues: Sequence[Dialogue]
    judgements: Sequence[Judgement]
    rubric: Rubric
    calls: int

    def contestants(self, language: Language) -> list[Contestant]:
        """The supporters in a language, by name."""
        return [one for one in contestants_of(self.dialogues, self.judgements, self.rubric) if one.language == language]


def as_one_judge(judgements: Sequence[Judgement]) -> Iterator[Judgement]:
    """A panel's verdicts as those of one judge, whose repeats they are: they are averaged."""
    first: dict[tuple[str, str], int] = {}
    for judgement in judgements:
        key = judgement.dialogue_id, judgement.dimension
        first[key] = first.get(key, -1) + 1
        changes = {"judge": "panel", "condition": {}, "repeat": first[key]}
        yield judgement.model_copy(update=changes)


def kendall(x: Floats, y: Floats) -> Floats:
    """Kendall's tau-b of rows [draws, supporters]; NaN where a side has no two different values; scipy takes one pair."""
    places = np.array(list(combinations(range(x.shape[1]), 2)))
    one, other = (np.sign(side[:, places[:, 0]] - side[:, places[:, 1]]) for side in (x, y))
    size = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return np.divide((one * other).sum(axis=1), size, out=np.full(len(x), np.nan), where=size > 0)


@dataclass(frozen=True)
class _Averages:
    """The supporters' averages [1, supporters]; draws of them [RESAMPLES, supporters] of the plain bootstrap, for ranks, and of
    the smoothed one, for their intervals; the number of people."""

    seen: Floats
    resampled: Floats
    smoothed: Floats
    people: int


def _averages(framework: Framework, language: Language, names: Sequence[str]) -> _Averages:
    """Of these supporters. Frameworks that play the same people are drawn alike."""
    by_name = {one.supporter: one for one in framework.contestants(language)}
    sums, counts = stack([by_name[name] for name in names])
    totals = counts.sum(axis=0)
    seen = np.divide(sums.sum(axis=0), totals, out=np.full(totals.shape, np.nan), where=totals > 0).mean(axis=1)
    seed = SEED + sum(framework.people.encode())
    flat = sums.reshape(len(sums), -1), counts.reshape(len(sums), -1)
    drawn = (resampled_means(*flat, seed), smoothed_means(*flat, POINTS, seed))
    resampled, smoothed = (draws.reshape(RESAMPLES, *totals.shape).mean(axis=2) for draws in drawn)
    return _Averages(seen[None], resampled, smoothed, len(sums))


def shared(frameworks: Sequence[Framework], language: Language) -> list[str]:
    """The supporters that every framework has verdicts on."""
    names = [{one.supporter for one in framework.contestants(language)} for framework in frameworks]
    return sorted(set.intersection(*names)) if names else []


def rank_table(frameworks: Sequence[Framework], language: Language) -> list[Table]:
    """Averages of the shared supporters by framework, and Kendall's tau of every two frameworks."""
    names = shared(frameworks, language)
    if len(names) < 2:
        return []
    figures = {one.title: _averages(one, language, names) for one in frameworks}
    averages: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(estimate(float(f.seen[0, place]), f.smoothed[:, place], f.people, f.people) for f in figures.values()))
        for place, name in enumerate(names)
    )
    rows: list[tuple[Cell, ...]] = []
    for one, other in combinations(frameworks, 2):
        x, y = figures[one.title], figures[other.title]
        tau, draws = kendall(x.seen, y.seen)[0], kendall(x.resampled, y.resampled)
        low, high = (None, None) if np.isnan(draws).all() else interval(draws)
        alike = "the same" if one.people == other.people else "others"
        rows.append((one.title, other.title, Estimate(None if np.isnan(tau) else float(tau), low, high, len(names)), alike))
    return [
        Table(
            f"study-averages-{language}",
            f"The same supporters by every framework, {language}",
            ("supporter", *figures),
            averages,
            (f"Averages of 0–100 over a framework's own dimensions, [{SMOOTHED} over cards or profiles], n = how many.",),
            STUDY,
        ),
        Table(
            f"study-ranks-{language}",
            f"Are they ranked alike? {language}",
            ("framework", "and", "Kendall's tau-b", "people played"),
            tuple(rows),
            (
                "−1 to 1, n = supporters. [95 % interval: cards and profiles drawn anew, alike for frameworks that play the "
                "same]. An interval from below 0 to 1 says that this study cannot tell.",
            ),
            STUDY,
        ),
    ]


# --- which dimensions measure the same --------------------------------------------------------------------------------------


def _cells(framework: Framework, language: Language) -> tuple[dict[tuple[str, str], list[Floats]], Sequence[str]]:
    """(card, supporter) → the dialogues' scores [dimensions], one for each trial with all dimensions."""
    known = {dialogue.id: dialogue for dialogue in framework.dialogues}
    found = contestants_of(framework.dialogues, framework.judgements, framework.rubric, card_of=lambda one: one.id)
    cells: dict[tuple[str, str], list[Floats]] = {}
    for contestant in found:
        for id, (sums, counts) in contestant.cards.items():
            if contestant.language == language and counts.all():
                cells.setdefault((card_of(known[id]), contestant.supporter), []).append(sums / counts)
    return cells, [dimension_label(framework.rubric, name) for name in framework.rubric.dimensions]


def reliabilities(cells: Sequence[Sequence[Floats]]) -> Floats:
    """How much of the variance of a cell's mean over trials is the cell's own, by dimension: (MSB − MSW) / MSB of a one-way
    analysis of variance. NaN where no cell has two trials, or cells do not differ."""
    sizes = np.array([len(trials) for trials in cells])
    every = np.concatenate([np.stack(list(trials)) for trials in cells])
    if len(cells) < 2 or sizes.sum() == len(cells):
        return np.full(every.shape[1], np.nan)
    means = np.stack([np.mean(list(trials), axis=0) for trials in cells])
    between = (sizes[:, None] * (means - every.mean(axis=0)) ** 2).sum(axis=0) / (len(cells) - 1)
    within = ((every - np.repeat(means, sizes, axis=0)) ** 2).sum(axis=0) / (sizes.sum() - len(cells))
    return np.divide(between - within, between, out=np.full(len(between), np.nan), where=between > 0)


def _correlations(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's correlation of every column of x with every one of y under weights [draws, rows]: [draws, columns of x, columns
    of y]; NaN where one does not vary."""
    total = weights.sum(axis=1, keepdims=True)
    mean_x, mean_y = weights @ x / total, weights @ y / total
    both = np.einsum("dr,ri,rj->dij", weights, x, y) / total[..., None] - mean_x[:, :, None] * mean_y[:, None, :]
    spread_x, spread_y = weights @ x**2 / total - mean_x**2, weights @ y**2 / total - mean_y**2
    size = np.sqrt(np.maximum(spread_x, 0)[:, :, None] * np.maximum(spread_y, 0)[:, None, :])
    return np.divide(both, size, out=np.full(both.shape, np.nan), where=size > 1e-9)


def dimension_table(one: Framework, other: Framework, language: Language) -> Table | None:
    """Correlations of the dimensions of two frameworks that judged the same dialogues, as seen and disattenuated; None where
    they share fewer than three cells."""
    (mine, names), (theirs, names2) = _cells(one, language), _cells(other, language)
    both = sorted(mine.keys() & theirs.keys())
    if len(both) < 3:
        return None
    x, y = (np.stack([np.mean(cells[key], axis=0) for key in both]) for cells in (mine, theirs))
    cards = {name: place for place, name in enumerate(sorted({card for card, _ in both}))}
    drawn = np.random.default_rng(SEED).multinomial(len(cards), np.full(len(cards), 1 / len(cards)), RESAMPLES).astype(float)
    weights = drawn[:, [cards[card] for card, _ in both]]
    seen, draws = _correlations(x, y, np.ones((1, len(both))))[0], _correlations(x, y, weights)
    trust = [reliabilities([cells[key] for key in both]) for cells in (mine, theirs)]
    rows: list[tuple[Cell, ...]] = []
    for i, name in enumerate(names):
        for j, name2 in enumerate(names2):
            if np.isnan(seen[i, j]):
                rows.append((name, name2, Estimate(None, None, None, len(both)), None, None, None))
                continue
            found = Estimate(float(seen[i, j]), *interval(draws[:, i, j]), len(both))
            product = trust[0][i] * trust[1][j] if min(trust[0][i], trust[1][j]) > 0 else np.nan
            cleared = None if np.isnan(product) else float(np.clip(seen[i, j] / product**0.5, -1, 1))
            own = [None if np.isnan(part) else float(part) for part in (trust[0][i], trust[1][j])]
            rows.append((name, name2, found, cleared, *own))
    rows.sort(key=lambda row: -(row[2].mean or -2) if isinstance(row[2], Estimate) else 0)
    return Table(
        f"study-dimensions-{language}",
        f"Which dimensions go together, {one.title} and {other.title}, {language}",
        (one.title, other.title, "correlation", "disattenuated", f"reliability, {one.title}", f"reliability, {other.title}"),
        tuple(rows),
        (
            "Pearson's correlation over the same dialogues (means over trials of a supporter and card; n = these), "
            f"[{PERCENTILE} over cards]. Disattenuated: by the root of both reliabilities, at most 1; reliability: the share "
            "of the variance of such a mean that is not the luck of the trials. A dash: one trial alone, or nothing varies.",
            "Supporters that differ in everything make every dimension go with every other: look at who was compared.",
        ),
        STUDY,
    )


# --- which parts supporters with the fewest calls ---------------------------------------------------------------------------


def call_table(frameworks: Sequence[Framework], language: Language) -> Table | None:
    """How many pairs each framework tells apart, and what that takes; None for fewer than two shared supporters."""
    names = shared(frameworks, language)
    if len(names) < 2:
        return None
    rows: list[tuple[Cell, ...]] = []
    for framework in frameworks:
        by_name = {one.supporter: one for one in framework.contestants(language)}
        sums, counts = stack([by_name[name] for name in names])
        pairs = list(combinations(range(len(names)), 2))
        apart = sum(bool(one.holds) for one in paired.differences(sums, counts, pairs, average_only=True))
        means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0).mean(axis=2)
        of_language = sum(dialogue.language == language for dialogue in framework.dialogues)
        calls = framework.calls * of_language / max(len(framework.dialogues), 1)
        each = calls / max(sum(int((~np.isnan(means[:, place])).sum()) for place in range(len(names))), 1)
        needed = [_calls_needed(means[:, a] - means[:, b], each, len(pairs)) for a, b in pairs]
        defined = sorted(number for number in needed if number is not None)
        middle = float(np.median(defined)) if 2 * len(defined) > len(pairs) else None
        rows.append((framework.title, len(sums), round(calls), each, apart, len(pairs), middle))
    return Table(
        f"study-calls-{language}",
        f"Which framework parts supporters with the fewest calls? {language}",
        (
            "framework",
            "cards or profiles",
            "calls",
            "calls a card and supporter",
            "pairs told apart",
            "pairs",
            "calls a pair needs",
        ),
        tuple(rows),
        (
            "Told apart: by the sign-flip test, Holm's correction. Calls a pair needs: for the middle pair, to be shown in "
            f"{100 * POWER:.0f} of 100 studies if its difference is as large as it looks here, a guess. A dash: half of "
            "the pairs look alike. FEEL's calls judge dialogues that ESC-Eval held: its own are the panel's alone.",
        ),
        STUDY,
    )


def _calls_needed(gaps: Floats, each: float, pairs: int) -> float | None:
    """Calls to show the mean of these differences, both supporters together; None where that is not defined."""
    gaps = gaps[~np.isnan(gaps)]
    if len(gaps) < 2 or gaps.mean() == 0:
        return None
    cards = cards_needed(float(gaps.mean()), float(gaps.var(ddof=1)), 0, paired.ALPHA / pairs, POWER)
    return None if cards is None else 2 * each * cards
