"""The methods of judging, one line each. To add one: a module with a `Method`, its line here, and `judge_NAME.j2` in a pack.

A method is loaded when a judge is asked by it, and one that cannot be loaded does not trouble the others.
"""

from __future__ import annotations

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
    **{name: f"{_HERE}.digits:{name}" for name in get_args(PromptMethod)},  # a ranker is trained to answer by these
    "json": f"{_HERE}.json_answers:by_json",
    "bands": f"{_HERE}.bands:by_bands",
    "tree": f"{_HERE}.tree:each",
    "tree_once": f"{_HERE}.tree:once",
    "criteria": f"{_HERE}.criteria:by_criteria",
    "tree_paper": "evalsuite.papers.vera_mh_judge:tree_paper",
    "joint_paper": "evalsuite.papers.vera_mh_judge:joint_paper",
    "lines": f"{_HERE}.lines:by_lines",
    "pairs": f"{_HERE}.pairs:by_pairs",
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
    """Raises `UserError` for a rubric that cannot be asked for by it."""
    by_dimension: bool = False
    """Whether every request asks for one dimension, which may be one adapter's."""
    on_scale: bool = True
    """Whether its prompts have to say what the rubric's scale is."""
    together: bool = False
    """Whether dialogues are judged beside each other, so that all are held before one is judged."""


def method_of(name: str) -> Method:
    """The method of a name. Raises `UserError` for an unknown one, and for one that cannot be loaded."""
    if name not in METHODS:
        raise UserError(f"unknown method {name[:100]!r}: {near(name[:100], METHODS)}")
    module, _, attribute = METHODS[name].partition(":")
    try:
        method: Method = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"method {name} cannot be loaded: {error}") from None
    return method


def methods() -> dict[str, Method]:
    """Every method that can be loaded; of others a warning is printed."""
    loaded: dict[str, Method] = {}
    for name in METHODS:
        try:
            loaded[name] = method_of(name)
        except Exception as error:  # somebody's own module may fail with anything while it is imported
            say(f"warning: {error if isinstance(error, UserError) else f'method {name}: {error!r}'}; it is left out", err=True)
    return loaded


def native_method(name: str) -> str:
    """The name of a method that a config may have. Raises `ValueError` for others."""
    native = sorted(method for method in METHODS if not published(method))
    if name not in native:
        raise ValueError(f"{near(name[:100], native)}")
    return name
