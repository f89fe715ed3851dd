"""Reads band probabilities, one line per dimension: `Safety: 0=0.00 1=0.10 2=0.30 3=0.60` (FEEL, section 3.3).

A line must give every score of the scale exactly once, each with a number from 0 to 1 (or all in per cent), and nothing else. A
dimension must have exactly one line. Numbers that sum to 1 within `TOLERANCE` are divided by their sum, as the difference is
rounding. For any other sum the caller decides: `renormalise` divides by it anyway, `null` gives no verdict. A sum of 0 is
always null.
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
# A match starts only where no digit precedes it: starting at every digit of a long number would be quadratic.
_PAIR = re.compile(r"(?<![0-9.])(-?[0-9]{1,9}(?:\.[0-9]{1,3})?)[ \t]*[=:：][ \t]*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)[ \t]*([%％]?)")
_MARKS = "*" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_BETWEEN = re.compile(r"[ \t,，;；、|]*")


class BandLine(NamedTuple):
    """One line of an answer: `numbers` by score as written (per cent divided by 100), and their sum."""

    numbers: dict[str, float]
    total: float

    def distribution(self, off_sum: OffSum) -> dict[str, float] | None:
        """The probability of each score; None if the sum is 0, or off under the rule `null`."""
        if self.total <= 0 or (off_sum == "null" and not self.sums_to_one):
            return None
        return {score: number / self.total for score, number in self.numbers.items()}

    @property
    def sums_to_one(self) -> bool:
        return abs(self.total - 1) <= TOLERANCE + 1e-9  # 0.3 + 0.3 + 0.2 + 0.18 is not exactly 0.98


def read_bands(text: str, rubric: Rubric, language: Language) -> dict[str, BandLine | None]:
    """Dimension → its line in an answer, None if it cannot be read. A dimension is found by its label or key, in any case, with
    or without Markdown's marks around it."""
    lines = lines_of(text, rubric, list(rubric.dimensions), language)
    return {key: _read_line(lines[key], rubric.scale_of(key)) if key in lines else None for key in rubric.dimensions}


def lines_of(
    text: str, rubric: Rubric, names: Sequence[str], language: Language, nameless: Sequence[str] = ()
) -> dict[str, str]:
    """Dimension → the text after the colon of its line. Dimensions without a line, or with several, are left out. `nameless`
    are further names that stand for any of these dimensions."""
    texts: dict[str, list[str]] = {}
    for line in text.splitlines():
        head, colon, answer = line.replace("：", ":").partition(":")
        if colon:
            texts.setdefault(head.lstrip(_MARKS + "#>.-0123456789").rstrip(_MARKS).casefold(), []).append(answer.strip(" \t*"))
    lines: dict[str, str] = {}
    for key in names:
        labels = {label.casefold() for label in (key, rubric.label(key, language), *nameless)}
        candidates = [answer for label in labels for answer in texts.get(label, [])]
        if len(candidates) == 1:
            lines[key] = candidates[0]
    return lines


def off_sum_share(judgements: Sequence[Judgement], rubric: Rubric) -> float | None:
    """The share of readable verdicts whose numbers do not sum to 1, in per cent; None if no verdict is readable."""
    lines = [read_bands(j.raw, rubric, j.language)[j.dimension] for j in judgements if j.method == "bands"]
    readable = [line for line in lines if line is not None]
    return 100 * sum(not line.sums_to_one for line in readable) / len(readable) if readable else None


def _read_line(text: str, scale: Scale) -> BandLine | None:
    for name, score in (scale.levels or {}).items():
        names = "|".join(map(re.escape, spellings(name)))
        text = re.sub(rf"(?<!\w)(?:{names})(?=[ \t]*[=:：])", f"{score:g}", text, flags=re.IGNORECASE)
    pairs, scores = list(_PAIR.finditer(text)), scale.scores
    if _BETWEEN.fullmatch(_PAIR.sub("", text)) is None or sorted(float(pair[1]) for pair in pairs) != sorted(scores):
        return None
    numbers = {f"{float(pair[1]):g}": float(pair[2]) / (100 if pair[3] else 1) for pair in pairs}
    if len({bool(pair[3]) for pair in pairs}) > 1 or any(number > 1 for number in numbers.values()):
        return None
    ordered = {f"{score:g}": numbers[f"{score:g}"] for score in scores}
    return BandLine(ordered, sum(ordered.values()))
