"""What evaluating one dialogue costs (EmoHarbor appendix F.3, table 4): seconds, input and output tokens, calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from core.records import Dialogue, Usage
from core.tables import Table
from evalsuite.statistics.summary import COSTS, supporter_of

COLUMNS = ("what", "dialogues", "seconds", "input tokens, thousands", "output tokens, thousands", "calls")


class Cost(NamedTuple):
    """Means over `dialogues`. `seconds` is None where no call was timed."""

    name: str
    dialogues: int
    seconds: float | None
    prompt_tokens: float
    completion_tokens: float
    calls: float


def dialogue_costs(
    dialogues: Sequence[Dialogue], usage: Mapping[str, Any], timing: Mapping[str, Any], judging: str = "score"
) -> list[Cost]:
    """Every model in every role, then `dialogue with SUPPORTER` for all that such a dialogue and its judgement take.

    `usage` and `timing` are a run's usage.json and timing.json, `judging` is the judge's stage there. Seconds are those that a
    model's calls took on average while the run had many in flight (resumed runs: in the last try), times its calls: as if a
    dialogue's calls were made one after another. A simulator's and a judge's part is taken as the same for every supporter.
    """
    held = Counter(supporter_of(dialogue) for dialogue in dialogues)
    parts = _parts(usage, timing, held, len(dialogues), ("simulate", judging))
    costs = list(parts.values())
    judged = [part for (role, _), part in parts.items() if role == "judge"]
    for supporter, count in sorted(held.items()):
        of_model = [part for (role, model), part in parts.items() if role != "supporter" or model == supporter]
        used = [dialogue.usage for dialogue in dialogues if supporter_of(dialogue) == supporter and dialogue.usage]
        if not of_model or len(used) < count:  # given dialogues do not say what they cost
            continue
        tokens = [
            sum(getattr(one, name) for one in used) / count + sum(getattr(part, name) for part in judged)
            for name in ("prompt_tokens", "completion_tokens", "calls")
        ]
        timed = [part.seconds for part in of_model if part.seconds is not None]
        costs.append(Cost(f"dialogue with {supporter}", count, sum(timed) if len(timed) == len(of_model) else None, *tokens))
    return costs


def _parts(
    usage: Mapping[str, Any], timing: Mapping[str, Any], held: Mapping[str, int], total: int, stages: Sequence[str]
) -> dict[tuple[str, str], Cost]:
    """(role, model) → cost of the dialogues and their judgements; a judge's last stage counts, gold sets do not."""
    latest = {
        (role, model): (stage, Usage.model_validate(used))
        for stage in stages
        for role, models in usage.get(stage, {}).items()
        for model, used in models.items()
    }
    parts = {}
    for (role, model), (stage, used) in latest.items():
        n = held.get(model, 0) if role == "supporter" else total
        if not n:
            continue
        calls = (timing.get(name, {}).get("calls", {}) for name in (stage, "simulate"))  # judged as soon as they were held
        timed: Mapping[str, Any] = next((of_stage[who] for of_stage in calls if (who := f"{model}/{role}") in of_stage), {})
        per_call = timed["seconds"] / timed["asked"] if timed.get("asked") else None
        seconds = None if per_call is None else per_call * used.calls / n
        tokens = (used.prompt_tokens / n, used.completion_tokens / n)
        parts[role, model] = Cost(f"{role} {model}", n, seconds, *tokens, used.calls / n)
    return parts


def table(costs: Sequence[Cost]) -> Table:
    """Table 4's figures; tokens in thousands, as it has them."""
    return Table(
        key="dialogue-costs",
        title="Cost of a dialogue",
        columns=COLUMNS,
        rows=tuple(
            (one.name, one.dialogues, one.seconds, one.prompt_tokens / 1000, one.completion_tokens / 1000, one.calls)
            for one in costs
        ),
        notes=(
            "Means over dialogues, judgement included (that of the gold set is not). Seconds: what a call took on average, "
            "with as many in flight as the run had, times calls; a dash where no call was timed.",
        ),
        section=COSTS,
    )
