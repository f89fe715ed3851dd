"""The texts that differ between two runs, as diffs: prompts as they were sent, and long settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from core.differences import SHOWN, changed_leaves
from evalsuite.runs.run_config import ModelIdentity
from serve.store import system_messages


class TextDiff(NamedTuple):
    """The changes in a text, as lines that begin with `+`, `-`, ` ` or `@@`."""

    what: str
    lines: list[str]

    @classmethod
    def between(cls, what: str, old: object, new: object) -> TextDiff:
        before, after = ([] if text is None else str(text).splitlines() for text in (old, new))
        return cls(what, [*difflib.unified_diff(before, after, n=1, lineterm="")][2:])


def text_diffs(old: Path, new: Path, configs: tuple[dict[str, Any], dict[str, Any]]) -> Iterator[TextDiff]:
    """The texts that two run folders with these configs differ in. Of the prompts of a role, which are written anew for every
    card, one is shown: the one of the first run that has the nearest counterpart in the other."""
    changed = [*changed_leaves(*configs)]
    packs = {where.partition(".")[0] for where, *_ in changed if where.endswith(("prompts.fingerprint", ".mode", ".method"))}
    sent = [system_messages(folder / "calls.sqlite") for folder in (old, new)] if packs else [{}, {}]
    for role in sorted(sent[0].keys() & sent[1].keys()):
        if ("score" if role == "judge" else "simulate") in packs and (pair := _nearest(sent[0][role], sent[1][role])):
            yield TextDiff.between(f"What the {role} was told", *pair)
    for where, before, after in changed:
        texts = [text for text in (before, after) if text is not None]
        if not is_hash(where) and all(isinstance(text, str) for text in texts) and max(map(len, texts)) > SHOWN:
            yield TextDiff.between(where, before, after)


def prompt_texts(supporters: Sequence[ModelIdentity]) -> Iterator[TextDiff]:
    """The system messages of a run's supporters; of later ones, the differences from the first."""
    told: dict[str, list[str]] = {}
    for spec in supporters:
        told.setdefault(spec.system or "", []).append(spec.name)
    first, *later = [*((text, ", ".join(names)) for text, names in told.items() if text)] or [("", "")]
    for text, names in filter(all, (first, *later)):
        yield TextDiff(names, [f" {line}" for line in text.splitlines()])
    yield from (TextDiff.between(f"{first[1]} → {names}", first[0], text) for text, names in later)


def is_hash(where: str) -> bool:
    """Whether a setting is the hash of something that another setting names."""
    return where.endswith((".fingerprint", ".sha256"))


def _nearest(old: set[str], new: set[str]) -> tuple[str, str] | None:
    """The first text that is only in `old`, and the most similar text that is only in `new`."""
    gone, come = sorted(old - new), sorted(new - old)
    if not gone or not come:
        return None
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(gone[0])

    def likeness(text: str) -> float:
        matcher.set_seq1(text)
        return matcher.quick_ratio()

    return gone[0], max(come, key=likeness)
