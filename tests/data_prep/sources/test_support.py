"""The emotional-support and single-turn corpora: each in its published format, every row accounted for."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from core.errors import UserError
from core.files import CONFIGS
from core.ledger import Build, BuildStep
from core.records import Post, SupportDialogue
from core.rows import MALFORMED, CorpusItem, CorpusReader, Source, by_row
from core.settings import load_yaml
from data_prep.sources import SOURCES, _reader_at, corpus_files, installed, read_source
from tests.data_prep.sources import fixtures as F


def read(name: str, place: Path, strict: bool = False) -> tuple[list[CorpusItem], BuildStep, list[str]]:
    """Every item of a corpus, its balanced step, and the problems reported."""
    rows = CorpusReader(BuildStep(name), strict)
    items = []
    for item in SOURCES[name].read(corpus_files(SOURCES[name], str(place)), rows):
        items.append(item)
        rows.step.kept += 1
    rows.step.check()
    return items, rows.step, rows.problems


def turns(item: CorpusItem) -> list[tuple[str, str]]:
    assert isinstance(item, SupportDialogue)
    return [(turn.role, turn.text) for turn in item.dialogue.turns]


@pytest.mark.parametrize(
    ("name", "ids", "dropped"),
    [
        ("epitome", ["p1", "p2"], {"further reply to a post already read": 1, "pair already read": 9}),
        ("mhp_reddit", ["a", "b"], {"further reply to a post already read": 1, "pair already read": 1}),
        ("psych8k", ["0"], {"post without text": 1}),
        ("psyqa", ["7", "8"], {}),
        ("smile", ["3"], {"no reply": 1, MALFORMED: 2}),
        ("extes", ["ExTES/0", "extes/0"], {MALFORMED: 1}),
        ("escot", ["12", "11"], {"dialogue already read": 1}),
        ("cpsycoun", ["D/case_1", "D/case_4", "E/Career/1"], {"someone besides one seeker and one counsellor speaks": 2}),
        ("augesc", ["augesc/0"], {"no reply": 1, MALFORMED: 3}),
        ("emollm", ["aiwei/0", "data/0"], {}),
        ("synthetic_esc", ["datasetStrategiesAnnotation/1/1"], {"no strategy tags: who supports is not stated": 2}),
        ("simpsydial", ["test/0", "train/0"], {"post without text": 1, MALFORMED: 1}),
        ("counselingbench", ["zh/1", "en/1"], {}),
        ("esconv", ["train/0"], {}),
        ("esconv_failed", [], {"no reply": 1}),
        ("esconv_multi", ["valid/0"], {}),
    ],
)
def test_every_row_is_an_item_or_a_drop_with_its_reason(
    tmp_path: Path, name: str, ids: list[str], dropped: dict[str, int]
) -> None:
    items, step, problems = read(name, F.write(tmp_path, F.CORPORA[name]))
    records = [item.dialogue if isinstance(item, SupportDialogue) else item for item in items]
    assert [record.source_id for record in records] == ids
    assert dict(step.dropped) == dropped
    assert len(problems) == dropped.get(MALFORMED, 0)
    assert all(record.source == name and record.id == f"{name}-{record.source_id}" for record in records)
    assert all(record.language in SOURCES[name].languages for record in records)


POSTS = {
    "epitome": [("My bike was stolen,\nagain.", "That is rough."), ("The exam went badly.", "It is one exam.")],
    "mhp_reddit": [("No sleep\nSince May.", "Why?"), ("Alone", None)],  # mhp_full.json comes first by name
    "psych8k": [("I quarrel with my sister.", "What about?")],
    "psyqa": [("总是迟到？\n闹钟响了也起不来。", "先早睡。"), ("怕狗，绕路走。", None)],
    "simpsydial": [("考试前睡不着。", None), ("我和室友吵架了。", None)],
    "counselingbench": [("怕见同事。", None), ("I dread Mondays.", None)],
}


@pytest.mark.parametrize("name", POSTS)
def test_posts_hold_the_text_and_the_first_reply(tmp_path: Path, name: str) -> None:
    items, _, _ = read(name, F.write(tmp_path, F.CORPORA[name]))
    assert [(item.text, item.reply) for item in items if isinstance(item, Post)] == POSTS[name]


DIALOGUES = {
    "smile": [[("seeker", "我很累。"), ("supporter", "怎么了？"), ("seeker", "加班。")]],
    "extes": [
        [("seeker", "It is quiet here."), ("supporter", "That sounds lonely.")],
        [
            ("supporter", "Hi, what is up?"),
            ("seeker", "My cat ran away."),
            ("supporter", "When?"),
            ("seeker", "Thanks."),
            ("supporter", "Any time."),
        ],
    ],
    "escot": [
        [("seeker", "I lost my keys.\nand my bag"), ("supporter", "Oh no.")],
        [("seeker", "I failed."), ("supporter", "At what?")],
    ],
    "cpsycoun": [
        [("seeker", "我怕坐电梯。"), ("supporter", "可以试试：\n1. 深呼吸：慢慢来")],
        [("seeker", "我不敢拒绝。"), ("supporter", "帮我一下。"), ("seeker", "不行。")],
        [("seeker", "我想换工作。"), ("supporter", "为什么？")],
    ],
    "emollm": [
        [("seeker", "（叹气）累"), ("supporter", "（微笑）抱抱")],
        [("seeker", "我失眠。"), ("supporter", "多久了？"), ("seeker", "一周。"), ("supporter", "嗯。")],
    ],
    "synthetic_esc": [[("seeker", "I slept badly."), ("supporter", "Since when?")]],
    "esconv_multi": [[("seeker", "Hello"), ("supporter", "Hi.")]],
}


@pytest.mark.parametrize("name", DIALOGUES)
def test_dialogues_hold_the_turns_of_both_sides(tmp_path: Path, name: str) -> None:
    items, _, _ = read(name, F.write(tmp_path, F.CORPORA[name]))
    assert [turns(item) for item in items] == DIALOGUES[name]


@pytest.mark.parametrize(
    ("name", "place", "about"),
    [
        ("cpsycoun", 2, {"problem": "Career"}),
        ("extes", 0, {"situation": "She moved and knows nobody.", "problem": "Moving"}),
        ("cpsycoun", 0, {}),
        ("synthetic_esc", 0, {"age": "31", "gender": "Woman", "occupation": "Baker", "emotion": "Sadness, Fear"}),
        ("smile", 0, {}),
        (
            "esconv",
            0,
            {
                "situation": "A friend forgot my birthday.",
                "problem": "problems with friends",
                "emotion": "anger",
                "survey": {"relevance": 4.0, "emotion_before": 5.0, "emotion_after": 2.0},
            },
        ),
    ],
)
def test_what_the_corpus_states_of_the_seeker_and_nothing_else(
    tmp_path: Path, name: str, place: int, about: dict[str, object]
) -> None:
    items, _, _ = read(name, F.write(tmp_path, F.CORPORA[name]))
    assert items[place].model_dump(exclude={"dialogue"}, exclude_defaults=True) == about


def test_escot_takes_situation_and_emotion_from_the_annotation(tmp_path: Path) -> None:
    items, _, _ = read("escot", F.write(tmp_path, {"val.json": F.CORPORA["escot"]["val.json"]}))
    about = {"situation": "A failed driving test.", "emotion": "The seeker is sad."}
    assert items[0].model_dump(exclude={"dialogue"}, exclude_defaults=True) == about
    assert turns(items[0])[-1] == ("supporter", "At what?")


def test_merged_and_published_forms_give_the_same_records(tmp_path: Path) -> None:
    published = F.CORPORA["cpsycoun"]
    merged = {
        f"CPsyCoun{part}.jsonl": F.lines(
            *(
                {"file": name, "text": content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)}
                for name, content in published.items()
                if name.startswith(f"CPsyCoun{part}/")
            )
        )
        for part in "DE"
    }
    assert read("cpsycoun", F.write(tmp_path / "m", merged))[0] == read("cpsycoun", F.write(tmp_path / "p", published))[0]
    sample = {"smilechat_sample.jsonl": F.lines({"id": "3", "dialog": F.CORPORA["smile"]["data/3.json"]})}
    lone = {"data/3.json": F.CORPORA["smile"]["data/3.json"]}
    assert read("smile", F.write(tmp_path / "s", sample))[0] == read("smile", F.write(tmp_path / "l", lone))[0]


TAGGED = [("seeker", "I slept badly."), ("supporter", "Since when?")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Nora: "I slept badly."\n\nTom: "[Question] Since when?"', TAGGED),
        ("Nora: I slept badly.\nTom (Question): Since when?", TAGGED),
        ("Nora: I slept badly.\nTom: Since when? (**Question**)", TAGGED),
        ("Nora: I slept badly.\nTom: Since when? (Question, Providing suggestions)", TAGGED),
        ("Nora: I slept badly.\n[Question] Tom: Since when?", TAGGED),
        ("Nora: I slept badly.\n[Tom - Question]: Since when?", TAGGED),
        ("Nora: I slept badly.\nTom: Question - Since when?", TAGGED),
        ("Nora: I slept badly.\n(Tom: Question) Tom: Since when?", TAGGED),
        ("Nora: I slept badly.\nTom: *Restatement or Paraphrasing* Since when?", TAGGED),
        ("**Nora Vale:** I slept badly.\n**Tom Reed:** [Affirmation and reassurance & Question] Since when?", TAGGED),
        ("NV: I slept badly.\nTR: [Question] Since when?", TAGGED),
        ("Agent1 (Nora): I slept badly.\nAgent2 (Tom): [Question] Since when?", TAGGED),
        ("(Tom sits down.)\nNora: I slept badly.\n(Question)\nTom: (Question) Since when?", TAGGED),
        ("Tom: I slept badly.\nNora: [Question] Since when?", TAGGED),
        ("Nora: I slept badly.\nTom: [Question] Since when?\nMay?", [TAGGED[0], ("supporter", "Since when?\nMay?")]),
        ("Nora: I slept (badly).\nTom: [Question] Since when?", [("seeker", "I slept (badly)."), TAGGED[1]]),
        ("Nora: I slept badly.\nTom: Since when?", "no strategy tags: who supports is not stated"),
        ("Nora: [Other] I slept badly.\nTom: [Question] Since when?", "strategy tags on both sides"),
        (
            "Nora: I slept badly.\nWaiter: Tea?\nTom: [Question] Since when?",
            "a speaker or a label that is none of the two agents",
        ),
        ("it was a cold day\nNora: I slept badly.", "turns without a speaker"),
        ("Tom: [Question] Since when?\nTom: [Question] Why?", "no reply"),
    ],
)
def test_strategy_tags_tell_the_supporter_and_are_removed(
    tmp_path: Path, text: str, expected: list[tuple[str, str]] | str
) -> None:
    header = ["Scenario ID", "Scenario context", "Conversation 1"]
    items, step, _ = read(
        "synthetic_esc", F.write(tmp_path, {"datasetStrategiesAnnotation.csv": F.table(header, ["9", F.SCENE, text])})
    )
    found = turns(items[0]) if items else next(iter(step.dropped))
    assert found == expected


def test_malformed_rows_are_named_and_fatal_under_strict(tmp_path: Path) -> None:
    place = F.write(tmp_path, F.CORPORA["smile"])
    _, _, problems = read("smile", place)
    assert [problem.split(": ", 1)[0] for problem in problems] == [f"{place}/data/5.json", f"{place}/data/6.json:1"]
    assert "unknown speaker 'doctor'" in problems[0] and "malformed JSON" in problems[1]
    with pytest.raises(UserError, match="5.json"):
        read("smile", place, strict=True)


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_a_missing_corpus_is_explained(tmp_path: Path, source: Source) -> None:
    (tmp_path / "ed.tsv").write_text("")
    with pytest.raises(UserError) as error:
        corpus_files(source, str(tmp_path))
    for part in (source.about, source.where, source.licence):
        assert part and part in str(error.value)
    assert source.languages and (source.paper or source.name == "generic")


def test_corpora_of_other_packages_are_read_and_broken_ones_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    F.write(
        tmp_path,
        {
            "helpline.py": "import data_prep.sources as s\nSOURCE = s.SOURCES['smile'].model_copy(update={'about': 'x'})\n",
            "broken.py": "import nowhere_to_be_found\n",
            "h-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: helpline\nVersion: 1\n",
            "h-1.dist-info/entry_points.txt": "[esc_eval.corpora]\nhelpline = helpline:SOURCE\nother = broken:S\n",
        },
    )
    monkeypatch.syspath_prepend(tmp_path)
    ((name, source),) = installed().items()
    assert (name, source.name, source.about) == ("helpline", "helpline", "x")
    warning = capsys.readouterr().err
    assert "corpus other (package helpline) cannot be loaded" in warning and "nowhere_to_be_found" in warning


def test_a_reader_that_is_not_there_or_names_another_corpus_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    post = Post(id="p", language="en", source="another", source_id="p", text="I cannot sleep.")
    made = SOURCES["mhp_reddit"].model_copy(update={"name": "calls", "read": by_row(lambda row, id: post)})
    for name, source, told in (
        ("calls", made, "corpus calls: its reader calls the source of p 'another'"),
        ("gone", made.model_copy(update={"name": "gone", "read": _reader_at("posts:gone")}), "no reader posts:gone in"),
        ("none", made.model_copy(update={"name": "none", "read": _reader_at("None")}), "no reader None in"),
    ):
        monkeypatch.setitem(SOURCES, name, source)
        with pytest.raises(UserError, match=told):
            read_source(name, str(tmp_path / "x.jsonl"), Build(tmp_path / "out", "read"), Console(quiet=True))


def test_table_5_of_the_paper() -> None:
    drawn = {s.name: (s.table5.format, s.table5.resource, s.table5.count) for s in SOURCES.values() if s.table5}
    assert drawn == {
        "epitome": ("QA", "Human", 500),
        "mhp_reddit": ("QA", "Human", 1000),
        "psych8k": ("QA", "Human", 1000),
        "esconv": ("MD", "Human", 1000),
        "extes": ("MD", "ChatGPT", 500),
        "psyqa": ("QA", "Human", 1000),
        "smile": ("MD", "ChatGPT", 1000),
    }
    quotas = load_yaml(CONFIGS / "data" / "table5.yaml", "quota file")["quotas"]
    assert quotas == {name: count for name, (_, _, count) in drawn.items()}
