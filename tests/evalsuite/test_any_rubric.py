"""Rubrics of every shape, judged by every method on a scripted endpoint, and what their runs come to."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.prompts import load_pack
from core.records import Judgement, Turn
from core.rubrics import Rubric, load_rubric
from core.scales import NOT_APPLICABLE
from core.specs import load_spec
from evalsuite.environment import judged as rewarded
from evalsuite.judge.judge import Judge
from evalsuite.judge.scores import AROUND, distribution, read
from serve.answers import Reply
from serve.client import ChatClient
from tests.endpoint import Answer, echo
from tests.evalsuite.judging import Behave, ask_judge
from tests.evalsuite.records import make_dialogue
from tests.evalsuite.rubrics import RUBRICS, SCORED

METHODS = ("joint", "per_dimension", "json", "bands")
TREE = RUBRICS["tree"]
TURNS = (Turn(role="seeker", text="I lost my job."), Turn(role="supporter", text="I am sorry."))


async def asked(
    tmp_path: Path, behave: Behave, rubric: Rubric, method: str, constraint: str = "structured_outputs"
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    """The judgements of one dialogue, and what the judge was asked."""
    talk = make_dialogue("d", turns=TURNS)
    return await ask_judge(tmp_path, behave, talk, rubric, load_pack("any_rubric"), method, endpoint={"constraint": constraint})


def unasked(rubric: Rubric, method: str, pack: str = "any_rubric") -> Judge:
    """A judge that is only checked."""
    return Judge(ChatClient.__new__(ChatClient), load_spec("embedded"), rubric, load_pack(pack), method)


def said(texts: dict[str, str]) -> Behave:
    """Answers by what the last line of the question has in it."""
    return lambda body, count: Answer(next(text for key, text in texts.items() if key in body["messages"][-1]["content"]))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", SCORED)
async def test_every_method_asks_for_every_rubric(tmp_path: Path, kind: str, method: str) -> None:
    """The endpoint keeps to the constraint and to nothing else: what it may answer is what is read."""
    rubric = RUBRICS[kind]
    if kind == "0-100" and method == "bands":
        with pytest.raises(UserError, match="101 scores are too many to give each a probability"):
            await asked(tmp_path, echo, rubric, method)
        return
    judgements, requests = await asked(tmp_path, echo, rubric, method)
    assert [j.dimension for j in judgements] == list(rubric.dimensions)
    for judgement in judgements:
        applies = judgement.condition.get("verdict") != "not_applicable"
        assert (judgement.value is not None) == applies, judgement.raw
        scale = rubric.scale_of(judgement.dimension)
        if method != "bands" and judgement.value is not None:
            assert judgement.value in scale.scores
            assert scale.name(judgement.value) in judgement.raw
        if method == "bands" and judgement.value is not None:
            assert judgement.distribution is not None
            assert [float(score) for score in judgement.distribution] == list(scale.scores)
            assert judgement.value == pytest.approx(sum(float(s) * p for s, p in judgement.distribution.items()))
    assert len(requests) == (len(rubric.dimensions) if method == "per_dimension" else 1)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", SCORED)
def test_a_judge_is_told_what_the_scale_is(kind: str, language: str) -> None:
    rubric = RUBRICS[kind]
    if language == "zh":
        raw = json.loads(rubric.model_dump_json().replace('"en"', '"zh"'))
        rubric = Rubric.model_validate(raw)
    talk = make_dialogue("d", language=language)
    for method in ("joint", "per_dimension"):
        for key in rubric.dimensions:
            keys = list(rubric.dimensions) if method == "joint" else [key]
            system, user = (m["content"] for m in judge_messages(load_pack("any_rubric"), rubric, talk, method, keys))
            scale = rubric.scale_of(key)
            ends = [scale.name(scale.min, talk.language), scale.name(scale.max, talk.language)]
            rule = system[system.index(rubric.dimensions[key].about[talk.language]) :].splitlines()[1]
            assert all(end in rule for end in ends), rule
            assert "–" not in system and (scale.digits or all(end in user for end in ends))


@pytest.mark.parametrize("sign", [*filter(str.strip, AROUND)])
def test_a_level_may_begin_and_end_with_any_sign(sign: str) -> None:
    levels = [f"{sign}late", f"late {sign}or never{sign}", "never"]
    rubric = Rubric.model_validate({"name": "r", "scale": {"levels": levels}, "dimensions": {"help": "When?", "care": "When?"}})
    for place, level in enumerate(levels):
        for text in (level, f'"{level}".', level.upper()):
            assert read(text, rubric, ["help"], "en") == [place], text
        assert read(f"Help: {level}\nCare: never", rubric, ["help", "care"], "en") == [place, 2]


async def test_lines_and_lone_answers_are_held_and_read(tmp_path: Path) -> None:
    judgements, (request,) = await asked(
        tmp_path, lambda body, count: Answer("Warmth: 3.5\nPlan: n/a"), RUBRICS["halves"], "joint"
    )
    assert [(j.value, j.condition.get("verdict")) for j in judgements] == [(3.5, None), (None, "not_applicable")]
    regex = request["structured_outputs"]["regex"]
    assert re.fullmatch(regex, "Warmth: 0\nPlan: n/a") and not re.fullmatch(regex, "Warmth: 0.7\nPlan: n/a")
    assert not re.fullmatch(regex, "Warmth: n/a\nPlan: 1")
    _, requests = await asked(tmp_path / "..", lambda body, count: Answer("1"), RUBRICS["levels"], "per_dimension")
    assert requests[0]["structured_outputs"]["choice"] == ["never", "now and then", "often"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Warmth: 8\nPressure: 10", [8, 10]),
        ("1. **Warmth**: 8/10\n2. **Pressure**: 2/10", [8, 2]),
        ("pressure: 2\nwarmth: 8", [8, 2]),
        ('{"warmth": 8, "Pressure": "2"}', [8, 2]),
        ("Warmth: 8\nPressure: 2\nWarmth: 3", None),
        ("Warmth: 8", None),
        ("Warmth: 8 or 9\nPressure: 2", None),
        ("Warmth: 11\nPressure: 2", None),
        ("8, 2", None),
    ],
)
def test_where_a_server_holds_to_no_form_lines_are_read_and_nothing_is_guessed(text: str, wanted: list[float] | None) -> None:
    rubric = RUBRICS["1-10"]
    assert read(text, rubric, list(rubric.dimensions), "en") == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Yes.", [1]),
        ("**no**", [0]),
        ("是", [1]),
        ('{"answer": "yes"}', [1]),
        ("Blames: n/a", [NOT_APPLICABLE]),
        ("Yes and no", None),
    ],
)
def test_a_lone_answer_needs_no_name(text: str, wanted: list[float] | None) -> None:
    assert read(text, RUBRICS["yes or no"], ["blames"], "en") == wanted


def reply(text: str, *tokens: tuple[str, dict[str, float]]) -> Reply:
    return Reply(text=text, tokens=[(token, {t: math.log(p) for t, p in others.items()}) for token, others in tokens])


def test_probabilities_are_those_of_the_first_token_where_it_says_which_answer_it_begins() -> None:
    answers = RUBRICS["yes or no"].answers("asks", "en")
    found, broken = distribution(reply("yes", ("yes", {"yes": 0.5, " Yes": 0.1, "no": 0.2, "I": 0.2})), answers)
    assert found == pytest.approx({"0": 0.25, "1": 0.75}) and not broken
    levels = RUBRICS["levels"].answers("listens", "en")
    pieces = [("now", {"now": 0.6, "ne": 0.2, "of": 0.2}), (" and then", {" and then": 1.0})]
    assert distribution(reply("now and then", *pieces), levels)[0] == pytest.approx({"0": 0.2, "1": 0.6, "3": 0.2})


def test_no_probabilities_are_made_of_a_token_that_begins_several_answers() -> None:
    to_ten = RUBRICS["1-10"].answers("warmth", "en")
    assert distribution(reply("7", ("7", {"7": 0.6, "1": 0.4})), to_ten) == (None, False), "1, or the beginning of 10"
    assert distribution(reply("7", ("7", {"7": 0.6, "8": 0.4})), to_ten)[0] is not None
    blames = RUBRICS["yes or no"].answers("blames", "en")
    assert distribution(reply("no", ("no", {"no": 0.6, "n": 0.4})), blames) == (None, False), "no, or n/a"
    assert distribution(reply("n/a", ("n", {"n": 0.6, "no": 0.4})), blames) == (None, False)
    assert distribution(reply("no", ("yes", {"yes": 0.6, "no": 0.4})), blames) == (None, True), "of another text"
    chinese = RUBRICS["yes or no"].answers("asks", "zh")
    assert distribution(reply("是", ("是", {"是": 0.6, "否": 0.4})), chinese)[0] == pytest.approx({"0": 0.4, "1": 0.6})
    assert distribution(reply("是", ("是", {"是": 0.6, "\ufffd": 0.4})), chinese) == (None, False), "part of a character"


def test_a_pack_that_asks_for_digits_is_refused_for_other_answers() -> None:
    with pytest.raises(UserError, match="prompt pack feel asks for one digit per dimension.*judge_prompts: any_rubric"):
        unasked(RUBRICS["1-10"], "joint", "feel")


@pytest.mark.parametrize("method", ["joint", "bands"])
def test_a_label_that_no_line_could_be_found_by_is_refused(method: str) -> None:
    rubric = RUBRICS["yes or no"].model_copy(deep=True)
    rubric.dimensions["asks"].label["en"] = "Asks: once"
    with pytest.raises(UserError, match=rf"dimensions.asks.label.en: 'Asks: once': method {method} finds a line by its label"):
        unasked(rubric, method)


SPOKEN, ASKED, HELPLINE = (TREE.questions or {})["spoken"].text["en"], "ask about it", "name a helpline"
WAYS: dict[str, tuple[dict[str, str], list[float | None]]] = {
    "not spoken of": ({"spoken": "no"}, [0, None, None, 0]),
    "not asked": ({"spoken": "yes", "asked": "no"}, [1, 2, None, 3]),
    "all the way": ({"spoken": "yes", "asked": "partly", "helpline": "no"}, [1, 1, 0, 2.5]),
    "all well": ({"spoken": "yes", "asked": "yes", "helpline": "yes"}, [1, 0, 1, 0]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["tree", "tree_once"])
async def test_a_tree_is_walked_from_answer_to_answer(tmp_path: Path, method: str, way: str) -> None:
    answers, wanted = WAYS[way]
    lone = {SPOKEN: answers["spoken"], ASKED: answers.get("asked", "?"), HELPLINE: answers.get("helpline", "?")}
    every = "\n".join(f"{key}: {answers.get(key, 'yes')}" for key in TREE.questions or ())
    behave = said(lone) if method == "tree" else lambda body, count: Answer(every)
    judgements, requests = await asked(tmp_path, behave, TREE, method)
    assert [j.dimension for j in judgements] == list(TREE.dimensions)
    assert [j.value for j in judgements] == wanted
    off = [j.condition.get("verdict") for j in judgements]
    assert off == [None if value is not None else "not_reached" for value in wanted]
    assert len(requests) == (len(answers) if method == "tree" else 1)


async def test_a_question_is_asked_with_its_answers_and_a_tree_with_where_they_lead(tmp_path: Path) -> None:
    _, requests = await asked(tmp_path, said({SPOKEN: "no"}), TREE, "tree")
    assert requests[0]["structured_outputs"]["choice"] == ["no", "yes"]
    assert SPOKEN in requests[0]["messages"][1]["content"] and ASKED not in str(requests[0]["messages"])
    _, (request,) = await asked(tmp_path / "..", echo, TREE, "tree_once")
    text = request["messages"][1]["content"]
    assert "- yes: go on with Asked\n- no: the end" in text and "- partly: go on with Helpline" in text


async def test_an_answer_that_cannot_be_read_leaves_the_outcome_open(tmp_path: Path) -> None:
    judgements, _ = await asked(tmp_path, said({SPOKEN: "yes", ASKED: "hm", HELPLINE: "yes"}), TREE, "tree", constraint="none")
    assert [j.value for j in judgements] == [1, None, None, None]
    assert [j.condition.get("verdict") for j in judgements] == [None, None, "not_reached", None]


async def test_a_call_that_is_lost_loses_what_it_would_have_led_to(tmp_path: Path) -> None:
    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer("yes") if SPOKEN in body["messages"][-1]["content"] else Answer(status=503)

    judgements, _ = await asked(tmp_path, behave, TREE, "tree")
    assert [j.lost for j in judgements] == [False, True, True, True]


@pytest.mark.parametrize(("kind", "method"), [("tree", "joint"), ("tree", "json"), ("tree", "bands"), ("1-10", "tree")])
def test_a_method_that_does_not_apply_is_refused_with_one_that_does(kind: str, method: str) -> None:
    with pytest.raises(UserError, match=r"use method tree|need questions"):
        unasked(RUBRICS[kind], method)


def test_a_reward_is_of_the_outcome_and_worse_is_less() -> None:
    def verdicts(**values: float | None) -> list[Judgement]:
        base = {"dialogue_id": "d", "language": "en", "judge": "j", "rubric": TREE.name}
        unasked = {"condition": {"verdict": "not_reached"}}
        return [
            Judgement.model_validate(base | {"dimension": key, "value": value} | (unasked if value is None else {}))
            for key, value in values.items()
        ]

    talk = make_dialogue("d")
    assert rewarded(talk, verdicts(spoken=1, asked=2, helpline=None, outcome=3), TREE) == 0
    assert rewarded(talk, verdicts(spoken=0, asked=None, helpline=None, outcome=0), TREE) == 1


def test_a_reward_is_weighted_and_leaves_out_what_does_not_apply() -> None:
    def verdict(rubric: Rubric, key: str, value: float | None, **condition: str) -> Judgement:
        base = {"dialogue_id": "d", "language": "en", "judge": "j", "rubric": rubric.name}
        return Judgement.model_validate(base | {"dimension": key, "value": value, "condition": condition})

    talk, ten, checks = make_dialogue("d"), RUBRICS["1-10"], RUBRICS["yes or no"]
    assert rewarded(talk, [verdict(ten, "warmth", 10), verdict(ten, "pressure", 10)], ten) == 0.25
    assert rewarded(talk, [verdict(checks, "asks", 1), verdict(checks, "blames", None, verdict="not_applicable")], checks) == 1
    assert rewarded(talk, [verdict(checks, "asks", 1), verdict(checks, "blames", None)], checks) is None


def test_bundled_rubrics_are_asked_as_they_were() -> None:
    """One scale of digits whose every score has a text: the packs that state them say what the scale is."""
    names = ("esc_eval", "esc_eval_human", "feel", "emoharbor", "epitome", "role_play", "risk_response", "summary")
    assert all(load_rubric(name).told for name in names)
    assert not any(rubric.told for rubric in RUBRICS.values()) and RUBRICS["digits"].digits
