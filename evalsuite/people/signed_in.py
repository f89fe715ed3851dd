"""Authentication: a rater or the organiser, by the session's cookie; for every change, also by the form's token."""

import secrets
from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict

from evalsuite.people.store import RefusedAnswer, StudyStore
from evalsuite.people.tables import RaterRow, SessionRow


class Input(BaseModel):
    """The body of a page's request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Nothing(Input):
    """An empty body."""


def signed_in(request: Request) -> tuple[SessionRow, RaterRow | None]:
    """The request's session, and its rater (None: the organiser). Raises `RefusedAnswer` without one."""
    current = request.app.state.store.session(request.cookies.get(request.app.state.cookie, ""))
    if current is None:
        raise RefusedAnswer("no_session", 401)
    session, rater = request.state.session, request.state.rater = current
    # Another site's page can send the cookie, but does not know the form's token.
    if request.method != "GET" and not secrets.compare_digest(
        request.headers.get("x-csrf", "").encode(), session.csrf.encode()
    ):
        raise RefusedAnswer("bad_form", 403)
    return session, rater


def _rater(request: Request) -> RaterRow:
    _, rater = signed_in(request)
    if rater is None:
        raise RefusedAnswer("no_session", 403)
    return rater


def _agreed(request: Request) -> RaterRow:
    rater = _rater(request)
    if request.app.state.study.consent and not rater.consented:
        raise RefusedAnswer("no_consent", 403)
    return rater


def _organiser(request: Request) -> SessionRow:
    session, rater = signed_in(request)
    if rater is not None:
        raise RefusedAnswer("no_session", 403)
    return session


def _store(request: Request) -> StudyStore:
    store: StudyStore = request.app.state.store
    return store


Rater = Annotated[RaterRow, Depends(_rater)]
Agreed = Annotated[RaterRow, Depends(_agreed)]
"""A rater who has agreed to the study's consent text, if there is one; answers of others are refused."""
Organiser = Annotated[SessionRow, Depends(_organiser)]
Database = Annotated[StudyStore, Depends(_store)]
