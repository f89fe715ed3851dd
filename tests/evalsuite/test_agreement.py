"""Agreement against scikit-learn, worked examples and properties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, cohen_kappa_score

from core.errors import UserError
from core.files import write_jsonl
from core.records import HumanScore, Judgement
from core.statistics.accuracy import FIGURES, round_half_up, share, wilson
from core.tables import Estimate, fmt
from evalsuite.statistics.agreement import agreement, agreement_tables, read_gold, read_judgements
from tests.evalsuite.oracles import smoothed

Values = Sequence[float | None]


def judged(values: Values, dimension: str = "fluency", **changes: Any) -> list[Judgement]:
    given_fields: dict[str, Any] = {
        "language": "en",
        "judge": "j",
        "rubric": "esc_eval",
        "method": "joint",
        "raw": "?",
    } | changes
    return [Judgement(dialogue_id=f"d{i}", dimension=dimension, value=v, **given_fields) for i, v in enumerate(values)]


def golden(values: Sequence[float], dimension: str = "fluency", annotator: str = "a", **changes: Any) -> list[HumanScore]:
    fields: dict[str, Any] = {"language": "en", "rubric": "g", "annotator": annotator, "dimension": dimension} | changes
    return [HumanScore(dialogue_id=f"d{i}", value=v, **fields) for i, v in enumerate(values)]


def test_verdicts_lost_with_a_server_are_in_no_figure() -> None:
    given, gold = judged([3, 2, None, 0, 4]), golden([3, 3, 3, 2, 4])
    lost = given[3].model_copy(update={"value": None, "condition": {"failure": "infrastructure"}})
    result = agreement([*given[:3], lost, given[4]], gold)
    without = agreement([*given[:3], given[4]], [*gold[:3], gold[4]])
    assert result["en"]["fluency"] == without["en"]["fluency"] | {"lost": 1}
    assert result["en"]["fluency"]["parse_rate"] == 0.75, "of four, one could not be read"
    (table,) = agreement_tables(result, "paper", {})
    assert "1 verdicts were lost with a server and are in no figure: run the same command again." in table.notes
    everything = [each.model_copy(update={"value": None, "condition": lost.condition}) for each in given]
    (table,) = agreement_tables(agreement(everything, gold), "native", {})
    assert table.rows[0][1] == Estimate(None, None, None, 0)


def test_a_worked_example() -> None:
    row = agreement(judged([3, 2, None, 0, 4]), golden([3, 3, 3, 2, 4]))["en"]["fluency"]
    assert row["n"] == 5 and row["read"] == 4
    assert row["parse_rate"] == 0.8
    assert row["acc"] == 2 / 5  # the unreadable one is wrong
    assert row["acc_read"] == 2 / 4  # or left out
    assert row["acc_soft"] == 3 / 5
    assert row["acc_soft_read"] == 3 / 4
    assert row["majority_acc"] == 3 / 5  # always 3
    assert row["majority_acc_soft"] == 1.0  # 3 is within one of 2 and 4
    assert row["gold_rounded"] == 0


def test_wilson_interval_by_hand() -> None:
    row = agreement(judged([1.0] * 8 + [0.0] * 2), golden([1.0] * 10))["en"]["fluency"]
    n, p, z = 10, 0.8, 1.959963984540054
    centre, half = (
        (p + z * z / (2 * n)) / (1 + z * z / n),
        z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)),
    )
    assert row["acc_low"] == pytest.approx(centre - half)
    assert row["acc_high"] == pytest.approx(centre + half)


def test_a_share_in_per_cent_has_that_interval() -> None:
    found = share(3, 10)
    low, high = wilson(3, 10)
    assert low is not None and high is not None
    assert (found.mean, found.low, found.high, found.n) == (30, 100 * low, 100 * high, 10)
    assert share(0, 0) == Estimate(None, None, None, 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_against_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    values, gold = [float(v) for v, _ in pairs], [float(g) for _, g in pairs]
    row = agreement(judged(list(values)), golden(gold))["en"]["fluency"]
    assert row["acc"] == row["acc_read"] == pytest.approx(accuracy_score(gold, values))
    assert row["acc_soft"] == pytest.approx(sum(abs(v - g) <= 1 for v, g in pairs) / len(pairs))
    baseline = DummyClassifier(strategy="most_frequent").fit([[0]] * len(gold), gold)
    assert row["majority_acc"] == pytest.approx(baseline.score([[0]] * len(gold), gold))
    assert row["acc"] <= row["acc_soft"] and row["majority_acc"] <= row["majority_acc_soft"]
    assert row["acc_low"] - 1e-9 <= row["acc"] <= row["acc_high"] + 1e-9


def test_of_equally_frequent_classes_the_better_in_acc_soft_is_the_baseline() -> None:
    row = agreement(judged([0, 0, 0, 0, 0]), golden([0, 0, 4, 4, 3]))["en"]["fluency"]
    assert (row["majority_acc"], row["majority_acc_soft"]) == (2 / 5, 3 / 5)


def test_annotators_are_averaged_and_what_is_not_whole_is_rounded() -> None:
    gold = golden([2, 3], annotator="a") + golden([3, 3], annotator="b")
    row = agreement(judged([3, 3]), gold)["en"]["fluency"]
    assert row["gold_rounded"] == 1 and row["n"] == 2
    assert row["acc"] == 1.0  # 2.5 is rounded up
    assert agreement(judged([4, 4]), gold)["en"]["fluency"]["acc_soft"] == 1.0  # |4 − 3| = 1, though |4 − 2.5| is more
    assert agreement(judged([1, 1]), gold)["en"]["fluency"]["acc_soft"] == 0.0


@pytest.mark.parametrize(("value", "rounded"), [(0.5, 1), (1.5, 2), (2.5, 3), (2.49, 2), (3.0, 3)])
def test_halves_round_up(value: float, rounded: int) -> None:
    assert round_half_up(value) == rounded


@pytest.mark.parametrize("scores", [(1.4, 2.8, 3.3), (3.3, 2.8, 1.4), (2.8, 3.3, 1.4), (0.6, 2.3, 4.6)])
def test_a_mean_that_is_a_half_on_paper_is_rounded_up_whatever_the_order_of_its_scores(scores: tuple[float, ...]) -> None:
    gold = [score for number, value in enumerate(scores) for score in golden([value], annotator=f"a{number}")]
    row = agreement(judged([3]), gold)["en"]["fluency"]
    assert (row["acc"], row["acc_soft"], row["gold_rounded"]) == (1, 1, 1)


def test_means_that_are_equal_on_paper_tie() -> None:
    crowd, experts = 7 / 3, 3.0  # a file of means, averaged with another: (7/3 + 3) / 2 is 8/3, as (2 + 3 + 3) / 3
    gold = golden([crowd], annotator="crowd") + golden([experts], annotator="experts")
    for name, value in (("a", 2), ("b", 3), ("c", 3)):
        gold += [score.model_copy(update={"dialogue_id": "d1"}) for score in golden([value], annotator=name)]
    gold += [score.model_copy(update={"dialogue_id": "d2"}) for score in golden([4])]
    row = agreement(judged([1, 0, 2]), gold)["en"]["fluency"]
    assert row["spearman"] == pytest.approx(math.sqrt(3) / 2)  # ranks 2, 1, 3 with 1.5, 1.5, 3; without the tie it is 1/2 or 1


def test_what_is_one_point_off_on_paper_is_within_one() -> None:
    mean = math.nextafter(2, 3)  # of a judge asked several times: 2 on paper
    assert agreement(judged([mean]), golden([1]))["en"]["fluency"]["acc_soft"] == 1


def test_the_average_is_the_unweighted_mean_over_dimensions_and_languages_stay_apart() -> None:
    verdicts = judged([3, 3, 3, 3]) + judged([3, 3, 0, 0], "empathy")
    zh = [j.model_copy(update={"language": "zh", "dialogue_id": "z" + j.dialogue_id}) for j in judged([1])]
    gold_zh = [g.model_copy(update={"language": "zh", "dialogue_id": "z" + g.dialogue_id}) for g in golden([2])]
    result = agreement(verdicts + zh, golden([3, 3, 3, 3]) + golden([3, 3, 3, 3], "empathy") + gold_zh)
    average = result["en"]["average"]
    assert average["acc"] == 0.75 and average["n"] == 8
    assert average["acc_low"] < 0.75 < average["acc_high"]
    assert result["zh"]["average"]["acc"] == 0 and result["zh"]["average"]["acc_soft"] == 1


def test_nothing_readable_is_undefined_not_zero() -> None:
    row = agreement(judged([None, None]), golden([1, 2]))["en"]["fluency"]
    assert row["acc"] == 0 and row["acc_read"] is None and row["parse_rate"] == 0
    assert row["kappa"] is None and row["spearman"] is None and row["ece"] is None
    (table,) = agreement_tables(agreement(judged([None, None]), golden([1, 2])), "native", {})
    assert fmt(table.rows[0][1]) == "– n=0"


@given(st.lists(st.tuples(st.integers(0, 4) | st.none(), st.integers(0, 4)), min_size=2, max_size=30))
def test_kappa_against_scikit_learn(pairs: list[tuple[int | None, int]]) -> None:
    row = agreement(judged([v for v, _ in pairs]), golden([g for _, g in pairs]))["en"]["fluency"]
    read = [(v, g) for v, g in pairs if v is not None]
    if len({score for pair in read for score in pair}) < 2:
        assert row["kappa"] is None
    else:
        values, gold = zip(*read, strict=True)
        assert row["kappa"] == pytest.approx(cohen_kappa_score(gold, values, labels=range(5), weights="quadratic"))


def test_verdicts_between_scores_have_no_kappa_but_a_rank() -> None:
    row = agreement(judged([2.5, 1, 3]), golden([3, 1, 4]))["en"]["fluency"]
    assert row["kappa"] is None and row["spearman"] == pytest.approx(1)


def test_ece_by_hand() -> None:
    sure, unsure = {"0": 0.1, "1": 0.9}, {"0": 0.6, "1": 0.4}
    verdicts = [
        j.model_copy(update={"distribution": d})
        for j, d in zip(judged([1, 1, 0, None]), (sure, sure, unsure, None), strict=True)
    ]
    row = agreement(verdicts, golden([1, 0, 0, 1]))["en"]["fluency"]
    assert row["ece"] == pytest.approx((2 * abs(0.5 - 0.9) + abs(1 - 0.6)) / 3)
    assert agreement(judged([1.0]) + judged([1.0], "skill"), golden([1]) + golden([1], "skill"))["en"]["average"]["ece"] is None


def test_calibration_is_not_claimed_where_some_verdicts_came_without_probabilities() -> None:
    with_and_without = [judged([1, 1])[0], judged([1, 1])[1].model_copy(update={"distribution": {"0": 0.0, "1": 1.0}})]
    assert agreement(with_and_without, golden([1, 1]))["en"]["fluency"]["ece"] is None


def test_turns_are_items_of_their_own() -> None:
    turns = [j.model_copy(update={"dialogue_id": "d", "turn": i}) for i, j in enumerate(judged([3, 2]))]
    gold = [g.model_copy(update={"dialogue_id": "d", "turn": i}) for i, g in enumerate(golden([3, 1]))]
    result = agreement(turns, gold)["en"]
    assert result["fluency"]["acc"] == 0.5 and result["fluency"]["n"] == 2
    assert result["average"]["acc_low"] is None  # one dialogue


@pytest.mark.parametrize("values", [[3], [3, None]])
def test_one_dialogue_has_no_interval_of_the_average(values: list[float | None]) -> None:
    average = agreement(judged(values), golden([3.0] * len(values)))["en"]["average"]
    assert average["acc_read_low"] is None and average["acc_read"] == 1


def test_a_dimension_on_one_dialogue_leaves_the_average_without_an_interval() -> None:
    """Drawn or not, its share is the same: an interval of the average would say that it is certain."""
    average = agreement(judged([3, 1]) + judged([3], "skill"), golden([3, 3]) + golden([3], "skill"))["en"]["average"]
    assert average["acc"] == 0.75 and average["acc_low"] is average["acc_read_high"] is None


def test_the_interval_of_the_average_is_over_dialogues() -> None:
    hits = np.array([[1, 0], [1, 1], [0, 0], [1, 0], [1, 1], [0, 1], [1, 1], [0, 0]] * 3)
    columns = {name: [3.0 if hit else 1.0 for hit in hits[:, i]] for i, name in enumerate(("fluency", "skill"))}
    verdicts = [j for name, values in columns.items() for j in judged(values, name)]
    average = agreement(verdicts, [g for name in columns for g in golden([3.0] * len(hits), name)])["en"]["average"]
    expected = smoothed(hits.mean(axis=1), [0, 0.25, 0.5, 0.75, 1])
    assert (average["acc_low"], average["acc_high"]) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("verdicts", "gold", "problem"),
    [
        (judged([1, 2]), golden([1]), "1 judgements without gold.*d1/fluency"),
        (judged([1]), golden([1, 2]), "1 gold without a judgement.*d1/fluency"),
        (judged([1]), golden([1], "empathy"), "without gold.*d0/fluency"),
        (judged([1]) + judged([1]), golden([1]), "doubled.*d0.*fluency"),
        (judged([1]) + judged([1], judge="k"), golden([1]), "several judges"),
        (judged([1]) + judged([1], method="paper"), golden([1]), "several judges, rubrics or methods"),
        (judged([1]) + judged([1], condition={"order": "b"}), golden([1]), "j · joint · order=b on esc_eval"),
        (judged([1], turn=1), golden([1]), "judgements without gold.*d0/fluency/turn 1"),
        (judged([1]), golden([1], language="zh"), "d0: judged as en, its gold scores are zh"),
        (judged([1]), golden([1]) + golden([1], annotator="b", rubric="h"), "gold on two rubrics, g and h"),
    ],
)
def test_items_without_exactly_one_partner_are_errors(verdicts: list[Judgement], gold: list[HumanScore], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        agreement(verdicts, gold)


def test_doubled_lines_in_files_are_errors(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "j.jsonl", judged([1]) * 2)
    write_jsonl(tmp_path / "g.jsonl", golden([1]) * 2)
    with pytest.raises(UserError, match=r"j\.jsonl.*doubled"):
        read_judgements(tmp_path / "j.jsonl")
    with pytest.raises(UserError, match=r"g\.jsonl:2: a gave d0 / fluency twice"):
        read_gold(tmp_path / "g.jsonl")


def test_a_judge_may_be_asked_twice_in_one_file_under_two_conditions(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "j.jsonl", judged([1], condition={"order": "a"}) + judged([1], condition={"order": "b"}))
    assert len(read_judgements(tmp_path / "j.jsonl")) == 2


def test_gold_is_read_from_csv_too(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("dialogue_id,language,annotator,rubric,dimension,value\nd0,en,a,g,fluency,3\n")
    assert read_gold(tmp_path / "g.csv") == golden([3])
    with pytest.raises(UserError, match=r"gold scores not found: .*none\.csv"):
        read_gold(tmp_path / "none.csv")


def test_tables_follow_the_mode() -> None:
    result = agreement(judged([3, None]), golden([3, 2.5]))
    assert set(FIGURES) <= set(result["en"]["fluency"])
    paper, native = (next(agreement_tables(result, mode, {"fluency": "Fluency"})) for mode in ("paper", "native"))
    assert paper.rows[0][1].mean == 50 and native.rows[0][1].mean == 100  # type: ignore[union-attr]
    assert "count as wrong" in paper.notes[0] and "left out" in native.notes[0]
    assert "1 gold scores are not whole" in native.notes[1]
    result["en"]["fluency"] |= {"kappa": None, "spearman": 0.25, "ece": 0.125}
    (table,) = agreement_tables(result, "paper", {}, "made up", "agreement_x")
    assert table.key == "agreement_x_en" and table.title.endswith("(made up)")
    assert dict(zip(table.columns, table.rows[0], strict=True)) | {"ACC": None} == {
        "Dimension": "fluency",
        "ACC": None,
        "ACC_soft": 50,
        "Majority ACC": 100,
        "Majority ACC_soft": 100,
        "Read %": 50,
        "kappa": None,
        "Spearman": 0.25,
        "ECE": 12.5,
    }
