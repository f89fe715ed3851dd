"""Tiny random checkpoints and examples, on which the training scripts run in seconds."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from core.files import CONFIGS, write_jsonl
from core.records import Record
from core.rubrics import load_rubric
from data_prep.role_play.examples import RoleExample
from data_prep.scores.rank_sft import RankExample
from serve.checkpoints.places import materialise
from tests.conftest import Program
from tests.train.gloo import PROCESSES
from train.recipes import Recipe, parse_recipe
from train.run import checkpoint_problem

ROOT = CONFIGS.parent
ARCHITECTURES = ("qwen2", "llama")
DIMENSIONS = ("fluency", "empathy", "information")
Trains = Callable[..., tuple[int, str, str]]  # `python -m train WORDS`: exit code, stdout, stderr


def tiny_checkpoint(folder: Path, architecture: str, intermediate: int = 96) -> Path:
    """A random two-layer model of 3 M parameters with the embedded model's tokenizer, as a safetensors folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    config_class, model_class = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[
        architecture
    ]
    torch.manual_seed(3)
    config = config_class(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=1,
        pad_token_id=2,
    )
    model_class(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(Path(materialise()) / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoint folders by architecture."""
    base = tmp_path_factory.mktemp("tiny")
    return {name: tiny_checkpoint(base / name, name) for name in ARCHITECTURES}


class Forked:
    """Runs training scripts in processes that are forked from one that has everything imported."""

    def __init__(self) -> None:
        settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.train.gloo"],
            env={**os.environ, **settings, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self._server.stdout
        line = self._server.stdout.readline().strip()
        assert line, "the server has ended"
        return line

    def run(self, task: str, recipe: Path, environment: dict[str, str] | None = None, kill_after: Path | None = None) -> str:
        """What the processes wrote: those of a strategy, whose `environment` this is, or one. With `kill_after`, they are
        killed as soon as this checkpoint is whole."""
        log, count = recipe.with_suffix(".log"), 1 if environment is None else PROCESSES
        job = {
            "script": str(ROOT / f"train/esc_{task}.py"),
            "arguments": ["--config", str(recipe)],
            "log": str(log),
            "processes": count,
            "environment": environment or {},
        }
        assert self._server.stdin
        print(json.dumps(job), file=self._server.stdin, flush=True)
        pids = json.loads(self._answer())
        while kill_after is not None and checkpoint_problem(kill_after, count) is not None:
            assert not (kill_after.parent / "metrics.json").exists(), "training ended before the kill"
            time.sleep(0.01)
        if kill_after is not None:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        codes = json.loads(self._answer())
        written = "".join(log.with_name(f"{log.name}.{rank}").read_text() for rank in range(count))
        assert codes == [-signal.SIGKILL if kill_after else 0] * count, written[-3000:]
        return written

    def end(self) -> None:
        self._server.communicate()


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    made = Forked()
    yield made
    made.end()


def role_examples(count: int, first: int = 0) -> list[Record]:
    """Dialogues of different lengths, each with two seeker lines."""
    topics = ("work", "sleep", "a friend", "an exam", "the move", "money")
    made: list[Record] = []
    for number in range(first, first + count):
        topic = topics[number % len(topics)]
        messages = (
            {"role": "system", "content": f"You are a person who worries about {topic}."},
            {"role": "user", "content": "Hello, what brings you here?"},
            {"role": "assistant", "content": f"It is about {topic}, " + "again and " * (number % 4) + "I am tired."},
            {"role": "user", "content": f"How long has {topic} been on your mind?"},
            {"role": "assistant", "content": f"For {number + 2} weeks now."},
        )
        made.append(
            RoleExample(
                id=f"r{number}",
                language="en",
                kind="support",
                source="written",
                source_id=str(number),
                turns=4,
                tokens=60,
                messages=messages,
            )
        )
    return made


def rank_examples(count: int, first: int = 0) -> list[Record]:
    """Joint examples over three dimensions; the score can be read off the reply."""
    made: list[Record] = []
    for number in range(first, first + count):
        label = number % 5
        labels = {"fluency": label, "empathy": (label + number // 5) % 5, "information": 4 - label}
        prompt = (
            {"role": "system", "content": "Rate the supporter."},
            {"role": "user", "content": f"Seeker: I am low. Supporter: {'Oh dear. ' * (label + 1)}Scores: three digits."},
        )
        made.append(
            RankExample(
                id=f"k{number}/joint",
                prompt=prompt,
                completion=({"role": "assistant", "content": "".join(map(str, labels.values()))},),
                language="en",
                dialogue_id=f"k{number}",
                group=f"g{number}",
                dimension=None,
                labels=labels,
                target={key: float(value) for key, value in labels.items()},
            )
        )
    return made


def per_dimension(examples: Sequence[Any], dimension_first: bool = False) -> list[Record]:
    """Every example asked for each of its dimensions by itself, by name at the end of a prompt that begins with its id.

    With `dimension_first` it begins with the name, as in the paper's order: then no two prompts share more than a marker.
    """
    made: list[Record] = []
    for example in examples:
        system = {**example.prompt[0], "content": f"{example.id} {example.prompt[0]['content']}"}
        for key, label in example.labels.items():
            question = {**example.prompt[-1], "content": f"{example.prompt[-1]['content']} {key}"}
            named = {**system, "content": f"{key} {system['content']}"} if dimension_first else system
            asked = {
                "id": f"{example.id}/{key}",
                "prompt": (named, question),
                "completion": ({"role": "assistant", "content": str(label)},),
                "labels": {key: label},
                "target": {key: example.target[key]},
                "dimension": key,
            }
            made.append(example.model_copy(update=asked))
    return made


def write_data(folder: Path, task: str, train: int = 16, valid: int = 6) -> dict[str, str]:
    """train.jsonl and valid.jsonl (and the rubric beside them) as a recipe names them."""
    import yaml

    make = role_examples if task == "role" else rank_examples
    write_jsonl(folder / "train.jsonl", make(train))
    write_jsonl(folder / "valid.jsonl", make(valid, first=1000))
    if task == "rank":
        rubric = load_rubric("esc_eval")
        rubric = rubric.model_copy(update={"dimensions": {key: rubric.dimensions[key] for key in DIMENSIONS}})
        (folder / "rubric.yaml").write_text(yaml.safe_dump(rubric.model_dump(), allow_unicode=True), encoding="utf-8")
    return {"train_file": str(folder / "train.jsonl"), "valid_file": str(folder / "valid.jsonl")}


def train(task: Any, recipe: Path) -> None:
    """Run a script in this process, with one thread, as the launched ones have."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        importlib.import_module(f"train.esc_{task}").main(parse_recipe(task, ["--config", str(recipe)]))
    finally:
        torch.set_num_threads(threads)


def losses(out: Path) -> list[float]:
    """The logged loss of every step, from the newest checkpoint."""
    newest = max(out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    history = orjson.loads((newest / "trainer_state.json").read_bytes())["log_history"]
    return [row["loss"] for row in history if "loss" in row]


def weights(out: Path) -> dict[str, Any]:
    """The trained adapter's tensors."""
    from safetensors.numpy import load_file

    return load_file(out / "adapter" / "adapter_model.safetensors")


def untrained(recipe: Recipe[Any]) -> Any:
    """The trainer that the recipe's script makes, at the moment when it would begin to train."""
    from trl import SFTTrainer

    class Made(Exception):
        """Ends the script."""

    trainers: list[Any] = []

    def train(trainer: Any, **_: Any) -> None:
        trainers.append(trainer)
        raise Made

    with patch.object(SFTTrainer, "train", train), pytest.raises(Made):
        importlib.import_module(f"train.esc_{recipe.task}").main(recipe)
    return trainers[0]


def write_recipe(path: Path, task: str, base: Path, data: dict[str, str], out: Path, **settings: object) -> Path:
    """A recipe in fp32 on CPU: eight steps of a global batch of four, a checkpoint every two."""
    recipe: dict[str, object] = {
        "task": task,
        "model_name_or_path": str(base),
        "dtype": "float32",
        "use_peft": True,
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.1,
        "lora_target_modules": "all-linear",
        **data,
        "output_dir": str(out),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 3,
        "max_steps": 8,
        "learning_rate": 0.01,
        "max_length": 256,
        "logging_steps": 1,
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": 2,
        "report_to": "none",
        "seed": 5,
        **settings,
    }
    path.write_bytes(orjson.dumps(recipe))  # JSON is YAML
    return path


def made_recipe(folder: Path, task: Any, base: Path, data: dict[str, str], out: Any = "out", **settings: object) -> Recipe[Any]:
    """A recipe in a folder, as its script reads it."""
    path = write_recipe(folder / "r.yaml", task, base, data, folder / out, **settings)
    return parse_recipe(task, ["--config", str(path)])


@pytest.fixture
def trains(program: Program) -> Trains:
    """`python -m train …`."""
    from core.errors import run_cli
    from train.__main__ import app

    return lambda *words: program(lambda: run_cli(app), "train", *words)
