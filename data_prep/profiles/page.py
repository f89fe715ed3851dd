"""The statistics of profiles as one HTML file that needs no network and runs no script: figures 3, 4 and 8 as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core import page
from core.files import write_text
from core.tables import Table


def write_page(path: Path, tables: Sequence[Table], gaps: Sequence[str], files: Sequence[str], total: int) -> None:
    """Write the page; all text in it is escaped."""
    template = page.environment(Path(__file__).parent).get_template("profile_stats.html.j2")
    write_text(path, template.render(tables=tables, gaps=gaps, files=files, total=total))
