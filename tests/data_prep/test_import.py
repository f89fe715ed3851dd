"""Import of the published repository, on a miniature clone of our own in the same shape."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_jsonl
from core.judge_prompts import judge_messages
from core.ledger import Step
from core.paths import Verbs
from core.prompts import PromptPack
from core.records import Dialogue, Judgement, Language, RoleCard
from core.rows import CorpusReader
from core.rubrics import load_rubric
from core.seeker_prompts import greeting, seeker_system
from data_prep.cards import load_cards
from data_prep.commands.import_esc_eval import import_esc_eval
from data_prep.published import find_clone, read_dialogues
from data_prep.published.prompts import DIMENSIONS, escaped, find_prompts

KEYS = list(DIMENSIONS)
WORDS = ["smoothness", "variety", "warmth", "tips' use", "likeness", 'know-"how"', "liking"]
RULES: dict[Language, list[str]] = {
    "en": [f"Rate {word} {{not a field}} {{{{ nor this }}}}.\n0: no {{% raw %}}\n4: yes\n" for word in WORDS],
    "zh": [f"Rate {word} of a Chinese chat.\n0: no\n4: yes\n" for word in WORDS],
}
SEEKER_EN = ("Be somebody in trouble. Your card: '", "\n' Talk like one.")
SEEKER_ZH = ("扮演有烦恼的人。卡片：“", "\n 像人一样说话。")
HELLO_EN, HELLO_ZH = "Hi! What brings you here? {# not a comment #}", "你好！怎么了？"
POISON = "raise SystemExit('this script was run')\nopen('ran', 'w')\n"

ROLE_SCRIPT = f"""
import nothing_of_that_name
{POISON}
class Model():
    def __call__(self, message):
        if message[0]['role'] != "system":
            message.insert(0, {{"role": "system", "content": 'Help.'}})
def play(args):
    for index, card in enumerate(data):
        if args.language == "zh":
            prompt={SEEKER_ZH[0]!r}+card['base']+\\
            {SEEKER_ZH[1]!r}
            heard = [{{"role": "system", "content": prompt}}]
            heard.append({{"role": "user", "content": {HELLO_ZH!r}}})
        else:
            prompt={SEEKER_EN[0]!r}+card['base']+{SEEKER_EN[1]!r}
            heard = [{{"role": "system", "content": prompt}}]
            heard.append({{"role": "user", "content": {HELLO_EN!r}}})
        heard.append({{"role": "user", "content": answer}})
"""
SUMMED = """
                text=rules[i]+"\\n  The chat: \\n"+chat.strip()+"\\n"
                text+='Give the '+word+' score.'
"""
FILLED_IN = """
                text=f"{rules[i]}\\n  The chat: \\n{chat.strip()}\\n" + 'Give the {} score.'.format(word)
"""


def score_script(message: str) -> str:
    return f"""
{POISON}
RULES_EN={RULES["en"]!r}
RULES_ZH={RULES["zh"]!r}
if __name__=="__main__":
    words={WORDS!r}
    keys={KEYS!r}
    labels=["0","1","2","3","4"]
    for file in files:
        if 'zh' in file:
            rules=RULES_ZH
        else:
            rules=RULES_EN
        for _, tem in progress(enumerate(data.items())):
            for i, word in enumerate(words):
                chat='\\n\\n'.join(tem).replace("AI assistant","**AI助手**")
{message}
                key = keys[i]
"""


def published_card(number: int, language: Language) -> dict[str, Any]:
    en = "Age: not mentioned\nGender: Female\nOccupation: baker\nProblem: Her oven broke and the bank wants its money."
    zh = "年龄：青年\n性别：未提及\n职业：未提及\n问题：他的猫走丢了，室友说是他没关门。"
    base, name = (en, "english") if language == "en" else (zh, "chinese")
    return {"id": number, "base": base, "base_biaozhu": base, "res": "家庭生活", "source": "own", "language": name}


def lines(language: Language, supporter: str = "AI assistant") -> list[str]:
    hello = HELLO_EN if language == "en" else HELLO_ZH
    return [f"{supporter}：{hello}", "ESC-Role：Bad day.\nVery bad.", f"{supporter}：Tell me more."]


SCORES = dict(zip(KEYS, (4, 3, 2, 1, 0, -1, 2), strict=True))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The published layout: cards in data/, results in result/DATE/, scores in score/, scripts at the top."""
    folder = tmp_path / "clone"
    files: dict[str, Any] = {
        "data/card_high_en.json": [published_card(n, "en") for n in (1, 2, 3)],
        "data/card_high_ch.json": [published_card(n, "zh") for n in (7, 8)],
        "data/test_en.json": [published_card(1, "en")],
        "data/test_zh.json": [published_card(7, "zh")],
        "result/2024-01-02/Model_A_en.json": {"0": lines("en"), "1": lines("en", "AI assitant")},
        "result/2024-01-02/Model_A_zh.json": {"0": lines("zh")},
        "score/Model_A_en.json": {"0": SCORES, "1": SCORES},
        "score/Model_A_zh.json": {"0": SCORES},
        ".git/score/Model_A_en.json": {},
    }
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value, ensure_ascii=False))
    (folder / "evaluate.py").write_text(ROLE_SCRIPT)
    (folder / "score.py").write_text(score_script(SUMMED))
    return folder


Run = Callable[..., str]


@pytest.fixture
def run(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`import-esc-eval` on the clone, into OUT beside it; returns what was printed, in one line."""
    monkeypatch.chdir(clone.parent)
    app = Verbs()
    app.command()(import_esc_eval)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["--source", "clone", "--out", "out", *arguments])
        if result.exception:
            raise result.exception
        return " ".join(result.output.split())

    return call


def test_cards_dialogues_and_scores(run: Run, clone: Path) -> None:
    printed = run()
    out = clone.parent / "out"
    assert "not found" not in printed and "left out" not in printed
    cards = {lang: read_jsonl(out / f"cards_{lang}.jsonl", RoleCard, "cards") for lang in ("en", "zh")}
    assert [len(cards["en"]), len(cards["zh"])] == [3, 2]
    assert (cards["en"][0].age, cards["en"][0].occupation, cards["en"][0].category) == ("", "baker", ("Family and Life",))
    dialogues = read_jsonl(out / "dialogues.jsonl", Dialogue, "dialogues")
    assert [(d.id, d.card_id, d.supporter, d.exchanges) for d in dialogues] == [
        ("esc-eval-Model_A_en-0", "esc-eval-1", "Model_A", 1),
        ("esc-eval-Model_A_en-1", None, "Model_A", 1),  # the test cards hold one card only
        ("esc-eval-Model_A_zh-0", "esc-eval-7", "Model_A", 1),
    ]
    assert [t.text for t in dialogues[1].turns] == [HELLO_EN, "Bad day.\nVery bad.", "Tell me more."]
    verdicts = read_jsonl(out / "judgements.jsonl", Judgement, "judgements")
    assert len(verdicts) == 21
    first = {v.dimension: v.value for v in verdicts if v.dialogue_id == dialogues[0].id}
    rubric = load_rubric("esc_eval")
    assert list(first) == list(rubric.dimensions)
    assert list(first.values()) == [4, 3, 2, 1, 0, None, 2]
    assert len(json.loads((out / "manifest.json").read_text())["inputs"]) == 10


@pytest.mark.parametrize("message", [SUMMED, FILLED_IN])
def test_prompts_come_out_as_the_scripts_would_build_them(run: Run, clone: Path, message: str) -> None:
    (clone / "score.py").write_text(score_script(message))
    run()
    assert not (clone.parent / "ran").exists()
    pack = PromptPack(f"{clone.parent}/out/prompts")
    rubric = load_rubric("esc_eval")
    for dialogue in read_jsonl(clone.parent / "out" / "dialogues.jsonl", Dialogue, "dialogues"):
        assert greeting(pack, dialogue.language) == (HELLO_EN if dialogue.language == "en" else HELLO_ZH)
        said = lines(dialogue.language)
        chat = "\n\n".join(said).replace("AI assistant", "**AI助手**").replace("ESC-Role：", "**用户**")
        for key, rules, word in zip(rubric.dimensions, RULES[dialogue.language], WORDS, strict=True):
            asked = judge_messages(pack, rubric, dialogue, "paper", [key])[1]["content"]
            assert asked == f"{rules}\n  The chat: \n{chat}\nGive the {word} score."
    for language, (before, after) in (("en", SEEKER_EN), ("zh", SEEKER_ZH)):
        card = read_jsonl(clone.parent / "out" / f"cards_{language}.jsonl", RoleCard, "cards")[0]
        base = published_card(1, card.language)["base"].replace("not mentioned", "Not mentioned")
        assert seeker_system(pack, card) == f"{before}{base}{after}".strip()


def test_the_pack_stays_out_of_git_and_keeps_an_edited_system_message(run: Run, clone: Path) -> None:
    run("--prompts-out", "pack")
    pack = clone.parent / "pack"
    assert (pack / ".gitignore").read_text().splitlines()[-1] == "*"
    assert (pack / "en" / "judge_paper_system.j2").read_text().strip()
    (pack / "en" / "judge_paper_system.j2").write_text("Mine.\n")
    files = {p: p.read_bytes() for p in pack.rglob("*") if p.is_file()}
    run("--prompts-out", "pack")
    assert {p: p.read_bytes() for p in pack.rglob("*") if p.is_file()} == files
    assert not (clone.parent / "out" / "prompts").exists()


def test_edited_prompts_stay_until_they_are_deleted(run: Run, clone: Path) -> None:
    run()
    pack = clone.parent / "out" / "prompts"
    files = {p: p.read_bytes() for p in pack.rglob("*") if p.is_file()}
    mine, greeting = pack / "en" / "judge_paper.j2", pack / "zh" / "greeting.txt"
    mine.write_text("Mine.\n")
    (clone / "evaluate.py").write_text(ROLE_SCRIPT.replace(HELLO_ZH, "早上好。"))  # published anew, and not edited: replaced
    for _ in range(2):  # the published form is what is remembered, not the edited one
        told = run()
        assert "kept as edited in out/prompts: en/judge_paper.j2; to get a published one back, delete it" in told
        assert mine.read_text() == "Mine.\n" and greeting.read_text() == "早上好。\n"
    mine.unlink()
    assert "kept" not in run()
    assert {p: p.read_bytes() for p in pack.rglob("*") if p.is_file()} == files | {greeting: "早上好。\n".encode()}
    mine.write_text("Mine.\n")
    (clone / "score.py").unlink()  # nothing published any more: what nobody has edited goes
    run()
    assert {p.name for p in (pack / "en").iterdir()} == {"judge_paper.j2", "seeker_system.j2", "greeting.txt"}


def test_a_pack_that_no_import_is_remembered_of_is_not_touched(run: Run, clone: Path) -> None:
    (clone.parent / "pack" / "en").mkdir(parents=True)
    (clone.parent / "pack" / "en" / "greeting.txt").write_text("Mine.\n")
    assert "kept as edited in pack: en/greeting.txt" in run("--prompts-out", "pack")
    assert (clone.parent / "pack" / "en" / "greeting.txt").read_text() == "Mine.\n"


def test_a_file_that_cannot_be_read_leaves_the_last_import_whole(run: Run, clone: Path) -> None:
    run()
    out = clone.parent / "out"
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    (clone / "data" / "card_high_ch.json").write_text(json.dumps([published_card(7, "zh")]))
    (clone / "score" / "Model_A_zh.json").write_text("{")
    with pytest.raises(UserError, match=r"Model_A_zh\.json"):
        run()
    gc.collect()  # the traceback is gone, and with it what was written so far
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ("data/card_high_ch.json", "not found: card_high_zh.json"),
        ("data/test_en.json", "not found: test_en.json"),
        ("result/2024-01-02/Model_A_zh.json", "not found: result files in zh"),
        ("score/Model_A_en.json", "not found: scores of Model_A_en"),
        ("evaluate.py", "not found: greeting (en) in the scripts"),
        ("score.py", "not found: judge's message (zh) in the scripts"),
    ],
)
def test_what_is_missing_is_told_and_the_rest_imported(run: Run, clone: Path, gone: str, told: str) -> None:
    (clone / gone).unlink()
    assert told in run()
    assert (clone.parent / "out" / "cards_en.jsonl").exists()


def test_files_may_lie_side_by_side(run: Run, clone: Path) -> None:
    for kind in ("result", "score"):
        for path in [*clone.glob(f"{kind}/**/*.json")]:
            path.rename(clone / f"{kind}_{path.name}")
    assert "not found" not in run()
    assert len(read_jsonl(clone.parent / "out" / "judgements.jsonl", Judgement, "judgements")) == 21


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("result/2024-01-02/Model_A_zh.json", {"0": ["Somebody：hi"]}, "dialogue 0: line 0 begins with none of"),
        ("result/2024-01-02/Model_A_zh.json", {"0": "hi"}, "dialogue 0: expected a list of lines"),
        ("score/Model_A_zh.json", {"0": {"fluency": 7}}, "dialogue 0, fluency: 7 is not a score (0 to 4, or -1)"),
        ("score/Model_A_zh.json", {"0": {"fluency": True}}, "True is not a score"),
        ("score/Model_A_zh.json", {"0": {"wit": 1}}, "unknown dimension 'wit'"),
        ("result/2024-01-02/Model_A_zh.json", {"k" * 300: lines("zh")}, "should have at most 200 characters"),
        ("result/2024-01-02/Model_A_zh.json", {"9" * 5_000: lines("zh")}, "should have at most 200 characters"),
        ("result/2024-01-02/Model_A_zh.json", {"a\x00": lines("zh")}, "id: a control character"),
    ],
)
def test_malformed_rows_are_told_and_fatal_under_strict(run: Run, clone: Path, name: str, value: Any, told: str) -> None:
    (clone / name).write_text(json.dumps(value))
    assert told in run()
    with pytest.raises(UserError, match=name.split("/")[-1]):
        run("--strict")


@pytest.mark.parametrize("key", ["00", "\u0660"])
def test_only_a_number_as_the_file_writes_it_is_a_place_among_the_cards(clone: Path, key: str) -> None:
    """The test cards hold one card, at place 0."""
    (clone / "result/2024-01-02/Model_A_zh.json").write_text(json.dumps({"0": lines("zh"), key: lines("zh")}))
    found = find_clone(clone)
    cards = load_cards(found.cards["test cards", "zh"])
    dialogues = list(read_dialogues(found.results["Model_A_zh"], cards, CorpusReader(Step("read"))))
    assert [dialogue.card_id for dialogue in dialogues] == ["esc-eval-7", None]


def test_scores_of_no_dialogue_are_dropped_with_a_reason(run: Run, clone: Path) -> None:
    (clone / "score" / "Model_A_zh.json").write_text(json.dumps({"5": SCORES}))
    assert "judgements: 21 in, 14 out (dropped: no such dialogue 7)" in run()


def test_two_files_of_one_name_and_folders_without_any(run: Run, clone: Path, tmp_path: Path) -> None:
    (clone / "result" / "2024-02-03").mkdir()
    (clone / "result" / "2024-02-03" / "Model_A_en.json").write_text("{}")
    with pytest.raises(UserError, match="two files of one name"):
        run()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="none of the published files"):
        run("--source", "empty")
    with pytest.raises(UserError, match="no such folder"):
        run("--source", "nowhere")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def broken(:\n", "not readable as python"),
        ("x = 'a\x00b'\n", "not readable as python"),
        (f"x = {' + '.join(['a'] * 1_200)}\n", "not readable as python"),  # the parser takes it, whoever walks down it does not
        ("prompt = start + card['base'] + 'and so on'\n", "built in an unknown way"),
        (score_script(SUMMED.replace("chat.strip()", "chat.strip() + more")), "the judge's message is built in an unknown way"),
    ],
)
def test_scripts_of_another_shape_are_told(tmp_path: Path, source: str, problem: str) -> None:
    (tmp_path / "x.py").write_text(source)
    found = find_prompts([tmp_path / "x.py"])
    assert len(found.problems) == 1 and problem in found.problems[0] and "x.py" in found.problems[0]
    assert not found.seeker and not found.judge


@pytest.mark.parametrize(
    "text", ["{{ x }}", "{% if %}", "{# no #}", "ends in {", "{", "{{{", "}}", "{{ '{{' }}", "a\n\n  {%- b"]
)
def test_text_is_not_taken_for_a_template(tmp_path: Path, text: str) -> None:
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "t.j2").write_text(f"{escaped(text)}{{{{ x }}}}\n")
    assert PromptPack(f"{tmp_path}/").render("en", "t.j2", x="X") == f"{text}X".strip()
