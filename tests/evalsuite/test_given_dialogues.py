"""Existing dialogues: scored in any form, grouped by what is known of them, compared before and after."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.errors import UserError
from evalsuite.api import score
from evalsuite.statistics.contestants import users_of
from evalsuite.statistics.leaderboard import Tally, by_field
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.records import RUBRIC, make_dialogue, make_judgement


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
    code, error = esc_eval(*given)
    assert code == 2 and "chats.jsonl:2: message 1: role: 'Mum' is unknown: name its side: --set roles.Mum=seeker" in error
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
