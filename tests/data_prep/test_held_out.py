"""`role-sft --valid-source`: every dialogue of the held-out corpus, on a card that does not tell of the scored lines, and
nothing like it to train on. The corpora are written here, in ESConv's split form."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.ledger import Build
from core.prompts import load_pack
from core.records import Line, RoleCard, RolePlay
from data_prep.__main__ import app
from data_prep.role_play.examples import Draft, RoleExample, apart

pytest.importorskip("datasets")
Texts = Sequence[str]
Builder = Callable[..., Path]
NOUNS = ["anchor", "barrel", "candle", "ditch", "engine", "fiddle", "gutter", "hammer", "island", "jacket", "kettle", "ladder"]


def talk(topic: int, exchanges: int = 4) -> list[str]:
    """Supporter and seeker in turn; no two topics share a line."""
    noun = NOUNS[topic]
    return [
        text
        for i in range(exchanges)
        for text in (f"What about the {noun} on day {i + topic * 20}?", f"My {noun} broke {i + topic * 20} times since winter.")
    ]


def row(texts: Texts, situation: str = "My sister sold our house without asking me.") -> dict[str, Any]:
    """A dialogue that the supporter begins, as FADO's files have it."""
    dialog = [{"speaker": "usr" if i % 2 else "sys", "text": text} for i, text in enumerate(texts)]
    return {"emotion_type": "fear", "problem_type": "job crisis", "situation": situation, "dialog": dialog}


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    """Runs the command on training and held-out rows and returns its output folder. A message counts 10 tokens, a system
    message 30."""
    monkeypatch.setattr("data_prep.role_play.examples.TokenCounter.__init__", lambda self, place: None)
    monkeypatch.setattr(
        "data_prep.role_play.examples.TokenCounter.count",
        lambda self, messages: [30 if m["role"] == "system" else 10 for m in messages],
    )

    def run(train: Sequence[Any], held: Sequence[Any], *more: str, place: str = "esconv=valid.jsonl", **mix: Any) -> Path:
        source, _, file = place.partition("=")
        for name, rows in (("train.jsonl", train), (file, held)):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in rows))
        settings = {"target": 50, "quotas": [{"source": "esconv", "language": "en", "count": 50}], "valid_share": 0.5} | mix
        (tmp_path / "mix.yaml").write_text(yaml.safe_dump(settings))
        options = {"config": tmp_path / "mix.yaml", "out": tmp_path / "out", "source": f"esconv={tmp_path / 'train.jsonl'}"}
        options["valid-source"] = f"{source}={tmp_path / file}"
        result = CliRunner().invoke(app, ["role-sft", *(f"--{name}={value}" for name, value in options.items()), *more])
        if result.exception is not None:
            raise result.exception
        return tmp_path / "out"

    return run


def part(out: Path, name: str) -> list[RoleExample]:
    return read_jsonl(out / f"{name}.jsonl", RoleExample, name)


def steps(out: Path) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in json.loads((out / "manifest.json").read_text())["steps"]}


@pytest.mark.slow
def test_every_held_out_dialogue_is_there_as_it_was_written(build: Builder) -> None:
    held = [talk(0), talk(1, exchanges=1), talk(0), talk(2, exchanges=30)]
    rows = [row(held[0]), row(held[1], "finals"), row(held[2], "I feel very sad and lonely today"), row(held[3])]
    out = build([row(talk(topic)) for topic in range(3, 9)], rows)
    valid = part(out, "valid")
    assert [e.source_id for e in valid] == [f"valid/{i}" for i in range(4)]
    for example, texts in zip(valid, held, strict=True):
        assert [m["content"] for m in example.messages if m["role"] == "assistant"] == list(texts[1::2])
        assert [m["content"] for m in example.messages if m["role"] == "user"] == list(texts[::2])
    assert "finals. Kind of trouble: job crisis. Main feeling: fear." in valid[1].messages[0]["content"]
    assert {e.source_id for e in part(out, "train")} == {f"train/{i}" for i in range(6)}, "none is held out at random"
    assert "6 dialogues of 50 wanted to train on, 4 of a corpus that is held out" in (out / "README.md").read_text()


@pytest.mark.slow
def test_a_training_dialogue_needs_a_situation_that_a_held_out_one_does_not(build: Builder) -> None:
    out = build([row(talk(3)), row(talk(4), "finals")], [row(talk(0), "finals")])
    assert len(part(out, "train")) == len(part(out, "valid")) == 1


@pytest.mark.slow
def test_what_repeats_a_held_out_dialogue_is_not_trained_on(build: Builder) -> None:
    long = talk(0, exchanges=12)
    near = [*long[:-1], "My anchor broke many times since winter."]
    train = [row(talk(3)), row([t.upper() for t in long]), row(near), row(talk(1)[:6]), row(talk(2, exchanges=7)), row(talk(4))]
    out = build(train, [row(long), row(talk(1)), row(talk(2))])
    assert [e.source_id for e in part(out, "train")] == ["train/0", "train/5"]
    assert steps(out)["duplicates"]["dropped"] == {"near duplicate": 1}, "train/2 repeats train/1"
    assert steps(out)["apart from held out"]["dropped"] == {"repeats a held-out dialogue": 3}
    assert steps(out)["apart from held out"]["examples"]["repeats a held-out dialogue"] == [
        "esconv-train/1 of esconv-valid/0",
        "esconv-train/3 of esconv-valid/1",
        "esconv-train/4 of esconv-valid/2",
    ]


def plays(*dialogues: Texts) -> list[Draft]:
    drafts = []
    for n, texts in enumerate(dialogues):
        lines = tuple(
            Line(role="character" if i % 2 else "partner", name="Ada" if i % 2 else "Bo", text=text)
            for i, text in enumerate(texts)
        )
        item = RolePlay(id=f"{n}-{texts[0][:40]}", language="en", source="x", source_id=str(n), character="Ada", lines=lines)
        drafts.append(Draft(item, None, load_pack("role_play"), [{"role": "user", "content": text} for text in texts], 0))
    return drafts


def test_near_duplicates_among_the_held_out_hide_nothing(tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(200)]  # 198 shingles; a changed word changes three

    def changed(*places: int) -> list[str]:
        return [" ".join(f"other{i}" if i in places else word for i, word in enumerate(words)), "So it is."]

    first, second, third = changed(), changed(*range(5, 50, 10)), changed(*range(5, 100, 10))
    # second repeats first, third repeats second: (198 - 15) / (198 + 15) = 0.859 each; third and first: 168 / 228 = 0.737
    train, other = plays(third), plays(["Bees?", "No."])
    assert apart([*train, *other], plays(first), 0.85, Build(tmp_path, "x")) == [*train, *other]
    build = Build(tmp_path, "x")
    assert apart([*train, *other], plays(first, second), 0.85, build) == other
    assert build.steps[0].dropped == {"repeats a held-out dialogue": 1}


def test_windows_among_the_held_out_hide_nothing(tmp_path: Path) -> None:
    whole = [f"The {noun} is gone." for noun in NOUNS]
    bridge = [*whole[:5], *(f"Nobody saw number {i}." for i in range(3))]  # part of the whole, by five lines
    train = plays([*bridge[5:], "And nobody came."])  # part of the bridge only
    assert apart(train, plays(whole), 0.8, Build(tmp_path, "x")) == train
    assert apart(train, plays(whole, bridge), 0.8, Build(tmp_path, "x")) == []


@pytest.mark.slow
def test_long_ones_are_cut_by_whole_exchanges(build: Builder) -> None:
    out = build([row(talk(3))], [row(talk(0)), row(talk(1, exchanges=2))], max_tokens=75, min_turns=2)
    assert [(e.turns, e.tokens) for e in part(out, "valid")] == [(4, 70), (4, 70)]
    assert steps(out)["held out: length"]["changed"] == {"shortened": 1}


def test_what_makes_no_example_is_counted(build: Builder) -> None:
    alone = row(["", "It rains.", "Take an umbrella."])  # the seeker begins, and has no second line
    out = build([row(talk(3))], [row(talk(0), " "), row(talk(1)), alone])
    assert [e.source_id for e in part(out, "valid")] == ["valid/1"]
    assert steps(out)["held out: role cards"]["dropped"] == {"no card (no situation)": 1, "fewer than 2 turns": 1}


def made_card(tmp_path: Path, source_id: str, **about: Any) -> str:
    card = RoleCard.model_validate(
        {"id": "made", "language": "en", "problem": "A storm.", "source": "esconv", "source_id": source_id} | about
    )
    write_jsonl(tmp_path / "cards.jsonl", [card])
    return f"--cards={tmp_path / 'cards.jsonl'}"


@pytest.mark.slow
def test_a_written_card_serves_and_an_invalid_one_does_not(build: Builder, tmp_path: Path) -> None:
    rows = [row(talk(0)), row(talk(1))]
    out = build([row(talk(3))], rows, made_card(tmp_path, "valid/1", card_method="written"))
    assert [e.card_method for e in part(out, "valid")] == ["heuristic", "written"]
    out = build([row(talk(3))], rows, made_card(tmp_path, "valid/1", card_method="written", quality="invalid"))
    assert [e.source_id for e in part(out, "valid")] == ["valid/0"]


def test_cards_that_sum_up_the_scored_lines_are_refused(build: Builder, tmp_path: Path) -> None:
    card = made_card(tmp_path, "valid/0", card_method="llm")
    with pytest.raises(UserError, match="--cards: a model made made from the held-out dialogue esconv-valid/0"):
        build([row(talk(3))], [row(talk(0))], card)
    with pytest.raises(UserError, match="--valid-source: extes: as far as we know its seekers wrote no situation"):
        build([row(talk(3))], [], place="extes=extes.json")


def test_neither_part_may_be_empty(build: Builder) -> None:
    with pytest.raises(UserError, match="no dialogue is left in the held-out part: see the steps above"):
        build([row(talk(3))], [row(talk(0), "")])
    with pytest.raises(UserError, match="no dialogue is left to train on: see the steps above"):
        build([row(talk(0))], [row(talk(0))])


def test_files_of_one_name_are_refused(build: Builder) -> None:
    with pytest.raises(UserError, match=r"--valid-source: duplicate dialogue ids .*: esconv-train/0"):
        build([row(talk(3))], [row(talk(0))], place="esconv=other/train.jsonl")
