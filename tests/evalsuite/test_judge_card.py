"""A judge's card against scripted judges of known faults; what `--accuracy` keeps: bounds and thresholds by hand, the queue."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import brentq
from scipy.stats import beta, binomtest, t
from statsmodels.stats.multitest import multipletests

from core.files import read_jsonl, write_json, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.rubrics import load_rubric
from evalsuite.statistics.judges import calibration_error
from evalsuite.trust.commands.judge_card import load_injections
from evalsuite.trust.judge_card import FAULT, SOUND, UNMEASURED, CheckFinding, _corrected
from evalsuite.trust.selective import SILENT, SelectiveCase, Spoken, lower_bound, threshold_for
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


def test_the_bound_is_clopper_and_pearsons_at_the_effective_sample_size() -> None:
    """Korn and Graubard's effective size is that of the design effect, corrected for the degrees of freedom."""
    hits, counts = np.array([7.0, 7, 5, 6, 7, 3, 7, 6]), np.full(8, 7.0)
    mean = hits.sum() / 56
    fitted = sm.WLS(hits / counts, np.ones(8), weights=counts).fit(cov_type="cluster", cov_kwds={"groups": np.arange(8)})
    effective = mean * (1 - mean) / fitted.bse[0] ** 2 * (t.ppf(0.05, 55) / t.ppf(0.05, 7)) ** 2
    exact = brentq(lambda p: beta.sf(p, mean * effective, (1 - mean) * effective + 1) - 0.95, 0, 1)
    assert lower_bound(hits, counts) == pytest.approx(exact, rel=1e-3)
    alone = lower_bound(np.array([1.0] * 900 + [0] * 100), np.ones(1000))
    independent = binomtest(900, 1000, alternative="greater").proportion_ci(0.95, method="exact").low
    assert alone == pytest.approx(independent, abs=1e-4)
    assert lower_bound(np.full(20, 7.0), np.full(20, 7.0)) == pytest.approx(0.05 ** (1 / 20)), "each counts once"
    assert lower_bound(np.zeros(5), np.ones(5)) == lower_bound(np.ones(1), np.ones(1)) == 0


def test_a_threshold_is_the_last_step_before_one_fails() -> None:
    """Of the surest 60 of 100 single verdicts all are right, of the others none: 70 % are shown to be right 7 times in 10, not
    more, and nothing is spoken where the first step fails."""
    cases = [SelectiveCase(str(n), 1 - n / 200, n < 60) for n in range(100)]
    shown = [binomtest(60, n, alternative="greater").proportion_ci(0.95, method="exact").low for n in (60, 70, 80)]
    assert shown[1] > 0.7 > shown[2]
    assert threshold_for(cases, 0.7).least == pytest.approx(1 - 69 / 200)
    assert threshold_for(cases, 0.9).least == pytest.approx(1 - 59 / 200)
    assert threshold_for(cases, 0.94) == SILENT, "30 verdicts that are all right are too few to show it, so no more are tried"
    assert threshold_for(cases[::-1], 0.7) == threshold_for(cases, 0.7) and threshold_for(cases[50:], 0.9) == SILENT


def test_a_run_keeps_what_is_sure_and_asks_people_for_the_rest(esc_eval: EscEval) -> None:
    rubric = load_rubric("esc_eval")
    Path("run").mkdir()

    def verdicts(names: list[str], sure: set[str]) -> list[Judgement]:
        spreads = {True: {"3": 0.96, "2": 0.04}, False: {"3": 0.4, "2": 0.3, "1": 0.3}}
        more = {"judge": "j", "rubric": "esc_eval"}
        return [
            make_judgement(name, dimension, 3, distribution=spreads[name in sure], **more)
            for name in names
            for dimension in rubric.dimensions
        ]

    gold_names, names = [f"g{n:02}" for n in range(40)], ["sure", "unsure"]
    # The judge is right where it is sure, and wrong in a third of the other cases.
    sure = {name for name in gold_names if int(name[1:]) % 2}
    score = {"language": "en", "annotator": "a", "rubric": "esc_eval"}
    gold = [
        HumanScore(dialogue_id=name, dimension=dimension, value=3 if name in sure or int(name[1:]) % 3 else 2, **score)
        for name in gold_names
        for dimension in rubric.dimensions
    ]
    write_jsonl(Path("run/gold_scores.jsonl"), gold)
    write_jsonl(Path("run/gold_dialogues.jsonl"), [make_dialogue(name) for name in gold_names])
    write_jsonl(Path("run/gold_judgements.jsonl"), verdicts(gold_names, sure))
    write_jsonl(Path("run/judgements.jsonl"), verdicts(names, {"sure"}))
    write_jsonl(Path("run/dialogues.jsonl"), [make_dialogue(name) for name in names])
    write_json(Path("run/config.json"), {"score": {"judge": {"name": "j"}, "rubric": rubric.model_dump(mode="json")}})
    assert esc_eval("judge-card", "run", "--accuracy", 0.8, "--out", "out") == (0, "")
    assert [d.id for d in read_jsonl(Path("out/people_dialogues.jsonl"), Dialogue, "dialogues")] == ["unsure"]
    spoken = read_jsonl(Path("out/spoken.jsonl"), Spoken, "verdicts")
    assert {(one.dialogue_id, one.value) for one in spoken} == {("sure", 3), ("unsure", None)}
    (table,) = (one for one in json.loads(Path("out/judge_card.json").read_text())["tables"] if one["key"] == "spoken")
    pooled = table["rows"][-1]
    assert table["columns"][:2] == ["language", "dimension"] and pooled[:2] == ["en", "all dimensions"]
    # Half of the verdicts are spoken and right: 7 of each of 20 dialogues, which count once each as none is wrong.
    assert pooled[2] == pytest.approx(96) and pooled[3]["mean"] == 50 and pooled[4]["mean"] == 100 > pooled[6]["mean"]
    assert pooled[5] == pytest.approx(100 * 0.05 ** (1 / 20))
    code, error = esc_eval("judge-card", "run", "--accuracy", 0.99, "--out", "never")
    assert code == 0 and "no threshold is shown to reach 99 %" in Path("never/judge_card.md").read_text()
    assert len(read_jsonl(Path("never/people_dialogues.jsonl"), Dialogue, "dialogues")) == len(names)
    code, error = esc_eval("judge-card", "embedded", "--accuracy", 0.8)
    assert code == 2 and "--accuracy: it is for a run folder" in error
    Path("run/gold_judgements.jsonl").unlink()
    code, error = esc_eval("judge-card", "run", "--accuracy", 0.8)
    assert code == 2 and "--accuracy: the judge was not asked about gold" in error
