"""InternLM2 checkpoints, and LoRA adapters trained on them, in Llama layout.

Current transformers has no InternLM2, and cannot load the code beside the published weights. The model computes the same as
Llama; only names differ, and one matrix: for each key/value head, `attention.wqkv` has the query heads that share it, then the
key head, then the value head. The conversion renames tensors and reorders rows, file by file, without rounding.

A LoRA adds scale·B·A to a weight. Reordering rows of the weight reorders the rows of B and leaves A unchanged, so the query,
key and value projections share the A of `wqkv` and get their rows of its B, with the same rank and alpha. The conversion is
exact, and so is its inverse for projections that were trained with a common A (`fused_qkv` in a ranker's recipe).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from core.errors import UserError, need_modules
from core.files import read_object, validated, write_json, write_text
from serve.checkpoints.folders import build_folder, folder_content
from serve.checkpoints.lora import CONFIG, adapter_rank, check_plain, module_pairs, module_scales
from serve.checkpoints.lora import WEIGHTS as ADAPTER
from serve.checkpoints.sentencepiece import convert_tokenizer
from serve.checkpoints.tensors import INDEX, WEIGHTS, Stored, check_checkpoint, stored_tensors, weight_files, write_tensors

CONVERSION = 1  # raise it when the conversion changes what it writes
QKV = ("q_proj", "k_proj", "v_proj")
# Linear layers other than `wqkv`, and norms: InternLM2's name within a layer → Llama's.
LINEAR = {
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
}
NORMS = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Heads:
    """The grouping of the rows of `wqkv`."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def rows(self) -> int:
        """Rows of `wqkv`."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def split(self, rows: Any, part: int | None) -> Any:
        """The rows [n, …] of the query (0), key (1) or value (2) projection in Llama's order, from a tensor with the rows of
        `wqkv`; all rows for None. Always a copy, since safetensors refuses shared memory."""
        if part is None:
            return rows.clone()
        groups = rows.reshape(self.kv_heads, self.heads // self.kv_heads + 2, self.head_dim, *rows.shape[1:])
        chosen = groups[:, :-2] if part == 0 else groups[:, part - 3]
        return chosen.reshape(-1, *rows.shape[1:]).clone()

    def join(self, parts: Sequence[Any]) -> Any:
        """The rows of `wqkv` from those of the query, key and value projections: the inverse of `split`."""
        import torch

        groups = [rows.reshape(self.kv_heads, -1, self.head_dim, *rows.shape[1:]) for rows in parts]
        return torch.cat(groups, 1).reshape(-1, *parts[0].shape[1:])

    def out(self, part: int) -> int:
        """Rows of the query (0), key (1) or value (2) projection."""
        return (self.kv_heads if part else self.heads) * self.head_dim


class Architecture(BaseModel):
    """The fields of an InternLM2 config.json that matter to its forward pass or its users, with InternLM2's defaults.

    `bias` is that of wqkv and wo; the feed-forward layers have none. `rope_scaling` stretches positions linearly, or
    dynamically beyond `max_position_embeddings`.
    """

    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int | None = Field(None, gt=0)
    hidden_act: Literal["silu"] = "silu"
    max_position_embeddings: int = Field(2048, gt=0)
    initializer_range: float = 0.02
    rms_norm_eps: float = Field(1e-6, gt=0)
    tie_word_embeddings: bool = False
    bias: bool = True
    rope_theta: float = Field(10000, gt=0)
    rope_scaling: dict[str, Any] | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = None
    use_cache: bool = True

    @property
    def heads(self) -> Heads:
        """The heads, by default as many for keys and values as for queries."""
        count = self.num_attention_heads
        return Heads(count, self.num_key_value_heads or count, self.hidden_size // count)


def read_architecture(path: Path, model_types: tuple[str, ...] = ("internlm2",)) -> Architecture:
    """The architecture in a config.json. Raises `UserError` for other model types, a model without a language-modelling head,
    quantised weights, missing or impossible sizes, and position scalings that InternLM2 lacks."""
    config = read_object(path, "a model's config")
    if config.get("model_type") not in model_types:
        expected = " or ".join(model_types)
        raise UserError(f"{path}: model_type: {expected} expected, got {config.get('model_type')!r}, which needs no conversion")
    heads = config.get("architectures") or []
    if heads and not any(str(name).endswith("ForCausalLM") for name in heads):
        raise UserError(f"{path}: architectures: only a causal language model can be converted, got {heads}")
    if config.get("quantization_config"):
        raise UserError(f"{path}: quantization_config: quantised weights cannot be regrouped; convert the original checkpoint")
    if isinstance(rope := config.get("rope_parameters"), dict):  # transformers 5 writes both fields as one
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        config |= {"rope_theta": rope.get("rope_theta", 10000), "rope_scaling": scaling}
    facts = validated(Architecture, config, path)
    if facts.hidden_size % facts.num_attention_heads or facts.num_attention_heads % facts.heads.kv_heads:
        sizes = f"hidden_size {facts.hidden_size} and num_key_value_heads {facts.heads.kv_heads}"
        raise UserError(f"{path}: num_attention_heads: {facts.num_attention_heads} heads do not fit {sizes}")
    rope_parameters(facts, path)
    return facts


def rope_parameters(facts: Architecture, path: Path) -> dict[str, Any]:
    """Rotary position settings with transformers 5's names: `rope_theta`, `rope_type`, and `factor` (≥ 1) if scaled."""
    scaling = facts.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type")) or "default"
    if kind == "default":
        return {"rope_theta": facts.rope_theta, "rope_type": "default"}
    if kind not in {"linear", "dynamic"}:
        raise UserError(f"{path}: rope_scaling: type: expected linear or dynamic (InternLM2's), got {kind!r}")
    factor = scaling.get("factor")
    if not isinstance(factor, int | float) or isinstance(factor, bool) or factor < 1:
        raise UserError(f"{path}: rope_scaling: factor: expected a number of at least 1, got {factor!r}")
    return {"rope_theta": facts.rope_theta, "rope_type": kind, "factor": float(factor)}


def llama_config(facts: Architecture, dtype: str, path: Path) -> dict[str, Any]:
    """The equivalent config.json of LlamaForCausalLM."""
    shared = facts.model_dump(exclude={"bias", "rope_theta", "rope_scaling", "num_key_value_heads"})
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **shared,
        "num_key_value_heads": facts.heads.kv_heads,
        "head_dim": facts.heads.head_dim,
        "attention_bias": facts.bias,
        "mlp_bias": False,
        "dtype": dtype,
        "rope_parameters": rope_parameters(facts, path),
        "rope_theta": facts.rope_theta,  # programs older than `rope_parameters` would silently use 10,000
    }


def tensor_plan(facts: Architecture) -> Iterator[tuple[str, tuple[int, ...], list[tuple[str, tuple[int, ...], int | None]]]]:
    """For each tensor of the source, its name and shape, and the tensors it becomes: (name, shape, part of wqkv or None)."""
    hidden, inner, bias = facts.hidden_size, facts.intermediate_size, facts.bias
    heads = facts.heads
    shapes = {"attention.wo": (hidden, hidden), "feed_forward.w2": (hidden, inner)}
    vocabulary = (facts.vocab_size, hidden)
    yield "model.tok_embeddings.weight", vocabulary, [("model.embed_tokens.weight", vocabulary, None)]
    for number in range(facts.num_hidden_layers):
        layer = f"model.layers.{number}"
        for kind, columns in [("weight", (hidden,)), ("bias", ())][: 1 + bias]:
            parts = [(f"{layer}.self_attn.{name}.{kind}", (heads.out(part), *columns), part) for part, name in enumerate(QKV)]
            yield f"{layer}.attention.wqkv.{kind}", (heads.rows, *columns), [*parts]
        if bias:
            yield f"{layer}.attention.wo.bias", (hidden,), [(f"{layer}.self_attn.o_proj.bias", (hidden,), None)]
        for old, new in LINEAR.items():
            shape = shapes.get(old, (inner, hidden))
            yield f"{layer}.{old}.weight", shape, [(f"{layer}.{new}.weight", shape, None)]
        for old, new in NORMS.items():
            yield f"{layer}.{old}.weight", (hidden,), [(f"{layer}.{new}.weight", (hidden,), None)]
    yield "model.norm.weight", (hidden,), [("model.norm.weight", (hidden,), None)]
    if not facts.tie_word_embeddings:
        yield "output.weight", vocabulary, [("lm_head.weight", vocabulary, None)]


def check_tensors(src: Path, facts: Architecture, tensors: dict[str, Stored]) -> None:
    """Raise `UserError` unless a checkpoint has exactly the tensors and shapes that its config requires."""
    expected = {name: shape for name, shape, _ in tensor_plan(facts)}
    for problem, names in [
        ("lacks tensors that its config.json calls for", [n for n in expected if n not in tensors]),
        ("has tensors that its config.json does not call for", sorted(set(tensors) - set(expected))),
    ]:
        if names:
            raise UserError(f"{src} {problem}: {', '.join(names[:5])} ({len(names)} in all); copy the checkpoint again")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise UserError(f"{tensors[name].file}: {name} has shape {[*tensors[name].shape]}, config.json wants {[*shape]}")


def convert_checkpoint(src: Path, dst: Path) -> bool:
    """Write the InternLM2 checkpoint folder `src` to `dst` in Llama layout, for use without remote code; False if that was done
    before. Dtypes and shards are kept, and memory holds one shard at a time.

    Raises `UserError`, and leaves nothing, if the checkpoint is pickled, half written or of another model type, if its tensors
    do not match its config, if the written tokenizer differs from the source's anywhere, or if `dst` contains anything else.
    """
    need_modules("torch", purpose="converting a checkpoint")
    config_file = src / "config.json"
    check_checkpoint(src, "InternLM2 checkpoint")
    facts = read_architecture(config_file)
    files = weight_files(src)
    tensors = stored_tensors(files)
    check_tensors(src, facts, tensors)

    def build(target: Path) -> None:
        from safetensors.torch import load_file

        config = read_object(config_file, "a model's config")
        dtype = config.get("dtype") or config.get("torch_dtype") or DTYPES[tensors["model.tok_embeddings.weight"].dtype]
        write_json(target / "config.json", llama_config(facts, str(dtype).removeprefix("torch."), config_file))
        end_of_line = convert_tokenizer(src, target, facts.vocab_size)
        write_json(target / "generation_config.json", _generation(src, facts, end_of_line))
        heads = facts.heads
        outputs = {source: parts for source, _, parts in tensor_plan(facts)}
        weight_map: dict[str, str] = {}
        for file in files:
            written = {
                name: heads.split(tensor, part)
                for source, tensor in load_file(file).items()
                for name, _, part in outputs[source]
            }
            name = file.name if len(files) > 1 else WEIGHTS
            write_tensors(target / name, written)
            weight_map |= dict.fromkeys(written, name)
        if len(files) > 1:
            size = sum(file.stat().st_size for file in target.glob("*.safetensors"))
            write_json(target / INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})

    made_from = {"conversion": "internlm2", "version": CONVERSION, "source": folder_content(src)}
    return build_folder(dst, src, made_from, build)


def _generation(src: Path, facts: Architecture, end_of_line: int | None) -> dict[str, Any]:
    """The source's generation config, in which replies also end at `<|im_end|>`: early revisions left that to their code."""
    path = src / "generation_config.json"
    settings: dict[str, Any] = {"bos_token_id": facts.bos_token_id, "eos_token_id": facts.eos_token_id}
    if path.is_file():
        settings |= read_object(path, "a generation config")
    ends = settings["eos_token_id"]
    stops = [] if ends is None else [*ends] if isinstance(ends, list) else [ends]
    settings["eos_token_id"] = [*stops, *([end_of_line] if end_of_line is not None and end_of_line not in stops else [])]
    settings.setdefault("pad_token_id", facts.pad_token_id)
    settings.pop("transformers_version", None)
    return {key: value for key, value in settings.items() if value is not None}


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
    modules = module_pairs(src / ADAPTER)
    if foreign := sorted(module for module in modules if not _MODULE.fullmatch(module)):
        raise UserError(f"{src / ADAPTER}: not LoRA on InternLM2's layers: {', '.join(foreign[:3])} ({len(foreign)} in all)")
    targets, present = config.get("target_modules"), {_kind(module) for module in modules}
    # target_modules may also be a pattern, which may match more
    if isinstance(targets, list) and (named := {_kind(str(target)) for target in targets}) != present:
        names, has = ", ".join(sorted(named)), ", ".join(sorted(present))
        raise UserError(f"{src / CONFIG}: target_modules: names {names}, but the weights are for {has}")
    facts = read_architecture(base / "config.json" if base.is_dir() else base, ("internlm2", "llama"))
    heads = _heads(src / ADAPTER, modules, facts)
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
        write_tensors(target / ADAPTER, tensors)
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
    pairs, tensors = module_pairs(adapter / ADAPTER), dict[str, Any]()
    for module in pairs:
        if (layer := module.removesuffix(f".self_attn.{QKV[0]}")) != module:
            parts = [{side: pairs[f"{layer}.self_attn.{name}"][side].load() for side in "AB"} for name in QKV]
            if any((part["A"] != parts[0]["A"]).any() for part in parts):
                raise UserError(f"{adapter / ADAPTER}: {', '.join(QKV)} of {layer} have different As; wqkv has only one")
            named = f"base_model.model.{layer}.attention.wqkv.lora_"
            tensors |= {f"{named}A.weight": parts[0]["A"], f"{named}B.weight": heads.join([part["B"] for part in parts])}
    folder.mkdir()
    write_tensors(folder / ADAPTER, tensors)
    write_json(folder / CONFIG, read_object(adapter / CONFIG, "an adapter's config") | {"target_modules": ["wqkv"]})


def on_internlm2(adapter: Path) -> bool:
    """Whether a complete adapter folder (see `adapter_rank`) adapts layers that only InternLM2's layout has."""
    return any(_MODULE.search(name) for name in stored_tensors([adapter / ADAPTER]))


def _kind(module: str) -> str:
    return module.rpartition(".")[2]


def _heads(path: Path, modules: dict[str, dict[str, Stored]], facts: Architecture) -> Heads:
    """The grouping of `wqkv` in a base. Raises `UserError` if its sizes do not fit every module."""
    heads = facts.heads
    hidden, inner = facts.hidden_size, facts.intermediate_size
    sizes = {"wqkv": (heads.rows, hidden), "wo": (hidden, hidden), "w2": (hidden, inner)}
    for module, pair in sorted(modules.items()):
        fits = sizes.get(_kind(module), (inner, hidden))
        size = (pair["B"].shape[0], pair["A"].shape[1])
        if size != fits or int(module.split(".")[2]) >= facts.num_hidden_layers:
            has = f"{fits[0]} × {fits[1]} in {facts.num_hidden_layers} layers"
            raise UserError(f"{path}: adapter and base do not fit: {module} is {size[0]} × {size[1]}, the base has {has}")
    return heads
