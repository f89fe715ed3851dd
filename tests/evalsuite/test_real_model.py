"""The main job on a real model: the embedded one in vLLM (fp32, eager, greedy: answers repeat exactly)."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve.plan import plan_servers
from serve.sizes import BLOCK, GIB, size_of
from tests.conftest import Embedded, EscEval
from tests.demo import demo_config

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
DIMENSIONS = ["fluency", "expression", "empathy", "information", "humanoid", "skill", "overall"]


def config_file(folder: Path, embedded: Embedded, **changes: Any) -> Path:
    config = demo_config()
    model = str(embedded.spec_file)
    config |= {"seeker": model, "supporters": [model], "judge": model, "languages": ["en"], "limit": 4, "gold": None}
    config |= {"endpoints": {embedded.spec.name: embedded.url}, "concurrency": 8, "exchanges": 1} | changes
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def requests_answered(embedded: Embedded) -> int:
    """How many requests the server itself says it has finished."""
    return told(embedded, r'request_success_total\{[^}]*finished_reason="(?:stop|length)"[^}]*\}')


def told(embedded: Embedded, metric: str) -> int:
    """The sum of a metric of the server's."""
    with urllib.request.urlopen(embedded.url.removesuffix("/v1") + "/metrics") as answer:
        found = re.findall(rf"^vllm:{metric} ([\d.e+]+)", answer.read().decode(), re.M)
    return int(sum(map(float, found)))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_from_cards_to_report(embedded: Embedded, esc_eval: EscEval, tmp_path: Path) -> None:
    config = config_file(tmp_path, embedded, languages=["en", "zh"], limit=1, gold={"dialogues": "synthetic", "limit": 1})
    assert esc_eval("run", "--config", config, "--out", "run") == (0, "")
    dialogues = records(tmp_path / "run" / "dialogues.jsonl")
    assert [d["language"] for d in dialogues] == ["en", "zh"]
    assert all(len(d["turns"]) == 3 and d["termination"] == "max_turns" for d in dialogues)
    for name, count in (("judgements", 2), ("gold_judgements", 2)):
        judgements = records(tmp_path / "run" / f"{name}.jsonl")
        assert [j["dimension"] for j in judgements] == DIMENSIONS * count
        for judgement in judgements:
            assert judgement["value"] in range(5)
            assert sum(judgement["distribution"].values()) == pytest.approx(1)
            assert judgement["distribution"][str(int(judgement["value"]))] == max(judgement["distribution"].values())
    agreement = json.loads((tmp_path / "run" / "agreement.json").read_text())["agreement"]
    for language in ("en", "zh"):
        assert list(agreement[language]) == [*DIMENSIONS, "average"]
        row = agreement[language]["fluency"]
        assert {"acc", "acc_soft", "n", "parse_rate", "majority_acc", "majority_acc_soft"} <= set(row)
        assert row["n"] == 1 and row["parse_rate"] == 1
    report = (tmp_path / "run" / "report.md").read_text()
    assert "lumbing" in report and "ynthetic" in report
    agree = ("agree", "--judgements", "run/gold_judgements.jsonl", "--gold", "run/gold_scores.jsonl")
    assert esc_eval(*agree)[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("method", ["per_dimension", "paper"])
def test_the_other_methods_of_judging(embedded: Embedded, esc_eval: EscEval, tmp_path: Path, method: str) -> None:
    changes: dict[str, Any] = {"mode": "paper"} if method == "paper" else {"method": method}
    # Paper mode gives the sides 512 tokens, which takes this model half a minute; one exchange of short lines shows as much.
    spec = yaml.safe_load(embedded.spec_file.read_text()) | {
        "paper_sampling": {"temperature": None, "top_p": None, "max_tokens": 24}
    }
    model = tmp_path / embedded.spec_file.name
    model.write_text(yaml.safe_dump(spec))
    changes |= {"seeker": str(model), "supporters": [str(model)], "judge": str(model)}
    config = config_file(tmp_path, embedded, limit=1, exchanges=1, **changes)
    assert esc_eval("run", "--config", config, "--out", "run") == (0, "")
    judgements = records(tmp_path / "run" / "judgements.jsonl")
    assert [j["dimension"] for j in judgements] == DIMENSIONS
    assert {j["method"] for j in judgements} == {method}
    assert {j["condition"]["mode"] for j in judgements} == {"paper" if method == "paper" else "native"}
    for judgement in judgements:
        if method == "per_dimension":
            assert judgement["value"] is not None and judgement["raw"] in list("01234")
        else:  # whatever the model wrote is kept; what holds no label is null, not a number
            assert (judgement["value"] is None) == (not re.search("[0-4]", judgement["raw"]))


@pytest.mark.full  # test_faults does the same on a scripted endpoint
def test_killed_and_run_again_equals_undisturbed_and_asks_nothing_twice(embedded: Embedded, tmp_path: Path) -> None:
    config = config_file(tmp_path, embedded, limit=3)
    command = [sys.executable, "-m", "evalsuite.cli", "run", "--config", str(config), "--out"]
    calls = 3 * 2 + 3  # three dialogues of one exchange between two models, and a judgement of each

    before = requests_answered(embedded)
    subprocess.run([*command, str(tmp_path / "undisturbed")], check=True, stdout=subprocess.DEVNULL)
    assert requests_answered(embedded) - before == calls

    store = tmp_path / "killed" / "calls.sqlite"
    process = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
    while stored(store) < calls // 3:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = stored(store)
    assert 0 < kept < calls
    while told(embedded, r"num_requests_running\{[^}]*\}"):  # calls that were in flight end, or are aborted, on the server
        time.sleep(0.02)
    before = requests_answered(embedded)
    subprocess.run([*command, str(tmp_path / "killed")], check=True, stdout=subprocess.DEVNULL)
    assert requests_answered(embedded) - before == calls - kept

    same(tmp_path / "killed", tmp_path / "undisturbed")
    before = requests_answered(embedded)
    shutil.rmtree(tmp_path / "undisturbed" / "logs", ignore_errors=True)
    subprocess.run([*command, str(tmp_path / "killed")], check=True, stdout=subprocess.DEVNULL)
    assert requests_answered(embedded) == before


def stored(path: Path) -> int:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            return int(db.execute("SELECT count(*) FROM calls").fetchone()[0])
    except sqlite3.Error:
        return 0


def same(one: Path, other: Path) -> None:
    """Dialogues byte for byte; judgements in every field but the probabilities, and those within 1e-4."""
    assert (one / "dialogues.jsonl").read_bytes() == (other / "dialogues.jsonl").read_bytes()
    assert (one / "usage.json").read_bytes() == (other / "usage.json").read_bytes()
    pairs = zip(records(one / "judgements.jsonl"), records(other / "judgements.jsonl"), strict=True)
    for a, b in pairs:
        probabilities = [(j.pop("distribution"), j.pop("expected")) for j in (a, b)]
        assert a == b
        assert probabilities[0][0] == pytest.approx(probabilities[1][0], abs=1e-4)
        assert probabilities[0][1] == pytest.approx(probabilities[1][1], abs=1e-3)


def test_the_cache_that_vllm_has_is_the_one_that_was_planned(embedded: Embedded) -> None:
    """On a CPU its size is told; a token's bytes are ours and vLLM's: to 3 %."""
    (size,) = filter(None, [size_of(embedded.spec)])
    (said,) = embedded.caches.values()
    (planned,) = plan_servers([embedded.spec], Path("logs"), resolve=False)
    bytes_ = int(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or planned.env["VLLM_CPU_KVCACHE_SPACE"]) * GIB
    assert said["tokens"] == pytest.approx(bytes_ / size.cache(BLOCK) * BLOCK, rel=0.03)
    assert said["context"] == embedded.spec.context_length
    assert said["at_once"] == pytest.approx(said["tokens"] / said["context"], rel=0.03)
