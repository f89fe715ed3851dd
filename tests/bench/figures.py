"""What every benchmark ends with: figures beside their targets, printed, and kept in a folder as JSON and as one table."""

import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from core.files import read_object, write_json, write_text
from core.machine import bf16_instructions
from core.tables import Table, to_console, to_markdown

OUT = Path("runs/bench")
COLUMNS = ("figure", "median", "min", "max", "n", "peers", "target", "met")
OutOption = Annotated[Path, typer.Option(help="Where the figures go.")]
RunsOption = Annotated[int, typer.Option(min=1, help="Counted runs of each figure.")]


@dataclass(frozen=True)
class Figure:
    """One figure, measured once or more. Its median has to be at least or at most the target, where there is one; `aim` is what
    would be better still. `peers` have the same figure of others, by their names, from the same run."""

    name: str
    values: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None
    aim: str = ""
    peers: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def target(self) -> str:
        bounds = ((self.at_least, "≥ {:g}"), (self.at_most, "≤ {:g}"))
        parts = [text.format(bound) for bound, text in bounds if bound is not None]
        return " ".join([*parts, *([f"(aim {self.aim})"] if self.aim else [])])

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None without a target or without a figure."""
        if self.median is None or (self.at_least is None and self.at_most is None):
            return None
        enough = self.at_least is None or self.median >= self.at_least
        return enough and (self.at_most is None or self.median <= self.at_most)

    def row(self) -> tuple[str, str | None, str | None, str | None, int, str, str, str]:
        low, high = (min(self.values), max(self.values)) if len(self.values) > 1 else (None, None)
        met = {True: "yes", False: "NO", None: ""}[self.met]
        peers = "; ".join(f"{name} {_shown(statistics.median(values))}" for name, values in self.peers.items() if values)
        return self.name, _shown(self.median), _shown(low), _shown(high), len(self.values), peers, self.target, met


def _shown(value: float | None) -> str | None:
    """Four significant digits at least, whole numbers whole: 0.01324 and 12,340 stand in one column."""
    return None if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _listed(values: Sequence[float] | float) -> list[float]:
    return [values] if isinstance(values, int | float) else list(values)


def growth(per_piece: Mapping[int, float]) -> float:
    """What one piece costs in the largest of several sizes, as a multiple of what it costs in the smallest."""
    return per_piece[max(per_piece)] / per_piece[min(per_piece)]


def machine() -> dict[str, Any]:
    """What of the machine matters for a figure: its cores, what they compute fast, and their load before the measurement."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "bf16": "bf16" if bf16_instructions() else "no bf16",
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


class Bench:
    """One benchmark at work: it collects figures and notes, and delivers them at its end. `sizes` are its options."""

    def __init__(self, key: str, title: str, **sizes: Any) -> None:
        self.figures: list[Figure] = []
        self.notes: list[str] = []
        self._record = {"key": key, "title": title, "machine": machine(), "sizes": sizes}
        self._console = Console(width=None if sys.stdout.isatty() else 160)

    def say(self, line: str) -> None:
        self._console.print(f"{self._record['key']}: {line}", highlight=False, markup=False)

    def add(
        self,
        name: str,
        values: Sequence[float] | float,
        at_least: float | None = None,
        at_most: float | None = None,
        aim: str = "",
        peers: Mapping[str, Sequence[float] | float] | None = None,
    ) -> None:
        """One more figure: the values of its runs, what its median has to be, and the same of its peers."""
        others = {peer: _listed(given) for peer, given in (peers or {}).items()}
        self.figures.append(Figure(name, _listed(values), at_least, at_most, aim, others))

    def deliver(self, out: Path) -> None:
        """Print the figures, write OUT/KEY.json, and OUT/bench.md anew from all that are there."""
        figures = [asdict(figure) | {"median": figure.median, "met": figure.met} for figure in self.figures]
        record = self._record | {"figures": figures, "notes": self.notes, "finished": time.strftime("%Y-%m-%d %H:%M:%S")}
        to_console(table_of(record), self._console)
        write_json(out / f"{record['key']}.json", record)
        kept = [read_object(path, "a benchmark's figures") for path in sorted(out.glob("*.json"))]
        write_text(out / "bench.md", "\n".join(to_markdown(table_of(each)) for each in kept))


def table_of(record: Mapping[str, Any]) -> Table:
    names = Figure.__dataclass_fields__
    figures = [Figure(**{name: given[name] for name in names if name in given}) for given in record["figures"]]
    where = {"bf16": "", **record["machine"]}  # figures of earlier versions do not say it
    has = ", ".join(filter(None, [where["machine"], where["bf16"], f"Python {where['python']}"]))
    notes = [
        ", ".join(f"{name} {value}" for name, value in record["sizes"].items()),
        f"{where['cores']} cores ({has}), load before it {where['load']}; {record['finished']}",
        *record["notes"],
    ]
    return Table(record["key"], record["title"], COLUMNS, tuple(figure.row() for figure in figures), tuple(filter(None, notes)))
