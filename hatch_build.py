"""How the wheel is made of the rooms: all of them below one package, `esc_eval`.

`core`, `serve` or `train` at the top of somebody's site-packages would meet packages of the same name. So pyproject.toml moves
every room, and this hook puts a copy in place of each module: there `from core.files import …` is `from esc_eval.core.files
import …`, and programs are named as they are installed (`esc-serve` for `python -m serve`). An editable installation is the
checkout itself, and stays as it is.
"""

from __future__ import annotations

import ast
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "esc_eval"
ROOMS = ("configs", "core", "data_prep", "evalsuite", "serve", "train")
PROGRAMS = {"data_prep": "esc-data", "serve": "esc-serve", "train": "esc-train"}
_FROM = re.compile(rf"(\s*from )({'|'.join(ROOMS)})\b")
_PROGRAM = re.compile(rf"python -m ({'|'.join(PROGRAMS)})\b(?!\.)")


def moved(text: str, name: str) -> str:
    """A module's text, with its imports from rooms below the package. Raises `ValueError` for one in a form that is not known:
    the wheel would find the module of somebody else, or none."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] in ROOMS for alias in node.names):
            raise ValueError(f"{name}:{node.lineno}: write `from ROOM import …`: the wheel has no module at the top level")
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in ROOMS:
            line, count = _FROM.subn(rf"\1{PACKAGE}.\2", lines[node.lineno - 1], count=1)
            if not count or line.lstrip() != line[node.col_offset :]:
                raise ValueError(f"{name}:{node.lineno}: write the import on a line of its own")
            lines[node.lineno - 1] = line
    return _PROGRAM.sub(lambda match: PROGRAMS[match[1]], "".join(lines))


class OnePackage(BuildHookInterface[Any]):
    """Adds the copies to the wheel, in place of the modules themselves."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "editable":
            return
        root, self._copies = Path(self.root), tempfile.TemporaryDirectory()
        modules = {path: path.relative_to(root) for room in ROOMS for path in sorted((root / room).rglob("*.py"))}
        modules[root / f"{PACKAGE}.py"] = Path("__init__.py")
        for module, place in modules.items():
            copy = Path(self._copies.name) / place
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(moved(module.read_text(encoding="utf-8"), str(module.relative_to(root))), encoding="utf-8")
            build_data["force_include"][str(copy)] = f"{PACKAGE}/{place}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is written."""
        if version != "editable":
            self._copies.cleanup()
