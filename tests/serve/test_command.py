"""The command line and the environment of each planned server."""

import sys
from pathlib import Path

import pytest

from core import machine
from core.errors import UserError
from core.machine import Gpu, Machine
from serve import command
from serve.command import MODULE, PORT, ServerPlan
from serve.plan import plan_servers
from tests.serve.conftest import adapter, checkpoint, spec
from tests.serve.test_plan import seven_by_two, value, values
from tests.vllm_parser import blind, server_parser


@pytest.mark.parametrize("words", ["--host 127.0.0.1", "--host=localhost", "--host ::1", "--hf-overrides {}", "--headless"])
def test_other_arguments_are_passed_on(words: str, gpus: list[str], tmp_path: Path) -> None:
    (server,) = plan_servers([spec(serve={"extra_args": words.split(" ")})], tmp_path, resolve=False)
    assert server.argv[-len(words.split(" ")) :] == words.split(" ")


def test_nobody_knows_the_user(cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's made-up user id, and no HOME: the cache has to be named, and servers are told a home and a name."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 987_654)
    for name in ("XDG_CACHE_HOME", "ESC_EVAL_CACHE", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="no home folder for the cache: set ESC_EVAL_CACHE"):
        plan_servers([spec(checkpoint="embedded:smollm2-135m-instruct")], tmp_path, resolve=False)
    monkeypatch.setenv("ESC_EVAL_CACHE", str(tmp_path / "cache"))
    (server,) = plan_servers([spec(checkpoint="embedded:smollm2-135m-instruct")], tmp_path, resolve=False)
    assert (server.env["HOME"], server.env["LOGNAME"]) == (str(tmp_path / "cache"), "uid-987654")


def test_gpu_flags(gpus: list[str], tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    options = {"tensor_parallel": 2, "dtype": "float16", "trust_remote_code": True, "reasoning_parser": "qwen3", "eager": True}
    one = spec(revision="abc", chat_template=str(template), serve={**options, "extra_args": ["--max-num-seqs", "64"]})
    (server,) = plan_servers([one], tmp_path, resolve=False)
    argv = server.argv
    assert argv[:3] == [sys.executable, "-m", MODULE]
    assert value(argv, "--model") == "org/base"
    assert value(argv, "--revision") == "abc"
    assert value(argv, "--host") == "127.0.0.1"
    assert value(argv, "--port") == PORT and value(server.command(8123), "--port") == "8123"
    assert value(argv, "--dtype") == "float16"
    assert value(argv, "--max-model-len") == "4096"
    assert value(argv, "--generation-config") == "vllm"
    assert value(argv, "--tensor-parallel-size") == "2"
    assert value(argv, "--chat-template") == str(template)
    assert value(argv, "--reasoning-parser") == "qwen3"
    assert {"--enforce-eager", "--trust-remote-code", "--disable-uvicorn-access-log"} < set(argv)
    assert argv[-2:] == ["--max-num-seqs", "64"]
    assert not {"--data-parallel-size", "--enable-lora", "--gpu-memory-utilization"} & set(argv)
    assert "HF_HUB_OFFLINE" not in server.env, "a hub id may have to be downloaded"
    assert not any(key.startswith("VLLM_CPU") for key in server.env)
    assert server.env["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.engine
def test_cpu_flags(cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 5, 7, 8})
    monkeypatch.setattr("os.getloadavg", lambda: (0.1, 3.0, 3.0))
    base = checkpoint(tmp_path / "base")
    (server,) = plan_servers([spec(checkpoint=base)], tmp_path)
    assert value(server.argv, "--model") == base
    assert float(value(server.argv, "--gpu-memory-utilization")) <= 0.3
    assert server.env["OMP_NUM_THREADS"] == "6"
    assert value(server.argv, "--distributed-executor-backend") == "uni" and server.env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert value(server.argv, "--block-size") == "32"
    assert server.env["VLLM_USE_AOT_COMPILE"] == "0"
    assert server.env["THP_MEM_ALLOC_ENABLE"] == "1"
    assert server.env["HF_HUB_OFFLINE"] == "1"
    assert "GOMP_SPINCOUNT" not in server.env
    monkeypatch.setattr("os.getloadavg", lambda: (1.2, 0.1, 0.1))
    assert plan_servers([spec(checkpoint=base)], tmp_path)[0].env["GOMP_SPINCOUNT"] == "1000", "something else wants a core"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (server,) = plan_servers([spec(checkpoint=base)], tmp_path)
    assert "OMP_NUM_THREADS" not in server.env, "the user's own setting stays"


@pytest.mark.engine
@pytest.mark.parametrize(("gib", "servers", "each"), [(24, 1, "6"), (24, 2, "3"), (24, 9, "1"), (2, 1, "1"), (512, 1, "16")])
def test_servers_on_a_cpu_share_a_quarter_of_its_memory(
    gib: int, servers: int, each: str, cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "memory", lambda: gib * 2**30)
    specs = [spec(f"m{i}", checkpoint=checkpoint(tmp_path / f"base{i}")) for i in range(servers)]
    plans = plan_servers(specs, tmp_path)
    assert [server.env["VLLM_CPU_KVCACHE_SPACE"] for server in plans] == [each] * servers
    assert not any(server.shares_gpu for server in plans)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert "VLLM_CPU_KVCACHE_SPACE" not in plan_servers(specs, tmp_path)[0].env, "the user's own setting stays"


def test_the_seven_by_two_form_on_gpu(gpus: list[str], tmp_path: Path) -> None:
    (server,) = plan_servers([seven_by_two(tmp_path)], tmp_path, resolve=False)
    modules = dict(item.split("=") for item in values(server.argv, "--lora-modules"))
    assert len(modules) == 14
    assert modules["rank.en.fluency"] == str(tmp_path / "en" / "fluency")
    assert modules["rank.zh.overall"] == str(tmp_path / "zh" / "overall")
    assert (value(server.argv, "--max-loras"), value(server.argv, "--max-lora-rank")) == ("14", "8")
    assert values(server.argv, "--served-model-name") == ["rank.base"]
    assert {"rank", "rank.en.skill"} < set(server.names)


def _planned(tmp_path: Path) -> list[ServerPlan]:
    """Every kind of command line that is planned."""
    unmerged = {"merge_adapter": False, "fp8": ["weights", "cache"]}
    eight = Machine(tuple(map(Gpu, "01234567")), True)
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    everything = {
        "tensor_parallel": 2,
        "data_parallel": 2,
        "eager": True,
        "trust_remote_code": True,
        "reasoning_parser": "qwen3",
    }
    plans = plan_servers(
        [
            spec("esc-role", "Qwen/Qwen1.5-14B-Chat", revision="abc", adapter=adapter(tmp_path / "lora", 24), serve=unmerged),
            spec("wide", "org/wide", chat_template=str(template), serve=everything),
            spec("many", "org/many", serve={"data_parallel": 16, "data_parallel_local": 8}),
            seven_by_two(tmp_path / "seven"),
        ],
        tmp_path,
        resolve=False,
        machine=eight,
    )
    if blind():
        return plans
    base = checkpoint(tmp_path / "base")
    cpu = spec("cpu", base, serve={"extra_args": ["--max-num-seqs", "8"]})
    return [*plans, *plan_servers([cpu], tmp_path, machine=Machine())]


@pytest.mark.slow
def test_vllm_itself_understands_every_planned_command(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    parser = server_parser()
    parsed = {}
    for server in _planned(tmp_path):
        parsed[server.name] = parser.parse_args(server.command(8000)[3:])
    assert list(parsed) == ["esc-role", "wide", "many", "rank", *([] if blind() else ["cpu"])]
    assert parsed["esc-role"].served_model_name == ["esc-role.base"] and parsed["esc-role"].max_lora_rank == 32
    assert (parsed["esc-role"].quantization, parsed["esc-role"].kv_cache_dtype) == ("fp8", "fp8")
    assert [(m.name, m.path) for m in parsed["esc-role"].lora_modules] == [("esc-role", str(tmp_path / "lora"))]
    assert (parsed["wide"].tensor_parallel_size, parsed["wide"].data_parallel_size) == (2, 2)
    many = parsed["many"]
    assert (many.data_parallel_size, many.data_parallel_size_local, many.data_parallel_backend) == (16, 8, "ray")
    assert parsed["wide"].trust_remote_code and parsed["wide"].enforce_eager and not parsed["rank"].trust_remote_code
    assert parsed["rank"].max_loras == len(parsed["rank"].lora_modules) == 14
    last = parsed.popitem()[1]
    assert last.port == 8000 and not last.enable_log_requests and last.generation_config == "vllm"
    assert blind() or (last.gpu_memory_utilization < 0.5 and last.max_num_seqs == 8)
    with pytest.raises(SystemExit):
        parser.parse_args(["--no-such-flag"])
