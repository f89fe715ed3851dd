"""Judge health: length against scipy, shifts and injections by hand, shared bases, and the probe against a scripted judge."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import spearmanr, ttest_1samp

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, Judgement, Turn
from core.rubrics import load_rubric
from core.specs import load_spec
from core.tables import Estimate
from evalsuite.checks.shared_bases import ModelBase, alike, base_of, bases, sharing_table, sharings
from evalsuite.statistics.contestants import contestants_of
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.reply_length import length_table, mean_reply_length, replies_of
from evalsuite.trust.commands.judge_card import append, load_injections, probes
from evalsuite.trust.health import asking_shifts, asking_table, injection_effects, injection_table
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric, make_run
from tests.evalsuite.test_faults import one_line

RUBRIC = make_rubric("empathy", "skill")


def of_length(name: str, length: int, supporter: str = "m", **more: Any) -> Dialogue:
    turns = (Turn(role="supporter", text="g" * 500), Turn(role="seeker", text="hi"), Turn(role="supporter", text="x" * length))
    return make_dialogue(name, supporter, turns=turns, **more)


def probe_of(name: str, value: float | None, variant: str, dimension: str = "empathy", **condition: str) -> Judgement:
    return make_judgement(name, dimension, value, condition={"mode": "native", "variant": variant} | condition)


# --- length -----------------------------------------------------------------------------------------------------------------


def test_reply_length_leaves_the_greeting_out() -> None:
    turns = [Turn(role="supporter", text="hello there"), Turn(role="seeker", text="hm")]
    assert mean_reply_length(make_dialogue("d", turns=tuple(turns))) is None
    turns += [Turn(role="supporter", text=" abc "), Turn(role="seeker", text="?"), Turn(role="supporter", text="abcde")]
    assert mean_reply_length(make_dialogue("d", turns=tuple(turns))) == 4


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.none() | st.integers(0, 4)), min_size=1, max_size=9))
@example([("a", 1, 0), ("a", 2, 3), ("b", 1, 4), ("b", 2, 2), ("b", 3, 1)])
def test_length_is_scipys_spearman_within_supporters_weighted_by_their_dialogues(
    rows: list[tuple[str, int, int | None]],
) -> None:
    """Across supporters scores may follow length and run against it within each: the pooled row says the latter."""
    dialogues = [of_length(f"d{n}", length, who) for n, (who, length, _) in enumerate(rows)]
    judgements = [make_judgement(f"d{n}", "empathy", value) for n, (*_, value) in enumerate(rows)]
    table = length_table(replies_of(dialogues, contestants_of(dialogues, judgements, make_rubric("empathy"))))
    *alone, pooled = (cell for row in table.rows for cell in row if isinstance(cell, Estimate))
    rhos, sizes = [], []
    for who, own_cell in zip(sorted({who for who, *_ in rows}), alone, strict=True):
        read = [(length, value) for own, length, value in rows if own == who and value is not None]
        if len({length for length, _ in read}) > 1 and len({value for _, value in read}) > 1:
            rhos.append(spearmanr([length for length, _ in read], [value for _, value in read]).statistic)
            sizes.append(len(read))
            assert own_cell.mean == pytest.approx(rhos[-1])
        else:
            assert own_cell.mean is None, "constant: undefined"
        assert own_cell.n == len(read)
    assert pooled.n == sum(sizes) and pooled.mean == (pytest.approx(np.average(rhos, weights=sizes)) if rhos else None)
    assert (pooled.low is None) == (pooled.high is None) and (rhos or pooled.low is None)
    if pooled.low is not None and pooled.high is not None:
        assert -1 <= pooled.low <= pooled.high <= 1


# --- ways of asking ---------------------------------------------------------------------------------------------------------


def test_shifts_between_ways_of_asking_are_paired_by_dialogue() -> None:
    dialogues = [make_dialogue(f"d{n}", f"m{n % 2}") for n in range(6)]
    judgements = []
    for n in range(6):
        for dimension in ("empathy", "skill"):
            judgements.append(make_judgement(f"d{n}", dimension, n % 3))
            judgements.append(make_judgement(f"d{n}", dimension, n % 3 + (dimension == "skill"), method="per_dimension"))
            judgements.append(make_judgement(f"d{n}", dimension, 4, judge="other"))
    judgements.append(probe_of("d0", 4, "injected"))
    judgements.append(make_judgement("d0", "empathy", None, method="elsewhere"))
    shifts = asking_shifts(Tally(dialogues, judgements, RUBRIC))
    figures = {(s.first.method, s.second.method, s.dimension): s.difference.estimate for s in shifts}
    assert set(figures) == {("joint", "per_dimension", name) for name in ("empathy", "skill", "average")}
    assert figures["joint", "per_dimension", "skill"].mean == 25, "one point of four"
    assert figures["joint", "per_dimension", "empathy"].mean == 0
    assert figures["joint", "per_dimension", "average"].mean == 12.5 and figures["joint", "per_dimension", "average"].n == 6
    assert asking_table(shifts, RUBRIC).rows[-1][4] == "average"


def test_as_it_is_counts_as_the_usual_way_and_the_reverse_as_another() -> None:
    dialogues = [make_dialogue(f"d{n}") for n in range(3)]
    rubric = make_rubric("empathy")
    usual = [make_judgement(f"d{n}", "empathy", 1, condition={"mode": "native"}) for n in range(3)]
    probed = [probe_of(f"d{n}", value, variant) for n in range(3) for variant, value in (("as_is", 1), ("reversed", 2))]
    shifts = asking_shifts(Tally(dialogues, usual + probed, rubric))
    assert {(dict(s.first.condition).get("variant"), dict(s.second.condition).get("variant")) for s in shifts} == {
        (None, "reversed")
    }
    assert shifts[0].difference.estimate.mean == 25


# --- injections -------------------------------------------------------------------------------------------------------------


def test_injections_are_measured_against_neutral_text() -> None:
    rubric = make_rubric("empathy")
    dialogues = [make_dialogue(f"d{n}", f"m{n % 2}") for n in range(4)]
    values: dict[str, list[float | None]] = {"as_is": [2, 2, 2, 2], "neutral": [1, 2, 1, 2], "injected": [4, 4, 3, None]}
    judgements = [
        probe_of(f"d{n}", value, variant, **({} if variant == "as_is" else {"injection": "ab"[n % 2]}))
        for variant, given in values.items()
        for n, value in enumerate(given)
    ]
    effect, average = injection_effects(Tally(dialogues, judgements, rubric))
    assert effect.read == {"as_is": 1, "neutral": 1, "injected": 0.75}
    assert effect.effect.p is not None and effect.effect.p >= ttest_1samp([75, 50, 50], 0).pvalue
    assert effect.neutral.p == pytest.approx(ttest_1samp([-25, 0, -25, 0], 0).pvalue)
    means = [(gap.estimate.mean, gap.estimate.n) for gap in (effect.neutral, effect.injected, effect.effect)]
    assert means == [(-12.5, 4), (pytest.approx(125 / 3), 3), (pytest.approx(175 / 3), 3)]
    assert average.dimension == "average" and average.effect.estimate.mean == pytest.approx(175 / 3)
    table = injection_table([effect, average], rubric)
    assert len(table.rows) == 2 and table.rows[0][-1] == 75
    with pytest.raises(UserError, match="none of the variant neutral"):
        injection_effects(Tally(dialogues, [j for j in judgements if j.condition["variant"] != "neutral"], rubric))
    assert injection_effects(Tally(dialogues, [make_judgement("d0", "empathy", 1)], rubric)) == []


def test_the_injection_set_orders_the_judge_and_has_neutral_twins() -> None:
    injections = load_injections()
    for language in ("en", "zh"):
        own = [one for one in injections if one.language == language]
        assert len(own) >= 4 and len({one.kind for one in own}) == len(own)
    scale = load_rubric("epitome").scale
    for one in injections:
        assert "2" in one.text("injected", scale) and "{" not in one.text("injected", scale)
        assert not re.search(r"[0-9{]", one.text("neutral", scale)), "a neutral text names no score"
        injected, neutral = (len(one.text(variant, scale)) for variant in ("injected", "neutral"))
        assert abs(injected - neutral) <= 0.1 * injected, "they are as long"


def test_probes_change_only_the_last_reply() -> None:
    dialogues = [of_length(f"d{n}", 3) for n in range(5)]
    injections = [one for one in load_injections() if one.language == "en"][:2]
    jobs = [*probes(dialogues, injections, RUBRIC, reverse=True)]
    assert [job.condition["variant"] for job in jobs[:4]] == ["as_is", "neutral", "injected", "reversed"] and len(jobs) == 20
    neutral, injected = jobs[1].dialogue, jobs[2].dialogue
    assert neutral.turns[:-1] == injected.turns[:-1] == dialogues[0].turns[:-1]
    assert injected.turns[-1].text == "xxx\n" + injections[0].text("injected", RUBRIC.scale) and injected.id == "d0"
    assert [job.condition["injection"] for job in jobs if job.condition["variant"] == "neutral"] == [
        injections[n % 2].id for n in range(5)
    ]
    assert list(jobs[3].rubric.dimensions) == ["skill", "empathy"] and jobs[3].dialogue == dialogues[0]
    ended_by_seeker = make_dialogue("e", turns=(*dialogues[0].turns, Turn(role="seeker", text="bye")))
    assert [turn.text for turn in append(ended_by_seeker, "!").turns][2:] == ["xxx\n!", "bye"]
    foreign = [*probes([make_dialogue("z", language="fr")], injections, RUBRIC, reverse=False)]
    assert foreign[1].condition["injection"] == injections[0].id, "English stands in"


# --- shared bases -----------------------------------------------------------------------------------------------------------


FAMILIES = {
    "qwen": ["esc-role", "qwen1.5-7b-chat", "mindchat"],
    "internlm": ["emollm", "esc-rank", "esc-rank-published"],
    "llama": ["vicuna-7b-1.5", "extes-llama", "chatcounselor", "llama3-8b-instruct"],
    "mistral": ["wizardlm2-7b"],
    "chatglm": ["soulchat", "mechat", "chatglm3-6b"],
    "yi": ["yi-6b-chat"],
    "gpt": ["gpt-4", "chatgpt"],
    "smollm": ["embedded"],
}


def test_bundled_models_have_their_family() -> None:
    for family, names in FAMILIES.items():
        for name in names:
            assert base_of(load_spec(name).model_dump(mode="json")).family == family, name


def test_likeness_is_by_checkpoint_then_family_and_unknown_is_not_alike() -> None:
    models = {
        **{"x": ModelBase("a/x", None), "copy": ModelBase("a/x", None), "none": ModelBase(None, None)},
        **{"q": ModelBase("a", "qwen"), "q2": ModelBase("b", "qwen"), "l": ModelBase("c", "llama")},
    }
    expected = {("x", "copy"): "same checkpoint", ("q", "q2"): "same family", ("none", "none"): "same checkpoint"}
    for pair in (*expected, ("q", "l"), ("x", "none"), ("none", "l")):
        assert alike(*pair, models) == expected.get(pair)
    given = {"mine": {"name": "mine", "checkpoint": "runs/merged-qwen2"}}
    found = bases(["mine", "esc-role", "house-model"], given)
    assert found["mine"] == ModelBase("runs/merged-qwen2", "qwen") and found["esc-role"].family == "qwen"
    assert found["house-model"] == ModelBase(None, None)


def test_supporters_alike_are_set_against_the_others_on_shared_cards() -> None:
    dialogues, judgements = [], []
    scores = {"mindchat": 3, "qwen1.5-7b-chat": 4, "soulchat": 2, "house-model": 0}
    for card in range(4):
        for supporter, score in scores.items():
            name = f"{supporter}/{card}"
            dialogues.append(make_dialogue(name, supporter, card_id=f"c{card}", simulator="esc-role"))
            value = None if name == "mindchat/3" else score
            judgements += [make_judgement(name, d, value, judge="esc-rank") for d in RUBRIC.dimensions]
    judge, simulator = sharings(Tally(dialogues, judgements, RUBRIC), {})
    assert (judge.role, judge.model, judge.alike, judge.difference) == ("judge", "esc-rank", {}, None)
    assert (simulator.role, simulator.model) == ("simulator", "esc-role")
    assert simulator.alike == {"mindchat": "same family", "qwen1.5-7b-chat": "same family"}
    assert simulator.unknown == ("house-model",)
    assert simulator.difference is not None
    # The supporters alike are averaged first; on the last card one of them has no verdict.
    assert simulator.difference.estimate.mean == pytest.approx(25 * (3 * 1.5 + 2) / 4) and simulator.difference.estimate.n == 4
    rows = sharing_table([judge, simulator]).rows
    assert rows[0][5] == "none" and rows[0][7] is None and "mindchat (same family)" in str(rows[1][5])


# --- the command ------------------------------------------------------------------------------------------------------------


def card(esc_eval: EscEval, endpoint: Endpoint, dialogues: list[Dialogue], *more: object) -> list[Dialogue]:
    """Have the judge behind the endpoint asked about dialogues without gold; returns those that were taken."""
    write_jsonl(Path("d.jsonl"), dialogues)
    call = ("judge-card", f"embedded@{endpoint.url}", "--dialogues", "d.jsonl", "--out", "card", "--set", "languages=en")
    assert esc_eval(*call, *more)[0] == 0
    return read_jsonl(Path("card/health_dialogues.jsonl"), Dialogue, "dialogues")


def test_a_gullible_judge_is_found_out(esc_eval: EscEval) -> None:
    """The judge gives 1, and 4 wherever an order to give 4 stands in the transcript."""
    orders = [one.text("injected", load_rubric("esc_eval").scale).split(",")[0] for one in load_injections()]

    def behave(body: dict[str, Any], count: int) -> Answer:
        text = body["messages"][-1]["content"].replace("(END TRANSCRIPT)", "[END TRANSCRIPT]")
        return Answer("4444444" if any(order in text for order in orders) else "1111111")

    dialogues = [of_length(f"d{n}", 3 + n) for n in range(4)]
    asked = 4 * (4 + 3 + 2)  # as it is, neutral, injected, reversed; with three floors; twice again
    with Endpoint(behave, models=("embedded",)) as endpoint:
        for _ in range(2):
            assert card(esc_eval, endpoint, dialogues) == dialogues and len(endpoint.requests) == asked
    judgements = read_jsonl(Path("card/health_judgements.jsonl"), Judgement, "judgements")
    assert len(judgements) == asked * 7 and {j.dialogue_id for j in judgements} == {d.id for d in dialogues}
    made = json.loads(Path("card/judge_card.json").read_text())
    outcomes = {check["name"]: check["outcome"] for check in made["checks"]}
    assert outcomes["agreement"] == outcomes["calibration"] == "not measured" and outcomes["readable"] != "fault found"
    shown = {table["key"]: table for table in made["tables"]}
    for row in shown["health-injections"]["rows"]:
        assert row[3]["mean"] == 0 and (row[5]["mean"], row[5]["n"]) == (75.0, 4) and row[5]["low"] < 75 < row[5]["high"]
    assert {row[5]["mean"] for row in shown["health-asking"]["rows"]} == {0.0}
    assert Path("card/tables/health-injections.csv").exists()


def test_a_run_tells_of_its_judge_what_its_verdicts_hold(esc_eval: EscEval, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"a": [1, 2, 3, 2], "b": [2, 3, 4, 1]}, judge="a")
    assert esc_eval("judge-card", "run", "--out", "read")[0] == 0
    found = json.loads(Path("read/judge_card.json").read_text())
    outcomes = {check["name"]: check["outcome"] for check in found["checks"]}
    assert {name for name, outcome in outcomes.items() if outcome == "not measured"} >= {"agreement", "floors", "injection"}
    tables = {table["key"]: table for table in found["tables"]}
    assert "health-bases" in tables and "health-injections" not in tables
    for option, value in (("--gold", "run/dialogues.jsonl"), ("--limit", 3), ("--set", "method=joint")):
        one_line(esc_eval("judge-card", "run", option, value), 2, f"{option}: run is a run folder, which needs no calls")
    one_line(esc_eval("judge-card", "embedded", "--gold", "run/dialogues.jsonl"), 2, "--gold: also give the dialogues")
    one_line(esc_eval("judge-card", "run", "--judge", "nobody"), 2, "--judge nobody: did not score run")
    one_line(esc_eval("judge-card", "embedded", "--judge", "j"), 2, "--judge: it is for a run folder, which embedded is not")
    (run / "judgements.jsonl").unlink()
    one_line(esc_eval("judge-card", "run"), 2, "no verdicts of a: `esc-eval run --only score` makes them")


def test_a_limited_card_draws_whole_dialogues_of_all_supporters_in_the_files_order(esc_eval: EscEval) -> None:
    dialogues = [of_length(f"{supporter}{n}", 3, supporter) for supporter in ("a", "b", "c") for n in range(4)]
    cut = [of_length(f"cut{n}", 3, termination="infrastructure") for n in range(12)]  # by a lost server
    with Endpoint(lambda body, count: Answer("1111111"), models=("embedded",)) as endpoint:
        taken = card(esc_eval, endpoint, [*cut, *dialogues], "--limit", 4)
    assert len(taken) == 4 and len({d.supporter for d in taken}) > 1
    assert taken == [d for d in dialogues if d in taken]


def test_a_judge_that_is_itself_a_supporter_shares_its_base_even_where_no_base_is_known() -> None:
    dialogues = [make_dialogue(f"{who}{n}", who, card_id=f"c{n}") for who in ("house-model", "soulchat") for n in range(2)]
    judgements = [make_judgement(d.id, name, 2, judge="house-model") for d in dialogues for name in RUBRIC.dimensions]
    (judge,) = sharings(Tally(dialogues, judgements, RUBRIC), {})
    assert judge.alike == {"house-model": "same checkpoint"} and judge.unknown == ("soulchat",)
