"""Corpora that come with scores, in their published formats.

- ESConv (Liu et al., ACL 2021): the seeker's survey (rubric esconv_survey, 1–5, annotator `seeker`; an answer of -1 is missing
  and gives no score) and the ratings given on the way (rubric esconv_turns, 1–5, see `turn_ratings`).
- EPITOME (Sharma et al., EMNLP 2020): three mechanisms, 0–2, on a post and a reply: a dialogue of two turns.
- EmpathicComm ("When LLMs are Reliable for Judging Empathic Communication"): three experts, the crowd and three models on 50
  dialogues of EmpatheticDialogues (1–5) and 50 pairs of EPITOME (0–2). Models' verdicts are `Judgement` records. Its two other
  parts are left out (`_LEFT_OUT` says why).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from rich.console import Console

from core.errors import UserError, near
from core.ledger import Build, Step
from core.records import Dialogue, HumanScore, Judgement, Number, Part, Role, SupportDialogue, Turn, Whole
from core.rows import Raw, Row, Rows, Source
from data_prep.scores.human import Imported
from data_prep.sources import corpus_files, esconv, read_counted, read_source, source_named
from data_prep.sources.support import ROLES, merged

MECHANISMS = ("emotional_reactions", "interpretations", "explorations")
_JUDGES = {"gpt": "gpt-4o", "claude": "claude-3.7-sonnet", "gemini": "gemini-2.5-pro"}  # EmpathicComm's file names
# EmpathicComm's folders with ratings that are not read, and why.
_LEFT_OUT = {
    "lend_an_ear": "lend_an_ear: there is no rubric for its six dimensions",
    "perceived_empathy": "perceived_empathy: its dialogues are not published",
    "original_data": "perceived_empathy: its dialogues are not published",  # the seekers' own ratings
}


# --- ESConv ---------------------------------------------------------------------------------------------------------------


class _Feedback(Raw):
    feedback: esconv.Score = None


class _Rated(Raw):
    """An utterance with the seeker's rating, under the names of the three published forms."""

    speaker: str
    text: str = ""
    content: str = ""
    rating: esconv.Score = None
    feedback: esconv.Score = None
    annotation: _Feedback = _Feedback()

    @property
    def role(self) -> Role:
        return ROLES[self.speaker]

    @property
    def given(self) -> float | None:
        return next((v for v in (self.rating, self.feedback, self.annotation.feedback) if v is not None), None)


class _RatedDialogue(Raw):
    dialog: list[_Rated]


def _esconv(name: str, place: str, build: Build, console: Console, strict: bool) -> Imported:
    found = Imported()
    for item in read_source(name, place, build, console, strict):
        assert isinstance(item, SupportDialogue)
        found.dialogues.append(item.dialogue)
        found.scores += [_score(item.dialogue, "seeker", "esconv_survey", key, value) for key, value in item.survey.items()]
    step = build.step(f"{name}: ratings of turns")
    dialogues = {dialogue.source_id: dialogue for dialogue in found.dialogues}
    for file in corpus_files(source_named(name), place):
        rows = Rows(Step("again"), strict)  # the rows were counted above; here the ratings are
        for position, row in enumerate(rows.json_list(file) if file.suffix == ".json" else rows.jsonl(file)):
            dialogue = dialogues.get(f"{file.stem}/{position}")
            if dialogue is None:
                continue
            raw = rows.parse(_RatedDialogue, row)
            if raw is None:
                step.taken += 1
                step.drop("malformed (all ratings of a dialogue)", row.where)
            else:
                found.turn_scores += turn_ratings(dialogue, raw.dialog, step, row.where)
    return found


def turn_ratings(dialogue: Dialogue, utterances: Sequence[_Rated], step: Step, where: str) -> list[HumanScore]:
    """ESConv's ratings as scores of turns: 1–5; `turn` counts from 0 in `dialogue.turns` (one side's utterances are merged).

    The seeker rates what the supporter said last, and the corpus notes the rating at the seeker's own utterance. The score
    points at what was rated: the last supporter turn before that utterance. Of two ratings of one turn the later stands.
    """
    latest: dict[int, float] = {}
    turn, rated, speaking = -1, -1, ""
    for utterance in utterances:
        if (utterance.text or utterance.content).strip() and utterance.role != speaking:
            turn, speaking = turn + 1, utterance.role
        if speaking == "supporter":
            rated = turn
        if utterance.given is None:
            continue
        step.taken += 1
        if rated < 0:
            step.drop("nothing said by the supporter yet", where)
            continue
        if rated in latest:
            step.drop("rated again later", where)
        latest[rated] = utterance.given
    assert turn == len(dialogue.turns) - 1, f"{dialogue.id}: turns are not merged as its source does"
    step.kept += len(latest)
    given = partial(_score, dialogue, "seeker", "esconv_turns", "helpfulness")
    return [given(value).model_copy(update={"turn": index}) for index, value in latest.items()]


# --- EPITOME --------------------------------------------------------------------------------------------------------------


class _Pair(Raw):
    sp_id: Annotated[str, Field(min_length=1)]
    rp_id: Annotated[str, Field(min_length=1)]
    seeker_post: str
    response_post: str

    def dialogue(self, row: Row, rows: Rows) -> Dialogue | None:
        """The post and the reply as two turns; pairs of one post share its source id's base. None, and a drop, when one of the
        two is empty or an id is too long."""
        turns = merged([Turn(role="seeker", text=self.seeker_post), Turn(role="supporter", text=self.response_post)])
        if len(turns) < 2:
            rows.drop(row, "empty post or reply")
            return None
        return rows.record(
            Dialogue,
            row,
            id=f"epitome-{self.sp_id}-{self.rp_id}",
            language="en",
            source="epitome",
            source_id=f"{self.sp_id}/{self.rp_id}",
            turns=turns,
        )


class _LabelledPair(_Pair):
    level: Annotated[Whole, Field(ge=0, le=2)]


def _epitome(files: list[Path], rows: Rows) -> Imported:
    """One file a mechanism, one level a row. A pair that a file has again is not a second annotator: the first level stands."""
    dialogues: dict[str, Dialogue] = {}
    levels: dict[tuple[str, str], HumanScore] = {}
    for file in files:
        mechanism = next((m for m in MECHANISMS if file.name.startswith(m.replace("_", "-"))), None)
        if mechanism is None:
            raise UserError(f"{file}: the file's name must begin with a mechanism ({', '.join(MECHANISMS)}, with hyphens)")
        for row in rows.csv(file):
            raw = rows.parse(_LabelledPair, row)
            dialogue = raw.dialogue(row, rows) if raw else None
            if raw is None or dialogue is None:
                continue
            if (first := levels.get((dialogue.id, mechanism))) is not None:
                rows.drop(row, f"the pair again, with {'the same' if first.value == raw.level else 'another'} level")
            else:
                dialogues.setdefault(dialogue.id, dialogue)
                levels[dialogue.id, mechanism] = _score(dialogue, "epitome", "epitome", mechanism, raw.level)
                rows.step.kept += 1
    return Imported(list(dialogues.values()), list(levels.values()))


# --- EmpathicComm ---------------------------------------------------------------------------------------------------------


_EMPTY_IS_NONE = BeforeValidator(lambda cell: None if cell == "" else cell)
_OneToFive = Annotated[Annotated[Number, Field(ge=1, le=5)] | None, _EMPTY_IS_NONE]
_ZeroToTwo = Annotated[Annotated[Number, Field(ge=0, le=2)] | None, _EMPTY_IS_NONE]


class _Spoken(Raw):
    conv_id: Part
    utterance_idx: Whole
    prompt: str
    speaker_idx: str
    utterance: str


class _DialogueRating(Raw):
    text: str = Field(validation_alias="conv_id")
    empathy: _OneToFive
    relevance: _OneToFive
    fluency: _OneToFive


class _PairRating(Raw):
    text: str = Field(validation_alias="sp_id")
    emotional_reactions: _ZeroToTwo = Field(validation_alias="level_emotional_reactions")
    interpretations: _ZeroToTwo = Field(validation_alias="level_interpretations")
    explorations: _ZeroToTwo = Field(validation_alias="level_explorations")


def _empathic_comm(files: list[Path], rows: Rows) -> Imported:
    """Texts first, then every rater's file (`annotations/PART/RATER_ratings.csv`)."""
    texts: dict[tuple[str, str], Dialogue] = {}  # (part, conv_id or sp_id)
    placed = {file: _place(file) for file in files}
    for file, place in placed.items():
        if place == ("original_data", "sample_epitome.csv"):
            texts |= {("epitome", d.source_id.split("/")[0]): d for d in _pairs(file, rows) if d.source_id}
        elif place == ("original_data", "sample_empatheticdialogues.csv"):
            texts |= {("empatheticdialogues", d.source_id): d for d in _conversations(file, rows) if d.source_id}
    found = Imported(list(texts.values()))
    for file, (part, name) in placed.items():
        if name.endswith("_ratings.csv") and part in _LEFT_OUT:
            for row in rows.csv(file):
                rows.drop(row, _LEFT_OUT[part])
        elif name.endswith("_ratings.csv"):
            _rater(file, part, name.removesuffix("_ratings.csv"), texts, rows, found)
    return found


def _place(file: Path) -> tuple[str, str]:
    """(folder, name) of a file of the published repository, also where its files lie in one folder as FOLDER__NAME."""
    folder, separator, name = file.name.partition("__")
    return (folder, name) if separator else (file.parent.name, file.name)


def _pairs(file: Path, rows: Rows) -> Iterator[Dialogue]:
    for row in rows.csv(file):
        raw = rows.parse(_Pair, row)
        dialogue = raw.dialogue(row, rows) if raw else None
        if dialogue is not None:
            rows.step.kept += 1
            yield dialogue


def _conversations(file: Path, rows: Rows) -> Iterator[Dialogue]:
    """Dialogues of EmpatheticDialogues as the raters saw them: the situation is the seeker's first line."""
    parts: dict[str, list[tuple[Row, _Spoken]]] = {}
    for row in rows.csv(file):
        raw = rows.parse(_Spoken, row)
        if raw is not None:
            parts.setdefault(raw.conv_id, []).append((row, raw))
    for name, spoken in parts.items():
        if [raw.utterance_idx for _, raw in spoken] != list(range(1, len(spoken) + 1)):
            for row, _ in spoken:
                rows.drop(row, "its dialogue lacks an utterance")
            continue
        rows.step.kept += len(spoken)
        seeker = spoken[0][1].speaker_idx
        turns = [Turn(role="seeker", text=_commas(spoken[0][1].prompt))]
        for _, raw in spoken:
            turns.append(Turn(role="seeker" if raw.speaker_idx == seeker else "supporter", text=_commas(raw.utterance)))
        yield Dialogue(id=f"empathic_comm-{name}", language="en", source="empathic_comm", source_id=name, turns=merged(turns))


def _commas(text: str) -> str:
    return text.replace("_comma_", ",")  # EmpatheticDialogues writes its commas so


def _rater(file: Path, part: str, rater: str, texts: dict[tuple[str, str], Dialogue], rows: Rows, found: Imported) -> None:
    """One rater's scores. The crowd's are the mean of two people (EmpatheticDialogues), or EPITOME's own levels."""
    pairs = part == "epitome"
    rubric = "epitome" if pairs else "empathic_comm"
    for row in rows.csv(file):
        raw: _PairRating | _DialogueRating | None = rows.parse(_PairRating, row) if pairs else rows.parse(_DialogueRating, row)
        if raw is None:
            continue
        dialogue = texts.get((part, raw.text))
        if dialogue is None:
            rows.drop(row, "a rating without its text")
            continue
        rows.step.kept += 1
        values = {name: value for name, value in raw.model_dump(exclude={"text"}).items() if value is not None}
        for dimension, value in values.items():
            if rater in _JUDGES:
                found.judgements.append(_judgement(dialogue, _JUDGES[rater], rubric, dimension, value))
            else:  # the same people's levels under the same name, so that both imports together do not count them twice
                annotator = "epitome" if pairs and rater == "crowd" else rater
                found.scores.append(_score(dialogue, annotator, rubric, dimension, value))


# --- all of them ----------------------------------------------------------------------------------------------------------


def _score(dialogue: Dialogue, annotator: str, rubric: str, dimension: str, value: float) -> HumanScore:
    return HumanScore(
        dialogue_id=dialogue.id,
        language=dialogue.language,
        annotator=annotator,
        rubric=rubric,
        dimension=dimension,
        value=value,
    )


def _judgement(dialogue: Dialogue, judge: str, rubric: str, dimension: str, value: float) -> Judgement:
    return Judgement(
        dialogue_id=dialogue.id,
        language=dialogue.language,
        judge=judge,
        rubric=rubric,
        dimension=dimension,
        value=value,
    )


@dataclass(frozen=True)
class Scored:
    """A corpus that is read for its scores. `read` counts rows (levels, utterances, ratings) and not items."""

    source: Source
    read: Callable[[list[Path], Rows], Imported]

    def __call__(self, name: str, place: str, build: Build, console: Console, strict: bool) -> Imported:
        return read_counted(self.source, place, build, console, strict, self.read)


def _no_items(files: list[Path], rows: Rows) -> Iterator[SupportDialogue]:
    return iter(())


_EMPATHIC_COMM = Source(
    name="empathic_comm",
    about="EmpathicComm: 100 short dialogues (of its 200) rated by three experts, the crowd and three models, English",
    kind="support",
    languages=("en",),
    files=(
        "original_data/sample_e*.csv",
        "original_data/*_ratings.csv",
        "annotations/*/*_ratings.csv",
        "original_data__sample_e*.csv",
        "*__*_ratings.csv",
    ),
    where="GitHub aakriti1kumar/replication-data-and-code-when-LLMs-reliable-empathic-communication",
    licence="MIT",
    paper="When LLMs are Reliable for Judging Empathic Communication",
    read=_no_items,
)
_READERS: dict[str, Callable[[str, str, Build, Console, bool], Imported]] = {
    "esconv": _esconv,
    "esconv_failed": _esconv,
    "esconv_multi": _esconv,
    "epitome": Scored(source_named("epitome"), _epitome),
    "empathic_comm": Scored(_EMPATHIC_COMM, _empathic_comm),
}


def import_corpus(name: str, place: str, build: Build, console: Console, strict: bool = False) -> Imported:
    """Dialogues and scores of one corpus from a local path or the hub; its rows are steps of the build.

    Raises `UserError` for a corpus without scores, for files that are not there, and with `strict` at the first malformed row.
    """
    if name not in _READERS:
        raise UserError(f"no scores come with a corpus {name!r}: {near(name, _READERS)}")
    return _READERS[name](name, place, build, console, strict)
