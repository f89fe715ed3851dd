"""`role-sft` on the bundled samples: what it takes, what it leaves out and why, and that the same seed gives the same bytes."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from core.errors import UserError
from core.files import CONFIGS, read_jsonl, write_jsonl
from core.records import Line, RoleCard, RolePlay, SupportDialogue
from core.rows import RolePlayYield
from core.settings import read_yaml
from data_prep import BUNDLED
from data_prep.__main__ import app
from data_prep.role_play.examples import RoleExample
from data_prep.role_play.mix import RoleSftConfig, prospects
from data_prep.sources import SOURCES

pytest.importorskip("datasets")
QUOTAS = [
    {"source": "bundled_support", "language": "en", "count": 8},
    {"source": "bundled_support", "language": "zh", "count": 30},
    {"source": "bundled_role_play", "language": "en", "count": 6},
]


def samples(language: str = "en") -> list[SupportDialogue]:
    return read_jsonl(BUNDLED / f"support_{language}.jsonl", SupportDialogue, "sample")


Run = Callable[..., Path]


def runner(folder: Path) -> Run:
    """Runs the command on a corpus folder (by default the bundled one) and returns its output folder."""

    def run(out: str = "out", corpus: Path = BUNDLED, more: tuple[str, ...] = (), **mix: Any) -> Path:
        settings: dict[str, Any] = {"quotas": QUOTAS, "valid_share": 0.25} | mix
        settings["target"] = sum(quota["count"] for quota in settings["quotas"])
        (folder / "mix.yaml").write_text(yaml.safe_dump(settings))
        names = [] if "--source" in more else ["bundled_support", "bundled_role_play"]
        arguments = [f"--source={name}={corpus}" for name in names]
        command = ["role-sft", "--config", str(folder / "mix.yaml"), "--out", str(folder / out), *arguments, *more]
        with pytest.MonkeyPatch.context() as patch:
            counter = "data_prep.role_play.examples.TokenCounter"
            patch.setattr(f"{counter}.__init__", lambda self, place: None)
            patch.setattr(f"{counter}.count", lambda self, messages: [len(m["content"]) // 4 + 5 for m in messages])
            result = CliRunner().invoke(app, command)
        if result.exception is not None:
            raise result.exception
        return folder / out

    return run


@pytest.fixture
def build(tmp_path: Path) -> Run:
    return runner(tmp_path)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set of the bundled corpora."""
    return runner(tmp_path_factory.mktemp("bundled"))()


def examples(out: Path) -> list[RoleExample]:
    return [e for part in ("train", "valid") for e in read_jsonl(out / f"{part}.jsonl", RoleExample, part)]


def steps(out: Path) -> dict[str, dict[str, Any]]:
    return {step["step"]: step for step in json.loads((out / "manifest.json").read_text())["steps"]}


@pytest.mark.slow
def test_quotas_are_met_where_they_can_be_and_the_rest_is_a_shortfall(bundled: Path) -> None:
    counts = Counter((example.source, example.language) for example in examples(bundled))
    assert counts == {("bundled_support", "en"): 8, ("bundled_support", "zh"): 24, ("bundled_role_play", "en"): 6}
    card = (bundled / "README.md").read_text()
    assert "| bundled_support | zh | 30 | 24 | 24 | 24 | 6 |" in card and "38 dialogues of 44 wanted" in card
    assert "| bundled_support | zh | support | heuristic | 18 | 6 |" in card, "train, valid"
    assert steps(bundled)["quotas"]["dropped"] == {"no quota": 14, "over quota": 16 + 8}


@pytest.mark.slow
def test_examples_begin_with_the_card_and_end_with_the_trained_side(bundled: Path) -> None:
    for example in examples(bundled):
        roles = [message["role"] for message in example.messages]
        assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]
        if example.kind == "support":
            assert example.card_method == "heuristic"
            (item,) = [item for item in samples(example.language) if item.id == example.id]
            assert item.situation in example.messages[0]["content"]


@pytest.mark.slow
def test_train_and_valid_share_no_dialogue_and_the_folder_form_has_the_same_rows(bundled: Path) -> None:
    from datasets import load_from_disk

    parts = {name: read_jsonl(bundled / f"{name}.jsonl", RoleExample, name) for name in ("train", "valid")}
    assert {(e.source, e.language) for e in parts["valid"]} == {(e.source, e.language) for e in parts["train"]}
    valid, train = ({(e.source, e.source_id) for e in parts[name]} for name in ("valid", "train"))
    assert not valid & train and len(parts["valid"]) == 2 + 6 + 2
    folder = load_from_disk(str(bundled / "dataset"))
    assert {part: folder[part]["id"] for part in parts} == {part: [e.id for e in rows] for part, rows in parts.items()}


def files(out: Path) -> dict[str, bytes]:
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_an_empty_set_leaves_them(build: Run, bundled: Path) -> None:
    once = files(bundled)
    again = files(build())
    assert {name: again[name] for name in once if name != "manifest.json"} == {
        name: content for name, content in once.items() if name != "manifest.json"
    }
    with pytest.raises(UserError, match="no dialogue is left: see the steps above"):
        build(max_tokens=64)
    assert files(build()) == again
    other = files(build("other", more=("--seed", "1")))
    assert {name for name in again if again[name] != other[name]} >= {"train.jsonl", "valid.jsonl", "manifest.json"}


def play(name: str, texts: list[str]) -> RolePlay:
    lines = tuple(
        Line(role="character" if i % 2 else "partner", name="Ada" if i % 2 else "Bo", text=t) for i, t in enumerate(texts)
    )
    return RolePlay(id=name, language="en", source="bundled_role_play", source_id=name, character="Ada", lines=lines)


@pytest.mark.slow
def test_repetitions_windows_and_short_dialogues_are_left_out(build: Run, tmp_path: Path) -> None:
    nouns = ("anchor", "barrel", "candle", "ditch", "engine", "fiddle", "gutter", "hammer")
    whole = [
        f"Number {i}: the {a} stands beside the {b} since the winter."
        for i, (a, b) in enumerate(zip(nouns, nouns[::-1], strict=True))
    ]
    near = [*whole[:-1], whole[-1].replace("winter", "summer")]
    corpus = tmp_path / "corpus"
    rows = [play("whole", whole), play("again", [t.upper() for t in whole]), play("near", near), play("window", whole[2:6])]
    rows += [play("short", ["Is anybody in there?", "No."])]
    write_jsonl(corpus / "role_play_en.jsonl", rows)
    write_jsonl(corpus / "support_en.jsonl", samples()[:4])
    out = build(corpus=corpus, quotas=[QUOTAS[0], QUOTAS[2]])
    assert {e.id for e in examples(out) if e.kind == "role_play"} == {"whole"}
    assert steps(out)["duplicates"]["dropped"] == {"exact duplicate": 1, "near duplicate": 1, "part of another dialogue": 1}
    assert steps(out)["turns"]["dropped"] == {"fewer than 4 turns": 1}


def test_single_turns_and_dialogues_without_a_card_have_no_place(build: Run, tmp_path: Path) -> None:
    items = samples()
    write_jsonl(tmp_path / "c" / "support_en.jsonl", [items[0].model_copy(update={"situation": ""}), *items[1:5]])
    write_jsonl(
        tmp_path / "c" / "role_play_en.jsonl", [play("only", ["A question about bees?", "An answer.", "And wasps?", "No."])]
    )
    out = build(corpus=tmp_path / "c", quotas=[QUOTAS[0], QUOTAS[2]])
    assert steps(out)["role cards"]["dropped"] == {"no card (no situation)": 1}


@pytest.mark.slow
def test_given_cards_win_over_heuristic_ones(build: Run, tmp_path: Path) -> None:
    card = RoleCard(
        id="made",
        language="en",
        problem="Somebody else's words.",
        source="bundled_support",
        source_id="en-02",
        card_method="llm",
    )
    write_jsonl(tmp_path / "cards.jsonl", [card])
    out = build(more=("--cards", str(tmp_path / "cards.jsonl")), quotas=[QUOTAS[0] | {"count": 24}])
    (found,) = [e for e in examples(out) if e.source_id == "en-02"]
    assert found.card_method == "llm" and found.card_id == "made" and "Somebody else's words." in found.messages[0]["content"]


@pytest.mark.slow
def test_what_an_evaluation_card_was_made_from_is_left_out(build: Run, tmp_path: Path) -> None:
    source = samples()[3]
    made = RoleCard(
        id="eval-1",
        language="en",
        problem=source.situation,
        source="bundled_support",
        card_method="llm",
        occupation=source.occupation,
    )
    unrelated = RoleCard(
        id="eval-2", language="en", problem="A zeppelin of quicksilver.", source="elsewhere", card_method="written"
    )
    write_jsonl(tmp_path / "eval.jsonl", [made, unrelated])
    out = build(more=("--eval-cards", str(tmp_path / "eval.jsonl")), quotas=[QUOTAS[0] | {"count": 24}])
    found = steps(out)["decontamination"]
    assert sum(found["dropped"].values()) == 1 and source.id in str(found["examples"])
    assert source.id not in {e.id for e in examples(out)}
    assert f"- `eval-1` and `{source.id}`, score" in (out / "README.md").read_text()


@pytest.mark.slow
def test_what_is_found_in_the_sample_is_replaced_from_the_rest(build: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {e.id for e in examples(build("first"))}
    caught = sorted(id for id in first if id.startswith("bundled-support-en"))[:3]

    def alike(cards: object, documents: list[tuple[str, str, str]], score: float) -> set[str]:
        return set() if len(documents) > len(first) else {id for id, _, _ in documents if id in caught}

    monkeypatch.setattr("data_prep.role_play.mix._alike", alike)
    out = build("second")
    again = {e.id for e in examples(out)}
    assert len(again) == len(first) and not again & set(caught) and len(first - again) == 3
    assert steps(out)["quotas"]["dropped"]["matches an evaluation card"] == 3


@pytest.mark.slow
def test_the_dialogue_that_an_evaluation_card_names_is_left_out_whatever_its_words(build: Run, tmp_path: Path) -> None:
    about = {"language": "en", "source": "bundled_support", "source_id": "en-05", "card_method": "written"}
    write_jsonl(
        tmp_path / "eval.jsonl", [RoleCard.model_validate(about | {"id": "e", "problem": "A zeppelin of quicksilver."})]
    )
    out = build(more=("--eval-cards", str(tmp_path / "eval.jsonl")), quotas=[QUOTAS[0] | {"count": 24}])
    assert steps(out)["decontamination"]["dropped"] == {"the source that an evaluation card names": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source_ids", "quality", "message"),
    [
        (["en-99"], None, "none was made from a dialogue of these corpora"),
        (["en-01", "en-01"], None, "duplicate cards of one dialogue"),
        (["en-01"], "invalid", ""),
    ],
)
def test_given_cards_fit_are_single_and_valid(
    build: Run, tmp_path: Path, source_ids: list[str], quality: str | None, message: str
) -> None:
    about = {"language": "en", "problem": "It rains.", "source": "bundled_support", "card_method": "llm", "quality": quality}
    cards = [RoleCard.model_validate(about | {"id": f"c{n}", "source_id": name}) for n, name in enumerate(source_ids)]
    write_jsonl(tmp_path / "cards.jsonl", cards)
    if message:
        with pytest.raises(UserError, match=message):
            build(more=("--cards", str(tmp_path / "cards.jsonl")))
    else:
        assert steps(build(more=("--cards", str(tmp_path / "cards.jsonl"))))["role cards"]["dropped"] == {
            "its card is invalid": 1
        }


@pytest.mark.slow
def test_long_dialogues_are_shortened_by_whole_exchanges_or_dropped(build: Run) -> None:
    out = build(max_tokens=420, quotas=[QUOTAS[2] | {"count": 14}])
    found = steps(out)["length"]
    assert found["changed"]["shortened"] > 0 and found["dropped"]["over 420 tokens"] > 0
    kept = examples(out)
    assert len(kept) == 14 and all(e.tokens <= 420 and e.turns >= 4 for e in kept)
    whole = examples(build("whole", quotas=[QUOTAS[2] | {"count": 14}]))
    assert sum(e.turns for e in whole) > sum(e.turns for e in kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"quotas": [*QUOTAS, QUOTAS[0]]}, "the same source and language twice"),
        ({"quotas": [{"source": "esconvv", "language": "en", "count": 1}]}, "unknown corpus 'esconvv': did you mean esconv"),
        ({"quotas": [{"source": "esconv", "language": "zh", "count": 1}]}, "esconv has no zh"),
        ({"quotas": [QUOTAS[0] | {"count": 0}]}, "count"),
        ({"min_turns": 1}, "min_turns"),
        ({"token": "x"}, "token: unknown field"),
        ({"quotas": [{"source": "esconv", "language": "en", "count": 5}]}, "no dialogue is left"),
        ({"more": ("--set", "tokeniser=embedded")}, "--set tokeniser: unknown field 'tokeniser': did you mean tokenizer"),
        ({"more": ("--set", "min_turns=1")}, "--set: min_turns: "),
    ],
)
def test_bad_mixes(build: Run, mix: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**mix)


@pytest.mark.slow
def test_lengths_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    from data_prep.role_play.examples import TokenCounter

    counter = TokenCounter()
    one = counter.count([{"role": "user", "content": "Hello there."}, {"role": "assistant", "content": "你好。"}])
    markers = counter.count([{"role": "user", "content": ""}])
    assert one[0] == markers[0] + 3 and one[1] > markers[0]
    with pytest.raises(UserError, match="tokenizer"):
        TokenCounter(str(tmp_path))


def plan(tmp_path: Path, *quotas: dict[str, Any]) -> Result:
    """What `--plan` prints for these quotas (none: the mix that the repository brings)."""
    chosen: list[str] = []
    if quotas:
        settings = {"target": sum(quota["count"] for quota in quotas), "quotas": list(quotas)}
        (tmp_path / "mix.yaml").write_text(yaml.safe_dump(settings))
        chosen = ["--config", str(tmp_path / "mix.yaml")]
    return CliRunner().invoke(app, ["role-sft", "--plan", *chosen])


def test_the_mix_of_the_papers_size_adds_up_and_asks_no_corpus_for_more_than_it_has(tmp_path: Path) -> None:
    result = plan(tmp_path)
    assert result.exit_code == 0
    assert "every quota can be met" in result.output
    mix = read_yaml(CONFIGS / "data" / "role_sft.yaml", RoleSftConfig, "mix")
    support = sum(quota.count for quota in mix.quotas if SOURCES[quota.source].kind == "support")
    assert (mix.target, support) == (14_000, 3_390) and len({quota.source for quota in mix.quotas}) == 3 + 5
    assert all(row["Available"] is not None for row in prospects(mix))


def test_a_plan_names_the_quota_that_cannot_be_met(tmp_path: Path) -> None:
    result = plan(tmp_path, {"source": "charactereval", "language": "zh", "count": 4_500})
    assert result.exit_code == 1
    assert "too few dialogues: charactereval (zh)" in result.output


def test_what_a_part_gave_is_scaled_to_the_whole_corpus() -> None:
    assert RolePlayYield(published=1_000, read=50, usable=20).most == 400
    assert RolePlayYield(published=1_000).most == 1_000  # nothing read: no more than there is
    with pytest.raises(ValueError, match="usable is more than read"):
        RolePlayYield(published=10, read=5, usable=6)


def test_without_a_plan_corpora_and_a_folder_are_asked_for() -> None:
    with pytest.raises(UserError, match="--source NAME=PLACE and a folder with --out; --plan"):
        raise CliRunner().invoke(app, ["role-sft"]).exception  # type: ignore[misc]
