"""What a spec's `checkpoint` and `adapter` name (a folder, a hub id, the embedded model): where that is on this machine, and
which commit of a hub repository."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.errors import UserError, near, say
from core.specs import BUNDLED_PREFIX, EMBEDDED_PREFIX, ModelSpec, place_of
from serve.checkpoints.embedded import embedded_folder, materialise

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WORTH_SAYING = 10**7  # bytes
# What a base's folder holds beside its weights: configs, tokenizer, chat template, its own code, and its licence.
BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py", "LICEN[CS]E*", "NOTICE*")


def resolve_checkpoint(place: str, what: str) -> str:
    """What to hand to vLLM or transformers as the model: a whole local folder, or a hub id as it is.

    Raises `UserError` for an unknown embedded name, a path that does not exist, a half-written folder, and pickled weights.
    """
    from serve.checkpoints.tensors import check_checkpoint  # a run against an endpoint reads no weights

    if place.startswith(EMBEDDED_PREFIX):
        return str(materialise(name=place.removeprefix(EMBEDDED_PREFIX)))
    path = local_path(place, what)
    if path is None:
        return place
    check_checkpoint(path, what)
    return str(path)


def local_path(place: str, what: str) -> Path | None:
    """The existing path that a spec's text means, or None for a hub id (`org/name`).

    Text that starts with `/`, `./`, `../`, `~` or `runs/` (where this project's own models lie), or whose first part is a
    folder here, can only be a path: when it does not exist that is a `UserError`, and no download is tried.
    """
    path = place_of(place)
    if path.exists():
        return path.absolute()
    if place.startswith(BUNDLED_PREFIX):
        raise UserError(f"{what} missing: {place}: {near(path.name, (p.name for p in path.parent.glob('*')))}")
    explicit = place.startswith(("/", "./", "../", "~", "runs/")) or place in {".", ".."}
    if explicit or not _HUB_ID.fullmatch(place) or Path(path.parts[0]).is_dir():
        hint = "" if explicit else " (and it is not a hub id of the form org/name)"
        raise UserError(f"{what} missing: {place} does not exist{hint}")
    return None


def tokenizer_folder(place: str | None) -> Path | None:
    """The folder of a checkpoint's tokenizer; None where it is not on this machine, or on the hub."""
    if not place:
        return None
    embedded = place.startswith(EMBEDDED_PREFIX)
    folder = embedded_folder(name=place.removeprefix(EMBEDDED_PREFIX)) if embedded else place_of(place)
    return folder if folder.is_dir() else None


def base_folder(place: str, revision: str | None, what: str) -> Path:
    """The folder of a checkpoint: a local one as it is, the embedded model made, a hub id downloaded.

    Raises `UserError` for what `resolve_checkpoint` refuses, for a download that fails, and for weights that are not finite.
    """
    from serve.checkpoints.tensors import check_checkpoint, check_finite, weight_files

    folder = Path(checkpoint := resolve_checkpoint(place, what))
    if not folder.is_dir():
        folder = download(checkpoint, revision, ["*.safetensors", *BESIDE_WEIGHTS], what)
        check_checkpoint(folder, what)
    check_finite(weight_files(folder), what)
    return folder


def download(repository: str, revision: str | None, patterns: Iterable[str], what: str) -> Path:
    """A hub repository's files of some patterns, in the hub's own cache, with the hub's own progress bars.

    Raises `UserError` when they cannot be had, and before anything is fetched where the disk has no room for them.
    """
    from huggingface_hub import constants, snapshot_download

    files: dict[str, Any] = {"repo_id": repository, "revision": revision, "allow_patterns": [*patterns]}
    with suppress(OSError, ValueError):  # offline: what is in the cache is all there is
        missing = sum(file.file_size for file in snapshot_download(**files, dry_run=True) if file.will_download)
        cache = Path(constants.HF_HUB_CACHE)
        free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.exists())).free
        if missing > free:
            raise UserError(
                f"{what}: {repository} needs {missing / 1e9:.1f} GB more on disk and {cache} has {free / 1e9:.1f} GB free: "
                "free some, or set HF_HOME to a folder on a larger disk"
            )
        if missing > _WORTH_SAYING:
            say(f"# {what}: downloading {repository}, {missing / 1e9:.1f} GB, to {cache}", err=True)
    try:
        return Path(snapshot_download(**files))
    except (OSError, ValueError) as error:  # its errors are of these two families, offline mode included
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{what}: cannot download {repository}: {reason}") from None


def unpinned(spec: ModelSpec) -> list[str]:
    """The spec's hub repositories for which it names no commit, so that tomorrow's weights may be others."""
    base = [] if _is_commit(spec.revision) or spec.checkpoint is None else [spec.checkpoint]
    adapters = [] if _is_commit(spec.adapter_revision) else spec.adapter_places()
    return [place for place in dict.fromkeys([*base, *adapters]) if on_hub(place)]


def commits(specs: Iterable[ModelSpec]) -> dict[str, str]:
    """Model → commit of its checkpoint: the one that its spec names or that the hub's cache holds; others are left out."""
    named = {
        spec.name: spec.revision if _is_commit(spec.revision) else _cached(spec.checkpoint, spec.revision or "main")
        for spec in specs
        if spec.checkpoint and on_hub(spec.checkpoint)
    }
    return {name: commit for name, commit in named.items() if commit}


def on_hub(place: str) -> bool:
    """Whether a spec's text is a hub id, and no folder here."""
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
