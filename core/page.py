"""The base of the project's HTML pages: text is escaped, only their own scripts run, and nothing is loaded from the network."""

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
    """The jinja2 environment of a folder of templates: undefined names are errors, text is escaped and cleaned. It has the
    filters `fmt`, `is_numeric`, `kinds` and `csv_link` for tables, and the test `estimate` for cells."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    # orjson writes Chinese as it is (json.dumps would write six bytes per character); tojson then escapes <, >, & and '.
    env.policies["json.dumps_function"] = lambda value, **_: orjson.dumps(value).decode()
    env.tests["estimate"] = lambda cell: isinstance(cell, Estimate)
    env.filters |= {"fmt": _fmt, "is_numeric": is_numeric, "kinds": _kinds}
    data_url = "data:text/csv;charset=utf-8;base64,"
    env.filters["csv_link"] = lambda table: data_url + base64.b64encode(to_csv(table).encode()).decode()
    return env


class Scripts(NamedTuple):
    """A page's scripts, plotly (compressed), and their hashes, which alone the content policy allows to run."""

    texts: list[Markup]
    plotly: Markup
    hashes: list[str]


def scripts(*files: Path, drawn: bool = True) -> Scripts:
    """A page's own scripts, after `page.js` and plotly, which that unpacks, if the page has charts (`drawn`).

    The package on PyPI has plotly's whole bundle only, and no partial bundle has all the charts we draw (boxes, heat maps, a
    sunburst). As gzip in base64 it takes 2.2 MB of a page instead of 4.8 MB.
    """
    paths = (Path(__file__).parent / "page.js", *files) if drawn else files
    texts = [path.read_text(encoding="utf-8") for path in paths]
    packed, *plotly_hash = _plotly() if drawn else (Markup(),)
    return Scripts([Markup(text) for text in texts], packed, [*map(_hash, texts), *plotly_hash])


@cache
def _plotly() -> tuple[Markup, str]:
    text = str(get_plotlyjs())
    return Markup(gzipped(text.encode())), _hash(text)


def gzipped(text: bytes) -> str:
    """A text that `page.js` unpacks: gzip in base64. Level 2 takes a third of the time of 9, for an eighth more bytes."""
    return base64.b64encode(gzip.compress(text, 2, mtime=0)).decode()


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _fmt(cell: Cell, decimals: int = 2) -> str:
    """A cell as in all tables, but with commas in large whole numbers."""
    return f"{cell:,}" if isinstance(cell, int) and abs(cell) >= 10_000 else fmt(cell, decimals)


def _kinds(table: Table) -> list[tuple[bool, int]]:
    """Whether each column is numeric, and its decimals: the table's own, else two if all numbers are in [-1, 1], or one."""
    kinds = []
    for column in range(len(table.columns)):
        cells = [row[column] for row in table.rows]
        figures = [cell.mean if isinstance(cell, Estimate) else cell for cell in cells]
        small = all(abs(figure) <= 1 for figure in figures if isinstance(figure, float))
        kinds.append((is_numeric(table, column), table.decimals or (2 if small else 1)))
    return kinds
