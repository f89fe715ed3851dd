"""`fetch` lists and downloads corpora from their authors, each at one commit; `read` turns them into records."""

import shutil
import subprocess
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Annotated

import orjson
import typer
from rich.padding import Padding
from rich.text import Text

from core.errors import UserError, need_modules, say
from core.files import validated
from core.ledger import Build
from core.options import OutOption, SourceOption, console, writes
from core.paths import Writes
from core.rows import Origin, Source
from data_prep.sources import SOURCES, corpus_files, parse_places, read_source, source_named

FORGE = "https://github.com"


def read(
    source: SourceOption,
    out: Annotated[OutOption, writes("*.jsonl")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first malformed row instead of leaving it out.")
    ] = False,
) -> None:
    """Convert corpora in their published formats to records: OUT/NAME.jsonl for each, with every dropped row accounted for."""
    build = Build(out, "read", settings={"strict": strict})
    for name, place in parse_places(source).items():
        items = read_source(name, place, build, console, strict)
        build.write(f"{name}.jsonl", items)
    build.finish(console)


def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME…]", help="Corpora to download; NAME@COMMIT takes another commit than the pinned one."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for the corpora: each gets its own, OUT/NAME."),
        Writes(("*/*", "*/*/*", "*/*/*/*")),
    ] = Path("runs/corpora"),
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You have read the licences of these corpora and keep to them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON, with all facts.")] = False,
) -> None:
    """Download corpora from where their authors publish them; without a name, list the corpora that can be read.

    The list says what each corpus is, where to get it, and its licence as stated there. Downloads are of a pinned commit, in
    the form that `--source NAME=OUT/NAME` reads; nothing is downloaded before you accept the licence. manifest.json records the
    commit and the sha256 of every file. Example:

    python -m data_prep fetch esconv charactereval --accept-licence
    """
    if as_json:
        if names:
            raise UserError("--json prints the list of corpora: give no name with it")
        facts = {name: source.model_dump(mode="json", exclude={"reader", "read", "name"}) for name, source in SOURCES.items()}
        say(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
        return
    for source in () if names else SOURCES.values():
        drawn = f"; table 5 draws {source.table5.count}" if source.table5 else ""
        console.print(Text(source.name, style="bold"), Text(f"({source.kind}, {'/'.join(source.languages)}{drawn})"))
        place = "; ".join(filter(None, (source.paper, source.where)))
        for line in (source.about, place, f"licence as stated there: {source.licence}", f"files: {', '.join(source.files)}"):
            console.print(Padding(Text(line), (0, 0, 0, 4)))
    origins = {}
    for text in names or ():
        name, at, commit = text.partition("@")
        source = source_named(name)
        if name in origins:
            raise UserError(f"corpus {name} is named twice")
        origins[name] = origin_of(source, commit if at else None)
    for name, origin in origins.items():
        source, place = SOURCES[name], f"GitHub {origin.github}" if origin.github else f"the hub dataset {origin.hub}"
        console.print(f"{name}: {source.about}", soft_wrap=True)
        console.print(f"    from {place} at commit {origin.revision}", soft_wrap=True)
        console.print(f"    licence as stated there: {source.licence}", soft_wrap=True)
    if origins and not accept_licence:
        raise UserError("nothing was downloaded: read the licences above, and add --accept-licence if you keep to them")
    for name, origin in origins.items():
        source = SOURCES[name]
        settings = {"corpus": name, "licence": source.licence, **origin.model_dump(mode="json", exclude_none=True)}
        build = Build(out / name, "fetch", settings=settings)
        with console.status(f"fetching {name}"):
            count = download(source, origin, build)
        build.finish(console, quiet=True)
        corpus_files(source, str(out / name))
        console.print(f"{name}: {count:,} files; give it as --source {name}={out / name}", soft_wrap=True)


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


def download(source: Source, origin: Origin, build: Build) -> int:
    """Download a corpus into the build's folder, and return the number of its files. Raises `UserError` if the origin cannot be
    reached, or has none of the corpus's files at that commit."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as temporary:
        folder = Path(temporary)
        try:
            (_clone if origin.github else _from_hub)(source, origin, folder)
        except UserError:
            raise
        except Exception as error:  # the hub's errors have no common base
            place = origin.github or f"the hub dataset {origin.hub}"
            text = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
            lines = text.strip().splitlines() or [type(error).__name__]
            reason = lines[-1 if origin.github else 0]
            raise UserError(
                f"corpus {source.name}: {place} cannot be fetched at commit {origin.revision}: {reason}. "
                f"Without a network, get it elsewhere and give its folder: --source {source.name}=DIR"
            ) from None
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
    if not shutil.which("git"):
        raise UserError("fetch needs git: install it, or download the corpus by hand")
    wanted = [f"/{PurePosixPath(under) / pattern}" for under in origin.under for pattern in (*source.files, *source.beside)]
    for command in (
        ["init", "--quiet"],
        ["remote", "add", "origin", f"{FORGE}/{origin.github}"],
        ["sparse-checkout", "set", "--no-cone", *([f"/{origin.archive}"] if origin.archive else wanted)],
        ["fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", str(origin.revision)],
        ["checkout", "--quiet", "FETCH_HEAD"],
    ):
        git = ["git", "-c", "core.symlinks=false", "-c", "advice.detachedHead=false", "-C", str(folder), *command]
        subprocess.run(git, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _from_hub(source: Source, origin: Origin, folder: Path) -> None:
    need_modules("huggingface_hub", purpose=f"corpus {source.name} from the hub")
    from huggingface_hub import snapshot_download

    patterns = [f"{under}/{pattern}".lstrip("/") for under in origin.under for pattern in (*source.files, *source.beside)]
    snapshot_download(str(origin.hub), repo_type="dataset", revision=origin.revision, allow_patterns=patterns, local_dir=folder)
