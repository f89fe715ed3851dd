"""README and docs/ against the code: every command, path, link and example in them, and how far a reader has to click."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import tests.bench.__main__
from core.ledger import BuildStep
from core.rows import CorpusReader
from core.rubrics import Scale, load_rubric
from core.specs import ModelSpec, model_names
from data_prep.profiles import BigFive, Demographics, Preferences
from docs.reference import MODELS
from evalsuite.papers.ecdbench.scores import TaskScore
from tests import surface
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.verbs import printed

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference"  # all but its index is made by `make docs`
PAGES = [README, *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent != REFERENCE), REFERENCE / "index.md"]
NAMES = {str(page.relative_to(ROOT)): page for page in PAGES}
APPS: dict[tuple[str, ...], typer.Typer] = {
    **{("python", "-m", name): app for name, app in surface.APPS.items()},
    **{(f"esc-{name.removeprefix('esc-').partition('_')[0]}",): app for name, app in surface.APPS.items()},
    ("python", "-m", "tests.bench"): tests.bench.__main__.app,
}
COMMANDS: dict[tuple[str, ...], Any] = {words: surface.command_of(app) for words, app in APPS.items()}
NAV = json.dumps(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
each_page = pytest.mark.parametrize("page", NAMES.values(), ids=NAMES)
# What a stranger has to find from the README in two clicks, and the heading under which it stands.
FACTS = {
    "how to install on a GPU node": ("docs/serve-and-scale.md", "install-on-a-gpu-node"),
    "the format of specs": ("docs/evaluate.md", "any-model-in-any-role"),
    "which judge can be used today": ("docs/evaluate.md", "which-judge-can-be-used-today"),
    "the format of score files": ("docs/people.md", "score-files"),
    "what has never been run": ("docs/status.md", "never-run"),
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def unfenced(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def typed(text: str) -> Iterator[list[str]]:
    """Everything to be typed: the lines of bash blocks, and code spans that begin as one of our commands does."""
    for block in blocks(text, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(re.sub(r"(?<!\S)#.*", "", line)):  # as in a shell, no comment begins inside a word
                yield words
    for span in re.findall(r"`([^`\n]+)`", unfenced(text)):
        if re.match(r"(esc-(eval|data|serve|train)|python -m|make|accelerate) ", span):
            yield span.replace("…", "").split()


def mistakes(words: list[str]) -> Iterator[str]:
    """What the program, the Makefile or the tree does not know of a command line."""
    start = next((start for start in COMMANDS if tuple(words[: len(start)]) == start), None)
    if start is not None:
        command, rest = COMMANDS[start], words[len(start) :]
        while rest and getattr(command, "commands", None) and not rest[0].startswith("-"):
            if rest[0].isupper():  # VERB, PART
                return
            if rest[0] not in command.commands:
                yield f"no verb {rest[0]}"
                return
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
        if not command.context_settings.get("ignore_unknown_options"):  # overrides of a recipe
            yield from (f"no option {word}" for word in rest if word.startswith("--") and word.partition("=")[0] not in known)
        for option, value in itertools.pairwise(words):
            named = option in ("--seeker", "--judge") and re.fullmatch(r"[\w-]+", value)
            if named and not value.isupper() and value not in model_names():
                yield f"no model {value}"
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        for word in words[1:]:
            pattern = rf"^{word.partition('=')[0]}\s*[:?]?=" if "=" in word else rf"^{re.escape(word)}:"
            yield from () if re.search(pattern, makefile, re.MULTILINE) else [f"make knows no {word}"]
    elif words[:2] == ["python", "-m"]:
        yield f"no module {words[2]}"


@each_page
def test_every_command_is_one_that_the_programs_take(page: Path) -> None:
    wrong = [f"{' '.join(words)}: {mistake}" for words in typed(page.read_text()) for mistake in mistakes(words)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("esc-eval runn", "no verb runn"),
        ("esc-eval paper feel score --judged", "no option --judged"),
        ("esc-eval run --config c.yaml --judge esc-rang", "no model esc-rang"),
        ("python -m training plan", "no module training"),
        ("make demon", "make knows no demon"),
        ("make demo SCORE=1", "make knows no SCORE=1"),
    ],
)
def test_a_wrong_command_is_noticed(line: str, mistake: str) -> None:
    assert list(mistakes(line.split())) == [mistake]


def missing_paths(text: str) -> list[str]:
    """Paths in this tree that a text names and that are not there."""
    paths = re.findall(r"(?<![\w./-])(?:configs|core|data_prep|docs|evalsuite|serve|tests|train)/[\w./*-]*\w", text)
    return [path for path in paths if not any(ROOT.glob(path))]


@each_page
def test_every_path_in_the_tree_exists(page: Path) -> None:
    assert not missing_paths(page.read_text())


def test_every_path_that_configs_and_the_makefile_name_exists() -> None:
    files = [ROOT / "Makefile", *(path for path in (ROOT / "configs").rglob("*") if path.suffix in (".yaml", ".sh", ".j2"))]
    assert len(files) > 100
    assert {str(file): missing for file in files if (missing := missing_paths(file.read_text()))} == {}


def test_every_verb_is_in_the_documents() -> None:
    """Named in code: by itself, or behind its group."""
    code = " ".join(" ".join(re.findall(r"`+([^`]+)`+", page.read_text())) for page in PAGES)

    verbs = [verb for verb in surface.VERBS if not re.search(rf"(?<![\w-]){re.escape(verb.split()[-1])}(?![\w-])", code)]
    assert len(surface.VERBS) > 30 and not verbs, verbs


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site and code forges make them."""
    headings = re.findall(r"^#+ (.*)$", unfenced(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links(page: Path) -> list[tuple[Path, str]]:
    """The links of a page that stay in the repository: file and anchor ("" for none)."""
    found = re.findall(r"(?<!`)\]\(([^)\s]+)\)", page.read_text())
    inside = [link.partition("#")[::2] for link in found if not re.match(r"https?://", link)]
    return [((page.parent / path).resolve() if path else page, anchor) for path, anchor in inside]


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        if target.parent == REFERENCE and target.name != "index.md":
            assert f"reference/{target.name}" in NAV, target
        else:
            assert target.exists(), f"{page}: {target}"
            assert not anchor or anchor in slugs(target), f"{page}: {target}#{anchor}"
        if page != README:
            assert target.is_relative_to(ROOT / "docs"), f"{page}: the site does not hold {target}"


@cache
def clicks() -> dict[Path, int]:
    away = {README: 0}
    for page in (queue := [README]):
        for target, _ in links(page):
            if target.suffix == ".md" and target.exists() and target not in away:
                away[target] = away[page] + 1
                queue.append(target)
    return away


def test_every_page_and_what_a_stranger_looks_for_is_two_clicks_away_at_most() -> None:
    assert {name: clicks().get(page) for name, page in NAMES.items() if clicks().get(page, 9) > 2} == {}
    for fact, (path, anchor) in FACTS.items():
        assert anchor in slugs(ROOT / path) and clicks()[ROOT / path] <= 2, fact


def test_the_readme_is_short_and_says_what_was_never_run() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 180
    assert len(text.split()) <= 1100
    top = text[: text.index("## Install")]
    assert "never run" in top and "GPU" in top and "No figure of a paper was reproduced" in top


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r'"([\w/-]+\.md)"', NAV))
    assert listed >= {name.removeprefix("docs/") for name in NAMES if name.startswith("docs/")}


@each_page
def test_every_spec_shown_is_one(page: Path) -> None:
    for block in blocks(page.read_text(), "yaml"):
        if "roles" in (shown := yaml.safe_load(block)):
            ModelSpec.model_validate(shown)


def test_the_readmes_runs_as_they_are_typed(esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One URL; and a capable model behind a key in the roles that are not named."""
    runs = [words for words in typed(README.read_text()) if words[:2] == ["esc-eval", "run"]]
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-test")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    counts: list[set[str]] = []
    for run in runs:
        with Endpoint(behave=lambda body, count: Answer("3333333"), models=("my-model", "gpt-4.1")) as endpoint:
            here = [re.sub(r"https?://[^#]*", endpoint.url, word) for word in run[1:]]
            assert esc_eval(*here, "--limit", "1", "--out", f"run-{len(counts)}") == (0, "")
            counts.append({body["model"] for body in endpoint.requests})
            sent = zip(endpoint.requests, endpoint.headers, strict=True)
            keys = {body["model"]: headers.get("Authorization") for body, headers in sent}
        folder = tmp_path / f"run-{len(counts) - 1}"
        report = (folder / "report.md").read_text()
        assert "Majority ACC" in report and all(floor in report for floor in ("silent", "parrot", "lecture"))
        assert {json.loads(line)["value"] for line in (folder / "judgements.jsonl").read_text().splitlines()} == {3}
    assert counts == [{"my-model"}, {"my-model", "gpt-4.1"}, {"a", "b", "gpt-4.1"}]
    assert keys == {"a": None, "b": None, "gpt-4.1": "Bearer a-key-of-the-test"}


def test_the_framework_shown_is_the_one_that_a_test_runs() -> None:
    architecture = (ROOT / "docs/architecture.md").read_text()
    shown, _ = blocks(architecture, "python")
    module = (ROOT / "tests/evalsuite/example_framework.py").read_text()
    assert module.endswith(shown) and not module.removesuffix(shown).strip().strip('"').count('"""'), (
        "docs/architecture.md shows the module without its docstring"
    )


def test_the_corpus_reader_shown_reads(tmp_path: Path) -> None:
    _, shown = blocks((ROOT / "docs/architecture.md").read_text(), "python")
    found: dict[str, Any] = {}
    exec(shown, found)
    (tmp_path / "calls.jsonl").write_text('{"caller": "I cannot sleep.", "agent": "Since when?"}\n{"caller": 1}\n')
    reader = CorpusReader(BuildStep("calls"))
    (post,) = found["calls"]([tmp_path / "calls.jsonl"], reader)
    assert (post.text, post.reply, reader.step.dropped.total()) == ("I cannot sleep.", "Since when?", 1)


def test_the_rubrics_shown_are_some(tmp_path: Path) -> None:
    every = blocks((ROOT / "docs/evaluate.md").read_text(), "yaml")
    shown = [block for block in every if "\ndimensions:" in block or "\nquestions:" in block]
    for name, block in zip(("short", "tree"), shown, strict=True):
        (tmp_path / f"{name}.yaml").write_text(block)
    short, tree = (load_rubric(str(tmp_path / f"{name}.yaml")) for name in ("short", "tree"))
    assert list(short.dimensions) == ["warmth", "pressure"] and len(shown[0].strip().splitlines()) <= 10
    assert list(tree.dimensions) == ["spoken", "asked", "helpline", "outcome"]
    assert tree.scale_of("outcome").scores == (0, 1, 2, 3)


def test_score_files_shown_are_read(tmp_path: Path) -> None:
    people = (ROOT / "docs/people.md").read_text()
    scores, choices = blocks(people, "csv")
    (tmp_path / "scores.csv").write_text(scores)
    (tmp_path / "choices.csv").write_text(choices)
    printed(surface.APPS["esc-eval"], "agree", "--gold", tmp_path / "scores.csv")
    printed(surface.APPS["esc-eval"], "paper", "role-play", tmp_path / "choices.csv")
    (items,) = blocks((ROOT / "docs/frameworks/ecdbench.md").read_text(), "jsonl")
    assert len([TaskScore.model_validate_json(line) for line in items.splitlines()]) == 3


def test_every_field_of_specs_configs_and_records_is_described() -> None:
    plain = {"language", *Demographics.model_fields, *Preferences.model_fields, *BigFive.model_fields, *Scale.model_fields}
    for name, (_, models) in MODELS.items():
        for model in models:
            schema = model.model_json_schema()
            for kind, part in {model.__name__: schema, **schema.get("$defs", {})}.items():
                bare = {field for field, value in part.get("properties", {}).items() if not value.get("description")}
                assert bare <= (plain if kind != "Quota" else {"source", "language", "count"}), f"{name}: {kind}"


def test_licence_and_citation_say_the_same_as_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["license"] == citation["license"] == "Apache-2.0"
    assert "Apache License\n" in (ROOT / "LICENSE").read_text() and "[Apache-2.0](LICENSE)" in README.read_text()
    assert project["version"] == citation["version"] and f"{citation['version']}" in (ROOT / "CHANGELOG.md").read_text()
    assert [set(author) for author in citation["authors"]] == [{"name"}], "the project has no personal authors"
    assert len(citation["references"]) == 4


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documents and the reference pages made of the code."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    subprocess.run([sys.executable, "docs/reference.py"], cwd=folder, check=True, env={"PYTHONPATH": str(ROOT)}, timeout=120)
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.full  # make lint builds it as strictly
def test_the_site_is_built_strictly_and_needs_no_network(site: Path) -> None:
    result = build(site)
    assert result.returncode == 0, result.stdout + result.stderr
    pages = list((site / "runs/docs").rglob("*.html"))
    assert len(pages) > len(PAGES) + 5
    for page in pages:
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//[^\"> ]*", page.read_text()), page
    assert "<code>--retry" in (site / "runs/docs/reference/esc-eval.html").read_text()
    (site / "docs/people.md").write_text("# People\n\n[there](evaluate.md#nowhere)\n")
    assert build(site).returncode != 0
