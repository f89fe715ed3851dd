"""Scores by category and by reply length, what models took, and what a dialogue costs: by hand."""

from pathlib import Path

import pytest

from core.endpoints import Endpoint, Price
from core.files import write_json, write_jsonl
from core.records import RoleCard, Turn, Usage
from core.specs import ModelSpec
from core.tables import Estimate
from evalsuite.runs.folder import USED, joined, prices_in, versions
from evalsuite.statistics.contestants import contestants_of
from evalsuite.statistics.leaderboard import NONE, Tally, by_category
from evalsuite.statistics.reply_length import ALL, length_table, replies_of
from evalsuite.statistics.summary import GOLD, THOUSAND, cost_table, dialogue_costs, model_uses, use_table
from tests.conftest import EscEval
from tests.evalsuite.records import make_dialogue, make_judgement, make_rubric, make_run
from tests.files_of_rows import read_sheet

RUBRIC = make_rubric("empathy", "skill")


def card(name: str, *category: str) -> RoleCard:
    about = category or None
    return RoleCard(id=name, language="en", problem="p", source="s", card_method="written", category=about)


CARDS = {name: card(name, *category) for name, *category in (("w1", "Work", "Pay"), ("w2", "Work"), ("f1", "Family"), ("n1",))}


def scored(scores: dict[tuple[str, str], tuple[float, float]], length: int = 3) -> Tally:
    """(supporter, card) → empathy and skill; the reply of the n-th dialogue has `length` + n signs."""
    dialogues, judgements = [], []
    for place, ((supporter, name), values) in enumerate(scores.items()):
        turns = (Turn(role="seeker", text="hi"), Turn(role="supporter", text="x" * (length + place)))
        dialogue = make_dialogue(f"{supporter}-{name}", supporter, card_id=name, turns=turns)
        dialogues.append(dialogue)
        judgements += [make_judgement(dialogue.id, key, v) for key, v in zip(RUBRIC.dimensions, values, strict=True)]
    return Tally(dialogues, judgements, RUBRIC)


def test_averages_by_category_are_those_of_its_cards_alone() -> None:
    tally = scored(
        {
            ("a", "w1"): (4, 2),
            ("a", "w2"): (2, 2),
            ("a", "f1"): (0, 1),
            ("a", "n1"): (4, 4),
            ("b", "w1"): (1, 1),
            ("b", "f1"): (3, 3),
        }
    )
    (table,) = by_category(tally, CARDS)
    assert table.columns == ("supporter", "Family", "Work", NONE), "what has no category comes last"
    cells = {str(row[0]): [cell and (cell.mean, cell.n) for cell in row[1:]] for row in table.rows}  # type: ignore[union-attr]
    assert cells == {
        "a": [(12.5, 1), (pytest.approx(62.5), 2), (100, 1)],  # work: (4+2)/2 and (2+2)/2 of 4, so 75 and 50
        "b": [(75, 1), (25, 1), None],  # b never met a card without a category
    }


def test_cards_without_categories_have_no_breakdown() -> None:
    tally = scored({("a", "n1"): (4, 4), ("b", "n1"): (1, 1)})
    assert [*by_category(tally, CARDS), *by_category(tally, {})] == []


def test_reply_length_is_compared_with_averages_over_all_dimensions() -> None:
    scores: dict[tuple[str, str], tuple[float, float]] = {
        ("a", f"c{n}"): values for n, values in enumerate([(0, 0), (1, 2), (3, 2), (2, 2), (4, 3)])
    }
    tally = scored(scores, length=10)
    unread = {"value": None}
    lost = [v.model_copy(update=unread) if (v.dialogue_id, v.dimension) == ("a-c1", "skill") else v for v in tally.verdicts]
    table = length_table(replies_of(tally.dialogues, contestants_of(tally.dialogues, lost, RUBRIC)))
    assert [(row[0], row[2]) for row in table.rows] == [("a", 12), (ALL, None)]
    cells = [row[3] for row in table.rows if isinstance(row[3], Estimate)]
    assert [cell.n for cell in cells] == [4, 4] and all(cell.low is not None for cell in cells), "of one supporter, two rows"


def used(calls: int, read: int, written: int) -> Usage:
    return Usage(calls=calls, prompt_tokens=read, completion_tokens=written)


def test_what_models_took_is_summed_by_role_and_priced() -> None:
    tally = scored({("a", "w1"): (1, 1), ("a", "f1"): (2, 2), ("silent", "w1"): (0, 0)})
    stages = {
        "simulate": {"supporter": {"a": used(10, 4000, 1000), "silent": Usage()}, "seeker": {"s": used(15, 3000, 300)}},
        "score": {"judge": {"j": used(3, 900, 21)}},
        "gold": {"judge": {"j": used(5, 50, 5)}},
    }
    prices = {"a": Price(input=1, output=10), "j": Price(input=2, output=0)}
    uses = model_uses(stages, tally.dialogues, tally.verdicts, prices)
    assert [(one.role, one.model, one.dialogues) for one in uses] == [
        ("supporter", "a", 2),
        ("seeker", "s", 3),
        ("judge", "j", 3),
        (GOLD, "j", 0),
    ]
    assert [one.cost for one in uses] == [pytest.approx(0.014), None, pytest.approx(0.0018), pytest.approx(0.0001)]
    table = use_table(uses)
    assert table.columns[3:7] == ("calls", "tokens in", "tokens out", "cost") and table.columns[-1] == THOUSAND
    assert table.rows[0] == ("a", "supporter", 2, 10, 4000, 1000, pytest.approx(0.014), 5, 2000, 500, pytest.approx(7))
    assert table.rows[3][7:] == (None, None, None, None), "the gold set is no dialogue of the run"
    unpriced = use_table(model_uses(stages, tally.dialogues, tally.verdicts, {}))
    assert "cost" not in " ".join(unpriced.columns) and unpriced.rows[0][3:] == (10, 4000, 1000, 5, 2000, 500)


def test_prices_are_remembered_and_the_last_one_counts() -> None:
    def made(price: Price | None) -> dict[str, dict[str, list[str]]]:
        spec = ModelSpec(name="m", endpoint=Endpoint(base_url="http://127.0.0.1:1/v1", price=price))
        return versions({}, RUBRIC, {}, [spec])

    first, second = Price(input=0.15, output=0.6), Price(input=2, output=8)
    assert "prices" not in made(None)
    assert prices_in(joined([made(first), made(None), made(second)])) == {"m": second}
    assert prices_in(joined([made(first)])) == {"m": first} and prices_in({}) == {}


def test_costs_by_hand(esc_eval: EscEval, tmp_path: Path) -> None:
    """Two dialogues with a, one with b; the judge was asked again later (stage score), which replaces its first asking."""
    dialogues = [
        make_dialogue(
            f"d{place}", supporter, usage=used(4, 1000 * (place + 1), 100), termination="max_turns", card_id=f"c{place}"
        )
        for place, supporter in enumerate("aab")
    ]
    usage = {
        "simulate": {
            "seeker": {"s": used(6, 3000, 150)},
            "supporter": {"a": used(4, 2000, 80), "b": used(2, 1000, 70)},
            "judge": {"j": used(30, 9, 9)},
        },
        "score": {"judge": {"j": used(3, 600, 30)}},
        "gold": {"judge": {"j": used(99, 99, 99)}},
    }
    calls = {
        "s/seeker": {"asked": 2, "seconds": 3.0},
        "a/supporter": {"asked": 4, "seconds": 8.0},
        "b/supporter": {"asked": 0, "seconds": 0},
    }
    timing = {"simulate": {"seconds": 9.0, "calls": calls}}
    timing["score"] = {"seconds": 2.0, "calls": {"j/judge": {"asked": 3, "seconds": 1.5}}}
    found = {cost.name: cost[1:] for cost in dialogue_costs(dialogues, usage, timing)}
    assert found == {
        "seeker s": (3, 3.0, 1000, 50, 2),  # 1.5 s a call, 6 calls of 3 dialogues
        "supporter a": (2, 4.0, 1000, 40, 2),
        "supporter b": (1, None, 1000, 70, 2),
        "judge j": (3, 0.5, 200, 10, 1),
        "dialogue with a": (2, 7.5, 1700, 110, 5),
        "dialogue with b": (1, None, 3200, 110, 5),
    }
    assert cost_table(dialogue_costs(dialogues, usage, timing)).rows[4] == ("dialogue with a", 2, 7.5, 1.7, 0.11, 5)
    assert dialogue_costs([make_dialogue("d")], {}, {}) == []

    run = make_run(tmp_path / "run", {"a": [1, 2], "b": [3, 4]})
    write_jsonl(run / "dialogues.jsonl", dialogues)
    write_jsonl(run / "judgements.jsonl", [make_judgement("d0", "fluency", 3, turn=1)])
    write_json(run / "usage.json", USED.dump_python(usage))
    write_json(run / "timing.json", timing)
    assert esc_eval("report", "run", "--against", "emoharbor") == (0, "")
    (costs,) = (run / "tables").glob("dialogue-costs.csv")
    rows = {row["what"]: row for row in read_sheet(costs)[1]}
    assert float(rows["dialogue with a"]["seconds"]) == 7.5 and rows["paper: EmoHarbor"]["seconds"].startswith("188.8")
    assert "Not in the paper" not in (run / "report.md").read_text().split("Cost of a dialogue")[1].split("###")[0]
