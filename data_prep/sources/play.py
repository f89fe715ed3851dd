"""What the role-play corpora share: making an item (or leaving it out), personas cut to length, languages by script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from core.records import Language, RolePlay
from core.rows import Dropped

_CJK = re.compile(r"[一-鿿]")
_LATIN = re.compile(r"[A-Za-z]")
_CJK_WEIGHT = 3  # one Chinese character says about as much as three letters
_HEADING = re.compile(r"(?:^|\n)[^\n]*[:：]$")
_ENDS = re.compile(r"[.!?](?=\s)|[。！？]|\n")
_CHARACTER = re.compile(r"\{\{char\}\}|<BOT>", re.IGNORECASE)
_PARTNER = re.compile(r"\{\{user\}\}|\{\{random_user_\d+\}\}|<USER>", re.IGNORECASE)
_UNSAID = {"", "none", "null", "unknown", "not specified", "n/a", "未知"}


def language_of(text: str) -> Language | None:
    """zh or en by the script most of the text is in; None without letters of either."""
    chinese, latin = len(_CJK.findall(text)), len(_LATIN.findall(text))
    if not chinese and not latin:
        return None
    return "zh" if chinese * _CJK_WEIGHT >= latin else "en"


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, cut after a sentence or line (or, where there is none, after a word).

    A heading (a last line that ends in a colon) is cut off too, because what it announces is not there.
    """
    text = text.strip()
    if len(text) <= limit:
        return text
    ends = [match.end() for match in _ENDS.finditer(text[: limit + 1]) if match.end() <= limit]
    cut = ends[-1] if ends else text[: limit + 1].rfind(" ")
    return _HEADING.sub("", text[: cut if cut > 0 else limit].strip()).strip()


def profile(fields: Mapping[str, Any], limit: int, colon: str, separator: str) -> str:
    """Fields as one text in their order; those that say nothing or would go over `limit` characters are left out."""
    text = ""
    for key, value in fields.items():
        said = _flat(value)
        if said.casefold() in _UNSAID:
            continue
        longer = f"{text}{separator if text else ''}{key}{colon}{said}"
        if len(longer) <= limit:
            text = longer
    return text


def _flat(value: Any) -> str:
    """A field's value on one line: lists and mappings are written out."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "、".join(f"{key}（{_flat(inner)}）" for key, inner in value.items())
    if isinstance(value, list):
        return "、".join(_flat(inner) for inner in value)
    return " ".join(str(value).split())


def filled(text: str, character: str) -> str:
    """Text whose placeholders for the two sides are words: the character's name, and `you` for whoever talks to it."""
    return _PARTNER.sub("you", _CHARACTER.sub(lambda _: character, text))


def play(
    *,
    source: str,
    source_id: str,
    language: Language,
    character: str,
    said: Iterable[tuple[str, str]],
    persona: str = "",
    scene: str = "",
    alone: bool = False,
) -> RolePlay:
    """An item from what was said, as (speaker, text); lines of the speaker `character` are the character's.

    Empty texts are left out. Raises `Dropped` when nothing is left, when the character does not speak, and when nobody else
    does (`alone`: that is how the corpus is).
    """
    spoken = [(name.strip(), text.strip()) for name, text in said if text.strip()]
    speakers = {name for name, _ in spoken}
    if not spoken:
        raise Dropped("no lines")
    if character not in speakers:
        raise Dropped("the character does not speak")
    if len(speakers) == 1 and not alone:
        raise Dropped("only the character speaks")
    lines = [{"role": "character" if name == character else "partner", "name": name, "text": text} for name, text in spoken]
    fields = {"id": f"{source}-{source_id}", "language": language, "source": source, "source_id": source_id}
    return RolePlay.model_validate({**fields, "character": character, "persona": persona, "scene": scene, "lines": lines})
