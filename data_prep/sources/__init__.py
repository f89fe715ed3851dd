"""Corpora by name: `read_source` reads one in its published file format into records; `draw` takes a quota.

The user's own corpus (`generic`) is JSON lines, of which the first names it and each further one is a dialogue:

    {"source": "helpline", "licence": "CC BY 4.0", "about": "chats of a student helpline, anonymised"}
    {"id": "1", "language": "en", "turns": [{"role": "seeker", "text": "…"}, {"role": "supporter", "text": "…"}]}

With `"kind": "role_play"` in the first line the dialogues are general role play: `character`, `persona`, `scene` and
`lines` of {name, text}. `--source generic=FILE` reads it; elsewhere the corpus has the name in its first line.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from rich.console import Console

from core.errors import UserError, near, need_modules, say
from core.files import CONFIGS, check_unique, explain, first_object, json_line, numbered_lines
from core.ledger import Build, BuildStep
from core.options import name_and_value
from core.records import Language, Role, SupportDialogue
from core.rows import MALFORMED, CorpusFacts, CorpusItem, CorpusReader, CorpusRow, ReadCorpus, RowModel, Source
from core.settings import Settings, read_yaml
from data_prep.sources.play import play
from data_prep.sources.posts import post
from data_prep.sources.support import support_dialogue

GENERIC = "generic"
_FIRST_LINE = 'the first line names the corpus: {"source": "my_corpus", "licence": "CC BY 4.0"}'

Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Id = Annotated[str, Field(min_length=1, max_length=100)]


class _Form(RowModel):
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


def own_header(path: Path) -> Header:
    """The first line of a corpus file. Raises `UserError` with line and field for a file without one."""
    number, line = next(numbered_lines(path, "corpus file"), (1, b""))
    try:
        return Header.model_validate(json_line(line) if number == 1 else None)
    except (UserError, ValidationError) as error:
        raise UserError(f"{path}:1: {explain(error)}; {_FIRST_LINE}") from None


def is_generic(path: Path) -> bool:
    """Whether a JSONL file begins like a corpus in this form: with a licence."""
    return "licence" in first_object(path, "corpus file")


def own_dialogues(path: Path, reader: CorpusReader) -> Iterator[tuple[CorpusRow, Support | Play]]:
    """Every dialogue of a file, validated and otherwise unchanged."""
    form: type[Support | Play] = Support if own_header(path).kind == "support" else Play
    for row in reader.jsonl(path, first=2):
        with reader.accounting(row):
            yield row, form.model_validate(row.value)


def read_own(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """One `SupportDialogue` or `RolePlay` per line; a `Post` if only the seeker speaks."""
    for file in files:
        source = own_header(file).source
        for row, dialogue in own_dialogues(file, reader):
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


GROUP = "esc_eval.corpora"  # entry points of other packages; each names a `core.rows.Source`


class CorpusList(Settings):
    """The file configs/data/corpora.yaml: the corpora, and those of which only the scores are read."""

    corpora: dict[str, CorpusFacts]
    scored: dict[str, CorpusFacts]


def _reader_at(place: str) -> ReadCorpus:
    """The reader at `module:attribute`, imported when it is first called."""
    module, _, attribute = place.partition(":")

    def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
        try:
            read_corpus: ReadCorpus = getattr(import_module(f"{__package__}.{module}"), attribute)
        except (ImportError, AttributeError) as error:
            raise UserError(f"configs/data/corpora.yaml: no reader {place} in data_prep/sources: {error}") from None
        return read_corpus(files, reader)

    return read


def installed() -> dict[str, Source]:
    """The corpora from other packages; one that cannot be loaded is left out with a warning."""
    sources = {}
    for entry in entry_points(group=GROUP):
        try:
            sources[entry.name] = Source.model_validate(entry.load()).model_copy(update={"name": entry.name})
        except Exception as error:  # importing another package may raise anything
            package = f" (package {entry.dist.name})" if entry.dist else ""
            say(f"warning: corpus {entry.name}{package} cannot be loaded: {error!r}; it is left out", err=True)
    return sources


_LIST = read_yaml(CONFIGS / "data" / "corpora.yaml", CorpusList, "list of corpora")
SOURCES = installed() | {  # other packages cannot replace ours
    name: Source(name=name, read=_reader_at(facts.reader) if facts.reader else read_own, **facts.model_dump())
    for name, facts in _LIST.corpora.items()
}
SCORED = {name: Source(name=name, read=lambda *_: iter(()), **facts.model_dump()) for name, facts in _LIST.scored.items()}
_SHOWN = 5  # malformed rows printed one by one; others are counted


def source_named(name: str) -> Source:
    """The corpus of that name; `UserError` with near names otherwise."""
    if name not in SOURCES:
        raise UserError(f"unknown corpus {name!r}: {near(name, SOURCES)} (`python -m data_prep fetch` lists them)")
    return SOURCES[name]


def source_at(name: str, place: str) -> Source:
    """The corpus that `parse_places` calls `name`: one of ours, or the user's own in the file `place`."""
    if name in SOURCES:
        return SOURCES[name]
    path = Path(place).expanduser()
    stated = own_header(path)
    facts = {"name": stated.source, "about": stated.about, "kind": stated.kind, "where": path.name, "licence": stated.licence}
    return SOURCES[GENERIC].model_copy(update=facts)


def parse_places(options: Sequence[str], option: str = "--source") -> dict[str, str]:
    """`name=place` options as a mapping, in their order; the user's own corpus (`generic=FILE`) has the name in its file.
    Raises `UserError` for a malformed, unknown or repeated option."""
    places: dict[str, str] = {}
    for text in options:
        form = "NAME=PATH, NAME=hf:OWNER/DATASET for the hub, or generic=FILE for your own"
        name, place = name_and_value(option, text, form)
        if name == GENERIC:
            name = own_header(Path(place).expanduser()).source
            if name in SOURCES:
                raise UserError(f"{place}:1: source: {name} is the name of a corpus with a format of its own: choose another")
        else:
            source_named(name)
        if name in places:
            raise UserError(f"{option}: {name} is given twice")
        places[name] = place
    return places


def corpus_files(source: Source, place: str) -> list[Path]:
    """The corpus's files in a local folder (or the given file), or in a dataset on the hub (`hf:owner/name`). Raises
    `UserError`, which says what the corpus is and where to get it, if there are none."""
    folder = Path(place).expanduser()
    if hub := re.fullmatch(r"hf:([\w.-]+/[\w.-]+)", place):
        need_modules("huggingface_hub", purpose=f"corpus {source.name} from {place}")
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(hub[1], repo_type="dataset", allow_patterns=[*source.files, *source.beside]))
        except Exception as error:  # the hub's errors have no common base
            raise UserError(f"corpus {source.name}: {place} cannot be fetched: {type(error).__name__}: {error}") from None
    get = f"{source.name} is {source.about}. Get it from {source.where}; licence as stated there: {source.licence}"
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise UserError(f"corpus {source.name}: no such folder or file: {place}. {get}")
    matches = {path for pattern in source.files for path in folder.glob(pattern) if path.is_file()}
    files = sorted(path for path in matches if path.name != "manifest.json")  # `fetch` writes it beside a corpus
    if not files:
        raise UserError(f"corpus {source.name}: {place} holds none of {', '.join(source.files)}. {get}")
    return files


T = TypeVar("T")


def read_counted(
    source: Source,
    place: str,
    build: Build,
    console: Console,
    read: Callable[[list[Path], CorpusReader], T],
    strict: bool = False,
) -> T:
    """The result of `read` on a corpus's files, which become inputs of the build, and their rows its step `read NAME`.
    Malformed rows are left out and reported with file and line; with `strict` the first one raises `UserError`."""
    files = corpus_files(source, place)
    reader = CorpusReader(build.step(f"read {source.name}"), strict)
    with console.status(f"reading {source.name}"):
        result = read(files, reader)
        reader.step.check()
        folders = sorted({file.parent for file in files})
        build.input(*files, *(path for folder in folders for name in source.beside if (path := folder / name).is_file()))
    more = [f"{len(reader.problems) - _SHOWN} more malformed rows of {source.name}"] if len(reader.problems) > _SHOWN else []
    for problem in (*reader.problems[:_SHOWN], *more):
        console.print(f"left out: {problem}", soft_wrap=True)
    if not reader.step.taken:
        raise UserError(f"corpus {source.name}: {', '.join(map(str, files[:3]))} holds no rows")
    if reader.step.dropped[MALFORMED] == reader.step.taken:
        raise UserError(f"corpus {source.name}: no row is in its format, first {reader.problems[0]}")
    return result


def read_source(name: str, place: str, build: Build, console: Console, strict: bool = False) -> list[CorpusItem]:
    """All items of a corpus by name; see `read_counted`. Raises `UserError` for repeated ids."""
    source = source_at(name, place)

    def read(files: list[Path], reader: CorpusReader) -> list[CorpusItem]:
        items = []
        for item in source.read(files, reader):
            stated = item.dialogue.source if isinstance(item, SupportDialogue) else item.source
            if stated != source.name:
                raise UserError(f"corpus {source.name}: its reader calls the source of {item.id} {stated!r}")
            items.append(item)
            reader.step.kept += 1
        return items

    items = read_counted(source, place, build, console, read, strict)
    check_unique(place, (item.id for item in items), f"ids in {name}")
    return items


class Quotas(BaseModel):
    """How many items to draw of each corpus (configs/data/table5.yaml)."""

    quotas: dict[str, Annotated[int, Field(ge=0)]]


def wanted_items(names: list[str], limit: str | None) -> dict[str, int | None]:
    """How many items to draw from each corpus, from a number or a quota file; None takes all."""
    if limit is None or limit.isdecimal():
        return dict.fromkeys(names, None if limit is None else int(limit))
    by_corpus = read_yaml(Path(limit), Quotas, "quota file").quotas
    for name in names:
        if name not in by_corpus:
            raise UserError(f"{limit}: no quota for {name}: {near(name, by_corpus)} (or give --limit a number)")
    return dict(by_corpus)


def draw(items: list[Any], wanted: int | None, seed: int, name: str, step: BuildStep) -> list[Any]:
    """A seeded sample in the corpus's order; all items if there are too few."""
    count = len(items) if wanted is None else min(wanted, len(items))
    places = random.Random(f"{seed}/cards/{name}").sample(range(len(items)), count)
    chosen = {items[place].id for place in places}
    return step.sieve(items, lambda item: None if item.id in chosen else "beyond the quota")
