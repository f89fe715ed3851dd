"""Prompt packs: jinja2 text templates in configs/prompts/PACK/LANGUAGE (or a user's own folder of that shape).

Languages extend packs in their own folders (`core.languages`). Templates that a language lacks are taken from English.

At the end are both sides' prompts in a dialogue, and each side's view of it. Simulators play by the prompts of their training.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError, pass_eval_context
from jinja2.filters import do_replace
from jinja2.loaders import ChoiceLoader, FileSystemLoader
from jinja2.nodes import EvalContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.errors import UserError, near
from core.files import CONFIGS, digest, read_object, read_text, sha256_file
from core.languages import ENGLISH, FOLDER, folders, lineage, name_of, tell
from core.records import Language, Message, Role, RoleCard, RolePlay, Turn

# Errors that a template's use of its values can raise (SyntaxError: from 20 nested loops, in the Python that Jinja makes).
_MISTAKES = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
_LARGEST = 1_000_000  # bytes of a pack's file
PUBLISHED = "published.json"  # in an imported pack: file → sha256 of the published text
# Markers around data in packs: `| replace("[END TRANSCRIPT]", …)` finds them in any case or spacing.
_MARKER = re.compile(r"\[(BEGIN|END) ([A-Z]+)(\]?)")
_GAP = r"(?:[^\w\[\]［］【】]|_){0,20}"


class PromptPack:
    """The prompts of a framework in every language. Packs are data: templates are sandboxed, and links stay inside."""

    def __init__(self, name: str) -> None:
        self.folder = _folder_of(name)
        # os.path.isdir is false for a name that is too long; Path.is_dir raises
        if name in (".", "..") or not os.path.isdir(self.folder):  # noqa: PTH112
            packs = (p.name for p in (CONFIGS / "prompts").iterdir() if p.is_dir())
            raise UserError(f"unknown prompt pack {name[:100]!r}: {near(name[:100], packs)}")
        _check_files(self.folder)
        self._environments: dict[str, ImmutableSandboxedEnvironment] = {}
        self._values: dict[str, object] = {}

    def places(self, language: Language) -> list[Path]:
        """The folders with templates in the language, in order of precedence, without the English ones for other languages."""
        own = [self.folder / code for code in lineage(language)]
        added = [folder / "prompts" / self.folder.name for folder in folders(language)]
        return [place for place in (*own, *added) if place.is_dir()]

    def file(self, language: Language, template: str) -> Path | None:
        """The file of a template in the language; None if it has only the English one."""
        return next((path for place in self.places(language) if (path := place / template).is_file()), None)

    def of_dialogues(self, paper: bool) -> list[str]:
        """The English files that are not for judges; those of the published procedure only with `paper`."""
        names = sorted(path.name for path in (self.folder / ENGLISH).glob("[!_]*"))
        return [name for name in names if not name.startswith("judge") and (paper or "paper" not in name)]

    def _environment(self, language: Language) -> ImmutableSandboxedEnvironment:
        if language not in self._environments:
            places = self.places(language)
            for place in places:
                _check_files(place)
            english = [] if language == ENGLISH else [_English(self.folder / ENGLISH, language)]
            environment = ImmutableSandboxedEnvironment(
                loader=ChoiceLoader([FileSystemLoader(places), *english]),
                undefined=StrictUndefined,
                trim_blocks=True,
                lstrip_blocks=True,
                auto_reload=False,  # a run keeps the prompts it was claimed with, and checking takes time in every call
            )
            environment.filters["replace"] = _replace
            self._environments[language] = environment
        return self._environments[language]

    def own_wording(self, languages: Iterable[Language], parts: Mapping[str, Sequence[str]]) -> list[str]:
        """The parts (name → patterns of files) that differ from the published words: all, if the pack was not imported."""
        path, codes = self.folder / PUBLISHED, list(languages)
        published = read_object(path, "a list of published files") if path.is_file() else {}

        def as_published(language: Language, patterns: Sequence[str]) -> bool:
            files = [file for pattern in patterns for file in (self.folder / language).glob(pattern)]
            return bool(files) and all(published.get(str(file.relative_to(self.folder))) == sha256_file(file) for file in files)

        return [name for name, patterns in parts.items() if not all(as_published(code, patterns) for code in codes)]

    def with_values(self, **values: object) -> PromptPack:
        """This pack with values for every template, in addition to those of each call (which take precedence)."""
        pack = copy.copy(self)
        pack._values = self._values | values
        return pack

    def render(self, language: Language, template: str, **values: object) -> str:
        """A template's text, stripped; see `text`."""
        return self.text(language, template, **values).strip()

    def text(self, language: Language, template: str, **values: object) -> str:
        """A template's whole text. Raises `UserError` that names the file if it is missing or broken."""
        try:
            return self._environment(language).get_template(template).render(**(self._values | values))
        except TemplateNotFound:
            raise self._lacking(language, template) from None
        except TemplateSyntaxError as error:
            raise UserError(f"{self._file(language, template)}:{error.lineno}: {error.message}") from None
        except UnicodeDecodeError:
            raise UserError(f"{self._file(language, template)}: not UTF-8 text") from None
        except (TemplateError, *_MISTAKES) as error:
            raise UserError(f"{self._file(language, template)}: {error or type(error).__name__}") from None

    def _file(self, language: str, template: str) -> Path:
        return self.file(language, template) or self.folder / language / template

    def _lacking(self, language: str, template: str) -> UserError:
        file = self._file(language, template)
        others = [path.name for path in file.parent.glob(f"*{file.suffix}")]
        return UserError(f"prompt pack has no file {file}" + (f": {near(template, others)}" if others else ""))

    def require(self, languages: Iterable[Language], templates: Iterable[str]) -> None:
        """Raise `UserError` for the first of these templates that the pack lacks."""
        for language in languages:
            for template in templates:
                if not (self.file(language, template) or (self.folder / ENGLISH / template).is_file()):
                    raise self._lacking(language, template)

    def fingerprint(self) -> str:
        """A hash of all files of the pack. It is part of a run's config, so that an edited prompt makes another run."""
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        return digest([[p.relative_to(self.folder).as_posix(), read_text(p, "prompt")] for p in files], 16)


def in_language(text: str, language: Language) -> str:
    """An English template for dialogues in a language: "in English" becomes "in German", and so on."""
    return re.sub(r"\bin English\b", f"in {name_of(language)}", text)


class _English(FileSystemLoader):
    def __init__(self, folder: Path, language: Language) -> None:
        super().__init__(folder)
        self._language = language

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        text, file, fresh = super().get_source(environment, template)
        tell(self._language, f"prompt {Path(self.searchpath[0]).parent.name}/{template}")
        return in_language(text, self._language), file, fresh


@pass_eval_context
def _replace(context: EvalContext, text: str, old: str, new: str, count: int | None = None) -> str:
    """Jinja's filter, except that a marker of data (`[END TRANSCRIPT]`) is found in any case or spacing."""
    if marker := _MARKER.fullmatch(old):
        begin, what, closed = marker.groups()
        end = rf"{_GAP}[\]］】]" if closed else ""
        return re.sub(rf"[\[［【]{_GAP}{begin}{_GAP}{what}{end}", lambda _: new, str(text), flags=re.I)
    return do_replace(context, text, old, new, count)


def _check_files(folder: Path) -> None:
    """Raise `UserError` for a link that leads out of the pack, a huge file, or something other than a file."""
    inside = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if not path.resolve().is_relative_to(inside):
            raise UserError(f"prompt pack {folder}: {path.relative_to(folder)} is a link that leads out of the pack: copy it")
        if not path.is_dir() and not path.is_file():
            raise UserError(f"prompt pack {folder}: {path.relative_to(folder)} is not a file")
        if path.is_file() and path.stat().st_size > _LARGEST:
            raise UserError(f"prompt pack {folder}: {path.relative_to(folder)} has more than {_LARGEST:,} bytes")


def load_pack(name: str) -> PromptPack:
    """A pack by name (configs/prompts) or by folder, compiled again if one of its files has changed (notebooks)."""
    folder = _folder_of(name)
    with suppress(OSError):  # a name that is too long; it is refused below
        files = [path for place in (folder, *Path(FOLDER).glob(f"*/prompts/{folder.name}")) for path in place.rglob("*")]
        return _loaded(name, os.getcwd(), tuple((path, path.stat().st_mtime_ns) for path in files))  # noqa: PTH109
    return PromptPack(name)


@lru_cache
def _loaded(name: str, place: str, files: tuple[tuple[Path, int], ...]) -> PromptPack:
    return PromptPack(name)


def _folder_of(name: str) -> Path:
    return Path(name) if "/" in name else CONFIGS / "prompts" / name


SUPPORTER_PAPER = "supporter_paper_system.j2"


def seeker_system(prompts: PromptPack, card: RoleCard, paper: bool = False) -> str:
    """A seeker's system message (ESC-Eval figure 11; the wording is the pack's). `paper`: the published strategy (table 11)."""
    system = prompts.render(card.language, "seeker_system.j2", card=card, paper=paper)
    facts = [fact.strip()[:8] for fact in (card.problem, card.text or "", *card.details.values()) if fact.strip()]
    if not any(fact in system or fact[0] in "[［【" for fact in facts):
        raise UserError(f"{prompts.folder}: seeker_system.j2 does not show the card: keep {{{{ card.problem }}}}")
    return system


def supporter_system(prompts: PromptPack, language: Language) -> str:
    """The supporter's system message in paper mode: the published script puts one before every chat without one."""
    return prompts.render(language, SUPPORTER_PAPER)


def chat(turns: Sequence[Turn], role: Role, system: str | None = None, lead: str | None = None) -> list[Message]:
    """A dialogue as a side's own chat: its turns are `assistant`. `lead`: the other side's line, if this side begins."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": lead}] if lead else []
    return messages + [{"role": "assistant" if turn.role == role else "user", "content": turn.text} for turn in turns]


def greeting(prompts: PromptPack, language: Language) -> str:
    """The supporter's fixed first line."""
    return prompts.render(language, "greeting.txt")


def character_system(prompts: PromptPack, item: RolePlay) -> str:
    """The system message of a general role-play dialogue: the character and the scene, from the corpus."""
    return prompts.render(item.language, "character_system.j2", item=item)


def opening(prompts: PromptPack, language: Language) -> str:
    """A substitute for the partner's line if the character speaks first: chat templates require a user message first."""
    return prompts.render(language, "opening.txt")
