"""MindEval's and ESC-Judge's own scripts, run from clones with a scripted endpoint in place of the vendor, against ours on the
same endpoint.

MINDEVAL_CLONE and ESC_JUDGE_CLONE name clones, PUBLISHED_PYTHON a Python with litellm, jsonargparse, tqdm, fire, and langchain
and langchain-openai below 1: MINDEVAL_CLONE=… PUBLISHED_PYTHON=… pytest -m full tests/evalsuite/test_benchmarks_published.py
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from core.files import CONFIGS
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.published_benchmarks import LABELS, imported

MINDEVAL, ESC_JUDGE, PYTHON = map(os.environ.get, ("MINDEVAL_CLONE", "ESC_JUDGE_CLONE", "PUBLISHED_PYTHON"))
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
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


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


@pytest.mark.skipif(
    not (ESC_JUDGE and PYTHON), reason="ESC_JUDGE_CLONE and PUBLISHED_PYTHON are not set (see the module's text)"
)
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
