"""Merging a LoRA adapter into a copy of its base.

On GPUs vLLM serves many adapters on one base. On CPU that runs several times slower than a plain model, so each adapter is
merged into its own copy of the (small) base.

Merging adds scale·B·A to each adapted weight and copies everything else, file by file: shards, names and configs stay, in any
layout. PEFT's `merge_and_unload` gives the same numbers, but loads the whole model, and needs a model class in transformers.
"""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import UserError, need_modules
from core.files import cache_dir, digest, read_object
from core.specs import ModelSpec
from serve.checkpoints.folders import MANIFEST, build_folder, build_once, folder_content
from serve.checkpoints.lora import CONFIG, WEIGHTS, adapter_rank, check_plain, module_pairs, module_scales
from serve.checkpoints.model_card import TRAINING, read_training, write_card
from serve.checkpoints.places import BESIDE_WEIGHTS
from serve.checkpoints.tensors import Stored, check_checkpoint, stored_tensors, weight_files, write_tensors

MERGE = 2  # raise it when the merge below changes what it writes
_NOT_COPIED = {MANIFEST, TRAINING, CONFIG}


class Delta(NamedTuple):
    """An adapter's addition to a weight of shape [out, in]: scale·B·A, with A of [rank, in] and B of [out, rank]."""

    a: Stored
    b: Stored
    scale: float


def merged(spec: ModelSpec, checkpoint: Path, adapter: Path) -> Path:
    """A cached copy of `checkpoint` with `adapter` merged in, as a safetensors folder with the base's tokenizer. The folder's
    name depends on the content of both, so a retrained adapter gets a new one. Raises as `merge_adapter` does."""
    deltas = _deltas(checkpoint, adapter, f"model {spec.name}: ")
    folder, made_from = merged_folder(checkpoint, adapter)
    return build_once(
        folder, made_from, lambda target: _merge(checkpoint, adapter, deltas, target), f"{spec.name}: {adapter.name} merged"
    )


def merged_folder(checkpoint: Path, adapter: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of `merged` for two existing folders, whether or not it exists yet, and its identity."""
    made_from = {"merge": MERGE, "base": folder_content(checkpoint), "adapter": folder_content(adapter)}
    return cache_dir() / f"merged-{digest(made_from, 16)}", made_from


def merge_adapter(checkpoint: Path, adapter: Path, dst: Path) -> bool:
    """Write `checkpoint` with the LoRA `adapter` (PEFT) merged in to the folder `dst`; False if that was done before.

    Every adapted weight becomes W + scale·B·A, computed in fp64 and rounded once to the base's dtype; scale is alpha/r, or
    alpha/√r with `use_rslora`. Everything else is copied, but for a new model card. Memory holds one shard at a time. Raises
    `UserError`, and leaves nothing, for anything but a complete checkpoint and a plain LoRA that fits it.
    """
    deltas = _deltas(checkpoint, adapter)
    made_from = merged_folder(checkpoint, adapter)[1]
    return build_folder(dst, adapter, made_from, lambda target: _merge(checkpoint, adapter, deltas, target))


def _deltas(checkpoint: Path, adapter: Path, prefix: str = "") -> dict[str, Delta]:
    """The additions to the base's tensors, by name, after checking that everything fits. Only headers and configs are read."""
    check_checkpoint(checkpoint, f"{prefix}checkpoint")
    adapter_rank(adapter, f"{prefix}adapter")
    config = read_object(adapter / CONFIG, "an adapter's config")
    check_plain(adapter / CONFIG, config)
    modules = module_pairs(adapter / WEIGHTS)
    scales = module_scales(adapter / CONFIG, config, modules)
    tensors = stored_tensors(weight_files(checkpoint))
    tied = read_object(checkpoint / "config.json", "a model's config").get("tie_word_embeddings") is True
    deltas: dict[str, Delta] = {}
    for module, pair in modules.items():
        name, size = f"{module}.weight", (pair["B"].shape[0], pair["A"].shape[1])  # [out, in]
        stored = tensors.get(name)
        if module == "lm_head" and (tied or stored is None):
            raise UserError(
                f"{adapter / WEIGHTS}: lm_head is adapted, but this base ties it to its embeddings: train without it"
            )
        if stored is None or stored.shape != size:
            has = f"has {' × '.join(map(str, stored.shape))} in {stored.file.name}" if stored else "has no such tensor"
            trained_on = str(config.get("base_model_name_or_path") or "a base that its config does not name")[:200]
            wants = f"the adapter {adapter} (trained on {trained_on}) is for {size[0]} × {size[1]}"
            raise UserError(f"base and adapter do not fit: {name}: {wants}, the base {checkpoint} {has}")
        rank, alpha = scales[module]
        deltas[name] = Delta(pair["A"], pair["B"], alpha / (rank**0.5 if config.get("use_rslora") else rank))
    return deltas


def _merge(checkpoint: Path, adapter: Path, deltas: dict[str, Delta], target: Path) -> None:
    need_modules("torch", "huggingface_hub", purpose="merging an adapter")
    from safetensors.torch import load_file

    training = read_training(adapter)  # first, since it may be unreadable
    # Shards keep their names and tensors their sizes, so the base's index stays valid.
    for path in sorted({path for pattern in BESIDE_WEIGHTS for path in checkpoint.glob(pattern)}):
        if path.is_file() and path.name not in _NOT_COPIED:
            shutil.copyfile(path, target / path.name)
    for file in weight_files(checkpoint):
        tensors = load_file(file)
        for name in tensors.keys() & deltas.keys():
            weight, (a, b, scale) = tensors[name], deltas[name]
            delta = (b.load().double() @ a.load().double()) * scale
            tensors[name] = (weight.double() + delta).to(weight.dtype)
        write_tensors(target / file.name, tensors)
    base = read_object(adapter / CONFIG, "an adapter's config").get("base_model_name_or_path")
    write_card(target, training, merged=True, base=str(base or ""))
