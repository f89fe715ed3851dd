"""A scored run as logs of Inspect (inspect_ai): one `.eval` file per supporter, for `inspect view` and other readers.

A sample is a dialogue as its supporter saw it: the seeker's turns are `user`, its own are `assistant`. Every judge is a scorer
with a value per dimension; a verdict that could not be read is NaN, which Inspect counts as unscored. Logs that are exported
again are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.files import digest, read_jsonl
from core.grouping import group_by
from core.records import Dialogue, Judgement, Usage
from evalsuite.report.report import PLUMBING, UNSCORED
from evalsuite.runs import shards
from evalsuite.runs.contents import sets_of
from evalsuite.runs.folder import Run
from evalsuite.runs.run_config import RunConfig

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample, EvalScore
    from inspect_ai.model import ChatMessage, ModelUsage, StopReason
    from inspect_ai.scorer import Score

_STOPS: dict[str, StopReason] = {"context_overflow": "model_length", "refusal": "content_filter"}


def write_inspect_logs(run: Run, out: Path) -> list[Path]:
    """Write a log for every supporter of a run folder into `out`. Raises `UserError` where nothing was scored there, and where
    inspect_ai is not installed."""
    try:
        from inspect_ai.log import write_eval_log
    except ImportError:
        raise UserError("--inspect: inspect_ai is not installed: pip install 'esc-eval[inspect]'") from None
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, log in _logs(run):
        paths.append(out / f"{name}.eval")
        write_eval_log(log, paths[-1], format="eval")
    return paths


def _logs(run: Run) -> Iterator[tuple[str, EvalLog]]:
    config = shards.whole(run.folder)
    if not (sets := sets_of(run.folder, config)):
        raise UserError(UNSCORED.format(run.folder))
    verdicts = {judged.judge or "judge": group_by(judged.records(), lambda judgement: judgement.dialogue_id) for judged in sets}
    records = read_jsonl(run.folder / "dialogues.jsonl", Dialogue, "dialogues")
    task = config.simulated.framework if config.simulated else "given_dialogues"
    for supporter, dialogues in group_by(records, lambda dialogue: dialogue.supporter or "given dialogues").items():
        yield re.sub(r"[^A-Za-z0-9._-]+", "-", f"{task}_{supporter}"), _log(run, config, supporter, dialogues, verdicts)


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


def _score(judgements: Sequence[Judgement]) -> Score:
    """A judge's score of a dialogue: a value per dimension, and the judge's replies."""
    from inspect_ai.scorer import Score

    whole = [judgement for judgement in judgements if judgement.turn is None and judgement.repeat == 0]
    replies = dict.fromkeys(f"{judgement.dimension}: {judgement.raw}" for judgement in whole)
    return Score(
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
