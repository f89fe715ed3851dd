"""One function for every kind of publisher's file: files → documents (see `evalsuite.fdaef.local_data`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from core.errors import UserError, near
from core.files import CONFIGS, load_yaml, read_bytes
from core.records import Whole
from core.rows import CorpusReader, CorpusRow, RowModel

Doc = dict[str, Any]
Text = Annotated[str, Field(min_length=1)]
YES_NO: dict[str | bool, int] = {"false": 0, "true": 1, False: 0, True: 1}  # as JSON files of SuperGLUE have them


class _Crows(RowModel):
    sent_more: Text
    sent_less: Text


class _Labelled(RowModel):
    """Two texts and a label; publishers' names for the texts differ."""

    label: Literal["entailment", "neutral", "contradiction", "-"]
    sentence1: Text
    sentence2: Text


class _Wic(RowModel):
    word: Text
    sentence1: Text
    sentence2: Text
    start1: Whole
    end1: Whole
    label: Literal["false", "true"] | bool


class _Target(RowModel):
    span1_text: Text
    span2_text: Text
    span2_index: Whole


class _Wsc(RowModel):
    text: Text
    target: _Target
    label: Literal["false", "true"] | bool


class _Mutual(RowModel):
    article: Text
    options: Annotated[list[Text], Field(min_length=4, max_length=4)]
    answers: Literal["A", "B", "C", "D"]


class _HellaSwag(RowModel):
    activity_label: Text
    ctx_a: str
    ctx_b: str
    endings: Annotated[list[str], Field(min_length=4, max_length=4)]
    label: Annotated[Whole, Field(ge=0, le=3)]


class _Piqa(RowModel):
    goal: str
    sol1: str
    sol2: str


class _Emotional(RowModel):
    language: Literal["en", "zh"]
    scenario: Text
    subject: Text


class _Understanding(_Emotional):
    emotion_choices: list[Text]
    emotion_label: Text
    cause_choices: list[Text]
    cause_label: Text


class _Application(_Emotional):
    choices: list[Text]
    label: Text
    kind: Annotated[Literal["Action", "Response"], Field(alias="question type")]


class _Bbq(RowModel):
    context: Text
    question: Text
    ans0: Text
    ans1: Text
    ans2: Text
    label: Annotated[Whole, Field(ge=0, le=2)]
    context_condition: Literal["ambig", "disambig"]
    question_polarity: Literal["neg", "nonneg"]
    category: Text
    answer_info: dict[str, list[str]]
    additional_metadata: dict[str, Any]


class _Safety(RowModel):
    id: Whole
    question: Text
    options: Annotated[list[str], Field(min_length=2)]
    category: Text


class _Question(RowModel):
    query_text: str
    answers: Annotated[list[Text], Field(min_length=1)]


class _Passage(RowModel):
    context_text: Text
    qas: list[_Question]


class _Choices(RowModel):
    """Our own form, for any dataset of choices without a reader of its own: `gold` is the right choice, or several, from 0."""

    text: Text
    choices: Annotated[list[Text], Field(min_length=2)]
    gold: Whole | Annotated[list[Whole], Field(min_length=1)]


class _Document(RowModel):
    """Our own form for what is to be summarised."""

    text: Annotated[str, Field(pattern=r"\S")]
    language: Literal["en", "zh"] = "zh"


ReadForm = Callable[[list[Path], CorpusReader], Iterator[Doc]]


def _parsed(model: type[RowModel], rows: Iterable[CorpusRow], reader: CorpusReader) -> Iterator[tuple[CorpusRow, Any]]:
    for row in rows:
        with reader.accounting(row):
            yield row, model.model_validate(row.value)


def _csv_of(model: type[RowModel]) -> ReadForm:
    return _rows_of(model, partial(CorpusReader.csv, needed=list(model.model_fields)))


def _jsonl_of(model: type[RowModel]) -> ReadForm:
    return _rows_of(model, CorpusReader.jsonl)


def _rows_of(model: type[RowModel], rows: Callable[[CorpusReader, Path], Iterator[CorpusRow]]) -> ReadForm:
    def read(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
        for file in files:
            for _, raw in _parsed(model, rows(reader, file), reader):
                yield raw.model_dump()

    return read


def _with_number(model: type[RowModel]) -> ReadForm:
    """Rows whose label says false or true: SuperGLUE's columns have 0 and 1; a nested `target` is laid flat."""

    def read(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
        for doc in _jsonl_of(model)(files, reader):
            yield doc | doc.pop("target", {}) | {"label": YES_NO[doc["label"]]}

    return read


def _ocnli(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    labels = ("entailment", "neutral", "contradiction")
    for file in files:
        for row, raw in _parsed(_Labelled, reader.jsonl(file), reader):
            if raw.label == "-":
                reader.step.drop("annotators agree on no label", row.where)
            else:
                yield {**raw.model_dump(), "gold": [labels.index(raw.label)]}


def _lcqmc(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row, (one, two, label) in _tabbed(files, reader, 3):
        if label not in ("0", "1"):
            reader.malformed(row, f"label: expected 0 or 1, found {label!r}")
        yield {"sentence1": one, "sentence2": two, "gold": [int(label)]}


def _irony(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row, (_, label, text) in _tabbed(files, reader, 3, header="Tweet index"):
        if label not in ("0", "1"):
            reader.malformed(row, f"Label: expected 0 or 1, found {label!r}")
        yield {"text": text, "gold": [int(label)], "labels": ["0", "1"]}


def _goemotions(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The file of label names comes first."""
    names = _lines(files[0])
    places = {str(place): place for place in range(len(names))}
    for row, (text, labels, _) in _tabbed(files[1:], reader, 3):
        gold = labels.split(",")
        if not set(gold) <= places.keys():
            reader.malformed(row, f"labels: expected numbers below {len(names)}, found {labels!r}")
        yield {"text": text, "choices": names, "gold": [places[one] for one in gold]}


def _mutual(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for doc in _jsonl_of(_Mutual)(files, reader):
        options = [option.split(":", 1)[-1].strip() for option in doc["options"]]
        yield {"article": doc["article"], "options": options, "gold": ["ABCD".index(doc["answers"])]}


def _logiqa(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Eight lines an item: blank, the answer's letter, passage, question, four options that begin with their letters.

    Documents have the columns of lm-eval's own task (`label`) and ours (`gold`).
    """
    for file in files:
        lines = _lines(file, keep_blank=True)
        for start in range(0, len(lines) - 7, 8):
            row = reader.row(f"{file}:{start + 2}", None)
            blank, letter, context, question, *options = (line.strip() for line in lines[start : start + 8])
            if blank or letter not in tuple("abcd"):
                reader.malformed(row, f"expected a blank line and the letter a, b, c or d, found {letter!r}")
            bare = [option[2:].strip() if option[:1] in "ABCD" and option[1:2] in (".", "．") else option for option in options]
            item = {"context": context, "question": question, "options": bare}
            yield {**item, "label": letter, "gold": ["abcd".index(letter)]}


def _piqa(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The items, and the file of labels, line by line."""
    labels = _lines(files[1])
    docs = [raw.model_dump() for _, raw in _parsed(_Piqa, reader.jsonl(files[0]), reader)]
    if len(docs) != len(labels) or not set(labels) <= {"0", "1"}:
        raise UserError(f"{files[1]}: expected {len(docs)} lines of 0 or 1, found {len(labels)}")
    for doc, label in zip(docs, labels, strict=True):
        yield doc | {"label": int(label)}


def _copa_pairs(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """COPA as pairs of premise and hypothesis: two rows an item, one of them entailed. What is asked for, cause or effect,
    is lost in this form."""
    for file in files:
        pairs: dict[str, list[tuple[CorpusRow, str, bool]]] = defaultdict(list)
        for row in reader.csv(file, ("premise", "hypothesis", "label")):
            pairs[row.value["premise"]].append((row, row.value["hypothesis"], row.value["label"] == "entailment"))
        for premise, pair in pairs.items():
            if len(pair) != 2 or pair[0][2] == pair[1][2]:
                for row, _, _ in pair:
                    reader.step.drop("not one of two hypotheses is right", row.where)
                continue
            reader.step.drop("second row of an item", pair[1][0].where)
            yield {"premise": premise, "options": [text for _, text, _ in pair], "gold": [int(pair[1][2])]}


def _truthfulqa(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for file in files:
        for row in reader.csv(file, ("Question", "Correct Answers", "Incorrect Answers")):
            right, wrong = (_parts(row.value[f"{what} Answers"]) for what in ("Correct", "Incorrect"))
            if not right or not wrong:
                reader.malformed(row, "needs correct and incorrect answers")
            yield {"question": row.value["Question"], "correct_answers": right, "incorrect_answers": wrong}


def _parts(text: str) -> list[str]:
    return [one.strip() for one in text.split(";") if one.strip()]


def _safety(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The questions, and the file of answers by id."""
    answers = reader.json(files[1])
    if not isinstance(answers, dict):
        raise UserError(f"{files[1]}: expected an object of answers by id")
    for row, raw in _parsed(_Safety, reader.json_list(files[0]), reader):
        known = answers.get(str(raw.id))
        if not isinstance(known, dict):
            reader.step.drop("no answer in the file of answers", row.where)
            continue
        answer = known.get("answer")
        if type(answer) is not int or not 0 <= answer < len(raw.options):
            reader.malformed(row, f"answer of {raw.id}: expected 0 to {len(raw.options) - 1}, found {answer!r}")
        language = "en" if raw.question.isascii() else "zh"
        item = {"question": raw.question, "options": raw.options, "category": raw.category, "language": language}
        yield {**item, "gold": [answer]}


def _understanding(what: str) -> ReadForm:
    def read(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
        for doc in _jsonl_of(_Understanding)(files, reader):
            yield _asked(doc, doc[f"{what}_choices"], doc[f"{what}_label"], what)

    return read


def _application(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for doc in _jsonl_of(_Application)(files, reader):
        yield _asked(doc, doc["choices"], doc["label"], doc["kind"].lower())


def _asked(doc: Doc, options: Sequence[str], right: str, what: str) -> Doc:
    gold = [index for index, option in enumerate(options) if option == right]
    kept = {"language": doc["language"], "scenario": doc["scenario"], "subject": doc["subject"], "asks": what}
    return {**kept, "options": list(options), "gold": gold}


def _cped(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Every utterance with the four before it in its dialogue."""
    needed = ("Dialogue_ID", "Speaker", "Emotion", "Utterance")
    choices: dict[str, str] = load_yaml(CONFIGS / "ecdbench" / "tasks" / "cped_emotions.yaml", "names of emotions")
    names = list(choices)
    for file in files:
        said: dict[str, list[str]] = defaultdict(list)
        for row in reader.csv(file, needed):
            value = row.value
            before = said[value["Dialogue_ID"]]
            if value["Emotion"] not in names:
                reader.malformed(row, f"Emotion: {near(value['Emotion'], names)}")
            yield {
                "history": before[-4:],
                "line": f"{value['Speaker']}：{value['Utterance']}",
                "choices": list(choices.values()),
                "gold": [names.index(value["Emotion"])],
            }
            before.append(f"{value['Speaker']}：{value['Utterance']}")


def _cmrc(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for file in files:
        for row, passage in _parsed(_Passage, reader.json_list(file), reader):
            reader.step.taken -= 1  # the questions count, not the passage
            for number, asked in enumerate(passage.qas):
                question = reader.row(f"{row.where}: question {number}", asked)
                if asked.query_text.strip():
                    yield {"context": passage.context_text, "question": asked.query_text, "references": asked.answers}
                else:
                    reader.step.drop("no question", question.where)


def _items(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for file in files:
        for row, raw in _parsed(_Choices, reader.jsonl(file), reader):
            gold = raw.gold if isinstance(raw.gold, list) else [raw.gold]
            if not all(0 <= one < len(raw.choices) for one in gold):
                reader.malformed(row, f"gold: expected 0 to {len(raw.choices) - 1}, found {raw.gold}")
            yield {"text": raw.text, "choices": raw.choices, "gold": gold}


def _lines(file: Path, keep_blank: bool = False) -> list[str]:
    try:
        text = read_bytes(file, "data file").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8: {error}") from None
    return [line for line in text.split("\n") if keep_blank or line.strip()]


def _tabbed(
    files: Sequence[Path], reader: CorpusReader, width: int, header: str | None = None
) -> Iterator[tuple[CorpusRow, list[str]]]:
    """The fields of every line, parted by tabs, without quoting."""
    for file in files:
        lines = _lines(file, keep_blank=True)
        for number, line in enumerate(lines, start=1):
            fields = line.removesuffix("\r").split("\t") if line.strip("\r") else []
            if not fields or (number == 1 and header is not None and fields[0] == header):
                continue
            row = reader.row(f"{file}:{number}", None)
            if len(fields) != width:
                reader.malformed(row, f"expected {width} fields parted by tabs, found {len(fields)}")
            yield row, fields


FORMS: dict[str, ReadForm] = {
    "bbq": _jsonl_of(_Bbq),
    "cmrc": _cmrc,
    "copa_pairs": _copa_pairs,
    "cped": _cped,
    "crows_pairs": _csv_of(_Crows),
    "documents": _jsonl_of(_Document),
    "emobench_application": _application,
    "emobench_cause": _understanding("cause"),
    "emobench_emotion": _understanding("emotion"),
    "goemotions": _goemotions,
    "hellaswag": _jsonl_of(_HellaSwag),
    "irony": _irony,
    "items": _items,
    "lcqmc": _lcqmc,
    "logiqa": _logiqa,
    "mutual": _mutual,
    "ocnli": _ocnli,
    "piqa": _piqa,
    "safetybench": _safety,
    "truthfulqa": _truthfulqa,
    "wic": _with_number(_Wic),
    "wsc": _with_number(_Wsc),
}
