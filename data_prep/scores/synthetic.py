"""The bundled synthetic score set: dialogues whose seven scores hold by construction.

No human score set of ESC-Eval is published with its dialogues, so this one is assembled. `bundled/bases_*.jsonl` holds
seekers in five turns, each with hand-written reply segments labelled by what they do; `bundled/pools_*.yaml` holds lines
that spoil a reply. A recipe picks, drops, repeats, cuts and swaps them, and `score` reads the scores off the labels of
what was put in. No rule measures text. A segment class that is left out is made up for by neutral segments, and every
dialogue aims at a length drawn without regard to its scores, so that length says little about them.

The rules are in `data_prep.scores.synthetic_rules`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from core.errors import UserError
from core.files import check_unique, read_jsonl
from core.records import Dialogue, HumanScore, Language, Record, Turn, dialogue_id
from core.yaml_files import read_yaml
from data_prep.bundled import BUNDLED
from data_prep.scores.human import human_score
from data_prep.scores.synthetic_rules import ASPECTS, Aspect, LabelledPart, SyntheticReply, score

LEAST = {
    "callback": 5,
    "comfort": 4,
    "analysis": 4,
    "suggestion": 7,
    "encouragement": 3,
    "friend": 3,
    "referral": 1,
    "filler": 5,
}
Text = Annotated[str, Field(min_length=1)]


class Segment(Record):
    """One or two sentences of a reply that stand by themselves, and what they do for the seeker."""

    aspect: Aspect
    text: Text


class Exchange(Record):
    """A seeker turn, whether it asks the supporter something, and the segments a reply to it can be made of."""

    seeker: Text
    question: bool
    reply: Annotated[tuple[Segment, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _answered(self) -> Exchange:
        if self.question and not any(s.aspect == "answer" for s in self.reply):
            raise ValueError("the seeker asks a question but no segment has the aspect answer")
        return self


class SyntheticBase(Record):
    """One seeker's dialogue as raw material: five exchanges with at least `LEAST` segments of each aspect in all."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]
    language: Language
    category: Annotated[tuple[Text, ...], Field(min_length=3, max_length=3)]
    crisis: bool = False
    exchanges: Annotated[tuple[Exchange, ...], Field(min_length=5, max_length=5)]

    @property
    def recipes(self) -> list[str]:
        """The recipes it goes through. Nobody in a crisis (suicide risk) is answered coldly or harmfully, not even here."""
        return [name for name in RECIPES if not (self.crisis and name in UNFIT_FOR_CRISIS)]

    @model_validator(mode="after")
    def _complete(self) -> SyntheticBase:
        segments = [s for e in self.exchanges for s in e.reply]
        counts: Counter[str] = Counter(s.aspect for s in segments)
        for aspect, least in LEAST.items():
            if counts[aspect] < least:
                raise ValueError(f"{self.id}: {counts[aspect]} {aspect} segments, at least {least} are needed")
        if sum(e.question for e in self.exchanges) < 2:
            raise ValueError(f"{self.id}: at least 2 seeker turns must ask a question")
        twice = [text for text, n in Counter(s.text for s in segments).items() if n > 1]
        if twice:
            raise ValueError(f"{self.id}: the same segment twice: {twice[0][:40]!r}")
        return self


class Pools(Record):
    """Lines that fit any dialogue of a language and spoil it, or give it a stock form."""

    machine: Annotated[tuple[Text, ...], Field(min_length=16)]
    dismissive: Annotated[tuple[Text, ...], Field(min_length=16)]
    harmful: Annotated[tuple[Text, ...], Field(min_length=12)]
    useless: Annotated[tuple[Text, ...], Field(min_length=24)]
    openers: Annotated[tuple[Text, ...], Field(min_length=6)]
    list_intro: Annotated[tuple[Text, ...], Field(min_length=6)]


@dataclass(frozen=True)
class DialoguePlan:
    """What a recipe drew for one dialogue. Counts are wishes: a dialogue with astray replies may hold less material."""

    coherent: bool  # every reply opens with its callback
    cut: int  # replies that break off
    astray: int  # replies from other bases
    salad: int  # replies that are shuffled
    same_form: bool
    again: tuple[int, ...]  # how many more times segments are said, one number a segment
    feeling: tuple[str, ...]  # which of comfort, analysis, friend are there
    dismissive: int
    tips: tuple[int, int, int]  # suggestions: of use, useless, harmful
    traces: tuple[int, int]  # machine phrases, listed replies
    extras: tuple[str, ...]  # which of encouragement, answer, referral are there


_FULL, _BOTH = ("comfort", "analysis", "friend"), ("comfort", "analysis")
_FEELINGS = (_FULL, _FULL, _BOTH, _BOTH, ("comfort",), ("analysis", "friend"), ("friend",), ())
_TIPS = ((7, 0, 0), (6, 0, 0), (4, 0, 0), (3, 0, 0), (5, 2, 0), (2, 2, 0), (3, 1, 0), (0, 8, 0), (0, 5, 0), (0, 0, 0))
_GOOD_TIPS = ((7, 0, 0), (6, 0, 0), (6, 0, 0), (6, 0, 0), (5, 2, 0))
_TRACES = ((0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (3, 0), (0, 3), (5, 0), (2, 3))
# What is said twice and what becomes a refrain overlap in the amount that is repeated, and differ in where.
_ONCE: tuple[tuple[int, ...], ...] = ((), (1, 1), (1, 1, 1), (1, 1, 1, 1))
_OFTEN: tuple[tuple[int, ...], ...] = ((2,), (2, 1), (3,), (2, 2))
_HOPE, _ANSWER, _REFER = "encouragement", "answer", "referral"
_EXTRAS = ((_HOPE, _ANSWER, _REFER), (_HOPE, _ANSWER), (_ANSWER, _REFER), (_HOPE, _REFER), (_ANSWER,), (_HOPE,), (_REFER,), ())
# What a recipe does not set is drawn from here; each value in a tuple is equally likely.
COMMON: dict[str, tuple[Any, ...]] = {
    "coherent": (True, False),
    "cut": (0,),
    "astray": (0,),
    "salad": (0,),
    "same_form": (True, False, False),
    "again": _ONCE + _OFTEN,
    "feeling": _FEELINGS,
    "dismissive": (0,),
    "tips": _TIPS,
    "traces": _TRACES,
    "extras": _EXTRAS,
}
_WARM: dict[str, tuple[Any, ...]] = {
    "feeling": (_FULL, _FULL, _BOTH),
    "traces": ((0, 0), (1, 0), (2, 0), (0, 2)),
    "tips": _GOOD_TIPS,
}
RECIPES: dict[str, dict[str, tuple[Any, ...]]] = {
    "best": _WARM
    | {"coherent": (True,), "feeling": (_FULL,), "same_form": (False,), "again": _ONCE, "extras": _EXTRAS[:1]}
    | {"traces": ((0, 0), (1, 0))},
    "warm": _WARM | {"same_form": (False,), "again": _ONCE, "extras": _EXTRAS[:4]},
    "coach": {"tips": _GOOD_TIPS, "feeling": _FEELINGS[4:6], "extras": _EXTRAS[:5]},
    "comforter": {"feeling": (_FULL, _BOTH), "tips": _TIPS[5:], "traces": ((0, 0), (1, 0), (2, 0))},
    "machine": {"traces": ((5, 0), (4, 0), (0, 5), (0, 4), (2, 3), (3, 2))},
    "monotone": {"same_form": (True,), "again": _ONCE[:2] + _OFTEN},
    "flat": {"feeling": _FEELINGS[6:], "tips": ((0, 8, 0), (0, 5, 0), (0, 5, 0)), "extras": _EXTRAS[4:]},
    "cut": {"cut": (2, 3, 4)},
    "astray": {"astray": (2, 3, 4)},
    "broken": {"cut": (2, 3, 4), "astray": (2, 3, 4)},
    "cold": {"dismissive": (1, 2, 3)},
    "harmful": {"tips": ((0, 0, 1), (3, 0, 2), (2, 2, 2), (5, 0, 1), (0, 3, 2))},
    "salad": {"salad": (5,)},
}
UNFIT_FOR_CRISIS = frozenset({"cold", "harmful"})


# Where a kind likes to stand in a reply; a random push of up to `_PUSH` places keeps orders different.
_RANK = {
    kind: rank
    for rank, names in enumerate(
        ("opener", "callback", "answer comfort dismissive filler", "analysis machine", "suggestion useless harmful", "referral")
    )
    for kind in names.split()
} | {"friend": 5, "encouragement": 5}
_PUSH = 3.0
_GLUE: dict[Language, str] = {"en": " ", "zh": ""}  # what stands between two sentences, and between two words


@dataclass
class _Draft:
    """A dialogue under construction: parts per reply, and the material of its own replies that is still unused."""

    base: SyntheticBase
    plan: DialoguePlan
    rng: random.Random
    parts: list[list[LabelledPart]] = field(default_factory=lambda: [[] for _ in range(5)])
    home: list[int] = field(default_factory=list)
    unused: dict[str, list[tuple[int, Segment]]] = field(default_factory=dict)

    def take(self, aspect: str, count: int) -> None:
        """Move up to `count` random unused segments of an aspect into their replies."""
        material = self.unused[aspect]
        self.rng.shuffle(material)
        for index, segment in material[:count]:
            self.parts[index].append(LabelledPart(aspect, segment.text))
        del material[:count]

    def sprinkle(self, kind: str, lines: Sequence[str], count: int, where: Sequence[int]) -> None:
        """Put `count` different lines of a pool into replies, in as many different ones as possible."""
        places = self.rng.sample(where, len(where))
        for k, line in enumerate(self.rng.sample(lines, count)):
            self.parts[places[k % len(places)]].append(LabelledPart(kind, line))

    @property
    def length(self) -> int:
        return sum(len(p.text) for parts in self.parts for p in parts)


def _assemble(
    base: SyntheticBase, others: Sequence[SyntheticBase], pools: Pools, plan: DialoguePlan, rng: random.Random
) -> list[SyntheticReply]:
    """Replies that follow a plan as far as the base's material allows."""
    draft = _Draft(base, plan, rng)
    astray = rng.sample(range(5), plan.astray)
    draft.home = [i for i in range(5) if i not in astray]
    draft.unused = {a: [(i, s) for i in draft.home for s in base.exchanges[i].reply if s.aspect == a] for a in ASPECTS}
    segments = [s for e in base.exchanges for s in e.reply]
    # The length is drawn before anything else about the dialogue is looked at; about 18 to 24 segments of five replies.
    target = rng.uniform(18, 24) * sum(len(s.text) for s in segments) / len(segments)

    for index in astray:
        other = rng.choice(others)
        first, *rest = sorted(rng.choice(other.exchanges).reply, key=lambda s: s.aspect != "callback")
        drawn = [first, *rng.sample(rest, min(len(rest), rng.randint(2, 3)))]
        draft.parts[index] = [LabelledPart(s.aspect, s.text, at_home=False) for s in drawn]
    for aspect in plan.feeling:
        draft.take(aspect, rng.randint(1, 2))
    draft.take("suggestion", plan.tips[0])
    if not plan.coherent:  # at least one reply has no callback to open with
        missing = rng.choice(draft.home)
        draft.unused["callback"] = [(i, s) for i, s in draft.unused["callback"] if i != missing]
    draft.take("callback", 5 if plan.coherent else rng.randint(1, 4))
    answers = len(draft.unused["answer"])
    draft.take("answer", answers if "answer" in plan.extras else rng.randrange(answers) if answers else 0)
    for aspect in ("encouragement", "referral"):
        draft.take(aspect, 1 if aspect in plan.extras else 0)
    draft.sprinkle("useless", pools.useless, plan.tips[1], draft.home)
    draft.sprinkle("harmful", pools.harmful, plan.tips[2], draft.home)
    draft.sprinkle("dismissive", pools.dismissive, plan.dismissive, draft.home)
    draft.sprinkle("machine", pools.machine, plan.traces[0], range(5))
    _repeat(draft)
    _pad(draft, target)
    return _order(draft, pools)


def _repeat(draft: _Draft) -> None:
    """Say segments again in later replies, as the plan has it.

    Only in later ones, since a seeker may not have told yet what a segment speaks of.
    """
    rng = draft.rng
    draft.take("filler", 1)  # so that there is something neutral to say again
    sayings = [
        (i, p) for i in draft.home for p in draft.parts[i] if p.kind not in ("callback", "answer", "machine", "dismissive")
    ]
    rng.shuffle(sayings)
    for count in draft.plan.again:
        fits = [(i, p) for i, p in sayings if sum(j > i for j in draft.home) >= count] or sayings
        if fits:
            index, part = rng.choice(fits)
            sayings.remove((index, part))
            later = [i for i in draft.home if i > index]
            for place in rng.sample(later, min(count, len(later))):
                draft.parts[place].append(part)


def _pad(draft: _Draft, target: float) -> None:
    """Bring the dialogue up to its length with neutral segments and more of what it has anyway."""
    plan, rng = draft.plan, draft.rng
    allowed = {"filler", *plan.feeling, *(set(plan.extras) - {"answer"})} | (set() if plan.coherent else {"callback"})
    spare = [(i, s) for a in sorted(allowed) for i, s in draft.unused[a]]
    rng.shuffle(spare)
    spare.sort(key=lambda item: len(draft.parts[item[0]]) >= 2)  # thin replies first
    for index, segment in spare:
        if draft.length >= target and len(draft.parts[index]) >= 2:
            continue
        draft.parts[index].append(LabelledPart(segment.aspect, segment.text))


def _order(draft: _Draft, pools: Pools) -> list[SyntheticReply]:
    """Put parts into an order, lay replies out as lists, cut them off."""
    plan, rng = draft.plan, draft.rng
    # Lists go where there is enough to list and no machine phrase, so that traces spread over replies.
    by_fitness = sorted(
        rng.sample(range(5), 5), key=lambda i: (len(draft.parts[i]) < 3, any(p.kind == "machine" for p in draft.parts[i]))
    )
    listed, cut = by_fitness[: plan.traces[1]], rng.sample(range(5), plan.cut)
    opened = range(5) if plan.same_form else rng.sample(range(5), rng.randint(0, 4))
    # One opener in up to four replies is still no monotony, and keeps repeated words from telling the score.
    openers = [rng.choice(pools.openers)] * 5 if plan.same_form or rng.random() < 0.5 else rng.sample(pools.openers, 5)
    fixed = {kind: rank + rng.uniform(0, _PUSH) for kind, rank in _RANK.items()}
    replies = []
    for index, parts in enumerate(draft.parts):
        rng.shuffle(parts)
        keys = fixed if plan.same_form else {kind: rank + rng.uniform(0, _PUSH) for kind, rank in _RANK.items()}
        if plan.coherent:
            keys = keys | {"callback": -1.0}
        parts.sort(key=lambda p, keys=keys: keys[p.kind])  # type: ignore[misc]
        lead = 1 if parts[0].kind == "callback" else 0
        if index in opened:
            parts.insert(0, LabelledPart("opener", openers[index]))
            lead += 1
        is_list = index in listed and len(parts) - lead >= 2
        if is_list:
            parts.insert(lead, LabelledPart("list_intro", rng.choice(pools.list_intro)))
        if index in cut:
            parts[-1] = replace(
                parts[-1], text=_cut(parts[-1].text, rng.uniform(0.35, 0.65), _GLUE[draft.base.language]), cut=True
            )
        replies.append(SyntheticReply(tuple(parts), listed=is_list))
    salad = rng.sample(range(5), plan.salad)
    return [replace(r, salad=i in salad) for i, r in enumerate(replies)]


def _pieces(text: str, glue: str) -> list[str]:
    """Words where the language puts spaces between them (`glue` is a space), otherwise pairs of characters."""
    return text.split() if glue else [text[i : i + 2] for i in range(0, len(text), 2)]


def _cut(text: str, share: float, glue: str) -> str:
    """The first part of a text, broken off between two words and without closing punctuation."""
    words = _pieces(text, glue)
    return glue.join(words[: max(1, int(len(words) * share))]).rstrip(" .,;:!?…，。；：！？、")


def _render(replies: Sequence[SyntheticReply], language: Language, rng: random.Random) -> list[str]:
    """The supporter turns as text. In salad replies the words of each part are shuffled.

    A part said again is shuffled alike, so that what repeats in a dialogue still does, and pairs of words tell no salad.
    """
    glue = _GLUE[language]
    salads: dict[str, str] = {}

    def text(part: LabelledPart, salad: bool) -> str:
        if not salad:
            return part.text
        if part.text not in salads:
            pieces = _pieces(part.text, glue)
            salads[part.text] = glue.join(rng.sample(pieces, len(pieces)))
        return salads[part.text]

    texts = []
    for reply in replies:
        parts = [text(part, reply.salad) for part in reply.parts]
        intro = next((i for i, p in enumerate(reply.parts) if p.kind == "list_intro"), len(reply.parts))
        prose = glue.join(parts[: intro + 1])
        texts.append("\n".join([prose, *(f"{n}. {part}" for n, part in enumerate(parts[intro + 1 :], start=1))]))
    return texts


def load_bases(language: Language, folder: Path = BUNDLED) -> list[SyntheticBase]:
    """The bases of a language; `UserError` with file, line and field where one is unfit."""
    path = folder / f"bases_{language}.jsonl"
    bases = read_jsonl(path, SyntheticBase, "bases of the synthetic score set")
    check_unique(path, (b.id for b in bases), "base id")
    wrong = [b.id for b in bases if b.language != language]
    if wrong:
        raise UserError(f"{path}: base {wrong[0]}: language is not {language}; move it to the file of its language")
    if len(bases) < 2:
        raise UserError(f"{path}: at least 2 bases are needed, since astray replies come from another one")
    return bases


def load_pools(language: Language, folder: Path = BUNDLED) -> Pools:
    """The pools of a language; `UserError` with file, line and field where the file is unfit."""
    return read_yaml(folder / f"pools_{language}.yaml", Pools, "pools of the synthetic score set")


def construct(
    base: SyntheticBase, others: Sequence[SyntheticBase], pools: Pools, variant: str, seed: int = 0
) -> tuple[list[SyntheticReply], list[str]]:
    """One variant of a base: its labelled replies and their texts. The same arguments give the same bytes."""
    rng = random.Random(f"{seed}/{base.id}/{variant}")
    plan = DialoguePlan(**{knob: rng.choice(values) for knob, values in (COMMON | RECIPES[variant]).items()})
    replies = _assemble(base, others, pools, plan, rng)
    return replies, _render(replies, base.language, rng)


def build(
    seed: int = 0, languages: Sequence[Language] = ("en", "zh"), folder: Path = BUNDLED
) -> tuple[list[Dialogue], list[HumanScore]]:
    """The score set: one dialogue of 5 exchanges for each base and recipe, and 7 scores (0–4) for each dialogue.

    `source_id` is `<base id>/<recipe>`, so that a split can keep the variants of one base together. Raises `UserError` for
    unfit bases or pools.
    """
    dialogues: list[Dialogue] = []
    scores: list[HumanScore] = []
    for language in languages:
        bases, pools = load_bases(language, folder), load_pools(language, folder)
        for base in bases:
            others = [b for b in bases if b.id != base.id]
            for variant in base.recipes:
                replies, texts = construct(base, others, pools, variant, seed)
                turns = [
                    turn
                    for exchange, text in zip(base.exchanges, texts, strict=True)
                    for turn in (Turn(role="seeker", text=exchange.seeker), Turn(role="supporter", text=text))
                ]
                name, source_id = dialogue_id("synthetic", base.id, variant, "none", 0), f"{base.id}/{variant}"
                dialogue = Dialogue(id=name, language=language, source="synthetic", source_id=source_id, turns=tuple(turns))
                dialogues.append(dialogue)
                for dimension, value in score(replies, [e.question for e in base.exchanges]).items():
                    scores.append(human_score(dialogue, "construction", "esc_eval", dimension, value))
    return dialogues, scores


@cache
def whole(languages: tuple[Language, ...] = ("en", "zh")) -> tuple[tuple[Dialogue, ...], tuple[HumanScore, ...]]:
    """The bundled score set as `build` makes it, made once a process: it takes seconds."""
    dialogues, scores = build(languages=languages)
    return tuple(dialogues), tuple(scores)
