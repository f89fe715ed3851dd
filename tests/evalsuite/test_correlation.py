"""Correlations against scipy, a worked example and properties; and which scores they put together."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from core.errors import UserError
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.statistics.bootstrap import SEED, Floats
from core.tables import Estimate, to_csv
from evalsuite.statistics import correlation as module
from evalsuite.statistics.correlation import (
    COEFFICIENTS,
    Coefficient,
    Correlation,
    Level,
    Pairing,
    coefficients,
    correlation_tables,
    correlations,
    figures,
)

Numbers = Sequence[float]


SCIPY: dict[Coefficient, Callable[..., Any]] = {
    "spearman": scipy.stats.spearmanr,
    "pearson": scipy.stats.pearsonr,
    "kendall": scipy.stats.kendalltau,
}


def oracle(name: Coefficient, x: ArrayLike, y: ArrayLike) -> float:
    """scipy's coefficient, NaN where it is not defined."""
    if np.unique(x).size < 2 or np.unique(y).size < 2:
        return math.nan
    return float(SCIPY[name](x, y).statistic)


def arrays(x: Numbers, y: Numbers) -> tuple[Floats, Floats]:
    return np.array(x, dtype=np.float64), np.array(y, dtype=np.float64)


def estimate(x: Numbers, y: Numbers, samples: Sequence[int], level: Level, name: Coefficient) -> Estimate:
    return figures(*arrays(x, y), np.array(samples, dtype=np.intp), level)[name][0]


# --- the figures ----------------------------------------------------------------------------------------------------------

ratings = st.integers(0, 4).map(float)
shares = st.integers(0, 10_000).map(lambda number: number / 10_000)


@given(
    st.lists(st.tuples(st.one_of(ratings, shares), ratings, st.integers(0, 3)), min_size=1, max_size=25),
    st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=4),
)
def test_every_selection_is_scipys(rows: list[tuple[float, float, int]], weights: list[list[int]]) -> None:
    x, y, place = zip(*rows, strict=True)
    found = coefficients(*arrays(x, y), np.array(place, dtype=np.intp), np.array(weights, dtype=np.float64))
    for row, own in zip(found, weights, strict=True):
        times = [own[group] for group in place]
        for column, name in enumerate(COEFFICIENTS):
            assert row[column] == pytest.approx(oracle(name, np.repeat(x, times), np.repeat(y, times)), abs=1e-9, nan_ok=True)


def test_sample_level_is_the_mean_over_the_samples_that_have_one() -> None:
    x = [1, 2, 3, 4, 1, 3, 2, 5, 5, 1, 2]
    y = [2, 1, 4, 3, 0, 4, 4, 1, 2, 9, 7]
    samples = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4]  # x is constant in sample 2; samples 3 and 4 have one pair
    for name in COEFFICIENTS:
        mean, undefined, _ = figures(*arrays(x, y), np.array(samples, dtype=np.intp), "sample")[name]
        assert mean.mean == pytest.approx((oracle(name, x[:4], y[:4]) + oracle(name, x[4:7], y[4:7])) / 2)
        assert (mean.n, undefined) == (2, 3)


@pytest.mark.parametrize("level", ["sample", "dataset"])
def test_the_interval_is_scipys_over_whole_samples(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 40)
    rng = np.random.default_rng(5)
    place = np.repeat(np.arange(6), 3)
    x, y = rng.integers(0, 4, 18).astype(float), rng.normal(size=18)
    draws = np.random.default_rng(SEED).multinomial(6, np.full(6, 1 / 6), 40)
    for name, (found, _, left_out) in figures(x, y, place, level).items():
        if level == "dataset":
            own = [oracle(name, np.repeat(x, times[place]), np.repeat(y, times[place])) for times in draws]
            assert left_out == 0
            assert (found.low, found.high) == pytest.approx(tuple(np.percentile(own, [2.5, 97.5])))
        else:  # the bootstrap of means has its own tests; here, that what it resamples are the samples' coefficients
            own = [oracle(name, x[place == sample], y[place == sample]) for sample in range(6)]
            own = [each for each in own if not math.isnan(each)]
            assert found.mean == pytest.approx(np.mean(own)) and found.n == len(own)
            assert found.mean is not None and found.low is not None and found.high is not None
            assert min(own) <= found.low <= found.mean <= found.high <= max(own)


def test_undefined_resamples_are_left_out_and_counted() -> None:
    found, _, left_out = figures(*arrays([1, 2], [1, 2]), np.array([0, 1], dtype=np.intp), "dataset")["pearson"]
    assert (found.mean, found.low, found.high, found.n) == (1.0, None, None, 2), "no interval without width"
    assert 900 < left_out < 1100  # half of the 2,000 resamples of two samples hold one of them twice


@given(st.lists(ratings, min_size=0, max_size=8), st.sampled_from(["sample", "dataset"]))
def test_a_constant_side_is_undefined(x: list[float], level: Level) -> None:
    place = np.arange(len(x)) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = figures(*arrays(x, [3.0] * len(x)), place, level)
    for each, _, left_out in found.values():
        assert (each.mean, each.low, each.high, left_out) == (None, None, None, 0)
        assert each.n == (0 if level == "sample" else len(x))


@pytest.mark.parametrize("level", ["sample", "dataset"])
def test_one_pair_is_undefined_and_one_sample_has_no_interval(level: Level) -> None:
    assert estimate([1], [2], [0], level, "kendall") == Estimate(None, None, None, 0 if level == "sample" else 1)
    assert estimate([1, 2], [2, 3], [0, 0], level, "kendall") == Estimate(1.0, None, None, 1 if level == "sample" else 2)


@pytest.mark.parametrize("few", [2, 1000])
def test_many_different_values(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to Kendall's tau, over several batches."""
    monkeypatch.setattr(module, "_FEW", few)
    monkeypatch.setattr(module, "_BATCH", 2)
    rng = np.random.default_rng(1)
    x, y, place = rng.normal(size=100), rng.normal(size=100), np.arange(100) % 5
    weights = np.vstack([np.eye(5), [[2, 0, 1, 3, 1]]])
    for own, row in zip(weights.astype(int)[:, place], coefficients(x, y, place, weights), strict=True):
        assert row == pytest.approx([oracle(name, np.repeat(x, own), np.repeat(y, own)) for name in COEFFICIENTS])


# --- which scores belong together -----------------------------------------------------------------------------------------


def talk(name: str, **fields: Any) -> Dialogue:
    turns = (Turn(role="seeker", text="Oh."), Turn(role="supporter", text="Ah."))
    return Dialogue.model_validate({"id": name, "language": "en", "source": "own", "turns": turns} | fields)


def said(dialogue: str, value: float | None, dimension: str = "warm", **fields: Any) -> Judgement:
    own = {"dialogue_id": dialogue, "language": "en", "judge": "j", "rubric": "r", "dimension": dimension, "value": value}
    return Judgement.model_validate(own | fields)


def felt(dialogue: str, value: float, dimension: str = "kind", **fields: Any) -> HumanScore:
    own = {"dialogue_id": dialogue, "language": "en", "annotator": "a", "rubric": "h", "dimension": dimension, "value": value}
    return HumanScore.model_validate(own | fields)


SYSTEMS = ("s1", "s2", "s3")
TALKS = [talk(f"{card}-{s}", card_id=card, supporter=s) for card in ("c1", "c2") for s in SYSTEMS]
GOLD = [felt(d.id, value) for d, value in zip(TALKS, [1, 2, 3, 3, 1, 2], strict=True)]


def judged(*values: float | None, **fields: Any) -> list[Judgement]:
    return [said(d.id, value, **fields) for d, value in zip(TALKS, values, strict=True)]


def rows_of(*given: Any, **more: Any) -> list[Correlation]:
    return correlations(*given, **more)[0]


def only(found: list[Correlation], level: Level = "dataset", name: Coefficient = "spearman", **wanted: str) -> Correlation:
    own = [e for e in found if e.level == level and e.coefficient == name]
    own = [e for e in own if all(getattr(e, key) == value for key, value in wanted.items())]
    assert len(own) == 1, own
    return own[0]


def test_within_a_card_and_over_all() -> None:
    found = rows_of(judged(1, 2, 3, 30, 20, 10), GOLD, TALKS)
    assert len(found) == 6
    within, overall = only(found, "sample"), only(found, "dataset")
    assert within.estimate.mean == pytest.approx((1 + 0.5) / 2)
    assert (within.estimate.n, within.pairs, within.samples, within.undefined) == (2, 6, 2, 0)
    assert overall.estimate.mean == pytest.approx(scipy.stats.spearmanr([1, 2, 3, 30, 20, 10], [1, 2, 3, 3, 1, 2]).statistic)
    assert overall.estimate.n == 6


def test_what_a_sample_is() -> None:
    own = [talk("a", profile_id="p", source_id="x"), talk("b", profile_id="p"), talk("c", source_id="x"), talk("d")]
    scores = [felt(each.id, number) for number, each in enumerate(own)]
    found = rows_of([said(each.id, number % 2) for number, each in enumerate(own)], scores, own)
    assert only(found).samples == 3  # profile p, source id x, and d by itself
    own = own[:1] + [each.model_copy(update={"source_id": "x"}) for each in own[1:]]
    found = rows_of([said(e.id, n % 2) for n, e in enumerate(own)], scores, own, pairing=Pairing(sample="source"))
    assert only(found).samples == 1
    with pytest.raises(UserError, match="--sample source: dialogue d has no source_id"):
        rows_of([said("d", 1)], scores, [*own[:3], talk("d")], pairing=Pairing(sample="source"))


def test_people_judged_other_dialogues_of_the_same_situations() -> None:
    """Figure 1 of the paper: simulated dialogues on cards, held dialogues, and replies to the situation's own history."""
    held = [talk(f"held-{i}-{s}", source_id=f"t/{i}", supporter=s) for i in (1, 2) for s in SYSTEMS]
    simulated = [d.model_copy(update={"id": f"sim-{d.id}", "card_id": f"card-{d.source_id}"}) for d in held]
    corpus = [talk(f"corpus-{i}", source_id=f"t/{i}") for i in (1, 2)]
    gold = [felt(d.id, value) for d, value in zip(held, [1, 2, 3, 3, 1, 2], strict=True)]
    verdicts = [said(d.id, value) for d, value in zip(simulated, [1, 2, 3, 30, 20, 10], strict=True)]
    metric = [
        said(f"corpus-{i}", 100 * i + n, "bleu_1", judge="bleu-1", turn=turn, condition={"supporter": s})
        for i in (1, 2)
        for n, s in enumerate(SYSTEMS)
        for turn in (1, 3)
    ]
    found = rows_of(verdicts + metric, gold, held + simulated + corpus, pairing=Pairing("system", "source"))
    assert only(found, "sample", dimension="warm").estimate.mean == pytest.approx(0.75)
    bleu = only(found, "sample", dimension="bleu_1")
    assert bleu.estimate.mean == pytest.approx((1 - 0.5) / 2)
    assert (bleu.pairs, bleu.scorer.judge, bleu.scorer.condition) == (6, "bleu-1", ())
    with pytest.raises(UserError, match="judge j · given: none of its 6 en dialogues has a human score; .*--correlate system"):
        rows_of(verdicts, gold, held + simulated)
    with pytest.raises(UserError, match="shares 0 samples and 3 systems with the human scores, but no pair of both"):
        rows_of(verdicts, gold, held + simulated, pairing=Pairing("system"))


def test_a_language_that_people_did_not_rate_is_left_out_and_said() -> None:
    zh = [talk(f"zh{i}", language="zh", supporter=f"s{i}", card_id="c") for i in (1, 2)]
    verdicts = judged(1, 2, 3, 30, 20, 10) + [said(d.id, 1, language="zh") for d in zh]
    found, left_out = correlations(verdicts, GOLD, [*TALKS, *zh])
    assert {each.language for each in found} == {"en"} and len(left_out) == 1
    assert "none of its 2 zh dialogues has a human score" in left_out[0]


def test_gold_scores_without_a_verdict_are_counted() -> None:
    found, left_out = correlations(judged(1, 2, 3, 30, 20, 10)[:4], GOLD, TALKS)
    assert only(found, "dataset").pairs == 4
    assert left_out == ["2 of 6 gold scores, which no judge has a verdict for"]


def test_turns_repeats_annotators_and_trials_are_averaged_in_that_order() -> None:
    own = [talk(f"{s}{trial}", card_id="c", supporter=s, trial=trial) for s in ("s1", "s2", "s3") for trial in (0, 1)]
    gold = [felt("s10", 0, turn=1), felt("s10", 1, turn=3), felt("s10", 4, annotator="b")]  # (0.5 + 4) / 2
    gold += [felt("s20", 2.3), felt("s30", 2.5), felt("s31", 1.5)]  # 2.3, and 2.0 over the trials
    verdicts = [said("s10", 1, turn=1), said("s10", 4, turn=3), said("s20", 9), said("s20", 1, repeat=1), said("s31", 0)]
    found = rows_of(verdicts, gold, own, pairing=Pairing("system"))
    expected = scipy.stats.pearsonr([2.5, 5, 0], [2.25, 2.3, 2.0]).statistic
    assert only(found, "dataset", "pearson").estimate.mean == pytest.approx(expected)
    assert only(rows_of(verdicts, gold, own)).pairs == 3  # by dialogue: s10, s20 and s31


def test_unreadable_verdicts_are_left_out_and_counted() -> None:
    found = rows_of(judged(1, None, 3, 30, 20, None, condition={"failure": "no number"})[:6], GOLD, TALKS)
    each = only(found)
    assert (each.pairs, each.unread) == (4, 2)
    assert each.estimate.mean == pytest.approx(scipy.stats.spearmanr([1, 3, 30, 20], [1, 3, 3, 1]).statistic)
    assert "Verdicts without a score are left out: up to 2 for one row." in [*correlation_tables(found)][-1].notes
    with pytest.raises(UserError, match="none of its verdicts on en dialogues has a usable score"):
        rows_of(judged(*[None] * 6), GOLD, TALKS)


def test_every_dimension_with_every_other_and_their_averages() -> None:
    verdicts = judged(1, 2, 3, 30, 20, 10) + judged(5, 5, 5, 5, 5, 5, dimension="flat")[:5]
    gold = GOLD + [felt(d.id, v, "wise") for d, v in zip(TALKS, [4, 4, 1, 0, 2, 2], strict=True)]
    found = rows_of(verdicts, gold, TALKS)
    assert len(found) == 2 * 3 * 3 * 3
    assert only(found, dimension="flat", gold_dimension="wise").estimate == Estimate(None, None, None, 5)
    both = only(found, dimension="average", gold_dimension="average")
    assert both.pairs == 5  # the sixth dialogue has one of the judge's two dimensions
    expected = scipy.stats.spearmanr([3, 3.5, 4, 17.5, 12.5], [2.5, 3, 2, 1.5, 1.5]).statistic
    assert both.estimate.mean == pytest.approx(expected)
    own = [each for each in rows_of(judged(1, 2, 3, 30, 20, 10), gold, TALKS) if each.dimension == "average"]
    assert not own  # a judge of one dimension has no average of its own


def test_equal_means_tie_however_they_were_summed() -> None:
    gold = [felt("c1-s1", v, annotator=str(i)) for i, v in enumerate((0.1, 0.2, 0.3))]
    gold += [felt("c1-s2", v, annotator=str(i)) for i, v in enumerate((0.3, 0.2, 0.1))]
    assert (0.1 + 0.2 + 0.3) / 3 != (0.3 + 0.2 + 0.1) / 3
    assert only(rows_of(judged(1, 2, 3, 4, 5, 6)[:2], gold, TALKS)).estimate.mean is None


def test_judges_languages_and_rubrics_stay_apart() -> None:
    chinese = [d.model_copy(update={"id": f"zh-{d.id}", "language": "zh"}) for d in TALKS]
    gold = GOLD + [felt(d.id, 1 + n % 4, rubric="h2", language="zh") for n, d in enumerate(chinese)]
    verdicts = judged(1, 2, 3, 30, 20, 10) + judged(3, 2, 1, 1, 2, 3, judge="k", condition={"mode": "paper"})
    verdicts += [said(d.id, n, language="zh") for n, d in enumerate(chinese)]
    found = rows_of(verdicts, gold, TALKS + chinese)
    assert {(e.language, e.scorer.name, e.gold_rubric) for e in found} == {
        ("en", "j · given", "h"),
        ("en", "k · given · mode=paper", "h"),
        ("zh", "j · given", "h2"),
    }
    keys = [f"{kind}_{tail}" for tail in ("en_h", "zh_h2") for kind in [f"sample_{n}" for n in COEFFICIENTS] + ["dataset"]]
    assert [table.key for table in correlation_tables(found)] == [f"correlation_{key}" for key in keys]


def test_scores_of_unknown_dialogues() -> None:
    with pytest.raises(UserError, match="judgement by j: dialogue_id: no dialogue 'c1-s1' among those given with --dialogues"):
        rows_of(judged(1, 2, 3, 30, 20, 10), GOLD, TALKS[1:])
    with pytest.raises(UserError, match="score by a: dialogue_id: no dialogue 'gone'"):
        rows_of(judged(1, 2, 3, 30, 20, 10), [*GOLD, felt("gone", 1)], TALKS)


# --- tables and the verb --------------------------------------------------------------------------------------------------


def test_tables_are_times_a_hundred_with_a_dash_for_the_undefined() -> None:
    found = rows_of(judged(1, 2, 3, 30, 20, 10) + judged(*[5] * 6, judge="k", dimension="flat"), GOLD, TALKS)
    tables = {table.key: table for table in correlation_tables(found)}
    table = tables["correlation_sample_spearman_en_h"]
    assert table.columns == ("judge", "dimension", "kind")
    (judge, dimension, cell), (*_, flat) = table.rows
    assert (judge, dimension) == ("j · given", "warm")
    assert isinstance(cell, Estimate) and cell.mean == pytest.approx(75) and cell.n == 2
    assert flat == Estimate(None, None, None, 0)
    assert table.section == "Correlation"
    assert any("In up to 2 of 2 samples it is undefined" in note for note in table.notes)
    within = [each for each in found if (each.level, each.coefficient) == ("sample", "spearman")]
    (worst,) = correlation_tables([replace(figure, left_out=n) for n, figure in enumerate(within)])
    assert any(f"Undefined resamples are left out: up to {len(within) - 1}" in note for note in worst.notes)
    dataset = tables["correlation_dataset_en_h"]
    assert [row[:3] for row in dataset.rows[:3]] == [("j · given", "warm", name) for name in COEFFICIENTS]
    assert to_csv(dataset).splitlines()[0] == "judge,dimension,coefficient,kind,kind low,kind high,kind n"
    assert ",,,,6" in to_csv(dataset)


def test_nothing_at_sample_level_is_a_note_and_not_three_empty_tables() -> None:
    own = [talk(str(number)) for number in range(4)]
    found = rows_of([said(d.id, n) for n, d in enumerate(own)], [felt(d.id, n % 3) for n, d in enumerate(own)], own)
    (table,) = correlation_tables(found)
    assert table.key == "correlation_dataset_en_h" and any("Sample level: undefined" in note for note in table.notes)
    assert len([*correlation_tables([each for each in found if each.level == "sample"])]) == 3  # asked for: shown
    (other,) = correlation_tables([replace(each, gold_rubric="../量表") for each in found])
    assert other.key == "correlation_dataset_en_judge", "safe as a file name"
