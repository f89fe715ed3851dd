"""The files of configs/accelerate start what they say, on the GPUs that a scheduler gives."""

from pathlib import Path
from typing import Any

import pytest

from core.files import CONFIGS
from core.yaml_files import load_yaml

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
