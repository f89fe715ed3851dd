"""The simulator audit: lines that each rule must find and lines that it must not, rates by hand, the optional judge."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, RoleCard
from core.tables import Estimate
from evalsuite.checks.simulator import (
    Finding,
    age_range,
    audit,
    audit_table,
    cheers_up_early,
    leaves_card,
    plays_supporter,
    repeats_itself,
    reveals_model,
    says_everything,
    told_at_once,
)
from tests.conftest import EscEval
from tests.evalsuite.oracles import check_share
from tests.evalsuite.records import make_judgement, make_run
from tests.evalsuite.test_role_play import card, dialogue
from tests.files_of_rows import read_sheet
from tests.test_docs import ROOT, blocks


def lines(*texts: str, language: str = "en") -> Dialogue:
    """A dialogue with these seeker lines, a greeting before and an answer after each."""
    turns = [{"role": "supporter", "text": "Hello."}]
    for text in texts:
        turns += [{"role": "seeker", "text": text}, {"role": "supporter", "text": "Go on."}]
    return dialogue("d", language=language, turns=turns)


def of(language: str, **fields: Any) -> RoleCard:
    return card(language=language, **fields)


@pytest.mark.parametrize(
    ("text", "fields", "detail"),
    [
        ("I'm 52 years old and tired.", {"age": "29"}, "age 52, card: 29"),
        ("I’m 45, and nobody cares", {"age": "teenage"}, "age 45, card: teenage"),
        ("I am a man, so they laugh.", {"gender": "Female"}, "gender male, card: Female"),
        ("I'm a nurse on nights", {"occupation": "line cook"}, "occupation nurse, card: line cook"),
        ("I work as a software engineer.", {"occupation": "teacher"}, "occupation software engineer, card: teacher"),
        ("I'm a full-time nurse.", {"occupation": "line cook"}, "occupation nurse, card: line cook"),
        ("I am a retired school teacher.", {"occupation": "cook"}, "occupation teacher, card: cook"),
        ("我今年45岁了。", {"age": "青年"}, "age 45, card: 青年"),
        ("我是个女生，不好意思说。", {"gender": "男"}, "gender 女, card: 男"),
        ("我是一名护士，天天夜班。", {"occupation": "出租车司机"}, "occupation 护士, card: 出租车司机"),
    ],
)  # fmt: skip
def test_who_leaves_the_card(text: str, fields: dict[str, str], detail: str) -> None:
    language = "zh" if "\u4e00" <= text[0] <= "\u9fff" else "en"
    findings = leaves_card(lines("hm", text, language=language), of(language, **fields))
    assert findings is not None
    assert [(turn, detail.replace("female", "女")) for turn, detail in findings] == [(3, detail)]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("I'm 29 years old.", {"age": "29"}),
        ("I'm 30, and tired.", {"age": "29"}),
        ("I'm 19, and tired.", {"age": "teenage or young"}),
        ("My mother is 61 years old.", {"age": "29"}),
        ("I'm 61 years old.", {"gender": "male"}),
        ("I am a woman.", {"gender": "not said"}),
        ("I'm a student.", {"occupation": "dance major at university"}),
        ("I'm a student", {"age": "20"}),
        ("My sister is a nurse.", {"occupation": "line cook"}),
        ("I'm a nurse's son.", {"occupation": "line cook"}),
        ("I'm not a doctor, I know.", {"occupation": "line cook"}),
        ("我是学生。", {"occupation": "高三毕业生"}),
        ("我妈妈是老师。", {"occupation": "出租车司机"}),
        ("我是老师的女儿", {"occupation": "出租车司机"}),
        ("我22岁的时候", {"age": "45"}),
        ("I'm a bad driver", {"occupation": "teacher"}),
        ("I am a terrible cook", {"occupation": "teacher", "problem": "lost her dog"}),
    ],
)
def test_who_keeps_to_the_card(text: str, fields: dict[str, str]) -> None:
    language = "zh" if "\u4e00" <= text[0] <= "\u9fff" else "en"
    assert leaves_card(lines(text, language=language), of(language, **fields)) == []


def test_a_card_that_says_nothing_cannot_be_left() -> None:
    assert leaves_card(lines("I'm 52 years old."), of("en")) is None
    assert leaves_card(lines("I'm 52 years old."), None) is None


@pytest.mark.parametrize(
    ("text", "ages"),
    [("29", (28, 30)), ("22岁", (21, 23)), ("30s", (30, 39)), ("20多岁", (20, 29)), ("25-30", (24, 31)),
     ("Old (90 years old)", (89, 91)), ("teenage or young", (10, 44)), ("青少年", (10, 19)), ("中老年", (35, 120)),
     ("Middle-aged", (35, 65)), ("", None), ("adult", None)],
)  # fmt: skip
def test_ages_that_a_card_may_mean(text: str, ages: tuple[int, int] | None) -> None:
    assert age_range(text) == ages


@pytest.mark.parametrize(
    "text", ["As an AI language model I cannot cry.", "plan: sob </think> hello", "作为一个AI，我没有感情。"]
)
def test_who_reveals_a_model(text: str) -> None:
    assert [turn for turn, _ in reveals_model(lines("hm", "hm", text), None)] == [5]


def test_who_does_not_reveal_a_model() -> None:
    assert reveals_model(lines("They replaced me with an AI.", "I think I'm done"), None) == []
    supporter = dialogue("d", "hm", "As an AI language model I cannot cry.")
    assert reveals_model(supporter, None) == [], "only the seeker is audited"


@pytest.mark.parametrize(
    "text",
    ["Thank you so much!", "thanks, that’s really helpful", "I feel much better now", "I'll definitely try that.", "ok bye",
     "谢谢你的建议。", "好多了", "我会试试的", "Take care!", "Goodbye, and thank you", "I just want to say thank you",
     "I don't know, but thanks", "You helped, it was really helpful", "那我先走了，再见！", "特别感谢你", "没事，谢谢",
     "这些建议很有帮助", "心情轻松多了", "不得不说谢谢你"],
)  # fmt: skip
def test_cheering_up_counts_before_the_third_line_only(text: str) -> None:
    assert [turn for turn, _ in cheers_up_early(lines(text, "hm"), None)] == [1]
    assert [turn for turn, _ in cheers_up_early(lines("hm", text), None)] == [3]
    assert cheers_up_early(lines("hm", "hm", text), None) == []


@pytest.mark.parametrize(
    "text",
    ["I'm fine, thank you. How are you?", "no thanks", "Thanks to him I lost my job.", "I never feel better",
     "I tried that already.", "nobody takes care of me", "一点也不好",
     "I have to take care of my mother all by myself.", "I never got to say goodbye to my dad.", "My boss never says thank you",
     "When will I feel better?", "I don't think that's helpful", "I don't have a good day anymore", "Nobody thanks me",
     "这些建议对我没有帮助", "我不敢再见他了", "我没有轻松多了", "他从来不说谢谢", "什么时候才能轻松多了？",
     "还没来得及说再见"],
)  # fmt: skip
def test_what_is_no_cheer(text: str) -> None:
    assert cheers_up_early(lines(text), None) == []


def test_how_much_of_the_card_the_first_line_tells() -> None:
    own = of("en", problem="Her dog Biscuit died and her landlord evicted her.")  # dog, biscuit, died, landlord, evicted
    assert told_at_once(lines("My dog died.", "Biscuit. And my landlord evicted me."), own) == pytest.approx(2 / 5)
    assert says_everything(lines("My dog died."), own) == []
    (finding,) = says_everything(lines("My dog Biscuit died, the landlord is a pig."), own) or []
    assert finding == (1, "80 % of the card's words")
    zh = of("zh", problem="丈夫炒币亏钱")  # 丈夫 夫炒 炒币 币亏 亏钱
    assert told_at_once(lines("我丈夫最近炒币", language="zh"), zh) == pytest.approx(2 / 5)
    assert (
        says_everything(lines("My dog died."), None) is None and told_at_once(dialogue("d", turns=lines().turns), own) is None
    )


def test_who_repeats_itself() -> None:
    said = "I just feel so lost without her"
    assert [turn for turn, _ in repeats_itself(lines(said, "Yes.", f"{said}!", "I feel lost at work"), None)] == [5]
    assert repeats_itself(lines("I don't know", "I don't know", "yes", "yes"), None) == [], "short lines may come twice"
    again = repeats_itself(lines("我真的很想离开这里", "嗯", "我真的很想离开这里啊", language="zh"), None)
    assert [turn for turn, _ in again] == [5]


def test_who_plays_the_supporter() -> None:
    (finding,) = plays_supporter(lines("hm", "It sounds like you had a hard day. Have you tried tea?"), None)
    assert finding == (3, "It sounds like you")


def test_rates_are_per_seeker_and_supporter() -> None:
    def held_by(n: int, supporter: str, text: str) -> Dialogue:
        return lines(text).model_copy(update={"id": f"d{n}", "card_id": f"c{n}", "simulator": "bot", "supporter": supporter})

    held = [held_by(n, "s1" if n < 4 else "s2", "hm" if n else "thanks a lot") for n in range(6)]
    held.append(dialogue("mute", turns=[], termination="refusal"))
    table = audit_table(audit(held, {}))
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert [row[:3] for row in table.rows] == [("bot", "s1", "en"), ("bot", "s2", "en")]
    check_share(first["cheers up too soon %"], [1, 0, 0, 0], range(4))
    assert first["leaves the card %"] == Estimate(None, None, None, 0), "no card: undefined, not 0"
    assert first["card told in first line %"] == Estimate(None, None, None, 0)


WORDS = ("dog", "Biscuit", "died", "landlord", "evicted")
AUDITED = st.lists(  # of each dialogue: its card or none, the words of it in the first line, and thanks
    st.tuples(st.none() | st.integers(0, 2), st.sets(st.sampled_from(WORDS)), st.booleans()), min_size=1, max_size=8
)


@given(AUDITED)
def test_any_rates_against_plain_shares(held: list[tuple[int | None, set[str], bool]]) -> None:
    """Dialogues without a card, all alike, one dialogue, one card."""
    cards = {n: of("en", id=f"c{n}", problem="Her dog Biscuit died and her landlord evicted her.") for n in range(3)}
    dialogues = []
    for number, (place, words, thanks) in enumerate(held):
        own = lines(" ".join(["hm", *sorted(words), *["thanks"] * thanks]))
        dialogues.append(own.model_copy(update={"id": f"d{number}", "card_id": None if place is None else f"c{place}"}))
    given = {d.id: cards[place] for d, (place, *_) in zip(dialogues, held, strict=True) if place is not None}
    table = audit_table(audit(dialogues, given))
    (found,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    own_card = [("none", n) if place is None else ("card", place) for n, (place, *_) in enumerate(held)]
    told = [(len(words) / len(WORDS), place) for place, words, _ in held if place is not None]
    check_share(found["cheers up too soon %"], [thanks for _, _, thanks in held], own_card)
    check_share(found["says all at once %"], [share >= 0.5 for share, _ in told], [place for _, place in told])
    check_share(found["leaves the card %"], [], [])  # these cards name neither age nor gender nor occupation
    check_share(found["card told in first line %"], [share for share, _ in told], [place for _, place in told])


def test_the_report_of_a_run_has_the_audit_and_writes_the_findings(esc_eval: EscEval, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"one": [1, 2]}, framework="esc_eval")
    held = [dialogue("a", "I'm a lawyer.", "ok", supporter="one"), dialogue("b", "hm", "ok", supporter="one")]
    write_jsonl(run / "dialogues.jsonl", held)
    write_jsonl(run / "cards.jsonl", [card("c1", occupation="baker", problem="lost the keys")])
    write_jsonl(run / "judgements.jsonl", [make_judgement(d.id, "fluency", 3) for d in held])
    assert esc_eval("report", "run") == (0, "")
    (row,) = read_sheet(run / "tables/simulator_audit.csv")[1]
    assert (row["seeker"], row["leaves the card %"], row["leaves the card % n"]) == ("model", "50.00", "2")
    assert [f.dialogue_id for f in read_jsonl(run / "tables/findings.jsonl", Finding, "findings")] == ["a"]
    write_jsonl(run / "dialogues.jsonl", [one.model_copy(update={"turns": (), "termination": "refusal"}) for one in held])
    assert esc_eval("report", "run") == (0, "") and not (run / "tables/simulator_audit.csv").exists(), "no seeker says a word"


def test_the_figures_of_files_in_the_docs_are_had_by_what_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "dialogues.jsonl", [dialogue("a", "I'm a lawyer. I want to die.", "I hear you.")])
    write_jsonl(tmp_path / "cards.jsonl", [card("c1", occupation="baker", problem="lost the keys")])
    rows = [f"u{user},{model},{(user + place) % 5 + 1}" for user in range(6) for place, model in enumerate("abc", 2)]
    (tmp_path / "scores.csv").write_text("\n".join(["user,model,score", *rows]))
    section = (ROOT / "docs" / "python.md").read_text().split("## Statistics from files")[1]
    names: dict[str, Any] = {"Path": Path}
    for block in blocks(section, "python"):
        exec(block, names)
    assert names["found"].mac.mean and names["excerpts"][0].turns == names["dialogues"][0].turns
    assert {finding.check for finding in names["simulator"].findings(names["audited"])} == {"leaves_card"}
