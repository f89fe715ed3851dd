"""LoRA adapters trained on InternLM2, for the same model in Llama layout.

A LoRA adds scale·B·A to a weight. Reordering rows of the weight reorders rows of B and leaves A alone, so the query, key and
value projections share the A of `wqkv` and get their rows of its B; rank and alpha stay. The result is exact.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from serve.embedded import safetensors_problem
from serve.errors import UserError
from serve.files import write_json, write_text
from serve.folders import Planned, Stored, build_folder, folder_content, read_object, stored_tensors, write_tensors
from serve.internlm2 import LINEAR, QKV, Architecture, Heads, planned_tensor, read_architecture
from serve.merge import adapter_rank

ADAPTER_CONVERSION = 1  # raise it when the conversion changes what it writes
HEAD_DIM = 128  # of every published InternLM2 (1.8B, 7B, 20B)
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.)((?:attention|feed_forward)\.\w+)\.lora_([AB])\.weight")
# What a config may say beside plain LoRA: how training began and where the adapter came from. Anything else that is set could
# change what the adapter computes.
_HARMLESS = {
    *("peft_type", "peft_version", "task_type", "base_model_name_or_path", "revision", "inference_mode", "r", "target_modules"),
    *("exclude_modules", "lora_alpha", "lora_dropout", "bias", "use_rslora", "init_lora_weights", "layers_to_transform"),
    *("layers_pattern", "rank_pattern", "alpha_pattern", "megatron_core", "loftq_config", "eva_config", "corda_config"),
    *("lora_ga_config", "qalora_group_size", "runtime_config", "auto_mapping"),
    *("lora_dtype", "lorap_lr_ratio", "lorap_emb_lr"),  # ms-swift's, about its optimiser
}
_PLAIN_INITS = {"gaussian", "eva", "orthogonal", "mica", "lora_ga"}  # the others change the base's weights, too


def convert_adapter(src: Path, dst: Path, base: Path | None = None) -> bool:
    """Write the LoRA adapter folder `src` (PEFT's, on wqkv, wo, w1, w2 or w3) to `dst` with Llama's names; False when that was
    done before.

    `base` is the base's config.json or its folder, in either layout; it tells how the rows of `wqkv` are grouped, and the
    adapter's sizes are checked against it. Without it a head is 128 wide.

    Raises `UserError`, and leaves nothing, for pickled or half-written adapters; for what vLLM does not serve (DoRA, biases,
    modules_to_save, inits that change the base, ranks above 512); for other modules; and when sizes do not fit.
    """
    if not (src / WEIGHTS).is_file() and (src / "adapter_model.bin").is_file():
        raise UserError(
            f"InternLM2 adapter refused: {src / 'adapter_model.bin'} is a pickle, which can run code when it is loaded; save "
            "it as adapter_model.safetensors where you trust it"
        )
    adapter_rank(src, "InternLM2 adapter")
    config = read_object(src / CONFIG, "an adapter's config")
    _check_plain(src / CONFIG, config)
    modules = _modules(src / WEIGHTS)
    _check_targets(src / CONFIG, config, modules)
    facts = read_architecture(_config_file(base), ("internlm2", "llama")) if base is not None else None
    heads = _heads(src / WEIGHTS, modules, facts)
    scales = _scales(src / CONFIG, config, modules)

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


def _config_file(base: Path) -> Path:
    return base / "config.json" if base.is_dir() else base


def _check_plain(path: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise UserError(f"{path}: peft_type: LORA expected, got {config.get('peft_type')!r}")
    if config.get("bias") not in {None, "none"}:
        raise UserError(f"{path}: bias: {config['bias']!r}: trained biases cannot be served by vLLM; train with bias none")
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in _PLAIN_INITS:
        raise UserError(
            f"{path}: init_lora_weights: {init!r} also changes the base's weights; convert it to a plain LoRA with PEFT's "
            "path_initial_model_for_weight_conversion first"
        )
    for field in sorted(set(config) - _HARMLESS):
        if config[field]:
            raise UserError(
                f"{path}: {field}: {str(config[field])[:60]} is more than a plain LoRA on weight matrices: it can neither be "
                "converted nor served by vLLM; train the adapter without it"
            )


def _modules(path: Path) -> dict[str, dict[str, Stored]]:
    """The A and B of each adapted module, by the module's path in InternLM2 (`model.layers.0.attention.wqkv`)."""
    if (problem := safetensors_problem(path)) is not None:
        raise UserError(f"InternLM2 adapter half written: {path} {problem}; copy or train it again")
    modules: dict[str, dict[str, Stored]] = defaultdict(dict)
    foreign = []
    for name, stored in stored_tensors([path]).items():
        found = _NAME.fullmatch(name)
        if found is None or found[3] not in {"attention.wqkv", *LINEAR} or len(stored.shape) != 2:
            foreign.append(name)
        else:
            modules[found[1] + found[3]][found[4]] = stored
    if foreign:
        raise UserError(
            f"{path}: not a LoRA on InternLM2's wqkv, wo, w1, w2, w3: {', '.join(sorted(foreign)[:3])} ({len(foreign)} in all)"
        )
    if not modules:
        raise UserError(f"{path}: no tensors in it")
    for module, pair in modules.items():
        if missing := {"A", "B"} - set(pair):
            raise UserError(f"{path}: {module} has no lora_{missing.pop()}: the adapter is half written")
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


def _scales(path: Path, config: dict[str, Any], modules: dict[str, dict[str, Stored]]) -> dict[str, tuple[int, float]]:
    """Rank and alpha of each module, by PEFT's rule: the first pattern that matches the end of the path, else the default."""

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


def _outputs(modules: dict[str, dict[str, Stored]], heads: Heads) -> tuple[list[Planned], dict[str, str]]:
    """The tensors to write, and for each of Llama's modules the one it comes from."""
    planned: list[Planned] = []
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
    everywhere = not chosen_layers and all(len(found) == layers for found in kinds.values())
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
    short = {kind: found.copy().pop() for kind, found in sorted(by_kind.items()) if len(found) == 1}
    long = {re.escape(name): value for name, value in values.items() if _kind(name) not in short}
    return {key: value for key, value in {**short, **long}.items() if value != default}


def _note(config: dict[str, Any], heads: Heads) -> str:
    base = str(config.get("base_model_name_or_path") or "an InternLM2 model")[:200]
    return (
        "# LoRA adapter, converted\n\n"
        f"Trained on `{base}`, which `base_model_name_or_path` still names.\n"
        "It now fits that model in Llama layout, as `python -m serve convert-internlm2` writes it, not the original.\n"
        f"Rows of wqkv were regrouped for {heads.heads} heads, {heads.kv_heads} key/value heads, head width {heads.head_dim}.\n"
    )
