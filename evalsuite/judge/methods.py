"""The methods of judging, one line each. To add one: a module with a `Method`, its line here, and `judge_NAME.j2` in a pack.

A method is loaded when a judge uses it, so a method that cannot be loaded does not affect the others.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_args

from core.errors import UserError, near, say
from core.judge_prompts import PromptMethod, published
from core.records import Dialogue, Judgement
from core.rubrics import Rubric

_HERE = __package__
METHODS = {
    **{name: f"{_HERE}.scores:{name}" for name in get_args(PromptMethod)},  # rankers are trained for these
    "json": f"{_HERE}.json_answers:by_json",
    "bands": f"{_HERE}.bands:by_bands",
    "tree": f"{_HERE}.tree:each",
    "tree_once": f"{_HERE}.tree:once",
    "criteria": f"{_HERE}.published_packs:by_criteria",
    "tree_paper": "evalsuite.papers.vera_mh:tree_paper",
    "joint_paper": "evalsuite.papers.vera_mh:joint_paper",
    "lines": f"{_HERE}.published_packs:by_lines",
    "pairs": f"{_HERE}.published_packs:by_pairs",
}


def no_tree(rubric: Rubric) -> None:
    """Raise `UserError` for a tree of questions."""
    if rubric.questions:
        raise UserError(f"rubric {rubric.name}: its questions form a tree: use method tree (one call each) or tree_once")


@dataclass(frozen=True)
class Method:
    """How a judge is asked about a dialogue, and how its answers are read."""

    score: Callable[[Any, Dialogue], Awaitable[list[Judgement]]]
    """A `Judge` and a dialogue → at least one judgement per dimension."""
    check: Callable[[Rubric], None] = no_tree
    """Raises `UserError` for a rubric that the method cannot ask about."""
    by_dimension: bool = False
    """Whether every request asks for one dimension, so that each can have its own adapter."""
    on_scale: bool = True
    """Whether its prompts must state the rubric's scale."""
    together: bool = False
    """Whether it compares dialogues, so that all must be finished before the first is judged."""


def method_of(name: str) -> Method:
    """The method with this name. Raises `UserError` for an unknown method, and for one that cannot be loaded."""
    if name not in METHODS:
        raise UserError(f"unknown method {name[:100]!r}: {near(name[:100], METHODS)}")
    module, _, attribute = METHODS[name].partition(":")
    try:
        return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise UserError(f"method {name} cannot be loaded: {error}") from None


def methods() -> dict[str, Method]:
    """Every method that can be loaded. Prints a warning for each of the others."""
    loaded: dict[str, Method] = {}
    for name in METHODS:
        try:
            loaded[name] = method_of(name)
        except Exception as error:  # a user's module may raise anything on import
            say(f"warning: {error if isinstance(error, UserError) else f'method {name}: {error!r}'}; it is left out", err=True)
    return loaded


def native_method(name: str) -> str:
    """A method's name, if a config may use it. Raises `ValueError` for other names."""
    native = sorted(method for method in METHODS if not published(method))
    if name not in native:
        raise ValueError(f"{near(name[:100], native)}")
    return name
