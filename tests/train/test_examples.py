"""The marked ChatML template, token by token."""

from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.records import Message
from serve.checkpoints.places import materialise
from train.examples import IGNORED, encode, encode_prompt, serves_alike, template_of

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
