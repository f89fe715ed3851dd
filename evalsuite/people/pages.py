"""The pages: Jinja templates with everything escaped, in the rater's language."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jinja2
from pydantic import RootModel

from core.languages import ENGLISH, PAPER_LANGUAGES, direction, lineage, of, own_name, texts
from core.records import Dialogue, Language
from core.rubrics import Rubric
from core.yaml_files import read_yaml
from evalsuite.people.questionnaire import Questionnaire
from evalsuite.people.store import RaterAnswer
from evalsuite.people.study import COMMENT, Content, Study
from evalsuite.people.tables import TaskRow

TEMPLATES = Path(__file__).parent / "templates"


class _Words(RootModel[dict[Language, dict[str, Any]]]):
    """Words by language."""


@cache
def words(language: Language) -> dict[str, Any]:
    """What the pages say in a language: its own words (pages.yaml in its folder), and English ones for what is missing."""
    bundled, own = read_yaml(TEMPLATES / "words.yaml", _Words, "words of the pages").root, texts(language, "pages.yaml")
    return {**bundled[ENGLISH], **own} if own else of(bundled, language, "pages.yaml, the words of raters' pages")


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)


def render(name: str, language: Language, **values: Any) -> str:
    """A page. Without words of its own a language has an English one, in which dialogues stand in theirs."""
    shown = language if {*lineage(language)} & {*PAPER_LANGUAGES} or texts(language, "pages.yaml") else ENGLISH
    told = {"words": words(language), "language": shown, "direction": direction, "name": own_name}
    return _environment().get_template(name).render(**told, **values)


@dataclass(frozen=True)
class Option:
    """One value that may be clicked: its text beside it, and its key."""

    value: str
    label: str
    text: str
    chosen: bool


@dataclass(frozen=True)
class PageQuestion:
    """One row of controls: what is asked, what may be answered, and what is."""

    name: str
    turn: int | None
    label: str
    about: str
    options: list[Option]
    cannot: bool
    version: int
    given: str = ""  # scores that were given, in a later round
    own: str = ""  # the rater's own among them
    words: str | None = None  # what was answered in words, where it is to be
    group: str = ""  # what stands above the first question of a kind

    @property
    def key(self) -> str:
        return f"{self.name}/{'' if self.turn is None else self.turn}"


@dataclass(frozen=True)
class TaskPage:
    """What a task's page shows."""

    study: Study
    task: TaskRow
    content: Content
    answers: dict[tuple[str, int | None], tuple[RaterAnswer, int]]
    interface: Language
    asked: list[tuple[str, int | None]]

    @cached_property
    def questions(self) -> list[PageQuestion]:
        """In the order of the page."""
        return [self._question(name, turn) for name, turn in self.asked]

    def _question(self, name: str, turn: int | None) -> PageQuestion:
        answer, version = self.answers.get((name, turn), (RaterAnswer(), 0))
        if (ask := self.study.asks.get(name)) and self.study.chat and self.study.chat.questionnaire:
            meanings = enumerate(self.study.chat.questionnaire.words(ask, self.interface), start=1)
            options = [Option(str(place), str(place), text, answer.value == place) for place, text in meanings]
            written, group = None if ask.scale else answer.text or "", name.partition(".")[0]
            about = words(self.interface)["optional"] if ask.optional else ""
            return PageQuestion(
                name,
                None,
                Questionnaire.text(ask, self.interface),
                about,
                options,
                answer.cannot,
                version,
                words=written,
                group=group,
            )
        if self.study.kind == "choose":
            texts, told = self.study.questions[name], words(self.interface)
            first, second = ("a", "b") if self.task.order == "ab" else ("b", "a")
            options = [
                Option(value, told[label], "", answer.choice == value)
                for value, label in ((first, "one"), ("tie", "tie"), (second, "other"))
            ]
            return PageQuestion(
                name, turn, texts.get(self.interface, next(iter(texts.values()))), "", options, answer.cannot, version
            )
        rubric = self.study.rubric
        assert rubric is not None, "a study that rates has a rubric"
        language = self.language(rubric)
        levels = rubric.texts(name, language)
        options = [
            Option(f"{step:g}", rubric.scale_of(name).name(step, language), levels.get(step, ""), answer.value == step)
            for step in rubric.steps(name)
        ]
        given = " / ".join(f"{value:g}" for value in self.task.details.get("given", {}).get(name, ()))
        own = self.task.details.get("own", {}).get(name)
        about = " ".join(rubric.about(name, language).split())
        return PageQuestion(
            name,
            turn,
            rubric.label(name, language),
            about,
            options,
            answer.cannot,
            version,
            given,
            "" if own is None else f"{own:g}",
        )

    def language(self, rubric: Rubric) -> Language:
        """Rules are in the interface's language where the rubric has it, else in the dialogue's."""
        return self.interface if self.interface in rubric.languages else self.content.dialogue.language

    @property
    def comment(self) -> tuple[str, int]:
        answer, version = self.answers.get((COMMENT, None), (RaterAnswer(), 0))
        return answer.text or "", version

    @property
    def columns(self) -> list[tuple[str, Dialogue, int]]:
        """What stands side by side: heading, dialogue, and how many of its turns stand above both."""
        if self.content.other is None:
            return [("", self.content.dialogue, 0)]
        a, b = self.content.sides(self.task.order)
        told, shared = words(self.interface), len(self.content.shared)
        return [(told["first"], a, shared), (told["second"], b, shared)]


def state_of(task: TaskRow, answered: int) -> str:
    """How far a task is: a key of the words."""
    return "done" if task.submitted else "begun" if answered else "open"
