"""People score dialogues: blind sheets, the second review, and agreement against scikit-learn and krippendorff."""

import json
import random
import re
from collections import Counter
from functools import partial
from pathlib import Path

import krippendorff
import numpy as np
import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore, RoleCard, Turn
from core.rubrics import load_rubric
from data_prep.__main__ import app
from data_prep.scores.annotation import ScoreSheets, assign, item_of, settle, to_review
from data_prep.scores.annotator_agreement import agreement
from tests.files_of_rows import read_sheet, write_sheet
from tests.verbs import printed

RUBRIC = load_rubric("esc_eval_human")
KEYS = list(RUBRIC.dimensions)


def dialogue(n: int, language: str = "en", answered: bool = True) -> Dialogue:
    turns = [Turn(role="seeker", text=f"=1+{n}\nI lost my cat."), Turn(role="supporter", text=f"I am sorry, {n}.")]
    return Dialogue(
        id=f"secret-model/{language}/{n}",
        language=language,
        source="test",
        supporter="secret-model",
        simulator="secret-seeker",
        turns=tuple(turns if answered else turns[:1]),
    )


def score(n: int, who: str, value: float, key: str = "empathy", language: str = "en") -> HumanScore:
    return HumanScore(
        dialogue_id=dialogue(n, language).id, language=language, annotator=who, rubric=RUBRIC.name, dimension=key, value=value
    )


# --- sheets -----------------------------------------------------------------------------------------------------------------


command = partial(printed, app, "sheet")


def refused(*arguments: object) -> str:
    with pytest.raises(UserError) as error:
        command(*arguments)
    return str(error.value)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "d.jsonl", [dialogue(n, language) for language in ("zh", "en") for n in range(3)])
    command("export", "--dialogues", tmp_path / "d.jsonl", "--annotator", "ann", "--annotator", "bo", "--out", tmp_path)
    return tmp_path


def rows_of(path: Path) -> list[dict[str, str]]:
    return read_sheet(path)[1]


def fill(path: Path, values: dict[str, dict[str, str]]) -> None:
    """Write answers {item: {dimension: score}} into a CSV sheet; `text` stands for what the row of empathy is about."""
    columns, rows = read_sheet(path)
    for row in rows:
        own, (_, kind, dimension) = values.get(row["item"], {}), row["row"].partition(" score ")
        if kind and dimension in own:
            row["score"] = own[dimension]
        if dimension == "empathy":
            row.update({column: text for column, text in own.items() if column in row})
    write_sheet(path, columns, rows)


def same(value: int) -> dict[str, dict[str, str]]:
    """The same score in every cell of every dialogue."""
    return {item_of(dialogue(n, language)): dict.fromkeys(KEYS, str(value)) for language in ("zh", "en") for n in range(3)}


@pytest.mark.slow
def test_sheets_are_blind_complete_and_in_orders_of_their_own(files: Path) -> None:
    orders = []
    for name in ("ann", "bo"):
        text = (files / f"{name}.csv").read_text("utf-8-sig")
        rows = rows_of(files / f"{name}.csv")
        assert "secret" not in text and "I am sorry, 2." in text
        items = list(dict.fromkeys(row["item"] for row in rows))
        assert [row["language"] for row in rows] == ["en"] * 3 * 9 + ["zh"] * 3 * 9  # two turns and seven dimensions each
        assert [row["who"] for row in rows[:4]] == ["1 Seeker", "2 Supporter", "Fluency", "Expression"]
        assert rows[2]["rules"].splitlines()[4] == f"4: {RUBRIC.texts('fluency', 'en')[4]}"
        assert all(row["score"] == "" for row in rows)
        orders.append(items)
        book = openpyxl.load_workbook(files / f"{name}.xlsx")
        assert [row[0] for row in book["dialogues"].iter_rows(min_row=2, values_only=True)] == [row["row"] for row in rows]
        (rule,) = {rule.formula1 for rule in book["dialogues"].data_validations.dataValidation}
        assert rule == "rules!$A$2:$A$6" and str(book["dialogues"].data_validations.dataValidation[0].sqref) == "G4:G10"
        assert [row[0] for row in book["rules"].iter_rows(min_row=2, max_row=6, values_only=True)] == list("01234")
    assert orders[0] != orders[1] and set(orders[0]) == set(orders[1])
    guide = (files / "guide.txt").read_text()
    for language in ("en", "zh"):
        for dimension in RUBRIC.dimensions.values():
            assert all(text in guide for text in dimension.levels[language].values())


@pytest.mark.slow
def test_export_and_import_round_trip(files: Path) -> None:
    before = (files / "ann.csv").read_bytes()
    fill(files / "ann.csv", same(3))
    one = item_of(dialogue(1))
    answers = same(4) | {one: dict.fromkeys(KEYS, "4") | {"empathy": "1", "skill": "1", "note": "cold"}}
    fill(files / "bo.csv", answers)
    assert before != (files / "ann.csv").read_bytes()
    call = ["import", "--dialogues", files / "d.jsonl", files / "ann.csv", files / "bo.csv", "--out", files]
    assert "waits for a reviewer 2" in command(*call)
    scores = read_jsonl(files / "scores.jsonl", HumanScore, "scores")
    assert len(scores) == 2 * 6 * 7 and {s.annotator for s in scores} == {"ann", "bo"}
    review = rows_of(files / "review.csv")
    asked = [(row["row"], row["given"]) for row in review if row["rules"]]
    assert asked == [(f"{one} score empathy", "1 / 3"), (f"{one} score skill", "1 / 3")] and len(review) == 2 + 2
    fill(files / "review.csv", {one: {"empathy": "2", "skill": "0"}})
    command(*call, files / "review.csv")
    accepted = {(s.dialogue_id, s.dimension): s for s in read_jsonl(files / "accepted.jsonl", HumanScore, "scores")}
    assert len(accepted) == 6 * 7 and {s.annotator for s in accepted.values()} == {"accepted"}
    assert accepted[dialogue(1).id, "empathy"].value == 2 and accepted[dialogue(1).id, "skill"].value == 0
    assert accepted[dialogue(1).id, "fluency"].value == 3.5 and accepted[dialogue(1, "zh").id, "empathy"].value == 3.5
    figures = json.loads((files / "manifest.json").read_text())["figures"]["agreement"]
    row = next(r for r in figures if (r["language"], r["dimension"]) == ("en", "empathy"))
    assert row["n"] == 3 and row["near"]["mean"] == pytest.approx(2 / 3, abs=1e-6)


@pytest.mark.slow
def test_in_paper_mode_a_reviewer_goes_over_everything(files: Path) -> None:
    fill(files / "ann.csv", same(3))
    call = ["import", "--dialogues", files / "d.jsonl", files / "ann.csv", "--out", files, "--mode", "paper"]
    assert "agreement is not defined" in command(*call)
    assert len({row["item"] for row in rows_of(files / "review.csv")}) == 6 and not (files / "accepted.jsonl").read_bytes()
    fill(files / "review.csv", same(1))
    command(*call, files / "review.csv")
    assert {s.value for s in read_jsonl(files / "accepted.jsonl", HumanScore, "scores")} == {1}


def test_a_sheet_in_work_is_not_overwritten_and_a_row_without_scores_is_counted(files: Path) -> None:
    fill(files / "ann.csv", {item_of(dialogue(0)): dict.fromkeys(KEYS, "2")})
    call = ["--dialogues", files / "d.jsonl", "--out", files]
    assert "ann.csv may hold answers" in refused("export", *call, "--annotator", "ann", "--each", "1")
    assert "no score given yet 5" in command("import", *call, files / "ann.csv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "text", "problem"),
    [
        ("empathy", "5", r"ann\.csv:\d+, column score: '5' is not a whole number from 0 to 4 \(empathy\)"),
        ("empathy", "2.5", r"column score: '2\.5' is not a whole number"),
        ("empathy", "", r"ann\.csv:\d+: no score on empathy, while others of dialogue"),
        ("text", "edited", r"column text: not the text of row"),
        ("row", "nobody", r"column row: unknown row 'nobody'"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(files: Path, column: str, text: str, problem: str) -> None:
    one = item_of(dialogue(1))
    fill(files / "ann.csv", {one: dict.fromkeys(KEYS, "1") | {column: text}})
    assert re.search(problem, refused("import", "--dialogues", files / "d.jsonl", files / "ann.csv", "--out", files))


def test_one_persons_sheet_under_two_names_is_refused(files: Path) -> None:
    fill(files / "ann.csv", same(3))
    (files / "bo.csv").write_bytes((files / "ann.csv").read_bytes())
    call = ["import", "--dialogues", files / "d.jsonl", "--out", files, files / "ann.csv"]
    assert "are identical files" in refused(*call, files / "bo.csv")
    assert "ann is given twice" in refused(*call, files / "ann.xlsx")


@pytest.mark.slow
def test_feels_sheets_take_halves_as_its_criteria_ask_for(files: Path) -> None:
    call = ["--dialogues", files / "d.jsonl", "--out", files / "feel", "--rubric", "feel"]
    command("export", *call, "--annotator", "cy", "--each", "1")
    assert "1.5" in (files / "feel" / "guide.txt").read_text()
    sheet, item = files / "feel" / "cy.csv", item_of(dialogue(0))
    fill(sheet, {item: dict.fromkeys(load_rubric("feel").dimensions, "1.5")})
    command("import", *call, sheet)
    assert {score.value for score in read_jsonl(files / "feel" / "scores.jsonl", HumanScore, "scores")} == {1.5}
    fill(sheet, {item: {"safety": "1.7"}})
    assert "'1.7' is not a whole or half number from 0 to 3 (safety)" in refused("import", *call, sheet)


def test_sheets_of_played_seekers_show_the_card_and_tell_raters_to_judge_the_seeker(tmp_path: Path) -> None:
    card = RoleCard(id="c1", language="en", age="old", problem="=The cat is gone.", source="test", card_method="written")
    write_jsonl(tmp_path / "c.jsonl", [card])
    write_jsonl(tmp_path / "d.jsonl", [dialogue(0).model_copy(update={"card_id": "c1"})])
    call = ["--dialogues", tmp_path / "d.jsonl", "--out", tmp_path / "x", "--rubric", "role_play"]
    named = ["--annotator", "ann", "--each", "1"]
    assert "rates the seeker against who it plays: give --cards" in refused("export", *call, *named)
    call += ["--cards", tmp_path / "c.jsonl"]
    command("export", *call, *named)
    first = rows_of(tmp_path / "x" / "ann.csv")[0]
    assert (first["who"], first["text"]) == ("Who the seeker is meant to be", "Age: old\nProblem: =The cat is gone.")
    guide = (tmp_path / "x" / "guide.txt").read_text()
    assert "Judge how well the seeker plays" in guide and "Judge the supporter" not in guide
    fill(tmp_path / "x" / "ann.csv", {item_of(dialogue(0)): dict.fromkeys(load_rubric("role_play").dimensions, "2")})
    command("import", *call, tmp_path / "x" / "ann.csv")
    other = card.model_copy(update={"problem": "The dog is gone."})
    write_jsonl(tmp_path / "c.jsonl", [other])
    assert "not the text of row" in refused("import", *call, tmp_path / "x" / "ann.csv")
    write_jsonl(tmp_path / "c.jsonl", [card.model_copy(update={"id": "c2"})])
    assert "card 'c1' is not among those given (--cards)" in refused("export", *call, *named)
    assert "rates the supporter, who knows neither" in refused("export", *call[:4], "--cards", tmp_path / "c.jsonl", *named)


# --- who scores what --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 25), st.integers(1, 6), st.data())
def test_every_dialogue_goes_to_as_many_people_as_wanted_and_loads_are_fair(
    count: int, people: int, data: st.DataObject
) -> None:
    each = data.draw(st.integers(1, people))
    names = [f"p{i}" for i in range(people)]
    sheets = assign([dialogue(n) for n in range(count)], names, each, seed=1)
    counted = Counter(d.id for own in sheets.values() for d in own)
    assert len(counted) == count and set(counted.values()) == {each}
    assert all(len({d.id for d in own}) == len(own) for own in sheets.values())
    loads = [len(own) for own in sheets.values()]
    assert max(loads) - min(loads) <= each
    assert assign([dialogue(n) for n in range(count)], names, each, seed=1) == sheets


@pytest.mark.parametrize(
    ("names", "each", "problem"), [(["a", "A"], 1, "twice"), (["../a"], 1, "file name"), (["a"], 2, "are 1")]
)
def test_impossible_assignments_are_refused(names: list[str], each: int, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        assign([dialogue(0)], names, each, 0)


# --- the second review ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "asked"), [([3], False), ([3, 3], False), ([2, 3], False), ([1, 3], True), ([2, 3, 4], True), ([0, 4], True)]
)
def test_more_than_one_point_apart_needs_a_reviewer(values: list[int], asked: bool) -> None:
    scores = [score(0, f"p{i}", value) for i, value in enumerate(values)]
    waiting = to_review(scores, RUBRIC, "native")
    assert waiting == ({dialogue(0).id: ("empathy",)} if asked else {})
    settled = settle(scores, [], waiting)
    assert settled.waiting == waiting
    assert [s.value for s in settled.accepted] == ([] if asked else [sum(values) / len(values)])
    decided = settle(scores, [score(0, "r", 2)], to_review(scores, RUBRIC, "paper"))
    assert [s.value for s in decided.accepted] == [2] and not decided.waiting


def test_the_order_of_the_reviewers_sheet_does_not_tell_the_supporter(tmp_path: Path) -> None:
    given = [dialogue(n, language) for language in ("en", "zh") for n in range(12)]  # as a run leaves them: sorted
    asked: dict[str, tuple[str, ...]] = {d.id: ("empathy",) for d in given}
    orders = []
    for own in (given, given[::-1]):
        ScoreSheets(own, RUBRIC).write_review(tmp_path, asked, [])
        orders.append(list(dict.fromkeys(row["item"] for row in rows_of(tmp_path / "review.csv"))))
    assert orders[0] == orders[1], "what comes first in the records does not matter"
    assert orders[0] != [item_of(d) for d in given] and set(orders[0][:12]) == {item_of(d) for d in given[:12]}


# --- agreement --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_agreement_against_the_libraries(seed: int) -> None:
    """Three people with gaps: alpha by the authors' library, kappa by scikit-learn over the shared dialogues of each pair."""
    rng = random.Random(seed)
    names, count = ("a", "b", "c"), 40
    table = np.full((3, count), np.nan)
    for n in range(count):
        truth = rng.randint(0, 4)
        for person in rng.sample(range(3), rng.choice([1, 2, 2, 3])):
            table[person, n] = min(4, max(0, truth + rng.choice([-1, 0, 0, 1])))
    given = [score(n, names[i], table[i, n]) for i in range(3) for n in range(count) if not np.isnan(table[i, n])]
    (row,) = agreement(given, [RUBRIC], seed=0)
    alpha = krippendorff.alpha(table, level_of_measurement="ordinal", value_domain=[0, 1, 2, 3, 4])
    assert row.alpha.mean == pytest.approx(alpha, abs=1e-6)
    kappas, shared, equal = [], [], 0
    for i, j in ((0, 1), (0, 2), (1, 2)):
        both = ~np.isnan(table[i]) & ~np.isnan(table[j])
        kappas.append(cohen_kappa_score(table[i, both], table[j, both], labels=range(5), weights="quadratic"))
        shared.append(int(both.sum()))
        equal += int((table[i, both] == table[j, both]).sum())
    assert row.kappa.mean == pytest.approx(np.average(kappas, weights=shared), abs=1e-6)
    assert row.equal.mean == pytest.approx(equal / sum(shared), abs=1e-6)
    assert (row.people, row.pairs, row.n) == (3, 3, int(((~np.isnan(table)).sum(0) > 1).sum()))
    assert row.alpha.low is not None and row.alpha.high is not None and row.alpha.low < alpha < row.alpha.high


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_agreement_is_symmetric_bounded_and_undefined_without_variation(pairs: list[tuple[int, int]]) -> None:
    def measured(flip: bool) -> tuple[float | None, ...]:
        scores = [score(n, "ab"[side ^ flip], pair[side]) for n, pair in enumerate(pairs) for side in (0, 1)]
        (row,) = agreement(scores, [RUBRIC], seed=0)
        return row.alpha.mean, row.kappa.mean, row.equal.mean, row.near.mean

    alpha, kappa, equal, near = measured(False)
    assert measured(True) == pytest.approx((alpha, kappa, equal, near))
    if len({value for pair in pairs for value in pair}) == 1:
        assert alpha is None and kappa is None and equal == near == 1
    elif all(a == b for a, b in pairs):
        assert alpha == kappa == equal == 1
    assert equal is not None and near is not None and 0 <= equal <= near <= 1


def test_languages_are_apart_and_nobody_shared_is_no_row() -> None:
    scores = [score(0, "a", 1), score(0, "b", 2), score(0, "a", 1, language="zh"), score(1, "b", 1, language="zh")]
    (row,) = agreement(scores, [RUBRIC], seed=0)
    assert (row.language, row.n, row.alpha.n) == ("en", 1, 1)
