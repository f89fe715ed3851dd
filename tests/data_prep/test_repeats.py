"""Repeats: near duplicates against a brute-force oracle on random texts, and parts of other dialogues, whoever says them."""

import random
import re
from collections.abc import Sequence

import pytest

from data_prep.role_play.examples import near_duplicates, parts_of_others

EN = "the old ferry leaves harbour before dawn and nobody on board says a word until the lamp is lit again by the cook"
ZH = "渡船在天亮以前离开港口，船上没有一个人说话，直到厨师把那盏旧灯重新点亮，大家才喝上一口热茶。"


def shingles(text: str) -> set[tuple[str, ...]]:
    tokens = re.findall(r"[a-z0-9]+|[一-鿿]", text.lower())
    return {tuple(tokens[n : n + 3]) for n in range(max(1, len(tokens) - 2))}


def oracle(texts: Sequence[str], threshold: float) -> list[int | None]:
    """All pairs: the most similar kept text, the earliest among equals."""
    sets = [shingles(text) for text in texts]
    result: list[int | None] = []
    for own in sets:
        kept = [other for other, earlier in enumerate(result) if earlier is None]
        scored = [(len(own & sets[other]) / len(own | sets[other]), -other) for other in kept]
        score, other = max(scored, default=(0.0, 0))
        result.append(-other if score >= threshold else None)
    return result


def edited(text: str, glue: str, edits: int, rng: random.Random) -> str:
    parts = text.split(glue) if glue else list(text)
    for _ in range(edits):
        parts[rng.randrange(len(parts))] = rng.choice(["ferry", "otter", "lamp"] if glue else list("船灯茶云"))
    return glue.join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.7, 1.0])
@pytest.mark.parametrize(("base", "glue"), [(EN, " "), (ZH, "")], ids=["en", "zh"])
def test_agrees_with_comparing_all_pairs(base: str, glue: str, threshold: float) -> None:
    rng = random.Random(f"{base}/{threshold}")
    words = base.split(glue) if glue else list(base)
    bases = [glue.join(rng.choices(words, k=80)) for _ in range(8)]
    texts = [edited(rng.choice(bases), glue, rng.randrange(6), rng) for _ in range(60)]
    expected = oracle(texts, threshold)
    assert 5 <= sum(place is not None for place in expected) <= 55
    assert near_duplicates(texts, threshold) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], []),
        ([EN, ZH, EN.upper() + "!!", ZH.replace("，", "\n")], [None, None, 0, 1]),
        (["", "", "hello there", "Hello, there.", "你好", "你好"], [None, 0, None, 2, None, 4]),
        ([EN, ZH], [None, None]),
        (["one two three", "three two one"], [None, None]),
        (["ça va très bien merci", "Ça va, très bien, merci!"], [None, 0]),
    ],
)
def test_plain_cases(texts: list[str], expected: list[int | None]) -> None:
    assert near_duplicates(texts) == expected


def test_a_repeat_points_at_a_kept_text() -> None:
    """b is like a, c is like b but not like a: c is kept, because b is gone."""
    words = [f"w{n}" for n in range(60)]
    a, b, c = (" ".join(words[start : start + 50]) for start in (0, 5, 10))
    assert near_duplicates([a, b, c], 0.8) == [None, 0, None]


# --- parts of other dialogues; small talk in common is not enough

PIANO = ["Then we walk to the island.", "With the piano?", "Especially with the piano."]
SCENE = ["The harbour is frozen again.", *PIANO, "I see."]
OTHER = ["Nobody told the baker about the flood.", "He will notice when he opens it.", "I see.", "Poor man, poor bread."]


@pytest.mark.parametrize(
    ("dialogues", "expected"),
    [
        ([SCENE, OTHER], [None, None]),
        ([SCENE, SCENE[:2]], [None, 0]),
        ([SCENE[:2], SCENE], [1, None]),  # the whole is kept, wherever it stands
        ([SCENE, SCENE], [None, 0]),
        ([SCENE, [line.upper().replace(" ", "  ") for line in SCENE[1:4]]], [None, 0]),
        ([SCENE, [SCENE[0], *OTHER]], [None, None]),  # one line in common of many
        ([["好的，我这就去港口看看情况。", "嗯"], ["好的，我这就去港口看看情况！"]], [None, 0]),
        ([], []),
        ([[], ["Yes."], ["Yes."]], [None, None, None]),  # nothing to tell them apart by: exact duplicates are another step
    ],
)
def test_parts(dialogues: list[list[str]], expected: list[int | None]) -> None:
    assert parts_of_others(dialogues) == expected


def test_lines_that_everybody_says_do_not_count() -> None:
    opening = "Hello, how are you doing today?"
    dialogues = [[opening, f"My {word} broke down in the middle of the night."] for word in "abcdefghijklmnopqrstuvwxyz"]
    assert parts_of_others([*dialogues, [opening]])[-1] is None
