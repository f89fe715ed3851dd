"""Which seeker is closer to a human: both orders, ties, place, unreadable answers; win rates against hand and scipy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.errors import UserError
from core.records import Dialogue, Order, Preference, Verdict
from core.tables import Estimate, Table
from evalsuite.papers.role_play import Field, PairAnswer, choices_of, pairs_of, pairwise_tables, read_answer
from evalsuite.papers.win_rates import Choice, Mode, rate, votes
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.oracles import smoothed
from tests.evalsuite.test_role_play import Call, call, card, config, dialogue, run_folder

__all__ = ["call"]
HUMAN = "honestly I dunno"


def field(count: int = 2, trials: int = 1) -> list[Dialogue]:
    """Dialogues of the seekers bot and source on `count` cards."""
    cards = [f"c{number}" for number in range(count)]
    bots = [dialogue(f"bot:{c}{t}", card_id=c, simulator="bot", trial=t) for c in cards for t in range(trials)]
    return bots + [dialogue(f"source:{c}", card_id=c, simulator="source", supporter=None) for c in cards]


def answer(
    verdict: Verdict | None, order: Order = "ab", a: str = "bot:c00", b: str = "source:c0", who: str = "j"
) -> PairAnswer:
    return PairAnswer(dialogue_a=a, dialogue_b=b, annotator=who, question="q", verdict=verdict, order=order)


def votes_of(answers: list[PairAnswer], dialogues: list[Dialogue], mode: Mode) -> list[Choice]:
    return votes(choices_of(answers, dialogues), mode)


def row(table: Table, *start: str) -> dict[str, Any]:
    (found,) = (row for row in table.rows if row[: len(start)] == start)
    return dict(zip(table.columns, found, strict=True))


# --- asking -----------------------------------------------------------------------------------------------------------------


def asked(
    call: Call, folder: Path, judge: Callable[[str], str | Answer], *more: object
) -> tuple[Endpoint, dict[str, Table], str]:
    """Bot against people on two cards, before a judge who answers what `judge` makes of the prompt."""
    cards = [card("c0", source_id="0"), card("c1", source_id="1")]
    greeted = [
        dialogue(f"d{n}", "I am distressed.", "Why?", "Because.", "Oh.", card_id=f"c{n}").model_copy(
            update={
                "turns": (
                    dialogue("x", "a", "GREETING").turns[1],
                    *dialogue("x", "I am distressed.", "Why?", "No.", "Oh.").turns,
                )
            }
        )
        for n in range(2)
    ]
    run_folder(folder / "run", greeted, cards)
    people = [
        dialogue(f"p{n}", HUMAN, "ok?", "nah", "hm", "LATE WORDS", "bye", source_id=str(n), card_id=None, supporter=None)
        for n in range(2)
    ]
    run_folder(folder / "people", people, cards)

    def behave(body: dict[str, Any], count: int) -> Answer:
        said = judge(body["messages"][1]["content"])
        return said if isinstance(said, Answer) else Answer(said)

    with Endpoint(behave, models=("embedded",)) as endpoint:
        seekers = ("--seeker", "bot=run", "--seeker", "source=people/dialogues.jsonl", "--cards", "people/cards.jsonl")
        given = ("paper", "role-play", "--pairs", "--config", config(folder), *seekers, "--out", "out", "--json", *more)
        given = (*given, "--set", f"judge=embedded@{endpoint.url}")
        code, out, error = call(*given)
        assert code == 0, error
        before = len(endpoint.requests)
        assert call(*given)[:2] == (0, out) and len(endpoint.requests) == before, "a finished comparison asks nothing"
    found = orjson.loads(out)["tables"]
    tables = {t["key"]: Table(t["key"], "t", tuple(t["columns"]), tuple(map(tuple, t["rows"]))) for t in found}
    return endpoint, tables, out


@pytest.mark.slow
def test_both_orders_of_every_pair_are_asked_and_a_judge_who_knows_wins_always(call: Call, tmp_path: Path) -> None:
    endpoint, tables, _ = asked(call, tmp_path, lambda text: "1" if text.index(HUMAN) < text.index("distressed") else "2")
    assert len(endpoint.requests) == 4
    assert endpoint.requests[0]["structured_outputs"] == {"choice": ["1", "2", "tie"]}
    prompts = [body["messages"][1]["content"] for body in endpoint.requests]
    assert sum(text.index(HUMAN) < text.index("distressed") for text in prompts) == 2
    assert row(tables["role_play-win_rates"], "en", "source")["win rate %"]["mean"] == 100
    pair = row(tables["role_play-pairs"], "en", "bot", "source")
    assert (pair["won"], pair["ties"], pair["lost"], pair["unread"], pair["cards"]) == (0, 0, 2, 0, 2)
    position = row(tables["role_play-position"], "embedded")
    assert position["first shown picked %"]["mean"] == 50 and position["same in both orders %"]["mean"] == 100
    kept = [Preference.model_validate_json(line) for line in (tmp_path / "out" / "preferences.jsonl").read_bytes().splitlines()]
    assert [(p.order, p.verdict) for p in kept] == [("ab", "b"), ("ba", "b")] * 2
    command = "paper role-play out/preferences.jsonl --dialogues out/pairwise_dialogues.jsonl --out out --json"
    again = call(*command.split())
    figures = [[list(found) for found in table.rows] for table in tables.values()]
    assert [table["rows"] for table in orjson.loads(again[1])["tables"]] == figures, "read back, they come to the same"


@pytest.mark.slow
def test_in_paper_mode_every_answer_is_a_vote_and_chats_are_whole(call: Call, tmp_path: Path) -> None:
    endpoint, tables, _ = asked(call, tmp_path, lambda text: "1", "--mode", "paper")
    figures = row(tables["role_play-win_rates"], "en", "bot")
    assert (figures["won"], figures["ties"], figures["lost"]) == (2, 0, 2) and figures["win rate %"]["mean"] == 50
    assert all("LATE WORDS" in body["messages"][1]["content"] for body in endpoint.requests)


def test_neither_greeting_nor_length_tells_the_chats_apart(call: Call, tmp_path: Path) -> None:
    endpoint, _, _ = asked(call, tmp_path, lambda text: "tie")
    for body in endpoint.requests:
        text = body["messages"][1]["content"]
        assert "GREETING" not in text and "LATE WORDS" not in text
        assert [text.count(f"[{number}] ") for number in (1, 4, 5)] == [2, 2, 0]
        assert not any(name in text for name in ("bot", "source", "embedded"))


def test_what_is_no_verdict_is_kept_with_its_text_and_is_in_no_rate(call: Call, tmp_path: Path) -> None:
    refused = Answer("1", finish_reason="content_filter")
    _, tables, _ = asked(call, tmp_path, lambda text: "the first" if text.index(HUMAN) < text.index("distressed") else refused)
    figures = row(tables["role_play-win_rates"], "en", "bot")
    assert figures["unread"] == 2 and figures["win rate %"] == {"mean": None, "low": None, "high": None, "n": 0}
    assert row(tables["role_play-position"], "embedded")["parse rate %"] == 0
    kept = [orjson.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_bytes().splitlines()]
    told = {(answer["verdict"], answer["failure"], answer["raw"]) for answer in kept}
    assert len(kept) == 4 and told == {(None, None, "the first"), (None, "refusal", "1")}


@pytest.mark.parametrize(
    ("text", "order", "verdict"),
    [("1", "ab", "a"), ("1", "ba", "b"), ("2", "ab", "b"), ("2.", "ba", "a"), (" Tie\n", "ba", "tie"), ('"1"', "ab", "a"),
     ("12", "ab", None), ("1 or 2", "ab", None), ("", "ab", None), ("0", "ab", None)],
)  # fmt: skip
def test_an_answer_is_one_of_three_words_or_unread(text: str, order: Order, verdict: str | None) -> None:
    assert read_answer(text, order) == verdict


def test_nothing_to_compare_and_half_given_options_are_clear(call: Call, tmp_path: Path) -> None:
    run_folder(tmp_path / "run", [dialogue("d")], [card()])
    given = ("paper", "role-play", "--pairs", "--config", config(tmp_path), "--out", "x")
    assert "nothing to compare" in call(*given, "--seeker", "a=run")[2]
    assert "two or more with --pairs" in call("paper", "role-play", "--pairs", "--out", "x")[2]
    (tmp_path / "p.jsonl").write_text('{"dialogue_a": "d"}\n')
    assert "no model is asked" in call("paper", "role-play", "p.jsonl", "--out", "x", "--seeker", "a=run")[2]
    assert "give the dialogues" in call("paper", "role-play", "p.jsonl")[2]
    (tmp_path / "c.csv").touch()
    assert "the other files are tables" in call("paper", "role-play", "p.jsonl", "c.csv", "--dialogues", "run")[2]


# --- votes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "votes"), [("native", []), ("paper", ["b"])])
def test_an_answer_lost_with_a_server_is_in_no_rate(mode: Mode, votes: list[str]) -> None:
    """What its other order would have said is not known: natively the pair has no vote; unread ones still count as such."""
    lost = answer(None, "ab").model_copy(update={"failure": "infrastructure"})
    assert [one.verdict for one in votes_of([lost, answer("b", "ba")], field(), mode)] == votes
    tables = pairwise_tables([lost, answer("b", "ba"), answer(None, "ab", who="k")], [*field()], mode)
    assert [row[:3] for row in tables[-1].rows] == [("j", 1, 100.0), ("k", 1, 0.0)]


@pytest.mark.parametrize(
    ("verdicts", "vote"),
    [
        (("a", "a"), "a"),
        (("a", "b"), "tie"),
        (("a", "tie"), "tie"),
        (("tie", "tie"), "tie"),
        (("b", None), None),
        (("b",), "b"),
    ],
)
def test_two_orders_are_one_vote(verdicts: tuple[Verdict | None, ...], vote: str | None) -> None:
    answers = [answer(verdict, order) for verdict, order in zip(verdicts, get_args(Order), strict=False)]
    assert [one.verdict for one in votes_of(answers, field(), "native")] == [vote]
    assert [one.verdict for one in votes_of(answers, field(), "paper")] == list(verdicts)


def test_answers_that_fit_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="no dialogue 'zz'"):
        votes_of([answer("a", a="zz")], field(), "native")
    with pytest.raises(UserError, match="both are of seeker bot"):
        votes_of([answer("a", b="bot:c10")], field(), "native")
    with pytest.raises(UserError, match="c0 and c1"):
        votes_of([answer("a", b="source:c1")], field(), "native")
    assert answer("a").preference() is not None and answer(None).preference() is None


# --- rates ------------------------------------------------------------------------------------------------------------------


def test_a_rate_is_the_mean_over_votes_with_cards_drawn_whole() -> None:
    own = [Choice("en", f"c{n % 12}", "x", "y", "a" if n % 5 else "b") for n in range(30)]
    found = rate(own, lambda vote: float(vote.verdict == "a"))
    assert found.mean == pytest.approx(80) and found.n == 30
    sums, counts = np.zeros(12), np.zeros(12)
    for vote in own:
        sums[int(vote.item[1:])] += 100 * (vote.verdict == "a")
        counts[int(vote.item[1:])] += 1
    low, high = smoothed(sums.tolist(), [0, 100], counts.tolist())
    assert found.low == pytest.approx(low, abs=2) and found.high == pytest.approx(high, abs=2)


VERDICTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "tie", None]), st.sampled_from(["ab", "ba"])),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@given(VERDICTS)
def test_what_one_wins_the_other_loses(drawn: list[tuple[int, Verdict | None, Order]]) -> None:
    answers = [answer(v, o, f"bot:c{n}0", f"source:c{n}", f"person {i}") for i, (n, v, o) in enumerate(drawn)]
    overall, pairs, position = pairwise_tables(answers, field(4), "native")[:3]
    bot, source = row(overall, "en", "bot"), row(overall, "en", "source")
    assert (bot["won"], bot["ties"], bot["lost"]) == (source["lost"], source["ties"], source["won"])
    assert bot["won"] + bot["ties"] + bot["lost"] + bot["unread"] == len(answers)
    if bot["win rate %"].mean is not None:
        assert bot["win rate %"].mean + source["win rate %"].mean == pytest.approx(100)
        ties, n = bot["ties"], bot["win rate %"].n
        assert bot["win rate %"].mean == pytest.approx(100 * (bot["won"] + ties / 2) / n)
    assert row(pairs, "en", "bot", "source")["won"] == bot["won"]
    assert pairwise_tables(answers[::-1], field(4), "native")[0] == overall, "the order of the records changes nothing"
    assert len(position.rows) == len(answers)


def _is_share(found: Estimate, hits: list[bool]) -> None:
    assert found.n == len(hits) and found.mean == (pytest.approx(100 * np.mean(hits)) if hits else None)
    assert found.low is None or found.high is None or -1e-9 <= found.low <= (found.mean or 0) <= found.high <= 100 + 1e-9


SEEN = st.dictionaries(  # one annotator's answers: (card, order) → verdict
    st.tuples(st.integers(0, 3), st.sampled_from(["ab", "ba"])), st.sampled_from(["a", "b", "tie", None]), min_size=1
)


@given(SEEN)
@example({(0, "ab"): "a", (0, "ba"): "b"})  # two votes on one card
def test_what_the_order_does_and_papers_votes_against_sums(seen: dict[tuple[int, Order], Verdict | None]) -> None:
    """Ties, unread answers, one order alone, one card: all of them may be all there is."""
    answers = [answer(verdict, order, f"bot:c{n}0", f"source:c{n}") for (n, order), verdict in seen.items()]
    overall, _, position = pairwise_tables(answers, field(4), "paper")
    shown = row(position, "j")
    decided = [(order, verdict) for (_, order), verdict in seen.items() if verdict in ("a", "b")]
    _is_share(shown["first shown picked %"], [verdict == order[0] for order, verdict in decided])
    both = [(seen.get((n, "ab")), seen.get((n, "ba"))) for n in range(4)]
    both = [pair for pair in both if None not in pair]
    _is_share(shown["same in both orders %"], [first == second for first, second in both])
    read = [verdict for verdict in seen.values() if verdict is not None]
    assert shown["parse rate %"] == pytest.approx(100 * len(read) / len(seen))
    bot = row(overall, "en", "bot")
    assert (bot["won"], bot["ties"], bot["lost"]) == (read.count("a"), read.count("tie"), read.count("b"))
    _is_share(bot["of decided %"], [verdict == "a" for verdict in read if verdict != "tie"])
    points = [{"a": 100, "tie": 50, "b": 0}[verdict] for verdict in read]
    won = bot["win rate %"]
    assert won.n == len(read) and won.mean == (pytest.approx(np.mean(points)) if read else None)
    cards = {n for (n, _), verdict in seen.items() if verdict is not None}
    assert (won.low is None) == (won.high is None) == (len(cards) < 2)
    assert won.low is None or -1e-9 <= won.low <= won.mean <= won.high <= 100 + 1e-9


def test_simulated_pairs_share_supporter_and_trial_and_people_meet_every_trial() -> None:
    held = [
        *field(1, trials=2),
        dialogue("other:0", card_id="c0", simulator="other", trial=0),
        dialogue("other:1", card_id="c0", simulator="other", trial=0, supporter="someone else"),
        dialogue("lost", card_id="c0", simulator="lost", termination="infrastructure"),
        Dialogue.model_validate(dialogue("mute").model_dump() | {"turns": [], "termination": "refusal", "simulator": "mute"}),
    ]
    pairs, left_out = pairs_of(Field(held, {d.id: card("c0") for d in held}))
    assert {(a.id, b.id) for a, b in pairs} == {
        ("bot:c00", "source:c0"),
        ("bot:c01", "source:c0"),
        ("bot:c00", "other:0"),
        ("source:c0", "other:0"),
        ("source:c0", "other:1"),
    }
    assert left_out == {"lost": 1, "mute": 1}
