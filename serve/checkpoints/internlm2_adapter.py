"""LoRA adapters trained on InternLM2, for the same model in Llama layout.

A LoRA adds scale·B·A to a weight. Reordering rows of the weight reorders rows of B and leaves A alone, so the query, key and
value projections share the A of `wqkv` and get their rows of its B; rank and alpha stay. The result is exact.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import read_object, write_json, write_text
from serve.checkpoints.folders import build_folder, folder_content
from serve.checkpoints.internlm2 import LINEAR, QKV, Architecture, Heads, planned_tensor, read_architecture
from serve.checkpoints.lora import CONFIG, WEIGHTS, adapter_rank, check_plain, module_pairs, module_scales
from serve.checkpoints.tensors import PlannedTensor, Stored, stored_tensors, write_tensors

ADAPTER_CONVERSION = 1  # raise it when the conversion changes what it writes
HEAD_DIM = 128  # of every published InternLM2 (1.8B, 7B, 20B)
_MODULE = re.compile(rf"model\.layers\.\d+\.({'|'.join(map(re.escape, ['attention.wqkv', *LINEAR]))})")


def convert_adapter(src: Path, dst: Path, base: Path | None = None) -> bool:
    """Write the LoRA adapter folder `src` (PEFT's, on wqkv, wo, w1, w2 or w3) to `dst` with Llama's names; False when that was
    done before.

    `base` is the base's config.json or its folder, in either layout; it tells how the rows of `wqkv` are grouped, and the
    adapter's sizes are checked against it. Without it a head is 128 wide.

    Raises `UserError`, and leaves nothing, for pickled or half-written adapters; for what vLLM does not serve (DoRA, biases,
    modules_to_save, inits that change the base, ranks above 512); for other modules; and when sizes do not fit.
    """
    adapter_rank(src, "InternLM2 adapter")
    config = read_object(src / CONFIG, "an adapter's config")
    check_plain(src / CONFIG, config)
    modules = _modules(src / WEIGHTS)
    _check_targets(src / CONFIG, config, modules)
    if base is not None and base.is_dir():
        base /= "config.json"
    facts = read_architecture(base, ("internlm2", "llama")) if base is not None else None
    heads = _heads(src / WEIGHTS, modules, facts)
    scales = module_scales(src / CONFIG, config, modules)

    def build(target: Path) -> None:
        outputs, renamed = _outputs(modules, heads)
        write_tensors(target / WEIGHTS, sorted(outputs, key=lambda tensor: tensor.name))
        write_json(target / CONFIG, _llama_config(config, renamed, scales, facts))
        write_text(target / "README.md", _note(config, heads))

    made_from = {
        "conversion": "internlm2-adapter",
        "version": ADAPTER_CONVERSION,
        "source": folder_content(src),
        "base": facts.model_dump(mode="json") if facts else None,
    }
    return build_folder(dst, src, made_from, build)


def on_internlm2(adapter: Path) -> bool:
    """Whether a whole adapter folder (see `adapter_rank`) adapts layers that only InternLM2's layout has."""
    return any(_MODULE.search(name) for name in stored_tensors([adapter / WEIGHTS]))


def _modules(path: Path) -> dict[str, dict[str, Stored]]:
    """The A and B of each adapted module, by the module's path in InternLM2 (`model.layers.0.attention.wqkv`)."""
    modules = module_pairs(path)
    if foreign := sorted(module for module in modules if not _MODULE.fullmatch(module)):
        raise UserError(
            f"{path}: not a LoRA on InternLM2's wqkv, wo, w1, w2, w3: {', '.join(foreign[:3])} ({len(foreign)} modules in all)"
        )
    return dict(sorted(modules.items(), key=lambda item: _order(item[0])))


def _order(module: str) -> tuple[int, str]:
    return int(module.split(".")[2]), module


def _kind(module: str) -> str:
    return module.rpartition(".")[2]


def _check_targets(path: Path, config: dict[str, Any], modules: dict[str, Any]) -> None:
    """A list in target_modules has to name what the file holds; a pattern is not checked."""
    targets, present = config.get("target_modules"), {_kind(module) for module in modules}
    if isinstance(targets, list) and (named := {_kind(str(target)) for target in targets}) != present:
        raise UserError(
            f"{path}: target_modules: names {', '.join(sorted(named))}, but the weights are for {', '.join(sorted(present))}"
        )


def _heads(path: Path, modules: dict[str, dict[str, Stored]], facts: Architecture | None) -> Heads:
    """How `wqkv` is grouped: as the base says, whose sizes must fit every module, else by heads of `HEAD_DIM`."""
    if facts is None:
        return _assumed_heads(path, modules)
    heads = Heads(facts.num_attention_heads, facts.kv_heads, facts.head_dim)
    hidden, inner = facts.hidden_size, facts.intermediate_size
    sizes = {"wqkv": (heads.rows, hidden), "wo": (hidden, hidden), "w2": (hidden, inner)}
    for module, pair in modules.items():
        fits = sizes.get(_kind(module), (inner, hidden))
        size = (pair["B"].shape[0], pair["A"].shape[1])
        if size != fits or _order(module)[0] >= facts.num_hidden_layers:
            raise UserError(
                f"{path}: adapter and base do not fit: {module} is {size[0]} × {size[1]}, the base has {fits[0]} × {fits[1]} "
                f"in {facts.num_hidden_layers} layers"
            )
    return heads


def _assumed_heads(path: Path, modules: dict[str, dict[str, Stored]]) -> Heads:
    sizes = {(pair["B"].shape[0], pair["A"].shape[1]) for module, pair in modules.items() if _kind(module) == "wqkv"}
    if not sizes:
        return Heads(1, 1, HEAD_DIM)  # nothing to regroup
    (rows, hidden), *others = sorted(sizes)
    kv_heads = (rows - hidden) // 2 // HEAD_DIM
    heads = Heads(hidden // HEAD_DIM, kv_heads, HEAD_DIM)
    if others or kv_heads < 1 or heads.rows != rows or hidden % HEAD_DIM or heads.heads % kv_heads:
        raise UserError(
            f"{path}: wqkv of {rows} × {hidden} does not divide into heads of {HEAD_DIM}: give the base with --base"
        )
    return heads


def _outputs(modules: dict[str, dict[str, Stored]], heads: Heads) -> tuple[list[PlannedTensor], dict[str, str]]:
    """The tensors to write, and for each of Llama's modules the one it comes from."""
    planned: list[PlannedTensor] = []
    renamed: dict[str, str] = {}
    for module, pair in modules.items():
        layer, old = module.split(".attention.")[0].split(".feed_forward.")[0], module.split(".", 3)[3]
        parts = (
            [(f"self_attn.{name}", part) for part, name in enumerate(QKV)] if _kind(module) == "wqkv" else [(LINEAR[old], None)]
        )
        for new, part in parts:
            name = f"{layer}.{new}"
            renamed[name] = module
            a, b = pair["A"], pair["B"]
            rows = b.shape[0] if part is None else heads.out(part)
            planned.append(planned_tensor(f"base_model.model.{name}.lora_A.weight", a.shape, a, heads, None))
            planned.append(planned_tensor(f"base_model.model.{name}.lora_B.weight", (rows, b.shape[1]), b, heads, part))
    return planned, renamed


def _llama_config(
    config: dict[str, Any], renamed: dict[str, str], scales: dict[str, tuple[int, float]], facts: Architecture | None
) -> dict[str, Any]:
    """The adapter's config for Llama's modules.

    Modules are named by kind (`q_proj`) when every layer has the same ones, else by path.
    """
    kinds: dict[str, set[int]] = defaultdict(set)
    for name in renamed:
        kinds[_kind(name)].add(_order(name)[0])
    layers = facts.num_hidden_layers if facts else max(map(max, kinds.values())) + 1
    chosen_layers = facts is None and config.get("layers_to_transform") is not None
    everywhere = not chosen_layers and all(len(numbers) == layers for numbers in kinds.values())
    return config | {
        "target_modules": sorted(kinds if everywhere else renamed),
        "exclude_modules": None,
        "layers_to_transform": None,
        "layers_pattern": None,
        "rank_pattern": _pattern({name: scales[old][0] for name, old in renamed.items()}, config["r"]),
        "alpha_pattern": _pattern({name: scales[old][1] for name, old in renamed.items()}, config["lora_alpha"]),
        "auto_mapping": None,  # it would name the class of the original model
    }


def _pattern(values: dict[str, Any], default: Any) -> dict[str, Any]:
    """PEFT's per-module overrides: by kind where a kind has one value, by path otherwise."""
    by_kind: dict[str, set[Any]] = defaultdict(set)
    for name, value in values.items():
        by_kind[_kind(name)].add(value)
    short = {kind: next(iter(several)) for kind, several in sorted(by_kind.items()) if len(several) == 1}
    long = {re.escape(name): value for name, value in values.items() if _kind(name) not in short}
    return {key: value for key, value in {**short, **long}.items() if value != default}


def _note(config: dict[str, Any], heads: Heads) -> str:
    base = str(config.get("base_model_name_or_path") or "an InternLM2 model")[:200]
    return (
        "# LoRA adapter, converted\n\n"
        f"Trained on `{base}`, which `base_model_name_or_path` still names.\n"
        "It now fits that model in Llama layout, as `python -m serve convert` writes it, not the original.\n"
        f"Rows of wqkv were regrouped for {heads.heads} heads, {heads.kv_heads} key/value heads, head width {heads.head_dim}.\n"
    )
