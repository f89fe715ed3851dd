"""What a trained model's folder says about itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.errors import UserError
from core.specs import ModelSpec
from serve.checkpoints.model_card import Training, read_training, write_card

RECORD: dict[str, Any] = {
    "kind": "rank",
    "base": "org/base-7b",
    "base_revision": "abc123",
    "licence": "apache-2.0",
    "recipe": {"learning_rate": 1e-5, "lora": {"r": 16}, "seeds": [1, 2]},
    "data": [{"file": "train.jsonl", "sha256": "a" * 64, "manifest_sha256": "b" * 64, "examples": 5965, "prompts": "esc_rank"}],
    "metrics": {"acc": 0.51234, "kappa": None, "en": {"ece": 0.03}},
    "baselines": {"majority": {"acc": 0.4}, "untrained base": {"acc": 0.25, "mae": 2}},
    "seed": 7,
    "command": "accelerate launch train/esc_rank.py --config my.yaml",
    "versions": {"trl": "1.16.0", "peft": "0.21.2"},
    "hardware": "one H100",
    "created_by": "esc-eval 0.1.0",
}


def card(folder: Path, merged: bool = False, **changed: object) -> tuple[dict[str, Any], str]:
    """Front matter and body of the card that a changed record gives."""
    write_card(folder, Training.model_validate(RECORD | changed), merged=merged)
    return parts(folder)


def parts(folder: Path) -> tuple[dict[str, Any], str]:
    empty, front, body = (folder / "README.md").read_text().split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(front), body


def blocks(body: str, language: str) -> list[str]:
    return [part.split("\n```")[0] for part in body.split(f"```{language}\n")[1:]]


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    assert read_training(tmp_path) is None
    record = Training.model_validate(RECORD)
    write_card(tmp_path, record)
    assert read_training(tmp_path) == record
    assert json.loads((tmp_path / "training.json").read_text()) == RECORD
    first = [(tmp_path / name).read_bytes() for name in ("training.json", "README.md")]
    write_card(tmp_path, record)
    assert [(tmp_path / name).read_bytes() for name in ("training.json", "README.md")] == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sead": 1}, "training.json: sead: unknown field"),
        ({"kind": "judge"}, "training.json: kind: .*'role', 'rank' or 'supporter'"),
        ({"data": [{"file": "x"}]}, r"training.json: data.0.sha256, data.0.examples: Field required"),
        ({"baselines": {"majority": 0.4}}, "training.json: baselines.majority: expected fields"),
    ],
)
def test_a_broken_record_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(json.dumps(RECORD | change))
    with pytest.raises(UserError, match=message):
        read_training(tmp_path)
    (tmp_path / "training.json").write_text("[")
    with pytest.raises(UserError, match=r"training\.json:1: malformed JSON"):
        read_training(tmp_path)


def test_an_adapters_card(tmp_path: Path) -> None:
    front, body = card(tmp_path)
    assert front == {
        "base_model": "org/base-7b",
        "library_name": "peft",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["esc-eval", "emotional-support-dialogue", "judge", "lora"],
    }
    assert "LoRA adapter: it needs its base" in body and "- Revision: abc123" in body
    assert f"| train.jsonl | 5965 | {'a' * 64} | {'b' * 64} |" in body
    table = body.split("## Metrics\n\n")[1].split("\n\n")[0].splitlines()
    assert table == [
        "| metric | this model | majority | untrained base |",
        "|---|---:|---:|---:|",
        "| acc | 0.5123 | 0.4 | 0.25 |",
        "| kappa | – | – | – |",
        "| en / ece | 0.03 | – | – |",
        "| mae | – | – | 2 |",
    ]
    assert "Made with esc-eval 0.1.0, peft 0.21.2, trl 1.16.0." in body and "Seed 7, on one H100." in body
    assert blocks(body, "sh")[0] == RECORD["command"]
    assert yaml.safe_load(blocks(body, "yaml")[0]) == RECORD["recipe"]
    assert "not clinical evidence" in body


@pytest.mark.parametrize(("kind", "role"), [("rank", "judge"), ("role", "seeker")])
@pytest.mark.parametrize("merged", [False, True])
def test_the_spec_on_the_card_is_one_that_serve_takes(kind: str, role: str, merged: bool, tmp_path: Path) -> None:
    front, body = card(tmp_path, merged, kind=kind)
    spec = ModelSpec.model_validate(yaml.safe_load(blocks(body, "yaml")[-1]))
    assert spec.roles == (role,) and spec.licence == "apache-2.0"
    assert spec.learnt == ("esc_rank",), "judges and seekers are asked in the prompts that they were trained in"
    here = "path/of/this/folder"
    expected = (here, None, None) if merged else ("org/base-7b", "abc123", here)
    assert (spec.checkpoint, spec.revision, spec.adapter) == expected
    assert front["library_name"] == ("transformers" if merged else "peft")
    assert ("lora" in front["tags"], "merged" in front["tags"]) == (not merged, merged)
    assert ("this folder is a whole model" in body) is merged
    assert "python -m serve up my-model.yaml" in body


def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    front, body = card(tmp_path, licence=None, base_revision=None, data=[], metrics={}, baselines={})
    assert "license" not in front and "- Licence: not recorded" in body and "- Revision: not recorded" in body
    assert body.count("None recorded.") == 2
    assert "No baseline was recorded" in card(tmp_path, baselines={})[1]


def test_without_a_record_the_card_says_so(tmp_path: Path) -> None:
    write_card(tmp_path, None, merged=True, base="org/base")
    front, body = parts(tmp_path)
    assert not (tmp_path / "training.json").exists()
    assert front["base_model"] == "org/base" and "license" not in front
    assert "is not documented" in body and "## Metrics" not in body and "not clinical evidence" in body
    ModelSpec.model_validate(yaml.safe_load(blocks(body, "yaml")[-1]))


def test_text_from_data_stays_text(tmp_path: Path) -> None:
    nasty = "x: 'y'\n---\n# <b>h</b> [l](http://z) | *s* `c` \x1b[0m \\ {{ 1 + 1 }}"
    front, body = card(
        tmp_path,
        base=nasty,
        licence=nasty,
        hardware=nasty,
        command="echo '\n```\n# out of the block\n````'",
        data=[{"file": nasty, "sha256": "a", "examples": 1}],
        baselines={nasty: {"acc": 0.1}},
        recipe={"nasty": nasty},
        versions={nasty: "1"},
    )
    assert "base_model" not in front, "the hub takes nothing but names of repositories"
    assert front["license"] == "other" and front["license_name"] == nasty
    safe = r"x: 'y' --- # \<b\>h\</b\> \[l\](http://z) \| \*s\* \`c\`  \[0m \\ {{ 1 + 1 }}"
    assert f"- Model: {safe}\n" in body and f"| {safe} | 1 | a | – |" in body
    assert f"| metric | this model | {safe} |" in body and f"on {safe}." in body
    assert "\x1b" not in body
    assert "`````sh\necho '\n```\n# out of the block\n````'\n`````\n" in body
    # Nothing else begins a line that Markdown would read as a heading.
    headings = [line for line in body.splitlines() if line.startswith("#") and line != "# out of the block"]
    assert [h.lstrip("# ") for h in headings[1:]] == ["Base", "Data", "Metrics", "Training", "Serve", "Limits"]
