"""Run folders: who may use them, and what happens when a config changes."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import write_jsonl
from core.settings import differing_leaves
from evalsuite.runs.folder import open_run
from evalsuite.runs.run_config import RunConfig
from serve.answers import Reply
from serve.store import CallStore


def test_a_new_run_folder_is_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    for name, mode in (("a/b/run", 0o700), ("mine", 0o755)):  # what somebody made stays as it is
        with open_run(tmp_path / name):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


def test_weights_that_changed_on_the_hub_are_not_mixed(tmp_path: Path) -> None:
    with open_run(tmp_path / "r") as run:
        for found in ({"a": "1" * 40}, {"b": "2" * 40}, {"a": "1" * 40}):
            with run.timed("servers") as timing:
                timing["commits"] = run.same_commits(found)
        assert run.timing()["servers"]["commits"] == {"a": "1" * 40, "b": "2" * 40}
        with pytest.raises(
            UserError, match=r"model a: .* are commit 333333333333 now and were 111111111111 .* revision: 1{40}"
        ):
            run.same_commits({"a": "3" * 40})


def test_timing_adds_up_over_tries(tmp_path: Path) -> None:
    for _ in range(2):
        with open_run(tmp_path / "r") as run, run.timed("score") as extra:
            extra["calls"] = 7
            write_jsonl(tmp_path / "r" / "judgements.jsonl", [])
    timing = run.timing()["score"]
    assert timing["tries"] == 2 and timing["calls"] == 7 and timing["seconds"] >= 0


def test_damaged_timing_is_said_before_the_work(tmp_path: Path) -> None:
    began = []
    with open_run(tmp_path / "r") as run:
        (tmp_path / "r" / "timing.json").write_text("{")
        with pytest.raises(UserError, match=r"timing\.json:1: malformed JSON"), run.timed("score"):
            began.append("score")
    assert not began


def test_what_a_killed_run_left_half_written_is_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    left = [tmp_path / "r" / ".dialogues.jsonl.123.tmp", tmp_path / "r" / "tables" / ".risk.csv.7.tmp"]
    own = [tmp_path / "r" / ".mine.tmp", tmp_path / "r" / "notes.1.tmp", tmp_path / "r" / "logs" / ".a.1.tmp"]
    for path in (*left, *own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    with open_run(tmp_path / "r"):
        assert not any(path.exists() for path in left) and all(path.exists() for path in own)


def test_differences_name_every_leaf() -> None:
    assert differing_leaves({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [2]}, "d": None}) == ["b.c: [1] → [2]"]
    assert differing_leaves({"a": {"b": 1}}, {"a": 2}) == ['a: {"b":1} → 2'], "a part against a leaf"


async def test_the_store_keeps_what_was_put_and_commits_before_it_returns(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    await asyncio.gather(*(store.put(str(n), {"text": str(n)}, 0.1) for n in range(300)))
    other = CallStore(tmp_path / "calls.sqlite")  # another connection sees only what is committed
    assert len(other) == 300 and other.latency() == {"p50": 0.1, "p95": 0.1, "max": 0.1}
    assert other.get("299") == Reply(text="299") and other.get("nothing") is None
    await store.put("299", {"text": "new"}, 0.1)
    assert other.get("299") == Reply(text="new")
    store.close()
    other.close()


def test_groups_come_from_the_runs_config() -> None:
    specs = [{"name": "a", "group": "open"}, {"name": "b", "group": None}, {"name": "c"}]
    assert RunConfig({"simulate": {"supporters": specs}}).groups() == {"a": "open"}
    assert RunConfig({"score": {}}).groups() == {}


def test_a_config_is_kept_as_it_was_claimed_and_read_as_a_record(tmp_path: Path) -> None:
    own = {"zeal": 1, "framework": "mine", "seeker": {"name": "s", "fingerprint": "f", "extra": [1]}}
    claims: dict[str, dict[str, Any]] = {"simulate": own, "gold": {"sha256": "0", "dialogues": "synthetic"}}
    for stage, settings in claims.items():
        config = RunConfig.read(tmp_path)
        config.claim(stage, settings)
        config.write()
    kept = RunConfig.read(tmp_path)
    assert list(kept.root) == ["simulate", "gold"] and list(kept.root["simulate"]) == ["zeal", "framework", "seeker"]
    assert kept.simulated and kept.simulated.framework == "mine" and list(kept.models()) == ["seeker s"]
    assert kept.gold and kept.gold.dialogues == "synthetic" and kept.scored is None
    with pytest.raises(UserError, match="another simulate config: zeal: 1 → 2"):
        kept.claim("simulate", own | {"zeal": 2})
    (tmp_path / "config.json").write_text('{"gold": {"dialogues": 1}}')
    with pytest.raises(UserError, match=r"config\.json: gold\.dialogues: Input should be a valid string"):
        _ = RunConfig.read(tmp_path).gold
