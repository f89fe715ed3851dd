"""FEEL's second round: who scores again, joint review, final means, and the way through the sheets."""

import json
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.files import write_jsonl
from core.records import Dialogue, HumanScore, Turn
from data_prep.__main__ import app
from data_prep.scores.annotation import ACCEPTED
from data_prep.scores.annotator_agreement import agreement
from data_prep.scores.rescoring import contested, finish, who_again
from tests.files_of_rows import read_sheet, write_sheet
from tests.verbs import printed


def score(dialogue: str, who: str, value: float, dimension: str = "safety") -> HumanScore:
    return HumanScore(dialogue_id=dialogue, language="en", annotator=who, rubric="feel", dimension=dimension, value=value)


def scores(dialogue: str, values: str, dimension: str = "safety") -> list[HumanScore]:
    return [score(dialogue, who, float(v), dimension) for who, v in zip("abcdef", values.split(), strict=False)]


@pytest.mark.parametrize(
    ("values", "again"),
    [
        ("2 2.5 3", ""),  # within a point: they stand
        ("0.5 2 3", "a"),  # a is alone; b and c are a point apart, no more
        ("0.5 2 3 2.5", "a"),
        ("1 2 3", "ac"),  # as the condition is written: 1 against 2 and 3, and 3 against 1 and 2
        ("0 1.5 3", None),  # nobody's others lie within a point
        ("0 0 3 3", None),
        ("0 3", None),  # of two, nobody stands alone
        ("0 1", ""),
        ("2", ""),
        ("0 1 1 1.5 1 1", "ad"),  # 0 and 1.5; without either, the others are within a point
    ],
)
def test_who_scores_again(values: str, again: str | None) -> None:
    given = {who: float(v) for who, v in zip("abcdef", values.split(), strict=False)}
    wanted = None if again is None else tuple(again)
    for order in list(permutations(given.items()))[:6]:
        assert who_again(dict(order)) == wanted


@given(st.lists(st.integers(0, 6).map(lambda n: n / 2), min_size=1, max_size=6))
def test_the_condition_as_the_paper_writes_it(values: list[float]) -> None:
    names = "abcdef"[: len(values)]
    found = who_again(dict(zip(names, values, strict=True)))
    meets = [
        n
        for k, n in enumerate(names)
        if max((abs(values[k] - v) for v in values), default=0) > 1
        and len(others := values[:k] + values[k + 1 :]) > 1
        and max(others) - min(others) <= 1
    ]
    wide = max(values) - min(values) > 1
    assert found == (tuple(meets) if meets or not wide else None)


@pytest.mark.parametrize(
    ("values", "again"),
    [
        ("1 2 3", "abc"),  # native: a and c
        ("0 2 3", "abc"),  # native: a
        ("0 1.5 3", "abc"),  # native: joint review
        ("3 1 2", "abc"),
        ("2 2.5 3", ""),
        ("0.5 2 2.5", "a"),
        ("3 0.5 0.5", "a"),
        ("2 3 1.5", "b"),
        ("0 0.6 1.2", "a"),  # both as far from the middle: the first
        ("1.2 0.6 0", "a"),
        ("1.2 0.1 1.1", "b"),  # 1.1 − 0.1 is less than 1 in floats, and 1.2 − 1.1 is not a point
        ("1.1 0.1 2.1", "abc"),
    ],
)
def test_who_scores_again_by_the_authors_rule(values: str, again: str) -> None:
    given = {who: float(v) for who, v in zip("abc", values.split(), strict=True)}
    assert who_again(given, "paper") == tuple(again)
    assert who_again(dict(reversed(given.items())), "paper") == tuple(again)


def test_paper_mode_takes_three_annotators_and_reviews_nothing_jointly() -> None:
    first = [*scores("d1", "1 2 3"), *scores("d2", "0 1.5 3")]
    asked = contested(first, "paper")
    assert not asked.joint and asked.by_annotator == {who: {"d1": ("safety",), "d2": ("safety",)} for who in "abc"}
    some = [score("d1", who, 2) for who in "abc"]
    final = finish(first, some, [], "paper")
    assert [(s.dialogue_id, s.value) for s in final.accepted] == [("d1", 2)] and final.waiting == [("d2", "safety")]
    with pytest.raises(UserError, match="dialogue d3, safety: paper mode compares three annotators, .* not 2: use --mode"):
        contested(scores("d3", "0 3"), "paper")


FIRST = [*scores("d1", "0.5 2 3"), *scores("d2", "0 1.5 3"), *scores("d3", "2 2 2.5"), *scores("d1", "1 1 1", "coherence")]


def test_final_means_by_hand() -> None:
    asked = contested(FIRST)
    assert asked.by_annotator == {"a": {"d1": ("safety",)}} and asked.joint == {"d2": ("safety",)}
    waiting = finish(FIRST, [], [])
    assert waiting.waiting == [("d1", "safety"), ("d2", "safety")] and waiting.scores == FIRST
    assert [(s.dialogue_id, s.value) for s in waiting.accepted] == [("d3", pytest.approx(6.5 / 3)), ("d1", 1)]
    final = finish(FIRST, [score("d1", "a", 1.5)], [score("d2", "joint", 2)])
    means = {(s.dialogue_id, s.dimension): s.value for s in final.accepted}
    assert means[("d1", "safety")] == pytest.approx(6.5 / 3) and means[("d2", "safety")] == 2
    assert {s.annotator for s in final.accepted} == {ACCEPTED} and not final.waiting
    assert [s.value for s in final.scores if s.dialogue_id == "d2"] == [2, 2, 2]
    assert final.still_apart == [("d1", "safety")]  # 1.5 against 3: there is no third round


def test_agreement_in_halves() -> None:
    """0.5 and 1.5 are a point apart and near, 0 and 1.5 are not."""
    pairs = [*scores("d1", "0.5 1.5"), *scores("d2", "0 1.5"), *scores("d3", "3 3")]
    (row,) = agreement(pairs)
    assert row.near.mean == pytest.approx(2 / 3, abs=1e-6) and row.equal.mean == pytest.approx(1 / 3, abs=1e-6)


call = partial(printed, app, "sheet")


@pytest.mark.slow
def test_through_the_sheets_and_back(tmp_path: Path) -> None:
    turns = (Turn(role="seeker", text="=help"), Turn(role="supporter", text="yes"))
    ids = ("d1", "d2", "d3")
    write_jsonl(tmp_path / "d.jsonl", [Dialogue(id=i, language="en", source="s", supporter="m", turns=turns) for i in ids])
    write_jsonl(tmp_path / "s.jsonl", FIRST)
    base = ("--dialogues", tmp_path / "d.jsonl", "--gold", tmp_path / "s.jsonl")
    call("export", *base, "--out", tmp_path / "x")
    names = {path.name for path in (tmp_path / "x").iterdir()}
    assert names == {"a.csv", "a.xlsx", "joint.csv", "joint.xlsx", "manifest.json"}

    def fill(name: str, value: str) -> None:
        path = tmp_path / "x" / f"{name}.csv"
        columns, rows = read_sheet(path)
        asked = [row for row in rows if row["rules"]]
        assert [row["row"].partition(" score ")[2] for row in asked] == ["safety"]
        asked[0]["score"] = value
        write_sheet(path, columns, rows)

    fill("a", "1.7")
    sheets = (tmp_path / "x" / "a.csv", tmp_path / "x" / "joint.csv")
    with pytest.raises(UserError, match=r"a\.csv:4, column score: '1\.7' is not a whole or half number from 0 to 3 \(safety\)"):
        call("import", *base, sheets[0], "--out", tmp_path / "y")
    fill("a", "1.5")
    fill("joint", "2")
    with pytest.raises(UserError, match="may hold answers and would be overwritten"):
        call("export", *base, "--out", tmp_path / "x")
    (tmp_path / "x" / "eve.csv").write_bytes((tmp_path / "x" / "a.csv").read_bytes())
    for more, message in [
        ((tmp_path / "x" / "eve.csv",), "nobody named 'eve' was asked again: known: a, joint"),
        (sheets[:1], "the sheet of a is given twice"),
        (base[2:], "an annotator scored a dialogue's dimension twice, in two files"),
        (("--rubric", "epitome"), r"s\.jsonl: a on d1 / safety: rubric: 'feel', but --rubric is epitome"),
    ]:
        with pytest.raises(UserError, match=message):
            call("import", *base, *sheets, *more, "--out", tmp_path / "y")
    shown = call("import", *base, *sheets, "--out", tmp_path / "y")
    assert "before the second round" in shown and "after the second round" in shown and "still more than a point" in shown
    accepted = [json.loads(line) for line in (tmp_path / "y" / "accepted.jsonl").read_text().splitlines()]
    assert {row["dialogue_id"] + row["dimension"]: round(row["value"], 3) for row in accepted} == {
        "d1safety": 2.167,
        "d2safety": 2,
        "d3safety": 2.167,
        "d1coherence": 1,
    }
    call("export", *base, "--out", tmp_path / "p", "--mode", "paper")  # d1 and d2 lie a point or more apart throughout
    assert {path.name for path in (tmp_path / "p").glob("*.csv")} == {"a.csv", "b.csv", "c.csv"}
    assert json.loads((tmp_path / "p" / "manifest.json").read_text())["settings"]["mode"] == "paper"
    changes: list[tuple[dict[str, Any], str]] = [
        ({"value": 1.3}, "neither a whole nor a half number"),
        ({"annotator": "joint"}, "kept for the joint review"),
        ({"annotator": "../x"}, "not usable as a file name"),
        ({"turn": 0}, "only scores of whole dialogues"),
    ]
    for change, message in changes:
        write_jsonl(tmp_path / "s.jsonl", [FIRST[0].model_copy(update=change), *FIRST[1:]])
        with pytest.raises(UserError, match=message):
            call("export", *base, "--out", tmp_path / "z")
