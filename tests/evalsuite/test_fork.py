"""A fork against scripted models: a kind reply changes the seeker and the scores, another one does not, and nothing is asked
twice."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.files import read_jsonl
from core.records import Dialogue
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint

MODELS = ("seeker", "plain", "kind", "judge")


def behave(body: dict[str, Any], count: int) -> Answer:
    said = " ".join(message["content"] for message in body["messages"])
    if body["model"] == "judge":
        luck = zlib.crc32(said.encode()) % 2
        return Answer(f"{3 + luck if 'how brave' in said else luck}" * 7)
    if body["model"] == "seeker":
        return Answer("Thank you, I feel better." if "how brave" in said else f"It hurts, for the {count}th time.")
    return Answer("how brave you are" if body["model"] == "kind" else "I see")


@pytest.fixture
def held(esc_eval: EscEval, tmp_path: Path) -> Any:
    with Endpoint(behave, models=MODELS) as endpoint:
        seeker, plain, judge = (f"{name}@{endpoint.url}" for name in ("seeker", "plain", "judge"))
        config = {"framework": "esc_eval", "seeker": seeker, "supporters": [plain], "judge": judge, "languages": ["en"]}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config | {"limit": 1, "exchanges": 3, "out": "run"}))
        assert esc_eval("run", "--config", "run.yaml")[0] == 0
        (dialogue,) = read_jsonl(Path("run/dialogues.jsonl"), Dialogue, "dialogues")
        yield endpoint, dialogue


def call(endpoint: Endpoint, dialogue: Dialogue, supporter: str, *more: object) -> list[object]:
    """The command; options in `more` stand instead of the usual ones."""
    named = supporter if supporter == "silent" else f"{supporter}@{endpoint.url}"
    usual = {"--config": "run.yaml", "--dialogue": dialogue.id, "--supporter": named, "--turn": 2, "--out": "f"}
    changed = usual | dict(zip(more[::2], more[1::2], strict=True))
    return ["fork", "run", *(word for option in changed.items() for word in option)]


def differences(key: str) -> dict[str, tuple[float | None, str | None]]:
    tables = {table["key"]: table["rows"] for table in json.loads(Path("f/fork.json").read_text())["tables"]}
    return {row[0]: (row[3]["mean"], row[6]) for row in tables[key]}


def test_one_reply_changes_what_comes_after(esc_eval: EscEval, held: Any) -> None:
    endpoint, dialogue = held
    before = len(endpoint.requests)
    code, error = esc_eval(*call(endpoint, dialogue, "kind"))
    assert code == 0, error
    branches = read_jsonl(Path("f/dialogues.jsonl"), Dialogue, "dialogues")
    assert len(branches) == 24 and len({branch.id for branch in branches}) == 24
    for branch in branches:
        assert branch.turns[:2] == dialogue.turns[:2] and len(branch.turns) == len(dialogue.turns)
        own = branch.supporter == "plain, as it was"
        assert branch.turns[2].text == ("I see" if own else "how brave you are")
        assert [turn.text for turn in branch.turns[4::2]] == ["I see"] * 2, "the dialogue's own supporter goes on"
    # The other reply once; on each of 24 branches two exchanges and a verdict.
    asked = endpoint.requests[before:]
    assert [body["model"] for body in asked].count("kind") == 1 and len(asked) == 1 + 24 * (4 + 1)
    assert {body["temperature"] for body in asked if body["model"] in ("seeker", "plain")} == {0.7}
    scores, seeker = differences("fork-scores"), differences("fork-seeker")
    assert scores["average"][1] == "yes" and 50 < (scores["average"][0] or 0) < 100
    assert seeker["turns with thanks or relief %"] == (100.0, "yes")
    assert seeker["seeker took leave %"] == (0.0, "no")
    page = Path("f/fork.html").read_text()
    assert (
        '<p class="answer">The other reply is better than the original one by ' in page
        and " on 12 draws, judged by judge." in page
    )
    assert "The dialogues as a tree" in page and page.count("draw 12") == 2 and "how brave you are" in page
    done = len(endpoint.requests)
    assert esc_eval(*call(endpoint, dialogue, "kind"))[0] == 0 and len(endpoint.requests) == done, "nothing twice"
    assert esc_eval(*call(endpoint, dialogue, "kind", "--draws", 13))[0] == 0
    assert len(endpoint.requests) == done + 2 * 5, "two more branches"


def test_a_reply_that_changes_nothing_is_not_said_to(esc_eval: EscEval, held: Any) -> None:
    endpoint, first = held
    assert esc_eval("run", "--config", "run.yaml", "--limit", 2)[0] == 0
    (dialogue,) = (each for each in read_jsonl(Path("run/dialogues.jsonl"), Dialogue, "dialogues") if each.id != first.id)
    assert esc_eval(*call(endpoint, dialogue, "silent")) == (0, ""), "on a card that the folder has and the config has not"
    assert {holds for _, holds in differences("fork-scores").values()} == {"no"}
    assert differences("fork-seeker")["turns with thanks or relief %"] == (0.0, "no")


def test_what_cannot_be_forked_is_said(esc_eval: EscEval, held: Any) -> None:
    endpoint, dialogue = held
    for change, words in {
        ("--turn", 1): f"--turn 1: the supporter's turns in {dialogue.id} are 2, 4, 6",
        ("--turn", 0): "the supporter's turns",
        ("--dialogue", "none"): "--dialogue none: not in run/dialogues.jsonl",
        ("--out", "run"): "would be replaced",
    }.items():
        code, error = esc_eval(*call(endpoint, dialogue, "kind", *change))
        assert code == 2 and words in error, error
    other = yaml.safe_load(Path("run.yaml").read_text()) | {"exchanges": 4}
    Path("other.yaml").write_text(yaml.safe_dump(other))
    code, error = esc_eval(*call(endpoint, dialogue, "kind", "--config", "other.yaml"))
    assert code == 2 and "differs from the config of run: exchanges: 3 → 4" in error, error
    Path("unnamed.yaml").write_text(yaml.safe_dump({**other, "exchanges": 3, "supporters": []}))
    unnamed = call(endpoint, dialogue, "kind", "--config", "unnamed.yaml", "--draws", 2)
    code, error = esc_eval(*unnamed)
    assert code == 2 and "plain: its address is missing: give --set supporters=plain@URL" in error, error
    assert esc_eval(*unnamed, "--set", f"supporters=plain@{endpoint.url}") == (0, "")
