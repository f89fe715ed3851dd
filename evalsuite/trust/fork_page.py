"""A fork as a page: what one reply changed in the seeker afterwards and in the scores, and the dialogues as a tree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from core.records import Dialogue
from core.rubrics import Rubric
from core.specs import EMBEDDED_PREFIX
from core.statistics.bootstrap import LEVEL, SMOOTHED, Floats
from core.statistics.inference import cluster_error, contributions, holds, holm_of, student_p
from core.tables import Estimate, Table, fmt
from evalsuite.checks.risk import risk_turns
from evalsuite.checks.simulator_rules import cheerful
from evalsuite.report.forest import ForestLine, gap_forest, reach
from evalsuite.report.headlines import ENDINGS, found_in, verdict
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Branch, Sheet
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import contestants_of, stack
from evalsuite.statistics.summary import AVERAGE, dimension_at, dimension_label
from evalsuite.trust.fork import Forked

FORK = "What the reply changed"  # heading of the page
AFTER = (
    "seeker's turns",
    "characters a turn",
    "turns with thanks or relief %",
    "turns that voice danger %",
    "seeker took leave %",
)
UNBOUNDED = 2  # the first of these: no scale says how far they go
NOTE = (
    "Other reply minus the one that was given; both go on from there with the same seeker and the same supporter, drawn anew. "
    f"[{SMOOTHED} over draws; of turns and characters, which have no scale, Student's t], n = draws. {paired.HOLDS}."
)
WHY = (
    "Why the given reply is drawn on as well: the dialogue as it was is one draw of many. Set against it alone, a difference "
    "could be the luck of that draw, and a dialogue that is forked because it went badly would go better by itself."
)


def seeker_after(dialogue: Dialogue, turn: int) -> list[float]:
    """What `AFTER` names, of the seeker's turns behind `turn`; NaN where there are none."""
    later = [one for one in dialogue.turns[turn + 1 :] if one.role == "seeker"]
    if not later:
        return [0.0, np.nan, np.nan, np.nan, 0.0]
    danger = sum(risk.turn > turn for risk in risk_turns(dialogue))
    relief = sum(cheerful(one.text) is not None for one in later)
    share = 100 / len(later)
    characters = sum(len(one.text.strip()) for one in later) / len(later)
    return [len(later), characters, share * relief, share * danger, 100.0 * (dialogue.termination == "seeker_ended")]


def seeker_differences(forked: Forked) -> list[paired.Difference]:
    """The other reply minus the one that was given, for each of `AFTER`, paired by draw and corrected together."""
    whole = [dialogue for dialogue in forked.dialogues if not dialogue.lost]
    draws = sorted({dialogue.trial for dialogue in whole})
    values = np.full((len(draws), 2, len(AFTER)), np.nan)
    for dialogue in whole:
        side = 0 if dialogue.supporter == forked.changed else 1
        values[draws.index(dialogue.trial), side] = seeker_after(dialogue, forked.turn)
    shares = np.nan_to_num(values[:, :, UNBOUNDED:]), (~np.isnan(values[:, :, UNBOUNDED:])).astype(float)
    both = values[~np.isnan(values).any(axis=(1, 2))]
    rows = [_unbounded(both[:, 0, place], both[:, 1, place]) for place in range(UNBOUNDED)]
    rows += paired.differences(*shares, [(0, 1)])[:-1]  # an average over these means nothing
    corrected = holm_of([row.p for row in rows])
    return [replace(row, dimension=at, holm=p, holds=holds(p)) for at, (row, p) in enumerate(zip(rows, corrected, strict=True))]


def _unbounded(first: Floats, second: Floats) -> paired.Difference:
    """A difference over draws of what no scale bounds: Student's t alone."""
    gaps = (first - second)[:, None]
    (mean,), parts, (n,) = contributions(gaps, np.ones_like(gaps))
    error = cluster_error(parts, n)[0]
    p = float(student_p(mean, error, n, max(float(np.abs(gaps).max(initial=0)), 1e-9)))
    half = stdtrit(max(n - 1, 1), (1 + LEVEL) / 2) * error
    low, high = (float(mean - half), float(mean + half)) if half > 0 else (None, None)
    means = [float(side.mean()) if n else None for side in (first, second)]
    cell = Estimate(float(mean) if n else None, low, high, int(n))
    return paired.Difference(0, 1, None, means[0], means[1], cell, None if np.isnan(p) else p, None, None)


def score_differences(forked: Forked, rubric: Rubric) -> list[paired.Difference]:
    """The same for the scores, the average last; nothing where a side has no readable verdict."""
    # Branches were drawn at a temperature: each counts, also where two say the same. So each is a card of its own.
    branches = [one.model_copy(update={"card_id": f"branch {one.trial}"}) for one in forked.dialogues]
    contestants = contestants_of(branches, forked.judgements, rubric)
    by_side = {one.supporter: one for one in contestants}
    if not {forked.changed, forked.as_it_was} <= by_side.keys():
        return []
    return paired.differences(*stack([by_side[forked.changed], by_side[forked.as_it_was]]), [(0, 1)])


def fork_sheet(forked: Forked, rubric: Rubric, facts: Sequence[tuple[str, str]], checkpoints: Sequence[str | None]) -> Sheet:
    """The page. `checkpoints` are those of the models that spoke and judged."""
    seeker, scores = seeker_differences(forked), score_differences(forked, rubric)
    names = [dimension_label(rubric, dimension_at(rubric, one.dimension)) for one in scores]
    tables = [_table("fork-scores", "Scores", names, scores), _table("fork-seeker", "The seeker afterwards", AFTER, seeker)]
    ends = reach(one.estimate for one in scores)
    lines = [ForestLine(name, [[one.estimate]], said=found_in(one)) for name, one in zip(names, scores, strict=True)]
    forest = gap_forest("Scores: the other reply less the given one", [*lines[-1:], *lines[:-1]], ends, "")
    plumbing = any(str(place).startswith(EMBEDDED_PREFIX) for place in checkpoints)
    return Sheet(
        title=f"Fork of dialogue {forked.source.id} at turn {forked.turn}",
        cautions=[PLUMBING] if plumbing else [],
        findings=[_answer(scores, sorted({one.judge for one in forked.judgements})), WHY],
        facts=[
            ("As it was", forked.as_it_was),
            ("Other reply", forked.changed),
            ("Seeker", forked.source.simulator or ""),
            *facts,
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        forests=[forest] if lines else [],
        main=["fork-seeker"],
        tables=tables,
        figures={"plumbing": plumbing, "turn": forked.turn, "dialogue": forked.source.id, "reply": forked.reply},
        tree=_tree(forked, rubric),
    )


def _answer(scores: Sequence[paired.Difference], judges: Sequence[str]) -> str:
    average = next((one for one in scores if one.dimension is None), None)
    if average is None:
        return "No difference in the scores can be told: a side has no readable verdict."
    said = verdict("the other reply", "the one that was given", average, "draws")
    return f"{said[0].upper()}{said[1:]}, judged by {' and '.join(judges)}."


def _table(key: str, title: str, names: Sequence[str], rows: Sequence[paired.Difference]) -> Table:
    return Table(
        key=key,
        title=title,
        columns=("what", "other reply", "as it was", *paired.COLUMNS),
        rows=tuple((name, row.first_mean, row.second_mean, *paired.cells(row)) for name, row in zip(names, rows, strict=True)),
        notes=(NOTE,),
        section=FORK,
    )


def _tree(forked: Forked, rubric: Rubric) -> Branch:
    """The trunk with two branches, and a leaf for every draw."""
    averages: dict[str, list[float]] = {}
    for judgement in forked.judgements:
        if judgement.value is not None:
            scale = rubric.scale_of(judgement.dimension)
            averages.setdefault(judgement.dialogue_id, []).append((judgement.value - scale.min) * 100 / scale.span)

    def leaf(dialogue: Dialogue) -> Branch:
        scores = averages.get(dialogue.id)
        said = f"{AVERAGE} {fmt(sum(scores) / len(scores), 1)}" if scores else "not scored"
        return Branch(
            f"draw {dialogue.trial + 1}", f"{said}; ended {ENDINGS[dialogue.termination]}", dialogue.turns[forked.turn + 1 :]
        )

    def side(name: str) -> Branch:
        drawn = [dialogue for dialogue in forked.dialogues if dialogue.supporter == name]
        return Branch(name, f"{len(drawn)} draws", drawn[0].turns[forked.turn : forked.turn + 1], [leaf(one) for one in drawn])

    shared = f"{forked.turn} turns that both sides share"
    return Branch("Up to the fork", shared, forked.source.turns[: forked.turn], [side(forked.as_it_was), side(forked.changed)])
