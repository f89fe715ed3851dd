"""The people of a run folder: role cards or profiles, with a file for each kind."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from core.errors import UserError
from core.files import digest, read_jsonl, write_jsonl
from core.languages import ENGLISH, PAPER_LANGUAGES, in_order
from core.people_tables import shortened
from core.records import Dialogue, Language, RoleCard
from data_prep.cards import bundled_cards, load_cards
from data_prep.profiles import Played, Profile, bundled_profiles, load_profiles

RECORDS: dict[str, type[Played]] = {"cards.jsonl": RoleCard, "profiles.jsonl": Profile}
PEOPLE = tuple(RECORDS)
_READERS: dict[type, tuple[str, Callable[[Language], Path], Callable[[Path, Language | None], list[Any]]]] = {
    RoleCard: ("card", bundled_cards, load_cards),
    Profile: ("profile", bundled_profiles, lambda path, _: load_profiles(path)),
}
P = TypeVar("P", bound=Played)


def file_of(person: Played) -> str:
    """The file of a run folder that a person is in."""
    return next(name for name, record in RECORDS.items() if isinstance(person, record))


def load_people(
    record: type[P],
    names: Sequence[str],
    languages: Sequence[Language],
    limit: int | None,
    shuffled: bool,
    read: dict[tuple[Path, ...], list[Any]],
) -> list[P]:
    """The people of these files (or `bundled`), language by language, at most `limit` per language: in file order, or
    `shuffled` by a hash of their ids. `read` caches files. Raises `UserError` for equal ids, and if nobody is left."""
    noun, bundled, _ = _READERS[record]
    paths: list[Path] = []
    for name in names:
        if name == "bundled" and (lacking := [language for language in languages if not bundled(language).is_file()]):
            files = bundled(ENGLISH).parent.glob(f"{noun}s_*.jsonl")
            available = ", ".join(in_order(path.stem.rpartition("_")[2] for path in files))
            raise UserError(f"no bundled {noun}s in {lacking[0]} (there are {available}): give a file of yours with --{noun}s")
        paths += [bundled(language) for language in languages] if name == "bundled" else [Path(name)]
    people = _read(record, paths, languages[0] if len(languages) == 1 else None, read)
    if shuffled:
        people = sorted(people, key=lambda person: digest(person.id))
    chosen: list[P] = []
    for language in languages:
        chosen += [person for person in people if person.language == language][:limit]
    if not chosen:
        where, wanted = ", ".join(map(str, paths)), ", ".join(languages)
        present = ", ".join(sorted({person.language for person in people}))
        raise UserError(f"{where}: no {noun} in {wanted} (the file has {present}): give --language, or languages in the config")
    return chosen


def _read(
    record: type[Any], paths: Sequence[Path], default: Language | None, read: dict[tuple[Path, ...], list[Any]]
) -> list[Any]:
    """People of files, in the `default` language if they state none."""
    noun, _, load = _READERS[record]
    if (people := read.get(tuple(paths))) is None:
        people, places = read.setdefault(tuple(paths), []), dict[str, Path]()
        for path in paths:
            for person in load(path, default):
                if first := places.get(person.id):
                    text = shortened(getattr(person, "problem", person.id))
                    raise UserError(f"{path}: {noun} {person.id} is also in {first}: leave one out ({text})")
                places[person.id] = path
                people.append(person)
    return people


def languages_with(
    config: Sequence[Language],
    people: Mapping[type[Any], Sequence[str]],
    dialogues: Iterable[Dialogue],
    read: dict[tuple[Path, ...], list[Any]],
) -> list[Language]:
    """The languages of a run on the user's files of people (by record type) or dialogues: those of the config, or if the files
    have others than English and Chinese, these and the config's that the files have. `read` caches files for `load_people`."""
    present = {dialogue.language for dialogue in dialogues}
    if any("bundled" in names for names in people.values()):
        present |= {*config}
    default = config[0] if len(config) == 1 else None
    for record, names in people.items():
        if paths := [Path(name) for name in names if name != "bundled"]:
            present |= {person.language for person in _read(record, paths, default, read)}
    others = present - {*config, *PAPER_LANGUAGES}
    return in_order(others | (present & {*config})) if others else list(config)


def read_people(folder: Path) -> list[Played]:
    """All people of a run folder; none if its dialogues were given."""
    people: list[Played] = []
    for name, record in RECORDS.items():
        if (folder / name).exists():
            people += read_jsonl(folder / name, record, name.removesuffix(".jsonl"), allow_empty=True)
    return people


def write_people(folder: Path, people: Sequence[Played]) -> None:
    """Write people, all of one kind, into the file of their kind."""
    if people:
        write_jsonl(folder / file_of(people[0]), people)
