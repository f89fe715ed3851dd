"""docs/paper_items.yaml, which docs/reproduce.md is made of: every table and figure of the papers once, and what they need."""

import importlib
import itertools
import re
import shlex
from operator import attrgetter
from pathlib import Path

import pytest

from core.rubrics import load_rubric
from core.specs import model_names
from data_prep.scores.annotation import ScoreSheets
from docs.paper_items import BEGIN, DOCUMENT, END, page, papers
from evalsuite.papers.feel import load_feel_config
from evalsuite.papers.reported import load_reported
from evalsuite.runs.config import load_config
from tests.test_docs import ROOT

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


# What has to be found where an item says that it stands.
STANDS = {
    "ESC-Eval: figures 1, 2, 4": ["esc-eval paper respond", "three steps", "cards extract", "cards label", "sheet export"],
    "ESC-Eval: figures 6, 7, 8": ["exactly four lines", "situation of the seeker is summed up", "at least one event"],
    "ESC-Eval: figure 9": ["^> My sister moved out", "^Age: 27$", "^Problem: Their sister moved out"],
    "ESC-Eval: figures 10, 11": ['"id": ?"bundled-support-en', '"role": ?"seeker"', '"id": ?"role-play-en'],
    "ESC-Eval: tables 10, 11, 12": [*(f"^  {name}:" for name in load_rubric("role_play").dimensions), "about five rounds"],
    "ESC-Eval: figures 12 to 19": [f"^  {name}:" for name in load_rubric("esc_eval").dimensions],
    "EmoHarbor: figures 1, 2": ["Thinker", "Talker", "supporter speaks first", "ten\\s+dimensions"],
    "EmoHarbor: tables 6, 7": [f"^  {name}:" for name in load_rubric("emoharbor").dimensions],
    "FEEL: figures 1, 2, 3": ["Figure 1 compares", "figure 2 shows", "some of them again", "per dialogue", "Spearman"],
    "FEEL's scoring criteria: six aspects, 0 to 3": ["^example:"],
    "ECDBench: figures 1, 2, 3": [
        *(f"^\\| {layer} \\|" for layer in ("capability", "task", "data", "method")),
        *(f"^\\| {group} \\|" for group in ("threshold", "foundational", "core", "supporting")),
        "figure 1",
    ],
    "ECDBench: tables 3, 4": [
        *("Config", "Scores", "CalculateBenchmarkScore", "LoadConfiguration", "InitializeScoreStorage", "GetRawScore"),
        *("NormalizeScore", "AggregateScores", "GetRelevantScores", "SynthesizeSubAbilityScore", "GetScoreForLevel"),
        *("CalculateFinalScore", "E_raw", "S_norm", "S_min, S_max", "ω", "T_sub", "A_ij", "A_k, τ", "^  qwen3-32b:"),
    ],
}


def stands(where: str) -> str:
    """The text of the places: a page's section, a file, all files of a folder."""
    texts = []
    for place, anchor in re.findall(r"((?:configs|docs|data_prep)/[\w./-]+)(?:#([\w-]+))?", where):
        path = ROOT / place
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
        if anchor:
            parts = re.split(r"^(#+) (.+)$", text, flags=re.MULTILINE)[1:]
            sections = {re.sub(r"[^\w ]", "", title.lower()).replace(" ", "-"): at for at, title in enumerate(parts[1::3])}
            level, start = parts[3 * sections[anchor]], 3 * sections[anchor]
            end = next((at for at in range(start + 3, len(parts), 3) if len(parts[at]) <= len(level)), len(parts))
            text = "".join(parts[start:end])
        texts.append(text)
    return "\n".join(texts)


def test_every_place_is_looked_into() -> None:
    assert {name for name, item in ITEMS.items() if item.where} == set(STANDS)


def test_the_papers_symbols_are_led_to_what_is_here() -> None:
    found = re.findall(r"`(evalsuite\.[\w.]+)`", stands("docs/frameworks/ecdbench.md#the-papers-symbols"))
    assert len(found) > 12
    for name in found:
        module, rest = ".".join(name.split(".")[:3]), name.split(".")[3:]
        assert attrgetter(".".join(rest))(importlib.import_module(module)), name


def test_the_guide_of_feels_annotators_has_an_example_scored_on_every_aspect_and_no_judge_sees_it(tmp_path: Path) -> None:
    rubric = load_rubric("feel")
    ScoreSheets([], rubric).write_guide(tmp_path / "guide.txt", ["en", "zh"])
    guide = (tmp_path / "guide.txt").read_text(encoding="utf-8")
    assert set(rubric.example) == {"en", "zh"} and "example" not in rubric.model_dump()
    for language, text in rubric.example.items():
        assert all(line in guide for line in text.splitlines())
        scores = dict(re.findall(r"^(\S+) ([\d.]+)[:：]", text, re.MULTILINE))
        for name, dimension in rubric.dimensions.items():
            assert float(scores[dimension.label[language]]) in rubric.steps(name)


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
        for pattern in STANDS[name]:
            assert re.search(pattern, stands(item.where), re.MULTILINE), pattern


@pytest.mark.parametrize("line", LINES)
def test_what_a_command_names_is_there(line: str) -> None:
    """test_docs.py takes every command apart as a program does, test_paper_commands.py runs it."""
    words = shlex.split(line)
    for word in words:
        if word.startswith("configs/") or word.endswith(".py"):
            assert (ROOT / word).is_file(), word
    for option, value in itertools.pairwise(words):
        if option in ("--supporter", "--model") and re.fullmatch(r"[a-z0-9][a-z0-9.-]*", value):
            assert value in model_names(), value
        if option == "--config" and value.startswith("configs/eval/"):
            (load_feel_config if "feel" in words else load_config)(ROOT / value, {})


def test_the_document_is_made_of_the_file() -> None:
    """`python docs/paper_items.py` writes it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == page().strip()
    assert Path(DOCUMENT).is_relative_to(ROOT)
