"""SentencePiece models of InternLM2 and ChatGLM as a tokenizer.json that loads without remote code.

The published tokenizers are Python code beside the weights. They are simple: they cut the text at added tokens and let
SentencePiece encode the rest. Here the SentencePiece model (BPE) becomes a `tokenizers` one, which must give the same ids as
SentencePiece on probe sentences and on the text of every piece.

vLLM has the model and config of ChatGLM's second and third generation. transformers 5 cannot run their tokenizer: its `_pad`
takes no `padding_side`. Their special tokens have the ids that follow SentencePiece's; the list is read from the published code
as text, which is never run. Weights are linked or copied.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.errors import UserError, need_modules
from core.files import CONFIGS, read_bytes, read_object, write_json
from core.settings import load_yaml
from serve.checkpoints.folders import build_folder, folder_content
from serve.checkpoints.tensors import INDEX, check_checkpoint, check_finite, weight_files

SPACE = "▁"  # SentencePiece's character for a space
BPE, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 1, 2, 3, 4, 6  # SentencePiece's numbers: model type, piece types
IM_END = "<|im_end|>"
_Converted = tuple[Any, Callable[[str], list[int]], Callable[[list[int]], str], list[str]]
ROLE_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
CHATML = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>"
    "\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def convert_tokenizer(src: Path, dst: Path, vocab_size: int) -> int | None:
    """Write the tokenizer of an InternLM2 folder for AutoTokenizer; returns the id of `<|im_end|>`, or None without one.

    The chat template is the source's own, else ChatML after the beginning-of-sequence token. Raises `UserError` if there is no
    BPE `tokenizer.model`, for ids from `vocab_size` on, and if the ids or text of any probe differ from the source's.
    """
    need_modules("tokenizers", "transformers", "sentencepiece", "google", purpose="converting a tokenizer")
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (src / name).is_file():
            settings |= read_object(src / name, "a tokenizer's settings")
    converted = from_sentencepiece(src / "tokenizer.model", settings)
    tokenizer = converted[0]
    if (size := max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1) > vocab_size:
        raise UserError(f"{src}: the tokenizer has ids up to {size - 1}, config.json's vocab_size is {vocab_size}")
    special = {role: _content(settings[role]) for role in ROLE_TOKENS if settings.get(role)}
    length = settings.get("model_max_length")
    save_tokenizer(
        src,
        dst,
        converted,
        **({"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"} | special),
        additional_special_tokens=[_content(token) for token in settings.get("additional_special_tokens") or []],
        chat_template=_chat_template(src, settings),
        **({"model_max_length": length} if isinstance(length, int) else {}),
    )
    end_of_turn: int | None = tokenizer.token_to_id(IM_END)
    return end_of_turn


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _chat_template(src: Path, settings: dict[str, Any]) -> str:
    file, template = src / "chat_template.jinja", settings.get("chat_template")
    if file.is_file():
        return file.read_text(encoding="utf-8")
    if isinstance(template, list):  # several named templates
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return str(template) if template else CHATML


def from_sentencepiece(path: Path, settings: dict[str, Any]) -> _Converted:
    """The tokenizer, the source's encoder and decoder, and the texts for the comparison."""
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    proto, content = sentencepiece_model_pb2.ModelProto(), read_bytes(path, "the SentencePiece model")  # type: ignore[attr-defined]
    try:
        proto.ParseFromString(content)
        processor = SentencePieceProcessor(model_proto=proto.SerializeToString())
    except Exception as error:  # protobuf's and sentencepiece's errors have no common base
        raise UserError(f"{path}: not a SentencePiece model: {error}") from None
    if proto.trainer_spec.model_type != BPE or not proto.normalizer_spec.escape_whitespaces:
        raise UserError(f"{path}: not a BPE model that marks spaces, like the published one")
    added = _added_tokens(path, proto, settings)
    tokenizer = _bpe(proto, added, settings)
    for number, token in added.items():
        if (actual := tokenizer.token_to_id(token["content"])) != number:
            raise UserError(f"{path.parent}: added token {token['content']} should have id {number}, it would get {actual}")
    names = {token["content"]: number for number, token in added.items()}

    def reference(text: str) -> list[int]:
        cut = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
        ids: list[int] = []
        start = 0
        for token in cut.finditer(text):
            ids += [*processor.encode(text[start : token.start()]), names[token[0]]]
            start = token.end()
        return ids + list(processor.encode(text[start:]))

    texts = [p.piece.replace(SPACE, " ") for i, p in enumerate(proto.pieces) if p.type == NORMAL and i not in added]
    return tokenizer, reference, lambda ids: str(processor.decode(ids)), [*_probes(list(names)), *texts]


def _added_tokens(path: Path, proto: Any, settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Tokens that are cut out of a text before encoding, by id: the config's, then special ones that it only names."""
    added: dict[int, dict[str, Any]] = {}
    for number, entry in sorted((settings.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0])):
        added[int(number)] = {"content": entry["content"], "special": bool(entry.get("special", True))}
        if entry.get("lstrip") or entry.get("rstrip") or entry.get("single_word"):
            raise UserError(f"{path.parent}: added token {entry['content']} absorbs its surroundings, which is not supported")
    pieces = {p.piece: number for number, p in enumerate(proto.pieces)}
    named = [_content(settings[role]) for role in ROLE_TOKENS if settings.get(role)]
    named += [p.piece for p in proto.pieces if p.type in {CONTROL, UNKNOWN}]
    named += [_content(token) for token in settings.get("additional_special_tokens") or []]
    for name in dict.fromkeys(named):
        if name in {token["content"] for token in added.values()}:
            continue
        if name not in pieces:
            raise UserError(f"{path.parent}: special token {name} has no id in tokenizer_config.json's added_tokens_decoder")
        if pieces[name] not in added:
            added[pieces[name]] = {"content": name, "special": True}
    return dict(sorted(added.items()))


def _bpe(proto: Any, added: dict[int, dict[str, Any]], settings: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

    pieces = [added[number]["content"] if number in added else p.piece for number, p in enumerate(proto.pieces)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    unknown = next(pieces[number] for number, p in enumerate(proto.pieces) if p.type == UNKNOWN)
    byte_fallback = any(p.type == BYTE for p in proto.pieces)
    tokenizer = Tokenizer(
        models.BPE(vocabulary, _merges(proto, added), unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)
    )
    rules = proto.normalizer_spec
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if rules.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if rules.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    reserved = [p.piece for number, p in enumerate(proto.pieces) if p.type == USER_DEFINED and number not in added]
    contents = [*((token["content"], token["special"]) for token in added.values()), *((piece, False) for piece in reserved)]
    tokenizer.add_tokens([AddedToken(content, normalized=False, special=special) for content, special in contents])
    begin = _content(settings.get("bos_token") or "<s>")
    if settings.get("add_bos_token", True):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
    return tokenizer


def _merges(proto: Any, added: dict[int, dict[str, Any]]) -> list[tuple[str, str]]:
    """Every composition of a piece from two others, best score first: the order in which SentencePiece tries them."""
    scores = {p.piece: p.score for number, p in enumerate(proto.pieces) if p.type == NORMAL and number not in added}
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(scores, key=lambda piece: -scores[piece])
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]


def _probes(added: list[str]) -> list[str]:
    sentences = load_yaml(CONFIGS / "serve" / "tokenizer_probes.yaml", "probe sentences")
    return [*sentences, *(text for name in added for text in (name, f"so{name}it", f"so {name} it", f"{name}\n{name}"))]


def save_tokenizer(src: Path, dst: Path, converted: _Converted, **fields: Any) -> None:
    """Write a tokenizer. Raises `UserError` if the ids or decoded text of any probe differ from the source's."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer, reference, decode, probes = converted
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **fields).save_pretrained(dst)
    written = AutoTokenizer.from_pretrained(dst)
    special = set(written.get_added_vocab().values())
    for text, ids in zip(probes, written(probes, add_special_tokens=False)["input_ids"], strict=True):
        if (expected := reference(text)) != ids:
            raise UserError(f"{src}: the converted tokenizer differs on {text!r}: ids {ids[:12]}, expected {expected[:12]}")
        if not special & set(ids) and (decoded := written.decode(ids)) != (original := decode(ids)):
            raise UserError(f"{src}: the converted tokenizer decodes {ids[:12]} to {decoded!r}, the source's to {original!r}")


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

    path = src / _MODEL
    try:
        first = SentencePieceProcessor(model_proto=read_bytes(path, "the tokenizer's SentencePiece model")).vocab_size()
    except RuntimeError as error:
        raise UserError(f"{path}: not a SentencePiece model: {error}") from None
    if first + len(special) > size:
        raise UserError(f"{path}: ids up to {first + len(special) - 1}, but config.json's padded_vocab_size is {size}")
    added = {str(first + place): {"content": name, "special": True} for place, name in enumerate(special)}
    settings = {"added_tokens_decoder": added, "add_bos_token": False}
    converted = from_sentencepiece(path, settings)
    tokenizer = converted[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([*PREFIX, "$A"]), special_tokens=[(name, tokenizer.token_to_id(name)) for name in PREFIX]
    )
    # The third generation ends a reply with the next speaker's token, the second with SentencePiece's own.
    end = USER if USER in special else "</s>"
    others = [name for name in special if name != end]
    tokens = {"unk_token": "<unk>", "pad_token": "<unk>", "eos_token": end, "additional_special_tokens": others}
    save_tokenizer(src, target, converted, **tokens, padding_side="left")
    ends = [tokenizer.token_to_id(name) for name in (end, "</s>", OBSERVATION) if name in tokenizer.get_vocab()]
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": list(dict.fromkeys(ends))}))
