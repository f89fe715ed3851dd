"""Existing dialogues: scored in any form, grouped by what is known of them, compared before and after; and the
files that agree and a table of ratings take: CSV, JSON lines, run folders."""

import csv
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.errors import UserError
from core.files import write_json, write_jsonl
from core.records import HumanScore, Judgement
from core.rubrics import load_rubric
from evalsuite.api import score
from evalsuite.statistics.contestants import users_of
from evalsuite.statistics.discrimination import read_ratings
from evalsuite.statistics.leaderboard import Tally, by_field
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.records import RUBRIC, make_dialogue, make_judgement
from tests.evalsuite.test_faults import one_line


def judge(body: dict[str, Any], _: int) -> Answer:
    """Seven times the score that the supporter's line names."""
    scores = re.findall(r"score (\d)", str(body["messages"]))
    return Answer(scores[-1] * 7)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with Endpoint(judge, models=("judge",)) as up:
        settings = {"gold": None, "languages": ["en"], "judge": f"judge@{up.url}", "out": None}
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(**settings)))
        yield up


def production(count: int, week: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    """Chats of two versions, the later a point better; a user has four of them."""
    draw, chats = random.Random(seed), []
    for number in range(count):
        version = number // 2 % 2  # a user has both
        score = min(4, max(0, round(draw.gauss(1.5 + version, 0.8))))
        said = [("system", "Be kind."), ("user", f"I worry, {number}."), ("assistant", f"score {score}")]
        about = {"version": ("before", "since")[version], "week": week + number % 3 + 8, "user": f"u{number // 4}"}
        messages = [{"role": role, "content": text} for role, text in said]
        chats.append({"id": f"c{week}-{number}", "messages": messages, "metadata": about, "model": "ours"})
    return chats


def write(path: Path, chats: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, chats)))


def test_hundreds_of_chats_are_scored_and_two_versions_compared(esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path) -> None:
    chats = production(600)
    write(tmp_path / "chats.jsonl", chats)
    given = ("run", "--only", "score", "--config", "c.yaml", "--dialogues", "chats.jsonl", "--out", "run")
    assert esc_eval(*given) == (0, "")
    assert len(endpoint.requests) == 600
    assert esc_eval("report", "run", "--by", "version", "--by", "week") == (0, "")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    tables = {table["key"]: table for table in report["tables"] if table["key"].startswith("by-")}
    rows = {row[0]: dict(zip(tables["by-version"]["columns"], row, strict=True)) for row in tables["by-version"]["rows"]}
    for version, row in rows.items():
        scores = [int(chat["messages"][2]["content"][-1]) for chat in chats if chat["metadata"]["version"] == version]
        assert row["average"]["mean"] == pytest.approx(25 * sum(scores) / len(scores))
        assert row["average"]["low"] < row["average"]["mean"] < row["average"]["high"]
        assert (row["dialogues"], row["clusters"]) == (300, 150)
    gaps = [dict(zip(tables["by-version-gap"]["columns"], row, strict=True)) for row in tables["by-version-gap"]["rows"]]
    assert [gap["dimension"] for gap in gaps][-1] == "average" and len(gaps) == 8
    for gap in gaps:
        assert (gap["version"], gap["against"], gap["significant"]) == ("since", "before", "yes")
        assert gap["difference"]["mean"] == pytest.approx(rows["since"]["average"]["mean"] - rows["before"]["average"]["mean"])
        assert gap["difference"]["low"] > 15 and gap["difference"]["high"] < 35
    assert [row[0] for row in tables["by-week"]["rows"]] == ["8", "9", "10"], "no week is compared with another"
    assert set(tables) == {"by-version", "by-version-gap", "by-week"}
    assert esc_eval("report", "run") == (0, "")
    assert "by-version" not in (tmp_path / "run" / "report.json").read_text(), "a later report leaves them out"


def test_runs_of_given_dialogues_are_compared_before_and_after(esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path) -> None:
    for name, kept in (("before", "before"), ("after", "since")):
        write(tmp_path / f"{name}.jsonl", [chat for chat in production(80) if chat["metadata"]["version"] == kept])
        given = ("--config", "c.yaml", "--dialogues", f"{name}.jsonl", "--out", name)
        assert esc_eval("run", "--only", "score", *given) == (0, "")
    assert esc_eval("leaderboard", "after", "--against", "before", "--out", "board") == (0, "")
    found = json.loads((tmp_path / "board" / "comparison.json").read_text())["findings"][0]
    assert found.startswith("after is better than before by ")


def test_what_was_left_out_and_what_is_wrong_is_said_before_anything_is_asked(
    esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("evalsuite.commands.run._say", said.append)
    chats = production(2)
    write(tmp_path / "chats.jsonl", chats)
    given = ("run", "--only", "score", "--config", "c.yaml", "--dialogues", "chats.jsonl", "--out", "run")
    assert esc_eval(*given, "--plan")[0] == 0
    assert said == ["chats.jsonl: messages left out of 2 dialogues, by role: 2 system"]
    code, error = esc_eval(*given, "--set", "languages=[en,zh]")
    assert (
        code == 2
        and error.count("language: missing: give --language LANGUAGE (in Python: languages=[…]), or a field language") == 2
    )
    chats[1]["messages"][1]["role"] = "Mum"
    write(tmp_path / "chats.jsonl", chats)
    one_line(esc_eval(*given), 2, "chats.jsonl:2: message 1: role: 'Mum' is unknown: name its side: --set roles.Mum=seeker")
    assert not endpoint.requests and not (tmp_path / "run").exists()
    assert esc_eval(*given, "--set", "roles.Mum=seeker")[0] == 0
    assert len(endpoint.requests) == 2


@pytest.mark.slow
def test_python_scores_a_file_of_any_form(endpoint: Endpoint, tmp_path: Path) -> None:
    write(tmp_path / "chats.jsonl", production(3))
    results = score(tmp_path / "chats.jsonl", judge=f"judge@{endpoint.url}", languages=["en"])
    assert [one.supporter for one in results.dialogues] == ["ours"] * 3 and len(endpoint.requests) == 3
    with pytest.raises(UserError, match="language: missing"):
        score(tmp_path / "chats.jsonl", judge=f"judge@{endpoint.url}")


def scored(scores: list[tuple[dict[str, str], int]], **more: Any) -> Tally:
    """A dialogue for each of these fields, with this score on both dimensions."""
    dialogues = [make_dialogue(f"d{n}", fields=fields, **more) for n, (fields, _) in enumerate(scores)]
    verdicts = [make_judgement(f"d{n}", name, score) for n, (_, score) in enumerate(scores) for name in RUBRIC.dimensions]
    return Tally(dialogues, verdicts, RUBRIC, (), users_of(dialogues))


def test_a_user_with_many_dialogues_counts_as_one_cluster() -> None:
    """Forty dialogues of four users, who always say the same, are hardly more than four."""
    draws = [({"version": "1", "user": f"u{n % 4}"}, n % 4) for n in range(40)]
    alone = [({"version": "1"}, n % 4) for n in range(40)]
    (together,), (apart,) = by_field(scored(draws), "version"), by_field(scored(alone), "version")
    widths = []
    for table, clusters in ((together, 4), (apart, 40)):
        row: dict[str, Any] = dict(zip(table.columns, table.rows[0], strict=True))
        assert row["clusters"] == clusters
        widths.append(row["average"].high - row["average"].low)
    assert widths[0] > 2 * widths[1]


def test_two_values_are_compared_and_the_difference_is_none_where_there_is_none() -> None:
    alike = [({"country": name}, n % 5) for n in range(30) for name in ("de", "fr")]
    _, gaps = by_field(scored(alike), "country")
    rows: list[dict[str, Any]] = [dict(zip(gaps.columns, row, strict=True)) for row in gaps.rows]
    assert {row["significant"] for row in rows} == {"no"} and all(row["difference"].mean == 0 for row in rows)


def test_dialogues_that_lack_the_field_have_a_row_and_floors_have_none() -> None:
    tally = scored([({"version": "2"}, 4), ({"version": "10"}, 2), ({}, 0)])
    (table,) = by_field(tally, "version")
    assert [row[0] for row in table.rows] == ["2", "10", "no version"]
    floors = Tally(tally.dialogues, tally.judgements, RUBRIC, ("m",))
    with pytest.raises(UserError, match="--by version: no dialogue has this field"):
        [*by_field(floors, "version")]


def test_a_field_of_the_record_groups_too_and_an_unknown_one_is_refused() -> None:
    tally = scored([({"version": "2"}, 4), ({"version": "3"}, 2)])
    (table,) = by_field(tally, "language")
    assert [row[:2] for row in table.rows] == [("en", 2)]
    with pytest.raises(UserError, match="--by versoin: no dialogue has this field: did you mean version"):
        [*by_field(tally, "versoin")]


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
