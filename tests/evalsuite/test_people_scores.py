"""People's scores where a judge's verdicts stand: boards, correlations, pairs; and what intervals promise."""

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from core.errors import UserError
from core.files import CONFIGS, read_jsonl, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Preference, Turn
from core.rubrics import Rubric, load_rubric
from core.tables import Estimate
from data_prep.profiles import bundled_profiles, load_profiles
from data_prep.scores.annotator_agreement import agreement
from evalsuite.papers.role_play import pairs_of, pairwise_tables, read_field
from evalsuite.people.store import StudyStore
from evalsuite.people.study import Person, assign, rated_items
from evalsuite.statistics.contestants import scores_of_judges, verdicts_of_people
from evalsuite.statistics.leaderboard import Tally
from tests.conftest import EscEval
from tests.evalsuite.test_role_play import Call, call, config
from tests.generated_report import write_run
from tests.people_study import answer_all, cards, dialogue, url_of

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
    foreign = SCORES[0].model_copy(
        update={"rubric": "feel", "dimension": next(iter(load_rubric("feel").dimensions)), "value": 3}
    )
    write_jsonl(tmp_path / "two.jsonl", [*SCORES, foreign])
    for arguments, message in [
        (given, "give run folders, or --dialogues with --gold"),
        (("--dialogues", tmp_path / "d.jsonl", "--gold", tmp_path / "two.jsonl"), "--gold: scores on several rubrics"),
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


# --- from a study's answers -------------------------------------------------------------------------------------------------


def test_people_who_play_a_card_are_a_contestant_of_table_1(esc_eval: EscEval, tmp_path: Path) -> None:
    """Everybody has talked to a supporter as their card; raters prefer them to the bot."""
    write_jsonl(tmp_path / "c.jsonl", cards(2))
    (tmp_path / "consent.txt").write_text("Yes.")
    talks = ("--rubric", "emoharbor", "--consent", "consent.txt", "--raters", 2, "--cards", "c.jsonl")
    assert esc_eval("people", "create", "talk", "--supporter", "alpha@http://127.0.0.1:9/v1", *talks) == (0, "")
    with closing(StudyStore(url_of(tmp_path / "talk"), "talk")) as store:
        for task in store.tasks():
            turns = [["seeker", "I lost my cat."], ["supporter", "I hear you."], ["seeker", f"Thank you from {task.rater}."]]
            store.set_details(task.id, task.details | {"turns": turns, "ended": "seeker_ended"})
    assert esc_eval("people", "results", "talk", "--out", "talked") == (0, "")
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


# --- raters with known severities -------------------------------------------------------------------------------------------


SIMULATED = Rubric.model_validate(
    {
        "name": "simulated",
        "source": "made",
        "languages": ["en"],
        "scale": {"min": 0, "max": 10},
        "dimensions": {"quality": {"label": {"en": "Quality"}, "about": {"en": "How good it is."}}},
    }
)
QUALITY = {"good": 6.5, "middling": 5.0, "poor": 3.5}  # the means of what three supporters do on a card
SPREAD, ERROR = 1.2, 0.8  # of a supporter's dialogues around its mean, of a rater's scores around what is there
SEVERITY = {"r0": -0.6, "r1": -0.2, "r2": 0.2, "r3": 0.6}  # their mean is nothing: the raters together are fair
STUDIES = 100


def study(seed: int, cards: int) -> tuple[list[Dialogue], list[HumanScore]]:
    """Who scores what is drawn as in every study; scores are whole, rounded up or down by chance: no bias is left."""
    rng = np.random.default_rng(seed)
    dialogues, values = [], {}
    for card in range(cards):
        for supporter, mean in QUALITY.items():
            dialogues.append(held(supporter, card))
            values[dialogues[-1].id] = rng.normal(mean, SPREAD)
    items, _ = rated_items(dialogues, SIMULATED, {})
    of_item = {item.id: content.dialogue.id for item, content in items}
    scores = []
    for task in assign([item for item, _ in items], [Person(code, ("en",)) for code in SEVERITY], 2, 0, seed):
        seen = values[of_item[task.item]] + SEVERITY[task.rater] + rng.normal(0, ERROR)
        score = min(10.0, max(0.0, np.floor(seen + rng.random())))
        fields = {"language": "en", "annotator": task.rater, "rubric": "simulated", "dimension": "quality"}
        scores.append(HumanScore(dialogue_id=of_item[task.item], value=score, **fields))
    return dialogues, scores


def covered(estimates: Iterator[Estimate], truth: float) -> float:
    """In what share of the studies the interval holds the truth."""
    inside = [e.low is not None and e.high is not None and e.low <= truth <= e.high for e in estimates]
    assert len(inside) == STUDIES
    return float(np.mean(inside))


@pytest.mark.slow
def test_agreement_and_the_leaderboard_recover_what_was_put_in() -> None:
    studies = [study(seed, cards=40) for seed in range(STUDIES)]
    large = [agreement(study(10_000 + seed, cards=2000)[1], [SIMULATED])[0] for seed in range(2)]  # nothing is left to chance
    found = [agreement(scores, [SIMULATED], seed=seed)[0] for seed, (_, scores) in enumerate(studies)]
    for name in ("alpha", "kappa", "near"):
        truth = float(np.mean([getattr(figures, name).mean for figures in large]))
        assert 0.9 <= covered((getattr(figures, name) for figures in found), truth) <= 0.99, (name, truth)
        mean = np.mean([getattr(figures, name).mean for figures in found])
        assert abs(mean - truth) < (0.03 if name == "kappa" else 0.01), (name, mean)
    boards = [Tally(dialogues, verdicts_of_people(scores), SIMULATED).boards[0] for dialogues, scores in studies]
    for supporter, mean in QUALITY.items():
        place = [contestant.supporter for contestant in boards[0].contestants].index(supporter)
        assert 0.9 <= covered((board.scores[place][0].estimate for board in boards), 10 * mean) <= 0.99, supporter
    for board in boards:
        ranked = [board.contestants[place].supporter for place in board.order]
        assert ranked == list(QUALITY), "supporters a point and a half apart are never mistaken on forty cards"
    assert np.mean([bool(gap.holds) for board in boards for gap in board.differences]) > 0.95
