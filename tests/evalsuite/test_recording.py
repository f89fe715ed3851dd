"""Replays: a run whose answers are all taken from a recorded one."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from core import machine
from evalsuite import cli
from evalsuite.runs.models import BUNDLED
from tests.conftest import EscEval
from tests.demo import DEMO, demo_config
from tests.endpoint import Endpoint
from tests.evalsuite.test_faults import one_line

pytestmark = pytest.mark.slow

RECORDS = ("dialogues.jsonl", "judgements.jsonl", "cards.jsonl", "agreement.json", "gold_judgements.jsonl", "usage.json")


@pytest.fixture
def recorded(esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run on a CPU with bf16, made against a scripted endpoint that is gone again."""
    monkeypatch.setattr(machine, "bf16_instructions", lambda: True)
    settings: dict[str, Any] = {"limit": 2, "exchanges": 2, "gold": {"dialogues": "synthetic_test", "limit": 3}, "patience": 0}
    with Endpoint(models=("embedded",)) as started:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(**settings, endpoints={"embedded": started.url})))
        assert esc_eval("run", "--config", "c.yaml", "--out", "recorded")[0] == 0
    yield tmp_path / "recorded"


def test_a_replay_leaves_the_records_of_the_run_without_asking_anybody(
    esc_eval: EscEval, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "bf16_instructions", lambda: False)  # as it was recorded, not as it would be served here
    kept = Path("kept")
    kept.mkdir()
    for name in ("config.json", "calls.sqlite"):
        shutil.copy(recorded / name, kept / name)
    monkeypatch.setattr("serve.launch.Servers", lambda *_: pytest.fail("a server is started"))
    for _ in range(2):  # it resumes like any other run
        monkeypatch.setattr("sys.argv", ["esc-eval", "run", "--config", "c.yaml", "--set", "replay=kept", "--out", "replayed"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        out = capsys.readouterr().out
        assert "a replay of kept, recorded on 20" in out and "A replay of kept, recorded on 20" in out
    for name in RECORDS:
        assert (Path("replayed") / name).read_bytes() == (recorded / name).read_bytes(), name
    report = json.loads(Path("replayed/report.json").read_text())
    assert any(one.startswith("A replay of kept, recorded on 20") for one in report["summary"]["warnings"])
    assert "A replay of kept" in Path("replayed/report.html").read_text()
    assert "A replay" not in (recorded / "report.html").read_text()


def test_what_was_not_recorded_is_refused(esc_eval: EscEval, recorded: Path) -> None:
    code, err = esc_eval("run", "--config", "c.yaml", "--set", f"replay={recorded}", "--limit", 3, "--out", "more")
    assert code == 2 and "lacks an answer that this run needs" in err and "Leave replay out" in err
    assert err.count("\n") == 1


def test_a_replay_and_a_run_do_not_share_a_folder(esc_eval: EscEval, recorded: Path) -> None:
    one_line(esc_eval("run", "--config", "c.yaml", "--set", f"replay={recorded}", "--out", recorded), 2, "replay")
    assert esc_eval("run", "--config", "c.yaml", "--set", f"replay={recorded}", "--out", "replayed")[0] == 0
    one_line(esc_eval("run", "--config", "c.yaml", "--out", "replayed"), 2, "replay")


def test_a_recording_that_is_none_is_refused(esc_eval: EscEval) -> None:
    Path("empty").mkdir()
    for name in ("empty", "nowhere", "dem"):
        one_line(esc_eval("run", "--config", DEMO, "--set", f"replay={name}", "--out", "r"), 2, f"replay {name}: no run folder")
    Path("empty/calls.sqlite").write_text("no database at all, but long enough to be taken for one")
    code, err = esc_eval("run", "--config", DEMO, "--set", "replay=empty", "--out", "r")
    assert code == 2 and "cannot be read" in err and not Path("r").exists()


def test_the_bundled_recording_answers_the_whole_demo(esc_eval: EscEval) -> None:
    """Other prompts, cards or seekers need another recording: `make record` makes it (a server for some minutes)."""
    code, err = esc_eval("run", "--config", DEMO, "--set", "replay=demo", "--out", "r")
    assert code == 0, err
    report = json.loads(Path("r/report.json").read_text())
    assert report["plumbing"] and any(
        one.startswith("A replay of demo, recorded on 20") for one in report["summary"]["warnings"]
    )
    (board,) = (table for table in report["tables"] if table["key"] == "leaderboard-en")
    assert {"embedded", "silent", "parrot", "lecture"} <= {
        cell for row in board["rows"] for cell in row if isinstance(cell, str)
    }
    assert report["agreement"]["en"]["average"]["n"] > 0


def test_the_bundled_recording_is_small_and_holds_no_prompts() -> None:
    files = [path for path in (BUNDLED / "demo").iterdir() if path.is_file()]
    assert {path.name for path in files} == {"config.json", "calls.sqlite"}
    assert sum(path.stat().st_size for path in files) < 10**6
