"""Files of the foundational capabilities: understanding, reasoning, texts to summarise, common sense and knowledge."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from core.errors import UserError
from core.files import read_text
from core.records import Whole
from core.rows import CorpusReader, CorpusRow, Dropped, Malformed
from evalsuite.papers.ecdbench.forms import (
    Bit,
    Doc,
    ReadForm,
    Text,
    at_least,
    bare_csv,
    csv_of,
    folders_of,
    form_of,
    in_files,
    lines_of,
    parsed,
    row_of,
    tabs_of,
)

LETTERS = "ABCD"
INFERENCE = ("entailment", "neutral", "contradiction")
FOLIO_LABELS = ("True", "False", "Uncertain")
THUC_CLASSES = ("体育", "娱乐", "家居", "彩票", "房产", "教育", "时尚", "时政", "星座", "游戏", "社会", "科技", "股票", "财经")
LCSTS_ENTRY = re.compile(r"<doc id=(\d+)>(.*?)</doc>", re.S)
LCSTS_TEXT = re.compile(r"<short_text>\s*(.*?)\s*</short_text>", re.S)
TRUTH: dict[str | bool, int] = {"false": 0, "true": 1, False: 0, True: 1}  # as in SuperGLUE's JSON files

# --- rows of JSON files -----------------------------------------------------------------------------------------------------

FALSE_OR_TRUE = Literal["false", "true"] | bool
WHICH_OF_TWO = Annotated[Whole, Field(ge=0, le=1)]
INFERRED = Literal["entailment", "neutral", "contradiction", "-"]  # "-": annotators disagree
OCNLI = row_of(label=INFERRED, sentence1=Text, sentence2=Text)
MNLI = row_of(sentence1=str, sentence2=str, gold_label=INFERRED)
QQP = row_of(question1=str, question2=str, is_duplicate=Bit)
LCQMC = row_of(sentence1=str, sentence2=str, label=Bit)
AG_NEWS = row_of(label=Annotated[Literal["1", "2", "3", "4"], Field(alias="class")], title=str, description=str)
WIC = row_of(word=Text, sentence1=Text, sentence2=Text, start1=Whole, end1=Whole, label=FALSE_OR_TRUE)
WSC = row_of(text=Text, target=row_of(span1_text=Text, span2_text=Text, span2_index=Whole), label=FALSE_OR_TRUE)
RTE = row_of(premise=Text, hypothesis=Text, label=Literal["entailment", "not_entailment"])
COPA = row_of(premise=Text, choice1=Text, choice2=Text, question=Literal["cause", "effect"], label=WHICH_OF_TWO)
MULTIRC_QUESTION = row_of(question=Text, answers=at_least(1, row_of(text=Text, label=WHICH_OF_TWO)))
MULTIRC = row_of(passage=row_of(text=Text, questions=at_least(1, MULTIRC_QUESTION)))
MARKED = row_of(text=Text, entities=at_least(1, row_of(start=Whole, end=Whole)))  # `end`: the last character, included
RECORD = row_of(passage=MARKED, qas=at_least(0, row_of(query=Text, answers=at_least(1, row_of(text=Text)))))
MUTUAL = row_of(article=Text, options=at_least(4, Text, 4), answers=Literal["A", "B", "C", "D"])
FOLIO = row_of(premises=Text | at_least(1, Text), conclusion=Text, label=Literal["True", "False", "Uncertain"])
CMRC = row_of(context_text=Text, qas=at_least(0, row_of(query_text=str, answers=at_least(1, Text))))
CNEWSUM = row_of(article=at_least(1, Text))
VCSUM = row_of(context=at_least(1, list[str]), speaker=list[Whole])
HELLASWAG = row_of(
    activity_label=Text, ctx_a=str, ctx_b=str, endings=at_least(4, str, 4), label=Annotated[Whole, Field(ge=0, le=3)]
)
PIQA = row_of(goal=str, sol1=str, sol2=str)
EXAM = row_of(
    passage=(str | None, None),
    question=Text,
    options=(list[Text] | None, None),
    label=(Text | list[Text] | None, None),
    answer=(Text | None, None),
)
COSMOS = row_of(
    **dict.fromkeys(("context", "question", "answer0", "answer1", "answer2", "answer3"), str), label=Literal["0", "1", "2", "3"]
)
TRUTHFUL = row_of(
    question=Annotated[str, Field(alias="Question")],
    right=Annotated[str, Field(alias="Correct Answers")],
    wrong=Annotated[str, Field(alias="Incorrect Answers")],
)
SUBJECT = row_of(question=Text, answer=Literal["A", "B", "C", "D"], **dict.fromkeys(LETTERS, str))
PRO = row_of(question=Text, options=at_least(2, Text, 10), answer_index=Annotated[Whole, Field(ge=0, le=9)], category=Text)


# --- understanding and reasoning --------------------------------------------------------------------------------------------


def _numbered(raw: Any) -> Doc:
    """A row with a label of false or true as SuperGLUE's 0 or 1; a nested `target` is flattened."""
    doc: Doc = raw.model_dump()
    target: Doc = doc.pop("target", {})
    return doc | target | {"label": TRUTH[doc["label"]]}


def _inferred(label: str) -> int:
    if label == "-":
        raise Dropped("annotators agree on no label")
    return INFERENCE.index(label)


def _record_questions(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """SuperGLUE's file, one document per question, in the columns of lm-eval's task."""
    for row, raw in parsed(RECORD, in_files(reader.jsonl, files), reader):
        reader.step.taken -= 1  # the questions count, not the passage
        text = raw.passage.text
        entities = sorted({text[span.start : span.end + 1] for span in raw.passage.entities})
        for number, gap in enumerate(raw.qas):
            question = reader.row(f"{row.where}: question {number}", gap)
            answers = sorted({answer.text for answer in gap.answers})
            if not set(answers) & set(entities):
                reader.malformed(question, f"answers: none of {', '.join(answers)} is an entity of the passage")
            yield {"passage": text, "query": gap.query, "entities": entities, "answers": answers}


def _multirc_answers(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """One document per answer; the answers to a question share a `group`."""
    for row, raw in parsed(MULTIRC, in_files(reader.jsonl, files), reader):
        reader.step.taken -= 1  # the answers count, not the passage
        for number, question in enumerate(raw.passage.questions):
            for place, answer in enumerate(question.answers):
                reader.row(f"{row.where}: question {number}, answer {place}", answer)
                doc = {"paragraph": raw.passage.text, "question": question.question, "answer": answer.text}
                yield {**doc, "group": f"{row.where}/{number}", "gold": [answer.label]}


def _logiqa(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Eight lines per item: blank, the answer's letter, passage, question, four options that begin with their letters.
    Documents have the columns of lm-eval's own task (`label`) and ours (`gold`)."""
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


def _cmrc_questions(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row, passage in parsed(CMRC, in_files(reader.json_list, files), reader):
        reader.step.taken -= 1  # the questions count, not the passage
        for number, question in enumerate(passage.qas):
            place = reader.row(f"{row.where}: question {number}", question)
            if question.query_text.strip():
                yield {"context": passage.context_text, "question": question.query_text, "references": question.answers}
            else:
                reader.step.drop("no question", place.where)


# --- texts to summarise: documents as in our own form `documents` -----------------------------------------------------------


def _lcsts(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Entries that look like XML but are not (their numbers are unquoted)."""
    for file in files:
        entries = LCSTS_ENTRY.findall(read_text(file, "data file"))
        if not entries:
            raise UserError(f"{file}: no <doc id=N> … </doc>")
        for number, entry in entries:
            row = reader.row(f"{file}: doc {number}", None)
            match = LCSTS_TEXT.search(entry)
            if match is None or not match[1]:
                reader.malformed(row, "short_text: missing")
            else:
                yield {"text": match[1], "language": "zh"}


def _meeting(raw: Any) -> Doc:
    """VCSum, a part of a meeting: the turns with their speakers."""
    if len(raw.speaker) != len(raw.context):
        raise Malformed(f"speaker: expected {len(raw.context)}, one per turn, found {len(raw.speaker)}")
    turns = [f"发言人{speaker}：{''.join(turn)}" for speaker, turn in zip(raw.speaker, raw.context, strict=True)]
    return {"text": "\n".join(turns), "language": "zh"}


# --- common sense and knowledge ---------------------------------------------------------------------------------------------


def _piqa_labelled(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The file of items and the file of labels, line by line."""
    labels = lines_of(files[1])
    docs = [raw.model_dump() for _, raw in parsed(PIQA, reader.jsonl(files[0]), reader)]
    if len(docs) != len(labels) or not set(labels) <= {"0", "1"}:
        raise UserError(f"{files[1]}: expected {len(docs)} lines of 0 or 1, found {len(labels)}")
    for doc, label in zip(docs, labels, strict=True):
        yield doc | {"label": int(label)}


def _agieval(raw: Any) -> Doc:
    """Choices (`category` choice), some with several right letters, and gaps to fill (`category` cloze), in the columns of
    lm-eval's tasks: `query`, `choices` and `gold`, or `answer`."""
    question = "\n".join(filter(None, [raw.passage, raw.question]))
    if raw.options:
        letters = [chr(ord("A") + place) for place in range(len(raw.options))]
        right = set("".join(raw.label or ""))
        if not right or not right <= set(letters):
            raise Malformed(f"label: expected letters of {', '.join(letters)}, found {raw.label!r}")
        query = "\n".join([question, *raw.options, "Answer:" if question.isascii() else "答案："])
        return {"category": "choice", "query": query, "choices": letters, "gold": sorted(map(letters.index, right))}
    if not raw.answer:
        raise Malformed("neither options nor an answer")
    return {"category": "cloze", "query": f"Q: {question}\nA:", "answer": raw.answer}


def _subjects(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """C-Eval and CMMLU: one CSV file per subject with question, A, B, C, D and answer; their headers differ in case."""
    for file in files:
        subject = file.stem.removesuffix("_val").replace("_", " ")
        for row in reader.csv(file, tuple(LETTERS)):
            with reader.accounting(row):
                raw: Any = SUBJECT.model_validate(
                    {name if name in LETTERS else name.lower(): c for name, c in row.value.items()}
                )
                options = [getattr(raw, letter) for letter in LETTERS]
                yield {"subject": subject, "question": raw.question, "options": options, "gold": [LETTERS.index(raw.answer)]}


def _parquet(reader: CorpusReader, file: Path) -> Iterator[CorpusRow]:
    import pyarrow.parquet as parquet

    try:
        values: list[Any] = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise UserError(f"{file}: not a readable parquet file: {str(error).splitlines()[0]}") from None
    for number, value in enumerate(values):
        yield reader.row(f"{file}: row {number}", value)


def _mmlu_pro(raw: Any) -> Doc:
    """In the columns of lm-eval's tasks: one task per category."""
    if raw.answer_index >= len(raw.options):
        raise Malformed(f"answer_index: expected 0 to {len(raw.options) - 1}, found {raw.answer_index}")
    return {**raw.model_dump(), "answer": "ABCDEFGHIJ"[raw.answer_index]}


def _truthfulqa(raw: Any) -> Doc:
    right, wrong = ([part.strip() for part in text.split(";") if part.strip()] for text in (raw.right, raw.wrong))
    if not right or not wrong:
        raise Malformed("needs correct and incorrect answers")
    return {"question": raw.question, "correct_answers": right, "incorrect_answers": wrong}


SUMMARISED: dict[str, ReadForm] = {
    "cnewsum": form_of(CNEWSUM, lambda raw: {"text": "".join(raw.article), "language": "zh"}),
    "lcsts": _lcsts,
    "vcsum": form_of(VCSUM, _meeting),
}
FOUNDATIONAL: dict[str, ReadForm] = {
    **SUMMARISED,
    # Without a header; a line break is written as a backslash.
    "ag_news": form_of(
        AG_NEWS,
        lambda r: {"title": r.title.replace("\\", " "), "text": r.description.replace("\\", " "), "gold": [int(r.label) - 1]},
        partial(bare_csv, names=("class", "title", "description")),
    ),
    "agieval": form_of(EXAM, _agieval),
    "cmrc": _cmrc_questions,
    "copa": form_of(COPA),
    "cosmos_qa": csv_of(
        COSMOS,
        lambda r: {
            "context": r.context,
            "question": r.question,
            "options": [r.answer0, r.answer1, r.answer2, r.answer3],
            "gold": [int(r.label)],
        },
    ),
    "exam": _subjects,
    "folio": form_of(
        FOLIO,
        lambda r: {
            "premises": r.premises if isinstance(r.premises, str) else "\n".join(r.premises),
            "conclusion": r.conclusion,
            "gold": [FOLIO_LABELS.index(r.label)],
        },
    ),
    "hellaswag": form_of(HELLASWAG),
    "lcqmc": tabs_of(
        LCQMC,
        lambda r: {"sentence1": r.sentence1, "sentence2": r.sentence2, "gold": [int(r.label)]},
        ("sentence1", "sentence2", "label"),
    ),
    "logiqa": _logiqa,
    "mmlu_pro": form_of(PRO, _mmlu_pro, _parquet),
    "mnli": tabs_of(MNLI, lambda r: {"premise": r.sentence1, "hypothesis": r.sentence2, "label": _inferred(r.gold_label)}),
    "multirc": _multirc_answers,
    "mutual": form_of(
        MUTUAL,
        lambda r: {
            "article": r.article,
            "options": [option.split(":", 1)[-1].strip() for option in r.options],
            "gold": [LETTERS.index(r.answers)],
        },
    ),
    "ocnli": form_of(OCNLI, lambda r: {**r.model_dump(), "gold": [_inferred(r.label)]}),
    "piqa": _piqa_labelled,
    "qqp": tabs_of(QQP, lambda r: {"question1": r.question1, "question2": r.question2, "label": int(r.is_duplicate)}),
    "record": _record_questions,
    # In the columns of lm-eval's task, whose first label is entailment.
    "rte": form_of(
        RTE, lambda r: {"sentence1": r.premise, "sentence2": r.hypothesis, "label": int(r.label == "not_entailment")}
    ),
    "sst2": tabs_of(row_of(sentence=str, label=Bit), lambda r: {"sentence": r.sentence, "label": int(r.label)}),
    "thucnews": folders_of(THUC_CLASSES, lambda text: {"text": text, "choices": list(THUC_CLASSES)}),
    "truthfulqa": csv_of(TRUTHFUL, _truthfulqa),
    "wic": form_of(WIC, _numbered),
    "wsc": form_of(WSC, _numbered),
}
