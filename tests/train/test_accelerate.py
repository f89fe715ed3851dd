"""The files of configs/accelerate start what they say, on the GPUs that a scheduler gives."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
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


RESOLVE = """
import json, os, sys
from accelerate.state import AcceleratorState
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
from trl import SFTConfig
from deepspeed.runtime.config import DeepSpeedConfig

for environment in json.loads(sys.argv[2]):
    os.environ.update(environment)
    AcceleratorState._reset_state(reset_partial_state=True)  # as if it were another process: loading torch takes the time
    training = SFTConfig(
        output_dir=sys.argv[1], use_cpu=True, per_device_train_batch_size=2, gradient_accumulation_steps=3, max_grad_norm=0.5
    )
    config = HfTrainerDeepSpeedConfig(training.deepspeed_plugin.hf_ds_config.config)
    config.trainer_config_process(training)
    found = DeepSpeedConfig(config.config)
    print(json.dumps({
        "stage": found.zero_config.stage,
        "gather": found.zero_config.gather_16bit_weights_on_model_save,
        "init": training.deepspeed_plugin.zero3_init_flag,
        "rows": found.train_micro_batch_size_per_gpu,
        "accumulation": found.gradient_accumulation_steps,
        "clipping": found.gradient_clipping,
        "bf16": found.bfloat16_config.enabled,
        "mismatches": config.mismatches,
    }))
"""


def given_by_accelerate(name: str) -> dict[str, str]:
    """What `accelerate launch` with a file of configs/accelerate adds to the environment."""
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    path = CONFIGS / "accelerate" / f"{name}.yaml"
    fields = load_yaml(path, "accelerate config")["deepspeed_config"]
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(fields) <= known, "accelerate takes unknown DeepSpeed fields without a word"
    asked, _ = launch(path, "--main_process_port", "0")
    asked.deepspeed_fields_from_accelerate_config = ",".join(fields)
    _, environment = prepare_deepspeed_cmd_env(asked)
    return {name: value for name, value in environment.items() if os.environ.get(name) != value}


@pytest.mark.full  # trainings under ZeRO-2 and ZeRO-3 (test_strategies.py) go through the same files in every run
def test_deepspeed_takes_what_is_left_open_from_the_recipe(tmp_path: Path) -> None:
    """From the file to DeepSpeed's own config as `accelerate launch` does it; in a process of its own, as it sets globals."""
    given = [given_by_accelerate(name) for name in ("zero2", "zero3")]
    told = subprocess.run(
        [sys.executable, "-c", RESOLVE, str(tmp_path), json.dumps(given)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert told.returncode == 0, told.stderr
    found = [orjson.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    of_both = {"rows": 2, "accumulation": 3, "clipping": 0.5, "bf16": True, "mismatches": []}
    assert found == [{"stage": stage, "gather": stage == 3, "init": stage == 3, **of_both} for stage in (2, 3)]
