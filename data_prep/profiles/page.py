"""The statistics of profiles as one HTML file that needs no network and runs no script: figures 3, 4 and 8 as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jinja2

from data_prep.tables import Table, fmt, is_numeric
from serve.files import write_text


def write_page(path: Path, tables: Sequence[Table], gaps: Sequence[str], files: Sequence[str], total: int) -> None:
    """Write the page; all text in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page = environment.get_template("profile_stats.html.j2").render(
        tables=tables, gaps=gaps, files=files, total=total, fmt=fmt, is_numeric=is_numeric
    )
    write_text(path, page)
