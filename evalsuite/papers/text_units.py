"""The units in which text metrics count a language."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Literal

from core.files import cache_dir
from core.languages import PAPER_LANGUAGES, counts, lineage
from core.records import Language

Unit = Literal["word", "character", "jieba", "13a", "char"]  # the last two: sacrebleu's names
BLEU_TOKENIZER: dict[Unit, str] = {"word": "13a", "character": "zh", "jieba": "none"}


def units(language: Language) -> tuple[Unit, ...]:
    """The units of a language."""
    base = lineage(language)[-1]
    if base in PAPER_LANGUAGES:
        return ("word",) if base == "en" else ("character", "jieba")
    return ("13a",) if counts(language) == "words" else ("char",)


@lru_cache(maxsize=4096)  # each supporter's replies are compared with the same references
def tokenize(text: str, unit: Unit) -> tuple[str, ...]:
    """A text's tokens, case kept: by sacrebleu's 13a (words) or `zh` (characters; Latin words stay whole), by jieba, or by
    sacrebleu's tokenizer of the unit's name."""
    if unit == "jieba":
        return tuple(token for token in _jieba().lcut(text) if token.strip())
    return tuple(bleu_with(BLEU_TOKENIZER.get(unit, unit), False).tokenizer(text.rstrip()).split())


@cache
def _jieba() -> Any:
    import jieba

    jieba.setLogLevel("WARNING")  # else it reports its loading on stderr
    tokenizer = jieba.Tokenizer()
    # It caches its parsed dictionary, by default in a folder that everybody may write to.
    cache_dir().mkdir(parents=True, exist_ok=True)
    tokenizer.tmp_dir = str(cache_dir())
    return tokenizer


@cache
def bleu_with(tokenizer: str, effective: bool) -> Any:
    """sacrebleu's BLEU with a tokenizer; `effective`: the mean leaves out orders that a short text lacks."""
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize=tokenizer, effective_order=effective)
