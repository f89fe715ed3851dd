"""A judge's card against scripted judges of known faults: the card says so, and says nothing of a judge without them."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from core.files import read_jsonl, write_jsonl
from core.records import HumanScore, Judgement, Turn
from core.rubrics import load_rubric
from evalsuite.statistics.judges import calibration_error
from evalsuite.trust.commands.judge_card import load_injections
from evalsuite.trust.judge_card import FAULT, SOUND, UNMEASURED, CheckFinding, _corrected
from tests.bench.truth_judges import told
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.records import make_dialogue, make_judgement

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


def sees_no_floors(text: str, count: int) -> list[int]:
    return [2] * 7


def goes_by_order(text: str, count: int) -> list[int]:
    """The first that it is asked for is always rated lowest."""
    return [0, *sound(text, count)[1:]]


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
    esc_eval: EscEval, gold: tuple[Path, Path], judge: Judge, *more: object, sure: float | None = None, name: str = "my-judge"
) -> dict[str, str]:
    with Endpoint(answering(judge, sure), models=(name,)) as endpoint:
        call = ("judge-card", f"{name}@{endpoint.url}", "--dialogues", gold[0], "--gold", gold[1], "--set", "languages=en")
        limit = () if "--limit" in more else ("--limit", 20)
        code, error = esc_eval(*call, *limit, "--out", "card", *more)
    assert code == 0, error
    return {check["name"]: check["outcome"] for check in json.loads(Path("card/judge_card.json").read_text())["checks"]}


ALWAYS = {"own kind": "not measured", "calibration": "not measured", "readable": "no fault found"}


def test_a_judge_that_sees_what_there_is_has_no_fault(esc_eval: EscEval, gold: tuple[Path, Path]) -> None:
    checks = card_of(esc_eval, gold, sound)
    measured = {"agreement", "floors", "length", "order", "injection", "repeatability"}
    assert checks == ALWAYS | dict.fromkeys(measured, "no fault found")
    page, text = Path("card/judge_card.html").read_text(), Path("card/judge_card.md").read_text()
    answer = "my-judge is right more often than always giving the most frequent score, and no check found a fault."
    assert f'<p class="answer">{answer}</p>' in page and answer in text and "plotly" not in page
    # 25 of gold, of which 20 as they are; each of these neutral, injected, reversed, with 3 floors, and twice again.
    again = read_jsonl(Path("card/health_judgements.jsonl"), Judgement, "judgements")
    assert {j.repeat for j in again if j.condition["variant"] == "again"} == {1, 2}


@pytest.mark.parametrize(
    "judge, fault",
    [
        (lambda text, count: [min(4, len(text.split("grade-")[-1]) // 40)] * 7, "length"),
        (lambda text, count: [4] * 7 if any(order in text for order in ORDERS) else sound(text, count), "injection"),
        (goes_by_order, "order"),
        (lambda text, count: [(worth(text) + count) % 5] * 7, "repeatability"),
        (lambda text, count: [worth(text) if "grade-" in text else 4] * 7, "floors"),
    ],
)
def test_the_card_names_a_known_fault(esc_eval: EscEval, gold: tuple[Path, Path], judge: Judge, fault: str) -> None:
    assert card_of(esc_eval, gold, judge)[fault] == "fault found"
    page = Path("card/judge_card.html").read_text()
    assert f"English, {fault}:" in page and '<p class="answer">Do not rely on my-judge. Checks that found a fault: ' in page


def test_a_judge_that_always_says_the_same_is_of_no_shown_worth_and_not_taken_by_length(
    esc_eval: EscEval, gold: tuple[Path, Path]
) -> None:
    checks = card_of(esc_eval, gold, sees_no_floors)
    assert checks["floors"] == checks["agreement"] == "not shown" and checks["length"] == "no fault found"
    assert "Do not rely on my-judge yet: it is not shown to be right more often" in Path("card/judge_card.md").read_text()


def test_a_fault_that_so_few_dialogues_cannot_show_is_not_called_absent(esc_eval: EscEval, gold: tuple[Path, Path]) -> None:
    """On five dialogues p is 2 / 2⁵ at least, however large an effect is."""
    checks = card_of(esc_eval, gold, goes_by_order, "--limit", 5)
    assert {name: checks[name] for name in ("order", "floors", "injection")} == dict.fromkeys(
        ("order", "floors", "injection"), "not measured"
    )
    tested = len({"readable", "agreement", "floors", "length", "order", "injection", "repeatability"})
    page = Path("card/judge_card.html").read_text()
    for parts, check in ((2, "order"), (3, "floors"), (2, "injection")):
        (fewest,) = (n for n in range(30) if 2 / 2**n <= 0.05 / (tested * parts) < 2 / 2 ** (n - 1))
        assert f"nothing is tested on fewer than {fewest} cards" in page, check


@pytest.mark.slow
@pytest.mark.parametrize(("p", "found"), [((0.006, 0.04, 0.2), [True, False, False]), ((0.02, 0.03, 0.04), [False] * 3)])
def test_faults_are_corrected_together(p: tuple[float, ...], found: list[bool]) -> None:
    checks = {(str(place), "en"): CheckFinding(SOUND, "", one, 30) for place, one in enumerate(p)}
    corrected = _corrected(checks | {("none", "en"): CheckFinding(UNMEASURED, "")})
    assert [check.outcome == FAULT for check in corrected.values()] == [*found, False]
    assert found == list(multipletests(p, method="holm")[0])


def test_a_judge_that_is_too_sure_of_itself_is_found_out(esc_eval: EscEval, gold: tuple[Path, Path]) -> None:
    checks = card_of(esc_eval, gold, sees_no_floors, sure=0.9)
    assert checks["calibration"] == "fault found", "right in a fifth of all cases, and nine tenths sure"
    assert "plotly" in Path("card/judge_card.html").read_text(), "the diagram is drawn"


@pytest.mark.parametrize("name, outcome", [("qwen-of-mine", "fault found"), ("my-judge", "not measured")])
def test_a_taste_for_its_own_kind_is_measured_where_names_tell_bases(
    esc_eval: EscEval, gold: tuple[Path, Path], tmp_path: Path, name: str, outcome: str
) -> None:
    further = []
    for number in range(12):
        for supporter, text in (("qwen1.5-7b-chat", "grade-4"), ("vicuna-7b-1.5", "grade-1")):
            turns = (Turn(role="seeker", text=f"hm {number}"), Turn(role="supporter", text=text))
            further.append(make_dialogue(f"{supporter}{number}", supporter, card_id=f"c{number}", turns=turns))
    write_jsonl(tmp_path / "further.jsonl", further)
    more = ("--further", tmp_path / "further.jsonl", "--limit", 2)
    assert card_of(esc_eval, gold, sound, *more, name=name)["own kind"] == outcome


def test_calibration_error_is_that_of_its_bins_and_chance_is_wider_where_hits_go_together() -> None:
    pairs = told(np.random.default_rng(3), 20, 0.8, 0.55)
    error = calibration_error({"all": pairs})
    sure, hit = np.array([[max((j.distribution or {}).values()), gold] for j, gold in pairs]).T
    inside = np.ceil(sure * 10)
    by_hand = sum(abs((hit - sure)[inside == one].sum()) for one in set(inside)) / len(pairs)
    assert error is not None and (error.n, error.clusters) == (140, 20) and error.value == pytest.approx(by_hand)
    apart = calibration_error({"all": [(j.model_copy(update={"dialogue_id": f"{n}"}), g) for n, (j, g) in enumerate(pairs)]})
    assert apart is not None and apart.value == pytest.approx(error.value) and apart.chance < error.chance
    assert calibration_error({"all": [(make_judgement("d", "x", 1), 1.0)]}) is None
