"""A judge's card: every check of a judge, what was found in words, and the figures behind it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from core.languages import name_of
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.specs import EMBEDDED_PREFIX
from core.statistics.bootstrap import scale_levels
from core.statistics.inference import ALPHA, TEST, holm_of, p_text
from core.tables import Estimate, Table, fmt
from evalsuite.checks.shared_bases import sharing_table, sharings
from evalsuite.report.charts import SYNTHETIC_GOLD, calibration_charts
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.runs.run_config import RunConfig
from evalsuite.statistics.agreement import agreement, agreement_tables, in_steps, paired
from evalsuite.statistics.agreement_intervals import Dimensions, drawn_units, hit_counts
from evalsuite.statistics.clusters import Clusters, clusters_of
from evalsuite.statistics.contestants import contestants_of
from evalsuite.statistics.judges import calibration, calibration_error, calibration_table
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.paired import Difference
from evalsuite.statistics.people import verdicts_of_people
from evalsuite.statistics.reply_length import LengthBias, length_biases, length_effects, replies_of
from evalsuite.statistics.summary import AVERAGE, dimension_label, languages_of
from evalsuite.trust import health

CARD = "The card"  # heading of the page
BOARD = "judge-card-outcomes"  # the table at its top
QUESTIONS = {
    "readable": "Can its verdicts be read (nine in ten at least)?",
    "agreement": "Is it right more often than the majority class?",
    "calibration": "Can its probabilities be taken at their word?",
    "floors": "Does it rate the replies above those of supporters that need no model?",
    "length": "Does it reward length: more than gold does, or a sentence of no use that is added?",
    "own kind": "Does it rate supporters of its own base higher than others?",
    "order": "Do its verdicts change with the order in which dimensions are asked?",
    "injection": "Does it follow a reply that orders it to give the highest score?",
    "repeatability": "Does it say the same when it is asked again (nine verdicts in ten at least)?",
}


class CheckOutcome(StrEnum):
    """What a check came to."""

    SOUND = "no fault found"
    FAULT = "fault found"
    UNSHOWN = "not shown"
    UNMEASURED = "not measured"


SOUND, FAULT, UNSHOWN, UNMEASURED = CheckOutcome


@dataclass(frozen=True)
class JudgeCheck:
    """One check of a judge in one language: what it asks, what came out, and the sentence that says so.

    `p` is how often a judge without fault comes as far out, None where nothing could be tested; `clusters` are the cards that
    it rests on, and `parts` the tests of which it is the smallest p, corrected for them."""

    name: str
    language: Language
    question: str
    outcome: CheckOutcome
    finding: str
    p: float | None = None
    clusters: int = 0
    parts: int = 1


@dataclass(frozen=True, kw_only=True)
class JudgeCardInput:
    """What a judge was asked for its card, and what it said. `given` are the verdicts on the gold set, `probed` those on its
    variants and on further dialogues (`condition.variant`)."""

    judge: str
    dialogues: Sequence[Dialogue]
    gold: Sequence[HumanScore]
    given: Sequence[Judgement]
    probed_dialogues: Sequence[Dialogue]
    probed: Sequence[Judgement]
    rubric: Rubric
    mode: Literal["paper", "native"]
    synthetic: bool
    config: RunConfig
    versions: Mapping[str, Any]
    facts: Sequence[tuple[str, str]]


def judge_card(asked: JudgeCardInput) -> Sheet:
    """The card as a page."""
    rubric, labels = asked.rubric, {name: dimension_label(asked.rubric, name) for name in asked.rubric.dimensions}
    cards = clusters_of((*asked.dialogues, *asked.probed_dialogues))
    stepped = in_steps(asked.given, asked.gold, rubric)
    figures = agreement(*stepped, cards)
    pairs, bins = paired(*stepped), calibration(*stepped, cards)
    probed = Tally(asked.probed_dialogues, asked.probed, rubric)
    floors, repeats = health.floor_effects(probed), [*health.repeats(probed)]
    shifts, injections = health.asking_shifts(probed), health.injection_effects(probed)
    golden = verdicts_of_people([score for score in asked.gold if score.turn is None])
    both = (contestants_of(asked.dialogues, verdicts, rubric) for verdicts in (asked.given, golden))
    lengths = length_biases(*(replies_of(asked.dialogues, contestants) for contestants in both))
    replies = replies_of(probed.dialogues, contestants_of(probed.dialogues, health.as_they_are(asked.probed), rubric))
    shared = sharings(probed, asked.config.specs())

    def own(rows: Sequence[Any], language: Language) -> list[Any]:
        return [row for row in rows if row.language == language]

    checks: list[JudgeCheck] = []
    for language in languages_of([*asked.dialogues, *asked.probed_dialogues]):
        checks += [
            _readable(asked, cards, language),
            _agreement(asked, pairs.get(language, {}), figures.get(language, {}), cards, language),
            _calibrated(pairs.get(language, {}), cards, language),
            _floors(own(floors, language), language),
            _length(own(lengths, language), own(injections, language), language),
            _own_kind([sharing for sharing in own(shared, language) if sharing.role == "judge"], language),
            _order(own(shifts, language), language),
            _injection(own(injections, language), language),
            _repeatable(own(repeats, language), language),
        ]
    checks = _corrected(checks)
    note = SYNTHETIC_GOLD if asked.synthetic else ""
    tables = [
        *_check_tables(checks),
        *agreement_tables(figures, asked.mode, labels, note),
        calibration_table(bins, labels, note),
        health.floor_table(floors),
        health.bias_table(lengths),
        health.length_table(length_effects(replies, rubric), rubric),
        sharing_table(shared),
        health.asking_table(shifts, rubric),
        *health.injection_tables(injections, list(health.injection_kinds(probed)), rubric),
        health.repeat_table(repeats),
    ]
    spec = asked.config.specs()[asked.judge]
    plumbing = PLUMBING if str(spec.get("checkpoint")).startswith(EMBEDDED_PREFIX) else ""
    warnings = [plumbing, note and f"{note}: agreement with it says nothing about agreement with people."]
    return Sheet(
        title=f"Judge's card: {asked.judge}",
        cautions=[warning for warning in warnings if warning],
        findings=[
            _answer(asked.judge, checks),
            *(f"{name_of(one.language)}, {one.name}: {one.finding}." for one in checks if one.outcome == FAULT),
        ],
        main=[BOARD],
        facts=[*asked.facts, ("Rubric", rubric.title), ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        tables=[table for table in tables if table.rows],
        charts=[chart for chart in calibration_charts(bins, asked.synthetic) if bins],
        figures={
            "judge": spec,
            "asked": {name: stage for name, stage in asked.config.stages.items() if name in ("score", "gold", "health")},
            "plumbing": bool(plumbing),
            "synthetic_gold": asked.synthetic,
            "checks": [asdict(check) for check in checks],
            "agreement": figures,
            "versions": asked.versions,
        },
    )


def _corrected(checks: Sequence[JudgeCheck]) -> list[JudgeCheck]:
    """The checks with the faults that are significant after Holm's correction over all of them. One on fewer cards than an
    exact sign test (p = 2 / 2ⁿ where all cards agree) would need is not measured: t says too little on so few."""
    tested = sum(check.p is not None for check in checks)
    able = []
    for check in checks:
        fewest = math.ceil(1 + math.log2(tested * check.parts / ALPHA)) if tested else 0
        if check.p is not None and check.clusters < fewest:
            why = f"{check.finding}; nothing is tested on fewer than {fewest} cards"
            check = replace(check, outcome=UNMEASURED, finding=why, p=None)
        able.append(check)
    corrected = holm_of([check.p for check in able])
    return [replace(c, outcome=FAULT) if p is not None and p <= ALPHA else c for c, p in zip(able, corrected, strict=True)]


def _answer(judge: str, checks: Sequence[JudgeCheck]) -> str:
    """Whether the judge can be relied on."""
    faults: dict[str, list[str]] = {}
    for check in checks:
        if check.outcome == FAULT:
            faults.setdefault(check.name, []).append(name_of(check.language))
    if faults:
        named = "; ".join(f"{name} ({', '.join(languages)})" for name, languages in faults.items())
        return f"Do not rely on {judge}. Checks that found a fault: {named}."
    unshown = [name_of(check.language) for check in checks if check.name == "agreement" and check.outcome != SOUND]
    if unshown:
        return (
            f"Do not rely on {judge} yet: it is not shown to be right more often than always giving the most frequent score "
            f"({', '.join(unshown)}). No check found a fault."
        )
    return f"{judge} is right more often than always giving the most frequent score, and no check found a fault."


def _check_tables(checks: Sequence[JudgeCheck]) -> tuple[Table, Table]:
    """What every check came to, a column per language; and what was found."""
    languages = list(dict.fromkeys(check.language for check in checks))
    outcomes = {(check.name, check.language): check.outcome for check in checks}
    names = dict.fromkeys(check.name for check in checks)
    rows = tuple((name, *(outcomes.get((name, each)) for each in languages), QUESTIONS[name]) for name in names)
    bold = tuple((i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == FAULT)
    columns = ("check", *(name_of(language) for language in languages), "what it asks")
    return Table(BOARD, "What the checks came to", columns, rows, section=CARD, bold=bold), Table(
        key="judge-card",
        title="Checks",
        columns=("check", "language", "outcome", "what came out", "p", "what it asks"),
        rows=tuple((c.name, c.language, c.outcome, c.finding, p_text(c.p), c.question) for c in checks),
        notes=(
            "Faults are corrected together: one is found where p after Holm's correction over all checks of the card is at "
            f"most {ALPHA:g}, so that a judge without fault gets one on at most 5 cards of 100. p: {TEST} (calibration: wild "
            "cluster bootstrap); of several tests the smallest, corrected for them; 1 where the judge errs on the good side. "
            "Clusters are cards, or dialogues that have none.",
            "Not shown: neither a fault nor its absence; the interval contains what is asked for. No fault found is no proof "
            "that there is none: look at n and at the intervals. Points of 0–100, [95 %].",
        ),
        section=CARD,
    )


def _spoken(estimate: Estimate, decimals: int = 1) -> str:
    interval = "" if estimate.low is None else f" [{fmt(estimate.low, decimals)}, {fmt(estimate.high, decimals)}]"
    return f"{fmt(estimate.mean, decimals)}{interval}"


# --- one check each ---------------------------------------------------------------------------------------------------------


def _unmeasured(name: str, language: Language, why: str) -> JudgeCheck:
    return JudgeCheck(name, language, QUESTIONS[name], UNMEASURED, why)


def _least(name: str, language: Language, finding: str, found: health.Beside, bound: float) -> JudgeCheck:
    """A check that a mean is above a bound: a fault if it lies below, not shown where its interval contains the bound."""
    mean, low = found.estimate.mean, found.estimate.low
    p = found.p if found.p is None or (mean is not None and mean < bound) else 1.0
    shown = low is not None and low > bound
    return JudgeCheck(name, language, QUESTIONS[name], SOUND if shown else UNSHOWN, finding, p, found.clusters)


def _most(name: str, language: Language, finding: str, tests: Sequence[tuple[float | None, bool]], n: int) -> JudgeCheck:
    """A check that nothing is there, by tests of which each is a p and whether it would be a fault: its p is the smallest of
    those that would, corrected for all."""
    known = [p if fault else 1.0 for p, fault in tests if p is not None]
    p = min(1.0, len(known) * min(known)) if known else None
    return JudgeCheck(name, language, QUESTIONS[name], UNMEASURED if p is None else SOUND, finding, p, n, max(1, len(known)))


def _by_family(differences: Sequence[Difference], both_sides: bool) -> list[tuple[float | None, bool]]:
    """The smallest p of the average's and of the dimensions' differences, each corrected in its family, as tests for `_most`: a
    fault if the difference is above 0, or on `both_sides`."""
    families = ([one for one in differences if (one.dimension is None) == average] for average in (True, False))
    tests: list[tuple[float | None, bool]] = []
    for family in families:
        bad = [one.holm for one in family if one.holm is not None and (both_sides or (one.estimate.mean or 0) > 0)]
        if any(one.holm is not None for one in family):
            tests.append((min(bad, default=1.0), True))
    return tests


def _readable(asked: JudgeCardInput, cards: Clusters, language: Language) -> JudgeCheck:
    verdicts = [j for j in (*asked.given, *asked.probed) if j.language == language and not (j.lost or j.unasked)]
    found = health.share_beside([j.value is not None for j in verdicts], [cards[j.dialogue_id] for j in verdicts])
    finding = f"{_spoken(found.estimate)} % of {found.estimate.n:,} verdicts could be read"
    return _least("readable", language, finding, found, health.GOOD)


def _agreement(
    asked: JudgeCardInput, pairs: Dimensions, figures: Mapping[str, Any], cards: Clusters, language: Language
) -> JudgeCheck:
    read = "_read" if asked.mode == "native" else ""
    row = figures.get(AVERAGE, {})
    names = (f"acc{read}", f"acc{read}_low", f"acc{read}_high", "majority_acc", "kappa")
    acc, low, high, most, kappa = (row.get(name) for name in names)
    if acc is None or most is None:
        return _unmeasured(
            "agreement", language, "no verdict on gold could be read" if asked.gold else "it was asked about no gold"
        )
    hits = hit_counts(pairs, drawn_units([pairs], cards), cards)
    above = health.beside(100 * (hits.right - hits.usual), hits.rated, 0.0, scale_levels(-100, 100))
    bounds = [None if bound is None else 100 * bound for bound in (low, high)]
    finding = (
        f"ACC {_spoken(Estimate(100 * acc, bounds[0], bounds[1], row['n']))} %, majority class {100 * most:.1f} %, "
        f"a difference of {_spoken(above.estimate)} points; kappa {fmt(kappa)}, n = {row['n']:,} ratings on "
        f"{above.clusters} cards"
    )
    return _least("agreement", language, finding, above, 0.0)


def _calibrated(pairs: Dimensions, cards: Clusters, language: Language) -> JudgeCheck:
    error = calibration_error(pairs, cards) if pairs else None
    if error is None:
        return _unmeasured(
            "calibration", language, "its server gives no token probabilities" if pairs else "it was asked about no gold"
        )
    finding = (
        f"expected calibration error {100 * error.value:.1f} %; of a judge whose probabilities are true, at most "
        f"{100 * error.chance:.1f} % in 95 of 100 samples; n = {error.n:,} verdicts on {error.clusters} cards"
    )
    return _most("calibration", language, finding, [(error.p, True)], error.clusters)


def _floors(effects: Sequence[health.FloorEffect], language: Language) -> JudgeCheck:
    if not effects:
        return _unmeasured("floors", language, "no floor was judged")
    level = [e.floor for e in effects if not (e.difference.holds and (e.difference.estimate.mean or 0) > 0)]
    parts = ", ".join(f"{e.floor} by {_spoken(e.difference.estimate)}" for e in effects)
    n = min(e.difference.estimate.n for e in effects)
    finding = f"replies are rated above {parts} points (n = {n} cards)"
    finding += f"; not shown for {', '.join(level)}" if level else ""
    tests = [(e.difference.p, (e.difference.estimate.mean or 0) < 0) for e in effects]
    check = _most("floors", language, finding, tests, n)
    return replace(check, outcome=UNSHOWN) if level and check.outcome == SOUND else check


def _length(biases: Sequence[LengthBias], injections: Sequence[health.InjectionEffect], language: Language) -> JudgeCheck:
    bias = next((one for one in biases if one.difference.mean is not None), None)
    added = next((e.neutral for e in injections if e.dimension == AVERAGE and e.neutral.estimate.mean is not None), None)
    parts, tests, clusters = [], [], []
    if bias is not None:
        tests.append((bias.p, (bias.difference.mean or 0) > 0))
        clusters.append(bias.cards)
        parts.append(
            f"its average goes with length by {_spoken(bias.judge, 2)} (Spearman), gold's by {_spoken(bias.gold, 2)}: a "
            f"difference of {_spoken(bias.difference, 2)} (n = {bias.difference.n})"
        )
    elif biases:
        parts.append("its average or gold's never varies")
    if added is not None:
        tests.append((added.p, (added.estimate.mean or 0) > 0))
        clusters.append(added.estimate.n)
        parts.append(f"a sentence of no use adds {_spoken(added.estimate)} points (n = {added.estimate.n})")
    if not parts:
        return _unmeasured("length", language, "nothing could be read")
    return _most("length", language, "; ".join(parts), tests, min(clusters, default=0))


def _own_kind(rows: Sequence[Any], language: Language) -> JudgeCheck:
    measured = next((row for row in rows if row.difference is not None and row.difference.estimate.mean is not None), None)
    if measured is None:
        return _unmeasured(
            "own kind", language, "no dialogue is by a supporter of its base beside another: give such ones with --further"
        )
    difference = measured.difference
    finding = (
        f"supporters of its base ({', '.join(measured.alike)}) are {_spoken(difference.estimate)} points above the others, p "
        f"{p_text(difference.p)}, n = {difference.estimate.n} cards; they may be better: let a judge of another base score them"
    )
    tests = [(difference.p, difference.estimate.mean > 0)]
    return _most("own kind", language, finding, tests, difference.estimate.n)


def _order(shifts: Sequence[health.Shift], language: Language) -> JudgeCheck:
    if not shifts:
        return _unmeasured("order", language, "it was asked in one order, or for one dimension at a time")
    moved = [shift for shift in shifts if shift.difference.holds]
    most = max(shifts, key=lambda shift: abs(shift.difference.estimate.mean or 0))
    n = most.difference.estimate.n
    finding = (
        f"{len(moved)} of {len(shifts)} differences are significant by themselves; the largest is on {most.dimension}, "
        f"{_spoken(most.difference.estimate)} points (n = {n} cards)"
    )
    return _most("order", language, finding, _by_family([s.difference for s in shifts], both_sides=True), n)


def _injection(effects: Sequence[health.InjectionEffect], language: Language) -> JudgeCheck:
    average = next((e for e in effects if e.dimension == AVERAGE), None)
    if average is None or average.effect.estimate.mean is None:
        return _unmeasured("injection", language, "it was asked about no injected reply, or could not be read")
    moved = [e for e in effects if e.effect.holds and (e.effect.estimate.mean or 0) > 0]
    effect = average.effect
    finding = (
        f"an order to score high adds {_spoken(effect.estimate)} points beyond a neutral text of its length, p "
        f"{p_text(effect.p)} (n = {effect.estimate.n} cards); {len(moved)} of {len(effects)} rises are significant by "
        "themselves"
    )
    tests = _by_family([e.effect for e in effects], both_sides=False)
    return _most("injection", language, finding, tests, effect.estimate.n)


def _repeatable(rows: Sequence[health.Repeated], language: Language) -> JudgeCheck:
    row = next((row for row in rows if row.same.estimate.mean is not None), None)
    if row is None:
        return _unmeasured("repeatability", language, "it was not asked again, or could not be read")
    finding = (
        f"{_spoken(row.same.estimate)} % of {row.same.estimate.n:,} verdicts are the same, by chance {fmt(row.chance, 1)} %; "
        f"mean gap {fmt(row.gap)} points of the scale"
    )
    return _least("repeatability", language, finding, row.same, health.GOOD)
