"""Ranks of supporters by metrics against people's (FEEL 4.2): a topic by hand, scipy, ties, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, rankdata, spearmanr
from typer.testing import CliRunner

from core.errors import UserError
from core.files import write_jsonl
from core.records import Dialogue, Judgement, Preference
from data_prep.scores.human import read_preferences
from evalsuite.papers.commands.feel import app
from evalsuite.papers.feel_ranking import compare_ranks, human_ranks, metric_ranks, ranks_of, topic_figures
from evalsuite.statistics.correlation import Pairing
from tests.evalsuite.records import fed_rubric, make_dialogue, make_judgement

BY = Pairing("system")
TOPICS, MODELS = ("t1", "t2"), ("m1", "m2", "m3")
DIALOGUES = [make_dialogue(f"{t}{m}", m, card_id=t) for t in TOPICS for m in MODELS]


def prefer(topic: str, a: str, b: str, verdict: str, question: str = "empathy") -> Preference:
    given = {"dialogue_a": topic + a, "dialogue_b": topic + b, "annotator": "p", "question": question}
    return Preference.model_validate(given | {"verdict": verdict, "order": "ab"})


PREFERENCES = [
    prefer("t1", "m1", "m2", "a"),
    prefer("t1", "m1", "m3", "a"),
    prefer("t1", "m2", "m3", "tie"),
    prefer("t1", "m2", "m3", "b", "fluency"),  # m1 +2, m2 −2, m3 0
    prefer("t2", "m1", "m2", "tie"),
    prefer("t2", "m3", "m2", "a"),  # m1 0, m2 −1, m3 +1
]


def scored(judge: str, values: dict[str, dict[str, float]], dimension: str = "safety") -> list[Judgement]:
    return [make_judgement(t + m, dimension, v, judge=judge) for t, own in values.items() for m, v in own.items()]


def test_wins_minus_losses_by_hand() -> None:
    ranks = human_ranks(PREFERENCES, DIALOGUES, BY)
    assert ranks == {"t1": {"m1": 1, "m2": 3, "m3": 2}, "t2": {"m1": 2, "m2": 3, "m3": 1}}


def test_a_metric_against_people_by_hand() -> None:
    """t1: metric 1, 2, 3 against 1, 3, 2: rho 1/2, tau 1/3, errors 0, 1, 1. t2: 2, 3, 1, all equal. The means of both."""
    values = {"t1": {"m1": 3.0, "m2": 2.0, "m3": 1.0}, "t2": {"m1": 2.0, "m2": 1.0, "m3": 3.0}}
    (found,) = compare_ranks(human_ranks(PREFERENCES, DIALOGUES, BY), metric_ranks(scored("j", values), DIALOGUES, BY))
    assert [found.figures[name].mean for name in ("spearman", "kendall", "rmse", "mae")] == pytest.approx(
        [0.75, 2 / 3, (2 / 3) ** 0.5 / 2, 1 / 3]
    )
    assert (found.topics, found.supporters, found.figures["mae"].n) == (2, (3, 3), 2)


def test_six_aspects_become_one_rank() -> None:
    """By the mean, a lead on one aspect outweighs two small ones; by ranks it does not. Repeats are averaged first."""
    given = [
        *scored("j", {"t1": {"m1": 3.0, "m2": 0.0}}, "safety"),
        *scored("j", {"t1": {"m1": 1.0, "m2": 1.2}}, "coherence"),
        *scored("j", {"t1": {"m1": 1.0, "m2": 1.0}}, "consistency"),
        make_judgement("t1m2", "consistency", 1.4, judge="j", repeat=1),
    ]
    assert metric_ranks(given, DIALOGUES, BY)["j · joint"] == {"t1": {"m1": 1, "m2": 2}}
    assert metric_ranks(given, DIALOGUES, BY, {"test"})["j · joint"] == {"t1": {"m1": 2, "m2": 1}}
    lacking = [*given, *scored("j", {"t1": {"m3": 9.0}}, "safety")]
    assert metric_ranks(lacking, DIALOGUES, BY) == metric_ranks(given, DIALOGUES, BY)


def test_what_ranks_nothing_has_no_figures() -> None:
    people = human_ranks(PREFERENCES, DIALOGUES, BY)
    given = [*scored("j", {"t1": {"m1": 2.0, "m2": 1.0}}), make_judgement("t1m1", "safety", None, judge="k")]
    j, k = compare_ranks(people, metric_ranks(given, DIALOGUES, BY))
    assert (k.scorer, k.topics, k.supporters) == ("k · joint", 0, (0, 0)) and k.record()["mae"]["value"] is None
    assert j.figures["spearman"].mean == 1 and j.figures["spearman"].low is None, "one topic has no interval"
    with pytest.raises(UserError, match="no topic has two supporters that both a scorer and people ranked"):
        compare_ranks(people, metric_ranks(given[2:], DIALOGUES, BY))


def test_supporters_that_one_side_lacks_are_ranked_out() -> None:
    """m1 leads for people; of m2 and m3, which the metric has, both put m3 first: no error is left. t2 has one and is out."""
    given = scored("j", {"t1": {"m2": 1.0, "m3": 2.0}, "t2": {"m3": 1.0}})
    (found,) = compare_ranks(human_ranks(PREFERENCES, DIALOGUES, BY), metric_ranks(given, DIALOGUES, BY))
    assert (found.topics, found.supporters, found.figures["mae"].mean, found.figures["rmse"].mean) == (1, (2, 2), 0, 0)


def test_scores_on_two_rubrics_are_not_one_rank() -> None:
    given = [make_judgement("t1m1", "safety", 1.0), make_judgement("t1m1", "empathy", 4.0, rubric="other")]
    with pytest.raises(UserError, match="j · joint: verdicts on rubrics test and other: give those on a single one"):
        metric_ranks(given, DIALOGUES, BY)


def test_an_answer_counts_once(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_jsonl(first, PREFERENCES)
    a, b = PREFERENCES[0].dialogue_a, PREFERENCES[0].dialogue_b
    swapped = PREFERENCES[0].model_copy(update={"dialogue_a": b, "dialogue_b": a, "order": "ba"})  # the same seen the same way
    for doubled in (PREFERENCES[0], swapped):
        write_jsonl(second, [prefer("t9", "m1", "m2", "a"), doubled])
        with pytest.raises(UserError) as refused:
            read_preferences([first, second])
        assert str(refused.value) == (
            f"{second}:2: p answered on t1m1 and t1m2 twice in the same order; the first is {first}:1"
        )
    turned = Preference.model_validate(PREFERENCES[0].model_dump() | {"order": "ba"})  # asked again, the other way round
    write_jsonl(second, [turned])
    assert human_ranks(read_preferences([first, second]), DIALOGUES, BY)["t1"]["m1"] == 1


def test_metrics_of_replies_name_their_supporter() -> None:
    given = [
        make_judgement("t1m1", "bleu_1", value, judge="bleu-1", turn=1, condition={"supporter": name})
        for name, value in (("m2", 1.0), ("m3", 2.0))
    ]
    assert metric_ranks(given, DIALOGUES, BY) == {"bleu-1 · joint": {"t1": {"m3": 1, "m2": 2}}}


sides = st.integers(2, 7).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2))


@given(sides)
def test_figures_of_a_topic_against_scipy(given: tuple[list[int], list[int]]) -> None:
    x, y = ([ranks_of(dict(zip("abcdefg", side, strict=False)))[k] for k in "abcdefg"[: len(side)]] for side in given)
    assert x == pytest.approx(rankdata([-v for v in given[0]]))
    found = topic_figures(x, y)
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert found["spearman"] == pytest.approx(spearmanr(x, y).statistic)
        assert found["kendall"] == pytest.approx(kendalltau(x, y).statistic)
    else:
        assert found["spearman"] is None and found["kendall"] is None
    gaps = np.subtract(x, y)
    assert found["rmse"] == pytest.approx(np.sqrt((gaps**2).mean())) and found["mae"] == pytest.approx(np.abs(gaps).mean())
    if len(set(x)) == len(set(y)) == 7:  # what the printed tables are checked by
        assert 2 * round(found["mae"] * 7 / 2) == pytest.approx(found["mae"] * 7)  # type: ignore[operator]
        assert found["rmse"] ** 2 == pytest.approx(8 * (1 - found["spearman"]))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("preference", "dialogues", "message"),
    [
        (prefer("t1", "m1", "mx", "a"), DIALOGUES, "no dialogue 't1mx'"),
        (
            prefer("t1", "m1", "m2", "a"),
            [make_dialogue("t1m1", "m1", card_id="t1"), make_dialogue("t1m2", "m2", card_id="u")],
            "'u'",
        ),
        (prefer("t1", "m1", "m2", "a"), [make_dialogue(f"t1{m}", "m", card_id="t") for m in ("m1", "m2")], "of supporter m"),
    ],
)
def test_pairs_that_make_no_sense(preference: Preference, dialogues: list[Dialogue], message: str) -> None:
    with pytest.raises(UserError, match=message):
        human_ranks([preference], dialogues, BY)


def test_rank_command_with_the_papers_rows(tmp_path: Path) -> None:
    values = {"t1": {"m1": 3.0, "m2": 2.0, "m3": 1.0}, "t2": {"m1": 2.0, "m2": 2.0, "m3": 2.0}}
    write_jsonl(tmp_path / "j.jsonl", scored("j", values))
    write_jsonl(tmp_path / "p.jsonl", PREFERENCES)
    write_jsonl(tmp_path / "d.jsonl", DIALOGUES)

    def call(*extra: Any) -> str:
        given = ("--judgements", "j.jsonl", "--preferences", "p.jsonl", "--dialogues", "d.jsonl")
        paths = [str(tmp_path / text) if text.endswith(".jsonl") else text for text in given]
        out = ("--out", str(tmp_path / "out"))
        return CliRunner().invoke(app, ["ensemble", *paths, *out, *extra], catch_exceptions=False).stdout

    (row,) = json.loads(call("--json"))["ranking"]
    assert row["spearman"]["value"] == 0.5 and row["spearman"]["n"] == 1  # t2 ranks all alike: not defined, not 0
    assert row["mae"] == {
        "value": pytest.approx((2 / 3 + 2 / 3) / 2),
        "low": row["mae"]["low"],
        "high": row["mae"]["high"],
        "n": 2,
    }
    call("--against", "feel")
    shown = (tmp_path / "out" / "feel_ranking.csv").read_text()
    assert "paper: ROUGE-2,-0.332," in shown and "paper: GLM+GPT,0.386," in shown


def test_aspects_on_several_scales_are_combined_by_their_ranks(tmp_path: Path) -> None:
    """By their means the wider scale would decide: m3 first. By ranks, all are alike, and Spearman is not defined."""
    values = {"lively": {"m1": 2.0, "m2": 1.0, "m3": 0.0}, "overall": {"m1": 0.0, "m2": 1.0, "m3": 4.0}}
    verdicts = [
        one.model_copy(update={"rubric": "fed_like"})
        for aspect, own in values.items()
        for one in scored("j", {"t1": own, "t2": own}, aspect)
    ]
    write_jsonl(tmp_path / "j.jsonl", verdicts)
    write_jsonl(tmp_path / "p.jsonl", PREFERENCES)
    write_jsonl(tmp_path / "d.jsonl", DIALOGUES)
    (tmp_path / "fed.yaml").write_text(yaml.safe_dump(fed_rubric().model_dump(mode="json")))
    files = {"judgements": "j.jsonl", "preferences": "p.jsonl", "dialogues": "d.jsonl", "rubric": "fed.yaml"}
    given = [part for option, name in files.items() for part in (f"--{option}", str(tmp_path / name))]
    for options, defined in ((given, 0), (given[:-2], 2)):  # without its rubric, a scale is taken for shared
        result = CliRunner().invoke(
            app, ["ensemble", *options, "--out", str(tmp_path / "out"), "--json"], catch_exceptions=False
        )
        (ranking,) = json.loads(result.stdout)["ranking"]
        assert (ranking["topics"], ranking["spearman"]["n"]) == (2, defined)
