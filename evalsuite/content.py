"""A run folder's records → the tables and the report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.text import Text

from data_prep.records import Dialogue, Judgement, RoleCard, Usage
from data_prep.rubrics import Rubric
from data_prep.tables import to_console
from evalsuite.agreement import agreement_tables
from evalsuite.report import ReportContent, write_report
from evalsuite.runs import Run
from evalsuite.summary import costs, distributions, leaderboard, terminations
from serve.errors import UserError
from serve.files import read_bytes, read_jsonl
from serve.specs import EMBEDDED_PREFIX

_TITLES = {"esc_eval": "ESC-Eval"}


def report_run(run: Run, console: Console) -> None:
    """Print a run's tables and write report.html, report.json and report.md into its folder.

    Everything comes from the folder's own files. Raises `UserError` when it holds no judgements yet.
    """
    content = content_of(run)
    for table in content.tables:
        to_console(table, console)
    if content.plumbing:
        console.print(Text("Plumbing: scores that involve the embedded 135M model say nothing about quality."))
    for kind, path in write_report(run.folder, content).items():
        console.print(f"{kind}: {path}", soft_wrap=True, highlight=False, markup=False)


def content_of(run: Run) -> ReportContent:
    """What the report of a run folder shows."""
    config = run.config()
    if "score" not in config:
        raise UserError(f"{run.folder} has no judgements yet: run `esc-eval score --out {run.folder} …` first")
    rubric = Rubric.model_validate(config["score"]["rubric"])
    dialogues = read_jsonl(run.folder / "dialogues.jsonl", Dialogue, "dialogues")
    judgements = read_jsonl(run.folder / "judgements.jsonl", Judgement, "judgements")
    cards_file = run.folder / "cards.jsonl"
    cards = read_jsonl(cards_file, RoleCard, "cards") if cards_file.exists() else []
    mode = config["score"]["mode"]
    timing = run.timing()
    seconds = {stage: float(figures["seconds"]) for stage, figures in timing.items()}
    synthetic = config.get("gold", {}).get("dialogues") in ("synthetic", "synthetic_test")
    labels = {key: dimension.label.get("en", key) for key, dimension in rubric.dimensions.items()}
    agreed = _json(run.folder / "agreement.json", {}).get("agreement")
    usage = _json(run.folder / "usage.json", {})
    judged = {
        f"{model} ({stage})": Usage.model_validate(u) for stage in usage for model, u in usage[stage].get("judge", {}).items()
    }
    tables = [
        *leaderboard(dialogues, judgements, rubric),
        *agreement_tables(agreed or {}, mode, labels, "synthetic gold, scores hold by construction" if synthetic else ""),
        distributions(judgements, rubric),
        terminations(dialogues),
        costs(dialogues, judged, seconds),
    ]
    framework = config.get("simulate", {}).get("framework", "given dialogues")
    return ReportContent(
        title=f"{_TITLES.get(framework, framework)} · {run.folder.name}",
        framework=framework,
        mode=mode,
        plumbing=_embedded(config),
        synthetic_gold=synthetic,
        rubric=rubric,
        cards={card.id: card for card in cards},
        dialogues=dialogues,
        judgements=judgements,
        tables=tables,
        agreement=agreed,
        config=config | {"fingerprints": _fingerprints(config)},
        timing=seconds,
        generated=time.strftime("%Y-%m-%d %H:%M"),
    )


def _json(path: Path, default: dict[str, Any]) -> dict[str, Any]:
    return orjson.loads(read_bytes(path, path.name)) if path.exists() else default


def _models(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every model of a run by `role name`."""
    simulated, scored = config.get("simulate", {}), config.get("score", {})
    found = {f"supporter {spec['name']}": spec for spec in simulated.get("supporters", [])}
    found |= {"seeker " + simulated["seeker"]["name"]: simulated["seeker"]} if simulated else {}
    return found | ({"judge " + scored["judge"]["name"]: scored["judge"]} if scored else {})


def _embedded(config: dict[str, Any]) -> bool:
    return any(str(spec["checkpoint"]).startswith(EMBEDDED_PREFIX) for spec in _models(config).values())


def _fingerprints(config: dict[str, Any]) -> dict[str, str]:
    found = {who: spec["fingerprint"] for who, spec in _models(config).items()}
    if "simulate" in config:
        found["role cards"] = config["simulate"]["cards"]["sha256"]
    if "gold" in config:
        found["gold set"] = config["gold"]["sha256"]
    return found | {"prompts": config["score"]["prompts"]["fingerprint"]}
