"""The report in Debian's Chromium: no errors, injected text stays text, filters, keyboard and paper work."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from core.errors import clean
from core.names import composed
from evalsuite.papers.ecdbench.figures import write_page
from evalsuite.report import transcripts
from evalsuite.report.charts import Chart
from evalsuite.report.content import content_of
from evalsuite.report.report import PLUMBING, write_report
from evalsuite.runs.folder import open_run
from tests.evalsuite.browsing import draw, no_errors, opened, text_of, unfold, until
from tests.generated_report import INJECTIONS, NO_CONTROL, make_content, write_run

pytestmark = pytest.mark.browser

CHARTS = "return [...document.querySelectorAll('.plot')].map((plot) => plot.dataset.chart)"


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report with the injection list in every text, its transcripts stored in either way."""
    written = {}
    for stored, above in (("plain", 10**9), ("packed", 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transcripts, "PACK_ABOVE", above)
            written[stored] = write_report(tmp_path_factory.mktemp(stored), make_content(cards=8, poison=True))["html"]
    assert len({path.read_bytes() for path in written.values()}) == 2
    return written


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose transcripts are in files of five beside its page."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PACK_ABOVE", 0), ("SPLIT_ABOVE", 0), ("CHUNK", 5)):
            patch.setattr(transcripts, name, value)
        return write_report(tmp_path_factory.mktemp("split"), make_content(cards=8, poison=True))["html"]


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: webdriver.Chrome, poisoned: dict[str, Path]) -> webdriver.Chrome:
    opened(browser, poisoned[getattr(request, "param", "plain")])
    return browser


# For what reads transcripts; the rest of the page does not know how they are stored.
stored_either_way = pytest.mark.parametrize("page", ["plain", "packed"], indirect=True)


def selected(browser: webdriver.Chrome) -> int:
    # One script: the list may be drawn anew between finding an element and asking it.
    return int(browser.execute_script("return document.querySelector('[aria-selected=true]').getAttribute('aria-posinset')"))


def test_opens_without_errors_and_draws_every_chart(page: webdriver.Chrome) -> None:
    assert page.execute_script("return document.querySelectorAll('main details[open]').length") == 0
    draw(page)
    assert len(text_of(page, ".plot")) == 8
    assert PLUMBING in text_of(page, ".banner p")
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    no_errors(page)


def test_curves_are_drawn_too(browser: webdriver.Chrome, tmp_path: Path) -> None:
    write_run(tmp_path, "emoharbor")
    with open_run(tmp_path) as run:
        opened(browser, write_report(tmp_path, content_of(run))["html"])
    draw(browser)
    shown = {name.partition("-")[0]: name for name in browser.execute_script(CHARTS)}
    assert {"survival", "trends"} < set(shown)
    for name in (shown["survival"], shown["trends"]):
        assert browser.find_elements(By.CSS_SELECTOR, f"[data-chart='{name}'] .scatterlayer .trace path.js-line")
    no_errors(browser)


def test_the_page_of_ecdbench_draws_what_it_holds(browser: webdriver.Chrome, tmp_path: Path) -> None:
    box = {"traces": [{"type": "box", "y": [1, 2, 4], "tone": "accent"}], "layout": {"yaxis": {"range": [0, 5]}}}
    write_page(tmp_path / "ecdbench.html", "ECDBench", [Chart("figure4", "Scores", "Made up.", "", box)], [])
    browser.get((tmp_path / "ecdbench.html").as_uri())
    until(browser, "return document.querySelector('.boxlayer path.box') !== null")
    no_errors(browser)


@stored_either_way
def test_injected_text_is_shown_as_text(page: webdriver.Chrome) -> None:
    shown = "".join(clean(text) for text in INJECTIONS)
    named = clean(composed("".join(INJECTIONS).translate(NO_CONTROL)))
    unfold(page)
    page.execute_script("document.querySelector('[data-chart=terminations]').scrollIntoView()")
    until(page, "return [...document.querySelectorAll('.plot text')].some(label => label.textContent.includes('</script>'))")
    for _ in range(12):
        page.find_element(By.ID, "list").send_keys("j")
    assert all(text.endswith(shown) for text in text_of(page, ".bubble .text"))
    assert text_of(page, "h1")[0].endswith(shown) and text_of(page, "#detail h3")[0].endswith(named)
    for _ in range(30):
        if answers := text_of(page, ".verdict pre"):
            break
        page.find_element(By.ID, "list").send_keys("j")
    assert answers and all(text.endswith(shown) for text in answers)
    assert page.execute_script("return window.__pwned") is None
    assert page.find_elements(By.CSS_SELECTOR, "body img, #detail script, .plot a") == []
    sources = page.execute_script(
        "return [...document.querySelectorAll('.plot image')].map(one => one.href.baseVal.slice(0, 22))"
    )
    assert set(sources) <= {"data:image/png;base64,"}  # the cells of heat maps, which plotly paints itself
    for tag in ("iframe", "object", "base", "math", "video", "form", "meta[http-equiv=refresh]", "svg animate", "[onfocus]"):
        assert page.find_elements(By.CSS_SELECTOR, tag) == [], tag
    assert page.execute_script("return ({}).x") is None and page.current_url.startswith("file:")
    no_errors(page)


def test_a_script_that_got_in_would_not_run(page: webdriver.Chrome) -> None:
    page.execute_script(
        """
        const script = document.createElement("script");
        script.textContent = "window.__pwned = 1";
        const button = document.createElement("div");
        button.setAttribute("onclick", "window.__pwned = 1");
        document.body.append(script, button);
        button.click();
        """
    )
    assert page.execute_script("return window.__pwned") is None
    assert [entry for entry in page.get_log("browser") if "Content Security Policy" in entry["message"]]


@stored_either_way
def test_filters_and_search(page: webdriver.Chrome) -> None:
    total = 8 * 2 * 4
    assert text_of(page, "#count") == [f"{total} of {total} dialogues"]
    supporter = Select(page.find_element(By.ID, "filter-supporter"))
    supporter.select_by_index(1)
    until(page, f"return document.getElementById('count').textContent === '16 of {total} dialogues'")
    Select(page.find_element(By.ID, "filter-language")).select_by_value("zh")
    until(page, f"return document.getElementById('count').textContent === '8 of {total} dialogues'")
    assert "三月份为了这份工作搬过来" in "".join(text_of(page, ".bubble .text"))
    assert page.execute_script("return [...document.querySelectorAll('.bubble .text')].every(p => p.lang === 'zh')")
    search = page.find_element(By.ID, "filter-text")
    search.send_keys("CARD-zh-003")  # in the card's id; letter case does not matter
    until(page, f"return document.getElementById('count').textContent === '1 of {total} dialogues'")
    search.clear()
    search.send_keys("三月份为了这份工作")
    until(page, f"return document.getElementById('count').textContent === '8 of {total} dialogues'")
    Select(page.find_element(By.ID, "filter-language")).select_by_value("en")
    until(page, f"return document.getElementById('count').textContent === '0 of {total} dialogues'")
    assert text_of(page, "#detail") == ["No dialogue passes these filters."]
    no_errors(page)


def test_termination_and_card_filters(page: webdriver.Chrome) -> None:
    choices = Select(page.find_element(By.ID, "filter-termination"))
    assert "max_turns" in [option.text for option in choices.options]
    choices.select_by_value("max_turns")
    until(page, "return !document.getElementById('count').textContent.startsWith('64 of')")
    Select(page.find_element(By.ID, "filter-subject")).select_by_index(1)
    until(page, "return parseInt(document.getElementById('count').textContent) <= 4")
    assert all("max_turns" in text for text in text_of(page, "#detail .meta"))


def test_score_filter(page: webdriver.Chrome) -> None:
    content = make_content(cards=8, poison=True)
    values = [j.value for j in content.tally.judgements if j.dimension == "skill"]
    low = page.find_element(By.ID, "filter-low")
    assert not low.is_enabled()  # a range of nothing in particular
    Select(page.find_element(By.ID, "filter-dimension")).select_by_visible_text("Skill")
    read = sum(value is not None for value in values)
    until(page, f"return document.getElementById('count').textContent === '{read} of 64 dialogues'")
    low.send_keys("2")
    page.find_element(By.ID, "filter-high").send_keys("3")
    kept = sum(value is not None and 2 <= value <= 3 for value in values)
    assert 0 < kept < read
    until(page, f"return document.getElementById('count').textContent === '{kept} of 64 dialogues'")
    no_errors(page)


@stored_either_way
def test_content_warning_stands_before_risk_turns(page: webdriver.Chrome) -> None:
    Select(page.find_element(By.ID, "filter-risk")).select_by_visible_text("self-harm")
    until(page, "return document.getElementById('count').textContent === '1 of 64 dialogues'")
    until(page, "return document.querySelector('#detail .warning') !== null")
    assert text_of(page, "#detail .bubble") == [] and text_of(page, "#detail .card") == []
    assert text_of(page, ".row .opening") == ["content warning: self-harm"]
    page.find_element(By.CSS_SELECTOR, "#detail .warning button").send_keys(Keys.ENTER)
    assert "risk: self-harm" in text_of(page, ".bubble.risk .speaker")[0]
    assert page.switch_to.active_element.get_attribute("id") == "detail"
    Select(page.find_element(By.ID, "filter-risk")).select_by_index(0)
    until(page, "return document.getElementById('count').textContent === '64 of 64 dialogues'")
    assert text_of(page, "#detail .warning") == []  # asked for once, it stays open
    no_errors(page)


def test_a_turn_of_several_risks_is_found_under_each_and_a_risky_card_shows_its_id_alone(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    content = make_content()
    first, second = content.tally.dialogues[1:3]  # the page opens with the one before
    name = str(content.tally.dialogues[-1].card_id)
    dark = {**content.cards, name: content.cards[name].model_copy(update={"problem": "我想自杀，不想活了。"})}
    risks = {first.id: {0: ["self-harm", "abuse"], 2: ["self-harm"]}, second.id: {0: ["abuse"]}}
    opened(browser, write_report(tmp_path, replace(content, risks=risks, cards=dark))["html"])
    choices = Select(browser.find_element(By.ID, "filter-risk"))
    assert [option.text for option in choices.options] == ["all", "abuse", "self-harm"]
    for risk, count in (("abuse", 2), ("self-harm", 1)):
        choices.select_by_visible_text(risk)
        until(browser, f"return document.getElementById('count').textContent.startsWith('{count} of ')")
    assert text_of(browser, "#detail .warning p") == ["Content warning: this dialogue speaks of abuse, self-harm."]
    cards = [option.text for option in Select(browser.find_element(By.ID, "filter-subject")).options]
    assert name in cards and sum(": " in text for text in cards) == len(content.cards) - 1
    no_errors(browser)


def test_paper_shows_the_chosen_transcript_and_cuts_no_table(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    opened(browser, page_of_a_run)
    unfold(browser)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    a4 = {"width": 688, "height": 1000, "deviceScaleFactor": 1, "mobile": False}  # px: the print area of an A4 page
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", a4)
    try:
        widths = "return [...document.querySelectorAll('table')].map((table) => table.getBoundingClientRect().right)"
        assert max(browser.execute_script(widths)) <= 689
        shown = "return arguments[0].map((query) => document.querySelector(query).getClientRects().length > 0)"
        assert browser.execute_script(shown, ["#detail .bubble", "#list", ".filters", "#print"]) == [True, False, False, False]
        inner = "const d = document.getElementById('detail'); return d.scrollHeight <= d.clientHeight + 1"
        assert browser.execute_script(inner)  # nothing of the transcript is cut off
        browser.execute_script("document.documentElement.classList.add('only-transcript')")
        assert browser.execute_script(shown, ["#detail .bubble", "table", "h1"]) == [True, False, False]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_keyboard(page: webdriver.Chrome) -> None:
    page.execute_script("document.getElementById('list').focus()")
    box = page.switch_to.active_element
    steps = [("j", 2), ("j", 3), ("k", 2), (Keys.ARROW_DOWN, 3), (Keys.ARROW_UP, 2), (Keys.END, 64), ("j", 64), (Keys.HOME, 1)]
    for key, expected in steps:
        box.send_keys(key)
        assert selected(page) == expected
    box.send_keys(Keys.END)
    active = page.execute_script(
        """
        const list = document.getElementById("list");
        const row = document.getElementById(list.getAttribute("aria-activedescendant")).getBoundingClientRect();
        const box = list.getBoundingClientRect();
        return row.top >= box.top - 1 && row.bottom <= box.bottom + 1;
        """
    )
    assert active  # the selected row was scrolled into sight
    box.send_keys("/")
    assert page.switch_to.active_element.get_attribute("id") == "filter-text"
    page.switch_to.active_element.send_keys("jk")  # letters typed there are text
    assert page.find_element(By.ID, "filter-text").get_attribute("value") == "jk"
    outline = page.execute_script(
        "document.getElementById('list').focus(); return getComputedStyle(document.getElementById('list')).outlineStyle"
    )
    assert outline == "solid"


def test_a_head_sorts_its_table_by_keyboard_too(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    opened(browser, page_of_a_run)
    unfold(browser)
    board = "#section-1 figure.table:first-of-type "
    heads = [head.text for head in browser.find_elements(By.CSS_SELECTOR, board + "thead th")]
    assert heads[:3] == ["rank", "supporter", "average"]
    names = [name.strip() for name in text_of(browser, board + "tbody th")]
    average = browser.find_elements(By.CSS_SELECTOR, board + "thead button")[2]
    for way, expected in (("descending", names), ("ascending", names[::-1])):
        average.send_keys(Keys.ENTER)
        assert [name.strip() for name in text_of(browser, board + "tbody th")] == expected
        assert browser.find_element(By.CSS_SELECTOR, board + "[aria-sort]").get_attribute("aria-sort") == way
    no_errors(browser)


def test_an_address_leads_to_a_transcript_and_its_filters(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    opened(browser, page_of_a_run)
    assert "#" not in browser.current_url  # opening the page leaves the address alone
    Select(browser.find_element(By.ID, "filter-supporter")).select_by_value("harbour-8b")
    until(browser, "return location.hash.includes('supporter=harbour-8b')")
    browser.find_element(By.ID, "list").send_keys("j")
    until(browser, "return document.querySelector('[aria-selected=true]').getAttribute('aria-posinset') === '2'")
    address, chosen = browser.current_url, browser.execute_script("return document.querySelector('#detail .meta').textContent")
    browser.get("about:blank")
    browser.get(address)
    until(browser, "return document.querySelector('[aria-selected=true]')?.getAttribute('aria-posinset') === '2'")
    until(browser, f"return document.querySelector('#detail .meta').textContent === {chosen!r}")
    assert browser.find_element(By.ID, "filter-supporter").get_attribute("value") == "harbour-8b"
    browser.get("about:blank")
    browser.get(page_of_a_run.as_uri() + "#supporter=nobody&transcript=nothing")  # what is not there filters nothing
    until(browser, "return document.getElementById('count').textContent === '48 of 48 dialogues'")
    assert all(text_of(browser, ".row .score"))
    no_errors(browser)


def test_verdicts_show_probabilities_and_levels_and_only_rows_in_sight_exist(page: webdriver.Chrome) -> None:
    assert len(page.find_elements(By.CSS_SELECTOR, ".row")) < 40
    bars = page.find_elements(By.CSS_SELECTOR, ".verdict .odds")
    assert bars and (bars[0].get_attribute("aria-label") or "").startswith("probabilities 0: ")
    assert len(bars[0].find_elements(By.TAG_NAME, "i")) == 5
    assert len(text_of(page, ".verdict")) == 7 and text_of(page, ".verdict .level")


def test_dark_and_paper(browser: webdriver.Chrome, page_of_a_run: Path) -> None:
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        opened(browser, page_of_a_run)
        grounds = "return getComputedStyle(document.documentElement).backgroundColor"
        assert browser.execute_script(grounds) == "rgb(20, 24, 27)"
        unfold(browser)
        browser.execute_script("document.querySelector('.plot').scrollIntoView()")  # charts are drawn when they come near
        until(browser, "return document.querySelector('.plot .xtick text') !== null")
        ink = "return getComputedStyle(document.querySelector('.plot .xtick text')).fill"
        assert browser.execute_script(ink) == "rgb(155, 166, 173)"
        browser.execute_script(
            """
            window.addEventListener("beforeprint", () => {
              const plots = [...document.querySelectorAll(".plot")].filter((plot) => plot.querySelector("svg"));
              window.printed = [plots.length, getComputedStyle(document.querySelector(".plot .xtick text")).fill];
            });
            """
        )
        pdf = base64.b64decode(browser.print_page())
        assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
        charts, colour = browser.execute_script("return window.printed")
        assert charts == 8 and colour == "rgb(86, 97, 105)"  # every chart, in the colours of light ground
        assert browser.execute_script(ink) == "rgb(155, 166, 173)"  # and back again
        no_errors(browser)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_a_full_benchmark_opens(browser: webdriver.Chrome, benchmark: tuple[Path, int]) -> None:
    page, count = benchmark
    opened(browser, page)
    assert text_of(browser, "#count") == [f"{count:,} of {count:,} dialogues"]
    browser.find_element(By.ID, "list").send_keys(Keys.END)
    until(browser, f"return document.querySelector('[aria-selected=true]')?.getAttribute('aria-posinset') === '{count}'")
    browser.find_element(By.ID, "filter-text").send_keys("no such words")
    until(browser, f"return document.getElementById('count').textContent === '0 of {count:,} dialogues'")
    no_errors(browser)


def test_a_large_report_takes_its_transcripts_from_files_beside_it(browser: webdriver.Chrome, split: Path) -> None:
    files = sorted((split.parent / "report_transcripts").iterdir())
    late = 5 * (len(files) - 1)  # dialogues before the last file's
    assert late > 20 and not any(path.read_text().split('"')[3] in split.read_text() for path in files)
    opened(browser, split)
    (first,) = text_of(browser, "#detail")
    browser.execute_script("document.getElementById('list').focus()")
    browser.switch_to.active_element.send_keys(Keys.END)
    until(browser, f"return document.querySelector('[aria-selected=true]')?.getAttribute('aria-posinset') > {late}")
    until(browser, "return document.querySelectorAll('.bubble.supporter').length > 0")
    (last,) = text_of(browser, "#detail")
    assert "supporter · turn" in last and last != first
    browser.execute_script("document.getElementById('filter-text').value = 'zzz no such words'")
    browser.execute_script("document.getElementById('filter-text').dispatchEvent(new Event('input'))")
    until(browser, "return document.getElementById('count').textContent.startsWith('0 of')")  # every file was read for that
    no_errors(browser)


def test_a_page_without_its_folder_says_so(browser: webdriver.Chrome, split: Path, tmp_path: Path) -> None:
    alone = tmp_path / "report.html"
    alone.write_bytes(split.read_bytes())
    browser.get(alone.as_uri())
    until(browser, "return document.getElementById('detail').textContent.includes('report_transcripts beside this page')")
    browser.get_log("browser")  # what the browser says of the missing files
