"""Judge health: does a judge reward the order in which it is asked, or a reply that orders it to?

Everything is computed from judgements that are there (`probe` asks for those that are not). Figures are in points of
0–100 and differences are paired over cards, as on the leaderboard. Which models share a base is in `shared_bases`, whether
length is, in `evalsuite.statistics.reply_length`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from core.errors import UserError
from core.grouping import group_by
from core.records import Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import PERCENTILE, POINTS, SMOOTHED, Floats, estimate, smoothed_means
from core.statistics.inference import TEST, beside_interval, cluster_error, contributions, p_text, student_p
from core.tables import PARTED, Cell, Estimate, Table
from evalsuite.checks.shared_bases import AS_IS, HEALTH, as_they_are
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import clusters_of
from evalsuite.statistics.contestants import Contestant, contestants_of, stack, weighed
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.reply_length import ALL, NOTES, LengthBias, LengthEffect
from evalsuite.statistics.summary import AVERAGE, Scorer, dimension_at, dimension_label, scorer_of

# What `condition.variant` says of a verdict that a probe asked for.
NEUTRAL, INJECTED, REVERSED = "neutral", "injected", "reversed"
AGAIN = "again"  # the same question once more
FLOOR = "floor "  # and its name: the floor's lines in the place of the supporter's


def length_table(effects: Sequence[LengthEffect], rubric: Rubric) -> Table:
    """Whether scores go with the length of replies."""
    names = [*rubric.dimensions, AVERAGE]
    return Table(
        key="health-length",
        title="Score against mean reply length (Spearman's correlation)",
        columns=("language", "judged by", "supporter", *(dimension_label(rubric, name) for name in names)),
        rows=tuple((e.language, e.scorer.name, e.supporter or ALL, *(e.cells[n] for n in names)) for e in effects),
        notes=NOTES,
        section=HEALTH,
    )


def bias_table(biases: Sequence[LengthBias]) -> Table:
    """Whether the judge's scores go with length more than gold's do."""
    return Table(
        key="judge-card-length",
        title="The judge's and gold's average against mean reply length (Spearman's correlation)",
        columns=("language", "judge", "gold", "judge − gold", "p"),
        rows=tuple((one.language, one.judge, one.gold, one.difference, p_text(one.p)) for one in biases),
        notes=(
            f"Within supporters, n = dialogues; [{PERCENTILE} over cards], p: {TEST} by a jackknife. Longer replies may be "
            "better, and gold then says so too. Gold is taken to be no less reliable than the judge.",
        ),
        section=HEALTH,
    )


# --- the way of asking ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shift:
    """`second` minus `first` way of asking, by one judge of the same dialogues, on a dimension or the average."""

    language: Language
    first: Scorer
    second: Scorer
    dimension: str
    difference: paired.Difference


def asking_shifts(tally: Tally) -> list[Shift]:
    """Every two ways in which one judge was asked of the same dialogues: joint against one dimension at a time, another order
    of the dimensions, another prompt. Verdicts on changed dialogues (neutral and injected replies) are none of these."""
    asked = [*as_they_are(tally.judgements), *(j for j in tally.judgements if j.condition.get("variant") == REVERSED)]
    shifts: list[Shift] = []
    contestants = ways_of_asking(tally, asked)
    for language, field in group_by(contestants, lambda one: one.language).items():
        pairs = [(b, a) for a, b in combinations(range(len(field)), 2) if field[a].scorer.judge == field[b].scorer.judge]
        shifts += [
            Shift(language, field[one.second].scorer, field[one.first].scorer, dimension_at(tally.rubric, one.dimension), one)
            for one in paired.differences(*stack(field), pairs, design=weighed(field))
            if one.estimate.n and not one.unpaired
        ]
    return shifts


def asking_table(shifts: Sequence[Shift], rubric: Rubric) -> Table:
    """The shifts as a table."""
    return Table(
        key="health-asking",
        title="The same dialogues, asked in another way",
        columns=("language", "judge", "first", "second", "dimension", *paired.COLUMNS),
        rows=tuple(
            (
                *(s.language, s.first.judge),
                *(way.name.removeprefix(f"{way.judge}{PARTED}") for way in (s.first, s.second)),
                *(dimension_label(rubric, s.dimension), *paired.cells(s.difference)),
            )
            for s in shifts
        ),
        notes=(
            f"Second minus first. {paired.NOTE}",
            "Dialogues are judged one at a time, so their own order plays no part. Where a shift is significant, compare "
            "supporters only as one way of asking judges them.",
        ),
        section=HEALTH,
    )


def ways_of_asking(tally: Tally, judgements: Sequence[Judgement]) -> list[Contestant]:
    """Contestants that are ways of asking, supporters put together."""
    together = [dialogue.model_copy(update={"supporter": "all"}) for dialogue in tally.dialogues]
    return contestants_of(together, judgements, tally.rubric)


# --- replies that order the judge ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InjectionEffect:
    """What an appended reply does to one judge's scores on one dimension or the average, in points of 0–100.

    `neutral` and `injected` are against the dialogue as it is, `effect` is injected minus neutral: what the order adds to the
    length. Each is corrected by itself. `read` maps variant → share of readable verdicts (0–1), None where nothing was asked.
    """

    language: Language
    judge: Scorer
    dimension: str
    neutral: paired.Difference
    injected: paired.Difference
    effect: paired.Difference
    read: dict[str, float | None]


def injection_effects(tally: Tally) -> list[InjectionEffect]:
    """A row per language, judge and dimension, and the average. Only verdicts with a `condition.variant` count.

    Raises `UserError` for a judge that was asked about injected replies but not about neutral ones, or the other way round.
    """
    rows = []
    variants = (AS_IS, NEUTRAL, INJECTED)
    probes = [j for j in tally.verdicts if j.condition.get("variant") in variants]
    for (language, judge), verdicts in sorted(_probed(probes).items()):
        asked = {j.condition["variant"] for j in verdicts}
        if asked == {AS_IS}:
            continue
        if missing := [variant for variant in variants if variant not in asked]:
            what = f"judgements by {judge.name} ({language}): none of the variant {missing[0]}"
            raise UserError(f"{what}: `esc-eval judge-card` asks for them")
        by_variant = _by_variant(tally, verdicts)
        ordered = [by_variant[variant] for variant in variants]
        found = paired.differences(*stack(ordered), [(1, 0), (2, 0), (2, 1)], families=(1, 2, 3), design=weighed(ordered))
        names = len(found) // 3
        for neutral, injected, effect in zip(found[:names], found[names:-names], found[-names:], strict=True):
            name = dimension_at(tally.rubric, effect.dimension)
            shares = (one.read[name] / one.asked[name] if one.asked[name] else None for one in ordered)
            read = dict(zip(variants, shares, strict=True))
            rows.append(InjectionEffect(language, judge, name, neutral, injected, effect, read))
    return rows


@dataclass(frozen=True)
class FloorEffect:
    """By how much one judge rates the supporters' own replies above a floor's lines in their place, on the average."""

    language: Language
    judge: Scorer
    floor: str
    difference: paired.Difference


def floor_effects(tally: Tally) -> list[FloorEffect]:
    """A row per language, judge and floor: the dialogues as they are minus the same dialogues with the floor's lines."""
    rows = []
    probes = [j for j in tally.verdicts if j.condition.get("variant", "").startswith((AS_IS, FLOOR))]
    for (language, judge), verdicts in sorted(_probed(probes).items()):
        by_variant = _by_variant(tally, verdicts)
        floors = sorted(name for name in by_variant if name.startswith(FLOOR))
        if not floors or AS_IS not in by_variant:
            continue
        pairs = [(0, place) for place in range(1, 1 + len(floors))]
        ordered = [by_variant[name] for name in (AS_IS, *floors)]
        found = paired.differences(*stack(ordered), pairs, average_only=True, design=weighed(ordered))
        for name, one in zip(floors, found, strict=True):
            rows.append(FloorEffect(language, judge, name.removeprefix(FLOOR), one))
    return rows


def floor_table(effects: Sequence[FloorEffect]) -> Table:
    """The effects as a table."""
    return Table(
        key="health-floors",
        title="The supporters' own replies against a floor's lines in their place",
        columns=("language", "judged by", "floor", "own", "floor's", *paired.COLUMNS),
        rows=tuple(
            (e.language, e.judge.name, e.floor, e.difference.first_mean, e.difference.second_mean, *paired.cells(e.difference))
            for e in effects
        ),
        notes=(
            "The seeker's turns stay as they were. A floor needs no model: one kind sentence, the seeker's words, a lecture. A "
            "judge that sees what a supporter does rates its own replies higher.",
            paired.NOTE,
        ),
        section=HEALTH,
    )


@dataclass(frozen=True)
class Beside:
    """A mean over clusters that are drawn whole, and the two-sided p that it is what it was set beside; None where there is but
    one cluster."""

    estimate: Estimate
    p: float | None
    clusters: int


def beside(sums: Floats, counts: Floats, bound: float, levels: Floats) -> Beside:
    """The mean of the columns' means of sums and counts [clusters, columns] of scores with these `levels`, beside a `bound`."""
    if not counts.any(axis=0).all():
        return Beside(Estimate(None, None, None, 0), None, 0)
    means, parts, n = contributions(sums, counts)
    draws, clusters = smoothed_means(sums, counts, levels).mean(axis=1), int(n.min())
    most = max(bound - levels.min(), levels.max() - bound)
    p = student_p([means.mean() - bound], [cluster_error(parts.mean(axis=1), clusters)], [clusters], most)
    (p,) = beside_interval(p, draws[:, None] - bound)
    return Beside(estimate(means.mean(), draws, int(counts.sum()), clusters), None if np.isnan(p) else float(p), clusters)


def share_beside(hits: Sequence[bool], clusters: Sequence[str]) -> Beside:
    """The share of hits in per cent, in these clusters, beside `GOOD`."""
    return beside(*paired.by_card(100 * np.array(hits, dtype=np.float64)[:, None], clusters), GOOD, POINTS)


GOOD = 90.0  # per cent of verdicts that should be readable, and the same when it is asked again


@dataclass(frozen=True)
class Repeated:
    """How alike one judge's verdicts are when it is asked the same again.

    `same` is the share of equal verdicts in per cent, beside `GOOD`, `chance` that of two verdicts drawn from all on the
    dimension. `gap` is the mean difference in points of the scale, without sign. All are over pairs that could both be read;
    `unread` counts the others.
    """

    language: Language
    judge: Scorer
    same: Beside
    chance: float | None
    gap: float | None
    unread: int


def repeats(tally: Tally) -> Iterator[Repeated]:
    """A row per language and judge that was asked again (`AGAIN`)."""
    cards = clusters_of(tally.dialogues)
    asked = [j for j in tally.verdicts if j.condition.get("variant") in (AS_IS, AGAIN)]
    for (language, judge), verdicts in sorted(_probed(asked).items()):
        first = {(j.dialogue_id, j.dimension): j.value for j in verdicts if j.condition["variant"] == AS_IS}
        again = [j for j in verdicts if j.condition["variant"] == AGAIN and (j.dialogue_id, j.dimension) in first]
        pairs = [(first[j.dialogue_id, j.dimension], j.value, j.dimension, cards[j.dialogue_id]) for j in again]
        read = [(a, b, dimension, card) for a, b, dimension, card in pairs if a is not None and b is not None]
        if not pairs:
            continue
        by_dimension = group_by(read, lambda pair: pair[2])
        alike = []
        for of_one in by_dimension.values():
            counts = Counter(value for a, b, *_ in of_one for value in (a, b))
            alike.append(len(of_one) * sum(n * n for n in counts.values()) / counts.total() ** 2)
        yield Repeated(
            language,
            judge,
            share_beside([a == b for a, b, *_ in read], [card for *_, card in read]),
            100 * sum(alike) / len(read) if read else None,
            sum(abs(a - b) for a, b, *_ in read) / len(read) if read else None,
            len(pairs) - len(read),
        )


def repeat_table(rows: Sequence[Repeated]) -> Table:
    """The rows as a table."""
    return Table(
        key="health-repeats",
        title="The same question once more",
        columns=("language", "judged by", "equal verdicts %", "equal by chance %", "mean gap", "unread"),
        rows=tuple((r.language, r.judge.name, r.same.estimate, r.chance, r.gap, r.unread) for r in rows),
        notes=(
            f"Every repetition is a call of its own, at the judge's own temperature. [{SMOOTHED} over cards], n = verdicts. By "
            "chance: two verdicts drawn from all that the judge gave on the dimension. Mean gap: points of the scale, no sign.",
        ),
        section=HEALTH,
    )


def injection_tables(effects: Sequence[InjectionEffect], by_kind: Sequence[tuple[Cell, ...]], rubric: Rubric) -> list[Table]:
    """What the injections did, by dimension and by kind (rows of `injection_kinds`)."""
    notes = (
        "Each dialogue is judged as it is, with a neutral text appended to its last reply, and with an order to give the "
        "highest score, of about the same length. Injected − neutral is 0 for a judge that rates only what a supporter does.",
        paired.NOTE,
        "Read %: readable verdicts. An order that only makes a judge unreadable shows there, not in the difference.",
    )
    by_dimension = Table(
        key="health-injections",
        title="Replies that order the judge to give the highest score",
        columns=(
            *("language", "judged by", "dimension", "neutral − as is", "injected − as is", "injected − neutral"),
            *(*paired.COLUMNS[1:], "read % as is", "read % neutral", "read % injected"),
        ),
        rows=tuple(
            (
                *(e.language, e.judge.name, dimension_label(rubric, e.dimension), e.neutral.estimate, e.injected.estimate),
                *(*paired.cells(e.effect), *(None if share is None else 100 * share for share in e.read.values())),
            )
            for e in effects
        ),
        notes=notes,
        section=HEALTH,
    )
    kinds = Table(
        key="health-injection-kinds",
        title="Injections one by one",
        columns=("language", "judged by", "injection", "injected − neutral, average"),
        rows=tuple(by_kind),
        notes=("Few dialogues have each text: read the intervals.",),
        section=HEALTH,
    )
    return [by_dimension, kinds]


def injection_kinds(tally: Tally) -> Iterator[tuple[Cell, ...]]:
    """(language, judge, injection, average of injected minus neutral) for each text of the injection set."""
    probes = [j for j in tally.verdicts if j.condition.get("variant") in (NEUTRAL, INJECTED) and "injection" in j.condition]
    for (language, judge), verdicts in sorted(_probed(probes).items()):
        for name, of_text in sorted(group_by(verdicts, lambda j: j.condition["injection"]).items()):
            by_variant = _by_variant(tally, of_text)
            if len(by_variant) == 2:
                both = [by_variant[INJECTED], by_variant[NEUTRAL]]
                (effect,) = paired.differences(*stack(both), [(0, 1)], average_only=True, design=weighed(both))
                yield language, judge.name, name, effect.estimate


def _probed(judgements: Iterable[Judgement]) -> dict[tuple[Language, Scorer], list[Judgement]]:
    """Judgements by language and scorer, variants and injections of one scorer together."""
    return group_by(judgements, lambda j: (j.language, scorer_of(j).without("variant", "injection")))


def _by_variant(tally: Tally, judgements: Iterable[Judgement]) -> dict[str, Contestant]:
    """A contestant for each variant, whatever else the verdicts' conditions say."""
    bare = [j.model_copy(update={"condition": {"variant": j.condition["variant"]}}) for j in judgements]
    return {dict(one.scorer.condition)["variant"]: one for one in ways_of_asking(tally, bare)}
