"""`python -m tests.bench.report`: the report of 8,512 dialogues, its size and seconds, and how soon Chromium shows it."""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from selenium import webdriver

from data_prep.tables import Table, to_console
from evalsuite.report.report import write_report
from tests.generated_report import make_content

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
TIMINGS = """
    const page = performance.getEntriesByType("navigation")[0];
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    return [paint.startTime, page.domInteractive, page.loadEventEnd];
"""


def main(
    supporters: Annotated[int, typer.Option(help="Supporters; every one talks on every card.")] = 14,
    cards: Annotated[int, typer.Option(help="Role cards a language.")] = 304,
    words: Annotated[int, typer.Option(help="Random words a reply.")] = 190,
    out: Annotated[Path | None, typer.Option(help="Keep the report in this folder.")] = None,
) -> None:
    """Make a report as large as ESC-Eval's own evaluation and open it once in headless Chromium."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = out or Path(scratch)
        clocks = [(time.perf_counter(), time.process_time())]
        content = make_content(cards, {f"model-{n:02d}": n / supporters for n in range(supporters)}, words=words)
        clocks.append((time.perf_counter(), time.process_time()))
        page = write_report(folder, content)["html"]
        clocks.append((time.perf_counter(), time.process_time()))
        paint, interactive, loaded = _opened(page)
        made, written = ([b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(clocks))
        rows = (
            ("dialogues", len(content.dialogues)),
            ("report.html, MB", page.stat().st_size / 1e6),
            ("records and tables, s (CPU s)", f"{made[0]:.1f} ({made[1]:.1f})"),
            ("writing the report, s (CPU s)", f"{written[0]:.1f} ({written[1]:.1f})"),
            ("first view, s", paint / 1000),
            ("page ready, s", interactive / 1000),
            ("loaded, s", loaded / 1000),
        )
        to_console(Table("report", "Report of a full benchmark", ("what", "figure"), rows), Console())


def _opened(page: Path) -> list[float]:
    """Milliseconds to the first content on screen, to the last script run, and to the load event."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        driver.get(page.as_uri())
        figures: list[float] = driver.execute_script(TIMINGS)
        return figures
    finally:
        driver.quit()


if __name__ == "__main__":
    typer.run(main)
