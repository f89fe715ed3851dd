"""What both scripts do around their trainer: claim the output folder, resume, load the base, log, and leave an adapter behind.

An output folder holds `recipe.json` (what was asked), `checkpoint-N/`, `samples.jsonl` (role), and at the end `metrics.json`
and `adapter-HASH/` with its model card; the link `adapter` points at the newest. Running the identical command again resumes.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from serve.embedded import EMBEDDED_PREFIX, check_checkpoint, local_path, materialise, safetensors_problem
from serve.errors import UserError
from serve.files import digest, sha256_file, write_json
from serve.model_card import Training, write_card
from train.chat_templates import check_tokenizer, serves_alike
from train.examples import Prepared
from train.recipes import Recipe, is_main_process

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

# What may differ between two tries of one run.
NOT_IDENTITY = {"logging_steps", "report_to", "run_name", "disable_tqdm", "save_total_limit", "dataloader_num_workers"}


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


def finished(recipe: Recipe[Any]) -> bool:
    """Whether the claimed output folder already holds its adapter (then the identical command has nothing left to do)."""
    out = Path(recipe.training.output_dir)
    return (out / "metrics.json").is_file() and (out / "adapter" / "adapter_model.safetensors").is_file()


def open_output(recipe: Recipe[Any], data: list[Prepared]) -> Path | None:
    """Claim the output folder; the checkpoint to resume from, or None to start.

    Raises `UserError` when the folder was made by another recipe or other data (the difference is shown), when its newest
    checkpoint is half written, and when `resume_from_checkpoint` names one that is not there.
    """
    out = Path(recipe.training.output_dir)
    settings = {k: v for k, v in recipe.settings().items() if k not in NOT_IDENTITY}
    asked = orjson.loads(orjson.dumps({"settings": settings, "data": [each.identity() for each in data]}, default=str))
    claim = out / "recipe.json"
    if claim.is_file():
        before = orjson.loads(claim.read_bytes())
        if before != asked:
            raise UserError(f"{out} was made by another recipe ({_difference(before, asked)}): give another --output_dir")
    elif is_main_process():
        write_json(claim, asked)
    named = recipe.training.resume_from_checkpoint
    if named and str(named).lower() not in {"true", "false"}:
        place = Path(named)
        if not place.is_dir():
            raise UserError(f"resume_from_checkpoint: no such folder: {place}")
        check_training_checkpoint(place)
        return place
    found = _checkpoints(out)
    if not found or str(named).lower() == "false":
        return None
    check_training_checkpoint(found[-1])
    return found[-1]


def _checkpoints(out: Path) -> list[Path]:
    """checkpoint-N folders by step."""
    named = [path for path in out.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(named, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def check_same_everywhere(recipe: Recipe[Any], resume: Path | None) -> None:
    """Raise `UserError` when the machines of one run see different output folders: some would resume, others start."""
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    seen: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(seen, (finished(recipe), resume and resume.name))
    if len(set(seen)) > 1:
        raise UserError(f"output_dir: {recipe.training.output_dir} is not the same folder on every machine: use a shared disk")


def _difference(before: Any, asked: Any) -> str:
    for part in ("settings", "data"):
        old, new = before.get(part), asked.get(part)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            key = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
            return f"{key}: {old.get(key)!r} then, {new.get(key)!r} now"
        return "the data files have changed"
    return "unreadable recipe.json"


def check_training_checkpoint(folder: Path) -> None:
    """Raise `UserError` when a checkpoint folder that training is to go on from is not whole.

    A process that is killed while it saves leaves one: its files are missing or cut off.
    """
    problem = _checkpoint_problem(folder)
    if problem is None:
        return
    before = [path.name for path in _checkpoints(folder.parent) if path != folder and _checkpoint_problem(path) is None]
    hint = f"delete it to go on from {before[-1]}" if before else "delete it to start again"
    raise UserError(f"checkpoint half written: {folder}: {problem}; {hint}")


def _checkpoint_problem(folder: Path) -> str | None:
    adapter = folder / "adapter_model.safetensors"
    if not adapter.is_file():
        return f"no {adapter.name}"
    if (problem := safetensors_problem(adapter)) is not None:
        return f"{adapter.name} {problem}"
    if not (folder / "adapter_config.json").is_file():
        return "no adapter_config.json"
    state = folder / "trainer_state.json"
    try:
        orjson.loads(state.read_bytes())
    except OSError:
        return "no trainer_state.json"
    except orjson.JSONDecodeError:
        return "trainer_state.json is cut off"
    if (folder / "latest").is_file():  # DeepSpeed keeps optimizer and scheduler in a folder of its own
        inner = folder / (folder / "latest").read_text(encoding="utf-8").strip()
        return None if any(inner.glob("*.pt")) else f"no optimizer states in {inner.name}"
    for name in ("optimizer.pt", "scheduler.pt"):
        if not (folder / name).is_file():
            return f"no {name}"
        if not zipfile.is_zipfile(folder / name):
            return f"{name} is cut off"
    return None


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

    with _loading(recipe):
        return AutoModelForCausalLM.from_pretrained(
            base_folder(recipe),
            revision=recipe.model.model_revision,
            dtype=recipe.model.dtype,
            attn_implementation=recipe.model.attn_implementation,
            use_safetensors=True,
        )


@contextmanager
def _loading(recipe: Recipe[Any]) -> Iterator[None]:
    """What the libraries raise for a base that is not there, or that needs a package which is not, as one line."""
    try:
        yield
    except (OSError, ImportError, ValueError) as error:
        line = " ".join(str(error).split())
        raise UserError(f"model_name_or_path: {recipe.model.model_name_or_path} cannot be loaded: {line[:300]}") from error


def set_up_logging(recipe: Recipe[Any]) -> None:
    """wandb writes offline when there is no key, and never asks for one."""
    if "wandb" not in (recipe.training.report_to or []):
        return
    os.environ.setdefault("WANDB_PROJECT", f"esc-{recipe.task}")
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    if "WANDB_MODE" not in os.environ and not os.environ.get("WANDB_API_KEY") and host not in _netrc():
        os.environ["WANDB_MODE"] = "offline"
        say("wandb: no key, writing offline (WANDB_MODE=offline)")
    # A resumed run goes on in the same wandb run.
    claim = Path(recipe.training.output_dir).absolute() / "recipe.json"
    os.environ.setdefault("WANDB_RUN_ID", digest([str(claim), claim.read_text(encoding="utf-8")], 12))
    os.environ.setdefault("WANDB_RESUME", "allow")


def _netrc() -> str:
    try:
        return (Path.home() / ".netrc").read_text(encoding="utf-8")
    except OSError:
        return ""


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
