"""Files of the foundational capability of common sense and knowledge."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from core.errors import UserError
from core.records import Whole
from core.rows import CorpusReader, CorpusRow, RowModel
from evalsuite.papers.ecdbench.forms.reading import Doc, ReadForm, Text, in_files, jsonl_of, label_of, lines_of, parsed

LETTERS = "ABCD"


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


class _Exam(RowModel):
    passage: str | None = None
    question: Text
    options: list[Text] | None = None
    label: Text | list[Text] | None = None
    answer: Text | None = None


class _Pro(RowModel):
    question: Text
    options: Annotated[list[Text], Field(min_length=2, max_length=10)]
    answer_index: Annotated[Whole, Field(ge=0, le=9)]
    category: Text


def _piqa(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The items, and the file of labels, line by line."""
    labels = lines_of(files[1])
    docs = [raw.model_dump() for _, raw in parsed(_Piqa, reader.jsonl(files[0]), reader)]
    if len(docs) != len(labels) or not set(labels) <= {"0", "1"}:
        raise UserError(f"{files[1]}: expected {len(docs)} lines of 0 or 1, found {len(labels)}")
    for doc, label in zip(docs, labels, strict=True):
        yield doc | {"label": int(label)}


def _cosmos_qa(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    answers = tuple(f"answer{n}" for n in range(4))
    for row in in_files(partial(reader.csv, needed=("context", "question", *answers, "label")), files):
        value, gold = row.value, label_of(row, reader, "label", row.value["label"], ("0", "1", "2", "3"))
        yield {
            "context": value["context"],
            "question": value["question"],
            "options": [value[name] for name in answers],
            "gold": [gold],
        }


def _agieval(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Choices (`category` choice), some with several right letters, and gaps to be filled (`category` cloze), in the columns
    of lm-eval's tasks: `query`, `choices` and `gold`, or `answer`."""
    for row, raw in parsed(_Exam, in_files(reader.jsonl, files), reader):
        question = "\n".join(filter(None, [raw.passage, raw.question]))
        if raw.options:
            letters = [chr(ord("A") + place) for place in range(len(raw.options))]
            given = "".join(raw.label or "")
            if not given or not set(given) <= set(letters):
                reader.malformed(row, f"label: expected letters of {', '.join(letters)}, found {raw.label!r}")
            query = "\n".join([question, *raw.options, "Answer:" if question.isascii() else "答案："])
            yield {"category": "choice", "query": query, "choices": letters, "gold": sorted(map(letters.index, set(given)))}
        elif raw.answer:
            yield {"category": "cloze", "query": f"Q: {question}\nA:", "answer": raw.answer}
        else:
            reader.malformed(row, "options: none, and no answer")


def _exam(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """C-Eval and CMMLU: a CSV file a subject with question, A, B, C, D and answer; their heads differ in capitals."""
    for file in files:
        for row in reader.csv(file, tuple(LETTERS)):
            value = {name.lower() if len(name) > 1 else name: cell for name, cell in row.value.items()}
            if not (question := value.get("question")):
                reader.malformed(row, "question: missing")
            gold = label_of(row, reader, "answer", value.get("answer", ""), tuple(LETTERS))
            subject = file.stem.removesuffix("_val").replace("_", " ")
            yield {"subject": subject, "question": question, "options": [value[one] for one in LETTERS], "gold": [gold]}


def _mmlu_pro(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Parquet, in the columns of lm-eval's tasks: one task a category."""
    for file in files:
        for row, raw in parsed(_Pro, _parquet(file, reader), reader):
            if raw.answer_index >= len(raw.options):
                reader.malformed(row, f"answer_index: expected 0 to {len(raw.options) - 1}, found {raw.answer_index}")
            yield {**raw.model_dump(), "answer": "ABCDEFGHIJ"[raw.answer_index]}


def _parquet(file: Path, reader: CorpusReader) -> Iterator[CorpusRow]:
    import pyarrow.parquet as parquet

    try:
        rows: list[Any] = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise UserError(f"{file}: no parquet file that can be read: {str(error).splitlines()[0]}") from None
    for number, value in enumerate(rows):
        yield reader.row(f"{file}: row {number}", value)


def _truthfulqa(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row in in_files(partial(reader.csv, needed=("Question", "Correct Answers", "Incorrect Answers")), files):
        right, wrong = (_parts(row.value[f"{what} Answers"]) for what in ("Correct", "Incorrect"))
        if not right or not wrong:
            reader.malformed(row, "needs correct and incorrect answers")
        yield {"question": row.value["Question"], "correct_answers": right, "incorrect_answers": wrong}


def _parts(text: str) -> list[str]:
    return [one.strip() for one in text.split(";") if one.strip()]


KNOWLEDGE: dict[str, ReadForm] = {
    "agieval": _agieval,
    "cosmos_qa": _cosmos_qa,
    "exam": _exam,
    "hellaswag": jsonl_of(_HellaSwag),
    "mmlu_pro": _mmlu_pro,
    "piqa": _piqa,
    "truthfulqa": _truthfulqa,
}
