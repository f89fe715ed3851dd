"""What several tests share; and the long versions of tests, which `make test-full` asks for by their mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalsuite.report.report import write_report
from tests.generated_report import full_benchmark_content


@pytest.fixture(scope="session")
def full_benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report as large as ESC-Eval's own evaluation would give, made once: it takes ten seconds."""
    return write_report(tmp_path_factory.mktemp("full-benchmark"), full_benchmark_content())["html"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: the long version of a test; only in make test-full")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a word about them in `-m`, the long versions are left out."""
    if "full" in config.getoption("-m"):
        return
    long = [item for item in items if item.get_closest_marker("full")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
