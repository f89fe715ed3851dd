"""Stored answers that are asked again because the user named their kind. Nothing is ever drawn again in silence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, get_args

from core.errors import UserError, near
from serve.answers import Reply

Kind = Literal["empty", "refusal", "length", "unreadable"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def kinds_of(reply: Reply) -> Iterator[Kind]:
    """What of a reply can be seen without reading a verdict in it: no word, refused, cut off at the token limit."""
    if reply.refused:
        yield "refusal"
    elif not reply.text.strip() and reply.finish_reason != "context_overflow":
        yield "empty"
    if reply.finish_reason == "length":
        yield "length"


class Retry:
    """Which kinds of stored answers are asked again: each of them once by one command, however often it comes up."""

    def __init__(self, kinds: Collection[Kind] = ()) -> None:
        self._kinds = kinds
        self._done: set[str] = set()

    @classmethod
    def parse(cls, text: str | None) -> Retry:
        """From `empty,refusal`; `UserError` for an unknown kind."""
        names = [name.strip() for name in (text or "").split(",") if name.strip()]
        for name in names:
            if name not in KINDS:
                raise UserError(f"--retry {name}: no such kind of answer: {near(name, KINDS)}")
        return cls([kind for kind in KINDS if kind in names])

    def reason(self, key: str, reply: Reply, readable: bool | None) -> Kind | None:
        """Why the stored answer of a call is asked again; None where it stands. `readable`: whether a verdict can be read in
        it, None where none is asked for."""
        if not self._kinds or key in self._done:
            return None
        found = {*kinds_of(reply), *(["unreadable"] if readable is False else [])}
        return next((kind for kind in self._kinds if kind in found), None)

    @property
    def reads(self) -> bool:
        """Whether it matters if a verdict can be read."""
        return "unreadable" in self._kinds

    def done(self, key: str) -> None:
        """The call was asked again: its new answer stands."""
        self._done.add(key)
