"""Languages: BCP 47 codes, and a folder for each with the harness's texts.

The folder is `languages/CODE` in the current folder (your own, which takes precedence) or `configs/languages/CODE` here:

    words.yaml           names of the two sides, headings, punctuation (`Wording`)
    rubrics/NAME.yaml    texts of a rubric: dimension → label, facet, about, levels
    prompts/PACK/*       templates of a prompt pack
    floors.yaml          lines of the floor supporters, by name

Texts that a language lacks come from the language it is a variety of (pt for pt-BR), else from English; `tell` says so once.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator

from core.errors import UserError, near, say
from core.files import CONFIGS, digest, read_text
from core.settings import load_yaml

T = TypeVar("T")
ENGLISH = "en"
PAPER_LANGUAGES = (ENGLISH, "zh")
"""The languages of the papers and their corpora, whose prompts and rubrics are complete."""
NOT_REVIEWED = "not reviewed by a native clinician"
FOLDER = "languages"
_CODE = re.compile(
    r"[a-z]{2,3}(-[A-Z][a-z]{3})?(-([A-Z]{2}|[0-9]{3}))?(-([a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*(-x(-[a-z0-9]{1,8})+)?"
)
_NO_SPACES = frozenset(("zh", "yue", "ja", "th", "lo", "km", "my", "bo"))  # languages without spaces between words
_RIGHT_TO_LEFT = frozenset(
    ["ar", "he", "fa", "ur", "ps", "sd", "ug", "yi", "dv", "ckb", "Arab", "Hebr", "Thaa", "Syrc", "Nkoo", "Adlm", "Rohg"]
)
_told: set[str] = set()


class Wording(dict[str, str]):
    """The harness's words in a language, by the names that English words.yaml explains: `wording.seeker`."""

    def __getattr__(self, word: str) -> str:
        return self[word]


@cache
def canonical(code: str) -> str:
    """The code, if it is a BCP 47 code in canonical form (`de`, `pt-BR`, `zh-Hant`). Raises `ValueError` with the nearest."""
    if code in PAPER_LANGUAGES:
        return code
    names = _names()
    public, x, private = code.strip().lower().replace("_", "-").partition("-x-")
    language, *parts = public.split("-")
    canonical_code = "-".join([language, *(_spelt(part) for part in parts)]) + x + private
    if _CODE.fullmatch(canonical_code) and (language in names or len(language) == 3):
        if canonical_code == code:
            return code
        raise ValueError(f"not a language code: write {canonical_code}")
    by_name = {name.lower(): other for other, name in names.items()}
    hint = f"did you mean {by_name[language]}?" if language in by_name else near(language[:100], [*names, *by_name])
    hint = "" if hint.startswith("known") else f": {hint}"  # there are 180
    raise ValueError(f"not a language code (BCP 47, as in de, pt-BR, zh-Hant){hint}")


def _spelt(part: str) -> str:
    return part.title() if len(part) == 4 and part.isalpha() else part.upper() if len(part) == 2 else part


Language = Annotated[str, AfterValidator(canonical)]


def check_language(option: str, code: str) -> str:
    """The code in canonical form. Raises `UserError` that names the option."""
    try:
        return canonical(code)
    except ValueError as error:
        raise UserError(f"{option} {code[:100]}: {error}") from None


@cache
def _names() -> dict[str, str]:
    return dict(load_yaml(CONFIGS / "language_names.yaml", "names of languages"))


def in_order(languages: Iterable[str]) -> list[str]:
    """Each language once: those of the papers, then the others by code."""
    present = set(languages)
    return [*(code for code in PAPER_LANGUAGES if code in present), *sorted(present.difference(PAPER_LANGUAGES))]


@cache  # asked for every card and supporter
def lineage(language: str) -> tuple[str, ...]:
    """The language and the ones it is a variety of: zh-Hant-TW, zh-Hant, zh."""
    parts = language.split("-")
    return tuple("-".join(parts[:end]) for end in range(len(parts), 0, -1))


def folders(language: str) -> list[Path]:
    """The folders that may hold the language's files, in order of precedence."""
    return [place / code for code in lineage(language) for place in (Path(FOLDER), CONFIGS / FOLDER)]


def file_of(language: str, name: str) -> Path | None:
    """The language's own file of this name, if it has one."""
    return next((path for folder in folders(language) if (path := folder / name).is_file()), None)


def texts(language: str, name: str) -> Mapping[str, Any]:
    """The merged content of the language's YAML files of this name, by the precedence of `folders`."""
    return _texts(language, name, os.getcwd())  # noqa: PTH109 - a path takes ten times as long, in each of thousands of calls


@cache
def _texts(language: str, name: str, here: str) -> Mapping[str, Any]:
    merged: dict[str, Any] = {}
    for path in (path for folder in reversed(folders(language)) if (path := folder / name).is_file()):
        if not isinstance(content := load_yaml(path, "texts of a language"), dict):
            raise UserError(f"{path}: expected fields, like the file of the same name in {CONFIGS / FOLDER / 'de'}")
        merged |= content
    return merged


def words(language: str) -> Wording:
    """The language's words, in English where they are missing."""
    return _words(language, os.getcwd())  # noqa: PTH109 (every call to a model asks: Path.cwd takes four times as long)


@cache
def _words(language: str, here: str) -> Wording:
    own, english = texts(language, "words.yaml"), texts(ENGLISH, "words.yaml")
    if missing := [word for word in english if word not in own and word != "reviewed"]:
        tell(language, f"words.yaml with {', '.join(missing)}" if own else "words.yaml")
    name = name_of(language)
    merged = {**english, "name": name, "own_name": name, "reviewed": NOT_REVIEWED, **own, "counts": counts(language)}
    return Wording({word: str(text or "") for word, text in merged.items()})


def asked_in(language: str) -> Wording:
    """The words by which answers are read: prompts that fix headings do so in Chinese for Chinese, and in English otherwise."""
    return words(lineage(language)[-1] if lineage(language)[-1] in PAPER_LANGUAGES else ENGLISH)


def name_of(language: str) -> str:
    """The English name, for reports; `mul` is all languages together."""
    if language == "mul":
        return "all languages"
    return str(texts(language, "words.yaml").get("name") or _names().get(lineage(language)[-1], language))


def own_name(language: str) -> str:
    """The language's name in itself, else in English."""
    return str(texts(language, "words.yaml").get("own_name") or name_of(language))


def counts(language: str) -> Literal["words", "characters"]:
    """The unit in which the length of a text is counted."""
    usual = "characters" if _NO_SPACES.intersection(lineage(language)) else "words"
    return "characters" if texts(language, "words.yaml").get("counts", usual) == "characters" else "words"


def direction(language: str) -> Literal["ltr", "rtl"]:
    """The direction in which the language is written."""
    return "rtl" if _RIGHT_TO_LEFT.intersection(language.split("-")) else "ltr"


def cut(text: str, language: str) -> list[str]:
    """The words of a text in lower case; in a script without spaces, its characters and whole Latin words."""
    # Letters, marks, digits and joiners: a regular expression's \w would miss Hindi's vowel signs.
    spoken = groupby(text.lower(), lambda sign: unicodedata.category(sign)[0] in "LMN" or sign in "\u200c\u200d")
    runs = ["".join(run) for is_word, run in spoken if is_word]
    return runs if counts(language) == "words" else [part for run in runs for part in re.findall(r"[a-z0-9]+|.", run)]


def of(by_language: Mapping[str, T], language: str, what: str) -> T:
    """The text in the language or the one it is a variety of, else in English, else the first of all, which `tell` reports."""
    for code in lineage(language):
        if code in by_language:
            return by_language[code]
    other = ENGLISH if ENGLISH in by_language else next(iter(by_language))
    tell(language, what, other)
    return by_language[other]


def tell(language: str, what: str, other: str = ENGLISH) -> None:
    """Say, once per language, that it lacks texts and that the other language's are used instead."""
    if language not in _told:
        _told.add(language)
        if any(folder.is_dir() for folder in folders(language)):
            hint = f"no {what}: {name_of(other)} stands in; `esc-data language check {language}` lists what is missing"
        else:
            hint = f"no texts: {name_of(other)} stands in; `esc-data language new {language}` lays them out to be translated"
        say(f"{name_of(language)} ({language}) has {hint}", err=True)


def fingerprint(language: str, names: Iterable[str]) -> str:
    """A hash of the language's own files of these names, or in folders of these names; "" if it has none."""
    contents: dict[str, str] = {}
    for folder in reversed(folders(language)):
        for name in names:
            paths = [folder / name] if (folder / name).is_file() else sorted((folder / name).rglob("*"))
            contents |= {path.relative_to(folder).as_posix(): read_text(path, "text") for path in paths if path.is_file()}
    return digest(sorted(contents.items()), 16) if contents else ""
