"""Hand-written lines that must be found, and lines of people that must not."""

import pytest

from data_prep.line_checks import MACHINE, SUPPORTER, distinct, says, units

OF_MACHINES = [
    "As an AI language model, I don't have a job.",
    "Well, I’m just an AI so nothing worries me.",
    "I am a large language model.",
    "i'm a chatbot and cannot cry",
    "I'm here to help! What is on your mind?",
    "Hello! How can I assist you today?",
    "What can I do for you?",
    "作为一个AI，我没有感情。",
    "作为人工智能助手，我不会难过",
    "我只是一个语言模型",
    "您好，我是智能助手，请讲。",
    "我可以帮助你找到办法。",
    "请问有什么可以帮您？",
    "很高兴为您服务！",
]
OF_PEOPLE = [
    "My mother works in IT.",
    "As an aide in a nursing home I see a lot.",
    "I'm an AI researcher and my boss hates me.",
    "As an AI engineer I should have seen it coming.",
    "They replaced me with an AI, can you believe it?",
    "I said I would explain myself.",
    "I feel like a robot these days, no feelings at all",
    "I'm here to help my mother move, and we fight all day.",
    "I'm here because I need help.",
    "I am a computer programmer.",
    "How can I help him? He won't talk to me.",
    "She said how can I assist at the funeral",
    "我妈妈在IT公司上班。",
    "我是人工智能专业的学生，压力很大。",
    "作为人工智能行业的从业者，我天天加班。",
    "我可以帮他做作业，但他不听。",
    "你可以帮助我吗？",
    "有什么办法可以让我睡着吗",
]
OF_SUPPORTERS = [
    "I'm so sorry to hear that you are struggling.",
    "I’m here for you.",
    "It sounds like you had a rough week.",
    "Have you tried talking to her?",
    "Can you tell me more about your job?",
    "Thank you for sharing this with me.",
    "I am so glad that you are able to find a way to relax.",
    "I understand how you feel.",
    "我理解你的感受。",
    "听起来你最近很累。",
    "我建议你多休息。",
    "您能多说说吗？",
    "谢谢你的信任",
]
OF_SEEKERS = [
    "I'm sorry, I just can't stop crying.",
    "It sounds like a good idea, thanks.",
    "I have tried everything.",
    "Thanks for listening.",
    "I'm glad you are here.",
    "She never understands how I feel.",
    "I feel so alone",
    "Can you help me?",
    "我觉得没有人理解我。",
    "你能给我一些建议吗？",
    "医生建议我住院。",
    "我听到他哭了。",
    "谢谢你，我试试。",
]


@pytest.mark.parametrize("line", [*OF_MACHINES, *OF_PEOPLE, *OF_SUPPORTERS])
def test_a_machine_gives_itself_away_and_people_are_not_taken_for_one(line: str) -> None:
    assert says(MACHINE, line) == (line in OF_MACHINES)


@pytest.mark.parametrize("line", [*OF_SUPPORTERS, *OF_SEEKERS])
def test_a_supporter_is_heard_and_seekers_are_not_taken_for_one(line: str) -> None:
    assert says(SUPPORTER, line) == (line in OF_SUPPORTERS)


def test_units_are_words_and_characters() -> None:
    assert units("I don’t know... DON'T ask!", "en") == ["i", "don't", "know", "don't", "ask"]
    assert units("我在IT公司，做了10年。", "zh") == ["我", "在", "it", "公", "司", "做", "了", "10", "年"]


def test_distinct_counts_over_all_lines_and_not_across_them() -> None:
    lines = [["a", "b", "a", "b"], ["b", "c"]]
    assert distinct(lines, 1) == 3 / 6
    assert distinct(lines, 2) == 3 / 4  # ab ba ab | bc; never bb
    assert distinct([["a"], []], 2) is None
