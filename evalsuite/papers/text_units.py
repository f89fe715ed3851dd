"""What text metrics count a language in."""

from __future__ import annotations

import importlib.util
from functools import cache, lru_cache
from typing import Any, Literal

from core.files import cache_dir
from core.languages import PAPER_LANGUAGES, counts, lineage
from core.records import Language

Unit = Literal["word", "character", "jieba", "13a", "char", "ja-mecab", "ko-mecab"]  # the last four: sacrebleu's names
BLEU_TOKENIZER: dict[Unit, str] = {"word": "13a", "character": "zh", "jieba": "none"}
_MECAB: dict[Language, tuple[str, Unit]] = {"ja": ("ipadic", "ja-mecab"), "ko": ("mecab_ko", "ko-mecab")}  # what each needs


def units(language: Language) -> tuple[Unit, ...]:
    """What a language is counted in. Japanese and Korean are cut by MeCab where it is installed."""
    base = lineage(language)[-1]
    if base in PAPER_LANGUAGES:
        return ("word",) if base == "en" else ("character", "jieba")
    if base in _MECAB and importlib.util.find_spec(_MECAB[base][0]):
        return (_MECAB[base][1],)
    return ("13a",) if counts(language) == "words" else ("char",)


@lru_cache(maxsize=4096)  # references come back once a supporter
def tokenize(text: str, unit: Unit) -> tuple[str, ...]:
    """A text's tokens, case kept: sacrebleu's 13a (words) or `zh` (characters; Latin words stay whole), jieba's words, or what
    sacrebleu's tokenizer of the unit's name gives."""
    if unit == "jieba":
        return tuple(token for token in _jieba().lcut(text) if token.strip())
    return tuple(bleu_with(BLEU_TOKENIZER.get(unit, unit), False).tokenizer(text.rstrip()).split())


@cache
def _jieba() -> Any:
    import jieba

    jieba.setLogLevel("WARNING")  # else it reports its loading on stderr
    words = jieba.Tokenizer()
    # Its parsed dictionary is kept between runs, by default in a folder where anyone could have put one.
    cache_dir().mkdir(parents=True, exist_ok=True)
    words.tmp_dir = str(cache_dir())
    return words


@cache
def bleu_with(tokenizer: str, effective: bool) -> Any:
    """sacrebleu's BLEU with a tokenizer; `effective`: orders that a short text lacks are left out of the mean."""
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize=tokenizer, effective_order=effective)
