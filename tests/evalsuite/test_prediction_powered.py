"""Judge and people together: coverage where the truth is known, sums by hand, the verbs; which dialogues people are given."""

import csv
import json
import re
import shutil
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore, Judgement
from core.statistics.bootstrap import POINTS, Floats
from data_prep.scores.annotation import read_weights
from evalsuite.cli import app
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.suggestions import Suggestion, chances, closest, drawn, split, suggest, uncertainty, weights_together
from evalsuite.trust.powered_board import FEWEST, LabelledScores, differences_of, estimates, powered, saved
from tests.bench.labels import LIBRARY, Judged, beside_library, savings
from tests.bench.truth_people import Shape, simulate
from tests.evalsuite import ppi_oracle
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric, make_run
from tests.peers import python_with
from tests.people_study import answer_all
from tests.verbs import printed

call = partial(printed, app)


def of_noise(noise: float) -> Judged:
    """A judge that is off by so much, and too kind."""
    rng = np.random.default_rng(3)
    quality = rng.normal(2.4, 1, 3000)
    people = 25.0 * np.clip(np.round(quality + rng.normal(0, 0.3, 3000)), 0, 4)
    judge = np.clip(25 * (quality + rng.normal(0, noise, 3000)) + 15, 0, 100)
    return Judged(f"noise {noise}", judge, people)


# Samples, and the least and most of them whose 95 % interval may hold the truth.
SIZES = pytest.mark.parametrize(
    ("samples", "least", "most"), [(100, 0.9, 0.99), pytest.param(500, 0.93, 0.975, marks=pytest.mark.full)]
)


@SIZES
def test_intervals_of_both_hold_the_truth_and_a_good_judge_saves_labels(samples: int, least: float, most: float) -> None:
    good, useless = (savings(of_noise(noise), cards=150, labels=40, samples=samples) for noise in (0.3, 20))
    assert least <= good.both <= most and least <= useless.both <= most and least <= good.people <= most
    assert good.saved > 20 and good.both_width < 0.85 * good.people_width
    assert useless.saved < 3 and useless.tuning < 0.1 and useless.both_width == pytest.approx(useless.people_width, rel=0.03)


def test_the_estimate_is_that_of_the_authors_library() -> None:
    """ppi-python's figures (`ppi_oracle.py` made them): the same estimate at the same λ, and nearly the same λ and width."""
    expected = json.loads(LIBRARY.read_text(encoding="utf-8"))
    assert expected.keys() == ppi_oracle.CASES.keys()
    for name, library in expected.items():
        lam, mean, width = beside_library(name)
        assert mean == pytest.approx(library["at_0"] + lam * (library["at_1"] - library["at_0"]), abs=1e-9), name
        if ppi_oracle.CASES[name][0] >= 40:
            assert lam == pytest.approx(library["lambda"], abs=0.1), name
            assert 0.95 < width / (library["high"] - library["low"]) < 1.15, name


@pytest.mark.full
def test_the_librarys_figures_are_what_the_library_says() -> None:
    command = [str(python_with("ppi-python")), ppi_oracle.__file__]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=240).stdout)
    kept = json.loads(LIBRARY.read_text(encoding="utf-8"))
    assert {name: pytest.approx(one, abs=1e-6) for name, one in kept.items()} == found


@pytest.mark.parametrize("drawn", ["suggested", pytest.param("own", marks=pytest.mark.full)])
def test_differences_of_a_board_with_several_dialogues_per_card_lie_in_their_intervals(drawn: str) -> None:
    shape = Shape(2, 40, 1, "middle", drawn=drawn, shift=0.37, each=3)
    found, truth = simulate(shape, 100, seed=3), shape.truth(0) - shape.truth(1)
    inside = [one.low is not None and one.high is not None and one.low <= truth <= one.high for one in found.gaps]
    assert np.mean(inside) >= 0.92 and sum(found.alarms) > 5, "and some differences are found"


def test_the_mean_by_hand() -> None:
    """People score every third of 60 cards, always ten points lower: the judge's mean over all less ten, at λ near 1."""
    judge = np.random.default_rng(0).integers(1, 11, 60) * 10.0
    there = (np.arange(60) % 3 == 0).astype(float)
    parts = (judge, np.ones(60), there * (judge - 10), there * judge, there)
    found = powered(LabelledScores(*[np.asarray(part[:, None, None], dtype=np.float64) for part in parts]))
    tuning, of_scored = found.tuning[0], judge[there > 0].mean()
    assert 0.8 < tuning <= 1
    assert found.both.means[0].tolist() == pytest.approx([of_scored - 10 + tuning * (judge.mean() - of_scored)] * 2)


def test_a_difference_of_people_alone_is_welchs_beside_half_a_card_that_nobody_has_seen() -> None:
    """scipy's Welch test on the scores of two supporters that were scored on cards of their own, its error enlarged by hand."""
    rng = np.random.default_rng(4)
    first, second = 25.0 * rng.integers(0, 3, 9), 25.0 * rng.integers(1, 5, 14)
    people = np.zeros((40, 2, 1))
    people[:9, 0, 0], people[20:34, 1, 0] = first, second
    weight = np.zeros((40, 2, 1))
    weight[:9, 0], weight[20:34, 1] = 1, 1
    found = powered(LabelledScores(np.zeros(people.shape), np.ones(people.shape), people, 0 * people, weight), np.zeros(1))
    (gap,) = differences_of(found, found.people, [(0, 1)])
    squares = []
    for side in (first, second):
        n = len(side)
        squares.append(side.var(ddof=1) / n + 0.75 / ((n + 0.5) * (n + 1.5)) * ((np.arange(5) * 25 - side.mean()) ** 2).mean())
    free = sum(squares) ** 2 / (squares[0] ** 2 / 8 + squares[1] ** 2 / 13)
    error, mean = sum(squares) ** 0.5, first.mean() - second.mean()
    assert gap.p == pytest.approx(2 * stats.t.sf(abs(mean) / error, free)) and gap.estimate.mean == pytest.approx(mean)
    ends = stats.t.interval(0.95, free, loc=mean, scale=error)
    assert (gap.estimate.low, gap.estimate.high) == pytest.approx(ends)
    plain = stats.ttest_ind(first, second, equal_var=False)
    assert plain.pvalue < gap.p < plain.pvalue * 4, "half a card costs a little"


def test_too_few_labels_have_no_interval_and_no_test_and_labels_equal_to_the_judges_still_have_an_error() -> None:
    shape = (30, 2, 1)
    judge = np.random.default_rng(1).choice(POINTS, shape)
    weight: Floats = np.where(np.arange(30)[:, None, None] < np.array([FEWEST, FEWEST - 1])[None, :, None], 1.0, 0.0)
    found = powered(LabelledScores(judge, np.ones(shape), weight * judge, weight * judge, weight))
    (enough, few), (gap,) = estimates(found, found.both, [5, 4]), differences_of(found, found.both, [(0, 1)])
    assert enough[0].low is not None and few[0].mean is not None and few[0].low is None
    assert gap.estimate.low is None and gap.p is None and gap.holds is None and gap.estimate.mean is not None
    assert saved(found, 5).mean is None
    exact = powered(LabelledScores(judge, np.ones(shape), weight * judge, weight * judge, weight), np.ones(1))
    (alone, *_), *_ = estimates(exact, exact.both, [5, 4])
    assert alone.high is not None and alone.mean is not None
    spread = judge[:, 0].std() / 30**0.5
    assert alone.high - alone.mean > 2 * spread, "the judge may err on cards that nobody has scored"


@pytest.mark.slow
def test_exchangeable_supporters_are_not_told_apart_and_a_true_difference_is_found_more_often_with_the_judge() -> None:
    assert sum(simulate(Shape(3, 5, 1, "floor", 0.9), 40, seed=1).alarms) <= 4
    assert sum(simulate(Shape(20, 12, 7, "middle"), 10, seed=1).alarms) <= 2
    better = Shape(2, 12, 1, "middle", 0.9, shift=0.92)  # by 25 points
    assert better.truth(0) - better.truth(1) == pytest.approx(25, abs=1)
    both, alone = (sum(simulate(better, 40, seed=2, judge=judge).alarms) for judge in (True, False))
    assert both > 36 and 10 < alone < 30


@pytest.mark.slow
def test_from_suggest_through_a_study_to_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    truth = {name: rng.integers(low, low + 3, 30).tolist() for name, low in (("good", 2), ("bad", 0))}
    make_run(Path("run"), {name: [min(4, value + 1) for value in own] for name, own in truth.items()})
    judgements = read_jsonl(Path("run/judgements.jsonl"), Judgement, "judgements")
    torn = {"0": 0.5, "4": 0.5}  # the judge is unsure of every third dialogue of one supporter
    unsure = [f"bad-{card}" for card in range(0, 30, 3)]
    spread = [one.model_copy(update={"distribution": torn if one.dialogue_id in unsure else {"2": 1.0}}) for one in judgements]
    write_jsonl(Path("run/judgements.jsonl"), spread)
    rubric = make_rubric("fluency", "empathy")
    Path("rubric.yaml").write_text(rubric.model_dump_json(), encoding="utf-8")

    said = call("people", "suggest", "run", "--budget", "20", "--out", "some")
    assert "20 of 60 dialogues" in said and re.search(r"en, bad: 1\d", said) and re.search(r"en, good: \d\n", said)
    chosen = read_jsonl(Path("some/dialogues.jsonl"), Dialogue, "dialogues")
    weights = read_weights([Path("some/weights.csv")])
    assert set(weights) == {dialogue.id for dialogue in chosen} and len(chosen) == 20 and len(set(weights.values())) > 2
    create = ("people", "create", "study", "--dialogues", "some/dialogues.jsonl", "--rubric", "rubric.yaml", "--raters", "2")
    assert "the export will have the weights" in call(*create)
    answer_all(Path("study"), lambda _, dialogue, __: truth[str(dialogue.supporter)][int(str(dialogue.card_id)[1:])])
    assert "weights.csv: 20" in call("people", "results", "study", "--out", "scored")
    assert read_weights([Path("scored/weights.csv")]) == weights

    common = ("leaderboard", "run", "--rubric", "rubric.yaml")
    shown = call(*common, "--people", "scored", "--out", "board")
    assert "judge alone" in shown and "labels saved" in shown and "Weighted: 20 dialogues" in shown
    assert "judge, people and both" in Path("board/leaderboard.html").read_text(encoding="utf-8")

    def of_people(board: str) -> dict[str, float]:
        with Path(board, "tables", "leaderboard-powered-en.csv").open(encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        return {row["supporter"]: float(next(row[name] for name in row if name.startswith("people alone"))) for row in rows}

    # A further round: nothing twice, and both rounds' weights lie where the board looks for them.
    said = call("people", "suggest", "run", "--budget", "10", "--people", "scored", "--out", "more")
    assert (
        "10 of 40 dialogues (20 more are scored)" in said
        and "replace weights.csv next to the earlier scores with more/weights_before.csv" in said
    )
    more = read_jsonl(Path("more/dialogues.jsonl"), Dialogue, "dialogues")
    assert len(more) == 10 and not {one.id for one in more} & set(weights)
    assert set(read_weights([Path("more/weights_before.csv")])) == set(weights)

    own = [one for one in chosen if one.supporter == "bad"]
    by_hand = sum(weights[one.id] * 25 * truth["bad"][int(str(one.card_id)[1:])] for one in own)
    assert of_people("board")["bad"] == pytest.approx(by_hand / sum(weights[one.id] for one in own), abs=0.06)
    # The same scores without the weights beside them are another board.
    Path("elsewhere").mkdir()
    shutil.copy("scored/scores.jsonl", "elsewhere/scores.jsonl")
    assert "Weighted" not in call(*common, "--people", "elsewhere/scores.jsonl", "--out", "plain")
    assert of_people("plain")["bad"] != pytest.approx(of_people("board")["bad"], abs=0.1)
    shutil.copy("some/weights.csv", "elsewhere/weights.csv")
    call(*common, "--people", "elsewhere/scores.jsonl", "--out", "again")
    assert of_people("again") == of_people("board")
    # Fewer scores than were drawn, and dialogues of another draw.
    scores = read_jsonl(Path("scored/scores.jsonl"), HumanScore, "scores")
    write_jsonl(Path("elsewhere/scores.jsonl"), [one for one in scores if one.dialogue_id != chosen[0].id])
    shutil.copy("scored/weights.csv", "elsewhere/weights.csv")
    assert "1 drawn dialogues have no score" in call(*common, "--people", "elsewhere/scores.jsonl", "--out", "less")
    write_jsonl(Path("some/dialogues.jsonl"), chosen[1:])
    with pytest.raises(UserError, match=f"some/weights.csv: dialogue_id: {chosen[0].id} is in it or among --dialogues"):
        call("people", "create", "second", *create[3:])


def test_errors_of_the_verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"), {"good": [3, 2], "bad": [1, 1]})
    Path("rubric.yaml").write_text(make_rubric("fluency", "empathy").model_dump_json(), encoding="utf-8")
    fields = {"dialogue_id": "good-0", "language": "en", "annotator": "anna", "rubric": make_rubric("fluency").name}
    write_jsonl(Path("people.jsonl"), [HumanScore(**fields, dimension=name, value=2) for name in ("fluency", "empathy")])
    Path("weights.csv").write_text("dialogue_id,chance,weight\nx,0.5,nothing\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"weights.csv:2.*weight"):
        call("leaderboard", "run", "--people", "people.jsonl", "--rubric", "rubric.yaml")
    with pytest.raises(UserError, match="--people: corrects a judge's scores"):
        call("leaderboard", "--people", "people.jsonl")
    with pytest.raises(UserError, match="--supporter godo.*good"):
        call("people", "suggest", "run", "--budget", "5", "--supporter", "godo")


def test_chances_and_draws() -> None:
    chance = chances(np.array([0.0, 1, 1, 8]), 2)
    assert chance.sum() == pytest.approx(2) and chance.max() <= 1 and chance[0] < chance[1] == chance[2] < chance[3]
    assert chances(np.ones(3), 5).tolist() == [1, 1, 1]
    errors = np.random.default_rng(0).uniform(0, 1, 30)
    wanted = chances(errors, 10)
    counts = np.zeros(30)
    for seed in range(400):
        places = drawn(wanted, seed)
        assert len(places) == 10
        counts[places] += 1
    assert counts / 400 == pytest.approx(wanted, abs=0.1)


def test_a_judges_spread_is_of_its_probabilities_or_its_repeats() -> None:
    rubric = make_rubric("fluency", "empathy")
    sure = make_judgement("a", "fluency", 3).model_copy(update={"distribution": {"3": 1.0}})
    torn = make_judgement("b", "fluency", 3).model_copy(update={"distribution": {"0": 0.5, "4": 0.5}})
    twice = [make_judgement("c", "empathy", value).model_copy(update={"repeat": value}) for value in (1, 3)]
    found = uncertainty([sure, torn, *twice, make_judgement("d", "fluency", 1)], rubric)
    assert found == {"a": 0, "b": 50, "c": pytest.approx(25 * 2**0.5)}


def test_both_supporters_get_labels_and_the_less_sure_one_more() -> None:
    sure, torn = np.full(20, 2.0), np.full(20, 20.0)
    assert split([sure, sure], 10) == [5, 5] and split([np.zeros(20), np.zeros(20)], 10) == [5, 5]
    few, many = split([sure, torn], 20)
    assert 4 <= few < many and few + many == 20
    assert split([torn, sure, sure, sure], 4) == [1, 1, 1, 1], "never one without"
    assert split([sure[:3], torn[:2]], 50) == [3, 2]
    # By hand: the first two each, then where error² / (n (n + 1)) is largest. Errors² are 1 and 4, and half goes by their mean.
    assert split([np.full(9, 1.0), np.full(9, 2.0)], 6) == [3, 3] and split([np.full(9, 1.0), np.full(9, 2.0)], 7) == [3, 4]


def test_a_draw_gives_each_supporter_its_labels_and_takes_one_cards_dialogues_together() -> None:
    rubric = make_rubric("fluency")
    held = [
        make_dialogue(f"{name}-{language}-{card}", name, language, card_id=f"c{card}")
        for name in ("a", "b")
        for language in ("en", "zh")
        for card in range(6)
    ]
    for seed in range(5):
        found, _ = suggest(held, [], rubric, 8, seed)
        assert Counter((one.dialogue.supporter, one.dialogue.language) for one in found) == dict.fromkeys(
            [("a", "en"), ("a", "zh"), ("b", "en"), ("b", "zh")], 2
        )
        assert [one.weight for one in found] == [pytest.approx(3)] * 8
        cards = {name: {one.dialogue.card_id for one in found if one.dialogue.supporter == name} for name in ("a", "b")}
        assert cards["a"] == cards["b"], "chances are alike, so cards are too"
    with pytest.raises(UserError, match=r"--budget 3: too few .* a \(en\), a \(zh\), b \(en\), b \(zh\)"):
        suggest(held, [], rubric, 3)


def test_the_two_that_are_told_apart_the_least_are_looked_for() -> None:
    scores = {"best": [4] * 12, "good": [3, 2, 3, 4] * 3, "fair": [3, 3, 2, 3] * 3, "silent": [0, 1] * 6, "parrot": [1, 0] * 6}
    held = [make_dialogue(f"{name}-{card}", name, card_id=f"c{card}") for name, own in scores.items() for card in range(12)]
    verdicts = [make_judgement(f"{name}-{card}", "fluency", own[card]) for name, own in scores.items() for card in range(12)]
    rubric = make_rubric("fluency")
    boards = Tally(held, verdicts, rubric).boards
    assert closest(boards, ("silent", "parrot")) == {("en", "good"), ("en", "fair")}
    assert closest(boards, ()) == {("en", "silent"), ("en", "parrot")}
    assert closest(boards, ("silent", "parrot", "best", "good")) == {("en", "fair")}, "no floor is worth people's time"
    apart = [one for one in verdicts if one.dialogue_id.startswith(("best", "silent"))]
    assert closest(Tally(held, apart, rubric).boards, ()) == {("en", "best"), ("en", "silent")}, (
        "none whose interval holds zero"
    )


@pytest.mark.slow
@pytest.mark.parametrize("studies", [40, pytest.param(1000, marks=pytest.mark.full)])
def test_a_further_round_leaves_out_what_is_scored_and_stays_unbiased(studies: int) -> None:
    """People's scores are higher where the judge is surer, so that neither round is a fair sample of them."""
    rng = np.random.default_rng(1)
    held = [make_dialogue(f"{name}-{card}", name, card_id=f"c{card}") for name in ("a", "b") for card in range(24)]
    unsure, rubric = rng.random(48) ** 2, make_rubric("fluency")
    people = {one.id: 4 * (1 - spread) + rng.normal(0, 0.5) for one, spread in zip(held, unsure, strict=True)}
    verdicts = [
        make_judgement(one.id, "fluency", 2).model_copy(
            update={"distribution": {"0": spread / 2, "2": 1 - spread, "4": spread / 2}}
        )
        for one, spread in zip(held, unsure, strict=True)
    ]
    means: dict[str, list[float]] = {"together": [], "as first drawn": [], "unweighted": []}
    for seed in range(studies):
        first, _ = suggest(held, verdicts, rubric, 12, seed)
        had = {one.dialogue.id: one.weight for one in first}
        second, before = suggest(held, verdicts, rubric, 16, seed, labelled=had)
        assert before.keys() == had.keys() and not had.keys() & {one.dialogue.id for one in second} and len(second) == 16
        own = [one for one in first if one.dialogue.supporter == "a"]
        new = [one for one in second if one.dialogue.supporter == "a"]
        means["together"].append(weighted(people, {one.dialogue.id: before[one.dialogue.id] for one in own}, new))
        means["as first drawn"].append(weighted(people, had, own))
        means["unweighted"].append(float(np.mean([people[one.dialogue.id] for one in (*own, *new)])))
    truth = np.mean([people[one.id] for one in held if one.supporter == "a"])
    bias = {name: float(np.mean(each) - truth) for name, each in means.items()}
    error = np.std(means["together"]) / studies**0.5
    assert abs(bias["together"]) < 3 * error and bias["unweighted"] < -4 * error
    assert np.std(means["together"]) < np.std(means["as first drawn"])


def weighted(people: dict[str, float], before: dict[str, float], drawn: list[Suggestion]) -> float:
    weights = before | {one.dialogue.id: one.weight for one in drawn}
    return sum(weight * people[id] for id, weight in weights.items() if id.startswith("a-")) / sum(
        weight for id, weight in weights.items() if id.startswith("a-")
    )


def test_two_rounds_of_a_random_choice_are_one_and_all_that_is_scored_leaves_nothing() -> None:
    old, new = weights_together(np.full(12, 5.0), np.full(8, 8 / 48), 60)
    assert old.tolist() == pytest.approx([5] * 12) and new.tolist() == pytest.approx([5] * 8), "as if 20 had been drawn at once"
    # By hand, 2 of 6 first by the chances 1/4 and 1/2, then 2 of the other 4 by 1/2: share 2 · 2 / (4 · 4) = 1/4, and but for a
    # factor the first weigh share · 6 · (4, 2) / 6 + 3/4, the others 3/4 · 2.
    old, new = weights_together(np.array([4.0, 2.0]), np.array([0.5, 0.5]), 6)
    assert (old / new[0]).tolist() == pytest.approx([1.75 / 1.5, 1.25 / 1.5]) and new[0] == pytest.approx(1.5 * 2)
    held = [make_dialogue(f"a-{card}", "a", card_id=f"c{card}") for card in range(6)]
    with pytest.raises(UserError, match="all of these dialogues have scores"):
        suggest(held, [], make_rubric("fluency"), 2, labelled=dict.fromkeys((one.id for one in held), 1.0))
    found, before = suggest(held, [], make_rubric("fluency"), 9, labelled={"a-0": 1.0})
    assert len(found) == 5 and [one.weight for one in found] == [pytest.approx(1)] * 5 and before == {"a-0": pytest.approx(1)}
