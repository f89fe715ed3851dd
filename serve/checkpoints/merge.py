"""LoRA adapters: what can be served, and merging one into a copy of its base.

On GPUs vLLM serves many adapters beside one base. On CPU that path runs several times slower than a plain model, so there an
adapter is merged into its own copy of the (small) base.

Merging adds scale·B·A to each adapted weight and copies everything else as bytes, tensor by tensor: neither torch nor the
memory to hold the model is needed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from core.errors import UserError
from core.files import cache_dir, digest, read_object
from core.specs import ModelSpec
from serve.checkpoints.embedded import MANIFEST, build_once, check_checkpoint, resolve_checkpoint, safetensors_problem
from serve.checkpoints.folders import (
    Planned,
    Rows,
    Stored,
    build_folder,
    folder_content,
    stored_tensors,
    weight_files,
    write_tensors,
)
from serve.checkpoints.model_card import TRAINING, read_training, write_card

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the values vLLM takes for --max-lora-rank
MERGE = 2  # raise it when the merge below changes what it writes
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_ROWS = 2048  # of a weight worked on at a time: what is held in fp32
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# What a base folder holds beside its weights: configs, tokenizer, chat template, its own code, and its licence.
_COPIED = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py", "LICEN[CS]E*", "NOTICE*")
_NOT_COPIED = {MANIFEST, TRAINING, CONFIG}
# What an adapter's config may say beside plain LoRA: how training began and where the adapter came from. Anything else that is
# set could change what the adapter computes.
PLAIN_FIELDS = {
    *("peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision", "inference_mode", "r", "target_modules"),
    *("exclude_modules", "lora_alpha", "lora_dropout", "bias", "use_rslora", "init_lora_weights", "layers_to_transform"),
    *("layers_pattern", "rank_pattern", "alpha_pattern", "megatron_core", "loftq_config", "eva_config", "corda_config"),
    *("lora_ga_config", "qalora_group_size", "runtime_config", "auto_mapping"),
    *("lora_dtype", "lorap_lr_ratio", "lorap_emb_lr"),  # ms-swift's, about its optimiser
}
PLAIN_INITS = {"gaussian", "eva", "orthogonal", "mica", "lora_ga"}  # the others change the base's weights, too


def lora_rank_limit(rank: int) -> int:
    """The smallest --max-lora-rank of vLLM that admits an adapter of this rank; `UserError` above 512 or below 1."""
    for limit in LORA_RANKS:
        if 1 <= rank <= limit:
            return limit
    raise UserError(f"adapter rank unsupported: {rank}; vLLM serves ranks from 1 to {LORA_RANKS[-1]}")


def adapter_rank(folder: Path, what: str = "adapter") -> int:
    """The largest LoRA rank in an adapter folder.

    Raises `UserError` for a folder without adapter_config.json or whole adapter_model.safetensors, a config that is not a LoRA
    adapter's, and a rank that vLLM cannot serve.
    """
    config_file, weights = folder / CONFIG, folder / WEIGHTS
    for path in (config_file, weights):
        if not path.is_file():
            raise UserError(f"{what} missing or half written: {folder} has no {path.name}")
    if (problem := safetensors_problem(weights)) is not None:
        raise UserError(f"{what} half written: {weights} {problem}; copy or train it again")
    try:
        config: dict[str, Any] = orjson.loads(config_file.read_bytes())
        rank = max([int(config["r"]), *(config.get("rank_pattern") or {}).values()])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise UserError(f"{config_file}: r: not a LoRA adapter's config; expected PEFT's JSON with the rank in r") from None
    try:
        lora_rank_limit(rank)
    except UserError as error:
        raise UserError(f"{config_file}: r: {error}") from None
    return rank


@dataclass(frozen=True)
class Delta:
    """What an adapter adds to one weight of shape [out, in]: scale·B·A, with A of [rank, in] and B of [out, rank]."""

    a: Stored
    b: Stored
    scale: float


def merged(spec: ModelSpec, checkpoint: Path, adapter: Path) -> Path:
    """A copy of `checkpoint` with `adapter` merged in, as a safetensors folder with the base's tokenizer, in the cache.

    The folder is named by the content of both, so a retrained adapter gets a new one. Raises what `merge_adapter` raises.
    """
    deltas = _deltas(checkpoint, adapter, f"model {spec.name}: ")
    folder, made_from = merged_folder(checkpoint, adapter)
    return build_once(
        folder, made_from, lambda target: _merge(checkpoint, adapter, deltas, target), f"{spec.name}: {adapter.name} merged"
    )


def merged_folder(checkpoint: Path, adapter: Path) -> tuple[Path, dict[str, Any]]:
    """Where `merged` puts its copy of two existing folders, whether or not it is there yet, and what identifies it."""
    made_from = {"merge": MERGE, "base": folder_content(checkpoint), "adapter": folder_content(adapter)}
    return cache_dir() / f"merged-{digest(made_from, 16)}", made_from


def merge_adapter(checkpoint: Path, adapter: Path, dst: Path) -> bool:
    """Write `checkpoint` with the LoRA `adapter` (PEFT's) merged in to the folder `dst`; False when that was done before.

    Every adapted weight is W + scale·B·A, computed in fp32 and rounded once to the base's own dtype; scale is alpha/r, or
    alpha/√r with `use_rslora`. All else is copied: other weights, shards and index, config, tokenizer, chat template. In
    memory is never more than the result of one weight and some rows of it in fp32. The model card is written anew.

    Raises `UserError`, and leaves nothing, when a folder is missing, pickled or half written; for an adapter that is more
    than a plain LoRA on weight matrices; when base and adapter do not fit; and when `dst` holds something else.
    """
    deltas = _deltas(checkpoint, adapter)
    made_from = merged_folder(checkpoint, adapter)[1]
    return build_folder(dst, adapter, made_from, lambda target: _merge(checkpoint, adapter, deltas, target))


def base_folder(spec: ModelSpec) -> Path:
    """The folder of a spec's checkpoint: a local one as it is, the embedded model made, a hub id downloaded.

    Raises `UserError` for what `resolve_checkpoint` refuses and for a download that fails.
    """
    place = resolve_checkpoint(spec)
    return Path(place) if Path(place).is_dir() else download_base(spec, place)


def download_base(spec: ModelSpec, repo: str) -> Path:
    """All of a hub repository that merging reads or copies, at the spec's revision."""
    return download(spec, repo, spec.revision, ["*.safetensors", *_COPIED])


def download(spec: ModelSpec, repo: str, revision: str | None, patterns: Iterable[str]) -> Path:
    """A hub repository's files of some patterns, in the hub's own cache; `UserError` when they cannot be had."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=[*patterns]))
    except (OSError, ValueError) as error:  # its errors are of these two families, offline mode included
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"model {spec.name}: cannot download {repo}: {reason}") from None


def check_plain(path: Path, config: dict[str, Any]) -> None:
    """Raise `UserError` unless an adapter's config describes a plain LoRA, one that adds scale·B·A to weight matrices."""
    if config.get("peft_type") != "LORA":
        raise UserError(f"{path}: peft_type: LORA expected, got {config.get('peft_type')!r}")
    if config.get("bias") not in {None, "none"}:
        raise UserError(f"{path}: bias: {config['bias']!r}: trained biases cannot be served by vLLM; train with bias none")
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        raise UserError(
            f"{path}: init_lora_weights: {init!r} also changes the base's weights; convert it to a plain LoRA with PEFT's "
            "path_initial_model_for_weight_conversion first"
        )
    for field in sorted(set(config) - PLAIN_FIELDS):
        if config[field]:
            raise UserError(
                f"{path}: {field}: {str(config[field])[:60]} is more than a plain LoRA on weight matrices: it can neither be "
                "merged or converted exactly nor served by vLLM; train the adapter without it"
            )


def module_pairs(path: Path) -> dict[str, dict[str, Stored]]:
    """The matrices `A` and `B` of each adapted module, by the module's path (`model.layers.0.self_attn.q_proj`).

    Raises `UserError` for a file with anything else in it, without tensors, or with half of a pair.
    """
    modules: dict[str, dict[str, Stored]] = {}
    foreign = []
    for name, stored in stored_tensors([path]).items():
        found = _NAME.fullmatch(name)
        if found is None or len(stored.shape) != 2:
            foreign.append(name)
        else:
            modules.setdefault(found[1], {})[found[2]] = stored
    if foreign:
        raise UserError(
            f"{path}: only the matrices lora_A and lora_B of linear layers can be merged, not embeddings, biases, magnitudes "
            f"or whole modules: {', '.join(sorted(foreign)[:3])} ({len(foreign)} in all); train the adapter without them"
        )
    if not modules:
        raise UserError(f"{path}: no tensors in it")
    for module, pair in modules.items():
        if missing := {"A", "B"} - set(pair):
            raise UserError(f"{path}: {module} has no lora_{missing.pop()}: the adapter is half written")
    return modules


def module_scales(path: Path, config: dict[str, Any], modules: dict[str, dict[str, Stored]]) -> dict[str, tuple[int, float]]:
    """Rank and alpha of each module, by PEFT's rule: the first pattern that matches the end of the path, else the default.

    Raises `UserError` for a config that does not say, and for matrices of another rank than it says.
    """

    def find(field: str, default: str, module: str) -> Any:
        for pattern, value in (config.get(field) or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        return config[default]

    scales: dict[str, tuple[int, float]] = {}
    try:
        for module in modules:
            scales[module] = (int(find("rank_pattern", "r", module)), float(find("alpha_pattern", "lora_alpha", module)))
    except (re.error, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: r, lora_alpha, rank_pattern, alpha_pattern: not PEFT's: {error}") from None
    for module, pair in modules.items():
        rank, ranks = scales[module][0], {pair["A"].shape[0], pair["B"].shape[1]}
        if ranks != {rank}:
            raise UserError(f"{path}: r: {module} has rank {' and '.join(map(str, sorted(ranks)))}, the config says {rank}")
    return scales


def _deltas(checkpoint: Path, adapter: Path, who: str = "") -> dict[str, Delta]:
    """What is added to which of the base's tensors, once all is known to fit. Only headers and configs are read."""
    check_checkpoint(checkpoint, f"{who}checkpoint")
    adapter_rank(adapter, f"{who}adapter")
    config = read_object(adapter / CONFIG, "an adapter's config")
    check_plain(adapter / CONFIG, config)
    modules = module_pairs(adapter / WEIGHTS)
    scales = module_scales(adapter / CONFIG, config, modules)
    tensors = stored_tensors(weight_files(checkpoint))
    tied = read_object(checkpoint / "config.json", "a model's config").get("tie_word_embeddings") is True
    found: dict[str, Delta] = {}
    for module, pair in modules.items():
        name, size = f"{module}.weight", (pair["B"].shape[0], pair["A"].shape[1])
        stored = tensors.get(name)
        if module == "lm_head" and (tied or stored is None):
            raise UserError(
                f"{adapter / WEIGHTS}: lm_head is adapted, and this base ties it to its embeddings: merging would change "
                "those, too; train the adapter without lm_head"
            )
        if stored is None or stored.shape != size:
            has = f"has {_size(stored.shape)} in {stored.file.name}" if stored else "has no such tensor"
            trained_on = str(config.get("base_model_name_or_path") or "a base that its config does not name")[:200]
            raise UserError(
                f"base and adapter do not fit: {name}: the adapter {adapter} is for {_size(size)}, the base {checkpoint} "
                f"{has}; the adapter was trained on {trained_on}"
            )
        rank, alpha = scales[module]
        found[name] = Delta(pair["A"], pair["B"], alpha / (rank**0.5 if config.get("use_rslora") else rank))
    return found


def _size(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _merge(checkpoint: Path, adapter: Path, deltas: dict[str, Delta], target: Path) -> None:
    training = read_training(adapter)  # before the long part: it may be unreadable
    files = weight_files(checkpoint)
    for path in sorted({path for pattern in _COPIED for path in checkpoint.glob(pattern)}):
        # Shards keep their names, and tensors their sizes, so the base's index stays true, too.
        if path.is_file() and path.name not in _NOT_COPIED:
            shutil.copyfile(path, target / path.name)
    for file in files:
        planned = [
            Planned(
                name,
                stored.dtype,
                stored.shape,
                partial(_summed, name, stored, deltas[name]) if name in deltas else stored.rows,
            )
            for name, stored in stored_tensors([file]).items()
        ]
        write_tensors(target / file.name, planned)
    named = read_object(adapter / CONFIG, "an adapter's config").get("base_model_name_or_path")
    write_card(target, training, merged=True, base=str(named or ""))


def _summed(name: str, stored: Stored, delta: Delta) -> Rows:
    """The bytes of a weight with its delta added, some rows at a time."""
    a, b, rows = _floats(delta.a.rows(), delta.a.dtype), _floats(delta.b.rows(), delta.b.dtype), stored.rows()
    out = np.empty_like(rows)
    for start in range(0, len(rows), _ROWS):
        block = slice(start, start + _ROWS)
        out[block] = _rounded(_floats(rows[block], stored.dtype) + (b[block] @ a) * delta.scale, stored.dtype)
        if not np.isfinite(_floats(out[block], stored.dtype)).all():
            raise UserError(
                f"{delta.a.file}: merged into {name} it gives infinite or undefined numbers ({stored.dtype}): the training "
                "diverged, or one of the files is damaged"
            )
    return out


def _floats(rows: Rows, dtype: str) -> npt.NDArray[Any]:
    """Bytes of [rows, bytes] as numbers of [rows, columns]: fp32, or fp64 for F64."""
    raw = np.ascontiguousarray(rows)
    if dtype == "BF16":  # numpy lacks it: the upper half of an fp32
        return (raw.view("<u2").astype("<u4") << 16).view("<f4")
    values: npt.NDArray[Any] = raw.view({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype])
    return values.astype("<f4") if dtype == "F16" else values


def _rounded(values: npt.NDArray[Any], dtype: str) -> Rows:
    """Numbers of [rows, columns] as bytes of [rows, bytes], rounded to the nearest, ties to even."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, "<f4").view("<u4")
        return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)
    with np.errstate(over="ignore"):  # F16's infinities are found by whoever reads the result
        return values.astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype]).view(np.uint8)
