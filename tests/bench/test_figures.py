"""The benchmarks' own arithmetic: targets, ideals, slopes, padding."""

from pathlib import Path

import pytest
import typer

from core.errors import UserError
from core.files import read_object
from core.records import RoleCard
from data_prep.cards import bundled_cards
from data_prep.role_play.contamination import Document
from tests.bench.__main__ import QUICK, app
from tests.bench.client import ideal
from tests.bench.false_alarms import flagged, shares
from tests.bench.false_alarms import main as false_alarms
from tests.bench.figures import Bench, Figure, growth
from tests.bench.growth import slopes
from tests.bench.one_run import varied
from tests.bench.training import padding

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("values", "bounds", "met"),
    [
        ([1.0, 3.0, 9.0], {"at_least": 3.0}, True),  # the median counts, not the mean
        ([1.0, 2.9, 9.0], {"at_least": 3.0}, False),
        ([1.31], {"at_most": 1.3}, False),
        ([0.95, 1.05], {"at_least": 0.9, "at_most": 1.1}, True),
        ([0.5], {"at_least": 0.9, "at_most": 1.1}, False),
        ([], {"at_most": 1.3}, None),
        ([5.0], {}, None),
    ],
)
def test_a_target_is_met_by_the_median(values: list[float], bounds: dict[str, float], met: bool | None) -> None:
    assert Figure("f", values, bounds.get("at_least"), bounds.get("at_most")).met is met


def test_sums_by_hand(tmp_path: Path) -> None:
    assert ideal(500, 0.2, 256) == 500 * 17 * 0.2 / 256  # two waves of a path of 12 calls are 4.8 s, less than 6.64
    assert ideal(10, 0.2, 256) == pytest.approx(12 * 0.2)
    assert slopes({1000: 140.0, 100: 104.0, 10_000: 500.0}) == {1000: 36 / 900, 10_000: 360 / 9000}
    assert growth({100: 2.0, 10_000: 2.2, 1000: 9.0}) == pytest.approx(1.1)
    assert padding([[4, 2], [3, 3]]) == pytest.approx(2 / 14)
    assert len({(card.age, card.problem) for card in varied(450)}) == len({card.id for card in varied(450)}) == 450
    assert varied(50, first=400) == varied(450)[400:]
    cards = [RoleCard(id=word, language="en", problem=word, source="x", card_method="llm") for word in ("otter", "zyzzyva")]
    documents: list[Document] = [(f"{n}", "en", f"word{n} {'otter' if n == 0 else ''}") for n in range(40)]
    assert flagged(cards, documents) == 50
    assert set(shares(cards, documents, 3)[40]) == {50} and set(shares(cards, documents[1:], 3)[30]) == {0}
    assert [len(values) for values in shares(cards, documents, 3).values()] == [3, 1]
    with pytest.raises(UserError, match="--source extes: .*akin"):
        false_alarms([bundled_cards("en")], ["extes=."], out=tmp_path)


def test_figures_are_kept_with_their_sizes_and_in_one_table(tmp_path: Path) -> None:
    for key, value in (("one", 1.0), ("two", 5000.0)):
        bench = Bench(key, f"Bench {key}", runs=3)
        bench.add("calls/s", [value, value + 1], at_least=2000, peers={"openai-python": [3.0, 1.0, 2.0], "absent": []})
        bench.deliver(tmp_path)
    assert read_object(tmp_path / "two.json", "")["figures"][0]["met"] is True
    table = (tmp_path / "bench.md").read_text()
    assert "| calls/s | 1.5 | 1 | 2 | 2 | openai-python 2 | ≥ 2000 | NO |" in table
    assert "| calls/s | 5,000 | 5,000 | 5,001 | 2 | openai-python 2 | ≥ 2000 | yes |" in table


@pytest.mark.parametrize("part", sorted(QUICK))
def test_quick_sizes_are_options_of_their_part(part: str) -> None:
    command = typer.main.get_command(app).commands[part]  # type: ignore[attr-defined]
    assert command.make_context(part, QUICK[part].split()).params
