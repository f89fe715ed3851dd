"""Merging adapters: numbers worked out by hand, every refusal, and whole models against PEFT."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError, run_cli
from serve.__main__ import app
from serve.checkpoints.folders import MANIFEST, folder_content
from serve.checkpoints.lora import CONFIG, WEIGHTS
from serve.checkpoints.merge import merge_adapter, merged_folder
from serve.checkpoints.model_card import Training, read_training, write_card
from tests.conftest import Program

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
load_file, save_file = (getattr(pytest.importorskip("safetensors.torch"), name) for name in ("load_file", "save_file"))
Q = "model.layers.0.self_attn.q_proj"


def floats(*rows: list[float], dtype: Any = torch.float32) -> Any:
    return torch.tensor(rows, dtype=dtype)


def base(folder: Path, weight: Any, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    save_file(
        {"model.norm.weight": torch.full((3,), 7, dtype=weight.dtype), f"{Q}.weight": weight}, folder / "model.safetensors"
    )
    return folder


def lora(folder: Path, a: Any, b: Any, module: str = Q, **config: object) -> Path:
    folder.mkdir()
    plain = {"peft_type": "LORA", "r": a.shape[0], "lora_alpha": a.shape[0], "base_model_name_or_path": "org/its-base"}
    (folder / CONFIG).write_text(json.dumps(plain | config))
    name = f"base_model.model.{module}.lora_"
    save_file({f"{name}A.weight": a.clone(), f"{name}B.weight": b.clone()}, folder / WEIGHTS)
    return folder


# ---- numbers by hand


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({"r": 4, "lora_alpha": 8}, 2.0),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, 4.0),
        ({"r": 9, "rank_pattern": {"k_proj": 1, "q_proj": 4}, "lora_alpha": 8}, 2.0),
        ({"r": 4, "lora_alpha": 8, "alpha_pattern": {r"layers\.1\..*": 99, r"layers\.0\.self_attn\.q_proj": 2}}, 0.5),
        ({"r": 4, "lora_alpha": 8, "alpha_pattern": {"proj": 99}}, 2.0),  # no whole part of the path
    ],
    ids=["plain", "rslora", "rank by pattern", "alpha by pattern", "a pattern that does not match"],
)
def test_a_weight_grows_by_scale_b_a(config: dict[str, Any], factor: float, tmp_path: Path) -> None:
    a = floats([1, 2, 3], [0] * 3, [0] * 3, [0, 0, 1])
    b = floats([10, 0, 0, 0], [20, 0, 0, 1])
    source = base(tmp_path / "base", floats([1, 1, 1], [0, 0, 0]))
    assert merge_adapter(source, lora(tmp_path / "adapter", a, b, **config), tmp_path / "out")
    out = load_file(tmp_path / "out" / "model.safetensors")
    delta = floats([10, 20, 30], [20, 40, 61])
    assert torch.equal(out[f"{Q}.weight"], floats([1, 1, 1], [0, 0, 0]) + factor * delta)
    assert out["model.norm.weight"].tolist() == [7, 7, 7]


# ---- the folder


def small(tmp_path: Path) -> tuple[Path, Path]:
    source = base(tmp_path / "base", floats([1, 2, 3], [4, 5, 6]))
    return source, lora(tmp_path / "adapter", floats([1, 0, 0]), floats([1], [1]))


def test_everything_beside_the_weights_is_copied_as_it_is(tmp_path: Path) -> None:
    source, adapter = small(tmp_path)
    copied = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja"]
    for name in [*copied[1:], "configuration_x.py", "LICENSE"]:
        (source / name).write_text(f"{name}: as it is  \n")
    for name in ["README.md", "pytorch_model.bin", "training.json", MANIFEST]:
        (source / name).write_text("{}")
    merge_adapter(source, adapter, tmp_path / "out")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {*copied, "configuration_x.py", "LICENSE", "README.md", "model.safetensors", MANIFEST}
    for name in [*copied, "LICENSE"]:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert (tmp_path / "out" / "README.md").read_text() != "{}"


def test_shards_and_index_stay(tmp_path: Path) -> None:
    source, adapter = small(tmp_path)
    whole = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    (source / "consolidated.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")  # not of the index: not weights
    names = {name: f"model-0000{i}-of-00002.safetensors" for i, name in enumerate(whole, start=1)}
    for name, file in names.items():
        save_file({name: whole[name]}, source / file)
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    merge_adapter(source, adapter, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == set(names.values())
    assert json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"] == names
    assert load_file(tmp_path / "out" / names[f"{Q}.weight"])[f"{Q}.weight"].tolist() == [[2, 2, 3], [5, 5, 6]]


def test_the_card_says_where_the_adapter_came_from(tmp_path: Path) -> None:
    source, adapter = small(tmp_path)
    merge_adapter(source, adapter, tmp_path / "out")
    assert read_training(tmp_path / "out") is None
    card = (tmp_path / "out" / "README.md").read_text()
    assert "not documented" in card and "base_model: org/its-base" in card
    spoil_config(base_model_name_or_path=None)(source, adapter)
    merge_adapter(source, adapter, tmp_path / "unnamed")
    card = (tmp_path / "unnamed" / "README.md").read_text()
    assert "base_model" not in card and "- Model: not known" in card

    record = Training(
        kind="role", base="org/recorded", recipe={}, data=[], metrics={}, seed=1, command="x", versions={}, hardware="one CPU"
    )
    write_card(adapter, record)
    merge_adapter(source, adapter, tmp_path / "documented")
    assert read_training(tmp_path / "documented") == record
    card = (tmp_path / "documented" / "README.md").read_text()
    assert "base_model: org/recorded" in card and "library_name: transformers" in card


def test_a_folders_content_does_not_depend_on_the_order_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / f"{name}.json").write_text(name)
    found = folder_content(tmp_path)
    monkeypatch.setattr(Path, "glob", lambda self, kind: [self / "c.json", self / "a.json", self / "b.json"] * ("json" in kind))
    assert folder_content(tmp_path) == found


def test_the_cached_folder_is_named_by_what_is_in_both(tmp_path: Path) -> None:
    source, adapter = small(tmp_path)
    first = merged_folder(source, adapter)[0]
    assert merged_folder(source, adapter)[0] == first
    (source / "tokenizer.model").write_text("another tokenizer")
    assert merged_folder(source, adapter)[0] != first


# ---- refusals


def spoil_config(**config: object) -> Callable[[Path, Path], None]:
    def spoil(source: Path, adapter: Path) -> None:
        (adapter / CONFIG).write_text(json.dumps(json.loads((adapter / CONFIG).read_text()) | config))

    return spoil


def spoil_weights(**more: Any) -> Callable[[Path, Path], None]:
    """Tensors beside the adapter's own; dots in names are written as double underscores."""

    def spoil(source: Path, adapter: Path) -> None:
        added = {name.replace("__", "."): array for name, array in more.items()}
        save_file(load_file(adapter / WEIGHTS) | added, adapter / WEIGHTS)

    return spoil


def only(*kept: str) -> Callable[[Path, Path], None]:
    def spoil(source: Path, adapter: Path) -> None:
        save_file({name: t for name, t in load_file(adapter / WEIGHTS).items() if name.endswith(kept)}, adapter / WEIGHTS)

    return spoil


def spoil_base(weight: Any, name: str = f"{Q}.weight") -> Callable[[Path, Path], None]:
    return lambda source, adapter: save_file({name: weight}, source / "model.safetensors")


def pickled(source: Path, adapter: Path) -> None:
    (source / "model.safetensors").rename(source / "pytorch_model.bin")


ONE = torch.ones(1, 1)
EMBEDDING = "base_model__model__model__embed_tokens__lora_embedding_A"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_config(use_dora=True), f"{CONFIG}: use_dora: True is more than a plain LoRA.*train the adapter without it"),
        (spoil_config(modules_to_save=["lm_head"]), rf"{CONFIG}: modules_to_save: \['lm_head'\] is more than a plain LoRA"),
        (spoil_config(fan_in_fan_out=True), f"{CONFIG}: fan_in_fan_out: True is more than a plain LoRA"),
        (spoil_config(bias="all"), f"{CONFIG}: bias: 'all': trained biases"),
        (spoil_config(init_lora_weights="pissa"), f"{CONFIG}: init_lora_weights: 'pissa' also changes the base's weights"),
        (spoil_config(peft_type="IA3"), f"{CONFIG}: peft_type: LORA expected, got 'IA3'"),
        (spoil_config(r=2), f"{CONFIG}: r: {Q} has rank 1, the config says 2"),
        (spoil_config(lora_alpha=None), f"{CONFIG}: r, lora_alpha, .* not PEFT's"),
        (spoil_weights(base_model__model__q__lora_B__bias=ONE), r"more than lora_A .*model.q.lora_B.bias \(1 in"),
        (spoil_weights(**{EMBEDDING: ONE}), r"more than lora_A and lora_B .*embed_tokens.lora_embedding_A \(1 in all\)"),
        (spoil_weights(base_model__model__q__lora_A__weight=torch.ones(1, 1, 1)), "more than lora_A and lora_B .*q.lora_A"),
        (spoil_weights(base_model__model__q__lora_A__weight=ONE), "q has no lora_B: the adapter is half written"),
        (spoil_weights(base_model__model__q__lora_A__weight=ONE[:0]), r"q.lora_A.weight is empty \(shape \[0, 1\]\)"),
        (only("nothing"), "no tensors"),
        (only("lora_B.weight"), f"{Q} has no lora_A: the adapter is half written"),
        (
            spoil_base(torch.ones(2, 4)),
            rf"do not fit: {Q}.weight: .* \(trained on org/its-base\) is for 2 × 3, .* has 2 × 4 in model.safetensors",
        ),
        (spoil_base(ONE, "other"), f"do not fit: {Q}.weight: .* is for 2 × 3, the base .* has no such tensor"),
        (spoil_base(torch.ones(2, 3, dtype=torch.int8)), "dtype I8 unsupported"),
        (spoil_base(floats([torch.nan] * 3, [1] * 3)), f"model.safetensors: {Q}.weight contains infinite or undefined numbers"),
        (
            spoil_weights(base_model__model__q__lora_A__weight=torch.full((1, 1), torch.inf)),
            "adapter refused: .*q.lora_A.weight contains infinite or undefined numbers",
        ),
        (spoil_base(torch.full((2, 3), 65504, dtype=torch.float16)), "infinite or undefined numbers .*float16"),
        (lambda source, adapter: (adapter / "training.json").write_text("{}"), "training.json: kind, base, .*: Field required"),
        (pickled, "pytorch_model.bin is a pickle.*convert it to safetensors"),
        (lambda source, adapter: (adapter / WEIGHTS).rename(adapter / "adapter_model.bin"), "adapter_model.bin is a pickle"),
    ],
)
def test_what_cannot_be_merged_exactly_is_refused(spoil: Callable[[Path, Path], object], message: str, tmp_path: Path) -> None:
    source = base(tmp_path / "base", floats([1, 2, 3], [4, 5, 6]))
    adapter = lora(tmp_path / "adapter", floats([100, 0, 0]), floats([1], [1]))
    spoil(source, adapter)
    with pytest.raises(UserError, match=message):
        merge_adapter(source, adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out.*.tmp"))


@pytest.mark.parametrize("tied", [{"tie_word_embeddings": True}, {}, {"tie_word_embeddings": False}])
def test_a_head_is_merged_only_where_it_is_no_embedding(tied: dict[str, Any], tmp_path: Path) -> None:
    source = base(tmp_path / "base", ONE, **tied)
    if tied:
        save_file({"lm_head.weight": ONE}, source / "model.safetensors")
    adapter = lora(tmp_path / "adapter", ONE, ONE, "lm_head")
    if tied.get("tie_word_embeddings") is False:
        merge_adapter(source, adapter, tmp_path / "out")
        assert load_file(tmp_path / "out" / "model.safetensors")["lm_head.weight"].tolist() == [[2]]
        return
    with pytest.raises(UserError, match="lm_head is adapted, but this base ties it to its embeddings"):
        merge_adapter(source, adapter, tmp_path / "out")


# ---- the command


Convert = Callable[..., tuple[int, str, str]]


@pytest.fixture
def convert(program: Program) -> Convert:
    """`python -m serve convert …`: exit code, stdout, stderr."""
    return lambda *arguments: program(lambda: run_cli(app), "serve", "convert", *arguments)


def test_the_command_merges_once(tmp_path: Path, convert: Convert) -> None:
    source, adapter = small(tmp_path)
    out = tmp_path / "out"
    assert convert(adapter, out, "--base", source)[:2] == (0, f"{out}\n")
    stamp = (out / "model.safetensors").stat().st_mtime_ns
    code, _, said = convert(adapter, out, "--base", source)
    assert code == 0 and said.strip() == f"{out}: already there, every file as written"
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp

    spoil_config(lora_alpha=5)(source, adapter)
    for place, base, message in (
        ("out", source, "out exists and is not the finished"),
        ("other", "embedded:nope", "unknown embedded model 'nope'"),
        ("other", "./nowhere", "checkpoint missing: ./nowhere does not exist"),
    ):
        code, _, said = convert(adapter, tmp_path / place, "--base", base)
        assert code == 2 and message in said


def test_the_base_that_an_adapter_names_is_downloaded(
    tmp_path: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    source, adapter = small(tmp_path)
    downloads = []

    def snapshot(repo_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        downloads.append((repo_id, revision))
        assert {"*.safetensors", "*.json", "*.model"} <= set(allow_patterns)
        return str(source)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    spoil_config(base_model_name_or_path="org/name", revision="abc")(source, adapter)
    assert convert(adapter, tmp_path / "out")[0] == 0
    assert downloads == [("org/name", "abc")] and (tmp_path / "out" / "model.safetensors").is_file()
    assert convert(adapter, tmp_path / "other", "--base", "org/other")[0] == 0
    assert downloads[1:] == [("org/other", None)]


def test_what_cannot_be_converted_says_what_to_give(tmp_path: Path, convert: Convert) -> None:
    source, adapter = small(tmp_path)
    spoil_config(base_model_name_or_path=None)(source, adapter)
    out = tmp_path / "out"
    for arguments, message in [
        ((adapter,), "FOLDER: name the output folder for"),
        ((adapter, out), "base_model_name_or_path: no base: give it with --base"),
        ((source, out), "model_type: 'llama': only internlm2 and chatglm need conversion"),
        ((source, out, "--base", source), "only an adapter has a base"),
        (("embedded", out), "leave out FOLDER"),
        (("runs/none", out), "SOURCE runs/none: no such folder"),
    ]:
        code, _, said = convert(*arguments)
        assert code == 2 and message in said and not out.exists()


# ---- whole models, against PEFT


def tiny(family: str, dtype: str, **config: Any) -> Any:
    """A random model of a few thousand weights; every bias is random, too."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
    made = getattr(transformers, f"{family}Config")(**sizes, num_key_value_heads=2, **config)
    model = getattr(transformers, f"{family}ForCausalLM")(made)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_()
    return model.to(getattr(torch, dtype)).eval()


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "patterns": {
        "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 6},
        "alpha_pattern": {"v_proj": 32, "layers.0.mlp.up_proj": 1},
    },
    "rslora": {"use_rslora": True},
}


@pytest.mark.parametrize(
    ("family", "settings", "tied"), [("Llama", "plain", True), ("Llama", "rslora", False), ("Qwen2", "patterns", False)]
)
def test_a_merged_model_has_the_logits_of_peft_unmerged(family: str, settings: str, tied: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model = tiny(family, "float32", tie_word_embeddings=tied)
    shards = {"max_shard_size": "10KB"}
    model.save_pretrained(tmp_path / "base")
    model.save_pretrained(tmp_path / "sharded", **shards)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    config = peft.LoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False, "task_type": "CAUSAL_LM"}
        | SETTINGS[settings]
    )
    tuned = peft.get_peft_model(model, config).eval()
    tuned.save_pretrained(tmp_path / "adapter")
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        expected = tuned(tokens).logits
        with tuned.disable_adapter():
            assert (tuned(tokens).logits - expected).abs().max() > 0.1, "the adapter changes something"
    for name in ("base", "sharded"):
        merge_adapter(tmp_path / name, tmp_path / "adapter", tmp_path / f"{name}-merged")
        got = AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}-merged").eval()
        assert got.config.tie_word_embeddings is tied
        assert (got.lm_head.weight is got.model.embed_tokens.weight) is tied
        with torch.no_grad():
            assert (got(tokens).logits - expected).abs().max() < 1e-5
    many = tmp_path / "sharded-merged"
    together = {name: array for file in many.glob("*.safetensors") for name, array in load_file(file).items()}
    whole = load_file(tmp_path / "base-merged" / "model.safetensors")
    assert whole.keys() == together.keys()
    assert all(torch.equal(tensor, together[name]) for name, tensor in whole.items())
    assert {p.name for p in many.glob("*.safetensors")} == {p.name for p in (tmp_path / "sharded").glob("*.safetensors")}


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 8), ("float16", 11)])
def test_a_16_bit_base_is_rounded_once(dtype: str, bits: int, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    tiny("Qwen2", dtype).save_pretrained(tmp_path / "base")
    wide = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float64)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    tuned = peft.get_peft_model(wide, config)
    tuned.save_pretrained(tmp_path / "adapter")
    merge_adapter(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    exact = tuned.merge_and_unload().state_dict()
    stored = load_file(tmp_path / "out" / "model.safetensors")
    changed = 0
    for name, tensor in stored.items():
        assert tensor.dtype == getattr(torch, dtype)
        error = (tensor.double() - exact[name]).abs()
        # Half a unit in the last place; the least numbers of fp16 have units of 2⁻²⁴. A second rounding would go beyond it.
        unit = torch.exp2(torch.floor(torch.log2(exact[name].abs().clamp_min(2.0**-14))) + 1 - bits)
        assert (error <= unit / 2 + 1e-6 * exact[name].abs() + 1e-9).all(), name
        changed += int((error > 0).any())
    assert changed == 14, "every linear layer of both layers was rounded, and nothing else"
    assert str(AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype) == f"torch.{dtype}"
