"""What agree and a table of ratings take: CSV and JSON lines on both sides, and run folders."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import write_json, write_jsonl
from core.records import HumanScore, Judgement
from core.rubrics import load_rubric
from evalsuite.statistics.discrimination import read_ratings
from tests.conftest import EscEval
from tests.evalsuite.records import make_dialogue, make_judgement
from tests.evalsuite.test_faults import one_line

DIMENSIONS = ("fluency", "empathy")
VALUES = (3, 1, 4, None, 2, 3)

AGREE, CORRELATE = ("agree",), ("agree", "--correlate", "dialogue")


def verdicts(judge: str = "j", prefix: str = "d", shift: int = 0) -> list[Judgement]:
    values = [None if value is None else (value + shift) % 5 for value in VALUES]
    about = {"judge": judge, "rubric": "esc_eval", "raw": ""}
    return [make_judgement(f"{prefix}{n}", name, value, **about) for name in DIMENSIONS for n, value in enumerate(values)]


def scores(prefix: str = "d") -> list[HumanScore]:
    about: dict[str, Any] = {"language": "en", "annotator": "anna", "rubric": "esc_eval"}
    return [
        HumanScore(dialogue_id=f"{prefix}{n}", dimension=name, value=(3 * n + k) % 5, **about)
        for k, name in enumerate(DIMENSIONS)
        for n in range(len(VALUES))
    ]


def write_csv(path: Path, rows: list[dict[str, Any]], columns: list[str]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows([{name: "" if row[name] is None else row[name] for name in columns} for row in rows])


@pytest.fixture
def files(tmp_path: Path) -> None:
    """The same verdicts, scores and ratings as JSON lines and as CSV."""
    write_jsonl(tmp_path / "v.jsonl", verdicts())
    write_jsonl(tmp_path / "g.jsonl", scores())
    of_verdict = ["dialogue_id", "language", "judge", "rubric", "dimension", "value", "method"]
    write_csv(tmp_path / "v.csv", [one.model_dump() for one in verdicts()], of_verdict)
    of_score = ["dialogue_id", "language", "annotator", "rubric", "dimension", "value"]
    write_csv(tmp_path / "g.csv", [one.model_dump() for one in scores()], of_score)
    ratings = [{"user": f"u{n}", "model": m, "score": s} for m in "ab" for n, s in enumerate(VALUES)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, ratings)))
    write_csv(tmp_path / "r.csv", ratings, ["user", "model", "score"])


def run_folder(folder: Path) -> Path:
    """A run that two judges scored, on its dialogues and on its gold set."""
    rubric = load_rubric("esc_eval").model_dump(mode="json")
    config = {f"score{tail}": {"judge": {"name": name}, "rubric": rubric} for tail, name in (("", "j"), (" k", "k"))}
    write_json(folder / "config.json", {"simulate": {}} | config)
    write_jsonl(folder / "dialogues.jsonl", [make_dialogue(f"d{n}") for n in range(len(VALUES))])
    write_jsonl(folder / "gold_scores.jsonl", scores("gold"))
    for judge, place in (("j", folder), ("k", folder / "judges" / "k")):
        write_jsonl(place / "judgements.jsonl", verdicts(judge, shift=judge == "k"))
        write_jsonl(place / "gold_judgements.jsonl", verdicts(judge, "gold", shift=judge == "k"))
    return folder


def figures(name: str) -> Any:
    return json.loads(Path("out", f"{name}.json").read_text())


@pytest.mark.usefixtures("files")
def test_csv_and_json_lines_say_the_same_on_both_sides(esc_eval: EscEval) -> None:
    for verb, name in ((AGREE, "agreement"), (CORRELATE, "correlation")):
        found = []
        for given, gold in (("v.jsonl", "g.jsonl"), ("v.csv", "g.csv"), ("v.jsonl", "g.csv")):
            assert esc_eval(*verb, "--judgements", given, "--gold", gold, "--out", "out")[0] == 0
            found.append(figures(name))
        assert found[0] == found[1] == found[2]
    assert found[0]["correlation"]
    ratings = []
    for file in ("r.jsonl", "r.csv"):
        scores, models = read_ratings(Path(file))
        ratings.append((scores.tolist(), models))
    assert repr(ratings[0]) == repr(ratings[1])


@pytest.mark.usefixtures("files")
def test_all_columns_that_are_missing_are_named_at_once(esc_eval: EscEval) -> None:
    Path("few.csv").write_text("dialogue_id,language,value\nd0,en,3\n")
    Path("few.jsonl").write_text('{"dialogue_id": "d0", "language": "en", "value": 3}\n')
    for verb in (AGREE, CORRELATE):
        for file in ("few.csv", "few.jsonl"):
            judged = esc_eval(*verb, "--judgements", file, "--gold", "g.csv")
            one_line(
                judged, 2, *("'judge', 'rubric', 'dimension'" if file == "few.csv" else "judge, rubric, dimension: Field",)
            )
            one_line(esc_eval(*verb, "--judgements", "v.csv", "--gold", file), 2, "annotator", "rubric", "dimension")
    Path("few.csv").write_text("user\nu\n")
    Path("few.jsonl").write_text('{"user": "u"}\n')
    for file, problem in (("few.csv", "no column 'model', 'score'"), ("few.jsonl", "model, score: Field required")):
        with pytest.raises(UserError, match=f"{file}:1: {problem}"):
            read_ratings(Path(file))
    Path("few.jsonl").write_text('{"user": "u", "model": "m", "score": "good"}\n')
    with pytest.raises(UserError, match=r"few\.jsonl:1: score: a number is expected"):
        read_ratings(Path("few.jsonl"))


@pytest.mark.usefixtures("files")
def test_a_run_folder_where_a_file_is_meant_is_the_file_in_it(esc_eval: EscEval, tmp_path: Path) -> None:
    run_folder(tmp_path / "r")
    on_gold = ("agree", "--gold", "r", "--judgements", "r", "--out", "out")
    assert esc_eval(*on_gold)[0] == 0
    assert list(figures("agreement")["judges"]) == ["j", "k"], "all judges, on the gold set"
    assert esc_eval(*on_gold, "--judge", "k")[0] == 0
    assert list(figures("agreement")["judges"]) == ["k"]
    one_line(esc_eval(*on_gold, "--judge", "l"), 2, "--judge l: gave none of the verdicts: known: j, k")
    for verb, name in ((AGREE, "agreement"), (CORRELATE, "correlation")):
        given = (*verb, "--gold", "g.csv", "--out", "out", "--judge", "j", "--judgements")
        found = []
        for place in ("r", "v.jsonl"):
            assert esc_eval(*given, place)[0] == 0
            found.append(figures(name))
        assert found[0] == found[1], "people scored the run's own dialogues"
    assert esc_eval(*CORRELATE, "--gold", "g.csv", "--judgements", "r", "--dialogues", "r")[0] == 0
    (tmp_path / "r" / "judgements.jsonl").unlink()
    (tmp_path / "r" / "judges" / "k" / "judgements.jsonl").unlink()
    one_line(esc_eval(*given, "r"), 2, "--judgements r: no judgements.jsonl in it: run `esc-eval run --only score")
    (tmp_path / "empty").mkdir()
    one_line(esc_eval(*given, "empty"), 2, "not a run folder (no config.json): empty")
    one_line(esc_eval(*CORRELATE, "--gold", "empty", "--judgements", "v.csv"), 2, "--gold empty: not a file")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("report", "runs/none"), "esc-eval run --config CONFIG --out runs/none"),
        (("leaderboard", "r", "--against", "empty"), "esc-eval run --config CONFIG --out empty"),
        (("status", "empty"), "esc-eval run --config CONFIG --out empty"),
        (("run", "--only", "score", "--out", "empty", "--config", "c.yaml"), "esc-eval run --only simulate"),
        (("leaderboard", "unscored"), "esc-eval run --only score --config CONFIG --out unscored"),
        (("report", "unscored"), "esc-eval run --only score --config CONFIG --out unscored"),
        (("judge-card", "unscored"), "esc-eval run --only score --config CONFIG --out unscored"),
        (("agree", "--gold", "g.csv", "--judgements", "unscored"), "esc-eval run --only score --config CONFIG --out unscored"),
        (("agree", "--gold", "g.csv", "--judgements", "v.csv", "--split", "s"), "python -m data_prep rank-sft --out s"),
        (
            ("paper", "feel", "ensemble", "--judgements", "v.csv", "--weights", "w.json", "--out", "o"),
            "esc-eval paper feel ensemble --gold SCORES",
        ),
    ],
)
@pytest.mark.usefixtures("files")
def test_what_is_missing_is_said_with_the_command_that_makes_it(
    esc_eval: EscEval, tmp_path: Path, arguments: tuple[str, ...], command: str
) -> None:
    (tmp_path / "empty").mkdir()
    write_json(tmp_path / "unscored" / "config.json", {"simulate": {}})
    run_folder(tmp_path / "r")
    (tmp_path / "c.yaml").write_text("seeker: embedded\njudge: embedded\nlanguages: [en]\n")
    one_line(esc_eval(*arguments), 2, f"`{command}")
