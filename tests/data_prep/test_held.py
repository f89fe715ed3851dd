"""Dialogues that people held with supporters, in both forms, and everything that can be wrong with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, Turn
from data_prep.__main__ import app
from data_prep.scores.human import read_scores
from tests.data_prep.sources import fixtures as F
from tests.verbs import printed

DIALOGUES = """situation,supporter,language,role,text
rain/1,alpha,en,seeker,It rains.
rain/1,alpha,en,supporter,"A lot, is it?"
rain/1,beta,en,seeker,Rain again.
rain/1,alpha,en,seeker,Yes.
rain/1,beta,en,supporter,Hm.
rain/1,beta,en,supporter,Tell me.
dog/2,alpha,zh,seeker,狗跑了。
dog/2,alpha,zh,supporter,什么时候？
"""
RATINGS = """situation,supporter,annotator,rubric,dimension,value
rain/1,alpha,ann,esc_eval_human,empathy,3
rain/1,alpha,bob,esc_eval_human,empathy,2
rain/1,beta,ann,esc_eval_human,empathy,0.5
dog/2,alpha,ann,esc_eval_human,skill,4
"""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    (tmp_path / "d.csv").write_text(DIALOGUES)
    (tmp_path / "s.csv").write_text(RATINGS)
    return tmp_path


def call(folder: Path, *more: object, dialogues: str = "d.csv", scores: str = "s.csv", out: str = "out") -> str:
    return printed(app, "import", "--dialogues", folder / dialogues, "--gold", folder / scores, "--out", folder / out, *more)


def written(folder: Path, out: str = "out") -> dict[tuple[str | None, str | None], Dialogue]:
    return {(d.source_id, d.supporter): d for d in read_jsonl(folder / out / "dialogues.jsonl", Dialogue, "dialogues")}


def test_utterances_become_dialogues(given: Path) -> None:
    output = call(given)
    assert "dialogues: 3 in, 3 out" in output
    found = written(given)
    assert list(found) == [("rain/1", "alpha"), ("rain/1", "beta"), ("dog/2", "alpha")]
    first = found["rain/1", "alpha"]
    assert [(turn.role, turn.text) for turn in first.turns] == [
        ("seeker", "It rains."),
        ("supporter", "A lot, is it?"),
        ("seeker", "Yes."),
    ]
    assert (first.framework, first.simulator, first.termination, first.card_id, first.trial) == (None, None, None, None, 0)
    assert [turn.text for turn in found["rain/1", "beta"].turns] == ["Rain again.", "Hm.\nTell me."]  # sent in a row: one turn
    assert found["dog/2", "alpha"].language == "zh"
    assert len({dialogue.id for dialogue in found.values()}) == 3


def test_ratings_belong_to_their_dialogues(given: Path) -> None:
    call(given)
    name = {dialogue.id: key for key, dialogue in written(given).items()}
    scores = read_scores(given / "out" / "scores.jsonl")
    assert [(name[s.dialogue_id], s.language, s.annotator, s.rubric, s.dimension, s.value) for s in scores] == [
        (("rain/1", "alpha"), "en", "ann", "esc_eval_human", "empathy", 3.0),
        (("rain/1", "alpha"), "en", "bob", "esc_eval_human", "empathy", 2.0),
        (("rain/1", "beta"), "en", "ann", "esc_eval_human", "empathy", 0.5),
        (("dog/2", "alpha"), "zh", "ann", "esc_eval_human", "skill", 4.0),
    ]


def test_json_lines_give_the_same_records(given: Path) -> None:
    call(given)
    talks: dict[tuple[str, str], dict[str, Any]] = {}
    for line in DIALOGUES.replace('"A lot, is it?"', "A lot; is it?").splitlines()[1:]:
        situation, supporter, language, role, text = line.split(",")
        talk = {"situation": situation, "supporter": supporter, "language": language, "turns": []}
        turns = talks.setdefault((situation, supporter), talk)["turns"]
        turns.append({"role": role, "text": text.replace(";", ",")})
    (given / "d.jsonl").write_text(F.lines(*talks.values()))
    head, *rows = (line.split(",") for line in RATINGS.splitlines())
    (given / "s.jsonl").write_text(F.lines(*(dict(zip(head, row, strict=True)) for row in rows)))
    call(given, dialogues="d.jsonl", scores="s.jsonl", out="again")
    for name in ("dialogues.jsonl", "scores.jsonl"):
        assert (given / "out" / name).read_bytes() == (given / "again" / name).read_bytes()


def test_trials_tell_dialogues_apart(given: Path) -> None:
    rows = [f"s,m,en,{role},Text {trial}.,{trial}" for trial in ("", "1") for role in ("seeker", "supporter")]
    (given / "d.csv").write_text("situation,supporter,language,role,text,trial\n" + "\n".join(rows))
    (given / "s.csv").write_text("situation,supporter,annotator,rubric,dimension,value,trial\ns,m,a,esc_eval_human,skill,1,1\n")
    assert "dropped: no score 1" in call(given)
    dialogues = read_jsonl(given / "out" / "dialogues.jsonl", Dialogue, "dialogues")
    assert [(dialogue.trial, dialogue.turns[0].text) for dialogue in dialogues] == [(1, "Text 1.")]


HEAD, FIRST = DIALOGUES.split("\n")[:2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rain/1,alpha,en,usr,Hello", r"d\.csv:3: role: .*'seeker' or 'supporter'.*'usr'"),
        ("rain/1,alpha,zh,supporter,Hello", r"d\.csv:3: situation: rain/1 with alpha began in another language"),
        ("rain/1,alpha,en,supporter,  ", r"d\.csv:3: text: "),
        ("rain/1,alpha,en,seeker,Hello", r"d\.csv:2: turns: in the dialogue on rain/1 with alpha the supporter says nothing"),
    ],
)
def test_errors_in_dialogues_name_line_and_column(line: str, message: str, given: Path) -> None:
    (given / "d.csv").write_text(f"{HEAD}\n{FIRST}\n{line}\n")
    with pytest.raises(UserError, match=message):
        call(given)
    assert not (given / "out").exists()


TALK = {"situation": "s", "supporter": "m", "language": "en", "turns": [{"role": "seeker", "text": "a"}]}
ANSWER = {"role": "supporter", "text": "b"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("d.txt", "", r"d\.txt: .* read from \.jsonl or \.csv"),
        ("d.jsonl", F.lines(TALK), r"d\.jsonl:1: turns: .* the supporter says nothing"),
        ("d.jsonl", F.lines(TALK | {"turns": [ANSWER, {"role": "seeker"}]}), r"d\.jsonl:1: turns\.1\.text: "),
        ("d.jsonl", F.lines(*[TALK | {"turns": [*TALK["turns"], ANSWER]}] * 2), r"d\.jsonl:2: situation: .* occurs twice"),
    ],
)
def test_errors_of_whole_files(name: str, text: str, message: str, given: Path) -> None:
    (given / name).write_text(text)
    with pytest.raises(UserError, match=message):
        call(given, dialogues=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rain/1,alpha,ann,esc_eval_human,empathy,2", "ann rated rain/1 with alpha / empathy twice"),
        ("rain/1,alpha,cis,esc_eval_human,empathy,5", "value: 5 is off the scale of rubric esc_eval_human, 0 to 4"),
        ("rain/2,alpha,cis,esc_eval_human,skill,2", "situation, supporter: no dialogue on rain/2 with alpha: did you mean "),
        ("dog/2,beta,cis,esc_eval_human,skill,2", "situation, supporter: no dialogue on dog/2 with beta: "),
    ],
)
def test_errors_in_ratings_name_line_and_column(line: str, message: str, given: Path) -> None:
    (given / "s.csv").write_text(RATINGS + line + "\n")
    with pytest.raises(UserError, match=rf"s\.csv:6: {message}"):
        call(given)
    assert not (given / "out").exists()


def corpus(*situations: str | None) -> list[Dialogue]:
    turns = (Turn(role="seeker", text="Wet."), Turn(role="supporter", text="Take an umbrella."))
    return [
        Dialogue(id=f"corpus-{number}", language="en", source="corpus", source_id=situation, turns=turns)
        for number, situation in enumerate(situations)
    ]


def test_references_come_along_for_the_situations(given: Path) -> None:
    write_jsonl(given / "r.jsonl", corpus("cat/3", "dog/2", None, "rain/1"))
    call(given, "--dialogues", given / "r.jsonl")
    found = read_jsonl(given / "out" / "references.jsonl", Dialogue, "references")
    assert [dialogue.id for dialogue in found] == ["corpus-3", "corpus-1"]  # in the order of the situations
    manifest = json.loads((given / "out" / "manifest.json").read_text())
    assert {Path(name).name for name in manifest["inputs"]} == {"d.csv", "s.csv", "r.jsonl"}


@pytest.mark.parametrize(
    ("situations", "message"),
    [
        (("rain/1",), r"r\.jsonl: source_id: no dialogue of situation 'dog/2' \(1 of 2 lack one\)"),
        (("rain/1", "dog/2", "dog/2"), r"r\.jsonl: source_id: corpus-1 and corpus-2 are both of situation 'dog/2'"),
    ],
)
def test_references_must_be_there_once(situations: tuple[str, ...], message: str, given: Path) -> None:
    write_jsonl(given / "r.jsonl", corpus(*situations))
    with pytest.raises(UserError, match=message):
        call(given, "--dialogues", given / "r.jsonl")


PROFILED = """situation,supporter,language,profile,role,text
rain/1,alpha,zh,profile-zh-01,seeker,下雨。
rain/1,alpha,zh,profile-zh-01,supporter,很大吗？
dog/2,alpha,zh,,seeker,狗跑了。
dog/2,alpha,zh,,supporter,什么时候？
"""
RATED = """situation,supporter,annotator,rubric,dimension,value
rain/1,alpha,ann,emoharbor,safety,5
dog/2,alpha,ann,emoharbor,safety,4
"""


def test_a_dialogue_may_say_whose_profile_or_card_its_seeker_has(given: Path) -> None:
    (given / "p.csv").write_text(PROFILED)
    (given / "r.csv").write_text(RATED)
    call(given, dialogues="p.csv", scores="r.csv")
    found = written(given)
    assert found["rain/1", "alpha"].profile_id == "profile-zh-01" and found["dog/2", "alpha"].profile_id is None
    assert found["rain/1", "alpha"].language == "zh"
    with pytest.raises(UserError, match=r"p\.csv: held dialogues are imported with their ratings \(--gold\), and"):
        call(given, "--source", f"esconv={given}", dialogues="p.csv", scores="r.csv")
    (given / "p.csv").write_text(PROFILED.replace("zh,profile-zh-01,supporter", "zh,profile-zh-02,supporter"))
    with pytest.raises(UserError, match=r"p\.csv:3: situation: rain/1 with alpha began in another language"):
        call(given, dialogues="p.csv", scores="r.csv")
    row = {"situation": "a", "supporter": "b", "language": "en", "profile": "p", "card": "c", "turns": []}
    (given / "p.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match="a dialogue's seeker has one of them"):
        call(given, dialogues="p.jsonl", scores="r.csv")
