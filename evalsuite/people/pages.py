"""The pages: Jinja templates in the rater's language, with everything escaped."""

from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import jinja2
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import RootModel

from core.languages import ENGLISH, PAPER_LANGUAGES, direction, lineage, of, own_name, texts
from core.records import Dialogue, Language
from core.settings import read_yaml
from evalsuite.people.store import Answers, RaterAnswer, TaskRow
from evalsuite.people.study import COMMENT, Content, QuestionKey, Questionnaire, Study

TEMPLATES = Path(__file__).parent / "templates"
_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)


@cache
def words(language: Language) -> dict[str, Any]:
    """The pages' texts in a language: its own (pages.yaml in its folder), completed with English ones."""
    bundled = read_yaml(TEMPLATES / "words.yaml", RootModel[dict[Language, dict[str, Any]]], "words of the pages").root
    translated = texts(language, "pages.yaml")
    return {**bundled[ENGLISH], **translated} if translated else of(bundled, language, "pages.yaml, the words of raters' pages")


def render(name: str, language: Language, **values: Any) -> str:
    """A page, in English for a language without texts of its own; dialogues keep their language."""
    shown = language if {*lineage(language)} & {*PAPER_LANGUAGES} or texts(language, "pages.yaml") else ENGLISH
    shared = {"words": words(language), "language": shown, "direction": direction, "name": own_name}
    return _ENVIRONMENT.get_template(name).render(**shared, **values)


def refusal(path: str, language: Language, status: int, word: str, wait: int | None = None) -> Response:
    """A refusal in words: JSON for scripts, a page for people, which reloads itself after `wait` seconds."""
    text, headers = words(language)[word], {} if wait is None else {"retry-after": str(wait)}
    if path.startswith("/api/"):
        return JSONResponse({"message": text, "word": word}, status, headers)
    return HTMLResponse(render("message.html", language, text=text, wait=wait), status, headers)


@dataclass(frozen=True)
class Option:
    """A value that can be clicked, with its label and text."""

    value: str
    label: str
    text: str
    chosen: bool


@dataclass(frozen=True)
class PageQuestion:
    """A question with its options and the present answer."""

    name: str
    turn: int | None
    label: str
    about: str
    options: list[Option]
    cannot: bool
    version: int
    given: str = ""  # scores of the first round, in a later one
    own: str = ""  # the rater's own among them
    words: str | None = None  # the answer in words; None for questions with options
    group: str = ""  # key of the heading above the group's first question

    @property
    def key(self) -> str:
        return f"{self.name}/{'' if self.turn is None else self.turn}"


@dataclass(frozen=True)
class TaskPage:
    """The contents of a task's page. `keys`: its questions, in order."""

    study: Study
    task: TaskRow
    content: Content
    answers: Answers
    interface: Language
    keys: list[QuestionKey]

    @cached_property
    def questions(self) -> list[PageQuestion]:
        return [self._question(name, turn) for name, turn in self.keys]

    def _question(self, name: str, turn: int | None) -> PageQuestion:
        answer, version = self.answers.get((name, turn), (RaterAnswer(), 0))
        question = partial(PageQuestion, name, turn, cannot=answer.cannot, version=version)
        page_words = words(self.interface)
        if (ask := self.study.asks.get(name)) and self.study.chat and self.study.chat.questionnaire:
            meanings = enumerate(self.study.chat.questionnaire.words(ask, self.interface), start=1)
            options = [Option(str(place), str(place), text, answer.value == place) for place, text in meanings]
            label, about = Questionnaire.text(ask, self.interface), page_words["optional"] if ask.optional else ""
            written = None if ask.scale else answer.text or ""
            return question(label=label, about=about, options=options, words=written, group=name.partition(".")[0])
        if self.study.kind == "choose":
            texts = self.study.questions[name]
            first, second = ("a", "b") if self.task.order == "ab" else ("b", "a")
            labels = {first: "one", "tie": "tie", second: "other"}
            options = [Option(value, page_words[label], "", answer.choice == value) for value, label in labels.items()]
            return question(label=texts.get(self.interface, next(iter(texts.values()))), about="", options=options)
        rubric = self.study.rubric
        assert rubric is not None, "a study that rates has a rubric"
        # The rules are in the interface's language if the rubric has it, else in the dialogue's.
        language = self.interface if self.interface in rubric.languages else self.content.dialogue.language
        levels = rubric.texts(name, language)
        options = [
            Option(f"{step:g}", rubric.scale_of(name).name(step, language), levels.get(step, ""), answer.value == step)
            for step in rubric.steps(name)
        ]
        given = " / ".join(f"{value:g}" for value in self.task.details.get("given", {}).get(name, ()))
        own_scores = self.task.details.get("own", {})
        own = f"{own_scores[name]:g}" if name in own_scores else ""
        label, about = rubric.label(name, language), " ".join(rubric.about(name, language).split())
        return question(label=label, about=about, options=options, given=given, own=own)

    @property
    def comment(self) -> tuple[str, int]:
        answer, version = self.answers.get((COMMENT, None), (RaterAnswer(), 0))
        return answer.text or "", version

    @property
    def columns(self) -> list[tuple[str, Dialogue, int]]:
        """The dialogues side by side: heading, dialogue, and how many of its turns are shown above both."""
        if self.content.other is None:
            return [("", self.content.dialogue, 0)]
        a, b = self.content.sides(self.task.order)
        headings, shared = words(self.interface), len(self.content.shared)
        return [(headings["first"], a, shared), (headings["second"], b, shared)]
