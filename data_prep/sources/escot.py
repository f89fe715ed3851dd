"""ESCoT (Zhang et al., ACL 2024): emotional-support dialogues by an LLM, with a chain of thought for the last reply.

`train.json`, `val.json` and `test.json` hold {id, original_data{dialog, response}, cot_data}; `response_only_train.json`
(`empathetic_dialogue_train.json` in the repository) holds the history as lines of text, the reply, and the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.records import SupportDialogue, Whole
from core.rows import CorpusItem, CorpusReader, Dropped, Malformed, RowModel
from data_prep.sources.support import ROLES, by_role, support_dialogue

SEEN = "dialogue already read"
_LINE = re.compile(r"(seeker|supporter):[ \t]*", re.IGNORECASE)
_LABEL = re.compile(r"\s*Response:\s*")


class _Utterance(RowModel):
    speaker: str
    content: str


class _Original(RowModel):
    dialog: list[_Utterance]
    response: str


class _Thought(RowModel):
    emotion: str = ""
    emotion_stimuli: str = ""


class _Row(RowModel):
    id: Whole
    original_data: _Original
    cot_data: _Thought = _Thought()


class _ResponseOnly(RowModel):
    dialog_id: Whole
    input: str
    output: str


def _annotated(value: Any) -> SupportDialogue:
    raw = _Row.model_validate(value)
    turns = by_role(((u.speaker, u.content) for u in raw.original_data.dialog), ROLES)
    turns.append(("supporter", raw.original_data.response))
    about = {"situation": raw.cot_data.emotion_stimuli.strip(), "emotion": raw.cot_data.emotion.strip()}
    return support_dialogue("escot", f"{raw.id}", "en", turns, **about)


def _response_only(value: Any) -> SupportDialogue:
    raw = _ResponseOnly.model_validate(value)
    spoken: list[tuple[str, str]] = []
    for line in raw.input.splitlines():
        head = _LINE.match(line)
        if head:
            spoken.append((head[1].lower(), line[head.end() :]))
        elif spoken:
            spoken[-1] = (spoken[-1][0], f"{spoken[-1][1]}\n{line}")
        elif line.strip():
            raise Malformed(f"input: a line before the first speaker: {line[:60]!r}")
    turns = [*by_role(spoken, ROLES), ("supporter", _LABEL.sub("", raw.output, count=1))]
    return support_dialogue("escot", f"{raw.dialog_id}", "en", turns)


def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every dialogue with its last reply; `source_id` is the corpus's id.

    `situation` is what the annotation gives as the cause of the seeker's emotion, `emotion` its sentence on the emotion: both
    written by an LLM, and empty in the response-only form.
    """
    seen: set[str] = set()
    for row in (row for file in files for row in reader.json_list(file)):
        with reader.accounting(row):
            short = isinstance(row.value, dict) and "dialog_id" in row.value
            item = _response_only(row.value) if short else _annotated(row.value)
            if item.id in seen:
                raise Dropped(SEEN)
            seen.add(item.id)
            yield item


READERS = {"escot": read}
