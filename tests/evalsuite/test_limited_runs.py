"""Runs with limits: they stop cleanly, say how they go on, and end as an undisturbed run does."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.files import read_jsonl
from core.records import Dialogue, Judgement
from core.tables import Table
from evalsuite.commands.run import records
from evalsuite.report.content import content_of
from evalsuite.runs.config import duration
from evalsuite.runs.folder import open_run
from serve.client import ChatClient
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.test_faults import MODELS, config, one_line, outputs, run_at

pytestmark = pytest.mark.usefixtures("no_report")


def test_a_run_stops_at_its_limits_and_goes_on_with_larger_ones(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 3, concurrency=1)
    with Endpoint(models=MODELS) as endpoint:
        assert esc_eval(*run_at(endpoint.url, "undisturbed")) == (0, "")
        before = len(endpoint.requests)
        told = ("ended early", "max_calls 15 is reached: raise it to continue", "same command again")
        for _ in range(2):
            one_line(esc_eval(*run_at(endpoint.url), "--set", "max_calls=15"), 1, *told)
            assert len(endpoint.requests) - before == 15
        one_line(esc_eval(*run_at(endpoint.url), "--set", "max_time=0s"), 1, "max_time 0 s is over", "same command again")
        assert esc_eval(*run_at(endpoint.url), "--set", "max_calls=1000", "--set", "max_time=4h") == (0, "")
        assert len(endpoint.requests) - before == 33
        assert esc_eval(*run_at(endpoint.url), "--set", "max_calls=0") == (0, ""), "nothing is left to ask"
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")


def slow(body: dict[str, Any], count: int) -> Answer:
    return Answer(echo(body, count).text, delay=0.02, usage={"prompt_tokens": 100, "completion_tokens": 10})


def specs(url: str, *names: str) -> None:
    for name in names:
        price = {"input": 1.0, "output": 10.0}
        made = {"name": name, "endpoint": {"base_url": url, "price": price}}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(made))


def two(*more: str, out: str = "run") -> tuple[str, ...]:
    """A run of two supporters whose seeker is neither of them."""
    models = ("--supporter", "a.yaml", "--supporter", "b.yaml", "--seeker", "s.yaml", "--judge", "j.yaml")
    return "run", "--config", "c.yaml", *models, "--out", out, *more


@pytest.mark.parametrize(
    ("limit", "most"), [("max_calls", "60"), ("max_cost", "0.011"), pytest.param("max_time", "3s", marks=pytest.mark.full)]
)
def test_a_budget_gives_whole_dialogues_of_every_supporter(esc_eval: EscEval, tmp_path: Path, limit: str, most: str) -> None:
    """Of 40 dialogues with 11 calls each, all under way at once where time is not short; a call costs 0.0002."""
    config(tmp_path, 20, **({"concurrency": 2} if limit == "max_time" else {}))
    with Endpoint(slow, models=("a", "b", "s", "j")) as endpoint:
        specs(endpoint.url, "a", "b", "s", "j")
        one_line(esc_eval(*two("--set", f"{limit}={most}")), 1, "the run ended early", limit, "not asked", "same command again")
        dialogues = read_jsonl(tmp_path / "run" / "dialogues.jsonl", Dialogue, "dialogues")
        judged = {j.dialogue_id for j in read_jsonl(tmp_path / "run" / "judgements.jsonl", Judgement, "judgements")}
        by_supporter = Counter(dialogue.supporter for dialogue in dialogues)
        assert all(dialogue.termination == "max_turns" and dialogue.exchanges == 5 for dialogue in dialogues)
        assert len(dialogues) == 5 if limit != "max_time" else 0 < len(dialogues) < 40, by_supporter
        assert len(judged) >= len(dialogues) - 4 and abs(by_supporter["a"] - by_supporter["b"]) <= 4
        assert not (tmp_path / "run" / "failures.json").exists(), "what was not asked did not fail"
        asked = len(endpoint.requests)
        assert esc_eval(*two()) == (0, "") and len(endpoint.requests) == 40 * 11
        assert esc_eval(*two(out="undisturbed")) == (0, "") and len(endpoint.requests) == 2 * 40 * 11
    assert asked < 40 * 11 and outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")


def test_several_judges_judge_side_by_side_within_a_budget(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 6, gold={"dialogues": "synthetic", "limit": 5})
    with Endpoint(slow, models=("a", "b", "s", "j", "k")) as endpoint:
        specs(endpoint.url, "a", "b", "s", "j", "k")
        judges = ("--judge", "k.yaml")
        one_line(esc_eval(*two(*judges, "--set", "max_calls=40")), 1, "3 dialogues are finished, 9 not asked")
        with open_run(Path("run")) as opened:
            assert any("3 dialogues are finished" in note for note in records(opened).notes)
            assert "The budget was used up: 3 dialogues are finished, 9 not asked." in content_of(opened).warnings
        for folder in (Path("run"), Path("run/judges/k")):
            verdicts = read_jsonl(folder / "judgements.jsonl", Judgement, "judgements")
            assert len({verdict.dialogue_id for verdict in verdicts}) == 3
            assert not any(verdict.value is None for verdict in verdicts)
        assert esc_eval(*two(*judges)) == (0, "")
        assert len(endpoint.requests) == 12 * 12 + 2 * 5
        with open_run(Path("run")) as opened:
            assert not any("budget" in warning for warning in content_of(opened).warnings)
        assert esc_eval(*two(*judges, out="undisturbed")) == (0, "")
        one_line(esc_eval(*two("--judge", "j.yaml")), 2, "--judge: the same name twice in j, j")
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")


@pytest.mark.parametrize("changes", [{}, {"method": "per_dimension"}, {"trials": 2, "floors": True}])
def test_a_plan_forecasts_the_calls_of_a_run(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    told: list[Table] = []
    monkeypatch.setattr("evalsuite.commands.run.to_console", lambda table, console: told.append(table))
    config(tmp_path, 3, gold={"dialogues": "synthetic", "limit": 4}, **changes)
    with Endpoint(slow, models=("a", "b", "s", "j")) as endpoint:
        specs(endpoint.url, "a", "b", "s", "j")
        assert esc_eval(*two("--plan", "--set", "max_calls=50", "--set", "max_cost=1000")) == (0, "")
        assert not endpoint.requests and not Path("run").exists()
        assert esc_eval(*two()) == (0, "")
    of_calls = {row[:2]: row[2] for row in told[-1].rows}
    assert of_calls["total", None] == len(endpoint.requests)
    requests = Counter(body["model"] for body in endpoint.requests)
    for role, name in (("supporter", "a"), ("judge", "j"), ("seeker", "s")):
        assert of_calls[role, name] == requests[name]
    reached = next(note for note in told[-1].notes if note.startswith("max_calls 50"))
    assert (
        "finishes and judges about" in reached and "max_cost 1000 finishes and judges all and the gold set." in told[-1].notes
    )


def test_a_supporter_that_never_answers_is_missing_and_no_more_is_said(esc_eval: EscEval, tmp_path: Path) -> None:
    """Also when the command is repeated and is answered nothing; a judge that never answers leaves all as it was."""
    config(tmp_path, 2, attempts=1)

    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer(status=500) if body["model"] in ("a", "d") else echo(body, count)

    with Endpoint(behave, models=("a", "b", "d", "s", "j")) as endpoint:
        specs(endpoint.url, "a", "b", "d", "s", "j")
        for _ in range(3):
            one_line(esc_eval(*two()), 1, "2 dialogues and the judgements of 0 more are missing", "HTTP 500")
        ends = [d.termination for d in read_jsonl(Path("run/dialogues.jsonl"), Dialogue, "dialogues")]
        assert sorted(map(str, ends)) == ["infrastructure"] * 2 + ["max_turns"] * 2
        before = outputs(tmp_path / "run")
        again = esc_eval("run", "--only", "score", "--out", "run", "--config", "c.yaml", "--judge", "d.yaml")
        one_line(again, 2, "nothing was answered, run is as it was", "HTTP 500")
        assert outputs(tmp_path / "run") == before


def test_attempts_and_call_timeout_are_the_users(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 1)
    with Endpoint(lambda body, count: Answer(delay=30), models=MODELS) as endpoint:
        code, err = esc_eval(*run_at(endpoint.url), "--set", "attempts=1", "--set", "call_timeout=0.05s")
        assert code == 2 and "gave up after 1 attempts: TimeoutError" in err and len(endpoint.requests) == 1
        one_line(esc_eval(*run_at(endpoint.url), "--set", "call_timeout=soon"), 2, "call_timeout", "90s, 30m, 4h")


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
    for wrong in ("", "h", "1d", "-1", "1e3", "1h30m"):
        with pytest.raises(ValueError, match="expected a duration"):
            duration(wrong)
