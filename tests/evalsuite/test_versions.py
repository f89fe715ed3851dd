"""What a run keeps of who answered and with what it was made."""

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core.files import read_jsonl
from core.records import Dialogue
from core.third_party import git_revision
from evalsuite.runs.folder import joined, made_with
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.test_faults import MODELS, config, one_line, outputs, run_at


def named(after: int, then: str) -> Endpoint:
    """An endpoint that calls its model `m` and from some request on something else."""

    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer(echo(body, count).text, model="m" if count <= after else then)

    return Endpoint(behave, models=MODELS)


@pytest.mark.usefixtures("no_report")
def test_a_run_whose_server_changes_its_model_ends_before_that_is_in_a_record(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 4, concurrency=1)
    with named(10**6, "m") as sound:
        assert esc_eval(*run_at(sound.url, "undisturbed")) == (0, "")
    with named(15, "another") as endpoint:  # in the middle of the second dialogue
        one_line(esc_eval(*run_at(endpoint.url)), 1, "3 dialogues", "'another' answered", "it was 'm'", "same command again")
        assert len(endpoint.requests) == 16
    with named(0, "another") as elsewhere:
        one_line(esc_eval(*run_at(elsewhere.url)), 1, "'another' answered", "it was 'm'")
    dialogues = read_jsonl(tmp_path / "run" / "dialogues.jsonl", Dialogue, "dialogues")
    assert [dialogue.lost for dialogue in dialogues] == [False, True, True, True]
    with named(10**6, "m") as sound:
        assert esc_eval(*run_at(sound.url)) == (0, "")
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")


def test_the_versions_of_a_run_are_kept_told_and_never_compared(esc_eval: EscEval, tmp_path: Path) -> None:
    config(tmp_path, 1)
    with Endpoint(models=MODELS) as endpoint:
        endpoint.version = "0.11.0"
        assert esc_eval(*run_at(endpoint.url))[0] == 0
        kept = json.loads((tmp_path / "run" / "versions.json").read_text())
        assert kept["servers"] == {"embedded": ["0.11.0"]} and {"aiohttp", "pydantic"} <= kept["packages"].keys()
        assert kept["prompts"].keys() == {"esc_eval"} and kept["rubric"].keys() == {"esc_eval"}
        kept["harness"]["python"] = ["3.10.1"]  # as if an older one had begun
        (tmp_path / "run" / "versions.json").write_text(json.dumps(kept))
        with closing(sqlite3.connect(tmp_path / "run" / "calls.sqlite", isolation_level=None)) as db:
            db.execute("DELETE FROM ends")  # and had not come to the end
        assert esc_eval(*run_at(endpoint.url))[0] == 0
    page = (tmp_path / "run" / "report.md").read_text()
    assert "Python 3.10.1 and 3.11" in page and "embedded: vLLM 0.11.0" in page


def test_versions_of_several_parts_are_each_listed_once() -> None:
    one = {"servers": {"b": ["1"], "a": ["1"]}}
    two = {"servers": {"b": ["2", "1"]}, "harness": {"python": ["3.11.9"]}}
    assert joined([one, two]) == {"harness": {"python": ["3.11.9"]}, "servers": {"a": ["1"], "b": ["1", "2"]}}
    assert dict(made_with(joined([one, two]))) == {"Made with": "Python 3.11.9", "Servers": "a: vLLM 1, b: vLLM 1 and 2"}


def test_the_revision_is_the_checkouts_own_and_says_where_files_differ(tmp_path: Path) -> None:
    def git(*command: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.run(["git", *who, *command], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    (tmp_path / "inside").mkdir()
    (tmp_path / "file").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    head = git("rev-parse", "--short=12", "HEAD").strip()
    assert git_revision(tmp_path / "inside") is None, "a checkout that the package merely lies in"
    assert git_revision.__wrapped__(tmp_path) == head
    (tmp_path / "file").write_text("2")
    assert git_revision.__wrapped__(tmp_path) == f"{head}+changes"
