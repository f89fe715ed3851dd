"""Servers as public reports tell of them, each in a file of tests/behaviours, under the command that README begins with."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.files import CONFIGS
from core.settings import read_yaml
from evalsuite import cli
from serve.client import ChatClient
from tests.behaviours import FOLDER, Behaviour, Player

pytestmark = pytest.mark.slow

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
RUN = Path("runs/esc_eval/my-model")


@pytest.mark.parametrize("name", NAMES)
def test_a_server_as_reported_gets_the_run_that_its_file_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviour = read_yaml(FOLDER / f"{name}.yaml", Behaviour, "behaviour")
    expected = behaviour.expect
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evalsuite.runner.engine.ChatClient", partial(ChatClient, backoff_s=0.001))
    if behaviour.models_seconds:  # else a busy machine may take longer to list
        monkeypatch.setattr("serve.http._LIST_S", 0.3)
    if expected.exit == 0 and not expected.page:  # nobody looks at it
        monkeypatch.setattr("evalsuite.report.content.report_run", lambda *given: None)
    with Player(behaviour) as player:
        code, said = headline(player.url, monkeypatch, capsys, gold=bool(expected.page))
        assert code == expected.exit, said
        asked = len(player.requests)
        if code == 0:
            monkeypatch.setattr("evalsuite.report.content.report_run", lambda *given: None)
            assert headline(player.url, monkeypatch, capsys, bool(expected.page))[0] == 0
            assert len(player.requests) == asked, "asked again"
    assert not missing(expected.console, said), said
    assert expected.calls is None or asked <= expected.calls
    for request in player.last.values():
        assert not set(expected.dropped) & request.keys()
    assert set(expected.dropped) <= set().union(*player.requests), "it was never sent"
    if not RUN.exists():
        return
    dialogues = [one for one in records("dialogues.jsonl") if one["supporter"] == "my-model"]
    spoken = " ".join(turn["text"] for dialogue in dialogues for turn in dialogue["turns"])
    assert not [words for words in expected.never_spoken if words in spoken]
    if expected.terminations is not None:
        assert sorted({dialogue["termination"] for dialogue in dialogues}) == sorted(expected.terminations)
    verdicts = records("judgements.jsonl") + records("gold_judgements.jsonl")
    if expected.verdicts is not None:
        given = {"as answered": player.verdicts, "none": {"-" * 7}}.get(expected.verdicts, {expected.verdicts})
        assert verdicts and set(by_dialogue(verdicts)) <= given
    if expected.distributions is not None:
        assert {verdict.get("distribution") is not None for verdict in verdicts} == {expected.distributions}
    assert not expected.page or not missing(expected.page, (RUN / "report.md").read_text())


def headline(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gold: bool) -> tuple[int, str]:
    """Exit code and what stood on the console. Without a gold set, the judge is asked the same questions of fewer dialogues."""
    config = yaml.safe_load((CONFIGS / "eval" / "api.yaml").read_text())
    config["gold"] = config["gold"] | {"limit": 2} if gold else None
    Path("api.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr("sys.argv", ["esc-eval", "run", "--config", "api.yaml", "--limit", "1", "--model", f"my-model@{url}"])
    code: Any = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code or 0
    return code, " ".join("\n".join(capsys.readouterr()).split())


def missing(words: Iterable[str], text: str) -> list[str]:
    return [part for part in words if part not in " ".join(text.split())]


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RUN / name).read_text().splitlines()] if (RUN / name).exists() else []


def by_dialogue(verdicts: Iterable[dict[str, Any]]) -> Iterable[str]:
    """The values of each dialogue in a row, as the judge has written them; `-` for null."""
    rows: dict[str, str] = {}
    for verdict in verdicts:
        value = "-" if verdict["value"] is None else f"{verdict['value']:g}"
        rows[verdict["dialogue_id"]] = rows.get(verdict["dialogue_id"], "") + value
    return rows.values()
