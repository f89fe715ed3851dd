"""Files of Companionship: PersonaFeedback, Book-SORT, LongMemEval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from core.errors import UserError
from core.files import digest
from core.rows import CorpusReader, RowModel
from evalsuite.papers.ecdbench.forms.reading import Doc, ReadForm, Text, in_files, parsed

EVALUATED = 100  # trials of a book and distance that Book-SORT evaluates; the others are for choosing a prompt


class _Preference(RowModel):
    profile: Text | dict[str, Any] | list[Any]
    question: Text
    chosen: Text
    rejected: Text


class _Excerpt(RowModel):
    book_idx: Text
    excerpt_idx: Text
    excerpt_text: Text


class _Segments(RowModel):
    book_idx: Text
    excerpt_idx: Text
    segment_1: Text
    segment_2: Text
    distance_bin: Text
    present_seg1_first: Literal["0", "1", "False", "True"]


class _Said(RowModel):
    role: Literal["user", "assistant"]
    content: str


class _Memory(RowModel):
    question_id: Text
    question_type: Text
    question: Text
    question_date: Text
    haystack_session_ids: Annotated[list[str], Field(min_length=1)]
    haystack_dates: list[str]
    haystack_sessions: list[list[_Said]]
    answer_session_ids: list[str]


def _preference(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """A profile, a question and two replies, of which people preferred one. Which is shown first is drawn from the item."""
    for file in files:
        for _, raw in parsed(_Preference, reader.records(file), reader):
            second = int(digest([raw.question, raw.chosen, raw.rejected], 8), 16) % 2
            options = [raw.rejected, raw.chosen] if second else [raw.chosen, raw.rejected]
            yield {"profile": _spoken(raw.profile), "question": raw.question, "options": options, "gold": [second]}


def _spoken(profile: Any) -> str:
    """A profile as text: a line an entry, where the file has it as an object or a list."""
    if isinstance(profile, dict):
        return "\n".join(f"{name}: {_spoken(value)}" for name, value in profile.items())
    return "\n".join(map(_spoken, profile)) if isinstance(profile, list) else str(profile)


def _book_sort(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Excerpts and segments are joined by book and excerpt, within the files whose names end alike (one excerpt and segment
    length a pair of files)."""
    excerpt_files = {file.name.removeprefix("excerpts"): file for file in files if file.name.startswith("excerpts")}
    for file in (file for file in files if not file.name.startswith("excerpts")):
        beside = excerpt_files.get(file.name.removeprefix("segments"))
        if beside is None:
            raise UserError(f"{file}: no {file.name.replace('segments', 'excerpts', 1)} beside it")
        excerpts = {}
        for row, raw in parsed(_Excerpt, reader.csv(beside, list(_Excerpt.model_fields)), reader):
            reader.step.taken -= 1  # the pairs of segments count, not the excerpts
            if (raw.book_idx, raw.excerpt_idx) in excerpts:
                reader.malformed(row, f"excerpt_idx: {raw.excerpt_idx} of book {raw.book_idx} stands twice")
            excerpts[raw.book_idx, raw.excerpt_idx] = raw.excerpt_text
        trials: Counter[tuple[str, str]] = Counter()
        for row, raw in parsed(_Segments, reader.csv(file, list(_Segments.model_fields)), reader):
            text = excerpts.get((raw.book_idx, raw.excerpt_idx))
            if text is None:
                reader.malformed(row, f"excerpt_idx: {beside.name} has no {raw.excerpt_idx} of book {raw.book_idx}")
            trials[raw.book_idx, raw.distance_bin] += 1
            if trials[raw.book_idx, raw.distance_bin] > EVALUATED:
                reader.step.drop("kept by its authors for choosing a prompt", row.where)
                continue
            earlier_first = raw.present_seg1_first in ("1", "True")
            shown = [raw.segment_1, raw.segment_2] if earlier_first else [raw.segment_2, raw.segment_1]
            yield {"excerpt": text, "options": shown, "gold": [0 if earlier_first else 1]}


def _longmemeval(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """A question about earlier sessions of chat, and which of them hold the answer."""
    for row, raw in parsed(_Memory, in_files(reader.json_list, files), reader):
        ids = raw.haystack_session_ids
        if not len(ids) == len(raw.haystack_dates) == len(raw.haystack_sessions):
            reader.malformed(row, "haystack_session_ids, haystack_dates and haystack_sessions differ in length")
        if unknown := [one for one in raw.answer_session_ids if one not in ids]:
            reader.malformed(row, f"answer_session_ids: {unknown[0]!r} is not in haystack_session_ids")
        if raw.question_id.endswith("_abs") or not raw.answer_session_ids:
            reader.step.drop("no session holds an answer", row.where)
            continue
        sessions = [
            f"{date}\n" + "\n".join(f"{said.role}: {said.content}" for said in session)
            for date, session in zip(raw.haystack_dates, raw.haystack_sessions, strict=True)
        ]
        gold = [place for place, one in enumerate(ids) if one in raw.answer_session_ids]
        yield {"question": raw.question, "date": raw.question_date, "options": sessions, "gold": gold}


COMPANIONSHIP: dict[str, ReadForm] = {"book_sort": _book_sort, "longmemeval": _longmemeval, "preference": _preference}
