"""A judge's card against scripted judges of known faults: the card says so, and says nothing of a judge without them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.files import read_jsonl, write_jsonl
from core.records import HumanScore, Judgement, Turn
from core.rubrics import load_rubric
from evalsuite.checks.probe import load_injections
from evalsuite.statistics.judges import POOLED, Bin, calibration_error
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.records import make_dialogue

RUBRIC = load_rubric("esc_eval")
ORDERS = [one.text("injected", RUBRIC.scale) for one in load_injections() if one.language == "en"]
PER_GRADE = 5
Judge = Callable[[str, int], list[int]]


def worth(text: str) -> int:
    """What a dialogue is worth: its reply says so; a floor's lines are worth nothing."""
    found = re.search(r"grade-(\d)", text)
    return int(found[1]) if found else 0


def sound(text: str, count: int) -> list[int]:
    return [worth(text)] * 7


def likes_length(text: str, count: int) -> list[int]:
    return [min(4, len(text.split("grade-")[-1]) // 40)] * 7


def follows_orders(text: str, count: int) -> list[int]:
    return [4] * 7 if any(order in text for order in ORDERS) else sound(text, count)


def goes_by_order(text: str, count: int) -> list[int]:
    """The first that it is asked for is always rated lowest."""
    return [0, *sound(text, count)[1:]]


def never_says_it_twice(text: str, count: int) -> list[int]:
    return [(worth(text) + count % 2) % 5] * 7


def sees_no_floors(text: str, count: int) -> list[int]:
    return [2] * 7


def answering(judge: Judge, sure: float | None = None) -> Callable[[dict[str, Any], int], Answer]:
    def behave(body: dict[str, Any], count: int) -> Answer:
        scores = judge(body["messages"][-1]["content"], count)
        if sure is None:
            return Answer("".join(map(str, scores)))
        rest = math.log((1 - sure) / 4)
        tokens = [
            {
                "token": str(score),
                "logprob": math.log(sure),
                "top_logprobs": [
                    {"token": str(other), "logprob": math.log(sure) if other == score else rest} for other in range(5)
                ],
            }
            for score in scores
        ]
        return Answer("".join(map(str, scores)), logprobs=tokens)

    return behave


@pytest.fixture
def gold(tmp_path: Path) -> tuple[Path, Path]:
    dialogues, scores = [], []
    for number in range(5 * PER_GRADE):
        grade = number % 5
        padding = "word " * (number // 5 % PER_GRADE)  # as long for every grade
        turns = (Turn(role="seeker", text=f"I worry, {number}"), Turn(role="supporter", text=f"grade-{grade} {padding}."))
        dialogues.append(make_dialogue(f"d{number:02}", "somebody", turns=turns))
        for name in RUBRIC.dimensions:
            record = {"dialogue_id": f"d{number:02}", "language": "en", "annotator": "a", "rubric": "esc_eval"}
            scores.append(HumanScore(**record, dimension=name, value=grade))
    write_jsonl(tmp_path / "dialogues.jsonl", dialogues)
    write_jsonl(tmp_path / "scores.jsonl", scores)
    return tmp_path / "dialogues.jsonl", tmp_path / "scores.jsonl"


def card_of(
    esc_eval: EscEval,
    gold: tuple[Path, Path],
    judge: Judge,
    *more: object,
    sure: float | None = None,
    name: str = "my-judge",
) -> dict[str, str]:
    with Endpoint(answering(judge, sure), models=(name,)) as endpoint:
        call = ("judge-card", f"{name}@{endpoint.url}", "--dialogues", gold[0], "--gold", gold[1], "--language", "en")
        code, error = esc_eval(*call, "--limit", 10, "--repeats", 1, "--out", "card", *more)
    assert code == 0, error
    return {check["name"]: check["outcome"] for check in json.loads(Path("card/judge_card.json").read_text())["checks"]}


ALWAYS = {"own kind": "not measured", "calibration": "not measured", "readable": "no fault found"}


def test_a_judge_that_sees_what_there_is_has_no_fault(esc_eval: EscEval, gold: tuple[Path, Path]) -> None:
    checks = card_of(esc_eval, gold, sound)
    measured = {"agreement", "floors", "length", "order", "injection", "repeatability"}
    assert checks == ALWAYS | dict.fromkeys(measured, "no fault found")
    page, text = Path("card/judge_card.html").read_text(), Path("card/judge_card.md").read_text()
    assert "No check found a fault." in page and "No check found a fault." in text and "plotly" not in page
    again = read_jsonl(Path("card/health_judgements.jsonl"), Judgement, "judgements")
    assert {j.repeat for j in again if j.condition["variant"] == "again"} == {1}


@pytest.mark.parametrize(
    "judge, fault",
    [
        (likes_length, "length"),
        (follows_orders, "injection"),
        (goes_by_order, "order"),
        (never_says_it_twice, "repeatability"),
        (sees_no_floors, "floors"),
        (sees_no_floors, "agreement"),
    ],
)
def test_the_card_names_a_known_fault(esc_eval: EscEval, gold: tuple[Path, Path], judge: Judge, fault: str) -> None:
    assert card_of(esc_eval, gold, judge)[fault] == "fault found"
    assert f"English, {fault}:" in Path("card/judge_card.html").read_text()


def test_a_fault_that_so_few_dialogues_cannot_show_is_not_called_absent(esc_eval: EscEval, gold: tuple[Path, Path]) -> None:
    """On five dialogues a sign-flip test has no p below 1/16."""
    checks = card_of(esc_eval, gold, goes_by_order, "--limit", 5)
    assert {name: checks[name] for name in ("order", "floors", "injection")} == dict.fromkeys(
        ("order", "floors", "injection"), "not measured"
    )
    page = Path("card/judge_card.html").read_text()
    for fewest, check in ((9, "order"), (7, "floors"), (6, "injection")):
        assert f"nothing can be shown on fewer than {fewest}" in page, check


def test_a_judge_that_is_too_sure_of_itself_is_found_out(esc_eval: EscEval, gold: tuple[Path, Path]) -> None:
    checks = card_of(esc_eval, gold, sees_no_floors, sure=0.9)
    assert checks["calibration"] == "fault found", "right in a fifth of all cases, and nine tenths sure"
    assert "plotly" in Path("card/judge_card.html").read_text(), "the diagram is drawn"


@pytest.mark.parametrize("name, outcome", [("qwen-of-mine", "fault found"), ("my-judge", "not measured")])
def test_a_taste_for_its_own_kind_is_measured_where_names_tell_bases(
    esc_eval: EscEval, gold: tuple[Path, Path], tmp_path: Path, name: str, outcome: str
) -> None:
    further = []
    for number in range(8):
        for supporter, text in (("qwen1.5-7b-chat", "grade-4"), ("vicuna-7b-1.5", "grade-1")):
            turns = (Turn(role="seeker", text=f"hm {number}"), Turn(role="supporter", text=text))
            further.append(make_dialogue(f"{supporter}{number}", supporter, card_id=f"c{number}", turns=turns))
    write_jsonl(tmp_path / "further.jsonl", further)
    more = ("--further", tmp_path / "further.jsonl", "--limit", 2)
    assert card_of(esc_eval, gold, sound, *more, name=name)["own kind"] == outcome


def test_the_same_command_asks_nothing_again(esc_eval: EscEval, gold: tuple[Path, Path]) -> None:
    with Endpoint(answering(sound), models=("my-judge",)) as endpoint:
        call = ("judge-card", f"my-judge@{endpoint.url}", "--dialogues", gold[0], "--gold", gold[1], "--language", "en")
        assert esc_eval(*call, "--limit", 2, "--repeats", 2, "--out", "card")[0] == 0
        asked, written = len(endpoint.requests), Path("card/health_judgements.jsonl").read_bytes()
        # 25 of gold, of which 2 as they are; each of these neutral, injected, reversed, with 3 floors, and twice again.
        assert asked == 25 + 2 * (3 + 3 + 2)
        assert esc_eval(*call, "--limit", 2, "--repeats", 2, "--out", "card")[0] == 0
        assert len(endpoint.requests) == asked and Path("card/health_judgements.jsonl").read_bytes() == written
    code, error = esc_eval("judge-card", "embedded", "--gold", gold[1])
    assert code == 2 and "--gold and --dialogues go together" in error


def test_chance_gives_a_true_judge_an_error_of_its_size() -> None:
    """A judge whose probabilities are true has an error at or below `chance` in 95 of 100 samples."""
    rng, below, rounds = np.random.default_rng(3), 0, 300
    for _ in range(rounds):
        bins = []
        for confidence in (0.35, 0.55, 0.75, 0.95):
            rate = rng.binomial(30, confidence) / 30
            bins.append(Bin("en", POOLED, 0, 1, 30, confidence, rate, 0, 1))
        error = calibration_error(bins)
        assert error is not None and error.n == 120
        below += error.value <= error.chance
    assert 0.92 <= below / rounds <= 0.98
