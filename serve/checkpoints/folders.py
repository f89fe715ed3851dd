"""Folders of model files that are built atomically and identified by their content."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from core.errors import UserError
from core.files import digest, read_object, sha256_file, write_json
from core.tables import Screen

logger = logging.getLogger(__name__)

MANIFEST = "esc_eval_manifest.json"


def folder_content(folder: Path) -> str:
    """A hash of the content of a model or adapter folder: weights, configs, tokenizer."""
    files = [p for kind in ("*.safetensors", "*.json", "*.jinja", "*.model") for p in folder.glob(kind)]
    return digest([[path.name, sha256_file(path)] for path in sorted(files)])


def build_once(folder: Path, made_from: dict[str, Any], build: Callable[[Path], None], what: str) -> Path:
    """A cached folder, which is built under a temporary name and renamed, and verified by every later call. `made_from`
    identifies the inputs; `build` fills an empty folder. A lock keeps two processes from building the same one."""
    with _writing(f"the model cache {folder.parent}", "free some space or set ESC_EVAL_CACHE"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock", fallback_to_soft=False):
            problem = manifest_problem(folder, made_from)
            if problem is None:
                return folder
            if folder.exists():
                logger.warning("%s: %s; building it again", folder, problem)
            for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
                shutil.rmtree(leftover)
            temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
            temporary.mkdir()
            try:
                with Screen(stderr=True).status(f"preparing {what} (once) …"):
                    build(temporary)
                    files = {p.name: sha256_file(p) for p in sorted(temporary.iterdir())}
                    write_json(temporary / MANIFEST, {**made_from, "files": files})
                if folder.exists():
                    folder.rename(folder.with_name(f".{folder.name}.old.tmp"))
                temporary.rename(folder)
            finally:
                for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
                    shutil.rmtree(leftover, ignore_errors=True)
    return folder


@contextmanager
def _writing(what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is None:  # transformers raises OSError for errors of its own
            raise
        raise UserError(f"cannot write {what}: {error.strerror}; {advice}") from error


def manifest_problem(folder: Path, made_from: dict[str, Any]) -> str | None:
    """Why a cached folder cannot be used, or None if every file has the manifest's sha256."""
    try:
        manifest = read_object(folder / MANIFEST, "manifest")
        files = manifest.pop("files")
    except (UserError, KeyError):
        return "no readable manifest"
    if manifest != made_from:
        return "made from other inputs"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256_file(path) != expected:
            return f"{name} has changed"
    return None


def build_folder(dst: Path, src: Path, made_from: dict[str, Any], build: Callable[[Path], None]) -> bool:
    """Fill `dst` with `build`, atomically; False if it exists unchanged. Raises `UserError` if it contains anything else."""
    dst = dst.absolute()

    def guarded(target: Path) -> None:
        with _writing(str(dst), "nothing of it is kept"):
            build(target)

    with _writing(str(dst), "choose another folder"):
        dst.parent.mkdir(parents=True, exist_ok=True)
        if dst.is_dir() and not any(dst.iterdir()):
            dst.rmdir()
    if not os.access(dst.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {dst}: no permission to write in {dst.parent}")
    if dst.exists():
        problem = manifest_problem(dst, made_from) if dst.is_dir() else "not a folder"
        if problem is None:
            return False
        raise UserError(f"{dst} exists and is not the finished conversion of {src} ({problem}): remove it or give another")
    build_once(dst, made_from, guarded, str(dst))
    return True
