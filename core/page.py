"""What the pages of this project have in common: all text in them is escaped, only their own scripts run, and no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jinja2
import orjson
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from core.errors import clean
from core.tables import Cell, Estimate, Table, fmt, is_numeric, to_csv


@cache
def environment(folder: Path) -> jinja2.Environment:
    """Templates of a folder: undefined names are errors, text is escaped and cleaned, tables have the filters `fmt`,
    `is_numeric`, `kinds` and `csv_link`, and cells the test `estimate`."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    # orjson writes Chinese as it is (json.dumps would write six bytes a character); tojson then escapes <, >, & and '.
    made.policies["json.dumps_function"] = lambda value, **_: orjson.dumps(value).decode()
    made.tests["estimate"] = lambda cell: isinstance(cell, Estimate)
    made.filters |= {"fmt": _fmt, "is_numeric": is_numeric, "kinds": _kinds, "csv_link": _csv_link}
    return made


class Scripts(NamedTuple):
    """What a page runs: its scripts in order, plotly packed, and the hashes for the content policy.

    Only scripts with these hashes run, so text that got into a page as an element would do nothing.
    """

    texts: list[Markup]
    plotly: Markup
    hashes: list[str]


def scripts(*files: Path, drawn: bool = True) -> Scripts:
    """A page's own scripts after `page.js`, which unpacks plotly. A page on which nothing is `drawn` goes without both.

    The package on PyPI holds plotly's whole bundle only, and no partial bundle has all that the pages draw (boxes, heat maps, a
    sunburst). As gzip in base64 it takes 2.0 MB of a page instead of 4.8 MB.
    """
    if not drawn:
        texts = [path.read_text(encoding="utf-8") for path in files]
        return Scripts([Markup(text) for text in texts], Markup(), [_hash(text) for text in texts])
    texts = [path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "page.js", *files)]
    packed, plotly = _plotly()
    return Scripts([Markup(text) for text in texts], packed, [*map(_hash, texts), plotly])


@cache
def _plotly() -> tuple[Markup, str]:
    """The library as a page holds it, and its hash."""
    text = str(get_plotlyjs())
    return Markup(base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()), _hash(text)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _fmt(cell: Cell, decimals: int = 2) -> str:
    """A cell as everywhere, but long whole numbers with commas."""
    return f"{cell:,}" if isinstance(cell, int) and abs(cell) >= 10_000 else fmt(cell, decimals)


def _kinds(table: Table) -> list[tuple[bool, int]]:
    """Of every column whether it holds numbers, and with how many decimals: the table's own, else one, but two where all lie
    between -1 and 1."""
    kinds = []
    for column in range(len(table.columns)):
        cells = [row[column] for row in table.rows]
        figures = [cell.mean if isinstance(cell, Estimate) else cell for cell in cells]
        small = all(abs(figure) <= 1 for figure in figures if isinstance(figure, float))
        kinds.append((is_numeric(table, column), table.decimals or (2 if small else 1)))
    return kinds


def _csv_link(table: Table) -> str:
    """A table's CSV file as an address that needs no network."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(to_csv(table).encode()).decode()
