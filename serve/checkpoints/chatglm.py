"""ChatGLM checkpoints of the second and third generation, loaded without remote code.

vLLM has the model and its config. The tokenizer is Python code beside the weights, which transformers 5 cannot run: its `_pad`
takes no `padding_side`. It is simple: SentencePiece, with special tokens at the ids that follow. So it becomes a
tokenizer.json, which must give the same ids as SentencePiece (`internlm2_tokenizer`). Weights are linked or copied. The list of
special tokens is read from the published code as text; the code is never run.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from core.errors import UserError, need_modules
from core.files import read_bytes, read_object, write_json
from serve.checkpoints.folders import build_folder, folder_content
from serve.checkpoints.internlm2_tokenizer import check_parity, from_sentencepiece
from serve.checkpoints.tensors import INDEX, check_checkpoint, check_finite, weight_files

CONVERSION = 1  # raise it when the conversion changes what it writes
PREFIX = ("[gMASK]", "sop")  # the beginning of every text
USER, OBSERVATION = "<|user|>", "<|observation|>"
_CODE, _MODEL = "tokenization_chatglm.py", "tokenizer.model"
_QUOTED = re.compile(r"\"(\[\w+\]|[se]op|<\|\w+\|>)\"")


def convert_chatglm(src: Path, dst: Path) -> bool:
    """Write the checkpoint in `src`, with a tokenizer that needs no code, to the folder `dst`; False if it exists already.
    Raises `UserError`, and writes nothing, for another model, half-written weights, and a tokenizer that differs on a probe."""
    need_modules("tokenizers", "transformers", "sentencepiece", "google", purpose="converting a tokenizer")
    check_checkpoint(src, "checkpoint")
    config = read_object(src / "config.json", "a model's config")
    if config.get("model_type") != "chatglm" or "padded_vocab_size" not in config:
        what = "the first generation, which nothing here serves" if config.get("position_encoding_2d") else "another model"
        raise UserError(f"{src / 'config.json'}: not ChatGLM of the second or third generation: it describes {what}")
    check_finite(weight_files(src), "checkpoint")
    special = special_tokens(src)
    made_from = {"conversion": CONVERSION, "source": folder_content(src), "special": special}
    return build_folder(dst, src, made_from, lambda target: _build(src, target, config, special))


def special_tokens(src: Path) -> list[str]:
    """The special tokens in the published code, in the order of their ids."""
    code = read_bytes(src / _CODE, "the tokenizer's published code (for its list of special tokens)")
    names = dict.fromkeys(_QUOTED.findall(code.decode(errors="replace")))
    plain = [name for name in names if not name.startswith("<|")]
    roles = [name for name in names if name.startswith("<|")]
    if not set(PREFIX) <= set(plain):
        raise UserError(f"{src / _CODE}: does not list the special tokens {' and '.join(PREFIX)}")
    return [*plain, *roles]


def _build(src: Path, target: Path, config: dict[str, Any], special: list[str]) -> None:
    fields = {key: value for key, value in config.items() if key != "auto_map"}
    write_json(target / "config.json", fields | {"architectures": ["ChatGLMModel"]})
    for file in [*weight_files(src), src / INDEX]:
        if file.is_file():
            try:
                os.link(file.resolve(), target / file.name)
            except OSError:  # another disk
                shutil.copyfile(file, target / file.name)
    _write_tokenizer(src, target, special, int(config["padded_vocab_size"]))


def _write_tokenizer(src: Path, target: Path, special: list[str], size: int) -> None:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import processors
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = src / _MODEL
    try:
        first = SentencePieceProcessor(model_proto=read_bytes(path, "the tokenizer's SentencePiece model")).vocab_size()
    except RuntimeError as error:
        raise UserError(f"{path}: not a SentencePiece model: {error}") from None
    if first + len(special) > size:
        raise UserError(f"{path}: ids up to {first + len(special) - 1}, but config.json's padded_vocab_size is {size}")
    added = {str(first + place): {"content": name, "special": True} for place, name in enumerate(special)}
    settings = {"added_tokens_decoder": added, "add_bos_token": False}
    tokenizer, reference, decode, probes = from_sentencepiece(path, settings)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([*PREFIX, "$A"]), special_tokens=[(name, tokenizer.token_to_id(name)) for name in PREFIX]
    )
    # The third generation ends a reply with the next speaker's token, the second with SentencePiece's own.
    end = USER if USER in special else "</s>"
    others = [name for name in special if name != end]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<unk>",
        eos_token=end,
        additional_special_tokens=others,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    ).save_pretrained(target)
    check_parity(src, AutoTokenizer.from_pretrained(target), reference, decode, probes)
    ends = [tokenizer.token_to_id(name) for name in (end, "</s>", OBSERVATION) if name in tokenizer.get_vocab()]
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": list(dict.fromkeys(ends))}))
