"""`esc-eval agree --gold`: scores of the shape that FED has, against krippendorff and scikit-learn, without dialogues."""

import csv
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest
import yaml
from sklearn.metrics import cohen_kappa_score

from core.errors import UserError
from core.files import write_jsonl
from core.records import HumanScore
from data_prep.scores.annotator_agreement import agreement
from evalsuite.cli import app
from tests.evalsuite.records import fed_rubric
from tests.verbs import printed

NAMES = ("anna", "ben", "cleo", "dan")
TOP = {"lively": 2, "consistent": 1, "overall": 4}


call = partial(printed, app, "agree")


def score(item: int, who: str, dimension: str, value: float, turn: int | None = None) -> HumanScore:
    return HumanScore(
        dialogue_id=f"d{item}", language="en", annotator=who, rubric="fed_like", dimension=dimension, value=value, turn=turn
    )


def fed_like(seed: int = 0, items: int = 25) -> list[HumanScore]:
    """Dialogues rated on three scales, one to four people each; `overall` also turn by turn, in thirds."""
    rng, found = random.Random(seed), []
    for item in range(items):
        for dimension, top in TOP.items():
            for turn, step in ((None, 1), *(((1, 3), (3, 3)) if dimension == "overall" else ())):
                truth = rng.randint(0, top * step)
                for who in rng.sample(NAMES, rng.choice([1, 2, 3, 4])):
                    value = min(top * step, max(0, truth + rng.choice([-1, 0, 0, 1]))) / step
                    found.append(score(item, who, dimension, value, turn))
    return found


def table_of(scores: Sequence[HumanScore], dimension: str, turns: bool) -> np.ndarray[Any, np.dtype[np.float64]]:
    """People × what they scored, NaN for gaps."""
    own = [s for s in scores if s.dimension == dimension and (s.turn is not None) == turns]
    items = {key: place for place, key in enumerate(dict.fromkeys((s.dialogue_id, s.turn) for s in own))}
    table = np.full((len(NAMES), len(items)), np.nan)
    for s in own:
        table[NAMES.index(s.annotator), items[s.dialogue_id, s.turn]] = s.value
    return table


@pytest.mark.slow
def test_alpha_kappa_and_shares_against_the_libraries(tmp_path: Path) -> None:
    scores = fed_like(items=60)
    write_jsonl(tmp_path / "s.jsonl", scores)
    rows = json.loads(call("--gold", tmp_path / "s.jsonl", "--json"))["annotators"]
    named = {(row["dimension"], row["scored"]): row for row in rows}
    assert set(named) == {*((d, "dialogue") for d in TOP), ("overall", "turn")}
    for (dimension, scored), row in named.items():
        table = table_of(scores, dimension, scored == "turn")
        several = (~np.isnan(table)).sum(0) > 1
        assert (row["n"], row["alone"]) == (several.sum(), (~several).sum()) and row["alone"] > 0
        assert (row["language"], row["rubric"], row["people"], row["pairs"]) == ("en", "fed_like", 4, 6)
        alpha = krippendorff.alpha(table, level_of_measurement="ordinal", value_domain=sorted({*table[~np.isnan(table)]}))
        assert row["alpha"]["mean"] == pytest.approx(alpha, abs=1e-6) and row["alpha"]["low"] < alpha < row["alpha"]["high"]
        gaps, kappas = [], []
        for pair, (a, b) in zip(row["by_pair"], itertools.combinations(range(4), 2), strict=True):
            both = ~np.isnan(table[a]) & ~np.isnan(table[b])
            x, y = (np.rint(3 * table[side, both]).astype(int) for side in (a, b))  # thirds as labels, with gaps between them
            kappa = cohen_kappa_score(x, y, labels=range(13), weights="quadratic")
            assert (pair["a"], pair["b"], pair["n"]) == (NAMES[a], NAMES[b], both.sum())
            assert pair["kappa"]["mean"] == pytest.approx(kappa, abs=1e-6)
            low, high = pair["kappa"]["low"], pair["kappa"]["high"]
            assert (low is None and high is None) or low <= kappa <= high
            assert pair["equal"]["mean"] == pytest.approx(np.mean(x == y), abs=1e-6)
            assert pair["near"]["mean"] == pytest.approx(np.mean(abs(x - y) <= 3), abs=1e-6)
            gaps += (x - y).tolist()
            kappas.append(kappa)
        assert row["equal"]["mean"] == pytest.approx(np.mean(np.array(gaps) == 0), abs=1e-6)
        shared = [pair["n"] for pair in row["by_pair"]]
        assert len({*shared}) > 1, "pairs share different numbers of items, so the plain mean is another figure"
        assert row["kappa"]["mean"] == pytest.approx(np.average(kappas, weights=shared), abs=1e-6)


def test_the_order_of_rows_and_files_changes_nothing(tmp_path: Path) -> None:
    scores = fed_like(1)
    write_jsonl(tmp_path / "all.jsonl", scores)
    random.Random(3).shuffle(scores)
    write_jsonl(tmp_path / "a.jsonl", scores[:70])
    write_jsonl(tmp_path / "b.jsonl", scores[70:])
    parts = ("--gold", tmp_path / "a.jsonl", "--gold", tmp_path / "b.jsonl")
    assert call(*parts, "--json") == call("--gold", tmp_path / "all.jsonl", "--json")


def test_a_dialogues_turns_are_drawn_together() -> None:
    """Ten equal turns of a dialogue say no more than one of them: the intervals are as wide."""
    rng = random.Random(5)
    pairs = [(rng.randint(0, 4), rng.randint(0, 4)) for _ in range(30)]

    def rows(turns: int) -> list[HumanScore]:
        given = [(n, who, pair["ab".index(who)]) for n, pair in enumerate(pairs) for who in "ab"]
        return [score(n, who, "overall", value, turn) for n, who, value in given for turn in range(turns)]

    (one,), (ten,) = agreement(rows(1)), agreement(rows(10))
    assert (one.n, ten.n) == (30, 300)
    for name in ("kappa", "equal", "near"):
        few, many = getattr(one, name), getattr(ten, name)
        assert few.low is not None
        assert (many.mean, many.low, many.high) == pytest.approx((few.mean, few.low, few.high))


def test_many_values_and_many_people_fit_into_memory() -> None:
    """120 values: whole tables, items × values × values for each of the pairs, would not."""
    rng = random.Random(2)
    slider = [score(n, who, "overall", rng.random() * 4) for n in range(60) for who in NAMES[:2]]
    crowd = [score(n, f"w{n + who}", "lively", rng.randint(0, 2)) for n in range(30) for who in range(3)]
    wide, many = agreement(slider + crowd)[::-1]
    assert (wide.dimension, wide.n, many.people, many.pairs) == ("overall", 60, 32, 61)
    ranked = np.array([[s.value for s in slider if s.annotator == who] for who in NAMES[:2]])
    assert wide.alpha.mean == pytest.approx(krippendorff.alpha(ranked, level_of_measurement="ordinal"), abs=1e-6)


def test_csv_with_a_rubric_of_ones_own_is_checked_line_by_line(tmp_path: Path) -> None:
    head = "dialogue_id,language,annotator,rubric,dimension,value\n"
    fine = "d1,en,anna,fed_like,consistent,1\nd1,en,ben,fed_like,consistent,0\n"
    (tmp_path / "s.csv").write_text(head + fine + "d2,en,ben,fed_like,consistent,2\n")
    (tmp_path / "fed.yaml").write_text(yaml.safe_dump(fed_rubric().model_dump(mode="json")))
    given = ("--gold", tmp_path / "s.csv")
    assert "Consistent" not in call(*given), "a rubric that nobody knows is no obstacle"
    with pytest.raises(UserError, match=r"s\.csv:4: value: 2 is off the scale of consistent in rubric fed_like, 0 to 1"):
        call(*given, "--rubric", tmp_path / "fed.yaml")
    (tmp_path / "s.csv").write_text(head + fine)
    out = tmp_path / "out"
    call(*given, "--rubric", tmp_path / "fed.yaml", "--out", out)
    assert sorted(path.name for path in out.iterdir()) == [
        ".annotators.tables",
        "annotator_pairs.csv",
        "annotators.csv",
        "annotators.json",
    ]
    (row,) = csv.DictReader((out / "annotators.csv").open(newline=""))
    assert (row["People"], row["Equal"], row["Within 1"], row["Weighted kappa n"]) == ("2", "0.00", "1.00", "1")


@pytest.mark.slow
def test_rubrics_and_turns_are_told_apart_and_dimensions_keep_the_rubrics_order(tmp_path: Path) -> None:
    whole = {(s.dialogue_id, s.annotator): s for s in fed_like() if s.turn is None}.values()
    other = [s.model_copy(update={"rubric": "another", "dimension": d}) for s in whole for d in ("z", "a")]
    rows = agreement([*other, *fed_like()], [fed_rubric()])
    assert [(row.rubric, row.dimension, row.scored) for row in rows] == [
        ("another", "a", "dialogue"),
        ("another", "z", "dialogue"),
        ("fed_like", "lively", "dialogue"),
        ("fed_like", "consistent", "dialogue"),
        ("fed_like", "overall", "dialogue"),
        ("fed_like", "overall", "turn"),
    ]
    write_jsonl(tmp_path / "s.jsonl", [*other, *fed_like()])
    printed = call("--gold", tmp_path / "s.jsonl", "--rubric", "another", "--json")
    assert {row["rubric"] for row in json.loads(printed)["annotators"]} == {"another"}
    assert "too many to show" not in printed and "too many to show" not in call("--gold", tmp_path / "s.jsonl")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--gold", "FILE", "--gold-rubric", "feel"), "--gold-rubric: without --judgements"),
        (("--gold", "FILE", "--reference", "x", "--only-shared"), "--reference: without --judgements"),
        (("--gold", "FILE", "--mode", "paper"), "--mode: without --judgements"),
        (("--gold", "FILE", "--annotator", "zoe"), "--annotator zoe: gave none of the scores"),
        (("--gold", "FILE", "--annotator", "anna"), "no dialogue .* has scores of two people"),
        (("--gold", "FILE", "--rubric", "feel"), "--rubric: no score is on rubric feel: .*fed_like"),
    ],
)
def test_options_that_do_not_go_together(more: tuple[str, ...], message: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "s.jsonl", fed_like(items=3))
    with pytest.raises(UserError, match=message):
        call(*(tmp_path / "s.jsonl" if option == "FILE" else option for option in more))


def test_every_two_people_are_printed_unless_there_are_too_many(tmp_path: Path) -> None:
    given: dict[str, list[HumanScore]] = defaultdict(list)
    for who in range(10):
        given["few" if who < 3 else "many"].append(score(0, f"w{who}", "lively", who % 2))
    write_jsonl(tmp_path / "few.jsonl", given["few"])
    write_jsonl(tmp_path / "many.jsonl", given["few"] + given["many"])
    assert "Agreement of every two annotators" in call("--gold", tmp_path / "few.jsonl")
    printed = call("--gold", tmp_path / "many.jsonl")
    assert "Agreement of every two annotators" not in printed and "45 pairs of annotators are too many to show" in printed


def test_a_single_dialogue_has_no_interval() -> None:
    (row,) = agreement([score(0, who, "overall", value, turn) for turn in range(4) for who, value in (("a", turn), ("b", 2))])
    assert row.n == 4 and row.equal.mean == 0.25
    for figure in (row.alpha, row.kappa, row.equal, row.near, row.by_pair[0].near):
        assert figure.mean is not None and (figure.low, figure.high) == (None, None)
