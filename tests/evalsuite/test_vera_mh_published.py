"""VERA-MH's own scripts, run from a clone with a scripted endpoint in place of the vendor, against ours on the same endpoint.

VERA_MH_CLONE names a clone of SpringCare/VERA-MH (main), VERA_MH_PYTHON a Python with langchain-openai, python-dotenv,
matplotlib and pandas 2: VERA_MH_CLONE=… VERA_MH_PYTHON=… pytest -m full tests/evalsuite/test_vera_mh_published.py
"""

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from core.files import CONFIGS, read_jsonl
from core.records import Dialogue
from data_prep.__main__ import app
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint

CLONE, PYTHON = os.environ.get("VERA_MH_CLONE"), os.environ.get("VERA_MH_PYTHON")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (CLONE and PYTHON), reason="VERA_MH_CLONE and VERA_MH_PYTHON are not set (see the module's text)"),
]
PERSONA, AGENT, JUDGE = MODELS = ("gpt-persona", "gpt-agent", "gpt-judge")
TURNS = 6


def scripted(seed: int, rarely: bool = False) -> Any:
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


def script(folder: Path, url: str, *line: str) -> None:
    environment = {"OPENAI_API_KEY": "none", "OPENAI_API_BASE": url, "PATH": os.environ["PATH"], "MPLCONFIGDIR": str(folder)}
    subprocess.run([str(PYTHON), *line], cwd=folder, env=environment, check=True, capture_output=True, timeout=200)


def played(folder: Path, url: str) -> Path:
    """The dialogues that their script holds: one with each persona."""
    script(folder, url, "generate.py", "-u", PERSONA, "-p", AGENT, "-t", str(TURNS), "-r", "1", "-f", "talks")
    return next((folder / "talks").iterdir())


def published(folder: Path, url: str) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, str]]]:
    """What their scripts make of a run: the scores, those by risk level, and the rows of results.csv."""
    shutil.copytree(str(CLONE), folder, ignore=shutil.ignore_patterns(".git", "concept_paper_conversations"))
    script(folder, url, "judge.py", "-f", str(played(folder, url)), "-j", JUDGE)
    (results,) = (folder / "evaluations").glob("*/results.csv")
    for _ in range(2):  # first scored are the dimensions of the first file judged; results.csv is then written anew, with all
        script(folder, url, "-m", "judge.score", "-r", str(results))
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


def sent(requests: list[dict[str, Any]], *models: str) -> list[str]:
    """The messages to these models, in an order that does not depend on when they came."""
    wanted = (one for one in requests if one["model"] in models)
    return sorted(json.dumps([one["model"], one["messages"]], sort_keys=True) for one in wanted)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_frozen_branch_plays_and_judges_the_same_dialogues(seed: int, tmp_path: Path, esc_eval: EscEval) -> None:
    frozen = tmp_path / "frozen"
    frozen.mkdir()
    files = subprocess.run(["git", "-C", str(CLONE), "archive", "origin/RFC"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "x"], cwd=frozen, input=files, check=True)
    with Endpoint(scripted(seed, rarely=True), MODELS) as endpoint:
        script(frozen, endpoint.url, "judge.py", "-f", str(played(frozen, endpoint.url)), "-j", JUDGE)
        theirs = endpoint.requests
        requests = ours(tmp_path, frozen, endpoint, esc_eval)
    answered = [one for one in theirs if one["model"] != JUDGE or "\nagent: " in one["messages"][1]["content"]]
    assert sent(requests, *MODELS) == sent(answered, *MODELS), "all but dialogues in which the supporter says nothing"
    assert 10 < len(sent(theirs, PERSONA, AGENT)) < 10 * TURNS, "some end before their time"
    assert "gpersona" in json.dumps(sent(theirs, JUDGE)), "and the judge is told so"
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_messages_verdicts_and_scores_are_those_of_the_published_scripts(seed: int, tmp_path: Path, esc_eval: EscEval) -> None:
    with Endpoint(scripted(seed), MODELS) as endpoint:
        scores, by_risk, rows = published(tmp_path / "published", endpoint.url)
        theirs = endpoint.requests
        requests = ours(tmp_path, Path(str(CLONE)), endpoint, esc_eval)
    assert sent(requests, *MODELS) == sent(theirs, *MODELS)
    assert len(sent(requests, PERSONA, AGENT)) == 10 * TURNS
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
    dimension = {row["dimension"]: row for row in lines(tables["vera-mh"])}
    bands = {"best practice %": "best_practice_pct", "neutral %": "neutral_pct", "damaging %": "damaging_pct"}
    for label, one in scores["dimensions"].items():
        assert {head: percent(dimension[label][head]) for head in bands} == {head: one[key] for head, key in bands.items()}
        assert dimension[label]["damaging %"]["n"] == one["total_count"]
    total, whole = scores["aggregates"], lines(tables["vera-mh-dialogues"])[0]
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
    risk = {(row["risk level"], row["dimension"]): row for row in lines(tables["vera-mh-risk"])}
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


def lines(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def percent(cell: dict[str, Any]) -> float:
    return round(cell["mean"] or 0.0, 2)
