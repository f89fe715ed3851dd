"""Runs whose models do not fit together: dialogues first, then the judge; and servers that fail at the start."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from core.files import CONFIGS
from core.machine import Machine
from serve.command import MODULE, ServerPlan
from serve.launch import Servers
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.evalsuite.test_faults import outputs

pytestmark = pytest.mark.slow

SHAPES = {
    "seeker": "Qwen/Qwen1.5-14B-Chat",
    "one": "Qwen/Qwen1.5-7B-Chat",
    "two": "01-ai/Yi-6B-Chat",
    "judge": "internlm/internlm2-chat-7b",
}


@pytest.fixture
def esc_eval(esc_eval: EscEval) -> EscEval:
    """The command; of what it says, without the notes on servers (`# …`): how long they start, and what their caches hold."""

    def call(*arguments: object) -> tuple[int, str]:
        code, said = esc_eval(*arguments)
        return code, "".join(line for line in said.splitlines(keepends=True) if not line.startswith("# "))

    return call


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A run of four models of known size (folders without weights that matter) on a machine with these GPUs. Its servers are
    stand-ins, started and stopped by the real launcher; what happens to them stands in the file that is returned."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for name, shape in SHAPES.items():
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        roles = ["supporter"] if name in ("one", "two") else [name]
        spec = {
            "name": name,
            "about": "",
            "roles": roles,
            "languages": ["en"],
            "checkpoint": str(folder),
            "context_length": 8192,
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec | {"serve": {"architecture": shape}}))
    settings = demo_config(seeker="seeker.yaml", supporters=["one.yaml", "two.yaml"], judge="judge.yaml", out="run")
    settings |= {"languages": ["en"], "limit": 3, "gold": None, "patience": 0, "exchanges": 2}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "happened"
    monkeypatch.setenv("STAND_IN_LOG", str(log))
    monkeypatch.setattr("serve.command.MODULE", "tests.endpoint")

    def machine(gpus: str) -> Path:
        monkeypatch.setattr(Machine, "here", lambda: Machine.parse(gpus))
        log.unlink(missing_ok=True)
        return log

    return machine


def happened(log: Path) -> list[str]:
    """`model up` and `model down`, in order."""
    return [" ".join(line.split()[:2]) for line in log.read_text().splitlines()]


def asked(log: Path) -> dict[str, int]:
    """Requests that each model's servers answered."""
    counts: dict[str, int] = {}
    for line in log.read_text().splitlines():
        if (words := line.split())[1] == "down":
            counts[words[0]] = counts.get(words[0], 0) + int(words[2])
    return counts


# 6 dialogues of two exchanges: the seeker speaks twice in each, so does its supporter; the judge is asked once.
ASKED = {"seeker": 12, "one": 6, "two": 6, "judge": 6}


@pytest.mark.usefixtures("no_report")
def test_what_fits_together_is_up_together_and_gives_the_same_as_phases_and_turns(
    on: Callable[[str], Path], esc_eval: EscEval, tmp_path: Path
) -> None:
    log = on("4x80")
    assert esc_eval("run", "--config", "c.yaml", "--out", "together") == (0, "")
    assert sorted(happened(log)[:4]) == ["judge up", "one up", "seeker up", "two up"]
    assert asked(log) == ASKED
    log = on("80")
    assert esc_eval("run", "--config", "c.yaml", "--out", "phases") == (0, "")
    lines = happened(log)
    assert lines.index("judge up") > lines.index("seeker down"), "one after the other"
    assert asked(log) == ASKED, "nothing is asked twice"
    assert outputs(tmp_path / "phases") == outputs(tmp_path / "together")
    # Where not even the supporters fit beside the seeker, they come by turns.
    log = on("70")
    assert esc_eval("run", "--config", "c.yaml", "--out", "turns") == (0, "")
    lines = happened(log)
    assert lines.index("two up") > lines.index("one down") and lines.index("judge up") > lines.index("two down")
    assert "seeker down" not in lines[: lines.index("two up")] or lines.count("seeker up") == 2
    assert asked(log) == ASKED
    assert outputs(tmp_path / "turns") == outputs(tmp_path / "together")


@pytest.mark.usefixtures("no_report")
def test_shares_go_by_need_and_what_servers_say_is_kept(on: Callable[[str], Path], esc_eval: EscEval, tmp_path: Path) -> None:
    log = on("2x80")
    assert esc_eval("run", "--only", "simulate", "--config", "c.yaml") == (0, "")
    up = {line.split()[0]: line.split()[2:] for line in log.read_text().splitlines() if " up " in line}
    assert up["seeker"][0] == "0" and {up["one"][0], up["two"][0]} == {"1"}
    assert sum(float(share) for gpu, share, _ in up.values() if gpu == "1") <= 0.901
    assert {context for _, _, context in up.values()} == {"8192"}
    caches = json.loads((tmp_path / "run" / "timing.json").read_text())["servers"]["caches"]
    assert caches.keys() == up.keys() and all(said["planned_tokens"] > 0 for said in caches.values())
    assert {(said["tokens"], said["context"], said["at_once"]) for said in caches.values()} == {(90_000, 8192, 9.5)}


@pytest.mark.usefixtures("no_report")
def test_too_little_memory_is_refused_before_anything_is_started(on: Callable[[str], Path], esc_eval: EscEval) -> None:
    log = on("24")
    code, err = esc_eval("run", "--config", "c.yaml")
    assert code == 2 and not log.exists()
    assert err.startswith("error: not enough memory on 1 × 24 GB to hold the dialogues with seeker and one:\n")
    assert "seeker on" not in err and "seeker: weights 26.4 + overhead" in err and "cache of 8,192 tokens 6.2 = " in err
    assert "Next best: " in err and "GPUs instead of 1" in err and "--set endpoints.seeker=" in err


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("gpus", ["80", pytest.param("4x80", marks=pytest.mark.full)])
def test_a_supporter_that_does_not_start_loses_its_dialogues_alone(
    on: Callable[[str], Path], esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    log = on(gpus)
    monkeypatch.setenv("STAND_IN_DYING", "two")
    code, err = esc_eval("run", "--config", "c.yaml", "--out", gpus)
    assert code == 1 and "3 dialogues" in err and "server two ended while starting" in err and "the moon is full" in err, err
    dialogues = [json.loads(line) for line in (tmp_path / gpus / "dialogues.jsonl").read_text().splitlines()]
    ends = {(d["supporter"], d["termination"]) for d in dialogues}
    assert ends == {("one", "max_turns"), ("two", "infrastructure")}
    judgements = [json.loads(line) for line in (tmp_path / gpus / "judgements.jsonl").read_text().splitlines()]
    assert sum(j["value"] is not None for j in judgements) == 3 * 7
    failures = json.loads((tmp_path / gpus / "failures.json").read_text())["simulate"]
    assert len(failures) == 3 and all("server two ended while starting" in failure["reason"] for failure in failures)
    before = asked(log)
    monkeypatch.delenv("STAND_IN_DYING")
    log = on(gpus)
    assert esc_eval("run", "--config", "c.yaml", "--out", gpus) == (0, ""), "the same command asks for what is missing"
    total = {name: before.get(name, 0) + count for name, count in asked(log).items()}
    assert total == ASKED, "and for nothing else"


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("dying", ["seeker", "judge"])
def test_a_run_without_seeker_or_judge_ends(
    dying: str, on: Callable[[str], Path], esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("4x80")
    monkeypatch.setenv("STAND_IN_DYING", dying)
    code, err = esc_eval("run", "--config", "c.yaml")
    assert code == 2 and f"server {dying} ended while starting" in err


@pytest.mark.usefixtures("no_report")
def test_a_budget_that_ends_in_the_first_phase_starts_no_judge(on: Callable[[str], Path], esc_eval: EscEval) -> None:
    log = on("80")
    code, err = esc_eval("run", "--config", "c.yaml", "--set", "max_calls=10")
    assert code == 1 and "max_calls 10 is reached" in err
    assert "judge up" not in happened(log)
    assert esc_eval("run", "--config", "c.yaml") == (0, "")


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_report")
def test_phases_on_the_real_model(esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own server holds the dialogues, is stopped, and another one judges: the records are those of one phase."""
    for name in ("player", "judge"):
        spec = yaml.safe_load((CONFIGS / "models" / "embedded.yaml").read_text()) | {"name": name}
        spec |= {"serve": {"dtype": "float32", "eager": True}, "sampling": {"temperature": 0.0, "max_tokens": 16}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    settings = demo_config(seeker="player.yaml", supporters=["player.yaml"], judge="judge.yaml", gold=None, concurrency=4)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings | {"languages": ["en"], "limit": 2, "exchanges": 2}))
    monkeypatch.chdir(tmp_path)
    began: list[str] = []
    start = Servers._start

    def noted(self: Servers, plan: ServerPlan) -> Any:
        up = [server.plan.name for server in self._running]
        began.append(f"{plan.name} beside {len(up)}, {len(_servers())} running")
        return start(self, plan)

    monkeypatch.setattr(Servers, "_start", noted)
    assert esc_eval("run", "--config", "c.yaml", "--out", "run", "--set", "phases=true") == (0, "")
    assert began == ["player beside 0, 0 running", "judge beside 0, 0 running"], "the first is gone when the second starts"
    kept = outputs(tmp_path / "run")
    judgements = [json.loads(line) for line in (tmp_path / "run" / "judgements.jsonl").read_text().splitlines()]
    assert len(judgements) == 2 * 7 and all(judgement["value"] in range(5) for judgement in judgements)
    assert esc_eval("run", "--config", "c.yaml", "--out", "run", "--set", "phases=false") == (0, ""), "all is in the store"
    assert len(began) == 2 and outputs(tmp_path / "run") == kept


def _servers() -> list[psutil.Process]:
    """vLLM's servers that this process has started."""
    return [p for p in psutil.Process().children(recursive=True) if MODULE in p.cmdline() and "serve.guard" not in p.cmdline()]
