"""Support corpora: common functions (speakers as roles, turns as a dialogue), and corpora that need little beyond a row
model."""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import orjson
from pydantic import AliasChoices, AliasPath, BeforeValidator, ConfigDict, Field

from core.files import load_json, read_json, read_text
from core.records import Language, Number, Role, SupportDialogue, Turn, Whole
from core.rows import CorpusItem, CorpusReader, Dropped, Malformed, RowModel, by_row

ROLES: dict[str, Role] = {"usr": "seeker", "seeker": "seeker", "speaker": "seeker"}
ROLES |= {"sys": "supporter", "supporter": "supporter", "listener": "supporter"}


def merged(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Turns stripped, without empty ones; consecutive turns of one side become one, their texts on separate lines."""
    result: list[Turn] = []
    for turn in turns:
        if not (text := turn.text.strip()):
            continue
        if result and result[-1].role == turn.role:
            result[-1] = Turn(role=turn.role, text=f"{result[-1].text}\n{text}")
        else:
            result.append(Turn(role=turn.role, text=text))
    return tuple(result)


def support_dialogue(
    source: str, source_id: str, language: Language, turns: Iterable[tuple[Role, str]], **about: Any
) -> SupportDialogue:
    """Turns, joined by `merged`, as a dialogue with further fields (`about`). Raises `Dropped` for fewer than two turns."""
    spoken = merged(Turn(role=role, text=text) for role, text in turns)
    if len(spoken) < 2:
        raise Dropped("no reply")
    dialogue = {"id": f"{source}-{source_id}", "language": language, "source": source, "source_id": source_id, "turns": spoken}
    return SupportDialogue.model_validate({"dialogue": dialogue, **about})


class SpokenLine(RowModel):
    """A speaker's words, under the names that corpora have for the two."""

    speaker: str = Field(validation_alias=AliasChoices("speaker", "role", "from", "character"))
    text: str = Field(validation_alias=AliasChoices("text", "content", "value", "message"))


def by_role(spoken: Iterable[SpokenLine | tuple[str, str]], roles: dict[str, Role]) -> list[tuple[Role, str]]:
    """The lines with the corpus's names replaced. Raises `Malformed` for a name that is not in `roles`."""
    pairs = [(line.speaker, line.text) if isinstance(line, SpokenLine) else line for line in spoken]
    if unknown := sorted({speaker for speaker, _ in pairs} - set(roles)):
        raise Malformed(f"unknown speaker {unknown[0]!r} (known: {', '.join(roles)})")
    return [(roles[speaker], text) for speaker, text in pairs]


def _exchanges(pairs: Iterable[tuple[str, str]]) -> list[tuple[Role, str]]:
    return [turn for seeker, supporter in pairs for turn in (("seeker", seeker), ("supporter", supporter))]


# An answer of ESConv's seekers, 1–5; None if it is missing, which the split files write as -1.
Score = Annotated[
    Annotated[Number, Field(ge=1, le=5)] | None, BeforeValidator(lambda value: None if value in ("", -1, "-1") else value)
]


def _answer(form: str, split: str) -> Any:
    """An answer of the survey, by its names in the original JSON (`form`) and in the split files."""
    return Field(default=None, validation_alias=AliasChoices(AliasPath("survey_score", "seeker", form), split))


class _Esconv(RowModel):
    emotion_type: str
    problem_type: str
    situation: str
    dialog: list[SpokenLine]
    survey_score: dict[str, dict[str, Any] | None] | None = None  # checks the form; the answers are read below
    empathy: Score = _answer("empathy", "empathy")
    relevance: Score = _answer("relevance", "relevance")
    emotion_before: Score = _answer("initial_emotion_intensity", "init_intensity")
    emotion_after: Score = _answer("final_emotion_intensity", "final_intensity")


def _esconv(source: str, value: Any, source_id: str) -> SupportDialogue:
    """ESConv (Liu et al., ACL 2021): crowdsourced emotional-support dialogues with the seeker's situation and survey.

    Three published forms: the original JSON (`ESConv.json`, also `FailedESConv.json`), and two JSON-lines splits whose turns
    say `usr`/`sys` (FADO's, with the survey; MultiESC's, with the turns of one side merged, without the survey). MultiESC has
    the same dialogues in another order: it is a corpus of its own here (`esconv_multi`), so that ids do not collide.

    `survey` has the answers given: empathy and relevance of the supporter, the seeker's emotion before and after.
    """
    raw = _Esconv.model_validate(value)
    return support_dialogue(
        source,
        source_id,
        "en",
        by_role(raw.dialog, ROLES),
        situation=raw.situation.strip(),
        problem=raw.problem_type.strip(),
        emotion=raw.emotion_type.strip(),
        survey=raw.model_dump(include={"empathy", "relevance", "emotion_before", "emotion_after"}, exclude_none=True),
    )


esconv, esconv_failed, esconv_multi = (by_row(partial(_esconv, name)) for name in ("esconv", "esconv_failed", "esconv_multi"))


class _EmoLlmExchange(RowModel):
    input: str
    output: str


class _EmoLlm(RowModel):
    conversation: list[_EmoLlmExchange]


@by_row
def emollm(value: Any, source_id: str) -> SupportDialogue:
    """EmoLLM (SmartFlowAI): two Chinese sets of counselling dialogues by an LLM: `data.json`, and `aiwei.json`, where the
    supporter plays a persona with stage directions and emoji."""
    pairs = ((exchange.input, exchange.output) for exchange in _EmoLlm.model_validate(value).conversation)
    return support_dialogue("emollm", source_id, "zh", _exchanges(pairs))


class _Extes(RowModel):
    scene: str | None = None
    description: str | None = None
    content: list[dict[str, Any]]


class _ExtesInstruction(RowModel):
    instruction: str
    input: str = ""
    output: str
    history: list[tuple[str, str]]


@by_row
def extes(value: Any, source_id: str) -> SupportDialogue:
    """ExTES (Zheng et al. 2023): emotional-support dialogues by ChatGPT, with a scenario label and a description each.

    We know the published list (`ExTES.json`, in `ExTES.zip`) of {scene, description, content: [{User} or {AI, AI Strategy}]}
    from public code that reads it. Its instruction form has neither label nor description: `instruction` is the seeker's last
    turn, `output` the reply to it, `history` [[seeker, supporter], ...].
    """
    if isinstance(value, dict) and "history" in value:
        row = _ExtesInstruction.model_validate(value)
        last = f"{row.instruction}\n{row.input}".strip()
        return support_dialogue("extes", source_id, "en", _exchanges([*row.history, (last, row.output)]))
    raw = _Extes.model_validate(value)
    roles: dict[str, Role] = {"User": "seeker", "AI": "supporter"}
    turns: list[tuple[Role, str]] = []
    for number, entry in enumerate(raw.content):
        spoken = [(roles[key], text) for key, text in entry.items() if key in roles]
        if not spoken or not all(isinstance(text, str) for _, text in spoken):
            raise Malformed(f"content.{number}: expected a text under {' or '.join(roles)}, found {', '.join(entry)}")
        turns += spoken
    about = {"situation": (raw.description or "").strip(), "problem": (raw.scene or "").strip()}
    return support_dialogue("extes", source_id, "en", turns, **about)


class _Smile(RowModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    dialog: list[SpokenLine]


def _smile(value: Any, _: str) -> SupportDialogue:
    """SmileChat (Qiu et al. 2023, SMILE): Chinese multi-turn dialogues that ChatGPT wrote from PsyQA's single turns. Published
    as a folder of `<n>.json`, each a list of {role: client|counselor, content}; also read as JSON lines of {id, dialog}.
    `source_id` is the number of its file."""
    raw = _Smile.model_validate(value)
    roles: dict[str, Role] = {"client": "seeker", "counselor": "supporter"}
    return support_dialogue("smile", raw.id, "zh", by_role(raw.dialog, roles))


smile = by_row(
    _smile, lambda reader, file: reader.documents(file, lambda: {"id": file.stem, "dialog": read_json(file, "corpus file")})
)


class _Escot(RowModel):
    id: Whole
    dialog: list[SpokenLine] = Field(validation_alias=AliasPath("original_data", "dialog"))
    response: str = Field(validation_alias=AliasPath("original_data", "response"))
    emotion: str = Field(default="", validation_alias=AliasPath("cot_data", "emotion"))
    stimuli: str = Field(default="", validation_alias=AliasPath("cot_data", "emotion_stimuli"))


class _EscotReply(RowModel):
    dialog_id: Whole
    input: str
    output: str


def escot(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """ESCoT (Zhang et al., ACL 2024): emotional-support dialogues by an LLM, with a chain of thought for the last reply.

    `train.json`, `val.json` and `test.json` hold the annotated form. `response_only_train.json` (in the repository
    `empathetic_dialogue_train.json`) has the history as lines of text, the reply, and the same ids, which are the `source_id`s.
    `situation` is the annotated cause of the seeker's emotion, `emotion` the sentence about it: an LLM wrote both, and they are
    empty in the response-only form.
    """
    ids: set[str] = set()
    for row in (row for file in files for row in reader.json_list(file)):
        with reader.accounting(row):
            short = isinstance(row.value, dict) and "dialog_id" in row.value
            item = _escot_reply(row.value) if short else _escot_annotated(row.value)
            if item.id in ids:
                raise Dropped("dialogue already read")
            ids.add(item.id)
            yield item


def _escot_annotated(value: Any) -> SupportDialogue:
    raw = _Escot.model_validate(value)
    turns = [*by_role(raw.dialog, ROLES), ("supporter", raw.response)]
    return support_dialogue("escot", f"{raw.id}", "en", turns, situation=raw.stimuli.strip(), emotion=raw.emotion.strip())


def _escot_reply(value: Any) -> SupportDialogue:
    raw = _EscotReply.model_validate(value)
    spoken: list[tuple[str, str]] = []
    for line in raw.input.splitlines():
        head = re.match(r"(seeker|supporter):[ \t]*", line, re.IGNORECASE)
        if head:
            spoken.append((head[1].lower(), line[head.end() :]))
        elif spoken:
            spoken[-1] = (spoken[-1][0], f"{spoken[-1][1]}\n{line}")
        elif line.strip():
            raise Malformed(f"input: a line before the first speaker: {line[:60]!r}")
    turns = [*by_role(spoken, ROLES), ("supporter", re.sub(r"\s*Response:\s*", "", raw.output, count=1))]
    return support_dialogue("escot", f"{raw.dialog_id}", "en", turns)


@by_row
def augesc(value: Any, source_id: str) -> SupportDialogue:
    """AugESC (Zheng et al., Findings of ACL 2023): dialogues that a model trained on ESConv completed, English. Every line
    is a JSON list of [speaker, utterance] pairs, according to its loader; we have not seen the published file."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise Malformed("expected a list of [speaker, utterance] pairs")
    if not all(isinstance(text, str) for pair in value for text in pair):
        raise Malformed("expected texts in every [speaker, utterance] pair")
    return support_dialogue("augesc", source_id, "en", by_role([(speaker, text) for speaker, text in value], ROLES))


_CPSYCOUN_ROLES: dict[str, Role] = {"来访者": "seeker", "求助者": "seeker", "心理咨询师": "supporter", "支持者": "supporter"}
# A name with somebody who is played (扮演) in brackets is the same person; another name or a number is not.
_CPSYCOUN_HEAD = re.compile(rf"({'|'.join(_CPSYCOUN_ROLES)})(?:（[^）]*扮演[^）]*）)?[：:]")
_CPSYCOUN_OTHER_HEAD = re.compile(rf"(?:(?:{'|'.join(_CPSYCOUN_ROLES)})[^：:，。]{{0,12}}|(?!\d)\w{{1,8}})[：:].")
# Narration, not speech: a line in brackets, dots, or a line about the rest of the session.
_CPSYCOUN_NARRATION = re.compile(r"[（(].*[）)]$|[….]+$|后续")


class _CPsyCoun(RowModel):
    file: str
    text: str


def _cpsycoun(value: Any, _: str) -> SupportDialogue:
    """CPsyCoun (Zhang et al., Findings of ACL 2024): Chinese counselling dialogues that an LLM rebuilt from case reports.

    Each file of CPsyCounD (`CPsyCounD/Data/case_*.txt`) is a dialogue as text, each of CPsyCounE (`CPsyCounE/<topic>/<n>.json`)
    one as a JSON list of strings; a turn begins with the speaker's name and a colon. Both are also read as JSON lines of {file,
    text}: that path, and the file's content. `source_id` is `D/case_n` or `E/topic/n`, the same in both forms; `problem` is
    CPsyCounE's topic. A dialogue in which somebody else speaks is dropped.
    """
    raw = _CPsyCoun.model_validate(value)
    path = PurePosixPath(raw.file)
    spoken: list[tuple[str, str]] = []
    for line in map(str.strip, _cpsycoun_lines(raw, path)):
        head = _CPSYCOUN_HEAD.match(line)
        if head:
            spoken.append((head[1], line[head.end() :]))
        elif _CPSYCOUN_OTHER_HEAD.match(line):
            raise Dropped("someone besides one seeker and one counsellor speaks")
        elif spoken and not _CPSYCOUN_NARRATION.match(line):
            spoken[-1] = (spoken[-1][0], f"{spoken[-1][1]}\n{line}".strip())
    topic = path.parent.name if path.suffix == ".json" else ""
    source_id = f"E/{topic}/{path.stem}" if topic else f"D/{path.stem}"
    return support_dialogue("cpsycoun", source_id, "zh", by_role(spoken, _CPSYCOUN_ROLES), problem=topic)


def _cpsycoun_lines(raw: _CPsyCoun, path: PurePosixPath) -> list[str]:
    """A dialogue's lines. Raises `Malformed` when a `.json` file's content is not a list of strings."""
    if path.suffix != ".json":
        return raw.text.splitlines()
    try:
        value = load_json(raw.text)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"text: malformed JSON: {error.msg}") from None
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise Malformed("text: expected a JSON list of strings")
    return [part for line in value for part in line.splitlines()]


cpsycoun = by_row(
    _cpsycoun,
    lambda reader, file: reader.documents(file, lambda: {"file": file.as_posix(), "text": read_text(file, "corpus file")}),
)

# The bundled sample corpora are in the form of our own records.
bundled = by_row(lambda value, _: SupportDialogue.model_validate(value))
