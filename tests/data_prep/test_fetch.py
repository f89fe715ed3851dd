"""`fetch` against real git and a hub on loopback: the pinned commit, the reader's layout, the licence, no network."""

import json
import os
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from core.errors import UserError
from data_prep.__main__ import app
from data_prep.sources import SOURCES, corpus_files
from tests.fake_hub import FakeHub
from tests.verbs import printed

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *settings, "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of git repositories that stands where GitHub stands, for git itself."""
    folder = tmp_path / "forge"
    folder.mkdir()
    setting = {"KEY_0": f"url.file://{folder}/.insteadOf", "VALUE_0": "https://github.com/", "COUNT": "1"}
    for name, value in setting.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    return folder


def publish(forge: Path, name: str, files: dict[str, str | bytes | None]) -> str:
    """A repository with these files (None: a link out of it); returns its commit."""
    repository = forge / name
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet")
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    for file, content in files.items():
        path = repository / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.symlink_to("/etc/hostname")
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    git(repository, "add", "-A")
    git(repository, "commit", "--quiet", "-m", "as published")
    return git(repository, "rev-parse", "HEAD")


run = partial(printed, app, "fetch")


def test_what_the_reader_looks_for_lies_in_one_folder(forge: Path, tmp_path: Path) -> None:
    files = {
        "data/final/King.json": "{}",
        "data/test/example_test_set.json": "[]",
        "README.md": "x",
        "data/other/no.json": "{}",
    }
    commit = publish(forge, "Neph0s/CoSER", {**files})
    printed = run(f"coser@{commit}", "--accept-licence", "--out", str(tmp_path / "got"))
    folder = tmp_path / "got" / "coser"
    assert sorted(path.name for path in folder.iterdir()) == ["King.json", "example_test_set.json", "manifest.json"]
    assert SOURCES["coser"].licence in printed and f"--source coser={folder}" in printed.replace("\n", "")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["settings"]["revision"] == commit and len(manifest["outputs"]["King.json"]["sha256"]) == 64
    assert [path.name for path in corpus_files(SOURCES["coser"], str(folder))] == ["King.json", "example_test_set.json"]


def test_files_of_one_name_in_two_of_its_folders_are_refused(forge: Path, tmp_path: Path) -> None:
    commit = publish(forge, "Neph0s/CoSER", {"data/final/King.json": "{}", "data/test/King.json": "[]"})
    with pytest.raises(UserError, match=r"King\.json is in two of its folders"):
        run(f"coser@{commit}", "--accept-licence", "--out", str(tmp_path / "got"))


def test_an_earlier_commit_gives_what_it_held(forge: Path, tmp_path: Path) -> None:
    first = publish(forge, "thu-coai/PsyQA", {"PsyQA_example.json": "[1]"})
    repository = forge / "thu-coai" / "PsyQA"
    (repository / "PsyQA_example.json").write_text("[2]")
    git(repository, "commit", "--quiet", "-am", "changed since")
    run(f"psyqa@{first}", "--accept-licence", "--out", str(tmp_path))
    assert (tmp_path / "psyqa" / "PsyQA_example.json").read_text() == "[1]"


@pytest.mark.slow
def test_a_zip_file_is_unpacked_and_a_link_is_left_out(forge: Path, tmp_path: Path) -> None:
    packed = tmp_path / "ExTES.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("ExTES/ExTES.json", "[]")
        archive.writestr("../outside.json", "[]")
    commit = publish(forge, "pandazzh2020/ExTES", {"ExTES.zip": packed.read_bytes()})
    run(f"extes@{commit}", "--accept-licence", "--out", str(tmp_path / "got"))
    assert (tmp_path / "got" / "extes" / "ExTES" / "ExTES.json").read_text() == "[]"
    commit = publish(forge, "SmartFlowAI/EmoLLM", {"datasets/data.json": "[]", "datasets/aiwei.json": None})
    run(f"emollm@{commit}", "--accept-licence", "--out", str(tmp_path / "got"))
    # Links are checked out as the texts that they are: nothing outside is read.
    assert (tmp_path / "got" / "emollm" / "aiwei.json").read_text() == "/etc/hostname"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["encrypted", "unknown method", "cut off"])
def test_a_zip_file_that_cannot_be_unpacked_is_one_error(damage: str, forge: Path, tmp_path: Path) -> None:
    packed = tmp_path / "ExTES.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ExTES/ExTES.json", "[]" * 99)
    content = bytearray(packed.read_bytes())
    local, central = 0, content.index(b"PK\x01\x02")
    if damage == "encrypted":
        content[local + 6] |= 1
        content[central + 8] |= 1
    elif damage == "unknown method":
        content[local + 8] = content[central + 10] = 97
    else:
        content[local + 50 : local + 56] = b"\xff" * 6
    commit = publish(forge, "pandazzh2020/ExTES", {"ExTES.zip": bytes(content)})
    with pytest.raises(UserError, match=r"corpus extes: ExTES\.zip cannot be unpacked: ") as caught:
        run(f"extes@{commit}", "--accept-licence", "--out", str(tmp_path / "got"))
    assert "\n" not in str(caught.value)


def test_nothing_is_downloaded_before_the_licence_is_accepted(forge: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--accept-licence"):
        run("psyqa", "--out", str(tmp_path / "got"))
    assert not (tmp_path / "got").exists()


def test_without_a_network_one_line_says_what_to_do(forge: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)^corpus psyqa: thu-coai/PsyQA cannot be fetched.*--source psyqa=DIR$") as error:
        run("psyqa", "--accept-licence", "--out", str(tmp_path / "got"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["psyqaa"], "unknown corpus 'psyqaa'"),
        (["generic"], "cannot be fetched"),
        (["pippa"], "pippa@COMMIT"),
        (["psyqa", f"psyqa@{COMMIT}"], "psyqa is named twice"),
        (["psyqa@main"], "psyqa@main: revision"),
    ],
)
def test_what_cannot_be_fetched_is_refused_before_the_licence(words: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        run(*words, "--accept-licence")


def test_every_published_corpus_has_a_place(tmp_path: Path) -> None:
    bundled = {"bundled_support", "bundled_role_play", "generic"}
    assert {name for name, source in SOURCES.items() if source.fetch is None} == bundled
    listed = json.loads(CliRunner().invoke(app, ["fetch", "--json"]).output)
    assert listed["esconv"]["fetch"]["github"] == "thu-coai/Emotional-Support-Conversation"


@pytest.mark.slow
def test_a_dataset_of_the_hub_comes_at_the_commit_that_is_given(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    settings = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    repo = ("dataset", "PygmalionAI/PIPPA")
    with FakeHub() as hub:
        hub.repos[repo] = {"pippa_deduped.jsonl": b"{}\n", "README.md": b"x"}
        errors = []
        for commit in (COMMIT, hub.commit_of(repo)):
            command = [
                sys.executable,
                "-m",
                "data_prep",
                "fetch",
                f"pippa@{commit}",
                "--accept-licence",
                "--out",
                str(tmp_path),
            ]
            environment = os.environ | settings | {"HF_ENDPOINT": hub.url}
            errors.append(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stderr)
    assert f"the hub dataset {repo[1]} cannot be fetched at commit {COMMIT}" in errors[0] and "error" not in errors[1]
    assert (tmp_path / "pippa" / "pippa_deduped.jsonl").read_bytes() == b"{}\n"
    assert not (tmp_path / "pippa" / "README.md").exists()
