"""Metrics of replies against reference replies: those that tables 3 and 13 to 15 of ESC-Eval and table 3 of FEEL hold against
people.

BLEU-1/2/4 (sacrebleu), ROUGE-1/2/L F1 (rouge-score), METEOR (nltk) and Distinct-1/2 (Li et al., NAACL 2016), all on 0–100. The
papers do not say how they counted; `signature` says how it was done here. English is counted in words, Chinese twice: in
characters and in jieba's words. This module is about single replies; `text_figures` makes a supporter's figures of them.

- A refused, empty or overflowing reply counts with the text there is: without any, 0 against its reference.
- A reply that was never given (the server failed) is measured by nothing.
- What is not defined is None: Distinct-2 of a one-word reply, ROUGE-2 against a one-word reference, anything against a
  reference where there is none.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any, Literal

from core.errors import need_modules
from core.files import cache_dir
from core.records import Judgement, Language
from data_prep.responses import Response

BLEU_ORDERS = {"bleu_1": 1, "bleu_2": 2, "bleu_4": 4}
ROUGES = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # rouge-score's names
DISTINCT_ORDERS = {"distinct_1": 1, "distinct_2": 2}
LABELS = {
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_4": "BLEU-4",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR",
    "distinct_1": "Distinct-1",
    "distinct_2": "Distinct-2",
}
RUBRIC = "text_metrics"

Unit = Literal["word", "character", "jieba"]
UNITS: dict[Language, tuple[Unit, ...]] = {"en": ("word",), "zh": ("character", "jieba")}
_BLEU_TOKENIZER: dict[Unit, str] = {"word": "13a", "character": "zh", "jieba": "none"}


@dataclass(frozen=True)
class Sample:
    """One reply in one unit of counting.

    `values` maps every metric to 0–100 or None. `ngrams` holds, per order of Distinct, the reply's n-grams with their counts;
    `bleu` is sacrebleu's sufficient statistics (matches of order 1–4, n-grams of order 1–4, length, reference's length), None
    without a reference.
    """

    response: Response
    unit: Unit
    values: Mapping[str, float | None]
    ngrams: Mapping[int, Counter[tuple[str, ...]]]
    bleu: tuple[int, ...] | None


def need_metrics(languages: Iterable[Language]) -> None:
    """Raise one `UserError` when a package that these languages' figures need is not installed."""
    need_modules("sacrebleu", "rouge_score", "nltk", *(["jieba"] if "zh" in languages else []), purpose="counting text metrics")


def measure(responses: Iterable[Response]) -> list[Sample]:
    """Every reply that was given, in each unit of its language, in order.

    Raises `UserError` when a package is missing.
    """
    replies = [response for response in responses if not response.lost]
    need_metrics({response.language for response in replies})
    return [_sample(response, unit) for response in replies for unit in UNITS[response.language]]


def _sample(response: Response, unit: Unit) -> Sample:
    text, reference = response.text, response.reference
    tokens = tokenize(text, unit)
    ngrams = {order: Counter(_ngrams(tokens, order)) for order in DISTINCT_ORDERS.values()}
    values: dict[str, float | None] = {metric: None for metric in LABELS}
    for metric, order in DISTINCT_ORDERS.items():
        if total := ngrams[order].total():
            values[metric] = 100 * len(ngrams[order]) / total
    if reference is None:
        return Sample(response, unit, values, ngrams, None)
    against = tokenize(reference, unit)
    # One pass at order 4 holds the counts of the lower orders too. Already cut texts are not cut again ("none").
    counted = _bleu("none", True).sentence_score(" ".join(tokens), [" ".join(against)])
    stats = (*counted.counts, *counted.totals, counted.sys_len, counted.ref_len)
    for metric, order in BLEU_ORDERS.items():
        values[metric] = bleu_of(stats, order, effective=True)
    rouge = _rouge(unit).score(reference, text)
    values |= {metric: 100 * rouge[name].fmeasure for metric, name in ROUGES.items()}
    if not values["rouge_2"] and not _rouge(unit).score(reference, reference)["rouge2"].fmeasure:
        values["rouge_2"] = None  # no pair of words that a reply could share
    values["meteor"] = 100 * _meteor(against, tokens, unit)
    return Sample(response, unit, values, ngrams, stats)


def rouge_l(text: str, reference: str, unit: Unit) -> float:
    """ROUGE-L F1 of one text, 0 to 1."""
    return float(_rouge(unit).score(reference, text)["rougeL"].fmeasure)


def _ngrams(tokens: Sequence[str], order: int) -> Iterable[tuple[str, ...]]:
    return zip(*(tokens[start:] for start in range(order)), strict=False)


@lru_cache(maxsize=4096)  # references come back once a supporter
def tokenize(text: str, unit: Unit) -> tuple[str, ...]:
    """A text's tokens, case kept: sacrebleu's 13a (words) or `zh` (characters; Latin words stay whole), or jieba's words."""
    if unit == "jieba":
        return tuple(token for token in _jieba().lcut(text) if token.strip())
    return tuple(_bleu(_BLEU_TOKENIZER[unit], False).tokenizer(text.rstrip()).split())


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
def _bleu(tokenizer: str, effective: bool) -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize=tokenizer, effective_order=effective)


def bleu_of(stats: Sequence[int], order: int, effective: bool) -> float:
    """BLEU of an order from the statistics of order 4. `effective` (single replies): orders that a short text lacks are left
    out of the mean."""
    counted = _bleu("none", effective)
    score = counted.compute_bleu(
        correct=list(stats[:order]),
        total=list(stats[4 : 4 + order]),
        sys_len=stats[8],
        ref_len=stats[9],
        smooth_method=counted.smooth_method,
        effective_order=effective,
        max_ngram_order=order,
    ).score
    return min(float(score), 100.0)  # exp(log(100)) is a little more


@cache
def _rouge(unit: Unit) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGES.values()), use_stemmer=False, tokenizer=None if unit == "word" else _RougeTokens(unit))


@dataclass(frozen=True)
class _RougeTokens:
    """rouge-score's own tokenizer knows only a–z and 0–9; for Chinese: the same idea (lower case, no punctuation)."""

    unit: Unit

    def tokenize(self, text: str) -> list[str]:
        return [token.lower() for token in tokenize(text, self.unit) if any(sign.isalnum() for sign in token)]


# In the place of WordNet where its data are not there, or say nothing about the language.
_NO_SYNONYMS = SimpleNamespace(synsets=lambda word: [])


@cache
def _synonyms() -> Any | None:
    """nltk's WordNet, or None when its data are not on this machine; nothing is downloaded."""
    from nltk.corpus import wordnet

    try:
        wordnet.synsets("help")
    except LookupError:
        return None
    return wordnet


@cache
def _stems() -> Any:
    """Porter's stemmer; each word is stemmed once."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=lru_cache(maxsize=1 << 16)(PorterStemmer().stem))


def _meteor(reference: Sequence[str], tokens: Sequence[str], unit: Unit) -> float:
    from nltk.translate.meteor_score import single_meteor_score

    synonyms = (_synonyms() if unit == "word" else None) or _NO_SYNONYMS
    return float(single_meteor_score(reference, tokens, stemmer=_stems(), wordnet=synonyms))


@cache
def signature(unit: Unit) -> dict[str, str]:
    """How each metric was counted, with the libraries' versions: sacrebleu's own signature for BLEU, words for the others."""
    version = importlib.metadata.version
    bleu = {}
    for name, effective in (("bleu", False), ("bleu of one reply", True)):
        counted = _bleu(_BLEU_TOKENIZER[unit], effective)
        counted.corpus_score(["a"], [["a"]])  # it signs only what it has scored
        signed = counted.get_signature()
        if unit == "jieba":
            signed.update("tok", f"jieba-{version('jieba')}")
        bleu[name] = str(signed)
    cut = {"word": "own tokenizer", "character": "characters without punctuation", "jieba": "jieba's words without punctuation"}
    if unit != "word":
        matchers = "exact, Porter stems of Latin words; no synonyms for Chinese"
    else:
        # nltk asks WordNet about what its stemmer left: words that a stem is not (happy, happi) find no synonym.
        synonyms = "WordNet synonyms of stems" if _synonyms() else "no synonyms (no WordNet data here)"
        matchers = f"exact, Porter stems, {synonyms}"
    return bleu | {
        "rouge": f"rouge-score {version('rouge-score')}: F1, lower case, {cut[unit]}, no stemming",
        "meteor": f"nltk {version('nltk')}: {matchers}; lower case, BLEU's tokens, alpha 0.9, beta 3, gamma 0.5",
        "distinct": "different n-grams / n-grams; BLEU's tokens, case kept",
    }


def judgements(samples: Iterable[Sample]) -> Iterator[Judgement]:
    """Every reply's values as verdicts on its turn, for correlation with people's scores.

    Judge `bleu-1`, dimension `bleu_1`; in Chinese with the unit behind (`bleu-1-jieba`, `bleu_1_jieba`). `condition.supporter`
    names whose reply it was, since a dialogue that others held knows only its own supporter. An undefined figure has value null
    and `condition.failure` "undefined".
    """
    for sample in samples:
        for metric, value in sample.values.items():
            dimension = metric if sample.unit == "word" else f"{metric}_{sample.unit}"
            condition = {"supporter": sample.response.supporter} | ({} if value is not None else {"failure": "undefined"})
            yield Judgement(
                dialogue_id=sample.response.dialogue_id,
                language=sample.response.language,
                judge=dimension.replace("_", "-"),
                rubric=RUBRIC,
                dimension=dimension,
                value=value,
                turn=sample.response.turn,
                condition=condition,
            )
