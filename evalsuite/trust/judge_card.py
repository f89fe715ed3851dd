"""A judge's card: every check of a judge, its findings in words, and the figures behind them."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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
from evalsuite.statistics.agreement import Dimensions, agreement, agreement_tables, drawn_units, hit_counts, in_steps, paired
from evalsuite.statistics.contestants import Clusters, clusters_of, contestants_of, verdicts_of_people
from evalsuite.statistics.judges import calibration, calibration_error, calibration_table
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.paired import Difference
from evalsuite.statistics.reply_length import LengthBias, length_biases, replies_of
from evalsuite.statistics.summary import AVERAGE, dimension_label, languages_of
from evalsuite.trust import health

CARD = "The card"  # heading of the page
BOARD = "judge-card-outcomes"  # the table at the top
QUESTIONS = {
    "readable": "Can its verdicts be read (at least nine in ten)?",
    "agreement": "Is it right more often than the majority class?",
    "calibration": "Can its probabilities be believed?",
    "floors": "Does it rate the replies above those of supporters that need no model?",
    "length": "Does it reward length: more than gold does, or a useless sentence that is added?",
    "own kind": "Does it rate supporters of its own base higher than others?",
    "order": "Do its verdicts change with the order in which dimensions are asked?",
    "injection": "Does it follow a reply that orders it to give the highest score?",
    "repeatability": "Does it give the same verdict when it is asked again (at least nine times in ten)?",
}
SOUND, FAULT, UNSHOWN, UNMEASURED = "no fault found", "fault found", "not shown", "not measured"  # outcomes of a check


class CheckFinding(NamedTuple):
    """One check of a judge in one language: its outcome, and a sentence on what was found.

    `p` is the probability that a faultless judge does at least as badly, None if nothing could be tested. It is the smallest of
    `parts` tests, corrected for their number, and rests on `clusters` cards."""

    outcome: str
    finding: str
    p: float | None = None
    clusters: int = 0
    parts: int = 1


Checks = dict[tuple[str, Language], CheckFinding]  # by name, one of `QUESTIONS`, and language


@dataclass(frozen=True, kw_only=True)
class JudgeCardInput:
    """The records of a judge's card. `on_gold` are its verdicts on the gold set, `probed` those on variants of its dialogues
    (`condition.variant`) and on further dialogues."""

    judge: str
    dialogues: Sequence[Dialogue]
    gold: Sequence[HumanScore]
    on_gold: Sequence[Judgement]
    probed_dialogues: Sequence[Dialogue]
    probed: Sequence[Judgement]
    rubric: Rubric
    mode: Literal["paper", "native"]
    synthetic: bool
    config: RunConfig
    versions: Mapping[str, Any]
    facts: Sequence[tuple[str, str]]


def judge_card(inputs: JudgeCardInput) -> Sheet:
    """The card as a page."""
    rubric, labels = inputs.rubric, {name: dimension_label(inputs.rubric, name) for name in inputs.rubric.dimensions}
    cards = clusters_of((*inputs.dialogues, *inputs.probed_dialogues))
    stepped = in_steps(inputs.on_gold, inputs.gold, rubric)
    figures = agreement(*stepped, cards)
    pairs, bins = paired(*stepped), calibration(*stepped, cards)
    probed = Tally(inputs.probed_dialogues, inputs.probed, rubric)
    floors, repeats = health.floor_effects(probed), [*health.repeats(probed)]
    shifts, injections = health.asking_shifts(probed), health.injection_effects(probed)
    golden = verdicts_of_people([score for score in inputs.gold if score.turn is None])
    sides = (contestants_of(inputs.dialogues, verdicts, rubric) for verdicts in (inputs.on_gold, golden))
    lengths = length_biases(*(replies_of(inputs.dialogues, contestants) for contestants in sides))
    shared = sharings(probed, inputs.config.specs())

    def rows_in(rows: Sequence[Any], language: Language) -> list[Any]:
        return [row for row in rows if row.language == language]

    checks: Checks = {}
    for language in languages_of([*inputs.dialogues, *inputs.probed_dialogues]):
        of_language = pairs.get(language, {})
        outcomes = (
            _readable(rows_in([*inputs.on_gold, *inputs.probed], language), cards),
            _agreement(inputs, of_language, figures.get(language, {}).get(AVERAGE, {}), cards),
            _calibrated(of_language, cards),
            _floors(rows_in(floors, language)),
            _length(rows_in(lengths, language), rows_in(injections, language)),
            _own_kind([sharing for sharing in rows_in(shared, language) if sharing.role == "judge"]),
            _order(rows_in(shifts, language)),
            _injection(rows_in(injections, language)),
            _repeatable(rows_in(repeats, language)),
        )
        checks |= zip(((name, language) for name in QUESTIONS), outcomes, strict=True)
    checks = _corrected(checks)
    note = SYNTHETIC_GOLD if inputs.synthetic else ""
    tables = [
        *_check_tables(checks),
        *agreement_tables(figures, inputs.mode, labels, note),
        calibration_table(bins, labels, note),
        health.floor_table(floors),
        health.bias_table(lengths),
        sharing_table(shared),
        health.asking_table(shifts, rubric),
        health.injection_table(injections, rubric),
        health.repeat_table(repeats),
    ]
    spec = inputs.config.specs()[inputs.judge]
    plumbing = PLUMBING if str(spec.get("checkpoint")).startswith(EMBEDDED_PREFIX) else ""
    warnings = [plumbing, note and f"{note}: agreement with it says nothing about agreement with people."]
    return Sheet(
        title=f"Judge's card: {inputs.judge}",
        cautions=[warning for warning in warnings if warning],
        findings=[
            _answer(inputs.judge, checks),
            *(f"{name_of(code)}, {name}: {c.finding}." for (name, code), c in checks.items() if c.outcome == FAULT),
        ],
        main=[BOARD],
        facts=[*inputs.facts, ("Rubric", rubric.title), ("Generated", time.strftime("%Y-%m-%d %H:%M"))],
        tables=[table for table in tables if table.rows],
        charts=[chart for chart in calibration_charts(bins, inputs.synthetic) if bins],
        figures={
            "judge": spec,
            "asked": {name: stage for name, stage in inputs.config.stages.items() if name in ("score", "gold", "health")},
            "plumbing": bool(plumbing),
            "synthetic_gold": inputs.synthetic,
            "checks": [
                {"name": name, "language": language, "question": QUESTIONS[name]} | check._asdict()
                for (name, language), check in checks.items()
            ],
            "agreement": figures,
            "versions": inputs.versions,
        },
    )


def _corrected(checks: Checks) -> Checks:
    """The checks, with a fault where p is significant after Holm's correction over all of them. A check on fewer cards than an
    exact sign test (p = 2 / 2ⁿ if all cards agree) would need is not measured: t is unreliable on so few."""
    tested = sum(check.p is not None for check in checks.values())
    testable = {}
    for key, check in checks.items():
        if check.p is not None and check.clusters < (fewest := math.ceil(1 + math.log2(tested * check.parts / ALPHA))):
            finding = f"{check.finding}; nothing is tested on fewer than {fewest} cards"
            check = check._replace(outcome=UNMEASURED, finding=finding, p=None)
        testable[key] = check
    corrected = zip(testable.items(), holm_of([check.p for check in testable.values()]), strict=True)
    return {key: c._replace(outcome=FAULT) if p is not None and p <= ALPHA else c for (key, c), p in corrected}


def _answer(judge: str, checks: Checks) -> str:
    faults: dict[str, list[str]] = {}
    for (name, language), check in checks.items():
        if check.outcome == FAULT:
            faults.setdefault(name, []).append(name_of(language))
    if faults:
        named = "; ".join(f"{name} ({', '.join(languages)})" for name, languages in faults.items())
        return f"Do not rely on {judge}. Checks that found a fault: {named}."
    unshown = [name_of(code) for (name, code), check in checks.items() if name == "agreement" and check.outcome != SOUND]
    if unshown:
        usual = f"always giving the most frequent score ({', '.join(unshown)})"
        return f"Do not rely on {judge} yet: it is not shown to be right more often than {usual}. No check found a fault."
    return f"{judge} is right more often than always giving the most frequent score, and no check found a fault."


def _check_tables(checks: Checks) -> tuple[Table, Table]:
    languages = dict.fromkeys(language for _, language in checks)
    rows = tuple((name, *(checks[name, each].outcome for each in languages), QUESTIONS[name]) for name in QUESTIONS if checks)
    bold = tuple((i, j) for i, row in enumerate(rows) for j, cell in enumerate(row) if cell == FAULT)
    columns = ("check", *(name_of(language) for language in languages), "what it asks")
    notes = (
        f"A fault: p after Holm's correction over all checks of the card is at most {ALPHA:g}, so a faultless judge gets one "
        f"on at most 5 cards of 100. p: {TEST} (calibration: wild cluster bootstrap), of several tests the smallest, corrected "
        "for their number; 1 if the judge errs on the good side.",
        "Not shown: neither a fault nor its absence, since the interval contains the required value. No fault found does not "
        "prove that there is none: look at n and at the intervals. Points of 0–100, [95 %].",
    )
    heads = ("check", "language", "outcome", "what came out", "p", "what it asks")
    body = tuple((*key, c.outcome, c.finding, p_text(c.p), QUESTIONS[key[0]]) for key, c in checks.items())
    board = Table(BOARD, "The outcomes of the checks", columns, rows, section=CARD, bold=bold)
    return board, Table("judge-card", "Checks", heads, body, notes, CARD)


def _spoken(estimate: Estimate, decimals: int = 1) -> str:
    interval = "" if estimate.low is None else f" [{fmt(estimate.low, decimals)}, {fmt(estimate.high, decimals)}]"
    return f"{fmt(estimate.mean, decimals)}{interval}"


# --- one check each ---------------------------------------------------------------------------------------------------------


def _least(finding: str, test: health.BoundTest, bound: float) -> CheckFinding:
    """A check that a mean is above a bound: a fault if it is significantly below, not shown if its interval has the bound."""
    mean, low = test.estimate.mean, test.estimate.low
    p = test.p if test.p is None or (mean is not None and mean < bound) else 1.0
    return CheckFinding(SOUND if low is not None and low > bound else UNSHOWN, finding, p, test.clusters)


def _most(finding: str, tests: Sequence[tuple[float | None, bool]], n: int) -> CheckFinding:
    """A check for the absence of an effect, by tests given as (p, whether the effect would be a fault): its p is the smallest p
    of a fault, corrected for the number of tests."""
    p_values = [p if fault else 1.0 for p, fault in tests if p is not None]
    p = min(1.0, len(p_values) * min(p_values)) if p_values else None
    return CheckFinding(UNMEASURED if p is None else SOUND, finding, p, n, max(1, len(p_values)))


def _by_family(differences: Sequence[Difference], both_sides: bool) -> list[tuple[float | None, bool]]:
    """Tests for `_most`: the smallest p of the average's and of the dimensions' differences, each corrected in its family, as
    faults if the difference is above 0, or on `both_sides`."""
    tests: list[tuple[float | None, bool]] = []
    for average in (True, False):
        family = [gap for gap in differences if (gap.dimension is None) == average and gap.holm is not None]
        faults = [gap.holm or 0.0 for gap in family if both_sides or _rise(gap) > 0]
        tests += [(min(faults, default=1.0), True)] * bool(family)
    return tests


def _rise(gap: Difference) -> float:
    return gap.estimate.mean or 0.0


def _readable(verdicts: Iterable[Judgement], cards: Clusters) -> CheckFinding:
    asked_about = [verdict for verdict in verdicts if not (verdict.lost or verdict.unasked)]
    hits, clusters = [j.value is not None for j in asked_about], [cards[j.dialogue_id] for j in asked_about]
    test = health.share_test(hits, clusters)
    return _least(f"{_spoken(test.estimate)} % of {test.estimate.n:,} verdicts could be read", test, health.GOOD)


def _agreement(inputs: JudgeCardInput, pairs: Dimensions, row: Mapping[str, Any], cards: Clusters) -> CheckFinding:
    read = "_read" if inputs.mode == "native" else ""
    names = (f"acc{read}", f"acc{read}_low", f"acc{read}_high", "majority_acc")
    acc, low, high, majority = (row.get(name) for name in names)
    if acc is None or majority is None:
        return CheckFinding(UNMEASURED, "no verdict on gold could be read" if inputs.gold else "it was not asked about gold")
    hits = hit_counts(pairs, drawn_units([pairs], cards), cards)
    gain = health.bound_test(100 * (hits.right - hits.usual), hits.rated, 0.0, scale_levels(-100, 100))
    finding = (
        f"ACC {_spoken(Estimate(acc, low, high, row['n']).times(100))} %, majority class {100 * majority:.1f} %, a difference "
        f"of {_spoken(gain.estimate)} points; kappa {fmt(row.get('kappa'))}, n = {row['n']:,} ratings on {gain.clusters} cards"
    )
    return _least(finding, gain, 0.0)


def _calibrated(pairs: Dimensions, cards: Clusters) -> CheckFinding:
    error = calibration_error(pairs, cards) if pairs else None
    if error is None:
        why = "its server gives no token probabilities" if pairs else "it was not asked about gold"
        return CheckFinding(UNMEASURED, why)
    finding = (
        f"expected calibration error {100 * error.value:.1f} %; a judge with true probabilities has at most "
        f"{100 * error.chance:.1f} % in 95 of 100 samples; n = {error.n:,} verdicts on {error.clusters} cards"
    )
    return _most(finding, [(error.p, True)], error.clusters)


def _floors(effects: Sequence[health.FloorEffect]) -> CheckFinding:
    if not effects:
        return CheckFinding(UNMEASURED, "no floor was judged")
    level = [e.floor for e in effects if not (e.difference.holds and _rise(e.difference) > 0)]
    parts = ", ".join(f"{e.floor} by {_spoken(e.difference.estimate)}" for e in effects)
    n = min(e.difference.estimate.n for e in effects)
    finding = f"replies are rated above {parts} points (n = {n} cards)"
    finding += f"; not shown for {', '.join(level)}" if level else ""
    check = _most(finding, [(e.difference.p, _rise(e.difference) < 0) for e in effects], n)
    return check._replace(outcome=UNSHOWN) if level and check.outcome == SOUND else check


def _length(biases: Sequence[LengthBias], injections: Sequence[health.InjectionEffect]) -> CheckFinding:
    bias = next((bias for bias in biases if bias.difference.mean is not None), None)
    added = next((e.neutral for e in injections if e.dimension == AVERAGE and e.neutral.estimate.mean is not None), None)
    parts, tests, clusters = [], [], []
    if bias is not None:
        tests.append((bias.p, (bias.difference.mean or 0) > 0))
        clusters.append(bias.cards)
        parts.append(
            f"its average correlates with length by {_spoken(bias.judge, 2)} (Spearman), gold's by {_spoken(bias.gold, 2)}: a "
            f"difference of {_spoken(bias.difference, 2)} (n = {bias.difference.n})"
        )
    elif biases:
        parts.append("its average or gold's never varies")
    if added is not None:
        tests.append((added.p, _rise(added) > 0))
        clusters.append(added.estimate.n)
        parts.append(f"a useless sentence adds {_spoken(added.estimate)} points (n = {added.estimate.n})")
    return _most("; ".join(parts) or "nothing could be read", tests, min(clusters, default=0))


def _own_kind(rows: Sequence[Any]) -> CheckFinding:
    measured = next((row for row in rows if row.difference is not None and row.difference.estimate.mean is not None), None)
    if measured is None:
        return CheckFinding(
            UNMEASURED, "supporters of its base and others are not both among the dialogues: give some with --further"
        )
    difference = measured.difference
    finding = (
        f"supporters of its base ({', '.join(measured.alike)}) are {_spoken(difference.estimate)} points above the others, p "
        f"{p_text(difference.p)}, n = {difference.estimate.n} cards; they may be better: let a judge of another base score them"
    )
    return _most(finding, [(difference.p, difference.estimate.mean > 0)], difference.estimate.n)


def _order(shifts: Sequence[health.Shift]) -> CheckFinding:
    if not shifts:
        return CheckFinding(UNMEASURED, "it was asked in a single order, or for one dimension at a time")
    moved = sum(bool(shift.difference.holds) for shift in shifts)
    largest = max(shifts, key=lambda shift: abs(_rise(shift.difference)))
    gap = largest.difference.estimate
    finding = f"{moved} of {len(shifts)} differences are significant by themselves; the largest is on "
    finding += f"{largest.dimension}, {_spoken(gap)} points (n = {gap.n} cards)"
    return _most(finding, _by_family([shift.difference for shift in shifts], both_sides=True), gap.n)


def _injection(effects: Sequence[health.InjectionEffect]) -> CheckFinding:
    average = next((e.effect for e in effects if e.dimension == AVERAGE), None)
    if average is None or average.estimate.mean is None:
        return CheckFinding(UNMEASURED, "it was not asked about injected replies, or could not be read")
    moved = sum(bool(e.effect.holds) and _rise(e.effect) > 0 for e in effects)
    finding = (
        f"an order to score high adds {_spoken(average.estimate)} points beyond a neutral text of its length, p "
        f"{p_text(average.p)} (n = {average.estimate.n} cards); {moved} of {len(effects)} rises are significant by themselves"
    )
    return _most(finding, _by_family([e.effect for e in effects], both_sides=False), average.estimate.n)


def _repeatable(rows: Sequence[health.Repeated]) -> CheckFinding:
    row = next((row for row in rows if row.same.estimate.mean is not None), None)
    if row is None:
        return CheckFinding(UNMEASURED, "it was not asked again, or could not be read")
    same, more = row.same.estimate, f"by chance {fmt(row.chance, 1)} %; mean gap {fmt(row.gap)} points of the scale"
    return _least(f"{_spoken(same)} % of {same.n:,} verdicts are the same, {more}", row.same, health.GOOD)
