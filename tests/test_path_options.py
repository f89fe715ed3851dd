"""Every path option of every verb, found by introspection: what cannot be read or written is one line and exit code 2, and no
output replaces an input."""

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import typer
import yaml

import data_prep.__main__
from core.errors import UserError, run_cli
from core.files import CONFIGS
from core.paths import IN_FILE, IN_FOLDER, IN_MODEL, OUT_FILE, PathOption, Reads, Writes, check, path_options
from evalsuite.commands.options import IN_RUN, OUT_RUN, out_tables
from tests.conftest import EscEval
from tests.surface import COMMANDS, VERBS

BUNDLED = Path(data_prep.__file__).parent / "bundled"


OPTIONS = {typed: path_options(verb, {}) for typed, verb in VERBS.items()}
each_verb = pytest.mark.parametrize("verb", VERBS)


@pytest.fixture(autouse=True)
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file, a folder and a link to nothing, beside the empty one that verbs are called in."""
    given, work = tmp_path / "given", tmp_path / "work"
    (given / "folder.yaml").mkdir(parents=True)
    (given / "file.jsonl").write_text("{}\n")
    (given / "link.yaml").symlink_to(given / "nowhere")
    work.mkdir()
    monkeypatch.chdir(work)
    return given


Refused = Callable[[str, list[str]], str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Types a verb's arguments: it has to end in exit code 2 with one line, which is returned, and to write nothing."""

    def call(verb: str, arguments: list[str]) -> str:
        entry, *words = verb.split()
        with pytest.raises(SystemExit) as end:
            run_cli(lambda: COMMANDS[entry].main(args=[*words, *arguments], prog_name=entry))
        told = capsys.readouterr().err
        assert end.value.code == 2 and told.startswith("error: ") and told.count("\n") == 1, f"{arguments}: {told}"
        assert not list(Path.cwd().iterdir()), f"{arguments}: something was written"
        return told

    return call


def arguments(verb: str, given: Path, **values: str) -> list[str]:
    """These values of a verb's parameters, and what else it needs: inputs that are there."""
    positional, options = [], []
    hints = get_type_hints(VERBS[verb], include_extras=True)
    for parameter in inspect.signature(VERBS[verb]).parameters.values():
        option = next((option for option in OPTIONS[verb] if option.parameter == parameter.name), None)
        value = values.get(parameter.name)
        if value is None and parameter.default is inspect.Parameter.empty and parameter.name != "context":
            number = hints[parameter.name].__origin__ in (int, float)
            value = valid(option.role, given) if option else "1" if number else "x"
        if value is None:
            continue
        if any(isinstance(info, typer.models.ArgumentInfo) for info in hints[parameter.name].__metadata__):
            positional.append(value)
        else:
            options += [option.name if option else f"--{parameter.name}", value]
    return [*options, "--", *positional] if positional else options


def valid(role: Reads | Writes, given: Path) -> str:
    """What an option can be, as far as its path goes."""
    if isinstance(role, Writes):
        return "out"
    if role.kind in ("name", "model"):
        return "embedded"
    return typed(role, given / ("folder.yaml" if role.kind == "folder" else "file.jsonl"))


def typed(role: Reads | Writes, path: Path) -> str:
    return f"x={path}" if isinstance(role, Reads) and role.labelled else str(path)


# --- what is not there, or something else -----------------------------------------------------------------------------------


def wrong(role: Reads | Writes, given: Path) -> list[Path]:
    """Paths that an option cannot take: nothing, something else, a link to nothing, what no path can be."""
    file, folder, link = given / "file.jsonl", given / "folder.yaml", given / "link.yaml"
    if isinstance(role, Writes):
        return [file if role.files else folder, link, file / "below", Path("x" * 300)]
    if looked_up(role):
        return []
    other = {"file": [folder], "name": [folder], "model": [folder], "folder": [file], "place": []}
    return [given / "missing.yaml", link, Path(f"{'x' * 300}.yaml"), *other[role.kind]]


def looked_up(role: Reads | Writes) -> bool:
    """Whether the verb itself says what is wrong with a path: it knows where to get the corpus that should be there."""
    return isinstance(role, Reads) and role.kind == "place" and role.labelled


@each_verb
def test_a_path_that_cannot_be_read_or_written_is_one_line(verb: str, given: Path, refused: Refused) -> None:
    for option in OPTIONS[verb]:
        for path in wrong(option.role, given):
            told = refused(verb, arguments(verb, given, **{option.parameter: typed(option.role, path)}))
            assert told.startswith(f"error: {option.name} {path}: ")


def single(command: Any) -> Iterator[list[str]]:
    """What is typed for each option of a verb that holds one value, in every spelling that it has."""
    for option in command.params:
        if option.param_type_name == "option" and not option.multiple:
            for spelling in (*option.opts, *option.secondary_opts):
                yield [spelling, *["1"] * (0 if option.is_flag else option.nargs)]


@pytest.mark.slow
@each_verb
def test_an_option_that_holds_one_value_is_not_given_twice(verb: str, refused: Refused) -> None:
    entry, *words = verb.split()
    command: Any = COMMANDS[entry]
    for word in words:
        command = command.commands[word]
    for typed_once in single(command):
        if "--help" not in typed_once and "-h" not in typed_once:
            told = refused(verb, [*typed_once, *typed_once])
            assert "is given 2 times and takes one value: keep one" in told, typed_once


LABELS = {"role-play": "seeker"}  # else a corpus
BESIDE = {  # for the verbs that read something else first
    "role-sft": {"source": f"bundled_support={BUNDLED}", "out": "out"},
    "role-play": {"config": str(CONFIGS / "eval" / "role_play.yaml"), "out": "out"},
}


@pytest.mark.parametrize(
    ("verb", "parameter"), [(verb, option.parameter) for verb in VERBS for option in OPTIONS[verb] if looked_up(option.role)]
)
def test_a_place_that_is_not_there_is_one_line(verb: str, parameter: str, given: Path, refused: Refused) -> None:
    label = next((label for words, label in LABELS.items() if words in verb), "esconv")
    beside = next((values for words, values in BESIDE.items() if words in verb), {})
    for path in (given / "missing", given / "link.yaml"):
        assert str(path) in refused(verb, arguments(verb, given, **beside | {parameter: f"{label}={path}"}))


# --- outputs and inputs -----------------------------------------------------------------------------------------------------


def clashes(output: Writes, source: Reads, folder: Path) -> Iterator[tuple[Path, Path]]:
    """(output, input) for every way in which one could replace the other, or be read with it the next time."""
    if source.kind != "folder" and not output.files:
        file, soft, hard = (folder / f"{name}.jsonl" for name in ("file", "soft", "hard"))
        file.write_text("paid for")
        soft.symlink_to(file)
        hard.hardlink_to(file)
        yield from product((file, folder / "x" / ".." / file.name, soft, hard), (file, soft, hard))
    for pattern in output.files if source.kind != "folder" and not source.beside else ():
        file = folder / "out" / pattern.replace("*", "x")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("paid for")
        if source.kind not in ("name", "model") or file.suffix in (".json", ".jsonl", ".yaml"):
            yield folder / "out", file
    if source.kind == "file":
        return
    corpus = folder / "corpus"
    corpus.mkdir()
    names = [pattern.replace("*", "x") for pattern in source.files or ("x",)]
    for name in names:
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_text("paid for")
    if not output.files:
        yield corpus / names[0], corpus
    elif not source.files:
        yield from ((corpus, corpus), (corpus / "below", corpus))
    elif any(Path(name).match(pattern) for name, pattern in product(names, output.files)) or "*" in source.files:
        yield corpus, corpus


@each_verb
def test_no_output_replaces_an_input(verb: str, given: Path, refused: Refused, tmp_path: Path) -> None:
    for number, (output, source) in enumerate(product(OPTIONS[verb], OPTIONS[verb])):
        if isinstance(output.role, Writes) and isinstance(source.role, Reads) and output.parameter != source.parameter:
            folder = tmp_path / str(number)
            (folder / "x").mkdir(parents=True)
            for target, path in clashes(output.role, source.role, folder):
                values = {output.parameter: str(target), source.parameter: typed(source.role, path)}
                told = refused(verb, arguments(verb, given, **values))
                assert told.startswith(f"error: {output.name} {target}: {source.name} ")
                assert any(words in told for words in ("would be replaced", "is read whole", "is the folder already"))
            assert all(file.read_text() == "paid for" for file in folder.rglob("*") if file.is_file())


def option(role: Reads | Writes, path: str) -> PathOption:
    name = "--out" if isinstance(role, Writes) else "--given"
    return PathOption(name, name, role, (path,))


@pytest.mark.parametrize(
    ("output", "target", "source", "path"),
    [
        (out_tables("power"), "run/power", IN_RUN, "run"),
        (out_tables("pairwise"), "run", IN_RUN, "run"),  # figures beside records
        (Writes(("health_*.jsonl",)), "run", IN_FILE, "run/dialogues.jsonl"),
        (Writes(("*.csv", "manifest.json")), "run", IN_FILE, "run/dialogues.jsonl"),
        (Writes(("*.jsonl",)), "run", IN_FILE, "run/below/dialogues.jsonl"),
        (Writes(("*.jsonl",)), "run", Reads(beside=True), "run/dialogues.jsonl"),
        (Writes(("*",)), "run/llama", IN_MODEL, "run"),
        (Writes(("*",)), ".", IN_FOLDER, "run"),
        (OUT_FILE, "run/scores.jsonl", IN_FILE, "run/dialogues.jsonl"),
        (OUT_RUN, "another", IN_RUN, "run"),
        (OUT_FILE, "x.jsonl", Reads("place", labelled=True), "x=hf:owner/x.jsonl"),
    ],
)
def test_outputs_may_lie_beside_inputs(output: Writes, target: str, source: Reads, path: str) -> None:
    Path("run/below").mkdir(parents=True)
    for file in ("run/dialogues.jsonl", "run/config.json", "run/below/dialogues.jsonl"):
        Path(file).write_text("")
    check([option(output, target), option(source, path)])


def test_an_input_that_a_link_in_the_output_folder_stands_for_is_not_replaced() -> None:
    Path("elsewhere.jsonl").write_text("")
    Path("out").mkdir()
    Path("out/a.jsonl").symlink_to(Path("elsewhere.jsonl").absolute())
    with pytest.raises(UserError, match=r"out/a\.jsonl is read from there and would be replaced"):
        check([option(Writes(("*.jsonl",)), "out"), option(IN_FILE, "out/a.jsonl")])


@pytest.mark.parametrize(
    ("settings", "arguments", "told"),
    [
        ({"cards": ["run/cards.jsonl"]}, ("run",), "--out run: cards run/cards.jsonl is read from there"),
        ({"cards": ["run/cards.jsonl"]}, ("run", "--out", "run/../run"), "--out run/../run: cards run/cards.jsonl is read"),
        ({}, ("run", "--cards", "run/cards.jsonl"), "--out run: --cards run/cards.jsonl is read from there"),
        (
            {"gold": {"dialogues": "run/gold_dialogues.jsonl", "scores": "gold.jsonl"}},
            ("run", "--only", "score"),
            "--out run: gold.dialogues run/gold_dialogues.jsonl is read from there",
        ),
        (
            {},
            ("judge-card", "embedded", "--dialogues", "run/health_dialogues.jsonl"),
            "run/health_dialogues.jsonl is read from there",
        ),
    ],
)
def test_what_a_config_names_is_not_replaced(
    settings: dict[str, Any], arguments: tuple[str, ...], told: str, esc_eval: EscEval, tmp_path: Path
) -> None:
    config = yaml.safe_load((CONFIGS / "eval" / "demo.yaml").read_text()) | {"out": "run"} | settings
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "run").mkdir()
    for name in ("cards", "gold_dialogues", "health_dialogues"):
        (tmp_path / "run" / f"{name}.jsonl").write_text("paid for")
    out = ("--out", "run") if arguments[0] == "judge-card" else ()
    code, error = esc_eval(*arguments, "--config", "config.yaml", *out)
    assert code == 2 and told in error
    assert {path.read_text() for path in (tmp_path / "run").iterdir()} == {"paid for"}


# --- every verb ---------------------------------------------------------------------------------------------------------------

# What names a path in an option's help, so that it has to be declared even where it is a string; and what only mentions one.
PATH_WORDS = re.compile(r"\b(file|files|folder|folders|PLACE|FOLDER|FILE|CSV|JSONL)\b")
MENTIONED = {("esc-eval paper feel ensemble", "method")}


def undeclared(verb: Callable[..., Any]) -> set[str]:
    """The parameters that name paths and do not say whether these are read or written."""
    found = set()
    for parameter, hint in get_type_hints(verb, include_extras=True).items():
        metadata = getattr(hint, "__metadata__", ())
        told = " ".join(f"{info.metavar} {info.help}" for info in metadata if isinstance(info, typer.models.ParameterInfo))
        plain = str(hint.__origin__ if metadata else hint)
        if ("Path" in plain or ("str" in plain and PATH_WORDS.search(told))) and parameter != "return":
            found.add(parameter)
    return found - {option.parameter for option in path_options(verb, {})}


@each_verb
def test_every_path_is_declared_as_read_or_written(verb: str) -> None:
    assert undeclared(VERBS[verb]) <= {parameter for typed, parameter in MENTIONED if typed == verb}


def test_a_verb_that_forgets_to_is_seen() -> None:
    def verb(
        scores: Annotated[list[Path], typer.Option(help="…")],
        rubric: Annotated[str | None, typer.Option(help="By name or file.")] = None,
        out: Annotated[Path | None, typer.Option(help="…"), OUT_FILE] = None,
        seed: int = 0,
    ) -> None: ...

    assert undeclared(verb) == {"scores", "rubric"}
