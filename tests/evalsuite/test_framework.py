"""The door of a framework: one of somebody else's runs from end to end, by one module and one entry point."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import yaml

from core.errors import UserError
from core.files import read_jsonl
from core.records import Dialogue, RoleCard
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import entries, framework_of, frameworks
from tests.conftest import EscEval
from tests.endpoint import Endpoint
from tests.evalsuite import example_framework
from tests.evalsuite.example_framework import WarmLine
from tests.evalsuite.test_faults import one_line

MODELS = {"seeker": "embedded", "supporters": ["embedded"], "judge": "embedded", "languages": ["en"]}


def install(folder: Path, package: str, name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings a framework."""
    installed = folder / "site" / f"{package.replace('-', '_')}-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[esc_eval.frameworks]\n{name} = {place}\n")
    monkeypatch.syspath_prepend(str(installed.parent))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config of the example, which is installed as a package of its own would be."""
    install(tmp_path, "warm-line", "warm_line", "tests.evalsuite.example_framework:WarmLine", monkeypatch)
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"framework": "warm_line", **MODELS, "patience": 0, "out": "run"}))
    return path


def test_a_framework_of_ones_own_runs_resumes_and_is_reported(esc_eval: EscEval, tmp_path: Path, config: Path) -> None:
    with Endpoint(models=("embedded",)) as endpoint:
        command = ("run", "--config", config, "--set", f"endpoints.embedded={endpoint.url}")
        assert esc_eval(*command) == (0, "")
        asked = len(endpoint.requests)
        assert asked == 2 * (4 + 1), "two callers, two exchanges of two turns, one verdict"
        assert any("worried: My exam" in str(body["messages"]) for body in endpoint.requests)
        assert esc_eval(*command) == (0, "") and len(endpoint.requests) == asked
    run = tmp_path / "run"
    dialogues = read_jsonl(run / "dialogues.jsonl", Dialogue, "dialogues")
    assert {dialogue.framework for dialogue in dialogues} == {"warm_line"} and dialogues[0].turns[0].role == "seeker"
    assert len(read_jsonl(run / "cards.jsonl", RoleCard, "cards")) == 2
    assert orjson.loads((run / "config.json").read_bytes())["simulate"]["cards"]["count"] == 2
    report = (run / "report.md").read_text()
    assert "Warm line · run" in report and "turns per call" in report and "one worry each" in report
    settings = yaml.safe_load(config.read_text()) | {"warm_line": {"worries": ["Nobody calls."]}}
    config.write_text(yaml.safe_dump(settings))
    one_line(esc_eval("run", "--config", config), 2, "was made with another caller-0: problem: ")


def test_a_framework_is_named_by_its_place_without_being_installed(esc_eval: EscEval, tmp_path: Path) -> None:
    """Its section takes no unknown field, though its author said nothing of that."""
    place = f"{WarmLine.__module__}:WarmLine"
    settings = {"framework": place, **MODELS, "patience": 0, "out": "run"}
    Path("c.yaml").write_text(yaml.safe_dump(settings))
    with Endpoint(models=("embedded",)) as endpoint:
        command = ("run", "--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}")
        assert esc_eval(*command, "--set", "warm_line.worries=[I moved.]") == (0, "")
        code, err = esc_eval(*command, "--set", "warm_line.worry=I moved.")
        assert esc_eval(*command, "--set", "gold=5", "--set", "gold.limit=3")[1].startswith(
            "error: --set gold.limit: gold is already 5"
        )
        assert code == 2 and "--set warm_line.worry: unknown field 'worry': did you mean worries?" in err
    assert "Warm line · run" in Path("run/report.md").read_text()
    Path("c.yaml").write_text(yaml.safe_dump(settings | {"warm_line": {"worry": ["I moved."]}}))
    one_line(esc_eval("run", "--config", "c.yaml", "--out", "other"), 2, "c.yaml:", "warm_line.worry: unknown field")
    Path("c.yaml").write_text(yaml.safe_dump(settings | {"framework": "no_such_package:WarmLine"}))
    code, err = esc_eval("run", "--config", "c.yaml", "--out", "other")
    assert code == 2 and "framework no_such_package:WarmLine cannot be loaded: No module named 'no_such_package'" in err


@pytest.mark.slow
def test_the_program_itself_finds_a_framework_where_it_is_called(tmp_path: Path) -> None:
    """An installed program has its own folder on `sys.path`, not that of the user."""
    (tmp_path / "of_mine.py").write_text(Path(str(example_framework.__file__)).read_text())
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"framework": "of_mine:WarmLine", **MODELS}))
    command = [str(Path(sys.executable).with_name("esc-eval")), "run", "--config", "c.yaml", "--plan"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_package_that_cannot_be_loaded_ends_no_run_of_another_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "broken-line", "broken", "no_such_package:Broken", monkeypatch)
    others = [name for name in entries() if name != "broken"]
    assert "esc_eval" in others and [f.name for f in frameworks()] == others == [f.name for f in frameworks()]
    warned = "warning: framework broken (package broken-line) cannot be loaded: No module named 'no_such_package'"
    assert capsys.readouterr().err == f"{warned}; it is left out\n"
    with pytest.raises(UserError, match="framework broken .package broken-line. cannot be loaded"):
        framework_of("broken")


BASE = f"from {WarmLine.__module__} import WarmLine\n"


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("WarmLine = 3", "a class with a name, derived from DialogueFramework, is expected"),
        ("class WarmLine:\n    name = 'x'", "a class with a name, derived from DialogueFramework, is expected"),
        (f"{BASE}WarmLine = type('WarmLine', (WarmLine,), {{'name': ''}})", "a class with a name"),
        ("never_defined", "cannot be loaded: NameError: name 'never_defined' is not defined"),
        (
            f"{BASE}people = WarmLine.people\nWarmLine = type('Mine', (WarmLine,), {{'people': lambda s: people(s) * 2}})",
            "duplicate ids of people: caller-0, caller-1",
        ),
    ],
)
def test_a_framework_of_ones_own_that_is_wrong_is_one_line(
    module: str, told: str, esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "line_of_mine", raising=False)
    (tmp_path / "line_of_mine.py").write_text(module)
    Path("c.yaml").write_text(yaml.safe_dump({"framework": "line_of_mine:WarmLine", **MODELS}))
    one_line(esc_eval("run", "--config", "c.yaml", "--plan"), 2, told)


def test_its_fields_belong_to_it_alone(tmp_path: Path, config: Path) -> None:
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(settings | {"cards": ["bundled"]}))
    with pytest.raises(UserError, match=r"cards: belongs to framework esc_eval, this config's is warm_line"):
        load_config(config, {})
    config.write_text(yaml.safe_dump(settings | {"framework": "esc_eval", "warm_line": {}}))
    with pytest.raises(UserError, match=r"warm_line: belongs to framework warm_line, this config's is esc_eval"):
        load_config(config, {})


def test_frameworks_are_known_by_name(tmp_path: Path) -> None:
    assert list(entries())[:3] == ["esc_eval", "emoharbor", "feel"] and "warm_line" not in entries(), "it is not installed here"
    assert issubclass(framework_of("esc_eval"), DialogueFramework) and not issubclass(framework_of("feel"), DialogueFramework)
    with pytest.raises(UserError, match="unknown framework 'esc_evl'.*esc_eval"):
        framework_of("esc_evl")
    path = tmp_path / "c.yaml"
    path.write_text("framework: feel\n")
    with pytest.raises(UserError, match="framework: feel .*esc-eval paper feel"):
        load_config(path, {})
