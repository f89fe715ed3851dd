"""A scored run for other programs: on the hub its scores as evaluation results of a model and its report as a static Space, and
for Inspect (inspect_ai) a log per supporter.

In a log a sample is a dialogue as its supporter saw it: the seeker's turns are `user`, its own are `assistant`. Every judge is
a scorer with a value per dimension; a verdict that could not be read is NaN, which Inspect counts as unscored. Logs that are
exported again are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import yaml

from core.errors import UserError, need_modules
from core.files import digest, read_jsonl
from core.grouping import group_by
from core.hub import Publication
from core.records import Dialogue, Judgement, Usage
from data_prep.publication import shared_licences, sources_in
from evalsuite.report.report import PLUMBING, UNSCORED
from evalsuite.runs import shards
from evalsuite.runs.contents import sets_of
from evalsuite.runs.folder import Run
from evalsuite.runs.records import read_run
from evalsuite.runs.run_config import RunConfig
from evalsuite.statistics.leaderboard import Score, Tally

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample, EvalScore
    from inspect_ai.model import ChatMessage, ModelUsage, StopReason
    from inspect_ai.scorer import Score as InspectScore


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
        raise UserError(f"{folder}: no report.html: `esc-eval report {quote(str(folder))}` writes it")
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


# --- logs of Inspect ------------------------------------------------------------------------------------------------------


_STOPS: dict[str, StopReason] = {"context_overflow": "model_length", "refusal": "content_filter"}


def write_inspect_logs(run: Run, out: Path) -> list[Path]:
    """Write a log for every supporter of a run folder into `out`. Raises `UserError` where nothing was scored there, and where
    inspect_ai is not installed."""
    try:
        from inspect_ai.log import write_eval_log
    except ImportError:
        raise UserError("--inspect: inspect_ai is not installed: pip install 'esc-eval[inspect]'") from None
    config = shards.whole(run.folder)
    if not (sets := sets_of(run.folder, config)):
        raise UserError(UNSCORED.format(run.folder))
    out.mkdir(parents=True, exist_ok=True)
    verdicts = {judged.judge or "judge": group_by(judged.records(), lambda judgement: judgement.dialogue_id) for judged in sets}
    records = read_jsonl(run.folder / "dialogues.jsonl", Dialogue, "dialogues")
    task, paths = config.simulated.framework if config.simulated else "given_dialogues", []
    for supporter, dialogues in group_by(records, lambda dialogue: dialogue.supporter or "given dialogues").items():
        paths.append(out / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', f'{task}_{supporter}')}.eval")
        write_eval_log(_log(run, config, supporter, dialogues, verdicts), paths[-1], format="eval")
    return paths


def _log(
    run: Run,
    config: RunConfig,
    supporter: str,
    dialogues: Sequence[Dialogue],
    verdicts: Mapping[str, Mapping[str, list[Judgement]]],
) -> EvalLog:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSpec, EvalStats
    from inspect_ai.model import ModelConfig

    simulated, stages = config.simulated, run.usage().values()
    usages = [(role, model, usage) for stage in stages for role, models in stage.items() for model, usage in models.items()]
    # Seeker and judge are asked for all supporters, and usage.json has them in one: it is in the metadata.
    own = [usage for role, model, usage in usages if (role, model) == ("supporter", supporter)]
    used = {supporter: _usage(sum(own, Usage()))} if own else {}
    samples = [_sample(dialogue, supporter, verdicts) for dialogue in dialogues]
    players = simulated.players if simulated else {}
    roles = {role: ModelConfig(model=spec.name) for role, spec in players.items()}
    roles |= {"judge" if place == 0 else f"judge {name}": ModelConfig(model=name) for place, name in enumerate(verdicts)}
    finished = [stage["finished"] for stage in run.timing().values() if isinstance(stage, dict) and "finished" in stage]
    written = datetime.fromtimestamp((run.folder / "dialogues.jsonl").stat().st_mtime)  # a replay asks nobody and has no times
    moment = datetime.strptime(max(finished), "%Y-%m-%d %H:%M:%S") if finished else written
    created = moment.astimezone().isoformat(timespec="seconds")
    spec = EvalSpec(
        eval_id=digest([config.root, supporter, "eval"], 22),
        run_id=digest([config.root, "run"], 22),
        task_id=digest([config.root, supporter, "task"], 22),
        created=created,
        task=simulated.framework if simulated else "given dialogues",
        model=supporter,
        model_roles=roles,
        dataset=EvalDataset(name="dialogues", samples=len(samples), sample_ids=list(dict.fromkeys(str(s.id) for s in samples))),
        config=EvalConfig(epochs=max(sample.epoch for sample in samples)),
        packages={"esc-eval": (run.versions().get("harness", {}).get("esc-eval") or ["unknown"])[-1]},
        tags=["plumbing"] if config.plumbing else None,
        metadata={
            **({"note": PLUMBING} if config.plumbing else {}),
            "run": run.folder.name,
            "mode": simulated.mode if simulated else None,
            "rubric": config.scored.rubric.name if config.scored else None,
            "config": config.stages,
            "usage of the whole run": {f"{role} {model}": usage.model_dump() for role, model, usage in usages},
        },
    )
    lost = sum(dialogue.lost for dialogue in dialogues)
    return EvalLog(
        status="error" if lost else "success",
        eval=spec,
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples) - lost,
            scores=[score for judge in verdicts for score in _results(judge, samples)],
        ),
        stats=EvalStats(
            started_at=created,
            completed_at=created,
            model_usage=used,
            role_usage={"supporter": used[supporter]} if used else {},
        ),
        samples=samples,
    )


def _sample(dialogue: Dialogue, supporter: str, verdicts: Mapping[str, Mapping[str, list[Judgement]]]) -> EvalSample:
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ChatMessageUser, ModelOutput

    messages: list[ChatMessage] = []
    for place, turn in enumerate(dialogue.turns):
        place_id = digest([dialogue.id, place], 22)
        state = {"state": turn.state} if turn.state else None
        messages.append(
            ChatMessageUser(id=place_id, content=turn.text, metadata=state)
            if turn.role == "seeker"
            else ChatMessageAssistant(id=place_id, content=turn.text, model=supporter, source="generate")
        )
    spoken = [message for message in messages if isinstance(message, ChatMessageAssistant)]
    stop = _STOPS.get(str(dialogue.termination), "stop")
    speakers = dict.fromkeys(filter(None, (dialogue.simulator, supporter)))
    told = dialogue.model_dump(mode="json", exclude={"turns", "usage"})
    lost = f"lost ({dialogue.termination}): a server failed"
    return EvalSample(
        id=dialogue.card_id or dialogue.profile_id or dialogue.id,
        epoch=dialogue.trial + 1,
        input=next((turn.text for turn in dialogue.turns if turn.role == "seeker"), ""),
        target="",
        messages=messages,
        output=ModelOutput(
            model=supporter, choices=[ChatCompletionChoice(message=message, stop_reason=stop) for message in spoken[-1:]]
        ),
        scores={judge: _score(found[dialogue.id]) for judge, found in verdicts.items() if found.get(dialogue.id)},
        metadata=told,
        # What a dialogue took is counted for both sides together.
        model_usage={" + ".join(speakers): _usage(dialogue.usage)} if dialogue.usage else {},
        error=EvalError(message=lost, traceback="", traceback_ansi="") if dialogue.lost else None,
        uuid=digest([dialogue.id, "sample"], 22),
    )


def _score(judgements: Sequence[Judgement]) -> InspectScore:
    """A judge's score of a dialogue: a value per dimension, and the judge's replies."""
    from inspect_ai.scorer import Score as InspectScore

    whole = [judgement for judgement in judgements if judgement.turn is None and judgement.repeat == 0]
    replies = dict.fromkeys(f"{judgement.dimension}: {judgement.raw}" for judgement in whole)
    return InspectScore(
        value={judgement.dimension: math.nan if judgement.value is None else judgement.value for judgement in whole},
        explanation="\n\n".join(replies),
        metadata={
            judgement.dimension: judgement.model_dump(mode="json", include={"expected", "distribution", "condition", "method"})
            for judgement in whole
        },
    )


def _results(judge: str, samples: Sequence[EvalSample]) -> Iterator[EvalScore]:
    """The mean of every dimension, from Inspect's own metrics."""
    from inspect_ai.log import EvalMetric, EvalScore
    from inspect_ai.scorer import SampleScore, Score, mean, stderr

    scores = [sample.scores[judge] for sample in samples if sample.scores and judge in sample.scores]
    for dimension in dict.fromkeys(name for score in scores for name in score.as_dict()):
        values = [score.as_dict().get(dimension, math.nan) for score in scores]
        read = [SampleScore(score=Score(value=value)) for value in values if not math.isnan(float(value))]
        metrics: dict[str, Any] = {"mean": mean()(read), "stderr": stderr()(read)} if read else {}
        yield EvalScore(
            name=dimension,
            scorer=judge,
            scored_samples=len(read),
            unscored_samples=len(values) - len(read),
            metrics={name: EvalMetric(name=name, value=float(value)) for name, value in metrics.items()},
        )


def _usage(usage: Usage) -> ModelUsage:
    from inspect_ai.model import ModelUsage

    return ModelUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens or None,
    )
