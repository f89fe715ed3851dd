"""Scores against the length of replies: does a judge reward those who say more?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.grouping import group_by
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import RESAMPLES, Floats, estimate
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.coefficients import coefficients, resampled
from evalsuite.statistics.leaderboard import contestants_of
from evalsuite.statistics.summary import AVERAGE, BREAKDOWNS, Scorer, Value

ALL = "all, within supporters"
NOTES = (
    "Length: mean characters a reply. n = dialogues; [95 % percentile bootstrap over dialogues]. The last row of a judge "
    "is the mean over supporters, each as often as it has dialogues: whether long-winded supporters score higher than "
    "terse ones plays no part.",
    "A correlation is no proof of bias: longer replies may be better. A dash: undefined (nothing varies, or n < 2).",
)


@dataclass(frozen=True)
class Replies:
    """The dialogues of one supporter in one language as one scorer sees them.

    `lengths` [n] are the mean characters of a dialogue's replies, `scores` [n, dimensions + 1] what it got on 0–100, the
    average last; NaN where nothing was read.
    """

    language: Language
    scorer: Scorer
    supporter: str
    lengths: Floats
    scores: Floats


@dataclass(frozen=True)
class LengthEffect:
    """Spearman's correlation (−1 to 1) of scores with mean reply length, of one scorer and language.

    `supporter` is None for the mean over supporters, each as often as it has dialogues: what goes with length among replies of
    one and the same supporter. `cells` maps dimension (and `average`) → estimate; n is dialogues with a readable verdict.
    Undefined (fewer than two dialogues, or equal lengths or scores throughout) is None.
    """

    language: Language
    scorer: Scorer
    supporter: str | None
    cells: dict[str, Estimate]


def mean_reply_length(dialogue: Dialogue) -> float | None:
    """Mean characters of the supporter's replies; None where it answers nothing. An opening greeting is no reply."""
    first = next((place for place, turn in enumerate(dialogue.turns) if turn.role == "seeker"), len(dialogue.turns))
    lengths = [len(turn.text.strip()) for turn in dialogue.turns[first:] if turn.role == "supporter"]
    return sum(lengths) / len(lengths) if lengths else None


def replies_of(
    dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric, value: Value = "value"
) -> list[Replies]:
    """Every language, scorer and supporter. Dialogues without a reply are left out; an average is over all dimensions. Raises
    `UserError` for a judgement of an unknown dialogue."""
    lengths = {dialogue.id: mean_reply_length(dialogue) for dialogue in dialogues}
    found = []
    # Each dialogue is its own "card": what a contestant then holds is one mean score a dialogue and dimension.
    for one in contestants_of(dialogues, judgements, rubric, value, card_of=lambda dialogue: dialogue.id):
        rows = [(length, *row) for id, row in one.cards.items() if (length := lengths[id]) is not None]
        scores = np.array([np.where(counts > 0, sums, np.nan) for _, sums, counts in rows]).reshape(-1, len(rubric.dimensions))
        scores = np.concatenate([scores, scores.mean(axis=1, keepdims=True)], axis=1)
        found.append(Replies(one.language, one.scorer, one.supporter, np.array([row[0] for row in rows]), scores))
    return found


def length_effects(replies: Sequence[Replies], rubric: Rubric, names: Sequence[str] = ()) -> list[LengthEffect]:
    """A row a language, scorer and supporter, and one for all supporters of a scorer after them, on the dimensions of `names`
    (all and the average by default). Intervals: 95 % percentile bootstrap over dialogues, drawn within each supporter."""
    every = [*rubric.dimensions, AVERAGE]
    effects = []
    for (language, scorer), group in group_by(replies, lambda one: (one.language, one.scorer)).items():
        parts: dict[str, list[tuple[Estimate, Floats]]] = defaultdict(list)
        for one in group:
            for name in names or every:
                scores = one.scores[:, every.index(name)]
                read = ~np.isnan(scores)
                parts[name].append(_spearman(one.lengths[read], scores[read]))
            effects.append(LengthEffect(language, scorer, one.supporter, {name: part[-1][0] for name, part in parts.items()}))
        effects.append(LengthEffect(language, scorer, None, {name: _pooled(part) for name, part in parts.items()}))
    return effects


def _spearman(x: Floats, y: Floats) -> tuple[Estimate, Floats]:
    """The estimate and its bootstrap draws (NaN where a draw is undefined)."""
    n = len(x)
    place = np.arange(n)
    rho = coefficients(x, y, place, np.ones((1, n)))[0, 0] if n else np.nan
    draws = np.full(RESAMPLES, np.nan) if np.isnan(rho) else resampled(x, y, place, n)[:, 0]
    return estimate(rho, draws, n, n), draws


def _pooled(parts: Sequence[tuple[Estimate, Floats]]) -> Estimate:
    """The mean over supporters, weighted by n; supporters without a defined correlation are left out."""
    defined = [(part.mean, part.n, draws) for part, draws in parts if part.mean is not None]
    if not defined:
        return Estimate(None, None, None, 0)
    n = sum(number for _, number, _ in defined)
    table = np.array([draws for *_, draws in defined])
    counted = np.where(np.isnan(table), 0.0, np.array([[number] for _, number, _ in defined], dtype=np.float64))
    total = counted.sum(0)
    draws = np.divide((np.nan_to_num(table) * counted).sum(0), total, out=np.full(len(total), np.nan), where=total > 0)
    return estimate(sum(mean * number for mean, number, _ in defined) / n, draws, n, n)


def average_table(replies: Sequence[Replies], effects: Sequence[LengthEffect]) -> Table:
    """For the report: how long a supporter's replies are, beside its correlation of the average with their length."""
    several = len({one.scorer for one in replies}) > 1
    known = {(one.language, one.scorer, one.supporter): one for one in replies}
    rows: list[tuple[Cell, ...]] = []
    for effect in effects:
        judged = [effect.scorer.name] if several else []
        own = known.get((effect.language, effect.scorer, effect.supporter or ""))
        length = float(own.lengths.mean()) if own and len(own.lengths) else None
        rows.append((effect.supporter or ALL, effect.language, *judged, length, effect.cells[AVERAGE]))
    return Table(
        key="reply-length",
        title="Average against reply length",
        columns=("supporter", "language", *["judged by"] * several, "characters a reply", "Spearman's correlation"),
        rows=tuple(rows),
        notes=NOTES,
        section=BREAKDOWNS,
    )
