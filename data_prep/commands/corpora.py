"""`sources` lists the corpora that can be read, `read` turns them into records."""

from __future__ import annotations

from rich.table import Table

from data_prep.commands.options import OutOption, SourceOption, StrictOption, console
from data_prep.ledger import Build
from data_prep.sources import SOURCES, parse_places, read_source


def sources() -> None:
    """List the corpora that can be read: what each is, where to get it, and its licence as stated there."""
    table = Table("Name", "Corpus", "Kind", "Where", "Licence (as stated there)", "Table 5 draws")
    for source in SOURCES.values():
        drawn = f"{source.table5.count} ({source.table5.format})" if source.table5 else ""
        table.add_row(source.name, source.about, source.kind, source.where, source.licence, drawn)
    console.print(table)


def read(source: SourceOption, out: OutOption, strict: StrictOption = False) -> None:
    """Turn corpora in their published formats into records: OUT/NAME.jsonl for each, with every dropped row accounted for."""
    build = Build(out, "read", settings={"strict": strict})
    for name, place in parse_places(source).items():
        items = read_source(name, place, build, console, strict)
        build.write(f"{name}.jsonl", items)
    build.finish(console)
