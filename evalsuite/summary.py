"""Statistics of a run, from its records alone: leaderboards with intervals, terminations, costs, score distributions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from data_prep.records import Dialogue, Judgement, Language, Termination, Usage
from data_prep.rubrics import Rubric
from data_prep.scores.bootstrap import RESAMPLES, SEED, Floats, interval, resampled_means
from data_prep.tables import Cell, Estimate, Table
from serve.errors import UserError

# Headings of the report; its charts go under the heading of the tables they draw.
SCORES = "Scores"
AGREEMENT = "Agreement"
TERMINATIONS = "Terminations"
COSTS = "Costs"

AVERAGE = "average"

Value = Literal["value", "expected"]


class Scorer(NamedTuple):
    """What gave a verdict: judge, method and experimental condition. Verdicts of different scorers are never mixed."""

    judge: str
    method: str
    condition: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """For people: `judge · method · key=value`."""
        return " · ".join([self.judge, self.method, *(f"{key}={value}" for key, value in self.condition)])


@dataclass(frozen=True)
class Score:
    """One cell of a leaderboard: a supporter on a dimension (or `average`), 0–100, as one scorer sees it.

    `asked` counts verdicts and `read` the readable ones among them, repeats and turns included.
    """

    language: Language
    scorer: Scorer
    supporter: str
    dimension: str
    estimate: Estimate
    asked: int
    read: int


def scorer_of(judgement: Judgement) -> Scorer:
    """The scorer a judgement came from. Why a verdict is missing (`condition.failure`) does not make it another scorer's."""
    condition = sorted((key, value) for key, value in judgement.condition.items() if key != "failure")
    return Scorer(judgement.judge, judgement.method, tuple(condition))


def supporter_of(dialogue: Dialogue) -> str:
    """The supporter's name; an imported corpus, which names none, counts as one supporter under the name of its source."""
    return dialogue.supporter or dialogue.source


def languages_of(records: Iterable[Dialogue | Judgement]) -> list[Language]:
    """The languages that occur, English first."""
    found = {record.language for record in records}
    return [language for language in get_args(Language) if language in found]


def checked(judgements: Sequence[Judgement], rubric: Rubric) -> Iterator[Judgement]:
    """The judgements on this rubric (those on other rubrics are passed over).

    Raises `UserError` for a dimension that the rubric lacks or a value off its scale: either would distort every mean.
    """
    low, high = rubric.scale.min, rubric.scale.max
    for judgement in judgements:
        if judgement.rubric != rubric.name:
            continue
        where = f"judgement of dialogue {judgement.dialogue_id} by {judgement.judge}"
        if judgement.dimension not in rubric.dimensions:
            raise UserError(f"{where}: dimension: {judgement.dimension!r} is not in rubric {rubric.name}")
        for field, figure in (("value", judgement.value), ("expected", judgement.expected)):
            if figure is not None and not low <= figure <= high:
                raise UserError(f"{where}: {field}: {figure:g} is off the scale {low} to {high} of rubric {rubric.name}")
        yield judgement


def estimates(values: Floats, seed: int = SEED) -> list[Estimate]:
    """Mean and 95 % bootstrap percentile interval of each column and of the average of all columns.

    `values` is dialogues × dimensions, NaN where there is no readable verdict. Dialogues (rows) are resampled whole, so that
    the interval of the average keeps the correlation between dimensions. A column without values has mean None, and so has
    the average then. With n = 1 there is no interval (low and high None); equal values give an interval without width.
    """
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    counts = present.sum(axis=0)
    # A resample may miss every readable verdict of a thin column: its mean is NaN there and nanpercentile leaves it out.
    draws = _with_average(resampled_means(filled, present.astype(np.float64), seed))
    means = _with_average(np.where(counts > 0, filled.sum(axis=0) / np.maximum(counts, 1), np.nan)[None, :])[0]
    result = []
    for column, n in enumerate([*counts.tolist(), int(present.any(axis=1).sum())]):
        if np.isnan(means[column]):
            result.append(Estimate(None, None, None, n))
        elif n == 1:
            result.append(Estimate(float(means[column]), None, None, n))
        else:
            result.append(Estimate(float(means[column]), *interval(draws[:, column]), n))
    return result


def _with_average(means: Floats) -> Floats:
    """Append the unweighted mean of the columns; NaN where one of them is, since averages over fewer do not compare."""
    return np.concatenate([means, means.mean(axis=1, keepdims=True)], axis=1)


def scores(
    dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric, value: Value = "value"
) -> list[Score]:
    """Every leaderboard cell: language × scorer × supporter × dimension, and `average` after the dimensions.

    A dialogue's repeats and turns are averaged first, so that each dialogue counts once. Supporters come by falling average.
    Raises `UserError` for a judgement of a dialogue that is not among `dialogues`.
    """
    known = {dialogue.id: dialogue for dialogue in dialogues}
    columns = {name: index for index, name in enumerate(rubric.dimensions)}
    groups: dict[tuple[Language, Scorer, str], list[Judgement]] = defaultdict(list)
    for judgement in checked(judgements, rubric):
        dialogue = known.get(judgement.dialogue_id)
        if dialogue is None:
            raise UserError(f"judgement by {judgement.judge}: dialogue_id: no dialogue {judgement.dialogue_id!r} in this run")
        groups[dialogue.language, scorer_of(judgement), supporter_of(dialogue)].append(judgement)
    low, span = rubric.scale.min, rubric.scale.max - rubric.scale.min
    blocks: list[list[Score]] = []
    for (language, scorer, supporter), members in groups.items():
        # Sorted, so that an interval does not depend on the order in which verdicts came in.
        rows = {name: index for index, name in enumerate(sorted({j.dialogue_id for j in members}))}
        sums, counts = np.zeros((2, len(rows), len(columns)))
        asked: Counter[str] = Counter()
        read: Counter[str] = Counter()
        for judgement in members:
            figure = judgement.value if value == "value" else judgement.expected
            asked[judgement.dimension] += 1
            read[judgement.dimension] += judgement.value is not None
            if judgement.value is not None and figure is not None:
                place = rows[judgement.dialogue_id], columns[judgement.dimension]
                sums[place] += figure
                counts[place] += 1
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        cells = estimates((means - low) * 100 / span)
        asked[AVERAGE], read[AVERAGE] = asked.total(), read.total()
        blocks.append(
            [
                Score(language, scorer, supporter, dimension, cell, asked[dimension], read[dimension])
                for dimension, cell in zip([*columns, AVERAGE], cells, strict=True)
            ]
        )
    order = list(get_args(Language))
    blocks.sort(key=lambda b: (order.index(b[0].language), b[0].scorer, -(b[-1].estimate.mean or 0), b[0].supporter))
    return [score for block in blocks for score in block]


def leaderboard(
    dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric, value: Value = "value"
) -> list[Table]:
    """One table a language: supporters × dimensions on 0–100 with 95 % intervals and n, their average, and the parse rate.

    A score s counts (s − min) / (max − min) × 100: on 0–4 the mean × 25 of ESC-Eval's table 2. `value` says whether the
    verdicts themselves or their expectations (from token probabilities) are averaged. Unreadable verdicts are in no mean
    and lower the parse rate. Several judges, methods or conditions are separate rows. See `estimates` for small n.
    """
    cells = scores(dialogues, judgements, rubric, value)
    scorers = sorted({cell.scorer for cell in cells})
    labels = [dimension_label(rubric, dimension) for dimension in rubric.dimensions]
    heads = ("supporter", "judged by") if len(scorers) > 1 else ("supporter",)
    width = len(labels) + 1
    tables = []
    for language in languages_of(dialogues):
        own = [cell for cell in cells if cell.language == language]
        if not own:
            continue
        rows: list[tuple[Cell, ...]] = []
        for start in range(0, len(own), width):
            block = own[start : start + width]
            names = (block[0].supporter, block[0].scorer.name)[: len(heads)]
            rows.append((*names, *(cell.estimate for cell in block), 100 * block[-1].read / block[-1].asked))
        tables.append(
            Table(
                key=f"leaderboard-{language}",
                title=f"Leaderboard, {language}" + (" (expected scores)" if value == "expected" else ""),
                columns=(*heads, *labels, AVERAGE, "parse rate %"),
                rows=tuple(rows),
                notes=tuple(_leaderboard_notes(own, rubric, scorers, value)),
                section=SCORES,
            )
        )
    return tables


def _leaderboard_notes(own: list[Score], rubric: Rubric, scorers: list[Scorer], value: Value) -> Iterator[str]:
    scale = rubric.scale
    if len(scorers) == 1:
        yield f"Judged by {scorers[0].name} on rubric {rubric.name}."
    yield (
        f"Mean score on 0–100 ({scale.min} → 0, {scale.max} → 100), [95 % bootstrap percentile interval over dialogues, "
        f"{RESAMPLES:,} resamples], n = dialogues with a readable verdict."
    )
    yield f"{AVERAGE}: unweighted mean of the dimensions; its n counts dialogues with any readable verdict."
    if any(cell.estimate.n == 1 for cell in own):
        yield "No interval is given at n = 1. Equal scores give an interval without width."
    if any(cell.read < cell.asked for cell in own):
        yield "Unreadable verdicts are in no mean; they lower the parse rate."
    if value == "expected":
        yield "Expected scores are means of the judge's token probabilities; verdicts without probabilities are left out."


def dimension_label(rubric: Rubric, dimension: str) -> str:
    """A dimension's English label, or its key where the rubric has no English."""
    return rubric.dimensions[dimension].label.get("en", dimension)


def terminations(dialogues: Sequence[Dialogue]) -> Table:
    """How many dialogues of each supporter ended for which reason, by whose reply, and how many either side ended.

    Reasons that can be either side's doing have a column for each side. Reasons that never occurred are named in a note.
    """
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for dialogue in dialogues:
        row = counts[supporter_of(dialogue), dialogue.language]
        reason = dialogue.termination or "not recorded"
        either = reason not in ("max_turns", "seeker_ended", "not recorded")
        row[f"{reason} ({dialogue.ended_by})" if either else reason] += 1
        row[f"ended by {dialogue.ended_by}"] += dialogue.ended_by is not None
    known = [*get_args(Termination), "not recorded"]
    occurred = {name for row in counts.values() for name in row if not name.startswith("ended by")}
    reasons = sorted(occurred, key=lambda name: (known.index(name.split(" (")[0]), name))
    columns = [*reasons, "ended by seeker", "ended by supporter"]
    absent = [reason for reason in get_args(Termination) if not any(name.split(" (")[0] == reason for name in reasons)]
    return Table(
        key="terminations",
        title="How dialogues ended",
        columns=("supporter", "language", "dialogues", *columns),
        rows=tuple(
            (supporter, language, sum(row[name] for name in reasons), *(row[name] for name in columns))
            for (supporter, language), row in sorted(counts.items())
        ),
        notes=(f"Did not occur: {', '.join(absent)}.",) if absent else (),
        section=TERMINATIONS,
    )


def costs(dialogues: Sequence[Dialogue], judgement_usage: Mapping[str, Usage], timing: Mapping[str, float]) -> Table:
    """Calls and tokens of the dialogues with each supporter (both sides) and of each judge, their total, and seconds.

    `judgement_usage` maps judge → usage. `timing` maps stage → seconds: a stage named `total` belongs to the total, every
    other stage is a row of its own, since stages overlap and need not add up.
    """
    usages: dict[str, list[Usage]] = defaultdict(list)
    for dialogue in dialogues:
        usages[f"dialogues with {supporter_of(dialogue)}"] += [dialogue.usage] if dialogue.usage else []
    parts = {name: usages[name] for name in sorted(usages)}
    parts |= {f"judge {name}": [usage] for name, usage in sorted(judgement_usage.items())}
    parts["total"] = [usage for own in parts.values() for usage in own]
    fields = ("calls", "prompt_tokens", "completion_tokens", "reasoning_tokens")
    rows: list[tuple[Cell, ...]] = []
    for name, own in parts.items():
        sums = [sum(getattr(usage, field) for usage in own) if own else None for field in fields]
        rows.append((name, *sums, timing.get("total") if name == "total" else None))
    rows += [(f"stage: {name}", None, None, None, None, seconds) for name, seconds in timing.items() if name != "total"]
    return Table(
        key="costs",
        title="Calls, tokens and time",
        columns=("item", *(field.replace("_", " ") for field in fields), "seconds"),
        rows=tuple(rows),
        notes=("Tokens as the servers counted them; reasoning tokens are part of the completion tokens.",),
        section=COSTS,
    )


def distributions(judgements: Sequence[Judgement], rubric: Rubric) -> Table:
    """How often each score was given, per language, scorer and dimension, with the unreadable verdicts in their own column.

    Verdicts between two scores (ensembles give such) count as the nearest one, halves upwards.
    """
    counts: dict[tuple[Language, Scorer], dict[str, Counter[int | None]]] = {}
    for judgement in checked(judgements, rubric):
        group = counts.setdefault((judgement.language, scorer_of(judgement)), {name: Counter() for name in rubric.dimensions})
        group[judgement.dimension][None if judgement.value is None else int(np.floor(judgement.value + 0.5))] += 1
    several = len({scorer for _, scorer in counts}) > 1
    rows: list[tuple[Cell, ...]] = []
    for language, scorer in sorted(counts):
        for dimension, row in counts[language, scorer].items():
            names = (language, scorer.name) if several else (language,)
            figures = (*(row[score] for score in rubric.scale.scores), row[None], row.total())
            rows.append((*names, dimension_label(rubric, dimension), *figures))
    return Table(
        key="distributions",
        title="Scores given",
        columns=(
            *(("language", "judged by") if several else ("language",)),
            "dimension",
            *(str(score) for score in rubric.scale.scores),
            "unreadable",
            "verdicts",
        ),
        rows=tuple(rows),
        section=SCORES,
    )
