"""Support corpora: what they share (speakers as roles, turns as a dialogue), and those that need little beside a row model."""

from __future__ import annotations

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
NO_REPLY = "no reply"
SEEN = "dialogue already read"


def merged(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Turns stripped, without empty ones; consecutive turns of one side become one, their texts on lines of their own."""
    result: list[Turn] = []
    for turn in turns:
        text = turn.text.strip()
        if not text:
            continue
        if result and result[-1].role == turn.role:
            result[-1] = Turn(role=turn.role, text=f"{result[-1].text}\n{text}")
        else:
            result.append(Turn(role=turn.role, text=text))
    return tuple(result)


def support_dialogue(
    source: str, source_id: str, language: Language, turns: Iterable[tuple[Role, str]], **about: Any
) -> SupportDialogue:
    """Turns (merged as in `merged`) as a dialogue; `about` are further fields of `SupportDialogue`.

    Raises `Dropped` ("no reply") when fewer than two turns are left.
    """
    spoken = merged(Turn(role=role, text=text) for role, text in turns)
    if len(spoken) < 2:
        raise Dropped(NO_REPLY)
    dialogue = {"id": f"{source}-{source_id}", "language": language, "source": source, "source_id": source_id, "turns": spoken}
    return SupportDialogue.model_validate({"dialogue": dialogue, **about})


def by_role(spoken: Iterable[tuple[str, str]], roles: dict[str, Role]) -> list[tuple[Role, str]]:
    """(speaker, text) pairs with the corpus's names replaced. Raises `Malformed` for a name that is not in `roles`."""
    pairs = list(spoken)
    unknown = sorted({speaker for speaker, _ in pairs} - set(roles))
    if unknown:
        raise Malformed(f"unknown speaker {unknown[0]!r} (known: {', '.join(roles)})")
    return [(roles[speaker], text) for speaker, text in pairs]


def _exchanges(pairs: Iterable[tuple[str, str]]) -> list[tuple[Role, str]]:
    """What a seeker and a supporter said in turn, as turns."""
    return [turn for seeker, supporter in pairs for turn in (("seeker", seeker), ("supporter", supporter))]


MISSING = -1  # in ESConv's split files: a survey question that was not answered
# An answer of ESConv's seekers, 1–5; None where it is missing.
Score = Annotated[
    Annotated[Number, Field(ge=1, le=5)] | None,
    BeforeValidator(lambda value: None if value in ("", MISSING, str(MISSING)) else value),
]


class _EsconvUtterance(RowModel):
    speaker: str
    text: str = Field(validation_alias=AliasChoices("text", "content"))


def _answer(form: str, split: str) -> Any:
    """A survey's answer: the original JSON's name of it, and the split files'."""
    return Field(default=None, validation_alias=AliasChoices(AliasPath("survey_score", "seeker", form), split))


class _EsconvSurvey(RowModel):
    seeker: dict[str, Any] = Field(default_factory=dict)


class _Esconv(RowModel):
    """ESConv (Liu et al., ACL 2021): crowdsourced emotional-support dialogues with the seeker's situation and survey.

    Three published forms: the original JSON (`ESConv.json`, also `FailedESConv.json`), and two JSON-lines splits whose turns
    say `usr`/`sys` (FADO's, with the survey; MultiESC's, with the turns of one side merged, without the survey). MultiESC has
    the same dialogues as ESConv in another order: it is a corpus of its own here (`esconv_multi`), so that ids do not collide.
    """

    emotion_type: str
    problem_type: str
    situation: str
    dialog: list[_EsconvUtterance]
    survey_score: _EsconvSurvey | None = None  # only its form is looked at here; the answers below are read out of it
    empathy: Score = _answer("empathy", "empathy")
    relevance: Score = _answer("relevance", "relevance")
    emotion_before: Score = _answer("initial_emotion_intensity", "init_intensity")
    emotion_after: Score = _answer("final_emotion_intensity", "final_intensity")


def _esconv(source: str, value: Any, source_id: str) -> SupportDialogue:
    """The corpus has no ids: `source_id` is `file stem/position`. `survey` holds the answers that were given: empathy and
    relevance of the supporter, the seeker's emotion before and after (1–5 each)."""
    raw = _Esconv.model_validate(value)
    return support_dialogue(
        source,
        source_id,
        "en",
        by_role(((u.speaker, u.text) for u in raw.dialog), ROLES),
        situation=raw.situation.strip(),
        problem=raw.problem_type.strip(),
        emotion=raw.emotion_type.strip(),
        survey=raw.model_dump(include={"empathy", "relevance", "emotion_before", "emotion_after"}, exclude_none=True),
    )


class _EmoLlmExchange(RowModel):
    input: str
    output: str


class _EmoLlm(RowModel):
    """EmoLLM (SmartFlowAI): two Chinese sets of counselling dialogues by an LLM.

    `data.json` is plain counselling; in `aiwei.json` the supporter plays a persona with stage directions and emoji.
    """

    conversation: list[_EmoLlmExchange]


def _emollm(value: Any, source_id: str) -> SupportDialogue:
    """Every dialogue; the system prompt of the first exchange is left out."""
    said = _exchanges((exchange.input, exchange.output) for exchange in _EmoLlm.model_validate(value).conversation)
    return support_dialogue("emollm", source_id, "zh", said)


_EXTES_ROLES: dict[str, Role] = {"User": "seeker", "AI": "supporter"}


class _Extes(RowModel):
    """ExTES (Zheng et al. 2023): emotional-support dialogues by ChatGPT, with a scenario label and a description each.

    The published list (`ExTES.json`, in `ExTES.zip`) of {scene, description, content: [{User} or {AI, AI Strategy}]}: known
    from public code that reads it, not from the file itself.
    """

    scene: str | None = None
    description: str | None = None
    content: list[dict[str, Any]]


class _ExtesInstruction(RowModel):
    """Its instruction form, which has neither label nor description: `instruction` is the seeker's last turn, `output` the
    reply to it, `history` [[seeker, supporter], ...]."""

    instruction: str
    input: str = ""
    output: str
    history: list[tuple[str, str]]


def _extes(value: Any, source_id: str) -> SupportDialogue:
    """`problem` is the scenario label, `situation` the description."""
    if isinstance(value, dict) and "history" in value:
        row = _ExtesInstruction.model_validate(value)
        last = f"{row.instruction}\n{row.input}".strip()
        return support_dialogue("extes", source_id, "en", _exchanges([*row.history, (last, row.output)]))
    raw = _Extes.model_validate(value)
    turns: list[tuple[Role, str]] = []
    for number, entry in enumerate(raw.content):
        said = [(_EXTES_ROLES[key], text) for key, text in entry.items() if key in _EXTES_ROLES]
        if not said or not all(isinstance(text, str) for _, text in said):
            raise Malformed(f"content.{number}: expected a text under {' or '.join(_EXTES_ROLES)}, found {', '.join(entry)}")
        turns += said
    about = {"situation": (raw.description or "").strip(), "problem": (raw.scene or "").strip()}
    return support_dialogue("extes", source_id, "en", turns, **about)


_SMILE_ROLES: dict[str, Role] = {"client": "seeker", "counselor": "supporter"}


class _SmileUtterance(RowModel):
    role: str
    content: str


class _Smile(RowModel):
    """SmileChat (Qiu et al. 2023, SMILE): Chinese multi-turn dialogues that ChatGPT wrote from PsyQA's single turns.

    Published as a folder of `<n>.json`, each a list of {role: client|counselor, content}; also read as JSON lines of {id,
    dialog}.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    dialog: list[_SmileUtterance]


def _smile(value: Any, _: str) -> SupportDialogue:
    """A dialogue; `source_id` is the number of its file."""
    raw = _Smile.model_validate(value)
    return support_dialogue("smile", raw.id, "zh", by_role(((u.role, u.content) for u in raw.dialog), _SMILE_ROLES))


_ESCOT_LINE = re.compile(r"(seeker|supporter):[ \t]*", re.IGNORECASE)
_ESCOT_LABEL = re.compile(r"\s*Response:\s*")


class _EscotUtterance(RowModel):
    speaker: str
    content: str


class _EscotOriginal(RowModel):
    dialog: list[_EscotUtterance]
    response: str


class _EscotThought(RowModel):
    emotion: str = ""
    emotion_stimuli: str = ""


class _Escot(RowModel):
    """ESCoT (Zhang et al., ACL 2024): emotional-support dialogues by an LLM, with a chain of thought for the last reply.

    `train.json`, `val.json` and `test.json` hold these.
    """

    id: Whole
    original_data: _EscotOriginal
    cot_data: _EscotThought = _EscotThought()


class _EscotReply(RowModel):
    """A row of `response_only_train.json` (`empathetic_dialogue_train.json` in the repository): the history as lines of text,
    the reply, and the same ids."""

    dialog_id: Whole
    input: str
    output: str


def _escot_annotated(value: Any) -> SupportDialogue:
    raw = _Escot.model_validate(value)
    turns = by_role(((u.speaker, u.content) for u in raw.original_data.dialog), ROLES)
    turns.append(("supporter", raw.original_data.response))
    about = {"situation": raw.cot_data.emotion_stimuli.strip(), "emotion": raw.cot_data.emotion.strip()}
    return support_dialogue("escot", f"{raw.id}", "en", turns, **about)


def _escot_reply(value: Any) -> SupportDialogue:
    raw = _EscotReply.model_validate(value)
    spoken: list[tuple[str, str]] = []
    for line in raw.input.splitlines():
        head = _ESCOT_LINE.match(line)
        if head:
            spoken.append((head[1].lower(), line[head.end() :]))
        elif spoken:
            spoken[-1] = (spoken[-1][0], f"{spoken[-1][1]}\n{line}")
        elif line.strip():
            raise Malformed(f"input: a line before the first speaker: {line[:60]!r}")
    turns = [*by_role(spoken, ROLES), ("supporter", _ESCOT_LABEL.sub("", raw.output, count=1))]
    return support_dialogue("escot", f"{raw.dialog_id}", "en", turns)


def _read_escot(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every dialogue with its last reply; `source_id` is the corpus's id.

    `situation` is what the annotation gives as the cause of the seeker's emotion, `emotion` its sentence on the emotion: both
    written by an LLM, and empty in the response-only form.
    """
    seen: set[str] = set()
    for row in (row for file in files for row in reader.json_list(file)):
        with reader.accounting(row):
            short = isinstance(row.value, dict) and "dialog_id" in row.value
            item = _escot_reply(row.value) if short else _escot_annotated(row.value)
            if item.id in seen:
                raise Dropped(SEEN)
            seen.add(item.id)
            yield item


def _augesc(value: Any, source_id: str) -> SupportDialogue:
    """AugESC (Zheng et al., Findings of ACL 2023): dialogues that a model trained on ESConv completed, English, multi-turn.

    A text file with a JSON list of [speaker, utterance] pairs a line. The form is from its loader's description; no line of the
    published file was seen here, so a line of another form is malformed, and a file of none but such lines is refused.
    """
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise Malformed("expected a list of [speaker, utterance] pairs")
    if not all(isinstance(text, str) for pair in value for text in pair):
        raise Malformed("expected texts in every [speaker, utterance] pair")
    return support_dialogue("augesc", source_id, "en", by_role([(speaker, text) for speaker, text in value], ROLES))


OTHERS = "someone besides one seeker and one counsellor speaks"
_CPSYCOUN_ROLES: dict[str, Role] = {"来访者": "seeker", "求助者": "seeker", "心理咨询师": "supporter", "支持者": "supporter"}
# A name in brackets that plays someone (扮演) is the same person; another name, a number or no known name is not.
_CPSYCOUN_HEAD = re.compile(rf"({'|'.join(_CPSYCOUN_ROLES)})(?:（[^）]*扮演[^）]*）)?[：:]")
_CPSYCOUN_OTHER_HEAD = re.compile(rf"(?:(?:{'|'.join(_CPSYCOUN_ROLES)})[^：:，。]{{0,12}}|(?!\d)\w{{1,8}})[：:].")
# Narration, not speech: a line in brackets, dots, or one that tells how the session went on.
_CPSYCOUN_NARRATION = re.compile(r"[（(].*[）)]$|[….]+$|后续")


class _CPsyCoun(RowModel):
    """CPsyCoun (Zhang et al., Findings of ACL 2024): Chinese counselling dialogues that an LLM rebuilt from case reports.

    CPsyCounD is one text file a dialogue (`CPsyCounD/Data/case_*.txt`), CPsyCounE one JSON list of strings in a folder a topic
    (`CPsyCounE/<topic>/<n>.json`); in both, a turn begins with the speaker's name and a colon. Both are also read as JSON
    lines of {file, text}, where `file` is that path and `text` the file's content.
    """

    file: str
    text: str


def _cpsycoun_lines(raw: _CPsyCoun) -> list[str]:
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


def _cpsycoun_turns(lines: list[str]) -> list[tuple[str, str]]:
    """(speaker, text) of every turn. Raises `Dropped` when somebody else speaks."""
    spoken: list[tuple[str, str]] = []
    for line in map(str.strip, lines):
        head = _CPSYCOUN_HEAD.match(line)
        if head:
            spoken.append((head[1], line[head.end() :]))
        elif _CPSYCOUN_OTHER_HEAD.match(line):
            raise Dropped(OTHERS)
        elif spoken and not _CPSYCOUN_NARRATION.match(line):
            spoken[-1] = (spoken[-1][0], f"{spoken[-1][1]}\n{line}".strip())
    return spoken


def _cpsycoun(value: Any, _: str) -> SupportDialogue:
    """A dialogue between one seeker and one counsellor; `source_id` is `D/case_n` or `E/topic/n`, the same in both forms.

    `problem` is the topic of CPsyCounE; CPsyCounD's files state none.
    """
    raw = _CPsyCoun.model_validate(value)
    spoken = by_role(_cpsycoun_turns(_cpsycoun_lines(raw)), _CPSYCOUN_ROLES)
    path = PurePosixPath(raw.file)
    topic = path.parent.name if path.suffix == ".json" else ""
    source_id = f"E/{topic}/{path.stem}" if topic else f"D/{path.stem}"
    return support_dialogue("cpsycoun", source_id, "zh", spoken, problem=topic)


READERS = {
    **{name: by_row(partial(_esconv, name)) for name in ("esconv", "esconv_failed", "esconv_multi")},
    "augesc": by_row(_augesc),
    "cpsycoun": by_row(
        _cpsycoun,
        lambda reader, file: reader.documents(file, lambda: {"file": file.as_posix(), "text": read_text(file, "corpus file")}),
    ),
    "emollm": by_row(_emollm, CorpusReader.json_list),
    "extes": by_row(_extes, CorpusReader.json_list),
    "smile": by_row(
        _smile, lambda reader, file: reader.documents(file, lambda: {"id": file.stem, "dialog": read_json(file, "corpus file")})
    ),
    "escot": _read_escot,
}
