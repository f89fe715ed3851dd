"""Files of Values & Safety: CrowS-Pairs, StereoSet, BBQ, SafetyBench."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from core.errors import UserError
from core.records import Whole
from core.rows import CorpusReader, RowModel
from evalsuite.papers.ecdbench.forms.reading import Doc, ReadForm, Text, in_files, jsonl_of, parsed

STEREOTYPES = ("stereotype", "anti-stereotype", "unrelated")


class _Crows(RowModel):
    sent_more: Text
    sent_less: Text


class _Sentence(RowModel):
    sentence: Text
    gold_label: Literal["stereotype", "anti-stereotype", "unrelated"]


class _Stereo(RowModel):
    context: Text
    sentences: Annotated[list[_Sentence], Field(min_length=3, max_length=3)]


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


def _crows_pairs(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for _, raw in parsed(_Crows, in_files(partial(reader.csv, needed=list(_Crows.model_fields)), files), reader):
        yield raw.model_dump()


def _stereoset(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Both halves: a sentence that goes on from another (`intersentence`), or that fills its blank (`intrasentence`)."""
    for file in files:
        whole = reader.json(file)
        halves = whole.get("data") if isinstance(whole, dict) else None
        if not isinstance(halves, dict) or not any(isinstance(half, list) for half in halves.values()):
            raise UserError(f"{file}: data: expected an object with the lists intersentence and intrasentence")
        for half in ("intersentence", "intrasentence"):
            rows = [reader.row(f"{file}: {half} entry {n}", item) for n, item in enumerate(halves.get(half, []))]
            for row, raw in parsed(_Stereo, rows, reader):
                labels = [one.gold_label for one in raw.sentences]
                if sorted(labels) != sorted(STEREOTYPES):
                    reader.malformed(row, f"sentences: expected one gold_label each of {', '.join(STEREOTYPES)}")
                options = [one.sentence for one in raw.sentences]
                item = {"half": half, "context": raw.context, "options": options, "labels": labels}
                yield {**item, "gold": [labels.index("anti-stereotype")]}


def _safety(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The questions, and the file of answers by id."""
    answers = reader.json(files[1])
    if not isinstance(answers, dict):
        raise UserError(f"{files[1]}: expected an object of answers by id")
    for row, raw in parsed(_Safety, reader.json_list(files[0]), reader):
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


VALUES: dict[str, ReadForm] = {
    "bbq": jsonl_of(_Bbq),
    "crows_pairs": _crows_pairs,
    "safetybench": _safety,
    "stereoset": _stereoset,
}
