"""People's scores where a judge's verdicts stand: leaderboards (table 2), correlations, pairs on one profile."""

import json
from pathlib import Path

import numpy as np
import pytest

from core.errors import UserError
from core.files import CONFIGS, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Preference, Turn
from core.rubrics import load_rubric
from data_prep.profiles import bundled_profiles, load_profiles
from evalsuite.papers.pairwise import pairs_of, pairwise_tables
from evalsuite.papers.role_play import read_field
from evalsuite.statistics.contestants import scores_of_judges, verdicts_of_people
from evalsuite.statistics.leaderboard import Tally
from tests.conftest import EscEval
from tests.evalsuite.test_role_play import Call, call, config
from tests.generated_report import write_run

__all__ = ["call"]
RUBRIC = load_rubric("esc_eval_human")


def held(supporter: str, card: int) -> Dialogue:
    turns = (Turn(role="seeker", text="It rains."), Turn(role="supporter", text=f"Tell {supporter}."))
    id = f"{supporter}/{card}"
    return Dialogue(id=id, language="en", source="test", card_id=f"c{card}", supporter=supporter, turns=turns)


def score(dialogue: str, who: str, value: float, dimension: str) -> HumanScore:
    return HumanScore(dialogue_id=dialogue, language="en", annotator=who, rubric=RUBRIC.name, dimension=dimension, value=value)


DIALOGUES = [held(supporter, card) for supporter in ("good", "poor") for card in range(6)]
# Two annotators, the second half a point milder: the means of a dialogue are 3.25 and 1.25, give or take the card's quarter.
SCORES = [
    score(f"{supporter}/{card}", who, base + (card % 3) / 4 + mild, dimension)
    for supporter, base in (("good", 2.75), ("poor", 0.75))
    for card in range(6)
    for who, mild in (("ann", 0.0), ("bo", 0.5))
    for dimension in RUBRIC.dimensions
]


def test_annotators_are_averaged_before_supporters_are_ranked() -> None:
    (board,) = Tally(DIALOGUES, verdicts_of_people(SCORES), RUBRIC).boards
    assert board.scorer.name == "people · 2 annotators"
    averages = {one.supporter: one for block in board.scores for one in block if one.dimension == "average"}
    assert averages["good"].estimate.mean == pytest.approx(3.25 * 25) and averages["poor"].estimate.mean == pytest.approx(31.25)
    assert averages["good"].estimate.n == 6 and board.ranks == [(1, 1), (2, 2)]


def test_a_leaderboard_by_people_alone_and_beside_a_judge(tmp_path: Path, esc_eval: EscEval) -> None:
    write_jsonl(tmp_path / "d.jsonl", DIALOGUES)
    write_jsonl(tmp_path / "s.jsonl", SCORES)
    given = ("--gold", tmp_path / "s.jsonl")
    assert esc_eval("leaderboard", "--dialogues", tmp_path / "d.jsonl", *given, "--out", tmp_path / "board") == (0, "")
    table = (tmp_path / "board" / "tables" / "leaderboard-en.csv").read_text()
    assert table.splitlines()[1].startswith("1,good,81.25")
    assert (tmp_path / "board" / "tables" / "annotators.csv").exists()
    for arguments, message in [
        (given, "give run folders, or --dialogues with --gold"),
        (("--rubric", CONFIGS / "rubrics" / "feel.yaml", "--dialogues", tmp_path / "d.jsonl"), "option of --gold"),
    ]:
        code, error = esc_eval("leaderboard", *arguments, "--out", tmp_path / "no")
        assert code == 2 and message in error


def test_a_report_shows_peoples_board_beside_the_judges(tmp_path: Path, esc_eval: EscEval) -> None:
    run = tmp_path / "run"
    write_run(run)
    dialogues = [Dialogue.model_validate_json(line) for line in (run / "dialogues.jsonl").read_bytes().splitlines()]
    people = [
        HumanScore(
            dialogue_id=d.id, language=d.language, annotator="ann", rubric="esc_eval_human", dimension="overall", value=2
        )
        for d in dialogues
    ]
    write_jsonl(tmp_path / "s.jsonl", people)
    assert esc_eval("report", run, "--gold", tmp_path / "s.jsonl") == (0, "")
    (english, *_) = sorted((run / "tables").glob("people-leaderboard-*.csv"))
    assert "50" in english.read_text() and "Scores by people" in (run / "report.html").read_text()
    write_jsonl(tmp_path / "s.jsonl", [people[0].model_copy(update={"dialogue_id": "another"})])
    code, error = esc_eval("report", run, "--gold", tmp_path / "s.jsonl")
    assert code == 2 and "no dialogue 'another' among those given" in error
    code, error = esc_eval("leaderboard", run, "--gold", tmp_path / "s.jsonl")
    assert code == 2 and "no dialogue 'another' among those given" in error


def test_people_and_judges_on_either_side_of_correlate(tmp_path: Path, esc_eval: EscEval) -> None:
    """Table 3's row ESC-Eval: annotators' scores of simulated dialogues with the scores of those who talked."""
    rng = np.random.default_rng(1)
    simulated = [float(rng.integers(0, 5)) for _ in DIALOGUES]
    lived = [float(np.clip(value + rng.integers(-1, 2), 0, 4)) for value in simulated]
    row = [score(d.id, "ann", value, "empathy") for d, value in zip(DIALOGUES, simulated, strict=True)]
    gold = [score(d.id, "seeker", value, "empathy") for d, value in zip(DIALOGUES, lived, strict=True)]
    verdicts = [
        Judgement(dialogue_id=s.dialogue_id, language="en", judge="gpt", rubric="esc_eval", dimension="empathy", value=s.value)
        for s in gold
    ]
    write_jsonl(tmp_path / "row.jsonl", row)
    write_jsonl(tmp_path / "gold.jsonl", gold)
    write_jsonl(tmp_path / "j.jsonl", verdicts)
    wanted, correlate = np.corrcoef(simulated, lived)[0, 1], ("agree", "--correlate", "dialogue")
    for name in ("gold.jsonl", "j.jsonl"):
        out = tmp_path / name.split(".")[0]
        code, error = esc_eval(*correlate, "--judgements", tmp_path / "row.jsonl", "--gold", tmp_path / name, "--out", out)
        assert code == 0, error
        rows = json.loads((out / "correlation.json").read_text())["correlation"]
        (found,) = [one for one in rows if one["coefficient"] == "pearson"]
        assert found["value"] == pytest.approx(wanted) and found["judge"] == "people" and found["n"] == len(DIALOGUES)
    code, error = esc_eval(*correlate, "--gold", tmp_path / "row.jsonl")
    assert code == 2 and "two sides are needed" in error


def test_a_judge_in_the_place_of_people_is_averaged_over_its_repeats_and_unreadable_verdicts_are_none() -> None:
    verdicts = [
        Judgement(dialogue_id="d", language="en", judge="j", rubric="esc_eval", dimension="empathy", value=value, repeat=repeat)
        for repeat, value in enumerate([1, 2, None])
    ]
    (one,) = scores_of_judges(verdicts)
    assert (one.annotator, one.value) == ("j", 1.5)


def test_seekers_of_one_profile_are_compared_by_people_and_by_a_judge(call: Call, tmp_path: Path) -> None:
    """EmoHarbor's figure 5: its dialogues have a profile and no card."""
    (profile, *_) = load_profiles(bundled_profiles("en"))
    for name in ("full", "one_agent"):
        talk = held("alpha", 0).model_copy(update={"card_id": None, "profile_id": profile.id, "simulator": "m"})
        write_jsonl(tmp_path / name / "dialogues.jsonl", [talk])
        write_jsonl(tmp_path / name / "profiles.jsonl", [profile])
    field = read_field([f"{name}={tmp_path / name}" for name in ("full", "one_agent")], [], ["en"])
    ((one, two),), left_out = pairs_of(field)
    assert {d.profile_id for d in field.dialogues} == {profile.id} and not left_out
    chosen = Preference(
        dialogue_a=one.id, dialogue_b=two.id, annotator="ann", question="closer_to_human", verdict="a", order="ba"
    )
    (rates, *_) = pairwise_tables([chosen], field.dialogues, "paper")
    shown = [dict(zip(rates.columns, row, strict=True)) for row in rates.rows]
    assert [(row["seeker"], row["won"]) for row in shown] == [("full", 1), ("one_agent", 0)]
    other = field.dialogues[1].model_copy(update={"profile_id": "another"})
    with pytest.raises(UserError, match="both dialogues of a pair need the same"):
        pairwise_tables([chosen], [field.dialogues[0], other], "paper")
    seekers = ("--seeker", "full=full", "--seeker", "one_agent=one_agent")
    code, _, error = call("paper", "role-play", "--config", config(tmp_path), *seekers, "--out", "out")
    assert code == 2 and f"{profile.id} is a profile: rubric role_play rates seekers against role cards" in error
