"""What a finished run leaves behind: the adapter, named by its content, with its model card and figures."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from core.errors import UserError
from core.files import digest, sha256_file, write_json
from serve.checkpoints.model_card import Training, write_card
from train.examples import Prepared
from train.recipes import Recipe, is_main_process

if TYPE_CHECKING:
    from transformers import Trainer


def export_adapter(
    trainer: Trainer,
    recipe: Recipe[Any],
    data: list[Prepared],
    metrics: dict[str, Any],
    baselines: dict[str, dict[str, float]],
) -> Path:
    """Write the trained adapter as `adapter-HASH` with its model card; `adapter` links to it. Call it on every process.

    HASH is of the weights and the config, so a retrained adapter never answers under an old one's name (vLLM's prefix cache
    goes by name). Raises `UserError` when a tensor is empty, as sharded training can leave them.
    """
    out = Path(recipe.training.output_dir)
    temporary = out / ".adapter.tmp"
    if is_main_process():
        shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed here
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(temporary))
    trainer.accelerator.wait_for_everyone()
    final = out / "adapter"
    if is_main_process():
        check_no_empty_tensor(temporary / "adapter_model.safetensors")
        kept = ("adapter_model.safetensors", "adapter_config.json")
        for extra in temporary.iterdir():  # the base's tokenizer is used in training and serving alike
            if extra.name not in kept:
                extra.unlink()
        _settle_config(temporary / "adapter_config.json", recipe)
        if recipe.training.bf16:
            _round_weights(temporary / "adapter_model.safetensors")
        final = out / f"adapter-{digest([sha256_file(temporary / name) for name in kept], 12)}"
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        training = Training(
            kind=recipe.task,
            base=recipe.model.model_name_or_path or "",
            base_revision=recipe.model.model_revision if recipe.model.model_revision != "main" else None,
            licence=recipe.data.licence or None,
            recipe=orjson.loads(orjson.dumps(recipe.settings(), default=str)),
            data=[each.identity() for each in data],
            metrics=metrics,
            baselines=baselines,
            seed=recipe.training.seed,
            command=command_line(recipe),
            versions={
                name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl", "peft", "accelerate")
            },
            hardware=hardware(trainer),
        )
        write_card(final, training)
        write_json(out / "metrics.json", {"metrics": metrics, "baselines": baselines, "adapter": final.name})
        link = out / "adapter"
        if link.is_symlink():
            link.unlink()
        link.symlink_to(final.name)
    trainer.accelerator.wait_for_everyone()
    return final


def _settle_config(path: Path, recipe: Recipe[Any]) -> None:
    """Equal adapters get equal configs: PEFT writes a set in any order, and the place where the base lay on this machine."""
    config = orjson.loads(path.read_bytes())
    config["base_model_name_or_path"] = recipe.model.model_name_or_path
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    write_json(path, config)


def _round_weights(path: Path) -> None:
    """To bf16, in which the products were computed in training and servers load it: half the size."""
    import torch
    from safetensors.torch import load_file, save_file

    save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(path).items()}, path, {"format": "pt"})


def check_no_empty_tensor(path: Path) -> None:
    """Raise `UserError` for a safetensors file with a tensor of no elements: it was saved from a sharded model."""
    gather = "the weights were not gathered; with ZeRO-3 set zero3_save_16bit_model: true"
    if not path.is_file():
        raise UserError(f"{path} was not written: {gather}")
    with path.open("rb") as handle:
        header = orjson.loads(handle.read(int.from_bytes(handle.read(8), "little")))
    empty = [name for name, entry in header.items() if name != "__metadata__" and 0 in entry["shape"]]
    if empty or set(header) <= {"__metadata__"}:
        raise UserError(f"{path}: {len(empty)} empty tensors{f', for example {empty[0]}' if empty else ' of none'}: {gather}")


def command_line(recipe: Recipe[Any]) -> str:
    """What to type to train this again: the recipe and every override, without machine paths."""
    file = recipe.file
    place = f"configs/train/{file.name}" if file and file.parent.name == "train" else (file.name if file else "")
    return shlex.join(["accelerate", "launch", f"train/esc_{recipe.task}.py", "--config", place, *recipe.overrides])


def trained_steps(trainer: Trainer) -> int:
    """The optimizer step whose weights are kept: the best checkpoint's where it was loaded, else the last."""
    best = trainer.state.best_model_checkpoint
    return int(Path(best).name.split("-")[-1]) if trainer.args.load_best_model_at_end and best else trainer.state.global_step


def hardware(trainer: Trainer) -> str:
    """How many of which device trained, in words."""
    import torch

    count = trainer.accelerator.num_processes
    if torch.cuda.is_available():
        return f"{count} × {torch.cuda.get_device_name(0)}"
    return f"{count} process(es) on CPU, {platform.machine()}, {torch.get_num_threads()} threads each"
