"""FEEL's equations by hand and against scipy; weights on the paper's tables; what is saved and applied."""

import json
import math
import re
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, spearmanr

from core.errors import UserError
from core.files import write_jsonl
from core.records import HumanScore, Judgement
from evalsuite.papers import feel_ensemble as ensemble
from evalsuite.papers.commands.feel import app
from evalsuite.papers.feel_ensemble import Aspect, combined, fit_tables, panel_of, people_of, report, shares
from evalsuite.papers.reported import load_reported
from evalsuite.papers.reported.recomputation import check
from tests.evalsuite.records import make_dialogue, make_judgement
from tests.verbs import printed

SAFE = Aspect("en", "safety")
correlation = st.none() | st.floats(-1, 1)


def human(dialogue: str, value: float, **more: Any) -> HumanScore:
    base = {"language": "en", "annotator": "a", "rubric": "feel", "dimension": "safety"}
    return HumanScore.model_validate(base | {"dialogue_id": dialogue, "value": value} | more)


def verdicts(judge: str, values: dict[str, float | None], dimension: str = "safety") -> list[Judgement]:
    return [make_judgement(dialogue, dimension, value, judge=judge) for dialogue, value in values.items()]


# --- equations --------------------------------------------------------------------------------------------------------------


def test_equation_1_by_hand() -> None:
    """Two rounds of band probabilities: (0.2·1 + 0.3·2 + 0.5·3 + 0.4·1 + 0.1·2 + 0.5·0) / 2 = (2.3 + 0.6) / 2."""
    given = [make_judgement("d", "safety", value, repeat=n) for n, value in enumerate([2.3, 0.6, None])]
    assert panel_of(given) == {"j · joint": {SAFE: {"d": 1.45}}}  # the unreadable round is in no mean
    with pytest.raises(UserError, match=r"several rubrics \(other, test\): give those on a single one"):
        panel_of([*given, make_judgement("d", "safety", 1.0, rubric="other")])


def test_equation_2_on_the_printed_tables() -> None:
    """Worked out by hand from tables 1 and 2: .368 + .163 + .364 = .895, and so on."""
    by_hand = {
        "Informativeness": (0.411, 0.182, 0.407),
        "Comprehensibility": (0.423, 0.216, 0.361),
        "Helpfulness": (0.357, 0.311, 0.332),
        "Consistency": (0.493, 0.145, 0.361),
        "Coherence": (0.462, 0.182, 0.357),
        "Safety": (0.403, 0.270, 0.327),
    }
    paper = load_reported("feel")
    for table in ("1", "2"):
        for column in paper.tables[table].columns:
            cells = paper.select(table, {"column": column, "part": "Spear."}, "here")
            found = shares({cell.at["Judge"]: cell.value for cell in cells if cell.at["Judge"] != "FEEL"})
            assert tuple(round(weight, 3) for weight in found.values()) == by_hand[column]


def test_equation_3_by_hand() -> None:
    weights = {"a": 0.411, "b": 0.182, "c": 0.407}
    assert combined(weights, {"a": 2.0, "b": 1.0, "c": 3.0}) == pytest.approx(2.225)  # 0.822 + 0.182 + 1.221
    assert combined(weights, {"a": 2.0, "b": None, "c": 3.0}) is None
    assert combined({"a": 1.0, "b": 0.0}, {"a": 2.0}) == 2.0  # nobody misses who has no weight


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"a": 0.3, "b": -0.5, "c": 0.1}, {"a": 0.75, "b": 0, "c": 0.25}),
        ({"a": 0.3, "b": None}, {"a": 1, "b": 0}),
        ({"a": -0.3, "b": None}, {"a": 0.5, "b": 0.5}),  # none goes with people: all the same
        ({"a": 0.0}, {"a": 1}),
    ],
)
def test_negative_and_undefined_correlations(given: dict[str, float | None], wanted: dict[str, float]) -> None:
    assert shares(given) == pytest.approx(wanted)


@given(st.dictionaries(st.sampled_from("abcdefgh"), correlation, min_size=1))
def test_weights_are_shares_and_the_order_of_judges_has_no_effect(given: dict[str, float | None]) -> None:
    found = shares(given)
    assert math.isclose(math.fsum(found.values()), 1, abs_tol=1e-9) and min(found.values()) >= 0
    assert shares(dict(reversed(given.items()))) == found
    scores = {judge: ord(judge) % 4 + 0.1 for judge in given}
    value = combined(found, scores)
    assert value == combined(dict(reversed(found.items())), scores)
    assert value is not None and min(scores.values()) - 1e-9 <= value <= max(scores.values()) + 1e-9


# --- fitting ----------------------------------------------------------------------------------------------------------------

ratings = st.lists(st.tuples(*[st.integers(0, 6)] * 4), min_size=1, max_size=12)


@pytest.mark.slow
@given(ratings)
def test_fit_and_report_against_scipy(rows: list[tuple[int, int, int, int]]) -> None:
    """Ties, constants and a single dialogue included; judges in either order."""
    ids = [f"d{n}" for n in range(len(rows))]
    judged = [verdicts(name, {i: row[k] / 2 for i, row in zip(ids, rows, strict=True)}) for k, name in enumerate("xyz")]
    people = people_of([human(i, row[3] / 2) for i, row in zip(ids, rows, strict=True)], {})
    panel = panel_of(chain(*judged))
    fitted = ensemble.fit(panel, people, ids, "feel", "paper")
    assert fitted == ensemble.fit(panel_of(chain(*reversed(judged))), people, reversed(ids), "feel", "paper")
    gold = [row[3] / 2 for row in rows]
    oracle: dict[str, float | None] = {}
    for k, each in enumerate(fitted.weights):
        own = [row[k] / 2 for row in rows]
        defined = len(set(own)) > 1 and len(set(gold)) > 1
        oracle[each.judge] = float(spearmanr(own, gold).statistic) if defined else None
        assert each.correlation == (pytest.approx(oracle[each.judge]) if defined else None) and each.n == len(rows)
    assert {each.judge: each.weight for each in fitted.weights} == pytest.approx(shares(oracle))
    named = {row.scorer: row for row in report(panel, people, fitted, ids)}
    mean = [round(sum(row[:3]) / 6, 10) for row in rows]
    if len(set(mean)) > 1 and len(set(gold)) > 1:
        assert named["mean of the judges"].spearman.mean == pytest.approx(spearmanr(mean, gold).statistic)
        assert named["mean of the judges"].kendall.mean == pytest.approx(kendalltau(mean, gold).statistic)
    else:
        assert named["mean of the judges"].spearman.mean is None
    assert len(named) == 3 + 2 + 3 and {row.spearman.n for row in named.values()} == {len(rows)}


def test_a_left_out_judge_leaves_the_ensemble_of_the_others() -> None:
    people = people_of([human(f"d{n}", n) for n in range(4)], {})
    judged = {"x": [0, 1, 2, 3], "y": [0, 2, 1, 3], "z": [3, 2, 1, 0]}
    panel = panel_of([j for name, own in judged.items() for j in verdicts(name, {f"d{n}": v for n, v in enumerate(own)})])
    fitted = ensemble.fit(panel, people, people[SAFE], "test", "paper")
    assert [round(each.weight, 4) for each in fitted.weights] == [0.5556, 0.4444, 0]  # rho 1, 0.8, −1
    assert ensemble.ensembles(fitted)["feel without x · joint"] == {SAFE: {"y · joint": 1, "z · joint": 0}}
    assert len(fitted.data) == 64 and fitted.fitted_on == ["d0", "d1", "d2", "d3"]
    other = ensemble.fit(panel, {SAFE: people[SAFE] | {"d3": 2.5}}, people[SAFE], "test", "paper")
    assert other.weights == fitted.weights and other.data != fitted.data, "the ranks are the same, the data are not"
    rows = report(panel, people, fitted, people[SAFE])
    assert rows == report(dict(reversed(panel.items())), people, fitted, people[SAFE]), "judges are sorted by name"
    named = {row.scorer: row.spearman.mean for row in rows}
    assert named["feel without x · joint"] == pytest.approx(0.8) and named["z · joint"] == pytest.approx(-1)


def test_what_lacks_a_judge_has_no_score_and_says_so() -> None:
    people = people_of([human(f"d{n}", n) for n in range(4)], {})
    judged = verdicts("x", {f"d{n}": float(n) for n in range(4)}) + verdicts("y", {"d0": 0.0, "d1": 1.0, "d2": 2.0, "d3": None})
    panel = panel_of(judged)
    fitted = ensemble.fit(panel, people, people[SAFE], "test", "paper")
    found = {j.dialogue_id: j for j in ensemble.apply(fitted, judged) if j.judge == "feel"}
    assert (found["d3"].value, found["d3"].condition["failure"]) == (None, "judge_missing")
    assert found["d2"].value == 2 and "failure" not in found["d2"].condition
    rows = {row.scorer: row.spearman.n for row in report(panel, people, fitted, people[SAFE])}
    assert rows == dict.fromkeys(("x · joint", "y · joint", "mean of the judges", "feel"), 3), "all over the same dialogues"


def test_weights_that_are_even_are_called_so() -> None:
    people = people_of([human(f"d{n}", n) for n in range(3)], {})
    against = ensemble.fit(panel_of(verdicts("x", {f"d{n}": -n for n in range(3)})), people, people[SAFE], "test", "paper")
    assert next(fit_tables([against], [])).rows[0][-2:] == (1.0, "even")


def test_nothing_shared_is_said() -> None:
    panel, people = panel_of(verdicts("x", {"d": 1.0})), people_of([human("d", 1, dimension="coherence")], {})
    with pytest.raises(UserError, match="no dialogue has a judge's and a human score on the same aspect"):
        ensemble.fit(panel, people, ["d"], "feel", "paper")


def test_parts_keep_groups_together_and_leave_both_sides() -> None:
    groups = {f"d{n}": f"g{n // 2}" for n in range(10)}
    chosen = ensemble.part(groups, 0.5, 0)
    assert 4 <= len(chosen) <= 6 and all((f"d{n}" in chosen) == (f"d{n + 1}" in chosen) for n in range(0, 10, 2))
    assert chosen == ensemble.part(dict(reversed(groups.items())), 0.5, 0)
    with pytest.raises(UserError, match="cannot be split"):
        ensemble.part({"d0": "g", "d1": "g"}, 0.5, 0)


def test_people_are_mapped_and_averaged() -> None:
    empathy = (("a", 6.0, 0), ("a", 4.0, 2), ("b", 2.0, None))  # one rated two turns: they count as one
    survey = [human("d", v, dimension="empathy", annotator=who, turn=turn) for who, v, turn in empathy] + [human("d", 1)]
    assert people_of(survey, {"empathy": "comprehensibility"}) == {Aspect("en", "comprehensibility"): {"d": 3.5}}
    with pytest.raises(UserError, match="--map empaty=safety: people did not score 'empaty': did you mean empathy"):
        people_of(survey, {"empaty": "safety"})
    with pytest.raises(UserError, match="feel/empathy and feel/safety both map to safety"):
        people_of(survey, {"empathy": "safety", "safety": "safety"})


# --- the commands -----------------------------------------------------------------------------------------------------------


call = partial(printed, app)


def files(folder: Path, count: int = 12) -> None:
    """Judge x follows people, y less so, z not at all; dialogues come in pairs of one card."""
    ids = [f"d{n}" for n in range(count)]
    write_jsonl(folder / "dialogues.jsonl", [make_dialogue(i, card_id=f"c{n // 2}") for n, i in enumerate(ids)])
    write_jsonl(folder / "human.jsonl", [human(i, n % 7 / 2, rubric="feel") for n, i in enumerate(ids)])
    own = {"x": lambda n: n % 7 / 2, "y": lambda n: (n % 7 + n % 3) / 4, "z": lambda n: None if n == 3 else 3 - n % 7 / 2}
    judged = [make_judgement(i, "safety", f(n), judge=j, rubric="feel") for j, f in own.items() for n, i in enumerate(ids)]
    write_jsonl(folder / "judged.jsonl", judged)


@pytest.mark.slow
def test_fit_saves_and_apply_uses(tmp_path: Path) -> None:
    files(tmp_path)
    out, judged = tmp_path / "w", ("ensemble", "--judgements", tmp_path / "judged.jsonl")
    both = (*judged, "--gold", tmp_path / "human.jsonl", "--out", out)
    shown = json.loads(call(*both, "--dialogues", tmp_path / "dialogues.jsonl", "--json"))
    assert set(shown["weights"]) == {"paper", "native"}
    saved = json.loads((out / "weights_native.json").read_text())
    held_out = {row["scorer"]: row["spearman"] for row in shown["correlation"] if row["mode"] == "native"}
    assert held_out["x · joint"]["value"] == pytest.approx(1) and held_out["z · joint"]["value"] < 0
    assert {row["n"] for row in held_out.values()} <= {12 - len(saved["fitted_on"]), 11 - len(saved["fitted_on"])}
    assert all(f"d{n ^ 1}" in saved["fitted_on"] for n in (int(id[1:]) for id in saved["fitted_on"])), "cards stay whole"
    weights = {row["judge"]: row["weight"] for row in saved["weights"]}
    assert weights["z · joint"] == 0 and weights["x · joint"] > weights["y · joint"] > 0 and len(saved["data"]) == 64
    given = ("--weights", out / "weights_native.json", "--out", out)
    told = json.loads(call(*judged, *given, "--json"))
    assert (told["scores"], told["null"], told["fitted_on"]) == (12, 0, len(saved["fitted_on"]))
    assert told["without_weights"] == []
    lone = [make_judgement("d0", name, 1.0, judge=j, rubric="feel") for name in ("safety", "coherence") for j in "xyz"]
    write_jsonl(tmp_path / "l.jsonl", lone)
    shown = call("ensemble", "--judgements", tmp_path / "l.jsonl", *given[:2], "--out", tmp_path / "lone")
    assert "1 scores of 1 dialogues, 0 null" in shown and "not scored, no weights: en/coherence" in shown
    made, fewer = (
        [json.loads(text) for text in (out / f"{name}.jsonl").read_text().splitlines()] for name in ("judgements", "ablation")
    )
    first = next(row for row in made if row["dialogue_id"] == "d6")
    assert first["value"] == pytest.approx(weights["x · joint"] * 3 + weights["y · joint"] * 1.5)
    assert first["method"] == "ensemble" and first["condition"] == {"mode": "native", "weights": told["weights"]}
    assert {row["judge"] for row in made} == {"feel"}
    assert {row["judge"] for row in fewer} == {f"feel without {j} · joint" for j in "xyz"}
    assert "12 of these dialogues" not in call(*judged, *given)
    assert "Weights of the judges" in call(*both)
    (figure, *_) = re.findall(r"-?\d\.\d+", (out / "feel_spearman_native_en.csv").read_text())
    assert len(figure.split(".")[1]) == 3, "as the paper prints them"


@pytest.mark.slow
def test_wrong_input_is_one_clear_line(tmp_path: Path) -> None:
    files(tmp_path, 4)
    write_jsonl(tmp_path / "one.jsonl", [make_dialogue("d0")])
    out, file = tmp_path / "w", tmp_path / "w" / "weights_paper.json"
    judged = ("--judgements", tmp_path / "judged.jsonl")
    both = ("ensemble", *judged, "--gold", tmp_path / "human.jsonl", "--out", out)
    for extra, message in [
        (("--map", "safety"), "--map safety: write HUMAN=ASPECT"),
        (("--map", "safety=safty"), "--map: no judge scored 'safty': did you mean safety"),
        (("--method", "bands"), "no judgement by method 'bands': known: joint"),
        (("--dialogues", tmp_path / "one.jsonl"), r"no dialogue 'd1', which judges and people scored \(3 are missing\)"),
        (("--weights", tmp_path / "human.jsonl"), "give --gold to fit weights, --weights to score"),
    ]:
        with pytest.raises(UserError, match=message):
            call(*both, *extra)
    call(*both)
    only = [j for name in "yz" for j in verdicts(name, {"d0": 1.0})]
    write_jsonl(tmp_path / "less.jsonl", [j.model_copy(update={"rubric": "feel"}) for j in only])
    write_jsonl(tmp_path / "test.jsonl", verdicts("x", {"d0": 1.0}))
    write_jsonl(out / "judgements.jsonl", verdicts("x", {"d0": 1.0}))
    target = ("--weights", file, "--out", out)
    for told, message in [
        (("less.jsonl",), "no verdict by judge 'x · joint', which has weight"),
        (("w/judgements.jsonl",), "is read from there and would be replaced"),
        (("test.jsonl",), "weights are for rubric feel, no judgement is on it: known: test"),
        (("judged.jsonl", "--map", "a=b"), "--map: belongs to --gold"),
    ]:
        with pytest.raises(UserError, match=message):
            call("ensemble", "--judgements", tmp_path / told[0], *told[1:], *target)
    saved = json.loads(file.read_text())
    file.write_text(json.dumps(saved | {"weights": [*saved["weights"], saved["weights"][0]]}))
    with pytest.raises(UserError, match=r"weights_paper\.json: .*duplicate entries: en/safety/x · joint"):
        call("ensemble", *judged, *target)
    saved["weights"][0]["weight"] = 0.1
    file.write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"weights_paper\.json: weights: those of en/safety sum to"):
        call("ensemble", *judged, *target)
    file.write_text('{"rubric": "feel"}')
    with pytest.raises(UserError, match=r"weights_paper\.json:1: mode, data, seed, weights, fitted_on: Field required"):
        call("ensemble", *judged, *target)
    assert not (out / "ablation.jsonl").exists()


# --- the paper's tables -----------------------------------------------------------------------------------------------------


def test_the_papers_tables() -> None:
    paper = load_reported("feel")
    assert {name: len(cells) for name, cells in paper.cells.items()} == {"1": 24, "2": 24, "3": 28, "4": 16, "text": 6}
    found = [(d.table, d.row, d.column, d.printed, d.recomputed) for d in check(paper).disagreements]
    assert found == [("4", "ERNIE+GLM", "Spear.", 0.247, 0.246)]  # 69/280 = 0.24643
    for name in ("3", "4"):
        for row in paper.tables[name].rows:
            rho, rmse, mae = (float(row[i]) for i in (1, 3, 4))  # type: ignore[arg-type]
            assert round(mae * 70) % 2 == 0 and abs(mae * 70 - round(mae * 70)) < 0.04, "MAE × 70 is whole, and even"
            # A topic's mean square is 8 (1 − rho); the mean of its roots is at most the root of its mean.
            assert rmse <= math.sqrt(8 * (1 - rho)) + 0.001, row[0]
