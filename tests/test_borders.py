"""Two borders. What is printed or written for people passes one: nothing in a name, comment or error steers their programs.
Files are read at another, which knows encodings, marks, doubled keys and depth, and names file and line in every error."""

import ast
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import orjson
import pytest
from rich.text import Text

from core.errors import UserError, clean, run_cli, say
from core.files import CONFIGS, ENCODING, first_object, read_json, read_jsonl, read_text
from core.ledger import BuildStep
from core.page import environment
from core.prompts import load_pack
from core.records import Preference
from core.rows import CorpusReader
from core.settings import load_yaml
from core.tables import Screen, Table, escape_markdown, guarded, to_console, to_csv, to_markdown
from data_prep.cards import load_cards
from data_prep.cards.sheets import SheetLayout, read_filled, write_csv, write_xlsx
from data_prep.scores.held import read_held
from data_prep.scores.human import COLUMNS, read_comparisons, read_preferences, read_scores
from data_prep.sources import SOURCES, read_own
from evalsuite.commands.output import print_json
from evalsuite.statistics.discrimination import read_ratings
from tests.test_house import FILES, ROOT

# What prints, or writes a table, where: beside the border a start that has imported nothing yet, a guard of servers that stands
# alone, and JSON for programs.
WRITERS = {
    "print": {"core/errors.py", "core/starting.py"},
    "typer.echo": set(),
    "Console": set(),
    "rich.print": set(),
    "csv.writer": {"core/tables.py", "data_prep/cards/sheets.py"},
    "csv.DictWriter": set(),
    "Workbook": {"data_prep/cards/sheets.py"},
    "sys.stdout.write": {"evalsuite/commands/output.py"},
    "sys.stdout.buffer.write": {"evalsuite/commands/output.py"},
    "sys.stderr.write": set(),
}
HOSTILE = [
    chr(code) for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
]
NAME = f"an\x1b[31mna{''.join(HOSTILE)}\x1b]0;title\x07"
TABLE = Table("t", NAME, ("judge", NAME), ((NAME, 1.0), ("b", 2.0)), (NAME,))


def raw(text: str) -> list[str]:
    return [repr(sign) for sign in HOSTILE if sign in text]


@pytest.mark.slow
def test_nothing_else_prints_or_writes_tables_and_warnings_are_clean() -> None:
    found: dict[str, set[str]] = {name: set() for name in WRITERS}
    for file in FILES.values():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in found:
                found[name].add(file.relative_to(ROOT).as_posix())
            elif isinstance(node, ast.Call) and name == "warnings.warn":
                assert ast.unparse(node.args[0]).startswith("clean("), f"{file}:{node.lineno}"
    assert found == WRITERS, "print with core.errors.say or core.tables.Screen, write tables with core.tables or cards.sheets"


def printed(show: Callable[[Screen], None]) -> str:
    buffer = io.StringIO()
    show(Screen(file=buffer, force_terminal=True, color_system=None, width=200))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "show",
    [
        lambda screen: screen.print(NAME, soft_wrap=True),
        lambda screen: screen.print(Text(NAME)),
        lambda screen: screen.print(Text.assemble((NAME, "bold"))),
        lambda screen: to_console(TABLE, screen),
        lambda screen: screen.rule(NAME),
        lambda screen: screen.log(NAME),
    ],
)
def test_a_console_shows_and_does_nothing(show: Callable[[Screen], None]) -> None:
    text = printed(show)
    assert not raw(text) and "an\ufffd[31mna" in text


def test_lines_errors_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise UserError(f"{NAME}: wrong")

    say(NAME)
    say(NAME, err=True)
    with pytest.raises(SystemExit):
        run_cli(fail)
    print_json({NAME: [NAME]})
    out, err = capsys.readouterr()
    assert not raw(out) and not raw(err)
    assert json.loads(out.partition("\n")[2]) == {NAME: [NAME]}


def test_tables_as_files(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": NAME}, {"id": "b", "text": f"={NAME}"}]
    write_csv(tmp_path / "s.csv", ("id", "text"), rows)
    write_xlsx(tmp_path / "s.xlsx", "s", ("id", "text"), rows)
    cells = [str(cell.value) for row in openpyxl.load_workbook(tmp_path / "s.xlsx")["s"] for cell in row]
    for text in (to_csv(TABLE), to_markdown(TABLE), escape_markdown(NAME), (tmp_path / "s.csv").read_text(), *cells):
        assert not raw(text)
    assert list(csv.reader(io.StringIO((tmp_path / "s.csv").read_text())))[2][1].startswith("'=an")
    assert guarded("=1") == "'=1"


@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_a_sheet_of_what_is_not_shown_comes_back(suffix: str, tmp_path: Path) -> None:
    known = {"a": f"{NAME}\r\nand more\ufffe"}
    rows = [{"id": "a", "text": known["a"], "note": "x"}]
    path = tmp_path / f"s{suffix}"
    if suffix == ".csv":
        write_csv(path, ("id", "text", "note"), rows)
    else:
        write_xlsx(path, "s", ("id", "text", "note"), rows)
    layout = SheetLayout("s", ("id", "text", "note"), ("note",), "id", "text")
    assert read_filled(path, layout, known, "card", lambda _, row: row.cells["note"]) == {"a": "x"}


def test_pages() -> None:
    assert not raw(environment(Path()).from_string("{{ name }}").render(name=NAME))


@pytest.mark.parametrize("text", ["a\tb\nc", "سلام\u200cدنیا", "👩\u200d🎓", "\u200eא\u200f", "zero\u200bwidth"])
def test_what_is_text_stays(text: str) -> None:
    assert clean(text) == text


# --- what is read ------------------------------------------------------------------------------------------------------------

PLACES = {"core/files.py", "core/settings.py", "core/people_tables.py"}
PARSERS = {
    *("csv.reader", "csv.DictReader", "openpyxl.load_workbook", "json.load", "json.loads", "orjson.loads", "ast.literal_eval"),
    *("yaml.load", "yaml.safe_load", "yaml.full_load", "yaml.load_all", "yaml.safe_load_all", "yaml.compose", "yaml.parse"),
}
METHODS = {"read_text", "read_bytes", "open", "model_validate_json", "read_csv", "read_excel", "read_json", "read_table"}
OWN = {"parquet.read_table", "os.open"}  # of another kind
# What else reads or parses in these files, and why that is no table of people and no file of records.
ELSEWHERE = {
    "what another program prints": {"data_prep/published/stand_ins.py", "data_prep/published/comparison.py"},
    "what this process has just written": {
        *("serve/checkpoints/model_card.py", "evalsuite/report/charts.py", "evalsuite/report/report.py"),
        *("evalsuite/report/transcripts.py", "evalsuite/runs/folder.py", "evalsuite/runs/contents.py"),
        *("evalsuite/runs/run_config.py", "core/tables.py"),
    },
    "our own styles, scripts and prompts": {
        *("core/page.py", "evalsuite/papers/ecdbench/figures.py", "evalsuite/report/sheet.py"),
        "data_prep/published/esc_eval.py",
    },
    "files of the system": {"core/machine.py", "core/third_party.py", "serve/launch.py"},
    "weights, a tokenizer, a template or the state of a training": {
        *("serve/checkpoints/tensors.py", "serve/checkpoints/sentencepiece.py"),
        *("core/specs.py", "train/run.py"),
    },
    "rows of our own database": {"serve/store.py"},
    "a data card, in Markdown": {"data_prep/publication.py"},
    "a cell that holds a list": {"data_prep/sources/characters.py"},
    "an environment that is opened": {"train/esc_supporter.py", "train/rollouts.py", "evalsuite/verifiers_env.py"},
}


def _writes(call: ast.Call) -> bool:
    return any(isinstance(part, ast.Constant) and str(part.value)[:1] in "wax" for part in call.args)


def _reads(file: Path) -> bool:
    parsers = PARSERS - {"json.loads", "orjson.loads"} if file.parent == ROOT / "serve" else PARSERS  # of what servers reply
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) not in OWN:
            method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
            if name in parsers or ((method or name == "open") and not _writes(node)):
                return True
    return False


@pytest.mark.slow
def test_nothing_else_opens_or_parses_a_file() -> None:
    reading = {file.relative_to(ROOT).as_posix() for file in FILES.values() if _reads(file)}
    assert reading - PLACES == set().union(*ELSEWHERE.values()), "read it by core.files, core.rows or core.people_tables"


GOLD = ",".join(COLUMNS) + "\nd1,en,Renée 安娜,feel,safety,2,\n"
SCORE = dict(zip(COLUMNS[:6], ("d1", "en", "Renée 安娜", "feel", "safety", 2), strict=True))
CHOICE = "item,a,b,annotator,verdict\ni,x,y,Renée 安娜,a\n"
HELD = "situation,supporter,language,role,text\ns,m,en,seeker,Renée 安娜\ns,m,en,supporter,ok\n"
PREFERRED = {"dialogue_a": "1", "dialogue_b": "2", "annotator": "Renée 安娜", "question": "q", "verdict": "a", "order": "ab"}
OWN_CORPUS = '{"source": "own", "licence": "x"}\n' + (
    '{"id": "1", "language": "en", "turns": [{"role": "seeker", "text": "Renée 安娜"}, {"role": "supporter", "text": "ok"}]}\n'
)
SMILE = [{"role": "client", "content": "Renée 安娜"}, {"role": "counselor", "content": "ok"}]


def corpus(name: str) -> Callable[[Path], Any]:
    return lambda path: list(SOURCES[name].read([path], CorpusReader(BuildStep(name), strict=True)))


def rows_of_csv(path: Path) -> Any:
    return [row.value for row in CorpusReader(BuildStep("x"), strict=True).csv(path)]


READERS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "gold": ("g.csv", read_scores, GOLD),
    "gold, JSON lines": ("g.jsonl", read_scores, orjson.dumps(SCORE).decode()),
    "choices": ("c.csv", lambda path: read_comparisons([path]), CHOICE),
    "held": ("h.csv", lambda path: read_held([path]), HELD),
    "ratings": ("r.csv", lambda path: read_ratings(path)[1:], "user,model,score\nRenée 安娜,m,1\n"),
    "preferences": ("p.jsonl", lambda path: read_preferences([path]), orjson.dumps(PREFERRED).decode() + "\n"),
    "records": ("p.jsonl", lambda path: read_jsonl(path, Preference, "x"), orjson.dumps(PREFERRED).decode() + "\n"),
    "JSON": ("x.json", lambda path: read_json(path, "x"), '{"name": "Renée 安娜"}'),
    "YAML": ("x.yaml", lambda path: load_yaml(path, "x"), "name: Renée 安娜\n"),
    "consent": ("t.txt", lambda path: read_text(path, "text"), "Renée 安娜"),
    "own cards": ("p.csv", load_cards, "problem,language\nRenée 安娜,en\n"),
    "own corpus": ("o.jsonl", lambda path: list(read_own([path], CorpusReader(BuildStep("x"), strict=True))), OWN_CORPUS),
    "a corpus in many files": ("3.json", corpus("smile"), orjson.dumps(SMILE).decode()),
    "a corpus in CSV": ("e.csv", rows_of_csv, "a,b\nRenée 安娜,1\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["gb18030", "utf-16-le", "utf-16-be", "utf-16", "latin-1"])
@pytest.mark.parametrize("name", READERS)
def test_every_reader_asks_for_an_encoding_and_takes_it(
    name: str, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read, text = READERS[name]
    if encoding == "latin-1":
        text = text.replace("安娜", "ü")
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    monkeypatch.delenv(ENCODING, raising=False)
    expected = read(path)
    path.write_bytes(text.encode(encoding))
    if encoding != "utf-16":
        with pytest.raises(UserError, match=rf"{file}.*: not UTF-8 .*{ENCODING}=") as caught:
            read(path)
        assert encoding in str(caught.value) or encoding == "latin-1"
        monkeypatch.setenv(ENCODING, encoding)
    assert read(path) == expected


def test_a_declared_encoding_that_is_none_or_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.csv").write_bytes(GOLD.encode("gb18030"))
    for declared, problem in (("gb-18030-x", "unknown encoding"), ("ascii", "can't decode byte")):
        monkeypatch.setenv(ENCODING, declared)
        with pytest.raises(UserError, match=rf"g\.csv: neither UTF-8 .*nor the encoding that {ENCODING} names: .*{problem}"):
            read_scores(tmp_path / "g.csv")


def test_what_is_utf8_is_read_so_whatever_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENCODING, "gb18030")
    (tmp_path / "g.csv").write_text(GOLD, encoding="utf-8")
    assert read_scores(tmp_path / "g.csv")[0].annotator == "Renée 安娜"
    assert load_pack("esc_eval").fingerprint()
    assert load_yaml(CONFIGS / "taxonomy.yaml", "taxonomy")


@pytest.mark.parametrize(
    "text", ["[" * 30_000, "a:\n  " + "{a: " * 30_000, "\n" + "- " * 30_000 + "x", "? " * 30_000, "[" * 300]
)
def test_deep_yaml_is_one_error_with_its_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"deep\.yaml:{1 + text.count(chr(10))}: malformed YAML: nested too deeply"):
        load_yaml(tmp_path / "deep.yaml", "config")


@pytest.mark.slow
def test_wide_yaml_is_read(tmp_path: Path) -> None:
    (tmp_path / "wide.yaml").write_text("\n".join(f"- [{n}, {{a: [1]}}]" for n in range(2000)))
    assert len(load_yaml(tmp_path / "wide.yaml", "config")) == 2000


@pytest.mark.parametrize("text", ["[" * 30_000, '{"a":' * 30_000, "[" * 300 + "]" * 300])
def test_deep_json_is_one_error_with_its_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(text)
    with pytest.raises(UserError, match=r"deep\.json:1: malformed JSON: "):
        read_json(tmp_path / "deep.json", "x")
    with pytest.raises(UserError, match=r"deep\.json:1: malformed JSON: "):
        read_jsonl(tmp_path / "deep.json", Preference, "x")
    assert first_object(tmp_path / "deep.json", "x") == {}
