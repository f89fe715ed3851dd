"""The papers' figures beside ours, and EmoHarbor's tables as numbers."""

from pathlib import Path

import numpy as np
import orjson
import pytest
import typer
from scipy.stats import pearsonr
from typer.testing import CliRunner

from core.errors import UserError
from core.records import HumanScore
from core.rubrics import load_rubric
from core.specs import load_spec
from core.tables import Estimate, Table, fmt
from evalsuite.papers.commands.reported import reported
from evalsuite.papers.reported import Reported, load_reported
from evalsuite.papers.reported.against import against, as_printed, beside, meant
from evalsuite.papers.reported.recomputation import check
from evalsuite.papers.text_metrics import LABELS
from evalsuite.statistics.correlation import COEFFICIENTS, alignment_tables, correlations
from tests.evalsuite.records import make_dialogue, make_judgement
from tests.evalsuite.test_reported import DISAGREEMENTS, toy

app = typer.Typer()
app.command()(reported)

NOT_FOLLOWING = [
    # Closer to people with profile and states, says section 4.1.2; not in these two cells.
    ("1", "Kimi-K2 / states", "SF", 0.46, 0.54),
    ("1", "GPT-4 / states", "EP", 0.33, 0.35),
    # 0.745 · 20 · 99/19 = 77.6 by formula 13, 0.745 · 2000/19 = 78.4 by the standard F.
    ("2", "EmoHarbor", "F", 112, 78),
    # 30.29 / 10.
    ("5", "Open-Source / non-RLM / Llama-3-8B-Instruct", "Avg.", 3.04, 3.03),
]


@pytest.fixture(scope="module")
def paper() -> Reported:
    return load_reported("esc_eval")


@pytest.fixture(scope="module")
def emoharbor() -> Reported:
    return load_reported("emoharbor")


def leaderboard(language: str = "en", *names: str) -> Table:
    rows = tuple((name, Estimate(70.0, 69.0, 71.0, 9), 1, 50.0) for name in names or ("gpt-4", "my-model", "emollm"))
    columns = ("supporter", "Fluency", "rank", "Skill")
    return Table(f"leaderboard-{language}", "L", columns, rows, ("note",), bold=((0, 1), (len(rows) - 1, 3)))


def test_figures_stand_beside_ours(paper: Reported) -> None:
    shown = beside(leaderboard(), paper)
    assert shown.columns == ("supporter", "Fluency", "paper: Fluency", "rank", "Skill", "paper: Skill")
    assert [(row[0], row[2], row[5]) for row in shown.rows] == [
        ("gpt-4", 74.32, 74.92),
        ("my-model", None, None),
        ("emollm", 36.56, 74.47),
    ]
    assert [row[:2] for row in shown.rows] == [row[:2] for row in leaderboard().rows]
    assert shown.bold == ((0, 1), (2, 4))  # the same cells, one column further right
    assert shown.notes[0] == "note" and shown.notes[1].startswith("paper: ESC-Eval, table 2 (section 3.2)")
    assert shown.notes[2] == "Not in the paper: my-model."
    shown = beside(leaderboard("zh", "gpt-4", "llama3-8b-instruct"), paper)
    assert [row[2] for row in shown.rows] == [71.53, None] and shown.notes[-1] == "Not in the paper: llama3-8b-instruct."


def test_a_table_without_counterpart_is_as_it_was(paper: Reported) -> None:
    for table, note in (
        (Table("costs", "C", ("item", "calls"), (("total", 3),)), "There is no counterpart of this table in ESC-Eval."),
        (leaderboard("en", "my-model"), "No row of this table is in ESC-Eval."),
        (
            Table("leaderboard-en", "L", ("model", "Fluency"), (("gpt-4", 1.0),)),
            "There is no counterpart of this table in ESC-Eval.",
        ),
        (Table("leaderboard-en", "L", ("supporter", "Fluency"), ()), "No row of this table is in ESC-Eval."),
    ):
        shown = beside(table, paper)
        assert (shown.columns, shown.rows, shown.bold) == (table.columns, table.rows, table.bold)
        assert shown.notes == (*table.notes, note)


def test_agreement_role_play_and_judges(paper: Reported) -> None:
    shown = beside(
        Table("agreement_zh", "A", ("Dimension", "ACC", "ACC_soft"), (("Fluency", 1.0, 2.0), ("average", 1.0, 2.0))), paper
    )
    assert [(row[2], row[4]) for row in shown.rows] == [(88.45, 99.87), (70.53, 98.93)]
    table4 = Table(
        "table4_en",
        "J",
        ("Judge", "skill ACC", "average ACC_soft"),
        (("gpt-4 · joint", 1.0, 2.0), ("majority class", 1.0, 2.0)),
    )
    shown = beside(table4, paper)
    assert (shown.columns, shown.rows[:2]) == (table4.columns, table4.rows), "whatever our judges are called"
    assert [row[0] for row in shown.rows[2:]] == ["paper: InternLM2", "paper: GPT-4", "paper: ESC-RANK"]
    gpt4 = shown.rows[3][1]
    assert isinstance(gpt4, Estimate) and (gpt4.mean, gpt4.n) == (38.83, 927)
    assert gpt4.low is gpt4.high is None
    assert isinstance(shown.rows[3][2], float | Estimate) and fmt(shown.rows[3][2]).startswith("75.03")
    seekers = ("gpt-4-zero-shot", "gpt-4-icl", "gpt-4-cot", "gpt-4-cot-icl", "baichuan-npc-icl-cot", "esc-role")
    rows = tuple((seeker, "people", 1.0) for seeker in seekers)
    shown = beside(Table("role_play-en", "R", ("seeker", "judged by", "Emotional congruence"), rows), paper)
    assert [row[3] for row in shown.rows] == [6.2, 8.0, 7.8, 7.9, 5.9, 9.3]


def test_correlations_come_from_several_tables(paper: Reported) -> None:
    rows = (("bleu-1", "bleu_1", 1.0, 1.0), ("esc-rank", "information", 1.0, 1.0), ("esc-rank", "average", 1.0, 1.0))
    shown = beside(Table("correlation_sample_kendall_en_held", "K", ("judge", "dimension", "skill", "average"), rows), paper)
    assert [(row[3], row[5]) for row in shown.rows] == [(-44.40, -47.12), (43.79, 52.56), (34.87, 42.47)]
    assert [note.split(" (")[0] for note in shown.notes] == ["paper: ESC-Eval, table 13", "paper: ESC-Eval, table 14"]
    pairs = (("bleu-1", "bleu_1", "spearman", 1.0), ("bleu-1", "bleu_1", "kendall", 1.0), ("j", "overall", "kendall", 1.0))
    shown = beside(Table("correlation_dataset_en_held", "D", ("judge", "dimension", "coefficient", "empathy"), pairs), paper)
    assert [row[4] for row in shown.rows] == [-33.98, -26.71, None]
    assert "swapped" in shown.notes[0] and shown.notes[-1] == "Not in the paper: overall kendall."


def test_the_mappings_name_what_the_harness_prints(paper: Reported) -> None:
    table2, table1 = paper.tables["2"].beside[0], paper.tables["1"].beside[0]
    assert all(load_spec(name).name == name for name in table2.rows["supporter"])
    assert {cell.at["Model"] for cell in paper.cells["2"]} == {at["Model"] for at in table2.rows["supporter"].values()}
    for rubric, columns in (("esc_eval", table2.columns), ("role_play", table1.columns)):
        labels = [dimension.label["en"] for dimension in load_rubric(rubric).dimensions.values()]
        assert list(columns) == [*labels, "average"] if rubric == "role_play" else set(columns) == {*labels, "average"}
    assert set(paper.tables["3"].beside[0].rows["dimension"]) == set(LABELS) - {"rouge_1", "rouge_2"}  # those are FEEL's
    assert set(paper.tables["14"].beside[0].rows["dimension"]) == {*load_rubric("esc_eval").dimensions, "average"}
    assert set(paper.tables["15"].beside[0].rows["coefficient"]) == set(COEFFICIENTS)


def test_a_mapping_that_leaves_a_cell_open(tmp_path: Path) -> None:
    entry = {"tables": ["t"], "rows": {"m": {"x": {"Model": "x"}}}, "columns": {"a": {}, "b": {"column": "B"}}}
    paper = toy(tmp_path, beside=[entry])
    with pytest.raises(UserError, match=r"t\.yaml: beside.0: .* names 3 cells of table 1"):
        beside(Table("t", "T", ("m", "a"), (("x", 1.0),)), paper)
    shown = beside(Table("t", "T", ("m", "b"), (("x", 1.0),)), paper)
    assert shown.rows == (("x", 1.0, 2.0),) and shown.notes == ("paper: toy, table 1 (section 2).",)


def test_against() -> None:
    assert against([leaderboard()], None) == [leaderboard()]
    assert "paper: Fluency" in against([leaderboard()], "paper")[0].columns
    with pytest.raises(UserError, match="--against: unknown 'papers': did you mean paper"):
        against([], "papers")


@pytest.mark.slow
def test_shares_have_their_n_and_no_interval(paper: Reported) -> None:
    table = as_printed(paper, "4")
    row = next(row for row in table.rows if row[:2] == ("Flu.", "ESC-RANK"))
    cell = row[table.columns.index("ACC ZH")]
    assert cell == Estimate(88.45, None, None, 779), (
        "ratings of one card hang together, and nobody knows how they fall on cards"
    )
    assert next(row for row in table.rows if row[:2] == ("Avg.", "ESC-RANK"))[2:] == (70.53, 71.27, 98.93, 99.17)


@pytest.mark.slow
def test_tables_are_shown_as_printed(paper: Reported) -> None:
    first = as_printed(paper, "1")
    assert first.columns[:3] == ("Model", "Cohe. ZH", "Cohe. EN") and first.rows[2][:3] == ("GPT-4 CoT", "10", "9.1")
    assert as_printed(paper, "9").rows[1][-2:] == (None, 73)
    assert any("1455, recomputed 1377" in note for note in as_printed(paper, "6").notes)
    with pytest.raises(UserError, match="no table '7' of esc_eval"):
        as_printed(paper, "7")


@pytest.mark.slow
def test_the_check_on_the_command_line() -> None:
    result = CliRunner().invoke(app, ["--json"])
    assert result.exit_code == 0
    records = orjson.loads(result.stdout)
    names = ["paper", "table", "row", "column", "printed", "recomputed", "slack"]
    assert [list(record) for record in records] == [names] * len(records)
    assert [tuple(record.values())[:-1] for record in records] == [("esc_eval", *each) for each in DISAGREEMENTS]
    text = CliRunner().invoke(app, [], env={"COLUMNS": "200"})
    shown = " ".join(text.stdout.split())
    assert text.exit_code == 0 and f"{len(DISAGREEMENTS)} disagree" in shown
    assert all(f"│ {name} │ {table.title} │" in shown for name, table in load_reported().tables.items())
    assert "--paper emoharbor, --paper feel, --paper ecdbench" in shown


@pytest.mark.slow
def test_a_table_is_shown_by_names_near_its_number(paper: Reported) -> None:
    for name in ("6", "table6", "Table 6", "tabel_6", "tab.6", "table_6.yaml"):
        assert meant(paper, name) == "6"
    shown = CliRunner().invoke(app, ["table", "6"])
    assert shown.exit_code == 0 and "3673" in shown.stdout
    assert isinstance(CliRunner().invoke(app, ["7"]).exception, UserError)


def test_all_tables_are_there_and_what_disagrees(emoharbor: Reported) -> None:
    sizes = {name: len(cells) for name, cells in emoharbor.cells.items()}
    assert sizes == {"1": 12 * 10, "2": 4, "3": 20 * 11, "4": 3, "5": 17 * 11, "text": 16}
    found = check(emoharbor)
    assert [(d.table, d.row, d.column, d.printed, d.recomputed) for d in found.disagreements] == NOT_FOLLOWING
    (f,) = [each for each in found.disagreements if each.column == "F"]
    assert len(f.notes) == 3 and "formula 13" in f.notes[0] and "standard F" in f.notes[1]


def test_scores_stand_beside_ours_on_our_scale(emoharbor: Reported) -> None:
    labels = [dimension.label["en"] for dimension in load_rubric("emoharbor").dimensions.values()]
    for name in ("3", "5"):
        assert set(emoharbor.tables[name].beside[0].columns) == {*labels, "average"}
    own = beside(Table("leaderboard-own-zh", "L", ("supporter", "average"), (("gpt-4o-2024-11-20", 3.4),)), emoharbor)
    assert own.rows == (("gpt-4o-2024-11-20", 3.4, 3.5),)
    rows = (("gpt-4o-2024-11-20", Estimate(50.0, 49.0, 51.0, 9), 1.0), ("my-model", 50.0, 1.0))
    shown = beside(Table("leaderboard-zh", "L", ("supporter", "Problem resolution", "average"), rows), emoharbor)
    assert shown.columns[2] == "paper: Problem resolution"
    assert shown.rows[0][2] == pytest.approx(25 * (2.98 - 1)) and shown.rows[0][4] == pytest.approx(25 * (3.5 - 1))
    assert shown.rows[1][2] is None and "as 0 to 100" in shown.notes[0]


def test_judges_and_strategies_as_in_table_1() -> None:
    rng = np.random.default_rng(3)
    people, judged = rng.integers(1, 6, (2, 12)), rng.integers(1, 6, (2, 12))
    dialogues = [make_dialogue(f"d{place}", card_id=f"c{place}") for place in range(12)]
    gold = [
        HumanScore(dialogue_id=f"d{n}", language="en", annotator="x", rubric="human", dimension=name, value=int(people[row, n]))
        for row, name in enumerate(("empathetic", "safety"))
        for n in range(12)
    ]
    judgements = [
        make_judgement(f"d{n}", name, int(judged[row, n]) if strategy == "states" else 3, judge="gpt-4", condition=condition)
        for strategy in ("dialogue", "states")
        for condition in [{"strategy": strategy, "mode": "paper"}]
        for row, name in enumerate(("empathetic", "safety"))
        for n in range(12)
    ]
    (table,) = alignment_tables(correlations(judgements, gold, dialogues)[0])
    assert table.columns[:4] == ("judge", "strategy", "empathetic", "safety")
    assert [row[:2] for row in table.rows] == [("gpt-4 · joint · mode=paper", name) for name in ("dialogue", "states")]
    blind, seeing = ([cell for cell in row[2:4] if isinstance(cell, Estimate)] for row in table.rows)
    assert [cell.mean for cell in blind] == [None, None], "a judge that always says 3 has no coefficient, not 0"
    expected = [100 * pearsonr(people[row], judged[row]).statistic for row in range(2)]
    assert [cell.mean for cell in seeing] == pytest.approx(expected) and seeing[0].n == 12
    (shown,) = against([table], "emoharbor")
    assert shown.rows[1][3] == pytest.approx(33) and shown.rows[0][5] == pytest.approx(38)
