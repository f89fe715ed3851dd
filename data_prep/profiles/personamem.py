"""PersonaMem-v2 (Jiang et al. 2025), from which EmoHarbor's English profiles can be built: synthetic personas, English.

Its generator writes one file per persona, `interactions_*_persona<n>.json`: an object with one key, the persona's id. Fields
that the generating model added, which differ between personas, conversations about preferences, and invented identity numbers
(`sensitive_information`) are not read. `therapy_background` lists what the persona has been through; each sentence gives a
profile. A persona does not say what it wants from a talk or how it reacts, so goals and script stay empty.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasPath, BeforeValidator, Field, ValidationError

from core.errors import UserError
from core.files import explain, read_json
from core.records import Whole
from core.rows import RowModel
from data_prep.profiles.record import Counselling, Demographics, Preferences, Profile

NAME = "personamem"
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


def find(place: Path) -> list[Path]:
    """The persona files in a folder (or the file given). Raises `UserError` where there is none."""
    if place.is_file():
        return [place]
    files = sorted(place.rglob(_FILES))
    if not files:
        raise UserError(
            f"{place}: no files {_FILES}: give PersonaMem-v2's folder of personas (data/raw_data), or one of its files"
        )
    return files


def load_profiles(file: Path) -> list[Profile]:
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
                origin = {"id": f"{NAME}-{key}-{number}", "source": NAME, "source_id": f"{key}-{number}", "language": "en"}
                person = {"demographics": demographics, "preferences": preferences}
                profiles.append(Profile.model_validate(origin | person | {"counselling": Counselling(problem=background)}))
        except ValidationError as error:
            raise UserError(f"{file}: {key}: {explain(error)}") from None
    return profiles
