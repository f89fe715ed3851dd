"""The study's server: pages for raters, saving, and the organiser's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from core.files import digest
from core.records import Language, Verdict
from core.tables import fmt
from evalsuite.people.chat import PROFILE, TALK, profiled, talk_of, talking
from evalsuite.people.chat import router as talks
from evalsuite.people.guard import Guard
from evalsuite.people.pages import TEMPLATES, TaskPage, render, state_of, words
from evalsuite.people.progress import progress
from evalsuite.people.review import LATER, queue
from evalsuite.people.signed_in import Agreed, Anybody, Database, Input, Nothing, Organiser, Rater, signed_in
from evalsuite.people.store import LASTS_S, Conflict, RaterAnswer, RefusedAnswer, StudyStore, redacted, trouble
from evalsuite.people.study import COMMENT, Content, Study
from evalsuite.people.tables import RaterRow, SessionRow, TaskRow

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_STATIC = ("people.css", "people.js", "organiser.js", "talk.js")
router = APIRouter()


class GivenAnswer(Input):
    """An answer to one question, over the version that the page has."""

    question: Annotated[str, Field(max_length=200)]
    turn: Annotated[int, Field(ge=0, le=10_000)] | None = None
    value: float | None = None
    choice: Verdict | None = None
    cannot: bool = False
    text: Annotated[str, Field(max_length=4000)] | None = None
    version: Annotated[int, Field(ge=0)] = 0


class Me(Input):
    """What a rater settles for themselves."""

    interface: Language | None = None
    consented: Literal[True] | None = None


class ForRater(Input):
    """A rater whose link the organiser makes anew or ends."""

    code: Annotated[str, Field(max_length=200)]


def create_app(
    store: StudyStore,
    hosts: frozenset[str] = LOOPBACK,
    secure: bool = False,
    calls: Path | None = None,
    endpoints: Mapping[str, str] = {},
) -> FastAPI:
    """The application for one study. `hosts` are the names that it answers to; `secure` marks cookies for HTTPS alone.

    `calls` is where a study with talks keeps replies, `endpoints` where its supporters answer, beyond what their specs say.
    """
    life = talking(calls, endpoints) if calls else None
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    app.state.store, app.state.study, app.state.secure = store, store.study(), secure
    app.state.contents = store.contents()
    app.include_router(router)
    app.include_router(talks)
    app.mount("/static", _Static(directory=TEMPLATES), name="static")
    # A browser gives one host's cookies to all its ports: each study has a name of its own for them.
    app.state.cookie = "people-" + digest([redacted(store.url), store.name], 8)
    app.add_middleware(Guard, hosts=hosts, cookie=app.state.cookie)

    @app.exception_handler(RefusedAnswer)
    def _refused(request: Request, error: RefusedAnswer) -> Response:
        return _told(request, error.word, error.status)

    @app.exception_handler(SQLAlchemyError)
    def _failed(request: Request, error: SQLAlchemyError) -> Response:
        refused = trouble(error)
        return _told(request, refused.word, refused.status)

    @app.exception_handler(RequestValidationError)
    def _malformed(request: Request, error: RequestValidationError) -> Response:
        if any(one["loc"][0] == "path" for one in error.errors()):
            return _told(request, "no_task", 404)
        long = any(one["type"] == "string_too_long" for one in error.errors())
        return _told(request, "too_large" if long else "bad_answer", 422)

    return app


class _Static(StaticFiles):
    """The pages' style and script; templates lie beside them and are not for reading."""

    def lookup_path(self, path: str) -> tuple[str, Any]:
        return super().lookup_path(path) if path in _STATIC else ("", None)


def _told(request: Request, word: str, status: int) -> Response:
    """A refusal in words: JSON for scripts, a page for people."""
    rater: RaterRow | None = getattr(request.state, "rater", None)
    language = rater.language if rater else "en"
    if request.url.path.startswith("/api/"):
        return JSONResponse({"message": words(language)[word], "word": word}, status)
    return HTMLResponse(render("message.html", language, text=words(language)[word], wait=None), status)


@router.get("/favicon.ico")
def icon() -> Response:
    """None; browsers ask for it where an answer is no page."""
    return Response(status_code=204)


@router.get("/r/{token}")
@router.get("/o/{token}")
def enter(request: Request, token: str, store: Database) -> Response:
    """A link: it opens a session, and leaves the address bar."""
    cookie = store.enter(token)
    if cookie is None:
        raise RefusedAnswer("no_link", 404)
    response = RedirectResponse("/", 303)
    state, lasts = request.app.state, LASTS_S["rater" if request.url.path.startswith("/r/") else "organiser"]
    response.set_cookie(state.cookie, cookie, httponly=True, samesite="lax", secure=state.secure, max_age=lasts)
    return response


# --- a rater's pages ----------------------------------------------------------------------------------------------------------


@router.get("/")
def overview(request: Request) -> Response:
    """A rater's tasks, or the organiser's page."""
    session, rater = signed_in(request)
    if rater is None:
        return _organisers_page(request, session)
    store, study = request.app.state.store, request.app.state.study
    language = rater.language
    values = {"csrf": session.csrf, "switch": rater.other}
    if study.consent and not rater.consented:
        text = study.consent.get(language) or next(iter(study.consent.values()))
        return HTMLResponse(render("consent.html", language, text=text, **values))
    if rater.reviewer or study.second_round:
        queue(store)
    tasks = store.tasks(rater.code)
    answers = store.answers([task.id for task in tasks])
    states = [(task, state_of(task, len(answers.get(task.id, {})))) for task in tasks]
    following = next((task.id for task, state in states if state != "done"), None)
    more = study.second_round and not any(task.purpose in LATER for task in tasks)
    done, begun = sum(state == "done" for _, state in states), any(state != "open" for _, state in states)
    return HTMLResponse(
        render("overview.html", language, tasks=states, done=done, begun=begun, next=following, more=more, **values)
    )


@router.get("/task/{id}")
def task_page(request: Request, id: int, rater: Rater, store: Database) -> Response:
    """A dialogue with its questions."""
    study: Study = request.app.state.study
    if study.consent and not rater.consented:
        return RedirectResponse("/", 303)
    task = store.task(id, rater.code)
    if task.purpose == TALK and not profiled(store, rater.code):
        return RedirectResponse("/", 303)
    mine = store.tasks(rater.code)
    places = [one.id for one in mine]
    place = places.index(id)
    content = _content(request, task)
    asked = _asked(request, task, content)
    answers = store.answers([id]).get(id, {})
    page = TaskPage(study, task, content, answers, rater.language, asked)
    talk = talk_of(request, task) if task.purpose in (TALK, PROFILE) else None
    return HTMLResponse(
        render(
            "profile.html" if task.purpose == PROFILE else "talk.html" if talk else "task.html",
            rater.language,
            page=page,
            talk=talk,
            due=bool(talk and talk.due(list(answers))),
            csrf=request.state.session.csrf,
            switch=rater.other,
            locked=task.submitted,
            number=place + 1,
            all=len(mine),
            before=places[place - 1] if place else None,
            after=places[place + 1] if place + 1 < len(places) else None,
            rated=[turn for _, turn in asked if turn is not None],
        )
    )


def _content(request: Request, task: TaskRow) -> Content:
    if task.purpose in (TALK, PROFILE):
        return talk_of(request, task).content()
    content: Content = request.app.state.contents[task.item]
    return content


def _asked(request: Request, task: TaskRow, content: Content) -> list[tuple[str, int | None]]:
    """What a task asks for: a talk as far as it has come, a later round what raters differ on."""
    if task.purpose in LATER:
        return [(name, None) for name in task.details["given"]]
    if task.purpose in (TALK, PROFILE):
        return talk_of(request, task).asked()
    study: Study = request.app.state.study
    return study.asked(content.dialogue)


@router.put("/api/task/{id}/answer")
def save(request: Request, id: int, given: GivenAnswer, rater: Agreed, store: Database) -> Response:
    """Save one answer; its new version comes back when it is on the disk."""
    task = store.task(id, rater.code)
    _check(request.app.state.study, _asked(request, task, _content(request, task)), given)
    answer = RaterAnswer(given.value, given.choice, given.cannot, given.text)
    try:
        version = store.save(id, rater.code, given.question, given.turn, answer, given.version)
    except Conflict as conflict:
        return JSONResponse({"version": conflict.version, "word": "conflict", **vars(conflict.answer)}, 409)
    return JSONResponse({"version": version})


def _check(study: Study, asked: Sequence[tuple[str, int | None]], given: GivenAnswer) -> None:
    """Raise `RefusedAnswer` for what is no answer to the question."""
    ask = study.asks.get(given.question)
    if given.question == COMMENT or (ask and not ask.scale and (given.question, given.turn) in asked):
        fits = given.turn is None and given.value is None and given.choice is None and not given.cannot
    elif (given.question, given.turn) not in asked or given.text is not None:
        fits = False
    elif ask and study.chat and study.chat.questionnaire:
        places = range(1, len(study.chat.questionnaire.words(ask, "en")) + 1)
        fits = given.choice is None and (given.value in places) != given.cannot
    elif study.kind == "choose":
        fits = given.value is None and (given.choice is not None) != given.cannot
    else:
        assert study.rubric is not None, "what is not chosen is rated on a rubric"
        fits = given.choice is None and (given.value is not None) != given.cannot
        fits = fits and (given.cannot or given.value in study.rubric.steps(given.question))
    if not fits:
        raise RefusedAnswer("bad_answer", 422)


@router.post("/api/task/{id}/submit")
def submit(request: Request, id: int, given: Nothing, rater: Agreed, store: Database) -> Response:
    """Close a task; what is missing comes back where it stays open."""
    task, study = store.task(id, rater.code), request.app.state.study
    if task.purpose == TALK and not talk_of(request, task).ended:
        raise RefusedAnswer("talk_open")
    content = _content(request, task)
    asked = _asked(request, task, content)
    missing = store.submit(id, rater.code, study.needed(asked))
    if missing:
        page = TaskPage(study, task, content, {}, rater.language, missing)
        names = ", ".join(dict.fromkeys(question.label for question in page.questions))
        message = words(rater.language)["missing"].format(names=names)
        return JSONResponse({"message": message, "missing": missing, "word": "missing"}, 422)
    following = next((one.id for one in store.tasks(rater.code) if not one.submitted), None)
    return JSONResponse({"next": "/" if following is None else f"/task/{following}"})


@router.post("/api/me")
def settle(given: Me, rater: Rater, store: Database) -> Response:
    """The language of the interface, and consent."""
    if fields := given.model_dump(exclude_none=True):
        store.set_rater(rater.code, **fields)
    return JSONResponse({})


@router.post("/api/leave")
def leave(given: Nothing, session: Anybody, store: Database) -> Response:
    """Sign out: the session ends; the link opens another."""
    store.leave(session)
    return JSONResponse({})


# --- the organiser's page -----------------------------------------------------------------------------------------------------


def _organisers_page(request: Request, session: SessionRow) -> Response:
    return HTMLResponse(
        render(
            "organiser.html",
            "en",
            csrf=session.csrf,
            study=request.app.state.study,
            progress=progress(request.app.state.store),
            shown=fmt,
        )
    )


@router.post("/api/organiser/link")
def new_link(request: Request, given: ForRater, session: Organiser, store: Database) -> Response:
    """A rater's new link; the old one ends."""
    return JSONResponse({"link": f"{request.base_url}r/{store.new_link(given.code)}"})


@router.post("/api/organiser/revoke")
def revoke(given: ForRater, session: Organiser, store: Database) -> Response:
    """End a rater's link and sessions."""
    store.revoke(given.code)
    return JSONResponse({})


@router.post("/api/organiser/key")
def new_key(request: Request, given: Nothing, session: Organiser, store: Database) -> Response:
    """The organiser's own new link; the old one and sessions elsewhere end."""
    return JSONResponse({"link": f"{request.base_url}o/{store.new_key(session)}"})
