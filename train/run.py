"""A training run: its process and machine, its output folder, and its adapter.

The output folder belongs to a recipe and its data. It holds `recipe.json` (the settings), `checkpoint-N/`, and at the end
`timing.json`, `metrics.json` and `adapter-HASH/` with its model card; the link `adapter` points at the newest, and `model.yaml`
is the spec that serves it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import yaml
from numpy.typing import NDArray

from core.errors import UserError, need_modules
from core.errors import say as say_here
from core.files import digest, locked, read_object, sha256_file, write_json, write_text
from core.machine import bf16_instructions
from core.settings import differing_leaves
from core.specs import ModelSpec, place_of
from core.third_party import offline_without_key
from serve.checkpoints.folders import folder_content
from serve.checkpoints.internlm2 import Heads, write_fused
from serve.checkpoints.lora import CONFIG, WEIGHTS
from serve.checkpoints.model_card import PLAYS, Training, write_card
from serve.checkpoints.tensors import check_finite, safetensors_problem, stored_tensors
from train.examples import Prepared, serves_alike, template_of, unmarked
from train.recipes import Recipe, hub_kernel, need_gpu

if TYPE_CHECKING:
    from transformers import Trainer

# Settings that may differ between two tries of a run.
NOT_IDENTITY = {"logging_steps", "report_to", "run_name", "disable_tqdm", "save_total_limit", "dataloader_num_workers"}
DATA_FILES = {"train_file", "valid_file"}  # identified by `Prepared.identity`
# Settings that may name a file or a folder, which is identified by its content.
PATHS = {"model_name_or_path", "seeker", "judge", "rubric", "deepspeed", "fsdp_config", "accelerator_config"}
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")  # whose versions a model card states
_FOLDER = ExitStack()  # holds the lock of the output folder
CONTEXT = 8192  # the most tokens of a served adapter's context: an ESC-Eval dialogue with its rubric needs no more


def is_main_process() -> bool:
    """Whether this is the process that prints and writes (rank 0 of torchrun or accelerate)."""
    return int(os.environ.get("RANK", "0")) == 0


def say(line: str) -> None:
    """One line on stderr, from the main process only."""
    if is_main_process():
        say_here(line, err=True)


def check_numbers(values: NDArray[Any], voice: str) -> None:
    """Raise `UserError` if a model gave infinite or undefined numbers, which argmax would turn into scores."""
    if not np.isfinite(values).all():
        raise UserError(f"{voice}: its numbers are infinite or undefined: training diverged, or take bf16 in place of fp16")


def check_machine(recipe: Recipe[Any]) -> None:
    """Raise `UserError` if one process sees several GPUs, which the Trainer would all use, or if the package for kernels from
    the hub is missing. Warns about bf16 on a CPU without instructions for it: emulated products took 8 times as long."""
    if (count := recipe.training.n_gpu) > 1:
        remedy = "take one (`accelerate launch --gpu_ids 0`), or a process on each (configs/accelerate/ddp.yaml)"
        raise UserError(f"one process sees {count} GPUs, so its batches would be {count} times the recipe's: {remedy}")
    from accelerate.utils import parse_flag_from_env

    if recipe.training.device.type == "cpu" and not (recipe.training.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU")):
        need_gpu(recipe.file)
    from transformers.utils.import_utils import KERNELS_MAX_VERSION, KERNELS_MIN_VERSION, is_kernels_available

    if (kernel := hub_kernel(recipe)) and not is_kernels_available():
        package = f"the package kernels (from {KERNELS_MIN_VERSION} to below {KERNELS_MAX_VERSION})"
        raise UserError(f"{kernel} needs {package}, which is not installed: pip install 'esc-eval[kernels]'")
    if recipe.model.load_in_4bit:  # before the base is downloaded
        need_modules("bitsandbytes", purpose="load_in_4bit")
    if recipe.training.use_cpu and recipe.training.bf16 and not bf16_instructions():
        say("note: this CPU has no bf16 instructions, --bf16 false trains several times faster here")


def name_tracked_run(recipe: Recipe[Any]) -> None:
    """Give wandb and trackio (`report_to`) a project, and a run for the claimed folder, which a resumed training continues."""
    training = recipe.training
    claim = Path(training.output_dir).absolute() / "recipe.json"
    name = digest([str(claim), claim.read_text(encoding="utf-8")], 12)
    if "wandb" in training.report_to:
        os.environ.setdefault("WANDB_PROJECT", f"esc-{recipe.task}")
        os.environ.setdefault("WANDB__DISABLE_META", "true")  # wandb's own metadata holds the command line
        os.environ.setdefault("WANDB_RUN_ID", name)
        os.environ.setdefault("WANDB_RESUME", "allow")
        offline_without_key(say)
    if "trackio" in training.report_to:
        need_modules("trackio", purpose="report_to: trackio")
        if training.project == "huggingface":  # transformers' default
            training.project = f"esc-{recipe.task}"
        training.trackio_static_space_id = False  # with a Space, transformers would publish a copy of the figures
        # trackio identifies a run by its name alone.
        training.run_name = f"{training.run_name or claim.parent.name}-{name}"


def finished(recipe: Recipe[Any]) -> bool:
    """Whether the claimed output folder already has its adapter, so that the identical command has nothing left to do."""
    out = Path(recipe.training.output_dir)
    return (out / "metrics.json").is_file() and (out / "adapter" / WEIGHTS).is_file()


def open_output(recipe: Recipe[Any], *data: Prepared) -> Path | None:
    """Claim the output folder; returns the checkpoint to resume from, or None to start. Incomplete checkpoints are skipped.

    Raises `UserError` if the folder belongs to another recipe, other data or another number of processes (and shows the
    difference), if `resume_from_checkpoint` names an incomplete one, and if the machines of a run see different folders.
    """
    checkpoint = _claimed(recipe, data)
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        states: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(states, (finished(recipe), checkpoint and checkpoint.name))
        if len(set(states)) > 1:
            folder = recipe.training.output_dir
            raise UserError(f"output_dir: {folder} is not the same folder on every machine: use a shared disk")
    return checkpoint


def _claimed(recipe: Recipe[Any], data: Sequence[Prepared]) -> Path | None:
    out = Path(recipe.training.output_dir)
    processes = recipe.training.world_size
    settings = {k: v for k, v in recipe.settings().items() if k not in NOT_IDENTITY} | {"processes": processes}
    claim = orjson.loads(orjson.dumps({"settings": settings, "data": [prepared.identity() for prepared in data]}, default=str))
    file = out / "recipe.json"
    if is_main_process():
        _FOLDER.close()  # the lock of an earlier training in this process
        _FOLDER.enter_context(locked(out / ".lock", f"output_dir: {out}"))
        claim["files"] = contents(settings)
        if file.is_file():
            before = read_object(file, "the recipe of a training")
            before.setdefault("files", contents(before["settings"]))
            if differences := differing_leaves(_identity(before), _identity(claim)):
                raise UserError(f"{out} was made by another recipe or other data ({differences[0]}): give another --output_dir")
        else:
            write_json(file, claim)
    named = recipe.training.resume_from_checkpoint
    if named and str(named).lower() not in {"true", "false"}:
        place = Path(named)
        if not place.is_dir():
            raise UserError(f"resume_from_checkpoint: no such folder: {place}")
        if (problem := checkpoint_problem(place, processes)) is not None:
            raise UserError(f"resume_from_checkpoint: cannot resume from {place}: {problem}; name an older one, or none")
        return place
    if str(named).lower() == "false":
        return None
    steps = [path.name.removeprefix("checkpoint-") for path in out.glob("checkpoint-*")]
    for step in sorted((int(step) for step in steps if step.isdigit()), reverse=True):
        place = out / f"checkpoint-{step}"
        if (problem := checkpoint_problem(place, processes)) is None:
            return place
        say(f"skipped: {place}: {problem}")
    return None


def contents(settings: Mapping[str, Any]) -> dict[str, str]:
    """Setting → hash of the content, for each of `PATHS` that names an existing file or folder."""
    places = {name: place_of(value) for name, value in settings.items() if name in PATHS and isinstance(value, str) and value}
    existing = {name: place for name, place in places.items() if place.exists()}
    return {name: folder_content(place) if place.is_dir() else sha256_file(place) for name, place in existing.items()}


def _identity(claim: dict[str, Any]) -> dict[str, Any]:
    """The common part of two tries of a run: with the content of files and folders, without their paths."""
    settings = {name: value for name, value in claim["settings"].items() if name not in {*claim["files"], *DATA_FILES}}
    data = [{key: value for key, value in part.items() if key not in {"file", "manifest_sha256"}} for part in claim["data"]]
    return {"settings": settings, "data": data, "files": claim["files"]}


def checkpoint_problem(folder: Path, processes: int = 1) -> str | None:
    """Why training cannot resume from this folder exactly: a file that is missing or cut off, or weights that are not finite;
    None if it can. Its files depend on what shards the weights: nothing (also DDP), FSDP, or DeepSpeed."""
    is_deepspeed, is_fsdp = (folder / "latest").is_file(), (folder / "pytorch_model_fsdp.bin").is_file()
    states = ["scheduler.pt", *([f"rng_state_{n}.pth" for n in range(processes)] if processes > 1 else ["rng_state.pth"])]
    if is_fsdp:
        states += ["pytorch_model_fsdp.bin", "optimizer.bin"]
    elif not is_deepspeed:
        states += ["optimizer.pt"]
    for name in (WEIGHTS, CONFIG, "trainer_state.json", *states):
        if not (folder / name).is_file():
            return f"no {name}"
    if (problem := safetensors_problem(folder / WEIGHTS)) is not None:
        return f"{WEIGHTS} {problem}"
    try:
        json.loads((folder / "trainer_state.json").read_bytes())  # like transformers, which writes NaN that JSON lacks
    except (ValueError, RecursionError) as error:
        return f"trainer_state.json is no JSON ({error})"
    try:
        check_finite([folder / WEIGHTS], "weights")
    except UserError as error:
        return str(error)
    parts = [folder / name for name in states]
    if is_deepspeed:
        inner = folder / (folder / "latest").read_text(encoding="utf-8").strip()
        for what in ("model", "optim"):
            files = sorted(inner.glob(f"*_{what}_states.pt"))
            expected = 1 if [path.name for path in files] == ["mp_rank_00_model_states.pt"] else processes  # below stage 3
            if len(files) < expected:
                return f"{what}_states of {len(files)} of {expected} processes in {inner.name}"
            parts += files
    return next((f"{part.name} is cut off" for part in parts if not zipfile.is_zipfile(part)), None)


def export_adapter(
    trainer: Trainer,
    recipe: Recipe[Any],
    data: Sequence[Prepared],
    metrics: dict[str, Any],
    baselines: dict[str, dict[str, float]],
) -> Path:
    """Write the trained adapter as `adapter-HASH` (of weights and config) with its model card; `adapter` links to it. Every
    process calls it. Raises `UserError` for a tensor that is empty, as sharded training can leave them, or not finite."""
    import torch
    from safetensors.torch import load_file, save_file

    out = Path(recipe.training.output_dir)
    temporary = out / ".adapter.tmp"
    if is_main_process():
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed run
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(temporary))
    trainer.accelerator.wait_for_everyone()
    final = out / "adapter"
    if is_main_process():
        if not (temporary / WEIGHTS).is_file() or not stored_tensors([temporary / WEIGHTS]):
            raise UserError(f"{temporary / WEIGHTS}: no tensors: with ZeRO-3 set zero3_save_16bit_model: true")
        check_finite([temporary / WEIGHTS], "trained adapter")
        kept = (WEIGHTS, CONFIG)
        for extra in temporary.iterdir():  # the base's tokenizer is used in training and serving alike
            if extra.name not in kept:
                extra.unlink()
        # For equal adapters to have equal configs: PEFT writes a set in any order, and the base's path on this machine.
        config = read_object(temporary / CONFIG, "an adapter's config")
        config["base_model_name_or_path"] = recipe.model.model_name_or_path
        if isinstance(config["target_modules"], list):
            config["target_modules"].sort()
        write_json(temporary / CONFIG, config)
        if recipe.training.bf16:  # the type of the products in training and on servers, at half the size
            tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(temporary / WEIGHTS).items()}
            save_file(tensors, temporary / WEIGHTS, {"format": "pt"})
        metrics = {"markers_broken_up": sum(prepared.markers for prepared in data)} | metrics
        final = out / f"adapter-{digest([sha256_file(temporary / name) for name in kept], 12)}"
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        # The command to train this again, without machine paths.
        file = recipe.file
        recipe_file = "" if file is None else f"configs/train/{file.name}" if file.parent.name == "train" else file.name
        script = ["accelerate", "launch", f"train/esc_{recipe.task}.py", "--config", recipe_file]
        count, cuda = trainer.accelerator.num_processes, torch.cuda.is_available()
        on_cpu = f"{count} process(es) on CPU, {platform.machine()}, {torch.get_num_threads()} threads each"
        training = Training(
            kind=recipe.task,
            base=recipe.model.model_name_or_path or "",
            base_revision=recipe.model.model_revision if recipe.model.model_revision != "main" else None,
            licence=recipe.data.licence or None,
            recipe=orjson.loads(orjson.dumps(recipe.settings(), default=str)),
            data=[prepared.identity() for prepared in data],
            metrics=metrics,
            baselines=baselines,
            seed=recipe.training.seed,
            command=shlex.join([*script, *recipe.overrides]),
            versions={name: importlib.metadata.version(name) for name in PACKAGES},
            hardware=f"{count} × {torch.cuda.get_device_name(0)}" if cuda else on_cpu,
        )
        write_card(final, training)
        write_json(out / "metrics.json", {"metrics": metrics, "baselines": baselines, "adapter": final.name})
        link = out / "adapter"
        if link.is_symlink():
            link.unlink()
        link.symlink_to(final.name)
        if getattr(recipe.data, "fused_qkv", False):
            config = trainer.model.config
            heads = Heads(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
            fused = out / f"{final.name}-internlm2"
            shutil.rmtree(fused, ignore_errors=True)
            write_fused(final, fused, heads)
            say(f"for InternLM2's own layout: {fused}")
        spec = write_spec(final, trainer, recipe, data, training.learnt)
        say(f"to serve it: {shlex.join(['python', '-m', 'serve', 'up', str(spec)])}")
    trainer.accelerator.wait_for_everyone()
    return final


def write_spec(adapter: Path, trainer: Trainer, recipe: Recipe[Any], data: Sequence[Prepared], learnt: Sequence[str]) -> Path:
    """Write `model.yaml`, the spec that serves this adapter (with our chat template if the base's own differs); its path."""
    out, task = adapter.parent, recipe.task
    tokenizer = trainer.processing_class
    context = min(trainer.model.config.max_position_embeddings, CONTEXT)
    fields: dict[str, Any] = {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", out.resolve().name).lstrip("._-")[:100] or f"esc-{task}",
        "about": f"{recipe.model.model_name_or_path} with an adapter trained by train/esc_{task}.py",
        "roles": [PLAYS[task]],
        "languages": sorted({example.language for prepared in data for example in prepared.examples}),
        "checkpoint": recipe.model.model_name_or_path,
        "adapter": str(adapter),
        "context_length": context,
        "sampling": {"temperature": 0.0, "max_tokens": 16 if task == "rank" else min(512, context // 4)},
    }
    if learnt:
        fields["learnt"] = list(learnt)
    if recipe.model.model_revision != "main":
        fields["revision"] = recipe.model.model_revision
    if recipe.data.licence:
        fields["licence"] = recipe.data.licence
    ends = trainer.model.generation_config.eos_token_id
    if (end := template_of(tokenizer).end) not in (tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])):
        token = tokenizer.convert_ids_to_tokens(end)
        say(f"warning: servers do not end replies at {token}: add {end} to eos_token_id in the base's generation_config.json")
    if not serves_alike(tokenizer, task != "supporter"):
        fields["chat_template"] = unmarked(template_of(tokenizer))
    path = out / "model.yaml"
    spec = ModelSpec.model_validate(fields).model_dump(include=set(fields), mode="json")
    write_text(path, yaml.safe_dump(spec, sort_keys=False))
    return path


def train(trainer: Trainer, checkpoint: Path | None) -> None:
    """Train, from a checkpoint if there is one."""
    trainable = trainer.model.num_parameters(only_trainable=True)
    say(f"{trainer.accelerator.num_processes} process(es); trainable parameters {trainable:,}")
    if checkpoint:
        say(f"resuming from {checkpoint}")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def trained_steps(trainer: Trainer) -> int:
    """The optimizer step of the kept weights: the best checkpoint's if it was loaded, else the last."""
    best = trainer.state.best_model_checkpoint
    return int(Path(best).name.split("-")[-1]) if trainer.args.load_best_model_at_end and best else trainer.state.global_step
