"""`sources` lists the corpora that can be read, `fetch` downloads them, `read` turns them into records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.padding import Padding
from rich.text import Text

from core.errors import UserError, say
from core.ledger import Build
from core.options import OutOption, SourceOption, StrictOption, console, writes
from core.paths import Writes
from data_prep.sources import SOURCES, corpus_files, parse_places, read_source, source_named
from data_prep.sources.fetch import fetch as fetched
from data_prep.sources.fetch import origin_of


def sources(as_json: Annotated[bool, typer.Option("--json", help="As JSON, with everything that is known.")] = False) -> None:
    """List the corpora that can be read: what each is, where to get it, and its licence as stated there."""
    if as_json:
        facts = {name: source.model_dump(mode="json", exclude={"read", "name"}) for name, source in SOURCES.items()}
        say(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
        return
    for source in SOURCES.values():
        drawn = f"; table 5 draws {source.table5.count}" if source.table5 else ""
        console.print(Text(source.name, style="bold"), Text(f"({source.kind}, {'/'.join(source.languages)}{drawn})"))
        lines = (
            source.about,
            "; ".join(filter(None, (source.paper, source.where))),
            f"licence as stated there: {source.licence}",
        )
        for line in (*lines, f"files: {', '.join(source.files)}"):
            console.print(Padding(Text(line), (0, 0, 0, 4)))


def read(source: SourceOption, out: Annotated[OutOption, writes("*.jsonl")], strict: StrictOption = False) -> None:
    """Turn corpora in their published formats into records: OUT/NAME.jsonl for each, with every dropped row accounted for."""
    build = Build(out, "read", settings={"strict": strict})
    for name, place in parse_places(source).items():
        items = read_source(name, place, build, console, strict)
        build.write(f"{name}.jsonl", items)
    build.finish(console)


def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Corpora by name; `sources` lists them.")],
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for the corpora: each gets one of its own, OUT/NAME."),
        Writes(("*/*", "*/*/*", "*/*/*/*")),
    ] = Path("runs/corpora"),
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="You have read the licences of these corpora and keep to them.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(help="Another commit than the pinned one (40 hex digits); for one corpus.")
    ] = None,
) -> None:
    """Download corpora from where their authors publish them, at a pinned commit, as `--source NAME=OUT/NAME` reads them.

    The licence is printed as stated upstream; nothing is downloaded before it is accepted. A manifest.json keeps the commit and
    the sha256 of every file. Example:

    python -m data_prep fetch esconv charactereval --accept-licence
    """
    chosen = [source_named(name) for name in dict.fromkeys(names)]
    if revision is not None and len(chosen) != 1:
        raise UserError("--revision is the commit of one corpus: fetch it alone")
    origins = [origin_of(source, revision) for source in chosen]
    for source, origin in zip(chosen, origins, strict=True):
        place = f"GitHub {origin.github}" if origin.github else f"the hub dataset {origin.hub}"
        console.print(f"{source.name}: {source.about}", soft_wrap=True)
        console.print(f"    from {place} at commit {origin.revision}", soft_wrap=True)
        console.print(f"    licence as stated there: {source.licence}", soft_wrap=True)
    if not accept_licence:
        raise UserError("nothing was downloaded: read the licences above, and add --accept-licence if you keep to them")
    for source, origin in zip(chosen, origins, strict=True):
        settings = {"corpus": source.name, "licence": source.licence, **origin.model_dump(mode="json", exclude_none=True)}
        build = Build(out / source.name, "fetch", settings=settings)
        with console.status(f"fetching {source.name}"):
            count = fetched(source, origin, build)
        build.finish(console, quiet=True)
        corpus_files(source, str(out / source.name))
        console.print(f"{source.name}: {count:,} files; give it as --source {source.name}={out / source.name}", soft_wrap=True)
