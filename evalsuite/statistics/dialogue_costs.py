"""What every model of a run used, and what evaluating a dialogue costs (EmoHarbor appendix F.3, table 4)."""

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
    """What one model used in one role. `dialogues` counts those it spoke in or judged; 0 for the gold set, whose dialogues are
    not the run's. `cost` is None for a model without a price."""

    role: str
    model: str
    dialogues: int
    usage: Usage
    cost: float | None


def model_uses(
    used: Used, dialogues: Sequence[Dialogue], verdicts: Sequence[Judgement], prices: Mapping[str, Price]
) -> list[ModelUse]:
    """Every model in every role, supporters first, without floors; `used` is stage → role → model → usage."""
    held_by = Counter(supporter_of(dialogue) for dialogue in dialogues)
    judged = Counter(judge for judge, _ in {(verdict.judge, verdict.dialogue_id) for verdict in verdicts})
    sums = sums_of({GOLD if stage.startswith("gold") else role: used[stage][role]} for stage in used for role in used[stage])
    order = {"supporter": 0, "judge": 2, GOLD: 3}  # 1: the models that play the seeker
    uses = []
    for role, model in sorted(sums, key=lambda key: (order.get(key[0], 1), key)):
        if (usage := sums[role, model]).calls:
            n = {"supporter": held_by[model], "judge": judged[model], GOLD: 0}.get(role, len(dialogues))
            cost = prices[model].of(usage.prompt_tokens, usage.completion_tokens) if model in prices else None
            uses.append(ModelUse(role, model, n, usage, cost))
    return uses


def use_table(uses: Sequence[ModelUse]) -> Table:
    """Sums, and means over the model's dialogues; costs if any model has a price."""
    priced = any(use.cost is not None for use in uses)
    rows: list[dict[str, Cell]] = []
    for use in uses:
        totals = {"calls": use.usage.calls, "tokens in": use.usage.prompt_tokens, "tokens out": use.usage.completion_tokens}
        each = {f"{head} a dialogue": figure / use.dialogues if use.dialogues else None for head, figure in totals.items()}
        rows.append({"model": use.model, "role": use.role, "dialogues": use.dialogues or None, **totals})
        # The cost of a single dialogue would vanish in two decimals.
        cost = 1000 * use.cost / use.dialogues if use.cost is not None and use.dialogues else None
        rows[-1] |= {"cost": use.cost, **each, THOUSAND: cost} if priced else each
    notes = ["Tokens as the servers counted them, in prompts and in answers (reasoning included)."]
    notes += ["Cost: tokens times the price in the model's spec, in its currency. A dash: no price."] * priced
    return Table.of("model-costs", "What every model used", rows, notes, COSTS)


class DialogueCost(NamedTuple):
    """Means over `dialogues`. `seconds` is None where no call was timed."""

    name: Annotated[str, Column("what")]
    dialogues: Annotated[int, Column("dialogues")]
    seconds: Annotated[float | None, Column("seconds")]
    prompt_tokens: Annotated[float, Column("input tokens, thousands", lambda count: count / 1000)]
    completion_tokens: Annotated[float, Column("output tokens, thousands", lambda count: count / 1000)]
    calls: Annotated[float, Column("calls")]


def dialogue_costs(dialogues: Sequence[Dialogue], usage: Used, timing: Mapping[str, Any]) -> list[DialogueCost]:
    """Every model in every role, then `dialogue with SUPPORTER` for everything such a dialogue and its judgement use.

    `usage` and `timing` are a run's usage.json and timing.json; Seconds are the mean time
    of a model's calls (in resumed runs: of the last try) times its calls, as if these were made one after another. The
    simulator's and judge's shares are taken to be the same for every supporter.
    """
    numbers = Counter(map(supporter_of, dialogues))
    of_stages = ((stage, usage.get(stage, {})) for stage in ("simulate", "score"))
    # A judge's last stage counts, gold sets do not.
    latest = {(role, model): (stage, use) for stage, roles in of_stages for role in roles for model, use in roles[role].items()}
    parts: dict[tuple[str, str], DialogueCost] = {}
    for (role, model), (stage, used) in latest.items():
        if n := numbers[model] if role == "supporter" else len(dialogues):
            # A dialogue may have been judged as soon as it was held, during `simulate`.
            calls = (timing.get(name, {}).get("calls", {}) for name in (stage, "simulate"))
            timed: Mapping[str, Any] = next((of_stage[key] for of_stage in calls if (key := f"{model}/{role}") in of_stage), {})
            seconds = timed["seconds"] / timed["asked"] * used.calls / n if timed.get("asked") else None
            tokens = used.prompt_tokens / n, used.completion_tokens / n
            parts[role, model] = DialogueCost(f"{role} {model}", n, seconds, *tokens, used.calls / n)
    costs = list(parts.values())
    judged = [part for (role, _), part in parts.items() if role == "judge"]
    for supporter, own in sorted(group_by(dialogues, supporter_of).items()):
        of_model = [part for (role, model), part in parts.items() if role != "supporter" or model == supporter]
        usages = [dialogue.usage for dialogue in own if dialogue.usage]
        if of_model and len(usages) == len(own):  # given dialogues do not say what they used
            total, fields = Usage.total(usages), ("prompt_tokens", "completion_tokens", "calls")
            sums = [getattr(total, name) / len(own) + sum(getattr(part, name) for part in judged) for name in fields]
            times = [part.seconds for part in of_model if part.seconds is not None]
            seconds = sum(times) if len(times) == len(of_model) else None
            costs.append(DialogueCost(f"dialogue with {supporter}", len(own), seconds, *sums))
    return costs


def table(costs: Sequence[DialogueCost]) -> Table:
    """Table 4's figures; tokens in thousands, as printed there."""
    note = (
        "Means over dialogues, judgement included (except of the gold set). Seconds: the mean time of a call, with as many in "
        "flight as the run had, times calls; a dash where no call was timed."
    )
    return Table.of("dialogue-costs", "Cost of a dialogue", costs, [note], COSTS)
