"""Summaries of a run's records: scorers, missing verdicts, how dialogues ended, which scores were given, and what all that
cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, get_args

from core.endpoints import Price
from core.errors import UserError
from core.grouping import group_by
from core.languages import in_order
from core.records import Dialogue, Judgement, Language, Termination, Usage, Used
from core.rubrics import Rubric
from core.tables import PARTED, Cell, Column, Table
from data_prep.profiles import Played

# Headings of the report; its charts go under the heading of the tables they draw.
SCORES = "Scores"
BREAKDOWNS = "Scores by category and reply length"
AGREEMENT = "Agreement"
TERMINATIONS = "Terminations"
COSTS = "Costs"

AVERAGE = "average"

UNREADABLE, LOST, BROKEN = "unreadable", "lost", "broken probabilities"
# Keys of a judgement's condition that are not experimental conditions: what became of its call, and the pair it belongs to.
_OUTCOMES = ("failure", "probabilities", "verdict", "against", "shown")
UNASKED = ("not_applicable", "not_reached")  # nothing to score, which is not the judge's fault
# Why verdicts are missing, in words that follow their number.
MISSING = {
    UNREADABLE: "could not be read",
    "refusal": "were refused by the judge",
    "context_overflow": "did not fit the judge's context",
    "no_supporter_turn": "had no reply to judge",
    "no_partner": "had no other supporter's dialogue for comparison",
    LOST: "were lost with a server",
    "not_applicable": "were judged not applicable",
    "not_reached": "were not reached in a tree of questions",
}


class Scorer(NamedTuple):
    """The source of a verdict: judge, method and experimental condition. Verdicts of different scorers are never mixed."""

    judge: str
    method: str
    condition: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """`judge · method · key=value`, for display."""
        return PARTED.join([self.judge, self.method, *(f"{key}={value}" for key, value in self.condition)])

    def without(self, *keys: str) -> Scorer:
        """The scorer without these keys of its condition."""
        return self._replace(condition=tuple(pair for pair in self.condition if pair[0] not in keys))

    def column(self, shown: bool = True) -> dict[str, Cell]:
        """The table column that names the scorer; none unless `shown`."""
        return {"judged by": self.name} if shown else {}

    def record(self) -> dict[str, Any]:
        """A JSON object."""
        return self._asdict() | {"condition": dict(self.condition)}


def short_names(scorers: Iterable[Scorer]) -> dict[Scorer, str]:
    """Scorers' names without the parts that all of them have."""
    parts = {scorer: scorer.name.split(PARTED) for scorer in scorers}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    return {scorer: PARTED.join(part for part in parts[scorer] if part not in shared) or scorer.name for scorer in parts}


def scorer_of(judgement: Judgement) -> Scorer:
    """The scorer of a judgement, whatever became of its call (a missing verdict, broken probabilities)."""
    return _scorer(judgement.judge, judgement.method, tuple(judgement.condition.items()))


@cache
def _scorer(judge: str, method: str, condition: tuple[tuple[str, str], ...]) -> Scorer:
    return Scorer(judge, method, tuple(sorted(pair for pair in condition if pair[0] not in _OUTCOMES)))


def why_missing(judgement: Judgement) -> str | None:
    """Why a verdict is missing: a key of `MISSING`, or another reason in `condition.failure`; None if it is not missing."""
    if judgement.value is not None:
        return None
    return LOST if judgement.lost else judgement.condition.get("verdict") or judgement.condition.get("failure", UNREADABLE)


def missing(judgements: Iterable[Judgement]) -> dict[str, int]:
    """The number of missing verdicts by reason; the reasons of `MISSING` come first."""
    counts = Counter(filter(None, map(why_missing, judgements)))
    return {reason: counts[reason] for reason in dict.fromkeys([*MISSING, *sorted(counts)]) if counts[reason]}


def counted_note(rubric: Rubric | None) -> list[str]:
    """A note for tables with a column per score, if a scale has too many scores for that."""
    fine = any(scale is not scale.counted for scale in (rubric.scales.values() if rubric else ()))
    return ["On a scale of more than 11 scores, each counts as the nearest of 11 evenly spaced ones."] * fine


def broken(judgements: Iterable[Judgement]) -> int:
    """The number of verdicts whose token probabilities cannot be true or are not the answer's."""
    return sum(judgement.condition.get("probabilities") == "broken" for judgement in judgements)


def supporter_of(dialogue: Dialogue) -> str:
    """The supporter's name; an imported corpus, which names none, counts as a supporter with the name of its source."""
    return dialogue.supporter or dialogue.source


def seeker_of(dialogue: Dialogue) -> str:
    """The seeker's name; people in an imported corpus, which names no simulator, have the name of their source."""
    return dialogue.simulator or dialogue.source


def languages_of(records: Iterable[Dialogue | Judgement | Played]) -> list[Language]:
    """The languages that occur, English first."""
    return in_order({record.language for record in records})


def checked(judgements: Sequence[Judgement], rubric: Rubric) -> Iterator[Judgement]:
    """The judgements on this rubric; those on other rubrics are skipped. Raises `UserError` for a dimension that the rubric
    lacks, and for a value or probability off its scale."""
    ranges = {name: (scale.lowest, scale.max, {f"{n:g}" for n in scale.scores}) for name, scale in rubric.scales.items()}
    for judgement in judgements:
        if judgement.rubric != rubric.name:
            continue
        problem = None
        if judgement.dimension not in ranges:
            problem = f"dimension: {judgement.dimension!r} is not in rubric {rubric.name}"
        else:
            lowest, highest, scores = ranges[judgement.dimension]
            figures = [("value", judgement.value), ("expected", judgement.expected)]
            if judgement.distribution and not scores.issuperset(judgement.distribution):
                figures += [("distribution", float(score)) for score in judgement.distribution]
            for field, figure in figures:
                if figure is not None and not lowest <= figure <= highest:
                    problem = f"{field}: {figure:g} is off the scale {lowest} to {highest} of rubric {rubric.name}"
                    break
        if problem is not None:
            raise UserError(f"judgement of dialogue {judgement.dialogue_id} by {judgement.judge}: {problem}")
        yield judgement


def dimension_label(rubric: Rubric, dimension: str) -> str:
    """A dimension's English label, or its key if the rubric has no English; `average` for the average."""
    return rubric.dimensions[dimension].label.get("en", dimension) if dimension in rubric.dimensions else dimension


def dimension_at(rubric: Rubric, place: int | None) -> str:
    """The dimension at a place in the rubric; `AVERAGE` for None."""
    return AVERAGE if place is None else list(rubric.dimensions)[place]


def terminations(dialogues: Sequence[Dialogue]) -> Table:
    """How many dialogues of each supporter ended for which reason (of either side, where it can be due to either), how many
    either side ended, and how many replies were cut off."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for dialogue in dialogues:
        row = counts[supporter_of(dialogue), dialogue.language]
        reason = dialogue.termination or "not recorded"
        either = reason not in ("max_turns", "seeker_ended", "not recorded")
        row[f"{reason} ({dialogue.ended_by})" if either else reason] += 1
        row[f"ended by {dialogue.ended_by}"] += dialogue.ended_by is not None
        for role, count in dialogue.usage.cut_off.items() if dialogue.usage else ():
            row[f"cut off ({role})"] += count
    order = [*get_args(Termination), "not recorded"]
    occurred = {name for row in counts.values() for name in row if not name.startswith(("ended by", "cut off"))}
    reasons = sorted(occurred, key=lambda name: (order.index(name.split(" (")[0]), name))
    cut = sorted({name for row in counts.values() for name in row if name.startswith("cut off")})
    columns = [*reasons, "ended by seeker", "ended by supporter", *cut]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (*key, sum(row[name] for name in reasons), *(row[name] for name in columns)) for key, row in sorted(counts.items())
    )
    notes = ("Cut off: replies that reached their token limit; they still count as turns.",) * bool(cut)
    return Table(
        "terminations", "How dialogues ended", ("supporter", "language", "dialogues", *columns), rows, notes, TERMINATIONS
    )


TROUBLE = 0.1  # share of failures above which they are no accident
SAME = 20  # number of equal verdicts from which they are no accident


def sums_of(used: Iterable[Mapping[str, Mapping[str, Usage]]]) -> dict[tuple[str, str], Usage]:
    """(role, model) → its usage over several stages."""
    parts: dict[tuple[str, str], list[Usage]] = defaultdict(list)
    for role, models in chain.from_iterable(stage.items() for stage in used):
        for model, usage in models.items():
            parts[role, model].append(usage)
    return {key: Usage.total(usages) for key, usages in parts.items()}


def cut_off(used: Iterable[Mapping[str, Mapping[str, Usage]]], up_to: float = 1) -> str:
    """A sentence on the replies that reached their token limit, by role and model, in several stages; "" if none did. Models
    with a larger share of them than `up_to` are left out: `in_trouble` names those above `TROUBLE`."""
    counts = ((sum(usage.cut_off.values()), usage.calls, *key) for key, usage in sums_of(used).items())
    cut = [f"{n:,} of {calls:,} by the {role} {model}" for n, calls, role, model in counts if 0 < n <= up_to * calls]
    return f"Replies cut off at their token limit: {', '.join(cut)}." if cut else ""


def in_trouble(used: Iterable[Mapping[str, Mapping[str, Usage]]], judgements: Iterable[Judgement]) -> Iterator[str]:
    """Warnings with remedies: models with more than a tenth of their replies cut off, judges with more than a tenth of their
    verdicts unreadable, and judges that give every dialogue the same score."""
    for (role, model), usage in sums_of(used).items():
        if (count := sum(usage.cut_off.values())) > TROUBLE * usage.calls:
            raised = "max_tokens" if role == "supporter" else "sampling.max_tokens in its spec"
            reasons = ", or sampling.reasoning_tokens, as it reasons" if usage.reasoning_tokens else ""
            yield f"{count:,} of {usage.calls:,} replies of the {role} {model} were cut off: raise {raised}{reasons}"
    by_judge: dict[str, Counter[float | None]] = defaultdict(Counter)
    for judgement in judgements:
        if not (judgement.lost or judgement.unasked) and judgement.condition.get("failure") is None:
            by_judge[judgement.judge][judgement.value] += 1
    for judge, values in by_judge.items():
        verdicts, unread = values.total(), values.pop(None, 0)
        read = verdicts - unread
        if unread > TROUBLE * verdicts:
            yield (
                f"{unread:,} of {verdicts:,} verdicts of the judge {judge} cannot be read: see `raw` in judgements.jsonl; if "
                "they are cut off, raise sampling.max_tokens in its spec; if it ignores instructions, it cannot judge"
            )
        elif read >= SAME and len(values) == 1:
            yield f"the judge {judge} gave {next(iter(values))} in all of {read:,} verdicts: its scores distinguish nothing"


def failed_calls(failures: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table | None:
    """The unanswered calls of a run (its failures.json) by stage, role, model, outcome and HTTP status, most frequent first,
    each with an example of the servers' messages; None if there are none."""
    keys = itemgetter("role", "model", "outcome", "status")
    groups = group_by(((stage, call) for stage in failures for call in failures[stage]), lambda item: (item[0], *keys(item[1])))
    rows = [
        dict(zip(("stage", "role", "model", "outcome", "HTTP status"), group, strict=True))
        | {"calls": len(calls), "dialogues": len({call["dialogue"] for _, call in calls}), "for example": calls[0][1]["reason"]}
        for group, calls in sorted(groups.items(), key=lambda item: (-len(item[1]), str(item[0])))
    ]
    note = "Their dialogues or verdicts are missing; the same command tries again. failures.json lists every call."
    return Table.of("failures", "Calls that were not answered", rows, [note], TERMINATIONS) if rows else None


def distributions(judgements: Sequence[Judgement], rubric: Rubric) -> Table:
    """How often each score was given, per language, scorer and dimension, with columns for verdicts that are missing, by
    reason, and for those with broken probabilities (which also count under their score), if any.

    Verdicts between two scores (from ensembles) count as the nearest, halves up; a scale of more than 11 scores is reduced to
    eleven. Verdicts with nothing to score also have a column for their share of all verdicts but the lost ones."""
    groups = defaultdict[tuple[Language, Scorer], dict[str, list[Judgement]]](lambda: {name: [] for name in rubric.dimensions})
    for judgement in checked(judgements, rubric):
        groups[judgement.language, scorer_of(judgement)][judgement.dimension].append(judgement)
    verdicts = [judgement for group in groups.values() for judgement in chain.from_iterable(group.values())]
    reasons = list(dict.fromkeys([UNREADABLE, *missing(verdicts)]))
    unsound = [BROKEN] if broken(verdicts) else []
    several = len({scorer for _, scorer in groups}) > 1
    heads_of, words = rubric.counted, {reason: reason.replace("_", " ") for reason in reasons}
    rows: list[dict[str, Cell]] = []
    for language, scorer in sorted(groups):
        for dimension, of_dimension in groups[language, scorer].items():
            scale, absent = rubric.scale_of(dimension).counted, missing(of_dimension)
            scores = Counter[float]()
            for value, count in Counter(judgement.value for judgement in of_dimension).items():
                scores.update({} if value is None else {scale.nearest(value): count})
            rows.append({"language": language} | scorer.column(several) | {"dimension": dimension_label(rubric, dimension)})
            rows[-1] |= {head: scores[score] if score in scale.scores else None for score, head in heads_of.items()}
            rows[-1] |= {words[reason]: absent.get(reason, 0) for reason in reasons} | {"verdicts": len(of_dimension)}
            total = len(of_dimension) - absent.get(LOST, 0)
            for reason in (reason for reason in reasons if reason in UNASKED):
                rows[-1][f"{words[reason]} %"] = 100 * absent.get(reason, 0) / total if total else None
            rows[-1] |= {reason: broken(of_dimension) for reason in unsound}
    note = "Broken probabilities: they cannot be true, or are not certain to be the answer's; the score in the text stands."
    heads = ("language", "dimension", *heads_of.values(), *words.values(), "verdicts")
    notes = [*[note] * len(unsound), *counted_note(rubric)]
    return Table.of("distributions", "Scores given", rows, notes, SCORES, heads=() if rows else heads)


# --- what models used, and what evaluating a dialogue costs (EmoHarbor appendix F.3, table 4) ------------------------------


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

    `usage` and `timing` are a run's usage.json and timing.json. Seconds are the mean time of a model's calls (in resumed runs:
    of the last try) times its calls, as if these were made one after another. The simulator's and judge's shares are taken to
    be the same for every supporter."""
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


def cost_table(costs: Sequence[DialogueCost]) -> Table:
    """Table 4's figures; tokens in thousands, as printed there."""
    note = (
        "Means over dialogues, judgement included (except of the gold set). Seconds: the mean time of a call, with as many in "
        "flight as the run had, times calls; a dash where no call was timed."
    )
    return Table.of("dialogue-costs", "Cost of a dialogue", costs, [note], COSTS)
