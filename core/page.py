"""What the pages of this project have in common: all text in them is escaped, only their own scripts run, and no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

import jinja2
import orjson
from plotly.offline import get_plotlyjs

from core.tables import Table, clean, fmt, is_numeric, to_csv


def environment(folder: Path) -> jinja2.Environment:
    """Templates of a folder: undefined names are errors, text is escaped and cleaned, tables have the filters `fmt`,
    `is_numeric` and `csv_link`."""
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
    made.filters |= {"fmt": fmt, "is_numeric": is_numeric, "csv_link": _csv_link}
    return made


def plotly() -> str:
    """plotly.js as an HTML parser hands it on: the hash is of what it hands on."""
    return str(get_plotlyjs()).replace("\r\n", "\n")


def hashes(scripts: Iterable[str]) -> list[str]:
    """For the content policy: only scripts with these run, so text that got into a page as an element would do nothing."""
    return [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]


def _csv_link(table: Table) -> str:
    """A table's CSV file as an address that needs no network."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(to_csv(table).encode()).decode()
