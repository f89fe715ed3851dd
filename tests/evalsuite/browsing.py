"""Debian's Chromium for the report's tests, and how they ask it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1280,900"),
)


def started(profile: Path) -> webdriver.Chrome:
    """A browser of this test run alone."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))


@contextmanager
def screen(browser: webdriver.Chrome, width: int, scheme: str) -> Iterator[None]:
    """A screen of this width, in the `light` or the `dark` scheme."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def opened(browser: webdriver.Chrome, path: Path) -> None:
    browser.get_log("browser")  # empties it
    browser.get(path.as_uri())
    until(browser, "return document.querySelectorAll('.bubble').length > 0")


def unfold(browser: webdriver.Chrome) -> None:
    browser.execute_script("document.querySelectorAll('details').forEach((one) => (one.open = true))")


def draw(browser: webdriver.Chrome) -> None:
    """Unfold the page and draw every chart."""
    unfold(browser)
    for plot in browser.find_elements(By.CSS_SELECTOR, ".plot"):
        browser.execute_script("arguments[0].scrollIntoView()", plot)
        until(browser, f"return document.querySelector('[data-chart=\"{plot.get_attribute('data-chart')}\"] svg') !== null")


def until(browser: webdriver.Chrome, script: str) -> None:
    WebDriverWait(browser, 15, 0.05).until(lambda driver: driver.execute_script(script))


def text_of(browser: webdriver.Chrome, selector: str) -> list[str]:
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(node => node.textContent)", selector
    )
    return found


def no_errors(browser: webdriver.Chrome) -> None:
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def every(browser: webdriver.Chrome, selector: str, expression: str) -> list[Any]:
    """What a JavaScript expression makes of every element, which is `one` in it."""
    script = f"return [...document.querySelectorAll(arguments[0])].map((one) => {expression})"
    found: list[Any] = browser.execute_script(script, selector)
    return found


AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# Charts are images with a label: what plotly draws in them nobody hears. Fewer nodes, and a check takes a second.
_CHECK = """
    const done = arguments[arguments.length - 1];
    axe.run({ exclude: [".plot > *"] }, { resultTypes: ["violations"] }).then(
      (found) => done(found.violations.map(({ id, impact, help, nodes }) => [impact, `${id}: ${help}: ${nodes[0].html}`])),
      (error) => done([["critical", String(error)]])
    );
"""


def violations(browser: webdriver.Chrome) -> list[tuple[str, str]]:
    """What axe finds wrong with the page for people who cannot see or point: (impact, what and where)."""
    browser.set_script_timeout(120)
    if not browser.execute_script("return 'axe' in window"):
        browser.execute_script(AXE)
    return [(impact, text) for impact, text in browser.execute_async_script(_CHECK)]
