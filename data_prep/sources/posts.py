"""Single-turn corpora: every item is a `Post`, with the first of its replies, if any."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from core.records import Language, Post, Whole
from core.rows import CorpusReader, CorpusRow, Dropped, Malformed, ReadCorpus, RowModel, by_row


class PostReply(NamedTuple):
    """A post and one reply to it (None without one), with the corpus's ids of both."""

    post_id: str
    reply_id: str
    text: str
    reply: str | None


def first_replies(
    source: str,
    language: Language,
    pair_of: Callable[[Any], PostReply],
    rows: Callable[[CorpusReader, Path], Iterable[CorpusRow]] = CorpusReader.records,
) -> ReadCorpus:
    """A `read` that gives one `Post` per post id, with the reply in its first row; its other rows are dropped. `pair_of`
    converts a row's value; `rows` reads files."""

    def read(files: list[Path], reader: CorpusReader) -> Iterator[Post]:
        posts: set[str] = set()
        pairs: set[tuple[str, str]] = set()
        for row in (row for file in files for row in rows(reader, file)):
            with reader.accounting(row):
                pair = pair_of(row.value)
                doubled = pair[:2] in pairs
                pairs.add(pair[:2])
                if doubled or pair.post_id in posts:
                    raise Dropped("pair already read" if doubled else "further reply to a post already read")
                if pair.text.strip():
                    posts.add(pair.post_id)
                yield post(source, pair.post_id, language, pair.text, pair.reply)

    return read


def post(source: str, source_id: str, language: Language, text: str, reply: str | None = None) -> Post:
    """A `Post` with the id `source-source_id`; a blank reply is None. Raises `Dropped` for a blank text."""
    if not text.strip():
        raise Dropped("post without text")
    texts = {"text": text.strip(), "reply": (reply or "").strip() or None}
    return Post(id=f"{source}-{source_id}", language=language, source=source, source_id=source_id, **texts)


class _Epitome(RowModel):
    sp_id: str
    rp_id: str
    seeker_post: str
    response_post: str


def _epitome(value: Any) -> PostReply:
    """EPITOME (Sharma et al., EMNLP 2020): Reddit posts with one reply each, rated on three mechanisms of empathy. Three CSV
    files, one per mechanism, have the same pairs in the same order, and a few pairs twice: repeated pairs are dropped. The
    white space of a few texts differs between the files; the first file by name counts."""
    raw = _Epitome.model_validate(value)
    return PostReply(raw.sp_id, raw.rp_id, raw.seeker_post, raw.response_post)


class _MhpReddit(RowModel):
    post_id: str
    comment_id: str
    question: str
    description: str | None = None
    answer: str | None = None


def _mhp_reddit(value: Any) -> PostReply:
    """MHP Reddit (Lahnala et al., Findings of ACL 2021): Reddit posts with replies by mental-health professionals and peers.

    The paper's own repository has no texts. This form is that of the hub dataset `lsy641/reddit_mhp`, according to its loading
    script; we have not seen its data, nor do we know whether ESC-Eval used it. `mhp_full.json` repeats the three split files.
    """
    raw = _MhpReddit.model_validate(value)
    title_and_text = (raw.question.strip(), (raw.description or "").strip())
    return PostReply(raw.post_id, raw.comment_id, "\n".join(filter(None, title_and_text)), raw.answer)


class _PsyQaAnswer(RowModel):
    answer_text: str


class _PsyQa(RowModel):
    questionID: Whole | str
    question: str
    description: str = ""
    answers: tuple[_PsyQaAnswer, ...] = ()


def _psyqa(value: Any) -> PostReply:
    """PsyQA (Sun et al., Findings of ACL 2021): posts from a Chinese psychology platform with long answers. A post is a
    question's title (unless the description begins with it) and description, with the first answer."""
    raw = _PsyQa.model_validate(value)
    title, description = raw.question.strip(), raw.description.strip()
    text = description if description.startswith(title) else f"{title}\n{description}"
    return PostReply(str(raw.questionID), "", text, raw.answers[0].answer_text if raw.answers else None)


epitome = first_replies("epitome", "en", _epitome, CorpusReader.csv)
mhp_reddit = first_replies("mhp_reddit", "en", _mhp_reddit)
psyqa = first_replies("psyqa", "zh", _psyqa)


class _Psych8k(RowModel):
    input: str
    output: str = ""


@by_row
def psych8k(value: Any, source_id: str) -> Post:
    """Psych8K (Liu et al. 2023, ChatCounselor): question-answer pairs that GPT-4 made from transcripts of counselling sessions.
    Access is gated: we know the form {instruction, input, output} from public code that reads it. `instruction`, always the
    same task description, is not part of the post. The corpus is one file, so a row's position is its id."""
    raw = _Psych8k.model_validate(value)
    return post("psych8k", source_id.rpartition("/")[2], "en", raw.input, raw.output)


class _CounsellingBench(RowModel):
    question_id: Whole
    turns: list[str]


class _CounsellingBenchZh(RowModel):
    question_id: Whole
    text: str


@by_row
def counselling_bench(value: Any, _: str) -> Post:
    """Counselling Bench (Liu et al. 2023, ChatCounselor): test questions of ChatPsychiatrist without replies, English in
    `question.jsonl`, and 80 from PsyQA in `psyqa_question_zh.jsonl`; `source_id` is `language/question id`."""
    if isinstance(value, dict) and "text" in value:
        chinese = _CounsellingBenchZh.model_validate(value)
        return post("counselingbench", f"zh/{chinese.question_id}", "zh", chinese.text)
    english = _CounsellingBench.model_validate(value)
    return post("counselingbench", f"en/{english.question_id}", "en", "\n".join(english.turns))


@by_row
def simpsydial(value: Any, source_id: str) -> Post:
    """SimPsyDial's profiles (Qiu and Lan 2024, interactive agents): posts of Chinese help seekers, one string each."""
    if not isinstance(value, str):
        raise Malformed(f"expected a string, found {type(value).__name__}")
    return post("simpsydial", source_id, "zh", value)
