"""Score sets: stated coverage on simulated gold, sets by hand, and the queue that a study takes."""

from __future__ import annotations

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
from core.statistics.bootstrap import Floats
from evalsuite.statistics.conformal import Case, ScoreSet, decided, score_sets
from evalsuite.statistics.selective import SILENT, lower_bound, threshold_for
from tests.conftest import EscEval
from tests.evalsuite.records import make_dialogue

SCORES = range(5)


def overconfident(rng: np.random.Generator, number: int) -> list[Case]:
    """Gold is drawn from true probabilities; the judge gives their cubes, far too sure."""
    true: Floats = rng.dirichlet(np.full(5, 0.8), number)
    gold = (true.cumsum(axis=1) < rng.random((number, 1))).sum(axis=1)
    told = true**3 / (true**3).sum(axis=1, keepdims=True)
    return [Case(str(n), row, float(row.argmax()), min(int(g), 4)) for n, (row, g) in enumerate(zip(told, gold, strict=True))]


def coverage(seeds: int, stated: float, known: int) -> tuple[float, float]:
    """Mean coverage on 40 new verdicts a seed, and its standard error."""
    shares = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        new = overconfident(rng, 40)
        sets = score_sets(overconfident(rng, known), [case.probabilities for case in new], SCORES, stated)
        shares.append(np.mean([case.gold in scores for scores, case in zip(sets, new, strict=True)]))
    return float(np.mean(shares)), float(np.std(shares) / seeds**0.5)


def test_sets_of_a_judge_that_is_too_sure_cover_as_stated() -> None:
    mean, error = coverage(40, 0.8, 59)
    assert abs(mean - 0.8) < 4 * error + 1 / 60


@pytest.mark.full
@pytest.mark.parametrize("known", [29, 60, 200])
def test_coverage_is_as_stated_over_500_seeds(known: int) -> None:
    mean, error = coverage(500, 0.9, known)
    assert 0.9 - 3 * error <= mean <= 0.9 + 1 / (known + 1) + 3 * error


def test_a_set_by_hand() -> None:
    """Ten known cases whose right score had probability 0.1, 0.2 … 1: how many of them were as improbable, and one, of 11."""
    known = [Case(str(n), np.array([0.1 * n, 1 - 0.1 * n, 0, 0, 0]), 0, 0) for n in range(1, 11)]
    new = np.array([0.55, 0.25, 0.15, 0.05, 0.0])
    # As improbable or more: of 0.55 five of them (6/11), of 0.25 two (3/11), of 0.15 one (2/11), of less none (1/11).
    assert score_sets(known, [new], SCORES, 0.8) == [(0, 1)]
    assert score_sets(known, [new], SCORES, 0.85) == [(0, 1, 2)]
    assert score_sets(known, [new], SCORES, 0.95) == [(0, 1, 2, 3, 4)], "too few known cases rule nothing out"


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
    cases = [Case(str(n), np.array([1 - n / 200, n / 200]), 0, int(n >= 60)) for n in range(100)]
    shown = [binomtest(60, n, alternative="greater").proportion_ci(0.95, method="exact").low for n in (60, 70, 80)]
    assert shown[1] > 0.7 > shown[2]
    assert threshold_for(cases, 0.7).least == pytest.approx(1 - 69 / 200)
    assert threshold_for(cases, 0.9).least == pytest.approx(1 - 59 / 200)
    assert threshold_for(cases, 0.94) == SILENT, "30 verdicts that are all right are too few to show it, so no more are tried"
    assert threshold_for(cases[::-1], 0.7) == threshold_for(cases, 0.7) and threshold_for(cases[50:], 0.9) == SILENT


def test_what_counts_as_a_word() -> None:
    assert decided((3,), 1) and not decided((), 1) and not decided((2, 3), 1)
    assert decided((2, 3), 2) and not decided((1, 3), 2), "scores that lie apart are no answer"


def test_a_run_keeps_what_is_sure_and_asks_people_for_the_rest(esc_eval: EscEval) -> None:
    rubric = load_rubric("esc_eval")
    Path("run").mkdir()

    def verdicts(names: list[str], sure: set[str]) -> list[Judgement]:
        made = []
        for name in names:
            for dimension in rubric.dimensions:
                spread = {"3": 0.96, "2": 0.04} if name in sure else {"3": 0.4, "2": 0.3, "1": 0.3}
                made.append(
                    Judgement(
                        dialogue_id=name,
                        language="en",
                        judge="j",
                        rubric="esc_eval",
                        dimension=dimension,
                        value=3,
                        distribution=spread,
                        method="joint",
                    )
                )
        return made

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
    write_jsonl(Path("run/gold_judgements.jsonl"), verdicts(gold_names, sure))
    write_jsonl(Path("run/judgements.jsonl"), verdicts(names, {"sure"}))
    write_jsonl(Path("run/dialogues.jsonl"), [make_dialogue(name) for name in names])
    write_json(Path("run/config.json"), {"score": {"judge": {"name": "j"}, "rubric": rubric.model_dump(mode="json")}})
    for asked in (("--coverage", 0.9), ()):
        kept_and_queued(esc_eval, asked)
    code, error = esc_eval("abstain", "run", "--accuracy", 0.99, "--out", "never")
    assert code == 0 and "no threshold is shown to reach 99 %" in Path("never/abstain.md").read_text()
    assert len(read_jsonl(Path("never/people_dialogues.jsonl"), Dialogue, "dialogues")) == len(names)
    for call, wrong in ((("--accuracy", 0.8, "--coverage", 0.9), "give one of them"), (("--most", 2), "for --coverage")):
        code, error = esc_eval("abstain", "run", *call)
        assert code == 2 and wrong in error
    code, error = esc_eval("abstain", "run", "--gold", "run/gold_scores.jsonl")
    assert code == 2 and "go together" in error
    Path("run/gold_scores.jsonl").unlink()
    code, error = esc_eval("abstain", "run")
    assert code == 2 and "gold_scores.jsonl: no such file" in error


def kept_and_queued(esc_eval: EscEval, asked: tuple[object, ...]) -> None:
    assert esc_eval("abstain", "run", *asked, "--out", "out")[0] == 0
    assert [d.id for d in read_jsonl(Path("out/people_dialogues.jsonl"), Dialogue, "dialogues")] == ["unsure"]
    sets = read_jsonl(Path("out/score_sets.jsonl"), ScoreSet, "score sets")
    assert {(one.dialogue_id, one.scores, one.kept) for one in sets if one.dialogue_id == "sure"} == {("sure", (3,), True)}
    (table, _) = json.loads(Path("out/abstain.json").read_text())["tables"]
    pooled = table["rows"][-1]
    assert pooled[1] == "all dimensions"
    if asked:
        assert pooled[2]["mean"] >= 90, "covered"
        assert pooled[5]["mean"] == 100 > pooled[7]["mean"], "the judge agrees more with gold where it speaks"
    else:  # half of the verdicts are spoken and right: 7 of each of 20 dialogues, which count once each as none is wrong
        assert pooled[2] == pytest.approx(96) and pooled[3]["mean"] == 50 and pooled[4]["mean"] == 100 > pooled[6]["mean"]
        assert pooled[5] == pytest.approx(100 * 0.05 ** (1 / 20))
