"""Diffs of the texts of two runs: prompts as they were sent, and long settings of their configs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from core.grouping import group_by
from core.settings import SHOWN, changed_leaves
from evalsuite.runs.run_config import ModelIdentity
from serve.store import system_messages


class TextDiff(NamedTuple):
    """The diff of a text: lines that begin with `+`, `-`, ` ` or `@@`."""

    what: str
    lines: list[str]

    @classmethod
    def between(cls, what: str, old: object, new: object) -> TextDiff:
        before, after = ([] if text is None else str(text).splitlines() for text in (old, new))
        return cls(what, [*difflib.unified_diff(before, after, n=1, lineterm="")][2:])


def text_diffs(old: Path, new: Path, configs: tuple[dict[str, Any], dict[str, Any]]) -> Iterator[TextDiff]:
    """The texts that differ between two run folders with these configs. Of a role's prompts, one pair is shown."""
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
    """The system messages of a run's supporters, and the differences of the later ones from the first."""
    by_text = group_by(supporters, lambda spec: spec.system or "")
    first, *later = [(text, ", ".join(spec.name for spec in specs)) for text, specs in by_text.items() if text] or [("", "")]
    for text, names in filter(all, (first, *later)):
        yield TextDiff(names, [f" {line}" for line in text.splitlines()])
    yield from (TextDiff.between(f"{first[1]} → {names}", first[0], text) for text, names in later)


def is_hash(where: str) -> bool:
    """Whether a setting is the hash of another one."""
    return where.endswith((".fingerprint", ".sha256"))


def _nearest(old: set[str], new: set[str]) -> tuple[str, str] | None:
    """The first text that only `old` has, and the most similar of those that only `new` has."""
    removed, added = sorted(old - new), sorted(new - old)
    if not removed or not added:
        return None
    return removed[0], max(added, key=lambda text: difflib.SequenceMatcher(None, text, removed[0], False).quick_ratio())
