"""The general role-play corpora: who is the character, what is mended, and why a row is left out. All texts are made up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.records import RolePlay
from data_prep.sources import characters
from data_prep.sources.play import filled, language_of, profile, shortened
from tests.data_prep.sources import fixtures as F
from tests.data_prep.sources.test_support import read

Files = dict[str, Any]


class Reader:
    """Reads files of one corpus; keeps the account that was made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, files: Files, strict: bool = False) -> list[RolePlay]:
        """`files`: name → a list (JSON lines, or one JSON list for .json and CharacterEval), text as it is, or an object."""
        lined = {file for file, value in files.items() if isinstance(value, list) and file.endswith(".jsonl")}
        lined -= {"test_data.jsonl"}
        written = {file: F.lines(*value) if file in lined else value for file, value in files.items()}
        items, self.step, _ = read(name, F.write(self.folder, written), strict)
        assert len({item.id for item in items}) == len(items)
        plays = [item for item in items if isinstance(item, RolePlay) and item.source == name]
        assert plays == items
        return plays


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def said(item: RolePlay) -> list[tuple[str, str, str]]:
    return [(line.role[0], line.name, line.text) for line in item.lines]


def part(role: str, content: str, action: str = "(speaking)") -> dict[str, str]:
    return {"role": role, "action": action, "content": content}


def interview(*parts: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    """Parts of interviewer and character turn about."""
    sides = ("interviewer", "character")
    content = [{"turn_id": n // 2, "turn_role": sides[n % 2], "turn_content": turn} for n, turn in enumerate(parts)]
    return {"character": "Ada Lovelace", "finished": True, "content": content, **more}


def exchange(question: str, answer: str) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    return [part("Man", question)], [part("Ada", answer)]


def told(*lines: tuple[str, str], source: str = "synthesized") -> dict[str, Any]:
    return {"dialogue": [{"role": role, "text": text} for role, text in lines], "source": source}


def scene(*lines: tuple[str, str], keys: tuple[str, ...] = ("Mara", "Tom"), **more: Any) -> dict[str, Any]:
    dialogues = [{"character": name, "message": text} for name, text in lines]
    return {"scenario": "A dock at night.", "key_characters": [{"name": key} for key in keys], "dialogues": dialogues, **more}


def chat(*messages: tuple[bool, str], **more: Any) -> dict[str, Any]:
    return {
        "bot_name": "Captain Reed",
        "conversation": [{"is_human": human, "message": text} for human, text in messages],
        **more,
    }


def test_rolebench_takes_the_first_reply_and_the_language_of_the_text(reader: Reader) -> None:
    items = reader(
        "rolebench",
        {
            "zh_general_test.jsonl": [{"role": "船长", "question": "今天吃什么？", "generated": ["吃鱼。", "吃面。"]}],
            "rolebench-eng/role-generalization/general/test.jsonl": [
                {"role": "Reed", "question": "Where to?", "generated": ["East."]}
            ],
            "rolebench-eng/role-generalization/role_specific/test.jsonl": [
                {"role": "Reed", "question": "Why?", "generated": ["Gold."]}
            ],
        },
    )
    found = {item.source_id: item for item in items}
    assert said(found["zh_general_test/0"]) == [("p", "提问者", "今天吃什么？"), ("c", "船长", "吃鱼。")]
    assert found["zh_general_test/0"].language == "zh"
    english = found["rolebench-eng/role-generalization/general/test/0"]
    assert (english.language, said(english)[1]) == ("en", ("c", "Reed", "East."))


def test_charactereval_reads_one_list_with_profiles_beside_it(reader: Reader) -> None:
    rows = [
        {"id": 7, "role": "阿木", "context": "老陈：（敲门）在吗？\n阿木：在。\n门没锁。\n老陈:那我进来了"},
        {"id": 8, "role": "阿木", "context": "老陈：今天真冷。"},
    ]
    person = {"姓名": "阿木", "爱好": ["下棋", "钓鱼"], "关系": {"友": "老陈"}, "经历": "长" * 700, "年龄": "未知"}
    profiles = {"阿木": person}
    (item,) = reader("charactereval", {"test_data.jsonl": rows, "character_profiles.json": profiles})
    assert said(item) == [("p", "老陈", "（敲门）在吗？"), ("c", "阿木", "在。\n门没锁。"), ("p", "老陈", "那我进来了")]
    assert item.persona == "姓名：阿木；爱好：下棋、钓鱼；关系：友（老陈）"
    assert (item.id, item.language) == ("charactereval-7", "zh")
    assert reader.step.dropped == {"the character does not speak": 1}


def test_charactereval_without_profiles_or_with_bad_ones_and_with_a_doubled_id(reader: Reader) -> None:
    row = {"id": 7, "role": "阿木", "context": "老陈：在吗？\n阿木：在。"}
    (item,) = reader("charactereval", {"test_data.jsonl": [row, row]})
    assert item.persona == "" and reader.step.dropped == {"malformed": 1}
    with pytest.raises(UserError, match=r"character_profiles\.json: expected an object"):
        reader("charactereval", {"test_data.jsonl": [], "character_profiles.json": [1]})


def test_character_llm_reads_interviews_and_not_the_questions(reader: Reader) -> None:
    row = interview(
        [part("Man", "What do you do?")],
        [part("Ada", "He is curious.", "(thinking)"), part("Ada", "I write notes."), part("Ada", "Long ones.")],
        *exchange("On what?", "On engines."),
    )
    files = {"multiturn_Ada_sft.jsonl": [row], "questions_Ada.json": [{"question": "Who?"}]}
    (item,) = reader("character_llm", files)
    assert item.character == "Ada Lovelace"
    assert [line.text for line in item.lines] == ["What do you do?", "I write notes.", "Long ones.", "On what?", "On engines."]
    assert [line.role for line in item.lines] == ["partner", "character", "character", "partner", "character"]
    assert {line.name for line in item.lines} == {"Interviewer", "Ada Lovelace"}


def test_character_llm_goes_by_the_folder_where_files_are_called_by_a_date(reader: Reader) -> None:
    models = ("sft", "chatgpt", "alpaca-7b")
    published = {f"multiturn_Ada_{m}_result/2023-00.jsonl": [interview(*exchange("Who?", f"{m}."))] for m in models}
    items = reader("character_llm", published)
    assert [item.source_id for item in items] == ["multiturn_Ada_chatgpt/0", "multiturn_Ada_sft/0"]


NO_REPLY = "no question or no reply"
MARKUP = "markup of the generation inside a turn"
QUESTIONED = [part("Man", "Who?")]


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("rolebench", {"role": "Reed", "question": " ", "generated": ["Yes."]}, NO_REPLY),
        ("rolebench", {"role": "Reed", "question": "Why?", "generated": []}, NO_REPLY),
        ("rolebench", {"role": " ", "question": "Why?", "generated": ["So."]}, "malformed"),
        ("rpbench", {"npc_profile": {"age": 3}, "conversation": []}, "malformed"),
        ("pippa", {"bot_name": "", "conversation": []}, "malformed"),
        ("character_llm", interview(*exchange("Who?", "Me."), finished=False), "unfinished"),
        ("character_llm", interview(QUESTIONED, [part("Ada", "Me."), part("Man", "And?")]), "two speakers in one turn"),
        ("character_llm", interview(*exchange("Who?", "Me. Ada (speaking)")), MARKUP),
        ("character_llm", interview(*exchange("Who?", "Me.<|end|>")), MARKUP),
        ("character_llm", interview(QUESTIONED, [part("Ada", "Hm.", "(thinking)")]), "a turn in which nothing is said aloud"),
        ("character_llm", interview(*exchange("Who?", "There are three reasons:")), "a turn breaks off"),
        ("character_llm", interview(*exchange("Who?", "Me."), *exchange("Who?", "I.")), "a turn is there twice"),
    ],
)
def test_a_row_that_is_no_dialogue_is_dropped_for_its_reason(reader: Reader, name: str, row: Any, reason: str) -> None:
    file = {"rolebench": "eng_a", "rpbench": "rpbench_scene", "pippa": "pippa_deduped", "character_llm": "multiturn_Ada_sft"}
    assert reader(name, {f"{file[name]}.jsonl": [row]}) == []
    assert reader.step.dropped == {reason: 1}


BO = "小波"


def test_chat_haruhi_the_character_speaks_most_in_its_file(reader: Reader) -> None:
    rows = [
        told(("旁白", "「两人走在路上」"), ("阿土", "「去哪？」"), (f"{BO}（笑）", "「回家。」（挥手）")),
        told((BO, "「走。」"), (BO, "「快。」"), ("", "他们跑了起来。")),
        told((f"{BO}想了想，说道", "「好。」"), ("阿土", "“嗯。”")),
        told(("阿花", "「有人吗？」"), ("阿木", "「没有。」")),
    ]
    items = reader("chat_haruhi", {"bo_dialogue.jsonl": rows})
    assert [said(item) for item in items] == [
        [("p", "旁白", "两人走在路上"), ("p", "阿土", "去哪？"), ("c", BO, "（笑）回家。（挥手）")],
        [("c", BO, "走。"), ("c", BO, "快。"), ("p", "旁白", "他们跑了起来。")],
        [("c", BO, "好。"), ("p", "阿土", "嗯。")],
    ]
    assert {item.character for item in items} == {BO}
    assert reader.step.dropped == {"the character does not speak": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("「好」", "好"),
        ("「看「山」去」", "看「山」去"),
        ("「好」（走）", "好（走）"),
        ("「好", "好"),
        ("好」（走）", "好（走）"),
        ("「“好”」", "好"),
        ("“好”和“坏”", "“好”和“坏”"),
        ("读「山」", "读「山」"),
        ('"', '"'),
        ("", ""),
    ],
)
def test_chat_haruhi_quotes(text: str, words: str) -> None:
    assert characters.unquoted(text) == words


def test_chat_haruhi_a_nameless_line_goes_on_with_an_open_quote(reader: Reader) -> None:
    (item,) = reader(
        "chat_haruhi",
        {"bo_dialogue.jsonl": [told(("阿土", "「怎么办？」"), (BO, "「有两点："), ("", "快和稳。」"), (BO, "「走」"))]},
    )
    assert said(item) == [("p", "阿土", "怎么办？"), ("c", BO, "有两点：\n快和稳。"), ("c", BO, "走")]


@pytest.mark.parametrize(
    ("rows", "kept", "dropped"),
    [
        ([told(("阿土", "你去哪里？"), (BO, "I am going home."))], 0, {"the sides speak different languages": 1}),
        ([told(("Tom", "Where are you going?"), (BO, "I am going home."))], 1, {}),
        ([told(("阿土", "笑一个"), (BO, "哈" * 60))], 0, {"a line repeats itself without end": 1}),
        ([told(("阿土", "在吗"), ("问题超出范围，我会回答", "在"), (BO, "在"))], 0, {"a speaker's name is a sentence": 1}),
        ([told((BO, "在"), (BO, "在吗"))], 0, {"only the character speaks": 1}),
        ([told(("阿土", "「」"), (BO, " "))], 0, {"no lines": 1}),
        ([told(("", "你好"), (BO, "什么事？"), source="user")], 0, {"a person's log, unmoderated": 1}),
    ],
)
def test_chat_haruhi_what_is_left_out(reader: Reader, rows: list[Any], kept: int, dropped: dict[str, int]) -> None:
    assert len(reader("chat_haruhi", {"bo_dialogue.jsonl": [*rows, told((BO, "好"), ("阿土", "嗯"), (BO, "走"))]})) == kept + 1
    assert reader.step.dropped == dropped


CONVERSATION = [
    scene(
        ("Environment", "Rain falls."),
        ("Tom", "[I am afraid.] Who is there?"),
        ("Mara", "[He is afraid.] Only me. (waves) [At last.]"),
        ("Tom", "[No!]"),
        ("Mara", "Come."),
        keys=("Environment", "Tom", "Mara"),
    )
]


@pytest.mark.parametrize("written", [lambda value: value, json.dumps, repr], ids=["list", "json", "python"])
def test_coser_book(reader: Reader, written: Callable[[Any], Any]) -> None:
    profiles = {"Mara": {"profile": "**Mara** ferries people.\n\n" + "She is calm. " * 80}}
    book = {"plots": [{"conversation": []}, {"conversation": written(CONVERSATION)}], "character_datasets": profiles}
    (item,) = reader("coser", {"book.json": book})
    assert (item.character, item.source_id, item.scene) == ("Mara", "book/1/0", "A dock at night.")
    assert said(item) == [
        ("p", "Environment", "Rain falls."),
        ("p", "Tom", "Who is there?"),
        ("c", "Mara", "Only me. (waves)"),
        ("c", "Mara", "Come."),
    ]
    assert item.persona.startswith("Mara ferries people.\nShe is calm.") and item.persona.endswith("calm.")
    assert len(item.persona) <= characters.PERSONA


def test_coser_test_set_and_the_first_of_equals(reader: Reader) -> None:
    rows = [
        scene(("Tom", "Hello."), ("Mara", "Hello, Tom."), character_profiles={"Mara": "A pilot."}),
        scene(("Tom", "Hm."), keys=()),
    ]
    (item,) = reader("coser", {"scenes.json": rows})
    assert (item.character, item.persona) == ("Mara", "A pilot.")
    assert reader.step.dropped == {"no key character": 1}


@pytest.mark.parametrize(
    "value",
    [
        {"plots": [{"conversation": "__import__('os').getcwd()"}]},
        {"plots": [{"conversation": "[" * 5000}]},
        {"plots": [{"conversation": "{'a': 1}"}]},
        {"plots": ["no plot"]},
        {"other": 1},
        ["no scene"],
    ],
)
def test_coser_malformed(reader: Reader, value: Any) -> None:
    assert reader("coser", {"book.json": value}) == []
    assert reader.step.dropped == {"malformed": 1}
    with pytest.raises(UserError, match=r"book\.json"):
        reader("coser", {}, strict=True)


def test_rpbench_both_forms(reader: Reader) -> None:
    opening = [{"from": "npc", "sentences": ["*waves at {{user}}*", "Hello."]}]
    character = {
        "npc_profile": {"name_text": "Reed", "short_definition_text": "Calm", "description": "{{char}} sails."},
        "conversation": opening,
    }
    field = {"name": "Mara", "age": 30, "hobby": "Not specified", "work": None, "likes": ["sea", "tea"]}
    story = {
        "npc_profile": field,
        "plot_recap": "- **Past**: a storm.",
        "conversation": [*opening, {"from": "player", "sentences": ["Hi."]}],
    }
    first, second = reader("rpbench", {"rpbench_character.jsonl": [character], "rpbench_scene.jsonl": [story]})
    assert (first.character, first.persona, first.scene) == ("Reed", "Calm\nReed sails.", "")
    assert said(first) == [("c", "Reed", "*waves at you* Hello.")]
    assert (second.persona, second.scene) == ("age: 30; likes: sea、tea", "- Past: a storm.")
    assert said(second)[1] == ("p", "Player", "Hi.")


def test_socialbench_the_last_speaker_is_the_character(reader: Reader) -> None:
    def row(lang: str, *lines: tuple[str, str]) -> dict[str, Any]:
        return {"dialogue": [{"from": name, "value": text} for name, text in lines], "meta": {"lang": lang}}

    rows = [
        row("en", ("Bea", "It\x92s late\x85"), ("Joe", "So?\x81"), ("Bea", "Go home.")),
        row("zh", ("User", "哪个好笑？")),
        row("zh", ("阿土", "在吗"), ("阿土", "在吗")),
        row("french", ("Bea", "Non."), ("Joe", "Si.")),
    ]
    (item,) = reader("socialbench", {"emotional_perception.json": rows})
    assert said(item) == [("c", "Bea", "It’s late…"), ("p", "Joe", "So?"), ("c", "Bea", "Go home.")]
    assert reader.step.dropped == {"single line": 1, "only the character speaks": 1, "malformed": 1}


def test_pippa(reader: Reader) -> None:
    rows = [
        chat(
            (False, "Ahoy, {{user}}!"),
            (True, "Hi {{char}}"),
            bot_description=None,
            bot_definitions="{{char}} hates {{random_user_1}}.",
        ),
        chat((False, "Ahoy!"), (True, "Hi"), categories=["Games", "NSFW"]),
        chat((False, "Ahoy!"), (True, "Take off, naked man"), categories=None),
        chat((False, "Ahoy!")),
        {"bot_name": "Reed", "conversation": [{"message": "Ahoy!"}]},
    ]
    (item,) = reader("pippa", {"pippa_deduped.jsonl": rows})
    assert said(item) == [("c", "Captain Reed", "Ahoy, you!"), ("p", "You", "Hi Captain Reed")]
    assert item.persona == "Captain Reed hates you."
    reasons = {"a category marked NSFW": 1, "sexual words": 1, "only the character speaks": 1, "malformed": 1}
    assert reader.step.dropped == reasons


@pytest.mark.parametrize(
    ("text", "language"),
    [("你好", "zh"), ("Hello", "en"), ("他说 OK", "zh"), ("I like 面 very much", "en"), ("1 + 1 = ?", None), ("", None)],
)
def test_language_of(text: str, language: str | None) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [
        ("One. Two.", 20, "One. Two."),
        ("One. Two three.", 10, "One."),
        ("一。二三四五。", 5, "一。"),
        ("one two three", 9, "one two"),
        ("abcdefgh", 4, "abcd"),
        ("One.\nTraits:\nkind and very calm", 20, "One."),
        ("1.5 metres tall. Thin.", 18, "1.5 metres tall."),
    ],
)
def test_shortened(text: str, limit: int, short: str) -> None:
    assert shortened(text, limit) == short


def test_profile_leaves_out_what_says_nothing_or_does_not_fit() -> None:
    fields = {"a": "x", "b": "Unknown", "c": "y" * 50, "d": 3, "e": ""}
    assert profile(fields, 20, ": ", "; ") == "a: x; d: 3"


def test_placeholders_become_words_and_names_are_taken_literally() -> None:
    assert filled(r"{{Char}} and <USER>", r"A\1") == r"A\1 and you"
