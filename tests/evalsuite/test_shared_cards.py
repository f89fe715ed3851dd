"""One board over several runs: which of them compare, on which cards."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.errors import UserError
from core.files import write_jsonl
from core.records import HumanScore
from evalsuite.report.board import board
from evalsuite.runs.records import shared_cards
from evalsuite.statistics.comparison import RunRecords
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Endpoint
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric


def make_run(
    name: str, scores: dict[str, dict[str, int]], seeker: str = "s", cards: dict[str, str] | None = None
) -> RunRecords:
    """A run whose `scores` are supporter → card → score."""
    given = [(supporter, card, value) for supporter, of_cards in scores.items() for card, value in of_cards.items()]
    simulated: dict[str, Any] = {"framework": "esc_eval", "seeker": {"name": seeker}, "supporters": list(scores), "cards": name}
    return RunRecords(
        name=name,
        folder=Path(name),
        config={"simulate": simulated, "score": {"judge": {"name": "j"}}},
        rubric=make_rubric("warmth"),
        dialogues=[make_dialogue(f"{supporter}-{card}", supporter, card_id=card) for supporter, card, _ in given],
        judgements=[make_judgement(f"{supporter}-{card}", "warmth", value) for supporter, card, value in given],
        cards=cards or {card: card for _, card, _ in given},
    )


def averages(runs: list[RunRecords]) -> dict[str, tuple[float | None, int]]:
    """Supporter → its average (0–100) and number of dialogues on the board."""
    cells = [cell for cell in shared_cards(runs).tally.scores if cell.dimension == "average"]
    return {cell.supporter: (cell.estimate.mean, cell.estimate.n) for cell in cells}


def test_only_the_cards_that_all_runs_have_count() -> None:
    first = make_run("one", {"a": {"c1": 4, "c2": 0}})
    second = make_run("two", {"b": {"c1": 2, "c3": 4}})
    assert averages([first, second]) == {"a": (100.0, 1), "b": (50.0, 1)}
    together = shared_cards([first, second])
    assert together.shared == {"en": 1} and together.left_out == {"one": 1, "two": 1} and not together.apart


def test_a_card_of_the_same_id_with_other_contents_is_another_card() -> None:
    first = make_run("one", {"a": {"c1": 4, "c2": 1}})
    second = make_run("two", {"b": {"c1": 2, "c2": 1}}, cards={"c1": "rewritten", "c2": "c2"})
    assert averages([first, second]) == {"a": (25.0, 1), "b": (25.0, 1)}
    with pytest.raises(UserError, match="one, three: no card is in all of these runs: simulate them on the same cards"):
        shared_cards([first, make_run("three", {"b": {"c9": 2}})])


def test_a_run_that_was_made_otherwise_stands_apart_with_the_reason() -> None:
    runs = [
        make_run("one", {"a": {"c1": 4}}),
        make_run("two", {"b": {"c1": 2}}, seeker="t"),
        make_run("three", {"c": {"c1": 1}}),
    ]
    together = shared_cards(runs)
    assert together.apart == {"two": ['simulate.seeker.name: "s" → "t"']}
    assert averages(runs) == {"a": (100.0, 1), "c": (25.0, 1)}


def test_a_supporter_of_several_runs_is_named_by_its_run_unless_it_said_the_same() -> None:
    runs = [make_run("one", {"a": {"c1": 4}, "silent": {"c1": 1}}), make_run("two", {"a": {"c1": 2}, "silent": {"c1": 1}})]
    assert averages(runs) == {"a": (100.0, 1), "silent": (25.0, 1)}, "the same dialogues count once"
    said = runs[1].dialogues[0]
    other = said.turns[1].model_copy(update={"text": "something else"})
    runs[1].dialogues[0] = said.model_copy(update={"turns": (said.turns[0], other)})
    assert averages(runs) == {"one/a": (100.0, 1), "two/a": (50.0, 1), "silent": (25.0, 1)}


def test_the_board_says_whether_its_judge_can_be_relied_on() -> None:
    """By the gold set of whichever run has one."""
    runs = [make_run("one", {"a": {"c1": 4, "c2": 0}}), make_run("two", {"b": {"c1": 2, "c2": 4}})]
    assert board(runs).findings[1] == "Do not rely on j: it was measured on no gold set, so nobody knows how well it judges."
    measured = {"en": {"average": {"acc": 0.8, "majority_acc": 0.5, "over_majority_low": 0.1}}}
    assert board([runs[0], replace(runs[1], agreement=measured)]).findings[1].startswith("j does better on its gold set")


def test_one_board_over_run_folders(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("embedded", "mine", "yours")) as endpoint:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(gold=None, languages=["en"], floors=True)))
        given = ("run", "--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}")
        assert esc_eval(*given, "--supporter", f"mine@{endpoint.url}", "--limit", "2", "--out", "a")[0] == 0
        assert esc_eval(*given, "--supporter", f"yours@{endpoint.url}", "--limit", "3", "--out", "b")[0] == 0
        assert (
            esc_eval(*given, "--supporter", f"yours@{endpoint.url}", "--limit", "2", "--set", "mode=paper", "--out", "c")[0]
            == 0
        )
    scored = [
        json.loads(line) | {"annotator": "anna"} for line in (tmp_path / "a" / "judgements.jsonl").read_text().splitlines()
    ]
    fields = ("dialogue_id", "language", "annotator", "rubric", "dimension", "value")
    write_jsonl(tmp_path / "gold.jsonl", [HumanScore(**{field: one[field] for field in fields}) for one in scored])
    assert esc_eval("leaderboard", "a", "b", "c", "--out", "board") == (0, "")
    assert esc_eval("leaderboard", "--dialogues", "a", "--gold", "gold.jsonl", "--out", "people") == (0, "")
    other = {field: scored[0][field] for field in fields} | {"rubric": "feel", "dimension": "helpfulness", "value": 1}
    write_jsonl(tmp_path / "feel.jsonl", [HumanScore(**other)])
    both = ("--dialogues", "a", "--gold", "gold.jsonl", "--gold", "feel.jsonl", "--out", "both")
    assert "give scores on one of them" in esc_eval("leaderboard", *both)[1]
    people = json.loads((tmp_path / "people" / "leaderboard.json").read_text())
    assert not any("rely on" in sentence for sentence in people["summary"]["found"]), "people are what gold is made of"
    page = json.loads((tmp_path / "board" / "leaderboard.json").read_text())
    (rows,) = (table["rows"] for table in page["tables"] if table["key"] == "leaderboard-en")
    assert {cell for row in rows for cell in row if isinstance(cell, str)} >= {"mine", "yours", "silent", "parrot", "lecture"}
    assert len(rows) == 5, "the floors of both runs said the same and count once"
    assert any("c is not on this board" in warning and "mode" in warning for warning in page["summary"]["warnings"])
    assert (tmp_path / "board" / "tables" / "leaderboard-en.csv").exists()
    html = (tmp_path / "board" / "leaderboard.html").read_text()
    assert "Leaderboard over 2 runs" in html and "Plumbing" in html
