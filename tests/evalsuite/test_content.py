"""A run folder's files become the report's tables, charts, ranks and warnings."""

import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from core.errors import UserError
from core.files import write_json, write_jsonl
from evalsuite.report.content import content_of, report_run
from evalsuite.runs.folder import Run, open_run
from evalsuite.statistics.paired import rank_text
from tests.generated_report import make_content, write_run

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    write_run(tmp_path)
    with open_run(tmp_path) as opened:
        yield opened


def test_a_run_folder_becomes_a_report(run: Run) -> None:
    content = content_of(run)
    keys = [table.key for table in content.tables]
    assert keys[:4] == ["leaderboard-en", "leaderboard-zh", "differences-en", "differences-zh"]
    assert {"agreement_en", "confusion_en", "confusion_zh", "calibration", "distributions", "terminations", "risk"} < set(keys)
    board = content.tables[0]
    assert {row[3] for row in board.rows} == {"open", "domain"}  # groups of table 2, from the specs
    shown = {(row[board.columns.index("supporter")], row[board.columns.index("rank")]) for row in board.rows}
    english = content.tally.boards[0]
    ranks = map(rank_text, english.ranks)
    assert shown == {(one.supporter, rank) for one, rank in zip(english.contestants, ranks, strict=True)}
    charts = [chart.key for chart in content.charts]
    assert charts[charts.index("confusion-en") :][:3] == ["confusion-en", "confusion-zh", "calibration"]
    assert content.synthetic_gold and not content.plumbing
    assert content.config["fingerprints"]["judge ranker"] == "print-of-ranker"


def test_a_report_breaks_scores_down_and_adds_up_what_models_took(run: Run) -> None:
    used = {"calls": 50, "prompt_tokens": 7000, "completion_tokens": 900}
    write_json(run.folder / "usage.json", {"simulate": {"supporter": {"harbour-8b": used, "tide-1.5b-instruct-zh": used}}})
    write_json(run.folder / "versions.json", {"prices": {"harbour-8b": ["1/10"]}})
    content = content_of(run)
    tables = {table.key: table for table in content.tables}
    assert {"categories-en", "categories-zh", "reply-length", "model-costs"} < set(tables)
    assert tables["model-costs"].rows[0][6] == pytest.approx(0.016)
    (taken,) = (text for name, text in content.facts if name == "Taken")
    assert taken == "100 calls, 14,000 tokens in, 1,800 out; cost 0.016, 1 model without a price apart"


def console_of(run: Run, width: int) -> str:
    shown = StringIO()
    report_run(run, Console(file=shown, width=width))
    return shown.getvalue()


def test_the_console_shows_the_judges_agreement_and_the_board(run: Run) -> None:
    """First how good the judge is beside the majority class; the rest is in files that are named."""
    text = console_of(run, 300)
    assert text.index("Majority ACC") < text.index("Leaderboard, en") < text.index(f"html: {run.folder}/report.html")
    assert "Fluency" in text.partition("Leaderboard, en")[2] and "How dialogues ended" not in text


def test_at_80_columns_the_board_has_rank_supporter_and_average_and_names_the_file_of_the_rest(run: Run) -> None:
    text = console_of(run, 80)
    board = next(table for table in content_of(run).tables if table.key == "leaderboard-en")
    assert max(map(len, text.partition("html:")[0].splitlines())) <= 80
    named = f"whole in tables/leaderboard-en.csv: {len(board.rows)} rows of {len(board.columns)} columns"
    shown = text.partition("Leaderboard, en")[2].partition(named)[0]
    heads = [head.strip() for head in next(line for line in shown.splitlines() if "rank" in line).strip("┃").split("┃")]
    assert heads == ["rank", "supporter", "average"]
    for row in board.rows:
        assert str(row[board.columns.index("supporter")]) in shown
    assert (run.folder / "tables" / "leaderboard-en.csv").is_file()


def test_calibration_table_has_the_points_of_its_chart(run: Run) -> None:
    content = content_of(run)
    table = next(table for table in content.tables if table.key == "calibration")
    chart = next(chart for chart in content.charts if chart.key == "calibration")
    pooled = [row for row in table.rows if row[0] == "en" and row[1] == "all dimensions"]
    points = chart.figure["data"][1]
    assert [row[4] for row in pooled] == pytest.approx(points["x"], abs=0.006)
    assert [row[5].mean for row in pooled] == pytest.approx(points["y"], abs=0.006)  # type: ignore[union-attr]
    assert [f"n = {row[5].n}" for row in pooled] == points["text"]  # type: ignore[union-attr]


def test_who_shares_a_base_is_warned_of(run: Run) -> None:
    warnings = content_of(run).warnings
    assert warnings == [
        "The judge ranker shares its base with plainspoken-base (same checkpoint): its scores may favour it.",
        "The seeker seeker-135m shares its base with harbour-8b (same family), lantern-7b-chat (same checkpoint): "
        "it may draw out the best in them.",
    ]

    judgements = [j.model_copy(update={"judge": "tide-1.5b-instruct-zh"}) for j in make_content().tally.judgements]
    write_jsonl(run.folder / "judgements.jsonl", judgements)
    assert any("(same checkpoint): its scores may favour it" in warning for warning in content_of(run).warnings), "of itself"


def test_risk_turns_are_found_in_the_run(run: Run) -> None:
    dialogues = list(make_content().tally.dialogues)
    turn = dialogues[0].turns[0].model_copy(update={"text": "I want to kill myself."})
    dialogues[0] = dialogues[0].model_copy(update={"turns": (turn, *dialogues[0].turns[1:])})
    write_jsonl(run.folder / "dialogues.jsonl", dialogues)
    assert content_of(run).risks == {dialogues[0].id: {0: ["self-harm"]}}
    turn = turn.model_copy(update={"text": "I want to kill myself because my husband beats me."})
    write_jsonl(run.folder / "dialogues.jsonl", [dialogues[0].model_copy(update={"turns": (turn,)}), *dialogues[1:]])
    assert content_of(run).risks == {dialogues[0].id: {0: ["self-harm", "abuse"]}}, "one name a category"


def test_given_dialogues_without_gold_or_cards(run: Run) -> None:
    config = run.config().root
    del config["simulate"], config["gold"]
    write_json(run.folder / "config.json", config)
    for name in ("cards.jsonl", "gold_judgements.jsonl", "gold_scores.jsonl", "agreement.json"):
        (run.folder / name).unlink()
    content = content_of(run)
    assert content.framework == "given dialogues" and not content.cards and not content.warnings and not content.synthetic_gold
    assert not [table.key for table in content.tables if table.section == "Agreement"]


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        (None, "no judgements yet: run `esc-eval run --only score"),
        ("feel", "holds records of feel: their command wrote their tables there"),
        ("role_play", "esc-eval paper role-play --dialogues .*role_play_dialogues.jsonl"),
    ],
)
def test_a_run_without_scores_of_supporters_says_what_to_do(run: Run, stage: str | None, problem: str) -> None:
    score = run.config().root["score"]
    write_json(run.folder / "config.json", {stage: score} if stage else {"simulate": run.config().root["simulate"]})
    with pytest.raises(UserError, match=problem):
        content_of(run)


def test_a_report_reads_each_file_once_and_loads_little(tmp_path: Path) -> None:
    """One command with seekers who leave, a gold set and replies of any length: records are read once and scores counted once,
    without the packages that take longer to load than a small report to write."""
    write_run(tmp_path)
    code = f"""
import sys
from collections import Counter
from evalsuite.cli import app
from evalsuite.statistics import leaderboard
calls, opened = Counter(), Counter()
sys.addaudithook(lambda event, given: event == "open" and given[1] == "r" and opened.update([str(given[0])]))
counted = leaderboard.contestants_of
for module in [*sys.modules.values()]:
    if vars(module).get("contestants_of") is counted:
        module.contestants_of = lambda *given, **named: calls.update(["counted"]) or counted(*given, **named)
app(["report", {str(tmp_path)!r}], standalone_mode=False)
records = {{path: count for path, count in opened.items() if path.endswith(".jsonl")}}
heavy = [name for name in ("statsmodels", "scipy.stats", "pandas") if name in sys.modules]
print(set(records.values()), len(records), calls["counted"], heavy, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "{1} 5 1 []"
    assert "Kaplan-Meier" in (tmp_path / "report.md").read_text()
