"""A folder that a data verb made, as a data set on the hub, and whether its corpora's licences allow that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from core.errors import UserError, at
from core.files import json_line, numbered_lines, read_object, sha256_file
from core.hub import Publication, licence_fields
from data_prep.sources import SCORED, SOURCES

SPLITS = {"train": "train", "valid": "validation", "test": "test"}
OWN = {"esc-eval-bundled": "apache-2.0", "synthetic": "apache-2.0"}  # written for this repository
_CARD = "README.md"


def dataset_to_publish(folder: Path, repo: str) -> Publication:
    """The JSON lines of a data folder with their manifest and a card: `train`, `valid` and `test` are splits of one
    config, every other file is a config of its own.

    Raises `UserError` for a folder that no data verb made, for one whose files have changed since, and where the licence of a
    corpus in it does not allow it.
    """
    manifest_file = folder / "manifest.json"
    if not manifest_file.is_file():
        raise UserError(f"{folder}: no manifest.json: not what a verb of `python -m data_prep` made")
    manifest = read_object(manifest_file, "a manifest")
    outputs: Mapping[str, Mapping[str, Any]] = manifest.get("outputs") or {}
    names = [name for name in outputs if "/" not in name and name != _CARD]
    for name in names:
        if not (folder / name).is_file() or sha256_file(folder / name) != outputs[name].get("sha256"):
            raise UserError(f"{folder / name}: is not what the manifest says: make the folder again")
    records = [name for name in names if name.endswith(".jsonl")]
    if not records:
        raise UserError(f"{folder}: no records (JSON lines) to publish")
    licences = shared_licences(folder, _sources(folder, records, manifest))
    files: dict[str, Path | bytes] = {name: folder / name for name in (*names, "manifest.json")}
    files[_CARD] = _card(folder, repo, manifest, records, licences).encode()
    return Publication(repo, "dataset", files, f"Made by python -m data_prep {manifest.get('command', '')}".strip())


def shared_licences(place: Path, sources: Collection[str]) -> dict[str, str]:
    """Source → the licence under which what was made from it may be passed on. Raises `UserError` for one without."""
    licences = {}
    for name in sorted(sources):
        facts = SOURCES.get(name) or SCORED.get(name)
        if licence := OWN.get(name) or (facts.share if facts else None):
            licences[name] = licence
        elif facts:
            raise UserError(f"{place}: holds texts of {name}, whose licence does not let us pass them on: {facts.licence}")
        else:
            raise UserError(f"{place}: holds texts of {name!r}, whose licence is not known here (configs/data/corpora.yaml)")
    return licences


def sources_in(path: Path, field: str = "source") -> Iterator[str]:
    """The corpora that a file of records names (cards, dialogues and examples name theirs), or what another field says."""
    for number, line in numbered_lines(path, "records"):
        with at(f"{path}:{number}"):
            record = json_line(line)
        if isinstance(record, dict) and field in record:
            yield str(record[field])


def _sources(folder: Path, records: Iterable[str], manifest: Mapping[str, Any]) -> set[str]:
    """The corpora in a folder: those that its records name; of records that name none, those of what they were made from."""
    found: set[str] = set()
    nameless = False
    for name in records:
        named = set(sources_in(folder / name))
        nameless = nameless or not named
        found |= named
    for text, file in (manifest.get("inputs") or {}).items() if nameless else ():
        path = Path(text)
        if path.suffix != ".jsonl":
            continue
        if not path.is_file() or sha256_file(path) != file["sha256"]:
            raise UserError(f"{folder}: was made from {text}, which is not here as it was: its licence cannot be told")
        found |= set(sources_in(path))
    if not found:
        raise UserError(f"{folder}: neither its records nor what they were made from name a corpus: its licence cannot be told")
    return found


def _card(folder: Path, repo: str, manifest: Mapping[str, Any], records: Iterable[str], licences: Mapping[str, str]) -> str:
    files = {name: name.removesuffix(".jsonl") for name in records}
    parts = [{"split": SPLITS[stem], "path": name} for name, stem in files.items() if stem in SPLITS]
    configs: list[dict[str, Any]] = [{"config_name": "examples", "default": True, "data_files": parts}] if parts else []
    others = {name: stem for name, stem in files.items() if stem not in SPLITS}
    configs += [{"config_name": stem, "data_files": [{"split": "train", "path": name}]} for name, stem in others.items()]
    kinds = set(licences.values())
    metadata = {
        **licence_fields(kinds.pop() if len(kinds) == 1 else "several"),
        "language": sorted({language for name in files for language in sources_in(folder / name, "language")}),
        "tags": ["esc-eval", "emotional-support-dialogue"],
        "configs": configs,
    }
    made, command = folder / _CARD, manifest.get("command")
    plain = f"# {repo.partition('/')[2]}\n\nMade by `python -m data_prep {command}`."
    body = made.read_text(encoding="utf-8") if made.is_file() else plain
    outputs = manifest["outputs"]
    held = [
        "## Files",
        "",
        "| file | records | sha256 |",
        "|---|---:|---|",
        *(f"| {name} | {outputs[name].get('records', '–')} | {outputs[name]['sha256']} |" for name in files),
        "",
        "## Licences",
        "",
        *(f"- {source}: {licence}" for source, licence in licences.items()),
        "",
    ]
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n\n{body.rstrip()}\n\n" + "\n".join(held)
