"""Role cards as people have them: tables of any kind, JSON lists and dicts; all faults of a file at once, by row and column."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from core.errors import UserError
from core.people_tables import Faults
from core.records import RoleCard
from core.rows import CorpusRow
from data_prep.cards import bundled_cards, category_of, load_cards, own_cards
from tests.data_prep.running import Run, ok

PEOPLE: list[dict[str, Any]] = [
    {"problem": "She cannot sleep since her mother moved in.", "age": 34, "occupation": "nurse", "category": "Family and Life"},
    {"problem": "He was passed over for the third time.", "age": "40-45", "gender": "male", "category": "work and study"},
    {"problem": "They are afraid of the exam in May."},
]
PERSON = ("language", "age", "gender", "occupation", "problem")
COLUMNS = ("problem", "age", "gender", "occupation", "category")


def csv_of(rows: list[dict[str, Any]], sign: str = ",", columns: tuple[str, ...] = COLUMNS) -> str:
    lines = [columns, *([str(row.get(column, "")) for column in columns] for row in rows)]
    return "".join(sign.join(f'"{cell}"' for cell in line) + "\n" for line in lines)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a file of the kind that its ending says."""
    if path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for line in (COLUMNS, *([row.get(column) for column in COLUMNS] for row in rows)):
            book.active.append(line)
        book.save(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(csv_of(rows, {".csv": ",", ".tsv": "\t", ".txt": ";"}[path.suffix]))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".xlsx", ".json", ".jsonl"])
def test_every_kind_of_file_gives_the_same_cards(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = load_cards(written(tmp_path / f"people{suffix}", PEOPLE))
    assert [(card.age, card.gender, card.occupation) for card in cards] == [
        ("34", "", "nurse"),
        ("40-45", "male", ""),
        ("", "", ""),
    ]
    assert [card.category for card in cards] == [("Family and Life",), ("Work and Study",), None]
    assert {(card.language, card.source, card.card_method) for card in cards} == {("en", "people", "written")}
    persons = [json.dumps(card.model_dump(include=set(PERSON)), sort_keys=True, separators=(",", ":")) for card in cards]
    assert [card.id for card in cards] == [f"card-{hashlib.sha256(one.encode()).hexdigest()[:12]}" for one in persons]
    assert "3 cards name no language and are read as en" in capsys.readouterr().err


def test_ids_are_of_what_a_row_says_and_stay_when_rows_move(tmp_path: Path) -> None:
    first = load_cards(written(tmp_path / "a.csv", PEOPLE), "en")
    again = load_cards(written(tmp_path / "b.json", [{"problem": "A new one."}, *reversed(PEOPLE)]), "en")
    assert {card.problem: card.id for card in first}.items() <= {card.problem: card.id for card in again}.items()
    assert len({card.id for card in again}) == 4 and all(re.fullmatch("card-[0-9a-f]{12}", card.id) for card in again)


FAULTY = """problem;Alter;kategory;language;id;gender
She cannot sleep.;34;;e!;a;
;19;;en;;
He lost his job.;;;en;b;
He lost his job too.;30;Work;en;b;m
too;many;cells;in;this;row;here
"""


def test_all_faults_are_told_together_by_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(FAULTY)
    with pytest.raises(UserError) as caught:
        load_cards(path)
    told = str(caught.value).replace(f"{tmp_path}/", "").splitlines()
    starts = (
        "mine.csv:6: expected 6 columns",
        "mine.csv: unknown column 'Alter': known: age, ",
        "mine.csv: unknown column 'kategory': did you mean category?",
        "mine.csv: to map: esc-data cards import mine.csv --map problem=Situation",
        "mine.csv:2, column language: ",
        "mine.csv:3, column problem: is empty",
        "mine.csv:5, column id: b is also that of mine.csv:4",
    )
    assert len(told) == len(starts)
    assert [line for line, start in zip(told, starts, strict=True) if not line.startswith(start)] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("problem,age\nShe is ill.,1-2 Jan\n", None),
        ("problem,age\nShe is ill.,2025-02-01\n", r":2, column age: \('2025-02-01': your spreadsheet changed it\)"),
        ("problem,age\n#REF!,30\n", r":2, column problem: \('#REF!': your spreadsheet changed it\)"),
        ("problem,age\nShe is ill.,30\nShe is ill.,30\n", r":3, column problem: the same card as .*:2$"),
        ("problem,id\nShe is ill.,a\nHe is ill.,a\n", r":3, column id: a is also that of .*:2$"),
        (
            "problem,category\nShe is ill.,Work and Stuff\n",
            r":2, column category: unknown category 'Work and Stuff': did you mean",
        ),
        ("problem,quality\nShe is ill.,good\n", r":2, column quality: Input should be 'high'"),
        ("problem,Problem\nShe is ill.,x\n", r"two columns are problem: 'Problem' is the second"),
        ("Situation,age\nShe is ill.,30\n", r"no column problem \(found: Situation, age\)"),
        ("problem,age\n", "own.csv: no row"),
        ("problem,notes\nShe is ill.,shy\n", r"unknown column 'notes': .*\n.*none=Notes leaves one out"),
        ("problem,language\n她睡不着。,zh\nShe is ill.,en\n", None),
        ("problem\n妻子离开了他，他整夜睡不着。\n", "the problems are not in English"),
        ("problem\nУ неё болен отец.\n", "the problems are not in English"),
        (
            f"problem\n{'Seit dem Umzug schläft sie kaum noch und ihr Mann merkt nichts davon. ' * 2}\n",
            "not in English: name it",
        ),
        (f"problem\n{'Desde que murió su padre no duerme y no habla con nadie de la familia. ' * 2}\n", "not in English"),
    ],
)
def test_each_kind_of_fault_has_its_words(text: str, fault: str | None, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text)
    if fault is None:
        load_cards(path)
        return
    with pytest.raises(UserError, match=fault):
        load_cards(path)


def test_the_language_said_is_that_of_rows_that_name_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.csv"
    path.write_text("problem,language\n她睡不着。,\nShe cannot sleep.,en\n")
    assert [card.language for card in load_cards(path, "zh")] == ["zh", "en"]
    assert capsys.readouterr().err == ""


def test_real_english_is_taken_for_english(tmp_path: Path) -> None:
    """Every bundled card alone, and all of them."""
    problems = [{"problem": card.problem} for card in load_cards(bundled_cards("en"))]
    for number, rows in enumerate([problems, *([row] for row in problems)]):
        assert len(load_cards(written(tmp_path / f"{number}.json", rows))) == len(rows)


def test_full_records_and_published_cards_are_read_as_they_were(tmp_path: Path) -> None:
    path = bundled_cards("zh")
    cards = load_cards(path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [card.model_dump(mode="json") for card in cards]
    assert load_cards(path, "en") == cards, "what a record says stands"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("Family and Life", ("Family and Life",)),
        ("work and study", ("Work and Study",)),
        ("Marriage relationship", ("Family and Life", "Marriage relationship")),
        ("Family and Life / Marriage relationship", ("Family and Life", "Marriage relationship")),
    ],
)
def test_a_category_is_named_or_its_path_given(text: str, path: tuple[str, ...]) -> None:
    assert category_of(text) == path


def test_an_unknown_category_is_answered_with_the_areas() -> None:
    with pytest.raises(UserError, match="did you mean Family and Life"):
        category_of("Family life")
    with pytest.raises(UserError, match="known: Family and Life, Social Interaction and Others, Work and Study"):
        category_of("Ψ")


@pytest.mark.slow
def test_import_maps_columns_and_says_what_it_wrote(run: Run) -> None:
    Path("sheet.csv").write_text("Situation;Alter;Notizen\nSie schläft nicht.;34;x\n", encoding="utf-8-sig")
    mapped = ("--map", "problem=Situation", "--map", "age=alter", "--map", "none=Notizen")
    said = ok(run("cards", "import", "sheet.csv", *mapped, "--language", "zh", "--out", "out"))
    (card,) = load_cards(Path("out/cards.jsonl"))
    assert (card.problem, card.age, card.language, card.source) == ("Sie schläft nicht.", "34", "zh", "sheet")
    assert "cards: 1 in, 1 out" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--map", "problem=Lage"), "no column 'lage' to map, or it is empty: known: situation"),
        (("--map", "problm=Situation"), "unknown column 'problm': did you mean problem"),
        (("--map", "Situation"), "--map Situation: write OURS=YOURS"),
        (("--map", "problem=Situation", "--map", "age=Situation"), "no column problem (found: Situation)"),
        (("--map", "problem=Situation", "--language", "Deutsch"), "--language Deutsch: "),
    ],
)
def test_what_is_wrong_with_a_mapping_is_said_and_nothing_written(words: tuple[str, ...], message: str, run: Run) -> None:
    Path("sheet.csv").write_text("Situation\nShe cannot sleep.\n")
    result = run("cards", "import", "sheet.csv", *words, "--out", "out")
    assert isinstance(result.exception, UserError) and message in str(result.exception)
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["mine.csv", "mine.xlsx"])
def test_a_template_is_a_sheet_of_cards_and_replaces_nothing(name: str, run: Run) -> None:
    ok(run("cards", "template", "--out", name))
    assert len(load_cards(Path(name), "en")) == 4
    again = run("cards", "template", "--out", name)
    assert isinstance(again.exception, UserError) and "the file exists" in str(again.exception)


def test_every_field_of_a_card_may_be_a_column(tmp_path: Path) -> None:
    """By introspection: a table of a full record comes back as this record."""
    card = RoleCard(
        **{"id": "a", "language": "en", "problem": "She cannot sleep.", "source": "s", "source_id": "1", "card_method": "llm"},
        **{"age": "3", "gender": "f", "occupation": "o", "category": ("Work and Study",), "quality": "high", "text": "t"},
    )
    values = card.model_dump() | {"category": "Work and Study"}
    assert set(values) == set(RoleCard.model_fields) - {"details"}  # a mapping, which no cell holds
    (tmp_path / "all.csv").write_text(csv_of([values], columns=tuple(values)))
    assert load_cards(tmp_path / "all.csv") == [card]


@pytest.mark.parametrize(
    ("value", "text"),
    [(34, "34"), (34.0, "34"), (0.5, "0.5"), (12345678901234567890, "12345678901234567890"), (float("nan"), "")],
)
def test_numbers_are_texts(value: Any, text: str) -> None:
    with Faults() as faults:
        (card,) = own_cards([CorpusRow("a", {"problem": "She is ill.", "age": value})], "rows", faults, "en", {})
    assert card.age == text
