"""InternLM2 in Llama layout: tiny random checkpoints against a plain forward pass, tokenizers, what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from serve.checkpoints.internlm2 import convert_checkpoint
from serve.checkpoints.sentencepiece import _merges
from serve.checkpoints.tensors import check_checkpoint
from tests.serve.conftest import tensors
from tests.serve.internlm2 import CONFIG, SIZES, TOKENS, forward, rewrite, save_checkpoint, weights

torch = pytest.importorskip("torch")
sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.slow

SENTENCES = [
    "I keep waking up at night and then I worry until morning.",
    "It helps to talk. What happened at work, 3 days ago or 12?",
    "my sister and I fought again, she does not answer any more",
    "夜里总是醒来，心里很乱。",
    "你愿意说说发生了什么吗？我在听。",
    "the the then than that there  and and  \n\nso so\n",
]


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
    """Writes a checkpoint with a tokenizer; returns its folder."""

    def write(name: str = "source", dtype: Any = None, **changes: Any) -> Path:
        return save_checkpoint(shutil.copytree(tokenizer_files, tmp_path / name), dtype, **changes)

    return write


# ---- checkpoints


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": True, "tie_word_embeddings": True},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "linear", "factor": 4}},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
    ],
)
def test_the_converted_model_gives_the_same_logits(changes: dict[str, Any], source: Source, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = source(**changes)
    assert convert_checkpoint(folder, tmp_path / "llama") and not convert_checkpoint(folder, tmp_path / "llama")
    check_checkpoint(tmp_path / "llama", "converted")
    assert len(list((tmp_path / "llama").glob("*.safetensors"))) == 2
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
    stored = safetensors.load_file(tmp_path / "llama" / "model-00001-of-00002.safetensors")
    assert {str(tensor.dtype) for tensor in stored.values()} == {"torch.bfloat16"}
    config = AutoConfig.from_pretrained(tmp_path / "llama")
    renamed = {"bias": "attention_bias"}
    for key, value in SIZES.items():
        if key != "rope_theta":
            assert getattr(config, renamed.get(key, key)) == value, key
    assert config.rope_parameters == {"rope_theta": 1000, "rope_type": "dynamic", "factor": 3.0}
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.head_dim) == (1, 2, 2, 64)
    assert str(config.dtype) == "torch.bfloat16"


def edit_shard(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    held = safetensors.load_file(path)
    change(held)
    safetensors.save_file(held, path)


WQKV = "model.layers.0.attention.wqkv.weight"
BAD_CHECKPOINTS: dict[str, tuple[Callable[[Path], Any] | dict[str, Any], str]] = {  # a dictionary: changes of config.json
    "no config": (lambda f: (f / "config.json").unlink(), "source has no config.json"),
    "config cut off": (lambda f: (f / "config.json").write_text('{"a": 1'), r"config\.json:1: malformed JSON"),
    "other model": ({"model_type": "qwen2"}, "model_type: internlm2 expected, got 'qwen2'"),
    "reward model": ({"architectures": ["InternLM2ForRewardModel"]}, "architectures: only a causal language model"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config: quantised"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads: .*greater than 0"),
    "uneven heads": ({"num_key_value_heads": 3}, "num_attention_heads: 4 heads do not fit"),
    "scaling unknown": ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: type: expected linear or dynamic .* got 'yarn'"),
    "scaling by words": ({"rope_scaling": {"type": "dynamic", "factor": "two"}}, "a number of at least 1, got 'two'"),
    "bias promised": ({"bias": True}, "lacks tensors .*wqkv.bias"),
    "embeddings promised": ({"vocab_size": 300}, "config.json wants .300, 256."),
    "shard missing": (lambda f: (f / "model-00002-of-00002.safetensors").unlink(), "lacks model-00002-of-00002.safetensors"),
    "shard cut off": (lambda f: tensors(f / "model-00002-of-00002.safetensors", cut=2), "safetensors is cut off or damaged"),
    "tensor missing": (lambda f: edit_shard(f, lambda t: t.pop(WQKV)), f"lacks tensors .*: {WQKV} .1 in all"),
    "tensor foreign": (lambda f: edit_shard(f, lambda t: t.update(x=torch.ones(2))), "does not call for: x .1 in all"),
    "tensor twice": (
        lambda f: edit_shard(f, lambda t: t.update({"output.weight": torch.ones(480, 256)})),
        "output.weight is also in model-00001",
    ),
    "tensor of integers": (
        lambda f: edit_shard(f, lambda t: t.update({WQKV: torch.ones(512, 256, dtype=torch.int8)})), "dtype I8 unsupported",
    ),
    "tensor undefined": (
        lambda f: edit_shard(f, lambda t: t[WQKV].fill_(torch.nan)), "_proj.weight contains infinite or undefined numbers",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.model").unlink(), "SentencePiece model not found"),
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
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CHECKPOINTS)
def test_bad_checkpoints_are_refused_and_nothing_is_written(case: str, source: Source, tmp_path: Path) -> None:
    spoil, message = BAD_CHECKPOINTS[case]
    folder = source()
    if isinstance(spoil, dict):
        rewrite(folder / "config.json", **spoil)
    else:
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


def test_the_sources_template_and_generation_config_are_taken_over(source: Source, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = source("newer")
    rewrite(folder / "tokenizer_config.json", chat_template="{{ messages[0]['content'] }}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], "max_length": 50}))
    convert_checkpoint(folder, tmp_path / "newer-llama")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "newer-llama")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "mine"}], tokenize=False) == "mine"
    stops = json.loads((tmp_path / "newer-llama" / "generation_config.json").read_text())
    assert stops == {"bos_token_id": 1, "eos_token_id": [2, 3], "max_length": 50, "pad_token_id": 2}


def test_any_difference_between_tokenizers_refuses(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.checkpoints.sentencepiece._merges", lambda *given: _merges(*given)[::-1])
    with pytest.raises(UserError, match="the converted tokenizer differs on .*expected"):
        convert_checkpoint(source(), tmp_path / "llama")
    assert not (tmp_path / "llama").exists()
