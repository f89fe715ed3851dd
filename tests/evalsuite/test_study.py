"""Frameworks side by side: tau against scipy, reliability and attenuation with known truth, and the verb against scripted
models."""

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from core.files import write_json
from core.records import Dialogue, Judgement
from core.statistics.accuracy import CORRELATION_FROM, jackknife
from core.statistics.bootstrap import RESAMPLES
from core.tables import Estimate
from evalsuite.papers.ecdbench import tasks
from evalsuite.papers.esc_eval import EscEval as EscEval_
from evalsuite.runs.framework import Alarm, ScoredRun
from evalsuite.trust.between_frameworks import (
    Examined,
    FrameworkScores,
    averages_of,
    call_table,
    dimension_table,
    rank_tables,
    tau,
)
from evalsuite.trust.commands.study import study_sheet
from tests.conftest import EscEval
from tests.data_prep.sources.fixtures import write
from tests.ecdbench_corpora import released
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric, make_run


def test_tau_lies_between_what_the_pairs_that_hold_allow() -> None:
    """Three supporters on 40 cards: the first far below the others, which are alike."""
    rng = np.random.default_rng(0)
    scores = np.array([20, 60, 60])[:, None] + rng.normal(0, 8, (40, 3, 2))
    one, other = (
        averages_of(title, title, "abc", part, np.ones_like(part))
        for title, part in zip("xy", (scores, 100 - scores), strict=True)
    )
    # Two of three pairs stand, the third may be either way: (2 ± 1) / 3.
    same, opposite = tau(one, one), tau(one, other)
    assert (same.mean, same.n) == (1, 3) and same.low == pytest.approx(1 / 3) and same.high == 1
    assert (opposite.mean, opposite.low) == (-1, -1) and opposite.high == pytest.approx(-1 / 3)
    alone = averages_of("z", "z", "ab", scores[:1, :2], np.ones((1, 2, 2)))
    assert tau(alone, one) == Estimate(1.0, -1.0, 1.0, 2), "one card makes no order stand"


def frameworks(seed: int, upside_down: bool = False, trials: int = 2) -> list[FrameworkScores]:
    """Two frameworks that measure one true quality of a dialogue's cell, each with noise of its own."""
    rng = np.random.default_rng(seed)
    dialogues: list[Dialogue] = []
    verdicts: list[list[Judgement]] = [[], []]
    rubrics = [make_rubric("warm", low=0, high=100), make_rubric("kind", low=0, high=100)]
    for rank, supporter in enumerate("abcd"):
        for card in range(30):
            true = 30 + 12 * rank + rng.normal(0, 10)
            for trial in range(trials):
                id = f"{supporter}{card}{trial}"
                dialogues.append(make_dialogue(id, supporter, card_id=f"c{card}", trial=trial))
                for place, name in enumerate(("warm", "kind")):
                    level = 100 - true if upside_down and place else true
                    value = float(np.clip(level + rng.normal(0, 12), 0, 100))
                    verdicts[place].append(make_judgement(id, name, value))
    titles = zip(("One", "Other"), verdicts, rubrics, (1200, 240), strict=True)
    return [FrameworkScores(title, "cards", dialogues, found, rubric, calls) for title, found, rubric, calls in titles]


@pytest.mark.slow
def test_frameworks_that_measure_the_same_agree_and_the_opposite_do_not() -> None:
    both = frameworks(2)
    _, ranks = rank_tables(both, "en")
    seen = ranks.rows[0][2]
    assert seen.mean == 1 and seen.low > 0.3  # type: ignore[union-attr, operator]
    dimensions = dimension_table(both[0], both[1], "en")
    assert dimensions is not None
    _, _, seen, cleared, *trust = dimensions.rows[0]
    assert 0.6 < seen.mean < 0.9 < cleared.mean <= 1, "noise apart, they are one"  # type: ignore[union-attr, operator]
    assert all(0.6 < part < 0.95 for part in trust)  # type: ignore[operator]
    single = frameworks(2, trials=1)  # one trial says nothing about chance
    once = dimension_table(single[0], single[1], "en")
    assert once is not None and once.rows[0][3].mean is None and once.rows[0][4:] == (None, None)  # type: ignore[union-attr]
    calls = call_table(both, "en")
    assert calls is not None
    (told, needed), (told2, needed2) = ((row[4], row[6]) for row in calls.rows)
    opposite = frameworks(3, upside_down=True)
    turned = dimension_table(opposite[0], opposite[1], "en")
    assert rank_tables(opposite, "en")[1].rows[0][2].mean == -1  # type: ignore[union-attr]
    assert turned is not None and turned.rows[0][3].mean < -0.9  # type: ignore[union-attr, operator]
    assert min(told, told2) >= 4 and needed > 3 * needed2, "a fifth of the calls for the same word"  # type: ignore[operator, type-var]


def test_the_jackknife_of_a_figure_beyond_one_by_hand() -> None:
    """A mean of six values, ±0.3 and four of 0: without one it moves by a fifth of its distance. Two groups carry the variance,
    so the fourth powers' share of the squared variance is 1/2, and 2 / (1/2 − 1/6) = 6 degrees of freedom are cut at 6 − 3."""
    values = np.array([0.6, 1.2, 0.85, 0.95, 0.9, 0.9])
    without = (values.sum() - values) / 5
    found = jackknife(np.array([0.9, *without]), 9, fewest=4, fisher=False)
    squares = ((values - 0.9) / 5) ** 2
    degrees = min(2 / ((squares**2).sum() / squares.sum() ** 2 - 1 / 6), 3)
    half = stats.t.ppf(0.975, degrees) * squares.sum() ** 0.5
    assert found.low == pytest.approx(0.9 - half) and found.high == 1, "cut at 1"
    assert jackknife(np.array([1.2, *without]), 9, CORRELATION_FROM, fisher=False) == Estimate(1, None, None, 9), "two alike"
    assert jackknife(np.array([0.9, *without[:5], np.nan]), 9, 4, fisher=False) == Estimate(0.9, None, None, 9)


@pytest.mark.slow
def test_what_does_not_vary_is_said_and_not_listed() -> None:
    """One framework tells the supporters apart; the other gives everybody 50."""
    one, other = frameworks(5)
    still = [verdict.model_copy(update={"value": 50.0}) for verdict in other.judgements]
    page = study_sheet([one, dataclasses.replace(other, judgements=still)], None, "abcd", "all", False)
    assert page.findings == [
        "This study cannot tell whether the frameworks rank these supporters alike.",
        "English, Other: all supporters have the same average, so it ranks nobody.",
        "English, highest average: d (One).",
    ]
    (dimensions,) = (table for table in page.tables if table.key == "study-dimensions-en")
    assert dimensions.rows == ()
    assert dimensions.notes[0].endswith("chance. Left out, because a dimension does not vary: 1 of 1 pairs.")


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_framework_whose_verdicts_cannot_be_read_ranks_nobody() -> None:
    one, other = frameworks(5)
    null = [verdict.model_copy(update={"value": None}) for verdict in other.judgements]
    page = study_sheet([one, dataclasses.replace(other, judgements=null)], None, "abcd", "all", False)
    assert page.findings[1:] == [
        "English, Other: none of 240 verdicts could be read: it ranks nobody and is left out.",
        "English, highest average: d (One).",
    ]
    assert [forest.columns for forest in page.forests] == [["One"]]
    tables = {table.key: table for table in page.tables}
    assert tables["study-averages-en"].columns == ("supporter", "One") and tables["study-ranks-en"].rows == ()
    assert [row[0] for row in tables["study-calls-en"].rows] == ["One"]
    # One supporter alone is left out where the others were read.
    some = [verdict if verdict.dialogue_id[0] != "a" else empty for verdict, empty in zip(other.judgements, null, strict=True)]
    averages, ranks = rank_tables([one, dataclasses.replace(other, judgements=some)], "en")
    assert averages.rows[0][2] is None and isinstance(ranks.rows[0][2], Estimate) and ranks.rows[0][2].n == 3


@pytest.mark.slow
def test_two_floors_are_no_pair() -> None:
    both = [dataclasses.replace(one, floors={"a", "b"}) for one in frameworks(2)]
    calls = call_table(both, "en")
    assert calls is not None and [row[5] for row in calls.rows] == [5, 5]
    seen = rank_tables(both, "en")[1].rows[0][2]
    # Six pairs, of which one may be either way at least.
    assert isinstance(seen, Estimate) and seen.mean == 1 and seen.low is not None and seen.low <= 4 / 6


@pytest.mark.slow
def test_a_benchmark_is_ranked_with_the_supporters_that_it_knows() -> None:
    """Items of two models: one is right on eight of ten, the other on five, the same items in every draw."""
    rng = np.random.default_rng(4)
    right = np.array([[1] * 80 + [0] * 20, [1] * 50 + [0] * 50], dtype=float)
    picks = rng.integers(100, size=(RESAMPLES, 100))
    totals = {
        name: 100 * np.concatenate([[row.mean()], row[picks].mean(axis=1)]) for name, row in zip("db", right, strict=True)
    }
    totals["d"][3] = np.nan  # a draw without any item that one of the metrics is made of
    totals["e"] = np.full(1 + RESAMPLES, np.nan)  # nothing that was asked is defined
    every: list[FrameworkScores | Examined] = [*frameworks(2), Examined("ECDBench", totals, 100, 200)]
    averages, ranks = rank_tables(every, "en")
    assert [row[3] for row in averages.rows] == [None, averages.rows[1][3], None, averages.rows[3][3]]
    assert averages.rows[3][3].mean == 80  # type: ignore[union-attr]
    assert [(row[2].mean, row[2].n) for row in ranks.rows] == [(1.0, 4), (1.0, 2), (1.0, 2)]  # type: ignore[union-attr]
    calls = call_table(every, "en")
    assert calls is not None
    title, items, questions, each, apart, pairs, needed = calls.rows[2]
    assert (title, items, questions, each, apart, pairs) == ("ECDBench", 100, 200, 1.0, 1, 1)
    # By hand: both right half of the time apart; the standard error of the gap is √(0.3 · 0.7 / 100).
    assert needed == pytest.approx(2 * 100 * (1.959964 + 0.841621) ** 2 * 0.0021 / 0.09, rel=0.15)


# --- finished runs of any benchmarks ------------------------------------------------------------------------------------------


class Alarming(EscEval_):
    """A benchmark that nobody of this project knows, with a warning and an alarm of its own."""

    name = "alarming"
    title = "Alarming"

    @classmethod
    def cautions(cls, run: ScoredRun) -> list[str]:
        return ["It shows nothing."]

    @classmethod
    def alarms(cls, run: ScoredRun) -> list[Alarm]:
        return [Alarm(run.tally.dialogues[0], "a harmed somebody")]


def two_runs(folder: Path) -> None:
    """a is better than b by one benchmark, and worse by the other, on 12 cards each; only the first judge was measured."""
    scores: dict[str, list[int | None]] = {"a": [4, 3] * 6, "b": [0, 1] * 6, "c": [2, 2] * 6}
    run = make_run(folder / "one", scores, framework="esc_eval", judge="j1")
    config = json.loads((run / "config.json").read_text())
    write_json(run / "config.json", config | {"gold": {"dialogues": "people.jsonl", "count": 3, "sha256": ""}})
    figures = {"acc": 0.8, "acc_low": 0.7, "acc_high": 0.9, "majority_acc": 0.5, "n": 40}
    write_json(run / "agreement.json", {"agreement": {"en": {"average": figures}}})
    upside_down: dict[str, list[int | None]] = {name: [4 - (value or 0) for value in of_one] for name, of_one in scores.items()}
    make_run(folder / "other", upside_down, framework=f"{__name__}:Alarming", judge="j2")


def test_finished_runs_of_any_benchmarks_stand_side_by_side(esc_eval: EscEval, tmp_path: Path) -> None:
    two_runs(tmp_path)
    assert esc_eval("study", "one", "other", "--out", "page") == (0, "")
    page = json.loads((tmp_path / "page" / "study.json").read_text())
    tables = {table["key"]: table for table in page["tables"]}
    assert tables["study-averages-en"]["columns"] == ["supporter", "ESC-Eval", "Alarming"]
    assert [row[1]["mean"] for row in tables["study-averages-en"]["rows"]] == [87.5, 12.5, 50]
    judges = tables["study-judges"]["rows"]
    assert [row[:4] for row in judges] == [["ESC-Eval", "j1", "people.jsonl", "English"], ["Alarming", "j2", "nothing", None]]
    assert (judges[0][4], judges[0][5]) == ({"mean": 80, "low": 70, "high": 90, "n": 40}, 50) and judges[1][4]["mean"] is None
    against = [(row[0], row[1], row[3]["mean"], row[5]["mean"], row[6]) for row in tables["study-disagreements-en"]["rows"]]
    assert against == [("a", "b", 75, -75, "both"), ("a", "c", 37.5, -37.5, "both"), ("b", "c", -37.5, 37.5, "both")]
    assert "rank these supporters differently" in page["findings"][0], tables["study-ranks-en"]
    assert page["warnings"] == [
        "Alarming: 1 dialogues that no average may hide, first a harmed somebody.",
        "Alarming: It shows nothing.",
    ]


def test_what_a_study_of_runs_refuses(esc_eval: EscEval, tmp_path: Path) -> None:
    two_runs(tmp_path)
    make_run(tmp_path / "strangers", {"x": [1, 2]}, framework="esc_eval")
    said = {
        ("one", "one"): "a run folder is given twice",
        ("one", "strangers"): "no supporter is in two of these runs",
        (): "nothing to study: give --supporter and --model, or scored run folders",
        ("one", "other", "--supporter", "embedded"): "--supporter: finished runs need no calls",
    }
    for given, told in said.items():
        code, err = esc_eval("study", *given, "--out", "page")
        assert code == 2 and told in err and not (tmp_path / "page").exists(), given


def behave(body: dict[str, Any], count: int) -> Answer:
    constraint = body.get("structured_outputs") or {}
    return echo(body, count) if constraint else Answer(f"I hear you, {count}")


def test_three_frameworks_run_on_the_same_supporters(esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = Mock(wraps=study_sheet)
    monkeypatch.setattr("evalsuite.trust.commands.study.study_sheet", sheet)
    with Endpoint(behave, models=("a", "all")) as endpoint:
        call = ["study", "--supporter", f"a@{endpoint.url}", "--model", f"all@{endpoint.url}", "--language", "en"]
        call += ["--limit", "2", "--set", "exchanges=1", "--out", "s"]
        code, error = esc_eval(*call)
        assert code == 0, error
        assert [framework.floors for framework in sheet.call_args.args[0]] == [{"lecture", "parrot", "silent"}] * 3
        asked = len(endpoint.requests)
        assert esc_eval(*call)[0] == 0 and len(endpoint.requests) == asked, "nothing is asked twice"
    tables = {table["key"]: table for table in json.loads(Path("s/study.json").read_text())["tables"]}
    known = {"study-averages-en", "study-ranks-en", "study-calls-en", "study-dimensions-en"}
    assert known <= set(tables) <= known | {"study-disagreements-en"}
    assert tables["study-averages-en"]["columns"] == ["supporter", "ESC-Eval", "EmoHarbor", "FEEL"]
    assert [row[0] for row in tables["study-averages-en"]["rows"]] == ["a", "lecture", "parrot", "silent"]
    assert [row[3] for row in tables["study-ranks-en"]["rows"]] == ["others", "the same", "others"]
    assert sum(row[2] for row in tables["study-calls-en"]["rows"]) == asked, "every call is in the table"
    assert len(tables["study-dimensions-en"]["rows"]) == 7 * 6


@pytest.mark.slow
def test_ecdbench_joins_where_its_data_are(esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval asks for real; a rule of the test stands for the log-probabilities."""
    from lm_eval.tasks import TaskManager

    from tests.lm_eval_model import HARNESS, Scripted

    write(tmp_path / "corpora", {name: text for name, text in released().items() if name.startswith(("RTE/", "COPA/"))})
    models: list[Scripted] = []

    def scripted(url: str, name: str, *more: object) -> Scripted:
        models.append(Scripted(lambda _, option: len(option) * (1 if name == "a" else -1)))
        return models[-1]

    # lm-eval's whole index takes minutes to read on a busy machine.
    paths = [str(tasks.TASKS), *(str(HARNESS / name) for name in ("glue/rte", "super_glue/copa"))]
    monkeypatch.setattr(tasks, "load_manager", lambda: TaskManager(include_path=paths, include_defaults=False))
    monkeypatch.setattr(tasks, "language_model", scripted)
    with Endpoint(behave, models=("a", "b", "all")) as endpoint:
        call = ["study", "--supporter", f"a@{endpoint.url}", "--supporter", f"b@{endpoint.url}", "--model"]
        call += [f"all@{endpoint.url}", "--language", "en", "--limit", "2", "--set", "trials=1", "--set", "exchanges=1"]
        call += ["--data", str(tmp_path / "corpora"), "--out", "s"]
        code, error = esc_eval(*call)
        assert code == 0, error
        assert len(models) == 2
        assert esc_eval(*call)[0] == 0 and len(models) == 2, "no model is asked twice"
    tables = {table["key"]: table for table in json.loads(Path("s/study.json").read_text())["tables"]}
    assert tables["study-averages-en"]["columns"][-1] == "ECDBench 1.0"
    asked = {row[0]: row[-1] for row in tables["study-averages-en"]["rows"]}
    # One always takes the longer option, the other the shorter: each is right on half of the items.
    assert [asked[name]["mean"] for name in "ab"] == [pytest.approx(50)] * 2
    assert asked["silent"] is None, "floors answer no questions"
    assert [row[2]["n"] for row in tables["study-ranks-en"]["rows"]] == [5, 5, 2, 5, 2, 2]
    assert tables["study-calls-en"]["rows"][-1][0] == "ECDBench 1.0"
