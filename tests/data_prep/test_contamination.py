"""Contamination: planted pairs written for the project, unrelated dialogues, the score itself, and the command.

Two sets of pairs. `bundled`: the sample dialogues and their situations, used while the detector was built. `independent`: by a
writer who knew nothing of the detector, dialogues first and then their cards as an annotator would write them
(planted/independent_*.jsonl). Topics repeat in both (four break-ups, four exams, three debts …).
"""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, Language, Record, RoleCard, SupportDialogue
from core.verbs import Verbs
from data_prep import BUNDLED
from data_prep.cards import bundled_cards, load_cards
from data_prep.commands.check import check
from data_prep.role_play.contamination import by_chance, link, read_documents, terms
from data_prep.scores.synthetic import build, load_bases
from tests.data_prep.sources.fixtures import lines_at as lines

LANGUAGES: tuple[Language, ...] = ("en", "zh")
KINDS = ("bundled", "independent")
PLANTED = Path(__file__).parent / "planted"
Document = tuple[str, Language, str]


class Pair(Record):
    """A dialogue and the card that was made from it."""

    topic: str
    card: RoleCard
    dialogue: Dialogue

    @property
    def document(self) -> Document:
        return self.dialogue.id, self.dialogue.language, "\n".join(turn.text for turn in self.dialogue.turns)


@cache
def pairs(language: Language, kind: str = "bundled") -> tuple[Pair, ...]:
    if kind == "independent":
        return tuple(read_jsonl(PLANTED / f"independent_{language}.jsonl", Pair, "planted pairs"))
    samples = read_jsonl(BUNDLED / f"support_{language}.jsonl", SupportDialogue, "bundled sample")
    made = [card(item.situation, f"card-{item.id}", language, item.occupation) for item in samples]
    return tuple(Pair(topic=i.problem, card=c, dialogue=i.dialogue) for i, c in zip(samples, made, strict=True))


@cache
def unrelated(language: Language) -> tuple[Document, ...]:
    """The dialogues of 22 bundled seekers in all their variants: some 280 per language, made from nobody's card.

    Among those of all 86 seekers 41 of the 48 sources of the independent pairs are found, fewer than nine in ten.
    """
    seekers = {base.id for base in load_bases(language)[:22]}
    ours = (d for d in build()[0] if d.language == language and str(d.source_id).split("/")[0] in seekers)
    return tuple((d.id, language, "\n".join(turn.text for turn in d.turns)) for d in ours)


def card(problem: str, id: str = "c", language: Language = "en", occupation: str = "") -> RoleCard:
    return RoleCard(id=id, language=language, occupation=occupation, problem=problem, source="test", card_method="written")


# ---- planted pairs


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("crowd", ["alone", "among unrelated dialogues"])
def test_planted_sources_are_found_and_little_else(crowd: str, kind: str) -> None:
    """At least 90 % of the pairs, at most 5 % false alarms among the unrelated pairs, and at most one card in ten with one."""
    found = true = alarms = unrelated_pairs = alarmed = 0
    for language in LANGUAGES:
        given = pairs(language, kind)
        documents = [pair.document for pair in given] + (list(unrelated(language)) if crowd != "alone" else [])
        flagged = {(m.card_id, m.document_id) for m in link([pair.card for pair in given], documents) if m.flagged}
        own = {(pair.card.id, pair.dialogue.id) for pair in given}
        found, true = found + len(flagged & own), true + len(own)
        alarms, unrelated_pairs = alarms + len(flagged - own), unrelated_pairs + len(own) * len(documents) - len(own)
        alarmed += len({card_id for card_id, _ in flagged - own})
    assert found >= 0.9 * true
    assert alarms <= 0.05 * unrelated_pairs
    assert alarmed <= 0.1 * true


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_cards_without_a_source_raise_no_alarm(language: Language) -> None:
    """The stricter rate: the share of cards for which anything at all is flagged, without their own dialogue in the search."""
    given = [pair for kind in KINDS for pair in pairs(language, kind)]
    documents = [*unrelated(language), *(pair.document for pair in given)]
    own = {pair.card.id: pair.dialogue.id for pair in given}
    cards = [pair.card for pair in given] + load_cards(bundled_cards(language))
    alarms = {m.card_id for m in link(cards, documents) if m.flagged and m.document_id != own.get(m.card_id)}
    assert len(documents) > 100
    assert len(alarms) <= 0.1 * len(cards)


# ---- the score and the order


def test_the_score_is_overlap_over_what_the_card_shares_with_its_rivals() -> None:
    """By hand: two words that no bundled dialogue has. The rival holds one of them once, the best document twice."""
    size = 2 + len(load_bases("en")) + len((BUNDLED / "role_play_en.jsonl").read_text().splitlines())
    size += sum(len(base.exchanges) for base in load_bases("en"))

    def rarity(held: int) -> float:
        return math.log1p((size - held + 0.5) / (held + 0.5)) / math.log1p((size + 0.5) / 0.5)

    def overlap(times: int, words: int) -> float:
        saturated = times / (times + 1.5 * (0.25 + 0.75 * words / 180))
        return rarity(2) * saturated / math.sqrt(rarity(2) + rarity(0)) / 0.47

    documents: list[Document] = [("a", "en", "zyzzyva zyzzyva quoll"), ("b", "en", "quoll zyzzyva")]
    first, second = link([card("zyzzyva xenolith")], documents)
    assert (first.document_id, second.document_id) == ("a", "b")
    assert first.score == pytest.approx(overlap(2, 3) ** 1.5 / overlap(1, 2) / 1.55, rel=1e-4)
    assert second.score == pytest.approx(overlap(1, 2) ** 0.5 / 1.55, rel=1e-4)


def test_matches_stay_in_the_language_and_in_order() -> None:
    documents: list[Document] = [
        ("z1", "zh", "我养的水獭病了"),
        ("e1", "en", "an otter"),
        ("e2", "en", "an otter"),
        ("e3", "en", "no"),
    ]
    cards = [
        card("求助者的水獭病了", "z", "zh"),
        card("otter", "e"),
        card("the of and", "only stop words"),
        card("gnu", "none"),
    ]
    found = [(m.card_id, m.document_id, m.rank) for m in link(cards, documents, top=5)]
    assert found == [("z", "z1", 1), ("e", "e1", 1), ("e", "e2", 2)]
    assert link(cards, []) == [] and link([], documents) == []


@pytest.mark.slow
def test_everything_flagged_is_returned_whatever_top_is() -> None:
    pair = pairs("en")[0]
    copies: list[Document] = [(f"copy-{n}", "en", pair.document[2]) for n in range(7)]
    found = link([pair.card], [*copies, *unrelated("en")], top=2)
    assert {match.document_id for match in found if match.flagged} == {id for id, _, _ in copies}
    assert len(link([pair.card], list(unrelated("en")), top=2)) == 2


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    cards, documents = [pair.card for pair in pairs("zh")], [pair.document for pair in pairs("zh")]
    whole = link(cards, documents, top=3)
    monkeypatch.setattr("data_prep.role_play.contamination._BLOCK", 5)
    assert link(cards, documents, top=3) == whole


def test_the_threshold_is_part_of_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pairs("en")[0]
    [best] = link([pair.card], [pair.document])
    for threshold, flagged in ((best.score, 1), (best.score + 1e-6, 0)):
        monkeypatch.setattr("data_prep.role_play.contamination.THRESHOLD", threshold)
        assert sum(match.flagged for match in link([pair.card], [pair.document])) == flagged


@pytest.mark.parametrize(("dialogues", "expected"), [(5, (2, 4)), (99, (2, 4)), (100, (1, 3)), (5000, (1, 3))])
def test_chance_is_what_was_measured_at_the_next_smaller_size(
    dialogues: int, expected: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_prep.role_play.contamination.BY_CHANCE", {"en": ((30, 0.2, 0.4), (100, 0.1, 0.3))})
    assert by_chance(10, dialogues, "en") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("I don't know what Ann's otters EAT", "en", ["ann", "otters", "eat"]),
        ("co-op 24/7", "en", ["co", "op", "24", "7"]),
        ("水獭，病了！", "zh", ["水獭", "病了"]),
        ("我的是", "zh", []),
        ("用QQ聊", "zh", ["qq"]),
        ("", "zh", []),
    ],
)
def test_terms(text: str, language: Language, expected: list[str]) -> None:
    assert terms(text, language) == expected


# ---- files and the command

TURNS = [{"role": "seeker", "text": "My otter is ill."}, {"role": "supporter", "text": "I am sorry."}]
EXAMPLE: dict[str, Any] = {
    "id": "x",
    "language": "en",
    "kind": "support",
    "source": "test",
    "source_id": "x",
    "tokens": 40,
    "turns": 2,
    "messages": [
        {"role": "system", "content": "You play someone whose gnu escaped."},
        {"role": "user", "content": "Hello, how are you?"},
        {"role": "assistant", "content": "My otter is ill."},
        {"role": "user", "content": "I am sorry."},
    ],
}
DIALOGUE = {"id": "x", "language": "en", "source": "test", "turns": TURNS}


@pytest.mark.parametrize(
    "row", [EXAMPLE, DIALOGUE, {"dialogue": DIALOGUE, "situation": "gnu"}], ids=["example", "plain", "support"]
)
def test_the_three_forms_give_the_same_document(row: dict[str, Any], tmp_path: Path) -> None:
    assert read_documents(lines(tmp_path / "data.jsonl", row)) == [("x", "en", "My otter is ill.\nI am sorry.")]


@pytest.mark.parametrize(
    ("row", "message"), [(EXAMPLE | {"language": "french"}, "language"), (DIALOGUE, "source_id, kind|kind, source_id")]
)
def test_other_forms_are_refused_with_their_line(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "data.jsonl", EXAMPLE, row)
    with pytest.raises(UserError, match=rf"data\.jsonl:2: .*{message}"):
        read_documents(path)


def command(folder: Path, cards: Path, data: Path) -> Result:
    """The command as typer runs it."""
    app = Verbs()
    app.command()(check)
    return CliRunner().invoke(app, [str(cards), "--data", str(data), "--out", str(folder / "out")])


@pytest.mark.parametrize(("half", "status"), [(1, 1), (0, 0)])
def test_the_command_tells_clean_from_contaminated(
    half: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says beside the cards flagged how many would be by chance."""
    monkeypatch.setattr("data_prep.role_play.contamination.BY_CHANCE", {"en": ((30, 0.05, 0.2),)})
    cards = tmp_path / "cards.jsonl"
    write_jsonl(cards, [pair.card for pair in pairs("en")[1::2]])
    data = lines(tmp_path / "data.jsonl", *(pair.dialogue.model_dump(mode="json") for pair in pairs("en")[half::2]))
    done = command(tmp_path, cards, data)
    assert done.exit_code == status, done.output
    assert ("FLAGGED" in done.output) == bool(status)
    assert done.output.count("    dialogue: ") == 5
    rows = [json.loads(line) for line in (tmp_path / "out" / "matches.jsonl").read_text().splitlines()]
    assert any(row["flagged"] for row in rows) == bool(status)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    count = len({row["card_id"] for row in rows if row["flagged"]})
    assert f"{count} of 12 cards flagged among 12 dialogues; 0.6 to 2.4 by chance alone" in done.output
    assert manifest["figures"]["en"] == {"cards": 12, "dialogues": 12, "flagged": count, "by_chance": pytest.approx([0.6, 2.4])}
    (step,) = manifest["steps"]
    assert step["in"] == 12 and step["in"] - step["out"] == sum(step["dropped"].values())
    assert bool(step["dropped"]) == bool(status)


def test_nothing_to_compare_is_not_clean(tmp_path: Path) -> None:
    data = lines(tmp_path / "data.jsonl", EXAMPLE)
    done = command(tmp_path, bundled_cards("zh"), data)
    assert isinstance(done.exception, UserError) and "nothing to compare" in str(done.exception)
    done = command(tmp_path, bundled_cards("en"), lines(tmp_path / "twice.jsonl", EXAMPLE, EXAMPLE))
    assert isinstance(done.exception, UserError) and "duplicate dialogue ids" in str(done.exception)
