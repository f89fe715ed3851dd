"""Backing up, restoring and moving a study, and withdrawing from it: killed between any two steps, nothing is mixed or lost."""

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import read_jsonl
from core.records import HumanScore
from evalsuite.people import keeping
from evalsuite.people.keeping import holding, restore, withdraw
from evalsuite.people.results import progress
from evalsuite.people.store import RaterAnswer, StudyStore
from serve.store import CallStore
from tests.conftest import EscEval
from tests.people_study import Client, free_port, links, make_study, process, served, url_of, write_dialogues

pytestmark = pytest.mark.slow
SECRET = "my sister Ottilie"  # what a participant wrote
EACH = 4  # tasks of each of three raters: six dialogues, each seen by two


def answer(folder: Path, value: float, *raters: str, database: str | None = None, submit: bool = False) -> None:
    """Every task of these raters: one score and a comment."""
    with closing(StudyStore(database or url_of(folder), "s")) as store:
        for rater in raters:
            for task in store.tasks(rater):
                versions = store.answers([task.id]).get(task.id, {})
                for question, given in (
                    ("empathy", RaterAnswer(value)),
                    ("comment", RaterAnswer(text=f"{SECRET} {rater} {value}")),
                ):
                    store.save(task.id, rater, question, None, given, versions.get((question, None), (None, 0))[1])
                assert not submit or not store.submit(task.id, rater, [])


def values(folder: Path) -> set[float]:
    with closing(StudyStore(url_of(folder), "s")) as store:
        return {given.value for found in store.answers().values() for given, _ in found.values() if given.value is not None}


def test_a_server_that_is_terminated_leaves_one_closed_file(study: Path, tmp_path: Path) -> None:
    port = free_port()
    with process(study, port) as server:
        rater = Client(f"127.0.0.1:{port}").enter(links(study)["r01"])
        assert [rater.put(task, "empathy", value=3)[0] for task in rater.tasks()] == [200] * EACH
        assert server.pid
        os.kill(server.pid, signal.SIGTERM)
        server.join(20)
        assert server.exitcode == 143
    assert [path.name for path in study.glob("study.sqlite*")] == ["study.sqlite"]
    shutil.copy(study / "study.sqlite", tmp_path / "copy.sqlite")
    assert holding(tmp_path / "copy.sqlite").answers == EACH


def test_a_backup_of_a_study_in_use_is_one_closed_file_and_delete_leaves_nothing(study: Path, esc_eval: EscEval) -> None:
    copy = Path("copy/study.sqlite")
    with served(study) as (address, _):
        rater = Client(address).enter(links(study)["r01"])
        assert rater.put(rater.tasks()[0], "empathy", value=3)[0] == 200
        assert esc_eval("people", "backup", "s", "--to", copy) == (0, "")
        assert esc_eval("people", "backup", "s", "--to", copy)[0] == 2, "a backup is not written over"
    assert [path.name for path in copy.parent.iterdir()] == [copy.name] and copy.stat().st_mode & 0o777 == 0o600
    assert holding(copy).answers == 1 and (study / "links.csv").stat().st_mode & 0o77 == 0
    key = links(study)["r01"].removeprefix("/r/")
    assert key.encode() not in (study / "study.sqlite").read_bytes(), "the database holds hashes"
    assert esc_eval("people", "backup", "s", "--restore", copy) == (0, "")
    code, error = esc_eval("people", "delete", "s")
    assert code == 2 and "confirm with --yes" in error
    assert esc_eval("people", "delete", "s", "--yes") == (0, "") and not study.exists()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_other_studies_stay_in_the_database_when_one_is_deleted(database: str, esc_eval: EscEval, tmp_path: Path) -> None:
    write_dialogues(tmp_path / "d.jsonl", count=1)
    for name in ("s", "other"):
        given = ("--dialogues", "d.jsonl", "--rubric", "esc_eval_human", "--raters", 2)
        assert esc_eval("people", "create", name, *given) == (0, "")
    assert esc_eval("people", "delete", "s", "--yes") == (0, "")
    with closing(StudyStore(database, "other")) as other:
        assert other.contents() and {task.rater for task in other.tasks()} == {rater.code for rater in other.raters()} == {
            "r01",
            "r02",
        }


def test_a_restored_study_is_the_backup_and_what_was_there_lies_beside_it(study: Path, esc_eval: EscEval) -> None:
    answer(study, 1, "r01")
    assert esc_eval("people", "backup", "s", "--to", "b.sqlite") == (0, "")
    port = free_port()
    with process(study, port) as server:
        rater = Client(f"127.0.0.1:{port}").enter(links(study)["r02"])
        assert [rater.put(task, "empathy", value=4)[0] for task in rater.tasks()] == [200] * EACH
        code, error = esc_eval("people", "backup", "s", "--restore", "b.sqlite")
        assert code == 2 and "in use by another process" in error
        server.kill()  # its log lies there
        server.join()
    assert (study / "study.sqlite-wal").stat().st_size > 0
    assert esc_eval("people", "backup", "s", "--restore", "b.sqlite") == (0, "")
    assert values(study) == {1} and holding(study / "before-restore-1" / "study.sqlite").answers == 2 * EACH + EACH
    with served(study) as (address, _):
        assert len(Client(address).enter(links(study)["r01"]).tasks()) == EACH, "links go on working"


def test_a_study_moves_and_its_folder_may_be_renamed(study: Path, esc_eval: EscEval, tmp_path: Path) -> None:
    answer(study, 2, "r01", "r02", submit=True)
    assert esc_eval("people", "backup", "s", "--to", "b.sqlite") == (0, "")
    assert esc_eval("people", "backup", tmp_path / "elsewhere", "--restore", "b.sqlite") == (0, "")
    study.rename(tmp_path / "renamed")
    for folder in ("elsewhere", "renamed"):
        assert esc_eval("people", "results", folder)[0] == 0
        assert esc_eval("people", "results", folder, "--out", f"{folder}-out") == (0, "")
        assert {row.value for row in read_jsonl(Path(f"{folder}-out/scores.jsonl"), HumanScore, "scores")} == {2}


@pytest.mark.parametrize("kind", ["text", "cut", "other", "two", "none"])
def test_what_is_no_backup_changes_nothing(study: Path, tmp_path: Path, esc_eval: EscEval, kind: str) -> None:
    answer(study, 1, "r01")
    bad = tmp_path / "bad.sqlite"
    if kind == "text":
        bad.write_text("no database " * 1000)
    elif kind == "cut":
        answer(study, 2, "r02", "r03")
        assert esc_eval("people", "backup", "s", "--to", bad) == (0, "")
        bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    elif kind == "other":
        with closing(sqlite3.connect(bad)) as db:
            db.execute("CREATE TABLE calls (key TEXT)")
    elif kind == "two":
        shutil.copy(study / "study.sqlite", bad)
        with closing(sqlite3.connect(bad)) as db, db:
            db.execute("INSERT INTO study SELECT 'again', definition, organiser FROM study")
    before = values(study)
    code, error = esc_eval("people", "backup", "s", "--restore", bad)
    assert code == 2 and "bad.sqlite" in error and "restored" not in error, error
    assert values(study) == before and not [path for path in study.iterdir() if "restore" in path.name]


class Killed(BaseException):
    """The process ends here."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """End at a step: at any call that changes a file or opens a database. How many steps there were."""
    taken = [0]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            taken[0] += 1
            if taken[0] == step:
                raise Killed
            return real(*given, **named)

        return call

    for name in ("rename", "replace", "mkdir", "touch"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(keeping.sqlite3, "connect", counted(sqlite3.connect))
    return lambda: taken[0]


@pytest.mark.parametrize("state", ["closed", "log", "damaged"])
def test_a_restore_killed_between_any_two_steps_goes_on_when_run_again(
    study: Path, tmp_path: Path, esc_eval: EscEval, state: str
) -> None:
    answer(study, 1, "r01", "r02")
    assert esc_eval("people", "backup", "s", "--to", "b.sqlite") == (0, "")
    with closing(StudyStore(url_of(study), "s")) as store:
        withdraw(store, "r02")
    answer(study, 4, "r01")
    if state == "damaged":
        content = bytearray((study / "study.sqlite").read_bytes())
        content[4096:8192] = b"\xff" * 4096
        (study / "study.sqlite").write_bytes(content)
    original, step, ended = tmp_path / "original", 0, False
    if state == "log":  # of a server that was killed: it has the newest answers, and nobody merged it
        with closing(sqlite3.connect(study / "study.sqlite", isolation_level=None)) as db:
            db.execute("UPDATE answer SET value = 3 WHERE value = 4")
            shutil.copytree(study, original)
    else:
        shutil.copytree(study, original)
    while not ended:
        step += 1
        shutil.rmtree(study)
        shutil.copytree(original, study)
        with pytest.MonkeyPatch.context() as patch:
            count = killed_at(patch, step)
            try:
                restore(study, Path("b.sqlite"))
                ended = True
            except Killed:
                assert count() == step
        if not ended and state != "damaged" and (study / "study.sqlite").exists():
            assert values(study) in ({1}, {3 if state == "log" else 4}), "one or the other, and nothing between"
        if not ended:
            _, _, again = restore(study, Path("b.sqlite"))
            assert again == (["r02"] if state != "damaged" else again)
        assert values(study) == {1} and not list(study.glob("study.sqlite.*"))
        aside = sorted(study.glob("before-restore-*/study.sqlite"))
        assert len(aside) >= 1
        if state != "damaged":
            assert holding(study / "study.sqlite").answers == 2 * EACH, "who withdrew stays withdrawn"
            assert {holding(path).answers for path in aside} == {2 * EACH}
    assert step > 5


def test_a_backup_that_was_killed_is_none(study: Path, tmp_path: Path) -> None:
    answer(study, 1, "r01")
    for step in (1, 2):
        target = tmp_path / f"{step}.sqlite"
        with closing(StudyStore(url_of(study), "s")) as store, pytest.MonkeyPatch.context() as patch:
            killed_at(patch, step)
            with pytest.raises(Killed):
                keeping.backup(store, target)
        assert not target.exists()


# --- withdrawal -------------------------------------------------------------------------------------------------------------


def test_who_withdraws_leaves_a_note_and_nothing_else(
    database: str | None, study: Path, esc_eval: EscEval, tmp_path: Path
) -> None:
    folder = study
    answer(folder, 1, "r01", "r02", database=database)
    with closing(StudyStore(database or url_of(folder), "s")) as store:
        cookie = store.enter(links(folder)["r01"].removeprefix("/r/"))
        assert cookie and store.session(cookie)
    assert esc_eval("people", "delete", "s", "--rater", "r01")[0] == 2, "--yes is asked for"
    code, error = esc_eval("people", "delete", "s", "--rater", "r1", "--yes")
    assert code == 2 and "did you mean" in error
    assert esc_eval("people", "delete", "s", "--rater", "r01", "--yes") == (0, "")
    with closing(StudyStore(database or url_of(folder), "s")) as store:
        assert store.session(cookie) is None and [row.code for row in store.raters()] == ["r02", "r03"]
        assert {row.code for row in store.withdrawals()} == {"r01"}
        assert {task.rater for task in store.tasks()} == {"r02", "r03"}
    assert "r01" not in links(folder) and {"organiser", "r02"} < set(links(folder))
    assert esc_eval("people", "results", "s", "--out", "out") == (0, "")
    everything = [path.read_bytes() for path in (*folder.rglob("*"), *Path("out").rglob("*")) if path.is_file()]
    assert not any(f"{SECRET} r01".encode() in content for content in everything), "also not in free pages or the log"
    assert database or any(f"{SECRET} r02".encode() in content for content in everything)


def test_withdrawal_while_people_work_empties_the_log(study: Path, esc_eval: EscEval) -> None:
    with served(study) as (address, _):
        rater = Client(address).enter(links(study)["r01"])
        for task in rater.tasks():
            assert rater.put(task, "comment", text=SECRET)[0] == 200
        assert esc_eval("people", "delete", "s", "--rater", "r01", "--yes") == (0, "")
        assert not any(SECRET.encode() in path.read_bytes() for path in study.glob("study.sqlite*"))
        assert rater.request("GET", "/")[0] == 401 and Client(address).request("GET", links(study)["r02"])[0] == 303
    with closing(StudyStore(url_of(study), "s")) as store:
        assert "r01 withdrew on" in progress(store)[1][0].notes[1]


def test_scores_of_who_withdrew_are_shown_to_nobody(esc_eval: EscEval, tmp_path: Path) -> None:
    more = ("--set", "overlap=3", "--set", "second_round=true")
    make_study(esc_eval, *more, raters=3, count=1, supporters=("alpha",))
    with closing(StudyStore(url_of(tmp_path / "s"), "s")) as store:
        store.add_tasks([("again", "r03", store.tasks()[0].item, {"given": {"empathy": [0.0, 1.0, 4.0]}, "own": {}})])
        for code, value in (("r01", 0), ("r02", 1), ("r03", 4)):
            store.save(store.tasks(code)[0].id, code, "empathy", None, RaterAnswer(value), 0)
        withdraw(store, "r02")
        later = next(task for task in store.tasks("r03") if task.purpose == "again")
        assert later.details["given"] == {"empathy": [0.0, 4.0]}


def test_withdrawal_of_a_talk_takes_its_replies_too(study: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls.sqlite"
    CallStore(calls).close()
    with closing(sqlite3.connect(calls)) as db, db:
        db.execute("INSERT INTO calls (key, reply, seconds) VALUES ('k', ?, 1)", (SECRET.encode(),))
    keeping.forget_replies(calls)
    assert SECRET.encode() not in calls.read_bytes()
    with closing(StudyStore(url_of(study), "s")) as store, pytest.raises(UserError, match="nobody has this code"):
        withdraw(store, "r09")
