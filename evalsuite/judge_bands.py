"""Method `bands`: a judge gives the probability of every score of every dimension (FEEL, section 3.3).

One request asks for all dimensions, a line each: `Safety: 0=0.00 1=0.10 2=0.30 3=0.60`. A round's score is the mean of that
distribution (the inner sum of equation 1). Rounds are calls of their own (`repeat`); `evalsuite.statistics.ensemble` averages.

How a line is read. It must have every score of the scale exactly once, each with a number from 0 to 1 (or all in per cent), and
nothing else; the dimension must have exactly one line. Where the numbers sum to 1 within `TOLERANCE`, they are divided by
their sum: that is rounding. Where they do not, `Bands.off_sum` decides: `renormalise` (divided by their sum all the same) or
`null`. A sum of 0 is null in either case. How often that happened can be read off the raw answers (`read_bands`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from serve.batch import together
from serve.client import Question, Reply

if TYPE_CHECKING:
    from evalsuite.judge import Judge

TOLERANCE = 0.02
OffSum = Literal["renormalise", "null"]
# A number begins where no digit stands before it: tried from every digit of a long number, the search would be quadratic.
_PAIR = re.compile(r"(?<![0-9])([0-9]{1,9})[ \t]*[=:：][ \t]*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)[ \t]*([%％]?)")
_MARKS = "*" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_BETWEEN = re.compile(r"[ \t,，;；、|]*")


@dataclass(frozen=True)
class Bands:
    """How often every dialogue is asked about, and what becomes of numbers that do not sum to 1."""

    rounds: int = 1
    off_sum: OffSum = "renormalise"


class Given(NamedTuple):
    """What one line says: `numbers` by score as given (per cent divided by 100), and their sum."""

    numbers: dict[str, float]
    total: float

    def distribution(self, off_sum: OffSum) -> dict[str, float] | None:
        """The probabilities, or None by the rule above."""
        if self.total <= 0 or (off_sum == "null" and not self.sound):
            return None
        return {score: number / self.total for score, number in self.numbers.items()}

    @property
    def sound(self) -> bool:
        return abs(self.total - 1) <= TOLERANCE + 1e-9  # 0.3 + 0.3 + 0.2 + 0.18 is not quite 0.98


def read_bands(text: str, rubric: Rubric, language: Language) -> dict[str, Given | None]:
    """What an answer says on every dimension of the rubric; None where it cannot be read. A dimension goes by its label or key,
    in any case, bare or with Markdown's marks before and after it."""
    lines: dict[str, list[str]] = {}
    for line in text.splitlines():
        head, colon, rest = line.replace("：", ":").partition(":")
        if colon:
            lines.setdefault(head.lstrip(_MARKS + "#>.-0123456789").rstrip(_MARKS).casefold(), []).append(rest.strip(" \t*"))
    found: dict[str, Given | None] = {}
    for key, dimension in rubric.dimensions.items():
        names = {key.casefold(), dimension.label[language].casefold()}
        own = [rest for name in names for rest in lines.get(name, [])]
        found[key] = _read_line(own[0], rubric.scale_of(key).scores) if len(own) == 1 else None
    return found


def _read_line(text: str, scores: Sequence[int]) -> Given | None:
    pairs = list(_PAIR.finditer(text))
    if _BETWEEN.fullmatch(_PAIR.sub("", text)) is None or sorted(int(pair[1]) for pair in pairs) != sorted(scores):
        return None
    percent = {bool(pair[3]) for pair in pairs}
    numbers = {str(int(pair[1])): float(pair[2]) / (100 if pair[3] else 1) for pair in pairs}
    if len(percent) > 1 or any(number > 1 for number in numbers.values()):
        return None
    ordered = {str(score): numbers[str(score)] for score in scores}
    return Given(ordered, sum(ordered.values()))


def _answer(rubric: Rubric, language: Language) -> str:
    """An answer of the asked form; with numbers of two decimals all are as long."""
    return "\n".join(_lines(rubric, ((key, each.label[language]) for key, each in rubric.dimensions.items()), "0.00"))


def _lines(rubric: Rubric, names: Iterable[tuple[str, str]], number: str) -> Iterator[str]:
    """A line for each dimension and the name it goes by: `number` for every score of its scale."""
    for key, name in names:
        yield f"{name}: " + " ".join(f"{score}={number}" for score in rubric.scale_of(key).scores)


def check_labels(rubric: Rubric) -> None:
    """Raise `UserError` for a label whose line could not be found in any answer: two alike, a colon in it, a number before."""
    for language in rubric.languages:
        for key, line in read_bands(_answer(rubric, language), rubric, language).items():
            if line is None:
                label = rubric.dimensions[key].label[language]
                raise UserError(
                    f"rubric {rubric.name}: dimensions.{key}.label.{language}: {label!r}: method bands finds a line by label "
                    "or key: a label is nobody else's, has no colon and begins with a letter"
                )


def answer_regex(rubric: Rubric, language: Language) -> str:
    """What a server that constrains may answer: the asked lines with numbers of two decimals. No regular expression makes them
    sum to 1: that stays with the model, and with the rule for those that do not."""
    number = r"(0\.[0-9][0-9]|1\.00)"
    names = ((key, re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", each.label[language])) for key, each in rubric.dimensions.items())
    return r"\n".join(_lines(rubric, names, number))


async def score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement a dimension and round, rounds in order; `value` is the mean of the distribution."""
    # One request warms the server's prefix cache with the dialogue; the other rounds share it.
    first = await _round(judge, dialogue, 0)
    more = await together(_round(judge, dialogue, repeat) for repeat in range(1, judge.bands.rounds))
    return [judgement for of_one in (first, *more) for judgement in of_one]


async def _round(judge: Judge, dialogue: Dialogue, repeat: int) -> list[Judgement]:
    rubric, spec, keys = judge.rubric, judge.spec, list(judge.rubric.dimensions)
    # A token is a byte or more: what is asked for fits, whatever the tokenizer.
    room = max(spec.sampling.max_tokens, len(_answer(rubric, dialogue.language).encode()) + 1)
    answer = await judge.reply(
        Question(
            judge_messages(judge.prompts, rubric, dialogue, "bands", keys),
            sample={"dialogue": dialogue.id, "dimension": "bands", "repeat": repeat},
            sampling=spec.sampling.model_copy(update={"max_tokens": room}),
            served_name=spec.served_name(dialogue.language),
            purpose="judge",
            regex=answer_regex(rubric, dialogue.language),
            session=dialogue.id,
            readable=lambda text: None not in _distributions(judge, dialogue, text).values(),
        )
    )
    judgements = []
    given = _distributions(judge, dialogue, answer.text) if isinstance(answer, Reply) else {}
    for key in keys:
        if not isinstance(answer, Reply):
            judgement = judge.judgement(dialogue, key, answer.raw, failure=answer.reason)
        else:
            judgement = judge.judgement(dialogue, key, answer.text, distribution=given[key])
        # The verdict is the mean and no whole score: equation 1.
        judgements.append(judgement.model_copy(update={"value": judgement.expected, "repeat": repeat}))
    return judgements


def _distributions(judge: Judge, dialogue: Dialogue, text: str) -> dict[str, dict[str, float] | None]:
    """Dimension → probabilities; None where an answer's line cannot be read."""
    lines = read_bands(text, judge.rubric, dialogue.language)
    return {key: line.distribution(judge.bands.off_sum) if line else None for key, line in lines.items()}
