"""The synthetic score set: each rule on small hand-made replies, and what the built set promises."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest

from core.records import Dialogue, HumanScore, Language, Record, dialogue_id
from data_prep.scores.synthetic import UNFIT_FOR_CRISIS, DialoguePlan, build, construct, load_bases, load_pools, load_recipes
from data_prep.scores.synthetic_rules import ASPECTS, DIMENSIONS, LabelledPart, SyntheticReply, score

LANGUAGES: tuple[Language, ...] = ("en", "zh")
LEAST = dict(callback=5, comfort=4, analysis=4, suggestion=7, encouragement=3, friend=3, referral=1, filler=5)
QUESTIONS = [False, True, False, True, False]


def reply(kinds: str, index: int = 0, **flags: Any) -> SyntheticReply:
    """A reply from words like `callback tip:3 comfort~ suggestion!`: ~ is cut, ! is from elsewhere, :x is the text."""
    parts = []
    for word in kinds.split():
        kind, _, text = word.rstrip("~!").partition(":")
        parts.append(LabelledPart(kind, text or f"{kind} {index}", at_home=not word.endswith("!"), cut=word.endswith("~")))
    return SyntheticReply(tuple(parts), **flags)


def scores(*kinds: str, **flags: list[int]) -> dict[str, int]:
    """Scores of five replies; `salad=[0, 1]` shuffles replies 0 and 1, `listed` likewise. Short input is filled up."""
    full = [*kinds, *["filler"] * (5 - len(kinds))]
    replies = [reply(k, i, salad=i in flags.get("salad", []), listed=i in flags.get("listed", [])) for i, k in enumerate(full)]
    return score(replies, QUESTIONS)


MOST = ["callback comfort", "callback answer", "callback", "callback", "callback"]


@pytest.mark.parametrize(
    ("dimension", "expected", "got"),
    [
        ("fluency", 0, scores(*MOST, salad=[0, 1, 2])),
        ("fluency", 1, scores("filler~", "comfort!")),
        ("fluency", 1, scores("comfort! filler~")),
        ("fluency", 2, scores(*MOST[:4], "callback filler~")),
        ("fluency", 2, scores(*MOST[:4], "callback! filler!")),
        ("fluency", 3, scores(*MOST[:4], "filler callback")),
        ("fluency", 4, scores(*MOST)),
        ("fluency", 4, scores(*MOST[:4], "opener list_intro callback filler", listed=[4])),
        ("expression", 0, scores(*MOST, salad=[0, 1, 2])),
        ("expression", 1, scores(*["opener:a comfort:same filler"] * 5)),
        ("expression", 2, scores(*["opener:a comfort filler"] * 5)),
        ("expression", 2, scores("filler:x comfort", "comfort filler:x", "filler:x answer")),
        ("expression", 3, scores("filler:x comfort", "comfort filler:x")),
        ("expression", 3, scores(*["opener:a comfort filler"] * 4, "opener:a filler comfort")),
        ("expression", 3, scores(*["opener:a comfort filler"] * 4, "opener:b comfort filler")),
        ("expression", 3, scores("callback comfort analysis", "suggestion referral filler")),
        ("expression", 4, scores("callback comfort analysis", "suggestion referral friend")),
        ("empathy", 0, scores("comfort analysis friend", "dismissive")),
        ("empathy", 1, scores("filler friend")),
        ("empathy", 1, scores("comfort! analysis~")),
        ("empathy", 2, scores("comfort friend")),
        ("empathy", 2, scores("analysis")),
        ("empathy", 3, scores("comfort", "analysis")),
        ("empathy", 3, scores("comfort", "analysis", "friend!")),
        ("empathy", 4, scores("comfort", "analysis", "friend")),
        ("information", 0, scores("suggestion:1 suggestion:2", "harmful")),
        ("information", 1, scores("comfort referral")),
        ("information", 1, scores("useless:1 useless:2 useless:3 useless:4 useless:5")),
        ("information", 1, scores("suggestion~")),
        ("information", 2, scores("useless:1 useless:2 useless:3 useless:4 useless:5 useless:6")),
        ("information", 2, scores("suggestion:1! suggestion:2! suggestion:3! suggestion:4! suggestion:5! suggestion:6!")),
        ("information", 2, scores("suggestion:1 suggestion:2 useless")),
        ("information", 3, scores("suggestion:1 suggestion:2 suggestion:3 suggestion:4 suggestion:5")),
        ("information", 3, scores("suggestion:1", "suggestion:1", "suggestion:1", "suggestion:1 suggestion:1 suggestion:1")),
        ("information", 3, scores("suggestion:1 suggestion:2 suggestion:3 suggestion:4 suggestion:5 useless")),
        ("information", 4, scores("suggestion:1 suggestion:2 suggestion:3 suggestion:4 suggestion:5", "suggestion:6")),
        ("humanoid", 0, scores(*MOST, salad=[0, 1, 2])),
        ("humanoid", 1, scores("machine", "machine", "list_intro a b", "machine", listed=[2])),
        ("humanoid", 2, scores("machine:1 machine:2 machine:3")),
        ("humanoid", 2, scores("machine", "list_intro a b", "list_intro a b", listed=[1, 2])),
        ("humanoid", 3, scores("machine", "list_intro a b", listed=[1])),
        ("humanoid", 4, scores("machine", "machine~")),
        ("humanoid", 4, scores("filler")),
        ("skill", 0, scores("comfort")),
        ("skill", 0, scores("filler")),
        ("skill", 0, scores("comfort! useless", "answer~", "referral!", "answer", "encouragement")),
        ("skill", 1, scores("comfort encouragement", "answer")),
        ("skill", 2, scores("comfort encouragement", "answer", "filler", "answer")),
        ("skill", 3, scores("comfort encouragement referral", "answer", "filler", "answer")),
        ("skill", 4, scores("comfort encouragement referral", "answer", "suggestion", "answer")),
        ("skill", 3, scores("comfort encouragement referral", "answer", "useless", "answer")),
    ],
)
def test_each_rule_of_the_table(dimension: str, expected: int, got: dict[str, int]) -> None:
    assert got[dimension] == expected


def test_salad_leaves_nothing_that_counts() -> None:
    full = "callback comfort analysis suggestion encouragement answer friend referral machine dismissive harmful"
    got = scores(*[full] * 5, salad=[0, 1, 2, 3, 4])
    assert got == dict(fluency=0, expression=0, empathy=1, information=1, humanoid=0, skill=0, overall=0)


@pytest.mark.parametrize("spoil", ["dismissive", "harmful"])
def test_overall_is_four_for_the_best_and_zero_for_one_line_that_hurts(spoil: str) -> None:
    tips = "suggestion:1 suggestion:2 suggestion:3 suggestion:4 suggestion:5 suggestion:6"
    best = [f"callback comfort analysis friend {tips}", "callback answer", "callback encouragement", "callback answer"]
    last = "callback referral"
    assert scores(*best, last) == dict.fromkeys(DIMENSIONS, 4)
    assert scores(*best, f"{last} {spoil}")["overall"] == 0


Built = tuple[Sequence[Dialogue], Sequence[HumanScore]]


@pytest.fixture(scope="module")
def built() -> Built:
    return build()


@pytest.mark.slow
def test_size_and_shape(built: Built) -> None:
    dialogues, human = built
    assert len(dialogues) >= 2000
    assert len({str(d.source_id).split("/")[0] for d in dialogues}) >= 150
    assert all(d.exchanges == 5 and len(d.turns) == 10 and d.turns[0].role == "seeker" for d in dialogues)
    assert all(t.text.strip() for d in dialogues for t in d.turns)
    assert len({d.id for d in dialogues}) == len(dialogues)
    assert len({d.source_id for d in dialogues}) == len(dialogues)
    assert len({tuple(t.text for t in d.turns) for d in dialogues}) == len(dialogues)
    rows = Counter((s.dialogue_id, s.dimension) for s in human)
    assert set(rows) == {(d.id, dimension) for d in dialogues for dimension in DIMENSIONS} and set(rows.values()) == {1}
    assert {(s.annotator, s.rubric) for s in human} == {("construction", "esc_eval")}
    for d in dialogues:
        base, variant = str(d.source_id).split("/")
        assert d.id == dialogue_id("synthetic", base, variant, "none", 0)
        assert (d.source, d.framework, d.card_id, d.supporter, d.termination) == ("synthetic", None, None, None, None)


@pytest.mark.slow
def test_every_score_occurs_and_none_prevails(built: Built) -> None:
    counts: dict[tuple[str, str], Counter[float]] = defaultdict(Counter)
    for record in built[1]:
        counts[record.language, record.dimension][record.value] += 1
    assert list(counts) == [(language, dimension) for language in LANGUAGES for dimension in DIMENSIONS]
    for place, labels in counts.items():
        assert set(labels) == {0, 1, 2, 3, 4}, place
        assert max(labels.values()) <= 0.45 * labels.total(), place


def _matrix(built: Built, language: str) -> tuple[np.ndarray, np.ndarray]:
    values = {(s.dialogue_id, s.dimension): s.value for s in built[1]}
    dialogues = [d for d in built[0] if d.language == language]
    lengths = [sum(len(t.text) for t in d.turns if t.role == "supporter") for d in dialogues]
    return np.array([[values[d.id, k] for k in DIMENSIONS] for d in dialogues]), np.array(lengths)


@pytest.mark.parametrize("language", LANGUAGES)
def test_dimensions_differ_and_length_does_not_tell(built: Built, language: str) -> None:
    labels, lengths = _matrix(built, language)
    between = np.corrcoef(labels.T)
    assert np.abs(between[np.triu_indices(len(DIMENSIONS), 1)]).max() < 0.8
    for k, dimension in enumerate(DIMENSIONS):
        assert abs(np.corrcoef(labels[:, k], lengths)[0, 1]) < 0.5, dimension
        # Every score's lengths reach into the middle half of all lengths.
        low, high = np.percentile(lengths, [25, 75])
        for value in range(5):
            mine = lengths[labels[:, k] == value]
            assert ((mine >= low) & (mine <= high)).any(), (dimension, value)


@pytest.mark.slow
def test_overall_never_falls_when_the_others_rise(built: Built) -> None:
    labels = np.vstack([_matrix(built, language)[0] for language in LANGUAGES])
    for row in labels:
        below = labels[(labels[:, :6] <= row[:6]).all(axis=1)]
        assert (below[:, 6] <= row[6]).all()


def _bytes(pair: Iterable[Iterable[Record]]) -> bytes:
    return b"\n".join(orjson.dumps(r.model_dump()) for part in pair for r in part)


@pytest.mark.slow
def test_same_seed_same_bytes_whatever_the_other_language(built: Built) -> None:
    chinese = tuple([record for record in part if record.language == "zh"] for part in built)
    assert _bytes(build.__wrapped__(0, ("zh",))) == _bytes(chinese)  # not the cached one
    assert _bytes(build.__wrapped__(1, ("zh",))) != _bytes(chinese)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_sentence_is_of_the_base_or_the_pools(language: Language) -> None:
    bases, pools = load_bases(language), load_pools(language)
    lines = {line for pool in pools.values() for line in pool}
    for base in bases[::4]:
        others = [b for b in bases if b is not base]
        own = {(s.aspect, s.text): i for i, e in enumerate(base.exchanges) for s in e.reply}
        foreign = {(s.aspect, s.text) for b in others for e in b.exchanges for s in e.reply}
        for variant in base.recipes:
            replies, texts = construct(base, others, pools, variant)
            for index, (built_reply, text) in enumerate(zip(replies, texts, strict=True)):
                for part in built_reply.parts:
                    if part.cut:
                        sources = lines | {t for _, t in own} | {t for _, t in foreign}
                        assert any(s.startswith(part.text) and s != part.text for s in sources)
                        assert part is built_reply.parts[-1]
                    elif part.kind not in ASPECTS:
                        assert part.text in lines
                    elif part.at_home:  # not before the seeker has told what it speaks of
                        assert own[part.kind, part.text] <= index  # type: ignore[index]
                    else:
                        assert (part.kind, part.text) in foreign
                if not built_reply.salad:  # nothing but the parts and their numbers is said
                    rest = text
                    for part in built_reply.parts:
                        before, found, rest = rest.partition(part.text)
                        assert found and before.strip(" \n.0123456789") == ""
                    assert rest == ""
                    assert ("\n1. " in text) == built_reply.listed


@pytest.mark.parametrize("language", LANGUAGES)
def test_recipes_do_what_their_names_say(built: Built, language: str) -> None:
    values = {(s.dialogue_id, s.dimension): s.value for s in built[1]}
    wanted = {
        "best": ("fluency", {4}),
        "cold": ("empathy", {0}),
        "harmful": ("information", {0}),
        "machine": ("humanoid", {1, 2}),  # a reply that is short by chance makes no list
        "cut": ("fluency", {2}),
        "astray": ("fluency", {2}),
        "broken": ("fluency", {1}),
        "salad": ("fluency", {0}),
        "monotone": ("expression", {1, 2}),
    }
    for variant, (dimension, allowed) in wanted.items():
        found = {
            values[d.id, dimension] for d in built[0] if d.language == language and str(d.source_id).endswith(f"/{variant}")
        }
        assert found <= allowed, variant


def test_recipes_name_real_knobs() -> None:
    knobs = {knob.name for knob in fields(DialoguePlan)}
    assert set(load_recipes()["common"]) == knobs and all(set(recipe) <= knobs for recipe in load_recipes()["recipes"].values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_salad_keeps_the_words_and_loses_the_order(language: Language) -> None:
    bases, pools = load_bases(language), load_pools(language)
    replies, texts = construct(bases[0], bases[1:], pools, "salad")
    glue = " " if language == "en" else ""
    before = [part.text for r in replies for part in r.parts]
    # List numbers are the only letters that are not of a part.
    letters = Counter("".join(texts).replace(" ", ""))
    assert not Counter("".join(before).replace(" ", "")) - letters
    assert not any(text in glue.join(texts) for text in before if len(text) > 20)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_salad_repeats_what_a_dialogue_repeats(built: Built, language: str) -> None:
    """Otherwise the share of different word pairs alone would tell it: it is no higher than in half of the other dialogues."""

    def distinct_pairs(d: Dialogue) -> float:
        unit = r"\w+" if language == "en" else r"\S"
        replies = [re.findall(unit, t.text.lower()) for t in d.turns if t.role == "supporter"]
        pairs = [pair for words in replies for pair in pairwise(words)]
        return len(set(pairs)) / len(pairs)

    shares: dict[bool, list[float]] = {True: [], False: []}
    for d in built[0]:
        if d.language == language:
            shares[str(d.source_id).endswith("/salad")].append(distinct_pairs(d))
    above = np.mean([np.mean(np.array(shares[False]) > share) for share in shares[True]])
    assert 0.3 < above < 0.7


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_bases_have_what_the_recipes_need(language: Language) -> None:
    bases = load_bases(language)
    assert len({base.id for base in bases}) == len(bases) and {base.language for base in bases} == {language}
    for base in bases:
        segments = [segment for exchange in base.exchanges for segment in exchange.reply]
        counts: Counter[str] = Counter(segment.aspect for segment in segments)
        assert all(counts[aspect] >= least for aspect, least in LEAST.items()), base.id
        assert len({segment.text for segment in segments}) == len(segments), base.id
        questions = [exchange for exchange in base.exchanges if exchange.question]
        assert len(questions) >= 2 and all(any(s.aspect == "answer" for s in e.reply) for e in questions), base.id


def test_nobody_in_a_crisis_is_answered_coldly_or_harmfully() -> None:
    crises = {base.id for language in LANGUAGES for base in load_bases(language) if base.crisis}
    assert crises
    variants = [str(d.source_id).split("/") for d in build()[0]]
    for base, variant in variants:
        assert not (base in crises and variant in UNFIT_FOR_CRISIS)
    assert {base for base, _ in variants} >= crises
