"""LoRA adapters: what can be served, and merging one into a copy of its base.

On GPUs vLLM serves many adapters beside one base. On CPU that path runs several times slower than a plain model, so there an
adapter is merged into its own copy of the (small) base.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from serve.embedded import build_once, cache_dir, check_checkpoint, need_modules, safetensors_problem
from serve.errors import UserError
from serve.files import digest, sha256_file
from serve.specs import ModelSpec

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the values vLLM takes for --max-lora-rank
MERGE = 1  # raise it when the merge below changes what it writes


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
    config_file, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
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


def merged(spec: ModelSpec, checkpoint: Path, adapter: Path) -> Path:
    """A copy of `checkpoint` with `adapter` merged in, as a safetensors folder with the base's tokenizer, in the cache.

    The folder is named by the content of both, so a retrained adapter gets a new one. Merged in fp32 and rounded once to the
    base's own dtype (peak memory: the base at four bytes a weight).

    Raises `UserError` when either folder is missing or half written, or PEFT is not installed.
    """
    check_checkpoint(checkpoint, f"model {spec.name}: checkpoint")
    adapter_rank(adapter, f"model {spec.name}: adapter")
    folder, made_from = merged_folder(checkpoint, adapter)
    return build_once(
        folder, made_from, lambda target: _merge(spec, checkpoint, adapter, target), f"{spec.name}: {adapter.name} merged"
    )


def merged_folder(checkpoint: Path, adapter: Path) -> tuple[Path, dict[str, Any]]:
    """Where `merged` puts its copy of two existing folders, whether or not it is there yet, and what identifies it."""
    made_from = {"merge": MERGE, "base": _content(checkpoint), "adapter": _content(adapter)}
    return cache_dir() / f"merged-{digest(made_from, 16)}", made_from


def _content(folder: Path) -> str:
    """One hash over a folder's weights, configs and tokenizer files."""
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json"), *folder.glob("*.jinja")])
    return digest([[path.name, sha256_file(path)] for path in files])


def _merge(spec: ModelSpec, checkpoint: Path, adapter: Path, target: Path) -> None:
    need_modules("torch", "transformers", "peft", purpose="merging an adapter")
    import torch
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    trust = spec.serve.trust_remote_code
    dtype = getattr(AutoConfig.from_pretrained(checkpoint, trust_remote_code=trust), "dtype", None) or torch.float32
    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, trust_remote_code=trust)
    model = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    model.to(dtype).save_pretrained(target)
    # The base's tokenizer, as vLLM uses it when it serves the adapter unmerged: both ways must prompt alike.
    AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=trust).save_pretrained(target)
