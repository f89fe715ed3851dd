"""Correlation of judges and metrics with human scores (ESC-Eval section 3.3 and appendix C.3; tables 3, 13, 14 and 15).

- A *sample* is what several systems were tried on: a role card, a profile, or a situation of a corpus. A *system* is a
  supporter. What is correlated are units: dialogues, or (sample, system) pairs, see `Pairing`.
- Sample level: the coefficient within each sample, across its units; then the mean over the samples in which it is defined.
  Dataset level: one coefficient over all units.
- Turns and repeats of a dialogue are averaged first, then annotators, then the dialogues of a unit.
- `average` is the mean of a side's dimensions, over the units that have them all: it is what tables 3, 13 and 15 correlate.
  Dimensions whose scales differ are on 0–100 of their scale first.
- Without dialogues a unit is a dialogue, known by its id alone: there are no samples with several systems in them.
- A coefficient is undefined (None, never 0) for fewer than two units and where either side is constant.
- Intervals: 95 %, percentile bootstrap over samples, which are drawn whole. An undefined resample is left out and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import RESAMPLES, Floats
from core.statistics.means import comparable, exact_mean
from core.tables import Cell, Estimate, Table
from evalsuite.statistics.coefficients import COEFFICIENTS, LEVELS, Coefficient, Level, figures
from evalsuite.statistics.judges import file_keys
from evalsuite.statistics.summary import AVERAGE, Scorer, Value, scorer_of, supporter_of

CORRELATION = "Correlation"  # heading of the report

PairBy = Literal["dialogue", "system"]
SampleBy = Literal["card", "source"]

K = TypeVar("K", bound=Hashable)


class Unit(NamedTuple):
    """What is correlated: one dialogue, or with `dialogue` "" all dialogues of a system on a sample."""

    sample: str
    system: str
    dialogue: str


Values = dict[str, dict[Unit, float]]  # dimension → unit → score


@dataclass(frozen=True)
class Pairing:
    """Which scores belong together.

    `by` dialogue: those on the same dialogue. `by` system: those on the same sample and system, whichever dialogues they are
    on; people talked to a supporter in other dialogues than a simulated seeker did. `sample` card: a dialogue's card, else
    its profile, else its source id, else the dialogue itself. `sample` source: its source id, which a dialogue that was
    simulated on a card shares with the text that the card was made of.
    """

    by: PairBy = "dialogue"
    sample: SampleBy = "card"

    def unit(self, dialogue: Dialogue, system: str | None = None) -> Unit:
        """The unit of a dialogue; `system` is who was judged where the dialogue itself does not say."""
        if self.sample == "source" and dialogue.source_id is None:
            raise UserError(f"--sample source: dialogue {dialogue.id} has no source_id")
        person = None if self.sample == "source" else dialogue.card_id or dialogue.profile_id
        sample = person or dialogue.source_id or dialogue.id
        return Unit(sample, system or supporter_of(dialogue), dialogue.id if self.by == "dialogue" else "")


@dataclass(frozen=True)
class Correlation:
    """One coefficient, −1 to 1, of a judge's dimension with a human one.

    `estimate.n` counts samples in which it is defined (sample level) or units (dataset level). `pairs` units with both scores
    lie in `samples` samples; `undefined` of these samples have no coefficient (sample level), and `left_out` resamples none.
    `unread` verdicts on the dimension had no figure to use (unreadable, or without an expected score).
    """

    language: Language
    scorer: Scorer
    rubric: str
    dimension: str
    gold_rubric: str
    gold_dimension: str
    level: Level
    coefficient: Coefficient
    estimate: Estimate
    pairs: int
    samples: int
    undefined: int
    left_out: int
    unread: int

    def row(self) -> dict[str, Any]:
        """For JSON: flat, the estimate as value, low, high and n."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("scorer", "estimate")}
        who = {"judge": self.scorer.judge, "method": self.scorer.method, "condition": dict(self.scorer.condition)}
        e = self.estimate
        return who | fields | {"value": e.mean, "low": e.low, "high": e.high, "n": e.n}


def correlations(
    judgements: Sequence[Judgement],
    gold: Sequence[HumanScore],
    dialogues: Sequence[Dialogue] | None,
    value: Value = "value",
    pairing: Pairing = Pairing(),
    levels: Sequence[Level] = LEVELS,
    left_alone: list[str] | None = None,
    rubrics: Mapping[str, Rubric] = {},
) -> list[Correlation]:
    """Every dimension of every judge with every dimension of every rubric that people scored, within a language.

    Judges (judge, method, condition, rubric) come in the order of `judgements`. Condition `supporter`, where a judgement has
    it, names the system. A judge that shares no unit with people in some language is left out there; `left_alone` gets a line
    on why. Without `dialogues`, the language is the record's own, and `pairing` must be by dialogue. `rubrics` by name tell
    the scales of dimensions where these differ.
    Raises `UserError` for scores of unknown dialogues, and where nothing is shared at all.
    """
    places = _Places(pairing, None if dialogues is None else {dialogue.id: dialogue for dialogue in dialogues})
    unread: Counter[tuple[object, ...]] = Counter()
    judged = _judged(judgements, places, value, unread)
    golden = _golden(gold, places)
    rows: list[Correlation] = []
    alone: list[str] = []
    for (language, scorer, rubric), side in judged.items():
        partners = {
            r: theirs
            for (gold_language, r), theirs in golden.items()
            if gold_language == language and _units(side) & _units(theirs)
        }
        if not partners:
            alone.append(_nothing_shared(scorer, language, side, golden, pairing))
        for gold_rubric, theirs in partners.items():
            for (dimension, scores), (wanted, gold_scores) in product(
                _with_average(side, rubrics.get(rubric)).items(), _with_average(theirs, rubrics.get(gold_rubric)).items()
            ):
                lost = unread[language, scorer, rubric, dimension]
                x, y, place = _arrays(scores, gold_scores)
                who = (language, scorer, rubric, dimension, gold_rubric, wanted)
                for level in levels:
                    for name, (estimate, undefined, left_out) in figures(x, y, place, level).items():
                        counts = (len(x), len(set(place.tolist())), undefined, left_out, lost)
                        rows.append(Correlation(*who, level, name, estimate, *counts))
    if alone and not rows:
        raise UserError(alone[0])
    if left_alone is not None:
        left_alone += alone
    return rows


def _arrays(scores: dict[Unit, float], wanted: dict[Unit, float]) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """The units that both sides have, sorted, so that no interval depends on the order of the files: see `figures`."""
    units = sorted(set(scores) & set(wanted))
    index = {sample: number for number, sample in enumerate(dict.fromkeys(unit.sample for unit in units))}
    x, y = (np.array([comparable(side[unit]) for unit in units], dtype=np.float64) for side in (scores, wanted))
    return x, y, np.array([index[unit.sample] for unit in units], dtype=np.intp)


# --- both sides -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Places:
    """Where a record belongs: the language and unit of what it is about."""

    pairing: Pairing
    known: Mapping[str, Dialogue] | None

    def of(self, record: Judgement | HumanScore) -> tuple[Language, Unit]:
        if isinstance(record, Judgement):
            what, system = f"judgement by {record.judge}", record.condition.get("supporter")
        else:
            what, system = f"score by {record.annotator}", None
        if self.known is None:
            if system is not None:
                raise UserError(
                    f"{what}: condition.supporter: which system people scored is in the dialogues: give --dialogues"
                )
            return record.language, Unit(record.dialogue_id, "", record.dialogue_id)
        if record.dialogue_id not in self.known:
            raise UserError(f"{what}: dialogue_id: no dialogue {record.dialogue_id!r} among those given with --dialogues")
        dialogue = self.known[record.dialogue_id]
        return dialogue.language, self.pairing.unit(dialogue, system)


def _judged(
    judgements: Sequence[Judgement], places: _Places, value: Value, unread: Counter[tuple[object, ...]]
) -> dict[tuple[Language, Scorer, str], Values]:
    sides: dict[tuple[Language, Scorer, str], Values] = {}
    units: list[tuple[tuple[tuple[Language, Scorer, str], str, str, Unit], float]] = []
    for judgement in judgements:
        language, unit = places.of(judgement)
        scorer = scorer_of(judgement)
        scorer = scorer._replace(condition=tuple(pair for pair in scorer.condition if pair[0] != "supporter"))
        side = (language, scorer, judgement.rubric)
        sides.setdefault(side, {}).setdefault(judgement.dimension, {})
        figure = judgement.value if value == "value" else judgement.expected
        if judgement.value is None or figure is None:
            unread[*side, judgement.dimension] += 1
            unread[*side, AVERAGE] += 1
        else:
            units.append(((side, judgement.dimension, judgement.dialogue_id, unit), figure))
    for (side, dimension, unit), mean in _means(((s, d, u), v) for (s, d, _, u), v in _means(units).items()).items():
        sides[side][dimension][unit] = mean
    return sides


def _golden(gold: Sequence[HumanScore], places: _Places) -> dict[tuple[Language, str], Values]:
    of = {s.dialogue_id: places.of(s) for s in gold}
    by_annotator = _means(((s.dialogue_id, s.rubric, s.dimension, s.annotator), s.value) for s in gold)
    by_dialogue = _means((key[:3], mean) for key, mean in by_annotator.items())
    sides: dict[tuple[Language, str], Values] = defaultdict(dict)
    by_unit = _means(((*of[d], r, dim), mean) for (d, r, dim), mean in by_dialogue.items())
    for (language, unit, rubric, dimension), mean in by_unit.items():
        sides[language, rubric].setdefault(dimension, {})[unit] = mean
    return sides


def _means(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    """The mean of each key's numbers."""
    groups: dict[K, list[float]] = defaultdict(list)
    for key, number in pairs:
        groups[key].append(number)
    return {key: exact_mean(values) for key, values in groups.items()}


def _with_average(side: Values, rubric: Rubric | None) -> Values:
    """The dimensions, and where there are several `average` (unless one has that name) over the units that have them all. There
    is none where the rubric has several scales and lacks one of the dimensions."""
    if len(side) < 2 or AVERAGE in side:
        return side
    units = set.intersection(*(set(values) for values in side.values()))
    scales = rubric.scales if rubric and not rubric.shared_scale else None
    if scales is None:
        return side | {AVERAGE: _means((unit, values[unit]) for values in side.values() for unit in units)}
    if not scales.keys() >= side.keys():
        return side
    scaled = ((unit, 100 * (values[unit] - scales[d].min) / scales[d].span) for d, values in side.items() for unit in units)
    return side | {AVERAGE: _means(scaled)}


def _units(side: Values) -> set[Unit]:
    return {unit for values in side.values() for unit in values}


def _nothing_shared(
    scorer: Scorer, language: str, judged: Values, golden: dict[tuple[Language, str], Values], pairing: Pairing
) -> str:
    if not (mine := _units(judged)):
        return f"judge {scorer.name}: none of its verdicts on {language} dialogues has a figure to use"
    theirs = {unit for (gold_language, _), side in golden.items() if gold_language == language for unit in _units(side)}
    if pairing.by == "system":
        samples = len({u.sample for u in mine} & {u.sample for u in theirs})
        systems = len({u.system for u in mine} & {u.system for u in theirs})
        return f"judge {scorer.name}: shares {samples} samples and {systems} systems with the human scores, but no pair of both"
    return (
        f"judge {scorer.name}: none of its {len(mine)} {language} dialogues has a human score; "
        "scores on other dialogues of the same samples and systems are paired by --pair-by system"
    )


# --- tables ---------------------------------------------------------------------------------------------------------------


def correlation_tables(correlations: Sequence[Correlation]) -> list[Table]:
    """Per language and human rubric: `correlation_sample_COEFFICIENT_…` (tables 3, 13 and 14 of the paper) and
    `correlation_dataset_…` (table 15). Rows are judges' dimensions, columns human ones; coefficients are × 100, as printed.

    Sample-level tables without any figure become a note below the dataset-level one, where there is one.
    """
    groups: dict[tuple[Language, str], list[Correlation]] = defaultdict(list)
    for row in correlations:
        groups[row.language, row.gold_rubric].append(row)
    tables: list[Table] = []
    names = file_keys(dict.fromkeys(row.gold_rubric for row in correlations))
    for (language, gold_rubric), group in groups.items():
        tail = f"{language}_{names[gold_rubric]}"
        title = f"with human scores on {gold_rubric}, {language}"
        overall = [row for row in group if row.level == "dataset"]
        within = [row for row in group if row.level == "sample"]
        absent = within and not any(row.estimate.n for row in within)
        for name in COEFFICIENTS if not (absent and overall) else ():
            if part := [row for row in within if row.coefficient == name]:
                heading = f"Sample-level correlation ({name}) {title}"
                tables.append(_table(f"correlation_sample_{name}_{tail}", heading, part, _sample_notes(part)))
        if overall:
            notes = ["One coefficient over all units; n: dialogues, or pairs of sample and system."]
            notes += ["Sample level: undefined, no sample has two systems with different scores."] if absent else []
            tables.append(_table(f"correlation_dataset_{tail}", f"Dataset-level correlation {title}", overall, notes))
    return tables


def _table(key: str, title: str, part: Sequence[Correlation], notes: list[str]) -> Table:
    names: dict[str, Callable[[Correlation], str]] = {"judge": lambda each: each.scorer.name}
    if len({each.rubric for each in part}) > 1:
        names["rubric"] = lambda each: each.rubric
    names["dimension"] = lambda each: each.dimension
    if part[0].level == "dataset":
        names["coefficient"] = lambda each: each.coefficient
    columns = list(dict.fromkeys(each.gold_dimension for each in part))
    cells: dict[tuple[str, ...], dict[str, Estimate]] = defaultdict(dict)
    for each in part:
        mean, low, high = (None if f is None else 100 * f for f in (each.estimate.mean, each.estimate.low, each.estimate.high))
        row = tuple(name(each) for name in names.values())
        cells[row][each.gold_dimension] = Estimate(mean, low, high, each.estimate.n)
    rows: list[tuple[Cell, ...]] = [(*row, *(figures[column] for column in columns)) for row, figures in cells.items()]
    return Table(key, title, (*names, *columns), tuple(rows), (*notes, *_notes(part)), CORRELATION)


def _sample_notes(part: Sequence[Correlation]) -> list[str]:
    notes = ["The coefficient within each sample across its systems, averaged; n: samples in which it is defined."]
    if worst := max(row.undefined for row in part):
        samples = max(row.samples for row in part)
        notes.append(f"In up to {worst} of {samples} samples it is undefined: fewer than two systems, or equal scores.")
    return notes


def _notes(part: Sequence[Correlation]) -> list[str]:
    notes = [
        "× 100. Rows are the judge's dimensions, columns people's. "
        f"Intervals: 95 %, percentile bootstrap over samples, {RESAMPLES:,} resamples."
    ]
    if any(AVERAGE in (row.dimension, row.gold_dimension) for row in part):
        several = "on 0–100 where their rubric has several scales"
        notes.append(f"{AVERAGE}: the mean of a side's dimensions ({several}), where all of them were scored.")
    if worst := max(row.left_out for row in part):
        notes.append(f"Undefined resamples are left out: up to {worst:,} for one figure.")
    if lost := max(row.unread for row in part):
        notes.append(f"Verdicts without a score are left out: up to {lost:,} for one row.")
    return notes
