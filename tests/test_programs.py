"""The programs that an installation has: -h and --version everywhere, completion in a real bash; and the wheel as somebody
installs it, without a network: programs, servers and Python work, and a hidden package is named."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import run_cli
from esc_eval import ROOMS
from tests.surface import APPS, COMMANDS, VERBS, leaves

ROOT = Path(__file__).parents[1]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with the console scripts, as pip writes them, and an empty folder to work in."""
    for name, place in SCRIPTS.items():
        module, _, function = place.partition(":")
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def said(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, ""), command
    return run.stdout


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """What `esc-eval` tells a bash that asks for the end of a line."""

    def told(line: str) -> list[str]:
        monkeypatch.setenv("_ESC_EVAL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        with pytest.raises(SystemExit):
            APPS["esc-eval"](prog_name="esc-eval")
        return capsys.readouterr().out.split()

    return told


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("program", SCRIPTS)
def test_every_program_has_help_and_a_version(program: str) -> None:
    assert re.fullmatch(r"esc-eval \d+\.\d+\.\d+\S*\n", said(program, "--version"))
    assert f"Usage: {program} " in said(program, "-h")


@pytest.mark.slow
def test_a_room_runs_as_a_module_too() -> None:
    for module in ("data_prep", "serve", "train"):
        assert f"Usage: python -m {module} " in said(sys.executable, "-m", module, "-h")


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_short_option_for_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry, *words = verb.split()
    with pytest.raises(SystemExit) as end:
        run_cli(lambda: COMMANDS[entry].main(args=[*words, "-h"], prog_name=entry))
    assert end.value.code == 0 and f"Usage: {verb} " in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def runs(installed: Path) -> None:
    for run in ("mine", "esc_eval/a"):
        (installed / "runs" / run).mkdir(parents=True)
        (installed / "runs" / run / "calls.sqlite").touch()
    (installed / "runs" / "weights").mkdir()
    (installed / "runs" / "weights" / "config.json").touch()
    (installed / "judge-of-mine.yaml").touch()


@pytest.mark.usefixtures("runs")
def test_verbs_options_and_values_are_completed(completed: Callable[[str], list[str]]) -> None:
    for line, offered in {
        "esc-eval lead": ["leaderboard"],
        "esc-eval run --sup": ["--supporter"],
        "esc-eval run --judge embedded-r": ["embedded-ranker"],
        "esc-eval run --judge judge-": ["judge-of-mine.yaml"],
        "esc-eval run --supporter ./judge": ["./judge-of-mine.yaml"],
        "esc-eval run --language ": ["de", "en", "es", "hi", "zh"],
        "esc-eval report ": ["runs/esc_eval/a", "runs/mine"],
        "esc-eval leaderboard runs/mine runs/e": ["runs/esc_eval/a"],
        "esc-eval agree --rubric emo": ["emoharbor"],
    }.items():
        assert completed(line) == offered, line
    configs = completed("esc-eval run --config ")
    assert {Path(config).name for config in configs} >= {"demo.yaml", "esc_eval.yaml"}
    assert all(Path(config).exists() for config in configs)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("esc-eval leaderboard runs/mine runs/e", "runs/esc_eval/a"),
        pytest.param("esc-eval run --judge embedded-r", "embedded-ranker", marks=pytest.mark.full),
        pytest.param("esc-serve up embedded-r", "embedded-ranker", marks=pytest.mark.full),
        pytest.param("esc-data role-s", "role-sft", marks=pytest.mark.full),
        pytest.param("esc-train te", "test", marks=pytest.mark.full),
    ],
)
def test_a_real_bash_completes_every_program(line: str, offered: str) -> None:
    program = line.split()[0]
    bash = f"""
        eval "$({program} --show-completion bash)"
        function=$(complete -p {program} | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
        $function {program}
        echo "${{COMPREPLY[@]}}"
    """
    assert said("bash", "-c", bash).split() == [offered]


# Ctrl-C when this is imported: the first large package that each program needs.
INTERRUPTED = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("typer", "pydantic"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
STARTS = [
    *(f"from {place.partition(':')[0]} import {place.partition(':')[2]} as main; main()" for place in SCRIPTS.values()),
    *(f"runpy.run_module({room!r}, run_name='__main__')" for room in ("data_prep", "train", "serve")),
    *(f"runpy.run_path({str(path)!r}, run_name='__main__')" for path in sorted((ROOT / "train").glob("esc_*.py"))),
]


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_ctrl_c_while_a_program_loads_is_one_line(start: str) -> None:
    run = subprocess.run([sys.executable, "-c", INTERRUPTED + start], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "interrupted before anything was begun\n")


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_too_little_memory_is_said_at_once(start: str) -> None:
    limit = "import resource, runpy; resource.setrlimit(resource.RLIMIT_AS, (420 << 20, 420 << 20)); "
    run = subprocess.run(
        [sys.executable, "-c", limit + start], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout) == (2, "") and run.stderr.startswith("error: this process may use 420 MiB")
    assert run.stderr.count("\n") == 1


@pytest.mark.slow
def test_help_loads_no_verb() -> None:
    """So it is quick, and nothing that is wrong in a config or a plug-in can end it."""
    code = (
        "import runpy, sys\n"
        "sys.argv = ['esc-eval', '--help']\n"
        "try:\n    runpy.run_module('evalsuite.cli', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'pydantic', 'yaml', 'orjson', 'numpy', 'aiohttp'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in run.stdout.splitlines() if re.match("│ [a-z]", line)}
    assert run.stdout.endswith("\n[]\n") and listed >= {verb.split()[1] for verb in VERBS if verb.startswith("esc-eval ")}


def test_the_programs_stay_small() -> None:
    """What people have to know: verbs and options, counted as help shows them."""
    options = {
        typed: [option for option in leaf.params if option.param_type_name == "option" and option.name != "help"]
        for name, command in COMMANDS.items()
        for typed, leaf in leaves(command, name)
    }
    assert len(options) <= 45 and sum(map(len, options.values())) <= 300
    assert max(map(len, options.values())) <= 18


# --- as a wheel -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that the wheel is installed into."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    done = subprocess.run([*pip, "--target", site, ROOT], capture_output=True, text=True, timeout=200, check=False)
    assert not done.returncode, done.stderr
    return site


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python with these packages and this environment's others, but without the checkout, which a .pth file names (-S)."""

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(site), sysconfig.get_path("purelib")])
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return call


# A server is any program that answers /health: here one that serves a file of that name, below the guard.
USE = """
import json
import sys
from pathlib import Path
from esc_eval import load_run
from evalsuite.runs.framework import entries, framework_of
from serve.command import PORT, ServerPlan
from serve.launch import Servers

Path("health").touch()
with Servers([ServerPlan("s", "x", ["s"], [sys.executable, "-m", "http.server", PORT], {}, Path("server.log"))]) as servers:
    up = list(servers.endpoints)
print(json.dumps([len(load_run("run").dialogues), up, sorted(framework_of(name).name for name in entries())]))
"""


@pytest.mark.slow
@pytest.mark.full  # CI replays a run from a wheel on each change
def test_programs_servers_and_python_work_from_it(site: Path, python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"bin", "configs", "esc_eval.py", *ROOMS}
    for program in ("esc-eval", "esc-data", "esc-train", "esc-serve"):
        assert f"Usage: {program} " in python(site / "bin" / program, "--help").stdout
    config = site / "configs" / "eval" / "demo.yaml"
    run = python(site / "bin" / "esc-eval", "run", "--config", config, "--set", "replay=demo", "--out", "run")
    assert "A replay of demo" in run.stdout, run.stderr
    used = python("-c", USE)
    dialogues, up, frameworks = json.loads(used.stdout.splitlines()[-1])
    assert (dialogues, up) == (24, ["s"]) and {"esc_eval", "emoharbor", "feel"} <= set(frameworks)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_a_package_that_hides_one_of_ours_is_named(room: str, tmp_path: Path) -> None:
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").touch()
    command = [sys.executable, "-S", "-c", "from esc_eval import esc_eval; esc_eval()", "doctor"]
    path = os.pathsep.join([str(tmp_path), str(ROOT), sysconfig.get_path("purelib")])
    run = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1 and f"belongs to another package called {room}" in run.stderr and "Traceback" not in run.stderr
