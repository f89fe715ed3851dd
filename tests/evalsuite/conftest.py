"""What several tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalsuite.report.report import write_report
from tests.generated_report import full_benchmark_content


@pytest.fixture(scope="session")
def full_benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report as large as ESC-Eval's own evaluation would give, made once: it takes ten seconds."""
    return write_report(tmp_path_factory.mktemp("full-benchmark"), full_benchmark_content())["html"]


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.commands.run.report_run", lambda *given: None)
