"""LoRA adapters as files: their ranks and matrices, and whether they are plain, that is, only add scale·B·A to weight matrices.

Only plain adapters can be merged or converted exactly, and only they are served by vLLM.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import UserError, at
from core.files import read_object
from serve.checkpoints.tensors import Stored, check_finite, safetensors_problem, stored_tensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's values for --max-lora-rank
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# Fields of an adapter's config that may be set for a plain LoRA: how training began and where the adapter came from. Any other
# field could change the computation.
PLAIN_FIELDS = {
    *("peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision", "inference_mode", "r", "target_modules"),
    *("exclude_modules", "lora_alpha", "lora_dropout", "bias", "use_rslora", "init_lora_weights", "layers_to_transform"),
    *("layers_pattern", "rank_pattern", "alpha_pattern", "megatron_core", "loftq_config", "eva_config", "corda_config"),
    *("lora_ga_config", "qalora_group_size", "runtime_config", "auto_mapping"),
    *("lora_dtype", "lorap_lr_ratio", "lorap_emb_lr"),  # ms-swift's, about its optimiser
}
PLAIN_INITS = {"gaussian", "eva", "orthogonal", "mica", "lora_ga"}  # the others change the base's weights, too


def lora_rank_limit(rank: int) -> int:
    """The smallest --max-lora-rank of vLLM for an adapter of this rank. Raises `UserError` above 512 or below 1."""
    if not 1 <= rank <= LORA_RANKS[-1]:
        raise UserError(f"adapter rank unsupported: {rank}; vLLM serves ranks from 1 to {LORA_RANKS[-1]}")
    return min(limit for limit in LORA_RANKS if rank <= limit)


def adapter_rank(folder: Path, what: str = "adapter") -> int:
    """The largest LoRA rank in an adapter folder. Raises `UserError` unless it is complete, finite and servable by vLLM."""
    config_file, weights = folder / CONFIG, folder / WEIGHTS
    if not weights.is_file() and (pickle := folder / "adapter_model.bin").is_file():
        raise UserError(f"{what} refused: {pickle} is a pickle, which can run code; save it as {WEIGHTS} if you trust it")
    for path in (config_file, weights):
        if not path.is_file():
            raise UserError(f"{what} missing or half written: {folder} has no {path.name}")
    if (problem := safetensors_problem(weights)) is not None:
        raise UserError(f"{what} half written: {weights} {problem}; copy or train it again")
    try:
        config = read_object(config_file, "an adapter's config")
        rank = max([int(config["r"]), *(config.get("rank_pattern") or {}).values()])
    except (UserError, KeyError, TypeError, ValueError):
        raise UserError(f"{config_file}: r: not a LoRA adapter's config; expected PEFT's JSON with the rank in r") from None
    with at(f"{config_file}: r"):
        lora_rank_limit(rank)
    check_finite([weights], what)
    return int(rank)


def check_plain(path: Path, config: dict[str, Any]) -> None:
    """Raise `UserError` unless an adapter's config describes a plain LoRA, which only adds scale·B·A to weight matrices."""
    if config.get("peft_type") != "LORA":
        raise UserError(f"{path}: peft_type: LORA expected, got {config.get('peft_type')!r}")
    if problem := more_than_plain(config):
        raise UserError(f"{path}: {problem}")


def more_than_plain(config: Mapping[str, Any]) -> str | None:
    """The setting by which a LoRA's config is not a plain one, and what to do; None for a plain one."""
    if config.get("bias") not in {None, "none"}:
        return f"bias: {config['bias']!r}: trained biases cannot be served by vLLM; train with bias none"
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        plain = ", ".join(sorted(PLAIN_INITS))
        return f"init_lora_weights: {init!r} also changes the base's weights: train with true or one of {plain}"
    if field := next((field for field in sorted(set(config) - PLAIN_FIELDS) if config[field]), None):
        return f"{field}: {str(config[field])[:60]} is more than a plain LoRA on weight matrices: train the adapter without it"
    return None


def module_pairs(path: Path) -> dict[str, dict[str, Stored]]:
    """The matrices `A` and `B` of each adapted module, by the module's path (`model.layers.0.self_attn.q_proj`). Raises
    `UserError` for a file with other tensors, without tensors, or with half of a pair."""
    modules: dict[str, dict[str, Stored]] = {}
    foreign = []
    for name, stored in stored_tensors([path]).items():
        match = _NAME.fullmatch(name)
        if match is None or len(stored.shape) != 2:
            foreign.append(name)
        else:
            modules.setdefault(match[1], {})[match[2]] = stored
    if foreign:
        names = f"{', '.join(sorted(foreign)[:3])} ({len(foreign)} in all)"
        raise UserError(f"{path}: more than lora_A and lora_B of linear layers: {names}: train the adapter without them")
    if not modules:
        raise UserError(f"{path}: no tensors")
    for module, pair in modules.items():
        if missing := {"A", "B"} - set(pair):
            raise UserError(f"{path}: {module} has no lora_{missing.pop()}: the adapter is half written")
    return modules


def module_scales(path: Path, config: dict[str, Any], modules: dict[str, dict[str, Stored]]) -> dict[str, tuple[int, float]]:
    """Rank and alpha of each module, by PEFT's rule: the first pattern that matches the end of the path, else the default.
    Raises `UserError` for a config without these, and for matrices whose rank differs from the config's."""

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
