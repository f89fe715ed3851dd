"""The statistics of role cards as one HTML file that needs no network: the distribution drawn (figure 5), tables 6 and 9."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core import page
from core.files import write_text
from core.tables import Table
from data_prep.cards.stats import Bar

TEMPLATES = Path(__file__).parent
_KINDS = ("High", "Middle", "Not rated")
_TONES = ("#1f5fa8", "#8fb8de", "#c9c4ba")
_HATCHES = ("", "/", ".")  # besides colour, so that bars can be told apart in grey


def write_figure(path: Path, bars: Sequence[Bar], tables: Sequence[Table], files: Sequence[str]) -> None:
    """Write the page. All text in it is escaped, and only its own scripts may run."""
    template = page.environment(TEMPLATES).get_template("card_stats.html.j2")
    text = template.render(
        files=files,
        total=sum(bar.total for bar in bars if len(bar.place) == 1),
        tables=tables,
        data={"sunburst": _sunburst(bars), "bars": _stacked(bars)},
        scripts=page.scripts(TEMPLATES / "card_stats.js"),
    )
    write_text(path, text)


def _sunburst(bars: Sequence[Bar]) -> dict[str, Any]:
    """The tree in plotly's form: a ring a level, an id a place, every value with all that is below it."""
    return {
        "ids": ["/".join(map(str, _numbers(bars, bar))) for bar in bars],
        "parents": ["/".join(map(str, _numbers(bars, bar)[:-1])) for bar in bars],
        "labels": [html.escape(bar.place[-1]) for bar in bars],  # plotly reads tags in its labels
        "values": [bar.total for bar in bars],
        "branchvalues": "total",
    }


def _numbers(bars: Sequence[Bar], bar: Bar) -> list[int]:
    """A place as the positions of its ancestors and itself among the bars: ids that no name can break."""
    at = {other.place: number for number, other in enumerate(bars)}
    return [at[bar.place[:depth]] for depth in range(1, len(bar.place) + 1)]


def _stacked(bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """One stacked bar a place, cards by quality; qualities that nobody has are left out. Level 1 is bold, level 3 grey."""
    styles = ("<b>{}</b>", "{}", '<span style="color:#6b6b6b">{}</span>')
    names = [styles[len(bar.place) - 1].format(html.escape(bar.place[-1])) for bar in bars]
    return [
        {
            "name": kind,
            "y": names,
            "x": [bar.counts[index] for bar in bars],
            "marker": {"color": tone, "pattern": {"shape": hatch}},
        }
        for index, (kind, tone, hatch) in enumerate(zip(_KINDS, _TONES, _HATCHES, strict=True))
        if any(bar.counts[index] for bar in bars)
    ]
