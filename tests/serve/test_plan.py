"""Which servers a set of specs needs, and their checkpoints, which come before a server is started and only when they fit."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from core import machine
from core.errors import UserError
from core.machine import Gpu, Machine
from core.specs import ModelSpec
from serve import plan
from serve.__main__ import app
from serve.checkpoints.places import commits
from serve.plan import plan_servers
from serve.sizes import known_architecture
from serve.units import Workload
from tests.fake_hub import FakeHub
from tests.serve.conftest import adapter, checkpoint, spec
from tests.verbs import printed
from tests.vllm_parser import blind

DIMENSIONS = ("fluency", "expression", "empathy", "information", "humanoid", "skill", "overall")


def seven_by_two(tmp_path: Path, rank: int = 8) -> ModelSpec:
    adapters = {language: {d: adapter(tmp_path / language / d, rank) for d in DIMENSIONS} for language in ("en", "zh")}
    return spec("rank", adapters=adapters, languages=["en", "zh"], roles=["judge"])


def value(argv: list[str], flag: str) -> str:
    assert argv.count(flag) == 1, f"{flag} once in {argv}"
    return argv[argv.index(flag) + 1]


def values(argv: list[str], flag: str) -> list[str]:
    rest = argv[argv.index(flag) + 1 :]
    end = next((i for i, part in enumerate(rest) if part.startswith("--")), len(rest))
    return rest[:end]


# ---- plans


@pytest.mark.parametrize(
    "words",
    ["--host 0.0.0.0", "--host=0.0.0.0", "--host ::", "--host=", "--host", "--hos 10.0.0.1", "--host 0", "--host example.org"],
)
def test_a_server_for_everybody_has_to_be_meant(words: str) -> None:
    with pytest.raises(ValidationError, match=r"--hos.*set serve.public: true"):
        spec(serve={"extra_args": words.split(" ")})
    assert spec(serve={"extra_args": words.split(" "), "public": True}).serve.public
    assert "public" not in spec().serve.model_dump(), "run folders of before have no such field"


def test_what_is_not_pinned_is_said(gpus: list[str], tmp_path: Path) -> None:
    """A branch can move; a commit and a folder cannot."""
    commit = "0" * 39 + "a"
    folder = checkpoint(tmp_path / "base")
    for given, said in (
        ({}, ["org/base"]),
        ({"revision": "main"}, ["org/base"]),
        ({"revision": commit}, []),
        ({"revision": commit, "adapter": "org/lora"}, ["org/lora"]),
        ({"revision": commit, "adapter": "org/lora", "adapter_revision": commit}, []),
        ({"checkpoint": folder}, []),
    ):
        (server,) = plan_servers([spec(**given)], tmp_path, resolve=False)
        assert [note.split(" is not pinned")[0] for note in server.notes if "pinned" in note] == said
        assert server.hub is not ("checkpoint" in given or "adapter" in given), "an adapter is merged into a copy here"


def test_a_commit_is_found_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--org--base"
    checkpoint(model / "snapshots" / ("b" * 40))
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("b" * 40)
    own = [spec("a"), spec("b", revision="c" * 40), spec("c", checkpoint="org/other"), spec("d", checkpoint="/folder")]
    assert commits(own) == {"a": "b" * 40, "b": "c" * 40}


@pytest.mark.engine
def test_a_sampled_seed_is_refused_on_cpu_only(cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = spec(checkpoint=checkpoint(tmp_path / "base"), sampling={"temperature": 0.7, "max_tokens": 8, "seed": 0})
    with pytest.raises(UserError, match=r"model m: sampling\.seed with a temperature above 0"):
        plan_servers([made], tmp_path)
    greedy = made.model_copy(update={"sampling": made.sampling.model_copy(update={"temperature": 0.0})})
    assert len(plan_servers([greedy], tmp_path)) == 1
    assert len(plan_servers([made], tmp_path, machine=Machine((Gpu("0"),), True), resolve=False)) == 1


def test_one_server_a_base(gpus: list[str], tmp_path: Path) -> None:
    specs = [
        spec("a"),
        spec("b", context_length=8192),
        spec("c", adapter=adapter(tmp_path / "c", 24)),
        spec("d", serve={"dtype": "float32"}),
        spec("e", checkpoint="org/other"),
        spec("f", checkpoint=None, endpoint={"base_url": "http://elsewhere/v1"}),
        spec("a"),
    ]
    first, second, third = plan_servers(specs, tmp_path, port=8000, resolve=False)
    assert values(first.argv, "--served-model-name") == ["a", "b"]
    assert value(first.argv, "--max-model-len") == "8192"
    assert values(first.argv, "--lora-modules") == [f"c={tmp_path / 'c'}"]
    assert value(first.argv, "--max-lora-rank") == "32"
    assert first.names == ["a", "b", "c"]
    assert (second.names, third.names) == (["d"], ["e"])
    assert [p.port for p in (first, second, third)] == [8000, 8001, 8002]
    assert len({p.log for p in (first, second, third)}) == 3


@pytest.mark.engine
def test_adapters_on_cpu_are_servers_of_merged_copies(cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def merged(owner: ModelSpec, base: Path, lora: Path) -> Path:
        made.append((owner.name, base, lora))
        return tmp_path / "merged" / lora.name

    monkeypatch.setattr(plan, "merged", merged)
    base = checkpoint(tmp_path / "base")
    specs = [
        spec("a", base),
        spec("b", base, adapter=adapter(tmp_path / "b")),
        spec("c", base, adapter=adapter(tmp_path / "c")),
    ]
    plans = plan_servers(specs, tmp_path)
    assert [value(p.argv, "--model") for p in plans] == [base, *(str(tmp_path / "merged" / n) for n in "bc")]
    assert [values(p.argv, "--served-model-name") for p in plans] == [["a"], ["b"], ["c"]]
    assert made == [("b", Path(base), tmp_path / "b"), ("c", Path(base), tmp_path / "c")]
    assert not any("--enable-lora" in p.argv for p in plans)
    assert len(plan_servers([seven_by_two(tmp_path / "7").model_copy(update={"checkpoint": base})], tmp_path)) == 14


@pytest.mark.engine
def test_a_lone_adapter_is_merged_on_gpus_too(gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, lora = checkpoint(tmp_path / "base"), adapter(tmp_path / "lora")
    monkeypatch.setattr(plan, "merged", lambda owner, folder, adapted: tmp_path / "merged" / f"{folder.name}-{adapted.name}")
    (alone,) = plan_servers([spec("a", base, adapter=lora)], tmp_path)
    assert value(alone.argv, "--model") == str(tmp_path / "merged" / "base-lora")
    assert values(alone.argv, "--served-model-name") == ["a"] and "--enable-lora" not in alone.argv and alone.adapters == {}
    (beside,) = plan_servers([spec("a", base, adapter=lora), spec("b", base)], tmp_path)
    assert value(beside.argv, "--model") == base and values(beside.argv, "--lora-modules") == [f"a={lora}"]
    two = [spec("a", base, adapter=lora), spec("c", base, adapter=adapter(tmp_path / "other"))]
    assert len(values(plan_servers(two, tmp_path)[0].argv, "--lora-modules")) == 2, "several share the base"
    (unmerged,) = plan_servers([spec("a", base, adapter=lora, serve={"merge_adapter": False})], tmp_path)
    assert values(unmerged.argv, "--lora-modules") == [f"a={lora}"]


def test_a_context_is_what_dialogues_need_and_the_spec_allows(tmp_path: Path) -> None:
    machine = Machine.parse("80")

    def context(length: int, tokens: int | None) -> int:
        needs = {"m": Workload(tokens)} if tokens else {}
        one = spec("m", "Qwen/Qwen1.5-7B-Chat", context_length=length)
        (server,) = plan_servers([one], tmp_path, resolve=False, machine=machine, needs=needs)
        assert value(server.argv, "--max-model-len") == str(server.context)
        return server.context

    assert context(32768, 3000) == 8192, "the least that a dialogue is given"
    assert context(32768, 12000) == 12000
    assert context(4096, 12000) == 4096
    assert context(32768, None) == 32768


def test_servers_get_their_own_gpus_or_share_them(gpus: list[str], tmp_path: Path) -> None:
    specs = [spec("a"), spec("b", "org/b"), spec("c", "org/c")]
    assert "CUDA_VISIBLE_DEVICES" not in plan_servers(specs[:1], tmp_path, resolve=False)[0].env
    two = plan_servers(specs[:2], tmp_path, resolve=False)
    assert [p.env["CUDA_VISIBLE_DEVICES"] for p in two] == ["0", "1"]
    assert not any("--gpu-memory-utilization" in p.argv or p.shares_gpu for p in two)
    three = plan_servers(specs, tmp_path, resolve=False)
    assert [p.env["CUDA_VISIBLE_DEVICES"] for p in three] == ["0", "1", "0"]
    assert all(p.shares_gpu for p in three)
    assert value(three[0].argv, "--gpu-memory-utilization") == "0.4500"


def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert machine.visible_gpus() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.visible_gpus() == [] and not machine.has_gpu()


@pytest.mark.engine
def test_hub_adapters_are_fetched_at_their_revision(gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[Any] = []

    def fetch(repo_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo_id, revision))
        return adapter(tmp_path / "fetched", 16)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    one = spec(
        checkpoint=checkpoint(tmp_path / "base"), adapter="org/lora", adapter_revision="abc", serve={"merge_adapter": False}
    )
    (server,) = plan_servers([one], tmp_path)
    assert asked == [("org/lora", "abc")]
    assert values(server.argv, "--lora-modules") == [f"m={tmp_path / 'fetched'}"]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: [spec(checkpoint=str(t / "no"))], "model m: checkpoint missing: .*/no does not exist"),
        (
            lambda t: [spec(checkpoint=checkpoint(t / "b"), adapter="./nothing")],
            "model m: adapter missing: ./nothing does not exist",
        ),
        (lambda t: [spec(checkpoint=checkpoint(t / "b"), adapter=adapter(t / "l", 513))], "adapter rank unsupported: 513"),
        (lambda t: [spec(serve={"tensor_parallel": 4})], "model m: serve.tensor_parallel 4 .* needs 4 GPUs, .* shows 2"),
        (lambda t: [spec(serve={"tensor_parallel": 2, "data_parallel": 2})], "needs 4 GPUs"),
        (
            lambda t: [spec("a", checkpoint(t / "a")), spec("b", checkpoint(t / "b"), endpoint={"model": "a"})],
            "two models would be served as 'a'",
        ),
        (
            lambda t: [spec(checkpoint=checkpoint(t / "b"), chat_template="no.jinja")],
            "model m: chat_template not found: no.jinja: known: chatglm3, mechat, vicuna",
        ),
    ],
)
def test_what_could_not_start_is_refused(make: Any, message: str, gpus: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        plan_servers(make(tmp_path), tmp_path)


def test_too_few_ports(gpus: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 servers need as many ports from 65535 on, and 65535 is the last"):
        plan_servers([spec("a"), spec("b", "org/b")], tmp_path, port=65535, resolve=False)
    two = plan_servers([spec("a"), spec("b", "org/b")], tmp_path, port=65534, resolve=False)
    assert [plan.port for plan in two] == [65534, 65535]


# ---- the command line


def run_app(*arguments: str) -> str:
    return printed(app, *arguments)


def test_print_needs_neither_vllm_nor_the_checkpoint(cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESC_EVAL_CACHE", str(tmp_path / "my cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    other = tmp_path / "other.yaml"
    other.write_text(spec("other", str(tmp_path / "missing"), adapter="org/lora").model_dump_json())
    printed = run_app("up", "embedded", str(other), "--print", "--port", "8100").splitlines()
    notes = [line for line in printed if line.startswith("#")]
    lines = [line for line in printed if not line.startswith("#")]
    first, second = map(shlex.split, lines)
    assert first[0] == "env" and "HF_HUB_OFFLINE=1" in first and "VLLM_USE_AOT_COMPILE=0" in first
    assert value(first, "--model") == str(tmp_path / "my cache" / "smollm2-135m-instruct")
    assert (value(first, "--port"), value(second, "--port")) == ("8100", "8101")
    assert any("python -m serve convert embedded" in note for note in notes)
    assert any("missing does not exist" in note for note in notes)
    assert not (tmp_path / "my cache").exists()


def test_nothing_to_start_is_an_error(tmp_path: Path) -> None:
    remote = tmp_path / "remote.yaml"
    remote.write_text(spec("r", endpoint={"base_url": "http://elsewhere/v1"}).model_dump_json())
    with pytest.raises(UserError, match="nothing to start"):
        run_app("up", str(remote))


_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)


MODEL = ("model", "org/fourteen")  # of 14B shape, whose weights are four bytes
SHAPE = json.dumps((known_architecture("Qwen/Qwen1.5-14B-Chat") or ("", {}))[1]).encode()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.repos[MODEL] = {"config.json": SHAPE, "model.safetensors": WEIGHTS}
        hub.repos[MODEL] |= {"pytorch_model.bin": b"a pickle", "tokenizer.json": b"{}"}
        yield hub


PLAN = """
import json, sys
from pathlib import Path
from core.errors import UserError
from core.machine import Machine
from serve.plan import plan_servers
from tests.serve.conftest import spec
gpus, commit = sys.argv[1:]
one = spec("m", "org/fourteen", revision=commit, context_length=8192)
try:
    (plan,) = plan_servers([one], Path("logs"), machine=Machine.parse(gpus))
except UserError as error:
    print(json.dumps({"error": str(error)}))
else:
    print(json.dumps({"argv": plan.argv, "env": plan.env, "hub": plan.hub}))
"""


def planned(hub: FakeHub, home: Path, gpus: str, **more: str) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_HUB_CACHE")}
    environment = kept | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"} | more
    command = [sys.executable, "-c", PLAN, gpus, hub.commit_of(MODEL)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(blind(), reason="a GPU's packages without a GPU: nothing is planned here")
def test_a_checkpoint_is_here_before_its_server_starts(hub: FakeHub, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    found = planned(hub, tmp_path, "80")
    folder = Path(found["argv"][found["argv"].index("--model") + 1])
    assert folder.is_relative_to(tmp_path) and (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert found["env"]["HF_HUB_OFFLINE"] == "1" and not found["hub"], "the server downloads nothing and needs no token"
    assert "--revision" not in found["argv"], "it is that commit's folder"
    assert sorted(hub.asked) == ["config.json", "model.safetensors", "tokenizer.json"], "each once, and no pickle"
    hub.asked.clear()
    again = planned(hub, tmp_path, "80", HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert again["argv"] == found["argv"] and hub.asked == [], "offline it is found in the cache"


@pytest.mark.slow
@pytest.mark.skipif(blind(), reason="a GPU's packages without a GPU: nothing is planned here")
def test_what_does_not_fit_is_refused_by_its_config_alone(hub: FakeHub, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    found = planned(hub, tmp_path, "24")
    assert found["error"].startswith("not enough memory on 1 × 24 GB for m:\n  m: weights 26.4")
    assert hub.asked == ["config.json"], "its weights were not downloaded"


def test_code_of_strangers_is_not_trusted_unasked(gpus: list[str], tmp_path: Path) -> None:
    (server,) = plan_servers([spec()], tmp_path, resolve=False)
    assert "--trust-remote-code" not in server.argv and "--enforce-eager" not in server.argv
