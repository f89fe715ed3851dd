"""How scores change in the course of a dialogue (EmoHarbor figures 7, 9 and 10): verdicts on single turns, by round.

Round k is the supporter's k-th reply. A round's mean is over the dialogues that reached it, so a curve of means mixes changes
within dialogues with the selection of dialogues that are left. So there is also the slope within dialogues: the least-squares
slope of a dialogue's own scores, averaged over the dialogues with verdicts on two rounds or more.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import SMOOTHED, Floats, scale_levels
from core.tables import Cell, Estimate, Table
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.contestants import contestants_of
from evalsuite.statistics.summary import AVERAGE, Scorer, checked, dimension_label, languages_of, supporter_of

TRENDS = "Scores by round"  # heading of the report


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


def trends(dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric) -> list[Trend]:
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


# --- tables ----------------------------------------------------------------------------------------------------------------


def tables(trends: Sequence[Trend], rubric: Rubric) -> Iterator[Table]:
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
                slopes.append(labels | {"points per round": slope.estimate} | paired.by_column(slope))
                del slopes[-1][paired.COLUMNS[0]]
        note = f"Mean on 0–100, [{SMOOTHED} over cards], n = dialogues that reached the round and have a readable verdict."
        yield Table.of(f"trends-{language}", f"Scores by round, {language}", means, [note], TRENDS)
        note = (
            f"Mean over cards of the least-squares slope of a dialogue's own scores (0–100) by round, [{SMOOTHED}], n = cards "
            f"with a dialogue that was judged in two rounds or more. Against a slope of 0, {paired.HOLDS}."
        )
        yield Table.of(f"slopes-{language}", f"Change of scores within dialogues, {language}", slopes, [note], TRENDS)
