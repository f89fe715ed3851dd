"""The process that trains: what it says, the machine it is on, and its wandb run."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.files import digest
from core.wandb_offline import offline_without_key
from train.examples import Prepared
from train.recipes import Recipe

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback


def is_main_process() -> bool:
    """Whether this is the process that prints and writes (rank 0 of torchrun or accelerate)."""
    return int(os.environ.get("RANK", "0")) == 0


def say(line: str) -> None:
    """One line on stderr, from the main process only."""
    if is_main_process():
        print(line, file=sys.stderr, flush=True)


def check_machine(recipe: Recipe[Any]) -> None:
    """Raise `UserError` where one process sees several GPUs: the Trainer would use all of them and multiply the batch.

    Says so when bf16 is asked for on a CPU without instructions for it: emulated, products were 8 times as slow as in fp32
    where it was measured.
    """
    import torch

    count = recipe.training.n_gpu
    if count > 1:
        raise UserError(
            f"one process sees {count} GPUs, so its batches would be {count} times the recipe's: choose one with `accelerate "
            "launch --gpu_ids 0` (or CUDA_VISIBLE_DEVICES=0), or start a process on each with configs/accelerate/ddp.yaml"
        )
    if recipe.training.use_cpu and recipe.training.bf16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        say("note: this CPU has no bf16 instructions, --bf16 false trains several times faster here")


def hardware(trainer: Trainer) -> str:
    """How many of which device train, in words."""
    import torch

    count = trainer.accelerator.num_processes
    if torch.cuda.is_available():
        return f"{count} × {torch.cuda.get_device_name(0)}"
    return f"{count} process(es) on CPU, {platform.machine()}, {torch.get_num_threads()} threads each"


def set_up_wandb(recipe: Recipe[Any]) -> None:
    """wandb writes offline when there is no key, and never asks for one. A resumed run goes on in the same wandb run."""
    if "wandb" not in (recipe.training.report_to or []):
        return
    os.environ.setdefault("WANDB_PROJECT", f"esc-{recipe.task}")
    os.environ.setdefault("WANDB__DISABLE_META", "true")  # wandb's own metadata holds the command line
    offline_without_key(say)
    claim = Path(recipe.training.output_dir).absolute() / "recipe.json"
    os.environ.setdefault("WANDB_RUN_ID", digest([str(claim), claim.read_text(encoding="utf-8")], 12))
    os.environ.setdefault("WANDB_RESUME", "allow")


def wandb_run() -> Any | None:
    """The wandb run that the trainer has opened, if any."""
    wandb = sys.modules.get("wandb")
    return wandb.run if wandb is not None else None


def settings_log(recipe: Recipe[Any], *data: Prepared) -> TrainerCallback:
    """A callback that puts the recipe and the data's hashes into the wandb run, once the trainer has opened it."""
    from transformers import TrainerCallback

    class SettingsLog(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            if run := wandb_run():
                identity = [prepared.identity() for prepared in data]
                run.config.update({"recipe": recipe.settings(), "data": identity}, allow_val_change=True)

    return SettingsLog()
