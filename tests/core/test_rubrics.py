"""Rubric files: short forms, scales of every kind, trees; and every fault of a file in one error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.rubrics import Rubric, load_rubric
from core.scales import NOT_APPLICABLE, Scale
from tests.evalsuite.rubrics import RUBRICS, TEXTS


def loaded(tmp_path: Path, text: str) -> Rubric:
    (tmp_path / "mine.yaml").write_text(text)
    return load_rubric(str(tmp_path / "mine.yaml"))


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, text)
    return str(caught.value)


def test_ten_lines_are_a_rubric(tmp_path: Path) -> None:
    rubric = loaded(tmp_path, TEXTS["1-10"])
    assert len(TEXTS["1-10"].strip().splitlines()) < 10
    assert (rubric.languages, rubric.title, rubric.scale.scores) == (("en",), "to_ten", tuple(range(1, 11)))
    warmth = rubric.dimensions["warmth"]
    assert (warmth.label, warmth.about) == ({"en": "Warmth"}, {"en": "How warm the supporter sounds."})


def test_plain_texts_are_of_the_language_that_the_file_names(tmp_path: Path) -> None:
    rubric = loaded(
        tmp_path, "name: x\nlanguage: zh\nscale: {min: 0, max: 1}\ndimensions:\n  a: {label: 温暖, about: 有多温暖}\n"
    )
    assert rubric.languages == ("zh",) and rubric.dimensions["a"].label == {"zh": "温暖"}


@pytest.mark.parametrize("kind", RUBRICS)
def test_a_rubric_is_the_same_after_it_was_written_down(kind: str) -> None:
    rubric = RUBRICS[kind]
    assert Rubric.model_validate_json(rubric.model_dump_json()) == rubric
    assert Rubric.model_validate(rubric.model_dump(mode="json")) == rubric


def test_what_a_rubric_does_not_use_is_not_in_its_dump() -> None:
    """Run folders of before these fields keep their config, byte for byte."""
    plain = load_rubric("esc_eval").model_dump_json()
    assert not [name for name in ("step", "weight", "higher_is", "not_applicable", "questions") if f'"{name}"' in plain]
    assert '"scale":{"min":0,"max":4}' in plain


def test_scores_of_every_kind_of_scale() -> None:
    assert Scale(min=0, max=2, step=0.5).scores == (0, 0.5, 1, 1.5, 2)
    assert [f"{score:g}" for score in Scale(min=-1, max=1, step=0.1).scores][:3] == ["-1", "-0.9", "-0.8"]
    assert RUBRICS["levels"].scale.scores == (0, 1, 3)
    assert RUBRICS["yes or no"].answers("blames", "zh") == {"否": 0, "是": 1, "不适用": NOT_APPLICABLE}


@given(st.floats(0, 3), st.sampled_from(["levels", "halves", "1-10"]))
def test_the_nearest_score_is_nearest_by_steps(value: float, kind: str) -> None:
    scale = RUBRICS[kind].scale
    value += scale.min
    at = scale.place(scale.nearest(value))
    assert abs(at - scale.place(value)) <= 0.5 + 1e-9 and scale.scores[round(at)] == scale.nearest(value)


@pytest.mark.parametrize(
    ("kind", "dimension", "text", "wanted"),
    [
        ("1-10", "warmth", "10", 10),
        ("1-10", "warmth", "7/10", 7),
        ("1-10", "warmth", "7.0", 7),
        ("1-10", "warmth", "7/5", None),
        ("1-10", "warmth", "11", None),
        ("1-10", "warmth", "7.5", None),
        ("1-10", "warmth", "n/a", None),
        ("halves", "warmth", "3.5", 3.5),
        ("halves", "warmth", "3.50 / 4", 3.5),
        ("halves", "warmth", "3,5", 3.5),
        ("1-10", "warmth", "+7", 7),
        ("1-10", "warmth", "7,5", None),
        ("halves", "plan", "N/A", NOT_APPLICABLE),
        ("yes or no", "asks", "Yes", 1),
        ("yes or no", "asks", "是", 1),
        ("yes or no", "asks", "1", None),
        ("levels", "listens", "Now and then", 1),
        ("levels", "listens", "often, I think", None),
    ],
)
def test_an_answer_is_a_score_or_nothing(kind: str, dimension: str, text: str, wanted: object) -> None:
    assert RUBRICS[kind].verdict(dimension, text) == wanted


def test_a_score_below_zero_is_read_with_either_sign() -> None:
    scale = Scale(min=-2, max=2)
    assert [scale.read(text) for text in ("-2", "−2", "+1", "–1")] == [-2, -2, 1, None]


def test_points_run_from_the_worst_score_to_the_best() -> None:
    rubric = RUBRICS["1-10"]
    assert [rubric.normalised("warmth", score) for score in (1, 5.5, 10)] == [0, 50, 100]
    assert [rubric.normalised("pressure", score) for score in (1, 5.5, 10)] == [100, 50, 0]
    assert rubric.average({"warmth": 100, "pressure": 0}) == 25 and not rubric.alike


def test_a_tree_is_its_questions_and_an_outcome() -> None:
    rubric = RUBRICS["tree"]
    assert [*rubric.dimensions] == ["spoken", "asked", "helpline", "outcome"]
    assert rubric.scales["spoken"].levels == {"no": 0, "yes": 1} and rubric.scales["asked"].scores == (0, 1, 2)
    outcome = rubric.scale_of("outcome")
    assert (outcome.min, outcome.max, outcome.step) == (0, 3, 0.5), "0, 1, 1.5, 2.5 and 3 are possible"
    assert rubric.weights == (0, 0, 0, 1) and rubric.ends("outcome") == (3, 0)


FAULTY = """
name: mine
scale: {min: 5, max: 1}
dimensions:
  warmth: {about: How warm., levels: {9: Warm.}, scale: {min: 0, max: 4}}
  plan: {about: {zh: 计划}, label: {zh: 计划}, scale: {min: 0, max: 1, step: 0.3}}
  fine: {about: How fine., scale: {min: 0, max: 100, step: 0.01}}
  late: {about: How late., scale: {min: 0, max: 4, least: 1}}
  often: {about: How often., scale: {levels: [never, often]}, levels: {seldom: Seldom.}}
"""
LOOSE_ENDS = """
name: mine
questions:
  first: {text: First, answers: {yes: secnd, no: END}}
  second: {text: Second, answers: {yes: END, no: {points: 0.3}}}
  outcome: {text: Third, answers: {yes: END, no: END}}
"""


def test_every_fault_of_a_rubric_is_told_at_once(tmp_path: Path) -> None:
    told = fault(tmp_path, FAULTY)
    for wanted in (
        f"{tmp_path}/mine.yaml",
        "scale: min 5 is not below max 1",
        "dimension warmth (en): score 9 is off the scale, 0 to 4",
        "dimension warmth: no zh label or about",
        "dimension plan: no en label or about",
        "dimension plan: scale: step 0.3 does not lead from 0 to 1",
        "dimension fine: scale: step 0.01: more than 1,001 scores",
        "dimension late: scale: least 1 is above min 0",
        "dimension often (en): level seldom is off the scale, never, often",
    ):
        assert wanted in told


def test_fields_of_the_wrong_kind_are_told_at_once(tmp_path: Path) -> None:
    told = fault(tmp_path, "name: mine\nscale: {min: low, max: 4}\ndimensions:\n  a: {about: b, weight: -1, higher: worse}\n")
    for wanted in ("mine.yaml:2: ", "scale.min", "dimensions.a.weight", "dimensions.a.higher: unknown field"):
        assert wanted in told


def test_every_fault_of_a_tree_is_told_at_once(tmp_path: Path) -> None:
    told = fault(tmp_path, LOOSE_ENDS)
    for wanted in (
        "questions.first.answers.yes.goto: no question 'secnd': write one of first, second, outcome, END",
        "questions.second.answers.no.points: 0.3 is not a whole or half number",
        "questions.outcome: this name is reserved",
        "questions.second: cannot be reached from the first question",
    ):
        assert wanted in told


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "name: x\nquestions:\n  a: {text: A, answers: {yes: b, no: END}}\n  b: {text: B, answers: {yes: a, no: END}}\n",
            "questions: a circle, a → b → a: let one of these answers lead elsewhere",
        ),
        (
            "name: x\nquestions:\n  a: {text: A, answers: {yes: END}}\n",
            "questions.a.answers: Dictionary should have at least 2 items, not 1",
        ),
        (
            "name: x\nquestions:\n  a: {text: A, answers: {yes: end, no: End}}\n",
            "questions.a.answers.yes.goto: no question 'end'",
        ),
        ("name: x\nquestions: [{text: A}]\n", "questions: expected fields, as in {name: value}"),
        ("name: x\nscale: yes_no\ndimensions: [a, b]\n", "mine.yaml:3: dimensions: expected fields, as in {name: value}"),
        ("name: x\nscale: yes_no\ndimensions: {a: {text: b}}\n", "dimensions.a.about: Field required"),
        *(
            (
                f"name: x\nscale: {scale}\ndimensions: {{a: b}}\n",
                "scale: a scale is {min: 1, max: 10}, also with step: 0.5; or yes_no",
            )
            for scale in ("0-10", "yes/no", "5", "[never, often]", "")
        ),
        ("name: x\nscale: {levels: [yes, no]}\ndimensions: {a: b}\n", "levels: the worst comes first"),
        ("name: x\nquestions:\n  a: {text: A, answers: {yes: END, no: END}}\n", "all paths have the same points"),
        ("name: x\nscale: {levels: [a, a]}\ndimensions: {a: b}\n", "levels: name two or more, each once"),
        ("name: x\nscale: {max: 5, levels: [a, b]}\ndimensions: {a: b}\n", "run from 0 to 1: leave min and max out"),
        ("name: x\nscale: {levels: {a: 2, b: 1}}\ndimensions: {a: b}\n", "must be in ascending order"),
        ("name: x\nscale: {levels: {a: 2, b: c}}\ndimensions: {a: b}\n", "give each level a number"),
        ("name: x\nscale: yes_no\ndimensions: {a: {about: b, weight: 0}}\n", "dimensions: every weight is 0"),
        ("name: x\nscale: yes_no\ndimensions: {}\n", "dimensions: none given"),
        ("name: x\ndimensions: {a: b}\n", "scale: Field required"),
        ("name: x\n", "mine.yaml:1: scale, dimensions: Field required"),
    ],
)
def test_a_rubric_that_cannot_be_asked_is_refused(tmp_path: Path, text: str, wanted: str) -> None:
    assert wanted in fault(tmp_path, text)


def test_a_file_that_is_not_yaml_is_no_unknown_name() -> None:
    with pytest.raises(UserError, match=r"unknown rubric 'mine/r\.json': a file must end in \.yaml"):
        load_rubric("mine/r.json")


def test_words_that_yaml_once_took_for_truth_values_and_numbers_are_names(tmp_path: Path) -> None:
    rubric = loaded(tmp_path, "name: x\nlanguage: no\nscale: {levels: [off, on]}\ndimensions: {no: Hvor?, 2: Hva?}\n")
    assert rubric.languages == ("no",) and [*rubric.dimensions] == ["no", "2"]
    assert rubric.scale.levels == {"off": 0, "on": 1}
    questions = "{1: {text: A, answers: {yes: 2, no: END}}, 2: {text: B, answers: {yes: {points: 1}, no: {goto: END}}}}"
    tree = loaded(tmp_path, f"name: x\nquestions: {questions}\n")
    assert tree.questions and tree.questions["1"].answers["yes"].goto == "2"
    levels = {"scale": {"levels": [False, True]}, "dimensions": {"a": "b"}, "name": "x"}  # as other parsers of YAML read them
    assert Rubric.model_validate(levels).scale.levels == {"no": 0, "yes": 1}
