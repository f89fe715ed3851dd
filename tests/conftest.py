"""Shared by all tests: the command line as a user types it, and one embedded vLLM server for everything that needs a model."""

import gc
import os
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest
import typer.main
import yaml
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from core.errors import UserError
from core.files import CONFIGS
from core.paths import OUT_FILE, RUNNING, Writes, alike
from core.specs import ModelSpec, load_spec
from serve.launch import Servers
from serve.plan import plan_servers

# Few examples in every run, many in `make test-full` (--hypothesis-profile full). How long one takes says how busy the machine
# is, not whether the code is right.
settings.register_profile("few", deadline=None, max_examples=10)
settings.register_profile("full", deadline=None, max_examples=100)
settings.load_profile("few")


# A program's command line is made from its functions once a process: that takes as long as a small verb.
typer.main.get_command = cache(typer.main.get_command)

# A worker inherits the 80 columns that readline leaves in its parent, and consoles would keep them for good.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

WORKER = os.environ.get("PYTEST_XDIST_WORKER")  # which of several processes this is that share the tests
SHARED = WORKER is not None

# With `pytest -n` (make test) a worker takes a group of modules at a time, a module where there is none: what a group needs is
# started or loaded once. The server loads while the first of its modules runs tests that need none.
ONE_SERVER = ("tests/evalsuite/test_ecdbench_run.py", "tests/evalsuite/test_real_model.py")
# Loading torch and what trains with it takes as long as 400 small tests.
TORCH = (
    *(
        "tests/train/",
        "tests/test_config_files.py",
        "tests/test_first_errors.py",
        "tests/bench/test_gpu_check.py",
        "tests/evalsuite/test_push.py",
    ),
    *(f"tests/serve/test_{name}" for name in ("chatglm", "embedded", "engines", "internlm2", "merge")),
)
BROWSER = (
    "tests/evalsuite/test_report_",
    *(f"tests/evalsuite/test_people_{name}.py" for name in ("browser", "chat", "profiles")),
)
# The longest begin, so that all workers end at the same time.
GROUPS = {"server": ONE_SERVER, "torch": TORCH, "slurm": ("tests/launch/",), "browser": BROWSER}


def module(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def group(nodeid: str) -> str:
    """Tests of the same group run one after the other in the same worker."""
    return next((name for name, begins in GROUPS.items() if nodeid.startswith(begins)), module(nodeid))


class Groups(LoadScopeScheduling):
    """Which tests go to the same worker: xdist's own `--dist loadgroup` finds no groups under pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules whose tests are all slow are not imported where slow ones are left out: many load torch."""
    if "not slow" not in config.option.markexpr or not collection_path.match("test_*.py"):
        return None
    return (
        bool(re.search(r"^pytestmark = [^\n]*(\[[^\]]*)?\b(slow|browser|full)\b", collection_path.read_text(), re.MULTILINE))
        or None
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every second worker reads the modules from the last to the first: where nothing is compiled yet, each compiles half."""
    report = yield
    if WORKER in ("gw1", "gw3") and isinstance(collector, pytest.Session | pytest.Dir):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "esc_eval" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)  # a verb from its options to its files
    users = {module(item.nodeid) for item in items if "embedded" in getattr(item, "fixturenames", ())}
    if users - set(ONE_SERVER):
        raise pytest.UsageError(
            f"{users - set(ONE_SERVER)}: use the shared server, so ONE_SERVER of tests/conftest.py names them"
        )
    if SHARED:
        place = {name: number for number, name in enumerate(GROUPS)}
        items.sort(key=lambda item: (place.get(group(item.nodeid), len(place)), module(item.nodeid)))


def pytest_collection_finish() -> None:
    """What is imported by now stays: no garbage collection looks through torch, vLLM and all tests again."""
    gc.collect()
    gc.freeze()


# For a vLLM of a test's own: two threads would wait for each other whenever somebody else has a core.
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}

# Of a run folder: kept stage by stage.
GROWING = {"config.json", "usage.json", "timing.json", "failures.json", "versions.json", "looks.json"}


@pytest.fixture(autouse=True)
def only_what_is_declared_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a verb runs, whatever is moved into its output folder has to be among the files that the option declares: the check
    that no input is replaced goes by them."""
    replace = Path.replace

    def checked(self: Path, target: Path) -> Path:
        named = {path.resolve() for option in RUNNING.get() if option.role == OUT_FILE for path in option.paths}
        for option in () if target.resolve() in named else RUNNING.get():
            for folder in option.paths if isinstance(option.role, Writes) and option.role.files else ():
                if target.resolve().is_relative_to(folder.resolve()) and target.name not in GROWING:
                    name = target.resolve().relative_to(folder.resolve()).as_posix()
                    declared = any(alike(name, pattern) for pattern in option.role.files)
                    assert declared or name.startswith("."), f"{option.name}: {name} is not among {option.role.files}"
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", checked)


@pytest.fixture(autouse=True)
def no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is a process of its own to providers: a later one may get the port of an endpoint that stated a rate."""
    monkeypatch.setattr("serve.transport.RATES", {})


class Program(Protocol):
    """A program as its console script runs it: its entry point, its name and arguments → (exit code, stdout, stderr)."""

    def __call__(self, main: Callable[[], object], *words: object) -> tuple[int, str, str]: ...


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Program:
    def call(main: Callable[[], object], *words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", [*map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


class EscEval(Protocol):
    """The `esc-eval` command: arguments → (exit code, stderr)."""

    def __call__(self, *arguments: object) -> tuple[int, str]: ...


@pytest.fixture
def esc_eval(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EscEval:
    """Runs the console script's entry point in an empty folder."""
    monkeypatch.chdir(tmp_path)

    from evalsuite import cli

    def call(*arguments: object) -> tuple[int, str]:
        code, _, said = program(cli.main, "esc-eval", *arguments)
        return code, said

    return call


@dataclass(frozen=True)
class Embedded:
    """The shared server: the spec that it was started from (in fp32, eager: its answers repeat exactly), its address, and
    what it said of its cache."""

    spec_file: Path
    spec: ModelSpec
    url: str
    caches: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Start:
    """`begin` starts the shared server, once; `up` waits until it answers, and raises what keeps it from starting."""

    begin: Callable[[], object]
    up: Callable[[], Embedded]


@pytest.fixture(scope="session", autouse=True)
def starting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The shared server, begun with the session if any of its tests needs it: it loads for half a minute beside the others.
    Of several workers, the one begins it that comes to its group."""
    if not any("embedded" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield Start(lambda: None, lambda: pytest.fail("no test of this session asked for the server"))
        return
    folder = tmp_path_factory.mktemp("embedded")
    settings = yaml.safe_load((CONFIGS / "models" / "embedded.yaml").read_text())
    settings |= {"name": "embedded-fp32", "serve": settings["serve"] | {"dtype": "float32"}}
    settings["sampling"] = {"temperature": 0.0, "max_tokens": 24}
    spec_file = folder / "embedded-fp32.yaml"
    spec_file.write_text(yaml.safe_dump(settings))
    spec = load_spec(str(spec_file))
    try:
        servers = Servers(plan_servers([spec], folder / "logs"))
    except UserError as error:  # the affair of the tests that need it, not of all
        said = str(error)
        yield Start(lambda: None, lambda: pytest.fail(said))
        return

    if SHARED:
        for plan in servers.plans:
            plan.env.update(ONE_THREAD)

    @cache
    def begun() -> list[Any]:
        return [servers._start(plan) for plan in servers.plans]  # `with servers:` would wait at once

    def up() -> Embedded:
        servers._wait(begun())
        return Embedded(spec_file, spec, servers.endpoints[spec.name], servers.caches)

    try:
        if not SHARED:
            begun()
        yield Start(begun, up)
    finally:
        servers.stop()


@pytest.fixture(autouse=True)
def beginning(request: pytest.FixtureRequest, starting: Start) -> None:
    if module(request.node.nodeid) in ONE_SERVER:
        starting.begin()


@pytest.fixture(scope="session")
def embedded(starting: Start) -> Embedded:
    """One vLLM server with the embedded model for the whole test session."""
    return starting.up()
