"""Files of the foundational capabilities of understanding and reasoning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from core.records import Whole
from core.rows import CorpusReader, RowModel
from evalsuite.papers.ecdbench.forms.reading import (
    Doc,
    ReadForm,
    Text,
    bare_csv,
    folder_texts,
    in_files,
    jsonl_of,
    label_of,
    lines_of,
    parsed,
    tabbed,
    tabbed_records,
)

YES_NO: dict[str | bool, int] = {"false": 0, "true": 1, False: 0, True: 1}  # as JSON files of SuperGLUE have them
INFERENCE = ("entailment", "neutral", "contradiction")
FOLIO_LABELS = ("True", "False", "Uncertain")
THUC_CLASSES = ("体育", "娱乐", "家居", "彩票", "房产", "教育", "时尚", "时政", "星座", "游戏", "社会", "科技", "股票", "财经")


class _Labelled(RowModel):
    """Two texts and a label; `-` is none that annotators agree on."""

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


class _Rte(RowModel):
    premise: Text
    hypothesis: Text
    label: Literal["entailment", "not_entailment"]


class _Copa(RowModel):
    premise: Text
    choice1: Text
    choice2: Text
    question: Literal["cause", "effect"]
    label: Annotated[Whole, Field(ge=0, le=1)]


class _Answer(RowModel):
    text: Text
    label: Annotated[Whole, Field(ge=0, le=1)]


class _Asked(RowModel):
    question: Text
    answers: Annotated[list[_Answer], Field(min_length=1)]


class _Paragraph(RowModel):
    text: Text
    questions: Annotated[list[_Asked], Field(min_length=1)]


class _MultiRc(RowModel):
    passage: _Paragraph


class _Span(RowModel):
    """Characters of a text, the last included."""

    start: Whole
    end: Whole


class _Marked(RowModel):
    text: Text
    entities: Annotated[list[_Span], Field(min_length=1)]


class _Named(RowModel):
    text: Text


class _Gap(RowModel):
    query: Text
    answers: Annotated[list[_Named], Field(min_length=1)]


class _Record(RowModel):
    passage: _Marked
    qas: list[_Gap]


class _Mutual(RowModel):
    article: Text
    options: Annotated[list[Text], Field(min_length=4, max_length=4)]
    answers: Literal["A", "B", "C", "D"]


class _Folio(RowModel):
    premises: Text | Annotated[list[Text], Field(min_length=1)]
    conclusion: Text
    label: Literal["True", "False", "Uncertain"]


class _Question(RowModel):
    query_text: str
    answers: Annotated[list[Text], Field(min_length=1)]


class _Passage(RowModel):
    context_text: Text
    qas: list[_Question]


def _with_number(model: type[RowModel]) -> ReadForm:
    """Rows whose label says false or true: SuperGLUE's columns have 0 and 1; a nested `target` is laid flat."""

    def read(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
        for doc in jsonl_of(model)(files, reader):
            yield doc | doc.pop("target", {}) | {"label": YES_NO[doc["label"]]}

    return read


def _ag_news(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Class (1 to 4), title, description, without a header; a line break is written as a backslash."""
    for row, (label, title, description) in bare_csv(files, reader, 3):
        gold = label_of(row, reader, "class", label, ("1", "2", "3", "4"))
        yield {"title": title.replace("\\", " "), "text": description.replace("\\", " "), "gold": [gold]}


def _thucnews(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """A folder a class, a file an article, whose first line is the title."""
    for text, gold in folder_texts(files, reader, THUC_CLASSES):
        yield {"text": text, "choices": list(THUC_CLASSES), "gold": [gold]}


def _ocnli(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row, raw in parsed(_Labelled, in_files(reader.jsonl, files), reader):
        if raw.label == "-":
            reader.step.drop("annotators agree on no label", row.where)
        else:
            yield {**raw.model_dump(), "gold": [INFERENCE.index(raw.label)]}


def _mnli(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """GLUE's file of the matched development set, in the columns of lm-eval's task."""
    for row in tabbed_records(files, reader, ("sentence1", "sentence2", "gold_label")):
        if row.value["gold_label"] == "-":
            reader.step.drop("annotators agree on no label", row.where)
            continue
        label = label_of(row, reader, "gold_label", row.value["gold_label"], INFERENCE)
        yield {"premise": row.value["sentence1"], "hypothesis": row.value["sentence2"], "label": label}


def _rte(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """SuperGLUE's file, in the columns of lm-eval's task, whose first label is entailment."""
    for doc in jsonl_of(_Rte)(files, reader):
        sentences = {"sentence1": doc["premise"], "sentence2": doc["hypothesis"]}
        yield {**sentences, "label": int(doc["label"] == "not_entailment")}


def _lcqmc(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row, (one, two, label) in tabbed(files, reader, 3):
        yield {"sentence1": one, "sentence2": two, "gold": [label_of(row, reader, "label", label, ("0", "1"))]}


def _qqp(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """GLUE's file of the development set, in the columns of lm-eval's task."""
    for row in tabbed_records(files, reader, ("question1", "question2", "is_duplicate")):
        label = label_of(row, reader, "is_duplicate", row.value["is_duplicate"], ("0", "1"))
        yield {"question1": row.value["question1"], "question2": row.value["question2"], "label": label}


def _record(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """SuperGLUE's file, one document a question, in the columns of lm-eval's task."""
    for row, raw in parsed(_Record, in_files(reader.jsonl, files), reader):
        reader.step.taken -= 1  # the questions count, not the passage
        text = raw.passage.text
        entities = sorted({text[span.start : span.end + 1] for span in raw.passage.entities})
        for number, gap in enumerate(raw.qas):
            question = reader.row(f"{row.where}: question {number}", gap)
            answers = sorted({answer.text for answer in gap.answers})
            if not set(answers) & set(entities):
                reader.malformed(question, f"answers: none of {', '.join(answers)} is an entity of the passage")
            yield {"passage": text, "query": gap.query, "entities": entities, "answers": answers}


def _multirc(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """One document an answer; the answers to one question have one `group`."""
    for row, raw in parsed(_MultiRc, in_files(reader.jsonl, files), reader):
        reader.step.taken -= 1  # the answers count, not the passage
        for number, asked in enumerate(raw.passage.questions):
            for place, answer in enumerate(asked.answers):
                reader.row(f"{row.where}: question {number}, answer {place}", answer)
                doc = {"paragraph": raw.passage.text, "question": asked.question, "answer": answer.text}
                yield {**doc, "group": f"{row.where}/{number}", "gold": [answer.label]}


def _mutual(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for doc in jsonl_of(_Mutual)(files, reader):
        options = [option.split(":", 1)[-1].strip() for option in doc["options"]]
        yield {"article": doc["article"], "options": options, "gold": ["ABCD".index(doc["answers"])]}


def _folio(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for doc in jsonl_of(_Folio)(files, reader):
        premises = doc["premises"] if isinstance(doc["premises"], str) else "\n".join(doc["premises"])
        yield {"premises": premises, "conclusion": doc["conclusion"], "gold": [FOLIO_LABELS.index(doc["label"])]}


def _logiqa(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Eight lines an item: blank, the answer's letter, passage, question, four options that begin with their letters.

    Documents have the columns of lm-eval's own task (`label`) and ours (`gold`).
    """
    for file in files:
        lines = lines_of(file, keep_blank=True)
        for start in range(0, len(lines) - 7, 8):
            row = reader.row(f"{file}:{start + 2}", None)
            blank, letter, context, question, *options = (line.strip() for line in lines[start : start + 8])
            if blank or letter not in tuple("abcd"):
                reader.malformed(row, f"expected a blank line and the letter a, b, c or d, found {letter!r}")
            bare = [option[2:].strip() if option[:1] in "ABCD" and option[1:2] in (".", "．") else option for option in options]
            item = {"context": context, "question": question, "options": bare}
            yield {**item, "label": letter, "gold": ["abcd".index(letter)]}


def _cmrc(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row, passage in parsed(_Passage, in_files(reader.json_list, files), reader):
        reader.step.taken -= 1  # the questions count, not the passage
        for number, asked in enumerate(passage.qas):
            question = reader.row(f"{row.where}: question {number}", asked)
            if asked.query_text.strip():
                yield {"context": passage.context_text, "question": asked.query_text, "references": asked.answers}
            else:
                reader.step.drop("no question", question.where)


LANGUAGE: dict[str, ReadForm] = {
    "ag_news": _ag_news,
    "cmrc": _cmrc,
    "copa": jsonl_of(_Copa),
    "folio": _folio,
    "lcqmc": _lcqmc,
    "logiqa": _logiqa,
    "mnli": _mnli,
    "multirc": _multirc,
    "mutual": _mutual,
    "ocnli": _ocnli,
    "qqp": _qqp,
    "record": _record,
    "rte": _rte,
    "thucnews": _thucnews,
    "wic": _with_number(_Wic),
    "wsc": _with_number(_Wsc),
}
