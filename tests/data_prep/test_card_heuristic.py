"""Cards without a model: which situations make one, what is read out of them, and what never is."""

from typing import Any

import pytest

from core.ledger import BuildStep
from core.records import Dialogue, Language, Post, RoleCard, SupportDialogue, Turn
from data_prep.cards.heuristic import (
    FEELING_ONLY,
    NO_SITUATION,
    TOO_SHORT,
    card_id,
    heuristic_card,
    stated_age,
    stated_gender,
    unfit,
)


def dialogue(source_id: str, situation: str, language: Language = "en", **fields: Any) -> SupportDialogue:
    """A support dialogue whose turns say what no heuristic card may take up."""
    turns = (Turn(role="seeker", text="I am a 71 year old man and a zookeeper."), Turn(role="supporter", text="Go on."))
    inner = Dialogue(id=f"made-{source_id}", language=language, source="made", source_id=source_id, turns=turns)
    return SupportDialogue(dialogue=inner, situation=situation, **fields)


@pytest.mark.parametrize(
    ("language", "situation", "reason"),
    [
        ("en", "", NO_SITUATION),
        ("en", "exam pressure", TOO_SHORT),
        ("en", "My cat ran away.", TOO_SHORT),  # four words
        ("en", "My cat ran away yesterday.", None),
        ("en", "I'm so sad all the time", FEELING_ONLY),
        ("en", "I’m so sad all the time", FEELING_ONLY),
        ("en", "I'm so sad all the time since the fire", None),
        ("zh", "我很难过", TOO_SHORT),
        ("zh", "上周我和室友大吵一架", None),
    ],
)
def test_which_situations_make_a_card(language: Language, situation: str, reason: str | None) -> None:
    assert unfit(situation, language) == reason


@pytest.mark.parametrize(
    ("language", "text", "age"),
    [
        ("en", "I am a 24 year old woman", "24"),
        ("en", "I'm 31 years old and lost my shop", "31"),
        ("en", "I am now 37. It began back then", "37"),
        ("en", "I (45F) moved out", "45"),
        ("en", "my age (66) frightens me", "66"),
        ("en", "I have a 24 year old son", ""),
        ("en", "my husband is 40 years old", ""),
        ("en", "I am 40 minutes late every day", ""),
        ("en", "I'm 50% sure", ""),
        ("en", "since I was 17 it got worse", ""),
        ("en", "I'm 20. No: I'm 21.", ""),  # two ages: neither
        ("zh", "我今年24岁，刚换工作", "24"),
        ("zh", "女，19岁，住校", "19"),
        ("zh", "我18岁的时候父母离婚", ""),
        ("zh", "我妈妈50岁", ""),
    ],
)
def test_an_age_is_the_writers_own_or_none(language: Language, text: str, age: str) -> None:
    assert stated_age(text, language) == age


@pytest.mark.parametrize(
    ("language", "text", "gender"),
    [
        ("en", "I am a 24 year old woman", "female"),
        ("en", "I'm a single dad of three", "male"),
        ("en", "I'm a stay-at-home mom", "female"),
        ("en", "I (45F) moved out", "female"),
        ("en", "I am a man's best friend", ""),
        ("en", "my wife left; she is a woman of few words", ""),
        ("en", "I am with a girl", ""),
        ("zh", "我是一名女生，住校", "女"),
        ("zh", "本人男，刚毕业", "男"),
        ("zh", "我妈妈，总是骂我", ""),
        ("zh", "我女朋友走了", ""),
    ],
)
def test_a_gender_is_stated_plainly_or_empty(language: Language, text: str, gender: str) -> None:
    assert stated_gender(text, language) == gender


def test_a_card_holds_situation_and_labels_and_nothing_of_the_turns() -> None:
    item = dialogue("train/7", "I am a 29 year old woman and\n my roommate moved out", problem="housing", emotion="fear. ")
    assert heuristic_card(item) == RoleCard(
        id="card-made-train_7",
        language="en",
        age="29",
        gender="female",
        problem="I am a 29 year old woman and my roommate moved out. Kind of trouble: housing. Main feeling: fear.",
        source="made",
        source_id="train/7",
        card_method="heuristic",
    )


def test_what_the_corpus_states_wins_over_the_situation() -> None:
    card = heuristic_card(dialogue("1", "I'm 30 years old and broke!", age="41", gender="Woman", occupation="vet"))
    assert isinstance(card, RoleCard)
    assert (card.age, card.gender, card.occupation) == ("41", "Woman", "vet")
    assert card.problem == "I'm 30 years old and broke!"


def test_a_chinese_card_is_chinese_throughout() -> None:
    card = heuristic_card(dialogue("1", "上周我和室友大吵一架", "zh", problem="人际", emotion="愤怒"))
    assert isinstance(card, RoleCard) and card.problem == "上周我和室友大吵一架。烦恼的种类：人际。主要情绪：愤怒。"


def test_every_item_is_a_card_or_a_drop_with_its_reason() -> None:
    post = Post(id="p", language="en", source="made", source_id="p", text="I lost my job and my flat within a week.")
    items: list[SupportDialogue | Post] = [
        dialogue("1", "The bakery where I work closes soon"),
        dialogue("2", "alone"),
        dialogue("3", ""),
        post,
    ]
    step = BuildStep("extract en")
    assert [card.source_id for card in step.make(items, heuristic_card)] == ["1"]
    step.check()
    assert step.taken == 4 and step.dropped == {TOO_SHORT: 1, NO_SITUATION: 2}


def test_ids_are_safe_and_keep_apart() -> None:
    source_ids = ["train/5", "train_5", "train 5", "问/5", "a" * 150, "a" * 151, "5"]
    ids = [card_id("made", source_id) for source_id in source_ids]
    assert len(set(ids)) == len(ids)
    assert all(len(one) < 120 and set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.") for one in ids)
    assert ids[0] == "card-made-train_5"
