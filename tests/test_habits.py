"""What the forge, containers and commits are checked with, by the programs that read these files."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.conftest import GROUPS

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONTAINERS = sorted((ROOT / "configs" / "containers").glob("*.Containerfile"))


def passes(*command: str | Path) -> None:
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_what_the_forge_reads_is_valid_by_its_own_schemas() -> None:
    forge = ROOT / ".github"
    forms = [path for path in (forge / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    files = {
        "github-workflows": WORKFLOWS,
        "github-issue-forms": forms,
        "github-issue-config": [forge / "ISSUE_TEMPLATE/config.yml"],
        "dependabot": [forge / "dependabot.yml"],
    }
    assert WORKFLOWS and len(forms) == 3
    for schema, paths in files.items():
        passes(BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *paths)


def test_every_python_that_the_metadata_promise_is_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = SpecifierSet(project["requires-python"])
    promised = {version for version in (f"3.{minor}" for minor in range(100)) if version in required}
    named = {line.split()[-1] for line in project["classifiers"] if re.search(r":: Python :: 3\.\d", line)}
    jobs = yaml.safe_load(WORKFLOWS[0].read_text())["jobs"]
    assert promised == named == set(jobs["install"]["strategy"]["matrix"]["python"])
    pinned = {
        step["with"]["python-version"]
        for name, job in jobs.items()
        for step in job["steps"]
        if "with" in step and "python-version" in step["with"] and name != "gpu-set"
    }
    assert pinned - {"${{ matrix.python }}"} == {min(promised)}


def test_what_the_workflow_runs_exists() -> None:
    """Its scripts, what they run of ours, and all their targets."""
    steps = [step for job in yaml.safe_load(WORKFLOWS[0].read_text())["jobs"].values() for step in job["steps"]]
    scripts = set(re.findall(r"bash (\.ci/\w+)", "\n".join(step.get("run", "") for step in steps)))
    assert scripts == {".ci/run", ".ci/full"}
    code = "\n".join((ROOT / script).read_text() for script in scripts)
    assert all((ROOT / name).is_file() for name in re.findall(r"^\.ci/\w+", code, re.MULTILINE))
    code += "".join(f"\n{step.get('run', '')}" for step in steps)
    commands = re.findall(r"^\s*make (.+)", code, re.MULTILINE)
    targets = {word for line in commands for word in line.split() if "=" not in word}
    makefile = (ROOT / "Makefile").read_text()
    assert targets and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("file", CONTAINERS, ids=lambda path: path.stem)
def test_a_container_file_is_clean_and_names_what_is_here(file: Path) -> None:
    # DL3013, DL3042: versions are in the constraints; no cache is kept by the variable.
    passes(BIN / "hadolint", "--ignore", "DL3013", "--ignore", "DL3042", file)
    text = file.read_text()
    constraints, extras = re.findall(r"-c (\S+) (?:-e )?'\.\[([\w,]+)\]'", text)[0]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert (ROOT / constraints).is_file() and set(extras.split(",")) <= known.keys()
    assert re.search(r"^USER (?!root)", text, re.MULTILINE), "it would run as root"


@pytest.mark.slow
def test_the_hooks_of_a_commit_are_a_config_that_pre_commit_takes() -> None:
    file = ROOT / ".pre-commit-config.yaml"
    passes(BIN / "pre-commit", "validate-config", file)
    for hook in yaml.safe_load(file.read_text())["repos"][0]["hooks"]:
        assert (BIN / Path(hook["entry"].split()[0]).name).exists()


def test_base_dependencies_end_before_their_next_major() -> None:
    """Of those whose first number says that something may break."""
    for requirement in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]):
        assert any(part.operator in ("<", "==", "~=") for part in requirement.specifier), f"{requirement} has no upper bound"


def test_groups_of_tests_are_of_modules_that_are_there() -> None:
    """Else what a worker loads once is loaded by each."""
    begins = [begin for group in GROUPS.values() for begin in group]
    assert [begin for begin in begins if not [*ROOT.glob(f"{begin}*")]] == []


def test_no_test_depends_on_what_lies_outside_its_folder() -> None:
    """A path below the root that is "not there" is there on somebody's machine."""
    invented = re.compile(r"""["'=](/(?:no|missing|absent|none|such|nothing|nowhere|does)[\w-]*(?:/[\w./-]*)?)["']""")
    # A page of the raters' server, and a home that a simulated job is given.
    others = {("test_people_access.py", "/nowhere"), ("test_launch_files.py", "/nonexistent")}
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    found = {(path.name, match[1]) for path in files for match in invented.finditer(path.read_text())}
    assert found <= others
