"""One function for every kind of publisher's file: files → documents (see `evalsuite.fdaef.local_data`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from core.errors import UserError, near
from core.files import CONFIGS, load_yaml, read_bytes
from core.records import Whole
from core.rows import Raw, Row, Rows

Doc = dict[str, Any]
Text = Annotated[str, Field(min_length=1)]
YES_NO: dict[str | bool, int] = {"false": 0, "true": 1, False: 0, True: 1}  # as JSON files of SuperGLUE have them


class _Crows(Raw):
    sent_more: Text
    sent_less: Text


class _Labelled(Raw):
    """Two texts and a label; publishers' names for the texts differ."""

    label: Literal["entailment", "neutral", "contradiction", "-"]
    sentence1: Text
    sentence2: Text


class _Wic(Raw):
    word: Text
    sentence1: Text
    sentence2: Text
    start1: Whole
    end1: Whole
    label: Literal["false", "true"] | bool


class _Target(Raw):
    span1_text: Text
    span2_text: Text
    span2_index: Whole


class _Wsc(Raw):
    text: Text
    target: _Target
    label: Literal["false", "true"] | bool


class _Mutual(Raw):
    article: Text
    options: Annotated[list[Text], Field(min_length=4, max_length=4)]
    answers: Literal["A", "B", "C", "D"]


class _HellaSwag(Raw):
    activity_label: Text
    ctx_a: str
    ctx_b: str
    endings: Annotated[list[str], Field(min_length=4, max_length=4)]
    label: Annotated[Whole, Field(ge=0, le=3)]


class _Piqa(Raw):
    goal: str
    sol1: str
    sol2: str


class _Emotional(Raw):
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


class _Bbq(Raw):
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


class _Safety(Raw):
    id: Whole
    question: Text
    options: Annotated[list[str], Field(min_length=2)]
    category: Text


class _Question(Raw):
    query_text: str
    answers: Annotated[list[Text], Field(min_length=1)]


class _Passage(Raw):
    context_text: Text
    qas: list[_Question]


class _Item(Raw):
    """Our own form, for any dataset of choices without a reader of its own: `gold` is the right choice, or several, from 0."""

    text: Text
    choices: Annotated[list[Text], Field(min_length=2)]
    gold: Whole | Annotated[list[Whole], Field(min_length=1)]


class _Document(Raw):
    """Our own form for what is to be summarised."""

    text: Annotated[str, Field(pattern=r"\S")]
    language: Literal["en", "zh"] = "zh"


def _parsed(model: type[Raw], rows: Iterable[Row], into: Rows) -> Iterator[tuple[Row, Any]]:
    for row in rows:
        yield row, into.parse(model, row)  # strict: a row that does not fit has raised


def _csv_of(model: type[Raw]) -> Callable[[list[Path], Rows], Iterator[Doc]]:
    def read(files: list[Path], rows: Rows) -> Iterator[Doc]:
        for file in files:
            for _, raw in _parsed(model, rows.csv(file, list(model.model_fields)), rows):
                yield raw.model_dump()

    return read


def _jsonl_of(model: type[Raw]) -> Callable[[list[Path], Rows], Iterator[Doc]]:
    def read(files: list[Path], rows: Rows) -> Iterator[Doc]:
        for file in files:
            for _, raw in _parsed(model, rows.jsonl(file), rows):
                yield raw.model_dump()

    return read


def _with_number(model: type[Raw]) -> Callable[[list[Path], Rows], Iterator[Doc]]:
    """Rows whose label says false or true: SuperGLUE's columns have 0 and 1; a nested `target` is laid flat."""

    def read(files: list[Path], rows: Rows) -> Iterator[Doc]:
        for doc in _jsonl_of(model)(files, rows):
            yield doc | doc.pop("target", {}) | {"label": YES_NO[doc["label"]]}

    return read


def _ocnli(files: list[Path], rows: Rows) -> Iterator[Doc]:
    labels = ("entailment", "neutral", "contradiction")
    for file in files:
        for row, raw in _parsed(_Labelled, rows.jsonl(file), rows):
            if raw.label == "-":
                rows.drop(row, "annotators agree on no label")
            else:
                yield {**raw.model_dump(), "gold": [labels.index(raw.label)]}


def _lcqmc(files: list[Path], rows: Rows) -> Iterator[Doc]:
    for row, (one, two, label) in _tabbed(files, rows, 3):
        if label not in ("0", "1"):
            rows.malformed(row, f"label: expected 0 or 1, found {label!r}")
        yield {"sentence1": one, "sentence2": two, "gold": [int(label)]}


def _irony(files: list[Path], rows: Rows) -> Iterator[Doc]:
    for row, (_, label, text) in _tabbed(files, rows, 3, header="Tweet index"):
        if label not in ("0", "1"):
            rows.malformed(row, f"Label: expected 0 or 1, found {label!r}")
        yield {"text": text, "gold": [int(label)], "labels": ["0", "1"]}


def _goemotions(files: list[Path], rows: Rows) -> Iterator[Doc]:
    """The file of label names comes first."""
    names = _lines(files[0])
    places = {str(place): place for place in range(len(names))}
    for row, (text, labels, _) in _tabbed(files[1:], rows, 3):
        gold = labels.split(",")
        if not set(gold) <= places.keys():
            rows.malformed(row, f"labels: expected numbers below {len(names)}, found {labels!r}")
        yield {"text": text, "choices": names, "gold": [places[one] for one in gold]}


def _mutual(files: list[Path], rows: Rows) -> Iterator[Doc]:
    for doc in _jsonl_of(_Mutual)(files, rows):
        options = [option.split(":", 1)[-1].strip() for option in doc["options"]]
        yield {"article": doc["article"], "options": options, "gold": ["ABCD".index(doc["answers"])]}


def _logiqa(files: list[Path], rows: Rows) -> Iterator[Doc]:
    """Eight lines an item: blank, the answer's letter, passage, question, four options that begin with their letters.

    Documents have the columns of lm-eval's own task (`label`) and ours (`gold`).
    """
    for file in files:
        lines = _lines(file, keep_blank=True)
        for start in range(0, len(lines) - 7, 8):
            row = rows.unit(f"{file}:{start + 2}", None)
            blank, letter, context, question, *options = (line.strip() for line in lines[start : start + 8])
            if blank or letter not in tuple("abcd"):
                rows.malformed(row, f"expected a blank line and the letter a, b, c or d, found {letter!r}")
            bare = [option[2:].strip() if option[:1] in "ABCD" and option[1:2] in (".", "．") else option for option in options]
            item = {"context": context, "question": question, "options": bare}
            yield {**item, "label": letter, "gold": ["abcd".index(letter)]}


def _piqa(files: list[Path], rows: Rows) -> Iterator[Doc]:
    """The items, and the file of labels, line by line."""
    labels = _lines(files[1])
    docs = [raw.model_dump() for _, raw in _parsed(_Piqa, rows.jsonl(files[0]), rows)]
    if len(docs) != len(labels) or not set(labels) <= {"0", "1"}:
        raise UserError(f"{files[1]}: expected {len(docs)} lines of 0 or 1, found {len(labels)}")
    for doc, label in zip(docs, labels, strict=True):
        yield doc | {"label": int(label)}


def _copa_pairs(files: list[Path], rows: Rows) -> Iterator[Doc]:
    """COPA as pairs of premise and hypothesis: two rows an item, one of them entailed. What is asked for, cause or effect,
    is lost in this form."""
    for file in files:
        found: dict[str, list[tuple[Row, str, bool]]] = defaultdict(list)
        for row in rows.csv(file, ("premise", "hypothesis", "label")):
            found[row.value["premise"]].append((row, row.value["hypothesis"], row.value["label"] == "entailment"))
        for premise, pair in found.items():
            if len(pair) != 2 or pair[0][2] == pair[1][2]:
                for row, _, _ in pair:
                    rows.drop(row, "not one of two hypotheses is right")
                continue
            rows.drop(pair[1][0], "second row of an item")
            yield {"premise": premise, "options": [text for _, text, _ in pair], "gold": [int(pair[1][2])]}


def _truthfulqa(files: list[Path], rows: Rows) -> Iterator[Doc]:
    for file in files:
        for row in rows.csv(file, ("Question", "Correct Answers", "Incorrect Answers")):
            right, wrong = (_parts(row.value[f"{what} Answers"]) for what in ("Correct", "Incorrect"))
            if not right or not wrong:
                rows.malformed(row, "needs correct and incorrect answers")
            yield {"question": row.value["Question"], "correct_answers": right, "incorrect_answers": wrong}


def _parts(text: str) -> list[str]:
    return [one.strip() for one in text.split(";") if one.strip()]


def _safety(files: list[Path], rows: Rows) -> Iterator[Doc]:
    """The questions, and the file of answers by id."""
    answers = rows.json(files[1])
    if not isinstance(answers, dict):
        raise UserError(f"{files[1]}: expected an object of answers by id")
    for row, raw in _parsed(_Safety, rows.json_list(files[0]), rows):
        known = answers.get(str(raw.id))
        if not isinstance(known, dict):
            rows.drop(row, "no answer in the file of answers")
            continue
        answer = known.get("answer")
        if type(answer) is not int or not 0 <= answer < len(raw.options):
            rows.malformed(row, f"answer of {raw.id}: expected 0 to {len(raw.options) - 1}, found {answer!r}")
        language = "en" if raw.question.isascii() else "zh"
        item = {"question": raw.question, "options": raw.options, "category": raw.category, "language": language}
        yield {**item, "gold": [answer]}


def _understanding(what: str) -> Callable[[list[Path], Rows], Iterator[Doc]]:
    def read(files: list[Path], rows: Rows) -> Iterator[Doc]:
        for doc in _jsonl_of(_Understanding)(files, rows):
            yield _asked(doc, doc[f"{what}_choices"], doc[f"{what}_label"], what)

    return read


def _application(files: list[Path], rows: Rows) -> Iterator[Doc]:
    for doc in _jsonl_of(_Application)(files, rows):
        yield _asked(doc, doc["choices"], doc["label"], doc["kind"].lower())


def _asked(doc: Doc, options: Sequence[str], right: str, what: str) -> Doc:
    gold = [index for index, option in enumerate(options) if option == right]
    kept = {"language": doc["language"], "scenario": doc["scenario"], "subject": doc["subject"], "asks": what}
    return {**kept, "options": list(options), "gold": gold}


def _cped(files: list[Path], rows: Rows) -> Iterator[Doc]:
    """Every utterance with the four before it in its dialogue."""
    needed = ("Dialogue_ID", "Speaker", "Emotion", "Utterance")
    choices: dict[str, str] = load_yaml(CONFIGS / "ecdbench" / "tasks" / "cped_emotions.yaml", "names of emotions")
    names = list(choices)
    for file in files:
        said: dict[str, list[str]] = defaultdict(list)
        for row in rows.csv(file, needed):
            value = row.value
            before = said[value["Dialogue_ID"]]
            if value["Emotion"] not in names:
                rows.malformed(row, f"Emotion: {near(value['Emotion'], names)}")
            yield {
                "history": before[-4:],
                "line": f"{value['Speaker']}：{value['Utterance']}",
                "choices": list(choices.values()),
                "gold": [names.index(value["Emotion"])],
            }
            before.append(f"{value['Speaker']}：{value['Utterance']}")


def _cmrc(files: list[Path], rows: Rows) -> Iterator[Doc]:
    for file in files:
        for row, passage in _parsed(_Passage, rows.json_list(file), rows):
            rows.step.taken -= 1  # the questions count, not the passage
            for number, asked in enumerate(passage.qas):
                question = rows.unit(f"{row.where}: question {number}", asked)
                if asked.query_text.strip():
                    yield {"context": passage.context_text, "question": asked.query_text, "references": asked.answers}
                else:
                    rows.drop(question, "no question")


def _items(files: list[Path], rows: Rows) -> Iterator[Doc]:
    for file in files:
        for row, raw in _parsed(_Item, rows.jsonl(file), rows):
            gold = raw.gold if isinstance(raw.gold, list) else [raw.gold]
            if not all(0 <= one < len(raw.choices) for one in gold):
                rows.malformed(row, f"gold: expected 0 to {len(raw.choices) - 1}, found {raw.gold}")
            yield {"text": raw.text, "choices": raw.choices, "gold": gold}


def _lines(file: Path, keep_blank: bool = False) -> list[str]:
    try:
        text = read_bytes(file, "data file").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8: {error}") from None
    return [line for line in text.split("\n") if keep_blank or line.strip()]


def _tabbed(files: Sequence[Path], rows: Rows, width: int, header: str | None = None) -> Iterator[tuple[Row, list[str]]]:
    """The fields of every line, parted by tabs, without quoting."""
    for file in files:
        lines = _lines(file, keep_blank=True)
        for number, line in enumerate(lines, start=1):
            fields = line.removesuffix("\r").split("\t") if line.strip("\r") else []
            if not fields or (number == 1 and header is not None and fields[0] == header):
                continue
            row = rows.unit(f"{file}:{number}", None)
            if len(fields) != width:
                rows.malformed(row, f"expected {width} fields parted by tabs, found {len(fields)}")
            yield row, fields


FORMS: dict[str, Callable[[list[Path], Rows], Iterator[Doc]]] = {
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
