"""Run folders: who may use them, and what happens when a config changes."""

import asyncio
import json
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, Judgement
from core.settings import differing_leaves
from core.third_party import git_revision
from evalsuite.runs.contents import Records, Spool
from evalsuite.runs.folder import joined, made_with, open_run
from evalsuite.runs.run_config import RunConfig
from serve.answers import Reply
from serve.store import CallStore
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.records import make_dialogue, make_judgement
from tests.evalsuite.test_faults import MODELS, config, one_line, outputs, run_at


def test_a_new_run_folder_is_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    for name, mode in (("a/b/run", 0o700), ("mine", 0o755)):  # what somebody made stays as it is
        with open_run(tmp_path / name):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


def test_weights_that_changed_on_the_hub_are_not_mixed(tmp_path: Path) -> None:
    with open_run(tmp_path / "r") as run:
        for found in ({"a": "1" * 40}, {"b": "2" * 40}, {"a": "1" * 40}):
            with run.timed("servers") as timing:
                timing["commits"] = run.same_commits(found)
        assert run.timing()["servers"]["commits"] == {"a": "1" * 40, "b": "2" * 40}
        with pytest.raises(
            UserError, match=r"model a: .* are commit 333333333333 now and were 111111111111 .* revision: 1{40}"
        ):
            run.same_commits({"a": "3" * 40})


def test_timing_adds_up_over_tries(tmp_path: Path) -> None:
    for _ in range(2):
        with open_run(tmp_path / "r") as run, run.timed("score") as extra:
            extra["calls"] = 7
            write_jsonl(tmp_path / "r" / "judgements.jsonl", [])
    timing = run.timing()["score"]
    assert timing["tries"] == 2 and timing["calls"] == 7 and timing["seconds"] >= 0


def test_damaged_timing_is_said_before_the_work(tmp_path: Path) -> None:
    began = []
    with open_run(tmp_path / "r") as run:
        (tmp_path / "r" / "timing.json").write_text("{")
        with pytest.raises(UserError, match=r"timing\.json:1: malformed JSON"), run.timed("score"):
            began.append("score")
    assert not began


def test_what_a_killed_run_left_half_written_is_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    left = [tmp_path / "r" / ".dialogues.jsonl.123.tmp", tmp_path / "r" / "tables" / ".risk.csv.7.tmp"]
    own = [tmp_path / "r" / ".mine.tmp", tmp_path / "r" / "notes.1.tmp", tmp_path / "r" / "logs" / ".a.1.tmp"]
    for path in (*left, *own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    with open_run(tmp_path / "r"):
        assert not any(path.exists() for path in left) and all(path.exists() for path in own)


def test_differences_name_every_leaf() -> None:
    assert differing_leaves({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [2]}, "d": None}) == ["b.c: [1] → [2]"]
    assert differing_leaves({"a": {"b": 1}}, {"a": 2}) == ['a: {"b":1} → 2'], "a part against a leaf"


async def test_the_store_keeps_what_was_put_and_commits_before_it_returns(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    await asyncio.gather(*(store.put(str(n), {"text": str(n)}, 0.1) for n in range(300)))
    other = CallStore(tmp_path / "calls.sqlite")  # another connection sees only what is committed
    assert len(other) == 300 and other.latency() == {"p50": 0.1, "p95": 0.1, "max": 0.1}
    assert other.get("299") == Reply(text="299") and other.get("nothing") is None
    await store.put("299", {"text": "new"}, 0.1)
    assert other.get("299") == Reply(text="new")
    store.close()
    other.close()


def test_groups_come_from_the_runs_config() -> None:
    specs = [{"name": "a", "group": "open"}, {"name": "b", "group": None}, {"name": "c"}]
    assert RunConfig({"simulate": {"supporters": specs}}).groups() == {"a": "open"}
    assert RunConfig({"score": {}}).groups() == {}


def test_a_config_is_kept_as_it_was_claimed_and_read_as_a_record(tmp_path: Path) -> None:
    own = {"zeal": 1, "framework": "mine", "seeker": {"name": "s", "fingerprint": "f", "extra": [1]}}
    claims: dict[str, dict[str, Any]] = {"simulate": own, "gold": {"sha256": "0", "dialogues": "synthetic"}}
    for stage, settings in claims.items():
        config = RunConfig.read(tmp_path)
        config.claim(stage, settings)
        config.write()
    kept = RunConfig.read(tmp_path)
    assert list(kept.root) == ["simulate", "gold"] and list(kept.root["simulate"]) == ["zeal", "framework", "seeker"]
    assert kept.simulated and kept.simulated.framework == "mine" and list(kept.models()) == ["seeker s"]
    assert kept.gold and kept.gold.dialogues == "synthetic" and kept.scored is None
    with pytest.raises(UserError, match="another simulate config: zeal: 1 → 2"):
        kept.claim("simulate", own | {"zeal": 2})
    (tmp_path / "config.json").write_text('{"gold": {"dialogues": 1}}')
    with pytest.raises(UserError, match=r"config\.json: gold\.dialogues: Input should be a valid string"):
        _ = RunConfig.read(tmp_path).gold


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


MAKE = """
    import os, resource, signal
    from pathlib import Path
    from core.errors import UserError
    from evalsuite.runs.contents import Spool
    from tests.evalsuite.records import make_dialogue
"""


def in_a_process(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that has `MAKE`'s names and `folder`, as a process of its own."""
    text = textwrap.dedent(MAKE) + f"folder = Path({str(folder)!r})\n" + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)


def test_records_come_back_as_they_were_kept_each_time_that_they_are_read(tmp_path: Path) -> None:
    spool, made = Spool(tmp_path), [make_dialogue(f"d{number}") for number in range(3)]
    verdicts = [[make_judgement(each.id, "empathy", 3), make_judgement(each.id, "fluency", None)] for each in made]
    later = [make_judgement(each.id, "empathy", 1).model_copy(update={"turn": 1}) for each in made]
    pieces = []
    for each, whole, part in zip(made, verdicts, later, strict=True):
        pieces.append(spool.keep(each, [whole[0], part, whole[1]]))
        assert list(Records(Dialogue, spool, [piece.dialogue for piece in pieces])) == made[: len(pieces)]  # between two writes
    dialogues = Records(Dialogue, spool, [piece.dialogue for piece in reversed(pieces)])
    assert len(dialogues) == 3 and list(dialogues) == list(dialogues) == made[::-1]
    assert list(Records(Judgement, spool, [place for piece in pieces for place in piece.whole])) == [*chain(*verdicts)]
    assert list(Records(Judgement, spool, [place for piece in pieces for place in piece.parts])) == later


def test_the_file_has_no_name(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.keep(make_dialogue("d"), [])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    program = """
        spool = Spool(folder)
        for number in range(2_000):
            spool.read(spool.keep(make_dialogue(f"d{number}"), []).dialogue)
        print(os.fstat(spool._file.fileno()).st_size, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = in_a_process(program, tmp_path)
    assert killed.returncode == -signal.SIGKILL and int(killed.stdout) > 100_000
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_disk_without_room_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    program = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # as a full disk: what goes beyond is not written
        spool = Spool(folder)
        try:
            for number in range(2_000):
                spool.keep(make_dialogue(f"d{number}"), [])
        except UserError as error:
            print(error)
    """
    done = in_a_process(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"cannot write into {tmp_path}: File too large\n"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_into_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot write into {tmp_path}/missing"):
        Spool(tmp_path / "missing")
