"""Single-turn corpora, a row model each: every item is a `Post`, with the first of its replies where there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.records import Language, Post, Whole
from core.rows import CorpusReader, CorpusRow, Dropped, Malformed, ReadCorpus, RowModel, by_row

SAME_PAIR = "pair already read"
FURTHER_REPLY = "further reply to a post already read"
EMPTY = "post without text"


@dataclass(frozen=True)
class PostReply:
    """A post and one reply to it (None where nobody replied), with the corpus's ids of both."""

    post_id: str
    reply_id: str
    text: str
    reply: str | None


def first_replies(
    source: str,
    language: Language,
    pair_of: Callable[[Any], PostReply],
    rows: Callable[[CorpusReader, Path], Iterable[CorpusRow]] = CorpusReader.json_list,
) -> ReadCorpus:
    """A `read` that makes one `Post` of every post id, with the reply of its first row; its other rows are drops.

    `pair_of` makes a pair of a row's value; `rows` says how files are read.
    """

    def read(files: list[Path], reader: CorpusReader) -> Iterator[Post]:
        posts: set[str] = set()
        pairs: set[tuple[str, str]] = set()
        for row in (row for file in files for row in rows(reader, file)):
            with reader.accounting(row):
                pair = pair_of(row.value)
                doubled = (pair.post_id, pair.reply_id) in pairs
                pairs.add((pair.post_id, pair.reply_id))
                if doubled or pair.post_id in posts:
                    raise Dropped(SAME_PAIR if doubled else FURTHER_REPLY)
                if pair.text.strip():
                    posts.add(pair.post_id)
                yield post(source, pair.post_id, language, pair.text, pair.reply)

    return read


def post(source: str, source_id: str, language: Language, text: str, reply: str | None = None) -> Post:
    """A `Post` whose id is `source-source_id`; a blank reply is none. Raises `Dropped` for a blank text."""
    if not text.strip():
        raise Dropped(EMPTY)
    return Post(
        id=f"{source}-{source_id}",
        language=language,
        source=source,
        source_id=source_id,
        text=text.strip(),
        reply=(reply or "").strip() or None,
    )


class _Epitome(RowModel):
    """EPITOME (Sharma et al., EMNLP 2020): Reddit posts with one reply each, rated on three mechanisms of empathy.

    Three CSV files, one a mechanism, hold the same pairs in the same order, and a few pairs twice. Every row of all three is
    counted: the first row of a post becomes the `Post`, its other rows are dropped as the same pair or as a further reply. The
    white space of a few texts differs between the files; the file that comes first by name decides. (The ratings are no part
    of a `Post`.)
    """

    sp_id: str
    rp_id: str
    seeker_post: str
    response_post: str

    def pair(self) -> PostReply:
        return PostReply(self.sp_id, self.rp_id, self.seeker_post, self.response_post)


class _MhpReddit(RowModel):
    """MHP Reddit (Lahnala et al., Findings of ACL 2021): Reddit posts with replies by mental-health professionals and peers.

    Checked: the paper's own repository gives post ids, comment ids, subreddits and author types, but no texts. The hub dataset
    `lsy641/reddit_mhp` has texts, and its loading script reads JSON lists of {question, description, post_id, comment_id,
    answer, topic}. Not checked: the data itself, and whether ESC-Eval, which says only "MHP Reddit", drew from that copy.
    `mhp_full.json` repeats the three split files.
    """

    post_id: str
    comment_id: str
    question: str
    description: str | None = None
    answer: str | None = None

    def pair(self) -> PostReply:
        """A post's title and text with a reply."""
        text = "\n".join(part for part in (self.question.strip(), (self.description or "").strip()) if part)
        return PostReply(self.post_id, self.comment_id, text, self.answer)


class _PsyQaAnswer(RowModel):
    answer_text: str


class _PsyQa(RowModel):
    """PsyQA (Sun et al., Findings of ACL 2021): posts from a Chinese psychology platform with long answers.

    The public sample (`PsyQA_example.json`) and the full set (`PsyQA_full.json`, on signing an agreement) have one schema.
    """

    questionID: Whole | str
    question: str
    description: str = ""
    answers: tuple[_PsyQaAnswer, ...] = ()

    def pair(self) -> PostReply:
        """A question's title and description (a title that the description repeats is not doubled) with its first answer."""
        title, description = self.question.strip(), self.description.strip()
        text = description if description.startswith(title) else f"{title}\n{description}"
        return PostReply(str(self.questionID), "", text, self.answers[0].answer_text if self.answers else None)


class _Psych8k(RowModel):
    """Psych8K (Liu et al. 2023, ChatCounselor): question-answer pairs that GPT-4 made from transcripts of counselling sessions.

    Checked: the file's name, 8,187 pairs, gated access, and that public code reads a JSON list of {instruction, input, output}
    from it. Not checked: the file itself, because access has to be granted. `instruction` is the same task description
    throughout and is no part of the post.
    """

    input: str
    output: str = ""


def _psych8k(value: Any, source_id: str) -> Post:
    """A pair; the corpus is one file, so that its position says which."""
    raw = _Psych8k.model_validate(value)
    return post("psych8k", source_id.rpartition("/")[2], "en", raw.input, raw.output)


class _CounsellingBench(RowModel):
    """Counselling Bench (Liu et al. 2023, ChatCounselor): test questions of ChatPsychiatrist, English, in `question.jsonl`."""

    question_id: Whole
    turns: list[str]


class _CounsellingBenchZh(RowModel):
    """Its 80 questions from PsyQA, Chinese, in `psyqa_question_zh.jsonl`."""

    question_id: Whole
    text: str


def _counselling_bench(value: Any, _: str) -> Post:
    """A question without a reply; `source_id` is `language/question id`."""
    if isinstance(value, dict) and "text" in value:
        chinese = _CounsellingBenchZh.model_validate(value)
        return post("counselingbench", f"zh/{chinese.question_id}", "zh", chinese.text)
    english = _CounsellingBench.model_validate(value)
    return post("counselingbench", f"en/{english.question_id}", "en", "\n".join(english.turns))


def _simpsydial(value: Any, source_id: str) -> Post:
    """SimPsyDial's profiles (Qiu and Lan 2024, interactive agents): posts of Chinese help seekers, one string each."""
    if not isinstance(value, str):
        raise Malformed(f"expected a string, found {type(value).__name__}")
    return post("simpsydial", source_id, "zh", value)


READERS = {
    "epitome": first_replies("epitome", "en", lambda value: _Epitome.model_validate(value).pair(), CorpusReader.csv),
    "mhp_reddit": first_replies("mhp_reddit", "en", lambda value: _MhpReddit.model_validate(value).pair()),
    "psyqa": first_replies("psyqa", "zh", lambda value: _PsyQa.model_validate(value).pair()),
    "psych8k": by_row(_psych8k, CorpusReader.json_list),
    "counselingbench": by_row(_counselling_bench, CorpusReader.jsonl),
    "simpsydial": by_row(_simpsydial, CorpusReader.json_list),
}
