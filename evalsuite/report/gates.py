"""Gates of a run for CI: what its models must reach, as an exit code, one line and JUnit's XML."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from core.errors import UserError, clean, near, say
from core.files import write_text
from core.options import name_and_value
from core.rubrics import Rubric
from core.settings import differing_leaves
from core.tables import fmt
from evalsuite.runs.records import read_runs
from evalsuite.statistics.comparison import RunRecords, compare
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import AVERAGE, supporter_of

JUNIT = "report.junit.xml"


class GateCase(NamedTuple):
    """A check of a gate; `failure` says what is wrong, empty if nothing is."""

    gate: str
    name: str
    failure: str


@dataclass(frozen=True)
class Gates:
    """Gates for the models (not floors) of a run by one judge. `least` holds (dimension or `average`, lowest mean on 0–100).
    `baseline` is the run than whose models these must not be worse."""

    judge: str | None
    least: Sequence[tuple[str, float]] = ()
    baseline: Path | None = None

    @classmethod
    def parse(cls, fail_under: Sequence[str], baseline: Path | None, rubric: Rubric, judge: str | None) -> Gates | None:
        """The gates that the options name; None without any. Raises `UserError` for a dimension that the rubric lacks, a score
        off 0–100, and a baseline that is no run scored by this judge on this rubric."""
        names = [*rubric.dimensions, AVERAGE]
        least = []
        for text in fail_under:
            name, score = name_and_value("--fail-under", text, f"DIMENSION=SCORE, such as {AVERAGE}=60")
            if name not in names:
                raise UserError(f"--fail-under {text}: {name!r} is no dimension of rubric {rubric.name}: {near(name, names)}")
            try:
                least.append((name, float(score)))
            except ValueError:
                raise UserError(f"--fail-under {text}: {score} is no score on 0–100") from None
            if not 0 <= least[-1][1] <= 100:
                raise UserError(f"--fail-under {text}: {score} is no score on 0–100")
        if baseline is not None:
            (records,) = read_runs([baseline], least=1, judge=judge)
            if records.rubric != rubric:
                leaves = differing_leaves(records.rubric.model_dump(mode="json"), rubric.model_dump(mode="json"))
                raise UserError(f"--fail-if-worse {baseline}: scored on another rubric ({'; '.join(leaves[:3])})")
        return cls(judge, least, baseline) if least or baseline else None

    def failed(self, run: Path) -> bool:
        """Look at a run folder, write report.junit.xml into it, and say in one line on stderr what failed, if anything did."""
        *baseline, records = read_runs([*([self.baseline] if self.baseline else []), run], least=1, judge=self.judge)
        cases = [*_missing(records), *self._under(records), *(case for run in baseline for case in _worse(run, records))]
        write_text(run / JUNIT, junit(str(run), cases))
        failures = [case.failure for case in cases if case.failure]
        if failures:
            say(f"error: {len(failures)} of {len(cases)} checks failed: {'; '.join(failures)}", err=True)
        return bool(failures)

    def _under(self, records: RunRecords) -> Iterator[GateCase]:
        """Every threshold, for every model."""
        tally = Tally(records.dialogues, records.judgements, records.rubric, records.floors, level=records.level)
        models = [cell for board in tally.pooled if self.least for place in board.models for cell in board.scores[place]]
        for dimension, least in self.least:
            for cell in (cell for cell in models if cell.dimension == dimension):
                mean, failure = cell.estimate.mean, ""
                if mean is None:
                    failure = f"{cell.supporter}: no {dimension} for lack of readable verdicts"
                elif mean < least:
                    failure = f"{cell.supporter}: {dimension} {fmt(mean, 1)} is {fmt(least - mean, 1)} below {least:g}"
                yield GateCase(f"{dimension} at least {least:g}", cell.supporter, failure)


def _missing(records: RunRecords) -> Iterator[GateCase]:
    """Whether all dialogues of every supporter were held and judged."""
    lost = {dialogue.id for dialogue in records.dialogues if dialogue.lost}
    lost |= {judgement.dialogue_id for judgement in records.judgements if judgement.lost}
    counts = Counter(map(supporter_of, records.dialogues))
    gone = Counter(supporter_of(dialogue) for dialogue in records.dialogues if dialogue.id in lost)
    for supporter, number in sorted(counts.items()):
        failure = f"{supporter}: {gone[supporter]} of {number} dialogues are missing or not judged"
        yield GateCase("all dialogues held and judged", supporter, failure * bool(gone[supporter]))


def _worse(baseline: RunRecords, records: RunRecords) -> Iterator[GateCase]:
    """Whether any model's average is significantly worse than that of the baseline's model that it is compared with. Without
    any comparison the gate fails: it saw nothing."""
    gate = f"not worse than {baseline.name}"
    pairs = compare([baseline, records]).decisive
    for late, early, difference in pairs:
        name, gap, failure = f"{late.name} against {early.name}", difference.estimate, ""
        if difference.holds is None and not late.contestant.alike(early.contestant):
            failure = f"{name}: too few shared cards to compare ({gap.n})"
        elif difference.holds and gap.mean is not None and gap.mean < 0:
            interval = "" if gap.low is None else f" [{fmt(gap.low, 1)}, {fmt(gap.high, 1)}]"
            failure = f"{name}: {AVERAGE} worse by {fmt(-gap.mean, 1)}{interval} on {gap.n} cards"
        yield GateCase(gate, name, failure)
    if not pairs:
        yield GateCase(gate, "any model", f"no model of this run could be compared with one of {baseline.name}")


def junit(suite: str, cases: Sequence[GateCase]) -> str:
    """The cases as JUnit XML, which CI systems display."""
    failures = str(sum(bool(case.failure) for case in cases))
    root = ElementTree.Element("testsuites")
    element = ElementTree.SubElement(root, "testsuite", name=clean(suite), tests=str(len(cases)), failures=failures)
    for case in cases:
        shown = ElementTree.SubElement(element, "testcase", classname=clean(case.gate), name=clean(case.name))
        if case.failure:
            ElementTree.SubElement(shown, "failure", message=clean(case.failure))
    ElementTree.indent(root)
    written = io.BytesIO()
    ElementTree.ElementTree(root).write(written, encoding="utf-8", xml_declaration=True)
    return written.getvalue().decode() + "\n"
