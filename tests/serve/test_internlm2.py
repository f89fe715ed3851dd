"""InternLM2 in Llama layout: tiny random checkpoints against a plain forward pass, tokenizers, adapters, what is refused."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError, run_cli
from serve import __main__ as command
from serve.checkpoints import internlm2, internlm2_tokenizer
from serve.checkpoints.internlm2 import Architecture, convert_checkpoint, tensor_plan
from serve.checkpoints.internlm2_adapter import convert_adapter
from serve.checkpoints.lora import adapter_rank
from serve.checkpoints.merge import merged
from serve.checkpoints.tensors import check_checkpoint
from tests.serve.test_embedded import spec, tensors

torch = pytest.importorskip("torch")
sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.slow

SIZES = {
    "vocab_size": 480,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000,
    "bias": False,
    "tie_word_embeddings": False,
}
CONFIG = {
    "model_type": "internlm2",
    "architectures": ["InternLM2ForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"},
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "rope_scaling": None,
    "torch_dtype": "float32",
    **SIZES,
}
HEAD_DIM = 64
SENTENCES = [
    "I keep waking up at night and then I worry until morning.",
    "It helps to talk. What happened at work, 3 days ago or 12?",
    "my sister and I fought again, she does not answer any more",
    "夜里总是醒来，心里很乱。",
    "你愿意说说发生了什么吗？我在听。",
    "the the then than that there  and and  \n\nso so\n",
]


# ---- the source: a tiny checkpoint, and a plain forward pass over it


def weights(config: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Random tensors under InternLM2's names."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape, _ in tensor_plan(Architecture.model_validate(config)):
        noise = torch.randn(shape, generator=generator)
        made[name] = 1 + 0.1 * noise if "norm" in name else 0.5 * noise / math.sqrt(shape[-1] if len(shape) > 1 else 10)
    return made


def forward(config: dict[str, Any], w: dict[str, Any], tokens: Any) -> Any:
    """InternLM2's logits [tokens, vocabulary] in fp32, from its definition."""
    heads, kv_heads, hidden = config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]
    dim, groups, n = hidden // heads, heads // kv_heads, len(tokens)
    scaling = config.get("rope_scaling") or {"type": "none"}
    base, positions = float(config["rope_theta"]), torch.arange(n, dtype=torch.float32)
    if scaling["type"] == "linear":
        positions = positions / scaling["factor"]
    if scaling["type"] == "dynamic" and n > config["max_position_embeddings"]:
        stretch = scaling["factor"] * n / config["max_position_embeddings"] - (scaling["factor"] - 1)
        base *= stretch ** (dim / (dim - 2))
    angles = torch.outer(positions, base ** (-torch.arange(0, dim, 2) / dim))
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1)[:, None] for f in (torch.cos, torch.sin))

    def norm(x: Any, name: str) -> Any:
        return w[name] * x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt()

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def rotate(x: Any) -> Any:
        return x * cos + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], dim=-1) * sin

    x = w["model.tok_embeddings.weight"][tokens]
    mask = torch.full((n, n), -torch.inf).triu(1)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        qkv = linear(norm(x, f"{layer}.attention_norm.weight"), f"{layer}.attention.wqkv")
        qkv = qkv.reshape(n, kv_heads, groups + 2, dim)
        q = rotate(qkv[:, :, :groups].reshape(n, heads, dim))
        k = rotate(qkv[:, :, groups]).repeat_interleave(groups, dim=1)
        v = qkv[:, :, groups + 1].repeat_interleave(groups, dim=1)
        attention = (torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim) + mask).softmax(-1)
        x = x + linear(torch.einsum("hqk,khd->qhd", attention, v).reshape(n, hidden), f"{layer}.attention.wo")
        y = norm(x, f"{layer}.ffn_norm.weight")
        gate = torch.nn.functional.silu(linear(y, f"{layer}.feed_forward.w1"))
        x = x + linear(gate * linear(y, f"{layer}.feed_forward.w3"), f"{layer}.feed_forward.w2")
    w = w | ({"output.weight": w["model.tok_embeddings.weight"]} if config["tie_word_embeddings"] else {})
    return linear(norm(x, "model.norm.weight"), "output")


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small SentencePiece model of InternLM2's kind, with two reserved pieces that its config renames."""
    folder = tmp_path_factory.mktemp("tokenizer")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=460,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["[UNUSED_TOKEN_0]", "[UNUSED_TOKEN_1]", "[UNUSED_TOKEN_2]"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    marks = {"3": "<|im_end|>", "4": "<|im_start|>"}
    names = {"0": "<unk>", "1": "<s>", "2": "</s>", **marks}
    settings = {
        "added_tokens_decoder": {
            number: {"content": name, "lstrip": False, "rstrip": False, "single_word": False, "special": True}
            for number, name in names.items()
        },
        **{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"},
        "additional_special_tokens": list(marks.values()),
        "tokenizer_class": "InternLM2Tokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


Source = Callable[..., Path]


@pytest.fixture
def source(tmp_path: Path, tokenizer_files: Path) -> Source:
    """Writes a checkpoint in two shards, as InternLM2's are published; returns its folder."""

    def write(name: str = "source", dtype: Any = None, **changes: Any) -> Path:
        config, folder = CONFIG | changes, tmp_path / name
        shutil.copytree(tokenizer_files, folder)
        (folder / "config.json").write_text(json.dumps(config))
        made = {key: value.to(dtype or torch.float32) for key, value in weights(config).items()}
        names = list(made)
        shards = {"model-00001-of-00002.safetensors": names[: len(names) // 2]}
        shards["model-00002-of-00002.safetensors"] = names[len(names) // 2 :]
        for file, held in shards.items():
            safetensors.save_file({key: made[key] for key in held}, folder / file)
        weight_map = {key: file for file, held in shards.items() for key in held}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return folder

    return write


TOKENS = torch.tensor([1, 7, 300, 45, 45, 2, 459, 11, 270, 88] * 4)  # 40 tokens: beyond max_position_embeddings


# ---- checkpoints


@pytest.mark.parametrize(
    ("changes", "shard_bytes", "shards"),
    [
        ({}, 2**31, 1),
        ({}, 600_000, 6),
        ({"bias": True, "tie_word_embeddings": True}, 2**31, 1),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 2**31, 1),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 2**31, 1),
        ({"num_key_value_heads": 4}, 2**31, 1),
        ({"num_key_value_heads": 1}, 2**31, 1),
    ],
)
def test_the_converted_model_gives_the_same_logits(
    changes: dict[str, Any], shard_bytes: int, shards: int, source: Source, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    assert convert_checkpoint(source(**changes), tmp_path / "llama", shard_bytes)
    check_checkpoint(tmp_path / "llama", "converted")
    assert len(list((tmp_path / "llama").glob("*.safetensors"))) == shards
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "llama", output_loading_info=True)
    assert type(model).__name__ == "LlamaForCausalLM" and not any(info.values())
    config = CONFIG | changes
    for tokens in (TOKENS[:20], TOKENS):
        with torch.no_grad():
            got = model(tokens[None]).logits[0]
        expected = forward(config, weights(config), tokens)
        assert expected.std() > 0.1
        assert (got - expected).abs().max() < 1e-5


def test_dtype_and_facts_are_carried_over(source: Source, tmp_path: Path) -> None:
    from transformers import AutoConfig

    scaling = {"type": "dynamic", "factor": 3.0}
    convert_checkpoint(source(dtype=torch.bfloat16, torch_dtype="bfloat16", rope_scaling=scaling), tmp_path / "llama")
    stored = safetensors.load_file(tmp_path / "llama" / "model.safetensors")
    assert {str(tensor.dtype) for tensor in stored.values()} == {"torch.bfloat16"}
    config = AutoConfig.from_pretrained(tmp_path / "llama")
    renamed = {"bias": "attention_bias"}
    for key, value in SIZES.items():
        if key != "rope_theta":
            assert getattr(config, renamed.get(key, key)) == value, key
    assert config.rope_parameters == {"rope_theta": 1000, "rope_type": "dynamic", "factor": 3.0}
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.head_dim) == (1, 2, 2, HEAD_DIM)
    assert str(config.dtype) == "torch.bfloat16"


def test_the_published_7b_has_the_parameters_that_it_should() -> None:
    facts = Architecture(
        vocab_size=92544, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, bias=False,
    )  # fmt: skip
    embeddings = 92544 * 4096
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    plan = list(tensor_plan(facts))
    assert sum(math.prod(shape) for _, shape, _ in plan) == 2 * embeddings + 32 * layer + 4096 == 7_737_708_544
    assert sum(math.prod(shape) for _, _, outputs in plan for _, shape, _ in outputs) == 7_737_708_544


def test_memory_is_bounded_by_one_projection(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internlm2, "convert_tokenizer", lambda *_: None)
    folder = source(intermediate_size=8192)
    convert_checkpoint(folder, tmp_path / "warm")  # what is imported lazily is not counted
    tracemalloc.start()
    try:
        convert_checkpoint(folder, tmp_path / "llama")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(p.stat().st_size for p in folder.glob("*.safetensors")) > 50_000_000
    assert peak < 4_000_000


def test_a_second_run_says_so_and_a_foreign_folder_stays(source: Source, tmp_path: Path) -> None:
    folder, target = source(), tmp_path / "llama"
    target.mkdir()  # an empty folder is as good as none
    assert convert_checkpoint(folder, target) is True
    made = {p.name: p.stat().st_ino for p in target.iterdir()}
    assert convert_checkpoint(folder, target) is False
    assert {p.name: p.stat().st_ino for p in target.iterdir()} == made
    (target / "config.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"llama exists and is not the finished conversion .*config.json has changed.*remove it"
    ):
        convert_checkpoint(folder, target)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(UserError, match="mine exists and is not the finished conversion"):
        convert_checkpoint(folder, tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
    with pytest.raises(UserError, match="exists and is not the finished conversion"):
        convert_checkpoint(folder, folder)


def test_a_killed_conversion_leaves_nothing_that_looks_whole(source: Source, tmp_path: Path) -> None:
    folder = source()
    code = (
        "import os, sys; from pathlib import Path; from serve.checkpoints import internlm2\n"
        "internlm2.convert_tokenizer = lambda *a: None\n"
        "real, calls = internlm2.write_tensors, []\n"
        "def write(path, tensors):\n    real(path, tensors); calls.append(1); len(calls) == 2 and os.kill(os.getpid(), 9)\n"
        "internlm2.write_tensors = write\n"
        "internlm2.convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), 600_000)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(folder), str(tmp_path / "llama")], capture_output=True)
    assert ended.returncode == -9, ended.stderr
    assert not (tmp_path / "llama").exists()
    assert len(list(tmp_path.glob(".llama.*.tmp/*.safetensors"))) == 2, "it was killed half way"
    assert convert_checkpoint(folder, tmp_path / "llama")
    assert not list(tmp_path.glob(".llama.*.tmp")), "the next one clears away"


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_shard(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    held = safetensors.load_file(path)
    change(held)
    safetensors.save_file(held, path)


def pickled(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.rename(path.with_name(f"pytorch_{path.stem}.bin"))


WQKV = "model.layers.0.attention.wqkv.weight"
BAD_CHECKPOINTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickles": (pickled, r"\.bin is a pickle, which can run code when it is loaded; convert it to safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), "source has no config.json"),
    "config cut off": (lambda f: (f / "config.json").write_text('{"a": 1'), r"config\.json:1: malformed JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "config.json: not a model's config"),
    "other model": (lambda f: rewrite(f / "config.json", model_type="qwen2"), "model_type: internlm2 expected, got 'qwen2'"),
    "reward model": (
        lambda f: rewrite(f / "config.json", architectures=["InternLM2ForRewardModel"]),
        "architectures: only a causal language model",
    ),
    "quantised": (lambda f: rewrite(f / "config.json", quantization_config={"bits": 4}), "quantization_config: quantised"),
    "no heads": (lambda f: rewrite(f / "config.json", num_attention_heads=0), "num_attention_heads: .*greater than 0"),
    "uneven heads": (lambda f: rewrite(f / "config.json", num_key_value_heads=3), "num_attention_heads: 4 heads fit"),
    "scaling unknown": (
        lambda f: rewrite(f / "config.json", rope_scaling={"type": "yarn", "factor": 2}),
        "rope_scaling: type 'yarn' is none of InternLM2's",
    ),
    "scaling by words": (
        lambda f: rewrite(f / "config.json", rope_scaling={"type": "dynamic", "factor": "two"}),
        "rope_scaling: factor: a number from 1 up expected, got 'two'",
    ),
    "shard missing": (lambda f: (f / "model-00002-of-00002.safetensors").unlink(), "lacks model-00002-of-00002.safetensors"),
    "shard cut off": (
        lambda f: tensors(f / "model-00002-of-00002.safetensors", cut=2),
        "00002-of-00002.safetensors is cut off or damaged",
    ),
    "tensor missing": (lambda f: edit_shard(f, lambda t: t.pop(WQKV)), f"lacks tensors .*: {WQKV} .1 in all"),
    "tensor foreign": (lambda f: edit_shard(f, lambda t: t.update(x=torch.ones(2))), "does not have: x .1 in all"),
    "tensor twice": (
        lambda f: edit_shard(f, lambda t: t.update({"output.weight": torch.ones(480, 256)})),
        "output.weight is also in model-00001",
    ),
    "tensor of another shape": (
        lambda f: edit_shard(f, lambda t: t.update({WQKV: torch.ones(512, 128)})),
        r"wqkv.weight has shape \[512, 128\], config.json calls for \[512, 256\]",
    ),
    "tensor of integers": (
        lambda f: edit_shard(f, lambda t: t.update({WQKV: torch.ones(512, 256, dtype=torch.int8)})),
        "dtype I8 unsupported",
    ),
    "tensor empty": (lambda f: edit_shard(f, lambda t: t.update({WQKV: torch.ones(0)})), r"wqkv.weight is empty"),
    "bias promised": (lambda f: rewrite(f / "config.json", bias=True), "lacks tensors .*wqkv.bias"),
    "no tokenizer": (lambda f: (f / "tokenizer.model").unlink(), "neither tokenizer.model nor tokenizer.json"),
    "tokenizer is noise": (lambda f: (f / "tokenizer.model").write_bytes(b"noise"), "not a SentencePiece model"),
    "token without id": (
        lambda f: rewrite(f / "tokenizer_config.json", additional_special_tokens=["<|new|>"]),
        "special token <|new|> has no id",
    ),
    "token after a gap": (
        lambda f: rewrite(
            f / "tokenizer_config.json", additional_special_tokens=[], added_tokens_decoder={"9000": {"content": "<|new|>"}}
        ),
        r"added token <\|new\|> should have id 9000",
    ),
}


@pytest.mark.parametrize("case", BAD_CHECKPOINTS)
def test_bad_checkpoints_are_refused_and_nothing_is_written(case: str, source: Source, tmp_path: Path) -> None:
    spoil, message = BAD_CHECKPOINTS[case]
    folder = source()
    spoil(folder)
    with pytest.raises(UserError, match=message) as caught:
        convert_checkpoint(folder, tmp_path / "llama")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "llama").exists() and not list(tmp_path.glob(".llama*.tmp"))


def test_a_tokenizer_larger_than_the_embeddings_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the tokenizer has ids up to 4.., config.json's vocab_size is 300"):
        convert_checkpoint(source(vocab_size=300), tmp_path / "llama")


# ---- tokenizer


def test_the_tokenizer_loads_without_remote_code_and_gives_the_same_ids(source: Source, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    convert_checkpoint(source(), tmp_path / "llama")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "llama")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source" / "tokenizer.model"))
    for text in [*SENTENCES, " two  spaces ", "never seen: Ωmega 🙂 42"]:
        ids = processor.encode(text)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer(text)["input_ids"] == [1, *ids]
        assert tokenizer.decode(ids) == text
    chat = [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "so"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == ("<s><|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\nso<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert [i for i in ids if i < 5] == [1, 4, 3, 4, 3, 4], "one id a mark, one beginning of sequence"
    assert tokenizer.pad_token_id == 2 and not (tmp_path / "llama" / "tokenizer.model").exists()
    # A text that spells a reserved piece cannot call the mark that took its place.
    assert not {3, 4} & set(tokenizer("[UNUSED_TOKEN_0][UNUSED_TOKEN_1]")["input_ids"])
    stops = json.loads((tmp_path / "llama" / "generation_config.json").read_text())
    assert stops == {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 2}


def test_a_tokenizer_json_is_taken_over(source: Source, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    convert_checkpoint(source(), tmp_path / "llama")
    folder = source("newer")
    (folder / "tokenizer.model").unlink()
    shutil.copy(tmp_path / "llama" / "tokenizer.json", folder)
    rewrite(folder / "tokenizer_config.json", chat_template="{{ messages[0]['content'] }}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], "max_length": 50}))
    convert_checkpoint(folder, tmp_path / "newer-llama")
    one, two = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("llama", "newer-llama"))
    assert [one(text)["input_ids"] for text in SENTENCES] == [two(text)["input_ids"] for text in SENTENCES]
    assert two.apply_chat_template([{"role": "user", "content": "mine"}], tokenize=False) == "mine"
    stops = json.loads((tmp_path / "newer-llama" / "generation_config.json").read_text())
    assert stops == {"bos_token_id": 1, "eos_token_id": [2, 3], "max_length": 50, "pad_token_id": 2}


def test_any_difference_between_tokenizers_refuses(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = internlm2_tokenizer._merges
    monkeypatch.setattr(internlm2_tokenizer, "_merges", lambda *given: real(*given)[::-1])
    with pytest.raises(UserError, match="the converted tokenizer differs from the source's on .*nothing is written"):
        convert_checkpoint(source(), tmp_path / "llama")
    assert not (tmp_path / "llama").exists()


# ---- adapters

ADAPTED = {"wqkv": (512, 256), "wo": (256, 256), "w1": (96, 256), "w2": (256, 96), "w3": (96, 256)}


def path_of(kind: str, layer: int) -> str:
    return f"model.layers.{layer}.{'attention' if kind in {'wqkv', 'wo'} else 'feed_forward'}.{kind}"


def lora(
    folder: Path, kinds: tuple[str, ...] = ("wqkv",), layers: tuple[int, ...] = (0, 1), ranks: dict[str, int] | None = None,
    dtype: Any = None, **changes: Any,
) -> dict[str, tuple[Any, Any]]:  # fmt: skip
    """Writes a random adapter as PEFT would for InternLM2; returns the (A, B) of each module."""
    generator = torch.Generator().manual_seed(1)
    made: dict[str, tuple[Any, Any]] = {}
    for layer in layers:
        for kind in kinds:
            rank, (rows, columns) = (ranks or {}).get(kind, 8), ADAPTED[kind]
            a, b = (torch.randn(shape, generator=generator) * 0.05 for shape in ((rank, columns), (rows, rank)))
            made[path_of(kind, layer)] = (a, b)
    folder.mkdir()
    named = {
        f"base_model.model.{module}.lora_{side}.weight": matrix.to(dtype or torch.float32)
        for module, pair in made.items()
        for side, matrix in zip("AB", pair, strict=True)
    }
    safetensors.save_file(named, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "org/internlm2-tiny",
        "auto_mapping": {"base_model_class": "InternLM2ForCausalLM"},
        "r": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.1,
        "bias": "none",
        "target_modules": list(kinds),
        **changes,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return made


def adapted(made: dict[str, tuple[Any, Any]], scale: Callable[[str, int], float]) -> dict[str, Any]:
    """The base's weights with the adapter added."""
    w = weights(CONFIG)
    for module, (a, b) in made.items():
        w[f"{module}.weight"] = w[f"{module}.weight"] + scale(module, a.shape[0]) * b @ a
    return w


ALL = ("wqkv", "wo", "w1", "w2", "w3")


@pytest.mark.parametrize(
    ("made_with", "scale", "targets"),
    [
        ({}, lambda _, r: 32 / r, ["k_proj", "q_proj", "v_proj"]),
        (
            {"kinds": ALL},
            lambda _, r: 32 / r,
            ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
        ),
        ({"kinds": ALL, "target_modules": r".*\.(attention|feed_forward)\..*", "use_rslora": True},
         lambda _, r: 32 / r**0.5, None),
        (
            {"kinds": ALL, "ranks": {"wqkv": 4, "w2": 16}, "rank_pattern": {"wqkv": 4, "feed_forward.w2": 16},
             "alpha_pattern": {"layers.1.attention.wqkv": 64, "wo": 8}},
            lambda module, r: {"model.layers.1.attention.wqkv": 64}.get(module, 8 if module.endswith("wo") else 32) / r,
            None,
        ),
        (
            {"layers": (1,), "layers_to_transform": [1]},
            lambda _, r: 32 / r,
            [f"model.layers.1.self_attn.{name}_proj" for name in "kqv"],
        ),
    ],
    ids=["wqkv", "all", "rslora, by pattern", "ranks and alphas by module", "one layer"],
)  # fmt: skip
def test_a_converted_adapter_gives_the_same_logits_in_peft_and_merged(
    made_with: dict[str, Any],
    scale: Callable[[str, int], float],
    targets: list[str] | None,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("ESC_EVAL_CACHE", str(tmp_path / "cache"))
    made = lora(tmp_path / "adapter", **made_with)
    convert_checkpoint(source(), tmp_path / "llama")
    assert convert_adapter(tmp_path / "adapter", tmp_path / "converted", tmp_path / "source")
    assert adapter_rank(tmp_path / "converted") == adapter_rank(tmp_path / "adapter")
    config = json.loads((tmp_path / "converted" / "adapter_config.json").read_text())
    assert targets is None or config["target_modules"] == targets
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (8, 32, 0.1)
    assert config["auto_mapping"] is None and config["base_model_name_or_path"] == "org/internlm2-tiny"

    expected = forward(CONFIG, adapted(made, scale), TOKENS)
    assert (expected - forward(CONFIG, weights(CONFIG), TOKENS)).abs().max() > 0.1, "the adapter changes something"
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    tuned = peft.PeftModel.from_pretrained(base, str(tmp_path / "converted")).eval()
    folder = merged(spec(str(tmp_path / "llama")), tmp_path / "llama", tmp_path / "converted")
    for model in (tuned, AutoModelForCausalLM.from_pretrained(folder)):
        with torch.no_grad():
            assert (model(TOKENS[None]).logits[0] - expected).abs().max() < 1e-5


def test_without_its_base_an_adapter_of_the_published_shape_is_grouped_by_heads_of_128(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADAPTED, "wqkv", (6144, 4096))  # the 7B: 32 heads, 8 key/value heads
    made = lora(tmp_path / "adapter", dtype=torch.bfloat16)
    convert_adapter(tmp_path / "adapter", tmp_path / "converted")
    stored = safetensors.load_file(tmp_path / "converted" / "adapter_model.safetensors")
    assert len(stored) == 12 and {str(tensor.dtype) for tensor in stored.values()} == {"torch.bfloat16"}
    a, b = (matrix.to(torch.bfloat16) for matrix in made["model.layers.1.attention.wqkv"])
    named = "base_model.model.model.layers.1.self_attn.{}_proj.lora_{}.weight"
    assert all(torch.equal(stored[named.format(name, "A")], a) for name in "qkv")
    # Group 2 of 8 holds query heads 8 to 11, key head 2 and value head 2, in rows 2·768 to 3·768.
    group = b[2 * 768 : 3 * 768]
    assert torch.equal(stored[named.format("q", "B")][8 * 128 : 12 * 128], group[:512])
    assert torch.equal(stored[named.format("k", "B")][2 * 128 : 3 * 128], group[512:640])
    assert torch.equal(stored[named.format("v", "B")][2 * 128 : 3 * 128], group[640:])
    note = (tmp_path / "converted" / "README.md").read_text()
    assert "`org/internlm2-tiny`" in note and "32 heads, 8 key/value heads, head width 128" in note
    assert convert_adapter(tmp_path / "adapter", tmp_path / "converted") is False


def drop_b(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    held = safetensors.load_file(path)
    held.pop("base_model.model.model.layers.1.attention.wqkv.lora_B.weight")
    safetensors.save_file(held, path)


def foreign(folder: Path) -> None:
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    held = {f"{module}.lora_A.weight": torch.ones(8, 256), f"{module}.lora_B.weight": torch.ones(256, 8)}
    safetensors.save_file(held, folder / "adapter_model.safetensors")


BAD_ADAPTERS: dict[str, tuple[Callable[[Path], Any] | dict[str, Any], str]] = {
    "pickle": (lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"), "adapter_model.bin is a pickle"),
    "cut off": (lambda f: tensors(f / "adapter_model.safetensors", cut=1), "half written"),
    "no config": (lambda f: (f / "adapter_config.json").unlink(), "has no adapter_config.json"),
    "not LoRA": ({"peft_type": "IA3"}, "peft_type: LORA expected, got 'IA3'"),
    "rank": ({"r": 600}, "adapter rank unsupported: 600"),
    "wrong rank": ({"r": 16}, r"r: model.layers.0.attention.wqkv has rank 8, the config says 16"),
    "no alpha": ({"lora_alpha": None}, "lora_alpha.*not PEFT's"),
    "DoRA": ({"use_dora": True}, "use_dora: True is more than a plain LoRA"),
    "modules_to_save": ({"modules_to_save": ["output"]}, r"modules_to_save: \['output'\] is more than a plain LoRA"),
    "bias": ({"bias": "lora_only"}, "bias: 'lora_only': trained biases cannot be served"),
    "lora_bias": ({"lora_bias": True}, "lora_bias: True is more than a plain LoRA"),
    "future feature": ({"use_something_new": True}, "use_something_new: True is more than a plain LoRA"),
    "PiSSA": ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa' also changes the base's weights"),
    "targets promised": ({"target_modules": ["wqkv", "w2"]}, "target_modules: names w2, wqkv, but the weights are for wqkv"),
    "pattern": ({"rank_pattern": {"(": 8}}, "rank_pattern, alpha_pattern: not PEFT's"),
    "no B": (drop_b, "model.layers.1.attention.wqkv has no lora_B"),
    "Llama already": (foreign, "not a LoRA on InternLM2's .*: model.layers.0.self_attn.q_proj"),
}


@pytest.mark.parametrize("case", BAD_ADAPTERS)
def test_bad_adapters_are_refused_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    spoil, message = BAD_ADAPTERS[case]
    (tmp_path / "base.json").write_text(json.dumps(CONFIG))
    lora(tmp_path / "adapter")
    if isinstance(spoil, dict):
        rewrite(tmp_path / "adapter" / "adapter_config.json", **spoil)
    else:
        spoil(tmp_path / "adapter")
    with pytest.raises(UserError, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "converted", tmp_path / "base.json")
    assert not (tmp_path / "converted").exists() and not list(tmp_path.glob(".converted*.tmp"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 512}, r"adapter and base do not fit: .*wqkv is 512 × 256, the base has 1024 × 512 in 2 layers"),
        ({"num_hidden_layers": 1}, "adapter and base do not fit: model.layers.1.attention.wqkv"),
        ({"model_type": "qwen2"}, "model_type: internlm2 or llama expected"),
        (None, r"wqkv of 512 × 256 .*heads of 128"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(
    changes: dict[str, Any] | None, message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    if changes is None:
        monkeypatch.setitem(ADAPTED, "wqkv", (500, 256))
        message = message.replace("512", "500")
    lora(tmp_path / "adapter")
    (tmp_path / "base.json").write_text(json.dumps(CONFIG | (changes or {})))
    with pytest.raises(UserError, match=message):
        convert_adapter(tmp_path / "adapter", tmp_path / "converted", tmp_path / "base.json" if changes else None)


# ---- the command


def test_the_command(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["serve", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            run_cli(command.app)
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    folder, llama, adapter = source(), tmp_path / "llama", tmp_path / "adapter"
    lora(adapter)
    assert call("convert", folder, llama)[:2] == (0, f"{llama}\n")
    code, out, err = call("convert", folder, llama)
    assert (code, out) == (0, "") and "already there" in err
    code, out, err = call("convert", adapter, tmp_path / "a", "--base", llama)
    assert (code, out) == (0, f"{tmp_path / 'a'}\n") and "128" not in err
    with_source = call("convert", adapter, tmp_path / "b", "--base", folder / "config.json")
    assert with_source[0] == 0
    assert [(tmp_path / n / "adapter_model.safetensors").read_bytes() for n in "ab"] == [
        (tmp_path / "a" / "adapter_model.safetensors").read_bytes()
    ] * 2
    code, out, err = call("convert", adapter, tmp_path / "c")
    assert code == 0 and "heads 128 wide" in err
    code, out, err = call("convert", tmp_path / "nowhere", tmp_path / "d")
    assert (code, out) == (2, "") and err.endswith("nowhere: no such folder, and not `embedded`\n")
