"""Judging: prompts, parsing, probabilities, failures. What the judge answers is scripted; real judges are in test_run.py."""

import json
import math
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.judge_prompts import PromptMethod, paper_transcript
from core.prompts import load_pack
from core.records import Dialogue, Judgement, Turn
from core.rubrics import load_rubric
from core.specs import load_spec
from evalsuite.judge.judge import CUT, LONGEST, Judge, expectation
from evalsuite.judge.methods import METHODS, Method, method_of, methods
from evalsuite.judge.scores import paper_score
from serve.answers import choice_probabilities
from tests.endpoint import Answer
from tests.evalsuite.judging import Behave, ask_judge

RUBRIC = load_rubric("esc_eval")
KEYS = list(RUBRIC.dimensions)


def dialogue(*texts: str, language: str = "en", termination: str = "max_turns", greeting: bool = True) -> Dialogue:
    texts = texts or ("I lost my job.", "I am sorry.")
    turns = [Turn(role="supporter", text="Hello.")] if greeting else []
    turns += [Turn(role="seeker" if i % 2 == 0 else "supporter", text=text) for i, text in enumerate(texts)]
    fields = {"id": "d1", "language": language, "source": "test", "turns": turns, "termination": termination}
    return Dialogue.model_validate(fields)


async def judged(
    tmp_path: Path, behave: Behave, method: PromptMethod, subject: Dialogue | None = None, **changes: Any
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    return await ask_judge(tmp_path, behave, subject or dialogue(), RUBRIC, load_pack("esc_eval"), method, **changes)


def digits(text: str, *alternatives: dict[str, float]) -> Behave:
    """Answers `text`, one token a character, each with the given probabilities."""
    tokens = [
        {"token": c, "logprob": math.log(p[c]), "top_logprobs": [{"token": t, "logprob": math.log(x)} for t, x in p.items()]}
        for c, p in zip(text, alternatives, strict=False)
    ]
    return lambda body, count: Answer(text, logprobs=tokens or None)


async def test_joint_asks_once_and_reads_every_dimension(tmp_path: Path) -> None:
    probabilities = {"3": 0.5, "4": 0.3, "yes": 0.2}
    behave = digits("3333333", *[probabilities] * 7)
    judgements, requests = await judged(tmp_path, behave, "joint")
    assert len(requests) == 1
    assert requests[0]["structured_outputs"] == {"regex": "[0-4]{7}"}
    assert [j.dimension for j in judgements] == KEYS
    assert {j.value for j in judgements} == {3}
    first = judgements[0]
    assert first.distribution is not None and first.expected is not None
    assert first.distribution["3"] == pytest.approx(0.5 / 0.8)  # renormalised over the scale
    assert first.expected == pytest.approx((3 * 0.5 + 4 * 0.3) / 0.8)
    assert first.condition == {"mode": "native"}


async def test_per_dimension_shares_the_dialogue_as_prefix(tmp_path: Path) -> None:
    judgements, requests = await judged(tmp_path, digits("2", {"2": 1.0}), "per_dimension")
    assert len(requests) == 7 and [j.value for j in judgements] == [2] * 7
    prompts = [request["messages"][-1]["content"] for request in requests]
    end = prompts[0].index("I am sorry.") + len("I am sorry.")
    assert len({prompt[:end] for prompt in prompts}) == 1
    assert len(set(prompts)) == 7
    assert requests[0]["structured_outputs"] == {"choice": list("01234")}


async def test_paper_puts_the_rubric_first_and_constrains_nothing(tmp_path: Path) -> None:
    judgements, requests = await judged(tmp_path, lambda body, count: Answer("Score: 4, with 0 doubts"), "paper")
    prompt = requests[0]["messages"][-1]["content"]
    level = RUBRIC.dimensions["fluency"].levels["en"][4]
    assert prompt.index(level) < prompt.index("I am sorry.")
    assert "structured_outputs" not in requests[0]
    assert [j.value for j in judgements] == [0] * 7  # odd, and as published: labels are tried from 0 upwards
    assert judgements[0].condition == {"mode": "paper"}


@pytest.mark.parametrize("method", get_args(PromptMethod))
async def test_the_value_is_what_the_text_says_even_if_another_score_was_more_probable(
    tmp_path: Path, method: PromptMethod
) -> None:
    probabilities = {"1": 0.3, "4": 0.6}
    text = "1" * (7 if method == "joint" else 1)
    judgements, _ = await judged(tmp_path, digits(text, *[probabilities] * 7), method)
    assert {j.value for j in judgements} == {1} and {round(j.expected or 0, 6) for j in judgements} == {3.0}


@pytest.mark.parametrize("text", ["no idea", "5555555", "333333", "33333333", "", "3.333333"])
async def test_an_unreadable_verdict_is_null_with_its_raw_text(tmp_path: Path, text: str) -> None:
    judgements, _ = await judged(tmp_path, lambda body, count: Answer(text), "joint", endpoint={"constraint": "none"})
    assert [j.value for j in judgements] == [None] * 7
    assert {j.raw for j in judgements} == {text.strip()}


async def test_an_endpoint_without_constraints_or_logprobs_still_scores(tmp_path: Path) -> None:
    settings = {"constraint": "none", "top_logprobs": 0}
    judgements, requests = await judged(tmp_path, lambda b, c: Answer("0, 1, 2, 3, 4, 0, 1\n"), "joint", endpoint=settings)
    assert [j.value for j in judgements] == [0, 1, 2, 3, 4, 0, 1]
    assert judgements[0].distribution is None and judgements[0].expected is None
    assert "logprobs" not in requests[0] and "structured_outputs" not in requests[0]
    assert requests[0]["max_tokens"] == 50  # free text, or a reasoning judge, needs room


async def test_merged_digit_tokens_give_values_without_a_distribution(tmp_path: Path) -> None:
    merged = [{"token": "333", "logprob": 0.0, "top_logprobs": []}, {"token": "3333", "logprob": 0.0, "top_logprobs": []}]
    judgements, _ = await judged(tmp_path, lambda b, c: Answer("3333333", logprobs=merged), "joint")
    assert [j.value for j in judgements] == [3] * 7
    assert judgements[0].distribution is None


def reported(token: str, logprob: object, **others: object) -> dict[str, Any]:
    """One token as a server reports it, with alternatives beside itself."""
    return {"token": token, "logprob": logprob, "top_logprobs": [{"token": t, "logprob": p} for t, p in others.items()]}


SURE = [reported(digit, -0.1, x=-3) for digit in "3210321"]
SPREAD = dict.fromkeys("01234", 0.0)
BROKEN = {
    "all zero": [reported(digit, 0.0, **SPREAD) for digit in "3210321"],
    "not a number": [reported(digit, math.nan, **SPREAD) for digit in "3210321"],
    "null": [reported(digit, None) for digit in "3210321"],
    "above 0": [reported(digit, 2.5) for digit in "3210321"],
    "the token impossible": [reported(digit, -9999.0, **{"4": -0.001}) for digit in "3210321"],
    "of another text": [reported(digit, -0.1, x=-3) for digit in "4444444"],
    "one too few": SURE[1:],
    "words": "none",
    "without tokens": [{"logprob": -0.1}],
}


@pytest.mark.slow
@pytest.mark.parametrize("logprobs", BROKEN.values(), ids=BROKEN)
async def test_broken_probabilities_leave_the_digits_as_they_are(tmp_path: Path, logprobs: Any) -> None:
    def behave(body: dict[str, Any], count: int) -> Answer:
        choice = {"message": {"content": "3210321"}, "finish_reason": "stop", "logprobs": {"content": logprobs}}
        return Answer(body=json.dumps({"choices": [choice]}).encode())  # writes NaN, as many servers do

    judgements, requests = await judged(tmp_path, behave, "joint")
    assert [j.value for j in judgements] == [3, 2, 1, 0, 3, 2, 1] and len(requests) == 1
    assert {(j.distribution, j.expected, j.condition["probabilities"]) for j in judgements} == {(None, None, "broken")}


async def test_one_broken_token_is_one_dimensions_loss(tmp_path: Path) -> None:
    logprobs = [*SURE[:6], reported("1", 0.0, **SPREAD)]
    judgements, _ = await judged(tmp_path, lambda b, c: Answer("3210321", logprobs=logprobs), "joint")
    assert [j.value for j in judgements] == [3, 2, 1, 0, 3, 2, 1]
    assert [j.condition.get("probabilities") for j in judgements] == [None] * 6 + ["broken"]
    assert [j.distribution is None for j in judgements] == [False] * 6 + [True]


@pytest.mark.parametrize("method", ["per_dimension", "paper"])
async def test_one_digit_stands_against_broken_probabilities_too(tmp_path: Path, method: PromptMethod) -> None:
    judgements, _ = await judged(tmp_path, lambda b, c: Answer("3", logprobs=[reported("3", 0.0, **SPREAD)]), method)
    assert {(j.value, j.distribution, j.condition["probabilities"]) for j in judgements} == {(3, None, "broken")}


REFUSED = "I cannot rate this under our 2023 policy. 3333333"


@pytest.mark.parametrize("method", ["joint", "per_dimension", "paper"])
@pytest.mark.parametrize(
    "refusal",
    [Answer(REFUSED, finish_reason="content_filter"), Answer(REFUSED, message={"refusal": "no"})],
    ids=["filter", "field"],
)
async def test_a_refusal_is_no_verdict_and_is_kept(tmp_path: Path, method: PromptMethod, refusal: Answer) -> None:
    judgements, _ = await judged(tmp_path, lambda b, c: refusal, method)
    assert {(j.value, j.raw, j.condition["failure"]) for j in judgements} == {(None, REFUSED, "refusal")}


async def test_a_long_reply_is_cut_and_says_so(tmp_path: Path) -> None:
    settings = {"constraint": "none"}
    reply = "3333333" + " 3" * LONGEST
    judgements, _ = await judged(tmp_path, lambda b, c: Answer(reply), "joint", endpoint=settings)
    assert {(j.value, j.raw) for j in judgements} == {(None, reply[:LONGEST] + CUT)}
    assert not any(c.isdigit() for c in CUT), "the paper's parser would find it"


async def test_a_dialogue_that_does_not_fit_is_null_with_the_reason(tmp_path: Path) -> None:
    body = b'{"error": {"message": "maximum context length is 10"}}'
    judgements, _ = await judged(tmp_path, lambda b, c: Answer(status=400, body=body), "joint")
    assert {(j.value, j.condition["failure"]) for j in judgements} == {(None, "context_overflow")}


@pytest.mark.parametrize(
    ("subject", "failure"),
    [
        (dialogue("I lost my job.", termination="empty_reply"), "no_supporter_turn"),
        (dialogue(termination="infrastructure"), "infrastructure"),
    ],
)
async def test_dialogues_that_cannot_be_judged_are_not_asked_about(tmp_path: Path, subject: Dialogue, failure: str) -> None:
    judgements, requests = await judged(tmp_path, digits("3333333"), "joint", subject)
    assert requests == []
    assert {j.condition["failure"] for j in judgements} == {failure} and len(judgements) == 7


async def test_a_lost_judge_gives_null_and_is_asked_again_next_time(tmp_path: Path) -> None:
    judgements, _ = await judged(tmp_path, lambda b, c: Answer(status=500), "joint")
    assert {j.condition["failure"] for j in judgements} == {"infrastructure"}
    judgements, requests = await judged(tmp_path, digits("3333333"), "joint")
    assert len(requests) == 1 and judgements[0].value == 3


async def test_seven_adapters_are_asked_under_their_own_names(tmp_path: Path) -> None:
    adapters = {"en": {key: f"org/{key}" for key in KEYS}}
    _, requests = await judged(tmp_path, digits("3"), "per_dimension", adapters=adapters)
    assert [request["model"] for request in requests] == [f"judge.en.{key}" for key in KEYS]
    with pytest.raises(UserError, match="per_dimension"):
        await judged(tmp_path, digits("3"), "joint", adapters=adapters)


def test_the_published_transcript_is_reproduced() -> None:
    shown = paper_transcript(dialogue("Are you an AI assistant?", "Yes."))
    assert shown == "**AI助手**：Hello.\n\n**用户**Are you an **AI助手**?\n\n**AI助手**：Yes."


@pytest.mark.parametrize(
    ("reply", "score"), [("3", 3), ("4, with 0 faults", 0), ("I give 4/4, not 1", 1), ("none", None), ("", None), ("7", None)]
)
def test_the_published_parser(reply: str, score: int | None) -> None:
    assert paper_score(reply, range(5)) == score


@given(st.dictionaries(st.sampled_from(["0", "1", "2", "3", "4", " 2", "x", "12"]), st.floats(-30, 0), min_size=1))
def test_distributions_are_distributions(weights: dict[str, float]) -> None:
    alternatives = {token: weight - math.log(sum(map(math.exp, weights.values()))) for token, weight in weights.items()}
    for token in alternatives:
        if token.strip() in set("01234"):
            distribution = choice_probabilities(token, alternatives, "01234")
            assert (distribution is None) == (len(alternatives) == 1), "no alternatives, no distribution"
            if distribution is not None:
                assert sum(distribution.values()) == pytest.approx(1) and set(distribution) == set("01234")
                assert 0 <= expectation(distribution) <= 4
                assert distribution[token.strip()] > 0


def test_a_method_that_cannot_be_loaded_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = methods()
    assert set(known) == set(METHODS) and capsys.readouterr().err == ""
    monkeypatch.setitem(METHODS, "mine", "no_such_package:mine")
    assert methods() == known
    assert (
        capsys.readouterr().err == "warning: method mine cannot be loaded: No module named 'no_such_package'; it is left out\n"
    )
    with pytest.raises(UserError, match="method mine cannot be loaded"):
        method_of("mine")
    with pytest.raises(UserError, match="unknown method 'jont': did you mean joint"):
        method_of("jont")


async def _two_dimensions(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    return [judge.judgement(dialogue, name, "3", 3) for name in list(RUBRIC.dimensions)[:2]]


two_dimensions = Method(_two_dimensions)


async def test_a_method_that_leaves_dimensions_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "two", f"{__name__}:two_dimensions")
    judge = Judge(cast(Any, None), load_spec("embedded-ranker"), RUBRIC, load_pack("esc_eval"), "two")
    with pytest.raises(UserError, match="method two: no judgement on empathy, humanoid, "):
        await judge.score(dialogue())
