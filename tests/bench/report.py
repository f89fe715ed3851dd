"""`esc-eval report` of 8,512 dialogues: its seconds, the size of its page, and how soon Chromium shows it; and the ranker's
training set of the same dialogues, as if the verdicts were people's."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from selenium import webdriver

from core.files import write_jsonl
from core.records import HumanScore, Judgement
from tests.bench.figures import OUT, Bench, OutOption
from tests.bench.one_run import measured
from tests.generated_report import RUBRIC, make_content, write_run

CHROMIUM = Path("/usr/bin/chromium")

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
TIMINGS = """
    const page = performance.getEntriesByType("navigation")[0];
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    return [paint.startTime, page.domInteractive, page.loadEventEnd];
"""


def main(
    supporters: Annotated[int, typer.Option(help="Supporters; every one talks on every card.")] = 14,
    cards: Annotated[int, typer.Option(help="Role cards per language.")] = 304,
    out: OutOption = OUT,
) -> None:
    """(e) Report of a run as large as ESC-Eval's own evaluation, its page in headless Chromium, and data preparation."""
    bench = Bench("report", "(e) Report of a full benchmark", supporters=supporters, cards_a_language=cards)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        content = make_content(cards, {f"model-{n:02d}": n / supporters for n in range(supporters)}, words=190)
        write_run(folder, content=content)
        seconds, cpu, _ = measured(sys.executable, "-m", "evalsuite.cli", "report", folder)
        page = folder / "report.html"
        bench.add("dialogues", len(content.tally.dialogues))
        bench.add("report.html, MB", page.stat().st_size / 1e6, at_most=40)
        bench.add("the whole command: s", seconds)
        bench.add("the whole command: CPU, s", cpu, at_most=6)
        for what, milliseconds in zip(("first view", "page ready", "loaded"), _opened(page), strict=False):
            bench.add(f"{what} in Chromium: s", milliseconds / 1000, at_most=2 if what == "first view" else None)
        taken, _, peak = _rank_sft(folder, content.tally.judgements)
        bench.add("data_prep rank-sft: s", taken)
        bench.add("data_prep rank-sft: peak memory, MB", peak)
    if not CHROMIUM.exists():
        bench.notes.append("No Chromium here (make setup-browser): not opened.")
    bench.deliver(out)


def _rank_sft(folder: Path, judgements: Sequence[Judgement]) -> tuple[float, float, float]:
    """Seconds, CPU and peak memory of `data_prep rank-sft` with the verdicts as gold."""
    names = ("dialogue_id", "language", "rubric", "dimension", "value")
    verdicts = (v.model_dump(include=set(names)) for v in judgements if v.value is not None)
    write_jsonl(folder / "scores.jsonl", (HumanScore(annotator="a", **verdict) for verdict in verdicts))
    given = ("--dialogues", folder / "dialogues.jsonl", "--gold", folder / "scores.jsonl", "--rubric", RUBRIC.name)
    command = (sys.executable, "-m", "data_prep", "rank-sft", *given)
    return measured(*command, "--method", "joint", "--out", folder / "set")


def _opened(page: Path) -> list[float]:
    """Milliseconds to the first content on screen, to the last script run, and to the load event; nothing without a browser."""
    if not CHROMIUM.exists():
        return []
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        driver.get(page.as_uri())
        figures: list[float] = driver.execute_script(TIMINGS)
        return figures
    finally:
        driver.quit()
