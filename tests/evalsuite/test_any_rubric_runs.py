"""Runs on rubrics of every shape, through the command line: report, agreement, a judge's card; figures with oracles."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.files import write_jsonl
from core.records import HumanScore, Judgement
from core.rubrics import Rubric
from data_prep.scores.annotation import score_in
from evalsuite.statistics.agreement import agreement, in_steps, step_notes
from evalsuite.statistics.judges import confusion
from evalsuite.statistics.leaderboard import Tally, leaderboard
from evalsuite.statistics.summary import distributions, missing
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Endpoint
from tests.evalsuite.records import make_dialogue
from tests.evalsuite.rubrics import RUBRICS, rubric_file
from tests.people_study import Client, links, served, write_dialogues


def verdicts(rubric: Rubric, dialogue: str, supporter_values: dict[str, float | str | None], **more: Any) -> list[Judgement]:
    base = {"dialogue_id": dialogue, "language": "en", "judge": "j", "rubric": rubric.name, "method": "joint"}
    made = []
    for key, value in supporter_values.items():
        nothing = {"condition": {"verdict": value}, "value": None} if isinstance(value, str) else {"value": value}
        made.append(Judgement.model_validate(base | {"dimension": key} | nothing | more))
    return made


def row_of(rubric: Rubric, values: list[dict[str, float | str | None]]) -> tuple[dict[str, Any], list[str]]:
    """The only supporter's row on the board, and the notes below it."""
    talks = [make_dialogue(f"d{number}", card_id=f"c{number}") for number in range(len(values))]
    judged = [j for talk, own in zip(talks, values, strict=True) for j in verdicts(rubric, talk.id, own)]
    table = next(iter(leaderboard(Tally(talks, judged, rubric).boards, rubric)))
    return dict(zip(table.columns, table.rows[0], strict=True)), list(table.notes)


def by_people(judged: list[Judgement]) -> list[HumanScore]:
    """Somebody who agrees with the judge, but gives whole numbers."""
    base = {"language": "en", "annotator": "a"}
    scored = [(j, base | {"dialogue_id": j.dialogue_id, "rubric": j.rubric, "dimension": j.dimension}) for j in judged]
    return [HumanScore.model_validate(more | {"value": round(j.value)}) for j, more in scored if j.value is not None]


def test_averages_are_weighted_and_run_from_worst_to_best() -> None:
    """Warmth 10 of 1–10 is 100; pressure 10 is 0 and counts three times: 25."""
    row, notes = row_of(RUBRICS["1-10"], [{"warmth": 10, "pressure": 10}] * 2)
    assert (row["Warmth"].mean, row["Pressure"].mean, row["average"].mean) == (100, 0, 25)
    assert any("weighted Warmth 1, Pressure 3" in note for note in notes)
    assert any("worst score → 0, its best → 100" in note for note in notes)


def test_what_does_not_apply_is_in_no_mean_and_in_no_parse_rate() -> None:
    rubric = RUBRICS["halves"]
    row, notes = row_of(
        rubric, [{"warmth": 4, "plan": 2.5}, {"warmth": 2, "plan": "not_applicable"}, {"warmth": None, "plan": 3.5}]
    )
    assert (row["Warmth"].mean, row["Warmth"].n) == (75, 2) and (row["Plan"].mean, row["Plan"].n) == (75, 2)
    assert row["parse rate %"] == 80, "one of five could not be read; the sixth had nothing to score"
    assert any("does not apply" in note for note in notes)
    judged = verdicts(rubric, "d", {"warmth": 4, "plan": "not_applicable"})
    table = distributions(judged, rubric)
    shares = {row[1]: row[table.columns.index("not applicable %")] for row in table.rows}
    assert shares == {"Warmth": 0, "Plan": 100} and missing(judged) == {"not_applicable": 1}


def test_the_outcome_of_a_tree_is_its_average() -> None:
    ways: list[dict[str, float | str | None]] = [
        {"spoken": 0, "asked": "not_reached", "helpline": "not_reached", "outcome": 0},
        {"spoken": 1, "asked": 2, "helpline": "not_reached", "outcome": 3},
    ]
    row, _ = row_of(RUBRICS["tree"], ways)
    assert row["Outcome"].mean == row["average"].mean == 50 and row["Helpline"].mean is None


@pytest.mark.parametrize("kind", ["0-100", "levels", "halves", "mixed"])
def test_tables_of_scores_have_eleven_columns_at_most(kind: str) -> None:
    rubric = RUBRICS[kind]
    judged = [
        j for n in range(4) for j in verdicts(rubric, f"d{n}", {key: rubric.scale_of(key).max for key in rubric.dimensions})
    ]
    table = distributions(judged, rubric)
    heads = table.columns[table.columns.index("dimension") + 1 : table.columns.index("unreadable")]
    assert len(heads) <= 11 and all([cell for cell in row[2 : 2 + len(heads)] if cell] == [4] for row in table.rows)
    if kind == "levels":
        assert heads == ("never", "now and then", "often")
    if kind == "0-100":
        assert heads == tuple(str(10 * tenth) for tenth in range(11)) and "nearest of 11" in table.notes[0]
    gold = by_people(judged)
    matrices = confusion(judged, gold, rubric.scales)["en"]
    assert all(len(matrix.scores) <= 11 and sum(map(sum, matrix.counts)) in (4, 8) for matrix in matrices.values())


def test_acc_soft_is_within_one_step_of_the_scale() -> None:
    """By halves 3.5 is one step from 3 and 4 is two; of never, now and then, often (0, 1, 3) each is one from the next."""
    for kind, pairs, wanted in (
        ("halves", [(3, 3), (3.5, 3), (4, 3), (1, 3)], (0.25, 0.5)),
        ("levels", [(0, 0), (3, 1), (3, 0), (1, 3)], (0.25, 0.75)),
    ):
        rubric = RUBRICS[kind]
        key = next(iter(rubric.dimensions))
        judged = [j for n, (value, _) in enumerate(pairs) for j in verdicts(rubric, f"d{n}", {key: value})]
        gold = [
            HumanScore(dialogue_id=f"d{n}", language="en", annotator="a", rubric=rubric.name, dimension=key, value=score)
            for n, (_, score) in enumerate(pairs)
        ]
        found = agreement(*in_steps(judged, gold, rubric))["en"][key]
        assert (found["acc"], found["acc_soft"]) == wanted
        assert "steps of the scale, not points" in step_notes(rubric)[0]
    assert step_notes(RUBRICS["1-10"]) == [] and "Spearman" in step_notes(RUBRICS["0-100"])[0]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("halves", "2.5", 2.5), ("levels", "Often", 3), ("levels", "3", 3), ("1-10", "10", 10), ("yes or no", "yes", 1)],
)
def test_people_write_scores_or_names_into_sheets(kind: str, text: str, value: float) -> None:
    rubric = RUBRICS[kind]
    assert score_in(text, next(iter(rubric.dimensions)), rubric) == value


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("1-10", "joint"),
        ("halves", "json"),
        ("yes or no", "per_dimension"),
        ("levels", "bands"),
        ("0-100", "joint"),
        ("tree", "tree"),
        ("tree", "tree_once"),
    ],
)
def test_a_run_is_judged_reported_and_compared_with_people(
    kind: str, method: str, esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rubric, file = RUBRICS[kind], rubric_file(tmp_path, kind)
    said: list[str] = []
    monkeypatch.setattr("evalsuite.commands.run._say", said.append)
    with Endpoint(models=("embedded",)) as endpoint:
        config = demo_config(limit=2, gold=None, languages=["en"], rubric=str(file), method=method, prompts=None)
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(config | {"endpoints": {"embedded": endpoint.url}, "exchanges": 1}))
        assert esc_eval("run", "--config", "c.yaml", "--out", "run") == (0, "")
        assert not any("have no value" in line for line in said), "questions off a tree's way are not unreadable"
        asked = len(endpoint.requests)
        assert esc_eval("run", "--config", "c.yaml", "--out", "run")[0] == 0
        assert len(endpoint.requests) == asked, "all answers are found again"
        told = json.loads(Path("run/config.json").read_text())["score"]
        assert told["prompts"]["pack"] == "any_rubric" and Rubric.model_validate(told["rubric"]) == rubric
    judged = [Judgement.model_validate_json(line) for line in Path("run/judgements.jsonl").read_text().splitlines()]
    assert {j.dimension for j in judged} == set(rubric.dimensions)
    assert all((j.value is None) == ("verdict" in j.condition) for j in judged)
    report = json.loads(Path("run/report.json").read_text())
    assert any(table["key"] == "leaderboard-en" for table in report["tables"])
    assert esc_eval("report", "run")[0] == 0
    write_jsonl(tmp_path / "gold.jsonl", by_people(judged))
    assert esc_eval("report", "run", "--gold", "gold.jsonl")[0] == 0, "a run knows its own rubric"
    assert esc_eval("leaderboard", "run", "--gold", "gold.jsonl", "--out", "board")[0] == 0
    options = ("--judgements", "run/judgements.jsonl", "--gold", "gold.jsonl", "--rubric", file, "--only-shared")
    assert esc_eval("agree", *options, "--out", "agreed")[0] == 0
    assert esc_eval("agree", *options[:6], "--correlate", "dialogue")[0] == 0


def test_a_judges_card_is_made_on_one_scale_and_refused_elsewhere(esc_eval: EscEval, tmp_path: Path) -> None:
    talks = [make_dialogue(f"d{n}", card_id=f"c{n}") for n in range(6)]
    write_jsonl(tmp_path / "talks.jsonl", talks)
    with Endpoint(models=("j",)) as endpoint:
        for kind, method in (("1-10", "joint"), ("levels", "per_dimension"), ("mixed", "joint"), ("tree", "tree")):
            rubric = RUBRICS[kind]
            write_jsonl(
                tmp_path / "gold.jsonl",
                [
                    HumanScore(dialogue_id=t.id, language="en", annotator="a", rubric=rubric.name, dimension=key, value=1)
                    for t in talks
                    for key in rubric.dimensions
                ],
            )
            given = ("--dialogues", "talks.jsonl", "--gold", "gold.jsonl", "--set", "languages=en", "--set", f"method={method}")
            where = ("--set", f"rubric={rubric_file(tmp_path, kind)}", "--out", f"card-{method}-{rubric.name}")
            code, error = esc_eval("judge-card", f"j@{endpoint.url}", *given, *where)
            if kind in ("1-10", "levels"):
                assert code == 0, error
            else:
                assert code == 2 and "needs all dimensions on one scale" in error


def test_people_in_a_study_see_the_same_scales(esc_eval: EscEval, tmp_path: Path) -> None:
    """Buttons with the names of levels, a number field for 101 scores; nothing off the scale is taken."""
    write_dialogues(tmp_path / "talks.jsonl", 1)
    for kind, right, wrong in (("levels", 3, 2), ("0-100", 57, 57.5), ("halves", 2.5, 2.25)):
        given = ("--dialogues", "talks.jsonl", "--rubric", rubric_file(tmp_path, kind))
        folder = tmp_path / RUBRICS[kind].name
        assert esc_eval("people", "create", folder.name, *given, "--raters", 2) == (0, "")
        with served(folder) as (address, _):
            rater = Client(address).enter(next(path for who, path in links(folder).items() if who != "organiser"))
            task = rater.tasks()[0]
            page = rater.request("GET", f"/task/{task}")[1]
            question = next(iter(RUBRICS[kind].dimensions))
            assert rater.put(task, question, value=right)[0] == 200
            assert rater.put(task, question, value=wrong)[0] == 422
        if kind == "0-100":
            assert '<input type="number" aria-label="Warmth" min="0" max="100" step="1.0"' in page
            assert page.count('type="radio"') == 2, "that nobody can say"
        elif kind == "levels":
            assert all(f"<b>{name}</b>" in page for name in ("never", "now and then", "often"))
        else:
            assert "<b>0.5</b> <span></span>" in page and "Warm throughout." in page


def test_a_tree_is_refused_where_people_or_rankers_would_take_it(esc_eval: EscEval, tmp_path: Path) -> None:
    write_dialogues(tmp_path / "talks.jsonl", 1)
    given = ("--dialogues", "talks.jsonl", "--rubric", rubric_file(tmp_path, "tree"))
    code, error = esc_eval("people", "create", "study", *given, "--raters", 1)
    assert code == 2 and "a study needs a rubric with dimensions; this one's questions form a tree" in error
