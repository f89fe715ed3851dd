"""Tables of the papers from a study's export, by the documented commands, on answers whose figures are known."""

import csv
import json
from pathlib import Path

from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import load_rubric
from evalsuite.people.store import RaterAnswer, StudyStore
from tests.conftest import EscEval
from tests.people_study import answer_all, cards, dialogue, make_study, url_of

TURNS = [["seeker", "I lost my cat."], ["supporter", "I hear you."]]


def talks(esc_eval: EscEval, folder: Path, raters: int, *more: object) -> None:
    """A study in which everybody has talked to two supporters; scores of the second are a point higher."""
    (folder / "consent.txt").write_text("Yes.")
    models = ("--supporter", "alpha@http://127.0.0.1:9/v1", "--supporter", "beta@http://127.0.0.1:9/v1")
    given = ("--rubric", "emoharbor", "--consent", "consent.txt", "--raters", raters, *more)
    assert esc_eval("people", "create", "talk", *models, *given) == (0, "")
    store = StudyStore(url_of(folder / "talk"), "talk")
    keys = list(load_rubric("emoharbor").dimensions)
    for task in store.tasks():
        said = [*TURNS, ["seeker", f"Thank you, {task.details['supporter']}."]]
        store.set_details(task.id, task.details | {"turns": said, "ended": "seeker_ended"})
        value = 1 + int(task.rater[1:]) % 3 + (task.details["supporter"] == "beta")
        for key in keys:
            store.save(task.id, task.rater, key, None, RaterAnswer(value), 0)
        assert not store.submit(task.id, task.rater, [(key, None) for key in keys])
    store.close()
    assert esc_eval("people", "results", "talk", "--out", "talked") == (0, "")


def test_people_who_play_a_card_are_a_contestant_of_table_1(esc_eval: EscEval, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "c.jsonl", cards(2))
    talks(esc_eval, tmp_path, 2, "--cards", "c.jsonl")
    held = read_jsonl(Path("talked/dialogues.jsonl"), Dialogue, "dialogues")
    assert {d.card_id for d in held} == {"c0", "c1"} and {d.source for d in held} == {"talk"}
    write_jsonl(tmp_path / "bot.jsonl", [dialogue("alpha", n, simulator="bot") for n in range(2)])
    both = ("--dialogues", "talked/dialogues.jsonl", "--dialogues", "bot.jsonl")
    given = ("--rubric", "role_play", "--cards", "c.jsonl", "--raters", 2)
    assert esc_eval("people", "create", "rate", *both, *given) == (0, "")
    answer_all(tmp_path / "rate", lambda _, dialogue, __: 1 if dialogue.simulator == "bot" else 2)
    assert esc_eval("people", "results", "rate", "--out", "rated") == (0, "")
    table = ("--dialogues", "rated/dialogues.jsonl", "--gold", "rated/scores.csv", "--out", "table")
    code, error = esc_eval("paper", "role-play", *table)
    assert code == 0, error
    (file,) = sorted(Path("table").rglob("role_play-en.csv"))
    rows = {row["seeker"]: row for row in csv.DictReader(file.open(encoding="utf-8-sig"))}
    assert float(rows["talk"]["average"].split()[0]) == 10 and float(rows["bot"]["average"].split()[0]) == 5


def test_a_talks_ratings_are_a_leaderboard_and_the_gold_of_judges(esc_eval: EscEval, tmp_path: Path) -> None:
    """EmoHarbor's appendix I, and its table 1: three ways of judging against those who talked."""
    talks(esc_eval, tmp_path, 6)
    board = ("--dialogues", "talked/dialogues.jsonl", "--gold", "talked/scores.csv", "--out", "board")
    code, error = esc_eval("leaderboard", *board)
    assert code == 0, error
    file = Path("board/tables/leaderboard-en.csv")
    assert [line.split(",")[1] for line in file.read_text().splitlines()[1:3]] == ["beta", "alpha"]
    gold = read_jsonl(Path("talked/scores.jsonl"), HumanScore, "scores")

    def judged(strategy: str, score: HumanScore, value: float) -> Judgement:
        fields = {name: getattr(score, name) for name in ("dialogue_id", "language", "rubric", "dimension")}
        return Judgement(**fields, judge="judge", value=value, condition={"strategy": strategy})

    for strategy, value in (("same", lambda s: s.value), ("opposite", lambda s: 6 - s.value)):
        write_jsonl(tmp_path / f"{strategy}.jsonl", [judged(strategy, score, value(score)) for score in gold])
        out = ("--judgements", f"{strategy}.jsonl", "--gold", "talked/scores.csv", "--out", strategy)
        code, error = esc_eval("agree", "--correlate", "dialogue", *out)
        assert code == 0, error
        rows = json.loads(Path(strategy, "correlation.json").read_text())["correlation"]
        wanted = 1 if strategy == "same" else -1
        assert {round(one["value"], 6) for one in rows if one["coefficient"] == "spearman"} == {wanted}
        assert {one["n"] for one in rows} == {12}


def test_halves_go_through_to_what_agree_reads(esc_eval: EscEval) -> None:
    folder = make_study(esc_eval, rubric="feel", supporters=("alpha",))
    answer_all(folder, lambda rater, _, __: {"r01": 0.5, "r02": 1}[rater])
    assert esc_eval("people", "results", "s", "--out", "out") == (0, "")
    assert esc_eval("agree", "--gold", "out/scores.csv", "--out", "agreed")[0] == 0
    (row, *_) = json.loads(Path("agreed/annotators.json").read_text())["annotators"]
    assert (row["equal"]["mean"], row["near"]["mean"], row["n"]) == (0, 1, 3)
