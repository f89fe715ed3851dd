"""Role cards as people have them: tables of any kind, JSON lists and dicts; all faults of a file at once, by row and column."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from core.errors import UserError
from core.ledger import BuildStep
from core.people_tables import Faults
from core.records import Dialogue, Language, Post, RoleCard, SupportDialogue, Turn
from core.rows import CorpusRow
from data_prep.cards import bundled_cards, category_of, load_cards, own_cards
from data_prep.cards.heuristic import (
    FEELING_ONLY,
    NO_SITUATION,
    TOO_SHORT,
    card_id,
    heuristic_card,
    stated_age,
    stated_gender,
    unfit,
)
from tests.data_prep.running import Run, ok, refused

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
    assert message in refused(run("cards", "import", "sheet.csv", *words, "--out", "out"))
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["mine.csv", "mine.xlsx"])
def test_a_template_is_a_sheet_of_cards_and_replaces_nothing(name: str, run: Run) -> None:
    ok(run("cards", "template", "--out", name))
    assert len(load_cards(Path(name), "en")) == 4
    assert "the file exists" in refused(run("cards", "template", "--out", name))
    assert "name a .csv or .xlsx file" in refused(run("cards", "template", "--out", "mine.ods"))


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


# --- cards from a corpus's own fields ---------------------------------------------------------------------------------------


def support(source_id: str, situation: str, language: Language = "en", **fields: Any) -> SupportDialogue:
    """A support dialogue whose turns say what no heuristic card may take up."""
    turns = (Turn(role="seeker", text="I am a 71 year old man and a zookeeper."), Turn(role="supporter", text="Go on."))
    inner = Dialogue(id=f"made-{source_id}", language=language, source="made", source_id=source_id, turns=turns)
    return SupportDialogue(dialogue=inner, situation=situation, **fields)


@pytest.mark.parametrize(
    ("language", "situation", "reason"),
    [
        ("en", "", NO_SITUATION),
        ("en", "exam pressure", TOO_SHORT),
        ("en", "My cat ran away.", TOO_SHORT),  # four words
        ("en", "My cat ran away yesterday.", None),
        ("en", "I'm so sad all the time", FEELING_ONLY),
        ("en", "I’m so sad all the time", FEELING_ONLY),
        ("en", "I'm so sad all the time since the fire", None),
        ("zh", "我很难过", TOO_SHORT),
        ("zh", "上周我和室友大吵一架", None),
    ],
)
def test_which_situations_make_a_card(language: Language, situation: str, reason: str | None) -> None:
    assert unfit(situation, language) == reason


@pytest.mark.parametrize(
    ("language", "text", "age"),
    [
        ("en", "I am a 24 year old woman", "24"),
        ("en", "I'm 31 years old and lost my shop", "31"),
        ("en", "I am now 37. It began back then", "37"),
        ("en", "I (45F) moved out", "45"),
        ("en", "my age (66) frightens me", "66"),
        ("en", "I have a 24 year old son", ""),
        ("en", "my husband is 40 years old", ""),
        ("en", "I am 40 minutes late every day", ""),
        ("en", "I'm 50% sure", ""),
        ("en", "since I was 17 it got worse", ""),
        ("en", "I'm 20. No: I'm 21.", ""),  # two ages: neither
        ("zh", "我今年24岁，刚换工作", "24"),
        ("zh", "女，19岁，住校", "19"),
        ("zh", "我18岁的时候父母离婚", ""),
        ("zh", "我妈妈50岁", ""),
    ],
)
def test_an_age_is_the_writers_own_or_none(language: Language, text: str, age: str) -> None:
    assert stated_age(text, language) == age


@pytest.mark.parametrize(
    ("language", "text", "gender"),
    [
        ("en", "I am a 24 year old woman", "female"),
        ("en", "I'm a single dad of three", "male"),
        ("en", "I'm a stay-at-home mom", "female"),
        ("en", "I (45F) moved out", "female"),
        ("en", "I am a man's best friend", ""),
        ("en", "my wife left; she is a woman of few words", ""),
        ("en", "I am with a girl", ""),
        ("zh", "我是一名女生，住校", "女"),
        ("zh", "本人男，刚毕业", "男"),
        ("zh", "我妈妈，总是骂我", ""),
        ("zh", "我女朋友走了", ""),
    ],
)
def test_a_gender_is_stated_plainly_or_empty(language: Language, text: str, gender: str) -> None:
    assert stated_gender(text, language) == gender


def test_a_card_holds_situation_and_labels_and_nothing_of_the_turns() -> None:
    item = support("train/7", "I am a 29 year old woman and\n my roommate moved out", problem="housing", emotion="fear. ")
    assert heuristic_card(item) == RoleCard(
        id="card-made-train_7",
        language="en",
        age="29",
        gender="female",
        problem="I am a 29 year old woman and my roommate moved out. Kind of trouble: housing. Main feeling: fear.",
        source="made",
        source_id="train/7",
        card_method="heuristic",
    )


def test_what_the_corpus_states_wins_over_the_situation() -> None:
    card = heuristic_card(support("1", "I'm 30 years old and broke!", age="41", gender="Woman", occupation="vet"))
    assert isinstance(card, RoleCard)
    assert (card.age, card.gender, card.occupation) == ("41", "Woman", "vet")
    assert card.problem == "I'm 30 years old and broke!"


def test_a_chinese_card_is_chinese_throughout() -> None:
    card = heuristic_card(support("1", "上周我和室友大吵一架", "zh", problem="人际", emotion="愤怒"))
    assert isinstance(card, RoleCard) and card.problem == "上周我和室友大吵一架。烦恼的种类：人际。主要情绪：愤怒。"


def test_every_item_is_a_card_or_a_drop_with_its_reason() -> None:
    post = Post(id="p", language="en", source="made", source_id="p", text="I lost my job and my flat within a week.")
    items: list[SupportDialogue | Post] = [
        support("1", "The bakery where I work closes soon"),
        support("2", "alone"),
        support("3", ""),
        post,
    ]
    step = BuildStep("extract en")
    assert [card.source_id for card in step.make(items, heuristic_card)] == ["1"]
    step.check()
    assert step.taken == 4 and step.dropped == {TOO_SHORT: 1, NO_SITUATION: 2}


def test_ids_are_safe_and_keep_apart() -> None:
    source_ids = ["train/5", "train_5", "train 5", "问/5", "a" * 150, "a" * 151, "5"]
    ids = [card_id("made", source_id) for source_id in source_ids]
    assert len(set(ids)) == len(ids)
    assert all(len(one) < 120 and set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.") for one in ids)
    assert ids[0] == "card-made-train_5"
