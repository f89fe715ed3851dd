"""Several judges on the dialogues of one run: a judgement set each, side by side."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score

from core.tables import Estimate
from evalsuite import cli
from evalsuite.statistics.judges import between_judges
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.records import make_judgement, make_rubric
from tests.evalsuite.test_faults import one_line
from tests.evalsuite.test_growth import DIALOGUE, endpoint, left, run, write_config, write_spec

pytestmark = pytest.mark.slow

__all__ = ["endpoint"]
JUDGED = 1  # call of a dialogue, and of a gold dialogue
GOLD = {"dialogues": "synthetic_test", "limit": 2}


@pytest.fixture(autouse=True)
def judges(tmp_path: Path, endpoint: Endpoint) -> None:
    """Judges b and d, asked as `embedded` is; a run has cards in English and a gold set."""
    for name in ("b", "d"):
        write_spec(tmp_path / f"judge-{name}.yaml", f"judge-{name}", endpoint.url, roles=["judge"])
        endpoint.models = (*endpoint.models, f"judge-{name}")
    write_config(tmp_path / "c.yaml", endpoint.url, gold=GOLD)
    write_config(tmp_path / "two.yaml", endpoint.url, gold=GOLD, languages=["en", "zh"])


def sets(folder: str) -> dict[str, bytes]:
    """What judges left in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*judgements.jsonl")}


def score(out: str, judge: str, *options: str, config: str = "c") -> tuple[str, ...]:
    return "run", "--only", "score", "--out", out, "--config", f"{config}.yaml", "--judge", judge, *options


def test_a_second_judge_is_asked_its_own_calls_alone_and_a_run_that_grew_with_it_is_one_made_at_once(
    esc_eval: EscEval, endpoint: Endpoint
) -> None:
    def asked(*command: str) -> int:
        before = len(endpoint.requests)
        assert esc_eval(*command) == (0, "")
        return len(endpoint.requests) - before

    gold = 2
    assert asked(*run("grown/r", "--supporter", "a.yaml", "--limit", 3)) == 3 * DIALOGUE + gold
    assert asked(*score("grown/r", "judge-b.yaml")) == 3 * JUDGED + gold
    assert asked(*run("grown/r", "--supporter", "a.yaml", "--limit", 5)) == 2 * DIALOGUE
    assert asked(*score("grown/r", "judge-b.yaml")) == 2 * JUDGED
    both = ("--supporter", "a.yaml", "--supporter", "b.yaml")
    assert asked(*run("grown/r", *both, "--limit", 5)) == 5 * DIALOGUE
    assert asked(*run("grown/r", *both, "--limit", 5, "--config", "two.yaml")) == 10 * DIALOGUE + gold
    assert asked(*score("grown/r", "judge-b.yaml", config="two")) == 15 * JUDGED + gold

    assert asked(*run("once/r", *both, "--limit", 5, "--config", "two.yaml")) == 20 * DIALOGUE + 2 * gold
    assert asked(*score("once/r", "judge-b.yaml", config="two")) == 20 * JUDGED + 2 * gold
    for command in (run("once/r", *both, "--limit", 5, "--config", "two.yaml"), score("grown/r", "judge-b.yaml", config="two")):
        assert asked(*command) == 0, "the same again asks nothing"
    assert sets("grown/r") == sets("once/r") and "judges/judge-b/gold_judgements.jsonl" in sets("grown/r")
    esc_eval("report", "once/r")
    esc_eval("report", "grown/r")
    assert left(Path("grown/r")) == left(Path("once/r"))


def test_a_run_by_another_judge_leaves_the_first_ones_records_as_they_are(esc_eval: EscEval, endpoint: Endpoint) -> None:
    assert esc_eval(*run("r", "--supporter", "a.yaml")) == (0, "")
    before = {name: Path("r", name).read_bytes() for name in ("judgements.jsonl", "gold_judgements.jsonl", "agreement.json")}
    usage = json.loads(Path("r/usage.json").read_text())
    asked = len(endpoint.requests)
    assert esc_eval(*run("r", "--supporter", "a.yaml", "--judge", "judge-b.yaml", "--limit", 3)) == (0, "")
    assert len(endpoint.requests) - asked == 2 * JUDGED + DIALOGUE + 2
    assert {name: Path("r", name).read_bytes() for name in before} == before
    assert len(Path("r/judges/judge-b/judgements.jsonl").read_text().splitlines()) == 3 * 7
    now = json.loads(Path("r/usage.json").read_text())
    assert now["score"] == usage["score"] and list(now["score judge-b"]["judge"]) == ["judge-b"]
    report = json.loads(Path("r/report.json").read_text())
    warning = "embedded has not judged 1 of 3 dialogues yet: score them with --judge embedded."
    assert warning in report["summary"]["warnings"]


def test_the_report_sets_judges_side_by_side_with_each_other_and_with_gold(
    esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path
) -> None:
    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer("4" * 7) if body["model"] == "judge-b" else echo(body, count)

    endpoint.behave = behave
    assert esc_eval(*run("r", "--supporter", "a.yaml", "--supporter", "b.yaml")) == (0, "")
    assert esc_eval(*score("r", "judge-b.yaml")) == (0, "")
    assert esc_eval("report", "r") == (0, "")
    report = json.loads(Path("r/report.json").read_text())
    tables = {table["key"]: table for table in report["tables"]}
    board = tables["leaderboard-en"]
    judged, supporter = board["columns"].index("judged by"), board["columns"].index("supporter")
    assert [(row[judged].split(" · ")[0], row[supporter]) for row in board["rows"]] == [
        ("embedded", "a"),
        ("embedded", "b"),
        ("judge-b", "a"),
        ("judge-b", "b"),
    ]
    between = tables["between-judges-en"]
    assert len(between["rows"]) == 7 and between["rows"][0][1:3] == ["embedded", "judge-b"]
    assert [row[0] for row in tables["table4_en"]["rows"]] == ["embedded", "judge-b", "majority class"]
    assert {"judge_differences", "agreement_embedded_en", "agreement_judge-b_en"} <= tables.keys()
    assert set(report["agreements"]) == {"embedded", "judge-b"} and report["agreement"] == report["agreements"]["embedded"]
    page = Path("r/report.html").read_text()
    assert all(f"Agreement with gold, English, {judge}" in page for judge in ("embedded", "judge-b"))
    assert "prompts of judge-b" in report["config"]["fingerprints"]


def test_sets_of_one_folder_differ_in_judge_method_and_prompts_alone(
    esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path
) -> None:
    write_config(tmp_path / "c.yaml", endpoint.url, supporters=["a.yaml"])
    write_config(tmp_path / "singly.yaml", endpoint.url, supporters=["a.yaml"], method="per_dimension")
    write_config(tmp_path / "other.yaml", endpoint.url, supporters=["a.yaml"], rubric="risk_response")
    for command in (run("r", only="simulate"), ("run", "--only", "score", "--out", "r", "--config", "c.yaml")):
        assert esc_eval(*command) == (0, "")
    assert esc_eval(*score("r", "judge-b.yaml", config="singly")) == (0, "")
    before, asked = sets("r"), len(endpoint.requests)
    for judge, config, told in (
        ("embedded", "singly", 'r was made with another score config: method: "joint" → "per_dimension"'),
        ("judge-b.yaml", "c", 'r was made with another score judge-b config: method: "per_dimension" → "joint"'),
        ("judge-d.yaml", "other", "r was scored in another way by its first judge: rubric."),
    ):
        one_line(esc_eval(*score("r", judge, config=config)), 2, told)
    assert sets("r") == before and len(endpoint.requests) == asked
    assert list(json.loads(Path("r/config.json").read_text())) == ["format", "simulate", "score", "score judge-b"]


def test_what_reads_one_judge_asks_for_its_name_where_several_scored(
    esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path
) -> None:
    write_config(tmp_path / "c.yaml", endpoint.url, supporters=["a.yaml", "b.yaml"])
    for command in (
        run("r", only="simulate"),
        ("run", "--only", "score", "--out", "r", "--config", "c.yaml"),
        score("r", "judge-b.yaml"),
    ):
        assert esc_eval(*command) == (0, "")
    shutil.copytree("r", "s")
    for verb in (("leaderboard", "s", "--against", "r"), ("leaderboard", "r")):
        one_line(esc_eval(*verb), 2, "r was scored by 2 judges: choose one with --judge: embedded, judge-b")
        one_line(esc_eval(*verb, "--judge", "judge-c"), 2, "--judge judge-c: did not score r: did you mean judge-b?")
        assert esc_eval(*verb, "--judge", "judge-b", "--out", "o") == (0, "")
    board = json.loads(Path("o/leaderboard.json").read_text())
    assert {judgement["judge"] for judgement in board["judgements"]} == {"judge-b"}


def test_shards_with_two_judges_merge_and_a_status_counts_both(
    esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path / "c.yaml", endpoint.url, supporters=["a.yaml"], gold=GOLD)
    for out, shard in (("whole", ()), ("s1", ("--shard", "1/2")), ("s2", ("--shard", "2/2"))):
        assert esc_eval(*run(out, *shard, only="simulate")) == (0, "")
        for judge in ("embedded", "judge-b.yaml"):
            if (out, judge) == ("s2", "judge-b.yaml"):
                one_line(esc_eval("merge", "s1", "s2", "--out", "m"), 2, "stage score judge-b has not begun in shard 2/2")
            assert esc_eval(*score(out, judge, *shard)) == (0, "")
    monkeypatch.setattr("evalsuite.report.content.report_run", lambda *given: None)
    assert esc_eval("merge", "s1", "s2", "--out", "m") == (0, "")
    for name in (*sets("whole"), "usage.json", "config.json", "agreement.json", "judges/judge-b/agreement.json"):
        assert Path("m", name).read_bytes() == Path("whole", name).read_bytes(), name
    monkeypatch.setattr("sys.argv", ["esc-eval", "status", "m"])
    cli.app(standalone_mode=False)
    told = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert ["verdicts by embedded", "read", "14"] in told and ["verdicts by judge-b", "read", "14"] in told


def test_a_judge_that_never_answered_leaves_its_place_to_another(esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path) -> None:
    write_config(tmp_path / "c.yaml", endpoint.url, supporters=["a.yaml"])
    assert esc_eval(*run("r", only="simulate")) == (0, "")
    endpoint.behave = lambda body, count: Answer(status=400) if body["model"] == "judge-d" else echo(body, count)
    assert esc_eval(*score("r", "judge-d.yaml"))[0] == 2
    assert esc_eval(*run("s", "--judge", "judge-d.yaml"))[0] == 1
    assert "judge-d" in Path("s/config.json").read_text(), "its folder is claimed: the supporter answered"
    for out in ("r", "s"):
        assert esc_eval(*score(out, "judge-b.yaml")) == (0, "")
        assert list(sets(out)) == ["judgements.jsonl"] and "judge-d" not in Path(out, "judgements.jsonl").read_text()
        assert list(json.loads(Path(out, "config.json").read_text())) == ["format", "simulate", "score"]


def test_verdicts_on_a_dialogue_that_was_drawn_again_are_dropped(esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path) -> None:
    def cut(body: dict[str, Any], count: int) -> Answer:
        answer = echo(body, count)
        return replace(answer, finish_reason="length") if body["model"] == "a" and len(endpoint.requests) < 3 else answer

    write_config(tmp_path / "c.yaml", endpoint.url, supporters=["a.yaml"], concurrency=1)
    endpoint.behave = cut
    assert esc_eval(*run("r", only="simulate")) == (0, "")
    endpoint.behave = lambda body, count: echo(body | {"messages": ["again", *body["messages"]]}, count)
    for judge in ("embedded", "judge-b.yaml"):
        assert esc_eval(*score("r", judge)) == (0, "")
    assert esc_eval(*run("r", "--judge", "judge-b.yaml", "--retry", "length")) == (0, "")
    verdicts = {name: len(text.splitlines()) for name, text in sets("r").items()}
    assert verdicts == {"judgements.jsonl": 7, "judges/judge-b/judgements.jsonl": 14}
    assert esc_eval(*score("r", "embedded")) == (0, "")
    assert len(sets("r")["judgements.jsonl"].splitlines()) == 14


def test_what_judges_say_of_each_other_is_counted_by_hand() -> None:
    rubric = make_rubric("empathy")
    given: dict[str, list[float | None]] = {"a": [0, 1, 2, 3, None, 4], "b": [0, 2, 2, 1, 3, 4]}
    verdicts = [
        make_judgement(f"d{n}", "empathy", value, judge=judge)
        for judge, values in given.items()
        for n, value in enumerate(values)
    ]
    [table] = between_judges(verdicts, rubric)
    [(dimension, a, b, kappa, spearman, equal, near, minus)] = table.rows
    assert (dimension, a, b) == ("Empathy", "a", "b")
    assert isinstance(equal, Estimate) and isinstance(near, Estimate) and isinstance(kappa, Estimate)
    assert (equal.mean, equal.n, near.mean) == (60, 5, 80)
    both = [0, 1, 2, 3, 4], [0, 2, 2, 1, 4]  # where both are readable
    assert minus == pytest.approx((sum(both[0]) - sum(both[1])) / 5)
    assert kappa.mean == pytest.approx(cohen_kappa_score(*both, weights="quadratic", labels=range(5)))
    assert spearman == pytest.approx(spearmanr(*both).statistic)
    assert [*between_judges([one for one in verdicts if one.judge == "a"], rubric)] == []
    apart = [one for one in verdicts if (one.judge == "a") == (one.dialogue_id in ("d0", "d1"))]
    assert [*between_judges(apart, rubric)] == [], "judges that share no dialogue"
