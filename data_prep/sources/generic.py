"""The user's own corpus: JSON lines, of which the first names the corpus and each further one is a dialogue.

    {"source": "helpline", "licence": "CC BY 4.0", "about": "chats of a student helpline, anonymised"}
    {"id": "1", "language": "en", "turns": [{"role": "seeker", "text": "…"}, {"role": "supporter", "text": "…"}]}

With `"kind": "role_play"` in the first line the dialogues are general role play: `character`, `persona`, `scene` and
`lines` of {name, text}. `--source generic=FILE` reads it; elsewhere the corpus has the name in its first line.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from core.errors import UserError
from core.files import explain, first_object, json_line, numbered_lines
from core.records import Language, Role
from core.rows import CorpusItem, CorpusReader, CorpusRow
from data_prep.sources.play import play
from data_prep.sources.posts import post
from data_prep.sources.support import support_dialogue

NAME = "generic"
_FIRST_LINE = 'the first line names the corpus: {"source": "my_corpus", "licence": "CC BY 4.0"}'

Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Id = Annotated[str, Field(min_length=1, max_length=100)]


class _Form(BaseModel):
    """Unknown fields are errors here: in a published corpus they may be noise, in the user's own a misspelling loses data."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Header(_Form):
    """The first line: the corpus's name (its records, quotas and the data card use it), licence, kind, and what it is."""

    source: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]
    licence: Said
    kind: Literal["support", "role_play"] = "support"
    about: Said = "own corpus"


class _Turn(_Form):
    role: Role
    text: str


class Support(_Form):
    """A dialogue of a seeker and a supporter, and further facts about the seeker."""

    id: Id
    language: Language
    turns: Annotated[list[_Turn], Field(min_length=1)]
    situation: str = ""
    problem: str = ""
    emotion: str = ""
    age: str = ""
    gender: str = ""
    occupation: str = ""

    @property
    def said(self) -> list[tuple[Role, str]]:
        return [(turn.role, turn.text) for turn in self.turns]


class _Line(_Form):
    name: Said
    text: str


class Play(_Form):
    """A role-play dialogue; lines under the name of `character` are the played character's."""

    id: Id
    language: Language
    character: Said
    lines: Annotated[list[_Line], Field(min_length=1)]
    persona: str = ""
    scene: str = ""

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(line.name, line.text) for line in self.lines]


def header(path: Path) -> Header:
    """The first line of a corpus file. Raises `UserError` with line and field for a file without one."""
    number, line = next(numbered_lines(path, "corpus file"), (1, b""))
    try:
        return Header.model_validate(json_line(line) if number == 1 else None)
    except (UserError, ValidationError) as error:
        raise UserError(f"{path}:1: {explain(error)}; {_FIRST_LINE}") from None


def is_generic(path: Path) -> bool:
    """Whether a JSONL file begins like a corpus in this form: with a licence."""
    return "licence" in first_object(path, "corpus file")


def dialogues(path: Path, reader: CorpusReader) -> Iterator[tuple[CorpusRow, Support | Play]]:
    """Every dialogue of a file, validated and otherwise unchanged."""
    form: type[Support | Play] = Support if header(path).kind == "support" else Play
    for row in reader.jsonl(path, first=2):
        with reader.accounting(row):
            yield row, form.model_validate(row.value)


def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """One `SupportDialogue` or `RolePlay` per line; a `Post` if only the seeker speaks."""
    for file in files:
        source = header(file).source
        for row, dialogue in dialogues(file, reader):
            place, lines = (source, dialogue.id, dialogue.language), dialogue.said
            with reader.accounting(row):
                if isinstance(dialogue, Play):
                    persona, scene = dialogue.persona.strip(), dialogue.scene.strip()
                    yield play(*place, dialogue.character, lines, persona=persona, scene=scene)
                elif all(role == "seeker" for role, _ in lines):
                    yield post(*place, "\n".join(text for _, text in lines))
                else:
                    about = dialogue.model_dump(exclude={"id", "language", "turns"})
                    yield support_dialogue(*place, dialogue.said, **about)
