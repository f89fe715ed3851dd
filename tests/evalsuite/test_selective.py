"""Accuracy when it speaks: bounds and thresholds by hand, and the queue that a study takes. (Simulated: `truth_judges`.)"""

import json
from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import brentq
from scipy.stats import beta, binomtest, t

from core.files import read_jsonl, write_json, write_jsonl
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import load_rubric
from evalsuite.trust.selective import SILENT, SelectiveCase, Spoken, lower_bound, threshold_for
from tests.conftest import EscEval
from tests.evalsuite.records import make_dialogue, make_judgement


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
