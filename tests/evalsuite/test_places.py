"""Odd places to run in: a locale that cannot write our signs, a judge whose server is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.files import CONFIGS, write_jsonl
from core.records import HumanScore
from tests.demo import demo_config
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.records import make_judgement

pytestmark = pytest.mark.slow

# What a minimal container or a cron job has; Python is kept from choosing UTF-8 by itself.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ROOT = CONFIGS.parent


def chinese(body: dict[str, Any], count: int) -> Answer:
    found = echo(body, count)
    return found if "structured_outputs" in body else Answer(f"我听到了 – {found.text} 😀")


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "evalsuite.cli", *arguments]
    environment = {key: value for key, value in os.environ.items() if key not in ("LANG", "PYTHONIOENCODING")} | ASCII
    return subprocess.run(command, cwd=folder, capture_output=True, env=environment | {"PYTHONPATH": str(ROOT)}, timeout=120)


def test_without_utf_8_the_report_is_written_and_printing_does_not_die(tmp_path: Path) -> None:
    settings = demo_config(limit=1, gold=None, languages=["en", "zh"], exchanges=1, out="run")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with Endpoint(chinese, models=("embedded", "my-model")) as endpoint:
        given = ("--supporter", f"my-model@{endpoint.url}", "--set", f"endpoints.embedded={endpoint.url}")
        done = call(tmp_path, "run", "--config", "c.yaml", *given)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii() and b"Leaderboard" in done.stdout
    assert "我听到了" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    bad = call(tmp_path, "report", "名字")
    assert bad.returncode == 2 and bad.stderr.startswith(b"error: ") and bad.stderr.count(b"\n") == 1


def test_json_is_utf_8_in_any_locale(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "j.jsonl", [make_judgement("d", "fluency", 3, judge="评委")])
    write_jsonl(
        tmp_path / "g.jsonl",
        [HumanScore(dialogue_id="d", language="en", annotator="a", rubric="test", dimension="fluency", value=3)],
    )
    shown = call(tmp_path, "agree", "--judgements", "j.jsonl", "--gold", "g.jsonl", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout.decode("utf-8"))["judges"].keys() == {"评委"}
