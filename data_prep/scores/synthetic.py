"""The bundled synthetic score set: dialogues whose seven scores are true by construction.

No human score set of ESC-Eval is published with its dialogues, so this one is assembled. `bundled/bases_*.jsonl` has seekers
with five turns, each with hand-written reply segments labelled by function; `bundled/pools_*.yaml` has lines that spoil a
reply. A recipe (`bundled/recipes.yaml`) picks, drops, repeats, cuts and swaps them, and `score` derives the scores from the
labels of the parts used (rules: `data_prep.scores.synthetic_rules`), never from the text. Neutral segments replace segment
classes that are left out, and every dialogue has a target length that is drawn independently of its scores, so that length
says little about them.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from core.files import read_jsonl
from core.languages import PAPER_LANGUAGES, words
from core.records import Dialogue, HumanScore, Language, Record, Turn, dialogue_id
from core.settings import load_yaml
from data_prep import BUNDLED
from data_prep.scores.human import human_score
from data_prep.scores.synthetic_rules import ASPECTS, Aspect, LabelledPart, SyntheticReply, score

Text = Annotated[str, Field(min_length=1)]


class Segment(Record):
    """One or two self-contained sentences of a reply, and their function for the seeker."""

    aspect: Aspect
    text: Text


class Exchange(Record):
    """A seeker turn, whether it asks the supporter a question, and the segments for a reply."""

    seeker: Text
    question: bool
    reply: Annotated[tuple[Segment, ...], Field(min_length=2)]


class SyntheticBase(Record):
    """The raw material of a seeker's dialogue: five exchanges (tests check how many segments each aspect needs)."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]
    language: Language
    category: Annotated[tuple[Text, ...], Field(min_length=3, max_length=3)]
    crisis: bool = False
    exchanges: Annotated[tuple[Exchange, ...], Field(min_length=5, max_length=5)]

    @property
    def recipes(self) -> list[str]:
        """The recipes for it. Nobody in a crisis (suicide risk) gets a cold or harmful answer, not even here."""
        return [name for name in load_recipes()["recipes"] if not (self.crisis and name in UNFIT_FOR_CRISIS)]


Pools = Mapping[str, Sequence[str]]  # lines for any dialogue in a language that spoil it or give it a stock form


@dataclass(frozen=True)
class DialoguePlan:
    """The values that a recipe drew for one dialogue (bundled/recipes.yaml explains the fields). Counts are upper limits: a
    dialogue with astray replies may have less material."""

    coherent: bool
    cut: int
    astray: int
    salad: int
    same_form: bool
    again: list[int]
    feeling: list[str]
    dismissive: int
    tips: list[int]  # of use, useless, harmful
    traces: list[int]  # machine phrases, listed replies
    extras: list[str]


UNFIT_FOR_CRISIS = frozenset({"cold", "harmful"})


@cache
def load_recipes() -> dict[str, Any]:
    """The lists that plans are drawn from, with equal probabilities: those of `recipes`, and `common` ones for the rest."""
    return load_yaml(BUNDLED / "recipes.yaml", "recipes of the synthetic score set")  # type: ignore[no-any-return]


# The preferred position of a kind in a reply; a random shift of up to `_PUSH` positions varies the order.
_RANK = {
    kind: rank
    for rank, names in enumerate(
        ("opener", "callback", "answer comfort dismissive filler", "analysis machine", "suggestion useless harmful", "referral")
    )
    for kind in names.split()
} | {"friend": 5, "encouragement": 5}
_PUSH = 3.0


@dataclass
class _Draft:
    """A dialogue under construction: parts per reply, and the unused material of its own replies."""

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
        """Put `count` different lines of a pool into as many different replies as possible."""
        places = self.rng.sample(where, len(where))
        for k, line in enumerate(self.rng.sample(lines, count)):
            self.parts[places[k % len(places)]].append(LabelledPart(kind, line))

    @property
    def length(self) -> int:
        return sum(len(p.text) for parts in self.parts for p in parts)


def _assemble(
    base: SyntheticBase, others: Sequence[SyntheticBase], pools: Pools, plan: DialoguePlan, rng: random.Random
) -> list[SyntheticReply]:
    draft = _Draft(base, plan, rng)
    astray = rng.sample(range(5), plan.astray)
    draft.home = [i for i in range(5) if i not in astray]
    draft.unused = {a: [(i, s) for i in draft.home for s in base.exchanges[i].reply if s.aspect == a] for a in ASPECTS}
    segments = [s for e in base.exchanges for s in e.reply]
    # The length is drawn independently of everything else: about 18 to 24 segments in five replies.
    target = rng.uniform(18, 24) * sum(len(s.text) for s in segments) / len(segments)

    for index in astray:
        other = rng.choice(others)
        first, *segments_left = sorted(rng.choice(other.exchanges).reply, key=lambda s: s.aspect != "callback")
        drawn = [first, *rng.sample(segments_left, min(len(segments_left), rng.randint(2, 3)))]
        draft.parts[index] = [LabelledPart(s.aspect, s.text, at_home=False) for s in drawn]
    for aspect in plan.feeling:
        draft.take(aspect, rng.randint(1, 2))
    draft.take("suggestion", plan.tips[0])
    if not plan.coherent:  # at least one reply has no callback to open it
        missing = rng.choice(draft.home)
        draft.unused["callback"] = [(i, s) for i, s in draft.unused["callback"] if i != missing]
    draft.take("callback", 5 if plan.coherent else rng.randint(1, 4))
    answers = len(draft.unused["answer"])
    draft.take("answer", answers if "answer" in plan.extras else rng.randrange(answers) if answers else 0)
    for aspect in ("encouragement", "referral"):
        draft.take(aspect, 1 if aspect in plan.extras else 0)
    draft.sprinkle("useless", pools["useless"], plan.tips[1], draft.home)
    draft.sprinkle("harmful", pools["harmful"], plan.tips[2], draft.home)
    draft.sprinkle("dismissive", pools["dismissive"], plan.dismissive, draft.home)
    draft.sprinkle("machine", pools["machine"], plan.traces[0], range(5))
    _repeat(draft)
    _pad(draft, target)
    return _order(draft, pools)


def _repeat(draft: _Draft) -> None:
    """Repeat segments, only in later replies: before, the seeker may not have mentioned what a segment refers to."""
    rng = draft.rng
    draft.take("filler", 1)  # so that there is something neutral to repeat
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
    """Fill the dialogue up to its length with neutral segments and more of the kinds that it already has."""
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
    plan, rng = draft.plan, draft.rng
    # Lists go to replies with enough parts and no machine phrase, so that traces spread over replies.
    by_fitness = sorted(
        rng.sample(range(5), 5), key=lambda i: (len(draft.parts[i]) < 3, any(p.kind == "machine" for p in draft.parts[i]))
    )
    listed, cut = by_fitness[: plan.traces[1]], rng.sample(range(5), plan.cut)
    opened = range(5) if plan.same_form else rng.sample(range(5), rng.randint(0, 4))
    # The same opener in up to four replies is no monotony yet, and keeps repeated words from revealing the score.
    openers = [rng.choice(pools["openers"])] * 5 if plan.same_form or rng.random() < 0.5 else rng.sample(pools["openers"], 5)
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
            parts.insert(lead, LabelledPart("list_intro", rng.choice(pools["list_intro"])))
        if index in cut:
            glue = words(draft.base.language).space
            pieces = _pieces(parts[-1].text, glue)
            kept = glue.join(pieces[: max(1, int(len(pieces) * rng.uniform(0.35, 0.65)))])
            parts[-1] = replace(parts[-1], text=kept.rstrip(" .,;:!?…，。；：！？、"), cut=True)
        replies.append(SyntheticReply(tuple(parts), listed=is_list))
    salad = rng.sample(range(5), plan.salad)
    return [replace(r, salad=i in salad) for i, r in enumerate(replies)]


def _pieces(text: str, glue: str) -> list[str]:
    """Words if the language separates them by spaces (`glue` is a space), otherwise pairs of characters."""
    return text.split() if glue else [text[i : i + 2] for i in range(0, len(text), 2)]


def _render(replies: Sequence[SyntheticReply], language: Language, rng: random.Random) -> list[str]:
    """The supporter turns as text. In salad replies the words of each part are shuffled; a repeated part is shuffled alike, so
    that repetitions remain and pairs of words do not reveal a salad."""
    glue = words(language).space
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


def load_bases(language: Language) -> list[SyntheticBase]:
    return read_jsonl(BUNDLED / f"bases_{language}.jsonl", SyntheticBase, "bases of the synthetic score set")


def load_pools(language: Language) -> Pools:
    return load_yaml(BUNDLED / f"pools_{language}.yaml", "pools of the synthetic score set")  # type: ignore[no-any-return]


def construct(
    base: SyntheticBase, others: Sequence[SyntheticBase], pools: Pools, variant: str, seed: int = 0
) -> tuple[list[SyntheticReply], list[str]]:
    """One variant of a base: its labelled replies and their texts. The same arguments give the same bytes."""
    rng = random.Random(f"{seed}/{base.id}/{variant}")
    values = load_recipes()["common"] | load_recipes()["recipes"][variant]
    plan = DialoguePlan(**{knob: rng.choice(choices) for knob, choices in values.items()})
    replies = _assemble(base, others, pools, plan, rng)
    return replies, _render(replies, base.language, rng)


@cache
def build(seed: int = 0, languages: tuple[Language, ...] = ("en", "zh")) -> tuple[tuple[Dialogue, ...], tuple[HumanScore, ...]]:
    """The score set: a dialogue of 5 exchanges for each base (en and zh only) and recipe, with 7 scores (0–4). `source_id` is
    `<base id>/<recipe>`, so that a split can keep the variants of a base together. Cached: it takes seconds."""
    dialogues: list[Dialogue] = []
    scores: list[HumanScore] = []
    for language in languages:
        if language not in PAPER_LANGUAGES:
            continue
        bases, pools = load_bases(language), load_pools(language)
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
    return tuple(dialogues), tuple(scores)
