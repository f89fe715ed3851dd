"""ChatHaruhi (Li et al. 2023): dialogues around a character, one file a character; Chinese, some replies in English.

JSON lines `dialogue` (`role`, `text`) and `source`: `synthesized` by a model, or `user`, logs of people with a bot. The
logs are unmoderated (some are sexual, and the character is a schoolgirl) and are left out. A file's character is whoever
speaks most in it. What the files need:

- Texts stand in 「」, at times unpaired or with a stage direction after them.
- A name may carry a stage direction (`name（smiling）`), which then goes before the words, or be a clause that holds the
  character's name.
- A line without a name is narration, or the rest of the line before, when its 「 is open. A name that is a sentence about
  somebody else shows that a dialogue was cut up wrongly.
- Some synthesized replies are in another language than the line they answer: those dialogues are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from core.records import RolePlay
from core.rows import CorpusItem, CorpusReader, CorpusRow, Dropped, RowModel
from data_prep.sources.play import language_of, play

NARRATOR = "旁白"
LOG = "user"
_DIRECTED = re.compile(r"(.+?)\s*[（(]([^（()）]*)[)）]?")
_JOINT = re.compile(r"[、,，和]")
_ENDLESS = re.compile(r"(.{1,4}?)\1{30,}")
_PROSE = re.compile(r"[，。]")


class _Said(RowModel):
    role: str
    text: str


class _Row(RowModel):
    dialogue: list[_Said]
    source: str = "synthesized"


def unquoted(text: str) -> str:
    """Words without the 「」 around them; an unpaired bracket goes, brackets inside the words stay."""
    text = text.strip()
    if text.startswith("「"):
        close = _closing(text)
        text = text[1:] if close is None else text[1:close] + text[close + 1 :]
    elif text.count("」") > text.count("「"):
        text = text.replace("」", "", 1)
    text = text.strip()
    for opening, closing in (("“", "”"), ('"', '"')):
        inner = text[1:-1]
        if (
            len(text) > 1
            and text.startswith(opening)
            and text.endswith(closing)
            and opening not in inner
            and closing not in inner
        ):
            return inner.strip()
    return text


def _closing(text: str) -> int | None:
    """Where the bracket that opens the text is closed."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "「") - (sign == "」")
        if depth == 0:
            return place
    return None


def _lines(raw: _Row) -> list[tuple[str, str]]:
    """(name, text) with stage directions moved from the name to the text."""
    result: list[tuple[str, str]] = []
    open_before = False
    for said in raw.dialogue:
        name, text = said.role.strip(), unquoted(said.text)
        directed = _DIRECTED.fullmatch(name)
        if directed:
            name, text = directed[1], f"（{directed[2]}）{text}" if text else ""
        if not name and open_before:
            result[-1] = (result[-1][0], f"{result[-1][1]}\n{text}")
            continue
        open_before = said.text.count("「") > said.text.count("」")
        result.append((name or NARRATOR, text))
    return result


def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every dialogue in which the file's character and somebody else speak; `source_id` is `file stem/position`."""
    for file in files:
        dialogues: list[tuple[CorpusRow, str, list[tuple[str, str]]]] = []
        for position, row in enumerate(reader.jsonl(file)):
            with reader.accounting(row):
                raw = _Row.model_validate(row.value)
                if raw.source == LOG:
                    raise Dropped("a person's log, unmoderated")
                dialogues.append((row, f"{file.stem}/{position}", _lines(raw)))
        names = Counter(name for _, _, lines in dialogues for name, _ in lines if name != NARRATOR)
        character = names.most_common(1)[0][0] if names else ""
        for row, source_id, lines in dialogues:
            with reader.accounting(row):
                yield _item(source_id, lines, character)


def _item(source_id: str, lines: list[tuple[str, str]], character: str) -> RolePlay:
    said = [(character if _is(name, character) else name, text) for name, text in lines]
    language = language_of(" ".join(text for name, text in said if name == character))
    others = language_of(" ".join(text for name, text in said if name != character))
    if any(_ENDLESS.search(text) for _, text in said):
        raise Dropped("a line repeats itself without end")
    if any(_PROSE.search(name) for name, _ in said):
        raise Dropped("a speaker's name is a sentence")
    if language and others and language != others:
        raise Dropped("the sides speak different languages")
    return play(source="chat_haruhi", source_id=source_id, language=language or "zh", character=character, said=said)


def _is(name: str, character: str) -> bool:
    """Whether a speaker's name is the character's, or a fuller name or clause with it (but not one of several people)."""
    return bool(character) and (name == character or (character in name and not _JOINT.search(name.split(character)[0])))


READERS = {"chat_haruhi": read}
