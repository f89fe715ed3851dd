"""What several tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from evalsuite.report.report import write_report
from tests.conftest import EscEval
from tests.evalsuite.browsing import CHROMIUM, DRIVER, started
from tests.generated_report import benchmark_content, make_content
from tests.people_study import make_study, new_database, postgres


@pytest.fixture(scope="session", params=[840, pytest.param(8512, marks=pytest.mark.full)])
def benchmark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The page of a report as large as ESC-Eval's own evaluation would give, or a tenth of it, and its dialogues; made once."""
    content = benchmark_content(request.param)
    return write_report(tmp_path_factory.mktemp("benchmark"), content)["html"], request.param


@pytest.fixture(scope="session")
def page_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the report on `make_content`, for tests that only look at it."""
    return write_report(tmp_path_factory.mktemp("report"), make_content())["html"]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if not (CHROMIUM.exists() and DRIVER.exists()):
        if os.environ.get("CI") == "true":
            pytest.fail("Chromium is missing on CI: `make setup-browser` installs it")
        pytest.skip("THE REPORT WAS NOT TESTED IN A BROWSER: Chromium is missing, run `make setup-browser`")
    driver = started(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One PostgreSQL server for all tests: the URL, in which `{name}` is a database's."""
    with postgres() as url:
        yield url


def set_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    if request.param == "sqlite":
        return None
    url = new_database(request.getfixturevalue("postgres_server"))
    monkeypatch.setenv("ESC_EVAL_DATABASE", url)
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Where a study is kept: in its folder (None), or in a database of its own on the server, which the environment names."""
    return set_database(request, monkeypatch)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def browsed_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The same for tests in a browser, which does not see the database: what is sent to either is tested without one."""
    return set_database(request, monkeypatch)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.report.content.report_run", lambda *given: None)


@pytest.fixture
def study(esc_eval: EscEval, tmp_path: Path) -> Path:
    """Three raters, six dialogues, every one seen by two."""
    return make_study(esc_eval, raters=3)
