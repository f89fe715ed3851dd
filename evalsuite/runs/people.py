"""The people who are played in a run folder: role cards or profiles, one file for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from core.errors import UserError
from core.files import check_unique, digest, read_jsonl, write_jsonl
from core.languages import ENGLISH, PAPER_LANGUAGES, in_order
from core.records import Dialogue, Language, RoleCard
from data_prep.cards import bundled_cards, load_cards
from data_prep.played import Played
from data_prep.profiles import Profile, bundled_profiles, load_profiles

RECORDS: dict[str, type[Played]] = {"cards.jsonl": RoleCard, "profiles.jsonl": Profile}
PEOPLE = tuple(RECORDS)
_READERS: dict[type, tuple[str, Callable[[Language], Path], Callable[[Path, Language | None], list[Any]]]] = {
    RoleCard: ("card", bundled_cards, load_cards),
    Profile: ("profile", bundled_profiles, lambda path, _: load_profiles(path)),
}
P = TypeVar("P", bound=Played)


def file_of(person: Played) -> str:
    """A person's file in the run folder."""
    return next(name for name, record in RECORDS.items() if isinstance(person, record))


def load_people(
    record: type[P],
    names: Sequence[str],
    languages: Sequence[Language],
    limit: int | None,
    shuffled: bool,
    read: dict[tuple[Path, ...], list[Any]],
) -> list[P]:
    """The people of these files (or `bundled`), language by language, at most `limit` of each: in file order, or `shuffled` by
    a hash of their ids. `read` keeps what was read. Raises `UserError` for two of one id, and where nobody is left."""
    noun, bundled, _ = _READERS[record]
    paths: list[Path] = []
    for name in names:
        if name == "bundled" and (lacking := [language for language in languages if not bundled(language).is_file()]):
            files = bundled(ENGLISH).parent.glob(f"{noun}s_*.jsonl")
            have = ", ".join(in_order(path.stem.rpartition("_")[2] for path in files))
            raise UserError(f"no bundled {noun}s in {lacking[0]} (there are {have}): give a file of yours with --{noun}s")
        paths += [bundled(language) for language in languages] if name == "bundled" else [Path(name)]
    where = ", ".join(map(str, paths))
    only = languages[0] if len(languages) == 1 else None  # that of people who name none
    people = _read(record, paths, only, read)
    if shuffled:
        people = sorted(people, key=lambda person: digest(person.id))
    chosen: list[P] = []
    for language in languages:
        chosen += [person for person in people if person.language == language][:limit]
    if not chosen:
        have = ", ".join(sorted({person.language for person in people}))
        wanted = ", ".join(languages)
        raise UserError(f"{where}: no {noun} in {wanted} (the file has {have}): give --language, or languages in the config")
    return chosen


def _read(
    record: type[Any], paths: Sequence[Path], only: Language | None, read: dict[tuple[Path, ...], list[Any]]
) -> list[Any]:
    noun, _, load = _READERS[record]
    if (people := read.get(tuple(paths))) is None:
        people = read[tuple(paths)] = [person for path in paths for person in load(path, only)]
        check_unique(", ".join(map(str, paths)), (person.id for person in people), f"{noun} ids")
    return people


def languages_with(
    config: Sequence[Language],
    people: Mapping[type[Any], Sequence[str]],
    dialogues: Iterable[Dialogue],
    read: dict[tuple[Path, ...], list[Any]],
) -> list[Language]:
    """The languages of a run on files of the user's, of people by their record or of dialogues: the config's, of which English
    and Chinese choose; where the files hold others, those that they hold. `read` keeps who was read, for `load_people`."""
    found = [*config] if any("bundled" in names for names in people.values()) else []
    only = config[0] if len(config) == 1 else None
    for record, names in people.items():
        if paths := [Path(name) for name in names if name != "bundled"]:
            found += [person.language for person in _read(record, paths, only, read)]
    found += [dialogue.language for dialogue in dialogues]
    others = {*found} - {*config, *PAPER_LANGUAGES}
    return in_order(others | ({*found} & {*config})) if others else list(config)


def read_people(folder: Path) -> list[Played]:
    """Everybody in a run folder; empty if its dialogues were given."""
    return [
        person
        for name, record in RECORDS.items()
        if (folder / name).exists()
        for person in read_jsonl(folder / name, record, name.removesuffix(".jsonl"), allow_empty=True)
    ]


def write_people(folder: Path, people: Sequence[Played]) -> None:
    """Write the people, all of one kind, into the file of their kind."""
    if people:
        write_jsonl(folder / file_of(people[0]), people)
