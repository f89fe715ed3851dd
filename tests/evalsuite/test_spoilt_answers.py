"""What a run says at its end of answers that were cut off, could not be read, or are all the same."""

from __future__ import annotations

from core.records import Judgement, Usage
from evalsuite.statistics.summary import spoilt


def verdict(value: int | None) -> Judgement:
    return Judgement(
        dialogue_id="d", language="en", judge="j", rubric="r", dimension="a", value=value, method="joint", raw="", condition={}
    )


def test_cut_off_answers_name_the_option_to_change_from_a_tenth_on() -> None:
    cut = Usage(calls=28, cut_off={"supporter": 28}, reasoning_tokens=9)
    few = Usage(calls=10, cut_off={"seeker": 1})
    judge = Usage(calls=10, cut_off={"judge": 2})
    assert list(spoilt([{"supporter": {"s": cut}, "seeker": {"t": few}, "judge": {"j": judge}}], [])) == [
        "28 of 28 answers of the supporter s were cut off at the token limit, which counts its reasoning too: raise "
        "--max-tokens.",
        "2 of 10 answers of the judge j were cut off at the token limit: raise sampling.max_tokens in the spec of j.",
    ]


def test_unreadable_and_constant_verdicts_are_said() -> None:
    (said,) = spoilt([], [verdict(None)] * 28)
    assert said.startswith("28 of 28 verdicts of the judge j could not be read") and "sampling.max_tokens" in said
    assert list(spoilt([], [verdict(3)] * 28)) == ["The judge j gave 3 in all of its 28 verdicts: it tells nothing apart."]
    assert list(spoilt([], [*[verdict(3)] * 27, verdict(2), verdict(None)])) == []
    assert list(spoilt([], [verdict(3)] * 19)) == []
