"""Correlation of judges and metrics with human scores (ESC-Eval section 3.3 and appendix C.3; tables 3, 13, 14 and 15).

- A *sample* is what several systems were tried on: a role card, a profile, or a situation from a corpus. A *system* is a
  supporter. The correlation runs over units: dialogues, or (sample, system) pairs, see `Pairing`.
- Sample level: the coefficient within each sample, across its units; then the mean over the samples in which it is defined.
  Dataset level: one coefficient over all units.
- Turns and repeats of a dialogue are averaged first, then annotators, then the dialogues of a unit.
- `average` is the mean of a side's dimensions over the units that have them all, as in tables 3, 13 and 15. Dimensions on
  different scales are first mapped to 0–100.
- Without dialogues a unit is a dialogue id, and no sample has several systems.
- A coefficient is undefined (None, never 0) for fewer than two units and if either side is constant.
- Intervals: 95 %, percentile bootstrap over samples, which are drawn whole. Undefined resamples are left out and counted.
- Coefficients are computed for many selections of whole samples at once (a single one, all once, a resample): calling scipy for
  each of a hundred thousand would take a millisecond.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError
from core.grouping import comparable, exact_mean, group_by, means_by
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.statistics.accuracy import ratio
from core.statistics.bootstrap import RESAMPLES, SEED, Floats, estimate, resampled_means
from core.tables import DASH, Cell, Estimate, Table, file_keys
from evalsuite.statistics.summary import AVERAGE, Scorer, scorer_of, supporter_of

CORRELATION = "Correlation"  # heading of the report
STRATEGY = "strategy"  # key of a judgement's condition: the prompting strategy
INTERVALS = f"Intervals: 95 %, percentile bootstrap over samples, {RESAMPLES:,} resamples."
Level = Literal["sample", "dataset"]
LEVELS: tuple[Level, ...] = get_args(Level)
Coefficient = Literal["spearman", "pearson", "kendall"]
COEFFICIENTS: tuple[Coefficient, ...] = get_args(Coefficient)
_BATCH = 200  # selections at a time: bounds memory at 8,500 pairs
_FEW = 1000  # distinct pairs up to which Kendall's tau for all selections at once is faster than scipy
PairBy = Literal["dialogue", "system"]
SampleBy = Literal["card", "source"]


class Unit(NamedTuple):
    """What is correlated: a dialogue, or with `dialogue` "" all dialogues of a system on a sample."""

    sample: str
    system: str
    dialogue: str


Values = dict[str, dict[Unit, float]]  # dimension → unit → score
PlaceOf = Callable[[Judgement | HumanScore], tuple[Language, Unit]]
Side = tuple[Language, Scorer, str]  # a judge on one rubric in one language


@dataclass(frozen=True)
class Pairing:
    """Which scores are paired: `by` dialogue those on the same dialogue, `by` system those on the same sample and system
    (people and a simulated seeker talk to a supporter in separate dialogues). `sample` card is a dialogue's card, else its
    profile, its source id or the dialogue itself; `sample` source its source id, which is also that of a card made from the
    same text."""

    by: PairBy = "dialogue"
    sample: SampleBy = "card"

    def unit(self, dialogue: Dialogue, system: str | None = None) -> Unit:
        """The unit of a dialogue; `system` is the judged supporter if the dialogue itself does not name it."""
        if self.sample == "source" and dialogue.source_id is None:
            raise UserError(f"--sample source: dialogue {dialogue.id} has no source_id")
        card = None if self.sample == "source" else dialogue.card_id or dialogue.profile_id
        sample = card or dialogue.source_id or dialogue.id
        return Unit(sample, system or supporter_of(dialogue), dialogue.id if self.by == "dialogue" else "")


@dataclass(frozen=True)
class Correlation:
    """One coefficient, −1 to 1, of a judge's dimension with a human one.

    `estimate.n` counts the samples in which it is defined (sample level) or units (dataset level), `pairs` the units with both
    scores, `samples` their samples, `undefined` samples and `left_out` resamples without a coefficient, and `unread` the
    verdicts on the dimension without a usable score."""

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


def correlations(
    judgements: Sequence[Judgement],
    gold: Sequence[HumanScore],
    dialogues: Sequence[Dialogue] | None,
    pairing: Pairing = Pairing(),
    levels: Sequence[Level] = LEVELS,
    rubrics: Mapping[str, Rubric] = {},
) -> tuple[list[Correlation], list[str]]:
    """Every dimension of every judge (in the order of `judgements`) with every dimension of every rubric that people scored,
    within a language; and sentences on what was left out: judges that share no unit with people, and human scores without a
    verdict.

    A judgement's condition `supporter`, if it has one, names the system. Without `dialogues`, the language is the record's own,
    and `pairing` must be by dialogue. `rubrics`, by name, give the scales of dimensions where these differ. Raises `UserError`
    for scores of unknown dialogues, and if no judge shares a unit with people."""
    by_id = None if dialogues is None else {dialogue.id: dialogue for dialogue in dialogues}

    def place_of(record: Judgement | HumanScore) -> tuple[Language, Unit]:
        if isinstance(record, Judgement):
            where, system = f"judgement by {record.judge}", record.condition.get("supporter")
        else:
            where, system = f"score by {record.annotator}", None
        if by_id is not None:
            dialogue = known_dialogue(by_id, record.dialogue_id, where)
            return dialogue.language, pairing.unit(dialogue, system)
        if system is not None:
            raise UserError(f"{where}: condition.supporter: only dialogues name the systems people scored: give --dialogues")
        return record.language, Unit(record.dialogue_id, "", record.dialogue_id)

    judged, unread = _judged(judgements, place_of)
    golden = _golden(gold, place_of)
    result: list[Correlation] = []
    omissions: list[str] = []
    for (language, scorer, rubric), verdicts in judged.items():
        of_language = {gold_rubric: side for (code, gold_rubric), side in golden.items() if code == language}
        partners = {gold_rubric: side for gold_rubric, side in of_language.items() if _units(verdicts) & _units(side)}
        if not partners:
            omissions.append(_nothing_shared(scorer, language, verdicts, of_language, pairing))
        for gold_rubric, side in partners.items():
            sides = _with_average(verdicts, rubrics.get(rubric)), _with_average(side, rubrics.get(gold_rubric))
            for (dimension, scores), (gold_dimension, gold_scores) in product(*(each.items() for each in sides)):
                # Sorted, so that no interval depends on the order of the files.
                units = sorted(scores.keys() & gold_scores.keys())
                x, y = (np.array([comparable(each[unit]) for unit in units]) for each in (scores, gold_scores))
                place = np.unique([unit.sample for unit in units], return_inverse=True)[1]
                identity = (language, scorer, rubric, dimension, gold_rubric, gold_dimension)
                for level in levels:
                    for name, (measured, undefined, left_out) in figures(x, y, place, level).items():
                        counts = len(x), len(set(place.tolist())), undefined, left_out, unread[*identity[:4]]
                        result.append(Correlation(*identity, level, name, measured, *counts))
    if omissions and not result:
        raise UserError(omissions[0])
    with_verdict = {(language, unit) for (language, *_), verdicts in judged.items() for unit in _units(verdicts)}
    if partnerless := sum(place_of(score) not in with_verdict for score in gold):
        omissions.append(f"{partnerless} of {len(gold)} gold scores, which no judge has a verdict for")
    return result, omissions


def known_dialogue(dialogues: Mapping[str, Dialogue], id: str, where: str) -> Dialogue:
    """The dialogue of this id; raises a `UserError` that begins with `where` if there is none."""
    if id not in dialogues:
        raise UserError(f"{where}: dialogue_id: no dialogue {id!r} among those given with --dialogues")
    return dialogues[id]


def _judged(judgements: Sequence[Judgement], place_of: PlaceOf) -> tuple[dict[Side, Values], Counter[tuple[object, ...]]]:
    """Every judge's scores, and the number of verdicts per side and dimension without a usable score."""
    sides: dict[Side, Values] = {}
    unread: Counter[tuple[object, ...]] = Counter()
    scores: list[tuple[tuple[Side, str, str, Unit], float]] = []
    for judgement in judgements:
        language, unit = place_of(judgement)
        side = (language, scorer_of(judgement).without("supporter"), judgement.rubric)
        sides.setdefault(side, {}).setdefault(judgement.dimension, {})
        if judgement.value is None:
            unread[*side, judgement.dimension] += 1
            unread[*side, AVERAGE] += 1
        else:
            scores.append(((side, judgement.dimension, judgement.dialogue_id, unit), judgement.value))
    for (side, dimension, unit), mean in means_by(((s, d, u), v) for (s, d, _, u), v in means_by(scores).items()).items():
        sides[side][dimension][unit] = mean
    return sides, unread


def _golden(gold: Sequence[HumanScore], place_of: PlaceOf) -> dict[tuple[Language, str], Values]:
    places = {s.dialogue_id: place_of(s) for s in gold}
    groups = group_by(gold, lambda s: (s.dialogue_id, s.rubric, s.dimension, s.annotator))
    # An annotator's score of the whole dialogue takes precedence over scores of single turns.
    scores = {key: [s.value for s in group if s.turn is None] or [s.value for s in group] for key, group in groups.items()}
    by_dialogue = means_by((key[:3], exact_mean(values)) for key, values in scores.items())
    sides: dict[tuple[Language, str], Values] = defaultdict(dict)
    by_unit = means_by(((*places[d], r, dim), mean) for (d, r, dim), mean in by_dialogue.items())
    for (language, unit, rubric, dimension), mean in by_unit.items():
        sides[language, rubric].setdefault(dimension, {})[unit] = mean
    return sides


def _with_average(side: Values, rubric: Rubric | None) -> Values:
    """The dimensions, and of several also `average`, over the units that have them all; of dimensions on different scales only
    if the rubric has them all."""
    if len(side) < 2 or AVERAGE in side:
        return side
    units = set.intersection(*(set(scores) for scores in side.values()))
    if rubric is None or rubric.alike:
        return side | {AVERAGE: means_by((unit, scores[unit]) for scores in side.values() for unit in units)}
    if not rubric.dimensions.keys() >= side.keys():
        return side
    points = {unit: {d: rubric.normalised(d, scores[unit]) for d, scores in side.items()} for unit in units}
    averages = {unit: average for unit, scores_of in points.items() if (average := rubric.average(scores_of)) is not None}
    return side | ({AVERAGE: averages} if averages else {})


def _units(side: Values) -> set[Unit]:
    return {unit for scores in side.values() for unit in scores}


def _nothing_shared(scorer: Scorer, language: str, verdicts: Values, golden: Mapping[str, Values], pairing: Pairing) -> str:
    if not (judged := _units(verdicts)):
        return f"judge {scorer.name}: none of its verdicts on {language} dialogues has a usable score"
    scored = {unit for side in golden.values() for unit in _units(side)}
    if pairing.by == "system":
        samples = len({u.sample for u in judged} & {u.sample for u in scored})
        systems = len({u.system for u in judged} & {u.system for u in scored})
        return f"judge {scorer.name}: shares {samples} samples and {systems} systems with the human scores, but no pair of both"
    why = f"none of its {len(judged)} {language} dialogues has a human score"
    return f"judge {scorer.name}: {why}; --correlate system pairs scores on other dialogues of the same samples and systems"


# --- as tables (ESC-Eval, tables 3 and 13 to 15; EmoHarbor, table 1) --------------------------------------------------------


def correlation_tables(correlations: Sequence[Correlation]) -> Iterator[Table]:
    """Per language and human rubric: `correlation_sample_COEFFICIENT_…` (tables 3, 13 and 14 of the paper) and
    `correlation_dataset_…` (table 15), × 100 as printed. Sample-level tables without any figure become a note below the
    latter."""
    keys = file_keys(dict.fromkeys(figure.gold_rubric for figure in correlations))
    for (language, gold_rubric), of_rubric in group_by(correlations, lambda c: (c.language, c.gold_rubric)).items():
        tail = f"{language}_{keys[gold_rubric]}"
        title = f"with human scores on {gold_rubric}, {language}"
        overall = [figure for figure in of_rubric if figure.level == "dataset"]
        within = [figure for figure in of_rubric if figure.level == "sample"]
        absent = within and not any(figure.estimate.n for figure in within)
        for name in COEFFICIENTS if not (absent and overall) else ():
            if part := [figure for figure in within if figure.coefficient == name]:
                heading = f"Sample-level correlation ({name}) {title}"
                notes = ["The coefficient within each sample across its systems, averaged; n: samples in which it is defined."]
                if worst := max(figure.undefined for figure in part):
                    where = f"In up to {worst} of {max(figure.samples for figure in part)} samples"
                    notes.append(f"{where} it is undefined: fewer than two systems, or equal scores.")
                yield _table(f"correlation_sample_{name}_{tail}", heading, part, notes)
        if overall:
            notes = ["One coefficient over all units; n: dialogues, or pairs of sample and system."]
            notes += ["Sample level: undefined, no sample has two systems with different scores."] if absent else []
            yield _table(f"correlation_dataset_{tail}", f"Dataset-level correlation {title}", overall, notes)


def alignment_tables(correlations: Sequence[Correlation]) -> Iterator[Table]:
    """How close each prompting strategy of a judge comes to people (EmoHarbor section 4.1.2): per language and human rubric,
    judges and strategies × dimensions, Pearson × 100 over all dialogues at once."""
    shared = [figure for figure in correlations if figure.dimension == figure.gold_dimension]
    pearson = [figure for figure in shared if (figure.level, figure.coefficient) == ("dataset", "pearson")]
    for (language, rubric), part in group_by(pearson, lambda figure: (figure.language, figure.gold_rubric)).items():
        note = f"Each dimension with people's scores of the same one on rubric {rubric}, over all dialogues at once."
        title = f"Judges against people, Pearson × 100, {language}"
        strategies = [
            {"judge": figure.scorer.without(STRATEGY).name, STRATEGY: dict(figure.scorer.condition).get(STRATEGY, DASH)}
            for figure in part
        ]
        notes = [f"{note} {INTERVALS} A dash: undefined."]
        yield Table.of(f"alignment_{language}_{rubric}", title, _crossed(part, strategies), notes, CORRELATION)


def _table(key: str, title: str, part: Sequence[Correlation], notes: Iterable[str]) -> Table:
    several = len({figure.rubric for figure in part}) > 1
    names = [
        {"judge": figure.scorer.name}
        | ({"rubric": figure.rubric} if several else {})
        | {"dimension": figure.dimension}
        | ({"coefficient": figure.coefficient} if figure.level == "dataset" else {})
        for figure in part
    ]
    return Table.of(key, title, _crossed(part, names), (*notes, *_notes(part)), CORRELATION)


def _crossed(part: Sequence[Correlation], names: Sequence[Mapping[str, str]]) -> list[dict[str, Cell]]:
    """A row per judge, rubric and `names` (of each figure), with people's dimensions as columns: coefficients × 100."""
    heads: dict[str, Cell] = dict.fromkeys(figure.gold_dimension for figure in part)
    rows: dict[tuple[object, ...], dict[str, Cell]] = {}
    for figure, labels in zip(part, names, strict=True):
        row = rows.setdefault((figure.scorer, figure.rubric, *labels.values()), {**labels, **heads})
        row[figure.gold_dimension] = figure.estimate.times(100)
    return list(rows.values())


def _notes(part: Sequence[Correlation]) -> Iterator[str]:
    yield f"× 100. Rows are the judge's dimensions, columns people's. {INTERVALS}"
    if any(AVERAGE in (figure.dimension, figure.gold_dimension) for figure in part):
        several = "on 0–100 where their rubric has several scales"
        yield f"{AVERAGE}: the mean of a side's dimensions ({several}), where all of them were scored."
    if worst := max(figure.left_out for figure in part):
        yield f"Undefined resamples are left out: up to {worst:,} for one figure."
    if lost := max(figure.unread for figure in part):
        yield f"Verdicts without a score are left out: up to {lost:,} for one row."


# --- coefficients over many selections of pairs at once -------------------------------------------------------------------


def figures(x: Floats, y: Floats, place: NDArray[np.intp], level: Level) -> dict[Coefficient, tuple[Estimate, int, int]]:
    """{coefficient: (estimate, undefined samples, resamples left out)} of pairs `x`, `y` [n] with `place` [n], each pair's
    sample as an index from 0. There is no interval for a single sample, nor when every resample is undefined."""
    size = int(place.max()) + 1 if len(place) else 0
    if level == "sample":
        within = np.full((size, len(COEFFICIENTS)), np.nan)
        several = np.flatnonzero(np.bincount(place, minlength=size) > 1)
        singles = np.zeros((len(several), size))
        singles[np.arange(len(several)), several] = 1
        within[several] = coefficients(x, y, place, singles)
        defined = ~np.isnan(within)
        filled, rows = np.where(defined, within, 0.0), defined.sum(axis=0)
        points = ratio(filled.sum(axis=0), rows.astype(np.float64))
        ns, undefined = rows, size - rows
    else:
        points = coefficients(x, y, place, np.ones((1, size)))[0]
        ns, undefined, rows = (np.full(len(COEFFICIENTS), number) for number in (len(x), 0, size))
    drawn = (rows > 1) & ~np.isnan(points)
    draws = np.full((0, len(COEFFICIENTS)), np.nan)
    if drawn.any():
        if level == "sample":
            draws = resampled_means(filled, defined.astype(float))
        else:  # of the samples, each with all its pairs
            times = np.random.default_rng(SEED).multinomial(size, np.full(size, 1 / size), RESAMPLES)
            draws = coefficients(x, y, place, times.astype(np.float64))
    left_out = np.where(drawn, np.isnan(draws).sum(axis=0), 0)
    cells = (estimate(points[i], draws[:, i], int(ns[i]), int(rows[i])) for i in range(len(COEFFICIENTS)))
    return dict(zip(COEFFICIENTS, zip(cells, undefined.tolist(), left_out.tolist(), strict=True), strict=True))


def coefficients(x: Floats, y: Floats, place: NDArray[np.intp], weights: Floats) -> Floats:
    """[selections, 3]: the three coefficients, −1 to 1, NaN where undefined (fewer than two pairs, or a constant side), of
    pairs `x`, `y` [n] with `place` [n], their groups as indices from 0. `weights` [selections, groups] are whole numbers: how
    often a selection contains a group."""
    result = np.full((len(weights), len(COEFFICIENTS)), np.nan)
    if not len(x):
        return result
    # Equal pairs are merged into one weighted pair: ratings take few distinct values, however many dialogues there are.
    pairs, which = np.unique(np.stack([x, y], axis=1), axis=0, return_inverse=True)
    which = which.reshape(-1)  # some versions of numpy keep the axis
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(pairs)))
    for start in range(0, len(weights), _BATCH):
        batch = weights[start : start + _BATCH]
        counts = np.add.reduceat(batch[:, place[order]], starts, axis=1)  # [batch, distinct pairs]
        used = counts.any(axis=0)
        if used.any():
            with np.errstate(all="ignore"):  # undefined coefficients come out as NaN
                result[start : start + _BATCH] = _coefficients(pairs[used, 0], pairs[used, 1], counts[:, used])
    return result


def _coefficients(x: Floats, y: Floats, weights: Floats) -> Floats:
    ranks_x, ties_x, several_x = _ranks(x, weights)
    ranks_y, ties_y, several_y = _ranks(y, weights)
    if len(x) <= _FEW:
        concordance = np.sign(np.subtract.outer(x, x)) * np.sign(np.subtract.outer(y, y))  # 1, or −1 if discordant
        everything, net = weights.sum(axis=1) ** 2, (weights @ concordance * weights).sum(axis=1)
        kendall = net / np.sqrt((everything - ties_x) * (everything - ties_y))
    else:
        from scipy.stats import kendalltau

        sides = ((np.repeat(x, times), np.repeat(y, times)) for times in weights.astype(np.intp))
        kendall = np.array([kendalltau(*both, method="asymptotic").statistic for both in sides], dtype=np.float64)
    values = np.stack([_moment(ranks_x, ranks_y, weights), _moment(x[None], y[None], weights), kendall], axis=1)
    defined = (several_x & several_y)[:, None] & np.isfinite(values)
    return np.where(defined, np.clip(values, -1, 1), np.nan)


def _ranks(x: Floats, weights: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Mean ranks [selections, pairs]; the number of tied pairs [selections], counted in both orders and each pair with itself;
    whether there are two distinct values [selections]."""
    distinct, levels = np.unique(x, return_inverse=True)
    order = np.argsort(levels, kind="stable")
    starts = np.searchsorted(levels[order], np.arange(len(distinct)))
    totals = np.add.reduceat(weights[:, order], starts, axis=1)  # [selections, distinct values]
    ranks = totals.cumsum(axis=1) - (totals - 1) / 2
    return ranks[:, levels], (totals**2).sum(axis=1), (totals > 0).sum(axis=1) > 1


def _moment(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's coefficient of each selection; `x` and `y` are [1 or selections, pairs]."""
    total = weights.sum(axis=1, keepdims=True)
    x, y = (side - (weights * side).sum(axis=1, keepdims=True) / total for side in (x, y))
    x, y = (side / np.abs(side).max(axis=1, keepdims=True) for side in (x, y))  # squares neither overflow nor vanish
    result: Floats = (weights * x * y).sum(axis=1) / np.sqrt((weights * x * x).sum(axis=1) * (weights * y * y).sum(axis=1))
    return result
