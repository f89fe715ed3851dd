"""What somebody reads who starts a program on a machine that lacks something: a package, a GPU, a driver new enough. One line,
which names it and the way on."""

import ast
import importlib.util
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from core import errors, machine
from core.errors import UserError, need_modules, run_cli
from core.settings import load_yaml
from tests.surface import COMMANDS, leaves
from tests.test_house import EXTRAS, FILES, MAY_IMPORT, PROJECT, ROOT

SCRIPTS = sorted((ROOT / "train").glob("esc_*.py"))
RECIPES = ROOT / "configs" / "train"
ON_GPUS = [path for path in sorted(RECIPES.glob("*.yaml")) if not load_yaml(path, "recipe").get("use_cpu")]
SMI = """#!/bin/sh
case "$*" in
  -L) echo "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)";;
  *name,driver_version*) echo "NVIDIA A100-SXM4-80GB, {driver}";;
  *driver_version*) echo {driver};;
  *) echo "0, GPU-1, 81920, 4";;
esac
"""
FIND_SPEC = importlib.util.find_spec  # before a test hides packages
COME_ALONG = {"h11": "uvicorn", "httpx": "huggingface_hub", "pyarrow": "datasets", "starlette": "fastapi"}
COME_ALONG["spacy"] = "presidio_analyzer"


@pytest.fixture
def on_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A machine whose nvidia-smi tells this version of the driver; it fails for `fails`, and is not there for an empty one."""

    def put(driver: str) -> None:
        (tools := tmp_path / "tools").mkdir()
        if driver:
            (tools / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n" if driver == "fails" else SMI.format(driver=driver))
            (tools / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", str(tools))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(machine, "_kernel_module", lambda: "")

    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    return put


DRIVERS = {
    "": "no GPU found (no nvidia-smi): install NVIDIA's driver, or in a container pass the GPUs",
    "fails": "nvidia-smi fails: load the driver",
    "535.104.05": "NVIDIA driver 535.104.05: vLLM 0.33 and torch are built for CUDA 13, which needs driver 580 or newer",
}


def fails(call: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a program ends with, as exit code 2."""
    with pytest.raises(SystemExit) as end:
        run_cli(call)
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1, error
    return error


Trains = Callable[..., str]


@pytest.fixture
def trains(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trains:
    """Starts a recipe's script, and returns the one line that it ends with."""

    def start(recipe: Path, *more: str) -> str:
        script = str(ROOT / "train" / f"esc_{load_yaml(recipe, 'recipe')['task']}.py")
        monkeypatch.setattr(sys, "argv", [script, "--config", str(recipe), *more])
        return fails(partial(runpy.run_path, script, run_name="__main__"), capsys)

    return start


@pytest.mark.slow
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_training_script_and_recipe_names_the_driver(
    driver: str, on_machine: Callable[[str], None], trains: Trains
) -> None:
    on_machine(driver)
    assert {load_yaml(path, "recipe")["task"] for path in ON_GPUS} == {path.stem.removeprefix("esc_") for path in SCRIPTS}
    for recipe in ON_GPUS:
        error = trains(recipe)
        assert f"{recipe}: no GPU to train on" in error and DRIVERS[driver] in error and "esc-eval doctor" in error
        assert "assign use_cpu" not in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "recipe", "more", "problem"),
    [
        ("", "esc_role_qwen1.5_14b", ("--bf16", "false"), DRIVERS[""]),  # fp32 too: transformers refuses bf16 alone there
        ("580.65.06", "esc_supporter", (), " finds none: pip install 'esc-eval[gpu]'"),  # new enough: torch says what lacks
    ],
)
def test_nothing_trains_on_the_cpu_unasked(
    driver: str, recipe: str, more: tuple[str, ...], problem: str, on_machine: Callable[[str], None], trains: Trains
) -> None:
    on_machine(driver)
    assert problem in trains(RECIPES / f"{recipe}.yaml", *more)


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
def test_a_quantised_base_names_its_package_before_data_and_base(trains: Trains, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *name: None if name == ("bitsandbytes",) else FIND_SPEC(*name))
    error = trains(RECIPES / "esc_role_qwen3_8b_qlora.yaml", "--use_cpu", "true")
    assert error == "error: load_in_4bit needs bitsandbytes, not installed here: pip install 'esc-eval[qlora]'\n"


@pytest.mark.engine
@pytest.mark.parametrize("driver", [*DRIVERS, "580.65.06"])
def test_what_serves_with_cuda_names_the_driver_before_anything_is_downloaded(
    driver: str,
    on_machine: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (package := tmp_path / "site" / "vllm-0.33.0.dist-info").mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    monkeypatch.syspath_prepend(package.parent)
    on_machine(driver)

    def up() -> None:
        from serve.command import check_installed

        if driver in DRIVERS:
            COMMANDS["serve"].main(args=["up", "qwen1.5-7b-chat"], prog_name="serve")
        check_installed(["m"], router=False)
        raise UserError("it would start")

    error = fails(up, capsys)
    named = f"qwen1.5-7b-chat: vLLM 0.33.0 needs an NVIDIA GPU: {DRIVERS[driver]}" if driver in DRIVERS else "would start"
    assert named in error


def test_a_variable_that_hides_every_gpu_is_named(on_machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    on_machine("580.65.06")
    assert machine.gpu_problem() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.gpu_problem() == ("CUDA_VISIBLE_DEVICES= hides every GPU", "unset it, or name a GPU")


# --- packages -------------------------------------------------------------------------------------------------------------


def third_party() -> Iterator[tuple[str, str]]:
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for package in {name.partition(".")[0] for name in names} - {*MAY_IMPORT, "esc_eval"}:
                if package not in sys.stdlib_module_names:
                    yield package, module


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without any extra, of this project as pyproject.toml has it."""
    needed = [f"{line}; extra == '{extra}'" for extra, lines in EXTRAS.items() for line in lines]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: [*PROJECT["dependencies"], *needed])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
def test_every_import_beyond_the_base_install_has_an_extra() -> None:
    base = {Requirement(line).name.replace("pyyaml", "yaml") for line in PROJECT["dependencies"]}
    for package, module in {package: module for package, module in third_party() if package not in base}.items():
        with pytest.raises(UserError, match=f"{module} needs .*pip install 'esc-eval\\["):
            need_modules(COME_ALONG.get(package, package), purpose=module)


@pytest.mark.parametrize(
    ("modules", "way"),
    [
        (("trl", "peft"), "run `make setup`, or pip install 'esc-eval[gpu]' on a GPU node"),
        (("lm_eval",), "run `make setup`, or pip install 'esc-eval[tasks]'"),
        (("torch", "huggingface_hub"), "run `make setup`, or pip install 'esc-eval[gpu,hub]' on a GPU node"),
        (("trackio",), "not installed here: pip install 'esc-eval[trackio]'"),
        (("bitsandbytes",), "not installed here: pip install 'esc-eval[qlora]'"),
        (("presidio_analyzer", "presidio_anonymizer"), "not installed here: pip install 'esc-eval[anonymise]'"),
        (("unheard_of",), "not installed here: run `make setup`, or install it"),
    ],
)
@pytest.mark.usefixtures("bare")
def test_a_missing_package_is_said_with_what_brings_it(modules: tuple[str, ...], way: str) -> None:
    with pytest.raises(UserError) as error:
        need_modules(*modules, purpose="this")
    assert str(error.value).endswith(way)


def test_make_setup_installs_what_it_is_named_for() -> None:
    """The extras that it leaves out are those with a package which is not among its pins."""
    lines = (ROOT / "configs" / "constraints-cpu.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    lacking = {extra for extra, needed in EXTRAS.items() if {canonicalize_name(line.name) for line in needed} - pinned}
    assert lacking - {"gpu", "docs"} == errors._NOT_SET_UP


# Runs in a process that sees the base install alone: what each program says to a verb, or a script to a recipe.
BARE = """
import contextlib, importlib, io, json, runpy, sys
from importlib.machinery import PathFinder
root, base, given = sys.argv[1], set(json.loads(sys.argv[2])), json.loads(sys.argv[3])
class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        seen = top in base or top in sys.stdlib_module_names or top.startswith("_")
        return PathFinder.find_spec(name, path, target) if seen else None
sys.meta_path = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
sys.path.insert(0, root)
for program, *words in given:
    sys.argv = [program, *words]
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_path(program, run_name="__main__") if program.endswith(".py") else importlib.import_module(program).main()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        code = repr(error)
    print(json.dumps([code, err.getvalue()]))
"""
PROGRAMS = {
    "esc-eval": "evalsuite.cli",
    "data_prep": "data_prep.__main__",
    "serve": "serve.__main__",
    "train": "train.__main__",
}


@pytest.mark.slow
def test_in_the_base_install_no_program_ends_in_a_traceback(tmp_path: Path) -> None:
    """Every verb of every program can be loaded; what then needs an extra says so."""
    from importlib.metadata import distribution, packages_distributions

    names, waiting = set[str](), ["esc-eval"]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in names:
            names.add(name)
            lines = map(Requirement, distribution(name).requires or [])
            waiting += [line.name for line in lines if not line.marker or line.marker.evaluate({"extra": ""})]
    base = [top for top, owners in packages_distributions().items() if {o.lower().replace("_", "-") for o in owners} & names]
    base += MAY_IMPORT
    verbs = [
        [PROGRAMS[name], *verb, "-h"] for name, command in COMMANDS.items() for verb in map(str.split, dict(leaves(command)))
    ]
    recipe = {path.stem: next(p for p in ON_GPUS if load_yaml(p, "recipe")["task"] in path.stem) for path in SCRIPTS}
    trains = [[str(path), "--config", str(recipe[path.stem])] for path in SCRIPTS]
    trains += [["train.__main__", "plan", str(ON_GPUS[0])]]
    trains += [["train.__main__", "test", str(ON_GPUS[0]), "--out", str(tmp_path / "out")]]
    command = [sys.executable, "-c", BARE, str(ROOT), json.dumps(base), json.dumps([*verbs, *trains])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    for words, (code, error) in zip([*verbs, *trains], told, strict=True):
        if words in trains:
            assert code == 2, (words, code, error)
            assert error.count("\n") == 1 and "pip install 'esc-eval[gpu]' on a GPU node" in error, (words, error)
        else:
            assert (code, error) == (0, ""), (words, error)
    assert not (tmp_path / "out").exists()
