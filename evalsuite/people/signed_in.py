"""Who asks: a rater or the organiser, by the session's cookie; every change by the form's token besides."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict

from evalsuite.people.store import RefusedAnswer, StudyStore
from evalsuite.people.tables import RaterRow, SessionRow


class Input(BaseModel):
    """What a page sends; nothing else is taken."""

    model_config = ConfigDict(extra="forbid")


class Nothing(Input):
    """A request that says all by its address."""


def signed_in(request: Request) -> tuple[SessionRow, RaterRow | None]:
    found = request.app.state.store.session(request.cookies.get(request.app.state.cookie, ""))
    if found is None:
        raise RefusedAnswer("no_session", 401)
    session, rater = found
    request.state.session, request.state.rater = session, rater
    # Every change carries the form's token: a page of another site can send the cookie, but does not know the token.
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


def _anybody(request: Request) -> SessionRow:
    return signed_in(request)[0]


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
"""A rater who has agreed to what the study says, where it says anything: nothing is taken from others."""
Anybody = Annotated[SessionRow, Depends(_anybody)]
Organiser = Annotated[SessionRow, Depends(_organiser)]
Database = Annotated[StudyStore, Depends(_store)]
