"""ESC-Eval as a task of Inspect (inspect_ai): the same dialogues and the same scores, held and given by Inspect's own models.

    inspect eval evalsuite/inspect_task.py --model openai/MINE --model-role seeker=vllm/SEEKER --model-role judge=openai/JUDGE

The model is the supporter; the roles `seeker` and `judge` name the others (Inspect gives a role that is not named the model
itself). A sample is a role card. Prompts, protocol, judge and rubric are those of `esc-eval run`; calls, limits, caching and
logs are Inspect's. Answers are not held to a form here, so give a judge that keeps to the words of its prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from core.records import Dialogue, Language, Message
from core.specs import ModelSpec
from evalsuite.dialogues.hold import hold
from evalsuite.papers.esc_eval import EscEval, EscEvalConfig
from evalsuite.runs.config import overridden
from serve.answers import Reply
from serve.questions import Question

_ROLES = ("seeker", "supporter", "judge")  # Inspect finds a model for each
CONFIG = str(CONFIGS / "eval" / "api.yaml")
_SPOKEN = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
_FINISHED = {"stop": "stop", "max_tokens": "length", "model_length": "context_overflow", "content_filter": "content_filter"}


class InspectModels:
    """Inspect's models where the harness has a client: a question goes to the model of its role."""

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        """The model's reply."""
        role = question.purpose
        model = get_model() if role == "supporter" else get_model(role=role)
        output = await model.generate(_messages(question.sent()), config=_config(question))
        return _reply(output)


def _messages(messages: Sequence[Message]) -> list[ChatMessage]:
    return [_SPOKEN[message["role"]](content=message["content"]) for message in messages]


def _config(question: Question) -> GenerateConfig:
    sampling = question.sampling
    return GenerateConfig(
        max_tokens=sampling.max_tokens, temperature=sampling.temperature, top_p=sampling.top_p, seed=sampling.seed
    )


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

    `config` is a run's config (configs/eval): its cards, rubric, prompts and method are used, its models are not. `limit` cards
    are played (without it, as many as the config says), in `exchanges` exchanges at most.
    """
    plans = _resolved(config, language, limit, exchanges).plans()
    samples = [Sample(id=plan.opening.person, input=plan.opening.turns[0].text) for plan in plans]
    return Task(
        dataset=MemoryDataset(samples, name=f"ESC-Eval role cards ({language})"),
        solver=dialogue(config, language, limit, exchanges),
        scorer=judged(config, language, limit, exchanges),
        name="esc_eval",
    )


# Inspect makes solver and scorer anew from what it kept of their arguments: these are plain values.
@solver
def dialogue(config: str, language: Language, limit: int | None, exchanges: int) -> Solver:
    """Holds the dialogue of a sample's card."""
    plans = {plan.opening.person: plan for plan in _resolved(config, language, limit, exchanges).plans()}

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        held = await hold(plans[str(state.sample_id)], InspectModels())
        state.messages = [
            ChatMessageUser(content=turn.text) if turn.role == "seeker" else ChatMessageAssistant(content=turn.text)
            for turn in held.turns
        ]
        last = next((turn.text for turn in reversed(held.turns) if turn.role == "supporter"), "")
        state.output = ModelOutput.from_content(str(state.model), last)
        state.metadata["record"] = held.model_dump(mode="json")
        return state

    return solve


@scorer(metrics={"*": [mean(), stderr()]})
def judged(config: str, language: Language, limit: int | None, exchanges: int) -> Scorer:
    """The judge's score on every dimension; NaN (unscored) where no verdict could be read."""
    resolved = _resolved(config, language, limit, exchanges)
    judge = resolved.judge(InspectModels())

    async def score(state: TaskState, target: Target) -> Score:
        verdicts = await judge.score(Dialogue.model_validate(state.metadata["record"]))
        values: dict[str, Any] = {one.dimension: math.nan if one.value is None else one.value for one in verdicts}
        said = dict.fromkeys(f"{one.dimension}: {one.raw}" for one in verdicts)
        return Score(value=values, explanation="\n\n".join(said))

    return score
