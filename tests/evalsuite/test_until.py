"""`run --until decided`: cards are played until the differences are decided, and the same command asks nothing again."""

from pathlib import Path

import orjson
import pytest

from core.files import CONFIGS
from tests.conftest import EscEval
from tests.endpoint import Endpoint
from tests.evalsuite.test_faults import one_line
from tests.qualities import Qualities

pytestmark = pytest.mark.slow


def command(url: str, out: Path, *models: str) -> list[str]:
    named = [part for model in models for part in ("--supporter", f"{model}@{url}")]
    return ["run", "--config", str(CONFIGS / "eval" / "api.yaml"), *named, "--model", f"judge@{url}", "--out", str(out)]


def figures(out: Path) -> dict[str, object]:
    report: dict[str, object] = orjson.loads((out / "report.json").read_bytes())
    return report


def test_a_run_ends_when_it_is_decided_and_resumes_for_nothing(
    esc_eval: EscEval, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, models = tmp_path / "run", ("0.9-good", "0.2-bad")
    with Endpoint(Qualities(1), (*models, "judge")) as endpoint:
        run = command(endpoint.url, out, *models)
        assert esc_eval(*run, "--until", "decided") == (0, "")
        asked = len(endpoint.requests)
        assert esc_eval(*run, "--until", "decided") == (0, "") and len(endpoint.requests) == asked
    assert orjson.loads((out / "looks.json").read_bytes()) == {"planned": [12, 18, 28, 36], "seen": [12]}
    assert len((out / "cards.jsonl").read_text(encoding="utf-8").splitlines()) == 12
    notes = (out / "report.md").read_text(encoding="utf-8")
    assert "its intervals are at 98.3 % and its tests at 0.017" in notes


def test_equal_models_are_played_to_the_end_and_no_difference_is_found(esc_eval: EscEval, tmp_path: Path) -> None:
    out, models = tmp_path / "run", ("0.5-one", "0.5-other")
    with Endpoint(Qualities(2), (*models, "judge")) as endpoint:
        run = command(endpoint.url, out, *models)
        assert esc_eval(*run, "--until", "decided", "--limit", "9", "--set", "floors=false") == (0, "")
    assert orjson.loads((out / "looks.json").read_bytes()) == {"planned": [12, 18], "seen": [18]}


def test_a_run_that_grows_without_a_plan_says_so(esc_eval: EscEval, tmp_path: Path) -> None:
    """Sixteen cards, then all of them: whoever goes on until something is found finds it by chance, too."""
    out, models = tmp_path / "run", ("0.9-good", "0.2-bad")
    with Endpoint(Qualities(3), (*models, "judge")) as endpoint:
        run = command(endpoint.url, out, *models)
        assert esc_eval(*run, "--set", "floors=false", "--limit", "6") == (0, "")
        assert "was looked at on" not in (out / "report.md").read_text(encoding="utf-8")
        assert esc_eval(*run, "--set", "floors=false", "--limit", "7") == (0, "")
    assert "was looked at on 12, 14 cards and grew in between" in (out / "report.html").read_text(encoding="utf-8")


def test_what_a_budget_cut_short_is_no_look(esc_eval: EscEval, tmp_path: Path) -> None:
    """Nobody chose to look there: a run that goes on afterwards has kept its plan."""
    out, models = tmp_path / "run", ("0.9-good", "0.2-bad")
    with Endpoint(Qualities(1), (*models, "judge")) as endpoint:
        run = [*command(endpoint.url, out, *models), "--set", "floors=false", "--until", "decided"]
        assert esc_eval(*run, "--set", "max_calls=110")[0] == 1
        assert "seen" not in orjson.loads((out / "looks.json").read_bytes())
        assert esc_eval(*run) == (0, "")
    assert orjson.loads((out / "looks.json").read_bytes()) == {"planned": [12, 18, 28, 36], "seen": [12]}
    assert "was looked at on" not in (out / "report.md").read_text(encoding="utf-8")


def test_a_shard_cannot_tell_when_to_stop(esc_eval: EscEval, tmp_path: Path) -> None:
    run = command("http://127.0.0.1:9/v1", tmp_path / "run", "0.9-good")
    one_line(esc_eval(*run, "--until", "decided", "--shard", "1/2"), 2, "--until", "leave --shard")
    one_line(esc_eval(*run, "--until", "never"), 2, "until", "decided")
