"""InternLM2's SentencePiece model as a tokenizer.json that loads without remote code.

The published tokenizer is Python code beside the weights. It is simple: it cuts the text at added tokens and lets SentencePiece
encode the rest. Here the SentencePiece model (BPE) becomes a `tokenizers` one, which must give the same ids as SentencePiece on
probe sentences and on the text of every piece.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.errors import UserError, need_modules
from core.files import CONFIGS, read_bytes, read_object
from core.yaml_files import load_yaml

SPACE = "▁"  # SentencePiece's character for a space
BPE, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 1, 2, 3, 4, 6  # SentencePiece's numbers: model type, piece types
IM_END = "<|im_end|>"
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
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (src / name).is_file():
            settings |= read_object(src / name, "a tokenizer's settings")
    tokenizer, reference, decode, probes = from_sentencepiece(src / "tokenizer.model", settings)
    if (size := max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1) > vocab_size:
        raise UserError(f"{src}: the tokenizer has ids up to {size - 1}, config.json's vocab_size is {vocab_size}")
    special = {role: _content(settings[role]) for role in ROLE_TOKENS if settings.get(role)}
    length = settings.get("model_max_length")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **({"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"} | special),
        additional_special_tokens=[_content(token) for token in settings.get("additional_special_tokens") or []],
        clean_up_tokenization_spaces=False,
        chat_template=_chat_template(src, settings),
        **({"model_max_length": length} if isinstance(length, int) else {}),
    ).save_pretrained(dst)
    check_parity(src, AutoTokenizer.from_pretrained(dst), reference, decode, probes)
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


def from_sentencepiece(
    path: Path, settings: dict[str, Any]
) -> tuple[Any, Callable[[str], list[int]], Callable[[list[int]], str], list[str]]:
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
    """The probe sentences, and each added token alone, between words and between spaces."""
    sentences = load_yaml(CONFIGS / "serve" / "tokenizer_probes.yaml", "probe sentences")
    return [*sentences, *(text for name in added for text in (name, f"so{name}it", f"so {name} it", f"{name}\n{name}"))]


def check_parity(
    src: Path, written: Any, reference: Callable[[str], list[int]], decode: Callable[[list[int]], str], probes: list[str]
) -> None:
    """Raise `UserError` if the written tokenizer's ids or decoded text of any probe differ from the source's."""
    special = set(written.get_added_vocab().values())
    for text, ids in zip(probes, written(probes, add_special_tokens=False)["input_ids"], strict=True):
        if (expected := reference(text)) != ids:
            raise UserError(f"{src}: the converted tokenizer differs on {text!r}: ids {ids[:12]}, expected {expected[:12]}")
        if not special & set(ids) and (decoded := written.decode(ids)) != (original := decode(ids)):
            raise UserError(f"{src}: the converted tokenizer decodes {ids[:12]} to {decoded!r}, the source's to {original!r}")
