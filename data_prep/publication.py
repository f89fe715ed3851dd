"""The output folder of a data verb as a data set for the hub, if its corpora's licences allow that."""

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
    """The JSON lines of a data folder with their manifest and a card: `train`, `valid` and `test` are splits of one config.
    Raises `UserError` for a folder that no data verb wrote or that has changed, and where a licence does not allow it."""
    manifest = read_object(folder / "manifest.json", "the manifest that every verb of `python -m data_prep` writes")
    outputs: Mapping[str, Mapping[str, Any]] = manifest.get("outputs") or {}
    names = [name for name in outputs if "/" not in name and name != _CARD]
    for name in names:
        if not (folder / name).is_file() or sha256_file(folder / name) != outputs[name].get("sha256"):
            raise UserError(f"{folder / name}: has changed since its manifest was written: make the folder again")
    records = [name for name in names if name.endswith(".jsonl")]
    if not records:
        raise UserError(f"{folder}: no records (JSON lines) to publish")
    licences = shared_licences(folder, _sources(folder, records, manifest))
    files: dict[str, Path | bytes] = {name: folder / name for name in (*names, "manifest.json")}
    files[_CARD] = _card(folder, repo, manifest, records, licences).encode()
    return Publication(repo, "dataset", files, f"Made by python -m data_prep {manifest.get('command', '')}".strip())


def shared_licences(place: Path, sources: Collection[str]) -> dict[str, str]:
    """Source → the licence under which data made from it may be shared. Raises `UserError` for a source without one."""
    licences = {}
    for name in sorted(sources):
        facts = SOURCES.get(name) or SCORED.get(name)
        if licence := OWN.get(name) or (facts.share if facts else None):
            licences[name] = licence
        elif facts:
            raise UserError(f"{place}: contains texts of {name}, whose licence does not allow sharing them: {facts.licence}")
        else:
            raise UserError(f"{place}: contains texts of {name!r}, whose licence is unknown (configs/data/corpora.yaml)")
    return licences


def sources_in(path: Path, field: str = "source") -> Iterator[str]:
    """The corpora that a file of records (cards, dialogues, examples) names, or the values of another field."""
    for number, line in numbered_lines(path, "records"):
        with at(f"{path}:{number}"):
            record = json_line(line)
        if isinstance(record, dict) and field in record:
            yield str(record[field])


def _sources(folder: Path, records: Iterable[str], manifest: Mapping[str, Any]) -> set[str]:
    """The corpora that a folder's records name; for files that name none, those of the inputs."""
    by_file = [set(sources_in(folder / name)) for name in records]
    sources = set().union(*by_file)
    for text, file in (manifest.get("inputs") or {}).items() if not all(by_file) else ():
        path = Path(text)
        if path.suffix != ".jsonl":
            continue
        if not path.is_file() or sha256_file(path) != file["sha256"]:
            raise UserError(
                f"{folder}: was made from {text}, which is missing or has changed: its licence cannot be determined"
            )
        sources |= set(sources_in(path))
    if not sources:
        raise UserError(f"{folder}: neither its records nor its inputs name a corpus: its licence cannot be determined")
    return sources


def _card(folder: Path, repo: str, manifest: Mapping[str, Any], records: Iterable[str], licences: Mapping[str, str]) -> str:
    files = {name: name.removesuffix(".jsonl") for name in records}
    parts = [{"split": SPLITS[stem], "path": name} for name, stem in files.items() if stem in SPLITS]
    configs: list[dict[str, Any]] = [{"config_name": "examples", "default": True, "data_files": parts}] if parts else []
    configs += [
        {"config_name": stem, "data_files": [{"split": "train", "path": name}]}
        for name, stem in files.items()
        if stem not in SPLITS
    ]
    kinds = set(licences.values())
    metadata = {
        **licence_fields(kinds.pop() if len(kinds) == 1 else "several"),
        "language": sorted({language for name in files for language in sources_in(folder / name, "language")}),
        "tags": ["esc-eval", "emotional-support-dialogue"],
        "configs": configs,
    }
    card = folder / _CARD
    plain = f"# {repo.partition('/')[2]}\n\nMade by `python -m data_prep {manifest.get('command')}`."
    body = card.read_text(encoding="utf-8") if card.is_file() else plain
    outputs = manifest["outputs"]
    rows = "\n".join(f"| {name} | {outputs[name].get('records', '–')} | {outputs[name]['sha256']} |" for name in files)
    listed = "\n".join(f"- {source}: {licence}" for source, licence in licences.items())
    head = f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n\n{body.rstrip()}\n\n"
    return f"{head}## Files\n\n| file | records | sha256 |\n|---|---:|---|\n{rows}\n\n## Licences\n\n{listed}\n"
