"""Profiles: the bundled ones, SAGE's, what the checks find, the statistics, the sheet of the inspection."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, Language
from core.tables import Table
from data_prep.cards.sheets import read_sheet, write_csv
from data_prep.commands.sheet import PROFILE_SHEET
from data_prep.profiles import bundled_profiles, load_profiles
from data_prep.profiles.check import ProfileFinding, check_profiles, gaps, tables
from data_prep.profiles.published import sage_dialogues
from data_prep.profiles.record import Profile, load_vocabulary, profile_text
from tests.data_prep.running import Run, ok, refused

COMPLETE: dict[str, Any] = {
    "id": "p1",
    "language": "en",
    "demographics": {"age": 40, "gender": "male", "occupation": "diver", "nationality": "Greek", "relationship": "single"},
    "preferences": {
        "mbti": "INTJ",
        "big_five": {
            "openness": "low",
            "conscientiousness": "middle",
            "extraversion": "low",
            "agreeableness": "high",
            "neuroticism": "low",
        },
        "traits": ["calm"],
        "habits": ["whistles"],
        "hobbies": ["chess", "bread"],
        "speech_style": "short",
    },
    "counselling": {
        "problem": "The boat sank in the harbour.",
        "scenario": "money",
        "state": "worried",
        "goals": ["a plan"],
        "roles": ["Eleni, his partner in the business"],
    },
    "scenario": "Laughs when he is lectured.",
}


def profile(**parts: Any) -> Profile:
    """The complete one, with some fields of its parts replaced."""
    fields = {key: {**COMPLETE[key], **value} if isinstance(value, dict) else value for key, value in parts.items()}
    return Profile.model_validate(COMPLETE | fields)


# --- bundled, text ---------------------------------------------------------------------------------------------------------


def test_the_bundled_profiles_are_complete_consistent_and_cover_what_is_asked() -> None:
    both = [one for language in ("en", "zh") for one in load_profiles(bundled_profiles(language))]
    assert check_profiles(both) == []
    for language in ("en", "zh"):
        own = [one for one in both if one.language == language]
        assert len(own) >= 12
        assert not [gap for gap in gaps(own) if "age groups" in gap]
        assert len({one.counselling.scenario for one in own}) >= 8
    assert len({one.preferences.mbti for one in both}) == 16
    assert len({one.counselling.scenario for one in both}) == len(load_vocabulary().keys) == 16


def test_the_text_says_everything_and_the_simple_one_only_who_and_what() -> None:
    full, simple = profile_text(profile(), "en"), profile_text(profile(), "en", simple=True)
    assert full.splitlines()[:2] == ["Age: 40", "Gender: male"], "what is empty (the name) has no line"
    for text in ("INTJ", "extraversion low", "calm", "whistles", "chess; bread", "short", "Laughs when"):
        assert text in full and text not in simple
    for text in ("diver", "Kind of problem: Money and debt", "The boat sank", "worried", "a plan", "Eleni"):
        assert text in full and text in simple
    assert "困扰类型：经济与债务" in profile_text(profile(), "zh"), "headings follow the language asked for"


# --- SAGE ------------------------------------------------------------------------------------------------------------------

PLAYER = """* 姓名：阿木
* 年龄：41岁
* 性别：男性

* 职业：木匠

* 个人爱好：
1. 养鱼
2. 爬山

* 习惯和行为特点：
早起。

* 说话风格：
慢。

* 说话方式：
爱打比方。"""
SCENE = "## 背景\n工坊漏水了。\n\n## 玩家不同状态下可能的反应\n高时：平和。\n####隐藏主题:\n***想有人听他说"
ROW = {
    "id": "x1",
    "player": PLAYER,
    "scene": SCENE,
    "main_cha": "被动型",
    "cha_group": ["谨慎"],
    "task": "想有人听他说",
    "first_talk": "唉",
}


def said(role: str, content: str, emotion: int | None = None, **more: str) -> dict[str, Any]:
    extra: dict[str, Any] = {} if emotion is None else {"emotion-point": emotion}
    return {"role": role, "content": content, **extra, **({"planning": more} if more else {})}


TALK = [
    said("user", "唉", 40),
    said("assistant", "怎么了？"),
    said("user", "漏水了", 55, activity="心理活动]\n松了口气", analyse="还行"),
]


def sage_folder(folder: Path, history: list[dict[str, Any]] = TALK, **row: Any) -> Path:
    folder.mkdir()
    (folder / "simulator_profile_x.jsonl").write_text(json.dumps(ROW | row) + "\n")
    result = {"id": "x1", "topic": "债务与借贷-屋顶", "history": history}
    (folder / "model-a_result.jsonl").write_text(json.dumps(result) + "\n")
    return folder


def test_sage_is_told_apart_and_imported_with_its_dialogues(run: Run, tmp_path: Path) -> None:
    folder = sage_folder(tmp_path / "sage")
    (found,) = load_profiles(folder / "simulator_profile_x.jsonl")
    assert (found.id, found.demographics.age, found.demographics.name) == ("sage-x1", 41, "阿木")
    assert found.preferences.hobbies == ("养鱼", "爬山") and found.preferences.traits == ("被动型", "谨慎")
    assert found.counselling.problem == "## 背景\n工坊漏水了。", "the story ends where the reactions begin"
    assert found.scenario.endswith("高时：平和。") and found.counselling.goals == ("想有人听他说",), "the hidden wish is a goal"
    assert found.counselling.scenario is None
    ok(run("import", "--source", f"sage={folder}", "--out", "out"))
    (found,) = load_profiles(Path("out/profiles.jsonl"))
    assert found.counselling.scenario == "money", "the topic of the dialogue"
    (dialogue,) = read_jsonl(Path("out/dialogues.jsonl"), Dialogue, "dialogues")
    assert (dialogue.profile_id, dialogue.supporter, dialogue.termination) == ("sage-x1", "model-a", "seeker_ended")
    assert [turn.state for turn in dialogue.turns] == [
        {"emotion_point": 40.0},
        None,
        {"text": "松了口气\n还行", "emotion_point": 55.0},
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"player": PLAYER.replace("年龄", "岁数")}, "simulator_profile_x.jsonl:1: 0 headings 年龄"),
        ({"player": PLAYER.replace("41岁", "不详")}, "simulator_profile_x.jsonl:1: player: 年龄: no number in '不详'"),
        ({"player": PLAYER.replace("41岁", "400岁")}, "simulator_profile_x.jsonl:1: age: Input should be less than"),
        ({"task": 3}, "simulator_profile_x.jsonl:1: task"),
        ({"history": [said("user", "a", 140)]}, "model-a_result.jsonl:1: history.0.emotion-point"),
        ({"id": "x2"}, "dialogue x1 of model-a: its profile is not in the profile file"),
    ],
)
def test_what_is_wrong_with_sage_files_is_named(run: Run, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refused(run("import", "--source", f"sage={sage_folder(tmp_path / 'sage', **change)}", "--out", "out"))


def test_sage_stops_at_the_limit_or_by_its_seeker(tmp_path: Path) -> None:
    history = [said(("user", "assistant")[n % 2], "a") for n in range(20)]
    folder = sage_folder(tmp_path / "sage", history)
    (dialogue,) = sage_dialogues(folder / "model-a_result.jsonl", "a")
    assert dialogue.termination == "max_turns"


# --- checks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "kind", "field"),
    [
        ({"demographics": {"age": 30, "occupation": "high-school student"}}, "look", "demographics.occupation"),
        ({"demographics": {"age": 30, "occupation": "高三学生"}}, "look", "demographics.occupation"),
        ({"demographics": {"age": 25, "occupation": "retired teacher"}}, "look", "demographics.occupation"),
        ({"demographics": {"age": 15}, "counselling": {"scenario": "marriage"}}, "look", "counselling.scenario"),
        ({"demographics": {"age": 8}, "counselling": {"scenario": "study"}}, "look", "demographics.age"),
        ({"counselling": {"scenario": "monee"}}, "wrong", "counselling.scenario"),
        ({"language": "zh"}, "wrong", "counselling.problem"),
        ({"counselling": {"problem": "船沉了。"}}, "wrong", "counselling.problem"),
        ({"preferences": {"mbti": "ENTJ"}}, "look", "preferences.mbti"),
        ({"preferences": {"mbti": None}}, "missing", "preferences.mbti"),
        ({"scenario": ""}, "missing", "scenario"),
    ],
)
def test_each_check_finds_its_own_fault_only(parts: dict[str, Any], kind: str, field: str) -> None:
    assert check_profiles([profile()]) == []
    found = check_profiles([profile(**parts)])
    assert [(one.kind, one.field) for one in found] == [(kind, field)]


def test_reworded_profiles_are_found_within_a_language() -> None:
    twin = profile(
        id="p2", counselling={"problem": "The boat SANK in the harbour!"}, scenario="Sighs and goes silent for a while."
    )
    other = profile(id="p3", counselling={"problem": "His licence to dive was taken away."}, scenario="Asks what it costs.")
    found = check_profiles([other, profile(), twin])
    assert found == [ProfileFinding("p2", "look", "counselling.problem", "nearly repeats that of p1")]


def test_check_exits_by_what_it_finds(run: Run) -> None:
    write_jsonl(Path("doubt.jsonl"), [profile(preferences={"mbti": "ENTJ"}), profile(id="p2", scenario="", language="en")])
    text = ok(run("check", "doubt.jsonl"))
    assert "ENTJ, yet extraversion is low" in text and "empty in 1 of 2 profiles" in text
    write_jsonl(Path("wrong.jsonl"), [profile(counselling={"scenario": "monee"})])
    result = run("check", "wrong.jsonl")
    assert result.exit_code == 1 and "did you mean money" in result.output
    Path("bad.jsonl").write_text(json.dumps(COMPLETE | {"demographics": {"age": "old"}}) + "\n")
    assert "bad.jsonl:1: demographics.age" in refused(run("check", "bad.jsonl"))
    assert isinstance(run("check", "doubt.jsonl", "doubt.jsonl").exception, UserError), "ids stand once over all files"


# --- statistics ------------------------------------------------------------------------------------------------------------


def rows(table: Table) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in table.rows}


@given(st.lists(st.tuples(st.sampled_from(["en", "zh"]), st.none() | st.integers(10, 110)), max_size=8))
def test_every_profile_is_counted_once_in_every_figure(who: list[tuple[Language, int | None]]) -> None:
    profiles = [profile(id=f"p{n}", language=language, demographics={"age": age}) for n, (language, age) in enumerate(who)]
    for table in tables(profiles):
        if table.columns[1:] == ("en", "zh", "All"):
            sums = [sum(row[place] for row in table.rows) for place in (1, 2, 3)]  # type: ignore[misc]
            assert sums == [
                sum(language == "en" for language, _ in who),
                sum(language == "zh" for language, _ in who),
                len(who),
            ]


def test_counts_and_gaps_by_hand(run: Run) -> None:
    profiles = [
        profile(),
        profile(id="p2", demographics={"gender": "woman", "age": None}),
        profile(id="p3", language="zh", demographics={"gender": "女"}, preferences={"mbti": None, "big_five": None}),
    ]
    found = {table.key: table for table in tables(profiles)}
    assert rows(found["profile-gender"]) == {"female": (1, 1, 2), "male": (1, 0, 1)}
    assert rows(found["profile-age"])["Adulthood"] == (1, 1, 2) and rows(found["profile-age"])["not given"] == (1, 0, 1)
    assert rows(found["profile-mbti"])["INTJ"] == (2, 0, 2) and rows(found["profile-mbti"])["ENFP"] == (0, 0, 0)
    assert rows(found["profile-big-five"])["extraversion"] == (2, 0, 0) and "1 of 3" in found["profile-big-five"].notes[0]
    assert rows(found["profile-summary"])["Kinds of problem"] == (1, 1, 1, 16)
    lines = gaps(profiles)
    assert any(line.startswith("all: no profile with 15 of 16 MBTI types: ISTJ") for line in lines)
    assert any(line.startswith("zh: no profile with 16 of 16 MBTI types") for line in lines)
    write_jsonl(Path("p.jsonl"), profiles)
    checked = run("check", "p.jsonl")
    assert checked.exit_code == 1, "an English problem of a Chinese profile"
    assert "no profile with" in checked.output


# --- inspection ------------------------------------------------------------------------------------------------------------


def test_a_sample_is_inspected_and_the_rejected_are_left_out(run: Run, tmp_path: Path) -> None:
    several = [profile(id=f"p{n}", counselling={"problem": f"={n} boats sank near island {n}."}) for n in range(6)]
    write_jsonl(Path("p.jsonl"), several)
    ok(run("sheet", "export", "--profiles", "p.jsonl", "--out", "out", "--sample", 3, "--seed", 4))
    sheet = read_sheet(Path("out/keep.xlsx"), "profiles", PROFILE_SHEET.columns)
    assert [row.cells for row in sheet] == [
        row.cells for row in read_sheet(Path("out/keep.csv"), "profiles", PROFILE_SHEET.columns)
    ]
    ids = [row.cells["profile_id"] for row in sheet]
    assert len(ids) == 3 and ids == sorted(ids)
    assert {row.cells["findings"] for row in sheet} == {"scenario: nearly repeats that of p0"}
    filled = [row.cells | {"keep": "no" if place == 1 else "Yes"} for place, row in enumerate(sheet)]
    write_csv(Path("filled.csv"), PROFILE_SHEET.columns, filled)
    ok(run("sheet", "import", "--profiles", "p.jsonl", "--out", "kept", "filled.csv"))
    kept = [one.id for one in load_profiles(Path("kept/profiles.jsonl"))]
    assert kept == [one.id for one in several if one.id != ids[1]], "who was not drawn stays"
    (step,) = json.loads(Path("kept/manifest.json").read_text())["steps"]
    assert (step["in"], step["out"], step["dropped"]) == (3, 2, {"rejected by a person": 1})
    write_csv(Path("out/keep.csv"), PROFILE_SHEET.columns, filled)
    assert "may hold answers" in refused(run("sheet", "export", "--profiles", "p.jsonl", "--out", "out"))
    for word in ("", "maybe"):
        write_csv(Path("bad.csv"), PROFILE_SHEET.columns, [filled[0] | {"keep": word}])
        assert "bad.csv:2, column keep" in refused(run("sheet", "import", "--profiles", "p.jsonl", "--out", "kept", "bad.csv"))


def persona_file(folder: Path, **fields: Any) -> Path:
    """A persona as PersonaMem-v2's generator writes one, with what is not read beside it."""
    persona = {
        "persona": "A gardener by the sea.",
        "name": {"first": "Ines", "last": "Moor"},
        "age": 41,
        "gender": "Female",
        "maritalStatus": "Widowed",
        "location": {"country": "Portugal", "city": "Faro"},
        "occupation": {"title": "Gardener", "specialization": ["olives"]},
        "interests": ["tide tables"],
        "personalityTraits": ["patient"],
        "stereotypical_preferences": ["rises early"],
        "anti_stereotypical_preferences": ["dislikes roses"],
        "sensitive_information": {"social_security_number": "000-00-0000"},
        "lifestyle": {"diet": "fish"},
        "therapy_background": ["Her brother left the farm to strangers.", "She cannot sleep when it storms."],
    } | fields
    path = folder / "raw_data" / "interactions_250101_000000_persona7.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"uuid-7": persona}))
    return path


def test_every_background_of_a_persona_is_a_profile(run: Run, tmp_path: Path) -> None:
    persona_file(tmp_path / "pm")
    ok(run("import", "--source", f"personamem={tmp_path / 'pm'}", "--out", "out"))
    first, second = load_profiles(tmp_path / "out" / "profiles.jsonl")
    assert (first.id, second.counselling.problem) == ("personamem-uuid-7-1", "She cannot sleep when it storms.")
    who = first.demographics
    assert (who.age, who.gender, who.occupation, who.name, who.nationality) == (41, "female", "Gardener", "Ines", "Portugal")
    assert first.preferences.habits == ("rises early", "dislikes roses")
    assert "000-00-0000" not in (tmp_path / "out" / "profiles.jsonl").read_text()


def test_fields_of_the_generating_model_s_own_form_are_left_out(run: Run, tmp_path: Path) -> None:
    persona_file(tmp_path / "pm", interests={"outdoors": ["walking"]}, personalityTraits=["calm", 3, ""])
    ok(run("import", "--source", f"personamem={tmp_path / 'pm'}", "--out", "out"))
    profile = load_profiles(tmp_path / "out" / "profiles.jsonl")[0]
    assert (profile.preferences.hobbies, profile.preferences.traits) == ((), ("calm",))


@pytest.mark.parametrize(("fields", "message"), [({"age": "old"}, "age"), ({"therapy_background": []}, "therapy_background")])
def test_a_persona_that_cannot_be_used_is_named(run: Run, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    path = persona_file(tmp_path / "pm", **fields)
    error = refused(run("import", "--source", f"personamem={path}", "--out", "out"))
    assert str(path) in error and message in error
