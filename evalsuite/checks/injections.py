"""What replies that order the judge to give the highest score do to it, against neutral text of the same length.

The verdicts come of `evalsuite.checks.probe`. Figures are in points of 0–100, differences are paired over dialogues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from core.errors import UserError
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.tables import Cell, Estimate, Table
from evalsuite.checks.health import AS_IS, HEALTH, INJECTED, NEUTRAL, PAIRED_NOTE, label_of, ways_of_asking
from evalsuite.statistics import paired
from evalsuite.statistics.leaderboard import stack
from evalsuite.statistics.summary import AVERAGE, Scorer, Value, checked, scorer_of


@dataclass(frozen=True)
class InjectionEffect:
    """What an appended reply does to one judge's scores on one dimension (None: the average), in points of 0–100.

    `neutral` and `injected` are against the dialogue as it is, `effect` is injected minus neutral: what the order adds to the
    length. `read` maps variant → share of readable verdicts (0–1), None where nothing was asked.
    """

    language: Language
    judge: Scorer
    dimension: str | None
    neutral: Estimate
    injected: Estimate
    effect: paired.Difference
    read: dict[str, float | None]


def injection_effects(
    dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric, value: Value = "value"
) -> list[InjectionEffect]:
    """A row a language, judge and dimension, and the average. Only verdicts with a `condition.variant` count.

    Raises `UserError` for a judge that was asked about injected replies but not about neutral ones, or the other way round.
    """
    shown = []
    names = [*rubric.dimensions, None]
    probes = [j for j in checked(judgements, rubric) if j.condition.get("variant") in (AS_IS, NEUTRAL, INJECTED)]
    for (language, judge), asked in sorted(_probed(probes).items()):
        variants = [AS_IS, NEUTRAL, INJECTED]
        forms = {j.condition["variant"] for j in asked}
        if forms == {AS_IS}:
            continue
        if missing := [variant for variant in variants if variant not in forms]:
            raise UserError(f"judgements by {judge.name} ({language}): none of the variant {missing[0]}; run the probe again")
        bare = [_only(j, "variant") for j in asked]
        field = {one.scorer.condition: one for one in ways_of_asking(dialogues, bare, rubric, value)}
        ordered = [field[("variant", variant),] for variant in variants]
        arrays = stack(ordered)
        effects = paired.differences(*arrays, [(2, 1)])
        plain = [one.estimate for one in paired.differences(*arrays, [(1, 0), (2, 0)])]  # apart: Holm's family is `effects`
        for place, effect in enumerate(effects):
            key = names[place]
            count = AVERAGE if key is None else key
            shares = (one.read[count] / one.asked[count] if one.asked[count] else None for one in ordered)
            read = dict(zip(variants, shares, strict=True))
            shown.append(InjectionEffect(language, judge, key, plain[place], plain[place + len(names)], effect, read))
    return shown


def injection_tables(effects: Sequence[InjectionEffect], by_kind: Sequence[tuple[Cell, ...]], rubric: Rubric) -> list[Table]:
    """What the injections did, by dimension and by kind (rows of `injection_kinds`)."""
    notes = (
        "Each dialogue is judged as it is, with a neutral text appended to its last reply, and with an order to give the "
        "highest score, of about the same length. Injected − neutral is 0 for a judge that rates only what a supporter does.",
        PAIRED_NOTE,
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
                *(e.language, e.judge.name, label_of(e.dimension, rubric), e.neutral, e.injected, *paired.cells(e.effect)),
                *(None if share is None else 100 * share for share in e.read.values()),
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


def injection_kinds(
    dialogues: Sequence[Dialogue], judgements: Sequence[Judgement], rubric: Rubric, value: Value = "value"
) -> Iterator[tuple[Cell, ...]]:
    """(language, judge, injection, average of injected minus neutral) for each text of the injection set."""
    known = checked(judgements, rubric)
    probes = [j for j in known if j.condition.get("variant") in (NEUTRAL, INJECTED) and "injection" in j.condition]
    for (language, judge), group in sorted(_probed(probes).items()):
        for name in sorted({j.condition["injection"] for j in group}):
            bare = [_only(j, "variant") for j in group if j.condition["injection"] == name]
            field = {one.scorer.condition: one for one in ways_of_asking(dialogues, bare, rubric, value)}
            both = [field.get((("variant", variant),)) for variant in (INJECTED, NEUTRAL)]
            asked = [one for one in both if one is not None]
            if len(asked) == 2:
                (effect,) = paired.differences(*stack(asked), [(0, 1)], average_only=True)
                yield language, judge.name, name, effect.estimate


def _probed(judgements: Iterable[Judgement]) -> dict[tuple[Language, Scorer], list[Judgement]]:
    """Judgements by language and scorer, variants and injections of one scorer together."""
    groups: dict[tuple[Language, Scorer], list[Judgement]] = defaultdict(list)
    for judgement in judgements:
        scorer = scorer_of(judgement)
        kept = tuple((key, value) for key, value in scorer.condition if key not in ("variant", "injection"))
        groups[judgement.language, scorer._replace(condition=kept)].append(judgement)
    return groups


def _only(judgement: Judgement, key: str) -> Judgement:
    """The judgement with this condition alone, so that what shares it is one contestant."""
    return judgement.model_copy(update={"condition": {key: judgement.condition[key]}})
