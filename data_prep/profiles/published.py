"""Published profiles of seekers.

SAGE (Sentient Agent as a Judge): its 100 Chinese seeker profiles and its simulated dialogues, in their published form.

`simulator_profile*.jsonl` holds one profile per line: {id, player, scene, main_cha, cha_group, task, first_talk}. `player` is a
persona under eight headings (name, age, gender, occupation, hobbies, habits, style and manner of speaking), `scene` the
background followed by how the person reacts to replies, `task` the hidden wish, `cha_group` character traits.
`*_result.jsonl` holds one dialogue per line with the same id, player and scene, and {topic, emo_point, history}; `history` has
{role: user|assistant, content}, and for the user the simulator's thoughts and its emotion from 0 to 100.
`first_talk`, the given opening of the user, is the first turn of the dialogues and no part of a profile.

PersonaMem-v2 (Jiang et al. 2025), from which EmoHarbor's English profiles can be built: synthetic personas, English. Its
generator writes one file per persona, `interactions_*_persona<n>.json`: an object with one key, the persona's id. Fields that
the generating model added, which differ between personas, conversations about preferences, and invented identity numbers
(`sensitive_information`) are not read. `therapy_background` lists what the persona has been through; each sentence gives a
profile. A persona does not say what it wants from a talk or how it reacts, so goals and script stay empty.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BeforeValidator, Field, ValidationError

from core.errors import UserError
from core.files import CONFIGS, check_unique, explain, first_object, read_json, read_jsonl, read_placed
from core.records import Dialogue, Number, Part, Turn, Whole, dialogue_id
from core.rows import RowModel
from core.settings import load_yaml
from data_prep.cards import headed
from data_prep.profiles.record import Counselling, Demographics, Preferences, Profile

SAGE = "sage"
_PROFILE_FILES, _RESULT = "simulator_profile*.jsonl", "_result.jsonl"
_WORDS = load_yaml(CONFIGS / "profiles" / "sage.yaml", "words of SAGE's profiles")
# Where a scene turns from what happened to how the person will react; a model wrote the headings, so they vary.
_REACTIONS = re.compile(r"^[^\n。，]{0,16}(?:不同[^\n。，]{0,14}|可能的)反应|^[^\n。]{0,16}情绪反应可能", re.M)
_HIDDEN = re.compile(r"\n#+\s*隐藏主题\s*[:：]\s*\n\**[^\n]*\s*$")


class _SageRow(RowModel):
    id: Part
    player: str
    scene: str
    main_cha: str = ""
    cha_group: tuple[str, ...] = ()
    task: str


class _Thoughts(RowModel):
    activity: str | None = None
    analyse: str | None = None
    TargetCompletion: str | None = None


class _SageTurn(RowModel):
    role: Literal["user", "assistant"]
    content: str
    emotion: Annotated[Annotated[Number, Field(ge=0, le=100)] | None, Field(alias="emotion-point")] = None
    planning: _Thoughts | None = None


class _SageResult(RowModel):
    id: Part
    topic: str
    history: Annotated[tuple[_SageTurn, ...], Field(min_length=1)]


def is_sage(path: Path) -> bool:
    """Whether a file's first line is a row of SAGE's profile file; False for one that is not JSON."""
    return {"player", "scene", "task"} <= first_object(path, "profile file").keys()


def sage_profiles(path: Path, topics: dict[str, str] | None = None) -> list[Profile]:
    """SAGE's profiles. `topics` ({id: topic}, from a file of dialogues) give each its kind of problem; without them it is null.
    Raises `UserError` with file, line and field, also for a persona without one of its headings."""
    profiles = []
    for where, row in read_placed(path, _SageRow, "SAGE profile file"):
        scenario = _WORDS["scenarios"].get((topics or {}).get(row.id, "").partition("-")[0])
        try:
            profiles.append(_profile(row, scenario))
        except ValueError as error:
            raise UserError(f"{where}: {explain(error)}") from None
    return profiles


def _profile(row: _SageRow, scenario: str | None) -> Profile:
    parts = headed(row.player, {key: (heading,) for key, heading in _WORDS["headings"].items()})
    if (age := re.match(r"\d{1,9}", parts["age"])) is None:  # int() has a limit of digits
        raise ValueError(f"player: 年龄: no number in {parts['age'][:20]!r}")
    scene = _HIDDEN.sub("", row.scene)
    reactions = _REACTIONS.search(scene)
    end = reactions.start() if reactions else len(scene)
    return Profile(
        id=_profile_id(row.id),
        language="zh",
        demographics=Demographics(age=int(age[0]), gender=parts["gender"], occupation=parts["occupation"], name=parts["name"]),
        preferences=Preferences(
            traits=tuple(filter(None, (row.main_cha, *row.cha_group))),
            habits=_lines(parts["habits"]),
            hobbies=_lines(parts["hobbies"]),
            speech_style=" ".join((*_lines(parts["style"]), *_lines(parts["manner"]))),
        ),
        counselling=Counselling(problem=scene[:end].strip(), scenario=scenario, goals=(row.task,)),
        scenario=scene[end:].strip(),
        source=SAGE,
        source_id=row.id,
    )


def _lines(text: str) -> tuple[str, ...]:
    lines = (re.sub(r"^\s*(?:\d+[.、．]|[-*•])?\s*", "", line).strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def _profile_id(source_id: str) -> str:
    return f"{SAGE}-{source_id}"


def find_sage(place: Path) -> tuple[Path, dict[str, Path]]:
    """The profile file in a folder (or the file given) and the dialogue files beside it, by supporter. Raises `UserError` for a
    place without a profile file, or with more than one."""
    if place.is_file():
        return place, {}
    files = sorted(place.glob(_PROFILE_FILES))
    if len(files) != 1:
        raise UserError(f"{place}: {len(files)} files {_PROFILE_FILES}, expected one: give SAGE's folder or its profile file")
    results = sorted(place.glob(f"*{_RESULT}"))
    return files[0], {path.name.removesuffix(_RESULT): path for path in results}


def sage_topics(path: Path) -> dict[str, str]:
    """{profile id in SAGE: topic} of a file of dialogues."""
    return {row.id: row.topic for row in read_jsonl(path, _SageResult, "SAGE dialogue file")}


def sage_dialogues(path: Path, supporter: str) -> list[Dialogue]:
    """SAGE's dialogues with one supporter, begun by the seeker, whose state is the simulator's thoughts and emotion."""
    dialogues = [
        Dialogue(
            id=dialogue_id(SAGE, _profile_id(row.id), supporter, SAGE, 0),
            language="zh",
            framework=SAGE,
            source=SAGE,
            source_id=row.id,
            profile_id=_profile_id(row.id),
            supporter=supporter,
            simulator=SAGE,
            turns=tuple(map(_turn, row.history)),
            termination="seeker_ended" if row.history[-1].role == "user" else "max_turns",
        )
        for row in read_jsonl(path, _SageResult, "SAGE dialogue file")
    ]
    check_unique(path, (dialogue.id for dialogue in dialogues), "dialogue ids")
    return dialogues


def _turn(entry: _SageTurn) -> Turn:
    """A turn whose state is the simulator's view of the reply before (activity, impression, whether its wish was met) and its
    emotion from 0 to 100; its plan for its own words is left out."""
    planning = entry.planning or _Thoughts()
    parts = (planning.activity, planning.analyse, planning.TargetCompletion)
    # Without the end of a heading that was cut off, "心理活动]".
    thoughts = [re.sub(r"^[^\n\[\]]{1,16}\]\s*", "", part or "").strip() for part in parts]
    text = "\n".join(thought for thought in thoughts if thought)
    state: dict[str, Any] = {"text": text} if text else {}
    if entry.emotion is not None:
        state["emotion_point"] = entry.emotion
    return Turn(role="seeker" if entry.role == "user" else "supporter", text=entry.content, state=state or None)


# --- PersonaMem-v2 ----------------------------------------------------------------------------------------------------------

PERSONAMEM = "personamem"
_FILES = "interactions_*persona*.json"


def _texts(value: Any) -> Any:
    """The texts of a list; empty where the generating model chose another form for the field."""
    return [text.strip() for text in value if isinstance(text, str) and text.strip()] if isinstance(value, list) else []


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class _Persona(RowModel):
    name: str = Field(default="", validation_alias=AliasPath("name", "first"))
    age: Annotated[Whole, Field(ge=6, le=110)] | None = None
    gender: str = ""
    maritalStatus: str = ""
    nationality: str = Field(default="", validation_alias=AliasPath("location", "country"))
    occupation: str = Field(default="", validation_alias=AliasPath("occupation", "title"))
    interests: Texts = ()
    personalityTraits: Texts = ()
    stereotypical_preferences: Texts = ()
    anti_stereotypical_preferences: Texts = ()
    therapy_background: Annotated[Texts, Field(min_length=1)]


def find_personas(place: Path) -> list[Path]:
    """The persona files in a folder (or the file given). Raises `UserError` where there is none."""
    if place.is_file():
        return [place]
    files = sorted(place.rglob(_FILES))
    if not files:
        raise UserError(
            f"{place}: no files {_FILES}: give PersonaMem-v2's folder of personas (data/raw_data), or one of its files"
        )
    return files


def personamem_profiles(file: Path) -> list[Profile]:
    """A persona's profiles. Raises `UserError` with file and field."""
    value = read_json(file, "persona file")
    if not isinstance(value, dict) or not value:
        raise UserError(f"{file}: expected an object whose key is the persona's id")
    profiles = []
    for key, raw in value.items():
        try:
            persona = _Persona.model_validate(raw)
            demographics = Demographics(
                age=persona.age,
                gender=persona.gender.lower(),
                occupation=persona.occupation,
                name=persona.name,
                nationality=persona.nationality,
                relationship=persona.maritalStatus.lower(),
            )
            preferences = Preferences(
                traits=persona.personalityTraits,
                habits=persona.stereotypical_preferences + persona.anti_stereotypical_preferences,
                hobbies=persona.interests,
            )
            for number, background in enumerate(persona.therapy_background, start=1):
                origin = {
                    "id": f"{PERSONAMEM}-{key}-{number}",
                    "source": PERSONAMEM,
                    "source_id": f"{key}-{number}",
                    "language": "en",
                }
                person = {"demographics": demographics, "preferences": preferences}
                profiles.append(Profile.model_validate(origin | person | {"counselling": Counselling(problem=background)}))
        except ValidationError as error:
            raise UserError(f"{file}: {key}: {explain(error)}") from None
    return profiles
