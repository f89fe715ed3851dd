"""Every command of docs/reproduce.md, run to its end (`tests.paper_desk` says what is done dry)."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.responses import read_responses
from docs.paper_items import DOCUMENT
from tests.endpoint import Endpoint
from tests.paper_desk import LINES, SERVED, SPECS, Desk, answers
from tests.test_docs import typed

pytestmark = pytest.mark.slow

# What takes a processor seconds: many runs, many models, torch.
LONG = (
    *("ESC-Eval: table 2", "ESC-Eval: sections 2.3 and 3.4", "EmoHarbor: table 1", "EmoHarbor: table 2", "EmoHarbor: table 3"),
    *("EmoHarbor: table 4", "EmoHarbor: table 5", "EmoHarbor: figure 6", "EmoHarbor: figures 7, 9, 10", "EmoHarbor: figure 11"),
    *("FEEL: tables 1, 2", "FEEL: tables 3, 4", "ECDBench: table 5", "ECDBench: figures 4 to 7"),
    *(f"block {number}" for number in range(1, 6)),
)
each_item = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full) if n in LONG else n for n in LINES])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with Endpoint(answers, SERVED) as endpoint, pytest.MonkeyPatch.context() as patch:
        for variable in {spec.endpoint.api_key_env for spec in SPECS.values()} - {None}:
            patch.setenv(str(variable), "a-key-of-the-test")
        patch.setattr("evalsuite.people.guard.RequestRate.allows", lambda *client: True)  # nobody clicks as fast as a script
        folder = tmp_path_factory.mktemp("desk")
        patch.chdir(folder)
        yield Desk(folder, endpoint.url)


@each_item
def test_every_command_of_an_item_comes_to_its_end(desk: Desk, name: str) -> None:
    desk.item(name)


def test_no_command_of_the_page_is_left_out() -> None:
    listed = {" ".join(shlex.split(line)) for lines in LINES.values() for line in lines}
    shown = {" ".join(words) for words in typed(DOCUMENT.read_text(encoding="utf-8"))}
    assert len(shown) > 60 and {line for line in shown - listed if "$" not in line} == set()


def test_metrics_are_of_replies_to_the_corpus_and_stand_beside_people(desk: Desk) -> None:
    """Section 3.3: the supporters answer ESConv's own history; the talks that people held are what they rated."""
    desk.item("ESC-Eval: tables 3, 13, 14, 15")
    replies = read_responses([Path("runs/responses/responses.jsonl")])
    assert {reply.dialogue_id for reply in replies} == {f"esconv-train/{number}" for number in range(3)}
    rows = json.loads(desk.type(LINES["ESC-Eval: tables 3, 13, 14, 15"][-1].replace("--against paper", "--json")))[
        "correlation"
    ]
    assert {"bleu_1", "rouge_l", "meteor"} < {row["dimension"] for row in rows}
    assert len({row["judge"] for row in rows}) == 10, "nine metrics, and people on simulated dialogues"
    assert {row["pairs"] for row in rows} == {6}, "three situations with two supporters"
