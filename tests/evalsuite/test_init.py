"""`esc-eval init`: what it writes runs as it is, against one address; and a config finds the files beside it."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from core.files import CONFIGS
from core.rubrics import load_rubric
from data_prep.cards import load_cards
from evalsuite.commands.setup import EXAMPLE, FILES
from evalsuite.runs.config import load_config
from tests.conftest import EscEval
from tests.endpoint import Endpoint


def test_what_it_writes_runs_at_once(esc_eval: EscEval, capsys: pytest.CaptureFixture[str]) -> None:
    assert esc_eval("init", "work/mine") == (0, "")
    with Endpoint() as endpoint:
        line = ("run", "--config", "work/mine/config.yaml", "--model", f"my-model@{endpoint.url}", "--out", "run")
        assert esc_eval(*line) == (0, "")
    prompt = Path("work/mine/prompt.txt").read_text().strip()
    assert sum(body["messages"][0]["content"] == prompt for body in endpoint.requests) == 4 * 4
    cards = [json.loads(line) for line in Path("run/cards.jsonl").read_text().splitlines()]
    assert len(cards) == 4 and {card["source"] for card in cards} == {"cards"}
    report = Path("run/report.md").read_text()
    assert all(name in report for name in ("my-model.prompt", "silent", "parrot", "lecture"))
    rubric = load_rubric("work/mine/rubric.yaml")
    judged = {json.loads(line)["dimension"] for line in Path("run/judgements.jsonl").read_text().splitlines()}
    assert judged == set(rubric.dimensions) and len(judged) == 4


def test_it_replaces_nothing(esc_eval: EscEval) -> None:
    Path("mine").mkdir()
    Path("mine/cards.csv").write_text("mine\n")
    code, said = esc_eval("init", "mine")
    assert (code, [path.name for path in Path("mine").iterdir()]) == (2, ["cards.csv"])
    assert "cards.csv: exists already and is not replaced" in " ".join(said.split())
    assert Path("mine/cards.csv").read_text() == "mine\n"


def test_the_example_is_whole_and_sound() -> None:
    assert {path.name for path in EXAMPLE.iterdir()} == set(FILES)
    assert all(card.category for card in load_cards(EXAMPLE / "cards.csv", "en"))
    assert "#" in (EXAMPLE / "config.yaml").read_text()


def test_a_config_names_the_files_beside_it_and_then_those_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE, "there")
    spec, config = {"name": "m", "endpoint": {"base_url": "http://127.0.0.1:9/v1"}}, Path("there/config.yaml")
    Path("there/m.yaml").write_text(yaml.safe_dump(spec))
    Path("here.yaml").write_text(yaml.safe_dump(spec))
    Path("cards.csv").write_text("problem\nShe cannot sleep.\n")
    changes = {
        "supporters": ["m.yaml", "here.yaml", "m.yaml@http://127.0.0.1:9/v1", "esc-role"],
        "gold": {"dialogues": "cards.csv"},
    }
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | changes))
    loaded = load_config(config, {})
    assert loaded.supporters == ["there/m.yaml", "here.yaml", "there/m.yaml@http://127.0.0.1:9/v1", "esc-role"]
    assert (loaded.rubric, loaded.gold and loaded.gold.dialogues) == ("there/rubric.yaml", "there/cards.csv")
    typed = load_config(config, {"cards": ["cards.csv"]}, ["rubric=rubric.yaml"])
    assert (getattr(typed, "cards"), typed.rubric) == (["cards.csv"], "rubric.yaml"), "what is typed is meant from here"  # noqa: B009


def test_bundled_configs_mean_what_they_did() -> None:
    from evalsuite.runs.config import _beside

    for path in (CONFIGS / "eval").glob("*.yaml"):
        values = yaml.safe_load(path.read_text())
        assert _beside(values, path.parent) == values
