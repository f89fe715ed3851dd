"""What a run will ask, before it asks: calls, tokens, cost, how far a budget reaches, and what its servers must hold."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from core.grouping import group_by
from core.records import Dialogue, Usage
from core.specs import ModelSpec
from core.tables import Cell, Table
from core.trees import longest_way
from data_prep.cards import PUBLISHED, bundled_cards, load_cards
from evalsuite.dialogues.hold import Plan, hold
from evalsuite.judge.methods import method_of
from evalsuite.runs.dialogue_framework import DialogueFramework
from serve.answers import Reply
from serve.budget import Budget, Share, cost
from serve.questions import Question
from serve.units import Workload

# Tokens that a reply is taken to have where its limit lets it. In ESC-Eval's published sample (12 dialogues, two supporters)
# they are 45 and 230 in the mean, counted by bytes, and the longest dialogue has 1.6 times the mean.
REPLY = {"seeker": 40, "supporter": 200}
OTHER = 100  # of any other reply
LONG = 1.5  # how much longer they are in a long dialogue, of the 95th percentile
BYTES_A_TOKEN = 3  # without a tokenizer here: UTF-8, English has about four, Chinese about three
MARKS = 8  # tokens of a chat template around one message, at most
_GIVEN = 10  # given dialogues that a forecast for all of them is made from
Who = tuple[str, str]  # role, model


@dataclass
class Load:
    """What work takes, by who is asked."""

    usage: dict[Who, Usage] = field(default_factory=dict)
    specs: dict[str, ModelSpec] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        return sum(usage.calls for usage in self.usage.values())

    @property
    def cost(self) -> float:
        """By the specs' prices; what has none costs nothing."""
        return sum(self.cost_of(who) for who in self.usage)

    def cost_of(self, who: Who) -> float:
        usage = self.usage[who]
        return cost(self.specs[who[1]], usage.prompt_tokens, usage.completion_tokens)

    @property
    def share(self) -> Share:
        """The same as a share of a budget."""
        return Share(self.calls, self.cost)

    def __add__(self, other: Load) -> Load:
        both: dict[Who, list[Usage]] = defaultdict(list)
        for one in (self, other):
            for who, usage in one.usage.items():
                both[who].append(usage)
        return Load({who: Usage.total(usages) for who, usages in both.items()}, self.specs | other.specs)

    def times(self, number: float) -> Load:
        """So many times as much."""
        fields = ("calls", "prompt_tokens", "completion_tokens")
        usage = {who: Usage(**{name: round(getattr(one, name) * number) for name in fields}) for who, one in self.usage.items()}
        return Load(usage, self.specs)


class _Stand(Load):
    """Answers every question with as many tokens as a model might, and counts. `way`: the answers to a tree's questions."""

    way: Mapping[str, str] = {}  # never written into

    def __init__(self, longer: float = 1) -> None:
        super().__init__()
        self.longer = longer  # than the usual reply; infinite: as long as it may be
        self.longest = Counter[str]()  # tokens of a model's longest request and reply together
        self.read = Counter[str]()  # tokens of its prompts that are not in its cache from the one before
        self._before: dict[Who, str] = {}

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        usual, count, who = REPLY.get(question.purpose, OTHER), counter(spec), (question.purpose, spec.name)
        tokens = int(min(question.held_tokens or usual * self.longer, question.sampling.max_tokens))
        prompt = sum(count(message["content"]) + MARKS for message in question.messages)
        usage = Usage(calls=1, prompt_tokens=prompt, completion_tokens=tokens)
        self.specs[spec.name] = spec
        self.usage[who] = Usage.total([*([self.usage[who]] if who in self.usage else []), usage])
        self.longest[spec.name] = max(self.longest[spec.name], prompt + tokens)
        text = "\n".join(message["content"] for message in question.messages)
        before = self._before.get(who) or (question.messages[0]["content"] if question.purpose == "judge" else "")  # its rules
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False)))
        self.read[spec.name] += count(text[same:])
        if (named := self.way.get(str(question.sample.get("dimension")))) and named in (question.choices or (named,)):
            reply = named if question.choices else f"ANSWER: {named}"
        elif question.choices:
            reply = question.choices[0]
        else:
            reply = orjson.dumps(_least(question.schema)).decode() if question.schema else " ".join(["to"] * tokens)
        self._before[who] = f"{text}\n{reply}"
        return Reply(text=reply, finish_reason="stop")


def _least(schema: Mapping[str, Any]) -> Any:
    """An answer that a judge's schema allows."""
    if "properties" in schema:
        return {name: _least(part) for name, part in schema["properties"].items()}
    return schema["enum"][0] if "enum" in schema else 1 if schema.get("type") in ("integer", "number") else "word"


async def load_of(job: Plan | Dialogue, judges: Sequence[DialogueFramework], longer: float = 1) -> _Stand:
    """What a dialogue and its verdicts by each judge take at most: the seeker does not leave early, and nothing is asked twice.
    A given dialogue is only judged."""
    stand = _Stand(longer)
    dialogue = await hold(job, stand) if isinstance(job, Plan) else job
    for of in judges:
        complete = dialogue if isinstance(job, Plan) else await of.completed(stand, dialogue)
        if method_of(of.method).together:
            await _beside_others(stand, of, complete)
        else:
            stand.way = longest_way(of.rubric.questions or {})
            await of.judge(stand).score(complete)
    return stand


def workloads(of: DialogueFramework, jobs: Iterable[Plan | Dialogue], score: bool) -> dict[str, Workload]:
    """Model → what it is asked about these dialogues: on a card of usual length, on a long one with long replies, and on the
    longest with replies as long as they may be. Prompts are counted by the model's own tokenizer where it is on this machine;
    what one model wrote is counted as long for another."""
    found: dict[str, Workload] = {}
    for group in group_by(list(jobs), _alike).values():
        told, judges = sorted(group, key=_told), [of] if score else []
        usual, long, most = (
            asyncio.run(load_of(told[int(len(told) * place)], judges, longer))
            for place, longer in ((0.5, 1.0), (0.95, LONG), (1 - 1e-9, float("inf")))
        )
        for name in dict.fromkeys(name for _, name in usual.usage):
            roles = [role for role, other in usual.usage if other == name]
            written, kept = sum(usual.usage[role, name].completion_tokens for role in roles), roles != ["judge"]
            lengths = most.longest[name], long.longest[name]
            work = Workload(*lengths, len(told), read=usual.read[name], written=written, kept=kept)
            found[name] = found[name] + work if name in found else work
    return found


def stand_ins(of: DialogueFramework, specs: Sequence[ModelSpec]) -> list[str]:
    """Let a plan be made without published prompts and cards that are not on this machine: ours stand in for them, the cards
    repeated until they are as many as the paper's. Returns what stands in for what."""
    of.models.planned = True
    lacking = dict.fromkeys(pack for spec in specs for pack in spec.learnt if "/" in pack and not Path(pack).is_dir())
    told = [f"{pack} is not here: planned with prompts of our own" for pack in lacking]
    paths = tuple(map(Path, getattr(of.config, "cards", ())))
    published = {f"card_high_{language}.json": language for language in PUBLISHED}
    missing = [path for path in paths if not path.exists()]
    if missing == [*paths] and all(path.name in published for path in missing) and missing:
        of._read[paths] = []
        for language in (published[path.name] for path in paths):
            ours = itertools.cycle(load_cards(bundled_cards(language)))
            of._read[paths] += [next(ours).model_copy(update={"id": f"{language}-{n}"}) for n in range(PUBLISHED[language])]
        names = ", ".join(map(str, missing))
        told.append(f"{names} not here: planned with as many cards as they hold, as long as the bundled ones")
    return told


def _told(job: Plan | Dialogue) -> int:
    """The length of what is read before anything new is said."""
    if isinstance(job, Dialogue):
        return sum(len(turn.text) for turn in job.turns)
    return sum(len(getattr(side, "system", None) or "") for side in (job.seeker_side, job.supporter_side))


def counter(spec: ModelSpec) -> Callable[[str], int]:
    """Counts a text's tokens, by the model's own tokenizer where it is on this machine and can be read."""
    return _counter(spec.checkpoint or "")


@cache
def _counter(place: str) -> Callable[[str], int]:
    from serve.checkpoints.places import tokenizer_folder

    folder = tokenizer_folder(place)
    if folder and (folder / "tokenizer.json").is_file() and importlib.util.find_spec("tokenizers"):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    return lambda text: -(-len(text.encode()) // BYTES_A_TOKEN)


async def _beside_others(stand: _Stand, of: DialogueFramework, dialogue: Dialogue) -> None:
    """Count what a dialogue takes of the answers on its pairs: half, the rest is the other dialogues'."""
    others = [spec.name for spec in of.models.supporters if spec.name != dialogue.supporter] if of.models.tested else []
    among = [dialogue, *(dialogue.model_copy(update={"id": name, "supporter": name}) for name in others)]
    pairs = _Stand(stand.longer)
    await of.judge(pairs, among=among).score(dialogue)
    stand.longest |= pairs.longest
    stand.read.update({name: tokens // 2 for name, tokens in pairs.read.items()})
    for who, usage in pairs.times(0.5).usage.items():
        stand.specs |= pairs.specs
        stand.usage[who] = stand.usage.get(who, Usage()) + usage


def shares_of(
    jobs: Sequence[Plan | Dialogue], judges: Sequence[DialogueFramework], score: bool
) -> dict[str, tuple[Share, Share]]:
    """Dialogue id → what it takes of a budget with all verdicts, and what of that judges after the first take."""
    shares: dict[str, tuple[Share, Share]] = {}
    for group in group_by(jobs, _alike).values():
        some, wanted = _some(group), judges if score else []
        every = max((asyncio.run(load_of(job, wanted)) for job in some), key=lambda load: (load.calls, load.cost))
        first = max((asyncio.run(load_of(job, wanted[:1])) for job in some), key=lambda load: (load.calls, load.cost))
        later = Share(every.calls - first.calls, every.cost - first.cost)
        shares |= {job.id: (every.share, later) for job in group}
    return shares


def _alike(job: Plan | Dialogue) -> tuple[str | None, str] | None:
    """Planned dialogues that take much the same have the same; given ones, and those that have begun, are of any length."""
    return (job.opening.supporter, job.opening.language) if isinstance(job, Plan) else None


def _some(jobs: Sequence[Plan | Dialogue]) -> Sequence[Plan | Dialogue]:
    """Of jobs that are alike, those that speak for all."""
    return jobs[:1] if isinstance(jobs[0], Plan) and not jobs[0].spoken else jobs[:: -(-len(jobs) // _GIVEN)]


@dataclass(frozen=True)
class Forecast:
    """What a run will ask at most."""

    dialogues: int
    held: Load
    """Of the dialogues and their verdicts."""
    gold: Load
    """Of the gold set's."""

    @property
    def total(self) -> Load:
        return self.held + self.gold

    def reach(self, budget: Budget) -> list[str]:
        """How far each limit of a budget gets, a sentence each."""
        limits: list[tuple[str, float | None, float, float]] = [
            ("max_calls", budget.max_calls, self.held.calls, self.total.calls),
            ("max_cost", budget.max_cost, self.held.cost, self.total.cost),
        ]
        told = []
        for option, limit, held, total in limits:
            if limit is None or not held:
                continue
            finished = min(int(limit * self.dialogues / held), self.dialogues)
            rest = " and the gold set" if total > held else ""
            reached = f"all{rest}" if total <= limit else f"about {finished:,} of {self.dialogues:,} dialogues"
            told.append(f"{option} {limit:g} finishes and judges {reached}.")
        if budget.max_time is not None:
            told.append(f"max_time {budget.max_time:g} s: how far that gets shows when the first dialogues are finished.")
        return told

    def table(self, budget: Budget) -> Table:
        """By role and model, with what a budget reaches."""
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
            title=f"What will be asked: {self.dialogues:,} dialogues",
            columns=("role", "model", "calls", "prompt tokens", "completion tokens", "cost"),
            rows=tuple(rows),
            notes=(
                f"At most, with lines of {REPLY['seeker']} tokens and replies of {REPLY['supporter']}: dialogues may end "
                "early. Calls made again, reasoning and the first questions to a server come on top. What the folder holds "
                "already is not asked again.",
                *([f"No endpoint.price in the specs of {', '.join(unpriced)}."] if unpriced else []),
                *self.reach(budget),
            ),
        )


def forecast(jobs: Sequence[Plan | Dialogue], judges: Sequence[DialogueFramework]) -> Forecast:
    """What these dialogues and the judges' verdicts take. Nothing is asked."""
    return asyncio.run(_forecast(jobs, judges))


async def _forecast(jobs: Sequence[Plan | Dialogue], judges: Sequence[DialogueFramework]) -> Forecast:
    held = Load()
    for group in group_by(jobs, _alike).values():
        held += await _of_all(group, judges)
    gold = Load()
    for of in judges:
        if of.config.gold is not None:
            whole = of.judging_whole()
            dialogues = whole.gold[0]
            if (
                dialogues := whole.shard.take(dialogues) if whole.shard else dialogues
            ):  # a small gold set leaves some shards without any
                gold += await _of_all(dialogues, [whole])
    return Forecast(len(jobs), held, gold)


async def _of_all(jobs: Sequence[Plan | Dialogue], judges: Sequence[DialogueFramework]) -> Load:
    """What these take, who are much alike."""
    some, load = _some(jobs), Load()
    for job in some:
        load += await load_of(job, judges)
    return load.times(len(jobs) / len(some))
