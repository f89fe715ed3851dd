"""Forecasts of a run: calls, tokens and cost, how far a budget reaches, and the workload of its servers."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from core.grouping import group_by
from core.records import Dialogue, Usage
from core.scales import longest_way
from core.specs import ModelSpec
from core.tables import Cell, Table
from data_prep.cards import PUBLISHED, bundled_cards, load_cards
from evalsuite.dialogues.hold import Plan, hold
from evalsuite.judge.methods import method_of
from evalsuite.runs.dialogue_framework import DialogueFramework
from serve.answers import Reply
from serve.limits import Budget, Share, cost
from serve.questions import Question
from serve.units import Workload

# Assumed tokens per reply, if its limit allows them. In ESC-Eval's published sample (12 dialogues, two supporters) the means,
# counted by bytes, are 45 and 230, and the longest dialogue has 1.6 times the mean.
REPLY = {"seeker": 40, "supporter": 200}
OTHER = 100  # of any other reply
LONG = 1.5  # how much longer replies are in a dialogue at the 95th percentile
BYTES_A_TOKEN = 3  # without a tokenizer on this machine: English has about four bytes per token, Chinese about three
MARKS = 8  # tokens of a chat template around one message, at most
_GIVEN = 10  # given dialogues in a forecast's sample, at most
Who = tuple[str, str]  # role, model


@dataclass
class Load:
    """Calls, tokens and cost by role and model."""

    usage: dict[Who, Usage] = field(default_factory=dict)
    specs: dict[str, ModelSpec] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        return sum(usage.calls for usage in self.usage.values())

    @property
    def cost(self) -> float:
        """The cost by the prices in the specs; a model without a price costs nothing."""
        return sum(self.cost_of(who) for who in self.usage)

    def cost_of(self, who: Who) -> float:
        usage = self.usage[who]
        return cost(self.specs[who[1]], usage.prompt_tokens, usage.completion_tokens)

    def __add__(self, other: Load) -> Load:
        usage = {who: self.usage.get(who, Usage()) + used for who, used in other.usage.items()}
        return Load(self.usage | usage, self.specs | other.specs)

    def times(self, number: float) -> Load:
        """The load multiplied by a number, rounded to whole calls and tokens."""
        fields = ("calls", "prompt_tokens", "completion_tokens")
        usage = {who: Usage(**{name: round(getattr(u, name) * number) for name in fields}) for who, u in self.usage.items()}
        return Load(usage, self.specs)


class _StandIn(Load):
    """A client that answers with as many tokens as a model might, and adds them up. `path`: a tree's question → its answer."""

    path: Mapping[str, str] = {}  # never written into

    def __init__(self, longer: float = 1) -> None:
        super().__init__()
        self.longer = longer  # the length of a reply in usual lengths; infinite: up to its limit
        self.longest = Counter[str]()  # model → tokens of its longest request and reply together
        self.read = Counter[str]()  # model → tokens of its prompts that its cache does not have from the request before
        self._before: dict[Who, str] = {}

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        usual, count, who = REPLY.get(question.purpose, OTHER), counter(spec.checkpoint), (question.purpose, spec.name)
        tokens = int(min(question.held_tokens or usual * self.longer, question.sampling.max_tokens))
        prompt = sum(count(message["content"]) + MARKS for message in question.messages)
        self.specs[spec.name] = spec
        usage = Usage(calls=1, prompt_tokens=prompt, completion_tokens=tokens)
        self.usage[who] = self.usage.get(who, Usage()) + usage
        self.longest[spec.name] = max(self.longest[spec.name], prompt + tokens)
        text = "\n".join(message["content"] for message in question.messages)
        # All prompts of a judge begin with the same rules.
        before = self._before.get(who) or (question.messages[0]["content"] if question.purpose == "judge" else "")
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False)))
        self.read[spec.name] += count(text[same:])
        answer = self.path.get(str(question.sample.get("dimension")))
        if answer and answer in (question.choices or (answer,)):
            reply = answer if question.choices else f"ANSWER: {answer}"
        elif question.choices:
            reply = question.choices[0]
        else:
            reply = orjson.dumps(_least(question.schema)).decode() if question.schema else " ".join(["to"] * tokens)
        self._before[who] = f"{text}\n{reply}"
        return Reply(text=reply, finish_reason="stop")


def _least(schema: Mapping[str, Any]) -> Any:
    """A minimal answer that a judge's schema allows."""
    if "properties" in schema:
        return {name: _least(part) for name, part in schema["properties"].items()}
    return schema["enum"][0] if "enum" in schema else 1 if schema.get("type") in ("integer", "number") else "word"


async def load_of(job: Plan | Dialogue, judges: Sequence[DialogueFramework], longer: float = 1) -> _StandIn:
    """The load of a dialogue and its verdicts by each judge, at most: the seeker does not leave early, and no question is
    repeated. A given dialogue is only judged. Replies are `longer` than usual by this factor."""
    client = _StandIn(longer)
    dialogue = await hold(job, client) if isinstance(job, Plan) else job
    for resolved in judges:
        complete = dialogue if isinstance(job, Plan) else await resolved.completed(client, dialogue)
        if method_of(resolved.method).together:
            await _add_pairs(client, resolved, complete)
        else:
            client.path = longest_way(resolved.rubric.questions or {})
            await resolved.judge(client).score(complete)
    return client


def workloads(resolved: DialogueFramework, jobs: Iterable[Plan | Dialogue], score: bool) -> dict[str, Workload]:
    """Model → its workload from these dialogues, measured on a card of median length, on a long card with long replies, and on
    the longest card with replies up to their limit. Prompts are counted by the model's own tokenizer if it is on this machine;
    another model's reply is assumed to have equally many tokens."""

    def length(job: Plan | Dialogue) -> int:  # of its turns, or of both sides' instructions, in characters
        if isinstance(job, Dialogue):
            return sum(len(turn.text) for turn in job.turns)
        return sum(len(getattr(side, "system", None) or "") for side in (job.seeker_side, job.supporter_side))

    workloads: dict[str, Workload] = {}
    for group in group_by(list(jobs), _kind).values():
        by_length, judges = sorted(group, key=length), [resolved] if score else []
        usual, long, most = (
            asyncio.run(load_of(by_length[int(len(by_length) * place)], judges, longer))
            for place, longer in ((0.5, 1.0), (0.95, LONG), (1 - 1e-9, float("inf")))
        )
        for name in dict.fromkeys(name for _, name in usual.usage):
            roles = [role for role, other in usual.usage if other == name]
            written, kept = sum(usual.usage[role, name].completion_tokens for role in roles), roles != ["judge"]
            lengths = most.longest[name], long.longest[name]
            work = Workload(*lengths, len(group), read=usual.read[name], written=written, kept=kept)
            workloads[name] = workloads[name] + work if name in workloads else work
    return workloads


def stand_ins(resolved: DialogueFramework, specs: Sequence[ModelSpec]) -> list[str]:
    """Make a plan possible without the published prompts and cards: ours stand in for those that are not on this machine, with
    the cards repeated up to the paper's number. Returns a line on each substitution."""
    resolved.models.planned = True
    lacking = dict.fromkeys(pack for spec in specs for pack in spec.learnt if "/" in pack and not Path(pack).is_dir())
    lines = [f"{pack} is not here: planned with prompts of our own" for pack in lacking]
    paths = tuple(map(Path, getattr(resolved.config, "cards", ())))
    published = {f"card_high_{language}.json": language for language in PUBLISHED}
    if paths and all(path.name in published and not path.exists() for path in paths):
        resolved._read[paths] = []
        for language in (published[path.name] for path in paths):
            ours = itertools.cycle(load_cards(bundled_cards(language)))
            cards = [next(ours).model_copy(update={"id": f"{language}-{n}"}) for n in range(PUBLISHED[language])]
            resolved._read[paths] += cards
        names = ", ".join(map(str, paths))
        lines.append(f"{names} not here: planned with the published number of cards, of the bundled cards' length")
    return lines


@cache
def counter(checkpoint: str | None) -> Callable[[str], int]:
    """Counts a text's tokens, by the model's own tokenizer if it is on this machine and can be read, else by bytes."""
    from serve.checkpoints.places import tokenizer_folder

    folder = tokenizer_folder(checkpoint or "")
    if folder and (folder / "tokenizer.json").is_file() and importlib.util.find_spec("tokenizers"):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    return lambda text: -(-len(text.encode()) // BYTES_A_TOKEN)


async def _add_pairs(client: _StandIn, resolved: DialogueFramework, dialogue: Dialogue) -> None:
    """Add a dialogue's share of the answers on its pairs: one half, as the other half is the other dialogues'."""
    models = resolved.models
    others = [spec.name for spec in models.supporters if spec.name != dialogue.supporter] if models.tested else []
    among = [dialogue, *(dialogue.model_copy(update={"id": name, "supporter": name}) for name in others)]
    pairs = _StandIn(client.longer)
    await resolved.judge(pairs, among=among).score(dialogue)
    client.longest |= pairs.longest
    client.read.update({name: tokens // 2 for name, tokens in pairs.read.items()})
    both = client + pairs.times(0.5)
    client.usage, client.specs = both.usage, both.specs


def shares_of(
    jobs: Sequence[Plan | Dialogue], judges: Sequence[DialogueFramework], score: bool
) -> dict[str, tuple[Share, Share]]:
    """Dialogue id → its share of a budget with all verdicts, and the part of it that judges after the first one take."""

    def most(sample: Sequence[Plan | Dialogue], judges: Sequence[DialogueFramework]) -> Load:
        return max((asyncio.run(load_of(job, judges)) for job in sample), key=lambda load: (load.calls, load.cost))

    shares: dict[str, tuple[Share, Share]] = {}
    for group in group_by(jobs, _kind).values():
        total, first = most(_sample(group), judges if score else []), most(_sample(group), judges[:1] if score else [])
        later = Share(total.calls - first.calls, total.cost - first.cost)
        shares |= {job.id: (Share(total.calls, total.cost), later) for job in group}
    return shares


def _kind(job: Plan | Dialogue) -> tuple[str | None, str] | None:
    """Groups planned dialogues of about the same load by supporter and language. Given dialogues are one group."""
    return (job.opening.supporter, job.opening.language) if isinstance(job, Plan) else None


def _sample(jobs: Sequence[Plan | Dialogue]) -> Sequence[Plan | Dialogue]:
    """Jobs that represent their group: one that is planned, else an even selection."""
    return jobs[:1] if isinstance(jobs[0], Plan) and not jobs[0].spoken else jobs[:: -(-len(jobs) // _GIVEN)]


@dataclass(frozen=True)
class Forecast:
    """The load of a run, at most."""

    dialogues: int
    load: Load
    """Of the dialogues and their verdicts."""
    gold: Load
    """Of the gold set's verdicts."""

    @property
    def total(self) -> Load:
        return self.load + self.gold

    def reach(self, budget: Budget) -> list[str]:
        """A sentence on how far each limit of a budget reaches."""
        sentences = []
        for unit in ("calls", "cost"):
            limit, needed, total = getattr(budget, f"max_{unit}"), getattr(self.load, unit), getattr(self.total, unit)
            if limit is not None and needed:
                finished = min(int(limit * self.dialogues / needed), self.dialogues)
                gold = " and the gold set" if total > needed else ""
                reached = f"all{gold}" if total <= limit else f"about {finished:,} of {self.dialogues:,} dialogues"
                sentences.append(f"max_{unit} {limit:g} finishes and judges {reached}.")
        if budget.max_time is not None:
            sentences.append(f"How far max_time {budget.max_time:g} s reaches shows when the first dialogues are finished.")
        return sentences

    def table(self, budget: Budget) -> Table:
        """The load by role and model, with how far a budget reaches."""
        total, rows = self.total, list[tuple[Cell, ...]]()
        for role, model in sorted(total.usage):
            usage, spec = total.usage[role, model], total.specs[model]
            price = total.cost_of((role, model)) if spec.endpoint.price else None
            rows.append((role, model, usage.calls, usage.prompt_tokens, usage.completion_tokens, price))
        used = Usage.total(list(total.usage.values()))
        unpriced = sorted(name for name, spec in total.specs.items() if spec.endpoint.price is None and not spec.checkpoint)
        price = total.cost if not unpriced and any(spec.endpoint.price for spec in total.specs.values()) else None
        rows.append(("total", None, used.calls, used.prompt_tokens, used.completion_tokens, price))
        return Table(
            key="forecast",
            title=f"Calls, tokens and cost of {self.dialogues:,} dialogues",
            columns=("role", "model", "calls", "prompt tokens", "completion tokens", "cost"),
            rows=tuple(rows),
            notes=(
                f"An upper limit, as dialogues may end early; for seeker turns of {REPLY['seeker']} tokens and replies of "
                f"{REPLY['supporter']}. Retries, reasoning and the first questions to a server are not included. Answers that "
                "the folder has already are not asked for again.",
                *([f"No cost: the specs of {', '.join(unpriced)} have no endpoint.price."] if unpriced else []),
                *self.reach(budget),
            ),
        )


def forecast(jobs: Sequence[Plan | Dialogue], judges: Sequence[DialogueFramework]) -> Forecast:
    """The load of these dialogues, of the judges' verdicts on them and of those on the gold set. No model is asked."""

    def extrapolated(kind: Sequence[Plan | Dialogue], judges: Sequence[DialogueFramework]) -> Load:
        sample = _sample(kind)
        loads = (asyncio.run(load_of(job, judges)) for job in sample)
        return sum(loads, Load()).times(len(kind) / len(sample))

    gold = Load()
    for resolved in judges:
        if resolved.config.gold is not None:
            whole = resolved.judging_whole()
            dialogues = whole.shard.take(whole.gold[0]) if whole.shard else whole.gold[0]
            if dialogues:  # a shard may have no part of a small gold set
                gold += extrapolated(dialogues, [whole])
    load = sum((extrapolated(group, judges) for group in group_by(jobs, _kind).values()), Load())
    return Forecast(len(jobs), load, gold)
