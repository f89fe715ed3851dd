"""Finds the dialogues that an evaluation card may have been made from, by BM25 search over whole dialogues.

ESC-Eval's cards (section 2.2) are third-person summaries of dialogues from the corpora that role-play training uses, without
source ids, and share hardly any sequence of words with them. They do keep the seeker's rare words: names, trades, objects,
places. BM25 weights words by rarity. A raw BM25 sum grows with the length of the card and with the size of the collection, so

    overlap = sum over shared words of rarity * tf / (tf + k1 * (1 - b + b * length / usual length)) / sqrt(sum of rarity)

where rarity is the BM25 idf divided by its maximum (0 to 1) and the root is of the sum over all words of the card. Without the
root, long cards would score higher; divided by the whole sum, short ones. The usual length is a constant, and word statistics
come from the documents and from the bundled dialogues. A source also stands out from other dialogues on its topic:

    score = sqrt(overlap) * overlap / (median overlap of the card's 2nd to 11th best document) / level

A very large overlap is sufficient by itself: otherwise many copies of a source would hide each other.

Recall on 24 pairs per language that were written without knowledge of the detector (tests/data_prep/planted): 21 en and 24 zh
among themselves and among 280 unrelated dialogues, 17 and 19 among ESConv's 1,300 and 1,970 of SmileChat. Of ESC-Eval's
English cards it flags 126 of the 158 made from ESConv and 20 of the 173 made elsewhere. It misses summaries that keep almost
none of the dialogue's words.

`BY_CHANCE` has the false alarms. Adaptive thresholds (by the card's length, the corpus's size, the tail of the overlaps) found
at most 7 more of the 158 at the same rate of false alarms: not worth two more constants per language.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from core.errors import UserError
from core.files import first_object, read_jsonl
from core.languages import PAPER_LANGUAGES, counts
from core.ledger import BuildStep
from core.records import Dialogue, Identifier, Language, Number, Record, RoleCard, RolePlay, SupportDialogue, Whole
from core.rows import CorpusReader
from data_prep import BUNDLED
from data_prep.line_checks import terms
from data_prep.role_play.examples import RoleExample
from data_prep.scores.synthetic import load_bases
from data_prep.sources import is_generic, own_dialogues, own_header

THRESHOLD = 1.0
# (Dialogues, lowest, highest): the share of ESC-Eval's cards flagged among at least so many dialogues that are not their
# source, over corpora of questions, posts and support dialogues (en: six, zh: two), by `python -m tests.bench false-alarms`.
# English role play gives fewer; so do longer cards and corpora with several dialogues per scenario. Other languages were not
# measured.
_EN = ((30, 0.086, 0.285), (100, 0.130, 0.266), (300, 0.149, 0.180), (800, 0.107, 0.163), (1500, 0.099, 0.155))
_ZH = ((30, 0.153, 0.218), (100, 0.071, 0.109), (300, 0.044, 0.072), (800, 0.032, 0.065), (1500, 0.030, 0.054))
BY_CHANCE: dict[Language, tuple[tuple[int, float, float], ...]] = dict(zip(PAPER_LANGUAGES, (_EN, _ZH), strict=True))
# At this level about one in nine of the published cards that were made elsewhere raises an alarm among ESConv's dialogues. The
# form of the score was chosen with an eye on the planted pairs, so its figures on them are slightly optimistic.
_LEVEL = 1.55
_SCALE = {"words": 0.47, "characters": 0.70}  # approximate overlap of unrelated dialogues on one topic
_CERTAIN = 1.5  # an overlap that no unrelated dialogue of ESConv or SmileChat reaches
_RIVALS = slice(1, 11)  # ranks 2 to 11
_KEPT = 200  # best documents of a card that are considered; no more can be flagged
_K1, _B = 1.5, 0.75
_LENGTH = {"words": 180, "characters": 690}  # terms in a dialogue of ESConv, of SmileChat (means, rounded)
_BLOCK = 2048  # documents scored at once: bounds memory at cards * block * 4 bytes


# Id, language, text to search: all lines of both sides, since the supporter repeats the seeker's words. Doubling the weight of
# seeker lines changed next to nothing.
Document = tuple[str, Language, str]


class Match(Record):
    """A document that a card may come from. Rank 1 is the card's best; scores (0 to about 10) are comparable between cards."""

    card_id: Identifier
    document_id: Identifier
    language: Language
    score: Number
    rank: Whole
    flagged: bool
    """The score is at or above the threshold."""


def link(cards: Sequence[RoleCard], documents: Sequence[Document], top: int = 10) -> list[Match]:
    """The best `top` documents of each card in its own language, and every further one (up to 200) at or above `THRESHOLD`, by
    rank and id. Documents that share no word with the card are left out. Time and memory are linear in the documents."""
    matches_of: dict[int, list[Match]] = {}
    for language in sorted({card.language for card in cards}):
        places = [place for place, card in enumerate(cards) if card.language == language]
        candidates = sorted((id, text) for id, other, text in documents if other == language)
        queries = [set(terms(f"{cards[place].problem}\n{cards[place].occupation}", language)) for place in places]
        results = _search(queries, [text for _, text in candidates], language, top) if candidates else []
        for place, hits in zip(places, results, strict=False):
            fields = {"card_id": cards[place].id, "language": language}
            matches_of[place] = [
                Match(**fields, document_id=candidates[document][0], score=score, rank=rank, flagged=score >= THRESHOLD)
                for rank, (document, score) in enumerate(hits, start=1)
            ]
    return [match for place in sorted(matches_of) for match in matches_of[place]]


def by_chance(cards: int, dialogues: int, language: Language) -> tuple[float, float] | None:
    """The expected number of cards flagged among dialogues that are no card's source: lowest and highest, from the row of
    `BY_CHANCE` with the largest size up to `dialogues` (or the smallest). None for a language that was not measured."""
    if language not in BY_CHANCE:
        return None
    rows = BY_CHANCE[language]
    _, low, high = max((row for row in rows if row[0] <= dialogues), default=rows[0])
    return cards * low, cards * high


def _count(documents: Iterable[Sequence[str]], index: Mapping[str, int]) -> tuple[sparse.csr_matrix, NDArray[np.float32]]:
    """Counts of each query term in each document (documents x terms), and the documents' lengths in terms."""
    columns, values, ends, lengths = array("i"), array("f"), array("q", [0]), array("f")
    for words in documents:
        counted = Counter(index[word] for word in words if word in index)
        columns.extend(counted.keys())
        values.extend(counted.values())
        ends.append(len(columns))
        lengths.append(len(words))
    parts = (np.array(values, np.float32), np.array(columns, np.int32), np.array(ends, np.int64))
    return sparse.csr_matrix(parts, shape=(len(lengths), len(index))), np.array(lengths, np.float32)


@cache
def _bundled(language: Language) -> tuple[list[list[str]], list[list[str]]]:
    """The terms of each exchange of the bundled bases, for statistics of everyday words; and those of whole bundled dialogues,
    which a card resembles by chance, as rivals where few documents are searched."""
    source = language if language in PAPER_LANGUAGES else "en"
    exchanges = [
        ["\n".join([exchange.seeker, *(segment.text for segment in exchange.reply)]) for exchange in base.exchanges]
        for base in load_bases(source)
    ]
    plays = read_jsonl(BUNDLED / f"role_play_{source}.jsonl", RolePlay, "bundled role play")
    texts = ["\n".join(base) for base in exchanges] + ["\n".join(line.text for line in play.lines) for play in plays]
    everyday = [terms(text, language) for base in exchanges for text in base]
    return everyday, [terms(text, language) for text in texts]


def _search(queries: Sequence[set[str]], texts: Sequence[str], language: Language, top: int) -> list[list[tuple[int, float]]]:
    """For each query its best `top` documents and every further one from `THRESHOLD` on, with scores, best first."""
    results = []
    for hits in _overlaps(queries, texts, language):
        rivals = sorted({overlap for _, overlap in hits}, reverse=True)[_RIVALS]  # exact copies count once
        usual = float(np.median(rivals)) if rivals else 1.0
        scores = [
            (place, round(max(overlap**1.5 / usual / _LEVEL, overlap / _CERTAIN), 6))
            for place, overlap in hits
            if place < len(texts)
        ]
        results.append(scores[: max(top, sum(score >= THRESHOLD for _, score in scores))])
    return results


def _overlaps(queries: Sequence[set[str]], texts: Sequence[str], language: Language) -> list[list[tuple[int, float]]]:
    """For each query the `_KEPT` documents with the largest overlap above 0, best first; bundled rivals follow the texts."""
    index = {word: place for place, word in enumerate(sorted(set().union(*queries)))}
    exchanges, rivals = _bundled(language)
    table, lengths = _count(chain((terms(text, language) for text in texts), rivals), index)
    everyday, _ = _count(exchanges, index)
    # BM25's idf over all documents and the bundled exchanges, divided by that of a word that occurs nowhere.
    documents = table.shape[0] + everyday.shape[0]
    holders = sum(np.bincount(counts.indices, minlength=len(index)) for counts in (table, everyday))
    rarity = (np.log1p((documents - holders + 0.5) / (holders + 0.5)) / np.log1p((documents + 0.5) / 0.5)).astype(np.float32)
    weights = sparse.lil_matrix((len(index), len(queries)), dtype=np.float32)
    for column, query in enumerate(queries):
        rows = [index[word] for word in sorted(query)]
        if rows:
            weights[rows, column] = (rarity[rows] / np.sqrt(rarity[rows].sum()) / _SCALE[counts(language)])[:, None]
    by_query = weights.tocsr()
    length = _K1 * (1 - _B + _B * lengths / _LENGTH[counts(language)])
    best: list[list[tuple[int, float]]] = [[] for _ in queries]
    for start in range(0, len(lengths), _BLOCK):
        block = table[start : start + _BLOCK]
        block.data = block.data / (block.data + np.repeat(length[start : start + _BLOCK], np.diff(block.indptr)))
        overlaps = (block @ by_query).toarray()
        for column, hits in enumerate(best):
            overlap = overlaps[:, column]
            order = np.argsort(-overlap, kind="stable")[:_KEPT]
            hits += [(start + int(place), float(overlap[place])) for place in order if overlap[place] > 0]
            hits.sort(key=lambda hit: (-hit[1], hit[0]))
            del hits[_KEPT:]
    return best


def read_documents(path: Path) -> list[Document]:
    """The dialogues of a file of role-play examples, Dialogues or SupportDialogues, or of the user's own corpus. Raises
    `UserError` with file, line and field at the first line in another form, and for an empty file."""
    if is_generic(path):
        source = own_header(path).source
        dialogues = list(own_dialogues(path, CorpusReader(BuildStep("read"), strict=True)))
        if not dialogues:
            raise UserError(f"data file is empty: {path}")
        return [(f"{source}-{item.id}", item.language, "\n".join(text for _, text in item.said)) for _, item in dialogues]
    keys = first_object(path, "data file").keys()
    if {"messages", "tokens"} <= keys:
        # Without the system message, which may contain the example's own card, and a greeting before the corpus's turns.
        examples = read_jsonl(path, RoleExample, "data file")
        return [
            (e.id, e.language, "\n".join(message.get("content", "") for message in e.messages[-e.turns :])) for e in examples
        ]
    if "dialogue" in keys:
        talks = [item.dialogue for item in read_jsonl(path, SupportDialogue, "data file")]
    else:
        talks = read_jsonl(path, Dialogue, "data file")
    return [(talk.id, talk.language, "\n".join(turn.text for turn in talk.turns)) for talk in talks]
