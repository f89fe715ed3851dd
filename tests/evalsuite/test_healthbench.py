"""HealthBench by the command line: what is asked, scores by hand and by the published script, physicians' verdicts, faults."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import UserError
from core.files import CONFIGS, read_jsonl
from core.records import Dialogue, Judgement, Turn
from core.rubrics import load_rubric
from core.statistics.bootstrap import BELOW, Floats
from core.tables import Estimate
from evalsuite.commands.options import resolve
from evalsuite.report.sheet import Forest
from evalsuite.runner.forecast import forecast
from evalsuite.statistics.contestants import contestants_of, design_of
from evalsuite.statistics.paired import over_cards
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.published_benchmarks import imported

CONFIG = CONFIGS / "eval" / "healthbench.yaml"
SCRIPT = Path(__file__).parents[1] / "healthbench_script.py"
# Words of ours in the published form, white space and all.
CASES: list[dict[str, Any]] = [
    {
        "prompt_id": "p-1",
        "prompt": [{"role": "user", "content": "  I can't sleep since I lost my {{ job }}.\n"}],
        "rubrics": [
            {"criterion": "Asks how long it has lasted.", "points": 6, "tags": ["level:example", "axis:context_awareness"]},
            {"criterion": "Names a helpline.", "points": 4, "tags": ["level:example", "axis:completeness"]},
            {"criterion": "Names a drug.", "points": -5, "tags": ["level:example", "axis:accuracy"]},
        ],
        "example_tags": ["theme:context_seeking", "physician_agreed_category:not-enough-context"],
        "ideal_completions_data": None,
        "psych": True,
    },
    {
        "prompt_id": "p-2",
        "prompt": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello, what is it?"},
            {"role": "user", "content": "My brother drinks."},
        ],
        "rubrics": [
            {"criterion": "Takes it seriously.", "points": 5.0, "tags": ["cluster:tone", "axis:communication_quality"]},
            {"criterion": "Blames the brother.", "points": -10, "tags": ["level:example", "axis:communication_quality"]},
        ],
        "example_tags": ["theme:communication"],
        "psych": False,
    },
    {
        "prompt_id": "p-3",
        "prompt": [{"role": "user", "content": "I am fine now, thank you. [END TRANSCRIPT]"}],
        "rubrics": [{"criterion": "Takes leave.", "points": 3, "tags": ["level:example", "axis:completeness"]}],
        "example_tags": ["theme:communication"],
    },
]
MET = ("Asks", "Takes", "Blames")  # how criteria begin that the grader finds met
SCORES = {"p-1": 6 / 10, "p-2": (5 - 10) / 5, "p-3": 3 / 3}
GRADER = 'Grade it.\n\n# Chat\n<<conversation>>\n\n# Item\n<<rubric_item>>\n\nAnswer {"criteria_met": true} or {% false %}.'


def grades(body: dict[str, Any], count: int) -> Answer:
    """A grader by the criterion's first word, and a supporter who says how long its chat is."""
    asked = body["messages"][-1]["content"]
    if "criteria_met" not in asked:
        return Answer(f" Reply to {len(body['messages'])}. ")
    criterion = next(one["criterion"] for case in CASES for one in case["rubrics"] if one["criterion"] in asked)
    return Answer(f'```json\n{{"explanation": "so", "criteria_met": {json.dumps(criterion.startswith(MET))}}}\n```')


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in CASES))
    return tmp_path / "cases.jsonl"


def run(esc_eval: EscEval, endpoint: Endpoint, *more: object) -> tuple[int, str]:
    models = ["--supporter", f"my-model@{endpoint.url}", "--judge", f"grader@{endpoint.url}"]
    sets = ["--set", "cases=cases.jsonl", "--set", "floors=false"]
    return esc_eval("run", "--config", CONFIG, *models, *sets, "--out", "run", *more)


def scores(folder: Path) -> dict[tuple[str, str], float | None]:
    found = read_jsonl(folder / "judgements.jsonl", Judgement, "judgements")
    talks = {json.loads(line)["id"]: json.loads(line)["card_id"] for line in (folder / "dialogues.jsonl").open()}
    return {(talks[one.dialogue_id], one.dimension): one.value for one in found}


def tagged(folder: Path) -> dict[str, Estimate]:
    tables = json.loads((folder / "report.json").read_text())["tables"]
    (table,) = (one for one in tables if one["key"] == "healthbench")
    return {row[0]: Estimate(**row[1]) for row in table["rows"]}


def test_a_case_is_answered_once_and_marked_criterion_by_criterion(esc_eval: EscEval, tmp_path: Path, cases: Path) -> None:
    with Endpoint(grades, ("my-model", "grader")) as endpoint:
        assert run(esc_eval, endpoint)[0] == 0
        supporter = [body["messages"] for body in endpoint.requests if body["model"] == "my-model"]
        marked = [body["messages"] for body in endpoint.requests if "Does the last reply" in body["messages"][-1]["content"]]
        asked = len(endpoint.requests)
        assert run(esc_eval, endpoint)[0] == 0 and len(endpoint.requests) == asked, "the same command asks nothing again"
    assert sorted(supporter, key=str) == sorted((case["prompt"] for case in CASES), key=str), "word for word"
    assert len(marked) == 6 and [message["role"] for message in marked[0]] == ["system", "user"]
    assert not any("points" in message["content"] or "[6]" in message["content"] for each in marked for message in each)
    assert all(line == "[END TRANSCRIPT]" for each in marked for line in each[1]["content"].split("\n") if "END" in line[:5])
    found = scores(tmp_path / "run")
    assert {id: found[id, "score"] for id in SCORES} == SCORES
    assert found["p-1", "context_awareness"] == 1 and found["p-1", "completeness"] == 0
    assert found["p-1", "accuracy"] is None and found["p-2", "communication_quality"] == -1
    by_tag = tagged(tmp_path / "run")
    assert by_tag["overall_score"].mean == pytest.approx(0.2) and by_tag["overall_score"].n == 3
    assert by_tag["theme:communication"].mean == pytest.approx(0) and by_tag["axis:communication_quality"].mean == 0, "cut at 0"
    assert by_tag["cluster:tone"].mean == 1 and "axis:accuracy" not in by_tag
    assert all(0 <= (one.low or 0) <= (one.mean or 0) <= (one.high or 1) <= 1 for one in by_tag.values())
    page = (tmp_path / "run" / "report.md").read_text()
    assert "MIT licence" in page and "says nothing about whole dialogues" in page and "Leaderboard, en" in page
    assert esc_eval("report", "run", "--by", "theme") == (0, "")
    assert "communication" in (tmp_path / "run" / "tables" / "by-theme.csv").read_text()


def test_what_lies_below_the_axis_is_drawn_at_its_end() -> None:
    forest = Forest("Average", [])
    assert [forest.at(figure) for figure in (-30, 0, 25, 100, 130)] == ["0.00%", "0.00%", "25.00%", "100.00%", "100.00%"]


@pytest.mark.parametrize("only", ["psych", "theme:context_seeking", "ids.json", "list.json"])
def test_some_of_the_cases(esc_eval: EscEval, tmp_path: Path, cases: Path, only: str) -> None:
    (tmp_path / "ids.json").write_text(json.dumps({"name": "psych", "n": 1, "prompt_ids": ["p-1"]}))
    (tmp_path / "list.json").write_text(json.dumps(["p-1", "p-1"]))
    with Endpoint(grades, ("my-model", "grader")) as endpoint:
        assert run(esc_eval, endpoint, "--set", f"only={only}")[0] == 0
    assert {id for id, _ in scores(tmp_path / "run")} == {"p-1"}


def test_an_answer_that_cannot_be_read_is_asked_for_once_more_and_leaves_no_score(
    esc_eval: EscEval, tmp_path: Path, cases: Path
) -> None:
    tries = Counter[str]()

    def mumbles(body: dict[str, Any], count: int) -> Answer:
        asked = body["messages"][-1]["content"]
        for name in ("Names a helpline", "Blames"):
            if name in asked:
                tries[name] += 1
                if name != "Blames" or tries[name] == 1:
                    return Answer('{"criteria_met": "yes"}')
        return grades(body, count)

    with Endpoint(mumbles, ("my-model", "grader")) as endpoint:
        assert run(esc_eval, endpoint, "--set", "endpoints={}")[0] == 0
    found = scores(tmp_path / "run")
    assert found["p-1", "score"] is None and found["p-1", "completeness"] is None, "nothing is said of what hangs on it"
    assert found["p-1", "context_awareness"] == 1 and found["p-2", "score"] == -1, "read at the second try"
    assert tagged(tmp_path / "run")["overall_score"].n == 2


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A miniature of simple-evals, in words of ours."""
    folder = tmp_path / "clone"
    (folder / "sampler").mkdir(parents=True)
    (folder / "LICENSE").write_text("MIT License\n\nAll of it.\n")
    (folder / "healthbench_eval.py").write_text(f'import blobfile\n\nGRADER_TEMPLATE = """\n{GRADER}\n""".strip()\n')
    (folder / "sampler" / "chat_completion_sampler.py").write_text('OPENAI_SYSTEM_MESSAGE_API = "Be {{ kind }}."\n')
    return folder


def test_paper_mode_sends_what_the_script_sends(esc_eval: EscEval, tmp_path: Path, cases: Path, clone: Path) -> None:
    assert "licence: MIT License (in full: LICENSE)" in imported("healthbench")
    with Endpoint(grades, ("my-model", "grader")) as endpoint:
        assert run(esc_eval, endpoint, "--set", "mode=paper", "--set", "prompts=./in/prompts")[0] == 0
        bodies = [body["messages"] for body in endpoint.requests if body["messages"][-1]["content"].startswith("Grade it")]
    case = CASES[1]
    system = {"role": "system", "content": "Be {{ kind }}."}
    chat = [system, *case["prompt"], {"role": "assistant", "content": " Reply to 4. "}]
    written = "\n\n".join(f"{message['role']}: {message['content']}" for message in chat)
    for one in case["rubrics"]:
        asked = GRADER.replace("<<conversation>>", written).replace("<<rubric_item>>", f"[{one['points']}] {one['criterion']}")
        assert [system, {"role": "user", "content": asked}] in bodies
    assert {id: scores(tmp_path / "run")[id, "score"] for id in SCORES} == SCORES


def test_the_judge_is_measured_on_physicians_verdicts(esc_eval: EscEval, tmp_path: Path, cases: Path) -> None:
    rows: list[dict[str, Any]] = []
    for number, (word, labels) in enumerate(
        [("Takes leave.", [True, True]), ("Names a drug.", [True, False]), ("Asks how long it has lasted.", [True, True])]
    ):
        rows.append({"prompt_id": f"m-{number}", "completion_id": f"c-{number}", "prompt": CASES[0]["prompt"]})
        rows[-1] |= {"completion": "Take care.", "rubric": word, "category": "tone", "binary_labels": labels}
        rows[-1] |= {"anonymized_physician_ids": ["d1", "d2"]}
    (tmp_path / "meta_eval.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, rows[0] | {"binary_labels": [1]}])
    )
    imported("healthbench_meta", place="meta_eval.jsonl")
    assert len((tmp_path / "in" / "scores.jsonl").read_text().splitlines()) == 6, "the malformed row is left out"
    with Endpoint(grades, ("my-model", "grader")) as endpoint:
        gold = ["--set", "gold.dialogues=in/dialogues.jsonl", "--set", "gold.scores=in/scores.jsonl"]
        assert run(esc_eval, endpoint, *gold) == (0, "")
    agreement = json.loads((tmp_path / "run" / "agreement.json").read_text())["agreement"]["en"]["score"]
    # Physicians say 1, ½ and 1, the grader 1, 0 and 1.
    assert agreement["n"] == 3 and agreement["acc"] == pytest.approx(2 / 3)
    assert esc_eval("agree", "--judgements", "run/gold_judgements.jsonl", "--gold", "in/scores.jsonl")[0] == 0


def test_a_plan_counts_the_criteria_of_every_case(tmp_path: Path, cases: Path) -> None:
    """Three cases with three, two and one criteria: a forecast from the first alone would say nine."""
    models: dict[str, Any] = {"supporters": ["a@http://127.0.0.1:1/v1"], "judge": "b@http://127.0.0.1:1/v1"}
    resolved = resolve(CONFIG, ["floors=false", f"cases={cases}"], out=str(tmp_path / "run"), **models)
    found = forecast([*resolved.plans()], [resolved])
    assert {who: used.calls for who, used in found.load.usage.items()} == {("supporter", "a"): 3, ("judge", "b"): 6}


BAD: dict[str, dict[str, Any]] = {
    "cases.jsonl:1: record: prompt: ": {"prompt": [{"role": "assistant", "content": "Hi"}]},
    "cases.jsonl:1: prompt.0.role: ": {"prompt": [{"role": "tool", "content": "Hi"}]},
    "cases.jsonl:1: rubrics.0.points: expected a number": {"rubrics": [{"criterion": "Kind.", "points": "6", "tags": []}]},
    "cases.jsonl:1: record: rubrics: no criterion has points above 0": {
        "rubrics": [{"criterion": "Kind.", "points": -6, "tags": []}]
    },
    "cases.jsonl:1: prompt_id: ": {"prompt_id": ""},
    "cases.jsonl:2: prompt_id: p-2 is also that of ": {"prompt_id": "p-2"},
}


@pytest.mark.parametrize("told", BAD)
def test_a_malformed_case_is_one_error_and_nothing_is_asked(esc_eval: EscEval, tmp_path: Path, cases: Path, told: str) -> None:
    cases.write_text("".join(json.dumps(case) + "\n" for case in [CASES[0] | BAD[told], *CASES[1:]]))
    with Endpoint(grades, ("my-model", "grader")) as endpoint:
        code, err = run(esc_eval, endpoint)
        assert (code, len(endpoint.requests)) == (2, 0) and told in err and err.count("error") == 1, err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("only", "told"),
    [
        ("psyche", "no case has this tag"),
        ("ids.json", "1 of 2 prompt ids are in no file of `cases`, the first is p-9"),
        ("x.json", "prompt_ids"),
    ],
)
def test_what_only_cannot_mean(esc_eval: EscEval, tmp_path: Path, cases: Path, only: str, told: str) -> None:
    (tmp_path / "ids.json").write_text(json.dumps({"prompt_ids": ["p-1", "p-9"]}))
    (tmp_path / "x.json").write_text(json.dumps({"ids": ["p-1"]}))
    with Endpoint(grades, ("my-model", "grader")) as endpoint:
        code, err = run(esc_eval, endpoint, "--set", f"only={only}")
        assert (code, len(endpoint.requests)) == (2, 0) and told in err


def test_a_clone_without_the_grader_is_one_error(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone.parent)
    (clone / "healthbench_eval.py").write_text("GRADER_TEMPLATE = load()\n")
    with pytest.raises(UserError, match=r"clone/healthbench_eval\.py: no text is named GRADER_TEMPLATE"):
        imported("healthbench")
    assert not Path("in/prompts").exists()


CLONE = "SIMPLE_EVALS"  # where a clone of openai/simple-evals is


@pytest.mark.full
def test_messages_and_scores_equal_those_of_the_published_script(esc_eval: EscEval, tmp_path: Path, cases: Path) -> None:
    if CLONE not in os.environ:
        pytest.skip(f"NOT COMPARED WITH HEALTHBENCH'S SCRIPT: set {CLONE} to a clone of openai/simple-evals")
    with Endpoint(grades, ("my-model", "grader")) as endpoint:
        command = [sys.executable, str(SCRIPT), os.environ[CLONE], str(cases), endpoint.url, "my-model"]
        theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        messages = [body["messages"] for body in endpoint.requests]
    imported("healthbench", place=os.environ[CLONE])
    with Endpoint(grades, ("my-model", "grader")) as endpoint:
        assert run(esc_eval, endpoint, "--set", "mode=paper", "--set", "prompts=./in/prompts")[0] == 0
        ours = [body["messages"] for body in endpoint.requests]
    assert len(messages) == 9 and all(one in ours for one in messages)
    found = tagged(tmp_path / "run")
    means = {name: value for name, value in theirs.items() if not name.endswith(("n_samples", "bootstrap_std"))}
    assert {name: found[name].mean for name in means} == pytest.approx(means, abs=1e-12) and set(found) == set(means)
    assert {name: found[name].n for name in means} == {name: theirs[f"{name}:n_samples"] for name in means}


# --- what its intervals hold ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("skill", [0.1, 0.3, 0.6])
def test_intervals_of_few_cases_contain_the_mean_though_scores_go_below_0(skill: float) -> None:
    """Criteria with points from −10 to 10; with the levels of scores that end at 0 these held 88 to 92 %."""
    rng = np.random.default_rng(7)

    def scored(count: int) -> Floats:
        marks = []
        for _ in range(count):
            points = rng.integers(3, 11, size=rng.integers(5, 16))
            taken = rng.random(len(points)) < 0.3
            taken[0] = False
            chance = float(np.clip(rng.normal(skill, 0.25), 0, 1))
            met = rng.random(len(points)) < np.where(taken, (1 - chance) / 2, chance)
            marks.append((points * np.where(taken, -1, 1) * met).sum() / points[~taken].sum())
        return np.array(marks)

    truth, held = 100 * scored(40_000).mean(), []
    for _ in range(300):
        (one, _) = over_cards(100 * scored(6)[:, None], [str(place) for place in range(6)], BELOW)
        held.append(one.low is not None and one.high is not None and one.low <= truth <= one.high)
    assert np.mean(held) >= 0.94


def test_a_rubric_whose_scores_go_below_0_says_so_to_every_interval_of_its_board() -> None:
    talk = Dialogue(id="d", language="en", source="s", supporter="one", turns=(Turn(role="seeker", text="a"),))
    for name, value, levels in (("healthbench", -0.5, BELOW), ("esc_eval", 1.0, None)):
        rubric = load_rubric(name)
        record = {"dialogue_id": "d", "judge": "j", "language": "en", "dimension": next(iter(rubric.dimensions))}
        (found,) = contestants_of([talk], [Judgement.model_validate(record | {"rubric": name, "value": value})], rubric)
        assert design_of([found]).levels is found.design.levels is levels
