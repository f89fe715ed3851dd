"""Role-play corpora: what they share (making an item, personas cut to length, languages by script), and the plainest four."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from core.records import Language, RolePlay
from core.rows import CorpusItem, CorpusReader, Dropped, Malformed, RowModel, by_row

PERSONA = 800  # characters of a persona, or of a scene

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


_ASKING = {"en": "Someone", "zh": "提问者"}  # the corpus does not say who asks


class _RoleBench(RowModel):
    """RoleBench (Wang et al. 2023): single-turn questions to a character, with replies in its manner; English and Chinese.

    JSON lines `role`, `question`, `generated` (replies; the first is taken). Which language an item is in is read from its text
    (question and reply together), because only the folder or file name tells it and the published layouts differ.
    """

    role: str
    question: str
    generated: list[str]


def _read_rolebench(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every question with its first reply; `source_id` is `file/position`, with the folder where several are read."""
    root = Path(os.path.commonpath([file.parent for file in files]))
    for file in files:
        name = file.relative_to(root).with_suffix("").as_posix()
        for position, row in enumerate(reader.jsonl(file)):
            with reader.accounting(row):
                yield _rolebench(row.value, f"{name}/{position}")


def _rolebench(value: Any, source_id: str) -> RolePlay:
    raw = _RoleBench.model_validate(value)
    reply = next(iter(raw.generated), "")
    language = language_of(raw.question + reply)
    character = raw.role.strip()
    if not raw.question.strip() or not reply.strip() or language is None:
        raise Dropped("no question or no reply")
    if not character:
        raise Malformed("role: empty")
    said = [(_ASKING[language], raw.question), (character, reply)]
    return play(source="rolebench", source_id=source_id, language=language, character=character, said=said)


_UNDEFINED = {0x81, 0x8D, 0x8F, 0x90, 0x9D}  # mean nothing in Windows-1252
_SIGNS = {code: "" if code in _UNDEFINED else bytes([code]).decode("cp1252") for code in range(0x80, 0xA0)}


class _SocialBenchLine(RowModel):
    speaker: str = Field(validation_alias="from")
    value: str


class _SocialBenchMeta(RowModel):
    lang: Language


class _SocialBench(RowModel):
    """SocialBench (Chen et al. 2024): role-play dialogues with a multiple-choice question; English and Chinese.

    One JSON list: `dialogue` (`from`, `value`), `instruction`, `choices`, `meta.lang`. No field names a character. The items on
    emotion ask how whoever speaks last feels, so that speaker is the character; the other items hold one line, an exam
    question, and are dropped. English texts keep a few signs of Windows-1252 as control characters, which are mended.
    """

    dialogue: list[_SocialBenchLine]
    meta: _SocialBenchMeta


def mended(text: str) -> str:
    """Text in which the control characters 0x80 to 0x9f are the signs that Windows-1252 means by them."""
    return text.translate(_SIGNS)


def _socialbench(value: Any, source_id: str) -> RolePlay:
    """Every dialogue of two lines or more; `source_id` is `file stem/position`, because the corpus has no ids."""
    raw = _SocialBench.model_validate(value)
    said = [(line.speaker.strip(), mended(line.value)) for line in raw.dialogue]
    if len(said) < 2:
        raise Dropped("single line")
    character = said[-1][0]
    if not character:
        raise Malformed("dialogue: the last line has no speaker")
    return play(source="socialbench", source_id=source_id, language=raw.meta.lang, character=character, said=said)


_PLAYED = "npc"
_PLAYER = "Player"
_DESCRIPTIONS = ("long_definition_text", "description", "definition_text")  # the first that says something


class _RpBenchLine(RowModel):
    speaker: str = Field(validation_alias="from")
    sentences: list[str]


class _RpBench(RowModel):
    """RPBench-Auto (Boson AI): characters and scenes for a role-play benchmark, English.

    JSON lines `npc_profile` and `conversation` (`from`, `sentences`), in two forms: `rpbench_character.jsonl` (a chat profile)
    and `rpbench_scene.jsonl` (a profile by fields, and a story so far in `plot_recap`). The published conversations hold the
    character's first words and nothing else, so none has a partner yet; a set that asks for several turns takes none of them.
    """

    npc_profile: dict[str, Any]
    conversation: list[_RpBenchLine]
    plot_recap: str = ""


def _rpbench(value: Any, source_id: str) -> RolePlay:
    """Every character and scene; `source_id` is `file stem/position`."""
    raw = _RpBench.model_validate(value)
    about = raw.npc_profile
    character = str(about.get("name") or about.get("name_text") or "").strip()
    if not character:
        raise Malformed("npc_profile: neither name nor name_text")
    said = [(character if line.speaker == _PLAYED else _PLAYER, " ".join(line.sentences)) for line in raw.conversation]
    return play(
        source="rpbench",
        source_id=source_id,
        language="en",
        character=character,
        said=[(name, filled(text, character)) for name, text in said],
        persona=filled(_rpbench_persona(about), character),
        scene=filled(shortened(raw.plot_recap.replace("**", ""), PERSONA), character),
        alone=True,
    )


def _rpbench_persona(about: Mapping[str, Any]) -> str:
    """A chat profile's traits and longest description, or the fields of the other form."""
    if "name_text" not in about:
        return profile({key: value for key, value in about.items() if key != "name"}, PERSONA, ": ", "; ")
    texts = (str(about.get(key) or "").strip() for key in _DESCRIPTIONS)
    parts = [str(about.get("short_definition_text") or "").strip(), next((text for text in texts if text), "")]
    return shortened("\n".join(dict.fromkeys(part for part in parts if part)), PERSONA)


_PERSON = "You"
_NSFW = re.compile(r"nsfw|adult|erotic|18\s*\+", re.IGNORECASE)
_SEXUAL = re.compile(
    r"\b(?:sex(?:y|ual\w*)?|naked|nude\w*|erotic\w*|moan\w*|orgasm\w*|horny|lewd|aroused|breasts?|nipples?|penis|vagina|cum|rap(?:e|ed|ing))\b",
    re.IGNORECASE,
)


class _PippaMessage(RowModel):
    message: str
    is_human: bool


class _Pippa(RowModel):
    """PIPPA (Gosling et al. 2023): people's chats with characters of their own making, English, multi-turn.

    The published form, checked against the dataset's page and loader on the hub (no copy of the corpus was at hand, so the
    reader has met only rows written for its tests): JSON lines `pippa_deduped.jsonl` (16,832 chats; `pippa.jsonl`, about
    26,000, has the same fields) with `bot_name`, `bot_description`, `bot_definitions`, `bot_greeting`, `categories` (a list or
    null) and `conversation`, a list of `message` and `is_human`. Not checked: which category names occur.

    The hub marks the corpus as not for all audiences. Chats of a character with an NSFW category are left out, and so are chats
    with sexual words, because the categories are the makers' own. Both are coarse: look at what is left before training on it.
    """

    bot_name: str
    bot_description: str | None = None
    bot_definitions: str | None = None
    categories: list[str] | None = None
    conversation: list[_PippaMessage]


def _pippa(value: Any, source_id: str) -> RolePlay:
    """Every chat; `source_id` is `file stem/position`, because a character's id stands on many chats."""
    raw = _Pippa.model_validate(value)
    character = raw.bot_name.strip()
    if not character:
        raise Malformed("bot_name: empty")
    about = (raw.bot_description or "").strip() or (raw.bot_definitions or "").strip()
    if any(_NSFW.search(category) for category in raw.categories or ()):
        raise Dropped("a category marked NSFW")
    if _SEXUAL.search(about) or any(_SEXUAL.search(line.message) for line in raw.conversation):
        raise Dropped("sexual words")
    partner = _PERSON if character != _PERSON else "Partner"
    return play(
        source="pippa",
        source_id=source_id,
        language="en",
        character=character,
        said=[(partner if line.is_human else character, filled(line.message, character)) for line in raw.conversation],
        persona=filled(shortened(about, PERSONA), character),
    )


READERS = {
    "rolebench": _read_rolebench,
    "socialbench": by_row(_socialbench),
    "rpbench": by_row(_rpbench),
    "pippa": by_row(_pippa),
}
