"""The report on several screens, by keyboard, and as assistive technology finds it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from evalsuite.report.report import write_report
from tests.evalsuite.browsing import every, no_errors, opened, screen, text_of, until, violations
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


def test_a_narrow_screen_shows_averages_and_whole_names(browser: webdriver.Chrome, tmp_path: Path) -> None:
    path = write_report(tmp_path, make_content(supporters=dict(zip(LONG_NAMES, (0.9, 0.5, 0.2), strict=True))))["html"]
    with screen(browser, 400, "light"):
        opened(browser, path)
        browser.execute_script("document.querySelector('.plot').scrollIntoView()")
        until(browser, "return document.querySelector('.plot svg') !== null")
        assert browser.execute_script("return document.documentElement.scrollWidth") == 400
        cells = every(browser, "[aria-label='Leaderboard, en'] tbody tr", "one.cells[2].getBoundingClientRect().right")
        assert len(cells) == 3 and max(cells) <= 400, "the average is seen without scrolling"
        sizes = every(browser, ".row .who", "[one.scrollWidth - one.clientWidth, one.scrollHeight - one.clientHeight]")
        assert sizes and all(wider <= 0 and higher <= 1 for wider, higher in sizes), "no name is cut"
        line = "[...one.querySelectorAll('tspan')].map((line) => line.textContent)"
        lines = every(browser, "[data-chart=scores] .ytick text", line)
        for name in LONG_NAMES[:2]:
            parts = next(of_name for of_name in lines if "".join(of_name) == name)
            assert len(parts) > 1 and all(part.endswith(("-", ".")) for part in parts[:-1]), "broken where a name has joints"


def test_all_columns_of_a_board_fit_a_wide_screen(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with screen(browser, 1280, "light"):
        opened(browser, write_report(tmp_path, make_content(supporters=dict.fromkeys(LONG_NAMES, 0.5)))["html"])
        inside = (
            "const box = document.querySelector('[aria-label=\"Leaderboard, en\"]'); return box.scrollWidth <= box.clientWidth"
        )
        assert browser.execute_script(inside)


def test_a_heat_map_of_many_supporters_is_scrolled_not_squeezed(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with screen(browser, 400, "light"):
        opened(browser, write_report(tmp_path, make_content(supporters={f"model-{n}": n / 14 for n in range(14)}))["html"])
        chart = "document.querySelector('[data-chart=differences-0]')"
        browser.execute_script(f"{chart}.scrollIntoView()")
        until(browser, f"return {chart}.querySelector('svg') !== null")
        (width,) = every(browser, "[data-chart=differences-0] .heatmaplayer image", "one.getBoundingClientRect().width")
        assert width >= 14 * 34 - 20
        assert browser.execute_script("return document.documentElement.scrollWidth") == 400


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(1280, "light"), (400, "dark"), *(pytest.param(*one, marks=pytest.mark.full) for one in ((1280, "dark"), (400, "light")))],
)
def test_axe_finds_no_serious_violation(browser: webdriver.Chrome, tmp_path: Path, width: int, scheme: str) -> None:
    content = make_content(cards=2, supporters={LONG_NAMES[0]: 0.9, "tide": 0.3})
    path = write_report(tmp_path, replace(content, risks={}))["html"]
    browser.set_script_timeout(120)
    with screen(browser, width, scheme):
        opened(browser, path)
        browser.execute_script("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        for plot in browser.find_elements(By.CSS_SELECTOR, ".plot"):
            browser.execute_script("arguments[0].scrollIntoView()", plot)
        for compared in (False, True):
            if compared:
                browser.find_element(By.CSS_SELECTOR, ".ways button").send_keys(Keys.ENTER)
                until(browser, "return document.querySelector('.turns') !== null")
            assert [text for impact, text in violations(browser) if impact in ("serious", "critical")] == []
        assert browser.get_log("browser") == []
