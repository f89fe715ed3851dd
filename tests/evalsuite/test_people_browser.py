"""Studies in Debian's Chromium, as raters and an organiser use them: from the link to the records, on a desktop and a phone."""

import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from core.files import write_jsonl
from core.rubrics import load_rubric
from tests.conftest import EscEval
from tests.evalsuite.browsing import no_errors, screen, text_of, until, violations
from tests.people_study import SCRIPT, cards, dialogue, exported, links, make_study, served

pytestmark = pytest.mark.browser
KEYS = list(load_rubric("esc_eval_human").dimensions)


@pytest.fixture(autouse=True)
def nobody_signed_in(browser: webdriver.Chrome) -> None:
    browser.get_log("browser")
    browser.get("about:blank")


def enter(browser: webdriver.Chrome, address: str, link: str) -> None:
    browser.get(f"http://{address}/nowhere")  # cookies belong to the address
    browser.delete_all_cookies()
    browser.get_log("browser")
    browser.get(f"http://{address}{link}")


def click(browser: webdriver.Chrome, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def press(browser: webdriver.Chrome, *keys: str) -> None:
    for key in keys:
        webdriver.ActionChains(browser).send_keys(key).perform()


def saved(browser: webdriver.Chrome) -> None:
    until(browser, "return document.getElementById('status').textContent === 'saved'")


def submit(browser: webdriver.Chrome) -> None:
    here = browser.current_url
    click(browser, "#submit")
    until(browser, f"return location.href !== '{here}' && document.readyState === 'complete'")


def rate(browser: webdriver.Chrome, value: str) -> None:
    """Every question of the page by the keyboard alone."""
    for _ in range(len(browser.find_elements(By.CSS_SELECTOR, "fieldset.question"))):
        press(browser, value, Keys.ARROW_DOWN)
    saved(browser)
    submit(browser)


def accessible(browser: webdriver.Chrome) -> None:
    """On a desktop in daylight and on a phone in the dark."""
    for width, scheme in ((1280, "light"), (400, "dark")):
        with screen(browser, width, scheme):
            assert violations(browser) == []


def test_two_raters_and_an_organiser_rate_a_study(
    browser: webdriver.Chrome, esc_eval: EscEval, tmp_path: Path, browsed_database: str | None
) -> None:
    (tmp_path / "consent.txt").write_text("You may stop at any time.\n\nNobody learns your name.")
    make_study(esc_eval, "--consent", "consent.txt", count=1, text=SCRIPT)
    with served(tmp_path / "s", browsed_database) as (address, _):
        for code, value in (("r01", "3"), ("r02", "2")):
            enter(browser, address, links(tmp_path / "s")[code])
            assert "r/" not in browser.current_url, "the link's secret left the address bar"
            assert "Nobody learns your name." in browser.page_source
            first = code == "r01"  # the other sees the same pages
            if first:
                accessible(browser)
            click(browser, "#agree")
            until(browser, "return document.getElementById('go') !== null")
            if first:
                accessible(browser)
            click(browser, "#go")
            for task in range(2):
                until(browser, "return document.querySelector('fieldset.question') !== null")
                if first and task == 0:
                    accessible(browser)
                assert "alpha" not in browser.page_source and "beta" not in browser.page_source, "models are not named"
                assert SCRIPT in text_of(browser, ".turn.supporter")[0] and browser.title == "Study", "a script is text"
                assert "Keys: 0–9 give a score" in text_of(browser, ".keys")[0] and "built-in" not in browser.page_source
                rate(browser, value)
            until(browser, "return document.getElementById('finished') !== null")
            no_errors(browser)
        enter(browser, address, links(tmp_path / "s")["organiser"])
        accessible(browser)
        cells = text_of(browser, "tbody td")
        assert cells[:4] == ["r01", "2", "0", "2"] and "Krippendorff" in browser.page_source
        click(browser, "button[data-act=revoke][data-code=r02]")
        until(browser, "return [...document.querySelectorAll('code')].some(one => one.textContent === 'revoked')")
        click(browser, "button[data-act=link][data-code=r02]")
        until(browser, "return [...document.querySelectorAll('code')].some(one => one.textContent.includes('/r/'))")
        new = next(text for text in text_of(browser, "code") if "/r/" in text)
        browser.delete_all_cookies()
        browser.get(new)
        assert "All done" in browser.page_source
    scores = exported(esc_eval)
    assert {(s.annotator, s.value) for s in scores} == {("r01", 3), ("r02", 2)} and len(scores) == 2 * 2 * len(KEYS)


def test_a_choice_between_seekers_side_by_side(
    browser: webdriver.Chrome, esc_eval: EscEval, tmp_path: Path, browsed_database: str | None
) -> None:
    for name in ("bot", "human"):
        write_jsonl(tmp_path / name / "dialogues.jsonl", [dialogue("sup", 0, simulator=name, text=f"Said to {name}.")])
        write_jsonl(tmp_path / name / "cards.jsonl", cards(1))
    given = ("--seeker", "bot=bot", "--seeker", "human=human", "--raters", 2)
    assert esc_eval("people", "create", "s", *given) == (0, "")
    with served(tmp_path / "s", browsed_database) as (address, store):
        first = {task.rater: task.order for task in store.tasks()}
        assert sorted(first.values()) == ["ab", "ba"]
        for code in ("r01", "r02"):
            enter(browser, address, links(tmp_path / "s")[code])
            click(browser, "#go")
            until(browser, "return document.querySelectorAll('.column').length === 2")
            left, right = text_of(browser, ".column")
            ours, theirs = (left, right) if first[code] == "ab" else (right, left)
            assert "Said to bot." in ours and "Said to human." in theirs
            assert "I lost my cat." in text_of(browser, ".before")[0], "what both begin with stands above, once"
            assert "The cat is gone (0)." in text_of(browser, ".played")[0]
            if code == "r01":
                accessible(browser)
            # Whoever picks the one on the left picks another dialogue than the rater with the other order.
            press(browser, "1")
            saved(browser)
            submit(browser)
        no_errors(browser)
    chosen = exported(esc_eval, "preferences.jsonl")
    assert {p.annotator: (p.order, p.verdict) for p in chosen} == {c: (o, o[0]) for c, o in first.items()}


def test_a_phone_in_chinese_with_halves_and_turns(browser: webdriver.Chrome, esc_eval: EscEval, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d.jsonl", [dialogue("alpha", 0, "zh")])
    given = ("--dialogues", "d.jsonl", "--rubric", "feel", "--raters", "ann=zh", "--set", "per=turn", "--set", "overlap=1")
    assert esc_eval("people", "create", "s", *given) == (0, "")
    phone = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        with served(tmp_path / "s") as (address, store):
            enter(browser, address, links(tmp_path / "s")["ann"])
            assert "你的对话" in browser.page_source
            click(browser, "#go")
            until(browser, "return document.querySelectorAll('fieldset.question').length === 12")  # 6 aspects, 2 turns
            wide = "return document.documentElement.scrollWidth"
            assert browser.execute_script(wide) <= 400, "nothing has to be scrolled sideways"
            assert "引导充分性" in browser.page_source and "介于两级之间" in browser.page_source
            small = "return [...document.querySelectorAll('.options label')].filter(one => one.offsetHeight < 32).length"
            assert browser.execute_script(small) == 0, "what is to be touched is large enough"
            click(browser, "fieldset[data-question=safety][data-turn='3'] input[value='1.5']")
            until(browser, "return document.getElementById('status').textContent === '已保存'")
            assert text_of(browser, ".turn.current") == ["4 支持者Tell me more."], "the turn that is rated is marked"
            click(browser, "#submit")
            until(browser, "return !document.getElementById('banner').hidden")
            assert "还没有回答" in text_of(browser, "#banner")[0]
            click(browser, "#language")
            until(browser, "return document.documentElement.lang === 'en'")
            assert "Informativeness" in browser.page_source
            checked = "return document.querySelector('fieldset[data-question=safety][data-turn=\"3\"] input:checked').value"
            assert browser.execute_script(checked) == "1.5", "it was saved at the click"
            ((key, (answer, _)),) = store.answers().popitem()[1].items()
            assert key == ("safety", 3) and answer.value == 1.5
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_two_tabs_of_one_rater_do_not_overwrite_each_other_unseen(
    browser: webdriver.Chrome, esc_eval: EscEval, tmp_path: Path
) -> None:
    make_study(esc_eval, count=1)
    with served(tmp_path / "s") as (address, _):
        enter(browser, address, links(tmp_path / "s")["r01"])
        click(browser, "#go")
        until(browser, "return document.querySelector('fieldset.question') !== null")
        first = browser.current_window_handle
        browser.switch_to.new_window("tab")
        browser.get(f"http://{address}/")
        click(browser, "#go")
        until(browser, "return document.querySelector('fieldset.question') !== null")
        press(browser, "4")
        saved(browser)
        browser.close()
        browser.switch_to.window(first)
        press(browser, "1")
        until(browser, "return !document.getElementById('banner').hidden")
        assert "changed in another tab" in text_of(browser, "#banner")[0]
        checked = "return document.querySelector('fieldset.question input:checked').value"
        assert browser.execute_script(checked) == "4", "what is saved is shown"
        press(browser, "1")
        saved(browser)


def test_a_server_that_is_away_is_said_and_the_answer_is_sent_when_it_is_back(
    browser: webdriver.Chrome, esc_eval: EscEval, tmp_path: Path
) -> None:
    make_study(esc_eval, count=1)
    with served(tmp_path / "s") as (address, store):
        enter(browser, address, links(tmp_path / "s")["r01"])
        click(browser, "#go")
        until(browser, "return document.querySelector('fieldset.question') !== null")
        browser.execute_cdp_cmd("Network.enable", {})
        offline = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline | {"offline": True})
        press(browser, "4")
        until(browser, "return !document.getElementById('banner').hidden")
        assert "cannot be reached" in text_of(browser, "#banner")[0] and not store.answers()
        browser.execute_cdp_cmd(
            "Network.emulateNetworkConditions", offline | {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
        )
        deadline = time.monotonic() + 15
        while not store.answers() and time.monotonic() < deadline:
            time.sleep(0.1)
        saved(browser)
        assert len(store.answers()) == 1
