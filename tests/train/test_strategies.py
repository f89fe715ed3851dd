"""DDP, ZeRO-2, ZeRO-3 and FSDP2, each in two processes over gloo with the project's own scripts and configs/accelerate.

The same losses and the same adapter as one process for the same global batch; a save copies the adapter alone; and the files
start what they say, on the GPUs that a scheduler gives.

What makes accelerate and DeepSpeed do on CPU what they do on GPUs is in `gloo.py`.
"""

from pathlib import Path
from typing import Any

import pytest

from core.files import CONFIGS, write_jsonl
from core.settings import load_yaml
from tests.train.conftest import Forked, losses, per_dimension, rank_examples, train, write_data, write_recipe
from tests.train.gloo import COPIED, PROCESSES
from tests.train.test_training import same_adapter

STRATEGIES = ("ddp", "zero2", "zero3", "fsdp2")


def environment(strategy: str) -> dict[str, str]:
    """What `accelerate launch` with the file of configs/accelerate puts into its processes' environment."""
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    if strategy == "ddp":
        return {"ACCELERATE_USE_CPU": "true"}  # the one that accelerate has on CPU
    path = CONFIGS / "accelerate" / f"{strategy}.yaml"
    asked, _ = launch(path, "--main_process_port", "0", "--num_processes", str(PROCESSES))
    if asked.use_deepspeed:
        asked.deepspeed_fields_from_accelerate_config = ",".join(load_yaml(path, "accelerate config")["deepspeed_config"])
        _, found = prepare_deepspeed_cmd_env(asked)
    else:
        found = prepare_multi_gpu_env(asked)
    return {name: value for name, value in found.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, Path]) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Task → the folder of data and of what one process made of them, and its settings.

    The ranker reads trees, and its query, key and value share a matrix. Plain gradient descent: Adam would blow rounding noise
    in tiny gradients up to whole steps.
    """
    found = {}
    for task, architecture in (("role", "qwen2"), ("rank", "llama")):
        folder = tmp_path_factory.mktemp(task)
        data: dict[str, Any] = write_data(folder, task, valid=7)  # the second process validates on one fewer
        fused: dict[str, Any] = {"fused_qkv": True, "lora_target_modules": ["q_proj", "k_proj", "v_proj"]}
        if task == "rank":
            write_jsonl(Path(data["train_file"]), per_dimension(rank_examples(16)))
            write_jsonl(Path(data["valid_file"]), per_dimension(rank_examples(7, first=1000)))
        settings: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0.0, "lora_dropout": 0.0}
        settings |= {"max_steps": 4, "save_steps": 4, "train_sampling_strategy": "group_by_length"} | (
            fused if task == "rank" else {}
        )
        train(task, write_recipe(folder / "one.yaml", task, tiny[architecture], data, folder / "one", **settings))
        found[task] = folder, {**data, "base": tiny[architecture], **settings}
    return found


# Every strategy with one task, and DDP in test_training.py as it is typed; the other pairs are for make test-full.
FIRST = {"ddp": None, "zero2": "rank", "zero3": "role", "fsdp2": "rank"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "strategy"),
    [
        pytest.param(task, strategy, marks=() if FIRST[strategy] == task else pytest.mark.full)
        for task in ("role", "rank")
        for strategy in STRATEGIES
    ],
)
def test_two_processes_learn_what_one_does(
    forked: Forked, alone: dict[str, tuple[Path, dict[str, Any]]], task: str, strategy: str
) -> None:
    folder, given = alone[task]
    out = folder / strategy
    data = {name: given[name] for name in ("train_file", "valid_file")}
    settings = {name: value for name, value in given.items() if name not in ("base", *data)}
    recipe = write_recipe(
        folder / f"{strategy}.yaml", task, given["base"], data, out, per_device_train_batch_size=2, **settings
    )
    written = forked.run(task, recipe, environment(strategy))
    assert f"{PROCESSES} process(es); trainable parameters" in written
    assert COPIED not in written, "a save copies the adapter alone"
    assert losses(out) == pytest.approx(losses(folder / "one"), rel=1e-5)
    same_adapter(folder / "one", out)


ROOT = CONFIGS.parent
ACCELERATE = sorted((CONFIGS / "accelerate").glob("*.yaml"))


def launch(path: Path, *words: str) -> tuple[Any, Any]:
    """What `accelerate launch --config_file PATH` makes of the file: (its arguments, the file's own settings)."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    return _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(path), *words, "script.py"]))[:2]


LAUNCHES = {  # (several GPUs by DDP, DeepSpeed stage, processes, machines)
    "cpu": (False, None, 1, 1),
    "single_gpu": (False, None, 1, 1),
    "ddp": (True, None, 8, 1),
    "zero2": (False, 2, 8, 1),
    "zero3": (False, 3, 8, 1),
    "fsdp2": (False, None, 8, 1),
    "multi_node": (True, None, 16, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", ACCELERATE, ids=lambda path: path.stem)
def test_accelerate_launches_what_the_file_says(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    load_config_from_file(str(path))
    asked, _ = launch(path)
    assert (asked.multi_gpu, asked.zero_stage, asked.num_processes, asked.num_machines) == LAUNCHES[path.stem]
    assert asked.use_deepspeed == (asked.zero_stage is not None)
    assert asked.use_cpu == (path.stem == "cpu") and asked.use_fsdp == (path.stem == "fsdp2")
    assert asked.mixed_precision == "no", "the recipe's bf16 decides, also where it is overridden"
    for name, value in load_yaml(path, "accelerate config").items():
        if name not in ("compute_environment", "distributed_type", "deepspeed_config", "fsdp_config"):
            assert getattr(asked, name) == value, f"{name}: accelerate does not take it from a file"


@pytest.mark.slow
@pytest.mark.parametrize("path", ACCELERATE, ids=lambda path: path.stem)
@pytest.mark.parametrize(("words", "seen"), [((), "2,5"), (("--gpu_ids", "3,4"), "3,4")])
def test_the_gpus_are_those_of_the_scheduler_unless_the_command_line_says_others(
    path: Path, words: tuple[str, ...], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a launched process would find in its environment, by accelerate's own code for each kind of launch."""
    from accelerate.utils import launch as launchers

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    asked, _ = launch(path, "--main_process_ip", "127.0.0.1", "--main_process_port", "0", *words)
    if asked.use_deepspeed:
        asked.deepspeed_fields_from_accelerate_config = ""
        _, environment = launchers.prepare_deepspeed_cmd_env(asked)
    elif asked.multi_gpu or asked.use_fsdp:
        environment = launchers.prepare_multi_gpu_env(asked)
    else:
        _, environment = launchers.prepare_simple_launcher_cmd_env(asked)
    assert environment["CUDA_VISIBLE_DEVICES"] == seen


# Two nodes that are requeued by Slurm (tests/launch) stand for these in every run.
@pytest.mark.full
@pytest.mark.parametrize(("strategy", "task"), list(zip(STRATEGIES, ("role", "rank", "rank", "role"), strict=True)))
def test_killed_and_resumed_ends_as_undisturbed(
    forked: Forked, tmp_path: Path, tiny: dict[str, Path], strategy: str, task: str
) -> None:
    """With Adam and dropout: states and random numbers have to be restored in each process. The best checkpoint is kept."""
    data = write_data(tmp_path, task, train=8, valid=7)  # two steps an epoch: the kill comes within the second
    metric = "eval_perplexity" if task == "role" else "eval_average_acc_soft"
    settings: dict[str, Any] = {"per_device_train_batch_size": 2, "max_steps": 6} | (
        {"eval_strategy": "steps", "eval_steps": 3, "save_steps": 3, "load_best_model_at_end": True}
        | {"metric_for_best_model": metric, "greater_is_better": task == "rank"}
    )
    for name in ("whole", "killed"):
        write_recipe(tmp_path / f"{name}.yaml", task, tiny["qwen2"], data, tmp_path / name, **settings)
    given = environment(strategy)
    forked.run(task, tmp_path / "whole.yaml", given)
    forked.run(task, tmp_path / "killed.yaml", given, kill_after=tmp_path / "killed" / "checkpoint-3")
    assert not (tmp_path / "killed" / "checkpoint-6").exists(), "the kill came too late to mean anything"
    assert "resuming from" in forked.run(task, tmp_path / "killed.yaml", given)
    whole, resumed = ((tmp_path / name / "adapter").resolve() for name in ("whole", "killed"))
    assert whole.name == resumed.name, "the same weights have the same name"
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
