"""`esc-eval paper role-play CHOICES`: people's choices from a table, against sums by hand, krippendorff, scikit-learn."""

import itertools
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from core.errors import UserError
from core.records import Comparison
from core.tables import Estimate, Table
from data_prep.scores.human import read_comparisons
from evalsuite.cli import app
from evalsuite.papers.commands.role_play import WORDS
from evalsuite.papers.win_rates import choices_of, win_rate_tables
from tests.evalsuite.oracles import smoothed
from tests.evalsuite.test_pairwise import row
from tests.verbs import printed

HEAD = "item,a,b,annotator,question,verdict,degree,order\n"


call = partial(printed, app, "paper", "role-play")


def chosen(item: int, a: str, b: str, who: str, **more: Any) -> Comparison:
    return Comparison.model_validate({"item": f"i{item}", "a": a, "b": b, "annotator": who} | more)


def tables(rows: list[Comparison], mode: Any = "native") -> dict[str, Table]:
    return {table.key: table for table in win_rate_tables([*choices_of(rows)], mode, WORDS)}


def graded(seed: int, items: int = 20, people: int = 4) -> list[Comparison]:
    """Degrees −2 to 2 of people with some taste in common, systems x, y and z given in either order."""
    rng, rows = random.Random(seed), []
    for item in range(items):
        for pair in itertools.combinations("xyz", 2):
            truth = rng.randint(-2, 2)
            for person in rng.sample(range(people), rng.randint(1, people)):
                degree = min(2, max(-2, truth + rng.choice([-1, 0, 0, 1])))
                a, b = pair if rng.random() < 0.5 else pair[::-1]
                order = rng.choice(["ab", "ba"])
                rows.append(chosen(item, a, b, f"p{person}", degree=degree if (a, b) == pair else -degree, order=order))
    return rows


def seen(rows: list[Comparison], a: str, b: str) -> list[tuple[str, str, float]]:
    """(item, annotator, degree in favour of `a`) of a pair."""
    own = [r for r in rows if {r.a, r.b} == {a, b}]
    return [(r.item, r.annotator, (r.degree or 0) * (1 if r.a == a else -1)) for r in own]


# --- figures --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_rates_degrees_and_agreement_against_independent_sums(seed: int) -> None:
    rows = graded(seed)
    found = tables(rows)
    for a, b in itertools.combinations("xyz", 2):
        own = seen(rows, a, b)
        values = np.array([degree for _, _, degree in own])
        pair = row(found["pairwise-pairs"], a, b)
        assert (pair["won"], pair["ties"], pair["lost"]) == tuple(int((np.sign(values) == s).sum()) for s in (1, 0, -1))
        assert pair["items"] == len({item for item, _, _ in own}) and pair["unread"] == 0
        assert pair["win rate %"].mean == pytest.approx(100 * np.mean((np.sign(values) + 1) / 2))
        decided = {item: [100.0 * (degree > 0) for other, _, degree in own if other == item and degree] for item, _, _ in own}
        sums, counts = zip(*((sum(of), len(of)) for of in decided.values()), strict=True)
        assert (pair["of decided %"].mean, pair["of decided %"].n) == (pytest.approx(sum(sums) / sum(counts)), sum(counts))
        low, high = smoothed(sums, [0, 100], counts)
        assert pair["of decided %"].low == pytest.approx(low, abs=2) and pair["of decided %"].high == pytest.approx(high, abs=2)
        assert pair["degree"].mean == pytest.approx(values.mean()) and pair["degree"].n == len(values)
        names, items = sorted({who for _, who, _ in own}), sorted({item for item, _, _ in own})
        grid = np.full((len(names), len(items)), np.nan)
        for item, who, degree in own:
            grid[names.index(who), items.index(item)] = degree
        agreed = row(found["pairwise-agreement"], a, b)
        alpha = krippendorff.alpha(grid, level_of_measurement="ordinal", value_domain=[-2, -1, 0, 1, 2])
        assert agreed["Krippendorff's alpha"].mean == pytest.approx(alpha, abs=1e-6)
        kappas, shared = [], []
        for one, two in itertools.combinations(grid, 2):
            both = ~np.isnan(one) & ~np.isnan(two)
            kappas.append(cohen_kappa_score(one[both], two[both], labels=range(-2, 3), weights="quadratic"))
            shared.append(both.sum())
        assert agreed["weighted kappa"].mean == pytest.approx(np.average(kappas, weights=shared), abs=1e-6)
    x = row(found["pairwise-win_rates"], "x")
    everything = [degree for other in "yz" for _, _, degree in seen(rows, "x", other)]
    assert x["degree"].mean == pytest.approx(np.mean(everything)) and x["degree"].n == len(everything)
    degrees = [row(found["pairwise-win_rates"], system)["degree"] for system in "xyz"]
    assert sum(each.mean * each.n for each in degrees) == pytest.approx(0, abs=1e-9), "what one is better by, another is worse"


@pytest.mark.slow
def test_items_are_drawn_whole() -> None:
    """Ten people who say the same are one vote an item, as far as intervals go."""
    degrees = [2, 1, 0, -1, 2, 2, -2, 1]
    crowd = [chosen(n, "x", "y", f"p{p}", degree=degree) for n, degree in enumerate(degrees) for p in range(10)]
    alone = [one for one in crowd if one.annotator == "p0"]
    ten, one = (row(tables(rows)["pairwise-pairs"], "x", "y") for rows in (crowd, alone))
    for name in ("win rate %", "degree"):
        assert (ten[name].mean, ten[name].low, ten[name].high) == pytest.approx((one[name].mean, one[name].low, one[name].high))
        assert (ten[name].n, one[name].n) == (80, 8)
    assert (one["degree"].low, one["degree"].high) == pytest.approx(smoothed(degrees, range(-2, 3)), abs=0.15)


@pytest.mark.slow
@settings(max_examples=20)  # each draws intervals of two boards
@given(st.integers(0, 50), st.randoms())
def test_neither_rows_nor_sides_nor_their_order_matter(seed: int, shuffle: Any) -> None:
    rows = graded(seed, items=4)
    turned = [
        Comparison.model_validate(
            one.model_dump() | {"a": one.b, "b": one.a, "degree": -(one.degree or 0), "order": (one.order or "")[::-1]}
        )
        for one in rows
    ]
    shuffle.shuffle(turned)
    assert tables(turned) == tables(rows)


def test_thirds_do_not_depend_on_the_order_of_rows() -> None:
    degrees = [n / 3 for n in (1, 2, 4, 5, -1, -2, 1, 7, 8, 10, 11, 13)]
    rows = [chosen(n % 2, "x", "y", f"p{n}", degree=degree) for n, degree in enumerate(degrees)]
    assert tables(rows) == tables(rows[::-1]) == tables(sorted(rows, key=lambda one: one.degree or 0))


def test_both_orders_are_one_vote_and_the_place_is_measured() -> None:
    rows = [
        chosen(0, "x", "y", "anna", degree=2, order="ab"),  # x, shown first
        chosen(0, "x", "y", "anna", degree=-1, order="ba"),  # y, shown first: the answer went with the place
        chosen(1, "x", "y", "anna", degree=1, order="ba"),
        chosen(0, "x", "y", "ben", degree=1, order="ba"),
    ]
    native, paper = tables(rows), tables(rows, "paper")
    pair = row(native["pairwise-pairs"], "x", "y")
    assert (pair["won"], pair["ties"], pair["lost"]) == (2, 1, 0) and pair["degree"].mean == pytest.approx((0.5 + 1 + 1) / 3)
    each = row(paper["pairwise-pairs"], "x", "y")
    assert (each["won"], each["ties"], each["lost"]) == (3, 0, 1) and each["degree"].mean == pytest.approx(3 / 4)
    anna = row(native["pairwise-position"], "anna")
    assert (anna["first shown picked %"].mean, anna["first shown picked %"].n) == (pytest.approx(200 / 3), 3)
    assert anna["same in both orders %"] == Estimate(0, None, None, 1)
    assert any("native mode: one vote" in note for note in native["pairwise-pairs"].notes)
    bare = tables([chosen(0, "x", "y", "anna", verdict="a")])
    assert set(bare) == {"pairwise-win_rates", "pairwise-pairs"}, "no place, and nobody to agree with"
    assert not any("mode" in note for note in bare["pairwise-pairs"].notes) and "degree" not in bare["pairwise-pairs"].columns
    assert row(bare["pairwise-pairs"], "x", "y")["win rate %"] == Estimate(100, None, None, 1)


def test_verdicts_alone_are_three_steps_of_agreement() -> None:
    answers = {"anna": "aabtb", "ben": "aabbt"}
    words = {"a": "a", "b": "b", "t": "tie"}
    rows = [chosen(n, "x", "y", who, verdict=words[v]) for who, own in answers.items() for n, v in enumerate(own)]
    numbers = [[{"a": 1, "t": 0, "b": -1}[v] for v in own] for own in answers.values()]
    agreed = row(tables(rows)["pairwise-agreement"], "x", "y")
    assert agreed["Krippendorff's alpha"].mean == pytest.approx(
        krippendorff.alpha(np.array(numbers), level_of_measurement="ordinal"), abs=1e-6
    )
    assert (agreed["people"], agreed["equal"].mean, agreed["equal"].n) == (2, pytest.approx(0.6), 5)


# --- the table ------------------------------------------------------------------------------------------------------------


def test_a_csv_and_the_same_as_json_lines_give_the_same(tmp_path: Path) -> None:
    rows = graded(3, items=5)
    text = "".join(f"{r.item},{r.a},{r.b},{r.annotator},,,{r.degree:g},{r.order}\n" for r in rows)
    (tmp_path / "c.csv").write_text(HEAD + text)
    lines = (orjson.dumps(r.model_dump(exclude_none=True, exclude_defaults=True)) for r in rows)
    (tmp_path / "c.jsonl").write_bytes(b"\n".join(lines))
    assert read_comparisons([tmp_path / "c.csv"]) == read_comparisons([tmp_path / "c.jsonl"]) == rows
    printed = call(tmp_path / "c.csv", "--json", "--out", tmp_path / "out")
    assert printed == call(tmp_path / "c.jsonl", "--json")
    found = json.loads(printed)["tables"]
    assert [table["title"] for table in found][:2] == ["preferred (all pairs)", "preferred (pair by pair)"]
    assert json.loads((tmp_path / "out" / "tables" / "pairwise.json").read_text()) == json.loads(printed)
    assert {path.name for path in (tmp_path / "out" / "tables").glob("*.csv")} == {
        f"pairwise-{name}.csv" for name in ("win_rates", "pairs", "position", "agreement")
    }


def test_every_question_has_tables_of_its_own_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(
        "item,a,b,annotator,question,verdict\n"
        "1,gpt,ours,anna,Who shows more empathy?,a\n"
        "1,gpt,ours,anna,谁更安全,b\n"
        "1,gpt,ours,anna,closer_to_human,tie\n"
    )
    found = {table["key"]: table for table in json.loads(call(tmp_path / "c.csv", "--json"))["tables"]}
    assert {key: table["title"] for key, table in found.items() if "win_rates" in key} == {
        "pairwise-win_rates-Who-shows-more-empathy": "Who shows more empathy? (all pairs)",
        "pairwise-win_rates-question": "谁更安全 (all pairs)",
        "pairwise-win_rates-closer_to_human": "Closer to a human (all pairs)",
    }
    assert found["pairwise-win_rates-question"]["rows"][0][0] == "ours"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1,x,y,anna,q,,nan,", r"c\.csv:2: degree: a number is expected"),
        ("1,x,x,anna,q,a,,", r"c\.csv:2: .*a and b: both are 'x'"),
        ("1,x,y,anna,q,,,", r"c\.csv:2: .*verdict and degree: neither is given"),
        ("1,x,y,anna,q,a,-2,", r"c\.csv:2: .*verdict is a, degree -2 \(above 0: a is better\)"),
        ("1,x,y,anna,q,a,,\n1,y,x,anna,q,b,,", r"c\.csv:3: anna chose between y and x on item 1 twice .*:2\); .*order"),
        ("1,x,y,anna,q,a,,ab\n1,y,x,anna,q,b,,ba", r"c\.csv:3: anna chose .* twice \(first at .*:2\)$"),
        ("1,x,y,anna,q,,1,\n2,x,y,anna,q,a,,", r"c\.csv:3: degree: on question 'q' all rows have one or none has"),
        ("1,x,y,anna,q,a,,\n2,x,y,anna,q,a,0.5,", r"c\.csv:3: degree: on question 'q'"),
        ("", r"c\.csv is empty \(columns: item, a, b, annotator"),
    ],
)
def test_bad_rows_are_named_by_file_line_and_field(line: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(HEAD + line + "\n")
    with pytest.raises(UserError, match=problem):
        call(tmp_path / "c.csv")


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("item,a,b,verdict\n1,x,y,a\n")
    with pytest.raises(UserError, match=r"c\.csv:1: no column 'annotator'"):
        call(tmp_path / "c.csv")
    (tmp_path / "c.txt").write_text("")
    with pytest.raises(UserError, match=r"c\.txt: choices between two systems are read from \.jsonl or \.csv"):
        call(tmp_path / "c.txt")
    (tmp_path / "c.jsonl").write_text('{"item": "1", "a": "x", "b": "y", "annotator": "anna", "verdict": "a", "winner": "x"}\n')
    with pytest.raises(UserError, match=r"c\.jsonl:1: winner: unknown field"):
        call(tmp_path / "c.jsonl")
    with pytest.raises(UserError, match="--mode: unknown mode 'both'"):
        (tmp_path / "d.csv").write_text("item,a,b,annotator,verdict\n1,x,y,anna,a\n")
        call(tmp_path / "d.csv", "--mode", "both")
