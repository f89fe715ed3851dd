"""Import of the published repository, on a miniature clone of our own in the same shape."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_jsonl
from core.judge_prompts import judge_messages
from core.ledger import BuildStep
from core.prompts import PromptPack, greeting, seeker_system
from core.records import Dialogue, Judgement, RoleCard
from core.rows import CorpusReader
from core.rubrics import load_rubric
from data_prep.__main__ import app
from data_prep.cards import load_cards
from data_prep.published import escaped
from data_prep.published.comparison import NotCompared, _marked, _run
from data_prep.published.esc_eval import find_clone, find_prompts, read_dialogues
from evalsuite.papers.esc_eval import EscEval
from tests.published_clone import (
    EVALUATE,
    HELLO,
    INTERNLM2,
    INTERNLM2_SYSTEM,
    RULES,
    SCORES,
    SEEKER,
    SUMMED,
    WORDS,
    lines,
    make_clone,
    published_card,
    score_script,
)

pytestmark = pytest.mark.slow

POISON = "raise SystemExit('this script was run')\nopen('ran', 'w')\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_clone(tmp_path / "clone")


Run = Callable[..., str]


@pytest.fixture
def run(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`import` on the clone, into OUT beside it; returns what was printed, in one line."""
    monkeypatch.chdir(clone.parent)

    def call(*arguments: str, place: str = "clone") -> str:
        result = CliRunner().invoke(app, ["import", "--source", f"esc_eval={place}", "--out", "out", *arguments])
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
    assert (cards["en"][0].age, cards["en"][0].gender, cards["en"][0].category) == ("", "Female", ("Family and Life",))
    assert cards["en"][0].text == published_card(1, "en")["base"]
    dialogues = read_jsonl(out / "dialogues.jsonl", Dialogue, "dialogues")
    assert [(d.id, d.card_id, d.supporter, d.exchanges) for d in dialogues] == [
        ("esc-eval-Model_A_en-0", "esc-eval-1", "Model_A", 1),
        ("esc-eval-Model_A_en-1", None, "Model_A", 1),  # the test cards hold one card only
        ("esc-eval-Model_A_zh-0", "esc-eval-7", "Model_A", 1),
    ]
    assert [t.text for t in dialogues[1].turns] == [HELLO["en"], " Bad day &amp; night.\nVery bad.\n", "Tell me more."]
    verdicts = read_jsonl(out / "judgements.jsonl", Judgement, "judgements")
    assert len(verdicts) == 21
    first = {v.dimension: v.value for v in verdicts if v.dialogue_id == dialogues[0].id}
    rubric = load_rubric("esc_eval")
    assert list(first) == list(rubric.dimensions)
    assert list(first.values()) == [4, 3, 2, 1, 0, None, 2]
    assert len(json.loads((out / "manifest.json").read_text())["inputs"]) == 10


def test_prompts_come_out_as_the_scripts_would_build_them(run: Run, clone: Path) -> None:
    (clone / "score.py").write_text(score_script(more=POISON))
    assert "not compared with the published scripts: score.py: it ends at once" in run()
    assert not (clone.parent / "ran").exists()
    pack = PromptPack(f"{clone.parent}/out/prompts")
    rubric = load_rubric("esc_eval")
    for dialogue in read_jsonl(clone.parent / "out" / "dialogues.jsonl", Dialogue, "dialogues"):
        assert greeting(pack, dialogue.language) == (HELLO[dialogue.language])
        said = lines(dialogue.language)
        chat = "\n\n".join(said).replace("AI assistant", "**AI助手**").replace("ESC-Role：", "**用户**")
        for key, rules, word in zip(rubric.dimensions, RULES[dialogue.language], WORDS, strict=True):
            asked = judge_messages(pack, rubric, dialogue, "paper", [key])[1]["content"]
            assert asked == f"{rules}\n  The chat: \n{chat}\nGive the {word} score."
    for language, (before, after) in SEEKER.items():
        card = read_jsonl(clone.parent / "out" / f"cards_{language}.jsonl", RoleCard, "cards")[0]
        base = published_card(1, card.language)["base"]
        assert seeker_system(pack, card) == f"{before}{base}{after}".strip()


def test_edited_prompts_stay_until_they_are_deleted(run: Run, clone: Path) -> None:
    run()
    pack = clone.parent / "out" / "prompts"
    files = {p: p.read_bytes() for p in pack.rglob("*") if p.is_file()}
    assert (pack / ".gitignore").read_text().splitlines()[-1] == "*"
    assert (pack / "en" / "judge_paper_system.j2").read_text().strip(), "ours stands in"
    mine, greeting = pack / "en" / "judge_paper.j2", pack / "zh" / "greeting.txt"
    mine.write_text("Mine.\n")
    (clone / "evaluate.py").write_text(EVALUATE.replace(HELLO["zh"], "早上好。"))  # published anew, and not edited: replaced
    for _ in range(2):  # the published form is what is remembered, not the edited one
        told = run()
        assert "kept as edited in out/prompts: en/judge_paper.j2; to get a published one back, delete it" in told
        assert mine.read_text() == "Mine.\n" and greeting.read_text() == "早上好。\n"
    mine.unlink()
    assert "kept" not in run()
    listed = pack / "published.json"
    hashes = json.loads(files[listed]) | {"zh/greeting.txt": hashlib.sha256(greeting.read_bytes()).hexdigest()}
    assert json.loads(listed.read_bytes()) == hashes
    changed = {greeting: "早上好。\n".encode(), listed: listed.read_bytes()}
    assert {p: p.read_bytes() for p in pack.rglob("*") if p.is_file()} == files | changed
    mine.write_text("Mine.\n")
    (clone / "score.py").unlink()  # nothing published any more: what nobody has edited goes
    run()
    assert {p.name for p in (pack / "en").iterdir()} == {
        "judge_paper.j2",
        "seeker_system.j2",
        "supporter_paper_system.j2",
        "greeting.txt",
    }


def test_a_pack_that_no_import_is_remembered_of_is_not_touched(run: Run, clone: Path) -> None:
    mine = clone.parent / "out" / "prompts" / "en" / "greeting.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("Mine.\n")
    assert "kept as edited in out/prompts: en/greeting.txt" in run()
    assert mine.read_text() == "Mine.\n"


def test_what_is_missing_is_told_and_the_rest_imported(run: Run, clone: Path) -> None:
    gone = {
        "data/card_high_ch.json": "high cards in zh",
        "data/test_en.json": "test cards in en",
        "result/2024-01-02/Model_A_zh.json": "result files in zh",
        "score/Model_A_en.json": "score files in en",
        "evaluate.py": "greeting (en) in the scripts",
        "score.py": "judge's message (zh) in the scripts",
    }
    for name in gone:
        (clone / name).unlink()
    printed = run()
    assert all(f"not found: {what}" in printed for what in gone.values())
    assert (clone.parent / "out" / "cards_en.jsonl").exists()


def test_files_may_lie_side_by_side(run: Run, clone: Path) -> None:
    for kind in ("result", "score"):
        for path in [*clone.glob(f"{kind}/**/*.json")]:
            path.rename(clone / f"{kind}_{path.name}")
    assert "not found" not in run()
    assert len(read_jsonl(clone.parent / "out" / "judgements.jsonl", Judgement, "judgements")) == 21


def test_malformed_rows_are_told_and_scores_of_no_dialogue_counted(run: Run, clone: Path) -> None:
    dialogues = {"0": ["Somebody：hi"], "1": "hi", "k" * 300: lines("zh"), "9" * 5_000: lines("zh"), "a\x00": lines("zh")}
    scores = {"0": {"fluency": 7, "empathic": True, "wit": 1}, "5": SCORES}
    (clone / "result/2024-01-02/Model_A_zh.json").write_text(json.dumps(dialogues))
    (clone / "score/Model_A_zh.json").write_text(json.dumps(scores))
    printed = run()
    for problem in (
        "Model_A_zh.json: dialogue 0: line 0 begins with none of",
        "dialogue 1: expected a list of lines",
        "dialogue 0, fluency: 7 is not a score (0 to 4, or -1)",
        "True is not a score",
        "unknown dimension 'wit'",
        "id: a control character",
    ):
        assert problem in printed
    assert printed.count("should have at most 200 characters") == 2
    assert "no such dialogue 7" in printed


@pytest.mark.parametrize("key", ["00", "\u0660"])
def test_only_a_number_as_the_file_writes_it_is_a_place_among_the_cards(clone: Path, key: str) -> None:
    """The test cards hold one card, at place 0."""
    (clone / "result/2024-01-02/Model_A_zh.json").write_text(json.dumps({"0": lines("zh"), key: lines("zh")}))
    found = find_clone(clone)
    cards = load_cards(found.cards["test cards", "zh"])
    dialogues = list(read_dialogues(found.results["Model_A_zh"], cards, CorpusReader(BuildStep("read"))))
    assert [dialogue.card_id for dialogue in dialogues] == ["esc-eval-7", None]


def test_two_files_of_one_name_and_folders_without_any(run: Run, clone: Path, tmp_path: Path) -> None:
    (clone / "result" / "2024-02-03").mkdir()
    (clone / "result" / "2024-02-03" / "Model_A_en.json").write_text("{}")
    with pytest.raises(UserError, match="two files of one name"):
        run()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="none of the published files"):
        run(place="empty")
    with pytest.raises(UserError, match="no such folder"):
        run(place="nowhere")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def broken(:\n", "not readable as python"),
        ("x = 'a\x00b'\n", "not readable as python"),
        (f"x = {' + '.join(['a'] * 1_200)}\n", "not readable as python"),  # the parser takes it, whoever walks down it does not
        (score_script(SUMMED.replace("chat.strip()", "chat.strip() + more")), "the judge's message has an unknown form"),
    ],
)
def test_scripts_of_another_shape_are_told(tmp_path: Path, source: str, problem: str) -> None:
    (tmp_path / "x.py").write_text(source)
    found = find_prompts([tmp_path / "x.py"])
    assert len(found.problems) == 1 and problem in found.problems[0] and "x.py" in found.problems[0]
    assert not found.files


@pytest.mark.parametrize(
    "text", ["{{ x }}", "{% if %}", "{# no #}", "ends in {", "{", "{{{", "}}", "{{ '{{' }}", "a\n\n  {%- b"]
)
def test_text_is_not_taken_for_a_template(tmp_path: Path, text: str) -> None:
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "t.j2").write_text(f"{escaped(text)}{{{{ x }}}}\n")
    assert PromptPack(f"{tmp_path}/").render("en", "t.j2", x="X") == f"{text}X".strip()


# --- the comparison with the scripts ----------------------------------------------------------------------------------------

OURS = {**EscEval.dialogue_parts, **EscEval.judge_parts}


def compared(printed: str) -> dict[str, str]:
    """Part → outcome, of what was printed."""
    return dict(re.findall(r"published scripts: (\w[\w, ]*) \(\d+ \w+\): (.*?)(?= compared with| high cards)", printed))


def test_the_scripts_would_send_what_is_sent_here(run: Run, clone: Path) -> None:
    (clone.parent / "base").mkdir()
    (clone.parent / "base" / "modeling_internlm2.py").write_text(INTERNLM2)
    printed = run("--source", "internlm2=base")
    parts = [f"{part}, {language}" for language in ("en", "zh") for part in ("seeker", "supporter", "judge")]
    assert compared(printed) == dict.fromkeys([*parts, "how replies are drawn"], "equal")
    assert "seeker, zh (10 calls)" in printed, "two cards, five exchanges"
    assert "judge, en (14 calls)" in printed and "judge, zh (21 calls)" in printed, "the held dialogues and those of the clone"
    pack = PromptPack(f"{clone.parent}/out/prompts")
    assert len(OURS) == 5 and pack.own_wording(["en", "zh"], OURS) == []
    assert pack.render("zh", "judge_paper_system.j2") == INTERNLM2_SYSTEM
    manifest = json.loads((clone.parent / "out" / "manifest.json").read_text())
    assert len(manifest["figures"]["comparison"]) == 7 and not any(
        part["difference"] for part in manifest["figures"]["comparison"]
    )
    (pack.folder / "zh" / "greeting.txt").write_text("早。\n")
    assert pack.own_wording(["en"], OURS) == [] and pack.own_wording(["en", "zh"], OURS) == ["the greeting"]


def test_without_internlm2s_code_its_system_message_is_ours(run: Run, clone: Path) -> None:
    assert "not in the clone: the judge's system message" in run()
    assert PromptPack(f"{clone.parent}/out/prompts").own_wording(["en"], OURS) == ["the judge's system message"]
    (clone.parent / "base").mkdir()
    with pytest.raises(UserError, match=r"internlm2=base: no modeling_internlm2\.py there"):
        run("--source", "internlm2=base")
    (clone.parent / "base" / "modeling_internlm2.py").write_text(INTERNLM2.replace("meta_instruction", "system"))
    with pytest.raises(UserError, match="no function chat with a default meta_instruction"):
        run("--source", "internlm2=base")


@pytest.mark.parametrize(
    ("file", "change", "part", "told", "ours"),
    [
        (
            "evaluate.py",
            ("skip_special_tokens=True)[0]", "skip_special_tokens=True)[0].strip()"),
            "seeker, en",
            "card esc-eval-1, turn 3: message 2 (assistant), character 0: in the script 'I feel stuck.' and here '",
            ["the seeker's prompt", "the greeting", "the supporter's system message"],  # it goes on in the supporter's history
        ),
        (
            "evaluate.py",
            ("def __call__(self, heard, warmth=0.0) -> str:", "def __call__(self, heard) -> str:\n        heard = heard[-1:]"),
            "supporter, zh",
            "card esc-eval-7, turn 4: 2 messages in the script, 4 here",
            ["the supporter's system message"],
        ),
        (
            "evaluate.py",
            ("generate(ids, max_new_tokens=512)", "generate(ids, max_new_tokens=99, do_sample=False)"),
            "how replies are drawn",
            "Qwen/Qwen1.5-7B-Chat: temperature 0, 99 tokens in the script, its own temperature, 512 tokens here",
            [],
        ),
        (
            "score.py",
            ('"**用户**")', '"**他**")'),
            "judge, zh",
            "dialogue 0, fluency: message 0 (user), character",
            ["the judge's prompt"],
        ),
    ],
)
def test_the_first_difference_is_told(
    run: Run, clone: Path, file: str, change: tuple[str, str], part: str, told: str, ours: list[str]
) -> None:
    source = (clone / file).read_text()
    (clone / file).write_text(source.replace(*change))
    assert (clone / file).read_text() != source
    found = compared(run())
    assert found[part].startswith(told)
    pack = PromptPack(f"{clone.parent}/out/prompts")
    assert [p for p in pack.own_wording(["en", "zh"], OURS) if p != "the judge's system message"] == ours


def asked(folder: Path, more: str) -> int:
    """How often the scorer's script, with more code in it, asks about one dialogue."""
    (folder / "score.py").write_text(score_script(more=more))
    calls, _ = _run(folder / "score.py", ["score.py"], {"held_en.json": json.dumps({"0": lines("en")})}, ("3",))
    return len(calls)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import subprocess", "it imports subprocess"),
        ("from pathlib import Path", "it imports pathlib"),
        ("open('/etc/passwd')", "it reads passwd"),
        ("os.system('touch ran')", "AttributeError"),
        ("os.environ.clear.__self__", "__self__ is not allowed"),
        ("().__class__.__base__.__subclasses__()", "is not allowed"),
        ("__builtins__", "__builtins__ is not allowed"),
        ("(n for n in [1]).gi_frame.f_back", "is not allowed"),
        (
            "match open:\n    case object(__globals__=g):\n        g['sys'].modules['os'].system('touch ran')",
            "match is not allowed",
        ),
        ("from json import __dict__ as inside", "__dict__ is not allowed"),
        ("import json.__init__", "json.__init__ is not allowed"),
        ("eval('1')", "NameError"),
        ("getattr(os, 'listdir')", "NameError"),
        ("x = [0] * 2**40", "MemoryError"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit", "it ends at once"),
    ],
)
def test_a_script_is_let_do_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotCompared, match=re.escape(told)):
        asked(tmp_path, f"import os\n{line}")
    assert not (tmp_path / "ran").exists()


def test_a_script_reads_no_file_by_way_of_its_options(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("--secret")
    more = f"""
import argparse
options = argparse.ArgumentParser(fromfile_prefix_chars="@")
options.add_argument("given")
if options.parse_args(["@{tmp_path / "secret"}"]).given[0] != "@":
    raise SystemExit
"""
    assert asked(tmp_path, more) == 7


def test_a_script_that_does_not_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.published.comparison._SECONDS", 1)
    with pytest.raises(NotCompared, match=r"score\.py does not end"):
        asked(tmp_path, "while True: pass")


def test_what_is_no_dialogue_is_not_judged(run: Run, clone: Path) -> None:
    assert _marked("no json") == _marked("[]") == {}
    source = (clone / "evaluate.py").read_text()
    written = """f.write('{"0": [1, "Somebody：hi"], "1": 2}')"""
    (clone / "evaluate.py").write_text(source.replace("f.write(json.dumps(held, ensure_ascii=False))", written))
    assert "judge, en (7 calls): equal" in run(), "the clone's own dialogue is left"
