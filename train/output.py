"""The output folder of a run: claimed by its recipe and data, resumed from its newest checkpoint unless that is half written.

It holds `recipe.json` (what was asked), `checkpoint-N/`, `samples.jsonl` (role), and at the end `metrics.json` and
`adapter-HASH/` with its model card; the link `adapter` points at the newest. Running the identical command again resumes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import orjson

from core.errors import UserError
from core.files import write_json
from serve.checkpoints.tensors import safetensors_problem
from train.examples import Prepared
from train.recipes import Recipe, is_main_process

# What may differ between two tries of one run.
NOT_IDENTITY = {"logging_steps", "report_to", "run_name", "disable_tqdm", "save_total_limit", "dataloader_num_workers"}


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
