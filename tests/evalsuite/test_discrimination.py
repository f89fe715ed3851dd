"""How well scores tell models apart: by hand, against scipy, and where nothing can be told."""

import re
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from core.errors import UserError
from core.tables import Table
from evalsuite.papers.reported.against import against
from evalsuite.statistics.contestants import contestants_of
from evalsuite.statistics.discrimination import discriminate, of_run, read_ratings, tables
from tests.conftest import EscEval
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric, make_run
from tests.files_of_rows import read_sheet

shapes = st.tuples(st.integers(2, 6), st.integers(2, 4))


def names(ratings: np.ndarray) -> list[str]:
    return [f"m{place}" for place in range(ratings.shape[1])]


def test_a_case_by_hand() -> None:
    """Means 2 and 4 around 3: σ²_between 1. Variances 1 and 1. F = 3 · 2 / 1, formula 13: (1/1) / (1/4). Users' differences are
    −2, −3 and −1: two models are repeated measures of F = t² = 2² / (1 / 3)."""
    ratings = np.array([[1.0, 3], [2, 5], [3, 4]])
    found = discriminate(ratings, ["a", "b"])
    figures = found.figures()
    assert (figures["between"], figures["within"], figures["msr"], figures["mac"]) == (1, 1, 1, 0.5)
    anova = figures["anova"]
    assert (anova["f"], anova["f_paper"], anova["df"]) == (6, 4, (1, 4))
    assert (anova["f_blocked"], *anova["df_blocked"]) == pytest.approx((12, 1, 2))
    p = stats.ttest_rel(*ratings.T).pvalue
    assert anova["p"] == pytest.approx(p) and figures["pairwise"]["p"] == {"a vs b": pytest.approx(p)}
    assert (figures["pairwise"]["correction"], figures["pairwise"]["proportion"], found.undefined) == ("Holm", 0.0, {})
    assert figures["msr_interval"] == [None, None], "three users"


@given(shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.integers(1, 5))), st.permutations(range(6)))
def test_against_scipy(ratings: np.ndarray, order: list[int]) -> None:
    found = discriminate(ratings, names(ratings))
    users = len(ratings)
    if not ratings.var(axis=0).any():
        assert found.msr.mean is found.mac.mean is found.f is found.f_paper is found.p is None
        assert set(found.undefined) == {"msr", "mac", "anova"}
        return
    assert found.msr.mean is not None and found.f is not None
    assert found.f == pytest.approx(stats.f_oneway(*ratings.T).statistic, abs=1e-12)
    assert found.msr.mean == pytest.approx(ratings.mean(axis=0).var() / ratings.var(axis=0, ddof=1).mean())
    assert found.mac.mean == pytest.approx(found.msr.mean / (1 + found.msr.mean))
    assert found.f_paper == pytest.approx(found.f * (users - 1) / users)
    # Greenhouse and Geisser's epsilon, from the covariance of the distances from each user's own mean.
    left = np.cov((ratings - ratings.mean(axis=1, keepdims=True)).T)
    if np.trace(left) > 1e-9:
        assert found.df_blocked is not None and found.f_blocked is not None and found.p is not None
        assert found.df_blocked[0] == pytest.approx(np.trace(left) ** 2 / np.trace(left @ left))
        assert found.f_blocked == pytest.approx(blocked(ratings)[0] / blocked(ratings)[1])
        assert found.p == pytest.approx(stats.f.sf(found.f_blocked, *found.df_blocked))
    else:
        assert found.f_blocked is found.p is None
    shuffled = discriminate(2 * ratings[[place for place in order if place < users]] - 7, names(ratings))
    assert (shuffled.msr.mean, shuffled.p) == pytest.approx((found.msr.mean, found.p))
    expected = [2 * (pair.estimate.mean or 0) for pair in found.pairs]
    assert [pair.estimate.mean for pair in shuffled.pairs] == pytest.approx(expected)


def blocked(ratings: np.ndarray) -> tuple[float, float]:
    """The mean squares of models and of what is left, in the analysis of variance of models and users."""
    users, models = ratings.shape
    rows, columns = ratings.mean(axis=1, keepdims=True), ratings.mean(axis=0)
    left = ((ratings - rows - columns + ratings.mean()) ** 2).sum() / ((models - 1) * (users - 1))
    return float(users * columns.var(ddof=1)), float(left)


def test_the_interval_leaves_users_out_and_chance() -> None:
    """MSR without chance is (MS of models − MS of what is left) / users · (models − 1) / models by the variance within."""

    def cleared(ratings: np.ndarray) -> float:
        above, left = blocked(ratings)
        return (above - left) / len(ratings) * 2 / 3 / ratings.var(axis=0, ddof=1).mean()

    rng = np.random.default_rng(1)
    ratings = rng.normal(size=(20, 1)) + rng.normal(size=(20, 3)) + np.arange(3)
    apart = discriminate(ratings, ["a", "b", "c"])
    assert apart.msr.low is not None and apart.msr.high is not None and apart.msr.mean is not None
    assert 0 < apart.msr.low < apart.msr.mean < apart.msr.high
    without = np.array([cleared(np.delete(ratings, user, axis=0)) for user in range(20)])
    shift = 1.5 * np.sqrt(((without - without.mean()) ** 2).sum())
    roots = (without + shift) ** (1 / 3)
    half = stats.t.ppf(0.975, 19) * np.sqrt(((roots - roots.mean()) ** 2).sum())
    ends = ((cleared(ratings) + shift) ** (1 / 3) + np.array([-half, half])) ** 3 - shift
    assert (apart.msr.low, apart.msr.high) == pytest.approx(tuple(ends))
    assert apart.mac.high == pytest.approx(apart.msr.high / (1 + apart.msr.high))
    assert apart.p is not None and apart.p < 0.001
    alike = discriminate(rng.normal(size=(40, 3)), ["a", "b", "c"])
    assert alike.msr.low == 0 and alike.told_apart == 0


def test_missing_ratings() -> None:
    gap = np.nan
    ratings = np.array([[1.0, 2, gap], [2, 4, 5], [2, 5, 4], [gap, gap, gap], [4, gap, 3]])
    found = discriminate(ratings, ["a", "b", "c"])
    expected = stats.f_oneway([1, 2, 2, 4], [2, 4, 5], [5, 4, 3])
    assert found.f == pytest.approx(expected.statistic)
    assert (found.users, found.missing, found.msr.n) == (4, 2, 10)
    assert found.msr.mean is not None and found.f_paper == pytest.approx(found.msr.mean * 7 / 2), "N − M for M(U − 1)"
    assert [pair.estimate.n for pair in found.pairs] == [3, 3, 2]


@pytest.mark.parametrize(
    ("ratings", "reason", "pairwise"),
    [
        ([[1.0], [2]], "1 model: there is nothing", True),
        ([[1.0, 2]], "1 user: the spread", True),
        ([[0.1, 0.3]] * 3, "the divisor is 0", False),
        ([[2.0, 2]] * 3, "the divisor is 0", False),
        ([[np.nan, np.nan]], "no users: the spread", True),
        ([[1.0, np.nan], [2, np.nan], [np.nan, 4]], r"too few scores to have a variance: b \(1\)", True),
    ],
)
def test_what_is_undefined_has_a_reason(ratings: list[list[float]], reason: str, pairwise: bool) -> None:
    given = np.array(ratings)
    found = discriminate(given, ["a", "b"][: given.shape[1]])
    assert (found.msr.mean, found.mac.mean, found.f, found.f_paper, found.p) == (None,) * 5
    assert re.search(reason, found.undefined["msr"])
    assert ("pairwise" in found.undefined) == pairwise and (found.proportion is None) == pairwise
    orjson.dumps(found.figures())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,model\nu,m\n", r"s\.csv:1: .*score"),
        ("user,model,score\nu,m,nan\n", r"s\.csv:2.*score.*number"),
        ("user,model,score\nu,m,1\nu,m,2\n", r"s\.csv:3.*score: user 'u' has two for model 'm'"),
        ("user,model,score\nu,m,6\n", r"s\.csv:2.*score: 6 is outside the scale of 1 to 5"),
    ],
)
def test_malformed_sheets(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_ratings(path, (1, 5))


def test_a_table_of_scores_beside_the_papers(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("user,model,score\n" + "".join(f"u{u},{m},{s + u}\n" for u in range(3) for m, s in (("a", 1), ("b", 3))))
    blind, scaled = (discriminate(*read_ratings(path, scale), scale) for scale in (None, (-1, 7)))
    assert (blind.msr.mean, blind.f) == (1, 6) and {"msr", "mac", "anova", "pairwise"} <= set(blind.figures())
    assert blind.pairs[0].estimate.low is None and scaled.pairs[0].estimate.low is not None
    with pytest.raises(UserError, match=r"scale \(5, 1\): give the lowest"):
        read_ratings(path, (5, 1))
    shown, pairs = against(tables(blind), "emoharbor")
    assert (shown.key, pairs.key) == ("discrimination", "discrimination-pairs")
    assert "0.745" in str(shown.rows) and any("paper: EmoHarbor, table 2" in note for note in shown.notes)
    assert any("the F of 112 stands under F (paper), formula 13" in note for note in shown.notes)
    (table,) = against([Table("discrimination", "D", ("scores", "F (paper)", "F"), (("mine", 1.0, 2.0),))], "emoharbor")
    assert table.rows[1:] == (("paper: EmoHarbor", "112", None),)


def test_the_report_of_a_run_says_how_far_supporters_are_told_apart(esc_eval: EscEval, tmp_path: Path) -> None:
    make_run(tmp_path / "run", {"a": [1, 2, 3, None], "b": [2, 3, 4, 4]})
    assert esc_eval("report", "run", "--against", "emoharbor") == (0, "")
    rows = read_sheet(tmp_path / "run/tables/discrimination-en.csv")[1]
    ours = [row for row in rows if "paper" not in row["dimension"]]
    assert [row["dimension"] for row in ours] == ["Fluency", "Empathy", "average"] and len(rows) == len(ours) + 1
    expected = stats.f_oneway([1, 2, 3], [2, 3, 4, 4])
    for row in ours:
        assert float(row["F"]) == pytest.approx(expected.statistic, abs=0.005)
        assert (row["users"], row["models"], row["MSR n"]) == ("4", "2", "7")
    make_run(tmp_path / "alone", {"a": [1, 2]})
    assert esc_eval("report", "alone") == (0, "")
    assert not [*(tmp_path / "alone/tables").glob("discrimination*")], "one supporter"


def test_averages_need_all_dimensions_and_turns_do_not_count() -> None:
    rubric = make_rubric("one", "two")
    dialogues, judgements = [], []
    for place, (supporter, card) in enumerate((s, c) for s in "ab" for c in range(3)):
        dialogues.append(make_dialogue(f"d{place}", supporter, card_id=f"c{card}"))
        judgements += [make_judgement(f"d{place}", "one", place % 4), make_judgement(f"d{place}", "two", 1)]
        judgements.append(make_judgement(f"d{place}", "one", 4, turn=1))
    judgements[1] = make_judgement("d0", "two", None)
    whole = [judgement for judgement in judgements if judgement.turn is None]
    found = {name: each for (*_, name), each in of_run(contestants_of(dialogues, whole, rubric), rubric).items()}
    assert {name: (each.msr.n, each.missing) for name, each in found.items()} == {
        "one": (6, 0),
        "two": (5, 1),
        "average": (5, 1),
    }
    assert found["one"].pairs[0].first_mean == pytest.approx(25)  # 0, 1, 2 of 4
