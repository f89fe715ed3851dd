"""ESC-Eval as a task of Inspect (inspect_ai): the same dialogues and scores, by Inspect's own models.

    inspect eval evalsuite/inspect_task.py --model openai/MINE --model-role seeker=vllm/SEEKER --model-role judge=openai/JUDGE

The model is the supporter; the roles `seeker` and `judge` name the others (a role that is not given is played by the model). A
sample is a role card. Prompts, protocol, judge and rubric are those of `esc-eval run`; calls, limits, caching and logs are
Inspect's. Answers are not constrained here, so use a judge that follows its prompt.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from core.endpoints import Endpoint
from core.files import CONFIGS
from core.records import Dialogue, Language
from core.specs import ModelSpec
from evalsuite.dialogues.hold import hold
from evalsuite.papers.esc_eval import EscEval, EscEvalConfig
from evalsuite.runs.config import overridden
from serve.answers import Reply
from serve.questions import Question

_ROLES = ("seeker", "supporter", "judge")  # Inspect provides a model for each
CONFIG = str(CONFIGS / "eval" / "api.yaml")
_SPOKEN = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
_FINISHED = {"stop": "stop", "max_tokens": "length", "model_length": "context_overflow", "content_filter": "content_filter"}


class InspectModels:
    """A client of Inspect's models: each question goes to the model of its role."""

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        role, sampling = question.purpose, question.sampling
        model = get_model() if role == "supporter" else get_model(role=role)
        messages: list[ChatMessage] = [_SPOKEN[m["role"]](content=m["content"]) for m in question.sent()]
        limits = {name: getattr(sampling, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
        return _reply(await model.generate(messages, config=GenerateConfig(**limits)))


def _reply(output: ModelOutput) -> Reply:
    used, text = output.usage, output.completion
    return Reply(
        text=text.strip(),
        verbatim=text if text != text.strip() else None,
        finish_reason=_FINISHED.get(output.stop_reason),
        refused=output.stop_reason == "content_filter",
        prompt_tokens=used.input_tokens if used else 0,
        completion_tokens=used.output_tokens if used else 0,
        reasoning_tokens=(used.reasoning_tokens or 0) if used else 0,
        model=output.model,
    )


@cache
def _resolved(config: str, language: Language, limit: int | None, exchanges: int) -> EscEval:
    changes = {"languages": [language], "limit": limit, "exchanges": exchanges}
    models = {"seeker": "seeker", "judge": "judge", "supporters": ["supporter"], "model": None, "floors": False}
    read = overridden(Path(config), EscEvalConfig, "eval config", changes)
    given = {name: ModelSpec(name=name, endpoint=Endpoint(base_url="http://inspect.invalid/v1")) for name in _ROLES}
    return EscEval(EscEvalConfig.model_validate(read.model_dump(exclude_unset=True) | models), given=given)


@task
def esc_eval(config: str = CONFIG, language: Language = "en", limit: int | None = None, exchanges: int = 5) -> Task:
    """ESC-Eval on the cards of one language.

    `config` is a run's config (configs/eval), of which the cards, rubric, prompts and method are used, but not the models.
    `limit`: the number of cards (default: the config's). `exchanges`: the maximum per dialogue.
    """
    plans = _resolved(config, language, limit, exchanges).plans()
    samples = [Sample(id=plan.opening.person, input=plan.opening.turns[0].text) for plan in plans]
    return Task(
        dataset=MemoryDataset(samples, name=f"ESC-Eval role cards ({language})"),
        solver=dialogue(config, language, limit, exchanges),
        scorer=judged(config, language, limit, exchanges),
        name="esc_eval",
    )


# Inspect calls solver and scorer again with their logged arguments, so these are plain values.
@solver
def dialogue(config: str, language: Language, limit: int | None, exchanges: int) -> Solver:
    """Holds the dialogue on a sample's card."""
    plans = {plan.opening.person: plan for plan in _resolved(config, language, limit, exchanges).plans()}

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        record = await hold(plans[str(state.sample_id)], InspectModels())
        state.messages = [
            ChatMessageUser(content=turn.text) if turn.role == "seeker" else ChatMessageAssistant(content=turn.text)
            for turn in record.turns
        ]
        last = next((turn.text for turn in reversed(record.turns) if turn.role == "supporter"), "")
        state.output = ModelOutput.from_content(str(state.model), last)
        state.metadata["record"] = record.model_dump(mode="json")
        return state

    return solve


@scorer(metrics={"*": [mean(), stderr()]})
def judged(config: str, language: Language, limit: int | None, exchanges: int) -> Scorer:
    """The judge's score on every dimension; NaN (unscored) if no verdict could be read."""
    judge = _resolved(config, language, limit, exchanges).judge(InspectModels())

    async def score(state: TaskState, target: Target) -> Score:
        verdicts = await judge.score(Dialogue.model_validate(state.metadata["record"]))
        values: dict[str, Any] = {j.dimension: math.nan if j.value is None else j.value for j in verdicts}
        answers = dict.fromkeys(f"{j.dimension}: {j.raw}" for j in verdicts)
        return Score(value=values, explanation="\n\n".join(answers))

    return score
