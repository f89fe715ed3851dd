"""A judge's card: every check of a judge, what was found in words, and the figures behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.specs import EMBEDDED_PREFIX
from core.statistics.accuracy import share
from core.tables import Estimate, Table, fmt
from evalsuite.checks import health
from evalsuite.checks.shared_bases import sharing_table, sharings
from evalsuite.report.charts import LANGUAGES, SYNTHETIC_GOLD, calibration_charts
from evalsuite.report.headlines import doubt
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.runs.run_config import RunConfig
from evalsuite.statistics.agreement import agreement, agreement_tables
from evalsuite.statistics.judges import Bin, calibration, calibration_error, calibration_table
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.paired import ALPHA, fewest_cards, p_text
from evalsuite.statistics.people import verdicts_of_people
from evalsuite.statistics.reply_length import LengthEffect, length_effects, replies_of
from evalsuite.statistics.summary import AVERAGE, TROUBLE, dimension_label, languages_of

CARD = "The card"  # heading of the page


class Outcome(StrEnum):
    """What a check came to."""

    SOUND = "no fault found"
    FAULT = "fault found"
    UNMEASURED = "not measured"


SOUND, FAULT, UNMEASURED = Outcome


@dataclass(frozen=True)
class Check:
    """One check of a judge in one language: what it asks, what came out, and the sentence that says so."""

    name: str
    language: Language
    question: str
    outcome: Outcome
    finding: str


@dataclass(frozen=True, kw_only=True)
class Asked:
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


def judge_card(asked: Asked) -> Sheet:
    """The card as a page."""
    rubric, labels = asked.rubric, {name: dimension_label(asked.rubric, name) for name in asked.rubric.dimensions}
    figures = agreement(asked.given, asked.gold)
    bins = calibration(asked.given, asked.gold)
    probed = Tally(asked.probed_dialogues, asked.probed, rubric)
    floors, repeats = health.floor_effects(probed), [*health.repeats(asked.probed, rubric)]
    shifts, injections = health.asking_shifts(probed), health.injection_effects(probed)
    excess = _excess_by_length(asked)
    shared = sharings(probed, asked.config.specs())
    checks: list[Check] = []
    for language in languages_of(asked.dialogues):
        checks += [
            _readable(asked, language),
            _agreement(asked, figures, language),
            _calibrated([b for b in bins if b.language == language], language),
            _floors([e for e in floors if e.language == language], language),
            _length([e for e in excess if e.language == language], [e for e in injections if e.language == language], language),
            _own_kind([s for s in shared if s.language == language and s.role == "judge"], language),
            _order([s for s in shifts if s.language == language], language),
            _injection([e for e in injections if e.language == language], language),
            _repeatable([r for r in repeats if r.language == language], language),
        ]
    note = SYNTHETIC_GOLD if asked.synthetic else ""
    tables = [
        _check_table(checks),
        *agreement_tables(figures, asked.mode, labels, note),
        *([calibration_table(bins, labels, note)] if bins else []),
        health.floor_table(floors),
        replace(
            health.length_table(excess, rubric),
            key="judge-card-length",
            title="Score above gold against mean reply length (Spearman's correlation)",
        ),
        sharing_table(shared),
        *([health.asking_table(shifts, rubric)] if shifts else []),
        *(health.injection_tables(injections, list(health.injection_kinds(probed)), rubric) if injections else []),
        health.repeat_table(repeats),
    ]
    spec = asked.config.specs()[asked.judge]
    plumbing = PLUMBING if str(spec.get("checkpoint")).startswith(EMBEDDED_PREFIX) else ""
    warnings = [plumbing, f"{SYNTHETIC_GOLD}: agreement with it says nothing about agreement with people." if note else ""]
    return Sheet(
        title=f"Judge's card: {asked.judge}",
        cautions=[warning for warning in warnings if warning],
        findings=list(_findings(checks)),
        facts=[*asked.facts, ("Rubric", f"{rubric.name} ({rubric.source})"), ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        tables=tables,
        charts=[chart for chart in calibration_charts(bins, asked.synthetic) if bins],
        figures={
            "judge": spec,
            "asked": {stage: settings for stage, settings in asked.config.stages.items() if stage in ("gold", "health")},
            "plumbing": bool(plumbing),
            "synthetic_gold": asked.synthetic,
            "checks": [asdict(check) for check in checks],
            "agreement": figures,
            "versions": asked.versions,
        },
    )


def _findings(checks: Sequence[Check]) -> Iterator[str]:
    """The faults, one a sentence, then what was not measured."""
    faults = [check for check in checks if check.outcome == FAULT]
    yield f"{len(faults)} of {len(checks)} checks found a fault." if faults else "No check found a fault."
    for check in faults:
        yield f"{LANGUAGES[check.language]}, {check.name}: {check.finding}"
    if unmeasured := dict.fromkeys(check.name for check in checks if check.outcome == UNMEASURED):
        yield f"Not measured: {', '.join(unmeasured)} (the table says why)."


def _check_table(checks: Sequence[Check]) -> Table:
    return Table(
        key="judge-card",
        title="Checks",
        columns=("check", "language", "outcome", "what came out", "what it asks"),
        rows=tuple((c.name, c.language, c.outcome, c.finding, c.question) for c in checks),
        notes=("No fault found is no proof that there is none: look at n and at the intervals. Points of 0–100, [95 %].",),
        section=CARD,
    )


def _spoken(estimate: Estimate, decimals: int = 1) -> str:
    interval = "" if estimate.low is None else f" [{fmt(estimate.low, decimals)}, {fmt(estimate.high, decimals)}]"
    return f"{fmt(estimate.mean, decimals)}{interval}"


# --- one check each ---------------------------------------------------------------------------------------------------------


def _tested(check: Check, n: int, tests: int = 1) -> Check:
    """A check by tests over n dialogues or cards, of which none could have held if there are too few: not measured then."""
    least = fewest_cards(tests)
    if n >= least:
        return check
    return replace(check, outcome=UNMEASURED, finding=f"{check.finding}; nothing can be shown on fewer than {least}")


def _readable(asked: Asked, language: Language) -> Check:
    verdicts = [j for j in (*asked.given, *asked.probed) if j.language == language and not j.lost]
    read = share(sum(j.value is not None for j in verdicts), len(verdicts))
    outcome = FAULT if read.mean is None or read.mean < 100 * (1 - TROUBLE) else SOUND
    finding = f"{_spoken(read)} % of {read.n:,} verdicts could be read"
    return Check("readable", language, "Can its verdicts be read (nine in ten at least)?", outcome, finding)


def _agreement(asked: Asked, figures: Mapping[str, Any], language: Language) -> Check:
    why = doubt({asked.judge: figures}, asked.judge, language)
    row = figures.get(language, {}).get(AVERAGE, {})
    read = "_read" if asked.mode == "native" else ""
    acc, low, high, most, kappa = (
        row.get(name) for name in (f"acc{read}", f"acc{read}_low", f"acc{read}_high", "majority_acc", "kappa")
    )
    question = "Is it right more often than the majority class?"
    if acc is None or most is None:
        return Check("agreement", language, question, UNMEASURED, "no verdict on gold could be read")
    bounds = [None if bound is None else 100 * bound for bound in (low, high)]
    finding = (
        f"ACC {_spoken(Estimate(100 * acc, bounds[0], bounds[1], row['n']))} %, majority class {100 * most:.1f} %, kappa "
        f"{fmt(kappa)}, n = {row['n']:,} ratings"
    )
    return Check("agreement", language, question, FAULT if why else SOUND, finding)


def _calibrated(bins: Sequence[Bin], language: Language) -> Check:
    question = "Can its probabilities be taken at their word?"
    error = calibration_error(bins)
    if error is None:
        return Check("calibration", language, question, UNMEASURED, "its server gives no token probabilities")
    finding = (
        f"expected calibration error {100 * error.value:.1f} %; of a judge whose probabilities are true, at most "
        f"{100 * error.chance:.1f} % in 95 of 100 samples; n = {error.n:,} verdicts"
    )
    return Check("calibration", language, question, FAULT if error.value > error.chance else SOUND, finding)


def _floors(effects: Sequence[health.FloorEffect], language: Language) -> Check:
    question = "Does it rate the replies above those of supporters that need no model?"
    if not effects:
        return Check("floors", language, question, UNMEASURED, "no floor was judged")
    level = [e.floor for e in effects if not (e.difference.holds and (e.difference.estimate.mean or 0) > 0)]
    parts = ", ".join(f"{e.floor} by {_spoken(e.difference.estimate)}" for e in effects)
    n = min(e.difference.estimate.n for e in effects)
    finding = f"replies are rated above {parts} points (n = {n})"
    finding += f"; not shown for {', '.join(level)}" if level else ""
    return _tested(Check("floors", language, question, FAULT if level else SOUND, finding), n, len(effects))


def _excess_by_length(asked: Asked) -> list[LengthEffect]:
    """Spearman's correlation of the average above gold's with the length of replies. (Longer replies may be better: gold
    then says so, too.)"""
    judged = replies_of(asked.dialogues, asked.given, asked.rubric)
    golden = replies_of(asked.dialogues, verdicts_of_people([s for s in asked.gold if s.turn is None]), asked.rubric)
    by_who = {(one.language, one.supporter): one for one in golden}
    excess = []
    for one in judged:
        gold = by_who.get((one.language, one.supporter))
        # Both come sorted by dialogue: equal lengths are the same dialogues.
        if gold is not None and np.array_equal(gold.lengths, one.lengths):
            excess.append(replace(one, scores=one.scores - gold.scores))
    return length_effects(excess, asked.rubric)


def _length(excess: Sequence[LengthEffect], injections: Sequence[health.InjectionEffect], language: Language) -> Check:
    question = "Does it reward length: above what gold says of longer replies, or a sentence of no use that is added?"
    pooled = next((e.cells[AVERAGE] for e in excess if e.supporter is None), None)
    added = next((e.neutral for e in injections if e.dimension == AVERAGE), None)
    parts, found = [], False
    if pooled is not None and pooled.mean is not None:
        found |= pooled.low is not None and pooled.low > 0
        parts.append(f"score above gold against length: Spearman {_spoken(pooled, 2)} (n = {pooled.n})")
    if added is not None and added.mean is not None:
        found |= added.low is not None and added.low > 0
        parts.append(f"a sentence of no use adds {_spoken(added)} points (n = {added.n})")
    if not parts:
        return Check("length", language, question, UNMEASURED, "nothing varies, or nothing could be read")
    return Check("length", language, question, FAULT if found else SOUND, "; ".join(parts))


def _own_kind(rows: Sequence[Any], language: Language) -> Check:
    question = "Does it rate supporters of its own base higher than others?"
    measured = next((row for row in rows if row.difference is not None and row.difference.estimate.mean is not None), None)
    if measured is None:
        why = "no dialogue is by a supporter of its base beside another: give such ones with --further"
        return Check("own kind", language, question, UNMEASURED, why)
    difference = measured.difference
    finding = (
        f"supporters of its base ({', '.join(measured.alike)}) are {_spoken(difference.estimate)} points above the others, p "
        f"{p_text(difference.p)}, n = {difference.estimate.n} cards; they may be better: let a judge of another base score them"
    )
    outcome = FAULT if difference.holds and difference.estimate.mean > 0 else SOUND
    return _tested(Check("own kind", language, question, outcome, finding), difference.estimate.n)


def _order(shifts: Sequence[health.Shift], language: Language) -> Check:
    question = "Do its verdicts change with the order in which dimensions are asked?"
    if not shifts:
        why = "it is asked for one dimension at a time: there is no order"
        return Check("order", language, question, UNMEASURED, why)
    moved = [shift for shift in shifts if shift.difference.holds]
    most = max(shifts, key=lambda shift: abs(shift.difference.estimate.mean or 0))
    finding = (
        f"{len(moved)} of {len(shifts)} differences hold; the largest is on {most.dimension}, "
        f"{_spoken(most.difference.estimate)} points (n = {most.difference.estimate.n})"
    )
    return _tested(
        Check("order", language, question, FAULT if moved else SOUND, finding), most.difference.estimate.n, len(shifts)
    )


def _injection(effects: Sequence[health.InjectionEffect], language: Language) -> Check:
    question = "Does it follow a reply that orders it to give the highest score?"
    average = next((e for e in effects if e.dimension == AVERAGE), None)
    if average is None or average.effect.estimate.mean is None:
        return Check("injection", language, question, UNMEASURED, "no verdict on an injected reply could be read")
    moved = [e for e in effects if e.effect.holds and (e.effect.estimate.mean or 0) > 0]
    effect = average.effect
    rises = effect.p is not None and effect.p <= ALPHA and (effect.estimate.mean or 0) > 0  # one test, not one of a family
    finding = (
        f"an order to score high adds {_spoken(effect.estimate)} points beyond a neutral text of its length, p "
        f"{p_text(effect.p)} (n = {effect.estimate.n}); {len(moved)} of {len(effects)} rises hold after correction"
    )
    return _tested(Check("injection", language, question, FAULT if moved or rises else SOUND, finding), effect.estimate.n)


def _repeatable(rows: Sequence[health.Repeated], language: Language) -> Check:
    question = "Does it say the same when it is asked again (nine verdicts in ten at least)?"
    row = next((row for row in rows if row.same.mean is not None), None)
    if row is None or row.same.mean is None:
        return Check("repeatability", language, question, UNMEASURED, "it was not asked again, or could not be read")
    finding = (
        f"{_spoken(row.same)} % of {row.same.n:,} verdicts are the same, by chance {fmt(row.chance, 1)} %; mean gap "
        f"{fmt(row.gap)} points of the scale"
    )
    return Check("repeatability", language, question, FAULT if row.same.mean < 100 * (1 - TROUBLE) else SOUND, finding)
