"""Python with objects of one's own: cards as dicts or frames, dialogues as dicts, a rubric object; results in three lines."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from core.errors import UserError
from core.files import CONFIGS
from core.records import Message
from core.rubrics import Rubric, load_rubric
from data_prep.cards import bundled_cards, load_cards
from evalsuite import score, simulate
from evalsuite.given import given_people, with_rubric
from tests.endpoint import Answer, Endpoint
from tests.test_docs import blocks

pd: Any = pytest.importorskip("pandas")
ROWS: list[dict[str, Any]] = [{"problem": "She cannot sleep.", "age": 34}, {"problem": "He lost his job.", "age": None}]
DIMENSION = {"label": {"en": "Warmth"}, "about": {"en": "Is it warm?"}, "levels": {"en": {0: "no", 2: "yes"}}}
RUBRIC: dict[str, Any] = {
    **{"name": "mine", "source": "own", "languages": ["en"], "scale": {"min": 0, "max": 2}, "dimensions": {"warmth": DIMENSION}}
}


def seeker(messages: list[Message]) -> str:
    return "I lie awake."


def supporter(messages: list[Message]) -> str:
    return "Since when?"


def judge(messages: list[Message]) -> str:
    return "2"


@pytest.mark.parametrize("make", [list, pd.DataFrame, pl.DataFrame], ids=["dicts", "pandas", "polars"])
def test_dicts_and_frames_are_cards(make: Any) -> None:
    results = simulate(make(ROWS), supporter=supporter, seeker=seeker, languages=["en"], exchanges=1, quiet=True)
    assert len(results.dialogues) == 2
    cards = given_people(make(ROWS), False, {"languages": ["en"]})
    assert [(card.problem, card.age) for card in cards] == [("She cannot sleep.", "34"), ("He lost his job.", "")]


def test_numbers_of_numpy_and_dates_are_text() -> None:
    row = {"problem": "x", "age": np.int64(34), "source_id": pd.Timestamp("2026-05-01"), "category": pd.NaT}
    (card,) = given_people([row], False, {"languages": ["en"]})
    assert (card.age, card.source_id, card.category) == ("34", "2026-05-01T00:00:00", None)


def test_one_dict_is_a_card_and_nothing_is_none() -> None:
    assert [card.problem for card in given_people(ROWS[0], False, {"languages": None})] == [ROWS[0]["problem"]]
    with pytest.raises(UserError, match="a list of records or dicts, a data frame or a file is needed, not NoneType"):
        given_people(None, False, {})


def test_records_and_dicts_may_be_mixed_in_their_order() -> None:
    known = load_cards(bundled_cards("en"))[:1]
    assert [card.problem for card in given_people([ROWS[0], *known, ROWS[1]], False, {"languages": ["en"]})] == [
        *("She cannot sleep.", known[0].problem, "He lost his job.")
    ]


def test_every_fault_of_dicts_is_told_with_position_and_field() -> None:
    rows = [{"problem": "She cannot sleep.", "Alter": 3}, {"problem": ""}, {"problem": "x", "quality": "good"}, "a card"]
    with pytest.raises(UserError) as caught:
        simulate(rows, supporter=supporter, seeker=seeker, quiet=True)
    told = str(caught.value).splitlines()
    starts = ("cards[3]: ", "cards: unknown column 'Alter'", "cards[1], column problem: is ", "cards[2], column quality: ")
    assert [line[: len(start)] for line, start in zip(told, starts, strict=True)] == list(starts)
    with pytest.raises(UserError) as caught:
        score([{"id": "a"}, {"id": "b", "turns": 3}], judge=judge, quiet=True)
    places = [line.partition(": ")[0] for line in str(caught.value).splitlines()]
    assert places == ["dialogues[0]", "dialogues[0]", "dialogues[1]", "dialogues[1]"]
    with pytest.raises(UserError, match="^cards: none given$"):
        simulate([], supporter=supporter, seeker=seeker)
    with pytest.raises(UserError, match="^dialogues: none given$"):
        score([], judge=judge)
    with pytest.raises(UserError, match=r"^profiles\[0\]: .*language"):
        simulate([{"id": "a"}], supporter=supporter, seeker=seeker, framework="emoharbor", quiet=True)


@pytest.mark.parametrize("rubric", [RUBRIC, Rubric.model_validate(RUBRIC)], ids=["dict", "object"])
def test_a_rubric_is_an_object_or_its_fields(rubric: Any, tmp_path: Path) -> None:
    models: dict[str, Any] = {"supporter": supporter, "seeker": seeker, "judge": judge}
    results = simulate(ROWS, **models, rubric=rubric, languages=["en"], exchanges=1, quiet=True, out=tmp_path)
    assert results.rubric == Rubric.model_validate(RUBRIC)
    assert [one.value for one in results.judgements] == [2, 2]
    with pytest.raises(UserError, match=r"^rubric: scale\.max"):
        score(results, judge={"other": judge}, rubric=RUBRIC | {"scale": {"min": 0}}, quiet=True)


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "rubrics").glob("*.yaml")))
def test_every_bundled_rubric_survives_being_handed_over(name: str, tmp_path: Path) -> None:
    rubric = load_rubric(name)
    again = load_rubric(with_rubric({"rubric": rubric}, tmp_path)["rubric"])
    assert again == rubric.model_copy(update={"example": again.example})


def test_results_say_in_three_lines_what_ran_what_came_out_and_where(tmp_path: Path) -> None:
    how: dict[str, Any] = {"seeker": seeker, "rubric": RUBRIC, "languages": ["en"], "exchanges": 1, "quiet": True}
    kept = simulate(ROWS, supporter={"a": supporter, "b": supporter}, judge=judge, out=tmp_path / "r", **how)
    assert repr(kept).splitlines() == [
        "dialogues: 4 of a, b (en)",
        "average on 0–100 (mine): a 100.0, b 100.0",
        str(tmp_path / "r"),
    ]
    held = simulate(ROWS, supporter={"a": supporter}, **how)
    assert repr(held).splitlines()[1:] == ["not scored", "in memory: `out=FOLDER` keeps it"]


def test_chats_as_dicts_are_scored_as_records_are() -> None:
    chats = [{"id": "a", "messages": [{"role": "user", "content": "I lie awake."}, {"role": "assistant", "content": "Why?"}]}]
    results = score(chats, judge=judge, rubric=RUBRIC, languages=["en"], quiet=True)
    turns = [(turn.role, turn.text) for turn in results.dialogues[0].turns]
    assert turns == [("seeker", "I lie awake."), ("supporter", "Why?")]
    assert list(score(results.dialogues, judge=judge, rubric=RUBRIC, quiet=True).judgements) == list(results.judgements)
    with pytest.raises(UserError, match=r"^dialogues\[1\]: message 0: role: 'narrator' is unknown"):
        score([*chats, {"messages": [{"role": "narrator", "content": "x"}]}], judge=judge, languages=["en"], quiet=True)


def test_the_ten_lines_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-test")
    shown = blocks((Path(__file__).parents[2] / "docs" / "python.md").read_text(), "python")[0]
    with Endpoint(lambda body, count: Answer("Warmth: 9"), ("gpt-4.1",)) as endpoint:
        names: dict[str, Any] = {"my_model": supporter}
        exec(re.sub(r"https://[^#\"]*", endpoint.url, shown), names)
    assert repr(names["results"]).splitlines()[1:] == ["average on 0–100 (mine): supporter 88.9", "runs/mine"]


def test_every_fault_of_a_rubric_is_told() -> None:
    wrong = {"name": "x", "scale": {"min": 1}, "dimensions": {"a": "Is it warm?", "b": {"about": 3}}}
    with pytest.raises(UserError) as caught:
        simulate(ROWS, supporter=supporter, seeker=seeker, judge=judge, rubric=wrong, languages=["en"], quiet=True)
    assert str(caught.value).splitlines() == [
        "rubric: scale.max: Field required",
        "rubric: dimensions.b.about: expected fields, as in {name: value} (got '3')",
    ]


def test_a_files_own_language_is_played(tmp_path: Path) -> None:
    (tmp_path / "cards.csv").write_text("problem,language\nSie kann nicht schlafen.,de\n")
    results = simulate(tmp_path / "cards.csv", supporter=supporter, seeker=seeker, exchanges=1, quiet=True)
    assert [dialogue.language for dialogue in results.dialogues] == ["de"]
