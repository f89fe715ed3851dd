"""ESCoT (Zhang et al., ACL 2024): emotional-support dialogues by an LLM, with a chain of thought for the last reply.

`train.json`, `val.json` and `test.json` hold {id, original_data{dialog, response}, cot_data}; `response_only_train.json`
(`empathetic_dialogue_train.json` in the repository) holds the history as lines of text, the reply, and the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from core.records import SupportDialogue, Whole
from core.rows import Item, Raw, Row, Rows, Source
from data_prep.sources.support import ROLES, by_role, support_dialogue

SEEN = "dialogue already read"
_LINE = re.compile(r"(seeker|supporter):[ \t]*", re.IGNORECASE)
_LABEL = re.compile(r"\s*Response:\s*")


class _Utterance(Raw):
    speaker: str
    content: str


class _Original(Raw):
    dialog: list[_Utterance]
    response: str


class _Thought(Raw):
    emotion: str = ""
    emotion_stimuli: str = ""


class _Row(Raw):
    id: Whole
    original_data: _Original
    cot_data: _Thought = _Thought()


class _ResponseOnly(Raw):
    dialog_id: Whole
    input: str
    output: str


def _annotated(row: Row, rows: Rows) -> SupportDialogue | None:
    raw = rows.parse(_Row, row)
    turns = by_role(rows, row, ((u.speaker, u.content) for u in raw.original_data.dialog), ROLES) if raw else None
    if raw is None or turns is None:
        return None
    turns.append(("supporter", raw.original_data.response))
    about = {"situation": raw.cot_data.emotion_stimuli.strip(), "emotion": raw.cot_data.emotion.strip()}
    return support_dialogue(rows, row, "escot", f"{raw.id}", "en", turns, **about)


def _response_only(row: Row, rows: Rows) -> SupportDialogue | None:
    raw = rows.parse(_ResponseOnly, row)
    if raw is None:
        return None
    spoken: list[tuple[str, str]] = []
    for line in raw.input.splitlines():
        head = _LINE.match(line)
        if head:
            spoken.append((head[1].lower(), line[head.end() :]))
        elif spoken:
            spoken[-1] = (spoken[-1][0], f"{spoken[-1][1]}\n{line}")
        elif line.strip():
            rows.malformed(row, f"input: a line before the first speaker: {line[:60]!r}")
            return None
    turns = by_role(rows, row, spoken, ROLES) or []
    turns.append(("supporter", _LABEL.sub("", raw.output, count=1)))
    return support_dialogue(rows, row, "escot", f"{raw.dialog_id}", "en", turns)


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """Every dialogue with its last reply; `source_id` is the corpus's id.

    `situation` is what the annotation gives as the cause of the seeker's emotion, `emotion` its sentence on the emotion: both
    written by an LLM, and empty in the response-only form.
    """
    seen: set[str] = set()
    for file in files:
        for row in rows.json_list(file):
            short = isinstance(row.value, dict) and "dialog_id" in row.value
            item = (_response_only if short else _annotated)(row, rows)
            if item is None:
                continue
            if item.id in seen:
                rows.drop(row, SEEN)
                continue
            seen.add(item.id)
            yield item


SOURCES = (
    Source(
        name="escot",
        about="ESCoT: 1,708 dialogues that an LLM wrote, with reasoning for the last reply, English, multi-turn",
        kind="support",
        languages=("en",),
        files=("train.json", "val.json", "test.json", "response_only_train.json", "empathetic_dialogue_train.json"),
        where="GitHub TeigenZhang/ESCoT (data)",
        licence="none stated in the repository",
        paper="Zhang et al., ACL 2024",
        read=read,
    ),
)
