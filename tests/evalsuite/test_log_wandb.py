"""Tables and charts go to wandb as they are in the report; offline without a key; a clear error without wandb."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import evalsuite
from core.errors import UserError
from core.tables import Estimate, Table
from core.wandb_offline import offline_without_key
from evalsuite.report.content import content_of
from evalsuite.report.log_wandb import TRACES, figure, log_report, plain
from evalsuite.report.report import TEMPLATES
from evalsuite.runs.folder import open_run
from evalsuite.statistics.survival import SURVIVAL
from evalsuite.statistics.trends import TRENDS
from tests.generated_report import make_content, write_run

FRAMEWORKS = ("esc_eval", "emoharbor")


class Session:
    """What a wandb run is asked to do, written down."""

    def __init__(self, folder: Path) -> None:
        self.dir = str(folder / "wandb")
        self.summary: dict[str, Any] = {}
        self.logged: dict[str, Any] = {}
        self.finished = False

    def log(self, given: dict[str, Any]) -> None:
        self.logged |= given

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no mode, no home with a .netrc; what is set while the test runs is taken back."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "x")
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("framework", [None, *FRAMEWORKS])
def test_tables_charts_and_figures_are_logged(
    monkeypatch: pytest.MonkeyPatch, quiet: None, tmp_path: Path, framework: str | None
) -> None:
    session, given = Session(tmp_path), {}

    def init(**options: Any) -> Session:
        given.update(options)
        return session

    fake = SimpleNamespace(
        init=init, Table=lambda **shown: shown, Plotly=lambda made: made, Settings=lambda **chosen: chosen, __spec__=True
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    write_run(tmp_path, framework)
    with open_run(tmp_path) as run:
        content = content_of(run)
    said: list[str] = []
    log_report(tmp_path, content, said.append)
    cells = content.tally.scores
    charts = [chart for section in content.sections for chart in section.charts]
    assert set(session.logged) == {f"tables/{t.key}" for t in content.tables} | {f"charts/{c.key}" for c in charts}
    assert given["resume"] == "allow" and given["dir"] == str(tmp_path) and given["config"]["mode"] == "native"
    assert given["settings"]["x_disable_meta"] is True, "wandb's metadata holds the command line"
    cell = cells[0]
    name = f"score/{cell.language}/{cell.scorer.name}/{cell.supporter}/{cell.dimension}"
    assert session.summary[name] == cell.estimate.mean and len(session.summary) == len(cells)
    assert session.finished
    assert os.environ["WANDB_MODE"] == "offline" and said[0] == "wandb: no key, writing offline (WANDB_MODE=offline)"


def test_a_session_that_fails_is_finished(monkeypatch: pytest.MonkeyPatch, quiet: None, tmp_path: Path) -> None:
    session = Session(tmp_path)

    def refuse(**_: Any) -> None:
        raise RuntimeError("no table")

    fake = SimpleNamespace(init=lambda **_: session, Table=refuse, Settings=lambda **_: None, __spec__=True)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(RuntimeError, match="no table"):
        log_report(tmp_path, make_content(), lambda _: None)
    assert session.finished


def test_without_wandb_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    with pytest.raises(UserError, match="logging to wandb needs wandb, not installed here"):
        log_report(tmp_path, make_content(), lambda _: None)


@pytest.mark.parametrize(
    ("key", "netrc", "mode", "expected"),
    [
        (None, "", None, "offline"),
        ("secret", "", None, None),
        (None, "machine api.wandb.ai login user password x", None, None),
        (None, "machine elsewhere.org login user password x", None, "offline"),
        (None, "", "disabled", "disabled"),
    ],
)
def test_offline_only_without_a_key(
    monkeypatch: pytest.MonkeyPatch,
    quiet: None,
    tmp_path: Path,
    key: str | None,
    netrc: str,
    mode: str | None,
    expected: str | None,
) -> None:
    (tmp_path / ".netrc").write_text(netrc)
    for name, value in (("WANDB_API_KEY", key), ("WANDB_MODE", mode)):
        if value is not None:
            monkeypatch.setenv(name, value)
    said: list[str] = []
    offline_without_key(said.append)
    assert os.environ.get("WANDB_MODE") == expected
    assert bool(said) is (expected == "offline")


def test_estimates_become_four_columns() -> None:
    table = Table("t", "T", ("who", "score"), (("a", Estimate(1.0, 0.5, 1.5, 7)), ("b", None)))
    assert plain(table) == (
        ["who", "score", "score low", "score high", "score n"],
        [["a", 1.0, 0.5, 1.5, 7], ["b", *[None] * 4]],
    )


def test_every_chart_becomes_a_figure_with_its_points() -> None:
    content = make_content()
    cells = content.tally.scores
    charts = {chart.key: chart for section in content.sections for chart in section.charts}
    assert {chart.data["kind"] for chart in charts.values()} == {"dots", "bars", "heat", "line"}
    made = {key: figure(chart) for key, chart in charts.items()}
    zh = [cell.estimate.mean for cell in cells if cell.language == "zh" and cell.dimension == "fluency"]
    assert list(made["scores-zh"].data[0].x) == zh
    counts = charts["confusion-en"].data["panels"][0]["counts"]
    assert [list(row) for row in made["confusion-en"].data[0].text] == counts
    points = charts["calibration"].data["panels"][0]["points"]
    assert list(made["calibration"].data[0].y) == [point[1] for point in points]
    assert sum(sum(trace.x) for trace in made["terminations"].data) == len(content.tally.dialogues)


@pytest.mark.parametrize(
    ("framework", "drawn"), [("esc_eval", [("survival", "")]), ("emoharbor", [("survival", ""), ("trends", "-0")])]
)
def test_curves_are_those_of_the_report(tmp_path: Path, framework: str, drawn: list[tuple[str, str]]) -> None:
    write_run(tmp_path, framework)
    with open_run(tmp_path) as run:
        along = content_of(run).charts
    charts = {chart.key: chart for section in (SURVIVAL, TRENDS) for chart in along[section]}
    assert set(charts) == {f"{name}-{language}{number}" for name, number in drawn for language in ("en", "zh")}
    for chart in charts.values():
        panels, made = chart.data["panels"], figure(chart).data
        lines = [list(trace.y) for trace in made if trace.type == "scatter"]
        assert lines == [[point[1] for point in one["points"]] for panel in panels for one in panel["series"]]
        assert sum(trace.showlegend for trace in made) == len(panels[0]["series"]), "one entry a line, however many panels"
        counts = [[int(text.split()[0]) for text in trace.text] for trace in made if trace.type == "bar"]
        assert counts == [[count for _, count in panel["bars"]] for panel in panels if panel["bars"]]
        assert all(max(trace.y) == 100 for trace in made if trace.type == "bar")


def test_every_kind_of_chart_is_drawn_here_and_in_the_page() -> None:
    """The kinds are read from the sources, so that one that no generated report happens to hold counts too."""
    kinds = {
        value.value
        for path in Path(evalsuite.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "kind" and isinstance(value, ast.Constant)
    }
    (drawn,) = re.findall(r"= \{ ([a-z, ]+) \}\[spec\.kind\]", (TEMPLATES / "charts.js").read_text(encoding="utf-8"))
    assert kinds == set(TRACES) == set(drawn.split(", "))


@pytest.mark.slow
def test_wandb_itself_writes_offline(monkeypatch: pytest.MonkeyPatch, quiet: None, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["esc-eval", "--endpoint", "judge=http://me:SECRET@host/v1"])
    log_report(tmp_path, make_content(), lambda _: None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    assert list(folder.glob("run-*.wandb")) and len(list(folder.glob("files/media/plotly/charts/*.json"))) == 10
