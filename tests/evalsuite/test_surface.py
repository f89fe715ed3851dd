"""Surface features counted by hand, and a classifier that validation chooses."""

from typing import Any, Self

import pytest

from core.errors import UserError
from core.records import Dialogue, Judgement, Turn
from core.rubrics import load_rubric
from data_prep.scores.rank_sft import RankExample
from evalsuite.judge import surface
from evalsuite.judge.surface import (
    FEATURES,
    MAJORITY,
    Rating,
    Split,
    baseline_judgements,
    features,
    judged_items,
    ratings,
    surface_judgements,
)

RUBRIC = load_rubric("esc_eval")
KEY: Any = ("en", "fluency")
VERDICT = Judgement(dialogue_id="d", language="en", judge="mine", rubric="esc_eval", dimension="fluency", value=1)


def dialogue(id: str, *turns: str, language: Any = "en") -> Dialogue:
    """Turns in order, the seeker first."""
    roles: list[Any] = ["seeker", "supporter"]
    made = tuple(Turn(role=roles[number % 2], text=text) for number, text in enumerate(turns))
    return Dialogue(id=id, language=language, source="written", turns=made)


def test_features_by_hand() -> None:
    row = features(dialogue("a", "I don't sleep.", "Why not? Why not?", "Work, work, work, work, work.", "why  not? why not?"))
    assert dict(zip(FEATURES, row, strict=True)) == {
        "turns": 4,
        "supporter_mean": 4,
        "supporter_min": 4,
        "supporter_max": 4,
        "supporter_sd": 0,
        "seeker_mean": 4,  # "don't" is one word
        "seeker_min": 3,
        "seeker_max": 5,
        "seeker_sd": 1,
        "distinct_1": 2 / 8,
        "distinct_2": 2 / 6,  # why not, not why; no pair across replies
        "repeats": 1,
        "questions": 2,
    }


def test_chinese_is_counted_by_characters_and_a_silent_supporter_by_zeros() -> None:
    row = dict(zip(FEATURES, features(dialogue("a", "我累", "为什么？", "不 知", "嗯", language="zh")), strict=True))
    assert (row["supporter_mean"], row["supporter_max"], row["seeker_mean"], row["questions"]) == (2.5, 4, 2, 0.5)
    silent = dict(zip(FEATURES, features(dialogue("b", "hello")), strict=True))
    assert (silent["turns"], silent["supporter_max"], silent["distinct_1"], silent["questions"]) == (1, 0, 0, 0)


def test_ratings_are_the_same_from_joint_and_single_examples() -> None:
    def example(id: str, dimension: str | None, **labels: int) -> RankExample:
        return RankExample(
            id=id,
            prompt=({"role": "user", "content": "x"},),
            completion=({"role": "assistant", "content": "0"},),
            language="en",
            dialogue_id="d",
            group="g",
            dimension=dimension,
            labels=labels,
            target={key: label - 0.25 for key, label in labels.items()},
        )

    joint = ratings([example("d/joint", None, fluency=1, skill=2)])
    assert joint == {("en", "fluency"): [Rating("d", 1, 0.75)], ("en", "skill"): [Rating("d", 2, 1.75)]}
    assert joint == ratings([example("1", "fluency", fluency=1), example("2", "skill", skill=2)])


def rows(count: int, name: str) -> tuple[dict[Any, list[Rating]], dict[str, Dialogue]]:
    """Dialogues whose label is 3 where replies are long and 1 where they are short."""
    made = {f"{name}{n}": dialogue(f"{name}{n}", "hi", "word " * (20 if n % 2 else 2) + str(n)) for n in range(count)}
    return {KEY: [Rating(id, 3 if n % 2 else 1, 3 if n % 2 else 1) for n, id in enumerate(made)]}, made


def asked(test: dict[Any, list[Rating]]) -> Any:
    return {key: [rating.dialogue_id for rating in of] for key, of in test.items()}


@pytest.mark.slow
def test_a_label_that_follows_length_is_found_and_the_majority_is_that_of_training() -> None:
    (train, a), (valid, b), (test, c) = rows(40, "a"), rows(10, "b"), rows(6, "c")
    found, chosen = surface_judgements(asked(test), Split(RUBRIC, train, valid, {}), a | b | c)
    assert [j.value for j in found] == [1, 3, 1, 3, 1, 3] and [j.dialogue_id for j in found] == [f"c{n}" for n in range(6)]
    assert (
        chosen[0]["valid_acc"] == {"logistic regression": 1.0, "random forest": 1.0}
        and chosen[0]["chosen"] == "logistic regression"
    )
    assert set(found[0].distribution or {}) == {"0", "1", "2", "3", "4"} and (found[0].distribution or {})["0"] == 0
    constant = {KEY: [*train[KEY][:2], Rating("x", 4, 4), Rating("y", 4, 4)]}
    verdicts = [VERDICT.model_copy(update={"dialogue_id": id}) for id in c]
    most, _ = baseline_judgements(verdicts, Split(RUBRIC, constant, {}, dict.fromkeys(c, "group")), None)
    assert [(j.judge, j.value) for j in most] == [(MAJORITY, 4)] * 6


class Constant:
    """A classifier that always says one label."""

    def __init__(self, label: int) -> None:
        self.classes_ = [label]

    def fit(self, *_: Any) -> Self:
        return self

    def predict(self, rows: Any) -> Any:
        return [self.classes_[0]] * len(rows)

    def predict_proba(self, rows: Any) -> Any:
        import numpy as np

        return np.ones((len(rows), 1))


def test_validation_chooses_not_the_test_split(monkeypatch: pytest.MonkeyPatch) -> None:
    (train, a), (valid, b), (test, c) = rows(4, "a"), rows(4, "b"), rows(4, "c")
    monkeypatch.setattr(surface, "_classifiers", lambda *_: {"one": Constant(1), "three": Constant(3)})
    mostly_three = {KEY: valid[KEY][1:]}
    test_is_one = {KEY: [item for item in test[KEY] if item.label == 1]}
    found, chosen = surface_judgements(asked(test_is_one), Split(RUBRIC, train, mostly_three, {}), a | b | c)
    assert [j.value for j in found] == [3, 3] and chosen[0]["chosen"] == "three"
    assert chosen[0]["valid_acc"] == pytest.approx({"one": 1 / 3, "three": 2 / 3})


@pytest.mark.slow
def test_what_is_missing_is_named() -> None:
    (train, a), (valid, b), (test, c) = rows(4, "a"), rows(4, "b"), rows(4, "c")
    with pytest.raises(UserError, match=r"--dialogues: lacks 4 dialogues of the split, for example c0"):
        surface_judgements(asked(test), Split(RUBRIC, train, valid, {}), a | b)
    with pytest.raises(UserError, match=r"valid.jsonl: no label for fluency \(en\)"):
        surface_judgements(asked(test), Split(RUBRIC, train, {}, {}), a | b | c)


@pytest.mark.slow
def test_one_label_in_training_is_all_that_can_be_said() -> None:
    (train, a), (valid, b), (test, c) = rows(4, "a"), rows(4, "b"), rows(4, "c")
    same = {KEY: [item._replace(label=2, target=2) for item in train[KEY]]}
    found, chosen = surface_judgements(asked(test), Split(RUBRIC, same, valid, {}), a | b | c)
    assert [j.value for j in found] == [2] * 4 and chosen[0]["chosen"] == "the only label"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"dialogue_id": "other"}, "other, fluency: not in the test split"),
        ({"rubric": "epitome"}, "rubric: epitome, but the split was made with esc_eval"),
    ],
)
def test_verdicts_of_other_data_are_refused(change: dict[str, Any], match: str) -> None:
    split = Split(RUBRIC, {}, {}, {"d": "group"})
    assert judged_items([VERDICT], split) == {KEY: ["d"]}
    several = [f"d{n}" for n in range(10)]
    verdicts = [VERDICT.model_copy(update={"dialogue_id": name}) for name in reversed(several)]
    assert judged_items(verdicts, Split(RUBRIC, {}, {}, dict.fromkeys(several, "group"))) == {KEY: several}
    with pytest.raises(UserError, match=match):
        judged_items([VERDICT, VERDICT.model_copy(update=change)], split)
