"""Replies on real histories: what is asked, what is recorded, how it resumes, against a scripted endpoint."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.files import CONFIGS, write_jsonl
from core.records import Dialogue, Turn
from data_prep.responses import answered, paired, read_responses
from evalsuite.papers.commands.respond import respond
from tests.endpoint import Answer, Endpoint, echo
from tests.verbs import printed

app = typer.Typer()
app.command()(respond)


def dialogue(id: str, said: str, **about: object) -> Dialogue:
    """`said`: turns parted by `|`; a supporter's begins with `*`."""
    turns = tuple(Turn(role="supporter" if t.startswith("*") else "seeker", text=t.lstrip("*")) for t in said.split("|"))
    return Dialogue.model_validate({"id": id, "language": "en", "source": "x", "turns": turns} | about)


GIVEN = [
    dialogue("d1", "*Hello!|I failed.|and I am tired|*Oh no.|*What happened?|  |The exam|*I see.|Bye"),
    dialogue("d2", "我很难过|*怎么了？", language="zh"),
    dialogue("d3", "*Hello?|Nobody answers me"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("serve.transport.random.uniform", lambda low, high: 0.0)  # no waiting between attempts
    write_jsonl(Path("d.jsonl"), GIVEN)
    config = yaml.safe_load((CONFIGS / "eval" / "demo.yaml").read_text()) | {"supporters": ["my-model"], "out": "run"}
    config |= {"limit": None, "concurrency": 4}
    Path("c.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


call = partial(printed, app)


def test_places_histories_and_references() -> None:
    first, second = answered(GIVEN[0].turns)
    assert (first.turn, first.text) == (3, "Oh no.\nWhat happened?")  # the greeting is neither answered nor told
    assert [(t.role, t.text) for t in first.history] == [("seeker", "I failed.\nand I am tired")]
    assert (second.turn, second.text) == (7, "I see.")
    assert [t.role for t in second.history] == ["seeker", "supporter", "seeker"]
    assert second.history[1].text == "Oh no.\nWhat happened?"  # the real reply, not the one that was asked for
    assert answered(GIVEN[2].turns) == [] == answered(())


turns = st.lists(st.builds(Turn, role=st.sampled_from(["seeker", "supporter"]), text=st.sampled_from(["", " ", "a", "b"])))


@given(turns)
def test_every_history_begins_and_ends_with_the_seeker_and_alternates(spoken: list[Turn]) -> None:
    for place in answered(spoken):
        roles = [turn.role for turn in place.history]
        assert roles[0] == roles[-1] == "seeker" and all(a != b for a, b in pairwise(roles))
        assert spoken[place.turn].role == "supporter" and place.text.startswith(spoken[place.turn].text)


@pytest.mark.slow
def test_replies_are_asked_recorded_measured_and_not_asked_again(folder: Path) -> None:
    command = ("--config", "c.yaml", "--dialogues", "d.jsonl")
    with Endpoint() as endpoint:
        printed = call(*command, "--supporter", f"my-model@{endpoint.url}")
        asked = sorted([(m["role"], m["content"]) for m in body["messages"]] for body in endpoint.requests)
        assert asked == sorted(
            [
                [("user", "I failed.\nand I am tired")],
                [("user", "I failed.\nand I am tired"), ("assistant", "Oh no.\nWhat happened?"), ("user", "The exam")],
                [("user", "我很难过")],
            ]
        )
        before = {p.name: p.read_bytes() for p in Path("run").glob("*.json*") if p.name != "timing.json"}
        call(*command, "--supporter", f"my-model@{endpoint.url}")
        assert len(endpoint.requests) == 3
    assert {p.name: p.read_bytes() for p in Path("run").glob("*.json*") if p.name != "timing.json"} == before
    replies = read_responses([Path("run/responses.jsonl")])
    assert [(r.dialogue_id, r.turn, r.language, r.reference) for r in replies] == [
        ("d1", 3, "en", "Oh no.\nWhat happened?"),
        ("d1", 7, "en", "I see."),
        ("d2", 1, "zh", "怎么了？"),
    ]
    assert all(r.supporter == "my-model" and r.text.startswith("line ") and r.termination is None for r in replies)
    assert all(r.usage is not None and r.usage.calls == 1 and r.usage.prompt_tokens == 10 for r in replies)
    assert "METEOR" in printed
    figures = orjson.loads(Path("run/metrics.json").read_bytes())["metrics"]
    assert {(f["language"], f["unit"], f["n"]) for f in figures if f["metric"] == "bleu_1"} == {
        ("en", "word", 2),
        ("zh", "character", 1),
        ("zh", "jieba", 1),
    }


@pytest.mark.slow
def test_paper_mode_asks_at_temperature_0_and_is_its_own_run(folder: Path) -> None:
    spec = {"name": "warm", "about": "x", "roles": ["supporter"], "languages": ["en"], "sampling": {"temperature": 0.9}}
    with Endpoint(models=("warm",)) as endpoint:
        Path("warm.yaml").write_text(yaml.safe_dump(spec | {"endpoint": {"base_url": endpoint.url}}))
        command = ("--config", "c.yaml", "--dialogues", "d.jsonl", "--supporter", "warm.yaml")
        printed = call(*command)
        assert "warm does not speak zh" in printed
        assert {(body["temperature"], len(endpoint.requests)) for body in endpoint.requests} == {(0.9, 2)}
        call(*command, "--set", "mode=paper", "--out", "paper", "--set", "limit=1")
        assert len(endpoint.requests) == 4 and all(body["temperature"] == 0 for body in endpoint.requests[2:])
        assert [body["max_tokens"] for body in endpoint.requests[2:]] == [512, 512]
        with pytest.raises(UserError, match=r"made with another respond config: mode: .native. → .paper."):
            call(*command, "--set", "mode=paper")


@pytest.mark.slow
def test_what_is_no_reply_is_recorded_and_counts(folder: Path) -> None:
    answers = {
        1: Answer("Sorry, I", message={"refusal": "no"}),
        3: Answer(status=400, body=b'{"error": {"message": "maximum context length is 8 tokens"}}'),
    }

    def behave(body: dict[str, Any], count: int) -> Answer:
        last = body["messages"][-1]["content"]
        return Answer(" ") if last == "我很难过" else answers[len(body["messages"])]

    with Endpoint(behave) as endpoint:
        printed = call("--config", "c.yaml", "--dialogues", "d.jsonl", "--supporter", f"my-model@{endpoint.url}")
    replies = read_responses([Path("run/responses.jsonl")])
    assert [(r.termination, r.text) for r in replies] == [
        ("refusal", "Sorry, I"),
        ("context_overflow", ""),
        ("empty_reply", ""),
    ]
    assert "1 context_overflow, 1 refusal" in " ".join(printed.split())
    figures = orjson.loads(Path("run/metrics.json").read_bytes())["metrics"]
    assert {f["value"] for f in figures if f["metric"] == "rouge_l" and f["language"] == "zh"} == {0}


@pytest.mark.slow
@pytest.mark.parametrize(("status", "termination"), [(503, "infrastructure"), (400, "rejected")])
def test_a_call_without_an_answer_is_told_and_asked_again(folder: Path, status: int, termination: str) -> None:
    broken = {"now": True}

    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer(status=status) if broken["now"] and len(body["messages"]) == 3 else echo(body, count)

    with Endpoint(behave) as endpoint:
        command = ("--config", "c.yaml", "--dialogues", "d.jsonl", "--supporter", f"my-model@{endpoint.url}")
        assert "1 of 3 replies are missing because a server failed" in call(*command, code=1)
        lost = read_responses([Path("run/responses.jsonl")])
        assert [r.termination for r in lost] == [None, termination, None] and lost[1].usage is None
        broken["now"] = False
        asked = len(endpoint.requests)
        call(*command)
        assert len(endpoint.requests) == asked + 1
    assert all(r.termination is None for r in read_responses([Path("run/responses.jsonl")]))


def test_pairs_of_whole_dialogues() -> None:
    mine = dialogue("a", "*hi|sad|*one|more|*two|more|*three", card_id="c", source_id="other", supporter="m")
    real = [dialogue("r", "sad|*1|more|*2", card_id="c", source_id="7"), dialogue("s", "sad|*x", source_id="other")]
    assert [(r.supporter, r.turn, r.text, r.reference) for r in paired([mine], real)] == [
        ("m", 2, "one", "1"),
        ("m", 4, "two", "2"),
        ("m", 6, "three", None),
    ]
    same = real[1].model_copy(update={"id": "a"})
    assert [r.reference for r in paired([mine], [*real, same])] == ["x", None, None]  # its own id goes before its card
    with pytest.raises(UserError, match="dialogue a: no reference dialogue has its id, card, profile"):
        paired([mine], [real[0].model_copy(update={"language": "zh"})])


def test_a_simulated_dialogue_finds_its_source_where_no_reference_has_its_card() -> None:
    words = (Turn(role="seeker", text="a"), Turn(role="supporter", text="b"))
    mine = Dialogue(id="sim", language="en", source="own", card_id="c1", source_id="test/1", supporter="m", turns=words)
    real = Dialogue(id="real", language="en", source="esconv", source_id="test/1", turns=words)
    assert [r.reference for r in paired([mine], [real])] == ["b"]


MINE = ("--supporter", "my-model@http://x/v1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*MINE, "--dialogues", "silent.jsonl"), "there is nothing to answer"),
        ((*MINE, "--dialogues", "zh.jsonl", "--config", "en.yaml"), "no dialogue in en"),
        (("--supporter", "my-model@http://127.0.0.1:9/v1"), "my-model at http://127.0.0.1:9/v1: cannot be reached"),
    ],
)
def test_bad_input(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    write_jsonl(Path("silent.jsonl"), GIVEN[2:])
    write_jsonl(Path("zh.jsonl"), GIVEN[1:2])
    Path("en.yaml").write_text(yaml.safe_dump(yaml.safe_load(Path("c.yaml").read_text()) | {"languages": ["en"]}))
    given = () if "--dialogues" in arguments else ("--dialogues", "d.jsonl")
    with pytest.raises(UserError) as caught:
        call("--config", "c.yaml", *given, *arguments)
    assert said in str(caught.value)
    assert Path("run").exists() == ("cannot be reached" in said), "nothing is written for what is refused"
