"""Talks between a person and a supporter, through the project's own client (EmoHarbor, appendix I).

A person's line is in the database before the supporter is asked, and a reply before it is shown as whole.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from core.records import Dialogue, Turn, dialogue_id
from evalsuite.checks.risk import load_lexicon
from evalsuite.dialogues.hold import ModelSide
from evalsuite.people.guard import Agreed, Input, Nothing
from evalsuite.people.pages import words
from evalsuite.people.store import RefusedAnswer, StudyStore, TaskRow
from evalsuite.people.study import Chat, Content, QuestionKey, Study
from serve.client import ChatClient
from serve.failures import Unanswered
from serve.store import CallStore

TALK, PROFILE = "talk", "profile"  # a task's purposes
_PATIENCE_S = 60.0  # without a word for so long, the supporter has failed
_BETWEEN_S = 0.1  # between two updates of a reply on the page
router = APIRouter()


class ChatLine(Input):
    """A person's next line; `turn` is the number of turns on their page."""

    text: Annotated[str, Field(min_length=1, max_length=4000)]
    turn: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Talk:
    """A talk as it is in the database; `played`: the card or profile that the person plays."""

    study: Study
    task: TaskRow
    played: Content | None

    @property
    def details(self) -> Mapping[str, Any]:
        """`language`, `supporter`, `turns`; how the talk `ended` (None before that); whether `help` lines are shown; why the
        supporter `failed` to answer (None if it did not); the text of a reply that was `broken` off, which is no turn."""
        return self.task.details

    @property
    def chat(self) -> Chat:
        assert self.study.chat is not None, "talks belong to a study of kind chat"
        return self.study.chat

    @property
    def turns(self) -> list[Turn]:
        return [Turn(role=role, text=text) for role, text in self.details["turns"]]

    @property
    def waits(self) -> bool:
        """Whether the person's last line has no answer yet."""
        return bool(self.turns) and self.turns[-1].role == "seeker"

    def due(self, answered: Collection[QuestionKey]) -> list[QuestionKey]:
        """The questions that must be answered before the talk can go on or be submitted."""
        return [key for key in self.study.required(self.question_keys()) if key not in answered]

    def question_keys(self) -> list[QuestionKey]:
        """The questions so far: feelings before the first line, ratings of the supporter's turn in mid-dialogue, ratings of the
        whole and feelings at the end. For a profile: who the person is."""
        assert self.study.rubric is not None, "talks are rated"
        before, after, person = (
            [(name, None) for name in self.study.asks if name.startswith(group)] for group in ("before.", "after.", "person.")
        )
        if self.task.purpose == PROFILE:
            return [*person]
        names = list(self.study.rubric.dimensions)
        replies = [place for place, turn in enumerate(self.turns) if turn.role == "supporter"]
        midway = [replies[count - 1] for count in sorted({*self.chat.rate_after}) if count <= len(replies)]
        whole = [*((name, None) for name in names), *after] if self.details["ended"] and replies else []
        return [*([] if self.turns else before), *((name, place) for place in midway for name in names), *whole]

    def dialogue(self) -> Dialogue:
        """The talk as a record. `source_id` is the rater's code."""
        turns, supporter = tuple(self.turns), self.details["supporter"]
        card = self.played.dialogue if self.played else None
        id = dialogue_id("people", f"{self.study.name}/{self.task.rater}/{self.task.item}", supporter, "", 0)
        return Dialogue(
            id=id,
            language=self.details["language"],
            source=self.study.name,
            source_id=self.task.rater,
            card_id=card.card_id if card else None,
            profile_id=card.profile_id if card else id if self.study.asks else None,
            supporter=supporter,
            turns=turns,
            termination=self.details["ended"] if turns else "infrastructure",  # required for a record without turns
        )

    def content(self) -> Content:
        return Content(dialogue=self.dialogue(), played=self.played.played if self.played else "")


# --- requests -----------------------------------------------------------------------------------------------------------------


def talking(calls: Path, endpoints: Mapping[str, str]) -> Callable[[FastAPI], Any]:
    """The application's lifespan, with one client for all talks. Its store keeps replies by key, but no messages."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        store = CallStore(calls)
        try:
            client = ChatClient(
                store, endpoints, attempts=3, timeout_s=_PATIENCE_S, give_up_s=_PATIENCE_S, lost_in_a_row=10**9, keep_messages=0
            )
            async with client as app.state.client:
                app.state.locks, app.state.writing = defaultdict(asyncio.Lock), {}
                yield
                for writing in app.state.writing.values():
                    writing.task.cancel()
        finally:
            store.close()

    return life


def talk_of(request: Request, task: TaskRow) -> Talk:
    """A task's talk, or the profile before all talks. Raises `RefusedAnswer` for other tasks."""
    if task.purpose not in (TALK, PROFILE):
        raise RefusedAnswer("no_task", 404)
    return Talk(request.app.state.study, task, request.app.state.contents.get(task.item))


@router.post("/api/talk/{id}/say")
async def say(request: Request, id: int, line: ChatLine, rater: Agreed) -> Response:
    """Save a person's line once, and say whether it speaks of danger, so that help is shown before any model answers."""
    async with request.app.state.locks[id]:
        talk = await _talk(request, id, rater.code)
        details, turns = talk.task.details, talk.task.details["turns"]
        if len(turns) <= line.turn or turns[line.turn] != ["seeker", line.text]:
            answers = await run_in_threadpool(request.app.state.store.answers, [id])
            if details["ended"] or talk.task.submitted or talk.waits or talk.due(answers.get(id, {})):
                raise RefusedAnswer("bad_form")
            if len(turns) != line.turn:
                raise RefusedAnswer("conflict")
            help_lines = details["help"] or bool(load_lexicon(details["language"]).danger(line.text))
            changed = {"turns": [*turns, ["seeker", line.text]], "failed": None, "broken": "", "help": help_lines}
            details = details | changed
            await run_in_threadpool(request.app.state.store.set_details, id, details)
        return JSONResponse({"help": details["help"]})


@router.post("/api/talk/{id}/reply")
async def reply(request: Request, id: int, given: Nothing, rater: Agreed) -> Response:
    """Lines of JSON: the text of the supporter's reply whenever it grows, and at last the reply, or why there is none. If it is
    being written already (for another tab, or before a reload), the page gets that one."""
    state = request.app.state
    async with state.locks[id]:
        talk = await _talk(request, id, rater.code)
        if not talk.waits or talk.details["ended"]:
            return JSONResponse({"reload": True})
        if id not in state.writing:
            state.writing[id] = Writing()
            state.writing[id].task = asyncio.create_task(_write(state, talk, state.writing[id]))
        writing = state.writing[id]
    headers = {"X-Accel-Buffering": "no"}  # else nginx collects lines before it sends them
    return StreamingResponse(_lines(writing, words(rater.interface)), media_type="application/x-ndjson", headers=headers)


@router.post("/api/talk/{id}/leave")
async def leave(request: Request, id: int, given: Nothing, rater: Agreed) -> Response:
    """End the talk, also while the supporter writes. Its turns are kept, and rated if the supporter spoke."""
    async with request.app.state.locks[id]:
        talk = await _talk(request, id, rater.code)
        if not talk.details["ended"]:
            if writing := request.app.state.writing.get(id):
                writing.task.cancel()
            ended = "infrastructure" if talk.waits and talk.details["failed"] else "seeker_ended"
            await run_in_threadpool(request.app.state.store.set_details, id, talk.task.details | {"ended": ended})
        return JSONResponse({"reload": True})


async def _talk(request: Request, id: int, rater: str) -> Talk:
    store: StudyStore = request.app.state.store
    task = await run_in_threadpool(store.task, id, rater)
    if task.purpose == PROFILE or (request.app.state.study.asks and not await run_in_threadpool(profiled, store, rater)):
        raise RefusedAnswer("profile_first")
    return talk_of(request, task)


class Writing:
    """A reply that a supporter is writing."""

    text = ""
    """The text so far."""
    task: asyncio.Task[dict[str, Any]]


async def _write(state: Any, talk: Talk, writing: Writing) -> dict[str, Any]:
    """The supporter's reply, saved in the database, or why there is none. It is finished even if the page is closed."""
    id, store = talk.task.id, state.store
    supporter = next(spec for spec in talk.chat.supporters if spec.name == talk.details["supporter"])
    try:
        side = ModelSide(supporter, "supporter", talk.dialogue().id, hears=partial(setattr, writing, "text"))
        try:
            utterance = await side.speak(state.client, talk.turns)
            text, failure = utterance.text, str(utterance.stopped or "")
        except Unanswered as error:  # only the outcome: the study is blind to the model's name and address
            text, failure = "", error.outcome
        async with state.locks[id]:
            if failure:
                broken = {"failed": failure, "broken": writing.text}
                await run_in_threadpool(store.set_details, id, talk.task.details | broken)
                return {"word": failure, "broken": writing.text}
            turns = [*talk.details["turns"], ["supporter", text]]
            exchanges = sum(role == "supporter" for role, _ in turns)
            ended = "max_turns" if exchanges >= talk.chat.most else None
            details = talk.task.details | {"turns": turns, "failed": None, "broken": "", "ended": ended}
            await run_in_threadpool(store.set_details, id, details)
            after = Talk(talk.study, await run_in_threadpool(store.task, id, talk.task.rater), talk.played)
            answers = await run_in_threadpool(store.answers, [id])
            return {"reply": text, "reload": bool(ended or after.due(answers.get(id, {})))}
    finally:
        del state.writing[id]


async def _lines(writing: Writing, texts: dict[str, Any]) -> AsyncIterator[bytes]:
    """The lines of JSON that a page gets while a reply is written; `texts`: the pages' words."""
    shown = ""
    while not writing.task.done():
        if writing.text != shown:
            shown = writing.text
            yield orjson.dumps({"text": shown}) + b"\n"
        await asyncio.wait([writing.task], timeout=_BETWEEN_S)
    try:
        last = writing.task.result()
    except asyncio.CancelledError:  # the talk was left meanwhile
        last = {"reload": True}
    except SQLAlchemyError as error:
        word = trouble(error).word
        last = {"word": word, "message": texts["not_saved"].format(why=texts[word])}
    if last.get("word") in texts["why"]:
        last = last | {"message": texts["talk_failed"].format(why=texts["why"][last["word"]])}
    yield orjson.dumps(last) + b"\n"


def trouble(error: SQLAlchemyError) -> RefusedAnswer:
    """A rater's message for a failure of the database; nothing of the answer was written."""
    text = str(getattr(error, "orig", error)).lower()
    if any(sign in text for sign in ("locked", "busy", "deadlock")):
        return RefusedAnswer("database_busy", 503)
    if any(sign in text for sign in ("full", "no space", "i/o error", "readonly", "read-only")):
        return RefusedAnswer("disk_full", 507)
    return RefusedAnswer("database_down", 503)


def profiled(store: StudyStore, rater: str) -> bool:
    """Whether a rater has submitted their profile, or the study does not ask for it."""
    return all(task.submitted for task in store.tasks(rater) if task.purpose == PROFILE)


def talks_in(store: StudyStore) -> dict[int, Content]:
    """Task → its talk, for all talks with at least one turn."""
    study, contents = store.study(), store.contents()
    talks = {task.id: Talk(study, task, contents.get(task.item)) for task in store.tasks() if task.purpose == TALK}
    return {id: talk.content() for id, talk in talks.items() if talk.turns}
