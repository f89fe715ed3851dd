"""Corpora of dialogues with characters that need more than a row model: names in texts, thoughts, faults of their making."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError

from core.errors import UserError
from core.files import explain
from core.records import RolePlay, Whole
from core.rows import CorpusItem, CorpusReader, CorpusRow, Dropped, Malformed, RowModel, by_row
from data_prep.sources.play import PERSONA, language_of, play, profile, shortened

_PORTRAITS = "character_profiles.json"
_SHORT_PERSONA = 600  # characters
_SPEAKER = re.compile(r"\s*([^：:\n（）()，。！？“”\"]{1,20})[：:]\s*(.*)")


class _CharacterEval(RowModel):
    """CharacterEval (Tu et al., ACL 2024): dialogues from Chinese novels and scripts, up to where a character is to reply.

    `test_data.jsonl` is one JSON list despite its name; its `context` is a text with an utterance a line, `name：words`, and
    lines without a name go on with the utterance before. Profiles stand beside it in `character_profiles.json`.
    """

    id: Whole | str
    role: str
    context: str


def utterances(context: str) -> list[tuple[str, str]]:
    """(speaker, words) of a context; a line without a speaker belongs to the utterance before, the first one to nobody ("")."""
    result: list[tuple[str, str]] = []
    for line in context.splitlines():
        match = _SPEAKER.fullmatch(line)
        if match:
            result.append((match[1].strip(), match[2]))
        elif result:
            result[-1] = (result[-1][0], f"{result[-1][1]}\n{line.strip()}")
        elif line.strip():
            result.append(("", line.strip()))
    return result


def _read_charactereval(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every dialogue; `source_id` is the corpus's id. Without the profiles beside it, personas stay empty."""
    for file in files:
        profiles = _portraits(file.with_name(_PORTRAITS), reader)
        seen: set[str] = set()
        for row in reader.json_list(file):
            with reader.accounting(row):
                item = _charactereval(row.value, profiles)
                if item.id in seen:
                    raise Malformed(f"id: {item.source_id} is there twice")
                seen.add(item.id)
                yield item


def _portraits(path: Path, reader: CorpusReader) -> dict[str, Mapping[str, Any]]:
    if not path.is_file():
        return {}
    value = reader.json(path)
    if not isinstance(value, dict) or not all(isinstance(fields, dict) for fields in value.values()):
        raise UserError(f"{path}: expected an object of profiles (objects) by character")
    return value


def _charactereval(value: Any, profiles: Mapping[str, Mapping[str, Any]]) -> RolePlay:
    raw = _CharacterEval.model_validate(value)
    character = raw.role.strip()
    if not character:
        raise Malformed("role: empty")
    return play(
        source="charactereval",
        source_id=str(raw.id),
        language="zh",
        character=character,
        said=utterances(raw.context),
        persona=profile(profiles.get(character, {}), _SHORT_PERSONA, "：", "；"),
    )


_INTERVIEWER = "Interviewer"  # the files call every interviewer `Man`
_MARKUP = re.compile(r"\((?:speaking|thinking)\)|<\|", re.IGNORECASE)
_ENDED = re.compile(r"[.!?…][\"'”’)\]*]*$")


class _InterviewPart(RowModel):
    role: str
    action: str = ""
    content: str

    @property
    def thought(self) -> bool:
        return "thinking" in self.action.casefold()


class _InterviewTurn(RowModel):
    turn_role: Literal["interviewer", "character"]
    turn_content: list[_InterviewPart]

    @property
    def words(self) -> list[str]:
        """What was said aloud, part by part."""
        return [part.content.strip() for part in self.turn_content if part.content.strip() and not part.thought]


class _Interview(RowModel):
    """Character-LLM (Shao et al., EMNLP 2023): model-written interviews with nine characters, English, five exchanges each.

    JSON lines, published as `multiturn_NAME_MODEL_result/DATE.jsonl`, also read as `multiturn_NAME_MODEL.jsonl`: `character`,
    `finished`, and `content`, a list of turns of `interviewer` and `character`, each with the parts that the model wrote for
    it: who, an action (`(speaking)`, `(thinking)`) and words. The `questions_*.json` files beside them hold no dialogues and
    are not read.

    Both sides are generated, and it goes wrong in ways that would be learned: see `_interview_fault`.
    """

    character: str = Field(min_length=1)
    finished: bool = True
    content: list[_InterviewTurn]


def _interview_fault(raw: _Interview) -> str | None:
    """Why an interview cannot be used, None when it can."""
    if not raw.finished:
        return "unfinished"
    if any(len({part.role for part in turn.turn_content}) > 1 for turn in raw.content):
        return "two speakers in one turn"
    if any(_MARKUP.search(part.content) for turn in raw.content for part in turn.turn_content):
        return "markup of the generation inside a turn"
    if any(not turn.words for turn in raw.content):
        return "a turn in which nothing is said aloud"
    if any(not _ENDED.search(turn.words[-1]) for turn in raw.content):
        return "a turn breaks off"
    texts = [(turn.turn_role, "\n".join(turn.words)) for turn in raw.content]
    return "a turn is there twice" if len(set(texts)) < len(texts) else None


def _character_llm(value: Any, source_id: str) -> RolePlay:
    raw = _Interview.model_validate(value)
    fault = _interview_fault(raw)
    if fault:
        raise Dropped(fault)
    character = raw.character.strip()
    names = {"interviewer": _INTERVIEWER, "character": character}
    said = [(names[turn.turn_role], words) for turn in raw.content for words in turn.words]
    return play(source="character_llm", source_id=source_id, language="en", character=character, said=said)


def _interview_name(file: Path) -> str:
    """multiturn_NAME_MODEL: the published files are called by a date, their folders by who is interviewed."""
    folder = file.parent.name
    return folder.removesuffix("_result") if folder.endswith("_result") else file.stem


_NARRATION = "旁白"
_LOG = "user"
_DIRECTED = re.compile(r"(.+?)\s*[（(]([^（()）]*)[)）]?")
_JOINT = re.compile(r"[、,，和]")
_ENDLESS = re.compile(r"(.{1,4}?)\1{30,}")
_PROSE = re.compile(r"[，。]")


class _ChatHaruhiLine(RowModel):
    role: str
    text: str


class _ChatHaruhi(RowModel):
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

    dialogue: list[_ChatHaruhiLine]
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
        if len(text) > 1 and text == opening + inner + closing and opening not in inner and closing not in inner:
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


def _named_lines(raw: _ChatHaruhi) -> list[tuple[str, str]]:
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
        result.append((name or _NARRATION, text))
    return result


def _read_chat_haruhi(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every dialogue in which the file's character and somebody else speak; `source_id` is `file stem/position`."""
    for file in files:
        dialogues: list[tuple[CorpusRow, str, list[tuple[str, str]]]] = []
        for position, row in enumerate(reader.jsonl(file)):
            with reader.accounting(row):
                raw = _ChatHaruhi.model_validate(row.value)
                if raw.source == _LOG:
                    raise Dropped("a person's log, unmoderated")
                dialogues.append((row, f"{file.stem}/{position}", _named_lines(raw)))
        names = Counter(name for _, _, lines in dialogues for name, _ in lines if name != _NARRATION)
        character = names.most_common(1)[0][0] if names else ""
        for row, source_id, lines in dialogues:
            with reader.accounting(row):
                yield _chat_haruhi(source_id, lines, character)


def _chat_haruhi(source_id: str, lines: list[tuple[str, str]], character: str) -> RolePlay:
    said = [(character if _is_called(name, character) else name, text) for name, text in lines]
    language = language_of(" ".join(text for name, text in said if name == character))
    others = language_of(" ".join(text for name, text in said if name != character))
    if any(_ENDLESS.search(text) for _, text in said):
        raise Dropped("a line repeats itself without end")
    if any(_PROSE.search(name) for name, _ in said):
        raise Dropped("a speaker's name is a sentence")
    if language and others and language != others:
        raise Dropped("the sides speak different languages")
    return play(source="chat_haruhi", source_id=source_id, language=language or "zh", character=character, said=said)


def _is_called(name: str, character: str) -> bool:
    """Whether a speaker's name is the character's, or a fuller name or clause with it (but not one of several people)."""
    return bool(character) and (name == character or (character in name and not _JOINT.search(name.split(character)[0])))


_ENVIRONMENT = "Environment"
_THOUGHT = re.compile(r"\[[^\[\]]*\]")


class _KeyCharacter(RowModel):
    name: str


class _CoserLine(RowModel):
    character: str
    message: str


class _Coser(RowModel):
    """CoSER (Wang et al. 2025): conversations from books with each character's thoughts; English, many characters in a scene.

    Two published forms: a book (`plots`, each with `conversation`: a list, or that list written out as a string;
    `character_datasets` with profiles) and the test set (a list of scenes with `character_profiles`).

    An inner thought stands in [brackets] before the words. Thoughts are removed from all lines: the partners' because the
    character cannot hear them, and the character's own because a seeker's inner state is no part of what it says; otherwise
    the model would learn to write its thoughts out to whoever it talks to. Actions in (parentheses) stay.
    """

    scenario: str = ""
    key_characters: list[_KeyCharacter]
    dialogues: list[_CoserLine]
    character_profiles: dict[str, str] = Field(default={})


class _Portrait(RowModel):
    profile: str = ""


class _Plot(RowModel):
    conversation: list[Any] | str


class _Book(RowModel):
    plots: list[Any]
    character_datasets: dict[str, _Portrait] = Field(default={})


def _read_coser(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every conversation; `source_id` is `file stem/plot/conversation`, or `file stem/position` in a test set."""
    for file in files:
        value = reader.json(file)
        scenes = _scenes(file, value, reader) if isinstance(value, list) else _book(file, value, reader)
        for row, source_id, profiles in scenes:
            with reader.accounting(row):
                yield _coser(row.value, source_id, profiles)


def _scenes(file: Path, scenes: list[Any], reader: CorpusReader) -> Iterator[tuple[CorpusRow, str, Mapping[str, str]]]:
    for number, scene in enumerate(scenes):
        yield reader.row(f"{file}: entry {number}", scene), f"{file.stem}/{number}", {}


def _book(file: Path, value: Any, reader: CorpusReader) -> Iterator[tuple[CorpusRow, str, Mapping[str, str]]]:
    try:
        book = _Book.model_validate(value)
    except ValidationError as error:
        reader.malformed(reader.row(str(file), None), f"neither a book nor a list of scenes: {explain(error)}")
        return
    profiles = {name: portrait.profile for name, portrait in book.character_datasets.items()}
    for number, plot in enumerate(book.plots):
        where = f"{file}: plot {number}"
        try:
            conversations = _conversations(_Plot.model_validate(plot).conversation)
        except (ValidationError, Malformed) as error:
            reader.malformed(reader.row(where, None), explain(error))
            continue
        for position, conversation in enumerate(conversations):
            yield reader.row(f"{where}, conversation {position}", conversation), f"{file.stem}/{number}/{position}", profiles


def _conversations(value: list[Any] | str) -> list[Any]:
    """The conversations of a plot; a string is read as JSON or as a Python literal, and never run. Raises `Malformed`."""
    conversations = _written_out(value) if isinstance(value, str) else value
    if not isinstance(conversations, list):
        raise Malformed(f"conversation: expected a list, found {type(conversations).__name__}")
    return conversations


def _written_out(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise Malformed("conversation: a string that is neither JSON nor a Python literal") from None


def _coser(value: Any, source_id: str, profiles: Mapping[str, str]) -> RolePlay:
    raw = _Coser.model_validate(value)
    said = [(line.character.strip(), " ".join(_THOUGHT.sub(" ", line.message).split())) for line in raw.dialogues]
    counts = Counter(name for name, text in said if text)
    keys = [key.name.strip() for key in raw.key_characters if key.name.strip() not in ("", _ENVIRONMENT)]
    if not keys:
        raise Dropped("no key character")
    character = max(keys, key=lambda name: counts[name])  # the first of those with most lines
    portrait = raw.character_profiles.get(character) or profiles.get(character, "")
    return play(
        source="coser",
        source_id=source_id,
        language="en",
        character=character,
        said=said,
        persona=shortened(_unmarked(portrait), PERSONA),
        scene=raw.scenario.strip(),
    )


def _unmarked(markdown: str) -> str:
    """A profile without its marks of emphasis and empty lines."""
    return "\n".join(line.strip() for line in markdown.replace("*", "").splitlines() if line.strip())


READERS = {
    "charactereval": _read_charactereval,
    "character_llm": by_row(_character_llm, named=_interview_name),
    "chat_haruhi": _read_chat_haruhi,
    "coser": _read_coser,
}
