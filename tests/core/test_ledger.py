"""The account of a data step, and what a command may do to files that are there already."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from core.errors import UserError
from core.ledger import Build, BuildStep
from core.records import Post
from data_prep.sources import read_source

QUIET = Console(quiet=True)


def post(name: str) -> Post:
    return Post(id=name, language="en", source="s", source_id=name, text="Help.")


def test_a_step_that_loses_something_is_a_bug() -> None:
    step = BuildStep("read", taken=3, kept=1)
    step.drop("empty", "f:1")
    with pytest.raises(AssertionError, match="3 taken, 1 kept, 1 dropped"):
        step.check()


def test_outputs_appear_all_at_once_or_not_at_all(tmp_path: Path) -> None:
    run(tmp_path, ["a.jsonl", "b.jsonl"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"a.jsonl", "b.jsonl", "manifest.json"}
    build = Build(tmp_path, "test")
    build.write("a.jsonl", [post("new")])
    del build  # as after an error
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "z.jsonl").mkdir()
    with pytest.raises(UserError, match=r"z\.jsonl: a folder is there"):
        run(tmp_path, ["a.jsonl", "z.jsonl"])
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json*") if path.is_file()} == before


def test_a_file_that_is_not_remembered_is_a_bug(tmp_path: Path) -> None:
    build = Build(tmp_path, "test")
    (build.folder / "left.txt").write_text("")
    with pytest.raises(AssertionError, match=r"left\.txt"):
        build.finish(QUIET)


def run(out: Path, names: list[str], command: str = "test", read: Path | None = None) -> None:
    build = Build(out, command)
    if read:
        build.input(read)
    for name in names:
        build.write(name, [post(name)])
    build.finish(QUIET)


def test_outputs_of_an_earlier_run_do_not_pass_for_those_of_this_one(tmp_path: Path) -> None:
    run(tmp_path, ["a.jsonl", "b.jsonl", "filled.jsonl", "read.jsonl"])
    (tmp_path / "filled.jsonl").write_text("by hand")
    run(tmp_path, ["c.jsonl"], command="another")
    run(tmp_path, ["a.jsonl"])  # the manifest is another command's: nothing is touched
    assert {p.name for p in tmp_path.glob("*.jsonl")} == {"a.jsonl", "b.jsonl", "c.jsonl", "filled.jsonl", "read.jsonl"}
    run(tmp_path, ["a.jsonl", "b.jsonl", "filled.jsonl", "read.jsonl"])
    (tmp_path / "filled.jsonl").write_text("by hand")
    run(tmp_path, ["a.jsonl"], read=tmp_path / "read.jsonl")
    assert {p.name for p in tmp_path.glob("*.jsonl")} == {"a.jsonl", "c.jsonl", "filled.jsonl", "read.jsonl"}
    assert set(json.loads((tmp_path / "manifest.json").read_text())["outputs"]) == {"a.jsonl"}


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write .*file"):
        run(tmp_path / "file" / "below", ["a.jsonl"])


@pytest.mark.parametrize(
    ("text", "message"), [("", "holds no rows"), ("{}\n{}\n", r"no row is in its format, first .*:1: dialogue")]
)
def test_a_corpus_without_a_readable_row_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "support_en.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        read_source("bundled_support", str(tmp_path), Build(tmp_path / "out", "test"), QUIET)


def test_texts_are_sieved_as_other_items_are() -> None:
    step = BuildStep("texts")
    assert step.sieve(["a", "b", "c"], {"a": "too short"}.get, str) == ["b", "c"]
    assert (step.taken, step.kept, step.dropped, step.examples) == (3, 2, {"too short": 1}, {"too short": ["a"]})
