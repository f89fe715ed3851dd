"""Which commit of a hub repository a model's weights are: named by its spec, or found in the hub's cache."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from core.errors import UserError
from core.specs import ModelSpec
from serve.checkpoints.embedded import local_path


def unpinned(spec: ModelSpec) -> list[str]:
    """The spec's hub repositories for which it names no commit, so that tomorrow's weights may be others."""
    several = [adapter for own in (spec.adapters or {}).values() for adapter in own.values()]
    adapters = dict.fromkeys(place for place in (*filter(None, [spec.adapter]), *several) if _on_hub(place))
    found = [spec.checkpoint] if spec.checkpoint and _on_hub(spec.checkpoint) and not _is_commit(spec.revision) else []
    return found + ([] if _is_commit(spec.adapter_revision) else list(adapters))


def commits(specs: Iterable[ModelSpec]) -> dict[str, str]:
    """Model → commit of its checkpoint: the one that its spec names or that the hub's cache holds; others are left out."""
    found: dict[str, str] = {}
    for spec in specs:
        if spec.checkpoint and _on_hub(spec.checkpoint):
            commit = spec.revision if _is_commit(spec.revision) else _cached(spec.checkpoint, spec.revision or "main")
            found |= {spec.name: commit} if commit else {}
    return found


def _on_hub(place: str) -> bool:
    try:
        return local_path(place, "") is None
    except UserError:  # a path, or the embedded model
        return False


def _is_commit(revision: str | None) -> bool:
    return bool(revision and re.fullmatch(r"[0-9a-f]{40}", revision))


def _cached(repository: str, revision: str) -> str | None:
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import constants

    reference = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "refs" / revision
    try:
        commit = reference.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return commit if _is_commit(commit) else None
