"""Fixtures of the data room's tests."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from data_prep.__main__ import app
from tests.data_prep.running import SPEC, Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The program in an empty folder but for a model spec, model.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("model.yaml").write_text(SPEC)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])
