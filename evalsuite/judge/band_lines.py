"""Band probabilities in a judge's answer, a line per dimension: `Safety: 0=0.00 1=0.10 2=0.30 3=0.60` (FEEL, section 3.3).

A line must have every score of the scale exactly once, each with a number from 0 to 1 (or all in per cent), and nothing else; a
dimension must have exactly one line. Numbers that sum to 1 within `TOLERANCE` are divided by their sum: that is rounding.
Where they do not, the caller's rule decides: `renormalise` (divided by their sum all the same) or `null`. A sum of 0 is null in
either case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from core.records import Judgement, Language
from core.rubrics import Rubric
from core.scales import Scale, spellings
from evalsuite.judge.judge import OffSum

TOLERANCE = 0.02
# A number begins where no digit stands before it: tried from every digit of a long number, the search would be quadratic.
_PAIR = re.compile(r"(?<![0-9.])(-?[0-9]{1,9}(?:\.[0-9]{1,3})?)[ \t]*[=:：][ \t]*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)[ \t]*([%％]?)")
_MARKS = "*" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_BETWEEN = re.compile(r"[ \t,，;；、|]*")


class BandLine(NamedTuple):
    """One line of an answer: `numbers` by score as written (per cent divided by 100), and their sum."""

    numbers: dict[str, float]
    total: float

    def distribution(self, off_sum: OffSum) -> dict[str, float] | None:
        """The probabilities, or None by the rule above."""
        if self.total <= 0 or (off_sum == "null" and not self.sums_to_one):
            return None
        return {score: number / self.total for score, number in self.numbers.items()}

    @property
    def sums_to_one(self) -> bool:
        return abs(self.total - 1) <= TOLERANCE + 1e-9  # 0.3 + 0.3 + 0.2 + 0.18 is not quite 0.98


def read_bands(text: str, rubric: Rubric, language: Language) -> dict[str, BandLine | None]:
    """An answer's line on every dimension of the rubric; None where it cannot be read. A dimension goes by its label or key, in
    any case, bare or with Markdown's marks before and after it."""
    said = lines_of(text, rubric, list(rubric.dimensions), language)
    return {key: _read_line(said[key], rubric.scale_of(key)) if key in said else None for key in rubric.dimensions}


def lines_of(
    text: str, rubric: Rubric, names: Sequence[str], language: Language, nameless: Sequence[str] = ()
) -> dict[str, str]:
    """What stands behind the colon in the line of each of these dimensions; of none that has no line, or several. `nameless`
    are further names of every one."""
    lines: dict[str, list[str]] = {}
    for line in text.splitlines():
        head, colon, rest = line.replace("：", ":").partition(":")
        if colon:
            lines.setdefault(head.lstrip(_MARKS + "#>.-0123456789").rstrip(_MARKS).casefold(), []).append(rest.strip(" \t*"))
    said: dict[str, str] = {}
    for key in names:
        known = {key, rubric.label(key, language), *nameless}
        candidates = [rest for name in {name.casefold() for name in known} for rest in lines.get(name, [])]
        if len(candidates) == 1:
            said[key] = candidates[0]
    return said


def off_sum_share(judgements: Sequence[Judgement], rubric: Rubric) -> float | None:
    """In how many per cent of the verdicts that have numbers these do not sum to 1; None where no verdict has any."""
    lines = [read_bands(one.raw, rubric, one.language)[one.dimension] for one in judgements if one.method == "bands"]
    read = [line for line in lines if line is not None]
    return 100 * sum(not line.sums_to_one for line in read) / len(read) if read else None


def _read_line(text: str, scale: Scale) -> BandLine | None:
    for name, score in (scale.levels or {}).items():
        named = "|".join(map(re.escape, spellings(name)))
        text = re.sub(rf"(?<!\w)(?:{named})(?=[ \t]*[=:：])", f"{score:g}", text, flags=re.IGNORECASE)
    pairs, scores = list(_PAIR.finditer(text)), scale.scores
    if _BETWEEN.fullmatch(_PAIR.sub("", text)) is None or sorted(float(pair[1]) for pair in pairs) != sorted(scores):
        return None
    percent = {bool(pair[3]) for pair in pairs}
    numbers = {f"{float(pair[1]):g}": float(pair[2]) / (100 if pair[3] else 1) for pair in pairs}
    if len(percent) > 1 or any(number > 1 for number in numbers.values()):
        return None
    ordered = {f"{score:g}": numbers[f"{score:g}"] for score in scores}
    return BandLine(ordered, sum(ordered.values()))
