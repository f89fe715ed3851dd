"""The folders of checkpoints and adapters (local, from the hub, or the embedded model), and the commits of hub repositories."""

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from core.errors import UserError, near
from core.specs import BUNDLED_PREFIX, EMBEDDED_PREFIX, ModelSpec, place_of
from serve.checkpoints.embedded import embedded_folder, materialise

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# A base's files other than weights: configs, tokenizer, chat template, its own code, its licence.
BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py", "LICEN[CS]E*", "NOTICE*")


def resolve_checkpoint(place: str, what: str) -> str:
    """The model argument for vLLM or transformers: a complete local folder, or a hub id unchanged. Raises `UserError` for an
    unknown embedded name, a path that does not exist, a half-written folder, and pickled weights."""
    from serve.checkpoints.tensors import check_checkpoint  # not needed for runs against an endpoint

    if place.startswith(EMBEDDED_PREFIX):
        return str(materialise(name=place.removeprefix(EMBEDDED_PREFIX)))
    path = local_path(place, what)
    if path is None:
        return place
    check_checkpoint(path, what)
    return str(path)


def local_path(place: str, what: str) -> Path | None:
    """The existing path of a spec's checkpoint or adapter, or None for a hub id (`org/name`). Raises `UserError` for what can
    only be a path and does not exist: it starts with `/`, `./`, `../`, `~` or `runs/`, or with the name of a folder here."""
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
    """The folder of a checkpoint's tokenizer; None if it is not on this machine."""
    if not place:
        return None
    embedded = place.startswith(EMBEDDED_PREFIX)
    folder = embedded_folder(name=place.removeprefix(EMBEDDED_PREFIX)) if embedded else place_of(place)
    return folder if folder.is_dir() else None


def base_folder(place: str, revision: str | None, what: str) -> Path:
    """The folder of a checkpoint, after converting the embedded model or downloading a hub id. Raises `UserError` as
    `resolve_checkpoint` does, and for a failed download and weights that are not finite."""
    from serve.checkpoints.tensors import check_checkpoint, check_finite, weight_files

    folder = Path(checkpoint := resolve_checkpoint(place, what))
    if not folder.is_dir():
        folder = download(checkpoint, revision, ["*.safetensors", *BESIDE_WEIGHTS], what)
        check_checkpoint(folder, what)
    check_finite(weight_files(folder), what)
    return folder


def download(repository: str, revision: str | None, patterns: Iterable[str], what: str) -> Path:
    """A hub repository's files that match some patterns, in the hub's own cache. Raises `UserError` if the download fails."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=[*patterns]))
    except (OSError, ValueError) as error:  # the base classes of its errors, offline mode included
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{what}: cannot download {repository}: {reason}") from None


def unpinned(spec: ModelSpec) -> list[str]:
    """The spec's hub repositories without a commit, whose weights may change."""
    base = [] if _is_commit(spec.revision) or spec.checkpoint is None else [spec.checkpoint]
    adapters = [] if _is_commit(spec.adapter_revision) else spec.adapter_places()
    return [place for place in dict.fromkeys([*base, *adapters]) if on_hub(place)]


def commits(specs: Iterable[ModelSpec]) -> dict[str, str]:
    """Model → commit of its checkpoint in its spec or the hub's cache; models without one are left out."""
    by_name = {
        spec.name: spec.revision if _is_commit(spec.revision) else _cached(spec.checkpoint, spec.revision or "main")
        for spec in specs
        if spec.checkpoint and on_hub(spec.checkpoint)
    }
    return {name: commit for name, commit in by_name.items() if commit}


def on_hub(place: str) -> bool:
    """Whether a checkpoint or adapter in a spec is a hub id, not a folder here."""
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
