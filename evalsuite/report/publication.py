"""A scored run on the hub: its scores as evaluation results of a model, its report as a static Space."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from core.errors import UserError, need_modules
from core.hub import Publication
from data_prep.publication import shared_licences, sources_in
from evalsuite.report.report import PLUMBING
from evalsuite.runs import shards
from evalsuite.runs.records import read_run
from evalsuite.runs.run_config import RunConfig
from evalsuite.statistics.leaderboard import Score, Tally

_PAGE = ("report.html", "report.json", "report.md")


def results_to_publish(
    folder: Path, repo: str, benchmark: str, supporter: str | None, judge: str | None, report: str | None
) -> Publication:
    """A supporter's scores as a file of the hub's `.eval_results/`: an entry per language and dimension, with judge, n,
    interval and what the floors reach in its notes. Raises `UserError` for a supporter that the run does not have, and where
    nothing was scored."""
    need_modules("huggingface_hub", purpose="publishing on the hub")
    from huggingface_hub import EvalResultEntry, constants, eval_result_entries_to_yaml

    records = read_run(folder.name, folder, judge)
    config = RunConfig.read(folder)
    scores = Tally(records.dialogues, records.judgements, records.rubric).scores
    supporters = list(dict.fromkeys(score.supporter for score in scores))
    tested = [name for name in supporters if name not in config.floors()]
    if supporter is None and len(tested) != 1:
        raise UserError(f"{folder}: holds several models under test: choose one with --supporter: {', '.join(tested)}")
    chosen = supporter or tested[0]
    if chosen not in supporters:
        raise UserError(f"--supporter {chosen}: {folder} has {', '.join(supporters)}")
    framework = config.simulated.framework if config.simulated else "given_dialogues"
    mode = config.simulated.mode if config.simulated else "native"
    entries = [
        EvalResultEntry(
            dataset_id=benchmark,
            task_id=f"{framework}_{score.language}_{score.dimension}",
            value=round(score.estimate.mean, 4),
            source_url=f"{constants.ENDPOINT}/spaces/{report}" if report else None,
            source_name="report" if report else None,
            notes="; ".join([f"{mode} mode", *_told(score, scores, config)]),
        )
        for score in scores
        if score.supporter == chosen and score.estimate.mean is not None
    ]
    if not entries:
        raise UserError(f"{folder}: no score of {chosen} could be read: there is nothing to publish")
    content = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)
    name = f".eval_results/{framework}_{benchmark.replace('/', '_')}.yaml"
    return Publication(repo, "model", {name: content.encode()}, f"Evaluation results of {framework}")


def _told(score: Score, scores: list[Score], config: RunConfig) -> Iterator[str]:
    estimate = score.estimate
    yield f"0 to 100 of the scale; judge {score.scorer.name}; n = {estimate.n}"
    if estimate.low is not None and estimate.high is not None:
        yield f"95 % interval {estimate.low:.3f} to {estimate.high:.3f}"
    for other in scores:
        same = (other.language, other.scorer, other.dimension) == (score.language, score.scorer, score.dimension)
        if same and other.supporter in config.floors() and other.estimate.mean is not None:
            yield f"floor {other.supporter} {other.estimate.mean:.3f}"
    if config.plumbing:
        yield PLUMBING


def report_to_publish(folder: Path, repo: str) -> Publication:
    """A run's report as a static Space: the page, its figures and tables. It shows the dialogues, so the licences of the
    corpora that their cards come from decide. Raises `UserError` where they forbid it, and where there is no report."""
    config = shards.whole(folder)
    if not (folder / "report.html").is_file():
        raise UserError(f"{folder}: no report.html: `esc-eval report {folder}` writes it")
    shared_licences(folder, set(sources_in(folder / "dialogues.jsonl")))
    title = f"{folder.resolve().name}: ESC-Eval"[:80]
    metadata = {"title": title, "sdk": "static", "app_file": "index.html", "pinned": False, "tags": ["esc-eval"]}
    note = f"\n{PLUMBING}\n" if config.plumbing else ""
    files: dict[str, Path | bytes] = {name: folder / name for name in _PAGE[1:] if (folder / name).is_file()}
    files |= {f"tables/{path.name}": path for path in sorted((folder / "tables").glob("*.csv"))}
    files["index.html"] = folder / "report.html"
    files["README.md"] = (
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n\nThe report of a run of esc-eval.\n{note}".encode()
    )
    return Publication(repo, "space", files, "Report")
