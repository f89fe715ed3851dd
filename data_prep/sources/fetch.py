"""Downloads a corpus from its authors at one commit, in the layout that its reader expects."""

import shutil
import subprocess
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from core.errors import UserError, need_modules
from core.files import validated
from core.ledger import Build
from core.rows import Origin, Source

FORGE = "https://github.com"


def origin_of(source: Source, revision: str | None) -> Origin:
    """Where a corpus is published, at `revision` or the pinned commit. Raises `UserError` for a corpus without either."""
    if source.fetch is None:
        raise UserError(f"corpus {source.name} cannot be fetched. It is {source.about}; get it from {source.where}")
    if revision is not None:
        return validated(Origin, source.fetch.model_dump() | {"revision": revision}, f"{source.name}@{revision}")
    if source.fetch.revision is None:
        raise UserError(
            f"corpus {source.name}: no commit of the hub dataset {source.fetch.hub} is pinned here: look one up on its page, "
            f"and give {source.name}@COMMIT"
        )
    return source.fetch


def fetch(source: Source, origin: Origin, build: Build) -> int:
    """Download a corpus into the build's folder, and return the number of its files. Raises `UserError` if the origin cannot be
    reached, or has none of the corpus's files at that commit."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as temporary:
        folder = Path(temporary)
        if origin.github:
            _clone(source, origin, folder)
        else:
            _download(source, origin, folder)
        roots = [folder / under for under in origin.under]
        if origin.archive:
            roots = [folder / ".unpacked"]
            try:
                with zipfile.ZipFile(folder / origin.archive) as packed:
                    packed.extractall(roots[0])  # keeps names inside the folder
            except (OSError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:  # RuntimeError: encrypted
                raise UserError(f"corpus {source.name}: {origin.archive} cannot be unpacked: {error}") from None
        names: set[str] = set()
        for root in roots:
            paths = {path for pattern in (*source.files, *source.beside) for path in root.glob(pattern)}
            for path in sorted(path for path in paths if path.is_file() and not path.is_symlink()):
                if (name := path.relative_to(root).as_posix()) in names:
                    raise UserError(f"corpus {source.name}: {name} is in two of its folders at commit {origin.revision}")
                names.add(name)
                (build.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, build.folder / name)
                build.output(name)
    if not names:
        raise UserError(f"corpus {source.name}: its origin has none of {', '.join(source.files)} at commit {origin.revision}")
    return len(names)


def _clone(source: Source, origin: Origin, folder: Path) -> None:
    """Check out the commit, with the corpus files only, if the server supports that."""
    wanted = [f"/{PurePosixPath(under) / pattern}" for under in origin.under for pattern in (*source.files, *source.beside)]
    commands = (
        ["init", "--quiet"],
        ["remote", "add", "origin", f"{FORGE}/{origin.github}"],
        ["sparse-checkout", "set", "--no-cone", *([f"/{origin.archive}"] if origin.archive else wanted)],
        ["fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", str(origin.revision)],
        ["checkout", "--quiet", "FETCH_HEAD"],
    )
    for command in commands:
        git = ["git", "-c", "core.symlinks=false", "-c", "advice.detachedHead=false", "-C", str(folder), *command]
        try:
            subprocess.run(git, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise UserError("fetch needs git: install it, or download the corpus by hand") from None
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip().splitlines() or ["git failed"])[-1]
            raise _unreachable(source, str(origin.github), origin, reason) from None


def _download(source: Source, origin: Origin, folder: Path) -> None:
    need_modules("huggingface_hub", purpose=f"corpus {source.name} from the hub")
    from huggingface_hub import snapshot_download

    patterns = [f"{under}/{pattern}".lstrip("/") for under in origin.under for pattern in (*source.files, *source.beside)]
    try:
        snapshot_download(
            str(origin.hub), repo_type="dataset", revision=origin.revision, allow_patterns=patterns, local_dir=folder
        )
    except Exception as error:  # the hub's errors have no common base
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _unreachable(source, f"the hub dataset {origin.hub}", origin, reason) from None


def _unreachable(source: Source, place: str, origin: Origin, reason: str) -> UserError:
    return UserError(
        f"corpus {source.name}: {place} cannot be fetched at commit {origin.revision}: {reason}. Without a network, get it "
        f"elsewhere and give its folder: --source {source.name}=DIR"
    )
