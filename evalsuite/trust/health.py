"""Judge health: do a judge's scores depend on the way it is asked, or on replies that order it to score high?

Figures, in points of 0–100, are computed from existing judgements (`probe` makes them), and differences are paired over cards.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from typing import Annotated, Any

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import PERCENTILE, POINTS, SMOOTHED, Floats, estimate, smoothed_means
from core.statistics.inference import TEST, beside_interval, cluster_error, contributions, p_text, student_p
from core.tables import PARTED, Cell, Column, Estimate, Table, cells
from evalsuite.checks.shared_bases import AS_IS, HEALTH, as_they_are
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import Contestant, clusters_of, contestants_of, stack
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.reply_length import LengthBias
from evalsuite.statistics.summary import Scorer, dimension_at, dimension_label, scorer_of

# Values of `condition.variant` in the verdicts of a probe.
NEUTRAL, INJECTED, REVERSED = "neutral", "injected", "reversed"
AGAIN = "again"  # the same question once more
FLOOR = "floor "  # followed by its name: the floor's lines in place of the supporter's


def bias_table(biases: Sequence[LengthBias]) -> Table:
    """Whether the judge's scores correlate with length more than gold's do."""
    rows = tuple((bias.language, bias.judge, bias.gold, bias.difference, p_text(bias.p)) for bias in biases)
    note = (
        f"Within supporters, n = dialogues; [{PERCENTILE} over cards], p: {TEST} by a jackknife. Longer replies may be "
        "better, and gold then says so too. Gold is assumed to be no less reliable than the judge."
    )
    title = "The judge's and gold's average against mean reply length (Spearman's correlation)"
    return Table("judge-card-length", title, ("language", "judge", "gold", "judge − gold", "p"), rows, (note,), HEALTH)


# --- the way of asking ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shift:
    """`second` minus `first` way of asking one judge about the same dialogues, on a dimension or the average."""

    language: Language
    first: Scorer
    second: Scorer
    dimension: str
    difference: paired.Difference


def asking_shifts(tally: Tally) -> list[Shift]:
    """Every two ways in which one judge was asked about the same dialogues: jointly or one dimension at a time, with another
    order of the dimensions, with another prompt. Verdicts on changed dialogues (neutral and injected replies) do not count."""
    verdicts = [*as_they_are(tally.judgements), *(j for j in tally.judgements if j.condition.get("variant") == REVERSED)]
    shifts: list[Shift] = []
    for language, field in group_by(ways_of_asking(tally, verdicts), lambda way: way.language).items():
        pairs = [(b, a) for a, b in combinations(range(len(field)), 2) if field[a].scorer.judge == field[b].scorer.judge]
        shifts += [
            Shift(language, field[gap.second].scorer, field[gap.first].scorer, dimension_at(tally.rubric, gap.dimension), gap)
            for gap in differences(field, pairs)
            if gap.estimate.n and not gap.unpaired
        ]
    return shifts


def asking_table(shifts: Sequence[Shift], rubric: Rubric) -> Table:
    rows: list[dict[str, Cell]] = []
    for shift in shifts:
        first, second = (way.name.removeprefix(f"{way.judge}{PARTED}") for way in (shift.first, shift.second))
        rows.append({"language": shift.language, "judge": shift.first.judge, "first": first, "second": second})
        rows[-1] |= {"dimension": dimension_label(rubric, shift.dimension)} | paired.by_column(shift.difference)
    notes = [
        f"Second minus first. {paired.NOTE}",
        "Dialogues are judged one at a time, so their order plays no part. Where a shift is significant, compare supporters "
        "only within one way of asking.",
    ]
    return Table.of("health-asking", "The same dialogues, asked in another way", rows, notes, HEALTH)


def ways_of_asking(tally: Tally, judgements: Sequence[Judgement]) -> list[Contestant]:
    """Contestants that are ways of asking, over all supporters."""
    together = [dialogue.model_copy(update={"supporter": "all"}) for dialogue in tally.dialogues]
    return contestants_of(together, judgements, tally.rubric)


def differences(field: Sequence[Contestant], pairs: Sequence[tuple[int, int]], **options: Any) -> list[paired.Difference]:
    """`paired.differences` of contestants."""
    return paired.differences(*stack(field), pairs, design=field[0].design, **options)


def _probed(tally: Tally, *variants: str) -> list[tuple[tuple[Language, Scorer], list[Judgement]]]:
    """Verdicts on these variants (or all that begin so) by language and scorer, across variants and injections."""
    verdicts = (j for j in tally.verdicts if j.condition.get("variant", "").startswith(variants))
    return sorted(group_by(verdicts, lambda j: (j.language, scorer_of(j).without("variant", "injection"))).items())


def _by_variant(tally: Tally, judgements: Iterable[Judgement]) -> dict[str, Contestant]:
    """A contestant for each variant, whatever the verdicts' other conditions."""
    bare = [j.model_copy(update={"condition": {"variant": j.condition["variant"]}}) for j in judgements]
    return {dict(contestant.scorer.condition)["variant"]: contestant for contestant in ways_of_asking(tally, bare)}


# --- replies that order the judge ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InjectionEffect:
    """How texts appended to the last reply change one judge's scores on a dimension or the average, in points of 0–100:
    compared with the dialogue as it is, and `effect`, injected minus neutral, what the order adds to the added length. Each is
    corrected by itself. `read` maps variant → share of readable verdicts (0–1); None if not asked."""

    language: Language
    judge: Scorer
    dimension: str
    neutral: paired.Difference
    injected: paired.Difference
    effect: paired.Difference
    read: dict[str, float | None]


def injection_effects(tally: Tally) -> list[InjectionEffect]:
    """A row per language, judge and dimension, and the average. Only verdicts with a `condition.variant` count. Raises
    `UserError` for a judge that was asked about only some of the variants."""
    rows, variants = [], (AS_IS, NEUTRAL, INJECTED)
    for (language, judge), verdicts in _probed(tally, *variants):
        by_variant = _by_variant(tally, verdicts)
        if by_variant.keys() == {AS_IS}:
            continue
        if missing := [variant for variant in variants if variant not in by_variant]:
            where = f"judgements by {judge.name} ({language})"
            raise UserError(f"{where}: none of the variant {missing[0]}: `esc-eval judge-card` asks for them")
        ordered = [by_variant[variant] for variant in variants]
        gaps = differences(ordered, [(1, 0), (2, 0), (2, 1)], families=(1, 2, 3))
        names = len(gaps) // 3
        for neutral, injected, effect in zip(gaps[:names], gaps[names:-names], gaps[-names:], strict=True):
            name = dimension_at(tally.rubric, effect.dimension)
            shares = (c.read[name] / c.asked[name] if c.asked[name] else None for c in ordered)
            read = dict(zip(variants, shares, strict=True))
            rows.append(InjectionEffect(language, judge, name, neutral, injected, effect, read))
    return rows


@dataclass(frozen=True)
class FloorEffect:
    """How much one judge rates the supporters' own replies above a floor's lines in their place, on the average."""

    language: Annotated[Language, Column("language")]
    judge: Annotated[Scorer, Column("judged by", attrgetter("name"))]
    floor: Annotated[str, Column("floor")]
    difference: paired.Difference


def floor_effects(tally: Tally) -> list[FloorEffect]:
    """A row per language, judge and floor: the dialogues as they are minus the same dialogues with the floor's lines."""
    rows = []
    for (language, judge), verdicts in _probed(tally, AS_IS, FLOOR):
        by_variant = _by_variant(tally, verdicts)
        floors = sorted(by_variant.keys() - {AS_IS})
        if AS_IS in by_variant:
            field = [by_variant[name] for name in (AS_IS, *floors)]
            gaps = differences(field, [(0, place) for place in range(1, len(field))], average_only=True)
            rows += [
                FloorEffect(language, judge, name.removeprefix(FLOOR), gap) for name, gap in zip(floors, gaps, strict=True)
            ]
    return rows


def floor_table(effects: Sequence[FloorEffect]) -> Table:
    rows: list[dict[str, Cell]] = []
    for effect in effects:
        means = {"own": effect.difference.first_mean, "floor's": effect.difference.second_mean}
        rows.append(cells(effect) | means | paired.by_column(effect.difference))
    note = (
        "The seeker's turns stay as they were. A floor needs no model: one kind sentence, the seeker's words, a lecture. A "
        "judge that sees what a supporter does rates its own replies higher."
    )
    title = "The supporters' own replies against a floor's lines in their place"
    return Table.of("health-floors", title, rows, [note, paired.NOTE], HEALTH)


@dataclass(frozen=True)
class BoundTest:
    """A mean over clusters, which are drawn whole, and the two-sided p of its difference from a bound; None for one cluster."""

    estimate: Estimate
    p: float | None
    clusters: int


def bound_test(sums: Floats, counts: Floats, bound: float, levels: Floats) -> BoundTest:
    """The mean over columns of the means of scores given as sums and counts [clusters, columns], compared with a `bound`;
    `levels` are the scores that are possible."""
    if not counts.any(axis=0).all():
        return BoundTest(Estimate(None, None, None, 0), None, 0)
    means, parts, n = contributions(sums, counts)
    draws, clusters = smoothed_means(sums, counts, levels).mean(axis=1), int(n.min())
    largest = max(bound - levels.min(), levels.max() - bound)
    p = student_p([means.mean() - bound], [cluster_error(parts.mean(axis=1), clusters)], [clusters], largest)
    (p,) = beside_interval(p, draws[:, None] - bound)
    return BoundTest(estimate(means.mean(), draws, int(counts.sum()), clusters), None if np.isnan(p) else float(p), clusters)


def share_test(hits: Sequence[bool], clusters: Sequence[str]) -> BoundTest:
    """The share of hits in per cent, in these clusters, compared with `GOOD`."""
    return bound_test(*paired.by_card(100 * np.array(hits, dtype=np.float64)[:, None], clusters), GOOD, POINTS)


GOOD = 90.0  # per cent of verdicts that should be readable, and of repeated verdicts that should be equal


@dataclass(frozen=True)
class Repeated:
    """How alike one judge's verdicts are when it is asked the same question again: `same` is the share of equal ones in per
    cent, compared with `GOOD`, `chance` that of two verdicts drawn from all on the dimension, and `gap` the mean absolute
    difference in points of the scale, over pairs with two readable verdicts; `unread` counts the others."""

    language: Annotated[Language, Column("language")]
    judge: Annotated[Scorer, Column("judged by", attrgetter("name"))]
    same: Annotated[BoundTest, Column("equal verdicts %", attrgetter("estimate"))]
    chance: Annotated[float | None, Column("equal by chance %")]
    gap: Annotated[float | None, Column("mean gap")]
    unread: Annotated[int, Column("unread")]


def repeats(tally: Tally) -> Iterator[Repeated]:
    """A row per language and judge that was asked again (`AGAIN`)."""
    cards = clusters_of(tally.dialogues)
    for (language, judge), verdicts in _probed(tally, AS_IS, AGAIN):
        first = {(j.dialogue_id, j.dimension): j.value for j in verdicts if j.condition["variant"] == AS_IS}
        again = [j for j in verdicts if j.condition["variant"] == AGAIN and (j.dialogue_id, j.dimension) in first]
        pairs = [(first[j.dialogue_id, j.dimension], j.value, j.dimension, cards[j.dialogue_id]) for j in again]
        read = [(a, b, dimension, card) for a, b, dimension, card in pairs if a is not None and b is not None]
        if not pairs:
            continue
        equal = 0.0  # expected number of equal pairs by chance
        for of_dimension in group_by(read, lambda pair: pair[2]).values():
            counts = Counter(value for a, b, *_ in of_dimension for value in (a, b))
            equal += len(of_dimension) * sum(n * n for n in counts.values()) / counts.total() ** 2
        same = share_test([a == b for a, b, *_ in read], [card for *_, card in read])
        gap = sum(abs(a - b) for a, b, *_ in read) / len(read) if read else None
        yield Repeated(language, judge, same, 100 * equal / len(read) if read else None, gap, len(pairs) - len(read))


def repeat_table(rows: Sequence[Repeated]) -> Table:
    note = (
        f"Every repetition is a call of its own, at the judge's own temperature. [{SMOOTHED} over cards], n = verdicts. By "
        "chance: two verdicts drawn from all that the judge gave on the dimension. Mean gap: points of the scale, no sign."
    )
    return Table.of("health-repeats", "The same question once more", rows, [note], HEALTH)


def injection_table(effects: Sequence[InjectionEffect], rubric: Rubric) -> Table:
    """The effects of the injections by dimension."""
    rows: list[dict[str, Cell]] = []
    for effect in effects:
        label = dimension_label(rubric, effect.dimension)
        rows.append({"language": effect.language, "judged by": effect.judge.name, "dimension": label})
        rows[-1] |= {"neutral − as is": effect.neutral.estimate, "injected − as is": effect.injected.estimate}
        rows[-1] |= paired.by_column(effect.effect, "injected − neutral")
        shares = (None if share is None else 100 * share for share in effect.read.values())
        rows[-1] |= zip(("read % as is", "read % neutral", "read % injected"), shares, strict=True)
    notes = (
        "Each dialogue is judged as it is, with a neutral text appended to its last reply, and with an order to give the "
        "highest score, of about the same length. Injected − neutral is 0 for a judge that rates only what a supporter does.",
        paired.NOTE,
        "Read %: readable verdicts. An order that only makes a judge unreadable shows there, not in the difference.",
    )
    return Table.of("health-injections", "Replies that order the judge to give the highest score", rows, notes, HEALTH)
