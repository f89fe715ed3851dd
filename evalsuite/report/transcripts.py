"""The data of the report's transcript browser: an index with the fields of its filters, and the dialogues."""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from core.errors import clean
from core.files import digest, write_text
from core.languages import direction, in_order, own_name
from core.page import gzipped
from core.records import RoleCard
from core.rubrics import Rubric
from evalsuite.checks.risk import load_lexicon
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import MISSING, UNREADABLE, Scorer, scorer_of, supporter_of, why_missing

# Transcripts larger than this (bytes of JSON) are compressed, so that the 8,500 dialogues of a full ESC-Eval run stay well
# below 40 MB; smaller ones are plain text that other tools can read.
PACK_ABOVE = 8_000_000
# The packed transcripts of a larger page are in files in a folder beside it.
SPLIT_ABOVE = 40_000_000
_REST = 4_000_000  # bytes of the rest of a page: plotly, tables, charts
CHUNK = 100  # dialogues that the page unpacks together when a reader opens one of them
OPENING = 80  # characters of the first seeker turn in the list

Risks = Mapping[str, Mapping[int, Sequence[str]]]


def transcripts(tally: Tally, cards: Mapping[str, RoleCard], risks: Risks) -> dict[str, Any]:
    """JSON for transcripts.js: `rows` (one per dialogue) and their bodies in `chunks`, plain or as gzip in base64 (`packed`).
    If the page would be larger than `SPLIT_ABOVE`, `split` is set: the chunks belong in files beside it (`beside`).

    `risks` maps dialogue id → place of a turn → what it is about: such dialogues are shown only after a content warning,
    without their opening in the list. Of `risky_cards`, whose problem speaks of such things, the list shows only the ids. A row
    ends in its scores (scorer by scorer, the mean verdict on every dimension and their average, null where nothing was read or
    the dimensions are not alike) and its trial."""
    dialogues, rubric = tally.dialogues, tally.rubric
    scorers = {scorer: index for index, scorer in enumerate(sorted({scorer_of(judgement) for judgement in tally.verdicts}))}
    verdicts = _verdicts(tally, scorers)
    unreadable = Counter(j.dialogue_id for j in tally.verdicts if j.value is None and not j.unasked)
    rows: list[list[Any]] = []
    bodies: list[list[Any]] = []
    texts: list[bytes] = []
    packs: list[Future[str]] = []
    with ThreadPoolExecutor() as pool:  # gzip releases Python's lock, so that it takes no time of the loop's
        for dialogue in dialogues:
            marks = sorted(verdicts.get(dialogue.id, []), key=lambda mark: (mark[0], mark[1], mark[6] or 0, mark[7]))
            risky = risks.get(dialogue.id, {})
            opening = next((turn for turn in dialogue.turns if turn.role == "seeker"), next(iter(dialogue.turns), None))
            names = [dialogue.id, dialogue.language, supporter_of(dialogue), dialogue.card_id or dialogue.profile_id or ""]
            rows.append(
                [
                    *map(clean, names),
                    dialogue.termination or "",
                    dialogue.ended_by or "",
                    dialogue.exchanges,
                    dialogue.simulator or "",
                    clean(opening.text[:OPENING]) if opening and not risky else "",
                    unreadable[dialogue.id],
                    sorted({name for about in risky.values() for name in about}),
                    _scores(marks, len(scorers), rubric),
                    dialogue.trial,
                ]
            )
            turns = [
                [int(turn.role == "supporter"), clean(turn.text), *_beside(list(risky.get(place, ())), turn.state)]
                for place, turn in enumerate(dialogue.turns)
            ]
            bodies.append([turns, marks])
            if len(bodies) == CHUNK or len(rows) == len(dialogues):
                texts.append(orjson.dumps(bodies))
                bodies = []
                if packed := sum(map(len, texts)) > PACK_ABOVE:
                    packs += [pool.submit(gzipped, text) for text in texts[len(packs) :]]
        chunks: list[Any] = [pack.result() for pack in packs] if packed else [orjson.loads(text) for text in texts]
    split = packed and sum(map(len, chunks)) + len(orjson.dumps(rows)) + _REST > SPLIT_ABOVE
    card_fields = ("age", "gender", "occupation", "problem")
    return {
        "languages": {code: [own_name(code), direction(code)] for code in in_order(d.language for d in dialogues)},
        "rows": rows,
        "packed": packed,
        "size": CHUNK,
        "chunks": chunks,
        "split": split,
        "folder": None,
        "person": "profile" if any(dialogue.profile_id for dialogue in dialogues) else "card",
        "cards": {clean(key): {f: clean(getattr(card, f)) for f in card_fields} for key, card in cards.items()},
        "risky_cards": [clean(key) for key, card in cards.items() if load_lexicon(card.language).danger(card.problem)],
        "scorers": [clean(scorer.name) for scorer in scorers],
        "scores": list(rubric.scores),
        "averaged": rubric.alike,
        "dimensions": [
            {
                "label": d.label,
                "scores": list(scale.scores),
                "levels": {
                    code: [*rubric.named_texts(key, code).values()] for code in d.levels or (scale.levels and d.label) or ()
                },
            }
            for key, d, scale in ((key, d, rubric.scale_of(key)) for key, d in rubric.dimensions.items())
        ],
    }


def _verdicts(tally: Tally, scorers: Mapping[Scorer, int]) -> dict[str, list[list[Any]]]:
    """Dialogue id → its verdicts: places of scorer and dimension, value, expected value, probabilities of the scores, the reply
    where there is no value, turn, repeat, and for a pair what it was compared with."""
    rubric = tally.rubric
    places = {name: index for index, name in enumerate(rubric.dimensions)}
    scores_of = {name: [f"{score:g}" for score in rubric.scale_of(name).scores] for name in rubric.dimensions}
    shares = (j.distribution.get(score, 0.0) for j in tally.verdicts if j.distribution for score in scores_of[j.dimension])
    rounded = iter(np.fromiter(shares, dtype=float).round(3).tolist())  # all at once: `round` takes a tenth of a page's time
    verdicts: dict[str, list[list[Any]]] = {}
    for j in tally.verdicts:
        spread = j.distribution and [next(rounded) for _ in scores_of[j.dimension]]
        expected = None if j.expected is None else round(j.expected, 3)
        reason = why_missing(j)
        raw = None if reason is None else clean(j.raw or ("" if reason == UNREADABLE else MISSING.get(reason, reason)))
        mark = [scorers[scorer_of(j)], places[j.dimension], j.value, expected, spread, raw, j.turn, j.repeat]
        if {"against", "shown"} <= j.condition.keys():
            mark.append(clean(f"against {j.condition['against']}, shown {j.condition['shown']}"))
        verdicts.setdefault(j.dialogue_id, []).append(mark)
    return verdicts


def beside(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The JSON with its chunks in files of a folder, by their names in its place. A page that was opened as a file may not read
    other files, but may run them: each is a script that hands its chunk over."""
    names = []
    for number, chunk in enumerate(data["chunks"]):
        names.append(f"{number:05d}-{digest(chunk, 12)}.js")
        write_text(folder / names[-1], f'transcriptChunk("{names[-1]}", "{chunk}");\n')
    return {**data, "chunks": names, "folder": folder.name}


def _beside(risk: list[str], state: Mapping[str, Any] | None) -> list[Any]:
    """The dangers that a turn voices, and the seeker's state as pairs of name and text; empty if there is neither."""
    pairs = [[clean(str(name)), clean(str(value))] for name, value in (state or {}).items() if value not in (None, "")]
    return [risk or None, pairs] if pairs else [risk] if risk else []


def _scores(marks: Sequence[Sequence[Any]], scorers: int, rubric: Rubric) -> list[float | None]:
    width = len(rubric.dimensions)
    read: list[list[float]] = [[] for _ in range(scorers * width)]
    for scorer, dimension, value, *_ in marks:
        if value is not None:
            read[scorer * width + dimension].append(value)
    figures: list[float | None] = []
    for first in range(0, len(read), width):
        means = [sum(values) / len(values) if values else None for values in read[first : first + width]]
        defined = [mean for mean in means if mean is not None]
        average = sum(defined) / width if rubric.alike and len(defined) == width else None
        figures += [None if figure is None else round(figure, 2) for figure in (*means, average)]
    return figures
