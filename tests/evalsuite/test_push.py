"""`esc-eval push` through the real huggingface_hub, against a hub on loopback; what was pushed is read back by its users."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results

from core.files import sha256_file
from core.specs import BUNDLED_ADAPTERS
from serve.checkpoints.model_card import read_training
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Endpoint
from tests.evalsuite.test_faults import one_line
from tests.fake_hub import TOKEN, FakeHub
from tests.train.grpo_toy import behave, train_toy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as started:
        yield started


def python(hub: FakeHub, folder: Path, code: str, token: str | None = TOKEN) -> str:
    """What code prints that runs with this hub in place of the public one, in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    own |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1"} | ({"HF_TOKEN": token} if token else {})
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=kept | own, capture_output=True, text=True, timeout=200, check=False
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def push(hub: FakeHub, folder: Path, *lines: str, token: str | None = TOKEN) -> str:
    """Several pushes in one process: each a command line; prints how each one ended and what it said on stderr."""
    code = f"""
import contextlib, io, sys
from evalsuite import cli
for line in {list(lines)!r}:
    sys.argv = ["esc-eval", "push", *line.split()]
    said, code = io.StringIO(), 0
    with contextlib.redirect_stderr(said):
        try: cli.main()
        except SystemExit as end: code = end.code or 0
    print("exit", code, said.getvalue())
"""
    return python(hub, folder, code, token)


def made_folder(folder: Path, source: str, **files: list[dict[str, Any]]) -> Path:
    """What a data verb leaves: files of records, and the manifest with their hashes."""
    folder.mkdir(parents=True)
    outputs = {}
    for name, records in files.items():
        path = folder / f"{name}.jsonl"
        path.write_bytes(b"".join(orjson.dumps({"source": source, "language": "en"} | record) + b"\n" for record in records))
        outputs[path.name] = {"sha256": sha256_file(path), "records": len(records)}
    (folder / "manifest.json").write_text(json.dumps({"command": "role-sft", "inputs": {}, "outputs": outputs}))
    return folder


ADAPTER = """
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
def base():
    torch.manual_seed(0)
    size = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(**size))
"""


@pytest.mark.full
def test_an_adapter_and_a_data_set_are_read_back_by_peft_and_datasets(hub: FakeHub, tmp_path: Path) -> None:
    make = """
made = get_peft_model(base(), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
made.peft_config["default"].base_model_name_or_path = "org/base"
made.save_pretrained("adapter")
"""
    python(hub, tmp_path, ADAPTER + make)
    record = json.loads((BUNDLED_ADAPTERS / "esc-rank-embedded" / "training.json").read_text()) | {"base": "org/base"}
    (tmp_path / "adapter" / "training.json").write_text(json.dumps(record))
    hub.repos["model", "org/base"] = {"README.md": b"---\nlicense: llama3\n---\n# A base\n"}
    rows = [{"id": str(place), "text": f"text {place}"} for place in range(5)]
    made_folder(tmp_path / "data", "esconv", train=rows[:3], valid=rows[3:], cards=rows[:1])
    said = push(hub, tmp_path, "adapter me/adapter", "data me/data --private", "data me/data --private")
    assert said.count("exit 0") == 3, said
    card = hub.repos["model", "me/adapter"]["README.md"].decode()
    head = yaml.safe_load(card.split("---")[1])
    assert head["license"] == "other" and head["license_name"] == "llama3" and head["base_model"] == "org/base"
    _, results = model_index_to_eval_results(head["model-index"])
    whole = next(r for r in results if r.metric_type == "acc" and r.dataset_config is None)
    figures = record["metrics"]["valid_average_acc"], record["baselines"]["majority class"]["valid_average_acc"]
    assert whole.metric_value == pytest.approx(figures[0], abs=1e-4) and "n = 1547" in str(whole.metric_name)
    assert f"majority class {figures[1]:.4g}" in str(whole.metric_name)
    assert record["data"][0]["sha256"] in card
    weights = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    assert list(hub.lfs.values()) == [weights], "weights go by LFS, texts do not"
    assert hub.made["dataset", "me/data"]["visibility"] == "private"
    read = """
from datasets import load_dataset
loaded = PeftModel.from_pretrained(base(), "me/adapter")
kept = PeftModel.from_pretrained(base(), "adapter")
equal = [torch.equal(a, b) for (n, a), (_, b) in zip(loaded.named_parameters(), kept.named_parameters()) if "lora" in n]
assert equal and all(equal), equal
examples, cards = load_dataset("me/data"), load_dataset("me/data", "cards")
print({name: list(part["id"]) for name, part in examples.items()}, {name: list(part["text"]) for name, part in cards.items()})
"""
    told = python(hub, tmp_path, ADAPTER + read)
    assert told.splitlines()[-1] == "{'train': ['0', '1', '2'], 'validation': ['3', '4']} {'train': ['text 0']}"
    assert "license: cc-by-nc-4.0" in hub.repos["dataset", "me/data"]["README.md"].decode()


@pytest.mark.slow
def test_a_supporters_card_has_its_reward_beside_the_base_and_the_floors(hub: FakeHub, tmp_path: Path) -> None:
    """An adapter that train/esc_supporter.py has trained, for one step of the toy."""
    with Endpoint(behave=behave, models=("seeker", "judge")) as started:
        train_toy(tmp_path, started.url, 0, 1)
    assert "exit 0" in push(hub, tmp_path, "out-0/adapter me/supporter")
    made = read_training(tmp_path / "out-0" / "adapter")
    assert made is not None
    pushed = hub.repos["model", "me/supporter"]
    card = python(hub, tmp_path, "from huggingface_hub import ModelCard; print(ModelCard.load('me/supporter').content)")
    assert card.strip() == pushed["README.md"].decode().strip()
    stated = ModelCard(card).data
    assert isinstance(stated, ModelCardData)
    assert stated.eval_results is not None
    (result,) = stated.eval_results
    assert (result.metric_type, result.task_name) == ("reward", "supporting, for a judge's reward")
    assert result.metric_value == pytest.approx(made.metrics["reward"], abs=1e-4)
    told = [f"{name} {figures['reward']:.4g}" for name, figures in made.baselines.items()]
    assert result.metric_name == f"reward ({'; '.join(['judge judge', 'n = 4', *told])})" and len(told) == 4
    expected = {name: figures["reward"] for name, figures in made.baselines.items()}
    assert result.metric_args is not None and result.metric_args["baselines"] == pytest.approx(expected, abs=1e-4)
    assert "# Supporter: LoRA adapter" in card and "seeker: seeker@URL" in card and "supporter" in (stated.tags or ())
    assert not [name for name, content in pushed.items() if started.url.encode() in content], "who served is nobody's business"


def test_what_may_not_be_passed_on_is_refused_before_anything_is_sent(esc_eval: EscEval, tmp_path: Path) -> None:
    row = [{"id": "1"}]
    made_folder(tmp_path / "closed", "epitome", train=row)
    made_folder(tmp_path / "unknown", "my_notes", train=row)
    made_folder(tmp_path / "changed", "esconv", train=row)
    (tmp_path / "changed" / "train.jsonl").write_text("{}\n")
    (tmp_path / "empty").mkdir()
    refused = {
        "closed": "closed: contains texts of epitome, whose licence does not allow sharing them: two documents",
        "unknown": "unknown: contains texts of 'my_notes', whose licence is unknown",
        "changed": "changed/train.jsonl: has changed since its manifest was written",
        "empty": "empty: holds no adapter (adapter_config.json), no data set (manifest.json) and no run (config.json)",
        "closed --judge me": "--judge: is for a run's scores; closed is no run",
    }
    for line, sentence in refused.items():
        folder, *options = line.split()
        one_line(esc_eval("push", folder, "me/there", "--dry-run", *options), 2, sentence)


@pytest.mark.slow
def test_a_runs_scores_and_its_report(esc_eval: EscEval, hub: FakeHub, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"languages": ["en"], "limit": 2, "exchanges": 1, "gold": None, "floors": True}
    with Endpoint(models=("embedded",)) as started:
        Path("c.yaml").write_text(yaml.safe_dump(demo_config(**settings, endpoints={"embedded": started.url})))
        assert esc_eval("run", "--config", "c.yaml", "--out", "run")[0] == 0
    code, err = esc_eval("push", "run", "me/report", "--dry-run")
    assert (code, err) == (0, "")
    results = "run me/model --benchmark me/cards --report me/report"
    said = push(
        hub,
        tmp_path,
        "run me/report",
        results,
        f"{results} --supporter nobody",
        "run me/model --supporter embedded",
        "run nonsense//name",
        "run me/report --private",
    )
    assert said.count("exit 0") == 2 and "--supporter nobody: run has " in said
    assert "--supporter: give --benchmark, too" in said
    assert "OWNER/NAME names a repository" in said and "me/report exists already and is public" in said
    space = hub.repos["space", "me/report"]
    assert space["index.html"] == Path("run/report.html").read_bytes() and b"sdk: static" in space["README.md"]
    assert b"Plumbing" in space["README.md"] and hub.made["space", "me/report"]["sdk"] == "static"
    assert {f"tables/{path.name}" for path in Path("run/tables").glob("*.csv")} <= space.keys()
    (written,) = (content for name, content in hub.repos["model", "me/model"].items() if name.startswith(".eval_results/"))
    entries = parse_eval_result_entries(yaml.safe_load(written))
    assert len(entries) == 8 and {entry.dataset_id for entry in entries} == {"me/cards"}
    assert all("n = 2" in str(e.notes) and "floor silent" in str(e.notes) and "Plumbing" in str(e.notes) for e in entries)
    denied = push(hub, tmp_path, "run me/report", token=None)
    assert "exit 2 error: me/report: " in denied and "`hf auth login`, or HF_TOKEN" in denied
