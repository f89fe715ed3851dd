"""Tables print the same everywhere, and nothing in a cell can break out of it."""

import csv
import io
import re
from dataclasses import replace
from typing import Annotated, NamedTuple

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from core.page import _kinds
from core.tables import (
    Cell,
    Column,
    Estimate,
    Table,
    cells,
    clean,
    escape_markdown,
    fits,
    fmt,
    is_numeric,
    json_record,
    per_cent,
    to_console,
    to_csv,
    to_markdown,
)


def table(*rows: tuple[Cell, ...], columns: tuple[str, ...] = ("name", "value")) -> Table:
    return Table("some-table", "A title", columns, rows, ("A note.",))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (3, "3"),
        (3.0, "3.00"),
        (2.675, "2.67"),  # the float lies below 2.675
        (-0.001, "0.00"),
        (-0.01, "-0.01"),
        (12345.678, "12345.68"),
        (float("inf"), "inf"),
        ("plain", "plain"),
        (Estimate(62.5, 58.2, 66.1, 24), "62.50 [58.20, 66.10] n=24"),
        (Estimate(62.5, None, None, 1), "62.50 n=1"),
        (Estimate(None, None, None, 0), "– n=0"),
    ],
)
def test_one_number_format(cell: Cell, expected: str) -> None:
    assert fmt(cell) == expected


def test_a_table_s_own_decimals_are_printed_everywhere() -> None:
    shown = Table("t", "T", ("a", "b", "n"), ((0.1234, Estimate(2.0489, 1.5, 2.5, 7), 3),), decimals=3)
    for text in (printed(shown), to_markdown(shown), to_csv(shown)):
        assert "0.123" in text and "2.049" in text and "1.500" in text and "3.000" not in text
    assert [decimals for _, decimals in _kinds(shown)] == [3, 3, 3]


def test_control_characters_are_shown_and_do_nothing() -> None:
    assert clean("a\x00b\x1b[31m\x9bc\td\ne\x7f") == "a\ufffdb\ufffd[31m\ufffdc\td\ne\ufffd"
    assert fmt("\x1b[2J") == "\ufffd[2J"


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="table some-table: row 2 has 1 cells for 2 columns"):
        table(("a", 1), ("b",))


@pytest.mark.parametrize("key", ["", "../up", "a/b", ".hidden", "a b", "-rf"])
def test_keys_are_file_names(key: str) -> None:
    with pytest.raises(ValueError, match="not safe as a file name"):
        Table(key, "t", ("a",), ())


def test_numeric_columns_ignore_gaps() -> None:
    numbers = table(("a", 1), ("b", None), ("c", Estimate(1.0, None, None, 1)))
    assert [is_numeric(numbers, column) for column in (0, 1)] == [False, True]
    assert not is_numeric(table(("a", None)), 1)
    assert not is_numeric(table(("a", 1), ("b", "1")), 1)


def printed(shown: Table, width: int = 200) -> str:
    buffer = io.StringIO()
    to_console(shown, Console(file=buffer, width=width, force_terminal=False))
    return buffer.getvalue()


def test_console_prints_text_and_no_markup() -> None:
    text = printed(table(("[red]x[/red] [/oops]", 0.5), ("\x1b[31mred", None)))
    assert "[red]x[/red] [/oops]" in text and "\ufffd[31mred" in text and "\x1b" not in text
    assert "A title" in text and "A note." in text and "0.50" in text and "–" in text


def test_markdown() -> None:
    expected = """**A title**

| name | value |
| --- | ---: |
| a\\|b | 1.00 |
| two<br>lines | 62.50 [58.20, 66.10] n=24 |

A note.
"""
    assert to_markdown(table(("a|b", 1.0), ("two\nlines", Estimate(62.5, 58.2, 66.1, 24)))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\\|b", "a\\\\\\|b"),
        ("<script>", "&lt;script&gt;"),
        ("&lt;", "&amp;lt;"),
        ("a\r\nb", "a\ufffd<br>b"),
        ("`x`", "\\`x\\`"),
        ("WWW.h.com", "WWW&#46;h.com"),
        ("1.00 [0.50, 2.00] n=4", "1.00 [0.50, 2.00] n=4"),
    ],
)
def test_markdown_escapes(text: str, expected: str) -> None:
    assert escape_markdown(text) == expected


HOSTILE = [
    "![x](http://h/p.png)",
    "[a](http://h)",
    "![a][b]",
    "<img src=http://h>",
    "`<b>`|x",
    "[b]: http://h",
    "<http://h>",
    "\\`x`",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_to_a_markdown_reader(name: str) -> None:
    shown = Table("t", name, ("name", name), ((name, name), ("[b]: http://h", 1)), notes=(f"By {name}.",))
    html = MarkdownIt("commonmark").enable("table").render(to_markdown(shown))
    assert set(re.findall(r"<(\w+)", html)) == {"p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert html.count("<td") == 4


def bold_table() -> Table:
    return replace(table(("a", 1.5), ("b", 2.5)), bold=((1, 1),))


def test_bold_cells_stand_out_where_type_can() -> None:
    shown = bold_table()
    assert "| a | 1.50 |\n| b | **2.50** |" in to_markdown(shown)
    assert "*" not in to_csv(shown)
    assert "*" not in printed(shown)


def test_a_wide_table_comes_in_parts_that_begin_with_the_names() -> None:
    """Nothing is folded or left out, and a bold cell stays bold."""
    wide = [Estimate(50.0 + i, 40.0, 60.0 + i, 100) for i in range(8)]
    rows: tuple[tuple[Cell, ...], ...] = tuple((f"dimension {name}", "en", *wide) for name in ("one", "two", "three"))
    shown = Table("t", "t", ("dimension", "language", *(f"figure {i}" for i in range(8))), rows, ("A note.",), bold=((1, 3),))
    text = printed(shown, 78)
    assert all(len(line) <= 78 for line in text.splitlines()) and text.count("A note.") == 1
    assert text.count("dimension two") == text.count("│ en ") // 3 > 1
    assert [text.count(f"figure {i}") for i in range(8)] == [1] * 8 and text.count("57.00 [40.00, 67.00] n=100") == 3
    buffer = io.StringIO()
    to_console(shown, Console(file=buffer, width=78, force_terminal=True, color_system="standard"))
    assert re.findall(r"\x1b\[1m\s*(\d+)", buffer.getvalue()) == ["51"]


def test_a_table_fits_where_nothing_of_it_is_folded() -> None:
    shown = Table("t", "t", ("n", "a"), (("word", "two words"),))
    whole = printed(shown, 100).splitlines()[1].rstrip()
    assert fits(shown, Console(file=io.StringIO(), width=len(whole)))
    assert not fits(shown, Console(file=io.StringIO(), width=len(whole) - 1))


@pytest.mark.parametrize("place", [(2, 0), (0, 2), (-1, 0)])
def test_a_bold_cell_must_be_there(place: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="to be bold"):
        replace(bold_table(), bold=(place,))


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_csv_reads_back() -> None:
    text = to_csv(table(('quote " comma , line\nbreak', 1.5), ("中文", None)))
    assert read(text) == [["name", "value"], ['quote " comma , line\nbreak', "1.50"], ["中文", ""]]
    assert "\r" not in text


@pytest.mark.parametrize(
    "formula", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\nx", "＝1+1", "-", "+1_000", "--1"]
)
def test_csv_formulas_become_text(formula: str) -> None:
    assert read(to_csv(table((formula, 1))))[1][0] == "'" + formula


def test_csv_formulas_in_headers_and_after_a_semicolon_become_text_and_numbers_stay() -> None:
    """Where lists are parted by semicolons, a spreadsheet parts our files there."""
    numbers = [[number, "-3.25"] for number in ("-3", "+4.5", "-1e-5", "-.5")]
    text = to_csv(table(("x;=1+1;-2", 1), *((number, -3.25) for number, _ in numbers), columns=("=a", "b")))
    assert read(text) == [["'=a", "b"], ["x;'=1+1;'-2", "1"], *numbers]


def test_csv_spreads_estimates() -> None:
    text = to_csv(table(("a", Estimate(62.5, 58.2, 66.1, 24)), ("b", None), ("c", Estimate(50.0, None, None, 1))))
    assert read(text) == [
        ["name", "value", "value low", "value high", "value n"],
        ["a", "62.50", "58.20", "66.10", "24"],
        ["b", "", "", "", ""],
        ["c", "50.00", "", "", "1"],
    ]


class _Share(NamedTuple):
    supporter: Annotated[str, Column("supporter")]
    share: Annotated[float | None, Column("share %", per_cent)]
    estimate: Annotated[Estimate, Column("mean", lambda mean: mean.times(2))]
    seed: int = 0  # in no table


def test_records_become_a_table_and_json() -> None:
    rows = [_Share("a", 0.5, Estimate(1.0, 0.0, 2.0, 3)), _Share("b", None, Estimate(None, None, None, 0))]
    table = Table.of("shares", "Shares", rows, ["A note."], "Scores")
    assert table.columns == ("supporter", "share %", "mean")
    assert table.rows == (("a", 50, Estimate(2.0, 0.0, 4.0, 3)), ("b", None, Estimate(None, None, None, 0)))
    assert json_record(rows[0]) == {"supporter": "a", "share": 0.5, "estimate": rows[0].estimate.record(), "seed": 0}
    merged = {"supporter": "a", "share": 0.5, "value": 1.0, "low": 0.0, "high": 2.0, "n": 3, "seed": 0}
    assert json_record(rows[0], "estimate") == merged


def test_rows_by_heading_may_lack_columns() -> None:
    table = Table.of("t", "T", [{"a": 1}, {"b": 2, "a": 3}, cells(_Share("c", 1, Estimate(1, None, None, 1)))], heads=["z"])
    assert table.columns == ("z", "a", "b", "supporter", "share %", "mean")
    assert table.rows[:2] == ((None, 1, None, None, None, None), (None, 3, 2, None, None, None))
    assert Table.of("t", "T", [], heads=["z"]).columns == ("z",)
