"""The shape of the house: what may import what, what the base install needs, what the Makefile offers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [Requirement(r) for r in given] for name, given in PROJECT["optional-dependencies"].items()}
MAY_IMPORT = {
    "core": set(),
    "serve": {"core"},
    "data_prep": {"serve", "core"},
    "evalsuite": {"data_prep", "serve", "core"},
    "train": {"data_prep", "serve", "core"},
}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_arrows_point_one_way(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            rooms = {name.split(".")[0] for name in names} & set(MAY_IMPORT) - {room}
            assert rooms <= MAY_IMPORT[room], f"{path.relative_to(ROOT)} imports {rooms}"


def test_the_harness_imports_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "deepspeed", "transformers", "scipy.stats", "statsmodels", "pandas")
    code = f"import sys, evalsuite.cli; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


BEHIND_AN_EXTRA = "evalsuite.fdaef.completions"  # subclasses lm-eval's client: imported inside functions only


def test_what_the_harness_imports_is_in_the_base_install() -> None:
    base = {canonicalize_name(Requirement(r).name) for r in PROJECT["dependencies"]}
    module_of = {"yaml": "pyyaml"}
    imported: set[str] = set()
    for room in ("core", "serve", "data_prep", "evalsuite"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:  # what is imported inside functions is optional
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert BEHIND_AN_EXTRA not in names, f"{path} needs the extra `tasks`"
                if path != ROOT / f"{BEHIND_AN_EXTRA.replace('.', '/')}.py":
                    imported |= {name.split(".")[0] for name in names}
    third_party = imported - set(sys.stdlib_module_names) - set(MAY_IMPORT)
    assert {canonicalize_name(module_of.get(name, name)) for name in third_party} <= base


def test_cpu_and_gpu_exclude_each_other() -> None:
    torch = {name: next(r for r in EXTRAS[name] if r.name == "torch").specifier for name in ("cpu", "gpu")}
    pins = {name: Version(str(spec).removeprefix("==")) for name, spec in torch.items()}
    assert pins["gpu"] not in torch["cpu"] and pins["cpu"] not in torch["gpu"]


def test_constraints_satisfy_the_project() -> None:
    lines = (ROOT / "configs" / "constraints-cpu.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    versions = {canonicalize_name(name): Version(version) for name, version in pinned.items()}
    installed = [*map(Requirement, PROJECT["dependencies"]), *(r for e in ("cpu", "data", "metrics", "dev") for r in EXTRAS[e])]
    for requirement in installed:
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} is not pinned"
        assert versions[name] in requirement.specifier, f"{name} {versions[name]} does not satisfy {requirement}"


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony is not None
    listed = subprocess.run(["make", "-s", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    for target in phony[1].split():
        assert re.search(rf"^  make {target}\s+\S", listed, re.M), f"make {target} has no ## comment"
