"""Metrics of replies against references, which tables 3 and 13 to 15 of ESC-Eval and table 3 of FEEL compare with people.

BLEU-1/2/4 (sacrebleu), ROUGE-1/2/L F1 (rouge-score), METEOR (nltk) and Distinct-1/2 (Li et al., NAACL 2016), all on 0–100. The
papers do not say how they counted; `signature` says how it is done here. English is counted in words, Chinese twice, in
characters and in jieba's words, every other language in sacrebleu's words or characters for it (`units`).

- A refused, empty or overflowing reply counts with its text; without any text, it has 0 against its reference.
- A reply that was never given (the server failed) is in no metric.
- Undefined values are None: Distinct-2 of a one-word reply, ROUGE-2 against a one-word reference, all but Distinct without a
  reference.
"""

import importlib.metadata
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np

from core.errors import need_modules
from core.files import cache_dir
from core.grouping import group_by
from core.languages import PAPER_LANGUAGES, counts, lineage
from core.languages import cut as cut_by_language
from core.records import Judgement, Language
from core.statistics.bootstrap import LEVEL, PERCENTILE, SMOOTHED, Floats, estimate, resampled_means
from core.tables import Cell, Estimate, Table, json_record
from data_prep.responses import Response
from evalsuite.statistics.paired import over_cards

Unit = Literal["word", "character", "jieba", "13a", "char"]  # the last two: sacrebleu's names
BLEU_TOKENIZER: dict[Unit, str] = {"word": "13a", "character": "zh", "jieba": "none"}
BLEU_ORDERS = {"bleu_1": 1, "bleu_2": 2, "bleu_4": 4}
ROUGES = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}  # rouge-score's names
DISTINCT_ORDERS = {"distinct_1": 1, "distinct_2": 2}
LABELS = {name: name.upper().replace("_", "-") for name in (*BLEU_ORDERS, *ROUGES, "meteor")}
LABELS |= {name: name.capitalize().replace("_", "-") for name in DISTINCT_ORDERS}
RUBRIC = "text_metrics"


# --- the units in which a language is counted -------------------------------------------------------------------------------


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


# --- every reply ------------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """One reply in one unit of counting.

    `values`: metric → 0–100 or None. `ngrams`: order of Distinct → the reply's n-grams with counts. `bleu`: sacrebleu's
    sufficient statistics (matches of order 1–4, n-grams of order 1–4, length, reference's length), None without a reference.
    """

    response: Response
    unit: Unit
    values: Mapping[str, float | None]
    ngrams: Mapping[int, Counter[tuple[str, ...]]]
    bleu: tuple[int, ...] | None


def need_metrics(languages: Iterable[Language]) -> None:
    """Raise `UserError` if a package that these languages' metrics need is not installed."""
    jieba = ["jieba"] if any("jieba" in units(language) for language in languages) else []
    need_modules("sacrebleu", "rouge_score", "nltk", *jieba, purpose="counting text metrics")


def measure(responses: Iterable[Response]) -> list[Sample]:
    """Every reply that was given, in each unit of its language, in order. Raises `UserError` if a package is missing."""
    replies = [response for response in responses if not response.lost]
    need_metrics({response.language for response in replies})
    return [_sample(response, unit) for response in replies for unit in units(response.language)]


def _sample(response: Response, unit: Unit) -> Sample:
    from nltk.translate.meteor_score import single_meteor_score

    text, reference = response.text, response.reference
    tokens = tokenize(text, unit)
    ngrams = {n: Counter(zip(*(tokens[start:] for start in range(n)), strict=False)) for n in DISTINCT_ORDERS.values()}
    values: dict[str, float | None] = {metric: None for metric in LABELS}
    for metric, order in DISTINCT_ORDERS.items():
        if total := ngrams[order].total():
            values[metric] = 100 * len(ngrams[order]) / total
    if reference is None:
        return Sample(response, unit, values, ngrams, None)
    against = tokenize(reference, unit)
    # A pass at order 4 also has the counts of lower orders. The texts are tokenized already ("none").
    bleu = bleu_with("none", True).sentence_score(" ".join(tokens), [" ".join(against)])
    stats = (*bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len)
    values |= {metric: bleu_of(stats, order, effective=True) for metric, order in BLEU_ORDERS.items()}
    rouge = _rouge(unit).score(reference, text)
    values |= {metric: 100 * rouge[name].fmeasure for metric, name in ROUGES.items()}
    if not values["rouge_2"] and not _rouge(unit).score(reference, reference)["rouge2"].fmeasure:
        values["rouge_2"] = None  # the reference has no bigram to share
    synonyms = (_synonyms() if unit == "word" else None) or _NO_SYNONYMS
    stemmer = _stems() if unit in BLEU_TOKENIZER else _NO_STEMS
    values["meteor"] = 100 * float(single_meteor_score(against, tokens, stemmer=stemmer, wordnet=synonyms))
    return Sample(response, unit, values, ngrams, stats)


def rouge_l(text: str, reference: str, unit: Unit) -> float:
    """ROUGE-L F1 of one text, 0 to 1."""
    return float(_rouge(unit).score(reference, text)["rougeL"].fmeasure)


def bleu_of(stats: Sequence[int], order: int, effective: bool) -> float:
    """BLEU of an order from the statistics of order 4. `effective` (single replies): the mean leaves out orders that a short
    text lacks."""
    bleu = bleu_with("none", effective)
    score = bleu.compute_bleu(
        correct=list(stats[:order]),
        total=list(stats[4 : 4 + order]),
        sys_len=stats[8],
        ref_len=stats[9],
        smooth_method=bleu.smooth_method,
        effective_order=effective,
        max_ngram_order=order,
    ).score
    return min(float(score), 100.0)  # exp(log(100)) is slightly more


@cache
def _rouge(unit: Unit) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    tokenizer = None if unit == "word" else SimpleNamespace(tokenize=partial(_rouge_tokens, unit=unit))
    return RougeScorer(list(ROUGES.values()), use_stemmer=False, tokenizer=tokenizer)


def _rouge_tokens(text: str, unit: Unit) -> list[str]:
    """Tokens of other scripts like rouge-score's own (lower case, no punctuation), which only keep a–z and 0–9."""
    if unit == "13a":
        return cut_by_language(text, "en")
    return [token.lower() for token in tokenize(text, unit) if any(sign.isalnum() for sign in token)]


_NO_SYNONYMS = SimpleNamespace(synsets=lambda word: [])  # without WordNet's data, and for languages other than English
_NO_STEMS = SimpleNamespace(stem=lambda word: word)  # Porter's stemmer is for English


@cache
def _synonyms() -> Any | None:
    """nltk's WordNet, or None if its data are not on this machine; nothing is downloaded."""
    from nltk.corpus import wordnet

    try:
        wordnet.synsets("help")
    except LookupError:
        return None
    return wordnet


@cache
def _stems() -> Any:
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=lru_cache(maxsize=1 << 16)(PorterStemmer().stem))


@cache
def signature(unit: Unit) -> dict[str, str]:
    """How each metric was counted, with the libraries' versions: sacrebleu's own signature for BLEU, words for the others."""
    version = importlib.metadata.version
    bleu = {}
    for name, effective in (("bleu", False), ("bleu of one reply", True)):
        metric = bleu_with(BLEU_TOKENIZER.get(unit, unit), effective)
        metric.corpus_score(["a"], [["a"]])  # there is no signature before a score
        signed = metric.get_signature()
        if unit == "jieba":
            signed.update("tok", f"jieba-{version('jieba')}")
        bleu[name] = str(signed)
    cut = {"word": "own tokenizer", "character": "characters without punctuation", "jieba": "jieba's words without punctuation"}
    parts = cut.get(unit, "words or characters without punctuation")
    matchers = "exact, Porter stems of Latin words; no synonyms for Chinese"
    if unit not in cut:
        matchers = "exact; no stems and no synonyms for this language"
    elif unit == "word":
        # nltk looks stems up in WordNet, so a word that differs from its stem (happy, happi) has no synonyms.
        synonyms = "WordNet synonyms of stems" if _synonyms() else "no synonyms (no WordNet data here)"
        matchers = f"exact, Porter stems, {synonyms}"
    return bleu | {
        "rouge": f"rouge-score {version('rouge-score')}: F1, lower case, {parts}, no stemming",
        "meteor": f"nltk {version('nltk')}: {matchers}; lower case, BLEU's tokens, alpha 0.9, beta 3, gamma 0.5",
        "distinct": "different n-grams / n-grams; BLEU's tokens, case kept",
    }


def judgements(samples: Iterable[Sample]) -> Iterator[Judgement]:
    """Every reply's values as verdicts on its turn, for correlation with people's scores.

    Judge `bleu-1`, dimension `bleu_1`; with the unit unless it is words (`bleu-1-jieba`, `bleu_1_jieba`). `condition.supporter`
    says whose reply it is, since the dialogue's record names only its original supporter. An undefined figure has value null
    and `condition.failure` "undefined".
    """
    for sample in samples:
        for metric, value in sample.values.items():
            response, dimension = sample.response, metric if sample.unit == "word" else f"{metric}_{sample.unit}"
            condition = {"supporter": response.supporter} | ({} if value is not None else {"failure": "undefined"})
            yield Judgement(
                **response.model_dump(include={"dialogue_id", "language", "turn"}),
                judge=dimension.replace("_", "-"),
                rubric=RUBRIC,
                dimension=dimension,
                value=value,
                condition=condition,
            )


# --- a supporter's figures, with n and intervals over dialogues, as tables and as JSON --------------------------------------

SECTION = "Reference metrics"  # heading of the report
Level = Literal["corpus", "responses"]
_LEVELS: dict[Level, tuple[str, tuple[str, ...], tuple[str, ...]]] = {  # title, metrics, keys of their signatures
    "corpus": ("over all replies at once", (*BLEU_ORDERS, *DISTINCT_ORDERS), ("bleu", "distinct")),
    "responses": ("means over replies", tuple(LABELS), ("bleu of one reply", "rouge", "meteor", "distinct")),
}


class Figure(NamedTuple):
    """One metric of one supporter. `corpus`: over all replies at once; `responses`: the mean of the replies' own values. The
    estimate's n counts replies, `dialogues` their dialogues, which the interval resamples."""

    language: Language
    supporter: str
    unit: Unit
    metric: str
    level: Level
    estimate: Estimate
    dialogues: int


def figures(samples: Iterable[Sample]) -> Iterator[Figure]:
    """Every metric of every supporter, language and unit, with 95 % intervals over dialogues (None with fewer than two).

    Means: `smoothed_means`; BLEU: percentile bootstrap. All replies of a dialogue are drawn together, and supporters that
    answered the same dialogues get the same draws. Corpus-level Distinct: jackknife, since a dialogue drawn twice would count
    as repetition.
    """
    groups = group_by(samples, lambda sample: (sample.response.language, sample.response.supporter, sample.unit))
    for (language, supporter, unit), of_supporter in sorted(groups.items()):
        by_dialogue = group_by(of_supporter, lambda sample: sample.response.dialogue_id)
        dialogues = [by_dialogue[id] for id in sorted(by_dialogue)]
        corpus = _corpus_bleu(dialogues) | {metric: _corpus_distinct(dialogues, metric) for metric in DISTINCT_ORDERS}
        levels: tuple[tuple[Level, _Estimates], ...] = (("corpus", corpus), ("responses", _means(dialogues)))
        for level, values in levels:
            yield from (Figure(language, supporter, unit, metric, level, *values[metric]) for metric in values)


_Estimates = dict[str, tuple[Estimate, int]]  # metric → its estimate, and the number of dialogues with a value
_NOTHING = Estimate(None, None, None, 0), 0


def _means(dialogues: Sequence[Sequence[Sample]]) -> _Estimates:
    """The means over replies with a value, each reply counting once."""
    samples = [sample for dialogue in dialogues for sample in sorted(dialogue, key=lambda sample: sample.response.turn)]
    values = np.array([[sample.values[metric] for metric in LABELS] for sample in samples], dtype=np.float64)  # None: NaN
    means = over_cards(values, [sample.response.dialogue_id for sample in samples])
    valued = [sum(any(s.values[metric] is not None for s in dialogue) for dialogue in dialogues) for metric in LABELS]
    return dict(zip(LABELS, zip(means[:-1], valued, strict=True), strict=True))


def _corpus_bleu(dialogues: Sequence[Sequence[Sample]]) -> _Estimates:
    """BLEU over all replies with a reference. As in sacrebleu, it is 0 if no reply has as many tokens as its order."""
    stats = [rows for dialogue in dialogues if (rows := [sample.bleu for sample in dialogue if sample.bleu is not None])]
    if not stats:
        return dict.fromkeys(BLEU_ORDERS, _NOTHING)
    sums = np.array([np.sum(rows, axis=0) for rows in stats], dtype=np.float64)
    # BLEU is computed from the sum of a resample: its mean times its size.
    draws = np.rint(resampled_means(sums, np.ones_like(sums)) * len(sums)).astype(np.int64).tolist()
    total = sums.sum(axis=0).astype(np.int64).tolist()
    bleu: _Estimates = {}
    for metric, order in BLEU_ORDERS.items():
        mean, *drawn = (bleu_of(counts, order, effective=False) for counts in (total, *draws))
        bleu[metric] = estimate(mean, np.array(drawn), sum(map(len, stats)), len(sums)), len(sums)
    return bleu


def _corpus_distinct(dialogues: Sequence[Sequence[Sample]], metric: str) -> tuple[Estimate, int]:
    order = DISTINCT_ORDERS[metric]
    counted = [sum((sample.ngrams[order] for sample in dialogue), Counter()) for dialogue in dialogues]
    counted = [ngrams for ngrams in counted if ngrams]
    n = sum(bool(sample.ngrams[order]) for dialogue in dialogues for sample in dialogue)
    if not counted:
        return _NOTHING
    spread = Counter(ngram for ngrams in counted for ngram in ngrams)  # n-gram → the number of its dialogues
    total = sum(ngrams.total() for ngrams in counted)
    mean = 100 * len(spread) / total
    if len(counted) < 2:
        return Estimate(mean, None, None, n), len(counted)
    alone = np.array([sum(spread[ngram] == 1 for ngram in ngrams) for ngrams in counted])
    without: Floats = 100 * (len(spread) - alone) / (total - np.array([ngrams.total() for ngrams in counted]))
    half = NormalDist().inv_cdf(0.5 + LEVEL / 2) * math.sqrt((len(counted) - 1) * without.var())
    return Estimate(mean, max(mean - half, 0.0), min(mean + half, 100.0), n), len(counted)


def figures_json(rows: Sequence[Figure]) -> dict[str, Any]:
    """`metrics`: one object per figure; `signatures`: unit → metric → how it was counted."""
    signatures = {unit: signature(unit) for unit in dict.fromkeys(row.unit for row in rows)}
    return {"metrics": [json_record(row, "estimate") for row in rows], "signatures": signatures}


def metric_tables(figure_rows: Sequence[Figure], responses: Sequence[Response]) -> Iterator[Table]:
    """Two tables per language, on 0–100: over all replies at once, and means over replies. `responses`: those measured."""
    for language, part in group_by(figure_rows, lambda row: row.language).items():
        units = list(dict.fromkeys(f.unit for f in part))
        left_out = [*_left_out([r for r in responses if r.language == language])]
        for level, (title, metrics, signed) in _LEVELS.items():
            body = []
            for (supporter, unit), group in group_by(part, lambda f: (f.supporter, f.unit)).items():
                by_metric = {f.metric: f.estimate for f in group if f.level == level}
                unit_cell: dict[str, Cell] = {"counted in": unit} if len(units) > 1 else {}
                body.append({"supporter": supporter, **unit_cell, **{LABELS[metric]: by_metric[metric] for metric in metrics}})
            intervals = f"{PERCENTILE}, Distinct: jackknife," if level == "corpus" else SMOOTHED
            counted = [f"{unit}: {name}: {signature(unit)[name]}" for unit in units for name in signed]
            notes = [f"0–100. n counts replies; [{intervals} over dialogues].", *left_out, *counted]
            heading = f"Replies against references, {language}: {title}"
            yield Table.of(f"metrics_{level}_{language}", heading, body, notes, SECTION)


def _left_out(responses: Sequence[Response]) -> Iterator[str]:
    """Notes on replies that were never given, that ended early or empty, and that have no reference."""
    if lost := sum(r.lost for r in responses):
        yield f"{lost} of {len(responses)} replies were never given (the server failed): they are in no figure."
    if ends := Counter(r.termination for r in responses if r.termination is not None and not r.lost):
        listed = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        yield f"Among the {len(responses)} replies: {listed}. They count with their text; without any, as 0."
    if bare := sum(r.reference is None for r in responses if not r.lost):
        yield f"{bare} replies have no reference: only Distinct counts them."
