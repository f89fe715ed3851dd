"""Role-play corpora: common functions (items, personas cut to length, languages by script), and the four simplest corpora."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import AliasPath, Field

from core.records import Language, RolePlay
from core.rows import CorpusItem, CorpusReader, Dropped, Malformed, RowModel, by_row
from data_prep.sources.support import SpokenLine

PERSONA = 800  # characters of a persona, or of a scene

_HEADING = re.compile(r"(?:^|\n)[^\n]*[:：]$")
_ENDS = re.compile(r"[.!?](?=\s)|[。！？]|\n")


def language_of(text: str) -> Language | None:
    """zh or en by the script of most of the text; None without letters of either."""
    chinese, latin = len(re.findall(r"[一-鿿]", text)), len(re.findall(r"[A-Za-z]", text))
    if not chinese and not latin:
        return None
    return "zh" if chinese * 3 >= latin else "en"  # a Chinese character counts as three letters


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, cut after a sentence, line or word; a last line that ends in a colon is cut off, too."""
    text = text.strip()
    if len(text) <= limit:
        return text
    ends = [match.end() for match in _ENDS.finditer(text[: limit + 1]) if match.end() <= limit]
    cut = ends[-1] if ends else text[: limit + 1].rfind(" ")
    return _HEADING.sub("", text[: cut if cut > 0 else limit].strip()).strip()


def profile(fields: Mapping[str, Any], limit: int, colon: str, separator: str) -> str:
    """Fields as one text in their order, without empty ones and those that would exceed `limit` characters."""
    text = ""
    for key, value in fields.items():
        value_text = _flat(value)
        if value_text.casefold() in ("", "none", "null", "unknown", "not specified", "n/a", "未知"):
            continue
        longer = f"{text}{separator if text else ''}{key}{colon}{value_text}"
        if len(longer) <= limit:
            text = longer
    return text


def _flat(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "、".join(f"{key}（{_flat(inner)}）" for key, inner in value.items())
    if isinstance(value, list):
        return "、".join(_flat(inner) for inner in value)
    return " ".join(str(value).split())


def filled(text: str, character: str) -> str:
    """Text with its placeholders replaced: the character's name, and `you` for its partner."""
    text = re.sub(r"\{\{char\}\}|<BOT>", lambda _: character, text, flags=re.IGNORECASE)
    return re.sub(r"\{\{user\}\}|\{\{random_user_\d+\}\}|<USER>", "you", text, flags=re.IGNORECASE)


def play(
    source: str,
    source_id: str,
    language: Language,
    character: str,
    lines: Iterable[tuple[str, str]],
    *,
    persona: str = "",
    scene: str = "",
    alone: bool = False,
) -> RolePlay:
    """An item from its lines as (speaker, text); those of the speaker `character` are the character's. Empty texts are left
    out. Raises `Dropped` if nothing is left, if the character does not speak, or if nobody else does (unless `alone`)."""
    spoken = [(name.strip(), text.strip()) for name, text in lines if text.strip()]
    speakers = {name for name, _ in spoken}
    if not spoken:
        raise Dropped("no lines")
    if character not in speakers:
        raise Dropped("the character does not speak")
    if len(speakers) == 1 and not alone:
        raise Dropped("only the character speaks")
    roles = [{"role": "character" if name == character else "partner", "name": name, "text": text} for name, text in spoken]
    fields = {"id": f"{source}-{source_id}", "language": language, "source": source, "source_id": source_id}
    return RolePlay.model_validate({**fields, "character": character, "persona": persona, "scene": scene, "lines": roles})


class _RoleBench(RowModel):
    role: str
    question: str
    generated: list[str]


def rolebench(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """RoleBench (Wang et al. 2023): single-turn questions to a character, with replies in its manner; English and Chinese. JSON
    lines `role`, `question`, `generated` (replies; the first is taken). `source_id` is `[folder/]file/position`."""
    root = Path(os.path.commonpath([file.parent for file in files]))
    for file in files:
        name = file.relative_to(root).with_suffix("").as_posix()
        for position, row in enumerate(reader.jsonl(file)):
            with reader.accounting(row):
                raw = _RoleBench.model_validate(row.value)
                reply, character = next(iter(raw.generated), ""), raw.role.strip()
                # The published layouts have the language in different places; only the text shows it everywhere.
                language = language_of(raw.question + reply)
                if not raw.question.strip() or not reply.strip() or language is None:
                    raise Dropped("no question or no reply")
                if not character:
                    raise Malformed("role: empty")
                asker = "提问者" if language == "zh" else "Someone"  # the corpus does not name the asker
                lines = [(asker, raw.question), (character, reply)]
                yield play("rolebench", f"{name}/{position}", language, character, lines)


# Control characters → the signs of Windows-1252, in which five are undefined.
_UNDEFINED = {0x81, 0x8D, 0x8F, 0x90, 0x9D}
_SIGNS = {code: "" if code in _UNDEFINED else bytes([code]).decode("cp1252") for code in range(0x80, 0xA0)}


class _SocialBench(RowModel):
    dialogue: list[SpokenLine]
    language: Language = Field(validation_alias=AliasPath("meta", "lang"))


@by_row
def socialbench(value: Any, source_id: str) -> RolePlay:
    """SocialBench (Chen et al. 2024): role-play dialogues with a multiple-choice question; English and Chinese.

    One JSON list: `dialogue` (`from`, `value`), `instruction`, `choices`, `meta.lang`. No field names a character. The items on
    emotion ask how the last speaker feels, who is taken as the character; the other items have one line, an exam question, and
    are dropped. A few signs in English texts are control characters of Windows-1252, which are replaced.
    """
    raw = _SocialBench.model_validate(value)
    lines = [(line.speaker.strip(), line.text.translate(_SIGNS)) for line in raw.dialogue]
    if len(lines) < 2:
        raise Dropped("single line")
    character = lines[-1][0]
    if not character:
        raise Malformed("dialogue: the last line has no speaker")
    return play("socialbench", source_id, raw.language, character, lines)


class _RpBenchLine(RowModel):
    speaker: str = Field(validation_alias="from")
    sentences: list[str]


class _RpBench(RowModel):
    npc_profile: dict[str, Any]
    conversation: list[_RpBenchLine]
    plot_recap: str = ""


@by_row
def rpbench(value: Any, source_id: str) -> RolePlay:
    """RPBench-Auto (Boson AI): characters and scenes for a role-play benchmark, English.

    JSON lines `npc_profile` and `conversation` (`from`, `sentences`), in two forms: `rpbench_character.jsonl` (a chat profile)
    and `rpbench_scene.jsonl` (a profile by fields, and the story so far in `plot_recap`). The published conversations consist
    of the character's first words, without a partner; a set that needs several turns takes none of them.
    """
    raw = _RpBench.model_validate(value)
    about = raw.npc_profile
    character = str(about.get("name") or about.get("name_text") or "").strip()
    if not character:
        raise Malformed("npc_profile: neither name nor name_text")
    if "name_text" in about:  # a chat profile: its traits and longest description
        texts = (str(about.get(key) or "").strip() for key in ("long_definition_text", "description", "definition_text"))
        parts = [str(about.get("short_definition_text") or "").strip(), next((text for text in texts if text), "")]
        persona = shortened("\n".join(dict.fromkeys(part for part in parts if part)), PERSONA)
    else:
        persona = profile({key: value for key, value in about.items() if key != "name"}, PERSONA, ": ", "; ")
    lines = [(character if line.speaker == "npc" else "Player", " ".join(line.sentences)) for line in raw.conversation]
    lines = [(name, filled(text, character)) for name, text in lines]
    persona, scene = (filled(text, character) for text in (persona, shortened(raw.plot_recap.replace("**", ""), PERSONA)))
    return play("rpbench", source_id, "en", character, lines, persona=persona, scene=scene, alone=True)


_NSFW = re.compile(r"nsfw|adult|erotic|18\s*\+", re.IGNORECASE)
_SEXUAL = re.compile(
    r"\b(?:sex(?:y|ual\w*)?|naked|nude\w*|erotic\w*|moan\w*|orgasm\w*|horny|lewd|aroused|breasts?|nipples?|penis|vagina|cum|rap(?:e|ed|ing))\b",
    re.IGNORECASE,
)


class _PippaMessage(RowModel):
    message: str
    is_human: bool


class _Pippa(RowModel):
    bot_name: str
    bot_description: str | None = None
    bot_definitions: str | None = None
    categories: list[str] | None = None
    conversation: list[_PippaMessage]


@by_row
def pippa(value: Any, source_id: str) -> RolePlay:
    """PIPPA (Gosling et al. 2023): people's chats with characters of their own making, English, multi-turn.

    The published form, checked against the dataset's page and loader on the hub (no copy of the corpus was at hand): JSON lines
    `pippa_deduped.jsonl` (16,832 chats; `pippa.jsonl`, about 26,000, has the same fields) with `bot_name`, `bot_description`,
    `bot_definitions`, `bot_greeting`, `categories` (a list or null) and `conversation`, a list of `message` and `is_human`.

    The hub marks the corpus as not for all audiences. Chats with an NSFW category are left out, and so are chats with sexual
    words, because the characters' authors chose the categories. Both filters are coarse: inspect the result before training.
    """
    raw = _Pippa.model_validate(value)
    character = raw.bot_name.strip()
    if not character:
        raise Malformed("bot_name: empty")
    about = (raw.bot_description or "").strip() or (raw.bot_definitions or "").strip()
    if any(_NSFW.search(category) for category in raw.categories or ()):
        raise Dropped("a category marked NSFW")
    if _SEXUAL.search(about) or any(_SEXUAL.search(line.message) for line in raw.conversation):
        raise Dropped("sexual words")
    partner = "You" if character != "You" else "Partner"
    lines = [(partner if line.is_human else character, filled(line.message, character)) for line in raw.conversation]
    return play("pippa", source_id, "en", character, lines, persona=filled(shortened(about, PERSONA), character))


bundled = by_row(lambda value, _: RolePlay.model_validate(value))
