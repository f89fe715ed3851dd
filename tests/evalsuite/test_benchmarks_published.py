"""The own scripts of MindEval, ESC-Judge and VERA-MH, run from clones with a scripted endpoint in place of the vendor, against
ours on the same endpoint.

MINDEVAL_CLONE and ESC_JUDGE_CLONE name clones, PUBLISHED_PYTHON a Python with litellm, jsonargparse, tqdm, fire, and langchain
and langchain-openai below 1; VERA_MH_CLONE a clone of SpringCare/VERA-MH (main), VERA_MH_PYTHON a Python with langchain-openai,
python-dotenv, matplotlib and pandas 2. MINDEVAL_CLONE=… pytest -m full tests/evalsuite/test_benchmarks_published.py
"""

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from core.files import CONFIGS, read_jsonl
from core.records import Dialogue
from data_prep.__main__ import app
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.published_benchmarks import LABELS, imported

MINDEVAL, ESC_JUDGE, PYTHON = map(os.environ.get, ("MINDEVAL_CLONE", "ESC_JUDGE_CLONE", "PUBLISHED_PYTHON"))
VERA_MH, VERA_PYTHON = map(os.environ.get, ("VERA_MH_CLONE", "VERA_MH_PYTHON"))
NEEDS_VERA = pytest.mark.skipif(
    not (VERA_MH and VERA_PYTHON), reason="VERA_MH_CLONE and VERA_MH_PYTHON are not set (see above)"
)
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
VERDICTS = (
    *("Model A", "**Model B**", "Tie", "Model B for its identities", "**Model A** outperforms Model B"),
    *("Model B and Model A", "**Support Model B** performs better than Model A"),
)


def scripted(seed: int, judged: Callable[[int], str], more: str = "") -> Callable[[dict[str, Any], int], Answer]:
    """Lines (with `more` in them) and verdicts that depend on all that was asked; a judge is asked in one message."""

    def behave(body: dict[str, Any], count: int) -> Answer:
        said = json.dumps([seed, body["model"], body["messages"]], sort_keys=True)
        lot = int(hashlib.sha256(said.encode()).hexdigest(), 16)
        return Answer(judged(lot) if len(body["messages"]) == 1 else f"  Line {lot % 9973}: “no” {more}\n\nyes \n")

    return behave


def sent(endpoint: Endpoint, judge: str) -> set[str]:
    """What was asked since the last time, without probes of what a server can."""
    probes = [body for body in endpoint.requests if len(body["messages"]) == 1 and judge not in body["messages"][0]["content"]]
    asked = {json.dumps(body["messages"], sort_keys=True) for body in endpoint.requests if body not in probes}
    endpoint.requests.clear()
    return asked


def table(key: str) -> list[dict[str, Any]]:
    report = json.loads(Path("run/report.json").read_text())
    (found,) = (one for one in report["tables"] if one["key"] == key)
    return rows_of(found)


def ratings(lot: int) -> str:
    numbers = [f"{1 + (lot >> 8 * place) % 41 / 8:g}" for place in range(5)]
    lines = [f"{label}: {number}" for label, number in zip(LABELS, numbers, strict=True)]
    return "<think>so</think>\n" + "\n".join(lines[: 4 + lot % 2] + [f"{LABELS[4]}: 35"] * (lot % 3 == 0))


@pytest.mark.skipif(not (MINDEVAL and PYTHON), reason="MINDEVAL_CLONE and PUBLISHED_PYTHON are not set (see above)")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("clinician", "judge"), [("v0_1", "v0_1"), ("v0_1_four_sentence_cap", "v0_1_w_length_guidelines")])
def test_mindeval_asks_and_scores_as_its_scripts_do(
    seed: int, clinician: str, judge: str, tmp_path: Path, esc_eval: EscEval
) -> None:
    imported("mindeval", place=MINDEVAL)
    members = Path(str(MINDEVAL), "data/profiles.jsonl").read_text().splitlines(keepends=True)[:3]
    Path("three.jsonl").write_text("".join(members))
    with Endpoint(scripted(seed, ratings, "${age} {{ x }}")) as endpoint:
        params = str({"model": "openai/my-model", "api_base": endpoint.url, "api_key": "none"})

        def script(name: str, **options: object) -> None:
            words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
            line = [str(PYTHON), f"{MINDEVAL}/mindeval/scripts/{name}.py", *words, "--max_workers", "2"]
            environment = os.environ | {"PYTHONPATH": str(MINDEVAL)}
            subprocess.run(line, env=environment, check=True, capture_output=True, timeout=200)

        models = {"clinician_model_api_params": params, "member_model_api_params": params}
        versions = {"clinician_system_template_version": clinician, "member_system_template_version": "v0_2"}
        script(
            "generate_interactions", profiles_path="three.jsonl", n_turns=10, output_path="talks.jsonl", **models, **versions
        )
        judging = {"judge_model_api_params": params, "judge_template_version": judge}
        script("generate_judgments", interactions_path="talks.jsonl", output_path="judged.jsonl", **judging)
        theirs = sent(endpoint, "<conversation>")
        places = ("prompts=in/prompts", 'cards=["in/cards.jsonl"]', "gold=null", "mode=paper")
        chosen = (f"mindeval.clinician={clinician}", f"mindeval.judge={judge}")
        settings = [word for setting in (*places, *chosen) for word in ("--set", setting)]
        named = ("--config", CONFIGS / "eval/mindeval.yaml", "--model", f"my-model@{endpoint.url}", "--limit", 3)
        assert esc_eval("run", *named, *settings, "--out", "run")[0] == 0
        assert sent(endpoint, "<conversation>") == theirs and len(theirs) == 63
    scores = [json.loads(line)["parsed_judgment"] for line in Path("judged.jsonl").read_text().splitlines()]
    (row,) = table("mindeval-my-model")
    for label in (*LABELS, "Overall score"):
        assert row[label]["mean"] == pytest.approx(mean(one[label] for one in scores))


@pytest.mark.skipif(not (ESC_JUDGE and PYTHON), reason="ESC_JUDGE_CLONE and PUBLISHED_PYTHON are not set (see above)")
@pytest.mark.parametrize("seed", [0, 1])
def test_esc_judge_asks_and_counts_as_its_scripts_do(seed: int, tmp_path: Path, esc_eval: EscEval) -> None:
    """On one role with three supporters. The notebook's own cells read the verdicts. Its scripts import a module that is not
    published, for local models, and end with an error where a line has braces, which they take for fields."""
    imported("esc_judge", place=ESC_JUDGE)
    for name, text in {"utils/__init__.py": "", "utils/langchain.py": "load_hf_auto_regressive_model = None"}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    data = Path(str(ESC_JUDGE), "data")
    Path("roles.json").write_text((data / "roles-v1.json").read_text().splitlines(keepends=True)[0])
    Path("output").mkdir()
    with Endpoint(scripted(seed, lambda lot: f"Both ask.\n\n## Verdict\n\n{VERDICTS[lot % len(VERDICTS)]}")) as endpoint:
        environment = os.environ | {"PYTHONPATH": f"{ESC_JUDGE}:{tmp_path}", "OPENAI_API_BASE": endpoint.url}

        def script(name: str, **options: object) -> None:
            words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
            line = [str(PYTHON), f"{ESC_JUDGE}/{name}.py", *words]
            subprocess.run(line, env=environment | {"OPENAI_API_KEY": "none"}, check=True, capture_output=True, timeout=200)

        told = {"supporter_persona_file": data / "emotional_supporter_hill.txt", "seeker_personas_file": "roles.json"}
        for model in ("gpt-a", "gpt-b", "gpt-c"):
            script("langchain_persona_based_chat", supporter_llm_name=model, seeker_llm_name="gpt-s", **told)
        for path in tmp_path.glob("output-*.txt"):  # where the script writes, and the next one does not look
            path.rename(tmp_path / "output" / path.name)
        files = {"prompt_file": data / "ESEval-multidim-cot.txt", "criteria_file": data / "exploration_rubric3.jsonl"}
        script("multidim_merge_and_judge", directory="output", eval_model_name="gpt-j", results_dir="evals", **files)
        theirs = sent(endpoint, "# Criteria")
        (judged,) = (json.loads(path.read_text()) for path in Path("evals").glob("*.json"))
        order = dict.fromkeys(one[side].rpartition("_")[2] for one in judged for side in ("model_a", "model_b"))
        places = ("prompts=in/prompts", 'cards=["in/cards_roles_v1.jsonl"]', "rubric=in/rubric.yaml", "mode=paper")
        settings = [word for setting in (*places, "esc_judge.supporter=hill") for word in ("--set", setting)]
        models = [word for name in order for word in ("--supporter", f"{name}@{endpoint.url}")]
        models += ["--seeker", f"gpt-s@{endpoint.url}", "--judge", f"gpt-j@{endpoint.url}", "--limit", "1"]
        assert esc_eval("run", "--config", CONFIGS / "eval/esc_judge.yaml", *models, *settings, "--out", "run")[0] == 0
        assert sent(endpoint, "# Criteria") == theirs and len(theirs) == 1 + 1 + 3 * 12 + 33  # the first two are shared
    notebook = json.loads(Path(str(ESC_JUDGE), "data_analysis.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"]]
    reads = next(cell for cell in cells if "def extract_winner" in cell and "return 'tie'" in cell)
    counts = next(cell for cell in cells if "def get_winning_stats" in cell).replace("output/evals_dim2", "evals")
    names: dict[str, Any] = {"load_json": lambda path: json.loads(Path(path).read_text())}
    exec(reads.rpartition("extract_winner(dim)")[0] + "\n" + counts, names)
    for stage in ("Exploration", "Insight", "Action", "overall"):
        rows = {(row["supporter"], row["against"]): row for row in table(f"esc_judge-pairs-{stage}")}
        for one in names["stats"]:
            a, b = (one[side].rpartition("_")[2] for side in ("model_a", "model_b"))
            winner = one["overall_winner" if stage == "overall" else stage]
            row, sides = rows[min(a, b), max(a, b)], {"a": a, "b": b}
            wanted = "ties" if winner == "tie" else "won" if sides[winner] == min(a, b) else "lost"
            assert row[wanted] == 1, (stage, one)


# --- VERA-MH ----------------------------------------------------------------------------------------------------------------

PERSONA, AGENT, JUDGE = MODELS = ("gpt-persona", "gpt-agent", "gpt-judge")
TURNS = 6


def persona_and_judge(seed: int, rarely: bool = False) -> Any:
    """Lines and verdicts that depend on all that was asked: verdicts in the form asked, out of it, and off the options."""
    categories = ["Best practice", "[Actively damaging]", "Missed opportunity or neutral", "Not relevant", "Unnamed: 4", "Fine"]

    def behave(body: dict[str, Any], count: int) -> Answer:
        said = json.dumps([seed, body["model"], body["messages"]], ensure_ascii=False, sort_keys=True)
        lot = hashlib.sha256(said.encode()).digest()
        if body["model"] != JUDGE:
            done = "" if rarely and lot[2] % 4 else "thank you, I'm DONE."
            return Answer(f"  Line {lot.hex()[:8]} of {body['model']}: {done}\n\n{{x}} user: “no”  ")
        if labels := re.findall(r"^(.+): \[Category Name\]$", body["messages"][0]["content"], re.M):
            rows = [f" {label}: {categories[lot[place] % 6]} " for place, label in enumerate(labels) if lot[place + 8] % 7]
            return Answer("\n\n".join(rows))
        options = re.search(r"one of: \[(.*)\]", body["messages"][-1]["content"], re.S)
        assert options is not None
        choices = [*options[1].split(", "), "No", "No", "No", "Yes", "yes.", "Not Relevant", "maybe", "", "ANOTHER"]
        choice = choices[lot[0] % len(choices)]
        form = lot[1] % 8
        if form == 0:
            return Answer(f"I would say {choice}")
        return Answer(f"ANSWER: {choice.upper() if form == 1 else choice}\nREASONING: because\n{lot.hex()[:6]}")

    return behave


def vera_script(folder: Path, url: str, *line: str) -> None:
    environment = {"OPENAI_API_KEY": "none", "OPENAI_API_BASE": url, "PATH": os.environ["PATH"], "MPLCONFIGDIR": str(folder)}
    subprocess.run([str(VERA_PYTHON), *line], cwd=folder, env=environment, check=True, capture_output=True, timeout=200)


def played(folder: Path, url: str) -> Path:
    """The dialogues that their script holds: one with each persona."""
    vera_script(folder, url, "generate.py", "-u", PERSONA, "-p", AGENT, "-t", str(TURNS), "-r", "1", "-f", "talks")
    return next((folder / "talks").iterdir())


def published(folder: Path, url: str) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, str]]]:
    """What their scripts make of a run: the scores, those by risk level, and the rows of results.csv."""
    shutil.copytree(str(VERA_MH), folder, ignore=shutil.ignore_patterns(".git", "concept_paper_conversations"))
    vera_script(folder, url, "judge.py", "-f", str(played(folder, url)), "-j", JUDGE)
    (results,) = (folder / "evaluations").glob("*/results.csv")
    for _ in range(2):  # first scored are the dimensions of the first file judged; results.csv is then written anew, with all
        vera_script(folder, url, "-m", "judge.score", "-r", str(results))
    rows = [*csv.DictReader(results.open())]
    scores, by_risk = (json.loads((results.parent / f"{name}.json").read_text()) for name in ("scores", "scores_by_risk"))
    return scores, by_risk, rows


def ours(folder: Path, clone: Path, endpoint: Endpoint, esc_eval: EscEval, *more: str) -> list[dict[str, Any]]:
    """What a run in paper mode on a clone asks; it is in `folder`/run, what was imported in `folder`/clone."""
    made = folder / "clone"
    assert CliRunner().invoke(app, ["import", "--source", f"vera_mh={clone}", "--out", str(made)]).exit_code == 0
    config = yaml.safe_load((CONFIGS / "eval" / "vera_mh.yaml").read_text().replace("runs/vera_mh_clone", str(made)))
    config |= {"mode": "paper", "trials": 1, "exchanges": TURNS // 2, "out": str(folder / "run")}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    endpoint.requests = []
    roles = zip(("--seeker", "--supporter", "--judge"), MODELS, strict=True)
    options = [part for role, name in roles for part in (role, f"{name}@{endpoint.url}")]
    assert esc_eval("run", "--config", folder / "config.yaml", *options, *more) == (0, "")
    return endpoint.requests


def sent_to(requests: list[dict[str, Any]], *models: str) -> list[str]:
    """The messages to these models, in an order that does not depend on when they came."""
    wanted = (one for one in requests if one["model"] in models)
    return sorted(json.dumps([one["model"], one["messages"]], sort_keys=True) for one in wanted)


@NEEDS_VERA
@pytest.mark.parametrize("seed", [0, 1])
def test_the_frozen_branch_plays_and_judges_the_same_dialogues(seed: int, tmp_path: Path, esc_eval: EscEval) -> None:
    frozen = tmp_path / "frozen"
    frozen.mkdir()
    files = subprocess.run(["git", "-C", str(VERA_MH), "archive", "origin/RFC"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "x"], cwd=frozen, input=files, check=True)
    with Endpoint(persona_and_judge(seed, rarely=True), MODELS) as endpoint:
        vera_script(frozen, endpoint.url, "judge.py", "-f", str(played(frozen, endpoint.url)), "-j", JUDGE)
        theirs = endpoint.requests
        requests = ours(tmp_path, frozen, endpoint, esc_eval)
    answered = [one for one in theirs if one["model"] != JUDGE or "\nagent: " in one["messages"][1]["content"]]
    assert sent_to(requests, *MODELS) == sent_to(answered, *MODELS), "all but dialogues in which the supporter says nothing"
    assert 10 < len(sent_to(theirs, PERSONA, AGENT)) < 10 * TURNS, "some end before their time"
    assert "gpersona" in json.dumps(sent_to(theirs, JUDGE)), "and the judge is told so"
    rubric, names = yaml.safe_load((tmp_path / "clone" / "rubric.yaml").read_text()), personas(tmp_path / "run")
    labels = {key: dimension["label"] for key, dimension in rubric["dimensions"].items()}
    tables = {path.stem.split("_")[1]: path.read_text().splitlines() for path in (frozen / "evaluations").rglob("*.tsv")}
    silent = {path.stem.split("_")[1] for path in (frozen / "talks").rglob("*.txt") if "\nagent: " not in path.read_text()}
    expected = {
        (name, label): next((line.split("\t")[1].strip() for line in lines if line.startswith(f"{label}\t")), "")
        for name, lines in tables.items()
        if name not in silent
        for label in labels.values()
    }
    levels = {0: "[Actively damaging]", 1: "Missed opportunity or neutral", 2: "Best practice", None: ""}
    read = {
        (names[one["dialogue_id"]], labels[one["dimension"]]): "Not relevant"
        if one["condition"].get("verdict") == "not_applicable"
        else levels[one["value"]]
        for one in judgements(tmp_path / "run")
        if one["condition"].get("failure") != "no_supporter_turn"
    }
    unscored = ("", "Unnamed", "Fine")
    assert read == {key: "" if category in unscored else category for key, category in expected.items()}
    assert {*expected.values()} > {*levels.values()}, "every level, and rows that are missing"


@NEEDS_VERA
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_messages_verdicts_and_scores_are_those_of_the_published_scripts(seed: int, tmp_path: Path, esc_eval: EscEval) -> None:
    with Endpoint(persona_and_judge(seed), MODELS) as endpoint:
        scores, by_risk, rows = published(tmp_path / "published", endpoint.url)
        theirs = endpoint.requests
        requests = ours(tmp_path, Path(str(VERA_MH)), endpoint, esc_eval)
    assert sent_to(requests, *MODELS) == sent_to(theirs, *MODELS)
    assert len(sent_to(requests, PERSONA, AGENT)) == 10 * TURNS
    names = personas(tmp_path / "run")
    rubric = yaml.safe_load((tmp_path / "clone" / "rubric_paper.yaml").read_text())
    labels = {key: outcome["label"] for key, outcome in rubric["outcomes"].items()}
    levels = {0: "High Potential for Harm", 1: "Suboptimal but Low Potential for Harm", 2: "Best Practice", None: ""}
    found = {
        (names[one["dialogue_id"]], labels[one["dimension"]]): "Not Relevant"
        if one["condition"].get("verdict") == "not_applicable"
        else levels[one["value"]]
        for one in judgements(tmp_path / "run")
        if one["dimension"] in labels
    }
    assert found == {(row["filename"].split("_")[1], label): row.get(label, "") for row in rows for label in labels.values()}
    tables = {one["key"]: one for one in json.loads((tmp_path / "run" / "report.json").read_text())["tables"]}
    dimension = {row["dimension"]: row for row in rows_of(tables["vera-mh"])}
    bands = {"best practice %": "best_practice_pct", "neutral %": "neutral_pct", "damaging %": "damaging_pct"}
    for label, one in scores["dimensions"].items():
        assert {head: percent(dimension[label][head]) for head in bands} == {head: one[key] for head, key in bands.items()}
        assert dimension[label]["damaging %"]["n"] == one["total_count"]
    total, whole = scores["aggregates"], rows_of(tables["vera-mh-dialogues"])[0]
    assert {head: percent(dimension["all dimensions"][head]) for head in bands} == {
        h: total[f"overall_{k}"] for h, k in bands.items()
    }
    summary = scores["summary"]
    assert dimension["all dimensions"]["damaging %"]["n"] == summary["total_dimension_evaluations"]
    assert percent(whole["all best practice %"]) == summary["pct_conversations_all_best_practice_or_not_relevant"]
    assert percent(whole["any damaging %"]) == summary["pct_conversations_with_at_least_one_high_harm"]
    assert whole["with anything to rate"] == summary["total_relevant_conversations"]
    words = dict(zip(("damaging", "neutral", "best practice"), levels.values(), strict=False))
    assert words[whole["worst"]] == total["worst_band"]
    risk = {(row["risk level"], row["dimension"]): row for row in rows_of(tables["vera-mh-risk"])}
    expected = {
        (level, label): one for level, of in by_risk["risk_level_scores"].items() for label, one in of["dimensions"].items()
    }
    assert risk.keys() == expected.keys()
    for key, one in expected.items():
        wanted = bands | {"not relevant %": "not_relevant_pct"}
        assert {head: percent(risk[key][head]) for head in wanted} == {head: one[name] for head, name in wanted.items()}


def judgements(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "judgements.jsonl").read_text().splitlines()]


def personas(run: Path) -> dict[str, str]:
    """Dialogue's id → its persona's name."""
    return {one.id: one.source_id or "" for one in read_jsonl(run / "dialogues.jsonl", Dialogue, "dialogues")}


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def percent(cell: dict[str, Any]) -> float:
    return round(cell["mean"] or 0.0, 2)
