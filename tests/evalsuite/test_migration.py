"""The versions of a run folder's form: earlier ones are read and migrated, newer ones are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from core.files import read_object, write_json
from data_prep.cards import bundled_cards, load_cards
from evalsuite import Results, UserError, cli, load_run, score, simulate
from evalsuite.runs import formats, migration, run_config
from evalsuite.runs.recording import BUNDLED, Recording
from evalsuite.runs.run_config import RunConfig
from tests.conftest import EscEval


def hold(out: Path, cards: int = 1) -> Results:
    """A small run, with functions as models."""
    return simulate(
        load_cards(bundled_cards("en"))[:cards],
        supporter={"a": lambda messages: f"What keeps you awake? ({len(messages)})"},
        seeker={"s": lambda messages: "I lie awake."},
        judge={"j": lambda messages: "3210123"},
        languages=["en"],
        exchanges=1,
        out=str(out),
    )


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the present form, with two judges."""
    folder = tmp_path_factory.mktemp("present") / "run"
    score(hold(folder), judge={"k": lambda messages: "4444444"})
    return folder


@pytest.fixture
def earlier(present: Path, tmp_path: Path) -> Path:
    """The same run in the form that had no versions."""
    folder = tmp_path / "earlier"
    shutil.copytree(present, folder)
    content = read_object(folder / "config.json", "a config")
    assert content.pop("format") == formats.CURRENT and list(content) == ["simulate", "score", "score k"]
    write_json(folder / "config.json", content)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a run folder, but for its lock and what SQLite keeps beside its own."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock" and not path.name.startswith("calls.sqlite-")
    }


def test_a_run_of_the_earlier_form_is_read_and_goes_on(earlier: Path, present: Path) -> None:
    old, new = load_run(earlier), load_run(present)
    assert list(old.dialogues) == list(new.dialogues) and list(old.judgements) == list(new.judgements)
    before = (earlier / "config.json").read_bytes()
    hold(earlier)
    assert (earlier / "config.json").read_bytes() == before, "the identical command"
    hold(earlier, cards=2)
    grown = read_object(earlier / "config.json", "a config")
    assert grown["simulate"]["cards"]["count"] == 2 and "format" not in grown
    assert migration.migrate(earlier)[0] == formats.FIRST and len(load_run(earlier).dialogues) == 2


def test_migrating_changes_the_config_alone_and_only_once(
    earlier: Path, present: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(earlier)
    monkeypatch.setattr("sys.argv", ["esc-eval", "migrate", str(earlier), str(present)])
    for told in (f"{earlier}: form 1.0\n  → 1.1: config.json states the form", f"{earlier}: has form 1.1 already"):
        with pytest.raises(SystemExit) as end:
            cli.main()
        out = capsys.readouterr().out
        assert not end.value.code and out.startswith(told) and f"{present}: has form 1.1 already" in out
        after = contents(earlier)
        assert after == before | {"config.json": (present / "config.json").read_bytes()}
    assert list(load_run(earlier).judgements) == list(load_run(present).judgements)


def test_the_bundled_recording_migrates_and_its_answers_stay(tmp_path: Path) -> None:
    """It was made in the form without versions, and has no records."""
    shutil.copytree(BUNDLED / "demo", tmp_path / "demo")
    had, steps = migration.migrate(tmp_path / "demo")
    assert (had, len(steps)) in {("1.0", 1), ("1.1", 0)} and migration.STEPS[-1].version == formats.CURRENT
    old, new = (Recording.read(str(folder)) for folder in (BUNDLED / "demo", tmp_path / "demo"))
    assert old.precisions == new.precisions and old.store.read_bytes() == new.store.read_bytes()


def test_a_folder_that_cannot_be_migrated_whole_stays_as_it_was(
    esc_eval: EscEval, earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(earlier)

    def killed(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        migration.migrate(earlier)
    assert contents(earlier) == before
    judgements = earlier / "judges" / "k" / "judgements.jsonl"
    judgements.write_bytes(before["judges/k/judgements.jsonl"] + b'{"mood": 1}\n')
    code, told = esc_eval("migrate", earlier)
    line = before["judges/k/judgements.jsonl"].count(b"\n") + 1
    assert code == 2 and told.startswith(f"error: {judgements}:{line}: ") and told.count("\n") == 1
    assert (earlier / "config.json").read_bytes() == before["config.json"]


def test_a_newer_major_form_is_refused_by_all_that_read_or_write(esc_eval: EscEval, present: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(present, folder)
    write_json(folder / "config.json", read_object(folder / "config.json", "a config") | {"format": "2.0"})
    before = contents(folder)
    told = "the run has form 2.0, and this esc-eval reads 1.x: install a newer esc-eval"
    for verb in (("migrate", folder), ("report", folder), ("status", folder), ("merge", folder, "--out", tmp_path / "m")):
        code, error = esc_eval(*verb)
        assert code == 2 and error.startswith(f"error: {folder / 'config.json'}: format: {told}") and error.count("\n") == 1
    for call in (hold, load_run):
        with pytest.raises(UserError, match=rf"config\.json: format: {told}"):
            call(folder)
    assert contents(folder) == before


def test_an_earlier_major_form_is_refused_until_it_is_migrated(
    esc_eval: EscEval, earlier: Path, present: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it will be when there is a form 2.0."""
    for module in (formats, run_config):
        monkeypatch.setattr(module, "CURRENT", "2.0")
    before = contents(earlier)
    for verb in (("report", earlier), ("status", earlier), ("merge", earlier, present, "--out", tmp_path / "m")):
        told = (
            f"error: {earlier / 'config.json'}: format: the run has form 1.0: bring it to 2.0 by `esc-eval migrate {earlier}`\n"
        )
        assert esc_eval(*verb) == (2, told)
    assert contents(earlier) == before and not (tmp_path / "m").exists()
    step = migration.Step("2.0", "nothing is new", lambda folder, config: None)
    monkeypatch.setattr(migration, "STEPS", (*migration.STEPS, step))
    assert esc_eval("migrate", earlier)[0] == 0
    assert RunConfig.read(earlier).format == "2.0" and list(load_run(earlier).judgements)


@pytest.mark.parametrize("version", ["one", "1", "1.1.0", "0.9", 1.1, None, {"seeker": {}}])
def test_what_is_no_version_is_said_with_its_file(version: Any) -> None:
    with pytest.raises(UserError, match=r'r/config\.json: format: a version is expected, as "1\.1" \(got '):
        formats.take_version({"format": version}, Path("r/config.json"))


def test_a_later_minor_form_is_read_and_kept(present: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(present, folder)
    content = read_object(folder / "config.json", "a config") | {"format": "1.99"}
    write_json(folder / "config.json", content)
    assert migration.migrate(folder) == ("1.99", [])
    assert len(load_run(folder).dialogues) == 1 and read_object(folder / "config.json", "a config") == content
