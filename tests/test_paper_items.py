"""docs/paper_items.yaml, which docs/reproduce.md is made of: every table and figure of the papers once, and commands that the
programs take."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from core.specs import load_spec, model_names
from docs.paper_items import BEGIN, DOCUMENT, END, page, papers
from evalsuite.frameworks.feel import load_feel_config
from evalsuite.reported.tables import load_reported
from evalsuite.runs.config import load_config
from tests.test_docs import COMMANDS, ROOT, mistakes

ITEMS = {f"{paper.paper}: {item.item}": item for paper in papers() for item in paper.items}
LINES = [command for item in ITEMS.values() for command in item.commands]
# What each paper numbers, by its own text.
NUMBERED = {
    "ESC-Eval": {"table": range(1, 17), "figure": range(1, 20)},
    "EmoHarbor": {"table": range(1, 8), "figure": range(1, 12)},
    "FEEL": {"table": range(1, 5), "figure": range(1, 4)},
    "ECDBench": {"table": range(1, 7), "figure": range(1, 8)},
}
REPORTED = {"ESC-Eval": "esc_eval", "EmoHarbor": "emoharbor", "FEEL": "feel", "ECDBench": "ecdbench"}


def numbers(items: str) -> list[tuple[str, int]]:
    """`tables 6, 9, figure 5` as pairs; `figures 12 to 19` means all between."""
    found: list[tuple[str, int]] = []
    for kind, text in re.findall(r"(table|figure)s? ((?:\d+(?: to \d+)?(?:, )?)+)", items):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
            found += [(kind, number) for number in range(int(first), int(last or first) + 1)]
    return found


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_table_and_figure_of_a_paper_is_there_once(paper: str) -> None:
    listed = [pair for entry in papers() if entry.paper == paper for item in entry.items for pair in numbers(item.item)]
    assert sorted(listed) == sorted((kind, number) for kind, of in NUMBERED[paper].items() for number in of)
    printed = {int(number) for number in load_reported(REPORTED[paper]).tables if number.isdigit()}
    assert {("table", number) for number in printed} <= set(listed)


def test_all_five_documents_are_there() -> None:
    assert [paper.paper for paper in papers()] == ["ESC-Eval", "EmoHarbor", "FEEL", "FEEL's scoring criteria", "ECDBench"]


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_says_what_runs_and_what_it_needs(name: str) -> None:
    item = ITEMS[name]
    # A comma in a list without quotes makes two needs of one.
    assert not re.search(r"\d; \d{3}\b|; (which|and|that) ", "; ".join(item.needs)), item.needs
    if item.commands:
        assert re.match(r"(yes|no): \S", item.runs) and not item.where
    else:
        assert item.where and not item.needs and not item.runs
        for place in re.findall(r"(?:configs|docs|data_prep)/[\w./-]+", item.where):
            assert (ROOT / place).exists(), place


def parsed(words: list[str]) -> tuple[Any, dict[str, Any]] | None:
    """A line's verb and the values of its options as the real parser reads them; None for what is not ours."""
    start = next((start for start in COMMANDS if tuple(words[: len(start)]) == start), None)
    if start is None:
        return None
    command, rest = COMMANDS[start], words[len(start) :]
    while getattr(command, "commands", None):
        command, rest = command.commands[rest[0]], rest[1:]
    with command.make_context(" ".join(words), rest) as context:
        return command, dict(context.params)


@pytest.mark.parametrize("line", LINES)
def test_every_command_is_taken_by_its_program(line: str) -> None:
    words = shlex.split(line)
    assert list(mistakes(words)) == []
    if (taken := parsed(words)) is None:
        assert words[0] in ("make", "accelerate"), line
    for word in words:
        if word.startswith("configs/") or word.endswith(".py"):
            assert (ROOT / word).is_file(), word
    for option, value in itertools.pairwise(words):
        if option in ("--supporter", "--seeker", "--judge", "--model") and re.fullmatch(r"[a-z0-9][a-z0-9.-]*", value):
            assert value in model_names(), value
            load_spec(value)
        if option == "--config" and value.startswith("configs/eval/"):
            load = load_feel_config if "feel" in words else load_config
            load(ROOT / value, {})
    if taken:
        command, values = taken
        assert all(values[parameter.name] is not None for parameter in command.params if parameter.required)


def test_a_wrong_command_is_noticed() -> None:
    for line, said in (
        ("esc-eval discriminate --against", "requires an argument"),
        ("esc-eval feel fit --judgements a.jsonl", "Missing parameter: human"),
        ("esc-eval run --limit two --config c.yaml", "valid integer"),
    ):
        with pytest.raises(Exception, match=said):
            parsed(shlex.split(line))


def test_the_document_is_made_of_the_file() -> None:
    """`python docs/paper_items.py` writes it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == page().strip()
    assert Path(DOCUMENT).is_relative_to(ROOT)
