"""Method `bands`: a judge gives the probability of every score of every dimension (FEEL, section 3.3).

One request asks for all dimensions, one line each: `Safety: 0=0.00 1=0.10 2=0.30 3=0.60`. A round's score is the mean of the
distribution (the inner sum of equation 1). Every round is a call of its own (`repeat`); `evalsuite.papers.feel_ensemble`
averages the rounds.

A line must give every score of the scale exactly once, each with a number from 0 to 1 (or all in per cent), and nothing else. A
dimension must have exactly one line. Numbers that sum to 1 within `TOLERANCE` are divided by their sum, as the difference is
rounding. For any other sum `Bands.off_sum` decides: `renormalise` divides by it anyway, `null` gives no verdict. A sum of 0 is
always null.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.scales import COUNTED, NOT_APPLICABLE, Scale, not_applicable, spellings, word
from evalsuite.judge.json_answers import last_object
from evalsuite.judge.judge import Judge, OffSum
from evalsuite.judge.methods import Method, no_tree
from evalsuite.judge.scores import check_lines, escaped, lines_of
from serve.answers import Reply
from serve.batch import together

TOLERANCE = 0.02
# A match starts only where no digit precedes it: starting at every digit of a long number would be quadratic.
_PAIR = re.compile(r"(?<![0-9.])(-?[0-9]{1,9}(?:\.[0-9]{1,3})?)[ \t]*[=:：][ \t]*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)[ \t]*([%％]?)")
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
    """Dimension → its line in an answer, found by label or key in any case; None if it cannot be read."""
    lines = lines_of(text, rubric, list(rubric.dimensions), language)
    return {key: _read_line(lines[key], rubric.scale_of(key)) if key in lines else None for key in rubric.dimensions}


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


async def score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    """One judgement per dimension and round, in the order of rounds; `value` is the mean of the distribution."""
    # The first request puts the dialogue into the server's prefix cache for the other rounds.
    first = await _round(judge, dialogue, 0)
    others = await together(_round(judge, dialogue, repeat) for repeat in range(1, judge.bands.rounds))
    return [judgement for judgements in (first, *others) for judgement in judgements]


async def _round(judge: Judge, dialogue: Dialogue, repeat: int) -> list[Judgement]:
    rubric, sampling, keys = judge.rubric, judge.spec.sampling, list(judge.rubric.dimensions)
    # A token is at least one byte, so a complete answer fits whatever the tokenizer.
    room = max(sampling.max_tokens, len(_answer(rubric, dialogue.language).encode()) + 1)
    answer = await judge.ask(
        dialogue,
        judge_messages(judge.prompts, rubric, dialogue, "bands", keys),
        {"dimension": "bands", "repeat": repeat},
        sampling=sampling.model_copy(update={"max_tokens": room}),
        regex=answer_regex(rubric, dialogue.language),
        readable=lambda text: None not in _distributions(judge, dialogue, text).values(),
    )
    if isinstance(answer, Reply):
        judgements = [
            judge.judgement(dialogue, key, answer.text, probabilities)
            if probabilities == NOT_APPLICABLE
            else judge.judgement(dialogue, key, answer.text, distribution=probabilities)
            for key, probabilities in _distributions(judge, dialogue, answer.text).items()
        ]
    else:
        judgements = [judge.judgement(dialogue, key, answer.raw, failure=answer.reason) for key in keys]
    # The verdict is the mean, not a whole score: equation 1.
    return [judgement.model_copy(update={"value": judgement.expected, "repeat": repeat}) for judgement in judgements]


def _distributions(judge: Judge, dialogue: Dialogue, text: str) -> dict[str, dict[str, float] | Literal["n/a"] | None]:
    """Dimension → probabilities, or "n/a"; None if its line cannot be read. A JSON object may replace the lines."""
    if answer := last_object(text):
        lines = {
            name: " ".join(f"{score}={p}" for score, p in value.items()) if isinstance(value, dict) else value
            for name, value in answer.items()
        }
        text = "\n".join(f"{name}: {line}" for name, line in lines.items())
    rubric, bands = judge.rubric, read_bands(text, judge.rubric, dialogue.language)
    distributions: dict[str, dict[str, float] | Literal["n/a"] | None] = {}
    distributions |= {key: line.distribution(judge.bands.off_sum) if line else None for key, line in bands.items()}
    for key, line in lines_of(text, rubric, list(rubric.dimensions), dialogue.language).items():
        if rubric.dimensions[key].not_applicable and not_applicable(line):
            distributions[key] = NOT_APPLICABLE
    return distributions


def check_labels(rubric: Rubric) -> None:
    """Raise `UserError` for a scale with too many scores to give each a probability, and as `check_lines` does."""
    no_tree(rubric)
    for key, scale in rubric.scales.items():
        if len(scale.scores) > COUNTED:
            raise UserError(
                f"rubric {rubric.name}: dimensions.{key}.scale: {len(scale.scores)} scores are too many to give each a "
                f"probability: method bands takes up to {COUNTED}; use another method, which takes any scale"
            )
    lines = {code: read_bands(_answer(rubric, code), rubric, code) for code in rubric.languages}
    check_lines(rubric, lambda code: {key: line for key, line in lines[code].items() if line}, "bands")


def answer_regex(rubric: Rubric, language: Language) -> str:
    """A regular expression for servers that constrain answers: the lines, with numbers of two decimals. It cannot make them sum
    to 1: that is left to the model and to `Bands.off_sum`."""
    return r"\n".join(_lines(rubric, language, r"(0\.[0-9][0-9]|1\.00)", escaped))


def _answer(rubric: Rubric, language: Language) -> str:
    """A complete answer. All answers have its length, as their numbers have two decimals."""
    return "\n".join(_lines(rubric, language, "0.00"))


def _lines(rubric: Rubric, language: Language, number: str, written: Callable[[str], str] = str) -> Iterator[str]:
    """A line for each dimension: `number` for every score of its scale; in a pattern (`written` is `escaped`) also "n/a"."""
    for key, dimension in rubric.dimensions.items():
        scale = rubric.scale_of(key)
        scores = " ".join(f"{written(scale.name(score, language))}={number}" for score in scale.scores)
        if dimension.not_applicable and written is escaped:
            scores = f"({scores}|{word(NOT_APPLICABLE, language)})"
        yield f"{written(rubric.label(key, language))}: {scores}"


by_bands = Method(score, check=check_labels)
