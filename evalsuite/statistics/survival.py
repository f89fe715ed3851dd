"""When seekers leave (EmoHarbor section 4.3, figure 6): survival curves of dialogues, and whether those of supporters differ.

A round is a supporter's reply and the seeker's response: another line, or the end. A dialogue's time is the last round with a
known outcome. There the seeker left (an event), or the dialogue is censored: its rounds were used up, or something else stopped
it, which does not say whether the seeker would have stayed (the paper does not say how it treats those). Dialogues that stopped
before any outcome, or whose end is not recorded, are counted as left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtri

from core.grouping import group_by
from core.records import Dialogue, Language
from core.statistics.bootstrap import LEVEL
from core.statistics.inference import holm_of, p_text
from core.tables import Cell, Column, Estimate, Table
from evalsuite.statistics.summary import languages_of, supporter_of

SURVIVAL = "How long seekers stay"  # heading of the report
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


def curves(dialogues: Sequence[Dialogue]) -> list[Curve]:
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


# --- tables ----------------------------------------------------------------------------------------------------------------


def tables(curves: Sequence[Curve], tests: Sequence[LogRank]) -> Iterator[Table]:
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
