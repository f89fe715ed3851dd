"""The study's server: pages for raters, saving, and the organiser's page."""

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
from evalsuite.people.chat import PROFILE, TALK, profiled, talk_of, talking, trouble
from evalsuite.people.chat import router as talks
from evalsuite.people.guard import Agreed, Database, Guard, Input, Nothing, Organiser, Rater, signed_in
from evalsuite.people.pages import TEMPLATES, TaskPage, refusal, render, words
from evalsuite.people.results import LATER, progress, queue
from evalsuite.people.store import LASTS_S, RaterAnswer, RaterRow, RefusedAnswer, StudyStore, TaskRow, redacted
from evalsuite.people.study import COMMENT, Content, QuestionKey, Study

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
router = APIRouter()


class GivenAnswer(Input):
    """An answer to one question; `version`: the one that the page has."""

    question: Annotated[str, Field(max_length=200)]
    turn: Annotated[int, Field(ge=0, le=10_000)] | None = None
    value: float | None = None
    choice: Verdict | None = None
    cannot: bool = False
    text: Annotated[str, Field(max_length=4000)] | None = None
    version: Annotated[int, Field(ge=0)] = 0


class Me(Input):
    """A rater's own settings."""

    interface: Language | None = None
    consented: Literal[True] | None = None


class ForRater(Input):
    """The rater whose link the organiser renews or ends."""

    code: Annotated[str, Field(max_length=200)]


def create_app(
    store: StudyStore,
    hosts: frozenset[str] = LOOPBACK,
    secure: bool = False,
    calls: Path | None = None,
    endpoints: Mapping[str, str] = {},
) -> FastAPI:
    """The application for one study, under the names `hosts`. `secure`: cookies are sent over HTTPS only; `calls`: the file
    with replies of a study with talks; `endpoints`: base URLs of supporters beyond those in their specs."""
    life = talking(calls, endpoints) if calls else None
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    app.state.store, app.state.study, app.state.secure = store, store.study(), secure
    app.state.contents = store.contents()
    app.include_router(router)
    app.include_router(talks)
    app.mount("/static", StaticFiles(directory=TEMPLATES / "static"))
    # Browsers send a host's cookies to all its ports, so each study has its own cookie name.
    app.state.cookie = "people-" + digest([redacted(store.url), store.name], 8)
    app.add_middleware(Guard, hosts=hosts, cookie=app.state.cookie)

    @app.exception_handler(RefusedAnswer)
    def _refused(request: Request, error: RefusedAnswer) -> Response:
        rater: RaterRow | None = getattr(request.state, "rater", None)
        return refusal(request.url.path, rater.interface if rater else "en", error.status, error.word)

    @app.exception_handler(SQLAlchemyError)
    def _failed(request: Request, error: SQLAlchemyError) -> Response:
        return _refused(request, trouble(error))

    @app.exception_handler(RequestValidationError)
    def _malformed(request: Request, error: RequestValidationError) -> Response:
        if any(problem["loc"][0] == "path" for problem in error.errors()):
            return _refused(request, RefusedAnswer("no_task", 404))
        long = any(problem["type"] == "string_too_long" for problem in error.errors())
        return _refused(request, RefusedAnswer("too_large" if long else "bad_answer", 422))

    return app


@router.get("/favicon.ico")
def icon() -> Response:
    """No content, for browsers that ask for an icon where no page names one."""
    return Response(status_code=204)


@router.get("/r/{token}")
@router.get("/o/{token}")
def enter(request: Request, token: str, store: Database) -> Response:
    """Open a session by a link; the redirect removes the link from the address bar."""
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
    store, study = request.app.state.store, request.app.state.study
    values: dict[str, Any] = {"csrf": session.csrf}
    if rater is None:
        raters, tables = progress(store)
        return HTMLResponse(render("organiser.html", "en", shown=fmt, study=study, raters=raters, tables=tables, **values))
    values["switch"] = rater.other
    if study.consent and not rater.consented:
        text = study.consent.get(rater.interface) or next(iter(study.consent.values()))
        return HTMLResponse(render("consent.html", rater.interface, text=text, **values))
    if rater.reviewer or study.second_round:
        queue(store)
    tasks = store.tasks(rater.code)
    answers = store.answers([task.id for task in tasks])
    states = [(task, "done" if task.submitted else "begun" if answers.get(task.id) else "open") for task in tasks]
    values |= {
        "tasks": states,
        "done": sum(state == "done" for _, state in states),
        "begun": any(state != "open" for _, state in states),
        "next": next((task.id for task, state in states if state != "done"), None),
        "more": study.second_round and not any(task.purpose in LATER for task in tasks),
    }
    return HTMLResponse(render("overview.html", rater.interface, **values))


@router.get("/task/{id}")
def task_page(request: Request, id: int, rater: Rater, store: Database) -> Response:
    """A dialogue with its questions."""
    study: Study = request.app.state.study
    if study.consent and not rater.consented:
        return RedirectResponse("/", 303)
    task = store.task(id, rater.code)
    if task.purpose == TALK and not profiled(store, rater.code):
        return RedirectResponse("/", 303)
    ids = [assigned.id for assigned in store.tasks(rater.code)]
    place = ids.index(id)
    content, keys = _content_and_keys(request, task)
    answers = store.answers([id]).get(id, {})
    page = TaskPage(study, task, content, answers, rater.interface, keys)
    talk = talk_of(request, task) if task.purpose in (TALK, PROFILE) else None
    return HTMLResponse(
        render(
            "profile.html" if task.purpose == PROFILE else "talk.html" if talk else "task.html",
            rater.interface,
            page=page,
            talk=talk,
            due=bool(talk and talk.due(answers)),
            csrf=request.state.session.csrf,
            switch=rater.other,
            locked=task.submitted,
            number=place + 1,
            all=len(ids),
            before=ids[place - 1] if place else None,
            after=ids[place + 1] if place + 1 < len(ids) else None,
            rated=[turn for _, turn in keys if turn is not None],
        )
    )


def _content_and_keys(request: Request, task: TaskRow) -> tuple[Content, list[QuestionKey]]:
    """A task's content and questions: of a talk those so far, of a later round the dimensions that raters differ on."""
    if task.purpose in (TALK, PROFILE):
        talk = talk_of(request, task)
        return talk.content(), talk.question_keys()
    content: Content = request.app.state.contents[task.item]
    if task.purpose in LATER:
        return content, [(name, None) for name in task.details["given"]]
    return content, request.app.state.study.question_keys(content.dialogue)


@router.put("/api/task/{id}/answer")
def save(request: Request, id: int, given: GivenAnswer, rater: Agreed, store: Database) -> Response:
    """Save one answer; returns its new version once it is on the disk."""
    task = store.task(id, rater.code)
    _check(request.app.state.study, _content_and_keys(request, task)[1], given)
    answer = RaterAnswer(given.value, given.choice, given.cannot, given.text)
    stored, version = store.save(id, rater.code, given.question, given.turn, answer, given.version)
    if stored != answer:
        return JSONResponse({"version": version, "word": "conflict", **vars(stored)}, 409)
    return JSONResponse({"version": version})


def _check(study: Study, keys: Sequence[QuestionKey], given: GivenAnswer) -> None:
    """Raise `RefusedAnswer` for an answer that does not fit the question, or to a question that the task does not have."""
    ask = study.asks.get(given.question)
    if given.question == COMMENT or (ask and not ask.scale and (given.question, given.turn) in keys):
        fits = given.turn is None and given.value is None and given.choice is None and not given.cannot
    elif (given.question, given.turn) not in keys or given.text is not None:
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
    """Close a task; if answers are missing, it stays open and they are returned."""
    task, study = store.task(id, rater.code), request.app.state.study
    if task.purpose == TALK and not task.details["ended"]:
        raise RefusedAnswer("talk_open")
    content, keys = _content_and_keys(request, task)
    if missing := store.submit(id, rater.code, study.required(keys)):
        page = TaskPage(study, task, content, {}, rater.interface, missing)
        names = ", ".join(dict.fromkeys(question.label for question in page.questions))
        message = words(rater.interface)["missing"].format(names=names)
        return JSONResponse({"message": message, "missing": missing, "word": "missing"}, 422)
    following = next((other.id for other in store.tasks(rater.code) if not other.submitted), None)
    return JSONResponse({"next": "/" if following is None else f"/task/{following}"})


@router.post("/api/me")
def settle(given: Me, rater: Rater, store: Database) -> Response:
    """Save the language of the interface, or consent."""
    if fields := given.model_dump(exclude_none=True):
        store.set_rater(rater.code, **fields)
    return JSONResponse({})


@router.post("/api/leave")
def leave(request: Request, given: Nothing, store: Database) -> Response:
    """End the session; the link opens another."""
    store.leave(signed_in(request)[0])
    return JSONResponse({})


# --- the organiser's page -----------------------------------------------------------------------------------------------------


@router.post("/api/organiser/link")
def new_link(request: Request, given: ForRater, session: Organiser, store: Database) -> Response:
    """A new link for a rater; the old one ends."""
    return JSONResponse({"link": f"{request.base_url}r/{store.new_link(given.code)}"})


@router.post("/api/organiser/revoke")
def revoke(given: ForRater, session: Organiser, store: Database) -> Response:
    """End a rater's link and sessions; their answers are kept."""
    store.set_rater(given.code, ended=True, revoked=True)
    return JSONResponse({})


@router.post("/api/organiser/key")
def new_key(request: Request, given: Nothing, session: Organiser, store: Database) -> Response:
    """A new link for the organiser; the old one and other sessions end."""
    return JSONResponse({"link": f"{request.base_url}o/{store.new_key(session)}"})
