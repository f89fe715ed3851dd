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
from core.rows import Item, Raw, Row, Rows, Source
from data_prep.sources.play import language_of, play

NARRATOR = "旁白"
LOG = "user"
_DIRECTED = re.compile(r"(.+?)\s*[（(]([^（()）]*)[)）]?")
_JOINT = re.compile(r"[、,，和]")
_ENDLESS = re.compile(r"(.{1,4}?)\1{30,}")
_PROSE = re.compile(r"[，。]")


class _Said(Raw):
    role: str
    text: str


class _Row(Raw):
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


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """Every dialogue in which the file's character and somebody else speak; `source_id` is `file stem/position`."""
    for file in files:
        told = []
        for position, row in enumerate(rows.jsonl(file)):
            raw = rows.parse(_Row, row)
            if raw is not None and raw.source == LOG:
                rows.drop(row, "a person's log, unmoderated")
            elif raw is not None:
                told.append((row, f"{file.stem}/{position}", _lines(raw)))
        names = Counter(name for _, _, lines in told for name, _ in lines if name != NARRATOR)
        character = names.most_common(1)[0][0] if names else ""
        for row, source_id, lines in told:
            item = _item(row, source_id, lines, rows, character)
            if item is not None:
                yield item


def _item(row: Row, source_id: str, lines: list[tuple[str, str]], rows: Rows, character: str) -> RolePlay | None:
    """The item, or None with a reason."""
    said = [(character if _is(name, character) else name, text) for name, text in lines]
    own = language_of(" ".join(text for name, text in said if name == character))
    other = language_of(" ".join(text for name, text in said if name != character))
    if any(_ENDLESS.search(text) for _, text in said):
        rows.drop(row, "a line repeats itself without end")
    elif any(_PROSE.search(name) for name, _ in said):
        rows.drop(row, "a speaker's name is a sentence")
    elif own and other and own != other:
        rows.drop(row, "the sides speak different languages")
    else:
        return play(row, rows, source="chat_haruhi", source_id=source_id, language=own or "zh", character=character, said=said)
    return None


def _is(name: str, character: str) -> bool:
    """Whether a speaker's name is the character's, or a fuller name or clause with it (but not one of several people)."""
    return bool(character) and (name == character or (character in name and not _JOINT.search(name.split(character)[0])))


SOURCES = (
    Source(
        name="chat_haruhi",
        about="ChatHaruhi: synthesized dialogues with characters of fiction, Chinese (some English)",
        kind="role_play",
        languages=("zh", "en"),
        files=("*_dialogue.jsonl", "*_Dialogues.jsonl"),
        where="GitHub LC1332/Chat-Haruhi-Suzumiya (kyon_generator/organized_data_b and kyon_generator/data)",
        licence="CC BY-NC 4.0 (data); the characters' rights remain with their holders",
        paper="Li et al. 2023",
        read=read,
    ),
)
