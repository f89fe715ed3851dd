"""Files about people: emotion, companionship, values and safety; and our own forms, for datasets without a reader here."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from core.errors import UserError, near
from core.files import CONFIGS, digest
from core.records import Whole
from core.rows import CorpusReader, Dropped, Malformed
from core.settings import load_yaml
from evalsuite.papers.ecdbench.forms import (
    Bit,
    Doc,
    ReadForm,
    Text,
    at_least,
    csv_of,
    folders_of,
    form_of,
    in_files,
    lines_of,
    parsed,
    row_of,
    tabbed,
    tabs_of,
)

AFFECTS = ["anger", "anticipation", "disgust", "fear", "joy", "love", "optimism", "pessimism", "sadness", "surprise", "trust"]
NO_AFFECT = "none of these"
VOTES = "Agreed emotion (2/3 vote)"  # EDOS's column
EVALUATED = 100  # trials per book and distance that Book-SORT evaluates on; the others are for choosing a prompt
STEREOTYPES = ("stereotype", "anti-stereotype", "unrelated")

# --- rows -------------------------------------------------------------------------------------------------------------------

AFFECT = row_of(text=Annotated[str, Field(alias="Tweet")], **dict.fromkeys(AFFECTS, Bit))
IRONY = row_of(label=Bit, text=str)
METAPHOR = row_of(label=Bit, sentence=str, w_index=str)
EMOTIONAL = {"language": Literal["en", "zh"], "scenario": Text, "subject": Text}
UNDERSTOOD = dict.fromkeys(("emotion_choices", "cause_choices"), list[Text]) | dict.fromkeys(
    ("emotion_label", "cause_label"), Text
)
UNDERSTANDING = row_of(**EMOTIONAL, **UNDERSTOOD)
KIND = Annotated[Literal["Action", "Response"], Field(alias="question type")]
APPLICATION = row_of(**EMOTIONAL, choices=list[Text], label=Text, kind=KIND)
PREFERRED = row_of(profile=Text | dict[str, Any] | list[Any], question=Text, chosen=Text, rejected=Text)
EXCERPT = row_of(book_idx=Text, excerpt_idx=Text, excerpt_text=Text)
SEGMENTS = row_of(
    **dict.fromkeys(("book_idx", "excerpt_idx", "segment_1", "segment_2", "distance_bin"), Text),
    present_seg1_first=Literal["0", "1", "False", "True"],
)
MEMORY = row_of(
    **dict.fromkeys(("question_id", "question_type", "question", "question_date"), Text),
    haystack_session_ids=at_least(1, str),
    haystack_dates=list[str],
    haystack_sessions=at_least(0, at_least(0, row_of(role=Literal["user", "assistant"], content=str))),
    answer_session_ids=list[str],
)
CROWS = row_of(sent_more=Text, sent_less=Text)
STEREO = row_of(
    context=Text,
    sentences=at_least(3, row_of(sentence=Text, gold_label=Literal["stereotype", "anti-stereotype", "unrelated"]), 3),
)
BBQ = row_of(
    **dict.fromkeys(("context", "question", "ans0", "ans1", "ans2", "category"), Text),
    label=Annotated[Whole, Field(ge=0, le=2)],
    context_condition=Literal["ambig", "disambig"],
    question_polarity=Literal["neg", "nonneg"],
    answer_info=dict[str, list[str]],
    additional_metadata=dict[str, Any],
)
SAFE = row_of(id=Whole, question=Text, options=at_least(2, str), category=Text)
CHOICES = row_of(text=Text, choices=at_least(2, Text), gold=Whole | at_least(1, Whole))  # the right ones, from 0
STATEMENT = row_of(text=Text, choices=at_least(2, Text), points=list[Annotated[Whole, Field(ge=0)]])  # points of each choice
DOCUMENT = row_of(text=Annotated[str, Field(pattern=r"\S")], language=(Literal["en", "zh"], "zh"))


# --- emotion ----------------------------------------------------------------------------------------------------------------


def _metaphor(raw: Any) -> Doc:
    """One word of a sentence per line, with its place."""
    words = raw.sentence.split(" ")
    if not raw.w_index.isdigit() or int(raw.w_index) >= len(words):
        raise Malformed(f"w_index: expected a number below {len(words)}, found {raw.w_index!r}")
    return {"sentence": raw.sentence, "word": words[int(raw.w_index)], "gold": [int(raw.label)], "labels": ["0", "1"]}


def _goemotions(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The file of label names comes first."""
    names = lines_of(files[0])
    places = {str(place): place for place in range(len(names))}
    for row in in_files(partial(tabbed, reader, names=("text", "labels", "id")), files[1:]):
        gold = row.value["labels"].split(",")
        if not set(gold) <= places.keys():
            reader.malformed(row, f"labels: expected numbers below {len(names)}, found {row.value['labels']!r}")
        yield {"text": row.value["text"], "choices": names, "gold": [places[label] for label in gold]}


def _affect(raw: Any) -> Doc:
    """SemEval-2018 Task 1, E-c: a tweet, and 1 for each of the eleven emotions that it shows; it may show none."""
    gold = [place for place, name in enumerate(AFFECTS) if getattr(raw, name) == "1"] or [len(AFFECTS)]
    return {"text": raw.text, "choices": [*AFFECTS, NO_AFFECT], "gold": gold}


def _edos(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Dialogues labelled by three people. The classes are all labels agreed on anywhere in the files; annotators' own words are
    marked `(Other)` and are no class."""
    rows = [row for file in files for row in reader.csv(file, ("Dialog", VOTES))]
    labels = [row.value[VOTES].strip() for row in rows]
    names = sorted({label for label in labels if label != "-" and not label.endswith("(Other)")})
    for row, label in zip(rows, labels, strict=True):
        dialogue = row.value["Dialog"].strip()
        if label not in names or not dialogue:
            reader.step.drop("annotators agree on no emotion" if dialogue else "no dialogue", row.where)
            continue
        yield {"text": dialogue, "choices": names, "gold": [names.index(label)]}


def _cped(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Every utterance with the four before it in its dialogue."""
    choices: dict[str, str] = load_yaml(CONFIGS / "ecdbench" / "tasks" / "cped_emotions.yaml", "names of emotions")
    names, options = list(choices), list(choices.values())
    for file in files:
        histories: dict[str, list[str]] = defaultdict(list)
        for row in reader.csv(file, ("Dialogue_ID", "Speaker", "Emotion", "Utterance")):
            emotion, line = row.value["Emotion"], f"{row.value['Speaker']}：{row.value['Utterance']}"
            before = histories[row.value["Dialogue_ID"]]
            if emotion not in names:
                reader.malformed(row, f"Emotion: {near(emotion, names)}")
            yield {"history": before[-4:], "line": line, "choices": options, "gold": [names.index(emotion)]}
            before.append(line)


def _emobench(options: str, label: str, asks: Callable[[Any], str]) -> Callable[[Any], Doc]:
    """A question of EmoBench from the named fields; `asks` gives the kind of question."""

    def document(raw: Any) -> Doc:
        choices = list(getattr(raw, options))
        gold = [index for index, option in enumerate(choices) if option == getattr(raw, label)]
        kept = {name: getattr(raw, name) for name in EMOTIONAL}
        return {**kept, "asks": asks(raw), "options": choices, "gold": gold}

    return document


# --- companionship ----------------------------------------------------------------------------------------------------------


def _preference(raw: Any) -> Doc:
    """A profile, a question and two replies, of which people preferred one. A hash of the item decides which is shown first."""
    second = int(digest([raw.question, raw.chosen, raw.rejected], 8), 16) % 2
    options = [raw.rejected, raw.chosen] if second else [raw.chosen, raw.rejected]
    return {"profile": _spoken(raw.profile), "question": raw.question, "options": options, "gold": [second]}


def _spoken(profile: Any) -> str:
    """A profile as text; an object or list has one line per entry."""
    if isinstance(profile, dict):
        return "\n".join(f"{name}: {_spoken(value)}" for name, value in profile.items())
    return "\n".join(map(_spoken, profile)) if isinstance(profile, list) else str(profile)


def _book_sort(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Excerpts and segments, joined by book and excerpt within each pair of files with the same ending (one excerpt and segment
    length per pair)."""
    excerpt_files = {file.name.removeprefix("excerpts"): file for file in files if file.name.startswith("excerpts")}
    for file in (file for file in files if not file.name.startswith("excerpts")):
        excerpt_file = excerpt_files.get(file.name.removeprefix("segments"))
        if excerpt_file is None:
            raise UserError(f"{file}: no {file.name.replace('segments', 'excerpts', 1)} next to it")
        excerpts = {}
        for row, raw in parsed(EXCERPT, reader.csv(excerpt_file, list(EXCERPT.model_fields)), reader):
            reader.step.taken -= 1  # the pairs of segments count, not the excerpts
            if (raw.book_idx, raw.excerpt_idx) in excerpts:
                reader.malformed(row, f"excerpt_idx: {raw.excerpt_idx} of book {raw.book_idx} is given twice")
            excerpts[raw.book_idx, raw.excerpt_idx] = raw.excerpt_text
        trials: Counter[tuple[str, str]] = Counter()
        for row, raw in parsed(SEGMENTS, reader.csv(file, list(SEGMENTS.model_fields)), reader):
            text = excerpts.get((raw.book_idx, raw.excerpt_idx))
            if text is None:
                reader.malformed(row, f"excerpt_idx: {excerpt_file.name} has no {raw.excerpt_idx} of book {raw.book_idx}")
            trials[raw.book_idx, raw.distance_bin] += 1
            if trials[raw.book_idx, raw.distance_bin] > EVALUATED:
                reader.step.drop("kept by its authors for choosing a prompt", row.where)
                continue
            earlier_first = raw.present_seg1_first in ("1", "True")
            options = [raw.segment_1, raw.segment_2] if earlier_first else [raw.segment_2, raw.segment_1]
            yield {"excerpt": text, "options": options, "gold": [0 if earlier_first else 1]}


def _longmemeval(raw: Any) -> Doc:
    """A question about earlier chat sessions, and which of them contain the answer."""
    ids = raw.haystack_session_ids
    if not len(ids) == len(raw.haystack_dates) == len(raw.haystack_sessions):
        raise Malformed("haystack_session_ids, haystack_dates and haystack_sessions differ in length")
    if unknown := [session for session in raw.answer_session_ids if session not in ids]:
        raise Malformed(f"answer_session_ids: {unknown[0]!r} is not in haystack_session_ids")
    if raw.question_id.endswith("_abs") or not raw.answer_session_ids:
        raise Dropped("no session contains an answer")
    sessions = [
        f"{date}\n" + "\n".join(f"{turn.role}: {turn.content}" for turn in session)
        for date, session in zip(raw.haystack_dates, raw.haystack_sessions, strict=True)
    ]
    gold = [place for place, session in enumerate(ids) if session in raw.answer_session_ids]
    return {"question": raw.question, "date": raw.question_date, "options": sessions, "gold": gold}


# --- values and safety ------------------------------------------------------------------------------------------------------


def _stereoset(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Both halves: a sentence that continues another (`intersentence`), or that fills its blank (`intrasentence`)."""
    for file in files:
        contents = reader.json(file)
        halves = contents.get("data") if isinstance(contents, dict) else None
        if not isinstance(halves, dict) or not any(isinstance(half, list) for half in halves.values()):
            raise UserError(f"{file}: data: expected an object with the lists intersentence and intrasentence")
        for half in ("intersentence", "intrasentence"):
            rows = [reader.row(f"{file}: {half} entry {n}", item) for n, item in enumerate(halves.get(half, []))]
            for row, raw in parsed(STEREO, rows, reader):
                labels = [sentence.gold_label for sentence in raw.sentences]
                if sorted(labels) != sorted(STEREOTYPES):
                    reader.malformed(row, f"sentences: expected one gold_label each of {', '.join(STEREOTYPES)}")
                options = [sentence.sentence for sentence in raw.sentences]
                item = {"half": half, "context": raw.context, "options": options, "labels": labels}
                yield {**item, "gold": [labels.index("anti-stereotype")]}


def _safetybench(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The file of questions and the file of answers by id."""
    answers = reader.json(files[1])
    if not isinstance(answers, dict):
        raise UserError(f"{files[1]}: expected an object of answers by id")
    for row, raw in parsed(SAFE, reader.json_list(files[0]), reader):
        entry = answers.get(str(raw.id))
        if not isinstance(entry, dict):
            reader.step.drop("no answer in the file of answers", row.where)
            continue
        answer = entry.get("answer")
        if type(answer) is not int or not 0 <= answer < len(raw.options):
            reader.malformed(row, f"answer of {raw.id}: expected 0 to {len(raw.options) - 1}, found {answer!r}")
        language = "en" if raw.question.isascii() else "zh"
        item = {"question": raw.question, "options": raw.options, "category": raw.category, "language": language}
        yield {**item, "gold": [answer]}


# --- our own forms ----------------------------------------------------------------------------------------------------------


def _item(raw: Any) -> Doc:
    gold = raw.gold if isinstance(raw.gold, list) else [raw.gold]
    if not all(0 <= place < len(raw.choices) for place in gold):
        raise Malformed(f"gold: expected 0 to {len(raw.choices) - 1}, found {raw.gold}")
    return {"text": raw.text, "choices": raw.choices, "gold": gold}


def _scale(raw: Any) -> Doc:
    """A statement; one without points for any choice (a filler) is dropped."""
    if len(raw.points) != len(raw.choices):
        raise Malformed(f"points: expected {len(raw.choices)}, one per choice, found {len(raw.points)}")
    if not any(raw.points):
        raise Dropped("gives no points")
    best = [place for place, points in enumerate(raw.points) if points == max(raw.points)]
    return {"text": raw.text, "choices": raw.choices, "points": raw.points, "gold": best}


ABOUT_PEOPLE: dict[str, ReadForm] = {
    "affect": tabs_of(AFFECT, _affect),
    "bbq": form_of(BBQ),
    "book_sort": _book_sort,
    "cped": _cped,
    "crows_pairs": csv_of(CROWS),
    "documents": form_of(DOCUMENT),
    "edos": _edos,
    "emobench_application": form_of(APPLICATION, _emobench("choices", "label", lambda r: r.kind.lower())),
    "emobench_cause": form_of(UNDERSTANDING, _emobench("cause_choices", "cause_label", lambda r: "cause")),
    "emobench_emotion": form_of(UNDERSTANDING, _emobench("emotion_choices", "emotion_label", lambda r: "emotion")),
    "goemotions": _goemotions,
    "imdb": folders_of(("neg", "pos"), lambda text: {"text": text.replace("<br />", "\n")}),
    "irony": tabs_of(
        IRONY,
        lambda r: {"text": r.text, "gold": [int(r.label)], "labels": ["0", "1"]},
        ("index", "label", "text"),
        header="Tweet index",
    ),
    "items": form_of(CHOICES, _item),
    "longmemeval": form_of(MEMORY, _longmemeval, CorpusReader.json_list),
    "metaphor": tabs_of(METAPHOR, _metaphor, ("index", "label", "sentence", "part", "finer part", "w_index"), header="index"),
    "preference": form_of(PREFERRED, _preference, CorpusReader.records),
    "safetybench": _safetybench,
    "scale": form_of(STATEMENT, _scale),
    "stereoset": _stereoset,
}
