"""Corpus items become training dialogues: who is trained, what it is told, and where a dialogue is cut."""

from pathlib import Path
from typing import Any

import pytest

from core.files import write_jsonl
from core.prompts import greeting, load_pack, opening
from core.records import Dialogue, Language, Line, RoleCard, RolePlay, SupportDialogue, Turn
from data_prep.role_play.examples import Draft, fit, role_play_draft, support_draft
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
