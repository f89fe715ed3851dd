"""What a run took of every model, and what evaluating one dialogue costs (EmoHarbor appendix F.3, table 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from core.endpoints import Price
from core.grouping import group_by
from core.records import Dialogue, Judgement, Usage, Used
from core.tables import Cell, Column, Table
from evalsuite.statistics.summary import COSTS, sums_of, supporter_of

THOUSAND = "cost of 1,000 dialogues"
GOLD = "judge, gold set"


class ModelUse(NamedTuple):
    """What one model used in one role. `dialogues` are those that it spoke in or judged; 0 on the gold set, which is asked once
    and not by dialogue of the run. `cost` is None where the model has no price."""

    role: str
    model: str
    dialogues: int
    usage: Usage
    cost: float | None

    @property
    def cost_of_thousand(self) -> float | None:
        """What a thousand dialogues cost: of one there is little to see in two decimals."""
        return 1000 * self.cost / self.dialogues if self.cost is not None and self.dialogues else None


def model_uses(
    used: Used, dialogues: Sequence[Dialogue], verdicts: Sequence[Judgement], prices: Mapping[str, Price]
) -> list[ModelUse]:
    """Every model in every role, supporters first; `used` is stage → role → model → usage. Supporters that need no model are
    left out."""
    held = Counter(supporter_of(dialogue) for dialogue in dialogues)
    judged = {name: len({v.dialogue_id for v in of_one}) for name, of_one in group_by(verdicts, lambda v: v.judge).items()}
    sums = sums_of({GOLD if stage.startswith("gold") else role: used[stage][role]} for stage in used for role in used[stage])
    order = {"supporter": 0, "judge": 2, GOLD: 3}  # between them all who play the seeker
    uses = []
    for role, model in sorted(sums, key=lambda key: (order.get(key[0], 1), key)):
        if (usage := sums[role, model]).calls:
            n = {"supporter": held[model], "judge": judged.get(model, 0), GOLD: 0}.get(role, len(dialogues))
            cost = prices[model].of(usage.prompt_tokens, usage.completion_tokens) if model in prices else None
            uses.append(ModelUse(role, model, n, usage, cost))
    return uses


def use_table(uses: Sequence[ModelUse]) -> Table:
    """Sums, and means over the model's dialogues; costs where any model has a price."""
    priced = any(use.cost is not None for use in uses)
    rows: list[dict[str, Cell]] = []
    for use in uses:
        taken = {"calls": use.usage.calls, "tokens in": use.usage.prompt_tokens, "tokens out": use.usage.completion_tokens}
        each = {f"{head} a dialogue": figure / use.dialogues if use.dialogues else None for head, figure in taken.items()}
        rows.append({"model": use.model, "role": use.role, "dialogues": use.dialogues or None, **taken})
        if priced:
            rows[-1]["cost"] = use.cost
        rows[-1] |= each | ({THOUSAND: use.cost_of_thousand} if priced else {})
    notes = ["Tokens as the servers counted them, in what was asked and in what was answered (reasoning included)."]
    notes += ["Cost: tokens times the price in the model's spec, in its currency. A dash: no price."] * priced
    return Table.of("model-costs", "What every model took", rows, notes, COSTS)


def _thousands(count: float) -> float:
    return count / 1000


class DialogueCost(NamedTuple):
    """Means over `dialogues`. `seconds` is None where no call was timed."""

    name: Annotated[str, Column("what")]
    dialogues: Annotated[int, Column("dialogues")]
    seconds: Annotated[float | None, Column("seconds")]
    prompt_tokens: Annotated[float, Column("input tokens, thousands", _thousands)]
    completion_tokens: Annotated[float, Column("output tokens, thousands", _thousands)]
    calls: Annotated[float, Column("calls")]


def dialogue_costs(
    dialogues: Sequence[Dialogue], usage: Used, timing: Mapping[str, Any], judging: str = "score"
) -> list[DialogueCost]:
    """Every model in every role, then `dialogue with SUPPORTER` for all that such a dialogue and its judgement take.

    `usage` and `timing` are a run's usage.json and timing.json, `judging` is the judge's stage there. Seconds are those that a
    model's calls took on average while the run had many in flight (resumed runs: in the last try), times its calls: as if a
    dialogue's calls were made one after another. A simulator's and a judge's part is taken as the same for every supporter.
    """
    held = group_by(dialogues, supporter_of)
    parts = _parts(usage, timing, {name: len(of_one) for name, of_one in held.items()}, len(dialogues), ("simulate", judging))
    costs = list(parts.values())
    judged = [part for (role, _), part in parts.items() if role == "judge"]
    for supporter, of_supporter in sorted(held.items()):
        count = len(of_supporter)
        of_model = [part for (role, model), part in parts.items() if role != "supporter" or model == supporter]
        used = [dialogue.usage for dialogue in of_supporter if dialogue.usage]
        if not of_model or len(used) < count:  # given dialogues do not say what they cost
            continue
        total, fields = Usage.total(used), ("prompt_tokens", "completion_tokens", "calls")
        tokens = [getattr(total, name) / count + sum(getattr(part, name) for part in judged) for name in fields]
        timed = [part.seconds for part in of_model if part.seconds is not None]
        costs.append(
            DialogueCost(f"dialogue with {supporter}", count, sum(timed) if len(timed) == len(of_model) else None, *tokens)
        )
    return costs


def _parts(
    usage: Used, timing: Mapping[str, Any], held: Mapping[str, int], total: int, stages: Sequence[str]
) -> dict[tuple[str, str], DialogueCost]:
    """(role, model) → cost of the dialogues and their judgements; a judge's last stage counts, gold sets do not."""
    latest = {
        (role, model): (stage, used)
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
        parts[role, model] = DialogueCost(f"{role} {model}", n, seconds, *tokens, used.calls / n)
    return parts


def table(costs: Sequence[DialogueCost]) -> Table:
    """Table 4's figures; tokens in thousands, as it has them."""
    note = (
        "Means over dialogues, judgement included (that of the gold set is not). Seconds: what a call took on average, "
        "with as many in flight as the run had, times calls; a dash where no call was timed."
    )
    return Table.of("dialogue-costs", "Cost of a dialogue", costs, [note], COSTS)
