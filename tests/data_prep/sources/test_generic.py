"""A corpus of the user's own: the documents' example through every verb that takes one, and what is wrong with a bad one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.ledger import Build
from core.records import Post, RoleCard, RolePlay, SupportDialogue
from core.rows import CorpusItem
from data_prep.__main__ import app
from data_prep.cards import load_cards
from data_prep.role_play.contamination import read_documents
from data_prep.role_play.examples import RoleExample
from data_prep.sources import parse_places, read_source
from tests.data_prep.sources.fixtures import lines_at as lines

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
QUIET = Console(quiet=True)
HEAD: dict[str, Any] = {"source": "helpline", "licence": "CC BY 4.0"}
TURNS = [{"role": "seeker", "text": "My otter is ill."}, {"role": "supporter", "text": "I am sorry."}]
TALK: dict[str, Any] = {"id": "1", "language": "en", "turns": TURNS}
PLAY: dict[str, Any] = {
    "id": "1",
    "language": "zh",
    "character": "阿达",
    "persona": "灯塔看守人",
    "lines": [{"name": "小波", "text": "雾散了吗？"}, {"name": "阿达", "text": "还没有。"}],
}


def read(path: Path, strict: bool = True) -> list[CorpusItem]:
    ((name, place),) = parse_places([f"generic={path}"]).items()
    return read_source(name, place, Build(path.parent / "out", "test"), QUIET, strict)


def test_null_in_an_optional_field_is_absence(tmp_path: Path) -> None:
    optional = dict.fromkeys(("situation", "problem", "emotion", "age", "gender", "occupation"))
    assert read(lines(tmp_path / "a.jsonl", HEAD, TALK | optional)) == read(lines(tmp_path / "b.jsonl", HEAD, TALK))


def example(path: Path) -> Path:
    """The documents' example as a file."""
    (block,) = re.findall(r"```jsonl\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path.write_text(block, encoding="utf-8")
    return path


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_readmes_example_can_be_read(tmp_path: Path) -> None:
    run("read", "--source", f"generic={example(tmp_path / 'mine.jsonl')}", "--out", tmp_path / "out", "--strict")
    first, second = read_jsonl(tmp_path / "out" / "helpline.jsonl", SupportDialogue, "records")
    assert (first.id, first.dialogue.source, first.dialogue.source_id, first.language) == ("helpline-1", "helpline", "1", "en")
    assert (first.problem, first.age, first.occupation, len(first.dialogue.turns)) == ("money", "22", "student", 4)
    assert first.situation.startswith("My flatmate moved out") and second.situation == ""
    (step,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["steps"]
    assert (step["step"], step["in"], step["out"]) == ("read helpline", 2, 2)


def test_readmes_example_makes_a_card(tmp_path: Path) -> None:
    corpus = example(tmp_path / "mine.jsonl")
    run("cards", "extract", "--source", f"generic={corpus}", "--out", tmp_path / "out")
    (card,) = load_cards(tmp_path / "out" / "cards.jsonl")
    assert (card.id, card.source, card.source_id, card.gender) == ("card-helpline-1", "helpline", "1", "female")
    assert card.problem.endswith("left me with her share of the rent. Kind of trouble: money. Main feeling: anger.")


def test_readmes_example_is_searched_for_what_a_card_was_made_from(tmp_path: Path) -> None:
    corpus, cards = example(tmp_path / "mine.jsonl"), tmp_path / "cards.jsonl"
    problem = "Her flatmate was gone on Sunday, with half the rent, while she was at work."
    write_jsonl(cards, [RoleCard(id="c", language="en", problem=problem, source="x", card_method="llm")])
    done = run("check", cards, "--data", corpus, "--out", tmp_path / "out")
    assert done.exit_code == 1 and "FLAGGED: 1 dialogues match 1 cards" in done.output
    assert "c ~ helpline-1" in done.output
    assert [id for id, _, _ in read_documents(corpus)] == [item.id for item in read(corpus)]


@pytest.mark.slow
def test_own_corpora_have_quotas_and_stand_in_the_data_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two side by side, one of them general role play; the data card names source, languages and licence of both."""
    pytest.importorskip("datasets")
    monkeypatch.setattr("data_prep.role_play.examples.TokenCounter.__init__", lambda self, place: None)
    monkeypatch.setattr("data_prep.role_play.examples.TokenCounter.count", lambda self, messages: [5 for _ in messages])
    support = example(tmp_path / "mine.jsonl")
    stage = lines(tmp_path / "stage.jsonl", {"source": "stage", "licence": "CC0 1.0", "kind": "role_play"}, PLAY)
    quotas = [{"source": "helpline", "language": "en", "count": 3}, {"source": "stage", "language": "zh", "count": 1}]
    mix = tmp_path / "mix.yaml"
    mix.write_text(yaml.safe_dump({"target": 4, "quotas": quotas, "min_turns": 2, "valid_share": 0}))
    given = ["--source", f"generic={support}", "--source", f"generic={stage}"]
    run("role-sft", "--config", mix, *given, "--out", tmp_path / "out")
    made = read_jsonl(tmp_path / "out" / "train.jsonl", RoleExample, "examples")
    assert [(one.id, one.kind, one.card_method) for one in made] == [
        ("helpline-1", "support", "heuristic"),
        ("stage-1", "role_play", None),
    ]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    said = "`helpline` (en): chats of a student helpline, anonymised. From mine.jsonl. Licence: CC BY 4.0."
    assert said in card and "`stage` (zh): own corpus. From stage.jsonl. Licence: CC0 1.0." in card
    assert "| helpline | en | 3 | 1 | 1 | 1 | 2 |" in card and "| stage | zh | 1 | 1 | 1 | 1 | 0 |" in card
    with pytest.raises(UserError, match=r"mix\.yaml: quotas: unknown corpus 'helpline': .*give --source generic=FILE"):
        run("role-sft", "--config", mix, *given[2:], "--out", tmp_path / "other")


def test_the_documents_line_of_role_play_is_read(tmp_path: Path) -> None:
    """Behind a first line with the kind that stands beside it."""
    page = PAGE.read_text(encoding="utf-8")
    (line,) = re.findall(r'`({"id": "1", "language": "en", "character": .*?})`', page)
    (kind,) = re.findall(r'`("kind": "role_play")`', page)
    (item,) = read(lines(tmp_path / "stage.jsonl", HEAD | json.loads(f"{{{kind}}}"), json.loads(line)))
    assert isinstance(item, RolePlay)
    assert (item.character, item.persona, [line.name for line in item.lines]) == ("Ada", "…", ["Bo", "Ada"])


def test_role_play_has_the_characters_lines_as_its_own(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", HEAD | {"kind": "role_play"}, PLAY)
    (item,) = read(path)
    assert isinstance(item, RolePlay)
    assert (item.character, item.persona, item.source) == ("阿达", "灯塔看守人", "helpline")
    assert [line.role for line in item.lines] == ["partner", "character"]
    assert read_documents(path) == [("helpline-1", "zh", "雾散了吗？\n还没有。")]
    with pytest.raises(UserError, match="a role-play corpus has no seeker"):
        run("cards", "extract", "--source", f"generic={path}", "--out", tmp_path / "out")


def test_numbers_serve_as_ids_and_ages(tmp_path: Path) -> None:
    (item,) = read(lines(tmp_path / "a.jsonl", HEAD, TALK | {"id": 7, "age": 34}))
    assert isinstance(item, SupportDialogue) and (item.id, item.age) == ("helpline-7", "34")


def test_what_nobody_answers_is_a_post_and_what_no_seeker_says_is_left_out(tmp_path: Path) -> None:
    unasked = TALK | {"id": "2", "turns": TURNS[1:]}
    (item,) = read(lines(tmp_path / "a.jsonl", HEAD, TALK | {"turns": [TURNS[0], TURNS[0]]}, unasked))
    assert isinstance(item, Post) and (item.id, item.text, item.reply) == (
        "helpline-1",
        "My otter is ill.\nMy otter is ill.",
        None,
    )


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (TALK, r"a\.jsonl:1: source, licence: Field required .*the first line names the corpus"),
        ({"source": "helpline"}, r"a\.jsonl:1: licence: Field required"),
        (HEAD | {"license": "MIT"}, r"a\.jsonl:1: license: unknown field"),
        (HEAD | {"licence": " "}, r"a\.jsonl:1: licence: "),
        (HEAD | {"source": "a/b"}, r"a\.jsonl:1: source: "),
        (HEAD | {"source": "esconv"}, r"a\.jsonl:1: source: esconv is the name of a corpus"),
        (HEAD | {"source": "generic"}, r"a\.jsonl:1: source: generic is the name of a corpus"),
        (HEAD | {"kind": "posts"}, r"a\.jsonl:1: kind: "),
    ],
)
def test_a_first_line_that_does_not_name_the_corpus_is_refused(head: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read(lines(tmp_path / "a.jsonl", head, TALK))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (TALK | {"situatoin": "hm"}, "situatoin: unknown field"),
        (TALK | {"language": "french"}, "language: "),
        (TALK | {"id": ""}, "id: "),
        (TALK | {"turns": []}, "turns: "),
        (TALK | {"turns": [TURNS[0], {"role": "client", "text": "hm"}]}, r"turns\.1\.role: .*'client'"),
        (TALK | {"turns": [TURNS[0], {"role": "supporter"}]}, r"turns\.1\.text: "),
        (PLAY, "turns: Field required"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", HEAD, TALK, row)
    with pytest.raises(UserError, match=rf"a\.jsonl:3: {message}"):
        read(path)
    with pytest.raises(UserError, match=rf"a\.jsonl:3: {message}"):
        read_documents(path)
    assert len(read(path, strict=False)) == 1


def test_no_two_corpora_and_no_two_dialogues_of_one_name(tmp_path: Path) -> None:
    one, other = lines(tmp_path / "a.jsonl", HEAD, TALK), lines(tmp_path / "b.jsonl", HEAD, TALK, TALK)
    with pytest.raises(UserError, match="--source: helpline is given twice"):
        parse_places([f"generic={one}", f"generic={other}"])
    with pytest.raises(UserError, match=r"b\.jsonl: duplicate ids in helpline: helpline-1"):
        read(other)


def test_a_file_that_is_not_there_or_holds_nothing(tmp_path: Path) -> None:
    for place in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UserError, match=str(place)):
            read(place)
    path = lines(tmp_path / "a.jsonl", HEAD)
    with pytest.raises(UserError, match=r"a\.jsonl holds no rows"):
        read(path)
    with pytest.raises(UserError, match=r"data file is empty: .*a\.jsonl"):
        read_documents(path)
