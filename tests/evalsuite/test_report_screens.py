"""The report and other pages on several screens, by keyboard, and as assistive technology finds them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from core.records import Turn
from core.tables import Table
from evalsuite.report.board import comparison_sheet
from evalsuite.report.report import write_report
from evalsuite.report.sheet import Branch, Sheet, write_sheet
from evalsuite.runs.records import read_runs
from evalsuite.runs.texts import TextDiff
from evalsuite.statistics.comparison import compare
from tests.evalsuite.browsing import draw, every, no_errors, opened, screen, text_of, unfold, until, violations
from tests.evalsuite.records import make_run
from tests.generated_report import make_content

pytestmark = pytest.mark.browser


def test_one_card_across_supporters_turn_by_turn(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    content = make_content()
    chosen = content.tally.dialogues[6]  # on the second card: on the first one stands a risk
    opened(browser, page_of_a_run)
    browser.get(f"{browser.current_url}#transcript={chosen.id}")
    until(browser, f"return document.querySelector('#detail .meta')?.textContent.includes({chosen.id!r})")
    browser.find_element(By.CSS_SELECTOR, ".ways button").send_keys(Keys.ENTER)
    until(browser, "return document.querySelector('.turns') !== null")
    assert browser.switch_to.active_element.get_attribute("id") == "detail"
    those = [d for d in content.tally.dialogues if d.card_id == chosen.card_id]
    heads = text_of(browser, ".turns thead button")
    assert sorted(heads) == sorted(str(d.supporter) for d in those) and len(heads) == 4
    averages = [float(text) for text in text_of(browser, ".turns .scores tr:last-child td") if text != "–"]
    assert averages == sorted(averages, reverse=True), "best first"
    by_name = {str(dialogue.supporter): dialogue for dialogue in those}
    cells = "[...one.cells].slice(1).map((cell) => [cell.colSpan, cell.querySelector('p')?.textContent ?? null])"
    rows = every(browser, ".turns tbody:first-of-type tr", cells)
    for place, row in enumerate(rows):
        said = [by_name[name].turns[place].text if place < len(by_name[name].turns) else None for name in heads]
        assert row == ([[4, said[0]]] if len(set(said)) == 1 and said[0] else [[1, text] for text in said])
    assert len(rows) == max(len(dialogue.turns) for dialogue in those)
    address, title = browser.current_url, text_of(browser, "#detail h3")
    browser.get("about:blank")
    browser.get(address)
    until(browser, f"return document.querySelector('#detail h3')?.textContent === {title[0]!r}")
    assert text_of(browser, ".turns thead button") == heads
    browser.find_element(By.ID, "detail").send_keys("j")  # on to the next card
    until(browser, f"return document.querySelector('#detail h3')?.textContent !== {title[0]!r}")
    assert len(text_of(browser, ".turns thead button")) == 4
    browser.find_elements(By.CSS_SELECTOR, ".turns thead button")[2].send_keys(Keys.ENTER)
    until(browser, "return document.querySelector('.bubble') !== null && !location.hash.includes('view=')")
    no_errors(browser)


def test_comparing_a_card_of_a_risky_dialogue_is_warned_of(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    content = make_content()
    risky = content.tally.dialogues[1]
    safe = next(d for d in content.tally.dialogues if d.card_id == risky.card_id and d.id != risky.id)
    opened(browser, page_of_a_run)
    browser.get(f"{browser.current_url}#transcript={safe.id}&view=card")
    until(browser, "return document.querySelector('#detail .warning') !== null")
    assert text_of(browser, ".turns") == []
    browser.find_element(By.CSS_SELECTOR, "#detail .warning button").send_keys(Keys.ENTER)
    assert text_of(browser, ".turns td.risk small") == ["risk: self-harm"]
    no_errors(browser)


def test_tab_alone_reaches_every_control(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    opened(browser, page_of_a_run)
    unfold(browser)
    browser.execute_script("document.getElementById('print').scrollIntoView()")
    wanted = browser.execute_script(
        """
        const all = [...document.querySelectorAll("a[href], button, select, input:not(:disabled), summary, [tabindex]")];
        window.wanted = all.filter((one) => one.checkVisibility() && one.tabIndex >= 0);
        window.reached = new Set();
        document.addEventListener("focusin", (event) => window.reached.add(event.target));
        document.querySelector(".skip").focus();
        return window.wanted.length;
        """
    )
    webdriver.ActionChains(browser).send_keys(Keys.TAB * (wanted + 5)).perform()
    script = "return window.wanted.filter((one) => !window.reached.has(one)).map(({ outerHTML }) => outerHTML)"
    missed = browser.execute_script(script)
    assert wanted > 60 and missed == []


def test_headings_lead_through_the_page(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    opened(browser, page_of_a_run)
    levels = [int(name[1]) for name in every(browser, "h1, h2, h3, h4", "one.tagName")]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), "no level is skipped"
    for section in browser.find_elements(By.CSS_SELECTOR, "main section"):
        assert section.find_elements(By.CSS_SELECTOR, "h2")


LONG_NAMES = ("qwen2.5-72b-instruct-awq-int4-longer-context", "emollm-internlm2-7b-emotional-support-v2", "tide")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (400, 800)])
def test_the_answer_and_the_whole_board_are_seen_without_scrolling(
    browser: webdriver.Chrome, tmp_path: Path, width: int, height: int
) -> None:
    content = make_content(supporters=dict(zip(LONG_NAMES, (0.9, 0.5, 0.2), strict=True)))
    with screen(browser, width, "light"):
        opened(browser, write_report(tmp_path, content)["html"])
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        (bottom,) = every(browser, "#board .forest", "one.getBoundingClientRect().bottom")
        assert bottom <= height
        (answer,) = every(browser, ".answer", "[one.textContent, one.getBoundingClientRect().top]")
        assert answer[0] == content.findings[0] and 0 < answer[1] < 100
        rows = every(browser, "#board tbody tr", "[one.querySelector('th').innerText, one.querySelector('b').innerText]")
        averages = {block[-1].supporter: block[-1].estimate.mean for block in content.boards[0].scores}
        assert rows == [[name, f"{mean:.1f}"] for name, mean in sorted(averages.items(), key=lambda one: -(one[1] or 0))]
        lines = "[one, ...one.querySelectorAll('td.track line')].map((part) => part.getBoundingClientRect())"
        for row, *intervals in every(browser, "#board tbody tr", f"{lines}.map(({{ left, right }}) => [left, right])"):
            assert intervals and all(row[0] <= left < right <= row[1] for left, right in intervals)
        unfold(browser)
        sizes = every(browser, ".row .who", "[one.scrollWidth - one.clientWidth, one.scrollHeight - one.clientHeight]")
        assert sizes and all(wider <= 0 and higher <= 1 for wider, higher in sizes), "no name is cut"
        browser.execute_script("document.querySelector('[data-chart=terminations]').scrollIntoView()")
        until(browser, "return document.querySelector('[data-chart=terminations] svg') !== null")
        line = "[...one.querySelectorAll('tspan')].map((line) => line.textContent)"
        names = every(browser, "[data-chart=terminations] .ytick text", line)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        if width == 400:
            assert any(names) and all(len(parts) > 1 for parts in names if parts), "broken, not cut"


def test_another_reference_is_one_choice_away(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    opened(browser, page_of_a_run)
    content = make_content()
    chosen = Select(browser.find_element(By.CSS_SELECTOR, "select.reference"))
    assert [option.text for option in chosen.options] == [forest.title for forest in content.forests["references"]]
    for forest in content.forests["references"]:
        chosen.select_by_visible_text(forest.title)
        (shown,) = (one for one in browser.find_elements(By.CSS_SELECTOR, "#references > div") if one.is_displayed())
        names = [one.text for one in shown.find_elements(By.CSS_SELECTOR, "tbody th")]
        assert names == [line.name for line in forest.lines] and forest.title not in names


def test_a_demo_is_a_few_screens(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    for width, screens in ((1280, 4), (400, 8)):
        with screen(browser, width, "light"):
            opened(browser, page_of_a_run)
            assert browser.execute_script("return document.documentElement.scrollHeight") < screens * 800


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(400, "dark"), *(pytest.param(*one, marks=pytest.mark.full) for one in ((1280, "light"), (1280, "dark"), (400, "light")))],
)
def test_axe_finds_no_serious_violation(browser: webdriver.Chrome, tmp_path: Path, width: int, scheme: str) -> None:
    content = make_content(cards=2, supporters={LONG_NAMES[0]: 0.9, "tide": 0.3})
    path = write_report(tmp_path, replace(content, risks={}))["html"]
    browser.set_script_timeout(120)
    with screen(browser, width, scheme):
        opened(browser, path)
        draw(browser)
        for compared in (False, True):
            if compared:
                browser.find_element(By.CSS_SELECTOR, ".ways button").send_keys(Keys.ENTER)
                until(browser, "return document.querySelector('.turns') !== null")
            assert [text for impact, text in violations(browser) if impact in ("serious", "critical")] == []
        assert browser.get_log("browser") == []


# Pages that are no run's report.
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
