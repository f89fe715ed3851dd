"""The human filter's sheet, and the statistics of card files: tables 6 and 9, their stages, the figure."""

import re
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from core.errors import UserError
from core.files import write_jsonl
from core.ledger import Build
from core.records import Language, RoleCard
from data_prep.cards import load_cards, load_taxonomy
from data_prep.commands.check import OUTSIDE, stages_of, table6, table9, tree
from data_prep.commands.sheet import CARD_SHEET, export_keep_cards, read_keep
from data_prep.profiles import bundled_profiles
from tests.data_prep.running import Run, refused
from tests.files_of_rows import read_sheet, write_sheet

LEAF = ("Family and Life", "Mental and physical health issues", "Body shape anxiety")
LOST = ("Family and Life", "Marriage relationship", "General issues in couple relationships")


def card(number: int, language: Language = "en", **fields: Any) -> RoleCard:
    values = {"problem": f"Flat {number} burnt down.", "source": "made", "card_method": "llm"} | fields
    return RoleCard.model_validate({"id": f"card-{number}", "language": language} | values)


# --- taxonomy --------------------------------------------------------------------------------------------------------------


def test_the_taxonomy_reads_as_35_paths() -> None:
    taxonomy = load_taxonomy()
    assert len(taxonomy.leaves) == 35 and len(taxonomy.categories) == 3
    assert taxonomy.leaves[LEAF].high == 6 and taxonomy.leaves[LOST].high is None
    assert taxonomy.categories[0].label("zh") == "家庭与生活"
    assert [len(area.leaves) for area in taxonomy.categories] == [14, 11, 10]


# --- the human filter ------------------------------------------------------------------------------------------------------


def decide(path: Path, words: dict[str, str]) -> None:
    """Fill the keep column in as a person would."""
    columns, rows = read_sheet(path)
    write_sheet(path, columns, [row | {"keep": words.get(row["card_id"], "")} for row in rows])


def test_a_sheet_goes_out_and_comes_back(run: Run) -> None:
    cards = [card(0), card(1, problem='=HYPERLINK("x")\nwith, a "quote"'), card(2, "zh", category=LEAF)]
    write_jsonl(Path("cards.jsonl"), cards)
    assert run("sheet", "export", "--cards", "cards.jsonl", "--form", "keep", "--out", "s").exit_code == 0
    _, rows = read_sheet(Path("s/keep.csv"))
    assert [row["card_id"] for row in rows] == ["card-0", "card-1", "card-2"] and not any(row["keep"] for row in rows)
    assert rows[1]["problem"].startswith("'="), "a spreadsheet must not run it"
    decide(Path("s/keep.csv"), {"card-0": " Yes", "card-1": "no", "card-2": "yes"})
    result = run("sheet", "import", "s/keep.csv", "--cards", "cards.jsonl", "--out", "out")
    assert result.exit_code == 0, result.exception
    assert load_cards(Path("out/cards.jsonl")) == [cards[0], cards[2]]
    assert load_cards(Path("out/dropped.jsonl")) == [cards[1]]
    manifest = orjson.loads(Path("out/manifest.json").read_bytes())
    assert [(row["step"], row["in"], row["out"]) for row in manifest["steps"]] == [
        ("human-filter en", 2, 1),
        ("human-filter zh", 1, 1),
    ]
    again = run("sheet", "export", "--cards", "cards.jsonl", "--form", "keep", "--out", "s")
    assert isinstance(again.exception, UserError), "a sheet with decisions is not written over"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("card-1,,", '"card-1\n",yes,', None),
        ("card-1,,", "card-1,maybe,", r"keep\.csv:5, column keep: write yes or no, not 'maybe'"),
        ("card-1,,", "card-1,,", r"keep\.csv:5, column keep: .* it is empty"),
        ("card-1,,", "card-9,no,", r"keep\.csv:5, column card_id: unknown card 'card-9': did you mean card-1"),
    ],
)
def test_decisions_are_read_or_refused_with_their_line(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    path, cards = tmp_path / "keep.csv", [card(0, problem="one\ntwo\nthree"), card(1)]
    export_keep_cards(cards, [], tmp_path, 0)
    path.write_text(path.read_text(encoding="utf-8").replace("card-0,,", "card-0,yes,").replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=message) if message else nullcontext():
        kept = read_keep([path], CARD_SHEET, {card.id: card.problem for card in cards})
        assert kept == {"card-0": True, "card-1": True}


def test_a_card_without_a_decision_is_an_error(run: Run) -> None:
    write_jsonl(Path("some.jsonl"), [card(0)])
    write_jsonl(Path("cards.jsonl"), [card(0), card(1)])
    assert run("sheet", "export", "--cards", "some.jsonl", "--form", "keep", "--out", "s").exit_code == 0
    decide(Path("s/keep.csv"), {"card-0": "yes"})
    assert "keep.csv: card_id: no row for card-1 (1 cards" in refused(
        run("sheet", "import", "s/keep.csv", "--cards", "cards.jsonl", "--out", "out")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name the subject of the sheets: --cards, --profiles, --dialogues, or --dialogues with --gold"),
        (("--cards", "c.jsonl", "--profiles", "c.jsonl"), "--profiles: does not apply to two workers' sheets of role cards"),
        (("--cards", "c.jsonl", "--form", "label-studio"), "--form: does not apply to two workers' sheets"),
        (("--cards", "c.jsonl", "--form", "keep", "--sample", "3"), "--sample: does not apply to cards that a person keeps"),
        (("--profiles", "c.jsonl", "--mode", "paper"), "--mode: does not apply to profiles that a person keeps"),
        (
            ("--dialogues", "c.jsonl", "--gold", "c.jsonl", "--each", "2"),
            "--each: does not apply to scores that are given again",
        ),
        (("--dialogues", "c.jsonl", "--annotator", "a", "--form", "keep"), "--form: does not apply to sheets of dialogues"),
        (("--dialogues", "c.jsonl"), "name the people who score the dialogues: --annotator NAME"),
    ],
)
def test_options_that_say_nothing_of_a_sheet_are_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    Path("c.jsonl").write_text("")
    assert message in refused(run("sheet", "export", *arguments, "--out", "out"))


# --- statistics ------------------------------------------------------------------------------------------------------------


CARDS = [
    card(0, category=LEAF, quality="high"),
    card(1, category=LEAF, quality="middle"),
    card(2, "zh", category=LOST, quality="high"),
    card(3, "zh", category=LEAF[:1], quality="high"),
    card(4, category=("No", "such", "path")),
    card(5, quality="invalid"),
]


def test_table6_stands_beside_the_papers() -> None:
    table = table6(CARDS, {"extract": Counter({"en": 9})})
    assert table.columns == ("Language", "", "Extract", "GPT-4_F", "Human_F", "High", "Middle", "Not rated")
    assert table.rows == (
        ("English", "here", 9, None, None, 1, 1, 2),
        ("English", "paper", 3673, 2792, 1708, 331, 1455, None),
        ("Chinese", "here", 0, None, None, 2, 0, 0),
        ("Chinese", "paper", 2023, 1566, 1093, 324, 769, None),
    )


def test_table9_counts_every_card_once_beside_the_printed_figures() -> None:
    table = table9(CARDS)
    rows = {str(row[0]).strip(): row[1:] for row in table.rows}
    assert sum(str(row[0]).startswith("    ") for row in table.rows) == 35
    assert rows["Body shape anxiety"] == (1, 1, 0, 6, 18)
    assert rows["General issues in couple relationships"] == (1, 0, 0, None, 300)
    assert rows["Family and Life"] == (3, 1, 0, None, 1260), "cards without a deeper category are in it"
    assert rows["Social Interaction and Others"] == (0, 0, 0, 111, 344)
    assert rows[OUTSIDE] == (0, 0, 1, None, None) and rows["no category"] == (0, 0, 1, None, None)
    assert rows["Sum"] == (3, 1, 2, 374, 2146)
    assert any("37" in note and "35" in note for note in table.notes)
    assert sum(row[4] is None and str(row[0]).startswith("    ") for row in table.rows) == 10


def test_distribution_holds_what_is_there_in_the_order_of_the_tree() -> None:
    bars = [bar for bar in tree(CARDS) if bar.total]
    assert [(bar.place[-1], bar.total) for bar in bars] == [
        ("Family and Life", 4),
        ("Marriage relationship", 1),
        ("General issues in couple relationships", 1),
        ("Mental and physical health issues", 2),
        ("Body shape anxiety", 2),
        (OUTSIDE, 1),
        ("no category", 1),
    ]


def chain(folder: Path) -> list[Path]:
    """extract (5 en, 2 zh) → filter (3 en, 2 zh) → human-filter (2 en, 1 zh), as the commands write them."""
    made: list[Path] = []
    for stage, numbers in (("extract", (5, 2)), ("filter", (3, 2)), ("human-filter", (2, 1))):
        build = Build(folder / stage, f"cards {stage}")
        if made:
            build.input(made[-1])
        for language, number in zip(("en", "zh"), numbers, strict=True):
            step = build.step(f"{stage} {language}")
            step.taken = step.kept = number
        build.write("cards.jsonl", [card(n) for n in range(sum(numbers))])
        build.finish(Console(quiet=True))
        made.append(build.out / "cards.jsonl")
    return made


def test_stages_are_read_back_through_the_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = chain(Path("made"))
    counts = {"extract": {"en": 5, "zh": 2}, "filter": {"en": 3, "zh": 2}, "human-filter": {"en": 2, "zh": 1}}
    assert stages_of(files[-1:]) == stages_of(files) == (counts, []), "no stage counts twice"
    monkeypatch.chdir("/")
    assert stages_of([tmp_path / files[-1]])[0].keys() == {"human-filter"}, "relative inputs are not found from elsewhere"


def test_what_changed_or_is_no_manifest_is_said(tmp_path: Path) -> None:
    files = chain(tmp_path)
    write_jsonl(files[1], [card(0)])
    counts, notes = stages_of(files[-1:])
    assert "filter" not in counts and "changed after its manifest" in notes[0]
    (tmp_path / "human-filter" / "manifest.json").write_text('{"steps": 3}')
    counts, notes = stages_of(files[-1:])
    assert not counts and "is not a manifest" in notes[0]


@pytest.mark.slow
def test_stats_of_published_and_own_files(run: Run) -> None:
    base = "Age: not mentioned\nGender: female\nOccupation: cook\nProblem: The oven broke."
    entry = {"id": 1, "base": base, "base_biaozhu": "", "res": "工作学习", "source": "made", "language": "english"}
    Path("pub.json").write_bytes(orjson.dumps([entry]))
    write_jsonl(Path("own.jsonl"), CARDS)
    result = run("check", "pub.json", "own.jsonl", "--out", "s")
    assert "written: s/ (manifest.json)" in result.stdout
    assert result.exit_code == 0, result.exception
    assert re.search(r"Chinese +│ here +│ +– │ +– │ +– │ +2 │", result.output)
    assert re.search(r"Work and Study +│ +1 │", result.output)
    assert re.search(r"Work and Study +1 +14\.3 %  █+", result.output)
    assert "duplicate card ids" in refused(run("check", "own.jsonl", "own.jsonl"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "c", "language": "en", "source": "s", "card_method": "llm"}', r"f\.jsonl:1: problem: "),
        ('{"id": "c", "problem": "x", "quality": "good"}', r"f\.jsonl:1, column quality: "),
        ('{"id": "p", "language": "en", "counselling": {"problem": "x"}}', r"f\.jsonl:1: demographics: "),
        ("{]", r"f\.jsonl:1: malformed JSON"),
    ],
)
def test_what_a_file_holds_is_told_by_its_first_line(run: Run, line: str, message: str) -> None:
    Path("f.jsonl").write_text(line + "\n")
    error = run("check", "f.jsonl").exception
    assert isinstance(error, UserError) and re.search(message, str(error))


def test_data_is_searched_for_what_cards_were_made_from_alone(run: Run) -> None:
    profiles = str(bundled_profiles("en"))
    assert "profiles_en.jsonl holds none" in refused(run("check", profiles, "--data", profiles))
