"""Corpus items become training dialogues: who is trained, what it is told, and where a dialogue is cut."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from core.files import write_jsonl
from core.prompts import greeting, load_pack, opening
from core.records import Dialogue, Language, Line, RoleCard, RolePlay, SupportDialogue, Turn
from data_prep.role_play.examples import Draft, fit, near_duplicates, parts_of_others, role_play_draft, support_draft
from evalsuite.dialogues.hold import ModelSide
from evalsuite.papers.esc_eval import EscEval, EscEvalConfig

PROMPTS, GENERAL = load_pack("esc_eval"), load_pack("role_play")


def card(language: Language = "en") -> RoleCard:
    return RoleCard(id="c", language=language, age="40", problem="The bakery closes.", source="s", card_method="written")


def support(*turns: tuple[str, str], language: Language = "en") -> SupportDialogue:
    said = tuple(Turn.model_validate({"role": role, "text": text}) for role, text in turns)
    return SupportDialogue(dialogue=Dialogue(id="d", language=language, source="s", source_id="1", turns=said))


def roles(draft: Draft) -> list[str]:
    return [message["role"] for message in draft.messages]


def test_the_seeker_is_trained_and_answers_the_simulations_greeting() -> None:
    draft = support_draft(support(("seeker", "Hi."), ("supporter", "Hello."), ("seeker", "It closes.")), card(), PROMPTS)
    assert draft.messages == [
        {"role": "user", "content": greeting(PROMPTS, "en")},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "It closes."},
    ]
    assert draft.turns == 3 and draft.text == "Hi.\nHello.\nIt closes."  # the greeting is not the corpus's


def test_no_greeting_where_the_supporter_opens() -> None:
    draft = support_draft(support(("supporter", "Hello."), ("seeker", "Hi.")), card(), PROMPTS)
    assert roles(draft) == ["user", "assistant"] and draft.turns == 2


def test_what_nobody_answers_is_left_out() -> None:
    draft = support_draft(support(("supporter", "A"), ("seeker", "B"), ("supporter", "C")), card(), PROMPTS)
    assert [m["content"] for m in draft.messages] == ["A", "B"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_system_message_is_the_one_that_simulation_sends(language: Language, tmp_path: Path) -> None:
    draft = support_draft(support(("supporter", "A"), ("seeker", "B"), language=language), card(language), PROMPTS)

    write_jsonl(tmp_path / "cards.jsonl", [card(language)])
    models: dict[str, Any] = {"seeker": "embedded", "supporters": ["embedded"], "judge": "embedded"}
    (plan,) = EscEval(EscEvalConfig(**models, cards=[str(tmp_path / "cards.jsonl")], out="unused")).plans()
    assert isinstance(plan.seeker_side, ModelSide)
    assert draft.system["content"] == plan.seeker_side.system
    assert "The bakery closes." in draft.system["content"]


def play(*lines: tuple[str, str, str]) -> RolePlay:
    said = tuple(Line.model_validate({"role": role, "name": name, "text": text}) for role, name, text in lines)
    return RolePlay(id="r", language="en", source="s", source_id="1", character="Ada", persona="A smith.", lines=said)


def test_partners_are_named_only_where_there_are_several() -> None:
    one = role_play_draft(play(("partner", "Bo", "Hello"), ("character", "Ada", "Hm.")), GENERAL)
    assert one.messages[0]["content"] == "Hello"
    two = role_play_draft(
        play(("partner", "Bo", "Hello"), ("partner", "Cy", "And me"), ("character", "Ada", "Hm."), ("character", "Ada", "Go.")),
        GENERAL,
    )
    assert [m["content"] for m in two.messages] == ["Bo: Hello\nCy: And me", "Hm.\nGo."]
    assert "Ada" in two.system["content"] and "A smith." in two.system["content"]


def test_a_character_that_opens_gets_an_opening() -> None:
    draft = role_play_draft(
        play(("character", "Ada", "You there!"), ("partner", "Bo", "Me?"), ("character", "Ada", "You.")), GENERAL
    )
    assert draft.messages[0] == {"role": "user", "content": opening(GENERAL, "en")} and draft.turns == 3


@pytest.mark.parametrize(
    ("limit", "kept", "tokens", "cut"),
    [(100, 4, 55, False), (55, 4, 55, False), (54, 2, 33, True), (33, 2, 33, True), (32, 0, 0, True)],
)
def test_whole_exchanges_are_cut_off_the_end(limit: int, kept: int, tokens: int, cut: bool) -> None:
    draft = support_draft(support(("supporter", "A"), ("seeker", "B"), ("supporter", "C"), ("seeker", "D")), card(), PROMPTS)
    assert fit(draft, 10, [11, 12, 11, 11], limit) is cut
    assert len(draft.messages) == kept and draft.tokens == tokens
    assert not draft.messages or draft.messages[-1]["role"] == "assistant"


# --- repetitions ------------------------------------------------------------------------------------------------------------

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
