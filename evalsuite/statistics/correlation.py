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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import RESAMPLES, Floats
from core.statistics.means import comparable, means_by
from core.tables import DASH, Cell, Estimate, Table, file_keys
from evalsuite.statistics.coefficients import COEFFICIENTS, LEVELS, Coefficient, Level, figures
from evalsuite.statistics.summary import AVERAGE, Scorer, Value, scorer_of, supporter_of

PairBy = Literal["dialogue", "system"]
SampleBy = Literal["card", "source"]


class Unit(NamedTuple):
    """What is correlated: one dialogue, or with `dialogue` "" all dialogues of a system on a sample."""

    sample: str
    system: str
    dialogue: str


Names = dict[str, Callable[["Correlation"], str]]  # heading → what of a figure
Values = dict[str, dict[Unit, float]]  # dimension → unit → score
Side = tuple[Language, Scorer, str]  # a judge on one rubric in one language


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
        card = None if self.sample == "source" else dialogue.card_id or dialogue.profile_id
        sample = card or dialogue.source_id or dialogue.id
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
        return self.scorer.record() | fields | self.estimate.record()


def correlations(
    judgements: Sequence[Judgement],
    gold: Sequence[HumanScore],
    dialogues: Sequence[Dialogue] | None,
    value: Value = "value",
    pairing: Pairing = Pairing(),
    levels: Sequence[Level] = LEVELS,
    rubrics: Mapping[str, Rubric] = {},
) -> tuple[list[Correlation], list[str]]:
    """Every dimension of every judge with every dimension of every rubric that people scored, within a language; and what
    is left out: judges, and why, and how many human scores without a verdict.

    Judges (judge, method, condition, rubric) come in the order of `judgements`. Condition `supporter`, where a judgement has
    it, names the system. A judge that shares no unit with people in some language is left out there. Without `dialogues`, the
    language is the record's own, and `pairing` must be by dialogue. `rubrics` by name tell the scales of dimensions where these
    differ.
    Raises `UserError` for scores of unknown dialogues, and where nothing is shared at all.
    """
    places = _Places(pairing, None if dialogues is None else {dialogue.id: dialogue for dialogue in dialogues})
    judged, unread = _judged(judgements, places, value)
    golden = _golden(gold, places)
    result: list[Correlation] = []
    alone: list[str] = []
    for (language, scorer, rubric), verdicts in judged.items():
        of_language = {gold_rubric: side for (spoken, gold_rubric), side in golden.items() if spoken == language}
        partners = {gold_rubric: side for gold_rubric, side in of_language.items() if _units(verdicts) & _units(side)}
        if not partners:
            alone.append(_nothing_shared(scorer, language, verdicts, of_language, pairing))
        for gold_rubric, side in partners.items():
            for (dimension, scores), (gold_dimension, gold_scores) in product(
                _with_average(verdicts, rubrics.get(rubric)).items(), _with_average(side, rubrics.get(gold_rubric)).items()
            ):
                lost = unread[language, scorer, rubric, dimension]
                x, y, place = _arrays(scores, gold_scores)
                who = (language, scorer, rubric, dimension, gold_rubric, gold_dimension)
                for level in levels:
                    for name, (estimate, undefined, left_out) in figures(x, y, place, level).items():
                        counts = (len(x), len(set(place.tolist())), undefined, left_out, lost)
                        result.append(Correlation(*who, level, name, estimate, *counts))
    if alone and not result:
        raise UserError(alone[0])
    with_verdict = {(language, unit) for (language, *_), verdicts in judged.items() for unit in _units(verdicts)}
    if partnerless := sum(places.of(score) not in with_verdict for score in gold):
        alone.append(f"{partnerless} of {len(gold)} gold scores, which no judge has a verdict for")
    return result, alone


def _arrays(scores: dict[Unit, float], wanted: dict[Unit, float]) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """The units that both sides have, sorted, so that no interval depends on the order of the files: see `figures`."""
    units = sorted(set(scores) & set(wanted))
    x, y = (np.array([comparable(side[unit]) for unit in units], dtype=np.float64) for side in (scores, wanted))
    return x, y, np.unique([unit.sample for unit in units], return_inverse=True)[1]


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
        if self.known is not None:
            dialogue = known_dialogue(self.known, record.dialogue_id, what)
            return dialogue.language, self.pairing.unit(dialogue, system)
        if system is not None:
            raise UserError(f"{what}: condition.supporter: which system people scored is in the dialogues: give --dialogues")
        return record.language, Unit(record.dialogue_id, "", record.dialogue_id)


def known_dialogue(known: Mapping[str, Dialogue], id: str, what: str) -> Dialogue:
    """The dialogue that a record is about; raises `UserError`, which names the record as `what`, for an unknown one."""
    if id not in known:
        raise UserError(f"{what}: dialogue_id: no dialogue {id!r} among those given with --dialogues")
    return known[id]


def _judged(
    judgements: Sequence[Judgement], places: _Places, value: Value
) -> tuple[dict[Side, Values], Counter[tuple[object, ...]]]:
    """Every judge's scores, and how many verdicts of a side and dimension have no figure to use."""
    sides: dict[Side, Values] = {}
    unread: Counter[tuple[object, ...]] = Counter()
    numbers: list[tuple[tuple[Side, str, str, Unit], float]] = []
    for judgement in judgements:
        language, unit = places.of(judgement)
        side = (language, scorer_of(judgement).without("supporter"), judgement.rubric)
        sides.setdefault(side, {}).setdefault(judgement.dimension, {})
        figure = judgement.value if value == "value" else judgement.expected
        if judgement.value is None or figure is None:
            unread[*side, judgement.dimension] += 1
            unread[*side, AVERAGE] += 1
        else:
            numbers.append(((side, judgement.dimension, judgement.dialogue_id, unit), figure))
    for (side, dimension, unit), mean in means_by(((s, d, u), v) for (s, d, _, u), v in means_by(numbers).items()).items():
        sides[side][dimension][unit] = mean
    return sides, unread


def _golden(gold: Sequence[HumanScore], places: _Places) -> dict[tuple[Language, str], Values]:
    of = {s.dialogue_id: places.of(s) for s in gold}
    whole = {(s.dialogue_id, s.rubric, s.dimension, s.annotator) for s in gold if s.turn is None}  # stands above mid-talk ones
    gold = [s for s in gold if s.turn is None or (s.dialogue_id, s.rubric, s.dimension, s.annotator) not in whole]
    by_annotator = means_by(((s.dialogue_id, s.rubric, s.dimension, s.annotator), s.value) for s in gold)
    by_dialogue = means_by((key[:3], mean) for key, mean in by_annotator.items())
    sides: dict[tuple[Language, str], Values] = defaultdict(dict)
    by_unit = means_by(((*of[d], r, dim), mean) for (d, r, dim), mean in by_dialogue.items())
    for (language, unit, rubric, dimension), mean in by_unit.items():
        sides[language, rubric].setdefault(dimension, {})[unit] = mean
    return sides


def _with_average(side: Values, rubric: Rubric | None) -> Values:
    """The dimensions, and where there are several `average` (unless one has that name) over the units that have them all. There
    is none where the dimensions are not alike and the rubric lacks one of them."""
    if len(side) < 2 or AVERAGE in side:
        return side
    units = set.intersection(*(set(scores) for scores in side.values()))
    if rubric is None or rubric.alike:
        return side | {AVERAGE: means_by((unit, scores[unit]) for scores in side.values() for unit in units)}
    if not rubric.dimensions.keys() >= side.keys():
        return side
    points = {unit: {d: rubric.normalised(d, scores[unit]) for d, scores in side.items()} for unit in units}
    averages = {unit: average for unit, of in points.items() if (average := rubric.average(of)) is not None}
    return side | ({AVERAGE: averages} if averages else {})


def _units(side: Values) -> set[Unit]:
    return {unit for scores in side.values() for unit in scores}


def _nothing_shared(scorer: Scorer, language: str, verdicts: Values, golden: Mapping[str, Values], pairing: Pairing) -> str:
    if not (mine := _units(verdicts)):
        return f"judge {scorer.name}: none of its verdicts on {language} dialogues has a figure to use"
    theirs = {unit for side in golden.values() for unit in _units(side)}
    if pairing.by == "system":
        samples = len({u.sample for u in mine} & {u.sample for u in theirs})
        systems = len({u.system for u in mine} & {u.system for u in theirs})
        return f"judge {scorer.name}: shares {samples} samples and {systems} systems with the human scores, but no pair of both"
    return (
        f"judge {scorer.name}: none of its {len(mine)} {language} dialogues has a human score; "
        "scores on other dialogues of the same samples and systems are paired by --correlate system"
    )


# --- as tables (ESC-Eval, tables 3 and 13 to 15; EmoHarbor, table 1) --------------------------------------------------------


CORRELATION = "Correlation"  # heading of the report
STRATEGY = "strategy"  # key of a judgement's condition: what the judge was shown
INTERVALS = f"Intervals: 95 %, percentile bootstrap over samples, {RESAMPLES:,} resamples."


def correlation_tables(correlations: Sequence[Correlation]) -> Iterator[Table]:
    """Per language and human rubric: `correlation_sample_COEFFICIENT_…` (tables 3, 13 and 14 of the paper) and
    `correlation_dataset_…` (table 15). Rows are judges' dimensions, columns human ones; coefficients are × 100, as printed.

    Sample-level tables without any figure become a note below the dataset-level one, where there is one.
    """
    keys = file_keys(dict.fromkeys(one.gold_rubric for one in correlations))
    for (language, gold_rubric), of_rubric in group_by(correlations, lambda one: (one.language, one.gold_rubric)).items():
        tail = f"{language}_{keys[gold_rubric]}"
        title = f"with human scores on {gold_rubric}, {language}"
        overall = [one for one in of_rubric if one.level == "dataset"]
        within = [one for one in of_rubric if one.level == "sample"]
        absent = within and not any(one.estimate.n for one in within)
        for name in COEFFICIENTS if not (absent and overall) else ():
            if part := [one for one in within if one.coefficient == name]:
                heading = f"Sample-level correlation ({name}) {title}"
                notes = ["The coefficient within each sample across its systems, averaged; n: samples in which it is defined."]
                if worst := max(one.undefined for one in part):
                    where = f"In up to {worst} of {max(one.samples for one in part)} samples"
                    notes.append(f"{where} it is undefined: fewer than two systems, or equal scores.")
                yield _table(f"correlation_sample_{name}_{tail}", heading, part, notes)
        if overall:
            notes = ["One coefficient over all units; n: dialogues, or pairs of sample and system."]
            notes += ["Sample level: undefined, no sample has two systems with different scores."] if absent else []
            yield _table(f"correlation_dataset_{tail}", f"Dataset-level correlation {title}", overall, notes)


def alignment_tables(correlations: Sequence[Correlation]) -> Iterator[Table]:
    """How close each prompting strategy of a judge comes to people (EmoHarbor section 4.1.2): one table for every language and
    rubric of people's, judges and strategies × dimensions, Pearson × 100 over all dialogues at once.

    Only judges that score the dimensions of that rubric are in it (none: no table). A judge without strategies has a dash.
    """
    same = [one for one in correlations if one.dimension == one.gold_dimension]
    pearson = [one for one in same if (one.level, one.coefficient) == ("dataset", "pearson")]
    for (language, rubric), part in group_by(pearson, lambda one: (one.language, one.gold_rubric)).items():
        names: Names = {
            "judge": lambda figure: figure.scorer.without(STRATEGY).name,
            STRATEGY: lambda figure: dict(figure.scorer.condition).get(STRATEGY, DASH),
        }
        note = f"Each dimension with people's scores of the same one on rubric {rubric}, over all dialogues at once."
        title = f"Judges against people, Pearson × 100, {language}"
        notes = [f"{note} {INTERVALS} A dash: undefined."]
        yield Table.of(f"alignment_{language}_{rubric}", title, _crossed(part, names), notes, CORRELATION)


def _table(key: str, title: str, part: Sequence[Correlation], notes: Iterable[str]) -> Table:
    names: Names = {"judge": lambda figure: figure.scorer.name}
    if len({figure.rubric for figure in part}) > 1:
        names["rubric"] = lambda figure: figure.rubric
    names["dimension"] = lambda figure: figure.dimension
    if part[0].level == "dataset":
        names["coefficient"] = lambda figure: figure.coefficient
    return Table.of(key, title, _crossed(part, names), (*notes, *_notes(part)), CORRELATION)


def _crossed(part: Sequence[Correlation], names: Names) -> list[dict[str, Cell]]:
    """A row for each judge, rubric and `names`, people's dimensions as columns: coefficients × 100."""
    heads = list(dict.fromkeys(figure.gold_dimension for figure in part))
    rows: dict[tuple[object, ...], dict[str, Cell]] = {}
    for figure in part:
        who = {head: name(figure) for head, name in names.items()}
        row = rows.setdefault((figure.scorer, figure.rubric, *who.values()), {**who, **dict.fromkeys(heads)})
        row[figure.gold_dimension] = figure.estimate.times(100)
    return list(rows.values())


def _notes(part: Sequence[Correlation]) -> Iterator[str]:
    yield f"× 100. Rows are the judge's dimensions, columns people's. {INTERVALS}"
    if any(AVERAGE in (one.dimension, one.gold_dimension) for one in part):
        several = "on 0–100 where their rubric has several scales"
        yield f"{AVERAGE}: the mean of a side's dimensions ({several}), where all of them were scored."
    if worst := max(one.left_out for one in part):
        yield f"Undefined resamples are left out: up to {worst:,} for one figure."
    if lost := max(one.unread for one in part):
        yield f"Verdicts without a score are left out: up to {lost:,} for one row."
