"""CPsyCoun (Zhang et al., Findings of ACL 2024): Chinese counselling dialogues that an LLM rebuilt from case reports.

CPsyCounD is one text file a dialogue (`CPsyCounD/Data/case_*.txt`), CPsyCounE one JSON list of strings in a folder a topic
(`CPsyCounE/<topic>/<n>.json`); in both, a turn begins with the speaker's name and a colon. Both are also read as JSON lines of
{file, text}, where `file` is that path and `text` the file's content.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from core.files import load_json, read_bytes
from core.records import Role, SupportDialogue
from core.rows import Dropped, Malformed, RowModel, by_row
from data_prep.sources.support import by_role, support_dialogue

OTHERS = "someone besides one seeker and one counsellor speaks"
_ROLES: dict[str, Role] = {"来访者": "seeker", "求助者": "seeker", "心理咨询师": "supporter", "支持者": "supporter"}
# A name in brackets that plays someone (扮演) is the same person; another name, a number or no known name is not.
_HEAD = re.compile(rf"({'|'.join(_ROLES)})(?:（[^）]*扮演[^）]*）)?[：:]")
_OTHER_HEAD = re.compile(rf"(?:(?:{'|'.join(_ROLES)})[^：:，。]{{0,12}}|(?!\d)\w{{1,8}})[：:].")
# Narration, not speech: a line in brackets, dots, or one that tells how the session went on.
_NARRATION = re.compile(r"[（(].*[）)]$|[….]+$|后续")


class _Row(RowModel):
    file: str
    text: str


def _content(file: Path) -> dict[str, str]:
    """A published file, which holds one dialogue, in the form of a row."""
    try:
        return {"file": file.as_posix(), "text": read_bytes(file, "corpus file").decode("utf-8-sig")}
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8: {error}") from None


def _lines(raw: _Row) -> list[str]:
    """A dialogue's lines. Raises `Malformed` when a `.json` file's content is not a list of strings."""
    if not raw.file.endswith(".json"):
        return raw.text.splitlines()
    try:
        value = load_json(raw.text)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"text: malformed JSON: {error.msg}") from None
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise Malformed("text: expected a JSON list of strings")
    return [part for line in value for part in line.splitlines()]


def _spoken(lines: list[str]) -> list[tuple[str, str]]:
    """(speaker, text) of every turn. Raises `Dropped` when somebody else speaks."""
    spoken: list[tuple[str, str]] = []
    for line in map(str.strip, lines):
        head = _HEAD.match(line)
        if head:
            spoken.append((head[1], line[head.end() :]))
        elif _OTHER_HEAD.match(line):
            raise Dropped(OTHERS)
        elif spoken and not _NARRATION.match(line):
            spoken[-1] = (spoken[-1][0], f"{spoken[-1][1]}\n{line}".strip())
    return spoken


def _item(value: Any, _: str) -> SupportDialogue:
    """A dialogue between one seeker and one counsellor; `source_id` is `D/case_n` or `E/topic/n`, the same in both forms.

    `problem` is the topic of CPsyCounE; CPsyCounD's files state none.
    """
    raw = _Row.model_validate(value)
    spoken = by_role(_spoken(_lines(raw)), _ROLES)
    path = PurePosixPath(raw.file)
    topic = path.parent.name if path.suffix == ".json" else ""
    source_id = f"E/{topic}/{path.stem}" if topic else f"D/{path.stem}"
    return support_dialogue("cpsycoun", source_id, "zh", spoken, problem=topic)


READERS = {"cpsycoun": by_row(_item, lambda reader, file: reader.documents(file, _content))}
