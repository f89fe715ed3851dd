"""Judge and people together: coverage where the truth is known, sums by hand, what is drawn, and the verbs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore
from evalsuite.cli import app
from evalsuite.statistics.prediction_powered import Scored, powered
from evalsuite.statistics.suggestions import chances, drawn, read_weights, uncertainty
from tests.bench.labels import Judged, savings
from tests.evalsuite.records import make_judgement, make_rubric
from tests.evalsuite.test_comparison import make_run


def of_noise(noise: float, bias: float = 15.0, active: bool = False) -> Judged:
    """A judge that is off by so much, and too kind."""
    rng = np.random.default_rng(3)
    quality = rng.normal(2.4, 1, 3000)
    spread = noise * (rng.choice([0.1, 3], 3000, p=[0.8, 0.2]) if active else np.ones(3000))
    people = 25.0 * np.clip(np.round(quality + rng.normal(0, 0.3, 3000)), 0, 4)
    judge = np.clip(25 * (quality + rng.normal(0, 1, 3000) * spread) + bias, 0, 100)
    return Judged(f"noise {noise}", judge, people, 25 * spread if active else None)


def test_intervals_of_both_hold_the_truth_and_a_good_judge_saves_labels() -> None:
    good, useless = (savings(of_noise(noise), cards=150, labels=40, samples=500) for noise in (0.3, 20))
    assert 0.93 <= good.both <= 0.975 and 0.93 <= useless.both <= 0.975 and 0.93 <= good.people <= 0.975
    assert good.saved > 20 and good.both_width < 0.85 * good.people_width
    assert useless.saved < 3 and useless.tuning < 0.1 and useless.both_width == pytest.approx(useless.people_width, rel=0.03)


def test_the_judge_alone_is_wrong_where_it_is_too_kind() -> None:
    population = of_noise(0.3)
    rng = np.random.default_rng(1)
    rows = rng.integers(3000, size=(150, 200))
    judge, people, some = population.judge[rows], population.people[rows], (rng.random((150, 200)) < 0.3).astype(np.float64)
    parts = (judge, np.ones((150, 200)), some * people, some * judge, some)
    found = powered(Scored(*[np.asarray(part[:, :, None], dtype=np.float64) for part in parts]))
    low, high = np.percentile(found.judge[1][:, :, 0], [2.5, 97.5], axis=0)
    truth = population.people.mean()
    assert ((low <= truth) & (truth <= high)).mean() < 0.05
    assert found.both[0].mean() == pytest.approx(truth, abs=1)


def test_drawing_where_the_judge_is_unsure_stays_unbiased_and_is_narrower() -> None:
    unsure = of_noise(0.8, active=True)
    plain = Judged(unsure.name, unsure.judge, unsure.people)
    drawn_so, evenly = (savings(one, cards=150, labels=40, samples=500) for one in (unsure, plain))
    assert 0.93 <= drawn_so.both <= 0.975
    assert drawn_so.both_width < evenly.both_width


def test_the_mean_by_hand() -> None:
    """People score every third of 60 cards, always ten points lower: the judge's mean over all less ten, at λ near 1."""
    judge = np.random.default_rng(0).integers(1, 11, 60) * 10.0
    there = (np.arange(60) % 3 == 0).astype(float)
    parts = (judge, np.ones(60), there * (judge - 10), there * judge, there)
    found = powered(Scored(*[np.asarray(part[:, None, None], dtype=np.float64) for part in parts]))
    tuning, of_scored = found.tuning[0, 0], judge[there > 0].mean()
    assert 0.8 < tuning <= 1
    assert found.both[0][0, 0] == pytest.approx(of_scored - 10 + tuning * (judge.mean() - of_scored))


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


def test_the_verbs_suggest_and_take_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    truth = {name: rng.integers(low, low + 3, 30).tolist() for name, low in (("good", 2), ("bad", 0))}
    make_run(Path("run"), {name: [min(4, value + 1) for value in own] for name, own in truth.items()})

    def call(*words: str) -> str:
        result = CliRunner().invoke(app, words, env={"COLUMNS": "250"})
        if isinstance(result.exception, UserError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    assert "20 of 60 dialogues" in call("people", "suggest", "run", "--budget", "20", "--out", "some")
    chosen = read_jsonl(Path("some/dialogues.jsonl"), Dialogue, "dialogues")
    assert set(read_weights(Path("some/weights.csv"))) == {dialogue.id for dialogue in chosen} and len(chosen) == 20
    scores = [
        HumanScore(
            dialogue_id=one.id, language="en", annotator="anna", rubric=make_rubric("fluency").name, dimension=dimension,
            value=truth[str(one.supporter)][int(str(one.card_id)[1:])],
        )
        for one in chosen
        for dimension in ("fluency", "empathy")
    ]  # fmt: skip
    write_jsonl(Path("people.jsonl"), scores)
    rubric = make_rubric("fluency", "empathy")
    Path("rubric.yaml").write_text(rubric.model_dump_json(), encoding="utf-8")
    common = ("leaderboard", "run", "--people", "people.jsonl", "--rubric", "rubric.yaml")
    shown = call(*common, "--weights", "some/weights.csv", "--out", "board")
    assert "judge alone" in shown and "labels saved" in shown
    page = Path("board/leaderboard.html").read_text(encoding="utf-8")
    assert "judge, people and both" in page
    with pytest.raises(UserError, match="weights.csv.*weight"):
        Path("weights.csv").write_text("dialogue_id,chance,weight\nx,0.5,nothing\n", encoding="utf-8")
        call(*common, "--weights", "weights.csv")
    with pytest.raises(UserError, match="--people: it corrects a judge's scores"):
        call("leaderboard", "--people", "people.jsonl")
    with pytest.raises(UserError, match="--weights: they belong to people"):
        call("leaderboard", "run", "--weights", "some/weights.csv")
    with pytest.raises(UserError, match="--supporter godo.*good"):
        call("people", "suggest", "run", "--budget", "5", "--supporter", "godo")
