"""Pages that are no run's report, on several screens and as assistive technology finds them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver

from core.records import Turn
from core.tables import Table
from evalsuite.report.compare import comparison_sheet
from evalsuite.report.sheet import Branch, Sheet, write_sheet
from evalsuite.runs.records import read_runs
from evalsuite.runs.texts import TextDiff
from evalsuite.statistics.comparison import compare
from tests.evalsuite.browsing import every, no_errors, screen, text_of, unfold, violations
from tests.evalsuite.records import make_run
from tests.evalsuite.test_report_screens import LONG_NAMES

pytestmark = pytest.mark.browser

FULL = [pytest.param(*one, marks=pytest.mark.full) for one in ((1280, "dark"), (400, "light"))]
DIFF = TextDiff.between("What the seeker was told", "Be brief.\n" + "yes " * 90, "Be brief.\n" + "no " * 90)
TURNS = (Turn(role="seeker", text="I worry. " * 30), Turn(role="supporter", text="hm"))
SIDES = [Branch(name, "1 draw", TURNS[1:], [Branch("draw", "", TURNS)]) for name in "ab"]
CHECKS = Table(
    "checks", "Checks", ("check", "outcome", "what it asks"), (("order", "fault found", "Why? " * 30),), section="Card"
)
ALL = Sheet(
    title="All that a page can have",
    findings=["It is so.", "Also."],
    cautions=["Mind this.", "And this.", "And that.", "And more."],
    texts=[DIFF],
    tree=Branch("Up to the fork", "2 turns", TURNS, SIDES),
    tables=[CHECKS, replace(CHECKS, key="more")],
    main=["checks"],
)


def compared(folder: Path, names: Sequence[str]) -> Sheet:
    rng = np.random.default_rng(2)
    runs = [make_run(folder / run, {name: rng.integers(0, 5, 12).tolist() for name in names}) for run in ("old", "new")]
    return comparison_sheet(compare(read_runs(runs)))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark"), *FULL])
def test_the_answer_and_the_main_figure_are_seen_at_once_and_axe_finds_nothing_serious(
    browser: webdriver.Chrome, tmp_path: Path, width: int, scheme: str
) -> None:
    for number, sheet in enumerate([compared(tmp_path / "one", ["m"]), compared(tmp_path / "several", LONG_NAMES), ALL]):
        path = write_sheet(tmp_path / str(number), "page", sheet)["html"]
        with screen(browser, width, scheme):
            browser.get_log("browser")
            browser.get(path.as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert text_of(browser, ".answer") == [sheet.findings[0]]
            assert every(browser, "#board table", "one.getBoundingClientRect().bottom")[0] <= 800
            shown = every(browser, ".banner p", "one.checkVisibility()")
            assert shown == [place < 3 for place in range(len(sheet.cautions))]
            assert not any(every(browser, ".folded table", "one.checkVisibility()")), "everything else is a click away"
            unfold(browser)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert [text for impact, text in violations(browser) if impact in ("serious", "critical")] == []
            no_errors(browser)
