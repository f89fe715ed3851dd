"""Dialogues by round: when seekers leave (EmoHarbor section 4.3, figure 6), and how scores change (figures 7, 9 and 10).

Round k is the supporter's k-th reply and the seeker's response: another line, or the end. A dialogue's time is the last round
with a known outcome. There the seeker left (an event), or the dialogue is censored: its rounds were used up, or something else
stopped it, which does not say whether the seeker would have stayed (the paper does not say how it treats those). Dialogues that
stopped before any outcome, or whose end is not recorded, are counted as left out.

A round's mean is over the dialogues that reached it, so a curve of means mixes changes
within dialogues with the selection of dialogues that are left. So there is also the slope within dialogues: the least-squares
slope of a dialogue's own scores, averaged over the dialogues with verdicts on two rounds or more.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtri

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import LEVEL, SMOOTHED, Floats, scale_levels
from core.statistics.inference import holm_of, p_text
from core.tables import Cell, Column, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import card_of, contestants_of
from evalsuite.statistics.summary import AVERAGE, Scorer, checked, dimension_label, languages_of, supporter_of

# Headings of the report.
SURVIVAL = "How long seekers stay"
TRENDS = "Scores by round"
TEST = "log-rank test"
Counts = NDArray[np.int64]  # by round


class Span(NamedTuple):
    """How long a dialogue was observed, in rounds from 1, and whether the seeker left in the last of them."""

    rounds: int
    left: bool


class SurvivalStep(NamedTuple):
    """One round of a curve: the seeker left in `left` of n dialogues that had it. `share` is what goes on after it
    (Kaplan-Meier, in per cent), with its pointwise 95 % band (Greenwood's variance on the log-log scale), None before the first
    seeker left and after the last."""

    left: int
    share: Estimate


@dataclass(frozen=True)
class Curve:
    """One supporter in one language. `median` is the first round after which at most half go on; None without one."""

    language: Language
    supporter: str
    dialogues: int
    left_out: int
    median: int | None
    steps: list[SurvivalStep]


@dataclass(frozen=True)
class LogRank:
    """Whether the seekers of these supporters leave at the same rate. `holm` is p corrected over the pairs of a language (None
    for the test of all at once); figures are None if `undefined` gives a reason."""

    language: Annotated[Language, Column("language")]
    supporters: Annotated[tuple[str, ...], Column("supporters", " / ".join)]
    statistic: Annotated[float | None, Column("chi²")]
    df: Annotated[int, Column("df")]
    p: Annotated[float | None, Column("p", p_text)]
    holm: Annotated[float | None, Column("p (Holm)", p_text)]
    undefined: str | None


def span_of(dialogue: Dialogue) -> Span | None:
    """How long a dialogue was observed; None if no round has a known outcome."""
    if dialogue.termination is None:
        return None
    heard = answered = 0
    for turn in dialogue.turns:
        if turn.role == "supporter":
            heard += 1
        else:
            answered = heard
    left = dialogue.termination == "seeker_ended"
    rounds = heard if left else answered
    return Span(rounds, left) if rounds else None


def curves_of(dialogues: Sequence[Dialogue]) -> list[Curve]:
    """A curve for every language and supporter (English first) that has a dialogue with a known outcome."""
    result = []
    for language, supporters in _spans(dialogues).items():
        for supporter, spans in supporters.items():
            if watched := [span for span in spans if span]:
                steps = _steps(watched)
                median = next((at for at, step in enumerate(steps, start=1) if (step.share.mean or 0) <= 50), None)
                result.append(Curve(language, supporter, len(watched), len(spans) - len(watched), median, steps))
    return result


def _spans(dialogues: Sequence[Dialogue]) -> dict[Language, dict[str, list[Span | None]]]:
    spans: dict[Language, dict[str, list[Span | None]]] = {language: {} for language in languages_of(dialogues)}
    for (language, name), group in sorted(group_by(dialogues, lambda d: (d.language, supporter_of(d))).items()):
        spans[language][name] = [*map(span_of, group)]
    return spans


def _steps(spans: Sequence[Span]) -> list[SurvivalStep]:
    rounds = np.arange(1, max(span.rounds for span in spans) + 1)
    at_risk, left = _counts(spans, rounds)
    with np.errstate(divide="ignore", invalid="ignore"):  # when the last seeker leaves, which ends the curve
        survival = np.exp(np.cumsum(np.log(1 - left / at_risk)))
        errors = survival * np.sqrt(np.cumsum(left / (at_risk * (at_risk - left))))
        width = ndtri((1 + LEVEL) / 2) * errors / (survival * np.abs(np.log(survival)))
        band = [np.where((survival > 0) & (survival < 1), survival ** np.exp(side * width), np.nan) for side in (1, -1)]
    columns = (part.tolist() for part in (left, survival, *band, at_risk))
    # An estimate whose ends are undefined has none.
    return [SurvivalStep(leaving, Estimate(*share).times(100)) for leaving, *share in zip(*columns, strict=True)]


def _counts(spans: Sequence[Span], rounds: Counts) -> tuple[Counts, Counts]:
    """The dialogues that had each of these rounds, and those of them in which the seeker left."""
    ends, left = np.array(spans)[:, :, None].swapaxes(0, 1)
    return (ends >= rounds).sum(axis=0), ((ends == rounds) & (left == 1)).sum(axis=0)


def log_ranks(dialogues: Sequence[Dialogue]) -> list[LogRank]:
    """For every language with several supporters: all of them at once, then (if there are more than two) every pair."""
    tests = []
    for language, supporters in _spans(dialogues).items():
        watched = {name: [span for span in spans if span] for name, spans in supporters.items() if any(spans)}
        if len(watched) < 2:
            continue
        tests.append(_log_rank(language, watched))
        if len(watched) > 2:
            pairs = [_log_rank(language, dict(two)) for two in combinations(watched.items(), 2)]
            corrected = holm_of([pair.p for pair in pairs])
            tests += [replace(pair, holm=p) for pair, p in zip(pairs, corrected, strict=True)]
    return tests


def _log_rank(language: Language, groups: dict[str, list[Span]]) -> LogRank:
    """Fleming and Harrington's form for any number of groups: observed minus expected departures of all groups but the first,
    and their variances over rounds."""
    names, df = tuple(groups), len(groups) - 1
    rounds = np.unique([span.rounds for spans in groups.values() for span in spans])
    at_risk, left = (np.array(part) for part in zip(*(_counts(spans, rounds) for spans in groups.values()), strict=True))
    everyone, leavers = at_risk.sum(axis=0), left.sum(axis=0)
    informative = (leavers > 0) & (leavers < everyone)
    if not at_risk[:, informative].any(axis=1).all():  # else the variances have no inverse
        reason = "no round in which some seekers left and others stayed has them all" if leavers.any() else "no seeker left"
        return LogRank(language, names, None, df, None, None, reason)
    shares, several = (at_risk / everyone)[1:], everyone > 1
    excess = np.compress(several, left[1:] - shares * leavers, axis=1).sum(axis=1)
    spread = leavers * (everyone - leavers) / np.maximum(everyone - 1, 1)
    variances = shares.T[:, None, :] * (np.eye(df) - shares.T[:, :, None]) * spread[:, None, None]
    statistic = float(excess @ np.linalg.solve(variances[several].sum(axis=0), excess))
    return LogRank(language, names, statistic, df, float(chdtrc(df, statistic)), None, None)


def survival_tables(curves: Sequence[Curve], tests: Sequence[LogRank]) -> Iterator[Table]:
    """One table of curves per language (rounds as columns), and the tests of all languages. Shares are in per cent."""
    for language, of_language in group_by(curves, lambda curve: curve.language).items():
        horizon = max(len(curve.steps) for curve in of_language)
        rows: list[dict[str, Cell]] = []
        for curve in of_language:
            rows.append({"supporter": curve.supporter, "dialogues": curve.dialogues, "median": curve.median})
            rows[-1] |= {f"round {at}": None for at in range(1, horizon + 1)}
            rows[-1] |= {f"round {at}": step.share for at, step in enumerate(curve.steps, start=1)}
        notes = [
            "Kaplan-Meier, [pointwise 95 % band], n = dialogues that reached the round. A seeker who ends the dialogue "
            "leaves; dialogues that ran out of rounds or were stopped by anything else count for as long as they lasted. "
            "Median: the first round after which at most half go on.",
            *(f"{c.supporter}: left out {c.left_out} that stopped in the first round." for c in of_language if c.left_out),
        ]
        yield Table.of(f"survival-{language}", f"Dialogues that go on after each round, %, {language}", rows, notes, SURVIVAL)
    if tests:
        notes = [
            f"{TEST.capitalize()}, two-sided; Holm's correction over the pairs of a language. It ignores that all supporters "
            "met the same profiles, which makes it conservative.",
            *(f"{test.language}, {' / '.join(test.supporters)}: {test.undefined}." for test in tests if test.undefined),
        ]
        yield Table.of("log-rank", "Do seekers leave at the same rate?", tests, notes, SURVIVAL)


# --- how scores change ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trend:
    """One supporter in one language, by one scorer. `means` maps dimension (and `average`) → its mean (0–100) in every round, n
    = dialogues with a readable verdict; `slopes` → the mean slope within dialogues, in points per round, n = cards, tested
    against 0. `reached` counts the dialogues that reached each round, judged or not."""

    language: Language
    scorer: Scorer
    supporter: str
    means: dict[str, list[Estimate]]
    reached: list[int]
    slopes: dict[str, paired.Difference]


def round_of(dialogue: Dialogue, turn: int) -> int:
    """The round of a turn (its place in the dialogue, from 0). Raises `UserError` for a turn that does not exist, or before the
    supporter has spoken."""
    if turn >= len(dialogue.turns):
        raise UserError(f"turn: {turn}, but dialogue {dialogue.id} has turns 0 to {len(dialogue.turns) - 1}")
    number = sum(earlier.role == "supporter" for earlier in dialogue.turns[: turn + 1])
    if not number:
        raise UserError(f"turn: {turn} of dialogue {dialogue.id} is before the supporter's first")
    return number


def trends_of(dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric) -> list[Trend]:
    """Every language, scorer and supporter with verdicts on single turns. Repeats, and several turns of a round, are averaged
    first. Raises `UserError` like `round_of`, and for a judgement that does not fit rubric or `dialogues`."""
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    rounds: dict[int, list[Judgement]] = defaultdict(list)
    for judgement in checked([judgement for judgement in judgements if judgement.turn is not None], rubric):
        dialogue = by_id.get(judgement.dialogue_id)
        try:
            number = round_of(dialogue, judgement.turn or 0) if dialogue else 1  # an unknown dialogue is refused below
        except UserError as error:
            raise UserError(f"judgement by {judgement.judge}: {error}") from None
        rounds[number].append(judgement)
    # Slopes are within dialogues: each dialogue is a card of its own.
    cards: dict[tuple[Language, Scorer, str], dict[int, dict[str, Floats]]] = defaultdict(dict)
    for number, verdicts in rounds.items():
        for contestant in contestants_of(dialogues, verdicts, rubric, card_of=lambda dialogue: dialogue.id):
            cards[contestant.language, contestant.scorer, contestant.supporter][number] = contestant.cards
    result, languages, names = [], languages_of(dialogues), [*rubric.dimensions, AVERAGE]
    for language, scorer, supporter in sorted(cards, key=lambda key: (languages.index(key[0]), *key[1:])):
        by_round = cards[language, scorer, supporter]
        rivals = [dialogue for dialogue in dialogues if (dialogue.language, supporter_of(dialogue)) == (language, supporter)]
        lengths = np.array([sum(turn.role == "supporter" for turn in dialogue.turns) for dialogue in rivals])
        rows = {id: row for row, id in enumerate(sorted({id for of_round in by_round.values() for id in of_round}))}
        scores = np.full((len(rows), lengths.max(), len(rubric.dimensions)), np.nan)
        for number, of_round in by_round.items():
            for id, (sums, counts) in of_round.items():
                scores[rows[id], number - 1] = np.where(counts > 0, sums, np.nan)
        on_cards = [card_of(by_id[id]) for id in rows]
        readable = (~np.isnan(scores)).any(axis=2).sum(axis=0)
        design = paired.Design(weights=None if rubric.weights is None else np.array(rubric.weights))
        estimates = paired.card_estimates(*paired.by_card(scores, on_cards), readable.tolist(), design=design)
        means = {name: list(column) for name, column in zip(names, zip(*estimates, strict=True), strict=True)}
        reached = [int((lengths >= at).sum()) for at in range(1, lengths.max() + 1)]
        result.append(Trend(language, scorer, supporter, means, reached, _slopes(scores, on_cards, names, design)))
    return result


def _slopes(scores: Floats, cards: Sequence[str], names: Sequence[str], design: paired.Design) -> dict[str, paired.Difference]:
    """Slopes as contestants, compared with a slope of 0."""
    scored = ~np.isnan(scores)
    counts = scored.sum(axis=1)
    at = np.where(scored, np.arange(scores.shape[1])[None, :, None], 0.0)
    centred = np.where(scored, at - (at.sum(axis=1) / np.maximum(counts, 1))[:, None], 0.0)
    squares = (centred**2).sum(axis=1)
    slopes = np.full(squares.shape, np.nan)
    np.divide((centred * np.where(scored, scores, 0.0)).sum(axis=1), squares, out=slopes, where=squares > 0)
    sums, counts = paired.by_card(np.stack([slopes, np.where(np.isnan(slopes), np.nan, 0.0)], axis=1), cards)
    steepest = 100 / max(scores.shape[1] - 1, 1)  # from the lowest score in the first round to the highest in the last
    differences = paired.differences(sums, counts, [(0, 1)], levels=scale_levels(0, steepest), design=design)
    return dict(zip(names, differences, strict=True))


def trend_tables(trends: Sequence[Trend], rubric: Rubric) -> Iterator[Table]:
    """Per language one table of means (a row per supporter and dimension, rounds as columns), and one of slopes."""
    for language, of_language in group_by(trends, lambda trend: trend.language).items():
        several = len({trend.scorer for trend in of_language}) > 1
        horizon = range(1, max(len(trend.reached) for trend in of_language) + 1)
        means: list[dict[str, Cell]] = []
        slopes: list[dict[str, Cell]] = []
        for trend in of_language:
            for name, slope in trend.slopes.items():
                labels: dict[str, Cell] = {"supporter": trend.supporter, **trend.scorer.column(several)}
                labels |= {"dimension": dimension_label(rubric, name)}
                means.append(labels | dict.fromkeys(f"round {at}" for at in horizon))
                means[-1] |= {f"round {at}": estimate for at, estimate in zip(horizon, trend.means[name], strict=False)}
                slopes.append(labels | paired.by_column(slope, "points per round"))
        note = f"Mean on 0–100, [{SMOOTHED} over cards], n = dialogues that reached the round and have a readable verdict."
        yield Table.of(f"trends-{language}", f"Scores by round, {language}", means, [note], TRENDS)
        note = (
            f"Mean over cards of the least-squares slope of a dialogue's own scores (0–100) by round, [{SMOOTHED}], n = cards "
            f"with a dialogue that was judged in two rounds or more. Against a slope of 0, {paired.HOLDS}."
        )
        yield Table.of(f"slopes-{language}", f"Change of scores within dialogues, {language}", slopes, [note], TRENDS)
