"""What both scripts do around their trainer: load the base and its tokenizer, set up wandb, train."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from core.errors import UserError
from core.files import digest
from core.specs import EMBEDDED_PREFIX
from core.wandb_offline import offline_without_key
from serve.checkpoints.embedded import materialise
from serve.checkpoints.places import local_path
from serve.checkpoints.tensors import check_checkpoint
from train.chat_templates import check_tokenizer, serves_alike
from train.examples import Prepared
from train.recipes import Recipe, is_main_process

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer


@dataclass
class Built:
    """A run that is ready to train: its trainer, training and validation data, and the checkpoint to go on from."""

    trainer: Any
    sets: list[Prepared]
    resume: Path | None


def say(line: str) -> None:
    """One line on stderr, from the main process only."""
    if is_main_process():
        print(line, file=sys.stderr, flush=True)


def base_folder(recipe: Recipe[Any]) -> str:
    """Where transformers finds the base: a checked local folder, or a hub id as it is."""
    name = recipe.model.model_name_or_path
    assert name is not None
    if name.startswith(EMBEDDED_PREFIX):
        return str(materialise(name=name.removeprefix(EMBEDDED_PREFIX)))
    folder = local_path(name, "model_name_or_path")
    if folder is None:
        return name
    check_checkpoint(folder, "model_name_or_path")
    config = orjson.loads((folder / "config.json").read_bytes())
    if config.get("model_type") == "internlm2":
        raise UserError(
            f"model_name_or_path: {folder} is in InternLM2's layout, which transformers no longer loads: "
            f"python -m serve convert-internlm2 {folder} {folder}-llama"
        )
    return str(folder)


def load_tokenizer(recipe: Recipe[Any]) -> PreTrainedTokenizerBase:
    """The base's tokenizer, with a padding token and ChatML's markers as single tokens."""
    from transformers import AutoTokenizer

    with _loading(recipe):
        tokenizer = AutoTokenizer.from_pretrained(base_folder(recipe), revision=recipe.model.model_revision)
    check_tokenizer(tokenizer, f"base {recipe.model.model_name_or_path}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not serves_alike(tokenizer):
        say("note: the base's own chat template prompts otherwise than ours; serve the adapter with chat_template in its spec")
    return tokenizer


def load_base(recipe: Recipe[Any]) -> PreTrainedModel:
    """The base model in the recipe's dtype, without remote code, from safetensors."""
    from transformers import AutoModelForCausalLM

    rate = recipe.data.attention_dropout
    with _loading(recipe):
        return AutoModelForCausalLM.from_pretrained(
            base_folder(recipe),
            revision=recipe.model.model_revision,
            dtype=recipe.model.dtype,
            attn_implementation=recipe.model.attn_implementation,
            use_safetensors=True,
            **({"attention_dropout": rate} if rate else {}),  # not every architecture's config knows it
        )


@contextmanager
def _loading(recipe: Recipe[Any]) -> Iterator[None]:
    """What the libraries raise for a base that is not there, or that needs a package which is not, as one line."""
    try:
        yield
    except (OSError, ImportError, ValueError, TypeError) as error:
        line = " ".join(str(error).split())
        raise UserError(f"model_name_or_path: {recipe.model.model_name_or_path} cannot be loaded: {line[:300]}") from error


def check_one_gpu(recipe: Recipe[Any]) -> None:
    """Raise `UserError` where one process sees several GPUs: the Trainer would use all of them and multiply the batch."""
    count = recipe.training.n_gpu
    if count > 1:
        raise UserError(
            f"one process sees {count} GPUs, so its batches would be {count} times the recipe's: choose one with `accelerate "
            "launch --gpu_ids 0` (or CUDA_VISIBLE_DEVICES=0), or start a process on each with configs/accelerate/ddp.yaml"
        )


def note_slow_products(recipe: Recipe[Any]) -> None:
    """bf16 is emulated on CPUs without instructions for it: products were 8 times as slow as in fp32 where it was measured."""
    import torch

    if recipe.training.use_cpu and recipe.training.bf16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        say("note: this CPU has no bf16 instructions, --bf16 false trains several times faster here")


def set_up_logging(recipe: Recipe[Any]) -> None:
    """wandb writes offline when there is no key, and never asks for one."""
    if "wandb" not in (recipe.training.report_to or []):
        return
    os.environ.setdefault("WANDB_PROJECT", f"esc-{recipe.task}")
    os.environ.setdefault("WANDB__DISABLE_META", "true")  # wandb's own metadata holds the command line
    offline_without_key(say)
    # A resumed run goes on in the same wandb run.
    claim = Path(recipe.training.output_dir).absolute() / "recipe.json"
    os.environ.setdefault("WANDB_RUN_ID", digest([str(claim), claim.read_text(encoding="utf-8")], 12))
    os.environ.setdefault("WANDB_RESUME", "allow")


def add_settings_log(trainer: Trainer, recipe: Recipe[Any], data: list[Prepared]) -> None:
    """Have recipe and data hashes put into the wandb run, once the trainer has opened it."""
    from transformers import TrainerCallback

    class SettingsLog(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            wandb = sys.modules.get("wandb")
            if wandb is not None and wandb.run is not None:
                identity = [each.identity() for each in data]
                wandb.run.config.update({"recipe": recipe.settings(), "data": identity}, allow_val_change=True)

    trainer.add_callback(SettingsLog())


def fit(built: Built) -> None:
    """Train to the end, from where a killed run stopped."""
    trainer = built.trainer
    trained = trainer.model.num_parameters(only_trainable=True)
    say(f"{trainer.accelerator.num_processes} process(es); trainable parameters {trained:,}")
    if built.resume:
        say(f"resuming from {built.resume}")
    trainer.train(resume_from_checkpoint=str(built.resume) if built.resume else None)
