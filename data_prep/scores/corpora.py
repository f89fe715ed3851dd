"""Corpora that come with scores, in their published formats.

- ESConv (Liu et al., ACL 2021): the seeker's survey (rubric esconv_survey, 1–5, annotator `seeker`; -1 is a missing answer and
  gives no score) and the ratings during the chat (rubric esconv_turns, 1–5, see `turn_ratings`).
- EPITOME (Sharma et al., EMNLP 2020): three mechanisms, 0–2, on a post and a reply: a dialogue of two turns.
- EmpathicComm ("When LLMs are Reliable for Judging Empathic Communication"): three experts, the crowd and three models on 50
  dialogues of EmpatheticDialogues (1–5) and 50 pairs of EPITOME (0–2). Models' verdicts become `Judgement` records. Two parts
  are not read: lend_an_ear has no rubric, and the dialogues of perceived_empathy are not published.
- HealthBench's meta-evaluation (Arora et al. 2025): physicians' verdicts on single criteria of answers, yes or no.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, AliasPath, BeforeValidator, Field, StrictBool, ValidationError
from rich.console import Console

from core.errors import UserError
from core.files import digest
from core.ledger import Build, BuildStep
from core.records import Dialogue, HumanScore, Identifier, Judgement, Name, Number, Part, Role, SupportDialogue, Turn, Whole
from core.rows import CorpusReader, CorpusRow, Dropped, Malformed, RowModel
from data_prep.published.healthbench import Prompt, turns_of
from data_prep.scores.human import Imported, human_score
from data_prep.sources import SCORED, SOURCES, corpus_files, read_counted, read_source, source_named
from data_prep.sources.support import ROLES, Score, SpokenLine, merged

MECHANISMS = ("emotional_reactions", "interpretations", "explorations")
_JUDGES = {"gpt": "gpt-4o", "claude": "claude-3.7-sonnet", "gemini": "gemini-2.5-pro"}  # EmpathicComm's file names


# --- ESConv ---------------------------------------------------------------------------------------------------------------


class _Rated(SpokenLine):
    rating: Score = Field(
        default=None, validation_alias=AliasChoices("rating", "feedback", AliasPath("annotation", "feedback"))
    )


class _RatedDialogue(RowModel):
    dialog: list[_Rated]


def _esconv(name: str, place: str, build: Build, console: Console) -> Imported:
    imported = Imported()
    for item in read_source(name, place, build, console):
        assert isinstance(item, SupportDialogue)
        imported.dialogues.append(item.dialogue)
        imported.scores += [
            human_score(item.dialogue, "seeker", "esconv_survey", key, value) for key, value in item.survey.items()
        ]
    step = build.step(f"{name}: ratings of turns")
    dialogues = {dialogue.source_id: dialogue for dialogue in imported.dialogues}
    for file in corpus_files(source_named(name), place):
        reader = CorpusReader(BuildStep("again"))  # the rows were counted above; here the ratings are
        for position, row in enumerate(reader.records(file)):
            if (dialogue := dialogues.get(f"{file.stem}/{position}")) is None:
                continue
            try:
                utterances = _RatedDialogue.model_validate(row.value).dialog
            except ValidationError:
                step.taken += 1
                step.drop("malformed (all ratings of a dialogue)", row.where)
            else:
                imported.turn_scores += turn_ratings(dialogue, utterances, step, row.where)
    return imported


def turn_ratings(dialogue: Dialogue, utterances: Sequence[_Rated], step: BuildStep, where: str) -> list[HumanScore]:
    """ESConv's ratings as scores of turns: 1–5; `turn` counts from 0 in `dialogue.turns` (one side's utterances are merged).
    The seeker rates the supporter's last turn, and the corpus has the rating at the seeker's own utterance. The score is for
    the rated turn: the last supporter turn before that utterance. Of two ratings of a turn the later counts."""
    latest: dict[int, float] = {}
    turn, rated, speaking = -1, -1, ""
    for utterance in utterances:
        if utterance.text.strip() and ROLES[utterance.speaker] != speaking:
            turn, speaking = turn + 1, ROLES[utterance.speaker]
        if speaking == "supporter":
            rated = turn
        if utterance.rating is None:
            continue
        step.taken += 1
        if rated < 0:
            step.drop("nothing said by the supporter yet", where)
            continue
        if rated in latest:
            step.drop("rated again later", where)
        latest[rated] = utterance.rating
    assert turn == len(dialogue.turns) - 1, f"{dialogue.id}: turns are not merged as its source does"
    step.kept += len(latest)
    return [human_score(dialogue, "seeker", "esconv_turns", "helpfulness", value, turn) for turn, value in latest.items()]


# --- EPITOME --------------------------------------------------------------------------------------------------------------


class _PostAndReply(RowModel):
    sp_id: Annotated[str, Field(min_length=1)]
    rp_id: Annotated[str, Field(min_length=1)]
    seeker_post: str
    response_post: str

    def dialogue(self) -> Dialogue:
        """The post and the reply as two turns; pairs of one post share the base of the source id."""
        turns = merged([Turn(role="seeker", text=self.seeker_post), Turn(role="supporter", text=self.response_post)])
        if len(turns) < 2:
            raise Dropped("empty post or reply")
        return Dialogue(
            id=f"epitome-{self.sp_id}-{self.rp_id}",
            language="en",
            source="epitome",
            source_id=f"{self.sp_id}/{self.rp_id}",
            turns=turns,
        )


class _LabelledRow(_PostAndReply):
    level: Annotated[Whole, Field(ge=0, le=2)]


def _epitome(files: list[Path], reader: CorpusReader) -> Imported:
    """One file per mechanism, one level per row. The first level of a pair counts: a second is no second annotator's."""
    dialogues: dict[str, Dialogue] = {}
    levels: dict[tuple[str, str], HumanScore] = {}
    for file in files:
        mechanism = next((m for m in MECHANISMS if file.name.startswith(m.replace("_", "-"))), None)
        if mechanism is None:
            raise UserError(f"{file}: the file's name must begin with a mechanism ({', '.join(MECHANISMS)}, with hyphens)")
        for row in reader.csv(file):
            with reader.accounting(row):
                raw = _LabelledRow.model_validate(row.value)
                dialogue = raw.dialogue()
                if (first := levels.get((dialogue.id, mechanism))) is not None:
                    raise Dropped(f"the pair again, with {'the same' if first.value == raw.level else 'another'} level")
                dialogues.setdefault(dialogue.id, dialogue)
                levels[dialogue.id, mechanism] = human_score(dialogue, "epitome", "epitome", mechanism, raw.level)
                reader.step.kept += 1
    return Imported(list(dialogues.values()), list(levels.values()))


# --- EmpathicComm ---------------------------------------------------------------------------------------------------------


_EMPTY_IS_NONE = BeforeValidator(lambda cell: None if cell == "" else cell)
_OneToFive = Annotated[Annotated[Number, Field(ge=1, le=5)] | None, _EMPTY_IS_NONE]
_ZeroToTwo = Annotated[Annotated[Number, Field(ge=0, le=2)] | None, _EMPTY_IS_NONE]


class _SpokenRow(RowModel):
    conv_id: Part
    utterance_idx: Whole
    prompt: str
    speaker_idx: str
    utterance: str


class _DialogueRating(RowModel):
    text: str = Field(validation_alias="conv_id")
    empathy: _OneToFive
    relevance: _OneToFive
    fluency: _OneToFive


class _PairRating(RowModel):
    text: str = Field(validation_alias="sp_id")
    emotional_reactions: _ZeroToTwo = Field(validation_alias="level_emotional_reactions")
    interpretations: _ZeroToTwo = Field(validation_alias="level_interpretations")
    explorations: _ZeroToTwo = Field(validation_alias="level_explorations")


def _empathic_comm(files: list[Path], reader: CorpusReader) -> Imported:
    """Texts first, then every rater's file (`annotations/PART/RATER_ratings.csv`)."""
    texts: dict[tuple[str, str], Dialogue] = {}  # (part, conv_id or sp_id)
    placed = {file: _place(file) for file in files}
    for file, place in placed.items():
        if place == ("original_data", "sample_epitome.csv"):
            for row in reader.csv(file):
                with reader.accounting(row):
                    pair = _PostAndReply.model_validate(row.value)
                    texts["epitome", pair.sp_id] = pair.dialogue()
                    reader.step.kept += 1
        elif place == ("original_data", "sample_empatheticdialogues.csv"):
            texts |= {("empatheticdialogues", d.source_id): d for d in _conversations(file, reader) if d.source_id}
    imported = Imported(list(texts.values()))
    for file, (part, name) in placed.items():
        if name.endswith("_ratings.csv") and part in ("epitome", "empatheticdialogues"):
            _rater(file, part, name.removesuffix("_ratings.csv"), texts, reader, imported)
    return imported


def _place(file: Path) -> tuple[str, str]:
    """(folder, name) of a file in the published repository, also if all files are in one folder as FOLDER__NAME."""
    folder, separator, name = file.name.partition("__")
    return (folder, name) if separator else (file.parent.name, file.name)


def _conversations(file: Path, reader: CorpusReader) -> Iterator[Dialogue]:
    """Dialogues of EmpatheticDialogues as the raters saw them: the situation is the seeker's first line."""
    parts: dict[str, list[tuple[CorpusRow, _SpokenRow]]] = {}
    for row in reader.csv(file):
        with reader.accounting(row):
            raw = _SpokenRow.model_validate(row.value)
            parts.setdefault(raw.conv_id, []).append((row, raw))
    for name, spoken in parts.items():
        if [raw.utterance_idx for _, raw in spoken] != list(range(1, len(spoken) + 1)):
            for row, _ in spoken:
                reader.step.drop("its dialogue lacks an utterance", row.where)
            continue
        reader.step.kept += len(spoken)
        seeker = spoken[0][1].speaker_idx
        lines: list[tuple[Role, str]] = [("seeker", spoken[0][1].prompt)]
        lines += [("seeker" if raw.speaker_idx == seeker else "supporter", raw.utterance) for _, raw in spoken]
        # EmpatheticDialogues writes its commas as a word.
        turns = merged(Turn(role=role, text=text.replace("_comma_", ",")) for role, text in lines)
        yield Dialogue(id=f"empathic_comm-{name}", language="en", source="empathic_comm", source_id=name, turns=turns)


def _rater(
    file: Path, part: str, rater: str, texts: dict[tuple[str, str], Dialogue], reader: CorpusReader, imported: Imported
) -> None:
    """Add one rater's scores. The crowd's are the mean of two people (EmpatheticDialogues), or EPITOME's own levels."""
    pairs = part == "epitome"
    rubric = "epitome" if pairs else "empathic_comm"
    for row in reader.csv(file):
        with reader.accounting(row):
            raw = _PairRating.model_validate(row.value) if pairs else _DialogueRating.model_validate(row.value)
            dialogue = texts.get((part, raw.text))
            if dialogue is None:
                raise Dropped("a rating without its text")
            reader.step.kept += 1
            values = {name: value for name, value in raw.model_dump(exclude={"text"}).items() if value is not None}
            for dimension, value in values.items():
                if rater in _JUDGES:
                    fields = {"judge": _JUDGES[rater], "rubric": rubric, "dimension": dimension, "value": value}
                    about = {"dialogue_id": dialogue.id, "language": dialogue.language}
                    imported.judgements.append(Judgement.model_validate(about | fields))
                else:  # the same people have the same name as in EPITOME, so that both imports together count them once
                    annotator = "epitome" if pairs and rater == "crowd" else rater
                    imported.scores.append(human_score(dialogue, annotator, rubric, dimension, value))


# --- HealthBench's meta-evaluation ---------------------------------------------------------------------------------------


class _JudgedCriterion(RowModel):
    prompt_id: Identifier
    completion_id: Identifier
    prompt: Prompt
    completion: str
    rubric: Annotated[str, Field(min_length=1)]
    category: Name
    binary_labels: tuple[StrictBool, ...]
    anonymized_physician_ids: tuple[Identifier, ...]


def _healthbench_meta(files: list[Path], reader: CorpusReader) -> Imported:
    """Every row as a dialogue with its criterion (field `criterion`), and a score of 0 or 1 by each physician."""
    imported = Imported()
    for row in (row for file in files for row in reader.records(file)):
        with reader.accounting(row):
            raw = _JudgedCriterion.model_validate(row.value)
            if len(raw.binary_labels) != len(raw.anonymized_physician_ids):
                raise Malformed("binary_labels: not as many as anonymized_physician_ids")
            fields = {"criterion": raw.rubric, "category": raw.category}
            turns = (*turns_of(raw.prompt), Turn(role="supporter", text=raw.completion))
            id, source = digest([raw.prompt_id, raw.completion_id, raw.rubric], 16), "healthbench_meta"
            talk = Dialogue(id=id, language="en", source=source, source_id=raw.prompt_id, turns=turns, fields=fields)
            imported.dialogues.append(talk)
            votes = zip(raw.anonymized_physician_ids, raw.binary_labels, strict=True)
            imported.scores += [human_score(talk, physician, "healthbench", "score", int(met)) for physician, met in votes]
            reader.step.kept += 1
    return imported


# --- all of them ----------------------------------------------------------------------------------------------------------


_COUNTED = {"epitome": _epitome, "empathic_comm": _empathic_comm, "healthbench_meta": _healthbench_meta}
_SURVEYED = ("esconv", "esconv_failed", "esconv_multi")
CORPORA = (*_SURVEYED, *_COUNTED)


def import_corpus(name: str, place: str, build: Build, console: Console) -> Imported:
    """Dialogues and scores of a corpus (of `CORPORA`) from a local path or the hub; its rows (levels, utterances, ratings) are
    counted in steps of the build. Raises `UserError` for missing files."""
    if name in _SURVEYED:
        return _esconv(name, place, build, console)
    return read_counted((SOURCES | SCORED)[name], place, build, console, _COUNTED[name])
