"""Whatever a judge's server answers: a parser ends, soon and without an exception, and gives no score that was not said."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.judge_prompts import JudgeMethod
from core.prompts import load_pack
from core.records import Dialogue, Judgement, Turn
from core.rubrics import load_rubric
from data_prep.cards import parse_card_text
from evalsuite.frameworks.emoharbor_seeker import ending_phrases, ends, triple
from evalsuite.judge.band_lines import read_bands
from evalsuite.judge.base import CUT, LONGEST
from evalsuite.judge.json_answers import read_answer
from evalsuite.judge.judge import Judge
from evalsuite.role_play.pairwise import read_answer as read_pair
from serve.answers import Reply, Unreadable, read_reply
from serve.client import ChatClient
from serve.failures import ServerLost
from serve.markers import defang
from serve.reasoning import split_reasoning
from tests.serve.test_client import spec

ESC_EVAL, FEEL, EMOHARBOR = map(load_rubric, ("esc_eval", "feel", "emoharbor"))
RUBRICS = {"joint": ESC_EVAL, "per_dimension": ESC_EVAL, "paper": ESC_EVAL, "bands": FEEL, "json": EMOHARBOR}
PACKS = {"bands": "feel", "json": "emoharbor"}
turns = (Turn(role="seeker", text="I lost my job."), Turn(role="supporter", text="I am sorry."))
DIALOGUE = Dialogue(id="d", language="en", source="test", turns=turns)
LABELS = [d.label["en"] for rubric in (ESC_EVAL, FEEL, EMOHARBOR) for d in rubric.dimensions.values()]


class Scripted(ChatClient):
    """A client that reads the same body for every call; a body that is no completion counts as a lost server."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def ask(self, *asked: Any) -> Reply:
        try:
            return read_reply(spec(), self.body)
        except Unreadable as error:
            raise ServerLost(str(error)) from None


# --- fuzz -------------------------------------------------------------------------------------------------------------------

_words = st.sampled_from(
    [*"0123456789=:,;%{}[]\"'\\ \n\t*-.，：", "3333333", "evaluation", "0=0.25", "NaN", "</think>", "\ud83d", *LABELS]
)
_texts = st.lists(_words | st.text(max_size=8), max_size=30).map("".join)
_bands = st.lists(st.sampled_from(["0", "0.25", ".5", "1", "25%", "7", "x"]), min_size=4, max_size=4).map(
    lambda numbers: "\n".join(
        f"{d.label['en']}: " + " ".join(f"{score}={number}" for score, number in enumerate(numbers))
        for d in FEEL.dimensions.values()
    )
)
_scores = st.sampled_from([1, 3, 5, 9, 2.0, 2.5, "4", "x", None, True, [3], 1e400, 10**30])
_objects = st.fixed_dictionaries(
    {
        "analysis": _texts,
        "evaluation": st.dictionaries(st.sampled_from([*EMOHARBOR.dimensions, "Empathetic", "other"]), _scores),
    }
).map(json.dumps)
_contents = st.one_of(
    _texts,
    st.text("01234 ,", max_size=12),
    _bands,
    _objects,
    st.none(),
    st.integers(),
    st.lists(
        st.fixed_dictionaries({"type": st.sampled_from(["text", "image"]), "text": _texts}) | _texts | st.none(), max_size=3
    ),
)
_numbers = st.sampled_from([0.0, -0.1, -0.7, -30.0, -9999.0, 5.0, float("nan"), float("inf"), None, "0", True]) | st.floats()
_names = st.sampled_from([*"01234", " 3", "33", "x", "", "3\n"])
_alternatives = st.lists(st.fixed_dictionaries({"token": _names, "logprob": _numbers}), max_size=5) | st.none() | st.just("x")
_tokens = st.lists(st.fixed_dictionaries({"token": _names, "logprob": _numbers, "top_logprobs": _alternatives}), max_size=9)
_logprobs = st.none() | st.just("x") | st.fixed_dictionaries({"content": _tokens | st.just("x") | st.just([7])})
_finishes = st.sampled_from(["stop", "length", "content_filter", None])
_bodies = st.fixed_dictionaries(
    {"content": _contents, "logprobs": _logprobs, "finish": _finishes, "refusal": st.sampled_from([None, "no"])}
)


def body_of(drawn: dict[str, Any]) -> bytes:
    message = {"role": "assistant", "content": drawn["content"], "refusal": drawn["refusal"]}
    choice = {"message": message, "finish_reason": drawn["finish"], "logprobs": drawn["logprobs"]}
    return json.dumps({"choices": [choice]}).encode()


async def judged(method: JudgeMethod, body: bytes) -> list[Judgement]:
    judge_spec = spec()
    judge = Judge(Scripted(body), judge_spec, RUBRICS[method], load_pack(PACKS.get(method, "esc_eval")), method)
    return await judge.score(DIALOGUE)


@pytest.mark.parametrize("method", RUBRICS)
@given(drawn=_bodies)
async def test_no_reply_is_an_exception_or_a_score_that_it_does_not_hold(method: JudgeMethod, drawn: dict[str, Any]) -> None:
    rubric = RUBRICS[method]
    judgements = await judged(method, body_of(drawn))
    assert [j.dimension for j in judgements] == list(rubric.dimensions)
    refused = drawn["finish"] == "content_filter" or drawn["refusal"] is not None
    for j in judgements:
        Judgement.model_validate(j.model_dump())
        json.dumps(j.model_dump()).encode()
        assert (j.expected is None) == (j.distribution is None)
        if j.value is None:
            assert j.distribution is None
            continue
        assert not refused and rubric.scale.min <= j.value <= rubric.scale.max
        if method == "bands":
            assert j.value == pytest.approx(sum(int(s) * p for s, p in (j.distribution or {}).items()))
        else:
            assert str(int(j.value)) in j.raw
            assert j.distribution is None or j.distribution[str(int(j.value))] > 0


# --- length -----------------------------------------------------------------------------------------------------------------

PARSERS: dict[str, Callable[[str], object]] = {
    "bands": lambda text: read_bands(text, FEEL, "en"),
    "json": lambda text: read_answer(text, EMOHARBOR),
    "card": parse_card_text,
    "triple": lambda text: triple(text, "en"),
    "farewell": lambda text: ends(text, ending_phrases(load_pack("emoharbor"), "en")),
    "reasoning": lambda text: split_reasoning(spec(), text),
    "markers": defang,
    "pair": lambda text: read_pair(text, "ab"),
}
# What nested or neighbouring repetitions take the square of its length to refuse.
SHAPES = {
    "stars": lambda n: "a" + "*" * n + "b: 1",
    "digits": lambda n: "Safety: " + "1" * n + "x",
    "numbers": lambda n: "Safety: " + "1 " * (n // 2),
    "lines": lambda n: "\n" * n + "x",
    "spaces": lambda n: "3" + " " * n + "x",
    "quotes": lambda n: '{"a": "' + '\\"' * (n // 2),
    "backslashes": lambda n: '"' * 9 + '\\"' * (n // 2) + "\\",
    "commas": lambda n: ", " * (n // 2),
    "braces": lambda n: "{" * n,
    "objects": lambda n: '{"a":' * (n // 5),
    "open list": lambda n: '{"a":[' + "{}," * (n // 3),
    "a key twice": lambda n: "{" + '"a":1,' * (n // 6) + '"a":1}',
    "long number": lambda n: '{"evaluation": {"a": ' + "1" * n + "}}",
    "think": lambda n: "<think>" * (n // 7),
    "thought": lambda n: "<think>a</think>" * (n // 16),
    "bars": lambda n: "<|a" * (n // 3),
    "brackets": lambda n: "[" * n,
    "headings": lambda n: "Age:\n" * (n // 5),
    "emphasis": lambda n: "Emotion: a" + "* " * (n // 2) + "b",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parser", PARSERS)
def test_parsers_end_on_a_megabyte_of_anything(parser: str, shape: str) -> None:
    """Quadratic ones took 3 to 170 seconds for 32 KB, and would take an hour and more for this."""
    try:
        PARSERS[parser](SHAPES[shape](1_000_000))
    except ValueError as error:
        assert parser == "card" and "headings for" in str(error)  # its way to say that this is no card


@pytest.mark.timeout(60)
@pytest.mark.parametrize("method", RUBRICS)
async def test_a_megabyte_is_cut_before_it_is_read(method: JudgeMethod) -> None:
    text = "3 " * 500_000
    found = await judged(method, body_of({"content": text, "logprobs": None, "finish": "stop", "refusal": None}))
    assert {j.raw for j in found} == {text[:LONGEST] + CUT}
