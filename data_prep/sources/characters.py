"""Corpora of dialogues with characters that need more than a row model: names in texts, thoughts, errors of generation."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError

from core.errors import UserError
from core.files import explain
from core.records import RolePlay, Whole
from core.rows import CorpusItem, CorpusReader, CorpusRow, Dropped, Malformed, RowModel, by_row
from data_prep.sources.play import PERSONA, language_of, play, profile, shortened
from data_prep.sources.support import SpokenLine


class _CharacterEval(RowModel):
    id: Whole | str
    role: str
    context: str


def utterances(context: str) -> list[tuple[str, str]]:
    """(speaker, words) in a context; a line without a speaker continues the utterance before, the first one has none ("")."""
    result: list[tuple[str, str]] = []
    for line in context.splitlines():
        match = re.fullmatch(r"\s*([^：:\n（）()，。！？“”\"]{1,20})[：:]\s*(.*)", line)
        if match:
            result.append((match[1].strip(), match[2]))
        elif result:
            result[-1] = (result[-1][0], f"{result[-1][1]}\n{line.strip()}")
        elif line.strip():
            result.append(("", line.strip()))
    return result


def charactereval(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """CharacterEval (Tu et al., ACL 2024): dialogues from Chinese novels and scripts, up to where a character is to reply.

    `test_data.jsonl` is one JSON list despite its name; its `context` is a text with an utterance per line, `name：words`, and
    lines without a name continue the utterance before. Profiles are beside it in `character_profiles.json`; without that file,
    personas stay empty. `source_id` is the corpus's id.
    """
    for file in files:
        profiles: dict[str, Any] = {}
        path = file.with_name("character_profiles.json")
        if path.is_file():
            profiles = reader.json(path)
            if not isinstance(profiles, dict) or not all(isinstance(fields, dict) for fields in profiles.values()):
                raise UserError(f"{path}: expected an object of profiles (objects) by character")
        ids: set[str] = set()
        for row in reader.json_list(file):
            with reader.accounting(row):
                raw = _CharacterEval.model_validate(row.value)
                character = raw.role.strip()
                if not character:
                    raise Malformed("role: empty")
                persona = profile(profiles.get(character, {}), 600, "：", "；")
                item = play("charactereval", str(raw.id), "zh", character, utterances(raw.context), persona=persona)
                if item.id in ids:
                    raise Malformed(f"id: {item.source_id} occurs twice")
                ids.add(item.id)
                yield item


_MARKUP = re.compile(r"\((?:speaking|thinking)\)|<\|", re.IGNORECASE)


class _InterviewPart(RowModel):
    role: str
    action: str = ""
    content: str


class _InterviewTurn(RowModel):
    turn_role: Literal["interviewer", "character"]
    turn_content: list[_InterviewPart]

    @property
    def words(self) -> list[str]:
        """The spoken parts."""
        spoken = (part.content.strip() for part in self.turn_content if "thinking" not in part.action.casefold())
        return [words for words in spoken if words]


class _Interview(RowModel):
    character: str = Field(min_length=1)
    finished: bool = True
    content: list[_InterviewTurn]


def _interview_fault(raw: _Interview) -> str | None:
    if not raw.finished:
        return "unfinished"
    if any(len({part.role for part in turn.turn_content}) > 1 for turn in raw.content):
        return "two speakers in one turn"
    if any(_MARKUP.search(part.content) for turn in raw.content for part in turn.turn_content):
        return "markup of the generation inside a turn"
    if any(not turn.words for turn in raw.content):
        return "a turn in which nothing is said aloud"
    if any(not re.search(r"[.!?…][\"'”’)\]*]*$", turn.words[-1]) for turn in raw.content):
        return "a turn breaks off"
    texts = [(turn.turn_role, "\n".join(turn.words)) for turn in raw.content]
    return "a turn is there twice" if len(set(texts)) < len(texts) else None


def _character_llm(value: Any, source_id: str) -> RolePlay:
    """Character-LLM (Shao et al., EMNLP 2023): model-written interviews with nine characters, English, five exchanges each.

    JSON lines, published as `multiturn_NAME_MODEL_result/DATE.jsonl`, also read as `multiturn_NAME_MODEL.jsonl`: `character`,
    `finished`, and `content`, a list of turns of `interviewer` and `character`, each with the parts that the model wrote for
    it: speaker, action (`(speaking)`, `(thinking)`) and words. The `questions_*.json` files beside them hold no dialogues and
    are not read. Both sides are generated, with errors that training would pick up: see `_interview_fault`.
    """
    raw = _Interview.model_validate(value)
    if fault := _interview_fault(raw):
        raise Dropped(fault)
    character = raw.character.strip()
    names = {"interviewer": "Interviewer", "character": character}  # the files call every interviewer `Man`
    lines = [(names[turn.turn_role], words) for turn in raw.content for words in turn.words]
    return play("character_llm", source_id, "en", character, lines)


# multiturn_NAME_MODEL: the published files are named by date, their folders by character.
character_llm = by_row(
    _character_llm, named=lambda f: f.parent.name[: -len("_result")] if f.parent.name.endswith("_result") else f.stem
)

_NARRATION = "旁白"


class _ChatHaruhi(RowModel):
    dialogue: list[SpokenLine]
    source: str = "synthesized"


def unquoted(text: str) -> str:
    """Words without the 「」 around them and without an unpaired bracket; brackets inside the words stay."""
    text = text.strip()
    if text.startswith("「"):
        depth = list(accumulate((sign == "「") - (sign == "」") for sign in text))
        close = depth.index(0) if 0 in depth else len(text)  # where the opening bracket is closed
        text = text[1:close] + text[close + 1 :]
    elif text.count("」") > text.count("「"):
        text = text.replace("」", "", 1)
    text = text.strip()
    for opening, closing in (("“", "”"), ('"', '"')):
        inner = text[1:-1]
        if len(text) > 1 and text == opening + inner + closing and opening not in inner and closing not in inner:
            return inner.strip()
    return text


def chat_haruhi(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """ChatHaruhi (Li et al. 2023): dialogues around a character, one file per character; Chinese, some replies in English.

    JSON lines `dialogue` (`role`, `text`) and `source`: `synthesized` by a model, or `user`, logs of people with a bot. The
    logs are unmoderated (some are sexual, and the character is a schoolgirl) and are left out. A file's character is its most
    frequent speaker. `source_id` is `file stem/position`. Peculiarities of the files:

    - Texts are in 「」, at times unpaired or followed by a stage direction.
    - A name may have a stage direction (`name（smiling）`), which is moved before the words, or be a clause that contains the
      character's name.
    - A line without a name is narration, or continues the line before if its 「 is open. A name that is a sentence about
      somebody else shows that a dialogue was split wrongly.
    - Some synthesized replies are in another language than the line before: those dialogues are left out.
    """
    for file in files:
        dialogues: list[tuple[CorpusRow, str, list[tuple[str, str]]]] = []
        for position, row in enumerate(reader.jsonl(file)):
            with reader.accounting(row):
                raw = _ChatHaruhi.model_validate(row.value)
                if raw.source == "user":
                    raise Dropped("a person's log, unmoderated")
                dialogues.append((row, f"{file.stem}/{position}", _named_lines(raw)))
        names = Counter(name for _, _, lines in dialogues for name, _ in lines if name != _NARRATION)
        character = names.most_common(1)[0][0] if names else ""
        for row, source_id, lines in dialogues:
            with reader.accounting(row):
                yield _chat_haruhi(source_id, lines, character)


def _named_lines(raw: _ChatHaruhi) -> list[tuple[str, str]]:
    result: list[tuple[str, str]] = []
    open_before = False
    for line in raw.dialogue:
        name, text = line.speaker.strip(), unquoted(line.text)
        directed = re.fullmatch(r"(.+?)\s*[（(]([^（()）]*)[)）]?", name)
        if directed:
            name, text = directed[1], f"（{directed[2]}）{text}" if text else ""
        if not name and open_before:
            result[-1] = (result[-1][0], f"{result[-1][1]}\n{text}")
            continue
        open_before = line.text.count("「") > line.text.count("」")
        result.append((name or _NARRATION, text))
    return result


def _chat_haruhi(source_id: str, lines: list[tuple[str, str]], character: str) -> RolePlay:
    named = [(character if _is_called(name, character) else name, text) for name, text in lines]
    language = language_of(" ".join(text for name, text in named if name == character))
    others = language_of(" ".join(text for name, text in named if name != character))
    if any(re.search(r"(.{1,4}?)\1{30,}", text) for _, text in named):
        raise Dropped("a line repeats itself without end")
    if any(re.search(r"[，。]", name) for name, _ in named):
        raise Dropped("a speaker's name is a sentence")
    if language and others and language != others:
        raise Dropped("the sides speak different languages")
    return play("chat_haruhi", source_id, language or "zh", character, named)


def _is_called(name: str, character: str) -> bool:
    """Whether a speaker's name is the character's, or a fuller name or clause with it (but not of several people)."""
    return bool(character) and character in name and not re.search(r"[、,，和]", name.split(character)[0])


class _Coser(RowModel):
    scenario: str = ""
    key_characters: list[dict[str, Any]]
    dialogues: list[SpokenLine]
    character_profiles: dict[str, str] = Field(default={})


class _Plot(RowModel):
    conversation: list[Any] | str


class _Book(RowModel):
    plots: list[Any]
    character_datasets: dict[str, dict[str, Any]] = Field(default={})


def coser(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """CoSER (Wang et al. 2025): conversations from books with each character's thoughts; English, many characters in a scene.

    Two published forms: a book (`plots`, each with `conversation`: a list, or that list written out as a string;
    `character_datasets` with profiles) and the test set (a list of scenes with `character_profiles`). `source_id` is `file
    stem/plot/conversation`, or `file stem/position` in a test set.

    An inner thought is in [brackets] before the words. Thoughts are removed from all lines: the partners' because the character
    cannot hear them, and the character's own because the model would learn to write out its thoughts to its partner. Actions
    in (parentheses) stay.
    """
    for file in files:
        value = reader.json(file)
        if isinstance(value, list):
            for number, scene in enumerate(value):
                row = reader.row(f"{file}: entry {number}", scene)
                with reader.accounting(row):
                    yield _coser(row.value, f"{file.stem}/{number}", {})
            continue
        try:
            book = _Book.model_validate(value)
        except ValidationError as error:
            reader.malformed(reader.row(str(file), None), f"neither a book nor a list of scenes: {explain(error)}")
            continue
        profiles = {name: str(portrait.get("profile", "")) for name, portrait in book.character_datasets.items()}
        for number, plot in enumerate(book.plots):
            where = f"{file}: plot {number}"
            try:
                conversations = _conversations(_Plot.model_validate(plot).conversation)
            except (ValidationError, Malformed) as error:
                reader.malformed(reader.row(where, None), explain(error))
                continue
            for position, conversation in enumerate(conversations):
                row = reader.row(f"{where}, conversation {position}", conversation)
                with reader.accounting(row):
                    yield _coser(row.value, f"{file.stem}/{number}/{position}", profiles)


def _conversations(value: list[Any] | str) -> list[Any]:
    """The conversations of a plot; a string is parsed as JSON or as a Python literal, never executed. Raises `Malformed`."""
    conversations: Any = value
    if isinstance(value, str):
        try:
            conversations = orjson.loads(value)
        except orjson.JSONDecodeError:
            try:
                conversations = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                raise Malformed("conversation: a string that is neither JSON nor a Python literal") from None
    if not isinstance(conversations, list):
        raise Malformed(f"conversation: expected a list, found {type(conversations).__name__}")
    return conversations


def _coser(value: Any, source_id: str, profiles: Mapping[str, str]) -> RolePlay:
    raw = _Coser.model_validate(value)
    lines = [(line.speaker.strip(), " ".join(re.sub(r"\[[^\[\]]*\]", " ", line.text).split())) for line in raw.dialogues]
    counts = Counter(name for name, text in lines if text)
    keys = [name for key in raw.key_characters if (name := str(key.get("name", "")).strip()) not in ("", "Environment")]
    if not keys:
        raise Dropped("no key character")
    character = max(keys, key=lambda name: counts[name])  # the first of those with the most lines
    portrait = raw.character_profiles.get(character) or profiles.get(character, "")
    plain = "\n".join(line.strip() for line in portrait.replace("*", "").splitlines() if line.strip())  # it is Markdown
    return play("coser", source_id, "en", character, lines, persona=shortened(plain, PERSONA), scene=raw.scenario.strip())
