"""Imports of human scores: three corpora in their published formats (invented content), and files in our own form."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.rubrics import load_rubric
from data_prep.__main__ import app
from data_prep.scores.human import read_scores
from evalsuite.commands.agree import read_judgements
from tests.data_prep.running import steps
from tests.files_of_rows import write_sheet
from tests.verbs import printed


def call(out: Path, *arguments: object) -> str:
    return printed(app, "import", "--out", out, *arguments)


def scores_of(folder: Path, name: str = "scores.jsonl") -> list[tuple[str, str, str, float]]:
    return [(s.dialogue_id, s.annotator, s.dimension, s.value) for s in read_scores(folder / name)]


# --- ESConv ---------------------------------------------------------------------------------------------------------------


def said(speaker: str, text: str, rating: str | None = None) -> dict[str, Any]:
    return {"text": text, "speaker": speaker} | ({"rating": rating} if speaker == "usr" else {"strategy": "Question"})


TALK = [
    said("usr", "My oven hates me.", "3"),
    said("sys", "What did it do?"),
    said("sys", "Take your time."),
    said("usr", "It burnt"),
    said("usr", "the bread.", "4"),
    said("sys", "   "),
    said("usr", "All of it.", "2"),
    said("sys", "All of it?"),
    said("usr", "Yes.", "5"),
]


def esconv_row(**fields: Any) -> dict[str, Any]:
    row = {"emotion_type": "anger", "problem_type": "ovens", "situation": "Bread.", "dialog": TALK}
    return row | {"init_intensity": 4, "final_intensity": 2, "relevance": 5, "empathy": 3} | fields


def esconv(folder: Path, *rows: dict[str, Any]) -> str:
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"esconv={folder}"


def test_esconv_survey_with_missing_answers(tmp_path: Path) -> None:
    call(tmp_path / "out", "--source", esconv(tmp_path, esconv_row(), esconv_row(empathy=-1, relevance=-1, dialog=TALK[3:])))
    assert scores_of(tmp_path / "out") == [
        ("esconv-train/0", "seeker", "empathy", 3.0),
        ("esconv-train/0", "seeker", "relevance", 5.0),
        ("esconv-train/0", "seeker", "emotion_before", 4.0),
        ("esconv-train/0", "seeker", "emotion_after", 2.0),
        ("esconv-train/1", "seeker", "emotion_before", 4.0),
        ("esconv-train/1", "seeker", "emotion_after", 2.0),
    ]
    rubric = load_rubric("esconv_survey")
    assert {s.dimension for s in read_scores(tmp_path / "out" / "scores.jsonl")} == set(rubric.dimensions)
    assert {s.rubric for s in read_scores(tmp_path / "out" / "scores.jsonl")} == {rubric.name}


def test_esconv_ratings_point_at_the_supporters_merged_turn(tmp_path: Path) -> None:
    call(tmp_path / "out", "--source", esconv(tmp_path, esconv_row()))
    dialogue = read_jsonl(tmp_path / "out" / "dialogues.jsonl", Dialogue, "dialogues")[0]
    assert [turn.role for turn in dialogue.turns] == ["seeker", "supporter", "seeker", "supporter", "seeker"]
    found = read_scores(tmp_path / "out" / "turn_scores.jsonl")
    assert [(s.turn, s.value, s.rubric, s.dimension) for s in found] == [
        (1, 2.0, "esconv_turns", "helpfulness"),
        (3, 5.0, "esconv_turns", "helpfulness"),
    ]
    assert "helpfulness" in load_rubric("esconv_turns").dimensions
    dropped = {"nothing said by the supporter yet": 1, "rated again later": 1}
    assert steps(tmp_path / "out")["esconv: ratings of turns"] == (4, 2, dropped)


def test_esconv_original_json_with_failed_dialogues(tmp_path: Path) -> None:
    lines = [
        ("speaker", "Rain.", {}),
        ("listener", "Where?", {"strategy": "Question"}),
        ("speaker", "Here.", {"feedback": "1"}),
    ]
    dialog = [{"speaker": who, "content": text, "annotation": more} for who, text, more in lines]
    survey = {"seeker": {"empathy": "1", "relevance": "2"}, "supporter": {"relevance": "5"}}
    row = {"emotion_type": "a", "problem_type": "b", "situation": "c", "survey_score": survey, "dialog": dialog}
    (tmp_path / "FailedESConv.json").write_text(json.dumps([row]))
    call(tmp_path / "out", "--source", f"esconv_failed={tmp_path}")
    assert [score[2:] for score in scores_of(tmp_path / "out")] == [("empathy", 1.0), ("relevance", 2.0)]
    assert [(s.turn, s.value) for s in read_scores(tmp_path / "out" / "turn_scores.jsonl")] == [(1, 1.0)]


def test_malformed_rows_are_told_and_malformed_ratings_counted_while_the_survey_stays(tmp_path: Path) -> None:
    place = esconv(tmp_path, esconv_row(empathy=7), esconv_row(dialog=[*TALK, said("usr", "Bye.", "9")]))
    output = call(tmp_path / "out", "--source", place).replace("\n", "")
    assert "train.jsonl:1: empathy" in output
    assert [score[0] for score in scores_of(tmp_path / "out")] == ["esconv-train/1"] * 4
    assert steps(tmp_path / "out")["esconv: ratings of turns"] == (1, 0, {"malformed (all ratings of a dialogue)": 1})


# --- EPITOME --------------------------------------------------------------------------------------------------------------

FILES = ("emotional-reactions-reddit.csv", "explorations-reddit.csv", "interpretations-reddit.csv")


def pair(reply: str, level: Any, post: str = "p1", text: str = "Oh,\nwell.") -> dict[str, Any]:
    return {
        "sp_id": post,
        "rp_id": reply,
        "seeker_post": "I lost my hat.",
        "response_post": text,
        "level": level,
        "rationales": "",
    }


def epitome(folder: Path, rows: list[dict[str, Any]]) -> str:
    for file in FILES:
        write_sheet(folder / file, [*rows[0]], rows)
    return f"epitome={folder}"


def test_epitome_pairs(tmp_path: Path) -> None:
    rows = [pair("r1", 0), pair("r2", 2), pair("r1", 0), pair("r2", 1), pair("r3", 1, text=" "), pair("r4", 3)]
    output = call(tmp_path / "out", "--source", epitome(tmp_path, rows)).replace("\n", "")
    dialogues = read_jsonl(tmp_path / "out" / "dialogues.jsonl", Dialogue, "dialogues")
    assert [(d.id, d.source_id, [t.text for t in d.turns]) for d in dialogues] == [
        ("epitome-p1-r1", "p1/r1", ["I lost my hat.", "Oh,\nwell."]),
        ("epitome-p1-r2", "p1/r2", ["I lost my hat.", "Oh,\nwell."]),
    ]
    found = scores_of(tmp_path / "out")
    assert {(name, value) for name, _, _, value in found} == {("epitome-p1-r1", 0.0), ("epitome-p1-r2", 2.0)}
    assert {dimension for _, _, dimension, _ in found} == set(load_rubric("epitome").dimensions) and len(found) == 6
    taken, kept, dropped = steps(tmp_path / "out")["read epitome"]
    assert (taken, kept) == (18, 6) and dropped == {
        "malformed": 3,
        "empty post or reply": 3,
        "the pair again, with the same level": 3,
        "the pair again, with another level": 3,
    }
    assert "emotional-reactions-reddit.csv:11: level" in output, "the line on which the record begins"


def test_a_file_that_is_no_mechanism(tmp_path: Path) -> None:
    write_sheet(tmp_path / "levels.csv", [*pair("r1", 0)], [pair("r1", 0)])
    with pytest.raises(UserError, match=r"levels\.csv: .* must begin with a mechanism"):
        call(tmp_path / "out", "--source", f"epitome={tmp_path / 'levels.csv'}")


# --- EmpathicComm ---------------------------------------------------------------------------------------------------------


def utterance(number: int, text: str, name: str = "hit:1_conv:2") -> dict[str, Any]:
    who = str(90 - number % 2)
    return {"conv_id": name, "utterance_idx": number, "prompt": "My cat_comma_ gone.", "speaker_idx": who, "utterance": text}


def empathic_comm(folder: Path, flat: bool = False) -> str:
    """A miniature of the published repository; `flat` has its files in one folder, as FOLDER__NAME."""

    def write(place: str, rows: list[dict[str, Any]]) -> None:
        path = folder / ("__".join(Path(place).parts[-2:]) if flat else place)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sheet(path, [*rows[0]], rows)

    lines = [utterance(1, "I looked everywhere."), utterance(2, "Oh no_comma_ really?"), utterance(3, "Yes.")]
    gap = [utterance(1, "a", "hit:3_conv:6"), utterance(3, "c", "hit:3_conv:6")]
    write("original_data/sample_empatheticdialogues.csv", lines + gap)
    write("original_data/sample_epitome.csv", [pair("r1", "")])
    one = {"conv_id": "hit:1_conv:2", "empathy": "3.5", "relevance": "", "fluency": "5.0"}
    pairs = {"sp_id": "p1", "level_emotional_reactions": 2, "level_interpretations": 1, "level_explorations": 0}
    talks, posts = "annotations/empatheticdialogues", "annotations/epitome"
    write(f"{talks}/crowd_ratings.csv", [one])
    write(f"{talks}/expert1_ratings.csv", [one | {"empathy": 2, "relevance": 4}, one | {"conv_id": "gone"}])
    write(f"{talks}/gpt_ratings.csv", [{"": 0} | one | {"empathy": 1}])
    write(f"{posts}/crowd_ratings.csv", [pairs])
    write(f"{posts}/claude_ratings.csv", [{"": 0} | pairs])
    listening = [{"conversation_id": number, "validating_emotions": 4, "advice_giving": 1} for number in range(3)]
    write("annotations/lend_an_ear/expert1_ratings.csv", listening)
    write("annotations/perceived_empathy/crowd_ratings.csv", [{"id": "5b", "m_understood": 6.67}])
    write("original_data/perceived_empathy_self_ratings.csv", [{"id": "5b", "understood": 6}])
    write("original_data/sample_lend_an_ear_conversations.csv", [{"conversation_id": 0, "full_conversation": "Seeker: Hm."}])
    write("annotations/table_kappa.csv", [{"pair": "experts", "kappa": 0.5}])
    return f"empathic_comm={folder}"


@pytest.mark.parametrize("flat", [False, True])
def test_empathic_comm(tmp_path: Path, flat: bool) -> None:
    output = call(tmp_path / "out", "--source", empathic_comm(tmp_path / "clone", flat))
    assert "left out:" not in output
    dialogues = read_jsonl(tmp_path / "out" / "dialogues.jsonl", Dialogue, "dialogues")
    assert [d.id for d in dialogues] == ["empathic_comm-hit:1_conv:2", "epitome-p1-r1"]
    assert [(t.role, t.text) for t in dialogues[0].turns] == [
        ("seeker", "My cat, gone.\nI looked everywhere."),
        ("supporter", "Oh no, really?"),
        ("seeker", "Yes."),
    ]
    scores = read_scores(tmp_path / "out" / "scores.jsonl")
    assert [(s.annotator, s.rubric, s.dimension, s.value) for s in scores] == [
        ("crowd", "empathic_comm", "empathy", 3.5),
        ("crowd", "empathic_comm", "fluency", 5.0),
        ("expert1", "empathic_comm", "empathy", 2.0),
        ("expert1", "empathic_comm", "relevance", 4.0),
        ("expert1", "empathic_comm", "fluency", 5.0),
        ("epitome", "epitome", "emotional_reactions", 2.0),
        ("epitome", "epitome", "interpretations", 1.0),
        ("epitome", "epitome", "explorations", 0.0),
    ]
    verdicts: list[Judgement] = read_judgements(tmp_path / "out" / "judgements.jsonl")
    assert [(j.judge, j.dimension, j.value) for j in verdicts if j.dimension in ("empathy", "interpretations")] == [
        ("claude-3.7-sonnet", "interpretations", 1.0),
        ("gpt-4o", "empathy", 1.0),
    ]
    dropped = {"its dialogue lacks an utterance": 2, "a rating without its text": 1}
    assert steps(tmp_path / "out")["read empathic_comm"] == (12, 9, dropped)


def test_what_two_corpora_share_is_counted_once(tmp_path: Path) -> None:
    """EmpathicComm's pairs are EPITOME's, and so are the levels of its crowd."""
    (tmp_path / "e").mkdir()
    both = ("--source", epitome(tmp_path / "e", [pair("r1", 0)]), "--source", empathic_comm(tmp_path / "c"))
    call(tmp_path / "out", *both)
    assert steps(tmp_path / "out")["dialogues"] == (3, 2, {"in two corpora, the first stands": 1})
    again = {"given twice: same value": 1, "given twice: another value, the first stands": 2}
    assert steps(tmp_path / "out")["scores"] == (11, 8, again)


# --- our own form ---------------------------------------------------------------------------------------------------------

HEAD = "dialogue_id,language,annotator,rubric,dimension,value,turn\n"
GOOD = "d1,en,ann,esc_eval_human,empathy,3,\n"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    turns = (Turn(role="seeker", text="Hats."), Turn(role="supporter", text="Hm."))
    names = [("d1", "en"), ("d2", "zh"), ("d3", "en")]
    write_jsonl(
        tmp_path / "d.jsonl",
        [Dialogue.model_validate({"id": n, "language": lang, "source": "own", "turns": turns}) for n, lang in names],
    )
    return tmp_path


def test_own_scores_from_csv_and_jsonl_are_the_same(own: Path) -> None:
    (own / "s.csv").write_text(HEAD + GOOD + "d1,en,ann,esconv_turns,helpfulness,2.5,1\nd2,zh,bob,esc_eval_human,skill,4,\n")
    call(own / "a", "--gold", own / "s.csv", "--dialogues", own / "d.jsonl")
    assert scores_of(own / "a") == [("d1", "ann", "empathy", 3.0), ("d2", "bob", "skill", 4.0)]
    assert [(s.value, s.turn) for s in read_scores(own / "a" / "turn_scores.jsonl")] == [(2.5, 1)]
    assert steps(own / "a")["dialogues"] == (3, 2, {"no score": 1})
    write_jsonl(own / "s.jsonl", read_scores(own / "s.csv"))
    call(own / "b", "--gold", own / "s.jsonl", "--dialogues", own / "d.jsonl")
    for name in ("dialogues.jsonl", "scores.jsonl", "turn_scores.jsonl"):
        assert (own / "a" / name).read_bytes() == (own / "b" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("d1,en,ann,esc_eval_human,skill,5,", "value: 5 is off the scale of rubric esc_eval_human, 0 to 4"),
        ("d1,en,ann,esc_eval_human,skill,high,", "value: .*number.*'high'"),
        ("d1,en,ann,esc_eval_human,skills,2,", "dimension: 'skills' is not in rubric esc_eval_human: did you mean skill"),
        ("d1,en,ann,esc_evil,skill,2,", "rubric: unknown rubric 'esc_evil': did you mean esc_eval"),
        ("d1,en,ann,own/rubric.yaml,skill,2,", "rubric: .* is a path"),
        ("d2,en,ann,esc_eval_human,skill,2,", "language: en, but dialogue 'd2' is in zh"),
        ("d9,en,ann,esc_eval_human,skill,2,", "dialogue_id: no dialogue 'd9'"),
        ("d1,en,ann,esconv_turns,helpfulness,2,2", "turn: 2, but dialogue 'd1' has turns 0 to 1"),
        ("d1,en,ann,esc_eval_human,empathy,2,", "ann gave d1 / empathy twice"),
    ],
)
def test_errors_name_line_and_column(line: str, message: str, own: Path) -> None:
    (own / "s.csv").write_text(HEAD + GOOD + line + "\n")
    with pytest.raises(UserError, match=rf"s\.csv:3: {message}"):
        call(own / "out", "--gold", own / "s.csv", "--dialogues", own / "d.jsonl")
    assert not (own / "out").exists()


def test_a_rubric_of_ones_own(own: Path) -> None:
    text = "name: mine\nsource: mine\nlanguages: [en]\nscale: {min: 0, max: 1}\ndimensions:\n  warm:\n    label: {en: Warm}\n"
    (own / "mine.yaml").write_text(text + "    about: {en: Warmth}\n    levels: {en: {0: cold, 1: warm}}\n")
    (own / "s.csv").write_text(HEAD + "d1,en,ann,mine,warm,1,\n")
    call(own / "out", "--gold", own / "s.csv", "--rubric", own / "mine.yaml")
    assert [s.rubric for s in read_jsonl(own / "out" / "scores.jsonl", HumanScore, "scores")] == ["mine"]
    assert not (own / "out" / "dialogues.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to import"),
        (("--source", "esconv"), "write NAME=PATH"),
        (("--source", "smile=x"), "nothing is imported from 'smile': known: empathic_comm, epitome, esc_eval"),
        (("--source", "internlm2=x"), "--source internlm2: give esc_eval=CLONE, too"),
        (("--source", "esconv=x", "--source", "sage=y"), "clone, profiles and scores one at a time"),
        (("--source", "esc_eval=x", "--gold", __file__), "clone, profiles and scores one at a time"),
        (("--source", "epitome=nowhere"), "no such folder or file: nowhere. epitome is .* Get it from GitHub"),
        (("--source", "empathic_comm=."), "holds none of original_data/sample_e"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        call(tmp_path / "out", *arguments)
