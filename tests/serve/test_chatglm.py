"""ChatGLM checkpoints without remote code: the tokenizer against SentencePiece, the whole by vLLM's own ChatGLM."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.errors import UserError
from core.specs import CHAT_TEMPLATES, load_spec
from serve.__main__ import app
from serve.checkpoints.sentencepiece import convert_chatglm, special_tokens
from tests.serve.conftest import SMALL_VLLM

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
sentencepiece = pytest.importorskip("sentencepiece")

LAYERS, HIDDEN, FEED, SIZE, HEADS, GROUPS, WIDTH = 2, 256, 320, 512, 4, 2, 64
CONFIG: dict[str, Any] = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "auto_map": {
        "AutoConfig": "configuration_chatglm.ChatGLMConfig",
        "AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration",
    },
    **{"num_layers": LAYERS, "hidden_size": HIDDEN, "ffn_hidden_size": FEED, "padded_vocab_size": SIZE, "kv_channels": WIDTH},
    **{"num_attention_heads": HEADS, "multi_query_attention": True, "multi_query_group_num": GROUPS, "seq_length": 512},
    **{"add_bias_linear": False, "add_qkv_bias": True, "rmsnorm": True, "post_layer_norm": True, "original_rope": True},
    **{"layernorm_epsilon": 1e-5, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False, "torch_dtype": "float32"},
}
PLAIN = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"]
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
# The published file's two ways to list its tokens, as far as they are read; running it is an error.
CODE = {
    2: f"raise SystemExit\ntokens = {json.dumps(PLAIN)}\n",
    3: f"raise SystemExit\nroles = {json.dumps(ROLES)}\ntokens = {json.dumps(PLAIN)} + roles\n",
}
TEXT = [
    "hello world how are you today",
    "my cat ran away and I cannot sleep",
    "我今天很难过，因为考试没过",
    "来访者：你好 咨询师：请说 对话 问 答",
]
Source = Callable[..., Path]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A tiny checkpoint with random weights in the published layout; `generation` 2 or 3."""

    def write(generation: int = 3, **changes: Any) -> Path:
        from safetensors.torch import save_file

        folder = tmp_path / f"source{generation}"
        folder.mkdir()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT * 20),
            **{"model_prefix": str(folder / "tokenizer"), "model_type": "bpe", "vocab_size": 400, "byte_fallback": True},
            **{"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
            **{"hard_vocab_limit": False, "minloglevel": 2},
        )
        (folder / "tokenizer.vocab").unlink()
        (folder / "tokenization_chatglm.py").write_text(CODE[generation])
        (folder / "config.json").write_text(json.dumps(CONFIG | changes))
        torch.manual_seed(0)

        def drawn(*shape: int) -> Any:
            return torch.randn(*shape) * 0.05

        rows = (HEADS + 2 * GROUPS) * WIDTH
        weights = {
            "transformer.embedding.word_embeddings.weight": drawn(SIZE, HIDDEN),
            "transformer.encoder.final_layernorm.weight": torch.ones(HIDDEN),
            "transformer.output_layer.weight": drawn(SIZE, HIDDEN),
            "transformer.rotary_pos_emb.inv_freq": torch.ones(WIDTH // 4),
        }
        for layer in range(LAYERS):
            weights |= {
                f"transformer.encoder.layers.{layer}.{name}.weight": tensor
                for name, tensor in (
                    ("input_layernorm", torch.ones(HIDDEN)),
                    ("post_attention_layernorm", torch.ones(HIDDEN)),
                    ("self_attention.query_key_value", drawn(rows, HIDDEN)),
                    ("self_attention.dense", drawn(HIDDEN, HEADS * WIDTH)),
                    ("mlp.dense_h_to_4h", drawn(2 * FEED, HIDDEN)),
                    ("mlp.dense_4h_to_h", drawn(HIDDEN, FEED)),
                )
            } | {f"transformer.encoder.layers.{layer}.self_attention.query_key_value.bias": drawn(rows)}
        save_file(weights, folder / "model.safetensors")
        return folder

    return write


def loaded(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_a_chat_has_the_ids_of_the_published_tokenizer(source: Source, tmp_path: Path) -> None:
    """[gMASK] sop, then role, line break and text as SentencePiece has them, and the assistant's token."""
    folder, out = source(), tmp_path / "plain"
    assert convert_chatglm(folder, out)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ids = {name: model.vocab_size() + place for place, name in enumerate([*PLAIN, *ROLES])}
    chat = [{"role": "user", "content": "my cat ran away"}, {"role": "assistant", "content": "我今天很难过"}]
    expected = [ids["[gMASK]"], ids["sop"]]
    for message in chat:
        expected += [ids[f"<|{message['role']}|>"], *model.encode("\n"), *model.encode(message["content"])]
    tokenizer = loaded(out)
    template = load_spec("chatglm3-6b").template()
    told = tokenizer.apply_chat_template(chat, chat_template=template, add_generation_prompt=True)["input_ids"]
    assert told == [*expected, ids["<|assistant|>"]]
    assert tokenizer("hello world")["input_ids"] == [ids["[gMASK]"], ids["sop"], *model.encode("hello world")]
    assert (
        tokenizer.eos_token_id == ids["<|user|>"] and tokenizer.decode(model.encode("hello world 你好")) == "hello world 你好"
    )
    assert "auto_map" not in json.loads((out / "config.json").read_text()) and not list(out.glob("*.py"))
    assert (out / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert not convert_chatglm(folder, out), "a second time there is nothing to do"


def test_mechats_template_is_its_authors_form(source: Source, tmp_path: Path) -> None:
    """ChatGLM2's first round around instruction and dialogue; without roles of its own, a reply ends with </s>."""
    folder, out = source(2), tmp_path / "plain"
    convert_chatglm(folder, out)
    tokenizer, template = loaded(out), load_spec("mechat").template()
    chat = [
        {"role": "system", "content": "请回复。"},
        {"role": "user", "content": "你好"},
        {"role": "assistant", "content": "请说"},
        {"role": "user", "content": "我很难过"},
    ]
    text = tokenizer.apply_chat_template(chat, chat_template=template, add_generation_prompt=True, tokenize=False)
    spoken = "来访者：你好\n咨询师：请说\n来访者：我很难过\n咨询师："
    assert text == f"[gMASK]sop[Round 1]\n\n问：请回复。\n\n对话：\n{spoken}\n\n答："
    ours = tokenizer.apply_chat_template(chat[1:], chat_template=template, add_generation_prompt=True, tokenize=False)
    assert ours.endswith(f"请为以下的对话生成一个回复。\n\n对话：\n{spoken}\n\n答：")
    assert special_tokens(folder) == PLAIN and tokenizer.eos_token == "</s>"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "not ChatGLM of the second or third generation: it describes another model"),
        ({"padded_vocab_size": 300}, r"tokenizer\.model: ids up to \d+, but config\.json's padded_vocab_size is 300"),
    ],
)
def test_what_is_no_chatglm_is_refused(changes: dict[str, Any], message: str, source: Source, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        convert_chatglm(source(**changes), tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_the_first_generation_is_named(source: Source, tmp_path: Path) -> None:
    folder = source()
    first = {key: value for key, value in CONFIG.items() if key != "padded_vocab_size"} | {"position_encoding_2d": True}
    (folder / "config.json").write_text(json.dumps(first))
    done = CliRunner().invoke(app, ["convert", str(folder), str(tmp_path / "plain")])
    assert isinstance(done.exception, UserError) and "the first generation, which nothing here serves" in str(done.exception)
    (folder / "tokenization_chatglm.py").unlink()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(UserError, match=r"published code \(for its list of special tokens\) not found"):
        convert_chatglm(folder, tmp_path / "plain")


ASK = """
import json, sys
from vllm import LLM, SamplingParams
folder, template, user = sys.argv[1], open(sys.argv[2]).read(), int(sys.argv[3])
llm = LLM(folder, dtype="float32", enforce_eager=True, max_model_len=128, gpu_memory_utilization=0.2, generation_config="vllm")
chat = [{"role": "user", "content": "my cat ran away"}]
free, ended = (llm.chat(chat, SamplingParams(temperature=0, max_tokens=8, logit_bias=bias), chat_template=template)[0]
               for bias in (None, {user: 100.0}))
(one,), (two,), name = free.outputs, ended.outputs, llm.llm_engine.model_config.architecture
print("ANSWER", json.dumps([name, list(free.prompt_token_ids), len(one.token_ids), two.finish_reason, list(two.token_ids)]))
"""


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllms_chatglm_takes_it_without_remote_code(source: Source, tmp_path: Path) -> None:
    out = tmp_path / "plain"
    convert_chatglm(source(), out)
    tokenizer = loaded(out)
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    command = [sys.executable, "-c", ASK, str(out), str(CHAT_TEMPLATES / "chatglm3.jinja"), str(user)]
    done = subprocess.run(command, env=SMALL_VLLM, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    answer = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER")).removeprefix("ANSWER ")
    architecture, prompt, length, reason, ended = json.loads(answer)
    told = tokenizer.apply_chat_template(
        [{"role": "user", "content": "my cat ran away"}],
        chat_template=load_spec("chatglm3-6b").template(),
        add_generation_prompt=True,
    )
    assert architecture == "ChatGLMModel" and prompt == told["input_ids"] and length >= 1
    assert reason == "stop" and ended == [user], "the next speaker's token ends a reply"
