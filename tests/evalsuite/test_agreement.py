"""Agreement against scikit-learn, worked examples and properties."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr, t
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, cohen_kappa_score

from core.errors import UserError
from core.files import write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.statistics.accuracy import FIGURES, KAPPA_FROM, jackknife
from core.tables import Estimate, fmt
from data_prep.scores.human import read_scores
from evalsuite.commands.agree import read_judgements
from evalsuite.statistics.agreement import RANK_FROM, agreement, agreement_tables
from evalsuite.statistics.contestants import Clusters, cluster_key, clusters_of
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


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_against_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    values, gold = [float(v) for v, _ in pairs], [float(g) for _, g in pairs]
    row = agreement(judged(list(values)), golden(gold))["en"]["fluency"]
    assert row["acc"] == row["acc_read"] == pytest.approx(accuracy_score(gold, values))
    assert row["acc_soft"] == pytest.approx(sum(abs(v - g) <= 1 for v, g in pairs) / len(pairs))
    baseline = DummyClassifier(strategy="most_frequent").fit([[0]] * len(gold), gold)
    assert row["majority_acc"] == pytest.approx(baseline.score([[0]] * len(gold), gold))
    assert row["acc"] <= row["acc_soft"] and row["majority_acc"] <= row["majority_acc_soft"]
    if len(pairs) > 1:
        assert all(row[f"{name}_low"] - 1e-9 <= row[name] <= row[f"{name}_high"] + 1e-9 for name in SHARES)


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
    assert average["acc_low"] < 0.75 < average["acc_high"] and average["clusters"] == 4
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
    without, sure_of_1 = judged([1.0, 1.0])
    some = [without, sure_of_1.model_copy(update={"distribution": {"0": 0.0, "1": 1.0}})]
    assert agreement(some, golden([1, 1]))["en"]["average"]["ece"] is None, "some came without probabilities"


def test_turns_are_items_of_their_own() -> None:
    turns = [j.model_copy(update={"dialogue_id": "d", "turn": i}) for i, j in enumerate(judged([3, 2]))]
    gold = [g.model_copy(update={"dialogue_id": "d", "turn": i}) for i, g in enumerate(golden([3, 1]))]
    result = agreement(turns, gold)["en"]
    assert result["fluency"]["acc"] == 0.5 and result["fluency"]["n"] == 2
    assert result["average"]["acc_low"] is result["fluency"]["acc_low"] is None  # one dialogue


SHARES = ("acc", "acc_read", "acc_soft", "acc_soft_read", "over_majority")
BOUNDED = (*SHARES, "kappa", "spearman", "ece")


def test_a_dimension_on_one_dialogue_leaves_the_average_without_an_interval() -> None:
    """Drawn or not, its share is the same: an interval of the average would say that it is certain."""
    average = agreement(judged([3, 1]) + judged([3], "skill"), golden([3, 3]) + golden([3], "skill"))["en"]["average"]
    assert average["acc"] == 0.75 and average["acc_low"] is average["acc_read_high"] is None


def sure(verdicts: list[Judgement], tops: Sequence[float]) -> list[Judgement]:
    """With the probability of their score, the rest being on the next."""
    told = [{f"{j.value:g}": top, f"{((j.value or 0) + 1) % 5:g}": 1 - top} for j, top in zip(verdicts, tops, strict=True)]
    return [j.model_copy(update={"distribution": shares}) for j, shares in zip(verdicts, told, strict=True)]


def in_cards(cards: int = 30, size: int = 3, seed: int = 3) -> tuple[list[Judgement], list[HumanScore], Clusters]:
    """Scores of dialogues of which `size` have a card in common, and so has what a judge gets wrong."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 5, cards * size).astype(float)
    wrong = rng.random(cards).repeat(size) < 0.4
    values = np.where(wrong, np.abs(gold - 1), gold)
    tops = rng.choice([0.55, 0.75, 0.95], cards * size).tolist()
    clusters = Clusters({f"d{i}": f"card {i // size}" for i in range(cards * size)}, "cards")
    return sure(judged(values.tolist()), tops), golden(gold.tolist()), clusters


def test_one_dimension_has_the_intervals_of_its_average() -> None:
    verdicts, gold, clusters = in_cards()
    rows = agreement(verdicts, gold, clusters)["en"]
    assert rows["fluency"] == pytest.approx(rows["average"]) and None not in rows["fluency"].values()
    assert rows["fluency"]["clusters"] == 30 and rows["fluency"]["n"] == 90


@pytest.mark.slow
def test_intervals_of_shares_draw_cards_whole() -> None:
    verdicts, gold, clusters = in_cards()
    row = agreement(verdicts, gold, clusters)["en"]["fluency"]
    values, wanted = np.array([j.value for j in verdicts]), np.array([g.value for g in gold])
    near = (abs(values - wanted) <= 1).astype(float)
    hits = (values == wanted).astype(float)
    usual = (wanted == np.bincount(wanted.astype(int)).argmax()).astype(float)
    levels = [0, 1]
    gaps = [one - other for one in levels for other in levels]
    for name, each, possible in (("acc", hits, levels), ("acc_soft", near, levels), ("over_majority", hits - usual, gaps)):
        sums = each.reshape(30, 3).sum(axis=1).tolist()
        expected = smoothed(sums, possible, [3] * 30, unseen=1)
        assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(expected, abs=0.02), name
        assert row[name] == pytest.approx(each.mean())
    alone = agreement(verdicts, gold)["en"]["fluency"]
    assert alone["clusters"] == 90 and alone["acc_high"] - alone["acc_low"] < 0.8 * (row["acc_high"] - row["acc_low"])


def test_intervals_of_coefficients_are_jackknifes_over_cards() -> None:
    """Each figure without each card by scikit-learn and scipy."""
    verdicts, gold, clusters = in_cards()
    row = agreement(verdicts, gold, clusters)["en"]["fluency"]
    values, wanted = np.array([j.value for j in verdicts]).reshape(30, 3), np.array([g.value for g in gold]).reshape(30, 3)
    parts = [np.ones(30, dtype=bool), *(np.arange(30) != card for card in range(30))]

    def kappa(kept: Any) -> float:
        return float(cohen_kappa_score(wanted[kept].ravel(), values[kept].ravel(), weights="quadratic"))

    def rank(kept: Any) -> float:
        return float(spearmanr(wanted[kept].ravel(), values[kept].ravel()).statistic)

    for name, figure, fewest in (("kappa", kappa, KAPPA_FROM), ("spearman", rank, RANK_FROM)):
        expected = jackknife(np.array([figure(kept) for kept in parts]), 0, fewest)
        assert (row[name], row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(
            (expected.mean, expected.low, expected.high), abs=1e-5
        )
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_the_interval_of_the_ece_by_hand() -> None:
    """One bin, four dialogues: right, right, wrong, wrong, each with 0.75 (gaps 1/4, 1/4, -3/4, -3/4; the error is 1/4)."""
    verdicts = sure(judged([3, 3, 3, 3]), [0.75] * 4)
    row = agreement(verdicts, golden([3, 3, 1, 1]))["en"]["fluency"]
    without = np.array([1.25, 1.25, 0.25, 0.25]) / 3  # |sum of the three other gaps| / 3
    half = t.ppf(0.975, 3) * math.sqrt(((without - without.mean()) ** 2).sum())
    assert row["ece"] == 0.25 and row["ece_high"] == pytest.approx(min(0.25 + half, 1)) and row["ece_low"] == 0
    many = agreement(sure(judged([1.0] * 60), [0.95] * 60), golden([3.0] * 57 + [1.0] * 3))["en"]["fluency"]
    gaps = np.array([-0.95] * 57 + [0.05] * 3)
    chance = math.sqrt(2 / math.pi) * math.sqrt(gaps.var(ddof=1) / 60)
    error = gaps.std(ddof=0) * math.sqrt(60) / 59  # of the jackknife, without its factor 59/60
    expected = abs(gaps.mean()) - chance - t.ppf(0.975, 59) * error
    assert many["ece_low"] == pytest.approx(expected) and many["ece_high"] == pytest.approx(1, abs=0.05)


def test_the_interval_of_the_average_is_over_dialogues() -> None:
    hits = np.array([[1, 0], [1, 1], [0, 0], [1, 0], [1, 1], [0, 1], [1, 1], [0, 0]] * 3)
    columns = {name: [3.0 if hit else 1.0 for hit in hits[:, i]] for i, name in enumerate(("fluency", "skill"))}
    verdicts = [j for name, values in columns.items() for j in judged(values, name)]
    average = agreement(verdicts, [g for name in columns for g in golden([3.0] * len(hits), name)])["en"]["average"]
    expected = smoothed(hits.mean(axis=1).tolist(), [0, 1])
    assert (average["acc_low"], average["acc_high"]) == pytest.approx(expected, abs=0.02)


def dialogue(number: int, **fields: Any) -> Dialogue:
    turns = (Turn(role="seeker", text="hi"),)
    return Dialogue(**{"id": f"d{number}", "language": "en", "source": "s", "turns": turns, "supporter": "m"} | fields)


def test_clusters_are_cards_dialogues_or_what_a_field_holds() -> None:
    talks = [dialogue(0, card_id="c"), dialogue(1, card_id="c"), dialogue(2, source_id="x"), dialogue(3, supporter=None)]
    cards = clusters_of(talks)
    assert [cards[f"d{n}"] for n in (0, 1, 2, 3, 4)] == ["card c", "card c", "item s x", "dialogue d3", "d4"]
    assert cards.name == "cards" and clusters_of(talks[1:]).name == "dialogues", "no card has two of them"
    assert clusters_of(talks, "dialogue") == Clusters() and clusters_of(talks, "card") == cards
    by = clusters_of(talks, "supporter")
    assert [by[f"d{n}"] for n in (0, 2, 3)] == ["supporter m", "supporter m", "dialogue d3"]
    assert by.name == "dialogues of one supporter"
    with pytest.raises(UserError, match="--cluster suporter: not a field of a dialogue: did you mean supporter"):
        cluster_key("suporter")


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
        read_scores(tmp_path / "g.jsonl")


def test_a_judge_may_be_asked_twice_in_one_file_under_two_conditions(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "j.jsonl", judged([1], condition={"order": "a"}) + judged([1], condition={"order": "b"}))
    assert len(read_judgements(tmp_path / "j.jsonl")) == 2


def test_tables_follow_the_mode() -> None:
    result = agreement(judged([3, None]), golden([3, 2.5]))
    assert set(FIGURES) <= set(result["en"]["fluency"])
    paper, native = (next(agreement_tables(result, mode, {"fluency": "Fluency"})) for mode in ("paper", "native"))
    assert paper.rows[0][1].mean == 50 and native.rows[0][1].mean == 100  # type: ignore[union-attr]
    assert "count as wrong" in paper.notes[0] and "left out" in native.notes[0]
    assert "1 gold scores are not whole" in native.notes[2]
    assert "Clusters: dialogues, drawn whole" in paper.notes[1]
    bounds = {f"{name}_{end}": value for name in BOUNDED for end, value in (("low", 0.25), ("high", 0.5))}
    result["en"]["fluency"] |= {"kappa": None, "spearman": 0.375, "ece": 0.375} | bounds
    (table,) = agreement_tables(result, "paper", {}, "made up", "agreement_x")
    assert table.key == "agreement_x_en" and table.title.endswith("(made up)")
    shown = {
        "Dimension": "fluency",
        "ACC": Estimate(50, 25, 50, 2),
        "ACC_soft": Estimate(50, 25, 50, 2),
        "Clusters": 2,
        "Majority ACC": 100,
        "Majority ACC_soft": 100,
        "Over majority": Estimate(-50, 25, 50, 2),
        "Read %": 50,
        "kappa": Estimate(None, 0.25, 0.5, 1),
        "Spearman": Estimate(0.375, 0.25, 0.5, 1),
        "ECE": Estimate(37.5, 25, 50, 1),
    }
    assert dict(zip(table.columns, table.rows[0], strict=True)) == shown
