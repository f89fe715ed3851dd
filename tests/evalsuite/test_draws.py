"""Trials in which the very same is said are one draw, whatever counts them."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from core.records import Turn
from evalsuite.statistics.contestants import distinct, first_draws, repeats
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.records import make_dialogue
from tests.evalsuite.test_faults import MODELS, config, run_at


def test_only_what_says_the_same_of_the_same_card_is_one_draw() -> None:
    said = (Turn(role="supporter", text="Hello."), Turn(role="seeker", text="I am sad."))
    first = make_dialogue("a", card_id="c", trial=0, turns=said)
    again = make_dialogue("b", card_id="c", trial=1, turns=said)
    others = [
        make_dialogue("other words", card_id="c", trial=2, turns=said[:1]),
        make_dialogue("other card", card_id="d", trial=0, turns=said),
        make_dialogue("other supporter", card_id="c", trial=0, turns=said, supporter="another"),
    ]
    assert distinct([first, again, *others]) == [first, *others]
    assert first_draws([first, again])["b"] == "a"
    assert list(repeats([first, *others], ())) == []
    (told,) = repeats([first, again, *others], ())
    assert told.startswith("1 of 5 dialogues repeat an earlier trial word for word") and str(first.supporter) in told
    assert list(repeats([first, again], {str(first.supporter)})) == [], "a floor never varies"


@pytest.mark.parametrize("varied", [False, True])
def test_equal_trials_are_told_on_the_console_and_the_page_and_count_once(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, varied: bool
) -> None:
    told: list[str] = []
    console = Console(width=300, quiet=True)
    monkeypatch.setattr(console, "print", lambda *lines, **how: told.extend(map(str, lines)))
    monkeypatch.setattr("evalsuite.commands.run.console", console)
    config(tmp_path, 3, trials=2)

    def behave(body: dict[str, Any], count: int) -> Answer:
        answer = echo(body, count)
        return Answer(f"{answer.text} {count}") if varied and "structured_outputs" not in body else answer

    with Endpoint(behave, models=MODELS) as endpoint:
        assert esc_eval(*run_at(endpoint.url)) == (0, "")
    report = json.loads(Path("run/report.json").read_text())
    number = 6 if varied else 3
    tables = {table["key"]: table for table in report["tables"]}

    def column(key: str, name: str) -> list[Any]:
        return [row[tables[key]["columns"].index(name)] for row in tables[key]["rows"]]

    assert column("terminations", "dialogues") == [number] and set(column("distributions", "verdicts")) == {number}
    assert {score["estimate"]["n"] for score in report["scores"]} == {number}
    warned = [line for line in told if "word for word" in line]
    on_page = [line for line in report["summary"]["warnings"] if "word for word" in line]
    assert len(warned) == len(on_page) == (0 if varied else 1)
    if not varied:
        assert warned[0] == f"warning: {on_page[0]}" and on_page[0].startswith("3 of 6 dialogues repeat an earlier trial")
