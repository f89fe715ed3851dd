"""LoRA adapters trained on InternLM2, for the same model in Llama layout.

A LoRA adds scale·B·A to a weight. Reordering rows of the weight reorders the rows of B and leaves A unchanged, so the query,
key and value projections share the A of `wqkv` and get their rows of its B, with the same rank and alpha. The conversion is
exact, and so is its inverse for projections that were trained with a common A (`fused_qkv` in a ranker's recipe).
"""

import re
from pathlib import Path
from typing import Any

from core.errors import UserError, need_modules
from core.files import read_object, write_json, write_text
from serve.checkpoints.folders import build_folder, folder_content
from serve.checkpoints.internlm2 import LINEAR, QKV, Architecture, Heads, read_architecture
from serve.checkpoints.lora import CONFIG, WEIGHTS, adapter_rank, check_plain, module_pairs, module_scales
from serve.checkpoints.tensors import Stored, stored_tensors, write_tensors

ADAPTER_CONVERSION = 2  # raise it when the conversion changes what it writes
_MODULE = re.compile(rf"model\.layers\.\d+\.({'|'.join(map(re.escape, ['attention.wqkv', *LINEAR]))})")


def convert_adapter(src: Path, dst: Path, base: Path) -> bool:
    """Write the LoRA adapter folder `src` (PEFT, on wqkv, wo, w1, w2 or w3) to `dst` with Llama's names; False if that was done
    before.

    `base` is the base's config.json or its folder, in either layout: it determines the grouping of the rows of `wqkv`. Raises
    `UserError`, and leaves nothing, for adapters that are half written or not plain LoRA, and sizes that do not fit.
    """
    need_modules("torch", purpose="converting an adapter")
    adapter_rank(src, "InternLM2 adapter")
    config = read_object(src / CONFIG, "an adapter's config")
    check_plain(src / CONFIG, config)
    modules = module_pairs(src / WEIGHTS)
    if foreign := sorted(module for module in modules if not _MODULE.fullmatch(module)):
        raise UserError(f"{src / WEIGHTS}: not LoRA on InternLM2's layers: {', '.join(foreign[:3])} ({len(foreign)} in all)")
    targets, present = config.get("target_modules"), {_kind(module) for module in modules}
    # target_modules may also be a pattern, which may match more
    if isinstance(targets, list) and (named := {_kind(str(target)) for target in targets}) != present:
        names, has = ", ".join(sorted(named)), ", ".join(sorted(present))
        raise UserError(f"{src / CONFIG}: target_modules: names {names}, but the weights are for {has}")
    facts = read_architecture(base / "config.json" if base.is_dir() else base, ("internlm2", "llama"))
    heads = _heads(src / WEIGHTS, modules, facts)
    scales = module_scales(src / CONFIG, config, modules)

    def build(target: Path) -> None:
        tensors: dict[str, Any] = {}
        ranks, alphas = dict[str, int](), dict[str, float]()  # of Llama's modules
        qkv = [(f"self_attn.{name}", part) for part, name in enumerate(QKV)]
        for module, pair in modules.items():
            _, _, number, old = module.split(".", 3)
            for new, part in qkv if _kind(module) == "wqkv" else [(LINEAR[old], None)]:
                name = f"model.layers.{number}.{new}"
                ranks[name], alphas[name] = scales[module]
                tensors[f"base_model.model.{name}.lora_A.weight"] = heads.split(pair["A"].load(), None)
                tensors[f"base_model.model.{name}.lora_B.weight"] = heads.split(pair["B"].load(), part)
        write_tensors(target / WEIGHTS, tensors)
        # null: fields that refer to InternLM2's classes
        fields: dict[str, Any] = dict.fromkeys(("exclude_modules", "layers_to_transform", "layers_pattern", "auto_mapping"))
        fields["target_modules"] = sorted(ranks)
        fields["rank_pattern"] = {re.escape(name): rank for name, rank in ranks.items() if rank != config["r"]}
        fields["alpha_pattern"] = {re.escape(name): alpha for name, alpha in alphas.items() if alpha != config["lora_alpha"]}
        write_json(target / CONFIG, config | fields)
        trained_on = str(config.get("base_model_name_or_path") or "an InternLM2 model")[:200]
        fits = f"Trained on `{trained_on}`. It fits that model in Llama layout, as `python -m serve convert` writes it."
        write_text(target / "README.md", f"# LoRA adapter, converted\n\n{fits}\n")

    made_from = {
        "conversion": "internlm2-adapter",
        "version": ADAPTER_CONVERSION,
        "source": folder_content(src),
        "base": facts.model_dump(mode="json"),
    }
    return build_folder(dst, src, made_from, build)


def write_fused(adapter: Path, folder: Path, heads: Heads) -> None:
    """Write an adapter on q_proj, k_proj and v_proj in Llama layout as one on InternLM2's `wqkv`, like the published ones.
    Raises `UserError` if the three have different As: no LoRA on `wqkv` is equivalent then."""
    pairs, tensors = module_pairs(adapter / WEIGHTS), dict[str, Any]()
    for module in pairs:
        if (layer := module.removesuffix(f".self_attn.{QKV[0]}")) != module:
            parts = [{side: pairs[f"{layer}.self_attn.{name}"][side].load() for side in "AB"} for name in QKV]
            if any((part["A"] != parts[0]["A"]).any() for part in parts):
                raise UserError(f"{adapter / WEIGHTS}: {', '.join(QKV)} of {layer} have different As; wqkv has only one")
            named = f"base_model.model.{layer}.attention.wqkv.lora_"
            tensors |= {f"{named}A.weight": parts[0]["A"], f"{named}B.weight": heads.join([part["B"] for part in parts])}
    folder.mkdir()
    write_tensors(folder / WEIGHTS, tensors)
    write_json(folder / CONFIG, read_object(adapter / CONFIG, "an adapter's config") | {"target_modules": ["wqkv"]})


def on_internlm2(adapter: Path) -> bool:
    """Whether a complete adapter folder (see `adapter_rank`) adapts layers that only InternLM2's layout has."""
    return any(_MODULE.search(name) for name in stored_tensors([adapter / WEIGHTS]))


def _kind(module: str) -> str:
    return module.rpartition(".")[2]


def _heads(path: Path, modules: dict[str, dict[str, Stored]], facts: Architecture) -> Heads:
    """The grouping of `wqkv` in a base. Raises `UserError` if its sizes do not fit every module."""
    heads = Heads(facts.num_attention_heads, facts.kv_heads, facts.head_dim)
    hidden, inner = facts.hidden_size, facts.intermediate_size
    sizes = {"wqkv": (heads.rows, hidden), "wo": (hidden, hidden), "w2": (hidden, inner)}
    for module, pair in sorted(modules.items()):
        fits = sizes.get(_kind(module), (inner, hidden))
        size = (pair["B"].shape[0], pair["A"].shape[1])
        if size != fits or int(module.split(".")[2]) >= facts.num_hidden_layers:
            has = f"{fits[0]} × {fits[1]} in {facts.num_hidden_layers} layers"
            raise UserError(f"{path}: adapter and base do not fit: {module} is {size[0]} × {size[1]}, the base has {has}")
    return heads
