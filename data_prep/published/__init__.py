"""A user's own clone of a published benchmark: its files, commit and licence, and its prompts as templates of a prompt pack.

Each benchmark's module has a function `(Checkout, Build) -> None`, listed in `BENCHMARKS`, that writes what a run needs.
Scripts are parsed, never run.
"""

import ast
import hashlib
import json
import re
import string
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
import yaml

from core.errors import UserError
from core.files import read_bytes, read_text, sha256_file, validated, write_bytes, write_text
from core.ledger import Build
from core.options import console
from core.prompts import PUBLISHED
from core.rubrics import Rubric
from core.third_party import git_revision

BENCHMARKS = {
    "healthbench": "data_prep.published.healthbench:import_healthbench",
    "vera_mh": "data_prep.published.vera_mh:import_vera_mh",
    "mindeval": "data_prep.published.mindeval:import_mindeval",
    "esc_judge": "data_prep.published.esc_judge:import_esc_judge",
}
_LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE")


@dataclass(frozen=True)
class Checkout:
    """A clone in a folder. Raises `UserError` for files that are missing or unreadable."""

    name: str
    folder: Path

    def file(self, name: str) -> Path:
        if not (path := self.folder / name).is_file():
            raise UserError(f"--source {self.name}={self.folder}: no {name} there: give a clone of the published repository")
        return path

    def text(self, name: str) -> str:
        return read_text(self.file(name), "published file")

    def code(self, name: str) -> ast.Module:
        """A script of the clone, parsed."""
        try:
            return ast.parse(self.text(name))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UserError(f"{self.file(name)}: not readable as python: {error}") from None

    def constant(self, script: str, name: str) -> str:
        """The text that a script last assigns to a name, perhaps with `.strip()`."""
        for value in reversed([*assigned(self.code(script), name)]):
            match value:
                case ast.Constant(value=str(text)):
                    return text
                case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="strip"), args=[]):
                    return text.strip()
        raise UserError(f"{self.file(script)}: no text is named {name}: give a clone of the published repository")

    def template(self, name: str, allowed: Collection[str], mapping: str = "") -> str:
        """A file for `str.format` as a template (`template_of_format`) whose fields have to be `allowed`."""
        try:
            template = template_of_format(self.text(name), mapping)
            fields = (field for _, field, *_ in string.Formatter().parse(self.text(name)) if field)
            if unknown := next((field for field in fields if field not in allowed), None):
                raise ValueError(f"{{{unknown}}} is none of {', '.join(filter(None, allowed))[:300]}")
        except ValueError as error:
            raise UserError(f"{self.file(name)}: {error}") from None
        return template

    @cached_property
    def commit(self) -> str:
        """The commit (12 hex digits), with `+changes` where tracked files differ from it."""
        return git_revision(self.folder) or "no commit"

    @cached_property
    def licence(self) -> str:
        """The licence's first line and the name of its file."""
        path = next((path for name in _LICENCES if (path := self.folder / name).is_file()), None)
        lines = read_text(path, "licence").splitlines() if path else []
        first = next((line.strip("#* \t") for line in lines if line.strip("#* \t")), "")
        return f"{first[:200]} (in full: {path.name})" if path else "none stated: keep what is imported on your machine"

    def import_into(self, build: Build) -> None:
        """Write what a run of the benchmark needs, with the licence, and print commit and licence."""
        module, _, function = BENCHMARKS[self.name].partition(":")
        getattr(import_module(module), function)(self, build)
        for name in _LICENCES:  # licences often have to accompany copies
            if (self.folder / name).is_file():
                write_bytes(build.folder / name, read_bytes(self.folder / name, "licence"))
                build.output(name)
        build.figures |= {"commit": self.commit, "licence": self.licence}
        console.print(f"{self.name} at {self.commit}; licence: {self.licence}", soft_wrap=True)


def write_pack(build: Build, files: Mapping[str, bytes], ours: Collection[str] = ()) -> None:
    """Write a prompt pack, OUT/prompts, except files that were edited since the last import: they are kept, which is printed.
    Its list of published files, taken over word for word, has all but `ours`."""
    pack, files = build.out / "prompts", dict(files)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    if files:
        listed = {name: hash for name, hash in hashes.items() if name != ".gitignore" and name not in ours}
        files[PUBLISHED] = orjson.dumps(listed, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        hashes[PUBLISHED] = hashlib.sha256(files[PUBLISHED]).hexdigest()
    imported = build.earlier().get("figures", {}).get("prompts", {})  # without an earlier import, any difference is an edit
    present = (name for name in files if (pack / name).is_file())
    kept = [name for name in present if sha256_file(pack / name) not in (hashes[name], imported.get(name))]
    for name, content in files.items():
        if name not in kept:
            write_bytes(build.folder / "prompts" / name, content)
            build.output(f"prompts/{name}")
    build.figures |= {"prompts": hashes}
    if kept:
        text = f"kept as edited in {pack}: {', '.join(kept)}; to get a published one back, delete it and run this again"
        console.print(text, soft_wrap=True)
    if files:
        console.print(f"prompt pack: {pack} ({len(files)} files; git-ignored)")


def pack_of(templates: Mapping[str, str]) -> dict[str, bytes]:
    """The files of a pack of templates, which git ignores. Jinja removes the line end that is added here."""
    ignored = {".gitignore": b"# Published prompts: their licence is their authors'.\n*\n"}
    return {name: f"{text}\n".encode() for name, text in templates.items()} | ignored


def write_rubric(build: Build, rubric: Mapping[str, Any], path: Path, name: str = "rubric.yaml") -> None:
    """Write a rubric that the file `path` describes; raises `UserError` with this path for one that is not valid."""
    validated(Rubric, rubric, path)
    write_text(build.folder / name, yaml.safe_dump(rubric, sort_keys=False, allow_unicode=True, width=120))
    build.output(name)


# --- published texts as templates -------------------------------------------------------------------------------------------


def assigned(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """What is assigned to a name, or to an attribute of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(name in (getattr(target, "id", ""), getattr(target, "attr", "")) for target in targets):
                yield node.value


def escaped(text: str) -> str:
    """A text as jinja2 source that renders to it. A brace at the end is escaped, too: the next part may begin with one."""
    return re.sub(r"\{(?=[{%#]|\Z)", '{{ "{" }}', text)


def template_of_format(text: str, mapping: str = "") -> str:
    """A text for `str.format` as a template with the same fields, which are looked up in the mapping `mapping` if they are not
    names. Raises `ValueError` for unbalanced braces."""
    parts = []
    for literal, field, _, _ in string.Formatter().parse(text):
        parts.append(escaped(literal))
        if field is not None:
            parts.append(f"{{{{ {mapping}[{json.dumps(field, ensure_ascii=False)}] }}}}" if mapping else f"{{{{ {field} }}}}")
    return "".join(parts)


def template_of_code(node: ast.expr) -> str:
    """A text in a script (constants, f-strings of names, `… if NAME else …`) as a template; `ValueError` for other forms."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template_of_code, node.values))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return escaped(node.value)
    return f"{{{{ {_expression(node)} }}}}"


def _expression(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return json.dumps(text)
        case ast.Name(id=name):
            return name
        case ast.FormattedValue(value=value):
            return _expression(value)
        case ast.JoinedStr(values=values):
            return f"({' ~ '.join(map(_expression, values))})"
        case ast.IfExp(test=ast.Name(id=name), body=body, orelse=other):
            return f"({_expression(body)} if {name} else {_expression(other)})"
    raise ValueError(f"line {node.lineno}: {ast.unparse(node)[:80]}")
