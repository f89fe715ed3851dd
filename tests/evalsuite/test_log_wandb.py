"""Tables and charts go to wandb as they are in the report; offline without a key; a clear error without wandb."""

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plotly.graph_objects import Figure

from core.errors import UserError
from core.third_party import offline_without_key
from evalsuite.report.charts import coloured
from evalsuite.report.content import content_of
from evalsuite.report.report import log_report
from evalsuite.runs.folder import open_run
from evalsuite.statistics.rounds import SURVIVAL, TRENDS
from tests.generated_report import make_content, write_run

pytestmark = pytest.mark.slow

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
    assert set(session.logged) == {f"tables/{t.key}" for t in content.tables} | {f"charts/{c.key}" for c in content.charts}
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


@pytest.mark.parametrize("framework", ["esc_eval", "emoharbor"])
def test_every_chart_is_a_figure_of_plotly_in_the_pages_colours(tmp_path: Path, framework: str) -> None:
    """plotly's own classes refuse attributes and values that plotly.js does not know."""
    write_run(tmp_path, framework)
    with open_run(tmp_path) as run:
        charts = {chart.key: chart for chart in content_of(run).charts}
    drawn = {key.partition("-")[0] for key in charts}
    assert drawn == {"distribution", "agreement", "confusion", "calibration", "terminations", "survival"} | (
        {"trends"} if framework == "emoharbor" else set()
    )
    for chart in charts.values():
        shown = Figure(coloured(chart.figure))
        assert [trace.type for trace in shown.data] == [trace["type"] for trace in chart.figure["data"]]
        assert not re.search(r'"<[a-z0-9-]+>"', shown.to_json()) and re.search('"#[0-9a-f]{6}"', shown.to_json())


@pytest.mark.parametrize(
    ("framework", "drawn"), [("esc_eval", [("survival", "")]), ("emoharbor", [("survival", ""), ("trends", "-0")])]
)
def test_curves_share_a_legend_and_stand_before_their_counts(
    tmp_path: Path, framework: str, drawn: list[tuple[str, str]]
) -> None:
    write_run(tmp_path, framework)
    with open_run(tmp_path) as run:
        content = content_of(run)
    along = {table.key for table in content.tables if table.section in (SURVIVAL, TRENDS)}
    charts = {chart.key: chart.figure for chart in content.charts if chart.after in along}
    assert set(charts) == {f"{name}-{language}{number}" for name, number in drawn for language in ("en", "zh")}
    for key, figure in charts.items():
        panels, traces = len(figure["layout"]["annotations"]), figure["data"]
        lines = [trace for trace in traces if trace.get("mode", "").startswith("lines") and "fill" not in trace]
        entries = [line["name"] for line in lines if line.get("showlegend", True)]
        assert len(entries) == len(set(entries)) == len(lines) / panels, "one entry a line, however many panels"
        bars = [trace for trace in traces if trace["type"] == "bar"]
        assert len(bars) == (panels if key.startswith("trends") else 0)
        assert all(max(trace["y"]) == 100 and trace["text"][0].endswith(" dialogues") for trace in bars)


@pytest.mark.parametrize(("framework", "charts"), [(None, 10), ("esc_eval", 10), ("emoharbor", 12)])
def test_wandb_itself_writes_offline(
    monkeypatch: pytest.MonkeyPatch, quiet: None, tmp_path: Path, framework: str | None, charts: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["esc-eval", "--endpoint", "judge=http://me:SECRET@host/v1"])
    write_run(tmp_path, framework)
    with open_run(tmp_path) as run:
        log_report(tmp_path, content_of(run), lambda _: None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    assert list(folder.glob("run-*.wandb")) and len(list(folder.glob("files/media/plotly/charts/*.json"))) == charts
