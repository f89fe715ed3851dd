"""`sources` lists the corpora that can be read, `read` turns them into records."""

from __future__ import annotations

from typing import Annotated

from rich.padding import Padding
from rich.text import Text

from core.ledger import Build
from core.options import OutOption, SourceOption, StrictOption, console, writes
from data_prep.sources import SOURCES, parse_places, read_source


def sources() -> None:
    """List the corpora that can be read: what each is, where to get it, and its licence as stated there."""
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
