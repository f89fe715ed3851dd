"""Runs with limits: they stop cleanly, say how they go on, and end as an undisturbed run does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from evalsuite.runs.config import duration
from serve.client import ChatClient
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.test_faults import MODELS, config, one_line, outputs, run_at


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.commands.run.report_run", lambda *given: None)


def test_a_run_stops_at_its_limits_and_goes_on_with_larger_ones(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 3, concurrency=1)
    with Endpoint(models=MODELS) as endpoint:
        assert esc_eval(*run_at(endpoint.url, "undisturbed")) == (0, "")
        before = len(endpoint.requests)
        told = ("ended early", "--max-calls 15 is reached: raise it to go on", "same command again")
        for _ in range(2):
            one_line(esc_eval(*run_at(endpoint.url), "--max-calls", "15"), 1, *told)
            assert len(endpoint.requests) - before == 15
        one_line(esc_eval(*run_at(endpoint.url), "--max-time", "0s"), 1, "--max-time 0 s is over", "same command again")
        assert esc_eval(*run_at(endpoint.url), "--max-calls", "1000", "--max-time", "4h") == (0, "")
        assert len(endpoint.requests) - before == 33
        assert esc_eval(*run_at(endpoint.url), "--max-calls", "0") == (0, ""), "nothing is left to ask"
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")


def test_attempts_and_call_timeout_are_the_users(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 1)
    with Endpoint(lambda body, count: Answer(delay=30), models=MODELS) as endpoint:
        code, err = esc_eval(*run_at(endpoint.url), "--attempts", "1", "--call-timeout", "0.05s")
        assert code == 2 and "gave up after 1 attempts: TimeoutError" in err and len(endpoint.requests) == 1
        one_line(esc_eval(*run_at(endpoint.url), "--call-timeout", "soon"), 2, "call_timeout", "90s, 30m, 4h")


def test_a_server_that_is_away_is_waited_for_by_a_run(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One attempt a call, and the first thirty requests are refused."""

    monkeypatch.setattr("evalsuite.runner.engine.ChatClient", partial(ChatClient, backoff_s=0))
    config(tmp_path, 1, patience="1h", attempts=1)
    with Endpoint(lambda body, count: echo(body, count) if count > 30 else Answer(status=503), models=MODELS) as endpoint:
        assert esc_eval(*run_at(endpoint.url)) == (0, "")
        assert len(endpoint.requests) == 30 + 11


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), (" 1.5 h ", 5400), ("30m", 1800), (7, 7)])
def test_durations_have_a_unit_or_are_seconds(text: object, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1d", "-1", "1e3", "1h30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        duration(text)
