"""`fetch` lists and downloads corpora, `read` turns them into records."""

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.padding import Padding
from rich.text import Text

from core.errors import UserError, say
from core.ledger import Build
from core.options import OutOption, SourceOption, console, writes
from core.paths import Writes
from data_prep.sources import SOURCES, corpus_files, parse_places, read_source, source_named
from data_prep.sources.fetch import fetch as fetched
from data_prep.sources.fetch import origin_of


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
            count = fetched(source, origin, build)
        build.finish(console, quiet=True)
        corpus_files(source, str(out / name))
        console.print(f"{name}: {count:,} files; give it as --source {name}={out / name}", soft_wrap=True)
