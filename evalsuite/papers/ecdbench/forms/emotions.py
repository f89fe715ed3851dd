"""Files of the emotional capabilities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from core.errors import near
from core.files import CONFIGS
from core.rows import CorpusReader, RowModel
from core.yaml_files import load_yaml
from evalsuite.papers.ecdbench.forms.reading import (
    Doc,
    ReadForm,
    Text,
    folder_texts,
    jsonl_of,
    label_of,
    lines_of,
    tabbed,
    tabbed_records,
)

AFFECTS = ["anger", "anticipation", "disgust", "fear", "joy", "love", "optimism", "pessimism", "sadness", "surprise", "trust"]
NO_AFFECT = "none of these"
VOTES = "Agreed emotion (2/3 vote)"  # of EDOS's annotators


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


def _imdb(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """A folder a class, a file a review."""
    for text, gold in folder_texts(files, reader, ("neg", "pos")):
        yield {"text": text.replace("<br />", "\n"), "gold": [gold]}


def _sst2(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """GLUE's file, in the columns of lm-eval's task."""
    for row in tabbed_records(files, reader, ("sentence", "label")):
        yield {"sentence": row.value["sentence"], "label": label_of(row, reader, "label", row.value["label"], ("0", "1"))}


def _irony(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for row, (_, label, text) in tabbed(files, reader, 3, header="Tweet index"):
        yield {"text": text, "gold": [label_of(row, reader, "Label", label, ("0", "1"))], "labels": ["0", "1"]}


def _metaphor(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """One word of a sentence a line: index, label, sentence, part of speech, finer part of speech, the word's place."""
    for row, (_, label, sentence, _, _, place) in tabbed(files, reader, 6, header="index"):
        gold, words = label_of(row, reader, "label", label, ("0", "1")), sentence.split(" ")
        if not place.isdigit() or int(place) >= len(words):
            reader.malformed(row, f"w_index: expected a number below {len(words)}, found {place!r}")
        yield {"sentence": sentence, "word": words[int(place)], "gold": [gold], "labels": ["0", "1"]}


def _goemotions(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """The file of label names comes first."""
    names = lines_of(files[0])
    places = {str(place): place for place in range(len(names))}
    for row, (text, labels, _) in tabbed(files[1:], reader, 3):
        gold = labels.split(",")
        if not set(gold) <= places.keys():
            reader.malformed(row, f"labels: expected numbers below {len(names)}, found {labels!r}")
        yield {"text": text, "choices": names, "gold": [places[one] for one in gold]}


def _affect(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """SemEval-2018 Task 1, E-c: a tweet, and 1 for each of eleven emotions that it shows; a tweet may show none."""
    for row in tabbed_records(files, reader, ("Tweet", *AFFECTS)):
        marks = [label_of(row, reader, name, row.value[name], ("0", "1")) for name in AFFECTS]
        gold = [place for place, mark in enumerate(marks) if mark] or [len(AFFECTS)]
        yield {"text": row.value["Tweet"], "choices": [*AFFECTS, NO_AFFECT], "gold": gold}


def _edos(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    """Dialogues that three people labelled. Classes are all that annotators agree on somewhere in the files; words of their own
    are marked `(Other)`."""
    rows = [row for file in files for row in reader.csv(file, ("Dialog", VOTES))]
    labels = [row.value[VOTES].strip() for row in rows]
    names = sorted({label for label in labels if label != "-" and not label.endswith("(Other)")})
    for row, label in zip(rows, labels, strict=True):
        said = row.value["Dialog"].strip()
        if label not in names or not said:
            reader.step.drop("annotators agree on no emotion" if said else "no dialogue", row.where)
            continue
        yield {"text": said, "choices": names, "gold": [names.index(label)]}


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


def _understanding(what: str) -> ReadForm:
    def read(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
        for doc in jsonl_of(_Understanding)(files, reader):
            yield _asked(doc, doc[f"{what}_choices"], doc[f"{what}_label"], what)

    return read


def _application(files: list[Path], reader: CorpusReader) -> Iterator[Doc]:
    for doc in jsonl_of(_Application)(files, reader):
        yield _asked(doc, doc["choices"], doc["label"], doc["kind"].lower())


def _asked(doc: Doc, options: Sequence[str], right: str, what: str) -> Doc:
    gold = [index for index, option in enumerate(options) if option == right]
    kept = {"language": doc["language"], "scenario": doc["scenario"], "subject": doc["subject"], "asks": what}
    return {**kept, "options": list(options), "gold": gold}


EMOTIONS: dict[str, ReadForm] = {
    "affect": _affect,
    "cped": _cped,
    "edos": _edos,
    "emobench_application": _application,
    "emobench_cause": _understanding("cause"),
    "emobench_emotion": _understanding("emotion"),
    "goemotions": _goemotions,
    "imdb": _imdb,
    "irony": _irony,
    "metaphor": _metaphor,
    "sst2": _sst2,
}
